"""The price of a plan: cycles from exact exchange volumes, and plans in order of it, priced no more than needed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, overload

import numpy as np

from tiles.cached import cached_property
from tiles.graph import (
    Affine,
    Arrangement,
    AxisSplit,
    Codelet,
    Layout,
    OpForm,
    Plan,
    linear_layout,
    whole,
)
from tiles.graph.layout import align_up, ceil_div
from tiles.numerics.dtypes import itemsize
from tiles.plan.bounds import least_figures
from tiles.plan.cell_order import arranged
from tiles.plan.cells import cells_of
from tiles.plan.exchange import ExchangeFigures, exchange_figures, staging_bytes
from tiles.plan.question import CODE_PRICE, Operand, Question
from tiles.plan.slices import is_local, reads_all
from tiles.plan.superstep import copy_cycles, estimated_cycles, phase_cycles, run_code_bytes, superstep_cycles
from tiles.target import Target

NO_EXCHANGE = ExchangeFigures(0, 0, 0, 0)


@dataclass(frozen=True)
class Priced:
    """A plan with its estimated cost.

    Args:
      plan: the plan.
      cycles: estimated cycles of exchange, compute and combination of partials.
      temporary_bytes: bytes per tile of received slices, vertex scratch, partials and results.
      code_bytes: exchange code on the tile that needs most of it.
      reader_code_bytes: exchange code for a tile's share of the results when something reads them across parts.
      code_price: cycles that a byte of exchange code is worth.
    """

    plan: Plan
    cycles: float
    temporary_bytes: int
    code_bytes: int = 0
    reader_code_bytes: float = 0
    code_price: float = CODE_PRICE

    @property
    def cost(self) -> float:
        """What plans are compared by: cycles, and the price of code, whose memory stays taken for good."""
        return self.cycles + self.code_price * (self.code_bytes + self.reader_code_bytes)


class Ranking(Sequence[Priced]):
    """Plans in order of cost, cheapest first; a plan that surely costs more than what was asked for is not priced.

    Those that exceed a bound on temporary bytes come last, the least excess first. Of equal ones the plan with
    fewer cells comes first, then the one given first.
    """

    def __init__(self, drafts: Drafts, limit: int) -> None:
        """Rank plans by their least costs; ``limit`` bounds temporary bytes.

        A ranking changes while it is read, so it is its caller's own; what is costly to find, drafts keep.
        """
        self._limit = limit
        self._drafts = drafts
        self._ranked: list[Priced] = []
        self._bounded: set[int] = set()

    def __len__(self) -> int:
        """Return the number of plans."""
        return len(self._drafts.drafts)

    @cached_property
    def _open(self) -> list[tuple[int, float, int, int, Priced | None]]:
        """The plans that are not ranked yet, as a heap."""
        found = [
            self._entry(number, draft.free_cost, None if draft.received else draft.priced)
            for number, draft in enumerate(self._drafts.drafts)
        ]
        heapq.heapify(found)
        return found

    @overload
    def __getitem__(self, index: int) -> Priced: ...

    @overload
    def __getitem__(self, index: slice) -> list[Priced]: ...

    def __getitem__(self, index: int | slice) -> Priced | list[Priced]:
        """Return the plan of a rank; those before it are found, too."""
        if index == 0 and self._drafts.sure is not None:
            return self._drafts.sure
        wanted = range(len(self))[index]
        last = wanted if isinstance(wanted, int) else max(wanted, default=-1)
        while len(self._ranked) <= last:
            self._advance()
        return self._ranked[index]

    def first_below(self, cost: float) -> Priced | None:
        """Return the first plan if it costs less than ``cost``, else None; as little as that takes is priced."""
        first = self._drafts.sure
        while first is None and not self._ranked and self._open[0][1] < cost:
            self._advance()
        first = self._ranked[0] if self._ranked else first
        return first if first is not None and first.cost < cost else None

    def cheapest(self, is_wanted: Callable[[Plan], bool], most: float) -> Priced | None:
        """Return the first of the plans that are wanted and cost no more than ``most``, None if there is none."""
        sure = self._drafts.sure
        if sure is not None and is_wanted(sure.plan):
            return sure if sure.cost <= most else None
        found: list[tuple[int, float, int, int, Priced | None]] = []
        for number, draft in enumerate(self._drafts.drafts):
            if not is_wanted(draft.plan):
                continue
            if not draft.received or draft.least_cost <= most:
                priced = draft.priced
                if priced.cost <= most:
                    found.append(self._entry(number, priced.cost, priced))
        return min(found)[-1] if found else None

    def _advance(self) -> None:
        """Rank the plan that may come next if its cost is known, else bound or price it."""
        *_, number, priced = heapq.heappop(self._open)
        if priced is not None:
            self._ranked.append(priced)
            return
        draft = self._drafts.drafts[number]
        if number not in self._bounded:
            self._bounded.add(number)
            self._push(number, draft.least_cost, None)
        else:
            priced = draft.priced
            self._push(number, priced.cost, priced)

    def _push(self, number: int, cost: float, priced: Priced | None) -> None:
        heapq.heappush(self._open, self._entry(number, cost, priced))

    def _entry(
        self, number: int, cost: float, priced: Priced | None
    ) -> tuple[int, float, int, int, Priced | None]:
        """Return what plans are ordered by: no two entries have the same number."""
        draft = self._drafts.drafts[number]
        excess = max(0, draft.temporary_bytes - self._limit)
        return excess, cost, draft.plan.num_cells, number, priced


ACCUMULATED_BYTES = 16
"""What a worker folds at once: shares of partials are whole numbers of these, as combining vertices want them."""


@lru_cache(maxsize=16)
def _shortest_exchange(target: Target) -> ExchangeFigures:
    """Return figures that no exchange in which anything crosses tiles is below."""
    return ExchangeFigures(phase_cycles(1, target), 0, 0, 0)


@dataclass(frozen=True)
class Draft:
    """A plan of which all is known but the exchange. Immutable; what is asked of it is computed once.

    Args:
      question: what is planned.
      plan: the plan.
      compute_cycles: of the slowest vertex.
      combining_cycles: of combining partials.
      temporary_bytes: bytes per tile of received slices, vertex scratch, partials and results.
      received: operands that are not read in place, with their layouts.
      crosses: whether something surely crosses tiles.
      reader_code_bytes: see ``Priced``.
    """

    question: Question
    plan: Plan
    compute_cycles: float
    combining_cycles: float
    temporary_bytes: int
    received: tuple[tuple[int, Layout], ...]
    crosses: bool
    reader_code_bytes: float

    @cached_property
    def free_cost(self) -> float:
        """What the plan costs at least: without any exchange, or with the shortest one if something crosses tiles."""
        return self._cost(_shortest_exchange(self.question.target) if self.crosses else NO_EXCHANGE)

    @cached_property
    def least_cost(self) -> float:
        """What the plan costs at least, as far as a few of its cells say."""
        question = self.question
        dtypes = [o.dtype for o in question.operands]
        return self._cost(least_figures(question.form, self.plan, self.received, dtypes, question.target))

    def _cost(self, exchange: ExchangeFigures) -> float:
        """Return what the plan costs, given the figures of its exchange or such as they cannot be below."""
        code = exchange.code_bytes + self.reader_code_bytes
        return self._cycles(exchange) + self.question.code_price * code

    def _cycles(self, exchange: ExchangeFigures) -> float:
        """Return the cycles of exchange, compute and combination."""
        target = self.question.target
        copies = copy_cycles(exchange.local_bytes, target) + exchange.reordering_cycles
        cycles = superstep_cycles(self.compute_cycles, exchange.cycles, copies, target)
        return cycles + self.combining_cycles

    @property
    def alone_cycles(self) -> float:
        """Cycles of exchange and compute: without the combination of partials, which is other compute sets'."""
        return self.priced.cycles - self.combining_cycles

    @cached_property
    def exchange(self) -> ExchangeFigures:
        """The figures of the exchange, from exact volumes."""
        form, operands, target = self.question.form, self.question.operands, self.question.target
        moved = tuple((k, layout, operands[k].shape, operands[k].dtype) for k, layout in self.received)
        return exchange_figures(form, self.plan, moved, target) if moved else NO_EXCHANGE

    @cached_property
    def priced(self) -> Priced:
        """The plan with its cost from exact exchange volumes."""
        return Priced(
            self.plan,
            self._cycles(self.exchange),
            self.temporary_bytes,
            self.exchange.code_bytes,
            self.reader_code_bytes,
            self.question.code_price,
        )


