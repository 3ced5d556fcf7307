"""What nobody reads of a value is not computed: the logits of the last token, of all that a network computes.

A slice of a product is the product of a slice, and so on to where a value comes from. Of every value the box is found that
holds all that is read of it; what computes it computes that box, along dimensions of which at most a half is read. So sizes
that suit a machine stay as they are where only an edge is left out: the last logits that have no label.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Op, Value, value_names
from hlo_passes.ops import Slice
from hlo_passes.passes.base import LocalPass, map_control_regions
from hlo_passes.passes.boxes import Box, Rule, rule_of, whole
from hlo_passes.passes.structure import FreshNames

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
    read: dict[Value, Box] = {value: whole(value) for value in computation.results}
    found: dict[Value, Box] = {}
    for instruction in reversed(computation.instructions):
        rule = _rule(instruction)
        box = None
        if rule is not None:
            (result,) = instruction.results
            box = _worth_it(read.get(result, whole(result)), result, rule.cut(instruction))
            if box != whole(result):
                found[result] = box
        for k, operand in enumerate(instruction.operands):
            part = whole(operand) if rule is None or box is None else rule.read(instruction, k, box)
            read[operand] = _hull(read[operand], part) if operand in read else part
    return found


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
        box = self._boxes.get(result, whole(result))
        parts = [rule.read(instruction, k, box) for k in range(len(instruction.operands))]
        if isinstance(instruction.op, Slice) and not self._boxes.keys().isdisjoint(
            (result, *instruction.operands)
        ):
            (operand,), (part,) = instruction.operands, parts
            self._made[result] = self._part(operand, part, instruction, instruction.op.strides)
            return
        if isinstance(instruction.op, Slice):
            parts = [whole(self._made.get(operand, operand)) for operand in instruction.operands]
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
        there, held = self._made.get(value, value), self._boxes.get(value, whole(value))
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


def _rule(instruction: Instruction) -> Rule | None:
    """Return how an operation of one result computes a box of it; None if it computes all of it."""
    return rule_of(instruction) if len(instruction.results) == 1 else None
