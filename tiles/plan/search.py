"""The planner: search the splits of an operation's domain for the cheapest plan.

Candidates are scored all at once by a closed form (numpy over candidates); the best few and the plans
that follow an operand's own layout are then priced with exact exchange volumes. Cost is cycles, under a
bound on temporary bytes per tile; what exceeds it comes last, the least excess first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.errors import InvalidPlan
from tiles.graph import (
    MEMORY_PROPORTION,
    AxisSplit,
    Codelet,
    Extents,
    Layout,
    OpForm,
    Plan,
    along,
    linear_layout,
    unsplit_plan,
    whole,
)
from tiles.graph.domain import full_digits
from tiles.graph.layout import align_up, ceil_div
from tiles.numerics.dtypes import itemsize
from tiles.plan.exchange import Traffic, exchange_cycles, operand_traffic
from tiles.plan.slices import is_resident, operand_slices
from tiles.target import Target

MAX_CANDIDATES = 20_000
EXACT = 3


@dataclass(frozen=True)
class Operand:
    """What the planner knows of an operand: its shape, dtype, and where it lives (None: still free)."""

    shape: tuple[int, ...]
    dtype: str
    layout: Layout | None


@dataclass(frozen=True)
class Priced:
    """A plan with its estimated cost.

    Args:
      plan: the plan.
      cycles: estimated cycles of exchange, compute and combination of partials.
      temporary_bytes: bytes per tile of received slices, vertex scratch, partials and results.
    """

    plan: Plan
    cycles: float
    temporary_bytes: int


def search(
    form: OpForm,
    codelet: Codelet,
    operands: Sequence[Operand],
    result_dtypes: tuple[str, ...],
    target: Target,
    extra: Sequence[Plan] = (),
    memory_proportion: float = MEMORY_PROPORTION,
) -> list[Priced]:
    """Return plans in order of cost, cheapest first; never empty.

    Args:
      form: the operation's domain and maps.
      codelet: gives cycles, preferred grains, and whether reductions may be split.
      operands: shapes, dtypes and present layouts.
      result_dtypes: dtypes of the results.
      target: the machine.
      extra: plans to price beside those found.
      memory_proportion: share of a tile's memory that temporaries may take; plans beyond it come last.
    """
    limit = int(memory_proportion * target.bytes_per_tile)
    return list(_search(form, codelet, tuple(operands), result_dtypes, target, tuple(extra), limit))


@lru_cache(maxsize=4096)
def _search(
    form: OpForm,
    codelet: Codelet,
    operands: tuple[Operand, ...],
    result_dtypes: tuple[str, ...],
    target: Target,
    extra: tuple[Plan, ...],
    limit: int,
) -> tuple[Priced, ...]:
    """Search once per question: identical layers of a model ask the same one."""
    shapes = _candidate_grains(form, codelet, target)
    cycles, cells, innermost = _closed_form(form, codelet, operands, result_dtypes, target, shapes, limit)
    best = np.lexsort((cells, cycles))[:EXACT]
    plans = [_plan(form, shapes[i], order) for i in best for order in _orders(form, int(innermost[i]))]
    plans += [
        p
        for k, operand in enumerate(operands)
        if (p := follow(form, codelet, k, operand, target)) is not None
    ]
    priced = [
        price(form, codelet, operands, result_dtypes, target, plan)
        for plan in dict.fromkeys([*extra, *plans, unsplit_plan(form)])
    ]
    return tuple(
        sorted(priced, key=lambda p: (max(0, p.temporary_bytes - limit), p.cycles, p.plan.num_cells))
    )


def follow(form: OpForm, codelet: Codelet, k: int, operand: Operand, target: Target) -> Plan | None:
    """Return the plan that reads operand k where it lies, if there is one."""
    if operand.layout is None:
        return None
    splits = [whole(dim.size) for dim in form.dims]
    for axis, split in zip(form.operands[k].axes, operand.layout.axes, strict=True):
        if not split.is_split:
            continue
        if len(axis.terms) != 1:
            return None
        ((d, coefficient),) = axis.terms
        if coefficient != 1 or axis.offset or form.dims[d].size != split.size:
            return None
        if not codelet.may_split(form, d):
            return None
        splits[d] = split
    plan = Plan(tuple(splits), operand.layout.base)
    try:
        plan.check(form, target.num_tiles)
        for d in plan.split_reductions(form):
            full_digits(plan.splits[d])
    except InvalidPlan:
        return None
    return plan


def _orders(form: OpForm, innermost: int) -> list[tuple[int, ...]]:
    """Return orders of the dimensions over the tiles, the last one over neighbouring tiles."""
    dims = tuple(range(len(form.dims)))
    shared = (*(d for d in dims if d != innermost), innermost) if dims else ()
    return list(dict.fromkeys([dims, dims[::-1], shared]))


def _plan(form: OpForm, grains: np.ndarray, order: tuple[int, ...]) -> Plan:
    splits: list[AxisSplit] = [whole(dim.size) for dim in form.dims]
    stride = 1
    for d in reversed(order):
        size, grain = form.dims[d].size, int(grains[d])
        parts = max(1, -(-size // grain))
        if parts > 1:
            splits[d] = AxisSplit(size, grain, ((parts, stride),))
            stride *= parts
    return Plan(tuple(splits))


@lru_cache(maxsize=4096)
def _grain_options(size: int, multiple: int, most: int, keep: int) -> np.ndarray:
    """Return distinct cell extents of a dimension, largest (unsplit) first, at most about ``keep``."""
    parts = np.arange(1, max(1, min(size, most)) + 1)
    grains = align_up(ceil_div(size, parts), multiple)
    grains = np.unique(np.minimum(grains, max(1, size)))[::-1]
    if grains.size > keep:
        pick = np.unique(np.round(np.linspace(0, grains.size - 1, keep)).astype(int))
        powers = [g for g in grains if (-(-size // g)) & (-(-size // g) - 1) == 0]
        grains = np.unique(np.concatenate([grains[pick], np.array(powers, grains.dtype)]))[::-1]
    return grains


def _candidate_grains(form: OpForm, codelet: Codelet, target: Target) -> np.ndarray:
    """Return candidate cell extents, int64 ``[candidates, dims]``; cells never exceed the tiles."""
    multiples = codelet.grains(form, target)
    free = [d for d, dim in enumerate(form.dims) if dim.size > 1 and codelet.may_split(form, d)]
    keep = max(6, int(MAX_CANDIDATES ** (1 / max(1, len(free)))))
    chosen = np.zeros((1, 0), np.int64)
    cells = np.ones(1, np.int64)
    for d, dim in enumerate(form.dims):
        whole_extent = np.array([max(1, dim.size)], np.int64)
        options = (
            _grain_options(dim.size, multiples[d], target.num_tiles, keep) if d in free else whole_extent
        )
        parts = -(-max(1, dim.size) // options)
        total = cells[:, None] * parts[None, :]
        rows, columns = np.nonzero(total <= target.num_tiles)
        chosen = np.concatenate([chosen[rows], options[columns][:, None]], axis=1)
        cells = total[rows, columns]
        if chosen.shape[0] > 4 * MAX_CANDIDATES:
            keep_rows = np.linspace(0, chosen.shape[0] - 1, MAX_CANDIDATES).astype(int)
            chosen, cells = chosen[keep_rows], cells[keep_rows]
    return chosen


def _closed_form(
    form: OpForm,
    codelet: Codelet,
    operands: Sequence[Operand],
    result_dtypes: tuple[str, ...],
    target: Target,
    grains: np.ndarray,
    limit: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return estimated cycles, cells and the dimension over neighbouring tiles, of every candidate.

    float64, int64, int64 ``[candidates]``. Cells along that dimension that read the same of an operand share
    the lanes of their exchange bus.
    """
    sizes = tuple(grains.T)
    parts = [-(-max(1, dim.size) // g) for dim, g in zip(form.dims, sizes, strict=True)]
    cells = math.prod(parts, start=np.ones(grains.shape[0], np.int64))
    extents = Extents(form, sizes, tuple(o.dtype for o in operands), result_dtypes)
    compute = np.broadcast_to(np.asarray(codelet.cycles(extents, target).value, np.float64), cells.shape)
    width, bus = target.exchange_bytes_per_cycle, target.tiles_per_shared_exchange_bus
    incoming = np.zeros((max(1, len(parts)), *cells.shape))
    temporary = np.zeros(cells.shape)
    for k, operand in enumerate(operands):
        slice_bytes = extents.operand_elements(k) * itemsize(operand.dtype)
        replication = math.prod(
            (parts[d] for d in range(len(parts)) if d not in form.operands[k].dims),
            start=np.ones(cells.shape),
        )
        remote = 1 - 1 / replication if operand.layout is None else 1.0
        for d in range(len(parts)):
            lanes = 1 if d in form.operands[k].dims else np.where(parts[d] % bus == 0, bus, 1)
            incoming[d] += slice_bytes * remote / lanes
        temporary = temporary + slice_bytes
    innermost = np.argmin(incoming, axis=0)
    incoming = incoming.min(axis=0)
    phase = target.exchange_phase_overhead_cycles + target.internal_sync_cycles
    cycles = compute + incoming / width + np.where(incoming > 0, phase, 0)
    partials = math.prod((parts[d] for d in form.reduced), start=np.ones(cells.shape, np.int64))
    is_split = partials > 1
    out_bytes = extents.results * np.where(
        is_split, _bytes_of(_partial_dtypes(codelet, result_dtypes)), _bytes_of(result_dtypes)
    )
    each = _bytes_of(_partial_dtypes(codelet, result_dtypes))
    cycles = cycles + np.where(is_split, _combining(extents.results, each, partials, target), 0)
    temporary = temporary + np.where(is_split, 0, codelet.scratch_bytes(extents, target))
    over = np.maximum(0, temporary + out_bytes - limit)
    return cycles + over * 1e3, cells, innermost


def _bytes_of(dtypes: tuple[str, ...]) -> int:
    return sum(itemsize(dtype) for dtype in dtypes)


def _partial_dtypes(codelet: Codelet, result_dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dtypes of partials, those of the results where reductions are not split."""
    return result_dtypes if codelet.combiner() is None else codelet.partial()[1]


def _combining(results: Any, bytes_each: Any, partials: Any, target: Target) -> Any:
    """Estimate the cycles of combining ``partials`` tiles' results, in one, two or three stages.

    In a stage of fan-in d the tiles of a group share the results, as far as there are enough: each receives and
    folds d partials of its share. A fold reads a vector a cycle and spends about four more on every vector of
    results; entering it takes a worker 32 slots, and 29 more where workers share the partials of few results (the
    terms of PopLibs' estimators, see ``poplin.ConvPartialReduce`` and ``popops.Reduce``).

    Args:
      results: elements that each tile holds partials of.
      bytes_each: bytes of an element.
      partials: tiles that hold partials of the same elements.
      target: the machine.
    """
    phase = target.exchange_phase_overhead_cycles + target.internal_sync_cycles
    results = np.asarray(results)

    def stage(fan_in: Any) -> Any:
        share = -(-results // np.minimum(fan_in, np.maximum(results, 1)))
        arriving = share * fan_in * bytes_each
        entry = np.where(share < target.workers_per_tile, 32 + 29, 32) * target.worker_issue_interval_cycles
        fold = arriving / target.data_path_bytes * (1 + 4 / fan_in) + entry
        return phase + arriving / target.exchange_bytes_per_cycle + fold

    count = np.maximum(np.asarray(partials, np.float64), 1)
    return np.minimum.reduce([n * stage(np.ceil(count ** (1 / n))) for n in (1, 2, 3)])


def price(
    form: OpForm,
    codelet: Codelet,
    operands: Sequence[Operand],
    result_dtypes: tuple[str, ...],
    target: Target,
    plan: Plan,
) -> Priced:
    """Return a plan with its cost from exact exchange volumes."""
    moved = Traffic.none(target.num_tiles)
    temporary = 0
    for k, operand in enumerate(operands):
        layout = operand.layout or home_layout(form, plan, k, operand.shape, operand.dtype, target)
        if is_resident(form, plan, k, layout):
            continue
        slices = operand_slices(form, plan, k, operand.shape)
        moved = moved + operand_traffic(layout, form, plan, k, operand.shape, operand.dtype, target)
        temporary += align_up(math.prod(slices.extents) * itemsize(operand.dtype), 4)
    sizes = tuple(np.array([min(s.grain, max(1, s.size))]) for s in plan.splits)
    extents = Extents(form, sizes, tuple(o.dtype for o in operands), result_dtypes)
    cycles = float(np.max(codelet.cycles(extents, target).value)) + float(
        exchange_cycles(moved, target).value
    )
    if not moved.is_empty:
        cycles += target.internal_sync_cycles
    cycles += int(moved.local.max()) / target.memcpy_bytes_per_cycle
    partials = plan.num_partials(form)
    dtypes = _partial_dtypes(codelet, result_dtypes) if partials > 1 else result_dtypes
    out_bytes = int(np.max(extents.results)) * _bytes_of(dtypes)
    if partials == 1:
        temporary += int(np.max(codelet.scratch_bytes(extents, target), initial=0))
    else:
        cycles += float(_combining(int(np.max(extents.results)), _bytes_of(dtypes), partials, target))
    return Priced(plan, cycles, temporary + out_bytes)


def home_layout(
    form: OpForm, plan: Plan, k: int, shape: tuple[int, ...], dtype: str, target: Target
) -> Layout:
    """Return the layout in which operand k best waits for this plan.

    Every tile holds a share of a slice it will read itself: the plan's own parts, cut further over the
    cells that read the same slice. Operands read with an offset, a stride or a window are spread evenly.
    """
    axes: list[AxisSplit] = []
    used = set(form.operands[k].dims)
    for axis, size in zip(form.operands[k].axes, shape, strict=True):
        if not axis.terms:
            axes.append(whole(size))
            continue
        d = axis.terms[0][0]
        if axis != along(d) or form.dims[d].size != size:
            return _spread(plan, shape, dtype, target)
        axes.append(plan.splits[d])
    for d, split in enumerate(plan.splits):
        if d not in used and split.is_split and len(split.digits) == 1:
            axes = _share(axes, split.parts, split.digits[0][1], dtype)
    return Layout(tuple(axes), plan.base)


def _spread(plan: Plan, shape: tuple[int, ...], dtype: str, target: Target) -> Layout:
    """Return the even layout from the plan's first tile on: a small tensor then lies where it is read."""
    layout = linear_layout(tuple(shape), dtype, target.num_tiles)
    has_room = plan.base + int(layout.tiles.max()) < target.num_tiles
    return replace(layout, base=plan.base) if has_room else layout


def _share(axes: list[AxisSplit], readers: int, stride: int, dtype: str) -> list[AxisSplit]:
    """Cut the longest axis of a slice further over ``readers`` tiles ``stride`` apart, evenly or not at all."""
    if not axes:
        return axes
    longest = max(range(len(axes)), key=lambda a: min(axes[a].grain, axes[a].size))
    axis = axes[longest]
    grain = min(axis.grain, max(1, axis.size))
    innermost = longest == len(axes) - 1
    quantum = max(1, 4 // itemsize(dtype)) if innermost else 1
    shares = [q for q in range(2, min(readers, grain) + 1) if grain % q == 0 and (grain // q) % quantum == 0]
    if not shares or (axis.is_split and axis.parts != math.prod(r for r, _ in axis.digits)):
        return axes
    digits = axis.digits if axis.is_split else ()
    out = list(axes)
    out[longest] = AxisSplit(axis.size, grain // shares[-1], (*digits, (shares[-1], stride)))
    return out
