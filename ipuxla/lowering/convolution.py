"""Convolutions onto poplin, windows onto popnn."""

from __future__ import annotations

from hlo_passes.ir import Instruction
from hlo_passes.ops import Convolution
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from ipuxla.lowering.regular import materialize
from tiles.graph import Tensor
from tiles.poplibs.poplin import ConvAxes, convolution
from tiles.poplibs.windows import Window


@lowers(Convolution)
def lower_convolution(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Place a convolution, each of its stride phases on its own."""
    op = instruction.op
    assert isinstance(op, Convolution)
    lhs, rhs = (materialize(lowering, v) for v in instruction.operands)
    n = op.dimension_numbers
    windows = [
        Window(
            lhs.shape[n.input_spatial[i]],
            rhs.shape[n.kernel_spatial[i]],
            op.window_strides[i],
            op.low[i],
            op.high[i],
            op.lhs_dilation[i],
            op.rhs_dilation[i],
            op.window_reversal[i],
        )
        for i in range(len(n.input_spatial))
    ]
    result = convolution(
        lowering.graph,
        lhs,
        rhs,
        ConvAxes(n.input, n.kernel, n.output),
        windows,
        feature_groups=op.feature_group_count,
        batch_groups=op.batch_group_count,
        out_dtype=dtype_of(instruction.result.type),
        location=where(instruction),
        program=lowering.program,
    )
    return (result,)
