"""What cells receive: how much, in how many stretches, and from how many tiles.

A slice is a product of axes, so what does not depend on what a cell's tile holds itself is worked out once for each
slice (numbers of slices, not of cells), from tables along the axes, and kept: plans that cut alike, on whatever tiles,
share it. What the tile holds comes from tables of overlaps, slices by parts, along each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tiles.graph import Arrangement, Layout
from tiles.graph.layout import ceil_div
from tiles.numerics.shared import hold, read_only
from tiles.plan.slices import AxisSlices, Slices
from tiles.plan.truth import Truth, both, either, of, pick, settled, shaped

Cuts = tuple[tuple[int, int], ...]
"""Size and grain of each axis of a layout, on whatever tiles its parts lie."""

LARGEST_TABLE = 1 << 14
"""Overlaps of an axis are looked up in a table of at most so many entries, and else computed for each cell."""


class Digit(NamedTuple):
    """A digit of a box's elements: dimension, its group, and whether it counts the elements of a group."""

    axis: int
    group: int
    is_inner: bool


@lru_cache(maxsize=4096)
def digits_of(order: Arrangement, extents: tuple[int, ...]) -> tuple[Digit, ...]:
    """Return the digits of a box's elements, the fastest first."""
    if order.is_row_major:
        return _row_major(len(extents))
    factors = order.factors(extents)
    group = {d: step for d, _, step in factors if step > 1}
    return tuple(Digit(d, group.get(d, 1), d in group and step == 1) for d, _, step in reversed(factors))


@lru_cache(maxsize=16)
def _row_major(rank: int) -> tuple[Digit, ...]:
    """Return the digits of row-major boxes, the same ones whatever their extents."""
    return tuple(Digit(d, 1, False) for d in reversed(range(rank)))


def cuts_of(layout: Layout) -> Cuts:
    """Return how a layout cuts its axes."""
    return tuple((split.size, split.grain) for split in layout.axes)


@lru_cache(maxsize=512)
def held(layout: Layout, num_tiles: int) -> np.ndarray:
    """Return by tile the number of the part that it holds of a tensor, -1 for none; int64 ``[num_tiles]``."""
    return read_only(layout.part_of_tile(num_tiles))


@lru_cache(maxsize=256)
def ends_of(cuts: Cuts) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]:
    """Return per axis the place of every part along it, its first element and one past its last, int64 ``[parts]``."""
    grid = tuple(max(1, ceil_div(size, grain)) for size, grain in cuts)
    index = np.indices(grid).reshape(len(grid), -1) if grid else np.zeros((0, 1), np.int64)
    found = tuple(
        (at, at * grain, np.minimum(at * grain + grain, size))
        for at, (size, grain) in zip(index, cuts, strict=True)
    )
    hold(found)
    return found


class _Mine(NamedTuple):
    """A factor in the number of stretches that a cell's own part makes up: what it holds along an axis, in groups.

    Args:
      axis: the axis.
      group: elements that lie together.
      is_inner: whether elements of a group are counted, at most all of them; else groups.
      joined: by slice, whether the factor is 1 as what is faster is there as a whole.
    """

    axis: int
    group: int
    is_inner: bool
    joined: Truth

    def of(self, overlap: np.ndarray, number: Any) -> np.ndarray:
        """Return the factor of every cell from how many elements along the axis its tile holds."""
        if self.is_inner:
            found = np.minimum(overlap, self.group)
        else:
            found = overlap if self.group == 1 else ceil_div(overlap, self.group)
        return pick(of(self.joined, number), 1, found)


@dataclass(frozen=True, eq=False)
class Slicewise:
    """What arrives of each slice where a tile holds none of it; int64 ``[slices]`` each.

    Args:
      need: elements.
      parts: parts they lie in.
      windows: stretches of the parts' memory.
      stretches: stretches of the slice's memory.
      in_one_go: whether each part fills one stretch of the slice, and nothing lies between.
      in_order: whether no window goes on beyond a stretch, and nothing lies between these.
      jumps: stretches of the slice's memory as far as they do not follow one another.
      own_windows: factors of how many of the windows a cell's own part makes up.
      own_stretches: the same of the stretches.
    """

    need: np.ndarray
    parts: np.ndarray
    windows: np.ndarray
    stretches: np.ndarray
    in_one_go: Truth
    in_order: Truth
    jumps: np.ndarray
    own_windows: tuple[_Mine, ...]
    own_stretches: tuple[_Mine, ...]

    def __post_init__(self) -> None:
        hold(*vars(self).values())


