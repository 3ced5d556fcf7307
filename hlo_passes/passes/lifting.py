"""Regions of scalars applied to whole arrays: the operations of the region, each on arrays of one shape."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from hlo_passes.ir import SMALL_FLOATS, Computation, Instruction, TensorType, Value
from hlo_passes.ops import (
    BitcastConvert,
    BroadcastInDim,
    Constant,
    Convert,
    OptimizationBarrier,
    ReducePrecision,
    Reshape,
    Transpose,
)
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.rewriter import Rewriter

_SAME = (BroadcastInDim, Reshape, Transpose, OptimizationBarrier)
"""What moves nothing when every value is a scalar."""
NARROW = ("f16", "bf16", *SMALL_FLOATS)


def is_liftable(region: Computation) -> bool:
    """Whether a region consists of elementwise operations on scalars, and so means something on arrays."""
    scalars = all(value.type.rank == 0 for value in (*region.parameters, *region.results))
    return scalars and all(
        isinstance(instruction.op, (Elementwise, Constant, *_SAME))
        and all(value.type.rank == 0 for value in instruction.results)
        for instruction in region.instructions
    )


def lift(rewriter: Rewriter, region: Computation, arguments: Sequence[Value]) -> list[Value]:
    """Emit a liftable region on arrays of one shape, element by element; return its results."""
    shape = arguments[0].type.shape
    env = dict(zip(region.parameters, arguments, strict=True))
    for inner in region.instructions:
        operands = [env[value] for value in inner.operands]
        if isinstance(inner.op, Constant):
            made = [rewriter.emit(Constant.splat(inner.op.value, inner.result.type.with_shape(shape)))]
        elif isinstance(inner.op, _SAME):
            made = operands
        else:
            made = rewriter.emit_all(inner.op, operands, location=inner.location)
        env.update(zip(inner.results, made, strict=True))
    return [env[value] for value in region.results]


def widened(region: Computation) -> Computation:
    """Return a combining region with f32 in the place of 8- and 16-bit floats, in which long folds lose too much.

    A region that looks at the bits of its values, or rounds them on purpose, is returned itself.
    """
    made: list[Instruction] = []
    wide = {v: _wide(v) for v in region.parameters}
    for instruction in region.instructions:
        op = instruction.op
        if isinstance(op, (BitcastConvert, ReducePrecision)):
            return region
        if isinstance(op, Constant) and op.type.dtype in NARROW:
            op = Constant.of(op.value, "f32")
        elif isinstance(op, Convert) and op.dtype in NARROW:
            op = Convert("f32")
        wide.update((v, _wide(v)) for v in instruction.results)
        operands, results = (tuple(wide[v] for v in vs) for vs in (instruction.operands, instruction.results))
        made.append(dataclasses.replace(instruction, op=op, operands=operands, results=results))
    parameters, results = (tuple(wide[v] for v in vs) for vs in (region.parameters, region.results))
    return Computation(region.name, parameters, tuple(made), results)


def _wide(value: Value) -> Value:
    return Value(value.name, value.type.with_dtype("f32")) if value.type.dtype in NARROW else value


def converted(rewriter: Rewriter, values: Sequence[Value], types: Sequence[TensorType]) -> list[Value]:
    """Return values converted to the element types of ``types`` where they are of another."""
    return [
        x if x.type.dtype == type_.dtype else rewriter.emit(Convert(type_.dtype), x)
        for x, type_ in zip(values, types, strict=True)
    ]


def separate(region: Computation) -> list[Computation] | None:
    """Return one region per operand of a combining region whose operands do not meet each other; None if they do.

    A region that combines N values with N others is taken apart when result k reads parameters k and N + k only.
    """
    count = len(region.results)
    if count < 2 or len(region.parameters) != 2 * count:
        return None
    apart: list[Computation] = []
    for k, result in enumerate(region.results):
        needed, kept = {result}, list[Instruction]()
        for instruction in reversed(region.instructions):
            if needed.intersection(instruction.results):
                needed.update(instruction.operands)
                kept.append(instruction)
        own = region.parameters[k], region.parameters[count + k]
        if not needed.intersection(region.parameters) <= set(own):
            return None
        apart.append(Computation(region.name, own, tuple(reversed(kept)), (result,)))
    return apart


def combine_apart(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """Write a reduction of operands that do not meet (sum and product at once) as one of each."""
    regions, count = separate(instruction.regions[0]), len(instruction.results)
    if regions is None:
        return None
    return [
        *itertools.chain.from_iterable(
            rewriter.emit_all(instruction.op, instruction.operands[k::count], (region,))
            for k, region in enumerate(regions)
        )
    ]
