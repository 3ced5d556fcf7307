"""Regions of scalars applied to whole arrays: the operations of the region, each on arrays of one shape."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_passes.ir import Computation, Value
from hlo_passes.ops import BroadcastInDim, Constant, OptimizationBarrier, Reshape, Transpose
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.rewriter import Rewriter

_SAME = (BroadcastInDim, Reshape, Transpose, OptimizationBarrier)
"""What moves nothing when every value is a scalar."""


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
