"""What the exchanges of plans cost at least, seen from a few cells and parts of each: no tables over tiles.

A plan whose least cost lies above another plan's exact one need not be priced. The cells are the middle one, whose
parts are full, and a window around it lies inside the tensor wherever the plan has more than two parts; and the first,
on whose tile the first part often lies. The part is the one on the middle cell's tile, or else the one that holds what
that cell reads first. All plans of a question are looked at together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from tiles.graph import Affine, Arrangement, AxisSplit, Layout, OpForm, Plan
from tiles.graph.layout import ceil_div
from tiles.numerics.dtypes import WORD_BYTES, itemsize
from tiles.plan.exchange import ExchangeFigures, whole_words
from tiles.plan.ordering import Turn, turn
from tiles.plan.receiving import Along, Digit, along, counted, digits_of, less_own
from tiles.plan.slices import slice_extents
from tiles.target import Target


@dataclass(frozen=True)
class Moves:
    """What one operand moves at least; int64 ``[plans]`` each.

    Args:
      received: bytes that the middle cell's tile receives.
      changes: changes of source and of pointer they arrive with.
      local: bytes that the middle and the first cell's tiles copy inside their memory, ``[2, plans]``.
      turning_cycles: of bringing elements into order on the middle cell's tile.
      may_share: whether the tiles of its exchange bus may all take the same; bool.
      sent: bytes that the part's tile sends.
      is_here: whether the part lies on the middle cell's tile; bool.
    """

    received: np.ndarray
    changes: np.ndarray
    local: np.ndarray
    turning_cycles: np.ndarray
    may_share: np.ndarray
    sent: np.ndarray
    is_here: np.ndarray


def least_figures(
    form: OpForm,
    plans: Sequence[Plan],
    received: Sequence[Sequence[tuple[int, Layout]]],
    dtypes: Sequence[str],
    target: Target,
) -> list[ExchangeFigures]:
    """Return figures of the exchange before each plan's compute set, none above those of ``exchange_figures``.

    Args:
      form: the operation.
      plans: ways to cut it.
      received: per plan the operands that are not read in place, with their layouts.
      dtypes: of all operands.
      target: the machine.
    """
    count = len(plans)
    alone, shared, changes, turning, here, elsewhere, first, middle = np.zeros((8, count), np.int64)
    for k, dtype in enumerate(dtypes):
        rows = [n for n, operands in enumerate(received) if any(number == k for number, _ in operands)]
        if not rows:
            continue
        sources = [layout for n in rows for number, layout in received[n] if number == k]
        moves = least_moves(sources, form, [plans[n] for n in rows], k, dtype, target)
        alone[rows] += np.where(moves.may_share, 0, moves.received)
        shared[rows] += np.where(moves.may_share, moves.received, 0)
        changes[rows] += moves.changes
        turning[rows] += moves.turning_cycles
        middle[rows] += moves.local[0]
        first[rows] += moves.local[1]
        here[rows] += np.where(moves.is_here, moves.sent, 0)
        elsewhere[rows] = np.maximum(elsewhere[rows], np.where(moves.is_here, 0, moves.sent))
    lanes = alone + ceil_div(shared, target.tiles_per_shared_exchange_bus)
    sent, width = np.maximum(here, elsewhere), target.exchange_bytes_per_cycle
    busiest = np.maximum(ceil_div(np.maximum(lanes, sent), width), changes)
    moves_any = (lanes > 0) | (sent > 0)
    cycles = np.where(moves_any, busiest + target.exchange_phase_overhead_cycles, 0)
    columns = cycles, changes * target.instruction_bytes, np.maximum(middle, first), turning
    return [ExchangeFigures(*row) for row in np.stack(columns, axis=1).tolist()]


def least_moves(
    sources: Sequence[Layout], form: OpForm, plans: Sequence[Plan], k: int, dtype: str, target: Target
) -> Moves:
    """Return what plans move at least of operand ``k``, which lies in a source for each; see ``exchange.traffic``."""
    axes, size, count = form.operands[k].axes, itemsize(dtype), len(plans)
    cuts = _cuts(plans)
    middle = [(parts - 1) // 2 for parts in cuts.parts]
    grains = [np.array([s.axes[a].grain for s in sources]) for a in range(len(axes))]
    shape = sources[0].shape
    extents = [slice_extents(form, plan, k) for plan in plans]
    reads = _reads(axes, cuts, middle, shape, grains, extents)
    is_here, places = _owned(sources, _tiles(plans, middle))
    mine = [_within(read, place) for read, place in zip(reads, places, strict=True)]
    own = _product(mine, count) * is_here
    orders, arrives = _orders(sources, form, plans, k, extents, size)
    received = whole_words(_product([read.inside for read in reads], count) - own, size)
    changes = _changes(sources, reads, mine, own, arrives, extents, received // WORD_BYTES)
    local = np.zeros((2, count), np.int64)
    keeps = np.array([order is None or order.is_kept for order in orders])
    if keeps.any():
        firsts = [np.zeros_like(parts) for parts in middle]
        has_part, at = _owned(sources, [plan.base for plan in plans])
        begun = _reads(axes, cuts, firsts, shape, grains, extents)
        held = _product([_within(read, place) for read, place in zip(begun, at, strict=True)], count)
        local = np.where(keeps, whole_words(np.stack((own, held * has_part)), size), 0)
    needed = _product([read.inside for read in reads], count)
    turning = [
        0
        if order is None or order.is_kept
        else _turning_cycles(order, need if order.arrives_unturned else has, size, target)
        for order, need, has in zip(orders, needed.tolist(), own.tolist(), strict=True)
    ]
    parts = [np.where(is_here, place, a.low // a.grain) for place, a in zip(places, reads, strict=True)]
    leaving = _leaving(sources, form, plans, k, cuts, reads, parts) - own * _reads_apart(form, plans, k)
    leaving -= _own_elsewhere(sources, form, plans, k, cuts, reads, parts, is_here)
    is_read = needed > 0
    return Moves(
        received=received,
        changes=changes,
        local=local,
        turning_cycles=np.where(is_read, turning, 0),
        may_share=np.array([_may_share(form, plan, k) for plan in plans]),
        sent=np.where(is_read, whole_words(np.maximum(leaving, 0), size), 0),
        is_here=is_here,
    )


@lru_cache(maxsize=16384)
def _turning_cycles(order: Turn, count: int, size: int, target: Target) -> int:
    """Return the cycles of bringing ``count`` elements of a cell into order."""
    return int(order.cycles(np.array([count]), np.array([count]), size, target)[0])


# ---- cells and what they read


class _Cuts(NamedTuple):
    """How plans cut each dimension of the domain: its size, and int64 ``[plans]`` each of extents and numbers of parts."""

    sizes: tuple[int, ...]
    grains: list[np.ndarray]
    parts: list[np.ndarray]


def _cuts(plans: Sequence[Plan]) -> _Cuts:
    dims = range(len(plans[0].splits))
    return _Cuts(
        tuple(split.size for split in plans[0].splits),
        [np.array([plan.splits[d].grain for plan in plans]) for d in dims],
        [np.array([plan.splits[d].parts for plan in plans]) for d in dims],
    )


def _reads(
    axes: Sequence[Affine],
    cuts: _Cuts,
    cells: Sequence[np.ndarray],
    shape: Sequence[int],
    grains: Sequence[np.ndarray],
    extents: Sequence[Sequence[int]],
) -> list[Along]:
    """Return per axis what a cell of each plan reads, as far as it lies inside the tensor; see ``slices.axis_slices``."""
    found = []
    for number, axis in enumerate(axes):
        low = high = np.full(len(extents), axis.offset)
        is_empty = np.zeros(len(extents), bool)
        for d, coefficient in axis.terms:
            start = cells[d] * cuts.grains[d]
            stop = np.minimum(start + cuts.grains[d], cuts.sizes[d])
            is_empty |= stop <= start
            ends = (start, stop - 1) if coefficient > 0 else (stop - 1, start)
            low, high = low + coefficient * ends[0], high + coefficient * ends[1]
        signed = axis.terms[0][1] if len(axis.terms) == 1 else 1
        step = abs(signed)
        low = low + ceil_div(np.maximum(-low, 0), step) * step
        high = high - ceil_div(np.maximum(high - shape[number] + 1, 0), step) * step
        is_empty |= high < low
        inside = np.where(is_empty, 0, (high - low) // step + 1)
        low, high = np.where(is_empty, 0, low), np.where(is_empty, -1, high)
        extent = np.array([e[number] for e in extents])
        found.append(along(low, high, inside, signed, shape[number], grains[number], extent))
    return found


def _product(factors: Sequence[np.ndarray], count: int) -> np.ndarray:
    return math.prod(factors, start=np.ones(count, np.int64))


def _within(read: Along, part: np.ndarray) -> np.ndarray:
    """Return how many of the elements read lie in a part."""
    low, high = part * read.grain, np.minimum((part + 1) * read.grain, read.size)
    step = abs(read.step)
    first = ceil_div(np.maximum(low - read.low, 0), step)
    return np.maximum((np.minimum(high - 1, read.high) - read.low) // step - first + 1, 0)


def _tiles(plans: Sequence[Plan], cells: Sequence[np.ndarray]) -> list[int]:
    """Return the tile of a cell of each plan."""
    each = np.array(cells, np.int64).reshape(len(cells), len(plans)).T.tolist()
    return [plan.base + sum(map(_tile_of, plan.splits, cell)) for plan, cell in zip(plans, each, strict=True)]


def _tile_of(split: AxisSplit, index: int) -> int:
    """Return what one part adds to the tile number; see ``AxisSplit.tiles``."""
    tile = 0
    if index:
        for radix, stride in reversed(split.digits):
            index, digit = divmod(index, radix)
            tile += digit * stride
    return tile


def _owned(sources: Sequence[Layout], tiles: Sequence[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return whether each tile has a part of its source, and where that part lies along each axis, 0 without one."""
    numbers = [
        int(source.owners[tile]) if tile < source.owners.size else -1
        for source, tile in zip(sources, tiles, strict=True)
    ]
    places = [
        _coordinates(max(number, 0), source.grid) for source, number in zip(sources, numbers, strict=True)
    ]
    columns = np.array(places, np.int64).reshape(len(sources), -1).T
    return np.array(numbers) >= 0, list(columns)


