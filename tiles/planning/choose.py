"""Choose the plan of an operation, and which of its operands are put into another order before it.

What many tiles read in an order it does not lie in is better ordered once, where it lies, than by every reader:
PopLibs' convolution planner rearranges an operand before it is broadcast wherever that is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import combinations

from tiles.errors import InvalidPlan
from tiles.graph import ROW_MAJOR, Layout, Plan, Tensor, whole
from tiles.numerics.dtypes import itemsize
from tiles.plan import (
    Draft,
    Operand,
    Priced,
    Question,
    Ranking,
    arranged,
    draft,
    exchange_figures,
    follow,
    is_resident,
    keeps_order,
    leaving,
    operand_code,
    preferred_layout,
    search,
)
from tiles.planning.lanes import Area
from tiles.planning.met import Met
from tiles.planning.policy import HELD_SHARE
from tiles.planning.state import Planning
from tiles.poplibs.popops.map import rearranging

KEEP_IN_PLACE = 1.5
"""How much dearer a plan may be that writes a donated input's successor over it, saving its copy."""


Relayouts = dict[int, Layout]
"""Layouts into which operands are copied before an operation, by the operands' numbers."""


PREPARED_SHARE = 1 / 16
"""Of a tile's memory: what a copy may take there that waits for all trips of a loop."""


def choose(
    planning: Planning,
    question: Question,
    operands: Seq[Tensor],
    label: str,
    beside: Met | None = None,
    trips: Seq[int] = (),
    area: Area | None = None,
) -> tuple[Plan, Relayouts]:
    """Return the plan of an operation, and the layouts into which operands (by number) are copied before it.

    Args:
      planning: the graph being planned; says which inputs are donated, and the share of memory the operation may take.
      question: the operation and what is known of its operands.
      operands: the tensors.
      label: the operation's name.
      beside: what later operations read together with the result, of its shape.
      trips: by operand, on how many trips of the loops around it is the same; 1 each by default.
      area: the tiles that it may use, all by default.
    """
    if area is None:
        return _choose(planning, question, operands, label, beside, trips)
    if beside is not None:
        beside = replace(beside, layout=area.from_base(beside.layout))
    plan, relayouts = _choose(planning, _in_area(question, area), operands, label, beside, trips)
    return area.placed(plan), {k: area.placed(layout) for k, layout in relayouts.items()}


def _in_area(question: Question, area: Area) -> Question:
    """Return a question about an area's tiles, counted from its first one on."""
    return replace(question, operands=tuple(map(area.operand, question.operands)), within=area.size)


def _choose(
    planning: Planning,
    question: Question,
    operands: Seq[Tensor],
    label: str,
    beside: Met | None,
    trips: Seq[int],
) -> tuple[Plan, Relayouts]:
    """Return what ``choose`` does, on all tiles or on the first ones, as the question says."""
    form, codelet, target = question.form, question.codelet, question.target
    proportion = planning.policy.memory_proportion(label)
    asked, trips = (question, proportion), tuple(trips) or (1,) * len(operands)
    plan, relayouts, least = planning.answer(
        (*asked, beside, trips),
        lambda: _found(question, proportion, beside, planning.policy.held_share, trips),
    )
    for k, tensor in enumerate(operands):
        if (
            tensor.name in planning.donated
            and codelet.may_overwrite(k)
            and tensor.shape == form.result_shape()
        ):
            kept = follow(form, codelet, k, question.operands[k], target)
            if kept is None:
                continue
            dearer = planning.answer(
                (*asked, kept),
                lambda kept=kept: _search(question, proportion).cheapest(
                    lambda plan: _same_cut(plan, kept), KEEP_IN_PLACE * least
                ),
            )
            if dearer is not None:
                return dearer.plan, {}
    followed = any(
        t.layout is not None and is_resident(form, plan, k, t.layout) for k, t in enumerate(operands)
    )
    prepared = all(trips[k] > 1 for k in relayouts)
    if question.within:
        return plan, relayouts
    if plan.base == 0 and not followed and prepared:
        size = math.prod(form.result_shape())
        base = planning.rotated_base(int(plan.tiles.max()) + 1, size)
        plan = replace(plan, base=base)
        relayouts = {k: replace(layout, base=layout.base + base) for k, layout in relayouts.items()}
    if not relayouts:
        plan = _spread(planning, question, operands, plan)
    return plan, relayouts


