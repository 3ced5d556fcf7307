"""One operation planned: its plan, in serial slices or with partials where that is better, and its compute sets."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from tiles.errors import InvalidPlan
from tiles.graph import (
    Codelet,
    Composite,
    Copy,
    Layout,
    Operation,
    Plan,
    Sequence,
    Tensor,
    Vertices,
    linear_layout,
    require_fits,
    unsplit_plan,
)
from tiles.plan import Operand, Question, SerialSplit, arranged, leaving, serial_split
from tiles.plan.superstep import entry_cycles
from tiles.planning.choose import (
    Relayouts,
    as_before,
    as_wanted,
    choose,
    compute_cycles,
    cost_of,
    holds_operands,
)
from tiles.planning.combining import combine, join_plan
from tiles.planning.emit import copied_into_order, emit, settle
from tiles.planning.lanes import Lane, key_of
from tiles.planning.met import Met
from tiles.planning.state import PlannedSite, Planning
from tiles.poplibs.popops.reduce import combine_codelet


def plan_operation(
    planning: Planning, operation: Operation, program: Sequence, beside: Met | None = None
) -> None:
    """Add the compute sets of a recorded operation to the planned graph.

    Args:
      planning: the graph being planned.
      operation: what was recorded.
      program: the planned sequence to append to.
      beside: what is read later together with the result, of its shape, which had better lie there too.

    Raises:
      InvalidPlan: a pinned plan, or the builder's, does not fit.
    """
    site = PlannedSite(planning, program, operation.name, operation.location)
    fixed = planning.tensor(operation.results[0])
    with planning.graph.at(operation.ipu):
        if fixed.layout is not None:
            _compute_there(site, operation, fixed.layout)
        elif not operation.operands and planning.is_variable(operation.results[0]):
            planning.defer(fixed.name, lambda slot: plan_operation(planning, operation, slot), program)
        else:
            _plan(site, operation, operation.results, beside)


def _compute_there(site: PlannedSite, operation: Operation, layout: Layout) -> None:
    """Compute a result that lies somewhere already: there, or elsewhere and copied."""
    planning, written = site.planning, [site.planning.tensor(name) for name in operation.results]
    plan = leaving(operation.form, operation.codelet, layout, planning.graph.target)
    operands = [planning.here(name, site.program, site.location) for name in operation.operands]
    is_there = plan is not None and len(written) == 1 and plan.result_layout(operation.form) == layout
    is_there = is_there and written[0].ipu == operation.ipu
    if plan is not None and is_there and operation.plan is None:
        emit(site, operation.codelet, operation.form, plan, operands, (written[0].dtype,), operation.results)
        return
    made = tuple(planning.graph.add_tensor(t.shape, t.dtype, f"{site.label}.made").name for t in written)
    _plan(site, operation, made, None)
    for source, result in zip(made, operation.results, strict=True):
        planning.follow(result, planning.tensor(source))
        site.program.add(Copy(planning.tensor(result).name, (source,), None, site.location))


@dataclass
class _Slices:
    """What the slices of one operation have in common, in the order they are planned.

    Attributes:
      dim: the dimension that they are slices of.
      plan: of the slice before.
      copies: by operand, the name of its copy in the order in which a slice before read it.
    """

    dim: int
    plan: Plan | None = None
    copies: dict[int, str] = field(default_factory=dict[int, str])


def _plan(
    site: PlannedSite,
    operation: Operation,
    results: tuple[str, ...],
    beside: Met | None,
    slices: _Slices | None = None,
) -> None:
    """Choose the plan of an operation, or of one of its slices, and add what it takes."""
    planning = site.planning
    form, codelet = planning.same(operation.form), planning.same(operation.codelet)
    if slices is not None:
        names = (slices.copies.get(k, name) for k, name in enumerate(operation.operands))
        operation = replace(operation, operands=tuple(names))
    operands = [planning.here(name, site.program, site.location) for name in operation.operands]
    dtypes = tuple(planning.tensor(name).dtype for name in results)
    target, policy = planning.graph.target, planning.policy
    known = tuple(Operand(t.shape, t.dtype, t.layout) for t in operands)
    question = Question(form, codelet, known, dtypes, target, planning.code_price)
    given, pinned, copies = operation.plan, _pinned(planning, site.label), {}
    if given is not None:
        plan = given
    elif pinned is not None:
        plan, copies = pinned, _pinned_copies(planning, site.label, len(operands))
    else:
        share = policy.memory_proportion(site.label)
        split = serial_split(form, codelet, known, dtypes, target, share, planning.code_price)
        if split is not None:
            _in_slices(site, operation, split, results[0])
            return
        trips = tuple(planning.invariant_in(name)[1] for name in operation.operands)
        plan, copies = choose(planning, question, operands, site.label, beside, trips)
        lane = planning.lanes.get(key_of(operation), planning.lane)
        if lane is not None and slices is None:
            even = _spread_over_all(question, operation, lane)
            aside = _aside(planning, even, operands, (plan, copies), lane, site.label, beside, trips)
            if aside is not None:
                site, (plan, copies) = replace(site, area=planning.area(lane)), aside
                operands = [
                    planning.placed(t.name) if t.layout is None and known.layout is not None else t
                    for t, known in zip(operands, even.operands, strict=True)
                ]
        if not holds_operands(question, plan):  # a few elements of what no tile holds
            operands = [t if t.layout is not None else planning.placed(t.name) for t in operands]
            known = tuple(Operand(t.shape, t.dtype, t.layout) for t in operands)
            question = replace(question, operands=known)
            plan, copies = choose(planning, question, operands, site.label, beside, trips)
        if slices is not None and slices.plan is not None:
            plan, copies = as_before(question, (plan, copies), slices.plan, slices.dim, share)
    plan = _checked(site, question, plan, is_given=given is not None, is_pinned=pinned is not None)
    settle(planning, form, plan, operands)
    for k, layout in copies.items():
        operands[k] = _in_order(site.at(f"order{k}"), operation.operands[k], operands[k], layout)
        if slices is not None:
            slices.copies[k] = operands[k].name
    if slices is not None:
        slices.plan = plan
    _count(planning, question, plan, operands, results)
    _add(site, question, plan, operands, results, beside)
    if site.area is not None:
        planning.aside.update(planning.tensor(name).name for name in results)


def _spread_over_all(question: Question, operation: Operation, lane: Lane) -> Question:
    """Return a question in which operands that lie nowhere yet, and that other lanes read too, are spread over all tiles.

    On the tiles of the first lane they would be sent from these to all others.
    """
    target = question.target
    known = (
        replace(x, layout=linear_layout(x.shape, x.dtype, target.num_tiles))
        if x.layout is None and name in lane.alike.shared and math.prod(x.shape)
        else x
        for x, name in zip(question.operands, operation.operands, strict=True)
    )
    return replace(question, operands=tuple(known))


def _aside(
    planning: Planning,
    question: Question,
    operands: Seq[Tensor],
    found: tuple[Plan, Relayouts],
    lane: Lane,
    label: str,
    beside: Met | None,
    trips: Seq[int],
) -> tuple[Plan, Relayouts] | None:
    """Return the plan of an operation on tiles of its own, if all that may run side by side are quicker so than as found.

    Whether they are is decided by the first one; of lookups by each one, too.
    """
    area, alike, target = planning.area(lane), lane.alike, question.target
    what = question.codelet, question.form.dims
    if area is None or not alike.apart.get(what, True):
        return None
    crowd = alike.count * found[0].num_cells / target.num_tiles
    goes_on = any(tensor.name in planning.aside for tensor in operands)
    if what not in alike.apart and crowd <= 1 and not goes_on:  # they are elsewhere anyway
        alike.apart[what] = False
        return None
    plan, copies = choose(planning, question, operands, label, beside, trips, area)
    entry = entry_cycles(target)
    # Small stacks are copied before a loop for all of its trips, whichever way they are read in it.
    table = question.codelet.looked_up
    is_small = table is not None and planning.is_small(operands[table])
    shared = trips if is_small else ()
    together = entry + max(1, crowd) * max(0, cost_of(question, *found, shared) - entry)
    crowd = max(1, alike.count * area.size / target.num_tiles)
    apart = entry + crowd * max(0, cost_of(question, plan, copies, shared) - entry)
    is_less = apart < together or (goes_on and apart == together)
    if what not in alike.apart:
        # what engines of logical arrays compute in one piece is in no step with anything else
        joins = question.codelet.keeps_partials or plan.num_partials(question.form) == 1
        alike.apart[what] = joins and is_less and holds_operands(question, plan, planning.policy.held_share)
    # The table that the first one reads may lie where the others' do not.
    return (plan, copies) if alike.apart[what] and (is_less or table is None) else None


def _in_order(site: PlannedSite, recorded: str, x: Tensor, layout: Layout) -> Tensor:
    """Copy an operand to where an operation reads it: before the loops on whose trips it is the same, once for all readers."""
    loop, _ = site.planning.invariant_in(recorded)
    if loop is None or site.planning.tensor(recorded).name != x.name:
        return copied_into_order(site, x, layout)
    key = x.name, layout
    if key not in loop.prepared:
        loop.prepared[key] = copied_into_order(replace(site, program=loop.before), x, layout)
    return loop.prepared[key]


def _count(
    planning: Planning, question: Question, plan: Plan, operands: Seq[Tensor], results: tuple[str, ...]
) -> None:
    """Note what a plan's tiles compute, and when its results can be read."""
    loads = planning.loads
    if loads is None:
        return
    level = loads.level(t.name for t in operands)
    if loads.covers_few(plan):
        loads.add(plan, level, compute_cycles(planning, question, plan))
    loads.set_level((planning.tensor(name).name for name in results), level + 1)


