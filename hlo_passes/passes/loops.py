"""What passes ask about loops and branches, and how they write changed ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hlo_passes.ir import Computation, Instruction, Value, replace_values, value_names
from hlo_passes.ops import Constant, Repeat, While
from hlo_passes.passes.structure import FreshNames


def num_carried(instruction: Instruction) -> int:
    """Return how many of a loop's operands are carried; the others are invariants."""
    assert isinstance(instruction.op, (While, Repeat))
    return len(instruction.operands) - instruction.op.invariants


def with_invariants(op: While | Repeat, count: int) -> While | Repeat:
    """Return a loop's operation for another number of invariants."""
    return dataclasses.replace(op, invariants=count)


def body_of(instruction: Instruction) -> Computation:
    """Return the region that makes a loop's carried values."""
    return instruction.regions[-1]


def constant_in(region: Computation, value: Value) -> Constant | None:
    """Return the constant that a value is inside a region, or None."""
    producer = region.producers.get(value)
    return producer.op if producer is not None and isinstance(producer.op, Constant) else None


def read_values(region: Computation) -> set[Value]:
    """Return what a region's instructions and results read."""
    read = set(region.results)
    for instruction in region.instructions:
        read.update(instruction.operands)
    return read


def without_parameters(
    region: Computation, kept: Sequence[int], replacements: Mapping[Value, Value] | None = None
) -> Computation:
    """Return a region with only the parameters at ``kept``, reading replacements for others."""
    changed = replace_values(region, replacements) if replacements else region
    return dataclasses.replace(changed, parameters=tuple(region.parameters[i] for i in kept))


def with_constants(region: Computation, constants: Mapping[int, Instruction]) -> Computation:
    """Return a region that makes the constants at some parameters' positions itself."""
    names = FreshNames(value_names(region))
    made: list[Instruction] = []
    replacements: dict[Value, Value] = {}
    for position, producer in constants.items():
        parameter = region.parameters[position]
        value = Value(names.new(), parameter.type)
        made.append(dataclasses.replace(producer, results=(value,)))
        replacements[parameter] = value
    kept = [i for i in range(len(region.parameters)) if i not in constants]
    changed = without_parameters(region, kept, replacements)
    return dataclasses.replace(changed, instructions=(*made, *changed.instructions))
