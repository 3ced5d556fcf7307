"""Make computations that are equal up to names one computation, called several times."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Module, agreed_computation
from hlo_passes.ops import Call
from hlo_passes.passes.base import Pass, map_control_regions
from hlo_passes.passes.structure import callees_first, computation_key


@dataclass(frozen=True)
class Outline(Pass):
    """Let calls of equal computations call the first of them; the others go away.

    Equal means up to value names and source lines, calls inside included, so two equal towers of calls merge
    too. The entry is never merged with another. Scopes become what all of them agree on.
    """

    name: ClassVar[str] = "outline"

    def run(self, module: Module) -> Module:
        """Return the module without repeated computations; itself when none is repeated."""
        first: dict[Hashable, str] = {}
        stands_for: dict[str, str] = {}
        done: dict[str, Computation] = {}
        for computation in callees_first(module):
            merged = _redirect(computation, stands_for)
            done[merged.name] = merged
            if merged.name != module.entry:
                name = first.setdefault(computation_key(merged), merged.name)
                if name != merged.name:
                    stands_for[merged.name] = name
        if not stands_for:
            return module
        alike = {name: [done[name]] for name in first.values()}
        for merged, name in stands_for.items():
            alike[name].append(done[merged])
        done |= {name: agreed_computation(several) for name, several in alike.items() if len(several) > 1}
        kept = tuple(done[c.name] for c in module.computations if c.name in done and c.name not in stands_for)
        return dataclasses.replace(module, computations=kept)


def _redirect(computation: Computation, stands_for: dict[str, str]) -> Computation:
    """Return ``computation`` with calls of merged computations going to what stands for them."""

    def visit(region: Computation) -> Computation:
        changed = tuple(redirect(instruction) for instruction in region.instructions)
        if all(new is old for new, old in zip(changed, region.instructions, strict=True)):
            return region
        return dataclasses.replace(region, instructions=changed)

    def redirect(instruction: Instruction) -> Instruction:
        instruction = map_control_regions(instruction, visit)
        op = instruction.op
        if not isinstance(op, Call) or op.callee not in stands_for:
            return instruction
        return dataclasses.replace(instruction, op=dataclasses.replace(op, callee=stands_for[op.callee]))

    return visit(computation) if stands_for else computation
