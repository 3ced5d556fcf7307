"""What an exchange costs at least, seen from one cell and one part: numbers only, no tables over tiles.

A plan whose least cost lies above another plan's exact one need not be priced. The cell is the middle one: its
parts are full, and a window around it lies inside the tensor wherever the plan has more than two parts. The part
is the one that holds what the cell reads first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tiles.graph import Affine, Arrangement, AxisSplit, Layout, OpForm, Plan
from tiles.graph.layout import align_up, ceil_div
from tiles.numerics.dtypes import WORD_BYTES, itemsize
from tiles.plan.ordering import Turn, turn
from tiles.plan.receiving import Digit, digits_of
from tiles.plan.slices import slice_extents
from tiles.target import Target


@dataclass(frozen=True)
class Moves:
    """What one operand moves at least.

    Args:
      received: bytes that the cell's tile receives.
      changes: changes of source and of pointer they arrive with.
      local: bytes that the cell's tile, and that of the first cell, copy inside their memory.
      turning_cycles: of bringing elements into order on the cell's tile.
      may_share: whether the tiles of its exchange bus may all take the same.
      sent: bytes that the part's tile sends.
      is_here: whether the part lies on the cell's tile.
    """

    received: int = 0
    changes: int = 0
    local: tuple[int, int] = (0, 0)
    turning_cycles: int = 0
    may_share: bool = False
    sent: int = 0
    is_here: bool = False


def least_moves(source: Layout, form: OpForm, plan: Plan, k: int, dtype: str, target: Target) -> Moves:
    """Return what a plan moves at least of operand ``k``, which lies in ``source``; see ``exchange.traffic``."""
    axes = form.operands[k].axes
    middle = tuple((split.parts - 1) // 2 for split in plan.splits)
    reads = _reads(source, axes, plan, middle)
    needed = math.prod(read.elements for read in reads)
    if not needed:
        return Moves()
    mine, here = _mine(source, plan, middle, reads)
    held = math.prod(mine) if here is not None else 0
    part = here or tuple(read.low // split.grain for read, split in zip(reads, source.axes, strict=True))
    leaving = _leaving(source, form, plan, k, reads, part)
    size_bytes = itemsize(dtype)
    received = align_up((needed - held) * size_bytes, WORD_BYTES)
    extents = slice_extents(form, plan, k)
    into = plan.operand_order(form, k).fit(extents)
    order = turn(source, into, extents, size_bytes)
    changes, turning, local = 0, 0, (0, 0)
    if received:
        is_unturned = order is not None and order.arrives_unturned
        arrives = source.arrangement if is_unturned else into
        changes = _changes(source, reads, mine, held, arrives, extents, received // WORD_BYTES)
    if order is None or order.is_kept:
        first = _first_held(source, axes, plan)
        local = align_up(held * size_bytes, WORD_BYTES), align_up(first * size_bytes, WORD_BYTES)
    else:
        turning = _turning_cycles(order, needed if order.arrives_unturned else held, size_bytes, target)
    return Moves(
        received=received,
        changes=changes,
        local=local,
        turning_cycles=turning,
        may_share=_may_share(form, plan, k),
        sent=align_up(leaving * size_bytes, WORD_BYTES),
        is_here=here is not None,
    )


@lru_cache(maxsize=16384)
def _turning_cycles(order: Turn, count: int, size: int, target: Target) -> int:
    """Return the cycles of bringing ``count`` elements of a cell into order."""
    return int(order.cycles(np.array([count]), np.array([count]), size, target)[0])


def _reads(source: Layout, axes: Sequence[Affine], plan: Plan, cell: tuple[int, ...]) -> list[_Read]:
    """Return per axis what a cell reads."""
    return [_read(a, plan.splits, cell, s.size) for a, s in zip(axes, source.axes, strict=True)]


def _mine(
    source: Layout, plan: Plan, cell: tuple[int, ...], reads: Sequence[_Read]
) -> tuple[list[int], tuple[int, ...] | None]:
    """Return per axis how much of what a cell reads its tile's part has, and where that part lies, None without one."""
    tile, owners = _tile(plan.splits, cell, plan.base), source.owners
    number = int(owners[tile]) if tile < owners.size else -1
    if number < 0:
        return [0] * len(reads), None
    here = _coordinates(number, source.grid)
    return _common(source, reads, here), here


def _first_held(source: Layout, axes: Sequence[Affine], plan: Plan) -> int:
    """Return how many elements of its slice the tile of the first cell holds, where the first part often lies, too."""
    first = (0,) * len(plan.splits)
    mine, here = _mine(source, plan, first, _reads(source, axes, plan, first))
    return math.prod(mine) if here is not None else 0