class Along(NamedTuple):
    """What slices read along an axis: int64 arrays that broadcast against those of the other axes.

    Args:
      low: the first index.
      high: the last one.
      inside: how many.
      pieces: parts they lie in.
      step: from one to the next.
      size: elements of the tensor.
      grain: elements of its parts.
      extent: the longest slice.
      is_whole: whether they begin and end where parts do, which are stored at full grain.
      is_one: whether they lie in one part, if in any.
      is_full: whether they are as long as the longest.
    """

    low: np.ndarray
    high: np.ndarray
    inside: np.ndarray
    pieces: np.ndarray
    step: int
    size: int
    grain: int
    extent: int
    is_whole: Truth
    is_one: Truth
    is_full: Truth

    def shaped(self, shape: tuple[int, ...]) -> Along:
        """Return the same with arrays of a shape."""
        return self._replace(
            low=self.low.reshape(shape),
            high=self.high.reshape(shape),
            inside=self.inside.reshape(shape),
            pieces=self.pieces.reshape(shape),
            is_whole=shaped(self.is_whole, shape),
            is_one=shaped(self.is_one, shape),
            is_full=shaped(self.is_full, shape),
        )

    def is_aligned(self, group: int) -> Truth:
        """Return whether groups of so many elements are not cut, but for the last of a slice, if it lies in several parts."""
        if self.is_one is True or group == 1:
            return True
        if self.grain % group:
            return self.is_one
        return either(self.is_one, settled(self.low % group == 0))

    def ends_group(self, group: int) -> Truth:
        """Return whether slices end where a group of so many elements does, or the tensor."""
        last = self.high + 1
        return settled((last % group == 0) | (last == self.size))


