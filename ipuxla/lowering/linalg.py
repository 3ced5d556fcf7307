"""Factorizations onto poplin: matrices that one tile factors; the pass block-linalg makes larger ones of these."""

from __future__ import annotations

from hlo_passes.ir import Instruction
from hlo_passes.ops import Cholesky, Lu, Qr, TriangularSolve
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.indexing import in_memory
from ipuxla.lowering.registry import Lowering, lowers, where
from tiles.graph import Tensor
from tiles.poplibs import poplin


def _operands(lowering: Lowering, instruction: Instruction) -> list[Tensor]:
    """Return the operands' tensors.

    Raises:
      UnsupportedLowering: they are narrower than 32 bits, which the pass block-linalg widens.
    """
    type_ = instruction.operands[0].type
    if type_.bits < 32:
        raise UnsupportedLowering(
            f"{instruction.op.name} of {type_.dtype}",
            location=where(instruction),
            expected="f32 or f64",
            got=str(type_),
            try_="run the pass block-linalg before lowering: it computes in f32 and rounds the result",
        )
    return [in_memory(lowering, value) for value in instruction.operands]


@lowers(Cholesky)
def lower_cholesky(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Factor each matrix on one tile."""
    op = instruction.op
    assert isinstance(op, Cholesky)
    (a,) = _operands(lowering, instruction)
    return (poplin.cholesky(lowering.site(where(instruction)), a, op.lower),)


@lowers(Lu)
def lower_lu(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Factor each matrix on one tile."""
    (a,) = _operands(lowering, instruction)
    return poplin.lu(lowering.site(where(instruction)), a)


@lowers(Qr)
def lower_qr(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Factor each matrix on one tile."""
    (a,) = _operands(lowering, instruction)
    return poplin.qr(lowering.site(where(instruction)), a)


@lowers(TriangularSolve)
def lower_triangular_solve(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Solve for each right-hand side on one tile."""
    op = instruction.op
    assert isinstance(op, TriangularSolve)
    a, b = _operands(lowering, instruction)
    x = poplin.triangular_solve(
        lowering.site(where(instruction)),
        a,
        b,
        is_left=op.left_side,
        is_lower=op.lower,
        is_unit=op.unit_diagonal,
        is_transposed=op.is_transposed,
    )
    return (x,)
