"""Partials of a split reduction, combined: again a planned reduction, over a leading axis, in stages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

from tiles.graph import (
    ROW_MAJOR,
    Arrangement,
    AxisSplit,
    Codelet,
    Layout,
    OpForm,
    Plan,
    Tensor,
    linear_layout,
    whole,
)
from tiles.graph.layout import align_up, ceil_div
from tiles.numerics.dtypes import itemsize
from tiles.plan import Operand, Priced, Question, Ranking, search, with_order
from tiles.planning.choose import meeting
from tiles.planning.emit import emit
from tiles.planning.met import Met
from tiles.planning.state import PlannedSite
from tiles.poplibs.popops.reduce import combine_form


def combine(
    site: PlannedSite,
    partials: Tensor,
    codelet: Codelet,
    dtype: str,
    result: str,
    order: Arrangement = ROW_MAJOR,
    beside: Met | None = None,
) -> None:
    """Reduce partials ``[P, ...]`` over their leading axis, in as many stages as is cheapest.

    Args:
      site: where, labelled as the operation that made the partials.
      partials: the tensor.
      codelet: what folds them.
      dtype: of the result.
      result: name of the recorded tensor to leave it in.
      order: that in which they were written, by axes of ``partials``: where several parts meet on a tile, their
        groups stay apart, so that they arrive in longer runs and lie as the next contraction reads them.
      beside: what later operations read together with the result, of its shape.
    """
    area = site.area
    if area is not None and beside is not None:
        beside = replace(beside, layout=area.from_base(beside.layout))
    stage, asked = 0, (codelet, dtype, order, beside)
    while True:
        form = combine_form(partials.shape)
        here = site.at(f"combine{stage}" if stage else "combine")
        plan = site.planning.pinned(here.label)
        if plan is None:
            (given,) = _given(site, [partials])
            key = (*asked, given, _share(site), site.planning.code_price, _within(site))
            plan = site.planning.answer(
                key, lambda form=form, given=given: _combine_plan(site, form, given, *asked)
            )
            if area is not None:
                plan = area.placed(plan)
            elif plan.base == 0:
                size = math.prod(form.result_shape())
                plan = replace(plan, base=site.planning.rotated_base(int(plan.tiles.max()) + 1, size))
        if plan.num_partials(form) == 1:
            emit(here, codelet, form, plan, [partials], (dtype,), (result,))
            return
        staged, dtypes = codelet.partial()
        (partials,) = emit(here, staged, form, plan, [partials], dtypes)
        stage += 1


def _combine_plan(
    site: PlannedSite,
    form: OpForm,
    partials: Operand,
    codelet: Codelet,
    dtype: str,
    order: Arrangement,
    beside: Met | None,
) -> Plan:
    """Choose the plan of one combining stage, by the tiles of its area; a staged plan must at least halve the partials."""
    assert partials.layout is not None
    target = site.planning.graph.target
    spread = _spread(_within(site) or target.num_tiles, codelet, form, dtype)
    extra = [*_scattered(form, partials.layout), spread]
    found = next(_halving(_ranked(site, codelet, form, [partials], (dtype,), extra), form, partials), None)
    plan = spread if found is None else found.plan
    if not order.is_row_major:
        plan = with_order(plan, order)
    if found is None or beside is None or plan.num_partials(form) > 1:
        return plan
    question = Question(form, codelet, (partials,), (dtype,), target, site.planning.code_price, _within(site))
    return meeting(question, (plan, {}, found.cost), beside, _share(site))[0]


def join_plan(
    site: PlannedSite, codelet: Codelet, form: OpForm, partials: Seq[Tensor], dtypes: tuple[str, ...]
) -> Plan:
    """Choose the plan of one stage that joins partials of several results; a staged plan must at least halve them."""
    spread = _spread(_within(site) or site.planning.graph.target.num_tiles, codelet, form, dtypes[0])
    given = _given(site, partials)
    found = next(_halving(_ranked(site, codelet, form, given, dtypes, [spread]), form, given[0]), None)
    plan = spread if found is None else found.plan
    return plan if site.area is None else site.area.placed(plan)


def _given(site: PlannedSite, tensors: Seq[Tensor]) -> tuple[Operand, ...]:
    """Return what is known of tensors, by the tiles of the site's area, counted from its first one on."""
    known = (Operand(t.shape, t.dtype, t.layout) for t in tensors)
    return tuple(known) if site.area is None else tuple(map(site.area.operand, known))


