"""The codelets of small dense factorizations: Cholesky and the solution of triangular systems.

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
from tiles.errors import InvalidGraph
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
    along,
    register,
    site_of,
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


@register
@dataclass(frozen=True)
class Cholesky(Codelet):
    """Factor symmetric positive definite matrices: the lower ``l`` with ``l @ l.T`` the matrix.

    The domain's last two dimensions are a matrix's row and column, the others are batches. Only the lower
    triangle is read; above the diagonal the result is zero. The factor of a matrix that is not positive
    definite is NaN.

    Args:
      dtype: float32 or float64.
    """

    name: ClassVar[str] = "poplin.Cholesky"

    dtype: str

    def __post_init__(self) -> None:
        """Check the dtype."""
        _require_dtype(self.dtype)

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
            root = jnp.sqrt(jnp.where(pivot > 0, pivot, nan))
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

    def flops(self, extents: Extents) -> np.ndarray:
        """Count a third of the cube of each matrix's size."""
        return np.asarray(extents.points * extents.sizes[-1] // 3)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep matrices whole."""
        return d < len(form.dims) - 2

    def may_overwrite(self, k: int) -> bool:
        """A matrix is factored in place."""
        return k == 0


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
