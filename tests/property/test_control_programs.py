"""Generated programs with loops and branches: engines agree on every bit in the ring and within tolerance with floats.

Decisions may depend on floats, trip counts on data, and functions be called from several places.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from tests import flow
from tests.budgets import PROGRAM, budget
from tests.control_programs import control_programs
from tests.property.test_engines import is_steady
from tiles.compiler import certify
from tiles.numerics.tolerance import check_close
from tiles.target import Target

TARGETS = st.sampled_from([16, 5]).map(lambda n: Target.named("gc200").replace(num_tiles=n))
PLANS = st.one_of(st.none(), st.integers(0, 2**32 - 1))
"""Seeds of random plans; None is the planner's own choice."""


@given(
    control_programs(("float32", "float16", "bfloat16")),
    st.booleans(),
    st.sets(st.integers(0, 3)),
    TARGETS,
    PLANS,
)
@budget(PROGRAM)
def test_engines_agree_on_every_bit(program, keeps_calls, donated, target, plan_seed):
    module = flow.optimized_module(program.function, program.arguments, keeps_calls)
    positions = range(len(program.arguments))
    module = dataclasses.replace(module, donated=tuple(n for n in positions if n in donated))
    executable = flow.executable_of(module, target, plan_seed)
    certify(executable)
    flow.assert_engines_agree(executable, module, program.arrays())


@given(control_programs(), TARGETS, PLANS)
@budget(PROGRAM)
def test_engines_are_within_tolerance_of_jax(program, target, plan_seed):
    want = [np.asarray(x) for x in jax.jit(program.function)(*program.arrays())]
    steady = is_steady(program, want)
    assume(any(steady))
    module = flow.optimized_module(program.function, program.arguments)
    executable = flow.executable_of(module, target, plan_seed)
    for engine in ("fast", "literal"):
        got = flow.run(executable, engine, program.arrays())
        for number, comparable in enumerate(steady):
            if comparable:
                check_close(got[number], want[number], f"{engine}, result {number}")
