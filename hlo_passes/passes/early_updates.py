"""Donated state is updated as soon as it can be, so that what updates it need not be kept.

A training step computes all gradients and then all updates, and no order of it holds less at its peak, where the gradients begin.
But what is planned afterwards holds all gradients, beside the messages of all updates at once. Layers that share one function
are updated between its calls instead, where that frees memory.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Module, Value
from hlo_passes.passes.base import Pass
from hlo_passes.passes.buffers import analyze
from hlo_passes.passes.structure import users_of


@dataclass(frozen=True)
class EarlyUpdates(Pass):
    """Run what reads a donated parameter last, and frees more than it makes, right after what it waits for.

    What it waits for are its operands, and whatever else reads those that it is the last to read.
    """

    name: ClassVar[str] = "early-updates"

    def run(self, module: Module) -> Module:
        """Return the module with updates of donated parameters earlier; itself when none can be, or more would be held at once."""
        entry, donated = module.entry_computation, module.donated
        changed = _reordered(entry, {entry.parameters[n] for n in donated})
        if changed is entry or analyze(changed, donated).peak_bytes > analyze(entry, donated).peak_bytes:
            return module
        computations = tuple(changed if c is entry else c for c in module.computations)
        return dataclasses.replace(module, computations=computations)


def _reordered(computation: Computation, donated: set[Value]) -> Computation:
    instructions, readers = computation.instructions, users_of(computation)
    kept = {*computation.results, *computation.parameters} - (donated - {*computation.results})
    maker = {value: n for n, instruction in enumerate(instructions) for value in instruction.results}
    places: list[tuple[int, bool, int]] = []
    for number, instruction in enumerate(instructions):
        read = dict.fromkeys(instruction.operands)
        ending = [v for v in read if v not in kept and max(readers[v]) == number]
        freed = sum(v.type.size_bytes for v in ending)
        made = sum(v.type.size_bytes for v in instruction.results)
        if donated.isdisjoint(ending) or freed <= made or instruction.has_effect:
            places.append((number, False, number))
            continue
        waits_for = {maker[v] for v in read if v in maker}
        waits_for |= {reader for v in ending for reader in readers[v] if reader != number}
        places.append((max((places[n][0] for n in waits_for), default=-1), True, number))
    order = sorted(range(len(instructions)), key=places.__getitem__)
    if order == list(range(len(instructions))):
        return computation
    return dataclasses.replace(computation, instructions=tuple(instructions[n] for n in order))
