"""Copies and comparisons of strided views, shared out to as many threads as there are cores."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from tiles.engine.loops import Box

PIECE_BYTES = 1 << 19
"""Moves are shared between cores in pieces of at least about this size."""
ALIGNMENT_BYTES = 64
"""XLA:CPU takes NumPy arrays that lie at multiples of this as they are, and copies others (1.1 ms for 8 MB)."""
SHORT_RUN = 32
"""NumPy copies runs of neighbours in a loop each; up to so many elements are faster copied as one wide element."""
COMPARED = 1 << 17
"""Elements compared at once: what comes out, a byte each, stays in a core's cache."""

Moves = list[list[tuple[np.ndarray, np.ndarray]]]
"""Pairs of views of equal shapes, target and source, for each thread."""


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(_cores() - 1, 1), thread_name_prefix="tile-memory")


@cache
def _cores() -> int:
    return os.cpu_count() or 1


def in_turn(function: Callable[[Any], Any], shares: Sequence[Any]) -> list[Any]:
    """Call a function on every share that is not empty, each in a thread; the first one in this thread: a switch less."""
    mine, *others = [share for share in shares if share] or [[]]
    theirs = [_threads().submit(function, share) for share in others]
    return [function(mine), *(each.result() for each in theirs)]


# ---- pieces of boxes


def shared_out(boxes: Iterable[Box], itemsize: int) -> list[list[Box]]:
    """Return boxes in one share for each core, the large ones cut; all in one share where there is little to do."""
    boxes = list(boxes)
    cores = min(_cores(), sum(box.size for box in boxes) * itemsize // PIECE_BYTES)
    if cores < 2:
        return [boxes]
    shares: list[list[Box]] = [[] for _ in range(cores)]
    loads = [0] * cores
    for box in sorted(boxes, key=lambda box: -box.size):
        pieces = _cut(box, cores) if box.size * itemsize >= PIECE_BYTES else [box]
        for piece in pieces:
            least = loads.index(min(loads))
            shares[least].append(piece)
            loads[least] += piece.size
    return shares


def _cut(box: Box, pieces: int) -> list[Box]:
    """Return about equal pieces of a box, cut along the longest of its loops but the last."""
    counts = [count for count, _, _ in box.loops[:-1]]
    if not counts:
        return [box]
    loop = counts.index(max(counts))
    pieces = min(pieces, counts[loop])
    ends = [counts[loop] * piece // pieces for piece in range(pieces + 1)]
    return [box.piece(loop, a, b) for a, b in itertools.pairwise(ends)]


# ---- views


def view(array: np.ndarray, box: Box, side: int, itemsize: int, joins: bool = True) -> np.ndarray:
    """Return a box as elements of an array without gaps, in the first or the second arrangement.

    Elements are unsigned integers or, where it ``joins``, short runs of neighbours as one; what reaches outside the
    array is refused.
    """
    loops = box.loops
    kind = f"u{itemsize}"
    if joins and loops and loops[-1][1:] == (itemsize, itemsize) and loops[-1][0] <= SHORT_RUN:
        kind = f"V{itemsize * loops[-1][0]}"
        loops = loops[:-1]
    raw = array.reshape(-1).view(f"u{array.itemsize}")
    shape = tuple(loop[0] for loop in loops)
    return np.ndarray(shape, kind, raw.data, box.offsets[side], tuple(loop[1 + side] for loop in loops))


def moves(shares: Sequence[Sequence[Box]], target: np.ndarray, source: np.ndarray, itemsize: int) -> Moves:
    """Return the copies of boxes from one array to another; a box' first arrangement is the target's."""
    return [[(view(target, b, 0, itemsize), view(source, b, 1, itemsize)) for b in share] for share in shares]


def copy(moves: Moves) -> None:
    """Copy sources to targets; none may overlap another's."""
    in_turn(_copy, moves)


def _copy(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    for target, source in pairs:
        np.copyto(target, source)


def merged(several: Iterable[Moves]) -> Moves:
    """Return moves that are done together."""
    found: Moves = [[]]
    for one in several:
        if len(one) == 1:  # little
            found[-1].extend(one[0])
            continue
        found += [[] for _ in range(len(one) - len(found))]
        for share, pairs in zip(found, one, strict=False):
            share.extend(pairs)
    return found


def differences(shares: Sequence[Sequence[Box]], array: np.ndarray, itemsize: int) -> Moves:
    """Return the comparisons of boxes' two arrangements in one array, for ``are_equal``."""
    pieces = [[piece for box in share for piece in _small(box)] for share in shares]
    return [
        [(view(array, b, 0, itemsize, False), view(array, b, 1, itemsize, False)) for b in p] for p in pieces
    ]


def _small(box: Box) -> list[Box]:
    """Return a box in pieces of about ``COMPARED`` elements."""
    pieces = -(-box.size // COMPARED)
    return _cut(box, pieces) if pieces > 1 else [box]


def are_equal(moves: Moves) -> bool:
    """Return whether all pairs of views hold the same."""
    return all(in_turn(_are_equal, moves))


def _are_equal(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> bool:
    room = np.empty(max((x.size for x, _ in pairs), default=0), np.bool_)
    for x, y in pairs:
        differ = room[: x.size].reshape(x.shape)
        np.not_equal(x, y, out=differ)
        if differ.any():
            return False
    return True


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array without values, so aligned that XLA reads it where it lies."""
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)
