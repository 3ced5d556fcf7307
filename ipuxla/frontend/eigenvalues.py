"""Hessenberg, tridiagonal and Schur forms and eigenvectors of any square matrix, as loops that a machine runs.

``RULES`` maps JAX's primitives to them, as ``decompositions`` does. Every function takes batches ``[..., n, n]``,
real or complex; what a loop does for one matrix is batched by ``jax.vmap``.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ipuxla.frontend.decompositions import (
    adjoint,
    householder_product,
    indices,
    matmul,
    picked,
    reflector,
    scaled,
    squares,
)

MAX_SWEEPS = 30
"""Sweeps per eigenvalue, of at least ten of them, after which LAPACK's hqr gives a matrix up, too."""

# ---- Hessenberg and tridiagonal form


def hessenberg(a: Array) -> list[Array]:
    """Return the Hessenberg form with the Householder vectors below it, and their factors, as LAPACK's gehrd."""
    n = a.shape[-1]
    if 0 in a.shape:
        return [a, jnp.zeros((*a.shape[:-2], max(n - 1, 0)), a.dtype)]
    start, scale = scaled(a)
    row, column = indices(a)
    number = jnp.arange(max(n - 1, 0))

    def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, taus = state
        here = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 1)
        vector, tau, beta = reflector(here, row, k + 1)
        left = a - vector * (tau.conj() * jnp.sum(vector.conj() * a, -2, keepdims=True))
        stored = jnp.where(row > k + 1, vector, jnp.where(row == k + 1, beta, here))
        a = jnp.where(column > k, left, jnp.where(column == k, stored, a))
        a = a - jnp.sum(a * vector.mT, -1, keepdims=True) * (tau * adjoint(vector))
        return a, jnp.where(number == k, tau[..., 0], taus)

    taus = jnp.zeros((*a.shape[:-2], max(n - 1, 0)), a.dtype)
    reduced, taus = lax.fori_loop(0, max(n - 1, 0), step, (start, taus))
    return [jnp.where(row <= column + 1, reduced * scale, reduced), taus]


def tridiagonal(a: Array, *, lower: bool) -> list[Array]:
    """Return ``(a, d, e, taus)`` of symmetric or Hermitian matrices, as LAPACK's sytrd and hetrd.

    The triangle that is not read stays in ``a``. What the upper one gives is what the lower one of the matrix with
    rows and columns in reverse order gives, in reverse order.
    """
    if not lower:
        reduced, *vectors = tridiagonal(jnp.flip(a, (-2, -1)), lower=True)
        return [jnp.flip(reduced, (-2, -1)), *(jnp.flip(v, -1) for v in vectors)]
    row, column = indices(a)
    symmetric = jnp.where(row > column, a, adjoint(a))
    reduced, taus = hessenberg(jnp.where(row == column, a.real, symmetric))
    d = jnp.sum(jnp.where(row == column, reduced.real, 0), -1)
    e = jnp.sum(jnp.where(row == column + 1, reduced.real, 0), -2)[..., :-1]
    return [jnp.where(row >= column, reduced, a), d, e, taus]


# ---- Schur form


def schur(
    a: Array, *, compute_schur_vectors: bool, sort_eig_vals: bool = False, select_callable: object = None
) -> list[Array]:
    """Return the Schur form and, if asked, the unitary matrix that brings a matrix to it, as LAPACK's gees.

    Of real matrices it is real, and pairs of conjugate eigenvalues are blocks of equal diagonal elements.

    Raises:
      NotImplementedError: eigenvalues are to be sorted, which JAX has for no platform.
    """
    del select_callable
    if sort_eig_vals:
        raise NotImplementedError("primitive 'schur' with sorted eigenvalues")
    form, vectors = _schur(a)
    return [form, vectors] if compute_schur_vectors else [form]


