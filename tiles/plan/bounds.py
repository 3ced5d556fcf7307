"""What an exchange costs at least, seen from one cell and one part: numbers only, no tables over tiles.

A plan whose least cost lies above another plan's exact one need not be priced. The cell is the middle one: its
parts are full, and a window around it lies inside the tensor wherever the plan has more than two parts. The part
is the one that holds what the cell reads first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tiles.graph import Affine, AxisSplit, Layout, OpForm, Plan
from tiles.graph.layout import align_up, ceil_div
from tiles.numerics.dtypes import itemsize
from tiles.plan.ordering import turn
from tiles.target import Target


@dataclass(frozen=True)
class Moves:
    """What one operand moves at least.

    Args:
      received: bytes that the cell's tile receives.
      receives: contiguous runs they arrive in.
      local: bytes that it rearranges.
      may_share: whether the tiles of its exchange bus may all take the same.
      sent: bytes that the part's tile sends.
      sends: contiguous runs it sends.
      is_here: whether the part lies on the cell's tile.
    """

    received: int = 0
    receives: int = 0
    local: int = 0
    may_share: bool = False
    sent: int = 0
    sends: int = 0
    is_here: bool = False


def least_moves(source: Layout, form: OpForm, plan: Plan, k: int, dtype: str, target: Target) -> Moves:
    """Return what a plan moves at least of operand ``k``, which lies in ``source``; see ``exchange.traffic``."""
    axes = form.operands[k].axes
    middle = tuple((split.parts - 1) // 2 for split in plan.splits)
    reads = [_read(a, plan.splits, middle, s.size) for a, s in zip(axes, source.axes, strict=True)]
    needed = math.prod(read.elements for read in reads)
    if not needed:
        return Moves()
    tile, owners = _tile(plan.splits, middle, plan.base), source.owners
    number = int(owners[tile]) if tile < owners.size else -1
    here = _coordinates(number, source.grid) if number >= 0 else None
    held = _common(source, reads, here) if here is not None else 0
    runs = math.prod(read.pieces(split.grain) for read, split in zip(reads, source.axes, strict=True))
    part = here or tuple(read.low // split.grain for read, split in zip(reads, source.axes, strict=True))
    leaving, sends = _leaving(source, form, plan, k, reads, part)
    size_bytes = itemsize(dtype)
    if not (
        source.arrangement.is_row_major and plan.arrangement.is_row_major
    ):  # runs and turns are left open
        runs, sends, held_bytes = 1, 1, 0
    else:
        held_bytes = align_up(held * size_bytes, 4)
    return Moves(
        received=align_up((needed - held) * size_bytes, 4),
        receives=max(runs - 1, 1) if needed > held else 0,
        local=held_bytes,
        may_share=_may_share(form, plan, k),
        sent=align_up(leaving * size_bytes, 4),
        sends=sends if leaving else 0,
        is_here=here is not None,
    )


def _together(source: Layout, form: OpForm, plan: Plan, k: int, size_bytes: int) -> int:
    """Return at most how many elements arrive together where orders differ from row-major; see ``ordering.turn``."""
    axes = form.operands[k].axes
    if any(len(axis.terms) > 1 for axis in axes):
        return math.prod(source.part_shape)
    extents = tuple(plan.extents[axis.terms[0][0]] if axis.terms else 1 for axis in axes)
    order = turn(source, plan.operand_order(form, k).fit(extents), extents, size_bytes)
    return order.together if order is not None else math.prod(source.part_shape)


def least_exchange_cycles(moves: Sequence[Moves], target: Target) -> int:
    """Return what the exchange before a compute set lasts at least; see ``exchange.exchange_cycles``."""
    alone = sum(m.received for m in moves if not m.may_share)
    shared = sum(m.received for m in moves if m.may_share)
    if not any(m.received or m.sent for m in moves):
        return 0
    lanes = alone + ceil_div(shared, target.tiles_per_shared_exchange_bus)
    instructions = 2 * sum(m.receives for m in moves)
    sent = 0  # of one tile: the cell's, or that of a part that lies elsewhere
    for m in sorted(moves, key=lambda m: not m.is_here):
        sent = sent + m.sent if m.is_here else max(sent, m.sent)
        leaving = m.sends + m.sent // 4 // target.exchange_send_max_words
        instructions = instructions + leaving if m.is_here else max(instructions, leaving)
    width = target.exchange_bytes_per_cycle
    busiest = max(ceil_div(lanes, width), ceil_div(sent, width), instructions)
    return busiest + target.exchange_phase_overhead_cycles


class _Read(NamedTuple):
    """Elements that a cell reads along an axis: the first and last of them by index, every ``step``-th."""

    low: int
    high: int
    step: int

    @property
    def elements(self) -> int:
        return (self.high - self.low) // self.step + 1 if self.high >= self.low else 0

    def pieces(self, grain: int) -> int:
        """Return the contiguous runs, or the parts of ``grain`` elements they touch, whichever is certain."""
        return self.high // grain - self.low // grain + 1 if self.step == 1 else self.elements

    def within(self, low: int, high: int) -> int:
        """Return how many of the elements lie in ``[low, high)``."""
        first = ceil_div(max(low - self.low, 0), self.step)
        last = (min(high - 1, self.high) - self.low) // self.step
        return max(0, last - first + 1)


def _read(axis: Affine, splits: Sequence[AxisSplit], cell: Sequence[int], size: int) -> _Read:
    """Return what a cell reads along an axis, as far as it lies inside the tensor; see ``slices.axis_slices``."""
    low = high = axis.offset
    for d, coefficient in axis.terms:
        start = cell[d] * splits[d].grain
        stop = min(start + splits[d].grain, splits[d].size)
        if stop <= start:
            return _Read(0, -1, 1)
        ends = coefficient * start, coefficient * (stop - 1)
        low, high = low + min(ends), high + max(ends)
    step = abs(axis.terms[0][1]) if len(axis.terms) == 1 else 1
    low += align_up(max(-low, 0), step)
    return _Read(low, high - align_up(max(high - size + 1, 0), step), step)


def _tile(splits: Sequence[AxisSplit], cell: Sequence[int], base: int) -> int:
    return base + sum(int(split.tiles[index]) for split, index in zip(splits, cell, strict=True))


def _common(source: Layout, reads: Sequence[_Read], part: Sequence[int]) -> int:
    """Return how much of what is read lies in a part."""
    return math.prod(
        read.within(index * split.grain, min((index + 1) * split.grain, split.size))
        for read, split, index in zip(reads, source.axes, part, strict=True)
    )


def _coordinates(number: int, grid: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of a cell or part from its row-major number."""
    found = []
    for parts in reversed(grid):
        number, index = divmod(number, parts)
        found.append(index)
    return tuple(reversed(found))


