"""Which axis of its operands an operation reads a slice of where a slice of its results is computed, and that operation."""

from __future__ import annotations

import dataclasses

from hlo_passes.ir import Builder, Computation, Instruction, Op, TensorType, Value
from hlo_passes.ops import Nonlinearity, RowFunction, Slice
from hlo_passes.passes.boxes import Box, rule_of, whole


class UnknownSlice(Exception):
    """Slices along an axis are not known to be computed from slices."""


def _cut(value: Value, axis: int, size: int) -> Box:
    return tuple((0, size if d == axis else n) for d, n in enumerate(value.type.shape))


def axis_read(instruction: Instruction, k: int, axis: int) -> int | None:
    """Return the axis along which operand ``k`` is cut where the results are cut along ``axis``; None if it is read whole.

    Raises:
      UnknownSlice: neither, or the operation is not known to compute slices from slices.
    """
    op, result, operand = instruction.op, instruction.results[0], instruction.operands[k]
    if isinstance(op, RowFunction | Nonlinearity):
        if isinstance(op, RowFunction) and axis in op.dimensions:
            raise UnknownSlice
        return axis if operand.type.rank else None
    if isinstance(op, Slice):
        if (op.start[axis], op.limit[axis], op.strides[axis]) != (0, operand.type.shape[axis], 1):
            raise UnknownSlice
        return axis
    rule = rule_of(instruction)
    if rule is None or axis not in rule.cut(instruction):
        raise UnknownSlice
    part, everything = rule.read(instruction, k, _cut(result, axis, 1)), whole(operand)
    if part == everything:
        return None
    for d, size in enumerate(operand.type.shape):
        if size == result.type.shape[axis] and part == _cut(operand, d, 1):
            return d
    raise UnknownSlice


def smaller(instruction: Instruction, axis: int, size: int) -> tuple[Op, tuple[Computation, ...]]:
    """Return the operation, and its regions, that computes ``size`` elements of the results along an axis."""
    op = instruction.op
    if isinstance(op, RowFunction | Nonlinearity):
        return op, tuple(_smaller_region(region, axis, size) for region in instruction.regions)
    if isinstance(op, Slice):
        limit = tuple(size if d == axis else end for d, end in enumerate(op.limit))
        return dataclasses.replace(op, limit=limit), ()
    rule = rule_of(instruction)
    if rule is None:
        raise UnknownSlice
    return rule.op(instruction, _cut(instruction.results[0], axis, size)), instruction.regions


def _smaller_region(region: Computation, axis: int, size: int) -> Computation:
    """Return a region that computes ``size`` elements of its results along an axis from as many of its parameters."""
    axes: dict[Value, int | None] = {}

    def ask(value: Value, found: int | None) -> None:
        if axes.setdefault(value, found) != found:
            raise UnknownSlice

    for result in region.results:
        ask(result, axis)
    for instruction in reversed(region.instructions):
        wanted = {axes[v] for v in instruction.results if v in axes}
        if not wanted:
            continue
        (one,) = wanted
        for k, operand in enumerate(instruction.operands):
            ask(operand, None if one is None else axis_read(instruction, k, one))
    builder = Builder(region.name)
    env: dict[Value, Value] = {}
    for parameter in region.parameters:
        cut = axes.setdefault(parameter, axis if parameter.type.rank else None)
        if cut != (axis if parameter.type.rank else None):
            raise UnknownSlice
        env[parameter] = builder.parameter(sliced_type(parameter.type, cut, size))
    for instruction in region.instructions:
        if instruction.results[0] not in axes:
            continue
        one = axes[instruction.results[0]]
        op, regions = instruction.op, instruction.regions
        if one is not None:
            op, regions = smaller(instruction, one, size)
        operands = tuple(env[v] for v in instruction.operands)
        made = builder.clone(dataclasses.replace(instruction, op=op, regions=regions), operands)
        env.update(zip(instruction.results, made, strict=True))
    return builder.build(*(env[v] for v in region.results))


def sliced_type(type_: TensorType, axis: int | None, size: int) -> TensorType:
    """Return the type of ``size`` elements along an axis, of all of them for None."""
    return type_.with_shape(tuple(size if d == axis else n for d, n in enumerate(type_.shape)))
