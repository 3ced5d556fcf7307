"""Where the elements of arrays lie, as nested loops over addresses: what a move between two places is made of.

An axis is a tuple of runs; in a run neighbours follow a few nested loops, as digits of a number do. Two places
of an axis are refined until their loops match, so parts can be copied to slices cut elsewhere without a tensor between.
All strides and offsets are in bytes. The work grows with axes and digits, never with parts or elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

Loops = tuple[tuple[int, int], ...]
"""Count and stride of every loop, slowest first."""


@dataclass(frozen=True)
class Run:
    """Neighbouring elements of an axis.

    Args:
      start: the first one.
      offset: where that one lies.
      loops: where the others lie from there.
    """

    start: int
    offset: int
    loops: Loops

    @property
    def end(self) -> int:
        """One past the last element."""
        return self.start + math.prod(count for count, _ in self.loops)


Axis = tuple[Run, ...]
"""All elements of an axis, in order."""


def dense(size: int, stride: int) -> Axis:
    """Return an axis of elements at one distance; 0 where the same element counts for all."""
    return (Run(0, 0, ((size, stride),)),) if size else ()


def row_major(shape: Sequence[int], itemsize: int) -> list[int]:
    """Return the strides of an array without gaps."""
    return [itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def in_order(shape: Sequence[int], itemsize: int) -> Place:
    """Return the place of an array without gaps."""
    return Place(tuple(map(dense, shape, row_major(shape, itemsize))))


def part_axis(size: int, grain: int, digits: Loops, inner: Loops) -> Axis:
    """Return an axis cut into parts.

    Args:
      size: elements.
      grain: elements of a full part; the last one may be short.
      digits: where parts lie: the digits of a part's number, which may count further than there are parts.
      inner: where the elements of a full part lie in it.
    """
    if not size:
        return ()
    full, rest = divmod(size, grain)
    number = Run(0, 0, digits)
    runs = [Run(r.start * grain, r.offset, (*r.loops, *inner)) for r in _cut(number, 0, full)]
    if rest:
        (last,) = _cut(number, full, full + 1)
        short = Run(full * grain, last.offset, inner)
        runs += _cut(short, short.start, size)
    return tuple(runs)


def _cut(run: Run, first: int, end: int) -> list[Run]:
    """Return some elements of a run's axis as runs."""
    if first >= end:
        return []
    if (first, end) == (run.start, run.end):
        return [run]
    (_, stride), *rest = run.loops
    inner = tuple(rest)
    length = math.prod(count for count, _ in inner)

    def at(turn: int) -> Run:
        return Run(run.start + turn * length, run.offset + turn * stride, inner)

    low, high = first - run.start, end - run.start
    a, b = -(-low // length), high // length  # the turns in between are whole
    if a > b:  # all in one turn
        return _cut(at(b), first, end)
    found = _cut(at(a - 1), first, run.start + a * length) if low % length else []
    if a < b:
        found.append(replace(at(a), loops=((b - a, stride), *inner)))
    return found + (_cut(at(b), run.start + b * length, end) if high % length else [])


@dataclass(frozen=True)
class Place:
    """Where the elements of a tensor lie.

    Args:
      axes: one per dimension.
      offset: of the first element.
    """

    axes: tuple[Axis, ...]
    offset: int = 0


@dataclass(frozen=True)
class Box:
    """Elements at regular addresses in two places.

    Args:
      offsets: of the first one in each.
      loops: count, and stride in each place, slowest first.
    """

    offsets: tuple[int, int]
    loops: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(count for count, _, _ in self.loops)

    def piece(self, loop: int, first: int, end: int) -> Box:
        """Return some turns of a loop."""
        count, *strides = self.loops[loop]
        assert 0 <= first < end <= count
        a, b = (offset + first * stride for offset, stride in zip(self.offsets, strides, strict=True))
        loops = (*self.loops[:loop], (end - first, strides[0], strides[1]), *self.loops[loop + 1 :])
        return Box((a, b), loops)


def boxes(first: Place, second: Place) -> list[Box] | None:
    """Return what two places of a tensor have in common: few boxes that hold every element once.

    None if an axis is cut at distances that do not divide one another; a dense axis fits any other.
    """
    common = [_matched(x, y) for x, y in zip(first.axes, second.axes, strict=True)]
    found: list[Box] = []
    for choice in itertools.product(*common):
        parts = [part for part in choice if part is not None]
        if len(parts) < len(choice):
            return None
        a = sum((p.offsets[0] for p in parts), first.offset)
        b = sum((p.offsets[1] for p in parts), second.offset)
        found.append(Box((a, b), _joined(itertools.chain.from_iterable(p.loops for p in parts))))
    return found


def _matched(x: Axis, y: Axis) -> list[Box | None]:
    """Return an axis' elements as boxes of one dimension; None for runs that do not fit."""
    found: list[Box | None] = []
    for a, b in itertools.product(x, y):
        first, end = max(a.start, b.start), min(a.end, b.end)
        if first < end:
            found += _refined(_cut(a, first, end), _cut(b, first, end))
    return found


def _refined(xs: list[Run], ys: list[Run]) -> list[Box | None]:
    if len(xs) > 1 or len(ys) > 1:
        return _matched(tuple(xs), tuple(ys))
    return [_together(xs[0], ys[0])]


def _together(x: Run, y: Run) -> Box | None:
    """Return two runs of the same elements with their loops split until they match."""
    a, b = list(x.loops), list(y.loops)
    loops: list[tuple[int, int, int]] = []
    while a and b:
        (n, s), (m, t) = a.pop(), b.pop()
        if n % m and m % n:
            return None
        count = min(n, m)
        loops.append((count, s, t))
        if n > count:
            a.append((n // count, s * count))
        if m > count:
            b.append((m // count, t * count))
    return Box((x.offset, y.offset), tuple(reversed(loops)))


def _joined(loops: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Return loops without those that run once; where one goes on as another ends in both places, both are one."""
    found = [loop for loop in loops if loop[0] > 1]
    while True:
        pairs = itertools.permutations(range(len(found)), 2)
        follows = ((i, j) for i, j in pairs if found[i][1:] == tuple(found[j][0] * s for s in found[j][1:]))
        i, j = next(follows, (0, 0))
        if i == j:
            return tuple(found)
        found[j] = (found[i][0] * found[j][0], *found[j][1:])
        del found[i]
