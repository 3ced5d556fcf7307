"""Factorizations of dense matrices: Cholesky, LU, and the solution of triangular systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes._jax_compat import broadcasted_iota, fori_loop
from hlo_passes.ir.op import FusionCategory, Op
from hlo_passes.ir.types import TensorType
from hlo_passes.ops.elementwise import INEXACT

TRANSPOSES = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")


def _require_float(op: Op, tag: str, operand: TensorType) -> None:
    op.require(
        tag, operand.dtype in INEXACT, lambda: f"expected an element type of {sorted(INEXACT)}: {operand}"
    )


def _require_square(op: Op, tag: str, a: TensorType) -> None:
    square = a.rank >= 2 and a.shape[-1] == a.shape[-2]
    op.require(tag, square, lambda: f"expected square matrices, got {a}")


def _float_matrices(op: Op, operands: Sequence[TensorType]) -> TensorType:
    """Return the type of the only operand: matrices of f32."""
    op.require_arity(operands, 1)
    (a,) = operands
    op.require("I1", a.dtype == "f32", lambda: f"expected f32, got {a}")
    op.require("C1", a.rank >= 2, lambda: f"expected at least 2 dimensions, got {a}")
    return a


def _wide(x: Array) -> Array:
    """Return floats of fewer than 32 bits as float32, in which they are computed with."""
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


@dataclass(frozen=True)
class Cholesky(Op):
    """Factor symmetric positive definite matrices: ``l`` with ``l @ l.T == a``, or ``u`` with ``u.T @ u == a``.

    Of complex numbers: Hermitian ones, and conjugate transposes.

    Spec: StableHLO "cholesky", constraints C1-C3. What the specification leaves open: the triangle that is not
    asked for is zero, and the factor of a matrix that is not positive definite is NaN, as in XLA.
    """

    name: ClassVar[str] = "stablehlo.cholesky"
    lower: bool = False

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type."""
        self.require_arity(operands, 1)
        (a,) = operands
        _require_float(self, "I1", a)
        self.require("C2", a.rank >= 2, lambda: f"expected at least 2 dimensions, got {a}")
        _require_square(self, "C3", a)
        return operands

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Take one column after the other out of what is left of the matrix."""
        a = _wide(operands[0] if self.lower else operands[0].mT.conj())
        n = a.shape[-1]
        row, column = (broadcasted_iota(jnp.int32, (n, n), axis) for axis in (0, 1))

        def step(j: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            rest, factor = state
            pivot = jnp.sum(jnp.where((row == j) & (column == j), rest.real, 0), (-2, -1), keepdims=True)
            root = jnp.sqrt(jnp.where(pivot > 0, pivot, np.array(np.nan, pivot.dtype)))
            below = jnp.sum(jnp.where((row > j) & (column == j), rest, 0), -1, keepdims=True)
            new = jnp.where(row[:, :1] == j, root, jnp.where(row[:, :1] > j, below / root, 0))
            rest = jnp.where((row > j) & (column > j), rest - new * new.mT.conj(), 0 * rest)
            return rest, jnp.where(column == j, new, factor)

        if not n:
            return operands
        start = jnp.where(row >= column, a, 0)
        _, factor = fori_loop(0, n, step, (start, jnp.zeros_like(a)))
        last = factor[..., -1:, -1:]  # NaN if any pivot was not positive
        filled = jnp.where(last == last, factor, np.array(np.nan, a.dtype))
        factor = jnp.where(row >= column, filled, 0).astype(operands[0].dtype)
        return (factor if self.lower else factor.mT.conj(),)


@dataclass(frozen=True)
class Lu(Op):
    """Factor square matrices by Gaussian elimination with partial pivoting, as LAPACK's getrf.

    Spec: both factors in one matrix, the unit diagonal of the lower one left out; the row (i32, from 0) that each row was
    exchanged with, one after the other; and the row that came to each place by that. Constraints I1 (f32), C1 (at least 2
    dimensions), C2 (square matrices). The pivot is the first of the largest elements, NaN before all; one of zero leaves
    its column alone. It is what JAX asks for by the composite "ipuxla.lu", of which StableHLO has the loops.
    """

    name: ClassVar[str] = "hlo.lu"
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type, and that of a number for each row twice."""
        a = _float_matrices(self, operands)
        _require_square(self, "C2", a)
        rows = TensorType(a.shape[:-1], "i32")
        return a, rows, rows

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Take one row after the other out of those below it, all columns abreast."""
        (a,) = operands
        n = a.shape[-1]
        row, column = (broadcasted_iota(jnp.int32, (n, n), axis) for axis in (0, 1))
        number = row[:, :1]

        def step(k: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            a, pivots, order = state
            sizes = jnp.abs(lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 1))
            rest = lax.dynamic_slice_in_dim(
                jnp.concatenate([sizes, jnp.zeros_like(sizes)], -2), k, n, a.ndim - 2
            )
            chosen = k + jnp.argmax(rest, -2, keepdims=True).astype(jnp.int32)
            source = jnp.where(number == k, chosen, jnp.where(number == chosen, k, number))
            a = jnp.take_along_axis(a, source, -2)
            order = jnp.take_along_axis(order, source, -2)
            above = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 2)
            below = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 1)
            pivot = lax.dynamic_slice_in_dim(above, k, 1, a.ndim - 1)
            factor = jnp.where(pivot == 0, below, below / jnp.where(pivot == 0, jnp.ones_like(pivot), pivot))
            left = jnp.where(column == k, factor, a - factor * above)
            a = jnp.where((row > k) & (column >= k), left, a)
            return a, jnp.where(number == k, chosen, pivots), order

        if not a.size:
            return a, *(jnp.zeros(a.shape[:-1], jnp.int32) for _ in range(2))
        order = jnp.broadcast_to(number, (*a.shape[:-1], 1))
        factors, pivots, order = fori_loop(0, n, step, (a, jnp.zeros_like(order), order))
        return factors, pivots[..., 0], order[..., 0]


@dataclass(frozen=True)
class Qr(Op):
    """Reflect the columns of matrices one after the other onto a triangle, as LAPACK's geqrf.

    Spec: the triangle with the reflections' vectors below it, whose first elements are 1, and the reflections' factors.
    Constraints I1 (f32), C1 (at least 2 dimensions), C2 (no fewer rows than columns). Where what is below an element
    has no squares, nothing is reflected and the factor is 0. It is what JAX asks for by the composite "ipuxla.qr", of
    which StableHLO has the loops.
    """

    name: ClassVar[str] = "hlo.qr"
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type, and that of a number for each column."""
        a = _float_matrices(self, operands)
        self.require("C2", a.shape[-2] >= a.shape[-1], lambda: f"fewer rows than columns in {a}")
        return a, a.with_shape((*a.shape[:-2], a.shape[-1]))

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Reflect one column after the other, all that follow abreast."""
        (a,) = operands
        m, n = a.shape[-2:]
        row, column = (broadcasted_iota(jnp.int32, (m, n), axis) for axis in (0, 1))
        zero, one = (np.array(x, a.dtype) for x in (0, 1))

        def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            a, taus = state
            here = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 1)
            alpha = lax.dynamic_slice_in_dim(here, k, 1, a.ndim - 2)
            is_below = row[:, :1] > k
            rest = jnp.sum(jnp.where(is_below, here * here, zero), -2, keepdims=True)
            norm, is_done = jnp.sqrt(alpha * alpha + rest), rest == zero
            beta = jnp.where(is_done, alpha, jnp.where(alpha < zero, norm, zero - norm))
            tau = jnp.where(is_done, zero, (beta - alpha) / jnp.where(is_done, one, beta))
            vector = jnp.where(is_below, here / jnp.where(is_done, one, alpha - beta), zero)
            above = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 2)
            product = jnp.sum(jnp.where(is_below, vector * a, zero), -2, keepdims=True)
            product = tau * (above + product)
            changed = jnp.where(row == k, a - product, jnp.where(row > k, a - vector * product, a))
            stored = jnp.where(row == k, beta, jnp.where(row > k, vector, a))
            a = jnp.where(column == k, stored, jnp.where(column > k, changed, a))
            return a, jnp.where(column[0] == k, tau[..., 0], taus)

        start = jnp.zeros((*a.shape[:-2], n), a.dtype)
        return tuple(fori_loop(0, n, step, (a, start))) if a.size else (a, start)


@dataclass(frozen=True)
class TriangularSolve(Op):
    """Solve ``op(a) @ x == b``, or ``x @ op(a) == b``, for triangular ``a``.

    Spec: StableHLO "triangular_solve", constraints C1-C4. Only the triangle that ``lower`` names is read.
    """

    name: ClassVar[str] = "stablehlo.triangular_solve"
    left_side: bool
    lower: bool
    unit_diagonal: bool
    transpose_a: str

    @property
    def is_transposed(self) -> bool:
        """Whether ``op`` transposes; the adjoint of a real matrix is its transpose."""
        return self.transpose_a != "NO_TRANSPOSE"

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the right-hand side's type."""
        self.require_arity(operands, 2)
        a, b = operands
        _require_float(self, "I1", a)
        self.require("C1", a.dtype == b.dtype, lambda: f"element types of {a} and {b} differ")
        ranks = 2 <= a.rank == b.rank
        self.require("C2", ranks, lambda: f"expected one rank of at least 2, got {a} and {b}")
        _require_square(self, "C3", a)
        fits = a.shape[:-2] == b.shape[:-2] and b.shape[-2 if self.left_side else -1] == a.shape[-1]
        self.require("C3", fits, lambda: f"{b} is no right-hand side for {a}")
        known = self.transpose_a in TRANSPOSES
        self.require(
            "I6", known, lambda: f"transpose_a is {self.transpose_a!r}, expected one of {TRANSPOSES}"
        )
        return (b,)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Solve for one unknown after the other, and take each out of the equations that remain."""
        a, b = map(_wide, operands)
        n = a.shape[-1]
        a = a.conj() if self.transpose_a == "ADJOINT" else a
        a = a if self.left_side != self.is_transposed else a.mT
        b = b if self.left_side else b.mT
        is_lower = self.lower == (self.left_side != self.is_transposed)
        row = broadcasted_iota(jnp.int32, (n, 1), 0)

        def step(count: Array, x: Array) -> Array:
            i = count if is_lower else n - 1 - count
            column = lax.dynamic_slice_in_dim(a, i, 1, a.ndim - 1)
            value = lax.dynamic_slice_in_dim(x, i, 1, x.ndim - 2)
            if not self.unit_diagonal:
                value = value / lax.dynamic_slice_in_dim(column, i, 1, a.ndim - 2)
            remain = row > i if is_lower else row < i
            # What is solved stays as it is: zero times an infinity would not leave it alone.
            return jnp.where(row == i, value, jnp.where(remain, x - column * value, x))

        x = fori_loop(0, n, step, b).astype(operands[1].dtype)
        return (x if self.left_side else x.mT,)
