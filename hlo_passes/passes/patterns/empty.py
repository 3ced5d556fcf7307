"""Results and operands without elements."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_passes.ir import Instruction, Op, Value
from hlo_passes.ops import BroadcastInDim, Constant, OptimizationBarrier, Reduce
from hlo_passes.passes.patterns.registry import rewrites, zeros
from hlo_passes.passes.rewriter import Rewriter


@rewrites(Op)
def drop_empty_results(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """What has no elements needs no computing."""
    if isinstance(instruction.op, (Constant, OptimizationBarrier)) or not instruction.results:
        return None
    if any(0 not in value.type.shape for value in instruction.results):
        return None
    return [zeros(value.type, rewriter) for value in instruction.results]


@rewrites(Reduce)
def fold_nothing(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A reduction of no elements is its initial values."""
    half = len(instruction.operands) // 2
    initial = instruction.operands[half:]
    if 0 not in instruction.operands[0].type.shape:
        return None
    if any(v.type.dtype != r.type.dtype for v, r in zip(initial, instruction.results, strict=True)):
        return None
    return [
        rewriter.emit(BroadcastInDim(result.type.shape, ()), value)
        for value, result in zip(initial, instruction.results, strict=True)
    ]
