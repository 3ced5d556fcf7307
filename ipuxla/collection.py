"""Python's cyclic garbage collector, paused while programs are compiled and read.

Both make hundreds of thousands of objects that live on, and hardly a cycle; the collector walks them all again and again.
Compiling a training step of GPT-2-small took a fifth more processor time with it, reading it back from a file twice as
much.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector inside; it goes on, if it was on before, when the last of all threads leaves."""
    global _pauses, _was_enabled
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()
