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


@dataclass(frozen=True, eq=False)
class Held:
    """What tiles hold of a tensor: by tile the number of its part, -1 for none, and the part's place along each axis."""

    part: np.ndarray
    places: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        hold(self.part, self.places)


@lru_cache(maxsize=128)
def held(layout: Layout, num_tiles: int) -> Held:
    """Return what each tile holds of a tensor, int64 ``[num_tiles]`` each."""
    part = layout.part_of_tile(num_tiles)
    places = np.unravel_index(np.maximum(part, 0), layout.grid) if layout.grid else ()
    return Held(part, tuple(places))


class _Mine(NamedTuple):
    """A factor in the number of stretches that a cell's own part makes up: what it holds along an axis, in groups.

    Args:
      axis: the axis.
      group: elements that lie together.
      is_inner: whether elements of a group are counted, at most all of them; else groups.
      joined: by slice, whether the factor is 1 as what is faster is there as a whole; None for never.
    """

    axis: int
    group: int
    is_inner: bool
    joined: np.ndarray | None

    def of(self, overlap: np.ndarray, number: Any) -> np.ndarray:
        """Return the factor of every cell from how many elements along the axis its tile holds."""
        if self.is_inner:
            found = np.minimum(overlap, self.group)
        else:
            found = overlap if self.group == 1 else ceil_div(overlap, self.group)
        return found if self.joined is None else np.where(self.joined[number], 1, found)


@dataclass(frozen=True, eq=False)
class Slicewise:
    """What arrives of each slice where a tile holds none of it; int64 ``[slices]`` each.

    Args:
      need: elements.
      parts: parts they lie in.
      windows: stretches of the parts' memory.
      stretches: stretches of the slice's memory.
      in_one_go: whether each part fills one stretch of the slice, and nothing lies between; bool.
      in_order: whether no window goes on beyond a stretch, and nothing lies between these; bool.
      own_windows: factors of how many of the windows a cell's own part makes up.
      own_stretches: the same of the stretches.
    """

    need: np.ndarray
    parts: np.ndarray
    windows: np.ndarray
    stretches: np.ndarray
    in_one_go: np.ndarray
    in_order: np.ndarray
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
    """

    low: np.ndarray
    high: np.ndarray
    inside: np.ndarray
    pieces: np.ndarray
    step: int
    size: int
    grain: int
    extent: int


def along(
    low: np.ndarray, high: np.ndarray, inside: np.ndarray, step: int, size: int, grain: int, extent: int
) -> Along:
    """Return what slices read along an axis, and in how many parts that lies; see ``Along``."""
    pieces = np.where(high >= low, high // grain - low // grain + 1, 0)
    if abs(step) != 1:
        pieces = np.minimum(pieces, inside)
    return Along(low, high, inside, pieces, step, size, grain, extent)


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
        low, high, inside = (x.reshape(shape) for x in (*axis.bounds, axis.num_inside))
        read.append(along(low, high, inside, axis.step, size, grain, axis.extent))
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
    return Slicewise(
        need=each(need),
        parts=each(parts),
        windows=each(windows),
        stretches=each(stretches),
        in_one_go=each((stretches == parts) & is_dense),
        in_order=each(_is_finer(read, kept, arrives)),
        own_windows=own_windows,
        own_stretches=own_stretches,
    )


def _factor(digit: Digit, joined: np.ndarray, each: Callable[[np.ndarray], np.ndarray]) -> tuple[_Mine, ...]:
    """Return the factor of a digit in the stretches of a cell's own part, none where it is always 1."""
    if joined.all():
        return ()
    return (_Mine(*digit, each(joined) if joined.any() else None),)


