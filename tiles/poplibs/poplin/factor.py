"""The codelets of small dense factorizations: LU, Cholesky and the solution of triangular systems.

A matrix is factored, and a right-hand side solved for, by one vertex; batches of matrices and right-hand sides
are spread over the tiles. Large matrices are for blocked algorithms built on these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcasted_iota, fori_loop
from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import (
    REDUCTION,
    Cell,
    Codelet,
    Cycles,
    Dim,
    Extents,
    Graph,
    IndexMap,
    OpForm,
    Plan,
    Site,
    Tensor,
    VertexCode,
    along,
    code_cycles,
    identity_map,
    register,
    site_of,
)
from tiles.poplibs.poplin.factor_code import (
    cholesky_code,
    eliminated,
    lu_code,
    qr_code,
    reflected_by,
    root_of,
    solve_code,
)
from tiles.poplibs.popops.elementwise_cycles import cpp_name
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/poplin/codelets/poplinCycleEstimators.cpp: {}"
DTYPES = ("float32", "float64")


def _require_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise InvalidGraph(f"no factorization of {dtype}", expected=" or ".join(DTYPES), got=dtype)


def _basis(dtype: str) -> Basis:
    """PopLibs' estimates are of float32 vertices; wider floats are emulated."""
    return Basis.DOCUMENTED if dtype == "float32" else Basis.ASSUMED