def _schur(a: Array) -> tuple[Array, Array]:
    n = a.shape[-1]
    if 0 in a.shape:
        return a, a
    start, scale = scaled(a)
    reduced, taus = hessenberg(start)
    row, column = indices(a)
    q = jnp.broadcast_to(jnp.eye(n, dtype=a.dtype), a.shape)
    if n > 1:
        q = q.at[..., 1:, 1:].set(householder_product(reduced[..., 1:, :-1], taus))
    t = jnp.where(row <= column + 1, reduced, 0)
    flat = (t.reshape(-1, n, n), q.reshape(-1, n, n))
    form, vectors = jax.vmap(_qr_iteration)(*flat)
    return form.reshape(a.shape) * scale, vectors.reshape(a.shape)


def _qr_iteration(t: Array, q: Array) -> tuple[Array, Array]:
    """Make a Hessenberg matrix triangular by implicitly shifted QR steps, and turn ``q`` with it.

    Francis' double shifts of a real one, Wilkinson's of a complex one (Golub and Van Loan, Matrix Computations, 7.5),
    and blocks that are done split off at the end. NaN where it does not converge.
    """
    n = t.shape[-1]
    if n == 1:
        return t, q
    is_real = not jnp.iscomplexobj(t)
    t, q = jnp.pad(t, (0, 2)), jnp.pad(q, ((0, 0), (0, 2)))  # so that windows of 3 begin anywhere
    most = MAX_SWEEPS * max(10, n)

    def goes_on(state: tuple[Array, ...]) -> Array:
        return (state[2] > 0) & (state[4] < most)

    def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
        t, q, end, count, total = state
        t = _without_small(t)
        begin = _block_begin(t, end)
        size = end - begin + 1
        is_pair = (size == 2) if is_real else jnp.bool_(False)
        first, is_split = _first_column(t, begin, end, count)
        t, q = _sweep(t, q, begin, end, first)
        if is_real:
            t = jnp.where(is_pair, _standard(t, begin, is_split), t)
        is_done = is_pair | (size == 1)
        end = end - jnp.where(is_done, size, 0).astype(end.dtype)
        return t, q, end, jnp.where(is_done, 0, count + 1), total + 1

    zero = jnp.int32(0)
    t, q, end, *_ = lax.while_loop(goes_on, body, (t, q, jnp.int32(n - 1), zero, zero))
    t = _without_small(t[:n, :n])
    t, q = jnp.where(end > 0, jnp.nan, t), jnp.where(end > 0, jnp.nan, q[:, :n])
    row, column = indices(t)
    return jnp.where(row <= column + is_real, t, 0), q


def _without_small(t: Array) -> Array:
    """Return the matrix with zeros for the elements below the diagonal that are small beside it."""
    row, column = indices(t)
    size = jnp.sqrt(squares(t))
    diagonal = jnp.sum(jnp.where(row == column, size, 0), -1)
    beside = diagonal[:, None] + diagonal[None, :]
    beside = jnp.where(beside == 0, jnp.max(size), beside)
    limits = jnp.finfo(t.dtype)
    is_small = (row == column + 1) & (size <= jnp.maximum(limits.eps * beside, limits.tiny))
    return jnp.where(is_small, 0, t)


def _block_begin(t: Array, end: Array) -> Array:
    """Return where the block that ends at ``end`` begins: behind the last zero below the diagonal."""
    row, column = indices(t)
    is_cut = jnp.all(jnp.where(row == column + 1, t == 0, True), -1)  # of row k: nothing left of the diagonal
    number = jnp.arange(t.shape[-1], dtype=jnp.int32)
    return jnp.max(jnp.where((number <= end) & is_cut, number, 0))


