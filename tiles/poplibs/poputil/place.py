"""Place an operation: plan it, give its free operands a home, add its compute set, combine its partials.

The one way from (codelet, form, operands) to vertices; every primitive goes through it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

from tiles.errors import InvalidPlan
from tiles.graph import (
    ROW_MAJOR,
    Arrangement,
    AxisSplit,
    Codelet,
    Composite,
    Execute,
    Graph,
    Layout,
    OpForm,
    Plan,
    Sequence,
    Tensor,
    Vertices,
    linear_layout,
    unsplit_plan,
    whole,
)
from tiles.numerics.dtypes import itemsize
from tiles.plan import (
    Operand,
    Question,
    Turns,
    arranged,
    home_layout,
    search,
    serial_split,
    with_order,
)
from tiles.poplibs.popops.map import rearranging
from tiles.poplibs.popops.reduce import combine_codelet, combine_form
from tiles.poplibs.poputil.choose import as_wanted, choose
from tiles.poplibs.poputil.copies import concatenate


def place(
    graph: Graph,
    codelet: Codelet,
    form: OpForm,
    operands: Seq[Tensor],
    result_dtypes: tuple[str, ...],
    name: str,
    location: str = "",
    plan: Plan | None = None,
    program: Sequence | None = None,
    beside: Seq[Tensor] = (),
) -> tuple[Tensor, ...]:
    """Add one operation to the graph and return its results.

    Args:
      graph: where to add it.
      codelet: what each vertex computes.
      form: domain and indexing maps.
      operands: tensors of the graph; inputs and constants without a layout get the one this plan wants.
      result_dtypes: dtype of every result.
      name: label of the step, made unique; a plan pinned in the graph to that step is used.
      location: the user's source line.
      plan: use this plan instead of searching.
      program: sequence to append to; the graph's main program by default.
      beside: what is read later together with the result, which had better lie there too; of the result's shape.

    Raises:
      InvalidPlan: the given plan does not fit.
      InvalidGraph: operands do not fit the form.
    """
    operands = [graph.tensors[t.name] for t in operands]
    program = graph.program if program is None else program
    label = graph.unique(name, "step")
    if math.prod(d.size for d in form.dims if not d.is_reduced) == 0:
        return tuple(_empty(graph, form, k, dtype, label, location) for k, dtype in enumerate(result_dtypes))
    known = tuple(Operand(t.shape, t.dtype, t.layout) for t in operands)
    question = Question(form, codelet, known, result_dtypes, graph.target, graph.policy.code_price)
    given, pinned, homes = plan, _pinned(graph, label), {}
    if given is None and pinned is not None:
        plan, homes = pinned, _pinned_homes(graph, label, len(operands))
    elif plan is None:
        share, code_price = graph.policy.memory_proportion(label), graph.policy.code_price
        turns = serial_split(form, codelet, known, result_dtypes, graph.target, share, code_price)
        if turns is not None:
            return (_in_turn(graph, codelet, form, turns, operands, result_dtypes, label, location, program),)
        plan, homes = choose(graph, question, operands, label, beside)
    try:
        plan.check(form, graph.target.num_tiles)
        if given is not None:
            (plan,) = arranged(question, [plan])
        elif pinned is not None:
            plan = as_wanted(question, plan)
    except InvalidPlan as error:
        raise error.at(f"step {label}" + (f", {location}" if location else "")) from None
    _require_may_split(codelet, form, plan, label)
    settle(graph, form, plan, operands)
    for k, home in homes.items():
        operands[k] = _reordered(graph, operands[k], home, f"{label}.order{k}", location, program)
    if plan.num_partials(form) == 1:
        return _emit(graph, codelet, form, plan, operands, result_dtypes, label, location, program)
    if codelet.keeps_partials:
        return _in_parts(graph, codelet, form, plan, operands, result_dtypes, label, location, program)
    body = Sequence()
    results = _in_parts(graph, codelet, form, plan, operands, result_dtypes, label, location, body)
    names = tuple(t.name for t in operands), tuple(t.name for t in results)
    program.add(Composite(body, Vertices(label, codelet, form, unsplit_plan(form), *names, location)))
    return results


def _reordered(graph: Graph, x: Tensor, home: Layout, label: str, location: str, program: Sequence) -> Tensor:
    """Copy a tensor to where, and into the order in which, an operation reads it."""
    form, codelet = rearranging(x.shape, x.dtype)
    plan = Plan(home.axes, home.base, home.arrangement)
    return _emit(graph, codelet, form, plan, [x], (x.dtype,), label, location, program)[0]


def _pinned(graph: Graph, label: str) -> Plan | None:
    """Return the plan pinned to an operation, by its own name or by that of the step that makes its partials."""
    return graph.pinned_plans.get(label) or graph.pinned_plans.get(f"{label}.partials")


def _pinned_homes(graph: Graph, label: str, count: int) -> dict[int, Layout]:
    """Return the layouts into which operands are copied before an operation, where those copies' plans are pinned."""
    pinned = {k: graph.pinned_plans.get(f"{label}.order{k}") for k in range(count)}
    return {k: Layout(p.splits, p.base, p.arrangement) for k, p in pinned.items() if p is not None}


