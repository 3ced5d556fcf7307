"""What the exchange of a plan costs at least, seen from a few cells and parts of it: plain numbers, no tables over tiles.

A plan whose least cost lies above another plan's exact one need not be priced. The cells are a busy one, and the first,
on whose tile the first part often lies. The busy one is near the middle, so that its parts are full and a window around
it lies inside the tensor wherever the plan has more than two parts; where cells straddle parts of what they read, it is
one that straddles most. The part is the one on the busy cell's tile, or else the one that holds what that cell reads
first. Counts are those of ``receiving`` and ``sending`` for one cell and one part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tiles.graph import Affine, AxisSplit, Layout, OpForm, Plan
from tiles.numerics.dtypes import WORD_BYTES, itemsize
from tiles.plan.element_order import Reordering, reordering_of
from tiles.plan.exchange import ExchangeFigures, send_instructions
from tiles.plan.receiving import Digit, digits_of
from tiles.plan.slices import slice_extents
from tiles.plan.superstep import busiest_cycles, code_bytes, phase_cycles
from tiles.target import Target


class Moves(NamedTuple):
    """What one operand moves at least.

    Args:
      received: bytes that the busy cell's tile receives.
      changes: changes of source and of pointer they arrive with.
      local: bytes that the busy and the first cell's tiles copy inside their memory.
      reordering_cycles: of bringing elements into order on the busy cell's tile.
      may_share: whether the tiles of its exchange bus may all take the same.
      sent: bytes that the part's tile sends.
      sends: send instructions of these.
      runs: runs in which they are sent, with a wait before each.
      is_here: whether the part lies on the busy cell's tile.
    """

    received: int
    changes: int
    local: tuple[int, int]
    reordering_cycles: int
    may_share: bool
    sent: int
    sends: int
    runs: int
    is_here: bool


def least_figures(
    form: OpForm,
    plan: Plan,
    received: Sequence[tuple[int, Layout]],
    dtypes: Sequence[str],
    target: Target,
) -> ExchangeFigures:
    """Return figures of the exchange before a plan's compute set, none above those of ``exchange_figures``.

    Args:
      form: the operation.
      plan: how it is cut.
      received: the operands that are not read in place, with their layouts.
      dtypes: of all operands.
      target: the machine.
    """
    alone = shared = changes = reordering = first = busy = 0
    here, elsewhere = (0, 0, 0), (0, 0, 0)
    at = _busy_cell(form, plan, received)
    for k, source in received:
        moves = _least_moves(source, form, plan, at, k, itemsize(dtypes[k]), target)
        if moves.may_share:
            shared += moves.received
        else:
            alone += moves.received
        changes += moves.changes
        reordering += moves.reordering_cycles
        busy += moves.local[0]
        first += moves.local[1]
        leaving = moves.sent, moves.sends, moves.sends + moves.runs
        if moves.is_here:
            here = here[0] + leaving[0], here[1] + leaving[1], here[2] + leaving[2]
        else:
            elsewhere = tuple(map(max, elsewhere, leaving))
    lanes = alone - -shared // target.tiles_per_shared_exchange_bus
    payload = max(lanes, here[0], elsewhere[0])
    cycles = 0
    if payload > 0:
        cycles = phase_cycles(busiest_cycles(payload, max(changes + here[1], elsewhere[1]), target), target)
    code = code_bytes(max(changes + here[2], elsewhere[2]), target)
    return ExchangeFigures(cycles, code, max(busy, first), reordering)


class _Cell(NamedTuple):
    """A cell of a plan: its tile, and the first and one past the last point along each dimension."""

    tile: int
    starts: tuple[int, ...]
    stops: tuple[int, ...]


def _busy_cell(form: OpForm, plan: Plan, received: Sequence[tuple[int, Layout]]) -> tuple[int, ...]:
    """Return the place of the middle cell, or of one near it that reads more parts of what it receives."""
    splits = plan.splits
    at = [(split.parts - 1) // 2 for split in splits]
    for k, source in received:
        for axis, held in zip(form.operands[k].axes, source.axes, strict=True):
            if len(axis.terms) != 1 or not held.is_split:
                continue
            ((d, step),) = axis.terms
            split = splits[d]
            if split.is_split and split.grain * abs(step) % held.grain:
                at[d] = _busiest_part(split.size, split.grain, step, axis.offset, held.size, held.grain)
    return tuple(at)


@lru_cache(maxsize=16384)
def _busiest_part(size: int, grain: int, step: int, offset: int, held_size: int, held_grain: int) -> int:
    """Return which part of a dimension reads most parts of an axis that follows it, of several that nearest the middle."""
    low = np.arange(0, size, grain)
    high = np.minimum(low + grain, size) - 1
    ends = (np.clip(offset + step * end, 0, held_size - 1) // held_grain for end in (low, high))
    pieces = abs(np.subtract(*ends))
    most = np.flatnonzero(pieces == pieces.max())
    return int(most[np.argmin(abs(most - (low.size - 1) // 2))])


@lru_cache(maxsize=64)
def _cells(plan: Plan, at: tuple[int, ...]) -> tuple[_Cell, _Cell]:
    """Return the cell at a place and the first cell of a plan."""
    return _cell(plan, at), _cell(plan, (0,) * len(at))


def _cell(plan: Plan, at: Sequence[int]) -> _Cell:
    starts = tuple(index * split.grain for index, split in zip(at, plan.splits, strict=True))
    stops = tuple(
        min(start + split.grain, split.size) for start, split in zip(starts, plan.splits, strict=True)
    )
    tile = plan.base + sum(
        _tile_of(split, index) for split, index in zip(plan.splits, at, strict=True) if index
    )
    return _Cell(tile, starts, stops)


def _tile_of(split: AxisSplit, index: int) -> int:
    """Return what one part adds to the tile number; see ``AxisSplit.tiles``."""
    tile = 0
    for radix, stride in reversed(split.digits):
        index, digit = divmod(index, radix)
        tile += digit * stride
    return tile


class _Read(NamedTuple):
    """What a cell reads along an axis; see ``receiving.Along``."""

    low: int
    high: int
    inside: int
    pieces: int
    step: int
    size: int
    grain: int
    extent: int

    def within(self, part: int) -> int:
        """Return how many of the elements read lie in a part."""
        low, high = part * self.grain, min((part + 1) * self.grain, self.size)
        step = abs(self.step)
        first = -(-max(low - self.low, 0) // step)
        return max((min(high - 1, self.high) - self.low) // step - first + 1, 0)


def _reads(form: OpForm, k: int, cell: _Cell, source: Layout, extents: Sequence[int]) -> list[_Read]:
    """Return per axis what a cell reads, as far as it lies inside the tensor; see ``slices.axis_slices``."""
    return [
        _read(axis, cell, split, extent)
        for axis, split, extent in zip(form.operands[k].axes, source.axes, extents, strict=True)
    ]


def _read(axis: Affine, cell: _Cell, split: AxisSplit, extent: int) -> _Read:
    low = high = axis.offset
    is_empty = False
    for d, coefficient in axis.terms:
        start, stop = cell.starts[d], cell.stops[d]
        is_empty |= stop <= start
        ends = (start, stop - 1) if coefficient > 0 else (stop - 1, start)
        low, high = low + coefficient * ends[0], high + coefficient * ends[1]
    signed = axis.terms[0][1] if len(axis.terms) == 1 else 1
    step, size, grain = abs(signed), split.size, split.grain
    if low < 0:
        low -= low // step * step
    if high >= size:
        high += (size - 1 - high) // step * step
    if is_empty or high < low:
        return _Read(0, -1, 0, 0, signed, size, grain, extent)
    inside = (high - low) // step + 1
    pieces = high // grain - low // grain + 1
    return _Read(low, high, inside, pieces if step == 1 else min(pieces, inside), signed, size, grain, extent)


def _place(source: Layout, tile: int) -> tuple[int, ...] | None:
    """Return where the part that a tile has of a tensor lies along each axis, None if it has none."""
    owners = source.owners
    number = int(owners[tile]) if tile < owners.size else -1
    return None if number < 0 else _coordinates(number, source.grid)


def _coordinates(number: int, grid: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of a cell or part from its row-major number."""
    found: list[int] = []
    for parts in reversed(grid):
        number, index = divmod(number, parts)
        found.append(index)
    return tuple(reversed(found))