def _first_column(t: Array, begin: Array, end: Array, count: Array) -> tuple[Array, Array]:
    """Return the first column of what a step begins with, ``[3, 1]``, and whether a pair splits.

    Every tenth step of a block takes another shift, lest it turn in circles.
    """
    top = lax.dynamic_slice(t, (begin, begin), (3, 3))
    last = jnp.maximum(end - 2, 0)
    bottom = lax.dynamic_slice(t, (last, last), (3, 3))
    bottom = jnp.where(end < 2, jnp.roll(bottom, 1, (0, 1)), bottom)  # its last two rows and columns count
    is_odd = (count > 0) & (count % 10 == 0)
    size = jnp.sqrt(squares(bottom[2, 1])) + jnp.sqrt(squares(bottom[1, 0]))
    if jnp.iscomplexobj(t):
        shift = jnp.where(is_odd, size, _wilkinson(bottom))
        return jnp.stack([top[0, 0] - shift, top[1, 0], jnp.zeros_like(shift)])[:, None], jnp.bool_(True)
    total = jnp.where(is_odd, 1.5 * size, bottom[1, 1] + bottom[2, 2])
    product = bottom[1, 1] * bottom[2, 2] - bottom[1, 2] * bottom[2, 1]
    product = jnp.where(is_odd, size * size, product)
    x = top[0, 0] * top[0, 0] + top[0, 1] * top[1, 0] - total * top[0, 0] + product
    y = top[1, 0] * (top[0, 0] + top[1, 1] - total)
    francis = jnp.stack([x, y, top[1, 0] * top[2, 1]])
    pair, is_split = _pair_column(top)
    return jnp.where(end - begin == 1, pair, francis)[:, None], is_split


def _wilkinson(bottom: Array) -> Array:
    """Return the eigenvalue of the last two rows and columns that is nearer to the last element."""
    a, b, c, d = bottom[1, 1], bottom[1, 2], bottom[2, 1], bottom[2, 2]
    half = (a - d) / 2
    root = jnp.sqrt(half * half + b * c)
    root = jnp.where((half.real * root.real + half.imag * root.imag) < 0, -root, root)
    far = half + root
    return jnp.where(far == 0, d, d - b * c / jnp.where(far == 0, 1, far))


def _pair_column(top: Array) -> tuple[Array, Array]:
    """Return what a real pair is turned by, and whether its eigenvalues are real.

    Then an eigenvector; else what makes the diagonal elements equal.
    """
    a, b, c, d = top[0, 0], top[0, 1], top[1, 0], top[1, 1]
    half = (a - d) / 2
    square = half * half + b * c
    is_split = square >= 0
    far = half + jnp.where(half < 0, -1, 1) * jnp.sqrt(jnp.where(is_split, square, 0))
    sigma = b + c
    angle = jnp.arctan2((d - a) * jnp.where(sigma < 0, -1, 1), jnp.abs(sigma)) / 2
    zero = jnp.zeros_like(a)
    return jnp.where(
        is_split, jnp.stack([far, c, zero]), jnp.stack([jnp.cos(angle), jnp.sin(angle), zero])
    ), is_split


def _standard(t: Array, begin: Array, is_split: Array) -> Array:
    """Return the matrix with a turned pair made what it is but for rounding."""
    row, column = indices(t)
    mean = (t[begin, begin] + t[begin + 1, begin + 1]) / 2
    is_pair = (row == column) & ((row == begin) | (row == begin + 1))
    below = (row == begin + 1) & (column == begin)
    return jnp.where(is_split & below, 0, jnp.where(~is_split & is_pair, mean, t))


