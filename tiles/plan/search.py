"""The planner: search the splits of an operation's domain for the cheapest plan.

Candidates are scored all at once by a closed form (numpy over candidates); the best few and the plans
that follow an operand's own layout are then priced with exact exchange volumes. Cost is cycles, under a
bound on temporary bytes per tile; what exceeds it comes last, the least excess first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from tiles.cached import cached_property
from tiles.errors import InvalidPlan
from tiles.graph import (
    Affine,
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
from tiles.numerics.shared import hold, read_only
from tiles.plan.cells import CellFigures, cells_of, vertex_scratch
from tiles.plan.pricing import (
    Drafts,
    Operand,
    Question,
    Ranking,
    bytes_of,
    combining_cycles,
    drafted,
    drafts_of,
    partial_dtypes,
    sure_plan,
    updates_elements,
)
from tiles.plan.question import CODE_PRICE, MEMORY_PROPORTION
from tiles.plan.recent import Recent
from tiles.plan.slices import reads_all
from tiles.plan.superstep import code_bytes, estimated_cycles, run_code_bytes
from tiles.target import Target

MAX_CANDIDATES = 20_000
EXACT = 3
KNOWN_BYTES = 128 << 20
"""What is known of ways to cut operations may take so much: those of the layers that are planned at a time."""
BLOCK_DIMS = 6
"""Dimensions in a row that are cut in blocks, as batches of images and volumes are, however many ways that makes."""
SAMPLED = 64
"""Candidates by which it is found out how many cycles are few."""
FEW = 1024
"""Ways to cut an operation of which all are asked at once what their vertices take."""


def search(
    form: OpForm,
    codelet: Codelet,
    operands: Sequence[Operand],
    result_dtypes: tuple[str, ...],
    target: Target,
    extra: Sequence[Plan] = (),
    memory_proportion: float = MEMORY_PROPORTION,
    code_price: float = CODE_PRICE,
    least_cells: int = 1,
    within: int = 0,
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
      least_cells: fewer are looked for only where no way has as many; ``extra`` and what lies as operands do may.
      within: tiles, from the first one on, that plans may use; 0 for all.
    """
    limit = int(memory_proportion * target.bytes_per_tile)
    question = Question(form, codelet, tuple(operands), result_dtypes, target, code_price, within)
    return Ranking(_search(question, tuple(extra), limit, least_cells), limit)


@lru_cache(maxsize=4096)
def _search(question: Question, extra: tuple[Plan, ...], limit: int, least_cells: int) -> Drafts:
    """Search once per question: identical layers of a model ask the same one."""
    form, codelet, target = question.form, question.codelet, question.target
    found = _found(question)
    followed = {
        k: p
        for k, operand in enumerate(question.operands)
        if (p := follow(form, codelet, k, operand, target)) is not None
    }
    if question.within:
        followed = {k: plan for k, plan in followed.items() if int(plan.tiles.max()) < question.within}
        extra = tuple(plan for plan in extra if int(plan.tiles.max()) < question.within)
    others = [*extra, *followed.values(), unsplit_plan(form)]

    def searched() -> list[Plan]:
        near = _near(question, found, limit, least_cells)
        cycles, innermost = _closed_form(question, near, limit)
        best = _fewest(cycles, near.cells, _updated_bytes(question))
        plans: list[Plan] = []
        for row, grains, inner in zip(
            best, near.grains[best].tolist(), innermost[best].tolist(), strict=True
        ):
            plans += [_plan(form, grains, order) for order in _orders(form, inner)]
            cells_of(question).learn(plans[-1], lambda row=row: near.vertex(row, form))
        return plans

    def all_plans() -> Iterable[Plan]:
        return dict.fromkeys([*extra, *searched(), *others])

    layouts = [operand.layout for operand in question.operands]
    if not any(reads_all(form, k, layout) for k in followed if (layout := layouts[k]) is not None):
        return drafts_of(question, all_plans())
    made = MappingProxyType(drafted(question, dict.fromkeys(others)))
    # all other plans move something of that operand
    sure = sure_plan(question, made.values(), limit, found.least_cost)
    if sure is not None and _is_simplest(sure.plan):
        return Drafts(question, all_plans, sure, made)
    plans = tuple(all_plans())
    return Drafts(question, lambda: plans, None, made)


