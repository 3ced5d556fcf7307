"""Constants and copies: what is not one regular operation."""

from __future__ import annotations

import math
from dataclasses import replace

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import (
    Call,
    Case,
    Collective,
    Concatenate,
    Constant,
    If,
    Iota,
    OptimizationBarrier,
    Outfeed,
    Print,
    Repeat,
    Reshape,
    RowFunction,
    Send,
    Stop,
    While,
)
from ipuxla.lowering.folding import folds_counters
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from ipuxla.lowering.regular import materialize
from tiles.graph import Tensor
from tiles.poplibs.poputil import concatenate, reshape


@lowers(Constant)
def lower_constant(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Hold a constant array in tile memory."""
    assert isinstance(instruction.op, Constant)
    value = instruction.op.array
    return (
        lowering.graph.add_constant(value, dtype_of(instruction.result.type), location=where(instruction)),
    )


@lowers(Reshape)
def lower_reshape(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Give the same elements another shape."""
    operand = lowering.tensor(instruction.operands[0])
    shape = instruction.result.type.shape
    return (reshape(lowering.site(where(instruction)), operand, shape),)


@lowers(Concatenate)
def lower_concatenate(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Copy the operands side by side."""
    assert isinstance(instruction.op, Concatenate)
    operands = tuple(lowering.tensor(v) for v in instruction.operands)
    sources = tuple(t for t in operands if math.prod(t.shape)) or operands[:1]
    joined = concatenate(
        lowering.site(where(instruction)),
        sources,
        instruction.op.dimension,
    )
    return (joined,)


@lowers(OptimizationBarrier)
def lower_barrier(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Pass values through; the program's order is the barrier."""
    return tuple(lowering.tensor(v) for v in instruction.operands)


def lower_computation(
    lowering: Lowering, computation: Computation, arguments: list[Tensor]
) -> tuple[Tensor, ...]:
    """Lower a computation's instructions with its parameters bound to tensors; return its results' tensors."""
    values = dict(zip(computation.parameters, arguments, strict=True))
    inner = replace(lowering, computation=computation, values=values)
    needed = _constants_in_memory(computation)
    counted = _only_counted(computation)
    for instruction in computation.instructions:
        if instruction.results[:1] and instruction.results[0] in counted:
            continue
        is_splat = isinstance(instruction.op, Constant) and instruction.op.is_splat
        if is_splat:
            if instruction.result in needed:
                materialize(inner, instruction.result)
            continue
        inner.lower(instruction)
    return tuple(inner.tensor(v) for v in computation.results)


def _only_counted(computation: Computation) -> set[Value]:
    """Return the iotas that only reductions read which count by themselves."""
    iotas = {i.result for i in computation.instructions if isinstance(i.op, Iota)}
    iotas.difference_update(computation.results)
    for instruction in computation.instructions if iotas else ():
        if not folds_counters(instruction):
            iotas.difference_update(instruction.operands)
    return iotas


def _constants_in_memory(computation: Computation) -> set[object]:
    """Return the splat constants that some reader needs as a tensor: results, and operands of irregular ops."""
    from_memory = (
        *(Call, Collective, Concatenate, OptimizationBarrier, Outfeed),
        *(Print, Reshape, RowFunction, Send, Stop),
    )
    needed: set[object] = set(computation.results)
    for instruction in computation.instructions:
        if isinstance(instruction.op, from_memory) or instruction.op.name == "stablehlo.dot_general":
            needed.update(instruction.operands)
        elif isinstance(instruction.op, (While, Repeat)):  # initial values are written where they are carried
            count = len(instruction.operands) - instruction.op.invariants
            needed.update(instruction.operands[count:])
        elif isinstance(instruction.op, (Case, If)):
            needed.update(instruction.operands)
    return needed