def _in_turn(
    graph: Graph,
    codelet: Codelet,
    form: OpForm,
    turns: Turns,
    operands: Seq[Tensor],
    dtypes: tuple[str, ...],
    label: str,
    location: str,
    program: Sequence,
) -> Tensor:
    """Compute slices of the result one after another, each in the memory the last one left, and join them."""
    name = f"{label}.turn"
    slices = [
        place(graph, codelet, part, operands, dtypes, name, location, program=program)[0]
        for part in turns.forms(form)
    ]
    axis = form.results[0].dims.index(turns.dim)
    first = slices[0].layout
    assert first is not None
    layout = first.scaled(axis, form.dims[turns.dim].size)
    return concatenate(graph, slices, axis, layout=layout, name=label, location=location, program=program)


def _in_parts(
    graph: Graph,
    codelet: Codelet,
    form: OpForm,
    plan: Plan,
    operands: Seq[Tensor],
    dtypes: tuple[str, ...],
    label: str,
    location: str,
    program: Sequence,
) -> tuple[Tensor, ...]:
    """Compute partials by a plan that cuts reductions, and combine them."""
    partial, partial_dtypes = codelet.partial()
    found = _emit(
        graph, partial, form, plan, operands, partial_dtypes, f"{label}.partials", location, program
    )
    parts, *others = found
    if others or type(codelet).joining is not Codelet.joining:
        return _join(graph, codelet, found, dtypes, f"{label}.combine", location, program)
    folding = codelet.combining(partial_dtypes[0], dtypes[0]) or combine_codelet(
        codelet.combiner() or "", partial_dtypes[0], dtypes[0]
    )
    order = plan.result_order(form, lead=1).over(len(parts.shape))
    return (combine(graph, parts, folding, dtypes[0], label, location, program, order),)


def _require_may_split(codelet: Codelet, form: OpForm, plan: Plan, label: str) -> None:
    for d, split in enumerate(plan.splits):
        if split.is_split and not codelet.may_split(form, d):
            raise InvalidPlan(
                f"{label}: the plan cuts dimension {form.dims[d].name} of {form.dims[d].size} into {split.parts} "
                f"parts, which {codelet.label} cannot compute apart"
            )


def settle(graph: Graph, form: OpForm, plan: Plan, operands: Seq[Tensor]) -> None:
    """Give every operand that has no layout yet the one ``plan`` reads most locally."""
    for k, tensor in enumerate(operands):
        if graph.tensors[tensor.name].layout is None:
            graph.set_layout(
                tensor.name, home_layout(form, plan, k, tensor.shape, tensor.dtype, graph.target)
            )


def _emit(
    graph: Graph,
    codelet: Codelet,
    form: OpForm,
    plan: Plan,
    operands: Seq[Tensor],
    dtypes: tuple[str, ...],
    label: str,
    location: str,
    program: Sequence,
) -> tuple[Tensor, ...]:
    results = []
    for k, dtype in enumerate(dtypes):
        layout = plan.result_layout(form, k)
        results.append(
            graph.add_tensor(layout.shape, dtype, f"{label}:{k}" if k else label, layout, location=location)
        )
    names = tuple(t.name for t in operands), tuple(t.name for t in results)
    compute_set = graph.add_compute_set(label, Vertices(label, codelet, form, plan, *names, location))
    program.add(Execute(compute_set.name))
    return tuple(results)


def _join(
    graph: Graph,
    codelet: Codelet,
    partials: tuple[Tensor, ...],
    dtypes: tuple[str, ...],
    label: str,
    location: str,
    program: Sequence,
) -> tuple[Tensor, ...]:
    """Combine partials of several results, in as many stages as is cheapest; each at least halves them."""
    joining, form = codelet.joining(partials[0].shape)
    known = [Operand(t.shape, t.dtype, t.layout) for t in partials]
    proportion, code_price = graph.policy.memory_proportion(label), graph.policy.code_price
    extra = [_spread(graph, joining, form, dtypes[0])]
    found = search(form, joining, known, dtypes, graph.target, extra, proportion, code_price)
    counts = [priced.plan.num_partials(form) for priced in found]
    fits = (p for p, n in zip(found, counts, strict=True) if n == 1 or 2 * n <= partials[0].shape[0])
    plan = _pinned(graph, label) or next(fits).plan
    return place(graph, joining, form, partials, dtypes, label, location, plan=plan, program=program)


