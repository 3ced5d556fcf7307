"""Random models of integer variables: the solver finds the optimum that going through all values finds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiles.errors import InvalidArguments
from tiles.poplibs.popsolver import Model

DOMAINS = st.one_of(
    st.tuples(st.integers(0, 9), st.integers(0, 6)).map(lambda d: list(range(d[0], d[0] + d[1] + 1))),
    st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True),
)
STEPS = st.tuples(
    st.sampled_from(["sum", "product", "ceildiv", "max", "call", "bounded"]),
    st.lists(st.integers(0, 7), min_size=2, max_size=3),
)


def mixed(*values):
    """Neither rises nor falls with its operands."""
    return sum((7 * k + 3) * v % 11 for k, v in enumerate(values))


def rising(a, b):
    return a**2 + b


def computed(kind, values):
    if kind == "ceildiv":
        return -(-values[0] // values[1]) if values[1] else None
    return {
        "sum": sum,
        "product": math.prod,
        "max": max,
        "call": lambda v: mixed(*v),
        "bounded": lambda v: rising(*v[:2]),
    }[kind](values)


def added(model, kind, operands):
    if kind == "ceildiv":
        return model.ceildiv(*operands[:2])
    if kind == "call":
        return model.call(operands, mixed)
    if kind == "bounded":
        return model.call(operands[:2], rising, bounds=lambda low, high: (rising(*low), rising(*high)))
    return getattr(model, kind)(operands)


@given(
    domains=st.lists(DOMAINS, min_size=1, max_size=4),
    steps=st.lists(STEPS, min_size=1, max_size=5),
    limits=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=3),
    equals=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=1),
    objectives=st.lists(st.integers(0, 8), min_size=1, max_size=2),
)
def test_the_optimum_of_brute_force(domains, steps, limits, equals, objectives):
    model = Model()
    variables = [
        model.variable(d[0], d[-1]) if d == list(range(d[0], d[-1] + 1)) else model.choice(d) for d in domains
    ]
    for kind, operands in steps:
        variables.append(added(model, kind, [variables[k % len(variables)] for k in operands]))
    count = len(variables)
    for a, b in limits:
        model.less_or_equal(variables[a % count], variables[b % count])
    for a, b in equals:
        model.equal(variables[a % count], variables[b % count])

    best = None
    for point in itertools.product(*domains):
        values = list(point)
        for kind, operands in steps:
            values.append(computed(kind, [values[k % len(values)] for k in operands]))
            if values[-1] is None:
                break
        if len(values) < count or values[-1] is None:
            continue
        if any(values[a % count] > values[b % count] for a, b in limits):
            continue
        if any(values[a % count] != values[b % count] for a, b in equals):
            continue
        cost = tuple(values[k % count] for k in objectives)
        best = cost if best is None else min(best, cost)

    found = model.minimize([variables[k % count] for k in objectives])
    if best is None:
        assert found is None
        return
    assert found is not None
    assert tuple(found[variables[k % count]] for k in objectives) == best
    values = [found[v] for v in variables[: len(domains)]]  # and what it says is a solution
    assert all(v in d for v, d in zip(values, domains, strict=True))
    for kind, operands in steps:
        values.append(computed(kind, [values[k % len(values)] for k in operands]))
    assert values == [found[v] for v in variables]


def test_a_large_model_is_solved_in_few_boxes():
    """Splits of a matrix product over 1,472 tiles: 4,096 ** 3 candidates."""
    model = Model()
    splits = [model.variable(1, 4096, name) for name in "mnk"]
    model.less_or_equal(model.product(splits), model.constant(1472))
    parts = [model.ceildiv(model.constant(4096), split) for split in splits]
    found = model.minimize([model.product(parts), model.sum(splits)])
    assert found is not None
    least = min(
        (-(-4096 // m) * -(-4096 // n) * -(-4096 // (1472 // (m * n))))
        for m in range(1, 1473)
        for n in range(1, 1472 // m + 1)
    )
    assert math.prod(found[p] for p in parts) == least
    assert found.nodes < 200_000


def test_wrong_models_are_refused():
    model = Model()
    with pytest.raises(InvalidArguments, match="low <= high"):
        model.variable(3, 2)
    with pytest.raises(InvalidArguments, match="no value"):
        model.choice([])
    x = model.variable(0, 5)
    model.less_or_equal(model.constant(7), x)
    assert model.minimize([x]) is None
    assert np.all([model.constant(1).number > x.number])
