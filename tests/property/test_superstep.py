"""One model of a superstep's cost: what a search expects, what a plan is priced at, and what a compiled step is charged."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import PLAN, budget
from tests.property.test_plans import SEEDS, TARGET, build, questions, windows
from tests.random_plans import random_plan
from tiles.compiler import compile_graph
from tiles.compiler.costs import step_costs
from tiles.errors import InvalidPlan
from tiles.plan import Operand, Question, draft
from tiles.plan.pricing import _drafts
from tiles.plan.search import _closed_form, _cuts, _orders, _plan
from tiles.plan.superstep import copy_cycles, entry_cycles
from tiles.planning import Planner

WITHIN = 4.0
"""How many times the closed form the exact price may be, beside one entry and one call of a copy: it does not see in how
many pieces operands arrive, and which are put into another order on the tile. In 4,000 cases it was 1.4 times; the most
that drawing without end has found is 3.0, a batch of products of 3 x 24 with 24 x 24 whose left operands lie transposed."""
SAMPLED = 4


@given(st.one_of(questions(), windows()), SEEDS)
@budget(PLAN)
def test_the_closed_form_is_at_most_the_price(case, seed):
    """Where operands wait as the plan wants them; where they lie otherwise, the closed form is an expectation."""
    form, codelet, shapes, dtype = case
    operands = tuple(Operand(shape, dtype, None) for shape in shapes)
    question = Question(form, codelet, operands, (dtype,), TARGET, code_price=0.0)
    every = _cuts(form, codelet, (dtype,) * len(operands), (dtype,), TARGET, 0.0).every
    rng = np.random.default_rng(seed)
    some = every.at(rng.choice(every.cells.size, min(SAMPLED, every.cells.size), replace=False))
    expected, innermost = _closed_form(question, some, 1 << 40)
    least = some.compute + some.combining
    beside = entry_cycles(TARGET) + copy_cycles(4, TARGET)
    for row, grains in enumerate(some.grains.tolist()):
        plan = _plan(form, grains, _orders(form, int(innermost[row]))[-1])
        try:
            plan.check(form, TARGET.num_tiles)
        except InvalidPlan:
            continue
        exact = draft(question, plan).priced.cycles
        # neighbours at the ragged end of an odd cut share lanes that the closed form counts for even ones only
        read = sum(float(size[row]) for size in some.slice_bytes) / TARGET.exchange_bytes_per_cycle
        shared = read * (1 - 1 / TARGET.tiles_per_shared_exchange_bus)
        assert least[row] <= expected[row] <= exact * (1 + 1e-9) + shared, plan
        assert exact <= WITHIN * expected[row] + beside, plan


@given(questions(), SEEDS)
@budget(PLAN)
def test_a_compiled_step_is_charged_what_its_plan_was_priced_at(case, seed):
    """To the cycle, but that the tile that computes longest need not be the one that copies most.

    Vertices are priced by full cells: where a plan leaves smaller ones, which may take longer, only the exchange is equal.
    """
    form, codelet, *_ = case
    plan = random_plan(np.random.default_rng(seed), form, codelet, TARGET.num_tiles)
    graph = Planner().plan(build(case, plan, seed))
    costs = {cost.name: cost for cost in step_costs(compile_graph(graph, check_memory=False))}
    for name, compute_set in graph.compute_sets.items():
        (group,) = compute_set.vertices
        read = [graph.tensors[operand] for operand in group.operands]
        operands = tuple(Operand(t.shape, t.dtype, t.layout) for t in read)
        dtypes = tuple(graph.tensors[result].dtype for result in group.results)
        question = Question(group.form, group.codelet, operands, dtypes, TARGET)
        (priced,) = _drafts(question, [group.plan])
        charged = costs[name]
        moving = charged.exchange_cycles + charged.sync_cycles
        assert (moving > 0) == (priced.exchange.cycles > 0)
        assert moving == (priced.exchange.cycles + TARGET.internal_sync_cycles if moving else 0)
        if all(split.size % split.grain == 0 for split in group.plan.splits if split.is_split):
            copies = copy_cycles(priced.exchange.local_bytes, TARGET) + priced.exchange.reordering_cycles
            cycles = charged.compute_cycles + charged.exchange_cycles + charged.sync_cycles
            assert cycles <= priced.alone_cycles <= cycles + copies
