"""What parts send: how many elements other tiles read of them, in how many contiguous runs.

What any cell reads of a part is a product along the axes and kept: plans that cut alike, on whatever tiles, share it.
Where each slice is read by one cell, what only the part's own cell reads does not leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tiles.graph import Arrangement, Layout
from tiles.graph.layout import ceil_div
from tiles.numerics.shared import hold
from tiles.plan.receiving import LARGEST_TABLE, Cuts, Digit, cuts_of, digits_of, ends_of, held
from tiles.plan.slices import AxisSlices, Slices
from tiles.plan.truth import Truth, both, of, pick, settled


@dataclass(frozen=True, eq=False)
class _Read:
    """What cells read of each part up to a digit: int64 ``[parts]`` each.

    Args:
      digit: the digit.
      here: elements along its axis that any cell reads.
      runs: contiguous runs of what is read along the faster digits.
      is_whole: whether that is all of the part along them.
    """

    digit: Digit
    here: np.ndarray
    runs: np.ndarray
    is_whole: Truth

    def __post_init__(self) -> None:
        hold(self.here, self.runs, self.is_whole)


@dataclass(frozen=True, eq=False)
class _Partwise:
    """What any cell reads of each part: elements and their runs, int64 ``[parts]``, and how they came about."""

    covered: np.ndarray
    runs: np.ndarray
    digits: tuple[_Read, ...]

    def __post_init__(self) -> None:
        hold(self.covered, self.runs)


@lru_cache(maxsize=4096)
def _axiswise(axis: AxisSlices, size: int, grain: int) -> tuple[np.ndarray, np.ndarray, Truth]:
    """Return what any cell reads of each part along an axis: elements, their runs, and whether those are all of a full part.

    Returns:
      int64 ``[parts along the axis]`` each.
    """
    lo = np.arange(max(1, ceil_div(size, grain)), dtype=np.int64) * grain
    hi = np.minimum(lo + grain, size)
    here = axis.covered.any_before(hi) - axis.covered.any_before(lo)
    runs = axis.runs_between(lo, hi)
    is_whole = settled(here == min(size, grain))  # parts are stored at full grain
    hold(here, runs, is_whole)
    return here, runs, is_whole


@lru_cache(maxsize=1024)
def _partwise(axes: tuple[AxisSlices, ...], cuts: Cuts, order: Arrangement) -> _Partwise:
    """Return what any cell reads of parts that are ordered as ``order``."""
    ends = ends_of(cuts)
    count = ends[0][0].size if ends else 1
    covered, runs = np.ones(count, np.int64), np.ones(count, np.int64)
    is_whole: Truth = True
    found: list[_Read] = []
    for digit in digits_of(order, tuple(min(size, grain) for size, grain in cuts)):
        at, cut = ends[digit.axis][0], cuts[digit.axis]
        along, runs_along, is_all = _axiswise(axes[digit.axis], *cut)
        here = along[at]
        found.append(_Read(digit, here, runs, is_whole))
        if digit.is_inner:
            if is_whole is not True:
                runs = pick(is_whole, 1, np.minimum(here, digit.group) * runs)
            else:
                runs = np.ones_like(runs)
            is_whole = both(is_whole, settled((here % digit.group == 0) | (here == min(cut))))
            continue
        if is_whole is True:
            runs = runs_along[at]
        else:
            runs = pick(is_whole, runs_along[at], ceil_div(here, digit.group) * runs)
        covered = covered * here
        is_whole = both(is_whole, of(is_all, at))
    return _Partwise(covered, _with_cut_groups(axes, cuts, found, runs), tuple(found))


def _with_cut_groups(
    axes: tuple[AxisSlices, ...], cuts: Cuts, digits: Sequence[_Read], runs: np.ndarray
) -> np.ndarray:
    """Return the runs of parts, counted anew where what is read of one axis begins or ends inside a group of it.

    The groups between lie as whole ones do. Those at the ends are in pieces, but what touches the whole ones goes on
    from there. Parts of which several stretches of the axis are read, and orders with several axes in groups, keep
    the count as it stands.

    Args:
      axes: what cells read.
      cuts: how the parts are cut.
      digits: the digits of their order, the fastest first.
      runs: the count if groups at the ends are taken for pieces as the others are, int64 ``[parts]``.
    """
    inner = [read.digit for read in digits if read.digit.is_inner]
    if len(inner) != 1:
        return runs
    number, group, _ = inner[0]
    axis, (_, lo, hi), full = axes[number], ends_of(cuts)[number], min(cuts[number])
    covered = axis.covered
    start = covered.next_read(lo) - lo
    stop = start + covered.any_before(hi) - covered.any_before(lo)
    begins_inside, ends_inside = start % group > 0, (stop % group > 0) & (stop < full)
    is_cut = (begins_inside | ends_inside) & (
        _axiswise(axis, *cuts[number])[1][ends_of(cuts)[number][0]] == 1
    )
    if not is_cut.any():
        return runs
    first, last = start // group, (stop - 1) // group
    ends_inside &= (first < last) | ~begins_inside  # one group, cut on both sides, is one piece
    whole = last - first + 1 - begins_inside - ends_inside
    head = np.where(first == last, stop - start, group - start % group)
    tail = np.where(first == last, stop - start, stop % group)
    before = digits[: next(n for n, read in enumerate(digits) if read.digit == Digit(number, group, False))]
    in_whole, is_joined = _runs_within(axes, cuts, before, np.full_like(start, group), group)
    found = np.where(is_joined, np.minimum(whole, 1), whole * in_whole)
    for is_there, elements in ((begins_inside, head), (ends_inside, tail)):
        found = found + np.where(is_there, _runs_within(axes, cuts, before, elements, group)[0], 0)
    stretches = begins_inside.astype(np.int64) + ends_inside + (whole > 0)
    found = found - np.where(is_joined, stretches - 1, 0)
    for read in digits[len(before) + 1 :]:  # nothing is joined any more
        found = ceil_div(read.here, read.digit.group) * found
    return np.where(is_cut, found, runs)


def _runs_within(
    axes: tuple[AxisSlices, ...], cuts: Cuts, digits: Sequence[_Read], elements: np.ndarray, group: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the runs along some digits if ``elements`` of each group are read, and whether those are all there is."""
    runs, is_whole = np.ones(elements.size, np.int64), np.ones(elements.size, bool)
    for read in digits:
        if read.digit.is_inner:
            along, full, in_one = elements, group, np.int64(1)
        else:
            cut, along = cuts[read.digit.axis], read.here
            full, in_one = (
                min(cut),
                _axiswise(axes[read.digit.axis], *cut)[1][ends_of(cuts)[read.digit.axis][0]],
            )
        runs = np.where(is_whole, in_one, along * runs)
        is_whole = is_whole & (along == full)
    return runs, is_whole


