"""Neighbouring small all-reduces become one operation of several operands."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import AllReduce
from hlo_passes.passes.base import LocalPass, map_control_regions
from hlo_passes.passes.structure import computation_key


@dataclass(frozen=True)
class JoinCollectives(LocalPass):
    """Make one all-reduce of small ones that do not need each other: in the same groups, by the same region, of one type.

    Each operand is combined for itself, as before, so no value changes. What knows the machine may send the operands of
    one operation together, and so pay for latency once. Collectives that wait for each other stay apart: joined are
    those behind equally many collectives on the longest way that leads to them. Nothing moves into or out of a
    loop or a branch, and computations that exchange something with the host are left alone.

    Args:
      max_bytes: of an operand.
      max_total_bytes: of the operands of one operation: all of them are live at once.
    """

    name: ClassVar[str] = "join-collectives"
    max_bytes: int = 1 << 16
    max_total_bytes: int = 1 << 18

    def change(self, computation: Computation) -> Computation:
        """Return the computation with collectives joined; itself where there is nothing to join."""
        return self._joined(computation)

    def _joined(self, computation: Computation) -> Computation:
        if not computation.has_effect:
            return computation
        instructions = [map_control_regions(each, self._joined) for each in computation.instructions]
        if any(new is not old for new, old in zip(instructions, computation.instructions, strict=True)):
            computation = dataclasses.replace(computation, instructions=tuple(instructions))
        if computation.has_transfer:
            return computation
        groups = [group for group in self._groups(computation) if len(group) > 1]
        return _with_groups(computation, groups) if groups else computation

    def _groups(self, computation: Computation) -> list[list[int]]:
        """Return the positions of what may become one operation, in order."""
        level: dict[Value, int] = {}
        found: dict[Hashable, list[list[int]]] = {}
        for position, instruction in enumerate(computation.instructions):
            before = max((level.get(value, 0) for value in instruction.operands), default=0)
            level.update((value, before + instruction.has_effect) for value in instruction.results)
            if not isinstance(instruction.op, AllReduce):
                continue
            size = sum(type_.size_bytes for type_ in instruction.operand_types)
            if size > self.max_bytes:
                continue
            types = {value.type.dtype for value in (*instruction.operands, *instruction.results)}
            key = (before, instruction.op, computation_key(instruction.regions[0]), frozenset(types))
            groups = found.setdefault(key, [[]])
            held = sum(
                type_.size_bytes
                for other in groups[-1]
                for type_ in computation.instructions[other].operand_types
            )
            if held + size > self.max_total_bytes:
                groups.append([])
            groups[-1].append(position)
        return [group for groups in found.values() for group in groups]


def _with_groups(computation: Computation, groups: list[list[int]]) -> Computation:
    """Return the computation with every group in one operation, which stands where its last member stood, or later."""
    instructions = computation.instructions
    standing = {position: group[-1] for group in groups for position in group}
    made = {
        group[-1]: Instruction(
            instructions[group[0]].op,
            tuple(value for position in group for value in instructions[position].operands),
            tuple(value for position in group for value in instructions[position].results),
            instructions[group[0]].regions,
            instructions[group[0]].location,
        )
        for group in groups
    }
    kept = {n: made.get(n, i) for n, i in enumerate(instructions) if standing.get(n, n) == n}
    producer = {value: n for n, instruction in kept.items() for value in instruction.results}
    readers: dict[int, list[int]] = {n: [] for n in kept}
    waits = dict.fromkeys(kept, 0)
    for n, instruction in kept.items():
        for source in {producer[value] for value in instruction.operands if value in producer}:
            readers[source].append(n)
            waits[n] += 1
    ready = [n for n in kept if not waits[n]]
    order: list[Instruction] = []
    while ready:  # the order as it was, but for what waits for an operation that is further down now
        n = heapq.heappop(ready)
        order.append(kept[n])
        for reader in readers[n]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    assert len(order) == len(kept), "what is joined does not wait for itself"
    return dataclasses.replace(computation, instructions=tuple(order))
