"""Dead code elimination: instructions, computations, and results and parameters of called computations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Module, Value
from hlo_passes.ops import Call
from hlo_passes.passes.base import Pass, map_control_regions
from hlo_passes.passes.structure import callees_first

Kept = Mapping[str, tuple[int, ...]]
"""Positions to keep of each computation's results, or of its parameters."""


@dataclass(frozen=True)
class EliminateDeadCode(Pass):
    """Drop what no result of the entry depends on; what is exchanged with the host stays.

    The entry keeps its signature. Other computations lose results that no call reads and parameters that they
    do not read, computations that nothing calls go away.
    """

    name: ClassVar[str] = "dce"

    def run(self, module: Module) -> Module:
        """Return the module without dead code; itself when there is none."""
        order = callees_first(module)
        computations = {computation.name: computation for computation in order}
        _drop_results(computations, [computation.name for computation in reversed(order)], module.entry)
        _drop_parameters(computations, [computation.name for computation in order], module.entry)
        shrunk = tuple(computations[c.name] for c in module.computations if c.name in computations)
        called = {c.name for c in callees_first(dataclasses.replace(module, computations=shrunk))}
        kept = tuple(computation for computation in shrunk if computation.name in called)
        if len(kept) == len(module.computations) and all(
            new is old for new, old in zip(kept, module.computations, strict=True)
        ):
            return module
        return dataclasses.replace(module, computations=kept)


def _drop_results(computations: dict[str, Computation], callers_first: Sequence[str], entry: str) -> None:
    """Remove dead instructions and unread results, each computation after all its callers."""
    read: dict[str, set[int]] = {name: set() for name in callers_first}
    read[entry].update(range(len(computations[entry].results)))
    for name in callers_first:
        old = computations[name]
        positions = sorted(read[name])
        shrunk = old
        if len(positions) < len(old.results):
            shrunk = dataclasses.replace(old, results=tuple(old.results[i] for i in positions))
        computations[name] = without_dead_instructions(shrunk)
        _mark_read_results(computations[name], read)
    kept = {name: tuple(sorted(positions)) for name, positions in read.items()}
    for name in callers_first:
        computations[name] = _with_smaller_calls(computations[name], kept, {})


def without_dead_instructions(computation: Computation) -> Computation:
    """Return the computation without what its results do not depend on; itself when there is none of it."""
    live = set(computation.results)
    kept: list[Instruction] = []
    for instruction in reversed(computation.instructions):
        if instruction.has_effect or not live.isdisjoint(instruction.results):
            live.update(instruction.operands)
            kept.append(map_control_regions(instruction, without_dead_instructions))
    kept.reverse()
    if len(kept) == len(computation.instructions) and all(
        new is old for new, old in zip(kept, computation.instructions, strict=True)
    ):
        return computation
    return dataclasses.replace(computation, instructions=tuple(kept))


def _mark_read_results(computation: Computation, read: dict[str, set[int]]) -> None:
    if not computation.callees:
        return
    live = {value for instruction in computation.instructions for value in instruction.operands}
    live.update(computation.results)
    for instruction in computation.instructions:
        for region in instruction.regions:
            _mark_read_results(region, read)
        if isinstance(instruction.op, Call):
            read[instruction.op.callee].update(
                number for number, value in enumerate(instruction.results) if value in live
            )


def _drop_parameters(computations: dict[str, Computation], callees_first: Sequence[str], entry: str) -> None:
    """Remove parameters that are not read, each computation after all it calls."""
    kept: dict[str, tuple[int, ...]] = {}
    for name in callees_first:
        computation = _with_smaller_calls(computations[name], {}, kept)
        if computation is not computations[name]:
            computation = without_dead_instructions(computation)
        positions = tuple(range(len(computation.parameters)))
        if name != entry:
            live = {value for instruction in computation.instructions for value in instruction.operands}
            live.update(computation.results)
            positions = tuple(i for i in positions if computation.parameters[i] in live)
        if len(positions) < len(computation.parameters):
            parameters = tuple(computation.parameters[i] for i in positions)
            computation = dataclasses.replace(computation, parameters=parameters)
        computations[name] = computation
        kept[name] = positions


def _with_smaller_calls(computation: Computation, results: Kept, parameters: Kept) -> Computation:
    """Adapt calls to callees that lost results or parameters; a callee that is not named lost none."""

    def visit(region: Computation) -> Computation:
        if not region.callees:
            return region
        changed = tuple(shrink(instruction) for instruction in region.instructions)
        if all(new is old for new, old in zip(changed, region.instructions, strict=True)):
            return region
        return dataclasses.replace(region, instructions=changed)

    def shrink(instruction: Instruction) -> Instruction:
        instruction = map_control_regions(instruction, visit)
        op = instruction.op
        if not isinstance(op, Call):
            return instruction
        made = _chosen(instruction.results, results.get(op.callee))
        read = _chosen(instruction.operands, parameters.get(op.callee))
        if made == instruction.results and read == instruction.operands:
            return instruction
        op = Call(op.callee, tuple(value.type for value in made))
        return dataclasses.replace(instruction, op=op, operands=read, results=made)

    return visit(computation)


def _chosen(values: tuple[Value, ...], positions: tuple[int, ...] | None) -> tuple[Value, ...]:
    return values if positions is None else tuple(values[i] for i in positions)
