"""Results without elements."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_passes.ir import Instruction, Op, Value
from hlo_passes.ops import Constant, OptimizationBarrier
from hlo_passes.passes.patterns.registry import rewrites, zeros
from hlo_passes.passes.rewriter import Rewriter


@rewrites(Op)
def drop_empty_results(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """What has no elements needs no computing."""
    if isinstance(instruction.op, (Constant, OptimizationBarrier)) or not instruction.results:
        return None
    if instruction.has_effect and not instruction.op.is_collective:
        return None
    if any(0 not in value.type.shape for value in instruction.results):
        return None
    return [zeros(value.type, rewriter) for value in instruction.results]
