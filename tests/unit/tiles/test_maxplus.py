"""Max-plus matrices against clocks advanced one step at a time."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tiles.numerics.maxplus import MaxPlus, product
from tiles.report.clocks import Clocks, Superstep


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