@dataclass(frozen=True, eq=False)
class Drafts:
    """Plans of one question. Immutable; what is asked of them is computed once, whoever asks.

    Args:
      question: the question.
      plans: makes the plans, each once, in the order in which equal ones are preferred.
      sure: the plan that is surely the cheapest, if that is known without the others.
      made: drafts of some of the plans, by plan.
    """

    question: Question
    plans: Callable[[], Iterable[Plan]]
    sure: Priced | None = None
    made: Mapping[Plan, Draft] = field(default_factory=lambda: MappingProxyType[Plan, Draft]({}))

    @cached_property
    def drafts(self) -> tuple[Draft, ...]:
        """The plans, in the order their vertices want, with all that is known of them but their exchange."""
        plans = list(self.plans())
        others = drafted(self.question, (plan for plan in plans if plan not in self.made))
        return tuple(self.made.get(plan) or others[plan] for plan in plans)


def drafts_of(question: Question, plans: Iterable[Plan]) -> Drafts:
    """Return drafts of a question's plans."""
    given = tuple(plans)
    return Drafts(question, lambda: given)


def drafted(question: Question, plans: Iterable[Plan]) -> dict[Plan, Draft]:
    """Return plans, in the order their vertices want, with all that is known of them but their exchange, by plan."""
    given = list(plans)
    return dict(zip(given, _drafts(question, arranged(question, given)), strict=True))