MOST_TRIED = 4
"""Places that are looked at for what would rather be elsewhere."""


def _spread(planning: Planning, question: Question, operands: Seq[Tensor], plan: Plan) -> Plan:
    """Return the plan, or the same on tiles that have less to do beside it, if that saves more than it costs.

    It costs to bring the operands there, and as much to bring what is computed together again: so much has to be saved
    beyond it.
    """
    loads, form, target = planning.loads, question.form, question.target
    if loads is None or not loads.covers_few(plan):
        return plan
    level = loads.level(t.name for t in operands)
    busy = loads.busy_cycles(plan, level)
    least = target.exchange_phase_overhead_cycles + target.internal_sync_cycles
    if busy <= 2 * least or compute_cycles(planning, question, plan) <= least:
        return plan
    span = int(plan.tiles.max()) - plan.base + 1
    tried: list[Plan] = []
    for _ in range(MOST_TRIED):
        tried.append(replace(plan, base=planning.rotated_base(span, math.prod(form.result_shape()))))
        if not loads.busy_cycles(tried[-1], level):
            break
    best = min(tried, key=lambda other: loads.busy_cycles(other, level))
    moving = draft(question, best).priced.cost - draft(question, plan).priced.cost
    saved = min(compute_cycles(planning, question, plan), busy - loads.busy_cycles(best, level) - moving)
    return best if saved > moving else plan


def compute_cycles(planning: Planning, question: Question, plan: Plan) -> float:
    """Return the cycles that a plan's tiles compute."""
    anywhere = replace(plan, base=0)
    return planning.answer((question, anywhere, "compute"), lambda: draft(question, plan).compute_cycles)


AS_BEFORE = 1.1
"""How much dearer a slice's plan may be that cuts it as the slice before, beside what a relayout takes at least.

Slices that are cut otherwise are joined by one.
"""


def as_before(
    question: Question, found: tuple[Plan, Relayouts], before: Plan, d: int, proportion: float
) -> tuple[Plan, Relayouts]:
    """Return the plan of the slice before, its last part cut short, if that costs little more than the plan found.

    Args:
      question: the operation, sliced along dimension ``d``.
      found: the plan found for it, and the layouts into which operands would be copied.
      before: the plan of the slice before.
      d: the dimension.
      proportion: share of memory that the operation may take.
    """
    split, size = before.splits[d], question.form.dims[d].size
    if split.is_split and size <= split.grain:
        return found
    cut = replace(split, size=size) if split.is_split else whole(size)
    (plan,) = arranged(question, [replace(before, splits=(*before.splits[:d], cut, *before.splits[d + 1 :]))])
    priced = draft(question, plan).priced
    if priced.temporary_bytes > proportion * question.target.bytes_per_tile:
        return found
    least = cost_of(question, *found)
    target = question.target
    relayout = target.exchange_phase_overhead_cycles + target.internal_sync_cycles
    relayout += target.local_copy_call_cycles
    return (plan, {}) if priced.cost <= AS_BEFORE * least + relayout else found


def cost_of(question: Question, plan: Plan, relayouts: Relayouts, trips: Seq[int] = ()) -> float:
    """Return what a plan costs with the copies of operands before it; ``trips`` share a copy, by operand, 1 each by default."""
    copies = sum(
        _copy_cost(question, question.operands[k], layout) / (trips[k] if trips else 1)
        for k, layout in relayouts.items()
    )
    operands = (replace(o, layout=relayouts.get(k, o.layout)) for k, o in enumerate(question.operands))
    return draft(replace(question, operands=tuple(operands)), plan).priced.cost + copies


