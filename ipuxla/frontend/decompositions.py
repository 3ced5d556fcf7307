"""Matrix decompositions that JAX leaves to a platform's libraries, as loops over contractions and expressions.

``RULES`` maps JAX's primitives to them. Every function takes batches ``[..., m, n]``, real or complex; loops are
rolled, so that programs do not grow with matrices. ``eigenvalues`` has those of nonsymmetric matrices.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array, lax

from ipuxla.frontend._jax_compat import LU_COMPOSITE, QR_COMPOSITE

MAX_SWEEPS = 30
"""Sweeps after which a Jacobi iteration is given up; it converges quadratically, in 5 to 10 as a rule."""

matmul = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def indices(a: Array) -> tuple[Array, Array]:
    """Return row and column numbers of matrices, ``[m, 1]`` and ``[1, n]``."""
    return jnp.arange(a.shape[-2])[:, None], jnp.arange(a.shape[-1])[None, :]


def picked(x: Array, where: Array, axis: int) -> Array:
    """Return what stands at the one place along ``axis`` where ``where`` holds; the axis stays."""
    return jnp.sum(jnp.where(where, x, 0), axis, keepdims=True).astype(x.dtype)


def adjoint(a: Array) -> Array:
    """Return conjugate transposes."""
    return a.conj().mT


def squares(a: Array) -> Array:
    """Return squared magnitudes, real."""
    return jnp.square(a) if not jnp.iscomplexobj(a) else jnp.square(a.real) + jnp.square(a.imag)


def _size(a: Array) -> Array:
    """Return what LAPACK compares elements by: magnitudes, of complex ones the sum of their parts'."""
    return jnp.abs(a) if not jnp.iscomplexobj(a) else jnp.abs(a.real) + jnp.abs(a.imag)


def scaled(a: Array) -> tuple[Array, Array]:
    """Return matrices scaled to a largest element of one, so that squares stay in range, and the scale."""
    largest = jnp.max(_size(a), (-2, -1), keepdims=True)
    scale = jnp.where(largest > 0, largest, 1)
    return a / scale, scale


# ---- LU


ROWS_ON_A_TILE = {
    LU_COMPOSITE: ((1, 80), (16, 104), (64, 128)),
    QR_COMPOSITE: ((1, 32), (2, 40), (16, 48), (64, 56)),
}
"""From how many matrices on, up to how many rows one tile factors one sooner than all tiles do together, whose steps exchange:
by prices of both on a gc200. LU takes 0.86 million cycles or 0.88 at 80 rows, 1.10 or 0.98 at 88; of 64 matrices of 128 rows 3.0 or
4.4. QR takes 0.13 million cycles or 0.18 at 32 rows, 0.79 or 0.39 at 64; of 64 matrices of 56 rows 0.55 or 0.60."""


BLOCKED_FROM = 192
"""Columns from which on one matrix is factored by blocks: 160 take 2.08 million cycles of a gc200 by columns and 2.04 by blocks, 256 take
4.33 or 3.20, 1,024 take 43.0 or 15.8. Of four matrices of 256 columns 6.0 or 8.7."""
BLOCK = 32
"""Columns of a block; 16 and 24 take as long."""


MANY, FEW_ROWS = 12_000, 4
"""From how many matrices on, of up to how many rows, all are factored at once, element by element: a tile takes 1,300 to 3,100 cycles
to factor one of them. Of 100,000 of 2, 3 and 4 rows a gc200 takes 9,581, 27,440 and 62,278 cycles instead of 90,168, 147,900 and
209,712."""