def sure_plan(question: Question, drafts: Collection[Draft], limit: int, least_cost: float) -> Priced | None:
    """Return the cheapest of some plans, which exchanges nothing, if it surely costs less than any other plan.

    Args:
      question: the question.
      drafts: those among which it is.
      limit: bound on temporary bytes.
      least_cost: what other plans cost at least before anything crosses tiles, as something does in each.
    """
    local = [draft for draft in drafts if not draft.received and draft.temporary_bytes <= limit]
    if not local:
        return None
    best = min(local, key=lambda draft: (draft.free_cost, draft.plan.num_cells))
    target = question.target
    shortest = superstep_cycles(0, _shortest_exchange(target).cycles, 0, target)
    others = [draft.free_cost for draft in drafts if draft.received and draft.temporary_bytes <= limit]
    return best.priced if best.free_cost < min((least_cost + shortest, *others)) else None


def _drafts(question: Question, plans: Sequence[Plan]) -> tuple[Draft, ...]:
    """Return drafts of plans."""
    form, target = question.form, question.target
    alone = bytes_of(question.result_dtypes)
    partial_bytes = (
        bytes_of(partial_dtypes(question.codelet, question.result_dtypes)) if form.reduced else alone
    )
    drafts: list[Draft] = []
    for plan, cell in zip(plans, cells_of(question).figures(plans), strict=True):
        found = _read(question, plan)
        received = tuple((k, layout) for k, layout, _, is_there in found if not is_there)
        partials = plan.num_partials(form)
        each_bytes = partial_bytes if partials > 1 else alone
        temporary = cell.results * each_bytes + cell.scratch_bytes
        for k, layout, is_whole, is_there in found:
            if not is_there:
                temporary += align_up(cell.operand_bytes[k], 4)
            if not is_whole:
                temporary += staging_bytes(layout, form, plan, k, question.operands[k].dtype)
        combining = (
            _combining_cycles(
                question.codelet, cell.results, each_bytes, partials, target, question.code_price
            )
            if partials > 1
            else 0.0
        )
        is_updated = any(is_whole and _is_overwritten(question, k) for k, _, is_whole, _ in found)
        readers = 0.0 if partials > 1 or is_updated else _reader_code_bytes(question, plan)
        # what is read as a whole lies where it is read, or some of it comes from another tile
        crosses = any(not is_whole and reads_all(form, k, layout) for k, layout, is_whole, _ in found)
        drafts.append(Draft(question, plan, cell.cycles, combining, temporary, received, crosses, readers))
    return tuple(drafts)


