"""Decompositions against LAPACK's: shapes, batches, matrices of deficient rank, and signs where they are defined."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla.frontend import decompositions

RNG = np.random.default_rng(0)
SHAPES = [(1, 1), (7, 4), (4, 7)]
eigh = functools.partial(
    decompositions.eigh, lower=True, sort_eigenvalues=True, subset_by_index=None, algorithm=None
)


def _random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def _close(got, expected, scale=1.0):
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("shape", SHAPES)
def test_lu_chooses_lapacks_pivots(shape):
    a = _random(2, *shape)
    for got, expected in zip(jax.jit(decompositions.lu)(a), jax.lax.linalg.lu(a), strict=True):
        _close(got, expected)
        assert got.dtype == expected.dtype


@pytest.mark.parametrize("shape", [(0, 4, 3), (0, 3, 4), (2, 0, 3), (2, 3, 0), (0, 0)])
def test_what_has_no_elements_has_results_of_jaxs_shapes(shape):
    a = np.zeros(shape, np.complex64)
    svd = jax.lax.linalg.svd
    cases = [(decompositions.lu(jnp.asarray(a)), jax.lax.linalg.lu(a))]
    for options in ({"full_matrices": True}, {"full_matrices": False}, {"compute_uv": False}):
        given = {"full_matrices": True, "compute_uv": True} | options
        values, *vectors = decompositions.svd(jnp.asarray(a), **given)
        expected = svd(a, **options)
        cases.append(([vectors[0], values, vectors[1]] if vectors else [values], jax.tree.leaves(expected)))
    for got, expected in cases:
        assert [(x.shape, x.dtype) for x in got] == [(x.shape, x.dtype) for x in expected]


def test_lu_of_a_singular_matrix_leaves_the_zero_pivot():
    a = np.array([[0, 1, 2], [0, 3, 4], [0, 5, 7]], np.float32)
    for got, expected in zip(decompositions.lu(jnp.asarray(a)), jax.lax.linalg.lu(a), strict=True):
        _close(got, expected)


lu_by_blocks = jax.jit(decompositions.lu_by_blocks, static_argnums=1)


@pytest.mark.parametrize(
    ("shape", "block"), [((7, 7), 3), ((6, 6), 6), ((13, 5), 2), ((5, 13), 8), ((4, 6), 1)]
)
def test_lu_by_blocks_is_lapacks(shape, block):
    """Of sizes that blocks divide and do not; columns of zeros, ties, and more columns or rows than pivots."""
    random = _random(*shape)
    singular, ties = random.copy(), np.sign(random)
    singular[:, ::3] = 0
    for a in (random, singular, ties, np.zeros_like(random)):
        for got, expected in zip(lu_by_blocks(a, block), jax.lax.linalg.lu(a), strict=True):
            assert got.shape == expected.shape and got.dtype == expected.dtype
            _close(got, expected, 10)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_lu_by_elements_is_lapacks(n):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((300, n, n)).astype(np.float32)
    a[:100] = rng.integers(-1, 2, (100, n, n))  # pivots that are zero, or of equal magnitude
    a[100] = 0
    for got, expected in zip(jax.jit(decompositions.lu_by_elements)(a), jax.lax.linalg.lu(a), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_many_small_matrices_are_factored_at_once(monkeypatch):
    monkeypatch.setattr(decompositions, "MANY", 30)
    a = np.random.default_rng(0).standard_normal((30, 3, 3)).astype(np.float32)
    target = ipuxla.Target.named("gc200").replace(num_tiles=4)
    function = ipuxla.jit(lambda a: jnp.linalg.solve(a, jnp.ones((30, 3, 1))), target=target)
    assert "lu" not in {step.name for step in function.lower(a).compile().executable.steps}
    np.testing.assert_allclose(function(a), np.linalg.solve(a, np.ones((30, 3, 1))), rtol=2e-3, atol=1e-3)


def test_lu_by_blocks_of_complex_numbers():
    a = _random(5, 4) + 1j * _random(5, 4)
    for got, expected in zip(lu_by_blocks(a, 3), jax.lax.linalg.lu(a), strict=True):
        _close(got, expected, 10)


def test_nan_lies_where_it_does_by_columns():
    a = _random(9, 8)
    a[7, 4] = np.nan
    for got, expected in zip(lu_by_blocks(a, 3), decompositions.lu_by_columns(jnp.asarray(a)), strict=True):
        _close(got, expected, 10)


@pytest.mark.parametrize(
    ("shape", "block"), [((7, 7), 3), ((6, 6), 6), ((13, 5), 2), ((5, 13), 8), ((4, 6), 1)]
)
@pytest.mark.parametrize("is_complex", [False, True])
def test_columns_are_reflected_by_blocks_as_one_by_one(shape, block, is_complex):
    a = _random(*shape) + 1j * _random(*shape) if is_complex else _random(*shape)
    singular = a.copy()
    singular[:, ::3] = 0
    by_blocks = jax.jit(decompositions.reflected_by_blocks, static_argnums=1)
    by_columns = jax.jit(decompositions.reflected_by_columns)
    for x in (a, singular):
        for got, expected in zip(by_blocks(x, block), by_columns(x), strict=True):
            assert got.shape == expected.shape and got.dtype == expected.dtype
            _close(got, expected, 10)


def test_single_large_matrices_are_factored_by_blocks(monkeypatch):
    n, taken = decompositions.BLOCKED_FROM, []
    by_blocks = decompositions.lu_by_blocks
    monkeypatch.setattr(decompositions, "lu_by_blocks", lambda a: taken.append(a.shape) or by_blocks(a))
    for shape in ((n, n), (1, 1, n, n + 3), (n + 5, n), (2, n, n), (n - 1, n)):
        a = jax.ShapeDtypeStruct(shape, np.float32)
        found, expected = (jax.eval_shape(f, a) for f in (decompositions.lu, jax.lax.linalg.lu))
        assert tuple(found) == tuple(expected)
    assert taken == [(n, n), (n, n + 3), (n + 5, n)]
    n = decompositions.REFLECTED_BY_BLOCKS_FROM
    by_reflections = decompositions.reflected_by_blocks
    monkeypatch.setattr(
        decompositions, "reflected_by_blocks", lambda a: taken.append(a.shape) or by_reflections(a)
    )
    for shape in ((n, n), (1, n, n + 3), (2, n, n), (n - 1, n)):
        found = jax.eval_shape(decompositions.geqrf, jax.ShapeDtypeStruct(shape, np.float32))
        assert [x.shape for x in found] == [shape, (*shape[:-2], min(shape[-2:]))]
    assert taken[3:] == [(n, n), (n, n + 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_qr_has_lapacks_signs(shape, scale):
    a = _random(2, *shape) * np.float32(scale)
    r, taus = jax.jit(decompositions.geqrf)(a)
    k = min(shape)
    q = jax.jit(decompositions.householder_product)(r[..., :k], taus)
    expected_q, expected_r = jnp.linalg.qr(a)
    _close(q, expected_q)
    _close(np.triu(r)[..., :k, :], expected_r, 10 * scale)


def test_qr_of_columns_that_are_done_keeps_them():
    a = np.triu(_random(4, 3))
    r, taus = jax.jit(decompositions.geqrf)(jnp.asarray(a))
    _close(r, a)
    assert not np.any(taus)
    _close(decompositions.householder_product(r, taus), np.eye(4, 3))


@pytest.mark.parametrize("shape", SHAPES)
def test_pivoted_qr(shape):
    a = _random(*shape)
    r, order, taus = jax.jit(decompositions.geqp3)(jnp.asarray(a), jnp.zeros(shape[1], jnp.int32))
    q = jax.jit(decompositions.householder_product)(r[:, : min(shape)], taus)
    _close(q @ np.triu(r)[: min(shape)], a[:, order - 1])
    diagonal = np.abs(np.diagonal(r))
    assert (diagonal[1:] <= diagonal[:-1] + 1e-5).all()
    assert sorted(order.tolist()) == list(range(1, shape[1] + 1))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_eigh(n):
    a = _random(2, n, n)
    vectors, values = jax.jit(eigh)(np.where(np.tri(n, dtype=bool), a, np.nan))
    symmetric = np.tril(a) + np.tril(a, -1).swapaxes(-1, -2)
    _close(values, np.linalg.eigvalsh(symmetric.astype(np.float64)), n)
    _close(vectors @ (values[..., None] * vectors.mT), symmetric, n)
    _close(vectors.mT @ vectors, np.broadcast_to(np.eye(n), a.shape))


def test_eigh_of_equal_eigenvalues_and_of_nan():
    vectors, values = jax.jit(eigh)(jnp.eye(4) * 3)
    _close(values, [3, 3, 3, 3])
    _close(vectors @ vectors.T, np.eye(4))
    assert np.isnan(jax.jit(eigh)(jnp.full((4, 4), jnp.nan))[1]).all()


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("shape", [*SHAPES, (5, 5)])
def test_svd(shape, full):
    a = _random(2, *shape)
    decompose = functools.partial(decompositions.svd, full_matrices=full, compute_uv=True)
    values, left, right = jax.jit(decompose)(a)
    k = min(shape)
    _close(values, np.linalg.svd(a.astype(np.float64), compute_uv=False), 3)
    _close((left[..., :k] * values[..., None, :]) @ right[..., :k, :], a, 3)
    _close(left.mT @ left, np.broadcast_to(np.eye(left.shape[-1]), (2, *left.shape[-1:] * 2)))
    _close(right @ right.mT, np.broadcast_to(np.eye(right.shape[-2]), (2, *right.shape[-2:-1] * 2)))
    assert left.shape[-1] == (shape[0] if full else k)


def test_svd_of_deficient_rank_has_orthonormal_vectors():
    a = np.outer(_random(6), _random(5))
    decompose = functools.partial(decompositions.svd, full_matrices=True, compute_uv=True)
    values, left, right = jax.jit(decompose)(a)
    assert (np.asarray(values[1:]) < 1e-5 * values[0]).all()
    _close(left.T @ left, np.eye(6))
    _close(right @ right.T, np.eye(5))
    _close((left[:, :5] * values) @ right, a, 10)


def _complex(*shape):
    return (_random(*shape) + 1j * _random(*shape)).astype(np.complex64)


def test_complex_lu_and_qr_are_lapacks():
    a = _complex(2, 5, 3)
    for got, expected in zip(decompositions.lu(a), jax.lax.linalg.lu(a), strict=True):
        _close(got, expected)
    r, taus = decompositions.geqrf(jnp.asarray(a))
    expected_q, expected_r = jnp.linalg.qr(a)
    _close(decompositions.householder_product(r, taus), expected_q)
    _close(np.triu(r)[:, :3], expected_r, 10)


@pytest.mark.parametrize("a", [np.eye(4) + 0j, _complex(4, 4)], ids=["identity", "random"])
def test_eigenvectors_of_hermitian_matrices(a):
    a = jnp.asarray(a @ a.conj().T, jnp.complex64)
    vectors, values = eigh(a)
    _close(values, np.linalg.eigvalsh(a), 10)
    _close((vectors * values) @ vectors.conj().T, a, 10)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_singular_vectors_of_complex_matrices(shape):
    a = _complex(*shape)
    values, left, right = decompositions.svd(jnp.asarray(a), full_matrices=False, compute_uv=True)
    _close(values, np.linalg.svd(a, compute_uv=False), 10)
    _close((left * values) @ right, a, 10)