def _checked(site: PlannedSite, question: Question, plan: Plan, *, is_given: bool, is_pinned: bool) -> Plan:
    """Return a plan in the order that its vertices want.

    Raises:
      InvalidPlan: it does not fit, splits what cannot be split, or says another order.
    """
    require_fits(plan, question.form, question.codelet, question.target, site.label, site.location)
    if is_given:
        (plan,) = arranged(question, [plan])
    elif is_pinned:
        try:
            plan = as_wanted(question, plan)
        except InvalidPlan as error:
            raise error.at(f"step {site.label}" + (f", {site.location}" if site.location else "")) from None
    return plan


def _add(
    site: PlannedSite,
    question: Question,
    plan: Plan,
    operands: Seq[Tensor],
    results: tuple[str, ...],
    beside: Met | None = None,
) -> None:
    """Add a plan's compute set, and what combines its partials."""
    form, codelet, dtypes = question.form, question.codelet, question.result_dtypes
    if plan.num_partials(form) == 1:
        emit(site, codelet, form, plan, operands, dtypes, results)
        return
    if codelet.keeps_partials:
        _in_parts(site, question, plan, operands, results, beside)
        return
    body = Sequence()
    _in_parts(replace(site, program=body), question, plan, operands, results, beside)
    names = tuple(t.name for t in operands), tuple(site.planning.tensor(name).name for name in results)
    one = Vertices(site.label, codelet, form, unsplit_plan(form), *names, site.location)
    site.program.add(Composite(body, one))