def _within(site: PlannedSite) -> int:
    return 0 if site.area is None else site.area.size


def _ranked(
    site: PlannedSite,
    codelet: Codelet,
    form: OpForm,
    partials: Seq[Operand],
    dtypes: tuple[str, ...],
    extra: Seq[Plan],
) -> Ranking:
    planning = site.planning
    return search(
        form,
        codelet,
        partials,
        dtypes,
        planning.graph.target,
        extra,
        _share(site),
        planning.code_price,
        within=_within(site),
    )


def _share(site: PlannedSite) -> float:
    """Return the share of a tile's memory that an operation's temporaries may take."""
    return site.planning.policy.memory_proportion(site.label)


def _halving(found: Iterable[Priced], form: OpForm, partials: Operand) -> Iterator[Priced]:
    counts = ((p, p.plan.num_partials(form)) for p in found)
    return (p for p, n in counts if n == 1 or 2 * n <= partials.shape[0])


def _spread(num_tiles: int, codelet: Codelet, form: OpForm, dtype: str) -> Plan:
    """Return the plan that spreads results evenly over so many tiles and cuts no reduction."""
    dims = [d for d in form.results[0].dims if codelet.may_split(form, d)]
    sizes = tuple(form.dims[d].size for d in dims)
    layout = linear_layout(sizes, dtype, num_tiles, min_bytes=itemsize(dtype))
    splits = dict(zip(dims, layout.axes, strict=True))
    return Plan(tuple(splits.get(d, whole(dim.size)) for d, dim in enumerate(form.dims)), layout.base)


def _scattered(form: OpForm, layout: Layout) -> list[Plan]:
    """Plans that spread the combination of each group of partials over the tiles that hold them.

    A share is cut from the slowest axes of a part on, as they lie in memory, so that it is a run of each part or a few
    long ones; or first from another axis. Shares are even where a part can be cut so; else also into as many as there
    are tiles, of which some then lie across two parts.
    """
    held, *rest = layout.axes
    if not held.is_split or held.parts != math.prod(radix for radix, _ in held.digits):
        return []
    counted = dict.fromkeys(d - 1 for d, _ in layout.arrangement.digits if d)
    groups = {d - 1: group for d, group in layout.arrangement.digits if group}
    slowest_first = list(dict.fromkeys([*counted, *range(len(rest))]))
    plans: list[Plan] = []
    for first in slowest_first:
        order = [first, *(axis for axis in slowest_first if axis != first)]
        for cut in (
            _shared(rest, held.digits, order),
            _cut_unevenly(rest, held, first, groups.get(first, 1)),
        ):
            if cut is not None:
                plans.append(Plan((whole(held.size), *cut), layout.base))
    return list(dict.fromkeys(plans))


def _cut_unevenly(axes: Seq[AxisSplit], held: AxisSplit, axis: int, group: int) -> list[AxisSplit] | None:
    """Cut one axis of parts further into as many shares as tiles hold them; None if it can be cut evenly, or not at all."""
    split = axes[axis]
    grain = min(split.grain, max(1, split.size))
    share = align_up(ceil_div(grain, held.parts), group)
    digits = split.digits if split.is_split else ()
    if grain % held.parts == 0 or share >= grain or split.parts != math.prod(radix for radix, _ in digits):
        return None
    return [*axes[:axis], AxisSplit(split.size, share, (*digits, *held.digits)), *axes[axis + 1 :]]


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
