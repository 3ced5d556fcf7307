"""What nobody reads of a value is not computed: the logits of the last token, of all that a network computes.

A slice of a product is the product of a slice, and so on to where a value comes from. Of every value the box is found that
holds all that is read of it; what computes it computes that box, along dimensions of which at most a half is read. So sizes
that suit a machine stay as they are where only an edge is left out: the last logits that have no label.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from hlo_passes.ir import Computation, Instruction, Op, Value, value_names
from hlo_passes.ops import (
    BroadcastInDim,
    Concatenate,
    DotGeneral,
    Iota,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.base import LocalPass, map_control_regions
from hlo_passes.passes.structure import FreshNames

Box: TypeAlias = tuple[tuple[int, int], ...]
"""By dimension the first element and the one behind the last."""

_SHARE = 2
"""A dimension is cut where at most one in so many of its elements is read."""


@dataclass(frozen=True)
class Trim(LocalPass):
    """Compute of every value only the box that is read."""

    name: ClassVar[str] = "trim"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with smaller instructions; itself when all that is computed is read."""
        instructions = tuple(map_control_regions(i, self.change) for i in computation.instructions)
        if any(new is not old for new, old in zip(instructions, computation.instructions, strict=True)):
            computation = dataclasses.replace(computation, instructions=instructions)
        if Slice not in computation.op_types:
            return computation
        boxes = _boxes(computation)
        return _Trimmed(computation, boxes).computation if boxes else computation


def _boxes(computation: Computation) -> dict[Value, Box]:
    """Return the boxes of which values are computed, of those of which not all is."""
    read: dict[Value, Box] = {value: _all(value) for value in computation.results}
    found: dict[Value, Box] = {}
    for instruction in reversed(computation.instructions):
        rule = _rule(instruction)
        box = None
        if rule is not None:
            (result,) = instruction.results
            box = _worth_it(read.get(result, _all(result)), result, rule.cut(instruction))
            if box != _all(result):
                found[result] = box
        for k, operand in enumerate(instruction.operands):
            part = _all(operand) if rule is None or box is None else rule.read(instruction, k, box)
            read[operand] = _hull(read[operand], part) if operand in read else part
    return found


def _all(value: Value) -> Box:
    return tuple((0, size) for size in value.type.shape)


def _hull(a: Box, b: Box) -> Box:
    return tuple((min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True))


def _worth_it(box: Box, value: Value, cut: set[int]) -> Box:
    """Return the box that is computed for one that is read, given the dimensions that it may cut."""
    return tuple(
        (first, end) if d in cut and 0 < (end - first) * _SHARE <= size else (0, size)
        for d, ((first, end), size) in enumerate(zip(box, value.type.shape, strict=True))
    )


