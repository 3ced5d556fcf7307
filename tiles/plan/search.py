"""The planner: search the splits of an operation's domain for the cheapest plan.

Candidates are scored all at once by a closed form (numpy over candidates); the best few and the plans
that follow an operand's own layout are then priced with exact exchange volumes. Cost is cycles, under a
bound on temporary bytes per tile; what exceeds it comes last, the least excess first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tiles.errors import InvalidPlan
from tiles.graph import (
    AxisSplit,
    Codelet,
    Extents,
    IndexMap,
    Layout,
    OpForm,
    Plan,
    unsplit_plan,
    whole,
)
from tiles.graph.layout import align_up, ceil_div
from tiles.numerics.dtypes import itemsize
from tiles.plan.pricing import (
    RUN_INSTRUCTIONS,
    Operand,
    Question,
    Ranking,
    bytes_of,
    combining_cycles,
    partial_dtypes,
)
from tiles.plan.question import CODE_PRICE, MEMORY_PROPORTION
from tiles.target import Target

MAX_CANDIDATES = 20_000
EXACT = 3


def search(
    form: OpForm,
    codelet: Codelet,
    operands: Sequence[Operand],
    result_dtypes: tuple[str, ...],
    target: Target,
    extra: Sequence[Plan] = (),
    memory_proportion: float = MEMORY_PROPORTION,
    code_price: float = CODE_PRICE,
) -> Ranking:
    """Return plans in order of cost, cheapest first; never empty.

    Args:
      form: the operation's domain and maps.
      codelet: gives cycles, preferred grains, and whether reductions may be split.
      operands: shapes, dtypes and present layouts.
      result_dtypes: dtypes of the results.
      target: the machine.
      extra: plans to price beside those found.
      memory_proportion: share of a tile's memory that temporaries may take; plans beyond it come last.
      code_price: cycles that a byte of exchange code on the fullest tile is worth.
    """
    limit = int(memory_proportion * target.bytes_per_tile)
    question = Question(form, codelet, tuple(operands), result_dtypes, target, code_price)
    return _search(question, tuple(extra), limit)


@lru_cache(maxsize=4096)
def _search(question: Question, extra: tuple[Plan, ...], limit: int) -> Ranking:
    """Search once per question: identical layers of a model ask the same one."""
    form, codelet, target = question.form, question.codelet, question.target
    shapes = _candidate_grains(form, codelet, target)
    cycles, cells, innermost = _closed_form(question, shapes, limit)
    best = np.lexsort((cells, cycles))[:EXACT]
    plans = [_plan(form, shapes[i], order) for i in best for order in _orders(form, int(innermost[i]))]
    plans += [
        p
        for k, operand in enumerate(question.operands)
        if (p := follow(form, codelet, k, operand, target)) is not None
    ]
    return Ranking(question, dict.fromkeys([*extra, *plans, unsplit_plan(form)]), limit)


def follow(form: OpForm, codelet: Codelet, k: int, operand: Operand, target: Target) -> Plan | None:
    """Return the plan that reads operand k where it lies, if there is one."""
    return _cut_as(form, codelet, form.operands[k], operand.layout, target)


def leaving(form: OpForm, codelet: Codelet, layout: Layout, target: Target) -> Plan | None:
    """Return the plan whose cells compute their parts of the result where a layout has them, if there is one."""
    return _cut_as(form, codelet, form.results[0], layout, target)


def _cut_as(
    form: OpForm, codelet: Codelet, index_map: IndexMap, layout: Layout | None, target: Target
) -> Plan | None:
    """Return the plan that cuts the domain as a layout cuts a tensor that is indexed by a map."""
    if layout is None:
        return None
    splits = [whole(dim.size) for dim in form.dims]
    for axis, split in zip(index_map.axes, layout.axes, strict=True):
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
    plan = Plan(tuple(splits), layout.base)
    try:
        plan.check(form, target.num_tiles)
        plan.result_layout(form)
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
    question: Question, grains: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return estimated cycles, cells and the dimension over neighbouring tiles, of every candidate.

    float64, int64, int64 ``[candidates]``. Cells along that dimension that read the same of an operand share
    the lanes of their exchange bus.
    """
    form, codelet, target = question.form, question.codelet, question.target
    operands, result_dtypes = question.operands, question.result_dtypes
    sizes = tuple(grains.T)
    parts = [-(-max(1, dim.size) // g) for dim, g in zip(form.dims, sizes, strict=True)]
    cells = math.prod(parts, start=np.ones(grains.shape[0], np.int64))
    extents = Extents(form, sizes, tuple(o.dtype for o in operands), result_dtypes)
    compute = np.broadcast_to(np.asarray(codelet.cycles(extents, target).value, np.float64), cells.shape)
    width, bus = target.exchange_bytes_per_cycle, target.tiles_per_shared_exchange_bus
    incoming = np.zeros((max(1, len(parts)), *cells.shape))
    temporary, changes = np.zeros(cells.shape), np.zeros(cells.shape)
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
        if operand.layout is not None:
            changes = changes + _changes(form.operands[k], operand.layout, sizes)
    innermost = np.argmin(incoming, axis=0)
    incoming = incoming.min(axis=0)
    phase = target.exchange_phase_overhead_cycles + target.internal_sync_cycles
    cycles = compute + np.maximum(incoming / width, changes) + np.where(incoming > 0, phase, 0)
    readers = np.where(
        math.prod((parts[d] for d in form.reduced), start=np.ones(cells.shape, np.int64)) > 1,
        0,
        _result_stretches(form, sizes, parts) - 1,
    )
    cycles = cycles + question.code_price * target.instruction_bytes * (changes + RUN_INSTRUCTIONS * readers)
    partials = math.prod((parts[d] for d in form.reduced), start=np.ones(cells.shape, np.int64))
    is_split = partials > 1
    out_bytes = extents.results * np.where(
        is_split, bytes_of(partial_dtypes(codelet, result_dtypes)), bytes_of(result_dtypes)
    )
    each = bytes_of(partial_dtypes(codelet, result_dtypes))
    cycles = cycles + np.where(
        is_split, combining_cycles(extents.results, each, partials, target, question.code_price), 0
    )
    temporary = temporary + np.where(is_split, 0, codelet.scratch_bytes(extents, target))
    over = np.maximum(0, temporary + out_bytes - limit)
    return cycles + over * 1e3, cells, innermost


def _result_stretches(form: OpForm, grains: Sequence[np.ndarray], parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return in how many stretches a part of the first result lies beside its neighbours, float64 ``[candidates]``."""
    stretches: np.ndarray = np.ones(grains[0].shape if grains else (1,))
    is_whole = np.ones(stretches.shape, bool)
    for d in reversed(form.results[0].dims if form.results else ()):
        stretches = stretches * np.where(is_whole, 1, grains[d])
        is_whole = is_whole & (parts[d] == 1)
    return stretches


def _changes(index_map: IndexMap, layout: Layout, grains: Sequence[np.ndarray]) -> np.ndarray:
    """Return about how often a cell changes its source and its pointer while its slice arrives, float64 ``[candidates]``.

    As ``exchange.traffic`` counts it where slices begin and end with parts; orders other than row-major bring more
    neighbours together, about as many as there are in a part.
    """
    sources = windows = stretches = np.ones(grains[0].shape if grains else (1,))
    held = filled = np.ones(sources.shape, bool)
    for axis, split in reversed(list(zip(index_map.axes, layout.axes, strict=True))):
        reach = 1 + sum(abs(c) * (grains[d] - 1) for d, c in axis.terms)
        extent = np.minimum(reach, max(1, split.size)) * np.ones(sources.shape)
        pieces = np.ceil(extent / split.grain)
        sources = sources * pieces
        windows = windows * np.where(held, pieces, extent)
        stretches = stretches * np.where(filled, pieces, extent)
        held = held & ((extent % split.grain == 0) | (extent == split.size))
        filled = filled & (pieces <= 1)
    if not layout.arrangement.is_row_major:
        return 2 * sources
    return windows + np.where(stretches == sources, 1, stretches)
