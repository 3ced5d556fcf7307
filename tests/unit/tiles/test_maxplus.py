"""Max-plus matrices against clocks advanced one step at a time."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tiles.compiler import control
from tiles.numerics.maxplus import MaxPlus, product
from tiles.report.clocks import Clocks, Superstep, program_cycles


def advance(clocks: list[int], members: list[bool], exchange: int, compute: list[int]) -> list[int]:
    """Run one superstep: members wait for the latest of them, exchange, and everyone computes."""
    latest = max((clock for clock, member in zip(clocks, members, strict=True) if member), default=0)
    return [
        (latest + exchange if member else clock) + own
        for clock, member, own in zip(clocks, members, compute, strict=True)
    ]


@st.composite
def programs(draw: st.DrawFn):
    """A tree of steps and loops over ``n`` clocks, and where the clocks start."""
    n = draw(st.integers(1, 5))
    cycles = st.integers(0, 10 ** draw(st.sampled_from([2, 2, 25])))
    vector = st.lists(cycles, min_size=n, max_size=n)
    step = st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), cycles, vector)
    tree = st.recursive(
        step.map(lambda one: ("step", one)),
        lambda inner: st.tuples(st.just("loop"), st.tuples(st.integers(0, 4), st.lists(inner, max_size=3))),
        max_leaves=6,
    )
    return n, draw(tree), draw(vector)


def matrix(node, n: int) -> MaxPlus:
    kind, what = node
    if kind == "step":
        members, exchange, compute = what
        return MaxPlus.step(np.array(members), exchange, np.array(compute, object))
    times, body = what
    return product([matrix(inner, n) for inner in body], n).power(times)


def run(node, clocks: list[int]) -> list[int]:
    kind, what = node
    if kind == "step":
        return advance(clocks, *what)
    times, body = what
    for _ in range(times):
        for inner in body:
            clocks = run(inner, clocks)
    return clocks


@hypothesis.given(programs())
def test_folding_a_program_equals_running_it(program):
    n, tree, clocks = program
    assert list(matrix(tree, n).apply(clocks)) == run(tree, clocks)


def test_a_pipeline_overlaps_its_stages():
    """Four stages, each of which hands on to the next: a trip takes as long as the slowest once they are full."""
    compute, exchange, trips = [100, 140, 120, 90], 7, 8
    steps, clocks = [], [0] * 4
    for stage, own in enumerate(compute):
        alone = [own if i == stage else 0 for i in range(4)]
        steps.append(([False] * 4, 0, alone))
        if stage < 3:
            steps.append(([i in (stage, stage + 1) for i in range(4)], exchange, [0] * 4))
    for _ in range(trips):
        for step in steps:
            clocks = advance(clocks, *step)
    body = product([MaxPlus.step(np.array(m), e, np.array(c)) for m, e, c in steps], 4)
    assert list(body.power(trips).apply([0] * 4)) == clocks
    assert max(clocks) < trips * (sum(compute) + 3 * exchange)


@st.composite
def control_trees(draw: st.DrawFn):
    """Steps over IPUs of which some are alike, and a tree of loops and branches; what data decides is drawn, too."""
    n = draw(st.integers(1, 6))
    kinds = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        takes = draw(st.lists(st.booleans(), min_size=3, max_size=3))
        compute = draw(st.lists(st.integers(0, 100), min_size=3, max_size=3))
        alike = np.array([takes[k] for k in kinds]), np.array([compute[k] for k in kinds])
        steps.append(Superstep(alike[0], draw(st.integers(0, 50)), alike[1]))
    number = st.integers(0, len(steps) - 1)

    def nodes(inner):
        return st.one_of(
            st.lists(inner, max_size=3).map(lambda parts: control.Sequence(tuple(parts))),
            st.builds(control.Repeat, st.integers(0, 4), inner),
            st.builds(control.While, inner, st.just("p"), inner),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: control.Switch("i", tuple(parts))),
        )

    return n, steps, draw(st.recursive(number, nodes, max_leaves=8)), draw(st.integers(0, 3))


def run_tree(part, path, steps, clocks, decided, trips):
    """Run a part step by step; what is decided follows from its path, and ``trips`` counts it as engines do."""
    if isinstance(part, int):
        step = steps[part]
        return advance(clocks, step.members.tolist(), step.exchange_cycles, step.compute_cycles.tolist())

    def inner(k, clocks):
        return run_tree(part.parts[k], (*path, k), steps, clocks, decided, trips)

    which = (decided + len(path)) % 3
    match part:
        case control.Repeat(count):
            for _ in range(count):
                clocks = inner(0, clocks)
        case control.While():
            clocks = inner(0, clocks)
            for _ in range(which):
                clocks = inner(0, inner(1, clocks))
            trips[path] = trips.get(path, 0) + which
        case control.Switch():
            taken = min(which, len(part.branches) - 1)
            counts = list(trips.get(path, (0,) * len(part.branches)))
            counts[taken] += 1
            trips[path] = tuple(counts)
            clocks = inner(taken, clocks)
        case _:
            for k in range(len(part.parts)):
                clocks = inner(k, clocks)
    return clocks


@hypothesis.given(control_trees())
def test_folding_a_control_tree_equals_running_it(drawn):
    n, steps, tree, decided = drawn
    trips = {}
    clocks = run_tree(tree, (), steps, [0] * n, decided, trips)
    assert program_cycles(tree, steps, trips) == clocks


def test_a_loop_of_stages_is_folded_over_the_tree():
    """Back to back, the runs of each step would cost as if no two stages ever worked at once."""
    compute, pairs = [100, 140, 120, 90], [(0, 1), (1, 2), (2, 3)]
    steps = [Superstep(np.zeros(4, bool), 0, own * np.eye(4, dtype=int)[i]) for i, own in enumerate(compute)]
    steps += [Superstep(np.isin(range(4), pair), 7, np.zeros(4, int)) for pair in pairs]
    body = control.Sequence((0, 4, 1, 5, 2, 6, 3))
    clocks, one_by_one = [0] * 4, Clocks(4)
    for _ in range(8):
        clocks = run_tree(body, (), steps, clocks, 0, {})
    for number in body.parts:
        one_by_one.run(steps[number], 8)
    assert program_cycles(control.Repeat(8, body), steps, {}) == clocks
    assert 2 * max(clocks) < max(one_by_one.cycles)
    assert program_cycles(control.Repeat(10**30, body), steps, {})[1] > 10**32


def test_branches_that_data_decides_take_as_long_as_the_longest():
    steps = [Superstep(np.array([True, True]), 5, np.array(own)) for own in ([10, 0], [0, 30])]
    switch = control.Repeat(3, control.Switch("i", (0, 1)))
    worst = program_cycles(control.Repeat(3, 1), steps, {})
    assert program_cycles(switch, steps, {(0,): (0, 3)}) == worst
    assert program_cycles(switch, steps, {(0,): (2, 1)})[1] == worst[1]


def test_any_number_of_trips():
    """A loop whose members stay level takes its trips times what one takes, whatever the number."""
    step = MaxPlus.step(np.array([True, True, False]), 11, np.array([5, 9, 100]))
    for times in (0, 1, 2, 10**6, 10**30):
        clocks = step.power(times).apply([0, 0, 0])
        last = 16 if times else 0  # only the last run leaves the two apart
        assert list(clocks) == [max(0, times - 1) * 20 + last, times * 20, times * 100]


@pytest.mark.parametrize("seed", range(5))
def test_steps_and_their_powers_are_what_reports_add_up(seed):
    """The clocks of a report fold runs of one step by a formula of their own."""
    random, clocks, folded = np.random.default_rng(seed), Clocks(4), np.zeros(4, object)
    for _ in range(10):
        members, exchange = random.random(4) < 0.5, int(random.integers(50))
        compute, times = random.integers(0, 100, 4), int(random.integers(0, 6))
        clocks.run(Superstep(members, exchange, compute), times)
        folded = MaxPlus.step(members, exchange, compute).power(times).apply(folded)
        assert list(folded) == list(clocks.cycles)


@pytest.mark.parametrize("cycles", [2**31, 2**59 - 1, 2**59, 2**63, 2**64, 10**30])
def test_numbers_of_any_size(cycles):
    members, compute = np.array([True, True, False]), np.array([cycles, 0, 1], object)
    step = MaxPlus.step(members, cycles, compute)
    clocks = [0, cycles, 2]
    for times in range(4):
        assert list(step.power(times).apply([0, cycles, 2])) == clocks
        clocks = advance(clocks, [True, True, False], cycles, [cycles, 0, 1])


def test_powers_are_products():
    steps = [MaxPlus.step(np.array([True, False, True]), 3, np.array([1, 2, 0])),
             MaxPlus.step(np.array([False, True, True]), 4, np.array([0, 5, 9]))]  # fmt: skip
    body = product(steps, 3)
    assert body == steps[1] @ steps[0] and body != steps[0] @ steps[1]
    assert body.power(5) == body @ body @ body @ body @ body
    assert body.power(0) == MaxPlus.identity(3) and body.then(MaxPlus.identity(3)) == body


def test_bad_shapes_and_counts_are_refused():
    one, two = MaxPlus.identity(1), MaxPlus.identity(2)
    with pytest.raises(ValueError, match="expected"):
        one @ two
    with pytest.raises(ValueError, match="at least 0 times"):
        two.power(-1)
    with pytest.raises(ValueError, match="2 clocks"):
        two.apply([0])
    with pytest.raises(ValueError, match="nothing reaches"):
        MaxPlus(np.zeros((1, 1), np.int64), np.zeros((1, 1), bool)).apply([0])
    with pytest.raises(ValueError, match=r"\[n, n\]"):
        MaxPlus(np.zeros((1, 2), np.int64), np.zeros((1, 2), bool))
