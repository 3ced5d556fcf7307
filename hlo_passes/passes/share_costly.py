"""Costly functions that are computed again and again, of the same, are computed once and before everything else.

A network whose every layer computes the sines of its positions would compute them in the function that its layers become, on every
call. Other common subexpressions wait until layers are functions: merged before, the first layer would be unlike the others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Value
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.cse import repeated
from hlo_passes.passes.precompute import COSTLY


@dataclass(frozen=True)
class ShareCostly(LocalPass):
    """Compute costly functions of the same, of up to ``max_bytes`` each, once: they lie in memory from then on."""

    name: ClassVar[str] = "share-costly"
    max_bytes: int = 1 << 22

    def change(self, computation: Computation) -> Computation:
        """Return the computation with shared functions first; itself when there are none."""
        if computation.op_types.isdisjoint(COSTLY):
            return computation
        first = repeated(computation)
        shared = {
            instruction.result: first[instruction.result]
            for instruction in computation.instructions
            if isinstance(instruction.op, COSTLY)
            and instruction.result in first
            and instruction.result.type.size_bytes <= self.max_bytes
        }
        if not shared:
            return computation
        needed: set[Value] = set(shared.values())
        early: set[int] = set()
        for number in reversed(range(len(computation.instructions))):
            instruction = computation.instructions[number]
            if not needed.isdisjoint(instruction.results):
                early.add(number)
                needed.update(instruction.operands)
        if any(computation.instructions[number].has_effect for number in early):
            return computation
        ordered = sorted(range(len(computation.instructions)), key=lambda number: number not in early)
        instructions = (computation.instructions[number] for number in ordered)
        settled = tuple(
            i
            if shared.keys().isdisjoint(i.operands)
            else dataclasses.replace(i, operands=tuple(shared.get(value, value) for value in i.operands))
            for i in instructions
        )
        results = tuple(shared.get(value, value) for value in computation.results)
        return dataclasses.replace(computation, instructions=settled, results=results)