def least_cost(question: Question) -> float:
    """Return what any way to cut a question's operation costs at least, whatever it needs of memory and without exchange."""
    return _found(question).least_cost


def _found(question: Question) -> _Cuts:
    """Return the ways to cut a question's operation."""
    dtypes = tuple(o.dtype for o in question.operands)
    asked = (
        question.form,
        question.codelet,
        dtypes,
        question.result_dtypes,
        question.target,
        question.code_price,
    )
    return _KNOWN.get(asked, lambda: _cuts(*asked))


def _is_simplest(plan: Plan) -> bool:
    """Return whether no digits could be one, so that no other plan is the same with fewer of them."""
    return not any(
        slow == radix * fast
        for split in plan.splits
        if split.is_split
        for (_, slow), (radix, fast) in pairwise(split.digits)
    )


def _near(question: Question, cuts: _Cuts, limit: int, least_cells: int) -> _Candidates:
    """Return the candidates, in order, that may be among the ``EXACT`` best: whose cycles without exchange are few enough.

    Where it is known what vertices take at least, few others are asked for what they take. Those of fewer cells are left
    out if there are others, those of more than the tiles that the question leaves always.
    """
    possible = np.flatnonzero(cuts.cells <= (question.within or question.target.num_tiles))
    asked = possible[cuts.cells[possible] >= least_cells]
    asked = asked if asked.size else possible

    def most(at: Callable[[np.ndarray], _Candidates], least: np.ndarray) -> float:
        """Return what the worst of the ``EXACT`` best costs at most, given what each costs at least."""
        sample = at(np.argpartition(least, SAMPLED - 1)[:SAMPLED])
        return float(np.partition(_closed_form(question, sample, limit)[0], EXACT - 1)[EXACT - 1])

    if cuts.is_complete or asked.size <= SAMPLED:
        some = cuts.every if asked.size == cuts.cells.size else cuts.at(asked)
    else:
        least = cuts.least[asked]
        some = cuts.at(
            asked[np.flatnonzero(least * (1 - 1e-9) <= most(lambda rows: cuts.at(asked[rows]), least))]
        )
    if some.cells.size <= SAMPLED:
        return some
    least = some.compute + some.combining + np.maximum(0, some.temporary - limit) * 1e3
    return some.at(np.flatnonzero(least * (1 - 1e-9) <= most(some.at, least)))  # sums are rounded


def _fewest(cycles: np.ndarray, cells: np.ndarray, updated: int) -> np.ndarray:
    """Return the numbers of the ``EXACT`` candidates with the fewest cycles, of equal ones those with the fewest cells.

    Args:
      cycles: of the candidates.
      cells: of the candidates.
      updated: bytes that lie nowhere yet and are updated where they will lie. Something will write them there, words of 64 bits
        one after the other, so of equal candidates the one comes first whose cells, and such words of one, are fewest together.
    """
    order = cells + updated // 8 // np.maximum(cells, 1)
    if cycles.size <= EXACT:
        return np.lexsort((order, cycles))
    near = np.flatnonzero(cycles <= np.partition(cycles, EXACT - 1)[EXACT - 1])
    return near[np.lexsort((order[near], cycles[near]))[:EXACT]]


def _updated_bytes(question: Question) -> int:
    """Return the bytes of the first operand if some of its elements are updated where it lies, and it lies nowhere yet."""
    first = question.operands[0] if question.operands and updates_elements(question.codelet) else None
    return 0 if first is None or first.layout is not None else math.prod(first.shape) * itemsize(first.dtype)


def follow(form: OpForm, codelet: Codelet, k: int, operand: Operand, target: Target) -> Plan | None:
    """Return the plan that reads operand k where it lies, if there is one."""
    return _cut_as(form, codelet, form.operands[k], operand.layout, target)


def leaving(form: OpForm, codelet: Codelet, layout: Layout, target: Target) -> Plan | None:
    """Return the plan whose cells compute their parts of the result where a layout has them, if there is one."""
    return _cut_as(form, codelet, form.results[0], layout, target)