@lru_cache(maxsize=4096)
def _along(axis: AxisSlices, size: int, grain: int) -> Along:
    """Return what slices read along an axis that is cut into parts of ``grain``; int64 ``[slices]``."""
    (low, high), inside = axis.bounds, axis.num_inside
    pieces = np.where(high >= low, high // grain - low // grain + 1, 0)
    if abs(axis.step) != 1:
        pieces = np.minimum(pieces, inside)
    ends = (high // grain + 1) * grain if size > grain else size
    is_whole = settled((low % grain == 0) & (high + 1 == ends))
    is_one, is_full = settled(pieces <= 1), settled(inside == axis.extent)
    hold(pieces, is_whole, is_one, is_full)
    return Along(low, high, inside, pieces, axis.step, size, grain, axis.extent, is_whole, is_one, is_full)


@lru_cache(maxsize=1024)
def _slicewise(
    axes: tuple[AxisSlices, ...], cuts: Cuts, kept: Arrangement, arrives: Arrangement
) -> Slicewise:
    """Return what arrives of every slice from parts that are ordered as ``kept``, into memory ordered as ``arrives``."""
    grid = tuple(axis.first.size for axis in axes)
    read: list[Along] = []
    for number, (axis, (size, grain)) in enumerate(zip(axes, cuts, strict=True)):
        shape = [1] * len(axes)
        shape[number] = axis.first.size
        read.append(_along(axis, size, grain).shaped(tuple(shape)))
    part = tuple(min(size, grain) for size, grain in cuts)
    extents = tuple(axis.extent for axis in axes)
    orders = digits_of(kept, part), digits_of(arrives, extents)
    return counted(read, *orders, lambda values: np.broadcast_to(values, grid).reshape(-1))


def counted(
    read: Sequence[Along],
    kept: Sequence[Digit],
    arrives: Sequence[Digit],
    each: Callable[[np.ndarray], np.ndarray],
) -> Slicewise:
    """Return what arrives of slices.

    Args:
      read: what they read along each axis.
      kept: digits of the order in which parts are held, the fastest first.
      arrives: digits of the order in which slices are written.
      each: brings what broadcasts to the slices to one value for each.
    """
    need = parts = np.ones((), np.int64)
    for a in read:
        need, parts = need * a.inside, parts * a.pieces
    windows, own_windows = _windows(read, kept, each)
    stretches, is_dense, own_stretches = _stretches(read, arrives, each)
    in_one_go = both(settled(stretches == parts), is_dense)
    in_order = _is_finer(read, kept, arrives)
    follow = either(in_one_go, in_order)
    return Slicewise(
        need=each(need),
        parts=each(parts),
        windows=each(windows),
        stretches=each(stretches),
        in_one_go=_of_each(in_one_go, each),
        in_order=_of_each(in_order, each),
        jumps=each(pick(follow, np.minimum(stretches, 1), stretches)),
        own_windows=own_windows,
        own_stretches=own_stretches,
    )


def _of_each(truth: Truth, each: Callable[[np.ndarray], np.ndarray]) -> Truth:
    """Return what holds for each slice."""
    return truth if isinstance(truth, bool) else settled(each(truth))


def _factor(digit: Digit, joined: Truth, each: Callable[[np.ndarray], np.ndarray]) -> tuple[_Mine, ...]:
    """Return the factor of a digit in the stretches of a cell's own part, none where it is always 1."""
    joined = _of_each(joined, each)
    return () if joined is True else (_Mine(*digit, joined),)


def _windows(
    read: Sequence[Along], digits: Sequence[Digit], each: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, tuple[_Mine, ...]]:
    """Return in how many stretches of its parts' memory a slice lies, and the factors of those in a cell's own part."""
    windows, mine = np.ones((), np.int64), ()
    is_whole: Truth = True  # all of the parts along the faster digits
    for digit in digits:
        a, group = read[digit.axis], digit.group
        joined = is_whole if abs(a.step) == 1 else False
        mine += _factor(digit, joined, each)
        if digit.is_inner:
            windows = windows * (1 if joined is True else pick(joined, 1, np.minimum(a.inside, group)))
            if joined is not False:
                joined = both(joined, both(settled(a.low % group == 0), a.ends_group(group)))
            is_whole = joined
            continue
        if joined is True:
            groups = a.pieces
        elif group == 1 or abs(a.step) != 1:
            groups = pick(joined, a.pieces, a.inside)
        else:
            groups = pick(joined, a.pieces, np.where(a.inside > 0, a.high // group - a.low // group + 1, 0))
        windows = windows * groups
        is_whole = both(joined, a.is_whole)
    return windows, mine


def _is_finer(read: Sequence[Along], kept: Sequence[Digit], arrives: Sequence[Digit]) -> Truth:
    """Return whether each stretch of the parts' memory lies within one of the slice's, and nothing between those.

    Then they can as well be taken in the slice's order. Only where both are in the same order, in groups that parts keep
    whole.
    """
    if tuple(kept) != tuple(arrives):
        return False
    found: Truth = True
    is_whole: Truth = True
    filled: Truth = True
    is_full: Truth = True
    for digit in kept:
        a, group = read[digit.axis], digit.group
        is_whole = is_whole if abs(a.step) == 1 else False
        filled = filled if a.step > 0 else False
        if is_full is not True:
            found = both(found, either(is_full, settled(a.inside <= 1)))
        if group > 1:
            in_parts: Truth = True if a.grain % group == 0 else a.is_one
            found = both(found, both(in_parts, settled(a.low % group == 0)))
        if found is False:
            return False
        if digit.is_inner:
            is_whole = both(is_whole, a.ends_group(group))
            is_full = both(is_full, settled(a.inside % group == 0))
            continue
        if is_whole is not False and filled is not True:
            not_whole = (not is_whole) if isinstance(is_whole, bool) else ~is_whole
            found = both(found, either(either(not_whole, filled), settled(a.inside <= a.pieces)))
        is_whole = both(is_whole, a.is_whole)
        filled = both(filled, both(a.is_one, a.is_full))
        is_full = both(is_full, a.is_full)
    return found


def _stretches(
    read: Sequence[Along], digits: Sequence[Digit], each: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, Truth, tuple[_Mine, ...]]:
    """Return in how many stretches of a slice's memory its parts arrive, if there are no gaps, and the factors of its own."""
    stretches, mine = np.ones((), np.int64), ()
    filled: Truth = True
    is_dense: Truth = True
    for digit in digits:
        a, group = read[digit.axis], digit.group
        if filled is not True:
            is_dense = both(is_dense, either(filled, settled(a.inside <= 1)))
        # neighbours in the slice, whatever lies between them in the tensor
        joined = filled if a.step > 0 else False
        mine += _factor(digit, joined, each)
        is_aligned = a.is_aligned(group)
        if digit.is_inner:
            in_groups = 1 if joined is True else pick(joined, 1, np.minimum(a.inside, group))
            if is_aligned is not True:
                broken = ceil_div(a.inside, np.minimum(group, a.grain)) + a.pieces
                in_groups = pick(is_aligned, in_groups, broken)
            stretches = stretches * in_groups
            filled = both(joined, is_aligned)
            continue
        if joined is True:
            stretches = stretches * a.pieces
        else:
            groups = a.inside if group == 1 else pick(is_aligned, ceil_div(a.inside, group), 1)
            stretches = stretches * pick(joined, a.pieces, groups)
        filled = both(joined, both(a.is_one, a.is_full))
    return stretches, is_dense, mine


@lru_cache(maxsize=1024)
def _overlaps(axis: AxisSlices, size: int, grain: int) -> np.ndarray:
    """Return how many elements slices and parts of an axis share, int64 ``[slices, parts]``."""
    lo = np.arange(max(1, ceil_div(size, grain)), dtype=np.int64) * grain
    slices = np.arange(axis.first.size)[:, None]
    return read_only(axis.overlap(slices, lo, np.minimum(lo + grain, size)))


def overlaps(slices: Slices, source: Layout, parts: np.ndarray) -> list[np.ndarray]:
    """Return per axis how many elements of each cell's slice a part has there, int64 ``[cells]``, or ``[1]``.

    Args:
      slices: what cells read.
      source: where it lies.
      parts: the number of the part on each cell's tile; where there is none, the result says nothing.
    """
    found: list[np.ndarray] = []
    ends = ends_of(cuts_of(source))
    for axis, split, where, (at, lo, hi) in zip(
        slices.axes, source.axes, slices.coordinates, ends, strict=True
    ):
        if axis.first.size * split.parts > LARGEST_TABLE:
            found.append(axis.overlap(where, lo[parts], hi[parts]))
            continue
        table = _overlaps(axis, split.size, split.grain).reshape(-1)
        if split.parts > 1:
            found.append(table[where * split.parts + at[parts]])
        else:
            found.append(table[where] if table.size > 1 else table)
    return found


class Arriving(NamedTuple):
    """What arrives at each cell, int64 ``[cells]`` each.

    Args:
      need: elements of its slice that lie inside the tensor.
      own: of these, those its tile holds.
      windows: stretches of other tiles' memory they come from.
      jumps: stretches of the slice's memory they arrive in, as far as they do not follow one another.
      sources: tiles they come from.
    """

    need: np.ndarray
    own: np.ndarray
    windows: np.ndarray
    jumps: np.ndarray
    sources: np.ndarray

    def changes(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how often the tile listened to changes while so many words arrive, and the address they are written to."""
        most = np.maximum(self.sources, words)  # parts of a word come one by one if from several tiles
        selects = np.minimum(np.maximum(self.windows, self.sources), most)
        return selects, np.minimum(np.maximum(self.jumps, words > 0), words)


def arriving(slices: Slices, source: Layout, order: Arrangement, num_tiles: int) -> Arriving:
    """Return what arrives at each cell, and how often it changes its source and its pointer meanwhile.

    Words arrive part by part, each part's in the order it holds them. What is contiguous in the part is listened to at
    once; what is contiguous in the slice, too, goes on at the pointer where it was left. Parts of which each fills one
    stretch of the slice follow one another, so that only the tile's own elements interrupt them. So do stretches of
    several parts in the slice's order, row by row for instance, where each is sent by itself anyway.

    Args:
      slices: what cells read.
      source: where it lies.
      order: order in which elements of a slice are written.
      num_tiles: tiles of the machine.
    """
    found = _slicewise(slices.axes, cuts_of(source), source.arrangement, order)
    parts = held(source, num_tiles)[slices.tiles]
    own = (parts >= 0).astype(np.int64)
    mine = overlaps(slices, source, parts) if own.any() else []
    for overlap in mine:
        own *= overlap
    return less_own(found, slices.number, own, mine)


def less_own(found: Slicewise, number: Any, own: np.ndarray, mine: Sequence[np.ndarray]) -> Arriving:
    """Return what arrives at cells that hold something of their slices themselves.

    Args:
      found: what arrives of slices where nothing of them is held.
      number: the slice of each cell, as an index.
      own: elements that its tile holds.
      mine: the same along each axis.
    """
    need, windows, parts = found.need[number], found.windows[number], found.parts[number]
    is_own = (own > 0).astype(np.int64)
    if not is_own.any():
        return Arriving(need, own, np.maximum(windows, 0), found.jumps[number], parts)
    stretches, in_one_go, in_order = (
        found.stretches[number],
        of(found.in_one_go, number),
        of(found.in_order, number),
    )
    own_windows, own_stretches = is_own, is_own
    for factor in found.own_windows:
        own_windows = own_windows * factor.of(mine[factor.axis], number)
    for factor in found.own_stretches:
        own_stretches = own_stretches * factor.of(mine[factor.axis], number)
    own_stretches = np.minimum(own_stretches, stretches)
    if in_one_go is True:
        jumps = np.minimum(stretches, 1 + is_own)
    else:
        jumps = pick(in_one_go, np.minimum(stretches, 1 + is_own), stretches - own_stretches)
    if in_order is not False:
        jumps = pick(in_order, np.minimum(jumps, own_stretches + 1), jumps)
    return Arriving(need, own, np.maximum(windows - own_windows, 0), jumps, parts - is_own)