def _found(
    question: Question, proportion: float, beside: Met | None, held_share: float, trips: tuple[int, ...]
) -> tuple[Plan, Relayouts, float]:
    """Return the plan for a question, the layouts into which operands are copied, and the least cost of a plan alone."""
    found = best(question, proportion, held_share)
    plan, relayouts, cost = _reordering(question, found.plan, found.cost, proportion, trips)
    if beside is not None:
        plan, relayouts = meeting(question, (plan, relayouts, cost), beside, proportion)
    return plan, relayouts, found.cost


STAYS_FROM = 16
"""From how many tiles' memory on a table stays where it lies when some of its elements are read.

A smaller one goes by price alone: a scan reads a step's inputs out of such arrays once per trip.
"""


MUCH_READ = 4
"""A table of which more than one in so many elements is read goes by price however large it is: a slice is half of an array."""


def best(question: Question, proportion: float, held_share: float) -> Priced:
    """Return the best plan whose tiles can hold what it will bring there, if one is known.

    What elements are looked up in stays where it lies if it is larger than a tile's memory: cutting it otherwise would
    send all of it for the few elements that are read, and take code for all of its rows. Not so where so many are read that
    every tile's partial result of them would take more than the share of memory, or that they are much of the table.
    """
    found = _search(question, proportion)
    k, form = question.codelet.looked_up, question.form
    shares = _shares_held(question, held_share)
    if not holds_operands(question, found[0].plan, shares[0]):
        for share in shares:
            many = _search(question, proportion, least_cells=_least_cells(question, share))
            spread = many.cheapest(lambda plan, share=share: holds_operands(question, plan, share), math.inf)
            if spread is not None:
                return spread
    table = None if k is None else question.operands[k]
    if k is None or table is None or table.layout is None:
        return found[0]
    layout, size = table.layout, math.prod(table.shape)
    if size * itemsize(table.dtype) <= STAYS_FROM * question.target.bytes_per_tile:
        return found[0]
    if MUCH_READ * math.prod(form.result_shape()) > size:
        return found[0]
    staying = found.cheapest(lambda plan: is_resident(form, plan, k, layout), math.inf)
    limit = proportion * question.target.bytes_per_tile
    return found[0] if staying is None or staying.temporary_bytes > limit else staying


SHARES_HELD = (HELD_SHARE, 0.5, 0.75)
"""Of a tile's memory: what of operands that lie nowhere yet a plan may bring there, the least first that a plan keeps to."""
LOOKED_UP_SHARE = 1 / 16
"""The same of operations that look elements up: whatever else reads the table has it on as few tiles then."""


def _shares_held(question: Question, share: float) -> list[float]:
    """Return what of a tile's memory operands that lie nowhere yet may take, what is asked for first."""
    k = question.codelet.looked_up
    is_unplaced = k is not None and question.operands[k].layout is None
    return [*([min(share, LOOKED_UP_SHARE)] if is_unplaced else []), share, *SHARES_HELD]


def _held_bytes(question: Question) -> int:
    """Return the bytes of operands that lie nowhere yet."""
    return sum(math.prod(o.shape) * itemsize(o.dtype) for o in question.operands if o.layout is None)


def _most_held(question: Question, share: float) -> float:
    """Return the bytes that operands which lie nowhere yet may take on a tile: a share of it, or twice what they are evenly."""
    return max(share * question.target.bytes_per_tile, 2 * _held_bytes(question) / question.target.num_tiles)


def _least_cells(question: Question, share: float) -> int:
    """Return how many cells hold those operands so."""
    most = _most_held(question, share)
    return math.ceil(_held_bytes(question) / most) if most else 1


def holds_operands(question: Question, plan: Plan, share: float = SHARES_HELD[-1]) -> bool:
    """Whether a plan's operands that lie nowhere yet take at most a share of its tiles: they will lie as it reads them.

    Few elements of a table are looked up quickest on one tile, which a table of megabytes does not fit.
    """
    return _held_bytes(question) / plan.num_cells <= _most_held(question, share)


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


SURELY = 1 - 1e-9
"""What a least cost is multiplied with before it is compared: sums are rounded."""
WORTH_A_COPY = 128
"""Changes of source and pointer from which on an operand that many tiles read may rather be copied before."""


