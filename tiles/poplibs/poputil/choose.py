"""Choose the plan of an operation, and which of its operands are put into another order before it.

What many tiles read in an order it does not lie in is better ordered once, where it lies, than by every reader:
PopLibs' convolution planner rearranges an operand before it is broadcast wherever that is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import combinations

from tiles.errors import InvalidPlan
from tiles.graph import ROW_MAJOR, Graph, Layout, Plan, Tensor
from tiles.plan import (
    Operand,
    Question,
    arranged,
    follow,
    home_layout,
    is_resident,
    keeps_order,
    operand_slices,
    price,
    search,
)
from tiles.poplibs.popops.map import rearranging
from tiles.target import Target

KEEP_IN_PLACE = 1.5
"""How much dearer a plan may be that writes a donated input's successor over it, saving its copy."""


def choose(
    graph: Graph, question: Question, operands: Seq[Tensor], label: str
) -> tuple[Plan, dict[int, Layout]]:
    """Return the plan of an operation, and the layouts into which operands (by number) are copied before it.

    Args:
      graph: what is built; says which inputs are donated, and the share of memory the operation may take.
      question: the operation and what is known of its operands.
      operands: the tensors.
      label: the operation's name.
    """
    form, codelet, target = question.form, question.codelet, question.target
    proportion = graph.memory_proportion(label)
    priced = search(
        form, codelet, question.operands, question.result_dtypes, target, memory_proportion=proportion
    )
    plan, homes = _reordering(question, priced[0].plan, priced[0].cost, proportion)
    donated = {graph.inputs[i] for i in graph.donated}
    for k, tensor in enumerate(operands):
        if tensor.name in donated and codelet.may_overwrite(k) and tensor.shape == form.result_shape():
            kept = follow(form, codelet, k, question.operands[k], target)
            found = (p for p in priced if kept is not None and _same_cut(p.plan, kept))
            dearer = next((p for p in found if p.cost <= KEEP_IN_PLACE * priced[0].cost), None)
            if dearer is not None:
                return dearer.plan, {}
    followed = any(
        t.layout is not None and is_resident(form, plan, k, t.layout) for k, t in enumerate(operands)
    )
    if plan.base == 0 and not followed and not homes:
        plan = replace(plan, base=graph.rotated_base(int(plan.tiles.max()) + 1))
    return plan, homes


def as_wanted(question: Question, plan: Plan) -> Plan:
    """Return a plan that somebody wrote down in the order its vertices want, if it says none.

    Raises:
      InvalidPlan: it says another than a contraction's vertices read, whose cycles would then be wrong.
    """
    (wanted,) = arranged(question, [replace(plan, arrangement=ROW_MAJOR)])
    if question.codelet.arrangements(question.extents([plan]), question.target) is None:
        return plan
    orders = [p.arrangement.fit(plan.extents) for p in (plan, wanted)]
    if orders[0] != orders[1] and not orders[0].is_row_major:
        raise InvalidPlan(
            f"{question.codelet.label} does not go through its cells in the order {plan.arrangement}",
            expected=f"{wanted.arrangement}, or none",
            got=str(plan.arrangement),
        )
    return wanted


def _same_cut(a: Plan, b: Plan) -> bool:
    return (a.splits, a.base) == (b.splits, b.base)


def _reordering(
    question: Question, plan: Plan, cost: float, proportion: float
) -> tuple[Plan, dict[int, Layout]]:
    """Return the cheapest of the plan as it is and plans whose operands wait where, and as, they want them."""
    form, operands, target = question.form, question.operands, question.target
    unlike = [
        k
        for k, o in enumerate(operands)
        if o.layout is not None
        and operand_slices(form, plan, k, o.shape).replication > 1
        and not keeps_order(form, plan, k, o.layout, o.shape, o.dtype)
    ]
    best, homes = plan, {}
    for count in range(1, len(unlike) + 1):
        for moved in combinations(unlike, count):
            free = tuple(replace(o, layout=None) if k in moved else o for k, o in enumerate(operands))
            found = search(
                form, question.codelet, free, question.result_dtypes, target, memory_proportion=proportion
            )[0]
            wanted = {
                k: home_layout(form, found.plan, k, operands[k].shape, operands[k].dtype, target)
                for k in moved
            }
            total = found.cost + sum(_copy_cost(operands[k], home, target) for k, home in wanted.items())
            if total < cost:
                best, homes, cost = found.plan, wanted, total
    return best, homes


def _copy_cost(operand: Operand, home: Layout, target: Target) -> float:
    form, codelet = rearranging(operand.shape, operand.dtype)
    plan = Plan(home.axes, home.base, home.arrangement)
    return price(form, codelet, [operand], (operand.dtype,), target, plan).cost
