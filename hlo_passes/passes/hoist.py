"""Loop-invariant code motion."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Value, value_names
from hlo_passes.ops import Constant, Iota, OptimizationBarrier, Repeat, While
from hlo_passes.ops.collectives import PartitionId, ReplicaId
from hlo_passes.ops.data_movement import DataMovement
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.ops.indexing import DynamicSlice
from hlo_passes.passes.base import LocalPass, map_control_regions
from hlo_passes.passes.loops import num_carried, with_invariants
from hlo_passes.passes.precompute import COSTLY
from hlo_passes.passes.structure import FreshNames


@dataclass(frozen=True)
class Hoist(LocalPass):
    """Compute before a loop what every round computes anew from the same operands.

    What depends on constants alone stays (it is cheap or will be folded), and so does what is larger than the
    operands it is made of: it would lie in memory as long as the loop runs. Inner loops come first, so that a
    value leaves all loops that it does not depend on. Loops and branches themselves stay where they are.

    Costly functions of up to ``max_bytes`` leave a loop with all that they are made of, however small: sines of a
    position, in every layer of a scan over layers, or of that part of it which an IPU has. What else reads that, computes
    it as before.
    """

    name: ClassVar[str] = "hoist"
    max_bytes: int = 1 << 18

    def change(self, computation: Computation) -> Computation:
        """Return the computation with invariants before their loops; itself when there are none."""
        return _hoist(computation, self.max_bytes)


def _hoist(computation: Computation, most: int) -> Computation:
    names = FreshNames(value_names(computation))
    instructions: list[Instruction] = []
    for old in computation.instructions:
        instruction = map_control_regions(old, lambda region: _hoist(region, most))
        if isinstance(instruction.op, (While, Repeat)):
            for number in range(len(instruction.regions)):
                moved, instruction = _out_of_region(instruction, number, names, most)
                instructions += moved
        instructions.append(instruction)
    if len(instructions) == len(computation.instructions) and all(
        new is old for new, old in zip(instructions, computation.instructions, strict=True)
    ):
        return computation
    return dataclasses.replace(computation, instructions=tuple(instructions))


def _out_of_region(
    loop: Instruction, number: int, names: FreshNames, most: int
) -> tuple[list[Instruction], Instruction]:
    """Return what one region of a loop may compute before it, and the loop without that."""
    region = loop.regions[number]
    moving = _movable(region, num_carried(loop), most)
    if not moving:
        return [], loop
    outside = dict(zip(region.parameters, loop.operands, strict=True))
    moved: list[Instruction] = []

    def move(instruction: Instruction) -> None:
        for value in instruction.operands:
            if value not in outside:  # what stays in the region: constants, operands of costly functions
                move(region.producers[value])
        results = tuple(Value(names.new(), value.type) for value in instruction.results)
        operands = tuple(outside[value] for value in instruction.operands)
        moved.append(dataclasses.replace(instruction, operands=operands, results=results))
        outside.update(zip(instruction.results, results, strict=True))

    for instruction in moving:
        move(instruction)
    made = [value for instruction in moving for value in instruction.results]
    return moved, _reading(loop, number, moving, made, [outside[value] for value in made])


_CHEAP = (Elementwise, DataMovement, Iota, DynamicSlice)
"""What costly functions may be made of and are computed with once more, in place of what the loop computes."""


def _movable(region: Computation, carried: int, most: int) -> list[Instruction]:
    """Return the instructions of a region that depend on invariants, and are not larger than those, or costly and small."""
    constants = {value for i in region.instructions if isinstance(i.op, Constant) for value in i.results}
    fixed = set(region.parameters[carried:])
    derived = set(fixed)  # what depends on invariants, of any size
    timeless = set(constants)  # what depends on nothing
    moving: list[Instruction] = []
    for instruction in region.instructions:
        if (
            instruction.op.is_control
            or instruction.has_effect
            or isinstance(instruction.op, OptimizationBarrier)
        ):
            continue
        read = {value for value in instruction.operands if value not in constants}
        size = sum(v.type.size_bytes for v in instruction.results)
        if isinstance(instruction.op, (PartitionId, ReplicaId)):
            derived.update(instruction.results)
        elif isinstance(instruction.op, _CHEAP) and size <= most:
            if timeless.issuperset(instruction.operands):
                timeless.update(instruction.results)
            elif all(value in derived or value in timeless for value in instruction.operands):
                derived.update(instruction.results)
        if isinstance(instruction.op, COSTLY) and derived.issuperset(instruction.results):
            pass
        elif not read or not read <= fixed or size > sum(v.type.size_bytes for v in read):
            continue
        moving.append(instruction)
        fixed.update(instruction.results)
    return moving


def _reading(
    loop: Instruction,
    number: int,
    moving: list[Instruction],
    made: Sequence[Value],
    operands: Sequence[Value],
) -> Instruction:
    """Return a loop one of whose regions reads ``operands`` where it computed ``made``."""
    assert isinstance(loop.op, (While, Repeat))
    regions: list[Computation] = []
    for position, region in enumerate(loop.regions):
        if position == number:
            kept = tuple(i for i in region.instructions if i not in moving)
            parameters = tuple(made)
        else:
            names = FreshNames(value_names(region))
            kept = region.instructions
            parameters = tuple(Value(names.new(), value.type) for value in made)
        regions.append(
            dataclasses.replace(region, parameters=(*region.parameters, *parameters), instructions=kept)
        )
    op = with_invariants(loop.op, loop.op.invariants + len(made))
    return dataclasses.replace(loop, op=op, operands=(*loop.operands, *operands), regions=tuple(regions))
