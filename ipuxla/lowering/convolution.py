"""Convolutions onto poplin, windows onto popnn."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_passes.ir import Instruction
from hlo_passes.ops import Convolution, ReduceWindow, SelectAndScatter, simple_combiner, simple_selection
from hlo_passes.passes.folding import MOST_TOLD_APART, Geometry, geometries
from hlo_passes.passes.select_scatter import is_pooling_gradient, selecting_windows
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from ipuxla.lowering.regular import alone, materialize, with_initial
from tiles.graph import Tensor
from tiles.poplibs.poplin import ConvAxes, convolution
from tiles.poplibs.popnn import pool, select_and_scatter
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
        lowering.site(where(instruction)),
        lhs,
        rhs,
        ConvAxes(n.input, n.kernel, n.output),
        windows,
        feature_groups=op.feature_group_count,
        batch_groups=op.batch_group_count,
        out_dtype=dtype_of(instruction.result.type),
    )
    return (result,)


@lowers(ReduceWindow)
def lower_reduce_window(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Place a pooling, and behind it the initial value unless it is neutral.

    Raises:
      UnsupportedLowering: what the pass ``windows`` has not taken apart: a combining region with more than elementwise
        operations in it, or padding told apart in an axis that is too long for that.
    """
    op = instruction.op
    assert isinstance(op, ReduceWindow)
    combiner = simple_combiner(instruction.regions[0])
    value, *_ = instruction.operands
    if combiner is None:
        _require_told_apart(instruction, geometries(op, value.type.shape, instruction.results[0].type.shape))
        raise UnsupportedLowering(
            "these windows' combining region holds more than elementwise operations on scalars",
            location=where(instruction),
            try_="a combining function without loops, branches and lookups (jnp.where chooses between values)",
        )
    value, initial = instruction.operands
    x = materialize(lowering, value)
    geometry = zip(
        x.shape,
        op.window_dimensions,
        op.window_strides,
        op.low,
        op.high,
        op.base_dilations,
        op.window_dilations,
        strict=True,
    )
    windows = [Window(*each) for each in geometry]
    pooled = pool(lowering.site(where(instruction)), x, windows, combiner)
    return (with_initial(lowering, pooled, instruction, *alone(lowering, initial)),)


def _require_told_apart(instruction: Instruction, windows: Sequence[Geometry]) -> None:
    """Raise UnsupportedLowering where windows over padding were left because no table says which elements are padding."""
    for axis, g in enumerate(windows):
        if not g.is_told_apart:
            raise UnsupportedLowering(
                f"axis {axis} of these windows, {g.extent:,} elements with padding, is too long to tell padding apart, which"
                " their combining region needs",
                location=where(instruction),
                expected=f"at most {MOST_TOLD_APART:,} elements with padding, or no padding",
                try_="a region of one operation (add, mul, max, min), whose neutral element stands in for padding",
            )


@lowers(SelectAndScatter)
def lower_select_and_scatter(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Place the gradient of pooling by maximum or minimum.

    Raises:
      UnsupportedLowering: as ``lower_reduce_window``, of either region.
    """
    op = instruction.op
    assert isinstance(op, SelectAndScatter)
    direction = simple_selection(instruction.regions[0])
    if direction is None or not is_pooling_gradient(instruction, lowering.constant(instruction.operands[2])):
        _require_told_apart(instruction, selecting_windows(instruction))
        raise UnsupportedLowering(
            "these windows' selecting or combining region holds more than elementwise operations on scalars",
            location=where(instruction),
            try_="regions without loops, branches and lookups",
        )
    x, source = (materialize(lowering, v) for v in instruction.operands[:2])
    geometry = zip(x.shape, op.window_dimensions, op.window_strides, op.low, op.high, strict=True)
    windows = [Window(*each) for each in geometry]
    result = select_and_scatter(
        lowering.site(where(instruction)),
        x,
        source,
        windows,
        direction,
    )
    return (result,)