def _pinned(planning: Planning, label: str) -> Plan | None:
    """Return the plan pinned to an operation, by its own name or by that of the step that makes its partials."""
    return planning.pinned(label) or planning.pinned(f"{label}.partials")


def _pinned_copies(planning: Planning, label: str, count: int) -> dict[int, Layout]:
    """Return the layouts into which operands are copied before an operation, where those copies' plans are pinned."""
    pinned = {k: planning.pinned(f"{label}.order{k}") for k in range(count)}
    return {k: Layout(p.splits, p.base, p.arrangement) for k, p in pinned.items() if p is not None}


def _in_slices(site: PlannedSite, operation: Operation, split: SerialSplit, result: str) -> None:
    """Compute slices of the result one after another, each in the memory the last one left, and join them.

    They are cut alike where that costs little, and read what the first of them copied into order.
    """
    planning, form = site.planning, operation.form
    whole, common = planning.tensor(result), _Slices(split.dim)
    slices: list[Tensor] = []
    for part in split.forms(form):
        label = planning.graph.unique(f"{site.label}.turn", "step")
        made = planning.graph.add_tensor(part.result_shape(), whole.dtype, label, location=site.location)
        one = replace(operation, name=label, form=part, results=(made.name,))
        _plan(replace(site, label=label), one, one.results, None, common)
        slices.append(planning.tensor(made.name))
    axis = form.results[0].dims.index(split.dim)
    first = slices[0].layout
    assert first is not None
    joined = planning.place(result, first.scaled(axis, form.dims[split.dim].size))
    site.program.add(Copy(joined.name, tuple(t.name for t in slices), axis, site.location))


def _in_parts(
    site: PlannedSite,
    question: Question,
    plan: Plan,
    operands: Seq[Tensor],
    results: tuple[str, ...],
    beside: Met | None,
) -> None:
    """Compute partials by a plan that cuts reductions, and combine them."""
    codelet, form, dtypes = question.codelet, question.form, question.result_dtypes
    partial, partial_dtypes = codelet.partial()
    parts = emit(site.at("partials"), partial, form, plan, operands, partial_dtypes)
    first, *others = parts
    if others or type(codelet).joining is not Codelet.joining:
        _join(site.at("combine"), codelet, parts, dtypes, results)
        return
    folding = codelet.combining(partial_dtypes[0], dtypes[0]) or combine_codelet(
        codelet.combiner() or "", partial_dtypes[0], dtypes[0]
    )
    order = plan.result_order(form, lead=1).over(len(first.shape))
    combine(site, first, folding, dtypes[0], results[0], order, beside)


def _join(
    site: PlannedSite,
    codelet: Codelet,
    partials: tuple[Tensor, ...],
    dtypes: tuple[str, ...],
    results: tuple[str, ...],
) -> None:
    """Combine partials of several results, in as many stages as is cheapest; each at least halves them."""
    joining, form = codelet.joining(partials[0].shape)
    site = replace(site, label=site.planning.graph.unique(site.label, "step"))
    plan = _pinned(site.planning, site.label) or join_plan(site, joining, form, partials, dtypes)
    known = tuple(Operand(t.shape, t.dtype, t.layout) for t in partials)
    question = Question(form, joining, known, dtypes, site.planning.graph.target, site.planning.code_price)
    plan = _checked(site, question, plan, is_given=True, is_pinned=False)
    _add(site, question, plan, partials, results)