def _leaving(
    source: Layout, form: OpForm, plan: Plan, k: int, reads: Sequence[_Read], part: Sequence[int]
) -> tuple[int, int]:
    """Return how many elements of a part other tiles read at least, and in how many runs they leave."""
    axes = form.operands[k].axes
    used = set(form.operands[k].dims)
    replication = math.prod(split.parts for d, split in enumerate(plan.splits) if d not in used)
    covered, touching = 1, replication
    for axis, split, read, index in zip(axes, source.axes, reads, part, strict=True):
        low, high = index * split.grain, min((index + 1) * split.grain, split.size)
        elements, slices = _covered(axis, plan.splits, read, low, high)
        covered, touching = covered * elements, touching * slices
    if replication == 1:
        cells = np.flatnonzero(plan.tiles == _tile(source.axes, part, source.base))
        if cells.size:
            cell = _coordinates(int(cells[0]), plan.grid)
            own = [_read(a, plan.splits, cell, s.size) for a, s in zip(axes, source.axes, strict=True)]
            covered -= _common(source, own, part)
    return max(covered, 0), touching


def _covered(axis: Affine, splits: Sequence[AxisSplit], read: _Read, low: int, high: int) -> tuple[int, int]:
    """Return how many elements in ``[low, high)`` any cell reads at least, and how many slices of the axis touch them."""
    if len(axis.terms) != 1:
        return read.within(low, high), 1
    ((d, coefficient),) = axis.terms
    ends = sorted(((low - axis.offset) / coefficient, (high - 1 - axis.offset) / coefficient))
    first, last = max(math.ceil(ends[0]), 0), min(math.floor(ends[1]), splits[d].size - 1)
    if last < first:
        return 0, 0
    return last - first + 1, last // splits[d].grain - first // splits[d].grain + 1


def _may_share(form: OpForm, plan: Plan, k: int) -> bool:
    """Whether neighbours on an exchange bus may read the same of operand ``k``.

    They do not where the part of a dimension that the operand varies with changes from each tile to the next.
    """
    used = set(form.operands[k].dims)
    if all(d in used for d, split in enumerate(plan.splits) if split.is_split):
        return False
    splits = (plan.splits[d] for d in used)
    return not any(
        split.is_split and len(split.digits) == 1 and abs(split.digits[0][1]) == 1 for split in splits
    )
