"""In which order the vertices of a plan go through their cells: their own wish, or that of what they read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tiles.graph import Arrangement, Layout, OpForm, Plan
from tiles.graph.layout import splits_groups
from tiles.plan.cells import cells_of
from tiles.plan.question import Question
from tiles.plan.slices import is_local


def arranged(question: Question, plans: Sequence[Plan]) -> list[Plan]:
    """Return plans with the order their vertices read and write in.

    A codelet that wants an order (a contraction its channels in groups) has it; one that can do with any takes that
    of the operand it reads in place, else of the largest one; any other reads and writes in row-major order.
    """
    codelet, form = question.codelet, question.form
    wanted = cells_of(question).orders(plans)
    if any(order is not None for order in wanted):
        return [
            plan if order is None else with_order(plan, order)
            for plan, order in zip(plans, wanted, strict=True)
        ]
    layouts = [o.layout for o in question.operands]
    if not codelet.any_order or all(v is None or v.arrangement.is_row_major for v in layouts):
        return list(plans)
    if not _keeps_order(form):
        return list(plans)
    return [with_order(plan, _followed(form, plan, layouts)) for plan in plans]


def with_order(plan: Plan, order: Arrangement) -> Plan:
    """Return a plan whose vertices go through their cells in an order, without those groups that its cells cut."""
    cut = [d for d, group in order.digits if group and splits_groups(plan.splits[d], group)]
    return Plan(plan.splits, plan.base, order.without_groups(cut) if cut else order)


def _keeps_order(form: OpForm) -> bool:
    """Return whether no tensor is transposed against another: dimensions that two have, they have in one order."""
    orders = [
        [axis.terms[0][0] for axis in index_map.axes if axis.terms]
        for index_map in (*form.operands, *form.results)
    ]
    for one, other in itertools.combinations(orders, 2):
        common = set(one) & set(other)
        if [d for d in one if d in common] != [d for d in other if d in common]:
            return False
    return True


def _followed(form: OpForm, plan: Plan, layouts: Sequence[Layout | None]) -> Arrangement:
    """Return the order of the operand that is read in place, or of the largest, by dimensions of the domain."""
    known = [(k, layout) for k, layout in enumerate(layouts) if layout is not None]
    reach = {k: math.prod(form.dims[d].size for d in form.operands[k].dims) for k, _ in known}
    wide = [(k, layout) for k, layout in known if reach[k] == max(reach.values())]
    k, leader = next(((k, v) for k, v in wide if is_local(form, plan, k, v)), wide[0])
    dims = _dims_of(form, k)
    return leader.arrangement.mapped(dims).over(len(form.dims))


def _dims_of(form: OpForm, k: int) -> dict[int, int]:
    """Return the domain dimension that each axis of operand ``k`` follows, a window's first one; constant axes have none."""
    return {axis: index.terms[0][0] for axis, index in enumerate(form.operands[k].axes) if index.terms}
