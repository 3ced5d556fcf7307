"""Reshapes that only add or remove dimensions of size 1 move behind elementwise operations.

JAX computes a mean with and without ``keepdims`` side by side; written in one shape the two are one value, and so is all that
follows from them.
"""

from __future__ import annotations

from hlo_passes.ir import OPS, Instruction, Op, Value
from hlo_passes.ops import BitcastConvert, Constant, Reshape
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.patterns.movement import is_degenerate
from hlo_passes.passes.patterns.registry import rewrites, splat_element
from hlo_passes.passes.rewriter import Rewriter


def _is_sinkable(op: type[Op]) -> bool:
    """Whether an operation is elementwise whatever its shape; a region is of one, and a bitcast may add a dimension."""
    return issubclass(op, Elementwise) and op is not BitcastConvert and not op.num_regions


@rewrites(*filter(_is_sinkable, OPS.values()))
def sink_reshape(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """What is computed from reshaped values of one shape, and splats, is reshaped afterwards."""
    result = instruction.result.type
    inner = [rewriter.producer(value, Reshape) for value in instruction.operands]
    shapes = {found[1][0].type.shape for found in inner if found is not None}
    if len(shapes) != 1 or not is_degenerate(shape := next(iter(shapes)), result.shape):
        return None
    operands: list[Value | Constant] = []
    for value, found in zip(instruction.operands, inner, strict=True):
        element = splat_element(value, rewriter)
        if found is not None:
            operands.append(found[1][0])
        elif element is not None and value.type.shape == result.shape:
            operands.append(Constant.splat(element, value.type.with_shape(shape)))
        elif not value.type.rank and result.rank:  # the predicate of a select, a bound of a clamp
            operands.append(value)
        else:
            return None
    settled = [rewriter.emit(x) if isinstance(x, Constant) else x for x in operands]
    return rewriter.emit(Reshape(result.shape), rewriter.emit(instruction.op, *settled))