def leaving(slices: Slices, source: Layout, own: np.ndarray, num_tiles: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct elements that each part must send, and in how many contiguous runs, int64 ``[parts]``.

    Args:
      slices: what cells read.
      source: where it lies.
      own: how much of its slice each cell's tile holds, int64 ``[cells]``.
      num_tiles: tiles of the machine.
    """
    found = _partwise(slices.axes, cuts_of(source), source.arrangement)
    if slices.replication > 1:
        return found.covered, found.runs
    cells = np.flatnonzero(own)
    if not cells.size:
        return found.covered, found.runs
    parts = held(source, num_tiles)[slices.tiles[cells]]
    only_own, runs_left = _own(slices, source, found, cells, parts)
    covered, runs = found.covered.copy(), found.runs.copy()
    covered[parts] -= only_own
    runs[parts] = np.where(only_own > 0, runs_left, runs[parts])
    return covered, runs


def _own(
    slices: Slices, source: Layout, found: _Partwise, cells: np.ndarray, parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return what only the own cell of parts reads of them, and the runs of all else that is read; int64 ``[cells]``.

    ``cells`` and ``parts`` are numbers of cells and of the parts on their tiles.
    """
    ends = ends_of(cuts_of(source))
    only_own, runs_left = np.ones(cells.size, np.int64), np.zeros(cells.size, np.int64)
    for read in found.digits:
        number, group, is_inner = read.digit
        if is_inner:
            continue
        at, lo, hi = ends[number]
        axis, split, where = slices.axes[number], source.axes[number], slices.coordinates[number][cells]
        if axis.first.size * split.parts <= LARGEST_TABLE:
            mine_table, left_table = _own_tables(axis, split.size, split.grain)
            place = where * split.parts + at[parts]
            mine, left_runs = mine_table[place], left_table[place]
        else:
            mine, left_runs = _own_along(axis, where, lo[parts], hi[parts])
        if read.is_whole is not True:
            others = ceil_div(read.here[parts] - mine, group)
            left_runs = pick(of(read.is_whole, parts), left_runs, others * read.runs[parts])
        runs_left = left_runs + (mine if group == 1 else ceil_div(mine, group)) * runs_left
        only_own = only_own * mine
    return only_own, runs_left


def _own_along(
    axis: AxisSlices, where: np.ndarray, lo: np.ndarray, hi: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return how many elements of ``[lo, hi)`` only slices ``where`` read, and the runs of all others that are read."""
    low, high = (bound[where] for bound in axis.bounds)
    start = np.minimum(np.maximum(low, lo), hi)
    stop = np.maximum(start, np.minimum(np.maximum(high + 1, lo), hi))
    single = axis.covered.one_before(stop) - axis.covered.one_before(start)
    return single, axis.runs_of_others(lo, hi, start, stop)


@lru_cache(maxsize=1024)
def _own_tables(axis: AxisSlices, size: int, grain: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what ``_own_along`` does for all slices and parts of an axis, int64 ``[slices * parts]`` each."""
    lo = np.arange(max(1, ceil_div(size, grain)), dtype=np.int64) * grain
    where, at = np.divmod(np.arange(axis.first.size * lo.size), lo.size)
    one, runs = _own_along(axis, where, lo[at], np.minimum(lo + grain, size)[at])
    hold(one, runs)
    return one, runs