class _Trimmed:
    """A computation being rebuilt with boxes of its values."""

    def __init__(self, computation: Computation, boxes: dict[Value, Box]) -> None:
        self._boxes = boxes
        self._names = FreshNames(value_names(computation))
        self._made: dict[Value, Value] = {}
        self._instructions: list[Instruction] = []
        for instruction in computation.instructions:
            self._rebuild(instruction)
        results = tuple(self._made.get(value, value) for value in computation.results)
        self.computation = Computation(
            computation.name, computation.parameters, tuple(self._instructions), results
        )

    def _rebuild(self, instruction: Instruction) -> None:
        rule = _rule(instruction)
        if rule is None:
            self._add(instruction, instruction.op, [self._made.get(v, v) for v in instruction.operands])
            return
        (result,) = instruction.results
        box = self._boxes.get(result, _all(result))
        parts = [rule.read(instruction, k, box) for k in range(len(instruction.operands))]
        if isinstance(instruction.op, Slice) and not self._boxes.keys().isdisjoint(
            (result, *instruction.operands)
        ):
            (operand,), (part,) = instruction.operands, parts
            self._made[result] = self._part(operand, part, instruction, instruction.op.strides)
            return
        if isinstance(instruction.op, Slice):
            parts = [_all(self._made.get(operand, operand)) for operand in instruction.operands]
        operands = [
            self._part(operand, part, instruction)
            for operand, part in zip(instruction.operands, parts, strict=True)
        ]
        self._add(instruction, rule.op(instruction, box), operands)

    def _add(self, instruction: Instruction, op: Op, operands: Sequence[Value]) -> None:
        types = op.infer(*(value.type for value in operands), regions=instruction.regions)
        if tuple(value.type for value in instruction.results) == types:
            results = instruction.results
        else:
            results = tuple(Value(self._names.new(), type_) for type_ in types)
            self._made.update(zip(instruction.results, results, strict=True))
        self._instructions.append(
            dataclasses.replace(instruction, op=op, operands=tuple(operands), results=results)
        )

    def _part(
        self, value: Value, part: Box, instruction: Instruction, strides: tuple[int, ...] | None = None
    ) -> Value:
        """Return a box of a value, or every so many elements of it, cut out of what was computed."""
        there, held = self._made.get(value, value), self._boxes.get(value, _all(value))
        strides = strides or (1,) * len(part)
        start = tuple(first - begin for (first, _), (begin, _) in zip(part, held, strict=True))
        limit = tuple(end - begin for (_, end), (begin, _) in zip(part, held, strict=True))
        if set(strides) <= {1} and (start, limit) == ((0,) * len(part), there.type.shape):
            return there
        op = Slice(start, limit, strides)
        (type_,) = op.infer(there.type)
        result = Value(self._names.new(), type_)
        self._instructions.append(Instruction(op, (there,), (result,), (), instruction.location))
        return result


# ---- what operations read for a box of their result


def _as_it_is(instruction: Instruction, box: Box) -> Op:
    return instruction.op


def _all_dimensions(instruction: Instruction) -> set[int]:
    return set(range(instruction.results[0].type.rank))


@dataclass(frozen=True)
class _Rule:
    """How an operation computes a box of its result.

    Args:
      read: the box that it reads of its operand k for a box of its result.
      op: the operation that computes the box from those.
      cut: the dimensions of its result that a box may cut.
    """

    read: Callable[[Instruction, int, Box], Box]
    op: Callable[[Instruction, Box], Op] = _as_it_is
    cut: Callable[[Instruction], set[int]] = _all_dimensions


def _rule(instruction: Instruction) -> _Rule | None:
    """Return how an operation computes a box of its result; None if it computes all of it."""
    if len(instruction.results) != 1:
        return None
    op, result = instruction.op, instruction.results[0]
    if isinstance(op, Elementwise):
        is_even = all(v.type.shape in ((), result.type.shape) for v in instruction.operands)
        return _ELEMENTWISE if is_even and not op.num_regions else None
    return next((rule for kind, rule in _RULES.items() if isinstance(op, kind)), None)


def _sizes(box: Box) -> tuple[int, ...]:
    return tuple(end - first for first, end in box)


def _read_elements(instruction: Instruction, k: int, box: Box) -> Box:
    return box if instruction.operands[k].type.rank else ()


def _read_slice(instruction: Instruction, k: int, box: Box) -> Box:
    op = instruction.op
    assert isinstance(op, Slice)
    return tuple(
        (start + first * stride, start + (end - 1) * stride + 1 if end > first else start + first * stride)
        for (first, end), start, stride in zip(box, op.start, op.strides, strict=True)
    )


def _read_broadcast(instruction: Instruction, k: int, box: Box) -> Box:
    op, operand = instruction.op, instruction.operands[0].type
    assert isinstance(op, BroadcastInDim)
    places = zip(operand.shape, op.broadcast_dimensions, strict=True)
    return tuple((0, 1) if size == 1 else box[place] for size, place in places)


def _smaller_broadcast(instruction: Instruction, box: Box) -> Op:
    assert isinstance(instruction.op, BroadcastInDim)
    return dataclasses.replace(instruction.op, shape=_sizes(box))


def _read_transpose(instruction: Instruction, k: int, box: Box) -> Box:
    assert isinstance(instruction.op, Transpose)
    found = dict(zip(instruction.op.permutation, box, strict=True))
    return tuple(found[d] for d in range(len(box)))


