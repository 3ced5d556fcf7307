"""Copies between views of arrays: in place, in pieces, by as many threads as there are cores."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

PIECE_BYTES = 1 << 19
"""Views are copied and compared in pieces of at least about this size, one for each core; an MLP step took 14 % more
processor time with 64 pieces, and 9 % with 8."""
ALIGNMENT_BYTES = 64
"""XLA:CPU takes NumPy arrays that lie at multiples of this as they are, and copies others (1.1 ms for 8 MB)."""
SHORT_RUN = 32
"""NumPy copies runs of neighbours in a loop each; up to so many elements are faster copied as one wide element."""


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max((os.cpu_count() or 1) - 1, 1), thread_name_prefix="tile-memory")


def by_pieces(function: Callable[..., Any], *views: np.ndarray) -> list[Any]:
    """Call a function on pieces of equally shaped views, cut along the longest of their leading axes."""
    shape = views[0].shape
    pieces = min(os.cpu_count() or 1, views[0].nbytes // PIECE_BYTES)
    if pieces < 2 or len(shape) < 2:
        return [function(*views)]
    length = max(shape[:-1])
    axis, pieces = shape.index(length), min(pieces, length)
    ends = [length * piece // pieces for piece in range(pieces + 1)]
    cuts = [(*(slice(None),) * axis, slice(a, b)) for a, b in itertools.pairwise(ends)]
    mine, *others = ([view[cut] for view in views] for cut in cuts)
    theirs = [_threads().submit(function, *pieces) for pieces in others]
    return [function(*mine), *(each.result() for each in theirs)]  # this thread works too: a switch less


def copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy between views of the same elements."""
    if source.shape != target.shape:
        source = np.broadcast_to(source, target.shape)
    size, run = target.itemsize, target.shape[-1] if target.ndim else 1
    if 1 < run <= SHORT_RUN and min(_neighbours(target), _neighbours(source)) == run:
        target, source = target.view(f"V{run * size}"), source.view(f"V{run * size}")
    by_pieces(np.copyto, target, source)


def _neighbours(x: np.ndarray) -> int:
    """Return how many elements lie one behind the other, in the order of the last axes."""
    count = 1
    for size, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if size > 1 and stride != count * x.itemsize:
            break
        count *= size
    return count


def compact(x: np.ndarray) -> np.ndarray:
    """Return an array with its elements one behind the other, the same array if they are."""
    if x.flags.c_contiguous:
        return x
    out = empty(x.shape, x.dtype)
    copy(out, x)
    return out


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array without values, so aligned that XLA reads it where it lies."""
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)