def _coordinates(number: int, grid: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of a cell or part from its row-major number."""
    found = []
    for parts in reversed(grid):
        number, index = divmod(number, parts)
        found.append(index)
    return tuple(reversed(found))


# ---- in which order, and with how many changes, it arrives


def _orders(
    sources: Sequence[Layout],
    form: OpForm,
    plans: Sequence[Plan],
    k: int,
    extents: Sequence[tuple[int, ...]],
    size: int,
) -> tuple[list[Turn | None], list[Arrangement]]:
    """Return how elements come into the order in which cells read them, and that in which they arrive."""
    into = [plan.operand_order(form, k).fit(extent) for plan, extent in zip(plans, extents, strict=True)]
    orders = [turn(*pair, size) for pair in zip(sources, into, extents, strict=True)]
    arrives = [
        source.arrangement if order is not None and order.arrives_unturned else wanted
        for source, order, wanted in zip(sources, orders, into, strict=True)
    ]
    return orders, arrives


def _changes(
    sources: Sequence[Layout],
    reads: Sequence[Along],
    mine: Sequence[np.ndarray],
    own: np.ndarray,
    arrives: Sequence[Arrangement],
    extents: Sequence[tuple[int, ...]],
    words: np.ndarray,
) -> np.ndarray:
    """Return changes of source and of pointer while so many words arrive, those alike in order together."""
    alike: dict[tuple[tuple[Digit, ...], tuple[Digit, ...]], list[int]] = defaultdict(list)
    for n, (source, order, extent) in enumerate(zip(sources, arrives, extents, strict=True)):
        kept = digits_of(source.arrangement, source.part_shape)
        alike[kept, digits_of(order, extent)].append(n)
    found = np.zeros_like(words)
    for (kept, written), rows in alike.items():
        some = [read.at(rows) for read in reads]
        counts = counted(some, kept, written, partial(_for_each, len(rows)))
        come = less_own(counts, slice(None), own[rows], [held[rows] for held in mine])
        found[rows] = sum(come.changes(words[rows]))
    return found


def _for_each(count: int, values: np.ndarray) -> np.ndarray:
    return values if values.ndim else np.broadcast_to(values, count)


# ---- what leaves a part


def _leaving(
    sources: Sequence[Layout],
    form: OpForm,
    plans: Sequence[Plan],
    k: int,
    cuts: _Cuts,
    reads: Sequence[Along],
    parts: Sequence[np.ndarray],
) -> np.ndarray:
    """Return how many elements of a part any cell reads at least."""
    covered = np.ones(len(plans), np.int64)
    for axis, read, part in zip(form.operands[k].axes, reads, parts, strict=True):
        if len(axis.terms) != 1:
            covered = covered * _within(read, part)
            continue
        ((d, coefficient),) = axis.terms
        low, high = part * read.grain, np.minimum((part + 1) * read.grain, read.size) - 1
        ends = (low - axis.offset, high - axis.offset)
        if coefficient < 0:
            ends = (-ends[1], -ends[0])
        first = np.maximum(ceil_div(ends[0], abs(coefficient)), 0)
        last = np.minimum(ends[1] // abs(coefficient), cuts.sizes[d] - 1)
        covered = covered * np.maximum(last - first + 1, 0)
    return covered


def _reads_apart(form: OpForm, plans: Sequence[Plan], k: int) -> np.ndarray:
    """Return whether no two cells of a plan read one slice of operand ``k``; bool."""
    used = set(form.operands[k].dims)
    return np.array([all(s.parts == 1 for d, s in enumerate(plan.splits) if d not in used) for plan in plans])


def _own_elsewhere(
    sources: Sequence[Layout],
    form: OpForm,
    plans: Sequence[Plan],
    k: int,
    cuts: _Cuts,
    reads: Sequence[Along],
    parts: Sequence[np.ndarray],
    is_here: np.ndarray,
) -> np.ndarray:
    """Return what the cell on a part's own tile reads of it, where that is not the middle cell and no other reads it."""
    found = np.zeros(len(plans), np.int64)
    cells: dict[int, tuple[int, ...]] = {}
    apart = _reads_apart(form, plans, k) & ~is_here
    for n in np.flatnonzero(apart).tolist():
        place = [int(part[n]) for part in parts]
        tile = sources[n].base + sum(map(_tile_of, sources[n].axes, place))
        there = np.flatnonzero(plans[n].tiles == tile)
        if there.size:
            cells[n] = _coordinates(int(there[0]), plans[n].grid)
    if not cells:
        return found
    rows = list(cells)
    at = list(np.array(list(cells.values()), np.int64).reshape(len(rows), -1).T)
    some = _Cuts(cuts.sizes, [g[rows] for g in cuts.grains], [p[rows] for p in cuts.parts])
    shape, grains = sources[0].shape, [read.grain[rows] for read in reads]
    extents = [tuple(int(read.extent[n]) for read in reads) for n in rows]
    theirs = _reads(form.operands[k].axes, some, at, shape, grains, extents)
    shares = [_within(read, part[rows]) for read, part in zip(theirs, parts, strict=True)]
    found[rows] = _product(shares, len(rows))
    return found


def _may_share(form: OpForm, plan: Plan, k: int) -> bool:
    """Whether neighbours on an exchange bus may read the same of operand ``k``.

    They do not where the part of a dimension that the operand varies with changes from each tile to the next.
    """
    used = set(form.operands[k].dims)
    if all(d in used for d, split in enumerate(plan.splits) if split.is_split):
        return False
    splits = (plan.splits[d] for d in used)
    return not any(_changes_each_tile(split) for split in splits)


def _changes_each_tile(split: AxisSplit) -> bool:
    return split.is_split and len(split.digits) == 1 and abs(split.digits[0][1]) == 1