def _spread(graph: Graph, codelet: Codelet, form: OpForm, dtype: str) -> Plan:
    """Return the plan that spreads results evenly over the tiles and cuts no reduction."""
    dims = [d for d in form.results[0].dims if codelet.may_split(form, d)]
    sizes, num_tiles = tuple(form.dims[d].size for d in dims), graph.target.num_tiles
    layout = linear_layout(sizes, dtype, num_tiles, min_bytes=itemsize(dtype))
    splits = dict(zip(dims, layout.axes, strict=True))
    return Plan(tuple(splits.get(d, whole(dim.size)) for d, dim in enumerate(form.dims)), layout.base)


def combine(
    graph: Graph,
    partials: Tensor,
    codelet: Codelet,
    dtype: str,
    label: str,
    location: str,
    program: Sequence,
    order: Arrangement = ROW_MAJOR,
) -> Tensor:
    """Reduce partials ``[P, ...]`` over their leading axis, in as many stages as the planner finds cheapest.

    ``order`` is that in which they were written, by axes of ``partials``: where several parts meet on a tile, their
    groups stay apart, so that they arrive in longer runs and lie as the next contraction reads them.
    """
    stage = 0
    while True:
        form = combine_form(partials.shape)
        name = f"{label}.combine{stage}" if stage else f"{label}.combine"
        plan = graph.pinned_plans.get(name)
        if plan is None:
            plan = _combine_plan(graph, codelet, form, partials, dtype, label)
            plan = plan if order.is_row_major else with_order(plan, order)
        if plan.num_partials(form) == 1:
            return _emit(graph, codelet, form, plan, [partials], (dtype,), name, location, program)[0]
        staged, dtypes = codelet.partial()
        (partials,) = _emit(graph, staged, form, plan, [partials], dtypes, name, location, program)
        stage += 1


def _combine_plan(
    graph: Graph, codelet: Codelet, form: OpForm, partials: Tensor, dtype: str, label: str
) -> Plan:
    """Choose the plan of one combining stage; a staged plan must at least halve the partials."""
    assert partials.layout is not None
    known = [Operand(partials.shape, partials.dtype, partials.layout)]
    spread = _spread(graph, codelet, form, dtype)
    extra = [*_scattered(form, partials.layout), spread]
    policy = graph.policy
    found = search(
        form,
        codelet,
        known,
        (dtype,),
        graph.target,
        extra,
        policy.memory_proportion(label),
        policy.code_price,
    )
    counts = (priced.plan.num_partials(form) for priced in found)
    fits = (p.plan for p, n in zip(found, counts, strict=True) if n == 1 or 2 * n <= partials.shape[0])
    return next(fits, spread)


def _scattered(form: OpForm, layout: Layout) -> list[Plan]:
    """Plans that spread the combination of each group of partials evenly over the tiles that hold them.

    A share is cut from the slowest axes of a part on, as they lie in memory, so that it is a run of each part or a few
    long ones; or first from another axis.
    """
    held, *rest = layout.axes
    if not held.is_split or held.parts != math.prod(radix for radix, _ in held.digits):
        return []
    counted = dict.fromkeys(d - 1 for d, _ in layout.arrangement.digits if d)
    slowest_first = list(dict.fromkeys([*counted, *range(len(rest))]))
    plans = []
    for first in slowest_first:
        order = [first, *(axis for axis in slowest_first if axis != first)]
        axes = _shared(rest, held.digits, order)
        if axes is not None:
            plans.append(Plan((whole(held.size), *axes), layout.base))
    return list(dict.fromkeys(plans))


def _shared(axes: Seq[AxisSplit], digits: Seq[tuple[int, int]], order: Seq[int]) -> list[AxisSplit] | None:
    """Cut parts further over the tiles that digits tell apart, evenly, the axes of ``order`` first; None if none can be."""
    found = list(axes)
    is_cut = False
    for radix, stride in digits:
        for axis in order:
            split = found[axis]
            grain = min(split.grain, max(1, split.size))
            if split.is_split and split.parts != math.prod(r for r, _ in split.digits):
                continue
            pieces = max(n for n in range(1, min(radix, grain) + 1) if grain % n == 0)
            if pieces == 1:
                continue
            radix //= pieces
            finer = (*(split.digits if split.is_split else ()), (pieces, stride * radix))
            found[axis] = AxisSplit(split.size, grain // pieces, finer)
            is_cut = True
            if radix == 1:
                break
    return found if is_cut else None


def _empty(graph: Graph, form: OpForm, k: int, dtype: str, label: str, location: str) -> Tensor:
    shape = form.result_shape(k)
    return graph.add_tensor(
        shape, dtype, label, linear_layout(shape, dtype, graph.target.num_tiles), location=location
    )
