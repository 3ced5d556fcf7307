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
BLOCK_BYTES = 1 << 20
"""Short runs of neighbours are copied in blocks of at most about this size, half of a core's second cache."""
COMPARED = 1 << 18
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
    shares: list[list[Box]] = [[] for _ in range(max(cores, 1))]
    loads = [0] * len(shares)
    for box in sorted(boxes, key=lambda box: -box.size):
        large = len(shares) > 1 and box.size * itemsize >= PIECE_BYTES
        for piece in _cut(box, _farthest(box), len(shares)) if large else [box]:
            least = loads.index(min(loads))
            shares[least] += _blocks(piece, itemsize)
            loads[least] += piece.size
    return shares


def _blocks(box: Box, itemsize: int) -> list[Box]:
    """Return a box in pieces that a cache holds, where its neighbours are few and lines would be fetched again and again."""
    pieces = -(-box.size * itemsize // BLOCK_BYTES)
    if pieces < 2 or not box.loops or box.loops[-1][0] > SHORT_RUN:
        return [box]
    cut = _cut(box, _farthest(box), pieces)
    return [box] if len(cut) == 1 else [block for piece in cut for block in _blocks(piece, itemsize)]


def _farthest(box: Box) -> int:
    """Return the loop that goes farthest in both arrangements: what it leaves together lies close in both."""
    reach = [min(abs(s), abs(t)) for _, s, t in box.loops]
    return reach.index(max(reach)) if reach else 0


def _cut(box: Box, loop: int, pieces: int) -> list[Box]:
    """Return about equal pieces of a box, cut along a loop."""
    count = box.loops[loop][0] if box.loops else 1
    pieces = min(pieces, count)
    if pieces < 2:
        return [box]
    ends = [count * piece // pieces for piece in range(pieces + 1)]
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
    """Return a box in pieces of about ``COMPARED`` elements, all copies of one element in one piece: it is read once."""
    pieces = -(-box.size // COMPARED)
    return _cut(box, _farthest(box), pieces) if pieces > 1 else [box]


def are_equal(moves: Moves) -> bool:
    """Return whether all pairs of views hold the same."""
    return all(in_turn(_are_equal, moves))


def _are_equal(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> bool:
    room = np.empty(max((x.size for x, _ in pairs), default=0), np.bool_)
    for x, y in pairs:
        same = room[: x.size].reshape(x.shape)
        np.equal(x, y, out=same)
        if not same.all():
            return False
    return True


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array without values, so aligned that XLA reads it where it lies."""
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)
