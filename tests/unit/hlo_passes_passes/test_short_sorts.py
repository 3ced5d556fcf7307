"""Sorts of short rows are comparisons and exchanges of columns, with the same bits; long and few rows are sorted as before."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module, print_module
from hlo_passes.passes import optimize
from ipuxla import testing
from ipuxla.frontend.importer import import_stablehlo

ROWS = 200
TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)
SPECIAL = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0, 2.0], np.float32)


def rows(n, seed=0):
    return np.random.default_rng(seed).choice(SPECIAL, (ROWS, n))


def optimized(function, *arguments):
    return optimize(import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo")))


def ints(x):
    return jnp.nan_to_num(x, posinf=100.0, neginf=-100.0).astype(jnp.int8)


CASES = {
    "two": (lambda x: jnp.sort(x, -1), 2),
    "nine": (lambda x: jnp.sort(x, -1), 9),
    "another dimension": (lambda x: jnp.sort(x.T, 0), 5),
    "in the middle": (lambda x: jnp.sort(x.reshape(ROWS // 2, 2, -1).swapaxes(1, 2), 1), 4),
    "halves": (lambda x: jnp.sort(x.astype(jnp.float16), -1), 6),
    "bfloat16": (lambda x: jnp.sort(x.astype(jnp.bfloat16), -1), 6),
    "bytes": (lambda x: jnp.sort(ints(x), -1), 8),
    "booleans": (lambda x: jnp.sort(x > 0, -1), 4),
    "greatest first": (lambda x: jnp.sort(x, -1, descending=True), 7),
    "places": (lambda x: jnp.argsort(x, -1), 7),
    "two keys": (lambda x: lax.sort((ints(x), x, x * 2), num_keys=2), 4),
    "selected": (lambda x: lax.top_k(x, 3), 8),
    "all selected": (lambda x: lax.top_k(x, 4), 4),
    "halves selected": (lambda x: lax.top_k(x.astype(jnp.float16), 2), 8),
    "bytes selected": (lambda x: lax.top_k(ints(x), 2), 8),
    "some read": (lambda x: (jnp.sort(x, -1)[:, 2:4], jnp.sort(x, -1)[:, 5]), 7),
}


@pytest.mark.parametrize("name", CASES)
def test_short_sorts_have_the_same_bits(name):
    function, n = CASES[name]
    x = rows(n)
    module = optimized(function, x)
    text = print_module(module)
    assert "stablehlo.sort" not in text
    assert "hlo.top_k" not in text
    want = jax.tree.leaves(jax.jit(function)(x))
    for found, expected in zip(jax.jit(lambda x: evaluate_module(module, x))(x), want, strict=True):
        assert found.dtype == expected.dtype
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize(
    "function", [lambda x: jnp.sort(x, -1), lambda x: jnp.sort(x, -1)[:, 3:9], lambda x: jnp.sort(x.T, 0)]
)
def test_longer_rows_take_several_expressions(function):
    x = np.random.default_rng(3).choice(SPECIAL, (32768, 12))
    module = optimized(function, x)
    assert print_module(module).count("@sorted(") > 1
    found = jax.jit(lambda x: evaluate_module(module, x))(x)
    for one, expected in zip(found, jax.tree.leaves(jax.jit(function)(x)), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize(
    "function, shape",
    [
        (lambda x: jnp.sort(x, -1), (ROWS, 40)),  # long rows
        (lambda x: jnp.sort(x, -1), (20, 4)),  # few rows
        (lambda x: lax.top_k(x, 20), (ROWS, 40)),
        (lambda x: jnp.sort(x, -1), (4096, 12)),  # few for several expressions
        (lambda x: jnp.argsort(x, -1), (32768, 12)),  # of two arrays
        (lambda x: jnp.sort(x.astype(jnp.int8), -1), (ROWS, 10)),  # four bytes at a time
    ],
)
def test_other_sorts_stay(function, shape):
    text = print_module(optimized(function, np.ones(shape, np.float32)))
    assert "stablehlo.sort" in text or "hlo.top_k" in text


def test_on_every_engine():
    def neighbours(x):
        p = jnp.pad(x, 1, mode="edge")
        nine = jnp.stack([p[i : i + 16, j : j + 20] for i in range(3) for j in range(3)])
        return jnp.sort(nine, 0)[4], lax.top_k(jnp.moveaxis(nine[:8], 0, -1), 2)

    testing.check_engines(neighbours, TARGET, jnp.asarray(rows(320)[0].reshape(16, 20)))


def test_medians_take_few_cycles():
    """A vertex that merges nine elements takes 6,600 cycles a row."""
    program = (
        ipuxla.jit(lambda x: jnp.sort(x, 0)[4], target=TARGET).lower(np.ones((9, 4096), np.float32)).compile()
    )
    assert program.cost_analysis()["cycles"] < 4096 / 8 * 250


def test_slices_of_whole_pieces_join_these():
    def first(a, b, c):
        return jnp.concatenate([a, b, c], 1)[1:, :5] * 2.0

    pieces = [np.arange(3 * n, dtype=np.float32).reshape(3, n) for n in (2, 3, 4)]
    module = optimize(
        import_stablehlo(jax.jit(first).lower(*pieces).compiler_ir("stablehlo")), "fix(canonicalize,dce)"
    )
    text = print_module(module)
    assert "tensor<3x9xf32>" not in text
    (found,) = evaluate_module(module, *pieces)
    np.testing.assert_array_equal(found, first(*pieces))