def _reader_code_bytes(question: Question, plan: Plan) -> float:
    """Return the exchange code of a run's send and receipt for each stretch in which a part of a result lies beside the next.

    Where a part is all there is along its fastest dimensions, it is one stretch with what is slower. For results that
    take the place of an operand nobody asks: they lie as they did before, which costs nothing anew. Those in which some
    elements are replaced cost nothing either, as what a loop stacks up: a row of it is written at a time, and read.
    """
    form, target = question.form, question.target
    if not form.results or updates_elements(question.codelet):
        return 0.0
    dims = form.results[0].dims
    splits, extents = [plan.splits[d] for d in dims], [plan.extents[d] for d in dims]
    elements, together = math.prod(extents), 1
    for d, n, _ in reversed(plan.result_order(form).over(len(dims)).factors(extents)):
        together *= n
        if splits[d].is_split:
            break
    return run_code_bytes(float(ceil_div(elements, max(1, together)) - 1), target)


def updates_elements(codelet: Codelet) -> bool:
    """Return whether some elements of the first operand are replaced, so that the result lies as that does."""
    return codelet.replaces_elements and codelet.may_overwrite(0)


def _is_overwritten(question: Question, k: int) -> bool:
    """Return whether the result of a plan that reads operand ``k`` in place may take its place."""
    operand = question.operands[k]
    if operand.layout is None or operand.shape != question.form.result_shape():
        return False
    return question.codelet.may_overwrite(k)


def _read(question: Question, plan: Plan) -> list[tuple[int, Layout, bool, bool]]:
    """Return the operands with their layouts, whether their elements are where a plan reads them, and in its order."""
    form, target = question.form, question.target
    found: list[tuple[int, Layout, bool, bool]] = []
    for k, operand in enumerate(question.operands):
        layout = operand.layout or preferred_layout(form, plan, k, operand.shape, operand.dtype, target)
        is_there = is_local(form, plan, k, layout)
        in_order = is_there and plan.operand_order(form, k).fit(layout.part_shape) == layout.arrangement
        found.append((k, layout, is_there, in_order))
    return found


def price(
    form: OpForm,
    codelet: Codelet,
    operands: Sequence[Operand],
    result_dtypes: tuple[str, ...],
    target: Target,
    plan: Plan,
    code_price: float = CODE_PRICE,
) -> Priced:
    """Return a plan, its vertices' order chosen, with its cost from exact exchange volumes."""
    return draft(Question(form, codelet, tuple(operands), result_dtypes, target, code_price), plan).priced


@lru_cache(maxsize=4096)
def draft(question: Question, plan: Plan) -> Draft:
    """Return all that is known of a plan, its vertices' order chosen, before its exchange is priced."""
    return drafts_of(question, [plan]).drafts[0]


def bytes_of(dtypes: tuple[str, ...]) -> int:
    """Return the bytes of one element of every dtype together."""
    return sum(itemsize(dtype) for dtype in dtypes)


