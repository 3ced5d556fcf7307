"""Linear algebra on every engine: floats against ``jax.jit`` or NumPy, ring words against the optimized module's."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.errors import UnsupportedPrimitive
from ipuxla.frontend import decompositions
from ipuxla.testing import check_engines
from tiles.engine import coverage_of
from tiles.numerics.tolerance import check_close

RNG = np.random.default_rng(0)


def spd(*shape):
    """Return well-conditioned symmetric positive definite matrices."""
    a = RNG.standard_normal(shape).astype(np.float32)
    return a @ a.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1], dtype=np.float32)


def test_cholesky(small_target):
    check_engines(jnp.linalg.cholesky, small_target, spd(17, 17), floats=("fast", "literal"))


@pytest.mark.parametrize("shape", [(1, 1), (2, 2, 3, 3)])
def test_cholesky_of_one_block(shape, small_target):
    check_engines(jnp.linalg.cholesky, small_target, spd(*shape), floats=("vertex",))


def test_cholesky_of_a_batch(small_target):
    a = spd(3, 20, 20)
    a[1, 5, 5] = -1  # not positive definite: its factor is NaN
    upper = functools.partial(jnp.linalg.cholesky, upper=True)
    check_engines(upper, small_target, a, engines=("fast",))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float64])
def test_cholesky_in_other_floats(dtype, small_target):
    with jax.enable_x64(True):
        a = jnp.asarray(spd(18, 18)).astype(dtype)
        function = ipuxla.jit(jnp.linalg.cholesky, target=small_target)
        try:
            jax.eval_shape(jnp.linalg.cholesky, a)
        except TypeError:  # JAX from 0.11 on: floats of 32 bits and more
            with pytest.raises(TypeError, match="cholesky does not accept dtype"):
                function(a)
            return
        check_close(function(a), jnp.linalg.cholesky(a.astype(np.float64)).astype(dtype), str(dtype))


def test_triangular_solve(small_target):
    """Every kind of system in one program: what the codelet's indexing maps make of one matrix."""

    def solve(a, b):
        kinds = itertools.product([True, False], repeat=4)
        names = ("left_side", "lower", "transpose_a", "unit_diagonal")
        return [lax.linalg.triangular_solve(a, b, **dict(zip(names, kind, strict=True))) for kind in kinds]

    b = RNG.standard_normal((2, 5, 5)).astype(np.float32)
    check_engines(solve, small_target, spd(2, 5, 5), b, engines=("fast", "literal"), floats=("fast",))


def test_triangular_solve_by_blocks(small_target):
    def solve(a, b):
        return jsl.cho_solve(jsl.cho_factor(a), b)

    check_engines(solve, small_target, spd(70, 70), np.ones((70, 2), np.float32), engines=("fast",))


GRADIENTS = {
    "cholesky": lambda a: jnp.sum(jnp.sin(jnp.linalg.cholesky(a))),
    "triangular solve": lambda a: jnp.sum(jsl.solve_triangular(a, jnp.sin(a[:, :2]), lower=True) ** 2),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, small_target):
    check_engines(jax.grad(GRADIENTS[name]), small_target, spd(20, 20), engines=("fast",))


def test_gaussian_likelihood_on_a_whole_machine(gc200):
    """Values and gradient of what Cholesky is for, at a cost that its blocks bound."""

    def loss(a, y):
        factor = jnp.linalg.cholesky(a)
        white = jsl.solve_triangular(factor, y, lower=True)
        return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diagonal(factor)))

    n = 256
    a, y = spd(n, n), RNG.standard_normal(n).astype(np.float32)
    compiled = ipuxla.jit(jax.value_and_grad(loss), target=gc200).lower(a, y).compile()
    check_close(compiled(a, y), jax.jit(jax.value_and_grad(loss))(a, y), "fast")
    assert compiled.cost_analysis()["cycles"] < 16_000 * n


def test_lu_of_what_one_tile_factors(small_target):
    """On every engine, in tile code too; zero pivots and ties as LAPACK."""
    a = RNG.standard_normal((5, 2, 4, 4)).astype(np.float32)
    a[0, 0, :, 1] = a[1, 0] = 0
    a[3, 0, :, 0] = 2, -2, 2, -2
    compiled = check_engines(lax.linalg.lu, small_target, a)
    coverage = coverage_of(compiled.executable, "ring")
    assert coverage.codelets["poplin::Lu<float>"].by_code == coverage.codelets["poplin::Lu<float>"].vertices


@pytest.mark.parametrize("factors", [decompositions.lu_by_blocks, decompositions.reflected_by_blocks])
def test_factors_by_blocks(factors, small_target):
    """On every engine: three blocks, the last one of one column."""
    a = RNG.standard_normal((9, 7)).astype(np.float32)
    check_engines(functools.partial(factors, block=3), small_target, a)


def test_a_large_lu_takes_few_cycles(gc200):
    """By columns, each of which goes over the whole matrix, 11.2 million."""
    a = jax.ShapeDtypeStruct((512, 512), np.float32)
    compiled = ipuxla.jit(lax.linalg.lu, target=gc200).lower(a).compile()
    assert compiled.cost_analysis()["cycles"] < 8_000_000


def test_a_large_qr_takes_few_cycles(gc200):
    """By columns 17.3 million."""
    a = jax.ShapeDtypeStruct((1024, 1024), np.float32)
    compiled = ipuxla.jit(lambda a: jnp.linalg.qr(a, mode="raw"), target=gc200).lower(a).compile()
    assert compiled.cost_analysis()["cycles"] < 12_000_000