@dataclass(frozen=True)
class _Factorization(Codelet):
    """A codelet of whole matrices, one after the other: the domain's last two dimensions are row and column.

    Args:
      dtype: float32 or float64.
    """

    dtype: str

    def __post_init__(self) -> None:
        """Check the dtype."""
        _require_dtype(self.dtype)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep matrices whole."""
        return d < len(form.dims) - 2

    def may_overwrite(self, k: int) -> bool:
        """A matrix is factored in place."""
        return k == 0


@register
@dataclass(frozen=True)
class Cholesky(_Factorization):
    """Factor symmetric positive definite matrices: the lower ``l`` with ``l @ l.T`` the matrix.

    The domain's last two dimensions are a matrix's row and column, the others are batches. Only the lower
    triangle is read; above the diagonal the result is zero. The factor of a matrix that is not positive
    definite is NaN.

    Args:
      dtype: float32 or float64.
    """

    name: ClassVar[str] = "poplin.Cholesky"

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """That of the matrix."""
        return (self.dtype,)

    @property
    def label(self) -> str:
        """Vertex type as PopLibs spells it."""
        return f"poplin::Cholesky<{cpp_name(self.dtype)},true>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the factors of the cell's matrices, column after column."""
        a = cell.align(0, operands[0])
        n = a.shape[-1]
        row, column = (broadcasted_iota(jnp.int32, (n, n), axis) for axis in (0, 1))
        nan = np.array(np.nan, a.dtype)

        def step(j: Any, factor: Array) -> Array:
            """Subtract what the columns before contribute to column j, and scale it."""
            known = lax.dynamic_slice_in_dim(factor, j, 1, a.ndim - 2)
            rest = lax.dynamic_slice_in_dim(a, j, 1, a.ndim - 1)
            rest = rest - jnp.sum(factor * known, axis=-1, keepdims=True)
            pivot = lax.dynamic_slice_in_dim(rest, j, 1, a.ndim - 2)
            root = root_of(pivot)
            new = jnp.where(row[:, :1] > j, rest / root, jnp.where(row[:, :1] == j, root, 0))
            return lax.dynamic_update_slice_in_dim(factor, new, j, a.ndim - 1)

        factor = fori_loop(0, n, step, jnp.zeros(a.shape, a.dtype))
        last = factor[..., -1:, -1:]  # NaN if any pivot was not positive
        factor = jnp.where(row >= column, jnp.where(last == last, factor, nan), 0)
        wanted = cell.form.results[0].dims
        return (lax.transpose(factor, wanted),)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return PopLibs' estimate per matrix, matrices shared out to the workers."""
        n = np.asarray(extents.sizes[-1], np.int64)
        each = n**3 + 102 * n**2 + 101 * n + 102
        rounds = -(-(extents.points // np.maximum(n * n, 1)) // target.workers_per_tile)
        return Cycles(each * rounds, _basis(self.dtype), SOURCE.format("Cholesky"))

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of matrices of words, one after the other."""
        return cholesky_code(self.dtype, extents, target, self.label)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count a third of the cube of each matrix's size."""
        return np.asarray(extents.points * extents.sizes[-1] // 3)


@register
@dataclass(frozen=True)
class Lu(_Factorization):
    """Factor square matrices by Gaussian elimination with partial pivoting, as LAPACK's getrf.

    Results are both factors in one matrix, the row that each row was exchanged with, one after the other, and the row
    that came to each place by that. The domain's last two dimensions are a matrix's row and column, the others are
    batches. A zero pivot leaves its column alone, and what is not a number is larger than any.

    Args:
      dtype: float32 or float64.
    """

    name: ClassVar[str] = "poplin.Lu"

    @property
    def label(self) -> str:
        """Vertex type; PopLibs has none."""
        return f"poplin::Lu<{cpp_name(self.dtype)}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return what the cell's matrices become, column after column."""
        a = operands[0]
        n = a.shape[-1]
        row, column = lax.iota(jnp.int32, n)[:, None], lax.iota(jnp.int32, n)[None]

        def picked(x: Array, where: Array, axis: int) -> Array:
            return jnp.sum(jnp.where(where, x, 0), axis, keepdims=True).astype(x.dtype)

        def step(k: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            """Exchange row k with that of the largest element in column k, and take it out of those below."""
            a, pivots, permutation = state
            here = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 1)
            sizes = jnp.concatenate([jnp.abs(here), jnp.zeros_like(here)], -2)
            sizes = lax.dynamic_slice_in_dim(sizes, k, n, a.ndim - 2)
            chosen = k + jnp.argmax(sizes, -2, keepdims=True).astype(jnp.int32)
            upper, current = picked(a, row == chosen, -2), lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 2)
            exchanged = jnp.where(row == k, upper, jnp.where(row == chosen, current, a))
            below, above = lax.dynamic_slice_in_dim(exchanged, k, 1, a.ndim - 1), upper
            factor, rest = eliminated(below, picked(upper, column == k, -1), exchanged, above)
            rest = jnp.where(column == k, factor, rest)
            a = jnp.where((row > k) & (column >= k), rest, exchanged)
            number, place = row[:, 0], chosen[..., 0]
            moved = picked(permutation, number == place, -1)
            last = lax.dynamic_slice_in_dim(permutation, k, 1, permutation.ndim - 1)
            permutation = jnp.where(number == place, last, permutation)
            permutation = jnp.where(number == k, moved, permutation)
            return a, jnp.where(number == k, place, pivots), permutation

        pivots = jnp.zeros(a.shape[:-1], jnp.int32)
        permutation = jnp.broadcast_to(row[:, 0], pivots.shape)
        return tuple(fori_loop(0, n, step, (a, pivots, permutation)))

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the cycles of the code; where there is none, of as many operations a worker, a slot each (ASSUMED)."""
        try:
            return code_cycles(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            n = np.asarray(extents.sizes[-1], np.int64)
            slots = 4 * n**3 // (3 * target.workers_per_tile) + 50 * n**2
            value = target.worker_issue_interval_cycles * slots * (extents.points // np.maximum(n * n, 1))
            return Cycles(value, Basis.ASSUMED, "loops over rows of a column, shared by the workers")

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of matrices of words, one after the other."""
        return lu_code(self.dtype, extents, target, self.label)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count two thirds of the cube of each matrix's size."""
        return np.asarray(2 * extents.points * extents.sizes[-1] // 3)


@register
@dataclass(frozen=True)
class Qr(_Factorization):
    """Reflect the columns of matrices one after the other onto a triangle, as LAPACK's geqrf.

    Results are the triangle with the reflections' vectors below it, whose first elements are 1, and the reflections' factors.
    The domain's last two dimensions are a matrix's row and column, no fewer rows; the others are batches.

    Args:
      dtype: float32 or float64.
    """

    name: ClassVar[str] = "poplin.Qr"

    @property
    def label(self) -> str:
        """Vertex type; PopLibs has none."""
        return f"poplin::Qr<{cpp_name(self.dtype)}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return what the cell's matrices become, column after column."""
        a = operands[0]
        m, n = a.shape[-2:]
        row, column = lax.iota(jnp.int32, m)[:, None], lax.iota(jnp.int32, n)[None]

        def step(k: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
            """Reflect column k, and those behind it by the same."""
            a, taus = state
            here = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 1)
            alpha = lax.dynamic_slice_in_dim(here, k, 1, a.ndim - 2)
            rest = jnp.sum(jnp.where(row > k, here * here, 0), -2, keepdims=True)
            beta, tau, divisor = reflected_by(alpha, rest)
            below = jnp.where(row > k, here / divisor, 0)
            vector = jnp.where(row == k, 1, below).astype(a.dtype)
            # The first element counts as 1 and is multiplied by nothing.
            above = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 2)
            share = tau * (above + jnp.sum(jnp.where(row > k, vector * a, 0), -2, keepdims=True))
            changed = jnp.where(row == k, a - share, a - vector * share)
            stored = jnp.where(row == k, beta, below)
            new = jnp.where(column == k, stored, changed)
            a = jnp.where((row >= k) & (column >= k), new, a)
            number = lax.iota(jnp.int32, n)
            return a, jnp.where(number == k, tau[..., 0], taus)

        taus = jnp.zeros((*a.shape[:-2], n), a.dtype)
        return tuple(fori_loop(0, n, step, (a, taus)))

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the cycles of the code; where there is none, of as many operations a worker, a slot each (ASSUMED)."""
        try:
            return code_cycles(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            m, n = (np.asarray(size, np.int64) for size in extents.sizes[-2:])
            slots = 7 * m * n * n // target.workers_per_tile + 50 * n * n
            value = target.worker_issue_interval_cycles * slots * (extents.points // np.maximum(m * n, 1))
            return Cycles(value, Basis.ASSUMED, "loops over columns, shared by the workers")

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of matrices of words, one after the other."""
        return qr_code(self.dtype, extents, target, self.label)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count two operations an element for every column."""
        return np.asarray(2 * extents.points * extents.sizes[-1])


@register
@dataclass(frozen=True)
class TriangularSolve(Codelet):
    """Solve triangular systems ``a @ x == b`` for each column of ``b``.

    The domain's last three dimensions are the right-hand sides, the unknowns and, reduced, the columns of the
    matrix; the others are batches. Only the triangle named is read.

    Args:
      dtype: float32 or float64.
      is_lower: whether the matrix, as the form maps it, is lower triangular.
      is_unit: whether its diagonal is taken to be one and not read.
    """

    name: ClassVar[str] = "poplin.TriangularSolve"

    dtype: str
    is_lower: bool
    is_unit: bool = False

    def __post_init__(self) -> None:
        """Check the dtype."""
        _require_dtype(self.dtype)

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """That of the matrix."""
        return (self.dtype,)

    @property
    def label(self) -> str:
        """Vertex type as PopLibs spells it."""
        return f"poplin::TriangularSolve<{cpp_name(self.dtype)},{str(self.is_lower).lower()}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's unknowns, one after the other."""
        a = cell.align(0, operands[0])
        b = lax.squeeze(cell.align(1, operands[1]), [len(cell.sizes) - 1])
        n = a.shape[-1]
        position = lax.iota(jnp.int32, n)

        def step(count: Any, x: Array) -> Array:
            """Solve for unknown i, of which the known ones take their share."""
            i = count if self.is_lower else n - 1 - count
            equation = jnp.squeeze(lax.dynamic_slice_in_dim(a, i, 1, a.ndim - 2), -2)
            is_known = position < i if self.is_lower else position > i
            known = jnp.where(is_known, equation, 0)
            share = jnp.matmul(x, jnp.swapaxes(known, -1, -2), precision=lax.Precision.HIGHEST)
            value = lax.dynamic_slice_in_dim(b, i, 1, b.ndim - 1) - share
            if not self.is_unit:
                value = value / lax.dynamic_slice_in_dim(equation, i, 1, equation.ndim - 1)
            return lax.dynamic_update_slice_in_dim(x, value, i, x.ndim - 1)

        x = fori_loop(0, n, step, jnp.zeros(b.shape, b.dtype))
        return (lax.transpose(x, cell.form.results[0].dims),)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return PopLibs' estimate per right-hand side, which the workers share out."""
        n = np.asarray(extents.sizes[-1], np.int64)
        each = (3 * n**2 + 360 * n - 252) // 2 if self.is_lower else (27 * n**2 + 654 * n + 216) // 4
        columns = extents.results // np.maximum(n, 1)
        rounds = -(-columns // target.workers_per_tile)
        return Cycles(np.maximum(each, 1) * rounds, _basis(self.dtype), SOURCE.format("TriangularSolve"))

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of systems of words, one after the other; right-hand sides lie side by side."""
        return solve_code(self.dtype, self.is_lower, self.is_unit, extents, target, self.label)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count a multiply-add per element of the triangle and right-hand side."""
        return np.asarray(extents.points)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep matrices whole."""
        return d < len(form.dims) - 2


def cholesky(where: Graph | Site, a: Tensor, is_lower: bool = True, plan: Plan | None = None) -> Tensor:
    """Factor a batch of matrices; see ``Cholesky``.

    Args:
      where: graph, or site in it, to add to.
      a: ``[..., n, n]``.
      is_lower: whether the lower triangle is read and ``l`` returned; else the upper one, and ``l.T``.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: no square matrices, or another dtype.
    """
    site = site_of(where, "cholesky")
    _require_square(a)
    rank = len(a.shape)
    order = _matrix_axes(rank - 2, (rank - 2, rank - 1), is_lower)
    form = OpForm(tuple(Dim(f"d{i}", n) for i, n in enumerate(a.shape)), (order,), (order,))
    codelet = Cholesky(a.dtype)
    return place(site, codelet, form, [a], (a.dtype,), plan=plan)[0]


def lu(where: Graph | Site, a: Tensor, plan: Plan | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Factor a batch of matrices with partial pivoting; see ``Lu``.

    Args:
      where: graph, or site in it, to add to.
      a: ``[..., n, n]``.
      plan: use this plan instead of searching.

    Returns:
      Factors ``[..., n, n]``, pivots and permutation, int32 ``[..., n]``.

    Raises:
      InvalidGraph: no square matrices, or another dtype.
    """
    site = site_of(where, "lu")
    _require_square(a)
    rank = len(a.shape)
    whole = identity_map(rank)
    rows = IndexMap(whole.axes[:-1])
    form = OpForm(tuple(Dim(f"d{i}", n) for i, n in enumerate(a.shape)), (whole,), (whole, rows, rows))
    factors, pivots, permutation = place(site, Lu(a.dtype), form, [a], (a.dtype, "int32", "int32"), plan=plan)
    return factors, pivots, permutation


def qr(where: Graph | Site, a: Tensor, plan: Plan | None = None) -> tuple[Tensor, Tensor]:
    """Reflect the columns of a batch of matrices onto triangles; see ``Qr``.

    Args:
      where: graph, or site in it, to add to.
      a: ``[..., m, n]`` with n at most m.
      plan: use this plan instead of searching.

    Returns:
      Triangles with vectors below them ``[..., m, n]``, and factors ``[..., n]``.

    Raises:
      InvalidGraph: matrices of fewer rows than columns, or another dtype.
    """
    site = site_of(where, "qr")
    if len(a.shape) < 2 or a.shape[-2] < a.shape[-1]:
        raise InvalidGraph(
            f"expected at least as many rows as columns, got {a.name} of shape {list(a.shape)}"
        )
    rank = len(a.shape)
    whole = identity_map(rank)
    columns = IndexMap((*whole.axes[:-2], whole.axes[-1]))
    form = OpForm(tuple(Dim(f"d{i}", n) for i, n in enumerate(a.shape)), (whole,), (whole, columns))
    factors, taus = place(site, Qr(a.dtype), form, [a], (a.dtype, a.dtype), plan=plan)
    return factors, taus


def triangular_solve(
    where: Graph | Site,
    a: Tensor,
    b: Tensor,
    *,
    is_left: bool = True,
    is_lower: bool = True,
    is_unit: bool = False,
    is_transposed: bool = False,
    plan: Plan | None = None,
) -> Tensor:
    """Solve ``op(a) @ x == b``, or ``x @ op(a) == b``, for triangular matrices.

    Args:
      where: graph, or site in it, to add to.
      a: ``[..., n, n]``.
      b: ``[..., n, m]``, or ``[..., m, n]`` where the unknown stands on the left.
      is_left: whether ``a`` stands on the left.
      is_lower: whether the lower triangle of ``a`` is read.
      is_unit: whether the diagonal is taken to be one.
      is_transposed: whether ``op`` transposes.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: shapes or dtypes that do not belong together.
    """
    site = site_of(where, "triangular_solve")
    _require_square(a)
    n, rank = a.shape[-1], len(a.shape)
    fits = len(b.shape) == rank and b.shape[:-2] == a.shape[:-2] and b.shape[-2 if is_left else -1] == n
    if not fits or a.dtype != b.dtype:
        raise InvalidGraph(f"{b.name} of {b.dtype}{list(b.shape)} is no right-hand side for {list(a.shape)}")
    columns, unknowns, terms = rank - 2, rank - 1, rank
    dims = [Dim(f"d{i}", size) for i, size in enumerate(a.shape[:-2])]
    dims += [Dim("columns", b.shape[-1 if is_left else -2]), Dim("unknowns", n), Dim("terms", n, REDUCTION)]
    as_it_is = is_left != is_transposed
    matrix = _matrix_axes(rank - 2, (unknowns, terms), as_it_is)
    sides = _matrix_axes(rank - 2, (unknowns, columns), is_left)
    form = OpForm(tuple(dims), (matrix, sides), (sides,))
    codelet = TriangularSolve(a.dtype, is_lower == as_it_is, is_unit)
    return place(site, codelet, form, [a, b], (a.dtype,), plan=plan)[0]


def _matrix_axes(num_batch: int, matrix: Sequence[int], as_it_is: bool) -> IndexMap:
    """Return the map of a batch of matrices along two dimensions, in their order or transposed."""
    ordered = matrix if as_it_is else matrix[::-1]
    return IndexMap(tuple(along(d) for d in (*range(num_batch), *ordered)))


def _require_square(a: Tensor) -> None:
    if len(a.shape) < 2 or a.shape[-1] != a.shape[-2]:
        raise InvalidGraph(f"expected square matrices, got {a.name} of shape {list(a.shape)}")
