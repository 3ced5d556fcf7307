"""What hypothesis draws follows from the seed alone."""

from __future__ import annotations

import contextlib
import importlib


def forget_constants_of_modules() -> None:
    """Have hypothesis draw no constants of the modules that happen to be imported by then.

    Newer versions do, so the same seed draws other examples alone, in a whole run, and in each process of a run. Reading
    those modules takes ten seconds of a process, too.
    """
    with contextlib.suppress(ModuleNotFoundError):  # versions that have no providers draw none
        providers = importlib.import_module("hypothesis.internal.conjecture.providers")
        if hasattr(providers, "_get_local_constants"):
            providers._get_local_constants = lambda: providers._local_constants
