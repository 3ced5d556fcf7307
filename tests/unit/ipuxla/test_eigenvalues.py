"""Forms and eigenvectors of nonsymmetric matrices by what defines them, and against LAPACK where they are unique."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.frontend import eigenvalues
from tiles.target import Target

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
schur = jax.jit(functools.partial(eigenvalues.schur, compute_schur_vectors=True))
eig = jax.jit(
    functools.partial(eigenvalues.eig, compute_left_eigenvectors=True, compute_right_eigenvectors=True)
)
N = 6


def _rng(*seed: int) -> np.random.Generator:
    """Return one of a test's own: what it draws does not depend on which tests ran before."""
    return np.random.default_rng(seed)


def _matrices(dtype: type) -> np.ndarray:
    """Return a batch of matrices that such algorithms stumble over."""
    rng = _rng(0)
    a = rng.standard_normal((N, N))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal((N, N))
    return np.array(
        [
            a,
            a + a.conj().T,
            a - a.conj().T,
            np.triu(a),
            np.tril(a),
            np.zeros((N, N)),
            np.eye(N)[rng.permutation(N)],
            np.roll(np.eye(N), 1, 0),
            2 * np.eye(N) + np.eye(N, k=1),
            np.ones((N, N)),
            rng.integers(-2, 3, (N, N)),
            a * 1e30,
            a * 1e-30,
        ]
    ).astype(dtype)


def _random(dtype: type, *shape: int) -> np.ndarray:
    rng = _rng(*shape)
    a = rng.standard_normal(shape)
    return (a + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else a).astype(dtype)


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.conj().swapaxes(-1, -2)


def _small(difference: np.ndarray, a: np.ndarray, factor: float = 10) -> None:
    """Check that matrices differ by some roundings of their size."""
    size = np.abs(a).max((-2, -1)) * N * factor * np.finfo(a.dtype).eps
    error = np.abs(difference).max((-2, -1))
    assert (error <= size).all(), (error / np.maximum(size, 1e-300)).round(2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_schur_form(dtype: type) -> None:
    with jax.enable_x64(True):
        a = _matrices(dtype)
        t, q = map(np.asarray, schur(a))
    _small(q @ t @ _adjoint(q) - a, a)
    _small(_adjoint(q) @ q - np.eye(N), np.ones_like(a))
    below = np.diagonal(t, -1, -2, -1)
    assert not np.tril(t, -2).any()
    if np.dtype(dtype).kind == "c":
        assert not below.any()
    else:  # pairs do not overlap, and have equal diagonal elements
        assert not (below[:, 1:] * below[:, :-1]).any()
        diagonal = np.diagonal(t, 0, -2, -1)
        assert (diagonal[:, 1:] == diagonal[:, :-1])[below != 0].all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigenvectors(dtype: type) -> None:
    with jax.enable_x64(True):
        a = _matrices(dtype)
        w, left, right = map(np.asarray, eig(a))
    _small(a @ right - right * w[:, None, :], a)
    _small(_adjoint(left) @ a - w[:, :, None] * _adjoint(left), a)
    for vectors in (left, right):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-2), 1, rtol=1e-5)
    _small((w.sum(-1) - np.trace(a, axis1=-2, axis2=-1))[:, None, None], a, 100)
    if np.dtype(dtype).kind == "f":
        first = w.imag > 0
        np.testing.assert_array_equal(w[:, 1:][first[:, :-1]], w[:, :-1][first[:, :-1]].conj())
        assert not right.swapaxes(-1, -2)[w.imag == 0].imag.any()


def test_eigenvalues_are_lapacks() -> None:
    a = _rng(9).standard_normal((4, 9, 9))
    with jax.enable_x64(True):
        w, *_ = eig(a)
    for mine, matrix in zip(np.asarray(w), a, strict=True):
        theirs = np.linalg.eigvals(matrix)
        np.testing.assert_allclose(np.sort_complex(mine), np.sort_complex(theirs), atol=1e-12)


def test_nan_comes_out_as_nan() -> None:
    a = np.full((3, 3), np.nan, np.float32)
    assert all(np.isnan(x).all() for x in eig(a))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("shape", [(1, 1), (2, 5, 5)])
def test_hessenberg_is_lapacks(shape: tuple[int, ...], dtype: type) -> None:
    a = _random(dtype, *shape)
    for mine, theirs in zip(eigenvalues.hessenberg(jnp.asarray(a)), lax.linalg.hessenberg(a), strict=True):
        np.testing.assert_allclose(
            mine, theirs, rtol=1e-5, atol=2e-5
        )  # 40 eps of the largest, five columns one after another


def test_matrices_of_no_elements() -> None:
    for shape in ((0, 0), (0, 3, 3)):
        a = np.zeros(shape, np.float32)
        for name in ("eigh", "eig", "schur"):
            f = getattr(lax.linalg, name)
            got, want = jax.tree.leaves(ipuxla.jit(f)(a)), jax.tree.leaves(jax.jit(f)(a))
            assert [(x.shape, x.dtype) for x in got] == [(x.shape, x.dtype) for x in want]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_tridiagonal_is_lapacks(lower: bool, dtype: type) -> None:
    """Element by element in double precision; in single, whose reflections turn a small column's rounding into more, by eigenvalues.

    Those are within a few eps of the largest, in either precision.
    """
    a = _random(dtype, 20, 5, 5)
    eps = np.finfo(dtype).eps
    with jax.enable_x64(True):
        mine = eigenvalues.tridiagonal(jnp.asarray(a), lower=lower)
        theirs = lax.linalg.tridiagonal(a, lower=lower)
    for x, y in zip(mine, theirs, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if eps < 1e-10:
            np.testing.assert_allclose(x, y, atol=1e-11)
    triangle = np.tril(a, -1) if lower else _adjoint(np.triu(a, 1))
    whole = triangle + _adjoint(triangle) + np.eye(5) * a.real
    diagonal, off_diagonal = (np.asarray(x, np.float64) for x in mine[1:3])
    form = [np.diag(d) + np.diag(e, 1) + np.diag(e, -1) for d, e in zip(diagonal, off_diagonal, strict=True)]
    for got, want in zip(
        np.linalg.eigvalsh(form), np.linalg.eigvalsh(whole.astype(np.complex128)), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=20 * eps * np.abs(want).max())


@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_on_tiles(engine: str, tiny_target: Target) -> None:
    a = _rng(4).standard_normal((4, 4)).astype(np.float32)
    f = ipuxla.jit(lambda a: lax.linalg.schur(a), target=tiny_target, engine=engine)
    t, q = map(np.asarray, f(a))
    np.testing.assert_allclose(q @ t @ q.T, a, atol=1e-5)