def test_qr_of_what_one_tile_factors(small_target):
    """On every engine, in tile code too; columns that are done or zero stay as they are."""
    a = RNG.standard_normal((3, 5, 4)).astype(np.float32)
    a[0, 1:, 0] = a[1, :, 2] = 0
    compiled = check_engines(lambda x: [*jnp.linalg.qr(x, mode="raw")], small_target, a)
    coverage = coverage_of(compiled.executable, "ring").codelets["poplin::Qr<float>"]
    assert coverage.by_code == coverage.vertices


WHICH = {
    "hlo.lu": (lax.linalg.lu, {(80, 80): 1, (81, 81): 0, (16, 104, 104): 1, (64, 128, 128): 1, (4, 5): 0}),
    "hlo.qr": (jnp.linalg.qr, {(32, 5): 1, (33, 5): 0, (2, 40, 7): 1, (2, 41, 7): 0, (4, 5): 0}),
}


@pytest.mark.parametrize("name", WHICH)
def test_which_matrices_one_tile_factors(name, small_target):
    """Those for which loops over rows take less than steps that all tiles share."""
    function, shapes = WHICH[name]
    for shape, is_one in shapes.items():
        argument = jax.ShapeDtypeStruct(shape, np.float32)
        text = ipuxla.jit(function, target=small_target).lower(argument).as_text("hlo")
        assert (name in text) == bool(is_one), shape


def test_a_step_of_a_kalman_filter_takes_a_fourth(gc200):
    """166,000 cycles by loops whose steps exchange, of 16 states and as many measurements."""

    def step(f, h, p, r, x, z):
        s = h @ p @ h.T + r
        gain = jnp.linalg.solve(s, h @ p).T
        return x + gain @ (z - h @ x), f @ (p - gain @ h @ p) @ f.T

    f, h, x, z = (RNG.standard_normal(n).astype(np.float32) for n in ((16, 16), (16, 16), 16, 16))
    arguments = f, h, spd(16, 16), spd(16, 16), x, z
    compiled = ipuxla.jit(step, target=gc200).lower(*arguments).compile()
    check_close(compiled(*arguments), jax.jit(step)(*arguments), "fast")
    assert compiled.cost_analysis()["cycles"] < 45_000


def _signless(factors):
    """Return what of a decomposition does not depend on the signs of its vectors."""
    left, values, right = factors
    return values, (left * values) @ right


SQUARE = RNG.standard_normal((5, 5)).astype(np.float32)
TALL = RNG.standard_normal((7, 4)).astype(np.float32)
DECOMPOSITIONS = {
    "lu": (lambda a: lax.linalg.lu(a), SQUARE),
    "solve": (lambda a: jnp.linalg.solve(a, a[:, :2] + 1), SQUARE),
    "inverse and its gradient": (jax.value_and_grad(lambda a: jnp.sum(jnp.sin(jnp.linalg.inv(a)))), SQUARE),
    "determinant": (lambda a: (jnp.linalg.det(a), jnp.linalg.slogdet(a)), np.stack([SQUARE, -SQUARE.T])),
    "qr": (lambda a: (jnp.linalg.qr(a), jnp.linalg.qr(a, mode="complete")), TALL),
    "pivoted qr": (lambda a: jsl.qr(a, pivoting=True), TALL),
    "eigh": (lambda a: _signless((lambda w, v: (v, w, v.T))(*jnp.linalg.eigh(a + a.T))), SQUARE),
    "gradient of an eigenvalue": (jax.grad(lambda a: jnp.linalg.eigvalsh(a + a.T)[-1]), SQUARE),
    "svd": (lambda a: _signless(jnp.linalg.svd(a, full_matrices=False)), TALL.T),
    "pseudoinverse": (jnp.linalg.pinv, TALL),
    "least squares": (lambda a: jnp.linalg.lstsq(a, a[:, 0] + 1)[0], TALL),
    "matrix power": (lambda a: jnp.linalg.matrix_power(a, -3), SQUARE),
    "exponential": (jsl.expm, SQUARE),
    "complex solve": (lambda a: jnp.linalg.solve(a + 1j * a.T, a[:, :2]), SQUARE),
    "complex svd and eigh": (
        lambda a: (
            jnp.linalg.svd(a + 1j * a.T, compute_uv=False),
            jnp.linalg.eigvalsh(a + a.T + 1j * (a - a.T)),
        ),
        SQUARE,
    ),
    "rank and condition": (lambda a: (jnp.linalg.matrix_rank(a), jnp.linalg.cond(a)), TALL),
}


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_decompositions(name, small_target):
    function, a = DECOMPOSITIONS[name]
    check_close(ipuxla.jit(function, target=small_target)(a), jax.jit(function)(a), name)


@pytest.mark.parametrize("name", ["lu", "qr", "eigh"])
def test_decompositions_in_the_ring(name, small_target):
    function, a = DECOMPOSITIONS[name]
    check_engines(function, small_target, a[:3, :3], engines=("fast",))


def test_what_has_no_rule_is_a_named_error(small_target):
    with pytest.raises(UnsupportedPrimitive, match="no lowering of schur for an IPU"):
        ipuxla.jit(lambda a: jax.lax.linalg.schur(a, sort_eig_vals=True), target=small_target)(SQUARE)
