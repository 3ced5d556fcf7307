"""dot_general onto poplin."""

from __future__ import annotations

from hlo_passes.ir import Instruction
from hlo_passes.ops import DotGeneral
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from tiles.graph import Tensor
from tiles.poplibs.forms import dot_form
from tiles.poplibs.poplin.matmul import matmul_codelet
from tiles.poplibs.poputil.place import place


def place_dot(
    lowering: Lowering,
    instruction: Instruction,
    lhs: Tensor,
    rhs: Tensor,
    location: str,
    beside: Tensor | None = None,
) -> Tensor:
    """Place a contraction; ``beside`` is read next together with its result (see ``poputil.place``).

    Raises:
      UnsupportedLowering: it asks for an algorithm of several products.
    """
    op = instruction.op
    assert isinstance(op, DotGeneral)
    if op.algorithm is not None:
        raise UnsupportedLowering(
            "dot_general with an explicit algorithm",
            location=location,
            try_="precision=None, or convert the operands",
        )
    n = op.dimension_numbers
    form = dot_form(
        lhs.shape, rhs.shape, n.lhs_batching, n.rhs_batching, n.lhs_contracting, n.rhs_contracting
    )
    out = dtype_of(instruction.result.type)
    codelet = matmul_codelet(lhs.dtype, rhs.dtype, out)
    return place(
        lowering.graph,
        codelet,
        form,
        [lhs, rhs],
        (out,),
        "dot",
        location,
        program=lowering.program,
        beside=beside,
    )[0]


@lowers(DotGeneral)
def lower_dot(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Lower a lone contraction."""
    lhs, rhs = (lowering.tensor(v) for v in instruction.operands)
    return (place_dot(lowering, instruction, lhs, rhs, where(instruction)),)
