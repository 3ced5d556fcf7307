"""Reductions of nothing, and of one element each."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import BroadcastInDim, Reduce, Reshape, simple_combiner
from hlo_passes.passes.patterns.registry import rewrites
from hlo_passes.passes.rewriter import Rewriter


@rewrites(Reduce)
def reduce_nothing(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A reduction of no elements is its initial values."""
    half = len(instruction.operands) // 2
    initial = instruction.operands[half:]
    if 0 not in instruction.operands[0].type.shape or not _keeps_types(instruction):
        return None
    return [
        rewriter.emit(BroadcastInDim(result.type.shape, ()), value)
        for value, result in zip(initial, instruction.results, strict=True)
    ]


@rewrites(Reduce)
def reduce_single_elements(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A reduction along dimensions of size 1 combines each element with the initial value."""
    op, operands = instruction.op, instruction.operands
    assert isinstance(op, Reduce)
    if simple_combiner(instruction.regions[0]) is None or not _keeps_types(instruction):
        return None
    operand, initial = operands
    if any(operand.type.shape[axis] != 1 for axis in op.dimensions):
        return None
    shape = instruction.result.type.shape
    start = rewriter.emit(BroadcastInDim(shape, ()), initial)
    (combine,) = instruction.regions[0].instructions
    return rewriter.emit(combine.op, rewriter.emit(Reshape(shape), operand), start)


def _keeps_types(instruction: Instruction) -> bool:
    """Whether accumulation is in the element types of the inputs."""
    inputs = instruction.operands[: len(instruction.results)]
    return all(v.type.dtype == r.type.dtype for v, r in zip(inputs, instruction.results, strict=True))
