"""Decisions that all devices take alike, in the program of one device that XLA's partitioner has made.

The partitioner puts collectives into branches and loops wherever the program of all devices has what they bring, and takes
for granted that each device decides as the others do: what decides is one value of that program, which every device
holds whole. That is so, but not always seen: a value that crossed halves of a halo and was put together again looks as if
it differed along an axis of the mesh. There the devices agree on it: the largest of equal values is each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hlo_passes.ir import Builder, Computation, Instruction, Module, TensorType, Value, value_names
from hlo_passes.ops import AllReduce, DeviceGroups, Maximum, Or, While
from hlo_passes.passes.base import map_control_regions
from hlo_passes.passes.divergence import Axes, Uneven, uneven_collective


def with_equal_decisions(module: Module, differs: Sequence[Axes] | None = None) -> Module:
    """Return a module in which every collective is reached by all members of its groups; itself where all are already.

    Args:
      module: the program of each device of ``module.mesh``; all its collectives are those of XLA's partitioner.
      differs: along which axes each parameter of the entry computation may differ; by default along all.
    """
    while True:
        found = uneven_collective(module, differs)
        if found is None:
            return module
        module = _agreed(module, found)


def _agreed(module: Module, found: Uneven) -> Module:
    """Return the module in which devices agree, along the axes found, on what the decider goes by."""
    groups = DeviceGroups.along(module.mesh, [name for name, _ in module.mesh if name in found.axes])

    def changed(computation: Computation) -> Computation:
        instructions: list[Instruction] = []
        for instruction in computation.instructions:
            if instruction is not found.decider:
                instructions.append(map_control_regions(instruction, changed))
            elif isinstance(instruction.op, While):
                condition, body = instruction.regions
                regions = _with_equal_result(condition, groups, instruction), body
                instructions.append(dataclasses.replace(instruction, regions=regions))
            else:
                decides, *others = instruction.operands
                agreed = _agreement(decides, _unused_name(computation), groups, instruction)
                instructions += [
                    agreed,
                    dataclasses.replace(instruction, operands=(agreed.result, *others)),
                ]
        if all(new is old for new, old in zip(instructions, computation.instructions, strict=False)):
            return computation
        return dataclasses.replace(computation, instructions=tuple(instructions))

    return dataclasses.replace(module, computations=tuple(map(changed, module.computations)))


def _with_equal_result(condition: Computation, groups: DeviceGroups, decider: Instruction) -> Computation:
    """Return a loop's condition whose result devices have agreed on."""
    (holds,) = condition.results
    agreed = _agreement(holds, _unused_name(condition), groups, decider)
    return dataclasses.replace(
        condition, instructions=(*condition.instructions, agreed), results=agreed.results
    )


def _agreement(value: Value, name: str, groups: DeviceGroups, decider: Instruction) -> Instruction:
    """Return the all-reduce by which the members of groups agree on a truth value or a branch's number."""
    combine = Builder("agree")
    a, b = (combine.parameter(TensorType((), value.type.dtype)) for _ in range(2))
    region = combine.build(combine.add(Or() if value.type.dtype == "i1" else Maximum(), a, b))
    return Instruction(AllReduce(groups), (value,), (Value(name, value.type),), (region,), decider.location)


def _unused_name(computation: Computation) -> str:
    names = value_names(computation)
    return next(name for n in range(len(names) + 1) if (name := f"%agreed{n}") not in names)
