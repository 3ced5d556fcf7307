"""jax.numpy.linalg, jax.lax.linalg, jax.scipy.linalg, jax.scipy.sparse.linalg, jax.numpy.fft, jax.scipy.fft.

Decompositions are unique up to signs: what is compared is what they are made for.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import jax.scipy.sparse.linalg as sparse
import numpy as np
from jax import lax

from tests.sweep.cases import Group, definite, normal

GROUP = Group("linear algebra and Fourier transforms")
add = GROUP.add
L, LL = jnp.linalg, lax.linalg

SQUARE, TALL, SPD = normal(4, 4), normal(5, 3), definite(4, 4)
BATCH = normal(2, 4, 4)
V, W = normal(4), normal(5)
Z = normal(4, 4) + 1j * normal(4, 4, seed=1)
HERMITIAN = Z @ Z.conj().T / 4 + np.eye(4, dtype=np.complex64)


def product(*factors):
    """Return a product, which does not depend on the signs of the factors."""
    return jnp.linalg.multi_dot(factors) if len(factors) > 2 else factors[0] @ factors[1]


add(
    "linalg.cholesky",
    lambda a, b: (L.cholesky(a), L.cholesky(a, upper=True), L.cholesky(b @ b.mT + 4 * jnp.eye(4))),
    SPD,
    BATCH,
)
add("linalg.cholesky: complex", L.cholesky, HERMITIAN)
add("linalg.cond", lambda a: (L.cond(a), L.cond(a, 1)), SQUARE)
add("linalg.cross", lambda a: L.cross(a[:, :3], a[::-1, 1:]), SQUARE)
add("linalg.det", lambda a, b: (L.det(a), L.det(b), L.det(a[:2, :2])), SQUARE, BATCH)
add("linalg.det: gradient", jax.grad(L.det), SQUARE)
add("linalg.diagonal", L.diagonal, SQUARE)
add("linalg.eig", lambda a: jnp.sort_complex(L.eig(a)[0]), SQUARE)
add("linalg.eigvals", lambda a: jnp.sort_complex(L.eigvals(a)), SQUARE)
add("linalg.eigh", lambda a: (lambda w, v: (w, product(v * w, v.T)))(*L.eigh(a)), SPD)
add("linalg.eigh: complex", lambda a: L.eigh(a)[0], HERMITIAN)
add("linalg.eigh: gradient", jax.grad(lambda a: (L.eigh(a)[0] ** 3).sum()), SPD)
add("linalg.eigvalsh", L.eigvalsh, SPD)
add("linalg.inv", lambda a, b: (L.inv(a), L.inv(b)), SPD, BATCH)
add("linalg.inv: complex", L.inv, HERMITIAN)
add("linalg.lstsq", lambda a, b: L.lstsq(a, b)[:3], TALL, W)
add("linalg.matmul", L.matmul, SQUARE, SQUARE)
add("linalg.matrix_norm", lambda a: [L.matrix_norm(a, ord=o) for o in ("fro", "nuc", 1, 2, jnp.inf)], TALL)
add("linalg.matrix_power", lambda a: (L.matrix_power(a, 3), L.matrix_power(a, -2)), SPD)
add("linalg.matrix_rank", L.matrix_rank, TALL)
add("linalg.matrix_transpose", L.matrix_transpose, BATCH)
add("linalg.multi_dot", lambda a, b: L.multi_dot([b, b.T, b]), SQUARE, TALL)
add(
    "linalg.norm",
    lambda a, v: (L.norm(a), L.norm(v, 3), L.norm(a, axis=1), L.norm(a, 2), L.norm(v, jnp.inf)),
    TALL,
    V,
)
add("linalg.norm: gradient", jax.grad(lambda a: L.norm(a) + L.norm(a, axis=0).sum()), TALL)
add("linalg.outer", L.outer, V, W)
add("linalg.pinv", lambda a: (L.pinv(a), L.pinv(a.T)), TALL)
add("linalg.qr", lambda a: (lambda q, r: (product(q, r), q.T @ q))(*L.qr(a)), TALL)
add("linalg.qr: modes", lambda a: (jnp.abs(L.qr(a, mode="r")), jnp.abs(L.qr(a.T, mode="complete")[0])), TALL)
add("linalg.qr: gradient", jax.grad(lambda a: (L.qr(a)[0] ** 3).sum()), TALL)
add("linalg.qr: complex", lambda a: product(*L.qr(a)), Z)
add("linalg.slogdet", lambda a: (L.slogdet(a), L.slogdet(-a)), SQUARE)
add("linalg.slogdet: complex", lambda a: L.slogdet(a), Z)
add("linalg.solve", lambda a, v, b: (L.solve(a, v), L.solve(b, b), L.solve(a, a[:, :2])), SQUARE, V, BATCH)
add("linalg.solve: complex", L.solve, Z, Z[:, 0])
add("linalg.solve: gradient", jax.grad(lambda a, v: (L.solve(a, v) ** 2).sum(), (0, 1)), SQUARE, V)
add("linalg.svd", lambda a: (lambda u, s, v: (s, product(u * s, v)))(*L.svd(a, full_matrices=False)), TALL)
add("linalg.svd: complex", lambda a: L.svd(a, compute_uv=False), Z)
add("linalg.svd: gradient", jax.grad(lambda a: (L.svd(a, compute_uv=False) ** 3).sum()), TALL)
add("linalg.svdvals", L.svdvals, TALL)
add("linalg.tensordot", L.tensordot, SQUARE, SQUARE)
add(
    "linalg.tensorinv", lambda a: L.tensorinv(a.reshape(2, 2, 4) + 3 * jnp.eye(4).reshape(2, 2, 4), 2), SQUARE
)
add("linalg.tensorsolve", lambda a, v: L.tensorsolve(a.reshape(2, 2, 4), v.reshape(2, 2)), SQUARE, V)
add("linalg.trace", L.trace, SQUARE)
add("linalg.vecdot", L.vecdot, SQUARE, SQUARE)
add("linalg.vector_norm", lambda a: [L.vector_norm(a, ord=o, axis=1) for o in (0, 1, 2, 3, jnp.inf)], TALL)

add("lax.linalg.cholesky", LL.cholesky, SPD)
add("lax.linalg.cholesky_update", LL.cholesky_update, np.linalg.cholesky(SPD).T, V)
add(
    "lax.linalg.eig",
    lambda a: (lambda w, u, v: (jnp.abs(a @ v - v * w).max() < 1e-4, jnp.abs(u.conj().T @ v).max(1) > 0))(
        *LL.eig(a)
    ),
    SQUARE,
)
add("lax.linalg.eig: complex", lambda a: jnp.sort_complex(LL.eig(a)[0]), Z)
add("lax.linalg.hessenberg: complex", LL.hessenberg, Z)
add("lax.linalg.schur: complex", lambda a: (lambda t, q: product(q, t, q.conj().T))(*LL.schur(a)), Z)
add("lax.linalg.tridiagonal: upper and complex", lambda a: LL.tridiagonal(a, lower=False), HERMITIAN)
add("lax.linalg.eigh", lambda a: LL.eigh(a)[1], SPD)
add("lax.linalg.hessenberg", lambda a: jnp.abs(LL.hessenberg(a)[0]), SQUARE)
add(
    "lax.linalg.householder_product",
    lambda a, t: LL.householder_product(a, t),
    TALL,
    np.array([0.4, 0.6, 0.2], np.float32),
)
add("lax.linalg.lu", LL.lu, SQUARE)
add(
    "lax.linalg.lu_pivots_to_permutation",
    lambda p: LL.lu_pivots_to_permutation(p, 4),
    np.array([2, 1, 3], np.int32),
)
add(
    "lax.linalg.ormqr",
    lambda a, t, c: LL.ormqr(a, t, c),
    TALL,
    np.array([0.4, 0.6, 0.2], np.float32),
    normal(5, 2),
)
add("lax.linalg.qr", lambda a: product(*LL.qr(a, full_matrices=False)), TALL)
add("lax.linalg.schur", lambda a: (lambda t, q: (product(q, t, q.T), jnp.tril(t, -2)))(*LL.schur(a)), SQUARE)
add("lax.linalg.svd", lambda a: LL.svd(a, compute_uv=False), TALL)
add(
    "lax.linalg.symmetric_product",
    lambda a, c: LL.symmetric_product(a, c, alpha=2.0, beta=0.5, symmetrize_output=True),
    TALL,
    definite(5, 5),
)
add(
    "lax.linalg.triangular_solve",
    lambda a, b: LL.triangular_solve(a, b, lower=True, left_side=True),
    SPD,
    SQUARE,
)
add(
    "lax.linalg.triangular_solve: complex",
    lambda a, b: LL.triangular_solve(a, b, lower=True, left_side=True, conjugate_a=True, transpose_a=True),
    HERMITIAN,
    Z,
)
add("lax.linalg.tridiagonal", lambda a: jnp.abs(LL.tridiagonal(a)[1]), SPD)
add(
    "lax.linalg.tridiagonal_solve",
    lambda low, d, up, b: LL.tridiagonal_solve(low, d, up, b),
    np.array([0, 1, 2, 1], np.float32),
    np.full(4, 5, np.float32),
    np.array([1, 2, 1, 0], np.float32),
    normal(4, 2),
)
add("lax.linalg.qdwh", lambda a: LL.qdwh(a)[0], TALL)

add("scipy.linalg.block_diag", jsl.block_diag, SQUARE, TALL)
add("scipy.linalg.cholesky", lambda a: (jsl.cholesky(a), jsl.cholesky(a, lower=True)), SPD)
add("scipy.linalg.cho_factor", lambda a: jnp.tril(jsl.cho_factor(a, lower=True)[0]), SPD)
add("scipy.linalg.cho_solve", lambda a, v: jsl.cho_solve(jsl.cho_factor(a), v), SPD, V)
for _name in "circulant companion fiedler leslie".split():
    add(
        f"scipy.linalg.{_name}",
        lambda v, f=getattr(jsl, _name), two=_name == "leslie": f(v, v[1:]) if two else f(v),
        V,
    )
add("scipy.linalg.fiedler_companion", jsl.fiedler_companion, V)
add("scipy.linalg.convolution_matrix", lambda v: jsl.convolution_matrix(v, 5), V)
for _name in "dft hadamard helmert hilbert invhilbert invpascal pascal".split():
    add(f"scipy.linalg.{_name}", lambda f=getattr(jsl, _name): f(4))
add("scipy.linalg.det", jsl.det, SQUARE)
add(
    "scipy.linalg.eigh",
    lambda a, b: (jsl.eigh(a, eigvals_only=True), jsl.eigh(a + b, eigvals_only=True)),
    SPD,
    definite(4, 4, seed=2),
)
add("scipy.linalg.eigh_tridiagonal", lambda d, e: jsl.eigh_tridiagonal(d, e, eigvals_only=True), V, V[:3])
add("scipy.linalg.expm", jsl.expm, BATCH)
add("scipy.linalg.expm_frechet", jsl.expm_frechet, SQUARE, BATCH[0])
add("scipy.linalg.funm", lambda a: jsl.funm(a, jnp.exp, disp=False)[0], SPD)
add("scipy.linalg.hankel", jsl.hankel, V, V[::-1])
add("scipy.linalg.hessenberg", lambda a: jnp.abs(jsl.hessenberg(a)), SQUARE)
add("scipy.linalg.inv", jsl.inv, SQUARE)
add("scipy.linalg.lu", lambda a: jsl.lu(a), SQUARE)
add("scipy.linalg.lu_factor", lambda a: jsl.lu_factor(a), SQUARE)
add("scipy.linalg.lu_solve", lambda a, v: jsl.lu_solve(jsl.lu_factor(a), v), SQUARE, V)
add("scipy.linalg.polar", lambda a: jsl.polar(a, method="svd"), TALL)
add("scipy.linalg.qr", lambda a: product(*jsl.qr(a, mode="economic")), TALL)
add("scipy.linalg.qr_multiply", lambda a, c: jnp.abs(jsl.qr_multiply(a, c)[0]), TALL, normal(2, 5))
add(
    "scipy.linalg.rsf2csf",
    lambda a: (lambda t, z: product(z, t, z.conj().T))(*jsl.rsf2csf(*jsl.schur(a))),
    SQUARE,
)
add("scipy.linalg.schur", lambda a: (lambda t, q: product(q, t, q.T))(*jsl.schur(a)), SQUARE)
add("scipy.linalg.solve", lambda a, v: (jsl.solve(a, v), jsl.solve(a, v, assume_a="pos")), SPD, V)
add(
    "scipy.linalg.solve_sylvester",
    lambda a, b: jsl.solve_sylvester(a, a, b),
    SPD,
    SQUARE,
)
add(
    "scipy.linalg.solve_triangular",
    lambda a, v: (
        jsl.solve_triangular(a, v),
        jsl.solve_triangular(a, v, trans=1, lower=True, unit_diagonal=True),
    ),
    SPD,
    V,
)
add("scipy.linalg.sqrtm", jsl.sqrtm, SPD)
add("scipy.linalg.svd", lambda a: jsl.svd(a, compute_uv=False), TALL)
add("scipy.linalg.toeplitz", lambda v: (jsl.toeplitz(v), jsl.toeplitz(v, v[:3] + 1)), V)

for _name in "cg gmres bicgstab".split():
    _solve = getattr(sparse, _name)
    add(f"sparse.linalg.{_name}", lambda a, v, f=_solve: f(a, v)[0], SPD, V)
    add(
        f"sparse.linalg.{_name}: gradient",
        jax.grad(lambda v, a, f=_solve: (f(lambda x: a @ x, v)[0] ** 2).sum()),
        V,
        SPD,
    )
add(
    "sparse.linalg.gmres: incremental", lambda a, v: sparse.gmres(a, v, solve_method="incremental")[0], SPD, V
)

# ---- Fourier transforms

SIGNAL, IMAGE = normal(3, 10), normal(2, 6, 5)
SPECTRUM = SIGNAL + 1j * normal(3, 10, seed=1)
for _name in "fft ifft rfft ihfft".split():
    add(
        f"fft.{_name}",
        lambda x, f=getattr(jnp.fft, _name): (f(x), f(x, n=7, axis=0), f(x, norm="ortho")),
        SIGNAL,
    )
for _name in "irfft hfft".split():
    add(f"fft.{_name}", lambda z, f=getattr(jnp.fft, _name): (f(z), f(z, n=7)), SPECTRUM)
for _name in "fft2 fftn ifft2 ifftn rfft2 rfftn".split():
    add(f"fft.{_name}", getattr(jnp.fft, _name), IMAGE)
for _name in "irfft2 irfftn".split():
    add(f"fft.{_name}", getattr(jnp.fft, _name), SPECTRUM)
for _name in "fftshift ifftshift".split():
    add(f"fft.{_name}", getattr(jnp.fft, _name), SIGNAL)
for _name in "fftfreq rfftfreq".split():
    add(f"fft.{_name}", lambda f=getattr(jnp.fft, _name): f(7, 0.5))
add("fft.fft: gradient", jax.grad(lambda x: (jnp.abs(jnp.fft.fft(x)) ** 2).sum()), SIGNAL)
add("fft.fft: vmap and jvp", lambda x: jax.jvp(jax.vmap(jnp.fft.rfft), (x,), (x,)), SIGNAL)
add("fft.fft: of 1000 and of 127", lambda x: (jnp.fft.fft(x), jnp.fft.fft(x[:, :127])), normal(2, 1000))
for _name in "dct idct dctn idctn".split():
    add(f"scipy.fft.{_name}", lambda x, f=getattr(jax.scipy.fft, _name): (f(x), f(x, norm="ortho")), SIGNAL)
