"""Random programs by engine ``tile``: their tile code gives the module's words in the ring, and other engines' floats.

What has no code runs by its meaning there, so every program runs; ``covered`` counts that code ran at all.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import assume, event, example, given
from hypothesis import strategies as st

from tests import flow
from tests.budgets import PROGRAM, budget
from tests.programs import random_programs, without_jumps
from tests.property.test_engines import is_steady
from tiles.engine import coverage_of
from tiles.numerics.tolerance import check_close
from tiles.target import Target

SIZES = (3, 4, 2, 1, 5, 7, 12, 17)
"""Odd and even, so that operands begin at all addresses and loops have tails of all lengths."""
NARROW = random_programs(
    6, ("float32", "float16", "int32", "uint8", "int16", "bool"), sizes=SIZES, max_elements=400
)
TARGETS = st.builds(
    lambda name, num_tiles: Target.named(name).replace(num_tiles=num_tiles),
    st.sampled_from(["gc200", "gc2", "c600"]),
    st.integers(1, 24),
)
PLANS = st.one_of(st.none(), st.integers(0, 2**32 - 1))


@given(NARROW, TARGETS, PLANS)
@budget(PROGRAM)
def test_tile_code_gives_the_modules_words(program, target, plan_seed) -> None:
    module = flow.optimized_module(program.function, program.arguments)
    executable = flow.executable_of(module, target, plan_seed)
    event(f"vertices by code: {round(coverage_of(executable).vertices_share, 1)}")
    flow.assert_engines_agree(executable, module, program.arrays(), ("tile",))


@given(random_programs(6, sizes=SIZES, max_elements=400).map(without_jumps), TARGETS, PLANS)
@budget(PROGRAM)
def test_tile_code_is_within_tolerance_of_jax(program, target, plan_seed) -> None:
    want = [np.asarray(x) for x in jax.jit(program.function)(*program.arrays())]
    steady = is_steady(program, want)
    assume(any(steady))
    module = flow.optimized_module(program.function, program.arguments)
    executable = flow.executable_of(module, target, plan_seed)
    got = flow.run(executable, "tile", program.arrays())
    for number, comparable in enumerate(steady):
        if comparable:
            check_close(got[number], want[number], f"tile, result {number}")


@given(st.integers(1, 8), st.integers(1, 90), st.sets(st.sampled_from(["cell", "row", "element"])), TARGETS)
@budget(PROGRAM)
def test_reductions_read_scalars_rows_and_vectors(rows, columns, levels, target) -> None:
    """Workers share rows that are fewer than they are: each reads its share of elements, but scalars whole."""
    rng = np.random.default_rng(0)
    shapes = {"cell": (), "row": (rows, 1), "element": (columns,)}
    others = [rng.normal(size=shapes[level]).astype(np.float32) for level in sorted(levels)]
    x = rng.normal(size=(rows, columns)).astype(np.float32)

    def function(x, *others):
        for other in others:
            x = (x - other) * x
        return jnp.sum(x, 1), jnp.max(x)

    module = flow.optimized_module(function, (x, *others))
    executable = flow.executable_of(module, target)
    flow.assert_engines_agree(executable, module, (x, *others), ("tile",))
    want = [np.asarray(y) for y in jax.jit(function)(x, *others)]
    check_close(flow.run(executable, "tile", (x, *others)), want, "tile")


@example((2, 4, 4), "uint16", (0,), Target.named("gc2").replace(num_tiles=8))
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 6), st.integers(1, 24)),
    st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "float16", "float32"]),
    st.sampled_from([(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]),
    TARGETS,
)
@budget(PROGRAM)
def test_reductions_of_truth_values_of_numbers(shape, dtype, axes, target) -> None:
    """Elements narrower than words are loaded one by one where they are compared: rows follow each other all the same."""
    x = np.random.default_rng(sum(shape)).integers(0, 3, shape).astype(dtype)

    def function(x):
        return jnp.any(x.astype(bool), axes)

    module = flow.optimized_module(function, (x,))
    executable = flow.executable_of(module, target)
    flow.assert_engines_agree(executable, module, (x,), ("tile",))
    np.testing.assert_array_equal(flow.run(executable, "tile", (x,))[0], x.any(axes))
