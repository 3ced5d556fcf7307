"""Blocked Cholesky and triangular solves: loops over blocks whose updates are contractions.

A block is factored, or solved for, by the operation itself, so that the number of operations does not depend
on the size of a matrix. Floats of fewer than 32 bits are computed with in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hlo_passes.ops import Cholesky, TriangularSolve
from hlo_passes.passes.expansions.embedding import complex_cholesky, complex_triangular_solve
from hlo_passes.passes.expansions.registry import expands
from hlo_passes.passes.expansions.term import Term, repeat


class Blocks(Protocol):
    """Sizes of blocks: of matrices that one tile factors, and of systems that one tile solves."""

    @property
    def factor_block(self) -> int:
        """Rows of a block of a Cholesky factorization."""
        ...

    @property
    def solve_block(self) -> int:
        """Rows of a block of a triangular solve."""
        ...


@expands(Cholesky)
def expand_cholesky(op: Cholesky, operands: Sequence[Term], blocks: Blocks) -> Term | None:
    """Factor one block of columns after the other; each is taken out of the matrix that remains.

    The remaining matrix and the factor share one tensor, as in LAPACK's potrf.
    """
    (a,) = operands
    if a.type.is_complex:
        return complex_cholesky(op, a)
    if a.type.bits < 32:
        return a.convert("f32").apply(op).convert(a.type.dtype)
    n, block = a.shape[-1], blocks.factor_block
    if n <= block:
        return None
    if not op.lower:
        return a.transposed().apply(Cholesky(lower=True)).transposed()

    def column_block(number: Term, carried: Sequence[Term], _: Sequence[Term]) -> list[Term]:
        (rest,) = carried
        first = number * block
        panel = rest.window((0, first), (rest.shape[-2], block))
        factor = panel.window((first, 0), (block, block)).apply(Cholesky(lower=True))
        solved = factor.apply(TriangularSolve(False, True, False, "TRANSPOSE"), panel)
        solved = panel.iota(-2).compare("GE", first + block).choose(solved, 0)
        rest = rest - solved.matmul(solved, transpose=True)
        return [rest.updated(solved.updated(factor, (first, 0)), (0, first))]

    padded = _padded(a, block)
    (factor,) = repeat(padded.shape[-1] // block, column_block, [padded])
    factor = factor.leading((n, n))
    last = factor.element(-1, -1)  # NaN as soon as one block was not positive definite
    filled = last.compare("EQ", last).choose(factor, np.nan)
    return a.iota(-2).compare("GE", a.iota(-1)).choose(filled, 0)


@expands(TriangularSolve)
def expand_triangular_solve(op: TriangularSolve, operands: Sequence[Term], blocks: Blocks) -> Term | None:
    """Solve for one block of unknowns after the other; each is taken out of the equations that remain."""
    a, b = operands
    if a.type.is_complex:
        return complex_triangular_solve(op, a, b)
    if b.type.bits < 32:
        return a.convert("f32").apply(op, b.convert("f32")).convert(b.type.dtype)
    n, block = a.shape[-1], blocks.solve_block
    if n <= block:
        return None
    if not op.left_side:
        turned = TriangularSolve(True, op.lower, op.unit_diagonal, _other_side(op))
        return a.apply(turned, b.transposed()).transposed()
    if op.is_transposed:
        turned = TriangularSolve(True, not op.lower, op.unit_diagonal, "NO_TRANSPOSE")
        return a.transposed().apply(turned, b)
    if not op.lower:
        turned = TriangularSolve(True, True, op.unit_diagonal, "NO_TRANSPOSE")
        return a.reversed(-2, -1).apply(turned, b.reversed(-2)).reversed(-2)

    def row_block(number: Term, carried: Sequence[Term], invariants: Sequence[Term]) -> list[Term]:
        (rest,), (matrix,) = carried, invariants
        first = number * block
        solved = matrix.window((first, first), (block, block)).apply(
            op, rest.window((first, 0), (block, rest.shape[-1]))
        )
        columns = matrix.window((0, first), (matrix.shape[-2], block))
        columns = columns.iota(-2).compare("GE", first + block).choose(columns, 0)
        return [(rest - columns.matmul(solved)).updated(solved, (first, 0))]

    matrix = _padded(a, block)
    rest = b.padded((matrix.shape[-1], b.shape[-1]))
    (x,) = repeat(matrix.shape[-1] // block, row_block, [rest], [matrix])
    return x.leading(b.shape[-2:])


def _other_side(op: TriangularSolve) -> str:
    """Return how the matrix is transposed where ``x @ op(a) == b`` is turned into ``op(a).T @ x.T == b.T``."""
    return "NO_TRANSPOSE" if op.is_transposed else "TRANSPOSE"


def _padded(a: Term, block: int) -> Term:
    """Return matrices with rows and columns of the identity added, up to whole blocks."""
    n = a.shape[-1]
    size = -(-n // block) * block
    padded = a.padded((size, size))
    if size == n:
        return padded
    row, column = padded.iota(-2), padded.iota(-1)
    is_added = row.compare("EQ", column) & row.compare("GE", n)
    return is_added.choose(padded.constant(1), padded)