def _sweep(t: Array, q: Array, begin: Array, end: Array, first: Array) -> tuple[Array, Array]:
    """Reflect three rows and columns after the other from ``begin`` on, which moves the bulge down to ``end``."""
    row, column = indices(t)
    three = jnp.arange(3)[:, None]

    def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        t, q = state
        rows = lax.dynamic_slice_in_dim(t, k, 3, 0)
        bulge = lax.dynamic_slice_in_dim(rows, jnp.maximum(k - 1, 0), 1, 1)
        vector, tau, _ = reflector(
            jnp.where(three + k <= end, jnp.where(k == begin, first, bulge), 0), three, 0
        )
        rows = rows - vector * (tau.conj() * jnp.sum(vector.conj() * rows, 0, keepdims=True))
        t = lax.dynamic_update_slice_in_dim(t, rows, k, 0)
        both = []
        for x in (t, q):
            columns = lax.dynamic_slice_in_dim(x, k, 3, 1)
            columns = columns - jnp.sum(columns * vector.mT, 1, keepdims=True) * (tau * adjoint(vector))
            both.append(lax.dynamic_update_slice_in_dim(x, columns, k, 1))
        t, q = both
        is_cleared = (k > begin) & (column == k - 1) & (row > k) & (row <= k + 2)
        return jnp.where(is_cleared, 0, t), q

    return lax.fori_loop(begin, end, step, (t, q))


# ---- eigenvalues and eigenvectors


def of_schur_form(t: Array) -> Array:
    """Return the eigenvalues on the diagonal of a Schur form, complex."""
    row, column = indices(t)
    diagonal = jnp.sum(jnp.where(row == column, t, 0), -1)
    if jnp.iscomplexobj(t):
        return diagonal
    return lax.complex(diagonal, _imaginary(t))


def _imaginary(t: Array) -> Array:
    """Return the imaginary parts of a real Schur form's eigenvalues, the positive one of a pair first."""
    row, column = indices(t)
    low = jnp.sum(
        jnp.where(row == column + 1, t, 0), -2
    )  # of column k: what stands below its diagonal element
    high = jnp.sum(
        jnp.where(row + 1 == column, t, 0), -1
    )  # of row k: what stands right of its diagonal element
    turn = jnp.where(low != 0, jnp.sqrt(jnp.abs(low)) * jnp.sqrt(jnp.abs(high)), 0)
    return turn - _shifted(turn)


def eig(
    a: Array, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, **options: object
) -> list[Array]:
    """Return eigenvalues and, if asked, left and right eigenvectors of length one, as LAPACK's geev.

    The largest element of a vector is real and positive. Of real matrices, conjugate eigenvalues are neighbours, the
    one with a positive imaginary part first, and their vectors are conjugate.
    """
    del options
    wide = jnp.result_type(a.dtype, np.complex64)
    if 0 in a.shape:
        shapes = [a.shape[:-1]] + [a.shape] * (compute_left_eigenvectors + compute_right_eigenvectors)
        return [jnp.zeros(shape, wide) for shape in shapes]
    start, scale = scaled(a)
    t, q = _schur(start)
    is_second = None
    if not jnp.iscomplexobj(a):
        t, q, is_second = _complex_form(t, q)
    row, column = indices(t)
    values = jnp.sum(jnp.where(row == column, t, 0), -1)
    results = [values * scale[..., 0]]
    if compute_left_eigenvectors:
        flipped = jnp.flip(t.mT, (-2, -1))
        left = jnp.flip(_triangular_vectors(flipped), (-2, -1)).conj()
        results.append(_normal(matmul(q, left), values, is_second))
    if compute_right_eigenvectors:
        results.append(_normal(matmul(q, _triangular_vectors(t)), values, is_second))
    return results