def _read_reduce(instruction: Instruction, k: int, box: Box) -> Box:
    assert isinstance(instruction.op, Reduce)
    operand, kept = instruction.operands[k].type, iter(box)
    if k >= len(instruction.operands) // 2:
        return ()
    dimensions = instruction.op.dimensions
    return tuple((0, size) if d in dimensions else next(kept) for d, size in enumerate(operand.shape))


def _read_product(instruction: Instruction, k: int, box: Box) -> Box:
    assert isinstance(instruction.op, DotGeneral)
    n, operand = instruction.op.dimension_numbers, instruction.operands[k].type
    lhs_free = n.lhs_free(instruction.operands[0].type.rank)
    batching = n.rhs_batching if k else n.lhs_batching
    free = n.rhs_free(operand.rank) if k else lhs_free
    first = len(batching) + (len(lhs_free) if k else 0)
    found = dict(zip(batching, box, strict=False)) | dict(zip(free, box[first:], strict=False))
    return tuple(found.get(d, (0, size)) for d, size in enumerate(operand.shape))


def _read_concatenate(instruction: Instruction, k: int, box: Box) -> Box:
    assert isinstance(instruction.op, Concatenate)
    size = instruction.operands[k].type.shape[instruction.op.dimension]
    return tuple((0, size) if d == instruction.op.dimension else cut for d, cut in enumerate(box))


def _read_pad(instruction: Instruction, k: int, box: Box) -> Box:
    if k:
        return ()
    sizes = instruction.operands[0].type.shape
    return tuple(
        (0, size) if d in _padded(instruction) else cut
        for d, (cut, size) in enumerate(zip(box, sizes, strict=True))
    )


def _padded(instruction: Instruction) -> set[int]:
    """Return the dimensions that a pad changes."""
    op = instruction.op
    assert isinstance(op, Pad)
    changed = zip(op.low, op.high, op.interior, strict=True)
    return {d for d, amounts in enumerate(changed) if any(amounts)}


def _kept_by_reshape(instruction: Instruction) -> dict[int, int]:
    """Return the dimensions of a reshape's result that are dimensions of its operand, of more than one element."""
    before, after = instruction.operands[0].type.shape, instruction.results[0].type.shape
    places = {
        (math.prod(before[:d]), size): d for d, size in enumerate(before) if size > 1 and 0 not in before
    }
    found = {d: places.get((math.prod(after[:d]), size)) for d, size in enumerate(after)}
    return {d: place for d, place in found.items() if place is not None}


def _read_reshape(instruction: Instruction, k: int, box: Box) -> Box:
    kept = {place: box[d] for d, place in _kept_by_reshape(instruction).items()}
    return tuple(kept.get(d, (0, size)) for d, size in enumerate(instruction.operands[0].type.shape))


def _smaller_iota(instruction: Instruction, box: Box) -> Op:
    assert isinstance(instruction.op, Iota)
    return dataclasses.replace(instruction.op, type=instruction.op.type.with_shape(_sizes(box)))


def _but_joined(instruction: Instruction) -> set[int]:
    assert isinstance(instruction.op, Concatenate)
    return _all_dimensions(instruction) - {instruction.op.dimension}


def _but_counted(instruction: Instruction) -> set[int]:
    assert isinstance(instruction.op, Iota)
    return _all_dimensions(instruction) - {instruction.op.dimension}


_ELEMENTWISE = _Rule(_read_elements)
_RULES: dict[type[Op], _Rule] = {
    Slice: _Rule(_read_slice),
    BroadcastInDim: _Rule(_read_broadcast, _smaller_broadcast),
    Transpose: _Rule(_read_transpose),
    Reduce: _Rule(_read_reduce),
    DotGeneral: _Rule(_read_product),
    Concatenate: _Rule(_read_concatenate, cut=_but_joined),
    Pad: _Rule(_read_pad, cut=lambda i: _all_dimensions(i) - _padded(i)),
    Iota: _Rule(lambda i, k, box: (), _smaller_iota, _but_counted),
    Reshape: _Rule(
        _read_reshape,
        lambda i, box: Reshape(_sizes(box)),
        lambda i: set(_kept_by_reshape(i)),
    ),
}
