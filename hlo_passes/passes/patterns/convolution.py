"""Movement of a convolution's operands merged into its dimension numbers and window.

Products and what is summed stay the same; only the order in which an implementation adds may differ, which
the operation leaves open.
"""

from __future__ import annotations

import dataclasses

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import Convolution, Reverse, Transpose
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
