"""Copies and comparisons of strided views, shared out to as many threads as there are cores."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from tiles._jax_compat import DTypeLike
from tiles.engine.addresses import Box

PIECE_BYTES = 1 << 19
"""Moves go to several threads in pieces of at least about this size."""
PIECES = 4
"""Most pieces of a box for each thread: who is done early, or not held up by XLA's threads, takes the next one."""
ALIGNMENT_BYTES = 64
"""XLA:CPU takes NumPy arrays that lie at multiples of this as they are, and copies others (1.1 ms for 8 MB)."""
SHORT_RUN = 32
"""NumPy copies runs of neighbours in a loop each; up to so many elements are faster copied as one wide element."""
BLOCK_BYTES = 1 << 20
"""Short runs of neighbours are copied in blocks of at most about this size, half of a core's second cache."""
COMPARED = 1 << 18
"""Elements compared at once: what comes out, a byte each, stays in a core's cache."""

Pair = tuple[np.ndarray, np.ndarray]
"""Views of equal shapes: target and source, or what is compared."""


@dataclass(frozen=True)
class Moves:
    """Copies or comparisons that do not depend on one another.

    Args:
      pairs: what is copied or compared, the large ones first.
      threads: how many share them.
    """

    pairs: Sequence[Pair]
    threads: int


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(_cores() - 1, 1), thread_name_prefix="tile-memory")


@cache
def _cores() -> int:
    return os.cpu_count() or 1


def threads_for(size_bytes: int) -> int:
    """Return how many threads are worth their while for so many bytes."""
    return max(min(_cores(), size_bytes // PIECE_BYTES), 1)


def _shared(function: Callable[[Iterator[Pair]], bool], moves: Moves) -> bool:
    """Call a function in several threads, this one too, that take pairs in turn; return whether all agree."""
    pairs = iter(moves.pairs)  # a list's: each pair goes to one thread
    others = [_threads().submit(function, pairs) for _ in range(moves.threads - 1)]
    mine = function(pairs)
    return all([each.result() for each in others]) and mine


# ---- pieces of boxes


def pieces(boxes: Iterable[Box], itemsize: int) -> list[Box]:
    """Return boxes, the large ones cut so that threads can share them and caches hold them, the largest first."""
    found: list[Box] = []
    for box in sorted(boxes, key=lambda box: -box.size):
        count = min(PIECES * _cores(), box.size * itemsize // PIECE_BYTES) if _cores() > 1 else 1
        for piece in _cut(box, _farthest(box), count):
            found += _blocks(piece, itemsize)
    return found


def _blocks(box: Box, itemsize: int) -> list[Box]:
    """Return a box in pieces that a cache holds, where its neighbours are few and lines would be fetched again and again."""
    count = -(-box.size * itemsize // BLOCK_BYTES)
    if count < 2 or not box.loops or box.loops[-1][0] > SHORT_RUN:
        return [box]
    cut = _cut(box, _farthest(box), count)
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


def moves(boxes: Iterable[Box], target: np.ndarray, source: np.ndarray, itemsize: int) -> Moves:
    """Return the copies of boxes from one array to another; a box' first arrangement is the target's."""
    cut = pieces(boxes, itemsize)
    pairs = [(view(target, b, 0, itemsize), view(source, b, 1, itemsize)) for b in cut]
    return Moves(pairs, threads_for(sum(b.size for b in cut) * itemsize))


def comparisons(boxes: Iterable[Box], array: np.ndarray, itemsize: int) -> Moves:
    """Return the comparisons of boxes' two arrangements in one array, for ``are_equal``."""
    cut = [piece for box in boxes for piece in _small(box)]
    pairs = [(view(array, b, 0, itemsize, False), view(array, b, 1, itemsize, False)) for b in cut]
    return Moves(pairs, threads_for(sum(b.size for b in cut) * itemsize))


def _small(box: Box) -> list[Box]:
    """Return a box in pieces of about ``COMPARED`` elements, all copies of one element in one piece: it is read once."""
    return _cut(box, _farthest(box), -(-box.size // COMPARED))


def merged(several: Iterable[Moves]) -> Moves:
    """Return moves that are done together."""
    pairs = [pair for moves in several for pair in moves.pairs]
    return Moves(pairs, threads_for(sum(target.nbytes for target, _ in pairs)))


def copy(moves: Moves) -> None:
    """Copy sources to targets; none may overlap another's."""
    _shared(_copy, moves)


def _copy(pairs: Iterator[Pair]) -> bool:
    for target, source in pairs:
        np.copyto(target, source)
    return True


def are_equal(moves: Moves) -> bool:
    """Return whether all pairs of views hold the same."""
    return _shared(_are_equal, moves)


def _are_equal(pairs: Iterator[Pair]) -> bool:
    scratch = np.empty(COMPARED, np.bool_)
    for x, y in pairs:
        if x.size > scratch.size:
            scratch = np.empty(x.size, np.bool_)
        same = scratch[: x.size].reshape(x.shape)
        np.equal(x, y, out=same)
        if not same.all():
            return False
    return True


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an array without values, so aligned that XLA reads it where it lies."""
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)
