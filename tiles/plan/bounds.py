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
from tiles.numerics.dtypes import WORD_BYTES, itemsize
from tiles.target import Target


@dataclass(frozen=True)
class Moves:
    """What one operand moves at least.

    Args:
      received: bytes that the cell's tile receives.
      changes: changes of source and of pointer they arrive with.
      local: bytes that it rearranges.
      may_share: whether the tiles of its exchange bus may all take the same.
      sent: bytes that the part's tile sends.
      is_here: whether the part lies on the cell's tile.
    """

    received: int = 0
    changes: int = 0
    local: int = 0
    may_share: bool = False
    sent: int = 0
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
    mine = _common(source, reads, here) if here is not None else [0] * len(reads)
    held = math.prod(mine) if here is not None else 0
    part = here or tuple(read.low // split.grain for read, split in zip(reads, source.axes, strict=True))
    leaving = _leaving(source, form, plan, k, reads, part)
    size_bytes = itemsize(dtype)
    received = align_up((needed - held) * size_bytes, WORD_BYTES)
    selects, pointers = _changes(source, reads, mine, held)
    if not (
        source.arrangement.is_row_major and plan.arrangement.is_row_major
    ):  # turns and runs are left open
        selects, pointers, held_bytes = 1, 1, 0
    else:
        held_bytes = align_up(held * size_bytes, WORD_BYTES)
    most = received // WORD_BYTES
    return Moves(
        received=received,
        changes=min(max(selects, 1), most) + min(max(pointers, 1), most) if needed > held else 0,
        local=held_bytes,
        may_share=_may_share(form, plan, k),
        sent=align_up(leaving * size_bytes, WORD_BYTES),
        is_here=here is not None,
    )


def _changes(source: Layout, reads: Sequence[_Read], mine: Sequence[int], held: int) -> tuple[int, int]:
    """Return changes of source and of pointer for what the cell reads, at least; see ``exchange._arriving``."""
    parts = windows = stretches = 1
    own_windows = own_stretches = int(held > 0)
    is_held = is_filled = True
    for read, split, own in reversed(list(zip(reads, source.axes, mine, strict=True))):
        pieces = read.pieces(split.grain)
        parts *= pieces
        by_part, by_stretch = is_held and read.step == 1, is_filled and read.step == 1
        windows *= pieces if by_part else read.elements
        stretches *= pieces if by_stretch else read.elements
        own_windows *= 1 if by_part else own
        own_stretches *= 1 if by_stretch else own
        end = (read.high // split.grain + 1) * split.grain if split.is_split else split.size
        is_held = is_held and read.step == 1 and read.low % split.grain == 0 and read.high + 1 == end
        is_filled = is_filled and read.step == 1 and pieces <= 1
    return windows - own_windows, 1 if stretches == parts else stretches - own_stretches


def least_exchange_cycles(moves: Sequence[Moves], target: Target) -> int:
    """Return what the exchange before a compute set lasts at least; see ``exchange.exchange_cycles``."""
    alone = sum(m.received for m in moves if not m.may_share)
    shared = sum(m.received for m in moves if m.may_share)
    if not any(m.received or m.sent for m in moves):
        return 0
    lanes = alone + ceil_div(shared, target.tiles_per_shared_exchange_bus)
    sent = 0  # of one tile: the cell's, or that of a part that lies elsewhere
    for m in sorted(moves, key=lambda m: not m.is_here):
        sent = sent + m.sent if m.is_here else max(sent, m.sent)
    width = target.exchange_bytes_per_cycle
    busiest = max(ceil_div(lanes, width), ceil_div(sent, width), sum(m.changes for m in moves))
    return busiest + target.exchange_phase_overhead_cycles


def least_code_bytes(moves: Sequence[Moves], target: Target) -> int:
    """Return the bytes of exchange code that the cell's tile needs at least; see ``exchange.exchange_code_bytes``."""
    return sum(m.changes for m in moves) * target.instruction_bytes


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


def _common(source: Layout, reads: Sequence[_Read], part: Sequence[int]) -> list[int]:
    """Return per axis how much of what is read lies in a part."""
    return [
        read.within(index * split.grain, min((index + 1) * split.grain, split.size))
        for read, split, index in zip(reads, source.axes, part, strict=True)
    ]


def _coordinates(number: int, grid: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of a cell or part from its row-major number."""
    found = []
    for parts in reversed(grid):
        number, index = divmod(number, parts)
        found.append(index)
    return tuple(reversed(found))


def _leaving(
    source: Layout, form: OpForm, plan: Plan, k: int, reads: Sequence[_Read], part: Sequence[int]
) -> int:
    """Return how many elements of a part other tiles read at least."""
    axes = form.operands[k].axes
    used = set(form.operands[k].dims)
    replication = math.prod(split.parts for d, split in enumerate(plan.splits) if d not in used)
    covered = 1
    for axis, split, read, index in zip(axes, source.axes, reads, part, strict=True):
        low, high = index * split.grain, min((index + 1) * split.grain, split.size)
        covered *= _covered(axis, plan.splits, read, low, high)
    if replication == 1:
        cells = np.flatnonzero(plan.tiles == _tile(source.axes, part, source.base))
        if cells.size:
            cell = _coordinates(int(cells[0]), plan.grid)
            own = [_read(a, plan.splits, cell, s.size) for a, s in zip(axes, source.axes, strict=True)]
            covered -= math.prod(_common(source, own, part))
    return max(covered, 0)


def _covered(axis: Affine, splits: Sequence[AxisSplit], read: _Read, low: int, high: int) -> int:
    """Return how many elements in ``[low, high)`` any cell reads at least."""
    if len(axis.terms) != 1:
        return read.within(low, high)
    ((d, coefficient),) = axis.terms
    ends = sorted(((low - axis.offset) / coefficient, (high - 1 - axis.offset) / coefficient))
    first, last = max(math.ceil(ends[0]), 0), min(math.floor(ends[1]), splits[d].size - 1)
    return max(last - first + 1, 0)


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