@lru_cache(maxsize=4096)
def _least_moves(
    source: Layout, form: OpForm, plan: Plan, busiest: tuple[int, ...], k: int, size: int, target: Target
) -> Moves:
    """Return what a plan moves at least of operand ``k``, which lies in ``source``; see ``exchange.traffic``.

    The busy cell is the one at place ``busiest``. Searches that differ in where other operands lie share it.
    """
    busy, first = _cells(plan, busiest)
    extents = slice_extents(form, plan, k)
    reads = _reads(form, k, busy, source, extents)
    needed = math.prod(read.inside for read in reads)
    place = _place(source, busy.tile)
    mine = [0] * len(reads) if place is None else [r.within(p) for r, p in zip(reads, place, strict=True)]
    own = 0 if place is None else math.prod(mine)
    into = plan.operand_order(form, k).fit(extents)
    order = reordering_of(source, into, extents, size)
    is_as_stored = order is not None and order.arrives_as_stored
    received = _whole_words(needed - own, size)
    kept = digits_of(source.arrangement, source.part_shape)
    written = digits_of(source.arrangement if is_as_stored else into, extents)
    changes = _changes(reads, kept, written, mine, own, received // WORD_BYTES)
    local, reordering = (0, 0), 0
    if order is None or order.is_kept:
        at = _place(source, first.tile)
        held = (
            0
            if at is None
            else math.prod(
                r.within(p) for r, p in zip(_reads(form, k, first, source, extents), at, strict=True)
            )
        )
        local = _whole_words(own, size), _whole_words(held, size)
    elif needed:
        reordering = _reordering_cycles(order, needed if is_as_stored else own, size, target)
    sent = sends = runs = 0
    is_apart = _reads_apart(form, plan, k)
    if needed:
        parts = place if place is not None else [read.low // read.grain for read in reads]
        covered = _covered(form, k, plan, reads, parts)
        leaving, kept_back = math.prod(covered), 0
        if is_apart:
            kept_back = own if place is not None else _own_elsewhere(source, form, plan, k, extents, parts)
        sent = _whole_words(max(leaving - kept_back, 0), size)
        if sent:
            runs = min(
                _runs(form, k, reads, parts, covered, kept) if not kept_back else 1, sent // WORD_BYTES
            )
            sends = send_instructions(sent // WORD_BYTES, runs, target)
    may_share = not is_apart and _may_share(form, plan, k)
    return Moves(received, changes, local, reordering, may_share, sent, sends, runs, place is not None)


def _whole_words(elements: int, size: int) -> int:
    return -(-elements * size // WORD_BYTES) * WORD_BYTES


@lru_cache(maxsize=16384)
def _reordering_cycles(order: Reordering, count: int, size: int, target: Target) -> int:
    """Return the cycles of bringing ``count`` elements of a cell into order."""
    return int(order.cycles(np.array([count]), np.array([count]), size, target)[0])


# ---- with how many changes it arrives


def _changes(
    reads: Sequence[_Read],
    kept: Sequence[Digit],
    written: Sequence[Digit],
    mine: Sequence[int],
    own: int,
    words: int,
) -> int:
    """Return changes of source and of pointer while so many words arrive; see ``receiving.arriving``."""
    is_own = int(own > 0)
    parts = math.prod(read.pieces for read in reads)
    windows, own_windows = _windows(reads, kept, mine)
    stretches, is_dense, own_stretches = _stretches(reads, written, mine)
    if stretches == parts and is_dense:
        jumps = min(stretches, 1 + is_own)
    else:
        jumps = stretches - min(own_stretches, stretches) * is_own
    if _is_finer(reads, kept, written):
        jumps = min(jumps, 1 + min(own_stretches, stretches) * is_own)
    most = max(parts - is_own, words)
    selects = min(max(windows - own_windows * is_own, 0, parts - is_own), most)
    return selects + min(max(jumps, int(words > 0)), words)


def _windows(reads: Sequence[_Read], digits: Sequence[Digit], mine: Sequence[int]) -> tuple[int, int]:
    """Return in how many stretches of its parts' memory a slice lies, and how many of these the cell's own part makes up."""
    windows = own = 1
    is_whole = True
    for d, group, is_inner in digits:
        low, high, inside, pieces, step, size, grain, _ = reads[d]
        joined = is_whole and abs(step) == 1
        if not joined:
            own *= _factor(mine[d], group, is_inner)
        if is_inner:
            windows *= 1 if joined else min(inside, group)
            is_whole = joined and low % group == 0 and ((high + 1) % group == 0 or high + 1 == size)
            continue
        if joined:
            windows *= pieces
        elif inside <= 0:
            windows = 0
        else:
            windows *= high // group - low // group + 1 if abs(step) == 1 else inside
        end = (high // grain + 1) * grain if size > grain else size
        is_whole = joined and low % grain == 0 and high + 1 == end  # stored at full grain
    return windows, own


def _is_finer(reads: Sequence[_Read], kept: Sequence[Digit], written: Sequence[Digit]) -> bool:
    """Return whether stretches of the parts' memory can be taken in the slice's order; see ``receiving``."""
    if tuple(kept) != tuple(written):
        return False
    is_whole = filled = is_full = True
    for d, group, is_inner in kept:
        low, high, inside, pieces, step, size, grain, extent = reads[d]
        is_whole, filled = is_whole and abs(step) == 1, filled and step > 0
        if not is_full and inside > 1:
            return False
        if group > 1 and ((grain % group and pieces > 1) or low % group):
            return False
        if is_inner:
            is_whole = is_whole and ((high + 1) % group == 0 or high + 1 == size)
            is_full = is_full and inside % group == 0
            continue
        if is_whole and not filled and inside > pieces:
            return False
        end = (high // grain + 1) * grain if size > grain else size
        is_whole = is_whole and low % grain == 0 and high + 1 == end  # stored at full grain
        filled = filled and pieces <= 1 and inside == extent
        is_full = is_full and inside == extent
    return True


def _stretches(reads: Sequence[_Read], digits: Sequence[Digit], mine: Sequence[int]) -> tuple[int, bool, int]:
    """Return in how many stretches of a slice's memory its parts arrive, if there are no gaps, and how many are its own."""
    stretches = own = 1
    filled = is_dense = True
    for d, group, is_inner in digits:
        low, _, inside, pieces, step, _, grain, extent = reads[d]
        is_dense = is_dense and (filled or inside <= 1)
        joined = filled and step > 0  # neighbours in the slice, whatever lies between them in the tensor
        if not joined:
            own *= _factor(mine[d], group, is_inner)
        is_aligned = pieces <= 1 or (grain % group == 0 and low % group == 0)
        if is_inner:
            if is_aligned:
                stretches *= 1 if joined else min(inside, group)
            else:
                stretches *= -(-inside // min(group, grain)) + pieces
            filled = joined and is_aligned
            continue
        if joined:
            stretches *= pieces
        elif is_aligned or group == 1:
            stretches *= -(-inside // group)
        filled = joined and pieces <= 1 and inside == extent
    return stretches, is_dense, own


def _factor(overlap: int, group: int, is_inner: bool) -> int:
    """Return the factor of a digit in the stretches of a cell's own part: what it holds along an axis, in groups."""
    return min(overlap, group) if is_inner else -(-overlap // group)


# ---- what leaves a part


def _covered(form: OpForm, k: int, plan: Plan, reads: Sequence[_Read], parts: Sequence[int]) -> list[int]:
    """Return how many elements of a part any cell reads at least, along each axis."""
    covered: list[int] = []
    for axis, read, part in zip(form.operands[k].axes, reads, parts, strict=True):
        if len(axis.terms) != 1:
            covered.append(read.within(part))
            continue
        ((d, coefficient),) = axis.terms
        low = part * read.grain - axis.offset
        high = min((part + 1) * read.grain, read.size) - 1 - axis.offset
        if coefficient < 0:
            low, high = -high, -low
        first = max(-(-low // abs(coefficient)), 0)
        last = min(high // abs(coefficient), plan.splits[d].size - 1)
        covered.append(max(last - first + 1, 0))
    return covered


def _runs(
    form: OpForm,
    k: int,
    reads: Sequence[_Read],
    parts: Sequence[int],
    covered: Sequence[int],
    digits: Sequence[Digit],
) -> int:
    """Return in how many contiguous runs of a part's memory what is read of it lies at least; see ``sending.leaving``.

    One, unless each axis follows one dimension, so that it is known exactly what is read, and parts need no padding.
    """
    for axis, read, part in zip(form.operands[k].axes, reads, parts, strict=True):
        if len(axis.terms) != 1 or (part + 1) * read.grain > read.size:
            return 1
    runs, is_whole = 1, True
    for d, group, is_inner in digits:
        here, step, full = covered[d], abs(reads[d].step), min(reads[d].grain, reads[d].size)
        if is_inner:
            if here % group and here < full:
                return 1  # what is cut from a group may go on from whole ones
            runs = 1 if is_whole else min(here, group) * runs
        else:
            along = 1 if step == 1 else here
            runs = along if is_whole else -(-here // group) * runs
            is_whole = is_whole and here == full
    return max(runs, 1)


def _reads_apart(form: OpForm, plan: Plan, k: int) -> bool:
    """Return whether no two cells of a plan read one slice of operand ``k``."""
    used = form.operands[k].dims
    return not any(split.is_split and d not in used for d, split in enumerate(plan.splits))


def _own_elsewhere(
    source: Layout, form: OpForm, plan: Plan, k: int, extents: Sequence[int], parts: Sequence[int]
) -> int:
    """Return what the cell on a part's own tile reads of it, where that is not the busy cell and no other reads it."""
    tile = source.base + sum(
        _tile_of(split, part) for split, part in zip(source.axes, parts, strict=True) if part
    )
    there = np.flatnonzero(plan.tiles == tile)
    if not there.size:
        return 0
    cell = _cell(plan, _coordinates(int(there[0]), plan.grid))
    reads = _reads(form, k, cell, source, extents)
    return math.prod(read.within(part) for read, part in zip(reads, parts, strict=True))


def _may_share(form: OpForm, plan: Plan, k: int) -> bool:
    """Whether neighbours on an exchange bus may read the same of operand ``k``, of which some cells do.

    They do not where the part of a dimension that the operand varies with changes from each tile to the next.
    """
    return not any(_changes_each_tile(plan.splits[d]) for d in form.operands[k].dims)


def _changes_each_tile(split: AxisSplit) -> bool:
    return split.is_split and len(split.digits) == 1 and abs(split.digits[0][1]) == 1