def _unlike(question: Question, plan: Plan) -> list[int]:
    """Return the operands that several tiles read in another order, or in many more pieces, than they could lie in.

    What others than contractions read in another order is seldom worth a copy, and each one would be another search.
    """
    form, target = question.form, question.target
    found: list[int] = []
    for k, o in enumerate(question.operands):
        read = form.operands[k].dims
        if o.layout is None or not any(s.is_split and d not in read for d, s in enumerate(plan.splits)):
            continue
        is_reordered = question.codelet.is_contraction and not keeps_order(form, plan, k, o.layout, o.dtype)
        changes, _ = operand_code(o.layout, form, plan, k, o.shape, o.dtype, target)
        if is_reordered or int(changes.max()) >= WORTH_A_COPY:
            found.append(k)
    return found


LONG = 1024
"""Cycles from which on it is looked into whether an operand that any operation reads on many trips is copied once."""


def _awaited(question: Question, plan: Plan, trips: tuple[int, ...]) -> list[int]:
    """Return the operands that are the same on many trips and lie elsewhere.

    They are those of library calls and of lookups, and what any other operation is sent for long. A table that is looked up
    where it lies, part by part, is asked for as well: every trip combines what the parts found.
    """
    codelet, form, target = question.codelet, question.form, question.target

    def is_long(k: int, operand: Operand, layout: Layout) -> bool:
        moved = ((k, layout, operand.shape, operand.dtype),)
        return exchange_figures(form, plan, moved, target).cycles >= LONG

    is_combined = plan.num_partials(form) > 1
    return [
        k
        for k, operand in enumerate(question.operands)
        if trips[k] > 1
        and operand.layout is not None
        and (
            (codelet.looked_up == k and is_combined)
            or (
                not is_resident(form, plan, k, operand.layout)
                and (codelet.is_contraction or codelet.looked_up == k or is_long(k, operand, operand.layout))
            )
        )
    ]


def _wanted(question: Question, plan: Plan, k: int) -> Layout:
    """Return where, and in which order, a plan would have an operand."""
    operand = question.operands[k]
    return preferred_layout(question.form, plan, k, operand.shape, operand.dtype, question.target)


def _may_wait(question: Question, plan: Plan, waiting: Seq[int]) -> bool:
    """Return whether the copies of operands that a plan reads may lie on its tiles during a loop."""
    parts = (
        math.prod(_wanted(question, plan, k).part_shape) * itemsize(question.operands[k].dtype)
        for k in waiting
    )
    return sum(parts) <= PREPARED_SHARE * question.target.bytes_per_tile


def _reordering(
    question: Question, plan: Plan, cost: float, proportion: float, trips: tuple[int, ...]
) -> tuple[Plan, Relayouts, float]:
    """Return the cheapest of the plan as it is and plans whose operands wait where, and as, they want them; its cost.

    Such a plan has to keep to the share of memory that temporaries may take. What is the same on many trips of a loop is
    copied once for all of them.
    """
    operands, target = question.operands, question.target
    unlike = sorted({*_unlike(question, plan), *_awaited(question, plan, trips)})
    best, relayouts = plan, {}
    for count in range(1, len(unlike) + 1):
        for moved in combinations(unlike, count):
            free = tuple(replace(o, layout=None) if k in moved else o for k, o in enumerate(operands))
            ranking = _search(replace(question, operands=free), proportion)
            waiting = [k for k in moved if trips[k] > 1]
            if waiting:
                found = ranking.cheapest(lambda plan, w=waiting: _may_wait(question, plan, w), cost)
            else:
                found = ranking.first_below(cost)  # copies only add to it
            if found is None or found.temporary_bytes > proportion * target.bytes_per_tile:
                continue
            wanted = {k: _wanted(question, found.plan, k) for k in moved}
            copies = [(_copying(question, operands[k], layout), trips[k]) for k, layout in wanted.items()]
            least = sum((copy.least_cost - _of_readers(copy)) / n for copy, n in copies)
            if found.cost + least * SURELY >= cost:
                continue
            total = found.cost + sum((copy.priced.cost - _of_readers(copy)) / n for copy, n in copies)
            if total < cost:
                best, relayouts, cost = found.plan, wanted, total
    return best, relayouts, cost


