"""Movement of a convolution's operands merged into its dimension numbers and window.

Products and what is summed stay the same; only the order in which an implementation adds may differ, which
the operation leaves open.
"""

from __future__ import annotations

import dataclasses

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import Convolution, Reverse, Slice, Transpose
from hlo_passes.passes.patterns.registry import rewrites
from hlo_passes.passes.rewriter import Rewriter


@rewrites(Convolution)
def read_kernel_unreversed(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A kernel reversed along spatial dimensions is the kernel, read backwards; gradients are written so."""
    op = instruction.op
    lhs, rhs = instruction.operands
    assert isinstance(op, Convolution)
    inner = rewriter.producer(rhs, Reverse)
    spatial = op.dimension_numbers.kernel_spatial
    if inner is None or not set(inner[0].dimensions) <= set(spatial):
        return None
    turned = tuple(
        back != (axis in inner[0].dimensions) for back, axis in zip(op.window_reversal, spatial, strict=True)
    )
    return rewriter.emit(dataclasses.replace(op, window_reversal=turned), lhs, inner[1][0])


@rewrites(Convolution)
def read_operands_untransposed(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Dimension numbers name dimensions in any order, so operands need no transpose."""
    op = instruction.op
    lhs, rhs = instruction.operands
    assert isinstance(op, Convolution)
    n = op.dimension_numbers
    left, right = rewriter.producer(lhs, Transpose), rewriter.producer(rhs, Transpose)
    if left is not None:
        p, lhs = left[0].permutation, left[1][0]
        spatial = tuple(p[axis] for axis in n.input_spatial)
        n = dataclasses.replace(
            n, input_batch=p[n.input_batch], input_feature=p[n.input_feature], input_spatial=spatial
        )
    if right is not None:
        p, rhs = right[0].permutation, right[1][0]
        n = dataclasses.replace(
            n,
            kernel_input_feature=p[n.kernel_input_feature],
            kernel_output_feature=p[n.kernel_output_feature],
            kernel_spatial=tuple(p[axis] for axis in n.kernel_spatial),
        )
    if left is None and right is None:
        return None
    return rewriter.emit(dataclasses.replace(op, dimension_numbers=n), lhs, rhs)


@rewrites(Convolution)
def skip_elements_before(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A window of one element with a stride, or one place of a spread window, reads a strided slice of the array.

    Sliced where it lies, what is left out is neither sent around nor told apart from what is sent: each run between two
    tiles would be an element's channels. The kernel's gradient of such a convolution reads the same slice.
    """
    op = instruction.op
    lhs, rhs = instruction.operands
    assert isinstance(op, Convolution)
    n = op.dimension_numbers
    start, limit, strides = [0] * lhs.type.rank, list(lhs.type.shape), [1] * lhs.type.rank
    changed = {name: list(getattr(op, name)) for name in ("low", "high", "window_strides", "rhs_dilation")}
    for i, axis in enumerate(n.input_spatial):
        taps, places = rhs.type.shape[n.kernel_spatial[i]], instruction.result.type.shape[n.output_spatial[i]]
        step = op.window_strides[i] if taps == 1 else op.rhs_dilation[i]
        count = places if taps == 1 else taps
        first = -op.low[i]
        end = first + (count - 1) * step + 1
        is_alone = min(taps, places) == 1 and op.lhs_dilation[i] == 1
        if not is_alone or step == 1 or count < 2 or first < 0 or end > lhs.type.shape[axis]:
            continue
        start[axis], limit[axis], strides[axis] = first, end, step
        for name, value in (("low", 0), ("high", 0), ("window_strides", 1), ("rhs_dilation", 1)):
            changed[name][i] = value
    if all(step == 1 for step in strides):
        return None
    sliced = rewriter.emit(Slice(tuple(start), tuple(limit), tuple(strides)), lhs)
    dense = dataclasses.replace(op, **{name: tuple(values) for name, values in changed.items()})
    return rewriter.emit(dense, sliced, rhs)
