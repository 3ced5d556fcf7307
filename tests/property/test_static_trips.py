"""What no input decides is known before a run: trips counted in advance are those of the literal engine, cycle for cycle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from tests import flow
from tests.budgets import PROGRAM, budget
from tests.control_programs import control_programs
from tiles.engine import make_engine
from tiles.report import cost_analysis, profile
from tiles.report.counts import static_counts
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=6)
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
Inner = Callable[[Any, list[Any]], Any]
"""Takes a value and the counters of the loops around it, as traced integers."""


def counter_of(draw: Any, counters: list[Any], salt: int) -> Any:
    """Return an integer made of counters and constants."""
    total: Any = salt
    for counter in counters:
        total = total + draw * counter
    return total


@st.composite
def bodies(draw: Any, depth: int) -> Inner:
    """Draw what a loop's body does, with loops and branches inside that counters and constants decide."""
    steps = [draw(steps_of(depth)) for _ in range(draw(st.integers(1, 2)))]

    def run(x: Any, counters: list[Any]) -> Any:
        for step in steps:
            x = step(x, counters)
        return x

    return run


@st.composite
def steps_of(draw: Any, depth: int) -> Inner:
    """Draw one step."""
    kind = draw(st.sampled_from(["compute", "count", "branch", "scan", "halve"])) if depth else "compute"
    factor, salt, modulus = draw(st.integers(-2, 3)), draw(st.integers(0, 5)), draw(st.integers(2, 4))
    if kind == "compute":
        return lambda x, _: jnp.sin(x) if salt % 2 else x * x[:, ::-1] + salt
    inner = draw(bodies(depth - 1))
    if kind == "count":
        return lambda x, counters: lax.fori_loop(
            0, counter_of(factor, counters, salt) % modulus, lambda i, x: inner(x, [*counters, i]), x
        )
    if kind == "scan":
        return lambda x, counters: lax.scan(
            lambda x, i: (inner(x, [*counters, i]), None), x, jnp.arange(salt, salt + modulus)
        )[0]
    if kind == "halve":

        def halve(x: Any, counters: list[Any]) -> Any:
            def body(carried: Any) -> Any:
                n, x = carried
                return n // 2, inner(x, [*counters, n])

            return lax.while_loop(lambda s: s[0] > 1, body, (counter_of(factor, counters, salt) + 5, x))[1]

        return halve
    other = draw(bodies(depth - 1))

    def branch(x: Any, counters: list[Any]) -> Any:
        which = counter_of(factor, counters, salt) % modulus
        if modulus == 2:
            return lax.cond(which == 0, lambda x: inner(x, counters), lambda x: other(x, counters), x)
        branches = [lambda x: inner(x, counters), lambda x: other(x, counters), lambda x: x + 1]
        return lax.switch(which, branches, x)

    return branch


@given(bodies(3), st.booleans())
@budget(PROGRAM)
def test_what_counters_and_constants_decide_is_counted_in_advance(body, keeps_calls):
    def function(x):
        return body(body(x, []), [])

    module = flow.optimized_module(function, (jax.ShapeDtypeStruct(X.shape, X.dtype),), keeps_calls)
    executable = flow.executable_of(module, TARGET)
    cost = cost_analysis(executable)
    assert cost["unresolved"] == []
    _, trace = make_engine(executable, "literal").run(X)
    assert list(static_counts(executable)[0]) == list(trace.counts)
    run = profile(executable, trace)
    assert cost["cycles_bounds"] == [run.cycles, run.cycles] == [cost["cycles"]] * 2
    assert profile(executable).data["execution"]["control"] == run.data["execution"]["control"]


@given(control_programs())
@budget(PROGRAM)
def test_cycles_of_a_run_lie_within_the_bounds_and_are_those_known_in_advance(program):
    module = flow.optimized_module(program.function, program.arguments)
    executable = flow.executable_of(module, TARGET)
    cost = cost_analysis(executable)
    least, most = cost["cycles_bounds"]
    for seed in range(2):
        _, trace = make_engine(executable).run(*program.arrays(seed))
        cycles = profile(executable, trace).cycles
        assert cost["cycles"] in (None, cycles)
        assert least <= cycles and (most is None or cycles <= most)
