"""Fusion by the four categories: which operations one pass over the data computes together.

Every fusion has one result here; ``multi-output-fusion`` joins some. Kinds:

- ``loop``: injective operations; one expression over the result (``passes.indexing``).
- ``input``: injective operations, then one single-operand reduction by a well-known combiner.
- ``output``: one ``dot_general``, then injective operations of its shape; other operands may be broadcast.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from hlo_passes.ir import Builder, Computation, Instruction, Location, Module, Value
from hlo_passes.ops import Constant, DotGeneral, Fusion, Pad, Reduce
from hlo_passes.passes.base import Pass, map_control_regions, map_module
from hlo_passes.passes.fusion_groups import Group, Grouping
from hlo_passes.passes.indexing import Axes, access, compose, identity


@dataclass(frozen=True)
class Fuse(Pass):
    """Join producers to the consumer that alone reads them, up to ``max_ops`` operations, of words up to four times as many.

    Of many elements nothing is computed twice: only what costs nothing to repeat (constants, iotas, broadcasts, reshapes that
    move sizes of 1) is copied into several fusions. An operation is not joined below a broadcast that would
    repeat it, nor below a transpose, slice or reverse when that would move two operands instead of one.

    Of at most 64 elements, a step costs more than what it computes. So slices and what takes an instruction or two for an
    element are copied into all fusions that read them, as long as that is less work than a step, and a fusion may have
    four times as many operations.
    """

    name: ClassVar[str] = "fuse"
    max_ops: int = 64

    def run(self, module: Module) -> Module:
        """Return the module with fusions; itself when nothing fuses."""
        return map_module(module, lambda computation: _fuse(computation, self.max_ops))


def _fuse(computation: Computation, max_ops: int) -> Computation:
    computation = _with_fused_regions(computation, max_ops)
    groups = Grouping(computation, max_ops).run()
    if not any(len(group.members) > 1 for group in groups.values()):
        return computation
    instructions: list[Instruction] = []
    for instruction in computation.instructions:
        group = groups.get(instruction)
        if group is not None:
            instructions.append(
                _Region(computation, group).fusion() if len(group.members) > 1 else instruction
            )
    return dataclasses.replace(computation, instructions=tuple(instructions))


def _with_fused_regions(computation: Computation, max_ops: int) -> Computation:
    changed = tuple(
        map_control_regions(instruction, lambda region: _fuse(region, max_ops))
        for instruction in computation.instructions
    )
    if all(new is old for new, old in zip(changed, computation.instructions, strict=True)):
        return computation
    return dataclasses.replace(computation, instructions=changed)


class _Key(NamedTuple):
    """A value as a region needs it: at which indices, and whether it must be handed in.

    ``axes`` is None where indices of the domain do not matter (constants, operands of a contraction, initial
    values).
    """

    value: Value
    axes: Axes | None
    is_leaf: bool = False


class _Region:
    """Writes a group down as the region of a fusion.

    An instruction read through two maps is written twice, so that inside the region every value, and every
    parameter, is read through one map: a value of the computation read through two maps is two operands.
    """

    def __init__(self, computation: Computation, group: Group) -> None:
        self.producers = computation.producers
        self.group = group
        self.made: dict[_Key, Value] = {}

    def fusion(self) -> Instruction:
        """Return the fusion that computes the group's root."""
        root = self.group.root
        builder = Builder(f"fused_{root.op.name.rpartition('.')[2]}")
        start = self._key(root.result, identity(self.group.domain))
        needed = self._in_order(start)
        operands = [key.value for key in needed if self._member(key) is None]
        for key in needed:
            if self._member(key) is None:
                self.made[key] = builder.parameter(key.value.type)
        for key in needed:
            producer = self._member(key)
            if producer is not None:
                reads = [self.made[need] for need in self._needs(producer, key.axes)]
                self.made[key] = builder.clone(producer, reads)[0]
        region = builder.build(self.made[start])
        return Instruction(
            Fusion(self.group.kind), tuple(operands), root.results, (region,), self._location()
        )

    def _member(self, key: _Key) -> Instruction | None:
        producer = None if key.is_leaf else self.producers.get(key.value)
        return producer if producer is not None and producer in self.group.members else None

    def _key(self, value: Value, axes: Axes | None) -> _Key:
        """Return the key of a value at some indices; a constant is the same at all."""
        producer = self.producers.get(value)
        is_constant = (
            producer is not None and producer in self.group.members and isinstance(producer.op, Constant)
        )
        return _Key(value, None if is_constant else axes)

    def _in_order(self, start: _Key) -> list[_Key]:
        """Return what the root needs, operands before what reads them."""
        order: dict[_Key, None] = {}
        stack = [start]
        while stack:
            key = stack[-1]
            producer = self._member(key)
            if key not in order and producer is not None:
                missing = [need for need in self._needs(producer, key.axes) if need not in order]
                if missing:
                    stack += reversed(missing)
                    continue
            stack.pop()
            order.setdefault(key)
        return list(order)

    def _needs(self, instruction: Instruction, axes: Axes | None) -> list[_Key]:
        """Return the keys of a member's operands when it is read at ``axes``."""
        op = instruction.op
        if isinstance(op, DotGeneral):
            return [_Key(value, None, is_leaf=True) for value in instruction.operands]
        if isinstance(op, Reduce):
            operand, initial = instruction.operands
            return [self._key(operand, axes), _Key(initial, None, is_leaf=not self.group.has_initial)]
        needs: list[_Key] = []
        for number, value in enumerate(instruction.operands):
            inner = access(instruction, number)
            assert inner is not None
            assert axes is not None
            composed = compose(axes, inner)
            if isinstance(op, Pad) and number == 0:
                needs.append(_Key(value, composed, is_leaf=True))
            else:
                needs.append(self._key(value, composed))
        return needs

    def _location(self) -> Location:
        """Return the line of the contraction or root, or the first that is known."""
        chosen = [self.group.dot or self.group.root, *self.group.members]
        return next((i.location for i in chosen if i.location.is_known), chosen[0].location)