def meeting(
    question: Question, found: tuple[Plan, Relayouts, float], beside: Met, proportion: float
) -> tuple[Plan, Relayouts]:
    """Return the plan found, or the one that leaves the result where what it meets lies, if that saves more than it costs.

    It saves to move what lies there already, and costs what operations that go over the result take longer there. What
    only goes over its operands where they lie stays there: it would exchange them for nothing but its reader's sake.
    """
    form, target = question.form, question.target
    plan, relayouts, cost = found
    if not question.codelet.is_contraction and not draft(question, plan).received:
        return plan, relayouts
    there = leaving(form, question.codelet, beside.layout, target)
    if there is None or (question.within and int(there.tiles.max()) >= question.within):
        return plan, relayouts
    (there,) = arranged(question, [there])
    # where partials are combined, the combination chooses where the result lies
    saved = 0.0 if plan.num_partials(form) > 1 else _saved(question, plan, there, beside)
    left = draft(question, there)
    least = (left.compute_cycles + left.combining_cycles) * SURELY  # wherever operands wait
    if left.temporary_bytes > proportion * target.bytes_per_tile or least >= cost + saved:
        return plan, relayouts
    priced = left.priced
    copied: Relayouts = {}
    total = priced.cost
    for k in _unlike(question, there):
        o = question.operands[k]
        layout = preferred_layout(form, there, k, o.shape, o.dtype, target)
        operands = (
            replace(o, layout=layout) if j == k else other for j, other in enumerate(question.operands)
        )
        waits = replace(question, operands=tuple(operands))
        with_copy = (
            total
            - draft(question, there).priced.cost
            + draft(waits, there).priced.cost
            + _copy_cost(question, o, layout)
        )
        if with_copy < total:
            copied[k], total, question = layout, with_copy, waits
    return (there, copied) if total < cost + saved else (plan, relayouts)


def _saved(question: Question, plan: Plan, there: Plan, beside: Met) -> float:
    """Return what it saves to leave a result where what it meets lies: to move that, less what goes over it there."""
    form = question.form
    result, waiting = plan.result_layout(form), Operand(form.result_shape(), beside.dtype, beside.layout)
    stays = _copy_cost(question, waiting, there.result_layout(form))
    saved = _copy_cost(question, waiting, result) - stays
    return saved - beside.passes * (stays - _copy_cost(question, replace(waiting, layout=result), result))


def _search(question: Question, proportion: float, least_cells: int = 1) -> Ranking:
    q = question
    return search(
        q.form,
        q.codelet,
        q.operands,
        q.result_dtypes,
        q.target,
        (),
        proportion,
        q.code_price,
        least_cells,
        q.within,
    )


def copy_cost(question: Question, shape: tuple[int, ...], dtype: str, lies: Layout, wanted: Layout) -> float:
    """Return what it costs, in the terms of a question, to copy a tensor to where it shall lie; not who reads it there."""
    return 0.0 if lies == wanted else _copy_cost(question, Operand(shape, dtype, lies), wanted)


def _copy_cost(question: Question, operand: Operand, wanted: Layout) -> float:
    """Return what it costs, in the terms of a question, to copy an operand to where it shall lie; not who reads it there."""
    copy = _copying(question, operand, wanted)
    return copy.priced.cost - _of_readers(copy)


def _copying(question: Question, operand: Operand, wanted: Layout) -> Draft:
    """Return the copying of an operand, in the terms of a question, to where it shall lie."""
    form, codelet = rearranging(operand.shape, operand.dtype)
    copying = Question(form, codelet, (operand,), (operand.dtype,), question.target, question.code_price)
    return draft(copying, Plan(wanted.axes, wanted.base, wanted.arrangement))


def _of_readers(copy: Draft) -> float:
    """Return what a copy costs its readers."""
    return copy.question.code_price * copy.reader_code_bytes
