"""What holds for all of several slices or parts, for none, or for some: plans are regular, so that it is mostly one answer for all.

A ``bool`` stands for an array of it, and leaves nothing to compute.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Truth: TypeAlias = bool | np.ndarray
"""True or False for all, else bool, an array of several."""
Number: TypeAlias = int | np.ndarray
"""A number for all, or an array of several."""


def settled(found: np.ndarray) -> Truth:
    """Return what holds for all or for none as that, anything else as it is."""
    if found.all():
        return True
    return found if found.any() else False


def both(a: Truth, b: Truth) -> Truth:
    """Return where both hold."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return a & b


def either(a: Truth, b: Truth) -> Truth:
    """Return where one of them holds, or both."""
    if isinstance(a, bool):
        return True if a else b
    if isinstance(b, bool):
        return True if b else a
    return a | b


def pick(which: Truth, x: Number, y: Number) -> Any:
    """Return ``x`` where something holds, else ``y``: numbers or arrays, one of them itself where that is all."""
    if isinstance(which, bool):
        return x if which else y
    return np.where(which, x, y)


def of(which: Truth, number: Any) -> Truth:
    """Return what holds for those of the given numbers."""
    if isinstance(which, bool):
        return which
    found: np.ndarray = which[number]
    return found


def shaped(which: Truth, shape: tuple[int, ...]) -> Truth:
    """Return what holds, of several as an array of a shape."""
    return which if isinstance(which, bool) else which.reshape(shape)
