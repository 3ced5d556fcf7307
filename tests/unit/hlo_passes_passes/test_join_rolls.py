"""Rolls of one array are slices of it with its ends repeated; a single one, and joins that are no rolls, stay."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipuxla
from hlo_passes.ir import evaluate_module, print_module
from hlo_passes.passes import optimize
from hlo_passes.passes.join_rolls import JoinRolls
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.testing import check_engines

GRID = np.arange(64 * 65, dtype=np.float32).reshape(64, 65)
QUICK = {"xla_backend_optimization_level": 0}
AROUND = [shift for shift in itertools.product((-1, 0, 1), repeat=2) if any(shift)]


def optimized(function, *arguments):
    return optimize(import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo")))


def joined(module) -> list[int]:
    """Return how many arrays each concatenation of a module, or of its text, joins."""
    text = module if isinstance(module, str) else print_module(module)
    lines = [line for line in text.splitlines() if "stablehlo.concatenate(" in line]
    return [line.split("concatenate(")[1].split(")")[0].count("%") for line in lines]


def neighbours(u, shifts=AROUND):
    return sum(jnp.roll(u, shift, (0, 1)) for shift in shifts)


ROLLED = {
    "four neighbours": (lambda u: neighbours(u, [(1, 0), (-1, 0), (0, 1), (0, -1)]), [3, 3]),
    "eight neighbours": (neighbours, [3, 3]),
    "upwind": (lambda u: 2 * u - jnp.roll(u, 1, 0) - jnp.roll(u, 2, 0), [2]),
    "the other way round": (lambda u: jnp.roll(u, 63, 0) * jnp.roll(u, 62, 0), [2]),
    "in a loop": (
        lambda u: jax.lax.fori_loop(0, 3, lambda i, u: jnp.cos(jnp.roll(u, 1, 1) - jnp.roll(u, -1, 1)), u),
        [3],
    ),
    "before a loop too": (
        lambda u: jax.lax.fori_loop(
            0, 3, lambda i, v: jnp.sin(jnp.roll(v, 1, 1) - jnp.roll(v, -1, 1)), neighbours(u, AROUND[:2])
        ),
        [2, 2, 3],
    ),
    "of what is rolled itself": (lambda u: jnp.roll(jnp.roll(u, 3, 0), 1, 0) - jnp.roll(u, -1, 0), [3]),
    "returned": (lambda u: (jnp.roll(u, 1, 0), jnp.roll(u, -1, 0)), [3]),
}


@pytest.mark.parametrize("name", ROLLED)
def test_rolls_of_one_array_are_slices(name: str) -> None:
    function, parts = ROLLED[name]
    done = optimized(function, GRID)
    assert sorted(joined(done)) == parts
    for got, want in zip(evaluate_module(done, GRID), jax.tree.leaves(jax.jit(function)(GRID)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_rolls_beside_what_has_no_result() -> None:
    def function(u):
        jax.debug.print("{}", u[0, 0])
        return neighbours(u, AROUND[:3])

    lowered = ipuxla.jit(function, target="gc200").lower(GRID)
    assert sorted(joined(lowered.as_text("hlo-optimized"))) == [2, 3]


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (lambda u: jnp.roll(u, 1, 0) + u, [2]),
        (lambda u: jnp.roll(u, 20, 0) + jnp.roll(u, -20, 0), [2, 2]),
        (lambda u: jnp.roll(u[:32, :32], 1, 0) + jnp.roll(u[:32, :32], -1, 0), [2, 2]),
        (lambda u: jnp.concatenate([u[1:], u[1:2]]) + jnp.concatenate([u[-2:-1], u[:-1]]), [2, 2]),
        (lambda u: jnp.roll(u, 1, 0) + jnp.roll(u + 1, -1, 0), [2, 2]),
    ],
    ids=["one", "far", "few elements", "other ends", "of two arrays"],
)
def test_other_joins_stay(function, parts) -> None:
    done = optimized(function, GRID)
    assert joined(done) == parts
    np.testing.assert_array_equal(evaluate_module(done, GRID)[0], jax.jit(function)(GRID))


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=5), st.booleans())
def test_random_shifts(shifts, is_chained) -> None:
    def results(u, roll):
        rolled, found = u, []
        for number, shift in enumerate(shifts):
            rolled = roll(rolled if is_chained else u, shift, (0, 1))
            found.append(rolled * (number + 1))
        return found

    lowered = jax.jit(functools.partial(results, roll=jnp.roll)).lower(GRID)
    passes = f"inline,canonicalize,dce,{JoinRolls(least=1)},dce"
    module = optimize(import_stablehlo(lowered.compiler_ir("stablehlo")), passes)
    evaluated = jax.jit(functools.partial(evaluate_module, module), compiler_options=QUICK)
    for got, want in zip(evaluated(GRID), results(GRID, np.roll), strict=True):
        np.testing.assert_array_equal(got, want)


def test_engines_and_cycles() -> None:
    target = ipuxla.Target.named("gc200")

    def diffused(u):
        return jax.lax.fori_loop(0, 4, lambda i, u: u + 0.1 * (neighbours(u) - 8 * u), u)

    check_engines(diffused, target.replace(num_tiles=8), GRID / 100, engines=("fast", "literal"))
    grid = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    cycles = ipuxla.jit(neighbours, target=target).lower(grid).compile().cost_analysis()["cycles"]
    assert cycles < 8_000  # a copy for each of the eight takes 12,793