def _complex_form(t: Array, q: Array) -> tuple[Array, Array, Array]:
    """Return the complex Schur form of a real one, and which eigenvalues are second of a conjugate pair.

    Pairs do not overlap, so that one matrix turns them all.
    """
    row, column = indices(t)
    below = jnp.where(row == column + 1, t, 0)
    is_first = jnp.sum(below, -2) != 0  # of column k: something stands below its diagonal element
    is_second = jnp.sum(below, -1) != 0
    low = jnp.sum(below, -2)
    high = jnp.sum(
        jnp.where(row + 1 == column, t, 0), -1
    )  # of row k: what stands right of its diagonal element
    high = jnp.where(is_first, high, 0)
    norm = jnp.sqrt(jnp.abs(low) + jnp.abs(high))
    norm = jnp.where(is_first, norm, 1)
    # of [[p, b], [c, p]] with bc < 0 an eigenvector is (i sqrt|b|, sign(c) sqrt|c|) for p + i sqrt|bc|
    cosine = jnp.where(is_first, lax.complex(jnp.zeros_like(norm), jnp.sqrt(jnp.abs(high)) / norm), 1)
    sine = jnp.where(is_first, jnp.sign(low) * jnp.sqrt(jnp.abs(low)) / norm, 0)
    main = jnp.where(is_second, _shifted(cosine).conj(), cosine)
    rotation = jnp.where(row == column, main[..., None, :], 0)
    rotation = rotation + jnp.where(row == column + 1, sine[..., None, :], 0)
    rotation = rotation - jnp.where(row + 1 == column, _shifted(sine)[..., None, :], 0)
    turned = matmul(adjoint(rotation), matmul(t.astype(rotation.dtype), rotation))
    values = of_schur_form(t)
    triangle = jnp.where(row < column, turned, jnp.where(row == column, values[..., None, :], 0))
    return triangle, matmul(q.astype(rotation.dtype), rotation), is_second


def _shifted(x: Array) -> Array:
    """Return rows of numbers with each in the place behind its own."""
    return jnp.concatenate([jnp.zeros_like(x[..., :1]), x[..., :-1]], -1)


def _triangular_vectors(t: Array) -> Array:
    """Return eigenvectors of upper triangular matrices as columns, by substitution for all of them at once."""
    n = t.shape[-1]
    row, column = indices(t)
    limits = jnp.finfo(t.dtype)
    values = jnp.sum(jnp.where(row == column, t, 0), -2)[..., None, :]
    largest = jnp.max(jnp.sqrt(squares(t)), (-2, -1), keepdims=True)
    least = jnp.maximum(limits.eps * largest, limits.tiny)
    big = float(limits.max) ** 0.25

    def step(i: Array, x: Array) -> Array:
        k = n - 1 - i
        here = lax.dynamic_slice_in_dim(t, k, 1, t.ndim - 2)
        total = matmul(here, x)  # rows up to k of x are zeros yet, but for the ones on its diagonal
        apart = picked(here, column == k, -1) - values
        size = jnp.sqrt(squares(apart))
        apart = jnp.where(size < least, least, apart)
        found = jnp.where(column > k, -total / apart, jnp.where(column == k, 1, 0))
        x = jnp.where(row == k, found, x)
        size = jnp.sqrt(squares(found))
        return x * jnp.where(size > big, 1 / jnp.where(size > big, size, 1), 1)

    return lax.fori_loop(0, n, step, jnp.zeros_like(t))


def _normal(vectors: Array, values: Array, is_second: Array | None) -> Array:
    """Return vectors of length one whose largest element is real; those of real matrices real or conjugate."""
    sizes = squares(vectors)
    peak = jnp.max(sizes, -2, keepdims=True)
    vectors = vectors / jnp.sqrt(jnp.where(peak > 0, peak, 1))
    sizes = squares(vectors)
    vectors = vectors / jnp.sqrt(jnp.sum(sizes, -2, keepdims=True))
    row, _ = indices(vectors)
    chosen = picked(vectors, row == jnp.argmax(sizes, -2, keepdims=True), -2)
    vectors = vectors * (chosen.conj() / jnp.sqrt(squares(chosen)))
    if is_second is None:
        return vectors
    first = jnp.concatenate([vectors[..., :1], vectors[..., :-1]], -1)
    vectors = jnp.where(is_second[..., None, :], first.conj(), vectors)
    is_real = (values.imag == 0)[..., None, :]
    return lax.complex(vectors.real, jnp.where(is_real, 0, vectors.imag))


RULES: dict[str, Callable[..., Sequence[Array] | Array]] = {
    "eig": eig,
    "hessenberg": hessenberg,
    "schur": schur,
    "tridiagonal": tridiagonal,
}
"""What replaces each of JAX's primitives on an IPU, by its name."""
