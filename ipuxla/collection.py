"""Python's cyclic garbage collector, paused while programs are compiled, read, and traced for the fast engine.

All three make hundreds of thousands of objects that live on, and hardly a cycle; the collector walks them all again and
again. Compiling a training step of GPT-2-small took a fifth more processor time with it, reading it back from a file twice
as much, tracing a transformer's block half as much again. When it goes on, what was made meanwhile counts as old: the
collector would else walk all of it as if it were new, and once more as each generation fills.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Generator

_lock = threading.Lock()
_inside: set[object] = set()
_was_enabled = False


@contextlib.contextmanager
def collection_paused() -> Generator[None]:
    """Pause the collector inside; it goes on, if it was on before, when the last of all threads leaves."""
    global _was_enabled
    own = object()
    try:  # from the first change on: an interruption must not leave the collector off
        with _lock:
            if not _inside:
                _was_enabled = gc.isenabled()
            _inside.add(own)
            gc.disable()
        yield
    finally:
        with _lock:
            _inside.discard(own)
            if not _inside and _was_enabled:
                _go_on()


def _go_on() -> None:
    """Start the collector; all objects count as such that have survived before, and are walked when all are."""
    try:
        if not gc.get_freeze_count():  # else somebody else froze some, and they are to stay so
            gc.freeze()
            gc.unfreeze()
    finally:
        gc.enable()