def lu(a: Array) -> list[Array]:
    """Return ``(lu, pivots, permutation)`` by Gaussian elimination with partial pivoting.

    As LAPACK's getrf: row k was exchanged with row ``pivots[k]``, and a zero pivot leaves its column alone. Matrices that
    one tile each factors sooner than all of them together are a composite.
    """
    *batch, m, n = a.shape
    if a.dtype == jnp.float32 and m == n <= FEW_ROWS and math.prod(batch) >= MANY:
        return lu_by_elements(a)
    if a.dtype == jnp.float32 and m == n and a.size and _suits_one_tile(LU_COMPOSITE, batch, n):
        return list(lax.composite(lu_by_columns, LU_COMPOSITE)(a))
    if min(m, n) >= BLOCKED_FROM and math.prod(batch) == 1:
        return [x.reshape(*batch, *x.shape) for x in lu_by_blocks(a.reshape(m, n))]
    return lu_by_columns(a)


def _suits_one_tile(name: str, batch: Sequence[int], rows: int) -> bool:
    bounds = [most for least, most in ROWS_ON_A_TILE[name] if math.prod(batch) >= least]
    return rows <= bounds[-1]


def _eliminated(
    a: Array, row: Array, k: Array, is_here: Array, is_after: Array, may_exchange: Array | None = None
) -> tuple[Array, Array]:
    """Return matrices after a step of elimination, and the row that was exchanged with row k, ``[..., 1, 1]``.

    Args:
      a: matrices ``[..., m, n]``.
      row: row numbers ``[m, 1]``.
      k: number of the step.
      is_here: which column is eliminated, ``[1, n]``.
      is_after: which columns are changed below row k, this one among them, ``[1, n]``.
      may_exchange: whether rows are exchanged; always by default.
    """
    here, current = picked(a, is_here, -1), picked(a, row == k, -2)
    magnitude = jnp.where(row >= k, _size(here), -1)
    chosen = jnp.argmax(magnitude, axis=-2, keepdims=True).astype(jnp.int32)
    if may_exchange is not None:
        chosen = jnp.where(may_exchange, chosen, k)
    upper = picked(a, row == chosen, -2)
    pivot, displaced = picked(upper, is_here, -1), picked(current, is_here, -1)
    below = jnp.where(row == chosen, displaced, here)
    factor = jnp.where(pivot == 0, below, below / jnp.where(pivot == 0, 1, pivot))
    exchanged = jnp.where(row == k, upper, jnp.where(row == chosen, current, a))
    rest = jnp.where(is_here, factor, exchanged - factor * upper)
    return jnp.where((row > k) & is_after, rest, exchanged), chosen


def _exchanged(is_exchanged: Array, a: list[Array], b: list[Array]) -> tuple[list[Array], list[Array]]:
    """Return arrays of two rows, one's of the other where they are exchanged."""
    pairs = list(zip(a, b, strict=True))
    return [jnp.where(is_exchanged, y, x) for x, y in pairs], [
        jnp.where(is_exchanged, x, y) for x, y in pairs
    ]


def lu_by_elements(a: Array) -> list[Array]:
    """Return what ``lu`` does, as operations on one element of all matrices each, which grow as the cube of their rows."""
    n, batch = a.shape[-1], a.shape[:-2]
    x = [[a[..., i, j] for j in range(n)] for i in range(n)]
    permutation, pivots = [jnp.full(batch, i, jnp.int32) for i in range(n)], list[Array]()
    for k in range(n):
        most, chosen = _size(x[k][k]), jnp.full(batch, k, jnp.int32)
        for i in range(k + 1, n):
            own = _size(x[i][k])
            is_more = (own > most) | ((own != own) & (most == most))  # NaN is larger than numbers
            most, chosen = jnp.where(is_more, own, most), jnp.where(is_more, i, chosen)
        pivots.append(chosen)
        for i in range(k + 1, n):
            is_exchanged = chosen == i
            x[k], x[i] = _exchanged(is_exchanged, x[k], x[i])
            [permutation[k]], [permutation[i]] = _exchanged(is_exchanged, [permutation[k]], [permutation[i]])
        pivot = x[k][k]
        for i in range(k + 1, n):
            factor = jnp.where(pivot == 0, x[i][k], x[i][k] / jnp.where(pivot == 0, 1, pivot))
            x[i] = [*x[i][:k], factor, *(x[i][j] - factor * x[k][j] for j in range(k + 1, n))]
    matrices = jnp.stack([jnp.stack(row, -1) for row in x], -2)
    return [matrices, jnp.stack(pivots, -1), jnp.stack(permutation, -1)]


