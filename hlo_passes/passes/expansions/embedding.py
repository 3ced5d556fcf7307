"""Factorizations of complex matrices, as those of real matrices of twice the size.

A complex number ``x + iy`` is the real matrix ``[[x, -y], [y, x]]``; a complex matrix with such blocks in the place of
its elements multiplies and transposes (conjugating) as the complex one does. A triangular matrix whose diagonal is
real stays triangular, so its factor is the factor.
"""

from __future__ import annotations

from hlo_passes.ops import Cholesky, Complex, Imag, Real, TriangularSolve
from hlo_passes.passes.expansions.term import Term


def complex_cholesky(op: Cholesky, a: Term) -> Term:
    """Factor Hermitian matrices; only the triangle asked for is read, and the real part of its diagonal."""
    real, imag = a.apply(Real()), a.apply(Imag())
    if not op.lower:
        real, imag = real.transposed(), -imag.transposed()
    below = a.iota(-2).compare("GT", a.iota(-1))
    factor = _blocks(real, below.choose(imag, 0)).apply(Cholesky(lower=True))
    real, imag = _parts(factor)
    return real.apply(Complex(), imag) if op.lower else real.transposed().apply(Complex(), -imag.transposed())


def complex_triangular_solve(op: TriangularSolve, a: Term, b: Term) -> Term:
    """Divide every equation by its diagonal element, which leaves a triangle with ones on its diagonal."""
    row, column = a.iota(-2), a.iota(-1)
    matrix = row.compare("GE" if op.lower else "LE", column).choose(a, 0)
    is_lower = op.lower
    if op.transpose_a == "ADJOINT":
        matrix = matrix.apply(Real()).apply(Complex(), -matrix.apply(Imag()))
    if op.is_transposed == op.left_side:  # of the matrix itself, or of all of the equation
        matrix, is_lower = matrix.transposed(), not is_lower
    if not op.left_side:
        b = b.transposed()
    on_diagonal = row.compare("EQ", column)
    if not op.unit_diagonal:
        diagonal = on_diagonal.choose(matrix, 0).sum([len(a.shape) - 1]).reshape((*a.shape[:-1], 1))
        matrix, b = matrix / diagonal, b / diagonal
    matrix = on_diagonal.choose(0, matrix)
    coefficients = _blocks(matrix.apply(Real()), matrix.apply(Imag()))
    *batch, rows, columns = b.shape
    known, behind = (b.apply(part).reshape((*batch, rows, 1, columns)) for part in (Real(), Imag()))
    known = known.joined(-2, behind)
    solved = coefficients.apply(
        TriangularSolve(True, is_lower, True, "NO_TRANSPOSE"), known.reshape((*batch, 2 * rows, columns))
    ).reshape((*batch, rows, 2, columns))
    real, imag = (solved.at(-2, k).reshape(b.shape) for k in range(2))
    x = real.apply(Complex(), imag)
    return x if op.left_side else x.transposed()


def _blocks(real: Term, imag: Term) -> Term:
    """Return matrices of twice the size, with a block in the place of each complex element."""
    *batch, n, m = real.shape
    shape = (*batch, n, 1, m, 1)
    upper = real.reshape(shape).joined(-1, (-imag).reshape(shape))
    lower = imag.reshape(shape).joined(-1, real.reshape(shape))
    return upper.joined(-3, lower).reshape((*batch, 2 * n, 2 * m))


def _parts(blocks: Term) -> tuple[Term, Term]:
    """Return real and imaginary parts of what ``_blocks`` makes."""
    *batch, n, m = blocks.shape
    shape = (*batch, n // 2, 2, m // 2, 2)
    first, small = blocks.reshape(shape).at(-1, 0), (*batch, n // 2, m // 2)
    return first.at(-3, 0).reshape(small), first.at(-3, 1).reshape(small)
