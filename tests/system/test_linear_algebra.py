"""Linear algebra on every engine: floats against ``jax.jit`` or NumPy, ring words against the optimized module's."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax import lax

import ipuxla
from tests.engines import check_engines
from tiles.numerics.tolerance import check_close

RNG = np.random.default_rng(0)


def spd(*shape):
    """Return well-conditioned symmetric positive definite matrices."""
    a = RNG.standard_normal(shape).astype(np.float32)
    return a @ a.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1], dtype=np.float32)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (17, 17), (2, 3, 20, 20)])
def test_cholesky(shape, small_target):
    check_engines(jnp.linalg.cholesky, small_target, spd(*shape))


def test_upper_cholesky(small_target):
    check_engines(lambda a: jnp.linalg.cholesky(a, upper=True), small_target, spd(18, 18), floats=("fast",))


def test_cholesky_of_a_matrix_that_is_not_positive_definite(small_target):
    a = spd(3, 20, 20)
    a[1, 5, 5] = -1
    check_engines(jnp.linalg.cholesky, small_target, a, floats=("fast", "literal"))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float64])
def test_cholesky_in_other_floats(dtype, small_target):
    with jax.enable_x64(True):
        a = jnp.asarray(spd(18, 18)).astype(dtype)
        got = ipuxla.jit(jnp.linalg.cholesky, target=small_target)(a)
        check_close(got, jnp.linalg.cholesky(a.astype(np.float64)).astype(dtype), str(dtype))


@pytest.mark.parametrize(("left", "lower", "transpose", "unit"), itertools.product([True, False], repeat=4))
def test_triangular_solve(left, lower, transpose, unit, small_target):
    def solve(a, b):
        options = {"left_side": left, "lower": lower, "transpose_a": transpose, "unit_diagonal": unit}
        return lax.linalg.triangular_solve(a, b, **options)

    b = RNG.standard_normal((2, 7, 3) if left else (2, 3, 7)).astype(np.float32)
    check_engines(solve, small_target, spd(2, 7, 7), b, engines=("fast", "vertex"), floats=("vertex",))


def test_triangular_solve_by_blocks(small_target):
    def solve(a, b):
        return jsl.cho_solve(jsl.cho_factor(a), b)

    check_engines(solve, small_target, spd(70, 70), np.ones((70, 2), np.float32), engines=("fast", "literal"))


GRADIENTS = {
    "cholesky": lambda a: jnp.sum(jnp.sin(jnp.linalg.cholesky(a))),
    "triangular solve": lambda a: jnp.sum(jsl.solve_triangular(a, jnp.sin(a[:, :2]), lower=True) ** 2),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, small_target):
    check_engines(jax.grad(GRADIENTS[name]), small_target, spd(20, 20), engines=("fast",))


@pytest.mark.parametrize("n", [64, 256])
def test_gaussian_likelihood_on_a_whole_machine(n, gc200):
    """Values and gradient of what Cholesky is for, at a cost that its blocks bound."""

    def loss(a, y):
        factor = jnp.linalg.cholesky(a)
        white = jsl.solve_triangular(factor, y, lower=True)
        return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diagonal(factor)))

    a, y = spd(n, n), RNG.standard_normal(n).astype(np.float32)
    compiled = ipuxla.jit(jax.value_and_grad(loss), target=gc200).lower(a, y).compile()
    check_close(compiled(a, y), jax.jit(jax.value_and_grad(loss))(a, y), "fast")
    assert compiled.cost_analysis()["cycles"] < 16_000 * n