def _changes(
    source: Layout,
    reads: Sequence[_Read],
    mine: Sequence[int],
    held: int,
    arrives: Arrangement,
    extents: tuple[int, ...],
    words: int,
) -> int:
    """Return changes of source and of pointer for ``words`` that the cell receives; see ``receiving.arriving``."""
    pieces = [read.pieces(split.grain) for read, split in zip(reads, source.axes, strict=True)]
    parts, is_held = math.prod(pieces), int(held > 0)
    windows = _windows(source, reads, mine, pieces, is_held)
    stretches, own, is_dense = _stretches(
        source, reads, mine, pieces, is_held, digits_of(arrives, extents), extents
    )
    in_one_go = stretches == parts and is_dense
    jumps = min(stretches, 1 + is_held) if in_one_go else stretches - own
    sources = parts - is_held
    return min(max(windows, sources), max(sources, words)) + min(max(jumps, 1), words)


def _windows(
    source: Layout, reads: Sequence[_Read], mine: Sequence[int], pieces: Sequence[int], is_held: int
) -> int:
    """Return in how many stretches of other tiles' memory the cell's slice lies."""
    windows, own, is_whole = 1, is_held, True
    for axis, group, is_inner in digits_of(source.arrangement, source.part_shape):
        read, split = reads[axis], source.axes[axis]
        joined = is_whole and read.step == 1
        if is_inner:
            windows *= 1 if joined else min(read.elements, group)
            own *= 1 if joined else min(mine[axis], group)
            ends = (read.high + 1) % group == 0 or read.high + 1 == split.size
            is_whole = joined and read.low % group == 0 and ends
            continue
        groups = read.high // group - read.low // group + 1 if read.step == 1 else read.elements
        windows *= pieces[axis] if joined else groups
        own *= 1 if joined else ceil_div(mine[axis], group)
        end = (read.high // split.grain + 1) * split.grain if split.is_split else split.size
        is_whole = joined and read.low % split.grain == 0 and read.high + 1 == end
    return max(windows - own, 0)


def _stretches(
    source: Layout,
    reads: Sequence[_Read],
    mine: Sequence[int],
    pieces: Sequence[int],
    is_held: int,
    digits: Sequence[Digit],
    extents: tuple[int, ...],
) -> tuple[int, int, bool]:
    """Return in how many stretches of its slice's memory words arrive, in how many its own lie, if there are no gaps."""
    stretches, own, is_filled, is_dense = 1, is_held, True, True
    for axis, group, is_inner in digits:
        read, split = reads[axis], source.axes[axis]
        is_dense = is_dense and (is_filled or read.elements <= 1)
        joined = is_filled and read.is_forward
        is_aligned = pieces[axis] <= 1 or (split.grain % group == 0 and read.low % group == 0)
        if is_inner:
            broken = ceil_div(read.elements, min(group, split.grain)) + pieces[axis]
            stretches *= (1 if joined else min(read.elements, group)) if is_aligned else broken
            own *= 1 if joined else min(mine[axis], group)
            is_filled = joined and is_aligned
            continue
        groups = ceil_div(read.elements, group) if is_aligned or group == 1 else 1
        stretches *= pieces[axis] if joined else groups
        own *= 1 if joined else ceil_div(mine[axis], group)
        is_filled = joined and pieces[axis] <= 1 and read.elements == extents[axis]
    return stretches, min(own, stretches), is_dense


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


def least_local_bytes(moves: Sequence[Moves]) -> int:
    """Return the bytes that a tile copies inside its memory at least."""
    return max(sum(m.local[i] for m in moves) for i in range(2))


def least_code_bytes(moves: Sequence[Moves], target: Target) -> int:
    """Return the bytes of exchange code that the cell's tile needs at least; see ``exchange.exchange_code_bytes``."""
    return sum(m.changes for m in moves) * target.instruction_bytes


class _Read(NamedTuple):
    """Elements that a cell reads along an axis: the first and last of them by index, every ``step``-th, and if in that order."""

    low: int
    high: int
    step: int
    sign: int = 1

    @property
    def is_forward(self) -> bool:
        return self.step * self.sign == 1

    @property
    def elements(self) -> int:
        return (self.high - self.low) // self.step + 1 if self.high >= self.low else 0

    def pieces(self, grain: int) -> int:
        """Return the parts of ``grain`` elements they lie in."""
        parts = self.high // grain - self.low // grain + 1 if self.high >= self.low else 0
        return parts if self.step == 1 else min(parts, self.elements)

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
    coefficient = axis.terms[0][1] if len(axis.terms) == 1 else 1
    step = abs(coefficient)
    low += align_up(max(-low, 0), step)
    high -= align_up(max(high - size + 1, 0), step)
    return _Read(low, high, step, 1 if coefficient > 0 else -1)


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