def lu_by_columns(a: Array) -> list[Array]:
    """Return what ``lu`` does, as a loop over columns."""
    m, n = a.shape[-2:]
    row, column = indices(a)

    def step(k: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        a, pivots, permutation = state
        a, chosen = _eliminated(a, row, k, column == k, column >= k)
        last = lax.dynamic_slice_in_dim(permutation, k, 1, permutation.ndim - 1)
        number, chosen = row[:, 0], chosen[..., 0]
        moved = picked(permutation, number == chosen, -1)
        permutation = jnp.where(number == chosen, last, permutation)
        permutation = jnp.where(number == k, moved, permutation)
        return a, jnp.where(number[: min(m, n)] == k, chosen, pivots), permutation

    batch = a.shape[:-2]
    pivots = jnp.zeros((*batch, min(m, n)), jnp.int32)
    permutation = jnp.broadcast_to(jnp.arange(m, dtype=jnp.int32), (*batch, m))
    if 0 in a.shape:
        return [a, pivots, permutation]
    return list(lax.fori_loop(0, min(m, n), step, (a, pivots, permutation)))


def lu_by_blocks(a: Array, block: int = BLOCK) -> list[Array]:
    """Return what ``lu`` does of one matrix ``[m, n]``: ``block`` columns are eliminated, then taken out of those behind.

    As LAPACK's getrf: rows of the others are exchanged afterwards, and a product of matrices does most of the work. Behind
    the columns lie rows' numbers, exchanged with them. Zeros behind the matrix, up to whole blocks, exchange nothing.
    """
    m, n = a.shape
    count = min(m, n)
    size = -(-count // block) * block
    rows = max(m, size)
    a = jnp.pad(a, ((0, rows - m), (0, max(n, size) - n)))
    row, column = indices(a)
    numbers, place = row[:, 0], jnp.arange(block + 1)[None, :]

    def eliminate(number: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        a, pivots, permutation = state
        first = number * block

        def step(j: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            panel, pivots = state
            k, is_after = first + j, (place >= j) & (place < block)
            panel, chosen = _eliminated(panel, row, k, place == j, is_after, k < count)
            return panel, jnp.where(numbers == k, chosen[:, 0], pivots)

        panel = lax.dynamic_slice_in_dim(a, first, block, 1)
        panel = jnp.concatenate([panel, row.astype(a.dtype)], 1)
        panel, pivots = lax.fori_loop(0, block, step, (panel, pivots))
        panel, order = panel[:, :block], panel[:, block].real.astype(jnp.int32)
        a, permutation = a[order], permutation[order]
        corner = lax.dynamic_slice_in_dim(panel, first, block, 0)
        upper = lax.dynamic_slice_in_dim(a, first, block, 0)
        solved = lax.linalg.triangular_solve(corner, upper, left_side=True, lower=True, unit_diagonal=True)
        is_below, is_behind = row >= first + block, column >= first + block
        product = matmul(jnp.where(is_below, panel, 0), jnp.where(is_behind, solved, 0))
        a = jnp.where(is_below & is_behind, a - product, a)  # zeros times NaN are none there
        a = lax.dynamic_update_slice_in_dim(a, jnp.where(is_behind, solved, upper), first, 0)
        return lax.dynamic_update_slice_in_dim(a, panel, first, 1), pivots, permutation

    start = a, jnp.zeros(rows, jnp.int32), numbers
    a, pivots, permutation = lax.fori_loop(0, size // block, eliminate, start)
    return [a[:m, :n], pivots[:count], permutation[:m]]


# ---- QR


def reflector(here: Array, row: Array, k: Array | int) -> tuple[Array, Array, Array]:
    """Return the Householder reflection that clears columns below element k: vector, factor and what k becomes.

    As LAPACK's larfg: what is applied is the adjoint of ``1 - tau v v^H``, element k becomes real, and that of the
    vector is 1; elements above it take no part.

    Args:
      here: columns ``[..., m, 1]``.
      row: row numbers ``[m, 1]``.
      k: number of the element.
    """
    alpha = picked(here, row == k, -2)
    below = jnp.where(row > k, here, 0)
    rest = jnp.sum(squares(below), -2, keepdims=True)
    norm = jnp.sqrt(squares(alpha) + rest)
    is_done = (rest == 0) & (alpha.imag == 0)
    beta = jnp.where(is_done, alpha.real, jnp.where(alpha.real < 0, norm, -norm))
    tau = jnp.where(is_done, 0, (beta - alpha) / jnp.where(is_done, 1, beta))
    vector = jnp.where(row == k, 1, below / jnp.where(is_done, 1, alpha - beta))
    return vector, tau, beta


def _reflect(
    k: Array, a: Array, taus: Array, j: Array | None = None, is_one: Array | None = None
) -> tuple[Array, Array]:
    """Apply the Householder reflection that clears a column below row k, and store it there, as geqrf.

    Args:
      k: number of the row.
      a: matrices ``[..., m, n]``.
      taus: factors of the columns' reflections, ``[..., count]``.
      j: the column; k by default.
      is_one: whether there is a column to clear; always by default.
    """
    row, column = indices(a)
    j = k if j is None else j
    here = lax.dynamic_slice_in_dim(a, j, 1, a.ndim - 1)
    vector, tau, beta = reflector(here, row, k)
    if is_one is not None:
        tau = jnp.where(is_one, tau, 0)
    reflected = a - vector * (tau.conj() * jnp.sum(vector.conj() * a, -2, keepdims=True))
    stored = jnp.where(row > k, vector, jnp.where(row == k, beta, here))
    a = jnp.where(column > j, reflected, jnp.where(column == j, stored, a))
    number = jnp.arange(taus.shape[-1])
    return a, jnp.where(number == j, tau[..., 0], taus)


def geqrf(a: Array) -> list[Array]:
    """Return ``r`` with the Householder vectors below its diagonal, and their factors, as LAPACK's geqrf."""
    a_scaled, scale = scaled(a)
    r, taus = _reflected(a_scaled)
    return [_unscaled(r, scale), taus]


def _reflected(a: Array) -> list[Array]:
    """Return what the columns become, and the factors; of matrices that one tile each has done sooner, as a composite."""
    *batch, m, n = a.shape
    if a.dtype == jnp.float32 and n <= m and a.size and _suits_one_tile(QR_COMPOSITE, batch, m):
        return list(lax.composite(reflected_by_columns, QR_COMPOSITE)(a))
    if min(m, n) >= REFLECTED_BY_BLOCKS_FROM and math.prod(batch) == 1:
        return [x.reshape(*batch, *x.shape) for x in reflected_by_blocks(a.reshape(m, n))]
    return reflected_by_columns(a)


def reflected_by_columns(a: Array) -> list[Array]:
    """Return what ``_reflected`` does, as a loop over columns."""
    count = min(a.shape[-2:])
    taus = jnp.zeros((*a.shape[:-2], count), a.dtype)
    return list(lax.fori_loop(0, count, lambda k, state: _reflect(k, *state), (a, taus)))


REFLECTED_BY_BLOCKS_FROM = 384
"""Columns from which on columns of one matrix are reflected by blocks: 256 take 2.26 million cycles of a gc200 by columns and 2.07 by
blocks, 512 take 5.38 or 4.56, 1,024 take 17.3 or 9.75."""


def reflected_by_blocks(a: Array, block: int = BLOCK) -> list[Array]:
    """Return what ``_reflected`` does of one matrix ``[m, n]``: ``block`` columns are cleared, then those behind reflected.

    As LAPACK's geqrf, by the compact form of the block's reflections (see ``householder_product``).
    """
    m, n = a.shape
    count = min(m, n)
    size = -(-count // block) * block
    a = jnp.pad(a, ((0, max(m, size) - m), (0, max(n, size) - n)))
    row, column = indices(a)
    place = jnp.arange(block)[None, :]

    def clear(number: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, taus = state
        first = number * block

        def step(j: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            return _reflect(first + j, *state, j, first + j < count)

        panel = lax.dynamic_slice_in_dim(a, first, block, 1)
        panel, own = lax.fori_loop(0, block, step, (panel, jnp.zeros(block, a.dtype)))
        vectors, inverse = _compact(panel, own, row - first, place)
        met = matmul(adjoint(vectors), a)
        applied = lax.linalg.triangular_solve(
            inverse, met, left_side=True, lower=False, transpose_a=True, conjugate_a=True
        )
        is_behind = column >= first + block
        a = jnp.where(is_behind, a - matmul(vectors, jnp.where(is_behind, applied, 0)), a)
        a = lax.dynamic_update_slice_in_dim(a, panel, first, 1)
        return a, lax.dynamic_update_slice_in_dim(taus, own, first, 0)

    a, taus = lax.fori_loop(0, size // block, clear, (a, jnp.zeros(size, a.dtype)))
    return [a[:m, :n], taus[:count]]


def _compact(a: Array, taus: Array, row: Array, column: Array) -> tuple[Array, Array]:
    """Return reflections as ``(V, inv(T))`` of ``1 - V T V^H``.

    Args:
      a: has their vectors below its diagonal, ``[..., m, count]``.
      taus: their factors; of one that changes nothing 0.
      row: numbers of rows, ``[m, 1]``.
      column: of columns, ``[1, count]``; the diagonal is where both are equal.
    """
    is_used = (taus != 0)[..., None, :]
    vectors = jnp.where(row > column, a, jnp.where(row == column, 1, 0))
    vectors = jnp.where(is_used, vectors, 0).astype(a.dtype)
    inverse = matmul(adjoint(vectors), vectors)
    diagonal = jnp.where(is_used, 1 / jnp.where(is_used, taus[..., None, :], 1), 1)
    inner_row, inner_column = indices(inverse)
    return vectors, jnp.where(inner_row == inner_column, diagonal, inverse)


def geqp3(a: Array, columns: Array, *, use_magma: bool | None = None) -> list[Array]:
    """Return ``r`` and vectors of ``a`` with its columns exchanged, the column numbers from 1, and the factors.

    Each step takes the column of the largest remaining norm. Columns fixed in advance are not supported:
    ``columns`` is not read, and JAX passes zeros.
    """
    del use_magma
    a_scaled, scale = scaled(a)
    row, column = indices(a)
    count = min(a.shape[-2:])

    def step(k: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        a, taus, order = state
        norms = jnp.sum(jnp.where(row >= k, squares(a), 0), -2, keepdims=True)
        chosen = jnp.argmax(jnp.where(column >= k, norms, -1), axis=-1, keepdims=True).astype(jnp.int32)

        def exchanged(x: Array) -> Array:
            first, second = picked(x, column == k, -1), picked(x, column == chosen, -1)
            return jnp.where(column == k, second, jnp.where(column == chosen, first, x))

        a, taus = _reflect(k, exchanged(a), taus)
        return a, taus, exchanged(order)

    numbers = jnp.arange(1, a.shape[-1] + 1, dtype=columns.dtype)
    order = jnp.broadcast_to(numbers, (*a.shape[:-2], 1, a.shape[-1]))
    taus = jnp.zeros((*a.shape[:-2], count), a.dtype)
    r, taus, order = lax.fori_loop(0, count, step, (a_scaled, taus, order))
    return [_unscaled(r, scale), order[..., 0, :], taus]


def _unscaled(r: Array, scale: Array) -> Array:
    """Scale the triangle back; the vectors below it have no scale."""
    row, column = indices(r)
    return jnp.where(row <= column, r * scale, r)


def householder_product(a: Array, taus: Array) -> Array:
    """Return the first columns of the product of Householder reflections, as LAPACK's orgqr.

    By the compact form ``I - V T V^H``, where ``inv(T)`` is the upper triangle of ``V^H V`` with ``1 / tau`` on its
    diagonal (Schreiber and Van Loan, A storage-efficient WY representation, SIAM J. Sci. Stat. Comput. 10, 1989).
    """
    m, n = a.shape[-2:]
    count = taus.shape[-1]
    vectors, inverse = _compact(a[..., :count], taus, *indices(a[..., :count]))
    applied = lax.linalg.triangular_solve(inverse, adjoint(vectors), left_side=True, lower=False)
    return jnp.eye(m, n, dtype=a.dtype) - matmul(vectors, applied[..., :n])


# ---- Jacobi iterations


def _rotations(app: Array, aqq: Array, apq: Array) -> Array:
    """Return the matrix that rotates each pair of columns (k, h + k), and then pairs them anew.

    The rotation makes ``[[app, apq], [conj(apq), aqq]]`` diagonal (Golub and Van Loan, Matrix Computations, 8.5.2),
    after columns rotated by the phase of ``apq`` made that real.
    Pairs change as players do in a tournament: one stays, the others move on (Brent and Luk, SIAM J. Sci. Stat.
    Comput. 6, 1985), so that after ``2 h - 1`` rounds all have met and stand where they stood.

    Args:
      app: ``[..., h]``, real.
      aqq: ``[..., h]``, real.
      apq: ``[..., h]``.
    """
    half = apq.shape[-1]
    size, phase = _polar(apq)
    is_zero = size == 0
    tau = (aqq - app) / jnp.where(is_zero, 1, 2 * size)
    tangent = jnp.where(tau < 0, -1, 1) / (jnp.abs(tau) + jnp.sqrt(1 + tau * tau))
    tangent = jnp.where(is_zero, 0, tangent)
    cosine = lax.rsqrt(1 + tangent * tangent)
    sine = cosine * tangent
    cosines = jnp.concatenate([cosine, cosine], -1)[..., None]
    sines = jnp.concatenate([sine * phase, -sine * phase.conj()], -1)[..., None]
    row, column = jnp.arange(2 * half)[:, None], jnp.arange(2 * half)[None, :]
    came = jnp.where(column < half, column - 1, column + 1)
    came = jnp.where(column == 1, half, jnp.where(column == 2 * half - 1, half - 1, came))
    came = jnp.where(column == 0, 0, came) if half > 1 else column
    is_same = (row < half) == (came < half)
    return jnp.where(row % half == came % half, jnp.where(is_same, cosines, sines), 0)


def _polar(x: Array) -> tuple[Array, Array]:
    """Return real numbers and phases whose products ``x`` are: of real numbers themselves, and 1."""
    if not jnp.iscomplexobj(x):
        return x, jnp.ones_like(x)
    size = jnp.abs(x)
    return size, jnp.where(size == 0, 1, x / jnp.where(size == 0, 1, size))


def _sweep(
    rotate: Callable[[Array, Array], tuple[Array, Array]],
    distance: Callable[[Array], Array],
    a: Array,
    v: Array,
) -> tuple[Array, Array]:
    """Turn ``(a, v)`` in sweeps, until one begins so near the end that it is the last.

    Args:
      rotate: one round.
      distance: how far a matrix is from the end, as a share of its size.
      a: square matrices of an even size.
      v: what is rotated with them.
    """
    near = float(jnp.finfo(a.dtype).eps) ** 0.5 / 8  # convergence is quadratic, so the next sweep ends

    def goes_on(state: tuple[Array, Array, Array, Array]) -> Array:
        number, before = state[:2]
        return (number < MAX_SWEEPS) & (before > near)

    def sweep(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        number, _, a, v = state
        before = distance(a)
        a, v = lax.fori_loop(0, a.shape[-1] - 1, lambda _, pair: rotate(*pair), (a, v))
        return number + 1, before, a, v

    start = (jnp.int32(0), jnp.array(jnp.inf, a.real.dtype), a, v)
    return lax.while_loop(goes_on, sweep, start)[2:]


def _evened(a: Array) -> Array:
    """Append a row and a column of zeros where the size is odd."""
    odd = a.shape[-1] % 2
    return jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, odd)] * 2)


def _ascending(keys: Array) -> Array:
    """Return the matrices ``[..., n, n]`` of zeros and ones that, from the right, put columns in order of keys.

    A product with one moves columns between tiles as contractions do; equal keys keep their order.
    Where a key is NaN everything is, as it is in LAPACK's results.
    """
    number = jnp.arange(keys.shape[-1])
    mine, other = keys[..., :, None], keys[..., None, :]
    is_before = (other < mine) | ((other == mine) & (number[None, :] < number[:, None]))
    rank = jnp.sum(is_before.astype(jnp.int32), -1)
    order = (rank[..., None] == number).astype(keys.dtype)
    return jnp.where(jnp.any(keys != keys, -1)[..., None, None], jnp.nan, order)


def eigh(
    a: Array,
    *,
    lower: bool,
    sort_eigenvalues: bool,
    subset_by_index: tuple[int, int] | None,
    algorithm: object,
) -> list[Array]:
    """Return eigenvectors and ascending eigenvalues of symmetric or Hermitian matrices by Jacobi's method.

    Pairs of rows and columns that do not meet are rotated at the same time, by contractions.
    """
    del sort_eigenvalues, algorithm
    n = a.shape[-1]
    if 0 in a.shape:
        return [a, jnp.zeros(a.shape[:-1], a.real.dtype)]
    row, column = indices(a)
    symmetric = jnp.where((row >= column) if lower else (row <= column), a, adjoint(a))
    symmetric = jnp.where(row == column, a.real, symmetric)
    a_scaled, scale = scaled(symmetric)
    even = _evened(a_scaled)
    row, column = indices(even)
    half = even.shape[-1] // 2

    def rotate(a: Array, v: Array) -> tuple[Array, Array]:
        diagonal = jnp.sum(jnp.where(row == column, a.real, 0), -1)
        pairs = jnp.sum(jnp.where(row + half == column, a, 0), -1)
        rotation = _rotations(diagonal[..., :half], diagonal[..., half:], pairs[..., :half])
        return matmul(adjoint(rotation), matmul(a, rotation)), matmul(v, rotation)

    def distance(a: Array) -> Array:
        sizes = squares(a)
        off = jnp.sum(jnp.where(row == column, 0, sizes), (-2, -1))
        return jnp.max(jnp.sqrt(off / jnp.maximum(jnp.sum(sizes, (-2, -1)), jnp.finfo(a.dtype).tiny)))

    identity = jnp.broadcast_to((row == column).astype(a.dtype), even.shape)
    _, vectors = _sweep(rotate, distance, even, identity)
    # Rayleigh's quotients: what hundreds of rotations rounded is in the vectors, and squared in these
    products = jnp.sum((vectors.conj() * matmul(even, vectors)).real, -2)
    values = (products / jnp.sum(squares(vectors), -2))[..., :n]
    order = _ascending(values)
    values = jnp.sum(order * values[..., None], -2) * scale[..., 0]
    vectors = matmul(vectors[..., :n, :n], order)
    first, last = subset_by_index or (0, n)
    return [vectors[..., first:last], values[..., first:last]]


def svd(
    a: Array,
    *,
    full_matrices: bool,
    compute_uv: bool,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: object = None,
) -> list[Array]:
    """Return descending singular values, and the vectors if asked, by one-sided Jacobi iterations.

    Columns are rotated in pairs until they are orthogonal (Hestenes, J. SIAM 6, 1958); a QR decomposition before
    makes them square, and one after makes what is left of small ones orthonormal.
    """
    m, n = a.shape[-2:]
    if 0 in a.shape:
        return _svd_of_nothing(a, full_matrices, compute_uv, subset_by_index)
    if m < n:
        values, *vectors = svd(
            adjoint(a), full_matrices=full_matrices, compute_uv=compute_uv, subset_by_index=subset_by_index
        )
        return [values, *map(adjoint, reversed(vectors))]
    a_scaled, scale = scaled(a)
    outer, square = None, a_scaled
    if m > n:
        outer, triangle = jnp.linalg.qr(a_scaled, mode="complete" if full_matrices else "reduced")
        square = triangle[..., :n, :]
    rotated, right = _orthogonal_columns(square)
    values = jnp.sqrt(jnp.sum(squares(rotated), -2))
    order = _ascending(-values)
    values = jnp.sum(order * values[..., None], -2) * scale[..., 0]
    first, last = subset_by_index or (0, n)
    if not compute_uv:
        return [values[..., first:last]]
    left, r = jnp.linalg.qr(matmul(rotated, order))
    row, column = indices(r)
    diagonal = jnp.sum(jnp.where(row == column, r.real, 0), -2, keepdims=True)
    left = left * jnp.where(diagonal < 0, -1, 1).astype(a.dtype)
    if outer is not None:
        left = jnp.concatenate([matmul(outer[..., :n], left), outer[..., n:]], -1)
    right = adjoint(matmul(right, order))
    if subset_by_index is not None and not full_matrices:
        left, right = left[..., first:last], right[..., first:last, :]
    return [values[..., first:last], left, right]


def _svd_of_nothing(
    a: Array, full_matrices: bool, compute_uv: bool, subset_by_index: tuple[int, int] | None
) -> list[Array]:
    """Return what ``svd`` does of no matrices, or of matrices without elements: any vectors are theirs."""
    *batch, m, n = a.shape
    count = min(m, n) if subset_by_index is None else subset_by_index[1] - subset_by_index[0]
    values = jnp.zeros((*batch, count), a.real.dtype)
    sizes = ((m, m), (n, n)) if full_matrices else ((m, count), (count, n))
    vectors = [jnp.broadcast_to(jnp.eye(*size, dtype=a.dtype), (*batch, *size)) for size in sizes]
    return [values, *vectors] if compute_uv else [values]


def _orthogonal_columns(square: Array) -> tuple[Array, Array]:
    """Return square matrices with their columns rotated until they are orthogonal, and the rotation."""
    n = square.shape[-1]
    even = _evened(square)
    half = even.shape[-1] // 2
    row, column = indices(even)

    def rotate(a: Array, v: Array) -> tuple[Array, Array]:
        sizes = jnp.sum(squares(a), -2)
        products = jnp.sum(a[..., :half].conj() * a[..., half:], -2)
        rotation = _rotations(sizes[..., :half], sizes[..., half:], products)
        return matmul(a, rotation), matmul(v, rotation)

    def distance(a: Array) -> Array:
        products = matmul(adjoint(a), a)
        off = jnp.max(jnp.where(row == column, 0, jnp.abs(products)), (-2, -1))
        size = jnp.max(jnp.where(row == column, products.real, 0), (-2, -1))
        return jnp.max(off / jnp.maximum(size, jnp.finfo(a.dtype).tiny))

    identity = jnp.broadcast_to((row == column).astype(square.dtype), even.shape)
    rotated, rotation = _sweep(rotate, distance, even, identity)
    return rotated[..., :n, :n], rotation[..., :n, :n]


RULES: dict[str, Callable[..., Sequence[Array] | Array]] = {
    "lu": lu,
    "geqrf": geqrf,
    "geqp3": geqp3,
    "householder_product": householder_product,
    "eigh": eigh,
    "svd": svd,
}
"""What replaces each of JAX's primitives on an IPU, by its name."""