@lru_cache(maxsize=4096)
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


def _plan(form: OpForm, grains: Sequence[int], order: tuple[int, ...]) -> Plan:
    splits: list[AxisSplit] = [whole(dim.size) for dim in form.dims]
    stride = 1
    for d in reversed(order):
        size, grain = form.dims[d].size, grains[d]
        parts = max(1, -(-size // grain))
        if parts > 1:
            splits[d] = _cut(size, grain, parts, stride)
            stride *= parts
    return Plan(tuple(splits))


@lru_cache(maxsize=16384)
def _cut(size: int, grain: int, parts: int, stride: int) -> AxisSplit:
    """Return a dimension cut over tiles ``stride`` apart; plans of all orders share these."""
    return AxisSplit(size, grain, ((parts, stride),))


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
    return read_only(grains)


def _candidate_grains(form: OpForm, codelet: Codelet, target: Target) -> np.ndarray:
    """Return candidate cell extents, int64 ``[candidates, dims]``; cells never exceed the tiles."""
    multiples = codelet.grains(form, target)
    cuts = tuple(
        (dim.size, multiples[d] if dim.size > 1 and codelet.may_split(form, d) else None)
        for d, dim in enumerate(form.dims)
    )
    found = _grains_of(cuts, (False,) * len(cuts), target.num_tiles)
    if found is None:
        found = _grains_of(cuts, _following(form, cuts), target.num_tiles, True)
    assert found is not None
    return found


def _following(form: OpForm, cuts: Sequence[tuple[int, int | None]]) -> tuple[bool, ...]:
    """Return which dimensions follow the one before as digits of one number: those of more than ``BLOCK_DIMS`` in a row.

    A row of them are beside each other in whatever has any of them, as the qubits of a state or the sites of a lattice.
    """
    found = [d > 0 and _are_digits(form, d - 1, cuts) for d in range(len(cuts))]
    for d, follows in enumerate(found):
        if not follows:
            end = next((e for e in range(d + 1, len(found)) if not found[e]), len(found))
            if end - d <= BLOCK_DIMS:
                found[d + 1 : end] = [False] * (end - d - 1)
    return tuple(found)


def _are_digits(form: OpForm, d: int, cuts: Sequence[tuple[int, int | None]]) -> bool:
    """Return whether a dimension and the next are cut, and combined along, alike, and beside each other everywhere."""
    if any(size > 1 and multiple is None for size, multiple in cuts[d : d + 2]):
        return False
    if form.dims[d].is_reduced != form.dims[d + 1].is_reduced:
        return False
    both = Affine(((d, 1),)), Affine(((d + 1, 1),))
    for index_map in (*form.operands, *form.results):
        at = [n for n, axis in enumerate(index_map.axes) if any(e in (d, d + 1) for e, _ in axis.terms)]
        if at and (len(at) != 2 or index_map.axes[at[0] : at[0] + 2] != both):
            return False
    return True


@lru_cache(maxsize=128)
def _grains_of(
    cuts: tuple[tuple[int, int | None], ...], follows: tuple[bool, ...], num_tiles: int, samples: bool = False
) -> np.ndarray | None:
    """Return ``_candidate_grains``; None where there are too many of them, unless it ``samples``.

    Args:
      cuts: size of each dimension, and what its extents are multiples of; None where it is not cut.
      follows: whether a dimension is cut only where those before it, down to one that follows none, are cut as finely as
        they may: cells then are stretches of what these dimensions count together.
      num_tiles: cells at most.
      samples: whether some of very many ways are enough.
    """
    free = sum(multiple is not None for _, multiple in cuts)
    keep = max(6, int(MAX_CANDIDATES ** (1 / max(1, free))))
    chosen = np.zeros((1, 0), np.int64)
    cells = np.ones(1, np.int64)
    is_finest = np.ones(1, bool)
    for (size, multiple), follow_on in zip(cuts, follows, strict=True):
        whole_extent = np.array([max(1, size)], np.int64)
        options = whole_extent if multiple is None else _grain_options(size, multiple, num_tiles, keep)
        parts = -(-max(1, size) // options)
        total = cells[:, None] * parts[None, :]
        may = total <= num_tiles
        if follow_on:
            may &= is_finest[:, None] | (parts == 1)
        found = np.flatnonzero(may)
        if found.size > 4 * MAX_CANDIDATES:
            if not samples:
                return None
            found = found[np.linspace(0, found.size - 1, MAX_CANDIDATES).astype(int)]
        rows, columns = np.divmod(found, options.size)
        chosen = np.concatenate([chosen[rows], options[columns][:, None]], axis=1)
        cells = total[rows, columns]
        is_finest = (options[columns] == options.min()) & (is_finest[rows] | (not follow_on))
    return read_only(chosen)


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Ways to cut an operation, and what is known of them before it is known where operands lie; ``[candidates]`` each.

    Args:
      grains: extents of a cell, int64 ``[candidates, dims]``.
      cells: int64.
      compute: cycles of the slowest vertex, float64.
      slice_bytes: by operand, the bytes that a cell reads of it.
      replication: by operand, the cells that read the same of it, float64.
      lanes: by dimension, tiles of an exchange bus that differ in nothing else, where cells along it are neighbours.
      reader_runs: runs in which readers of the result will take it, float64.
      combining: cycles of combining partials, and the price of its code, float64.
      held: bytes per tile of received slices, partials and results, float64.
      scratch: bytes of vertex scratch, float64.
    """

    grains: np.ndarray
    cells: np.ndarray
    compute: np.ndarray
    slice_bytes: tuple[np.ndarray, ...]
    replication: tuple[np.ndarray, ...]
    lanes: tuple[np.ndarray, ...]
    reader_runs: np.ndarray
    combining: np.ndarray
    held: np.ndarray
    scratch: np.ndarray

    def __post_init__(self) -> None:
        hold(*vars(self).values())

    @property
    def temporary(self) -> np.ndarray:
        """Bytes per tile of received slices, vertex scratch, partials and results, float64 ``[candidates]``."""
        return self.held + self.scratch

    def vertex(self, row: int, form: OpForm) -> CellFigures:
        """Return what a vertex of one of the candidates takes."""
        grains: list[int] = self.grains[row].tolist()
        results = math.prod(n for n, dim in zip(grains, form.dims, strict=True) if not dim.is_reduced)
        read = tuple(int(sizes[row]) for sizes in self.slice_bytes)
        return CellFigures(float(self.compute[row]), results, int(self.scratch[row]), read)

    def at(self, rows: np.ndarray) -> _Candidates:
        """Return some of the candidates."""

        def some(values: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
            return tuple(v[rows] for v in values)

        return _Candidates(
            grains=self.grains[rows],
            cells=self.cells[rows],
            compute=self.compute[rows],
            slice_bytes=some(self.slice_bytes),
            replication=some(self.replication),
            lanes=some(self.lanes),
            reader_runs=self.reader_runs[rows],
            combining=self.combining[rows],
            held=self.held[rows],
            scratch=self.scratch[rows],
        )


@dataclass(frozen=True, eq=False)
class _Cuts:
    """All ways to cut an operation, and what is found at once of each; ``[cuts]`` each, see ``_Candidates``.

    What vertices take is found when it is asked for and kept; threads at worst find it twice.

    Args:
      codelet: what the operation computes.
      extents: of cells.
      target: the machine.
      is_split: whether cells compute partials, bool.
      least: what a way costs at least, float64.
      held: bytes per tile without vertex scratch, float64.
      is_complete: whether ``cycles`` and ``scratch`` are known of all, as nothing is known that vertices take at least.
      cycles: cycles of the slowest vertex, float64; NaN where they are not known yet.
      scratch: bytes of vertex scratch, float64, where ``cycles`` are known.
    """

    codelet: Codelet
    extents: Extents
    target: Target
    grains: np.ndarray
    cells: np.ndarray
    slice_bytes: tuple[np.ndarray, ...]
    replication: tuple[np.ndarray, ...]
    lanes: tuple[np.ndarray, ...]
    reader_runs: np.ndarray
    combining: np.ndarray
    is_split: np.ndarray
    least: np.ndarray
    held: np.ndarray
    is_complete: bool
    cycles: np.ndarray
    scratch: np.ndarray

    def __post_init__(self) -> None:
        hold(*(value for name, value in vars(self).items() if name not in ("cycles", "scratch")))

    @property
    def size_bytes(self) -> int:
        """Bytes of all the arrays."""
        several = (*self.slice_bytes, *self.replication, *self.lanes)
        known = (self.grains, self.cells, self.reader_runs, self.combining, self.is_split, self.least)
        return sum(array.nbytes for array in (*known, *several, self.held, self.cycles, self.scratch))

    @cached_property
    def least_cost(self) -> float:
        """What any of them costs at least: without any exchange before it."""
        if self.is_complete:
            found = self.every
        else:
            some = self.at(np.argpartition(self.least, SAMPLED - 1)[:SAMPLED])
            most = (some.compute + some.combining).min()
            found = self.at(np.flatnonzero(self.least * (1 - 1e-9) <= most))
        return float((found.compute + found.combining).min()) * (1 - 1e-9)  # sums are rounded

    @cached_property
    def every(self) -> _Candidates:
        """All of the ways, with all that is known of them before it is known where operands lie."""
        self._find(np.flatnonzero(np.isnan(self.cycles)))
        return self._as_found

    def at(self, rows: np.ndarray) -> _Candidates:
        """Return some of the ways, as ``every`` has them."""
        self._find(rows[np.isnan(self.cycles[rows])])
        return self._as_found.at(rows)

    @property
    def _as_found(self) -> _Candidates:
        """The ways with what has been found of them; what follows is seen in it, too."""
        return _Candidates(
            self.grains,
            self.cells,
            self.cycles.view(),
            self.slice_bytes,
            self.replication,
            self.lanes,
            self.reader_runs,
            self.combining,
            self.held,
            self.scratch.view(),
        )

    def _find(self, rows: np.ndarray) -> None:
        """Find what vertices take that is not known yet."""
        if not rows.size:
            return
        extents = replace(self.extents, sizes=tuple(size[rows] for size in self.extents.sizes))
        self.scratch[rows] = vertex_scratch(self.codelet, extents, self.is_split[rows], self.target)
        self.cycles[rows] = self.codelet.cycles(extents, self.target).value


_KNOWN = Recent[_Cuts](KNOWN_BYTES, lambda found: found.size_bytes)


def _cuts(
    form: OpForm,
    codelet: Codelet,
    dtypes: tuple[str, ...],
    result_dtypes: tuple[str, ...],
    target: Target,
    code_price: float,
) -> _Cuts:
    """Return the ways to cut an operation; layers that differ in where their operands lie, and trials, share them."""
    grains = _candidate_grains(form, codelet, target)
    sizes = tuple(grains.T)
    parts = [-(-max(1, dim.size) // g) for dim, g in zip(form.dims, sizes, strict=True)]
    cells = math.prod(parts, start=np.ones(grains.shape[0], np.int64))
    extents = Extents(form, sizes, dtypes, result_dtypes)
    slice_bytes = tuple(
        np.broadcast_to(extents.operand_elements(k) * itemsize(dtype), cells.shape)
        for k, dtype in enumerate(dtypes)
    )
    replication = tuple(
        math.prod((n for d, n in enumerate(parts) if d not in index_map.dims), start=np.ones(cells.shape))
        for index_map in form.operands
    )
    bus = target.tiles_per_shared_exchange_bus
    partials = math.prod((parts[d] for d in form.reduced), start=np.ones(cells.shape, np.int64))
    is_split = partials > 1
    unread = is_split | updates_elements(codelet)
    bytes_each, combining = bytes_of(result_dtypes), np.zeros(cells.shape)
    if is_split.any():
        partial_bytes = bytes_of(partial_dtypes(codelet, result_dtypes))
        bytes_each = np.where(is_split, partial_bytes, bytes_each)
        base = target.num_tiles + 1  # above any number of partials
        pairs = (extents.results * base + partials)[is_split]
        pairs, which = np.unique(pairs, return_inverse=True)  # many cuts leave as many results and partials
        in_stages = combining_cycles(codelet, pairs // base, partial_bytes, pairs % base, target, code_price)
        combining[is_split] = in_stages[which.reshape(-1)]
    least = codelet.least_cycles(extents, target) if cells.size > FEW else None
    return _Cuts(
        codelet=codelet,
        extents=extents,
        target=target,
        grains=grains,
        cells=cells,
        slice_bytes=slice_bytes,
        replication=replication,
        lanes=tuple(np.where(n % bus == 0, bus, 1) for n in parts),
        reader_runs=np.where(unread, 0, _result_stretches(form, sizes, parts) - 1),
        combining=combining,
        is_split=is_split,
        least=combining if least is None else np.broadcast_to(least, cells.shape) + combining,
        held=sum(slice_bytes, np.zeros(cells.shape)) + extents.results * bytes_each,
        is_complete=least is None,
        cycles=np.full(cells.shape, np.nan),
        scratch=np.zeros(cells.shape),
    )


def _closed_form(question: Question, candidates: _Candidates, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return estimated cycles and the dimension over neighbouring tiles, of every candidate; float64, int64.

    Cells along that dimension that read the same of an operand share the lanes of their exchange bus.
    """
    form, target = question.form, question.target
    shape = candidates.cells.shape
    incoming = np.zeros((max(1, len(form.dims)), *shape))
    changes, kept = np.zeros(shape), np.zeros(shape)
    for index_map, operand, slice_bytes, replication in zip(
        form.operands, question.operands, candidates.slice_bytes, candidates.replication, strict=True
    ):
        remote = slice_bytes * (1 - 1 / replication) if operand.layout is None else slice_bytes * 1.0
        if operand.layout is None:
            kept += np.where(replication > 1, slice_bytes / replication, 0)
        for d, lanes in enumerate(candidates.lanes):
            incoming[d] += remote if d in index_map.dims else remote / lanes
        if operand.layout is not None:
            changes += _changes(index_map, operand.layout, tuple(candidates.grains.T))
    innermost, least = np.zeros(shape, np.int64), incoming[0]
    for d in range(1, len(incoming)):  # six times as fast as ``argmin`` along the first axis
        innermost = np.where(incoming[d] < least, d, innermost)
        least = np.minimum(least, incoming[d])
    cycles = estimated_cycles(candidates.compute, least, changes, kept, target)
    code = code_bytes(changes, target) + run_code_bytes(candidates.reader_runs, target)
    cycles = cycles + question.code_price * code + candidates.combining
    return cycles + np.maximum(0, candidates.temporary - limit) * 1e3, innermost


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
    taken: list[np.ndarray] = []
    held = filled = is_finer = np.ones(sources.shape, bool)
    for axis, split in reversed(list(zip(index_map.axes, layout.axes, strict=True))):
        reach = 1 + sum(abs(c) * (grains[d] - 1) for d, c in axis.terms)
        extent = np.minimum(reach, max(1, split.size)) * np.ones(sources.shape)
        pieces = np.ceil(extent / split.grain)
        sources = sources * pieces
        taken.insert(0, np.minimum(extent, min(split.grain, max(1, split.size))))
        windows = windows * np.where(held, pieces, extent)
        stretches = stretches * np.where(filled, pieces, extent)
        is_finer = is_finer & (~held | filled | (extent <= pieces))
        held = held & ((extent % split.grain == 0) | (extent == split.size))
        filled = filled & (pieces <= 1)
    if not layout.arrangement.is_row_major:
        return sources * _stretches_in_order(layout, taken) + 1
    return windows + np.where((stretches == sources) | is_finer, 1, stretches)


def _stretches_in_order(layout: Layout, taken: Sequence[np.ndarray]) -> np.ndarray:
    """Return in how many stretches that many elements along each axis lie in a part, float64 ``[candidates]``."""
    together: np.ndarray = np.ones(taken[0].shape if taken else (1,))
    is_whole = np.ones(together.shape, bool)
    for d, radix, step in reversed(layout.arrangement.factors(layout.part_shape)):
        count = np.minimum(radix, np.ceil(taken[d] / step))
        together = together * np.where(is_whole, count, 1)
        is_whole = is_whole & (count == radix)
    return np.maximum(1, math.prod(taken, start=np.ones(together.shape)) / together)
