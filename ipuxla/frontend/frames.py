"""Which frames of a stack are the user's own: neither JAX's, nor the standard library's, nor an installed package's."""

from __future__ import annotations

import functools
import re
import sysconfig
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import TypeVar

import jax

_F = TypeVar("_F")

_JAX = re.compile(rf"^{re.escape(str(files(jax)))}[/\\]|[/\\](site|dist)-packages[/\\](jax|jaxlib)[/\\]")
_INSTALLED = re.compile(
    r"[/\\](site|dist)-packages[/\\]"
    r"|[/\\]lib(64)?[/\\]python[\d.]+[/\\]"
    rf"|^{re.escape(sysconfig.get_path('stdlib'))}[/\\]"
    r"|^<frozen "
    r"|[/\\](bin|Scripts)[/\\][^/\\.]+(\.exe[/\\]__main__\.py)?$"
)
"""Packages, the standard library, and the scripts by which packages are started; also those of other machines."""


@functools.lru_cache(maxsize=4096)
def is_jax(file: str) -> bool:
    """Whether a file is JAX's own, which no location ever names."""
    return _JAX.search(file) is not None


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a file belongs to something installed rather than to the user."""
    return is_jax(file) or _INSTALLED.search(file) is not None


def users_own(frames: Iterable[_F], file_of: Callable[[_F], str]) -> _F | None:
    """Return the innermost frame of the user's own; where all are a library's, the innermost that is not JAX's.

    Args:
      frames: innermost first.
      file_of: returns a frame's file.
    """
    innermost: _F | None = None
    for frame in frames:
        file = file_of(frame)
        if not is_library(file):
            return frame
        if innermost is None and not is_jax(file):
            innermost = frame
    return innermost