def partial_dtypes(codelet: Codelet, result_dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dtypes of partials, those of the results where reductions are not split."""
    return result_dtypes if codelet.combiner() is None else codelet.partial()[1]


def combining_cycles(
    codelet: Codelet,
    results: Any,
    bytes_each: Any,
    partials: Any,
    target: Target,
    code_price: float = CODE_PRICE,
) -> Any:
    """Estimate the cycles of combining ``partials`` tiles' results, and the price of its code, in one to three stages.

    In a stage of fan-in d the tiles of a group share the results, as far as there are enough: each has one partial of
    its share, receives the others and folds all d, as what combines them says. Where that says nothing, a fold is taken
    to read a vector a cycle, to spend about three more on every vector of results, and 32 slots on entering it, 29 more
    where workers share the partials of few results (terms of PopLibs' estimators, see ``popops.Reduce``).

    Args:
      codelet: what made the partials.
      results: elements that each tile holds partials of.
      bytes_each: bytes of an element.
      partials: tiles that hold partials of the same elements.
      target: the machine.
      code_price: cycles that a byte of exchange code is worth.
    """
    results = np.asarray(results)
    lanes = np.maximum(ACCUMULATED_BYTES // bytes_each, 1)

    def stage(fan_in: Any) -> Any:
        share = -(-results // np.minimum(fan_in, np.maximum(results, 1)))
        share = np.minimum(-(-share // lanes) * lanes, results)
        kept = share * bytes_each
        fold = codelet.joining_cycles(share, fan_in, target)
        if fold is None:
            entry = np.where(share < target.workers_per_tile, 32 + 29, 32)
            fold = kept * (fan_in + 3) / target.data_path_bytes
            fold = fold + entry * target.worker_issue_interval_cycles
        cycles = estimated_cycles(fold, kept * (fan_in - 1), 0, kept, target)
        return cycles + code_price * run_code_bytes(fan_in, target)

    count = np.maximum(np.asarray(partials, np.float64), 1)
    return np.minimum.reduce([n * stage(np.ceil(count ** (1 / n))) for n in (1, 2, 3)])


@lru_cache(maxsize=4096)
def _combining_cycles(
    codelet: Codelet, results: int, bytes_each: int, partials: int, target: Target, code_price: float
) -> float:
    """Return ``combining_cycles`` of one plan; plans that differ in their tiles alone share it."""
    return float(combining_cycles(codelet, results, bytes_each, partials, target, code_price))


def preferred_layout(
    form: OpForm, plan: Plan, k: int, shape: tuple[int, ...], dtype: str, target: Target
) -> Layout:
    """Return the layout in which operand k best waits for this plan.

    Every tile holds a share of a slice it will read itself: the plan's own parts, cut further over the
    cells that read the same slice. An operand of which a section is read (one of several computed in turn) is cut as
    its section is; one read in windows or with a stride as its longest dimension is, so that a cell's neighbours hold
    what it reads beyond its own part. What the last windows reach over lies on the tiles after the plan's where there are
    any, and the parts are larger, each a little farther from its readers, where there are none.
    """
    axes: list[AxisSplit] = []
    leads = [_lead(form, axis) for axis in form.operands[k].axes]
    used = {d for d in leads if d is not None}
    if len(used) < sum(d is not None for d in leads):
        return _spread(plan, shape, dtype, target)
    groups = {d: group for d, group in plan.arrangement.digits if group}
    for axis, d, size in zip(form.operands[k].axes, leads, shape, strict=True):
        axes.append(
            whole(size) if d is None else _cut_alike(form, plan, axis, d, size, groups.get(d, 1), target)
        )
    order = plan.operand_order(form, k).over(len(shape))
    for d, split in enumerate(plan.splits):
        if d not in used and split.is_split:
            (_, slowest), *faster = split.digits
            full = split.parts // math.prod(radix for radix, _ in faster)
            for readers, stride in ((full, slowest), *faster):
                axes = _share(axes, readers, stride, dtype, order)
    return Layout(tuple(axes), plan.base, order)


def _lead(form: OpForm, axis: Affine) -> int | None:
    """Return the dimension that an operand's axis follows farthest; None for a constant index."""
    return max(axis.terms, key=lambda term: abs(term[1]) * form.dims[term[0]].size, default=(None,))[0]


def _cut_alike(
    form: OpForm, plan: Plan, axis: Affine, d: int, size: int, group: int, target: Target
) -> AxisSplit:
    """Return the cut of an axis of ``size`` elements into what the parts of dimension ``d`` read first."""
    split = plan.splits[d]
    steps = abs(dict(axis.terms)[d])
    grain = align_up(steps * split.grain, group)
    if not split.is_split or split.size == size:
        return split.scaled(size, group)
    if ceil_div(size, grain) > split.parts:
        return _with_parts_beyond(form, plan, axis, d, size, grain, target) or split.scaled(size, group)
    return AxisSplit(size, grain, split.digits) if grain < size else whole(size)


def _with_parts_beyond(
    form: OpForm, plan: Plan, axis: Affine, d: int, size: int, grain: int, target: Target
) -> AxisSplit | None:
    """Return the cut whose last parts, which windows alone reach, lie on tiles of their own after the plan's.

    None where the axis is longer than what windows read, or where there are no such tiles.
    """
    (radix, stride), *faster = plan.splits[d].digits
    reach = sum(abs(step) * (form.dims[e].size - 1) for e, step in axis.terms) + 1
    needed = ceil_div(ceil_div(size, grain), math.prod(n for n, _ in faster))
    others = [*faster, *(digit for e, split in enumerate(plan.splits) if e != d for digit in split.digits)]
    width = sum((n - 1) * tiles for n, tiles in others) + 1
    last = plan.base + (needed - 1) * stride + width - 1
    if (
        len(axis.terms) < 2
        or size > reach
        or (needed > radix and (width > stride or last >= target.num_tiles))
    ):
        return None
    return AxisSplit(size, grain, ((max(radix, needed), stride), *faster))


def _spread(plan: Plan, shape: tuple[int, ...], dtype: str, target: Target) -> Layout:
    """Return the even layout from the plan's first tile on: a small tensor then lies where it is read."""
    layout = linear_layout(tuple(shape), dtype, target.num_tiles)
    has_room = plan.base + int(layout.tiles.max()) < target.num_tiles
    return replace(layout, base=plan.base) if has_room else layout


SHARED_BYTES = 128
"""What a share of an operand has at least where more than one of its axes is cut: as of a linear layout's part."""


def _share(
    axes: list[AxisSplit], readers: int, stride: int, dtype: str, order: Arrangement
) -> list[AxisSplit]:
    """Cut a slice further over ``readers`` tiles ``stride`` apart, evenly.

    From its slowest axis on, so that shares are runs of it; from its longest, if that makes more shares.
    """
    slowest_first = dict.fromkeys([*(d for d, _ in order.digits), *range(len(axes))])
    longest_first = sorted(range(len(axes)), key=lambda a: -min(axes[a].grain, axes[a].size))
    found = (_shares(axes, readers, dtype, order, each) for each in (slowest_first, longest_first))
    cuts = max(found, key=lambda cuts: math.prod(cuts.values()))
    out = list(axes)
    for a, pieces in reversed(cuts.items()):
        digits = axes[a].digits if axes[a].is_split else ()
        grain = min(axes[a].grain, axes[a].size) // pieces
        out[a] = AxisSplit(axes[a].size, grain, (*digits, (pieces, stride)))
        stride *= pieces
    return out


def _shares(
    axes: list[AxisSplit], readers: int, dtype: str, order: Arrangement, each: Iterable[int]
) -> dict[int, int]:
    """Return into how many pieces axes of a slice are cut, those of ``each`` in turn, for at most ``readers`` shares.

    Groups that are read together stay together.
    """
    extents = [min(a.grain, max(1, a.size)) for a in axes]
    innermost = order.digits[-1][0] if order.digits else len(axes) - 1
    cuts: dict[int, int] = {}
    for a in each:
        grain, axis = extents[a], axes[a]
        if axis.is_split and axis.parts != math.prod(radix for radix, _ in axis.digits):
            continue
        group = next((g for d, g in order.digits if d == a and g), 1)
        quantum = max(group, 4 // itemsize(dtype)) if a == innermost else group
        most = min(readers, math.prod(extents) * itemsize(dtype) // SHARED_BYTES) if cuts else readers
        pieces = [q for q in range(2, min(most, grain) + 1) if grain % q == 0 and (grain // q) % quantum == 0]
        if pieces:
            cuts[a] = pieces[-1]
            extents[a], readers = grain // pieces[-1], readers // pieces[-1]
    return cuts