def _windows(
    read: Sequence[Along], digits: Sequence[Digit], each: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, tuple[_Mine, ...]]:
    """Return in how many stretches of its parts' memory a slice lies, and the factors of those in a cell's own part."""
    windows, mine = np.ones((), np.int64), ()
    is_whole = np.ones((), bool)  # all of the parts along the faster digits
    for digit in digits:
        a, group = read[digit.axis], digit.group
        joined = is_whole & (abs(a.step) == 1)
        mine += _factor(digit, joined, each)
        if digit.is_inner:
            windows = windows * np.where(joined, 1, np.minimum(a.inside, group))
            ends = ((a.high + 1) % group == 0) | (a.high + 1 == a.size)
            is_whole = joined & (a.low % group == 0) & ends
            continue
        groups = a.high // group - a.low // group + 1 if abs(a.step) == 1 else a.inside
        windows = windows * np.where(joined, a.pieces, np.where(a.inside > 0, groups, 0))
        ends = np.where(a.size > a.grain, (a.high // a.grain + 1) * a.grain, a.size)
        is_whole = joined & (a.low % a.grain == 0) & (a.high + 1 == ends)  # stored at full grain
    return windows, mine


def _is_finer(read: Sequence[Along], kept: Sequence[Digit], arrives: Sequence[Digit]) -> np.ndarray:
    """Return whether each stretch of the parts' memory lies within one of the slice's, and nothing between those.

    Then they can as well be taken in the slice's order. Only where both are in the same order, in groups that parts keep
    whole.
    """
    found = np.ones((), bool)
    if tuple(kept) != tuple(arrives):
        return ~found
    is_whole = filled = is_full = found
    for digit in kept:
        a, group = read[digit.axis], digit.group
        is_whole, filled = is_whole & (abs(a.step) == 1), filled & (a.step > 0)
        found = found & (is_full | (a.inside <= 1))
        if group > 1:
            found = found & ((a.grain % group == 0) | (a.pieces <= 1)) & (a.low % group == 0)
        if digit.is_inner:
            is_whole = is_whole & (((a.high + 1) % group == 0) | (a.high + 1 == a.size))
            is_full = is_full & (a.inside % group == 0)
            continue
        found = found & (~is_whole | filled | (a.inside <= a.pieces))
        ends = np.where(a.size > a.grain, (a.high // a.grain + 1) * a.grain, a.size)
        is_whole = is_whole & (a.low % a.grain == 0) & (a.high + 1 == ends)  # stored at full grain
        filled = filled & (a.pieces <= 1) & (a.inside == a.extent)
        is_full = is_full & (a.inside == a.extent)
    return found


def _stretches(
    read: Sequence[Along], digits: Sequence[Digit], each: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, tuple[_Mine, ...]]:
    """Return in how many stretches of a slice's memory its parts arrive, if there are no gaps, and the factors of its own."""
    stretches, mine = np.ones((), np.int64), ()
    filled, is_dense = np.ones((), bool), np.ones((), bool)
    for digit in digits:
        a, group = read[digit.axis], digit.group
        is_dense = is_dense & (filled | (a.inside <= 1))
        joined = filled & (a.step > 0)  # neighbours in the slice, whatever lies between them in the tensor
        mine += _factor(digit, joined, each)
        is_aligned = (a.pieces <= 1) | ((a.grain % group == 0) & (a.low % group == 0))
        if digit.is_inner:
            broken = ceil_div(a.inside, np.minimum(group, a.grain)) + a.pieces
            in_groups = np.where(joined, 1, np.minimum(a.inside, group))
            stretches = stretches * np.where(is_aligned, in_groups, broken)
            filled = joined & is_aligned
            continue
        groups = np.where(is_aligned | (group == 1), ceil_div(a.inside, group), 1)
        stretches = stretches * np.where(joined, a.pieces, groups)
        filled = joined & (a.pieces <= 1) & (a.inside == a.extent)
    return stretches, is_dense, mine


@lru_cache(maxsize=1024)
def _overlaps(axis: AxisSlices, size: int, grain: int) -> np.ndarray:
    """Return how many elements slices and parts of an axis share, int64 ``[slices, parts]``."""
    lo = np.arange(max(1, ceil_div(size, grain)), dtype=np.int64) * grain
    slices = np.arange(axis.first.size)[:, None]
    return read_only(axis.overlap(slices, lo, np.minimum(lo + grain, size)))


def overlaps(slices: Slices, source: Layout, num_tiles: int) -> list[np.ndarray]:
    """Return per axis how many elements of each cell's slice its tile's part has there, int64 ``[cells]`` each.

    A tile without a part counts as one with the first.
    """
    places = held(source, num_tiles).places
    found: list[np.ndarray] = []
    for axis, split, where, place in zip(slices.axes, source.axes, slices.coordinates, places, strict=True):
        part = place[slices.tiles]
        if axis.first.size * split.parts <= LARGEST_TABLE:
            table = _overlaps(axis, split.size, split.grain)
            found.append(table.reshape(-1)[where * split.parts + part])
        else:
            found.append(axis.overlap(where, split.lo[part], split.hi[part]))
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
    own = (held(source, num_tiles).part[slices.tiles] >= 0).astype(np.int64)
    mine = overlaps(slices, source, num_tiles) if own.any() else []
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
    stretches, in_one_go, in_order = found.stretches[number], found.in_one_go[number], found.in_order[number]
    is_own = (own > 0).astype(np.int64)
    if not is_own.any():
        jumps = np.where(in_one_go | in_order, np.minimum(stretches, 1), stretches)
        return Arriving(need, own, np.maximum(windows, 0), jumps, parts)
    own_windows, own_stretches = is_own, is_own
    for factor in found.own_windows:
        own_windows = own_windows * factor.of(mine[factor.axis], number)
    for factor in found.own_stretches:
        own_stretches = own_stretches * factor.of(mine[factor.axis], number)
    own_stretches = np.minimum(own_stretches, stretches)
    jumps = np.where(in_one_go, np.minimum(stretches, 1 + is_own), stretches - own_stretches)
    jumps = np.where(in_order, np.minimum(jumps, own_stretches + 1), jumps)
    return Arriving(need, own, np.maximum(windows - own_windows, 0), jumps, parts - is_own)
