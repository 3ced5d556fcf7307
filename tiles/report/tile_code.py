"""Tile code of a program: the variants that its vertices run, what each costs on its largest vertex, and the code itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tiles.compiler import Executable, ExecuteStep
from tiles.compiler.costs import group_extents
from tiles.compiler.steps import VertexGroup
from tiles.elements import Variant, as_text, cost_of, instructions_for
from tiles.engine import coverage_of
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.files import JsonObject
from tiles.graph import VertexCode


@dataclass
class Use:
    """A variant in a program, with the largest vertex that runs it.

    Attributes:
      label: vertex type.
      variant: its code.
      n, rows: extents of the vertex that takes longest.
      cycles: of that vertex, by the code.
      runs: how often that vertex runs it.
      vertices: how many run it.
      bases: what the predicted cycles of its vertices rest on.
      steps: where they run.
    """

    label: str
    variant: Variant
    n: int = 0
    rows: int = 0
    cycles: int = -1
    runs: int = 0
    vertices: int = 0
    bases: dict[str, None] = field(default_factory=dict[str, None])
    steps: dict[int, None] = field(default_factory=dict[int, None])

    def meet(self, part: VertexCode, number: int, basis: str, shape: tuple[int, ...]) -> None:
        """Take in the vertices of a part."""
        runs, n, rows = (
            np.broadcast_to(np.asarray(x, np.int64), shape) for x in (part.runs, part.n, part.rows)
        )
        cycles = np.where(runs > 0, np.broadcast_to(np.asarray(part.cycles, np.int64), shape), -1)
        longest = int(cycles.argmax())
        if int(cycles.flat[longest]) > self.cycles:
            self.n, self.rows = int(n.flat[longest]), int(rows.flat[longest])
            self.cycles, self.runs = int(cycles.flat[longest]), int(runs.flat[longest])
        self.vertices += int((runs > 0).sum())
        self.bases[basis] = None
        self.steps[number] = None


def uses_of(executable: Executable, steps: Iterable[int]) -> tuple[list[Use], dict[str, str]]:
    """Return the variants that some steps run, in order, and why vertex types have no code, by type."""
    found: dict[int, Use] = {}
    missing: dict[str, str] = {}
    for number in steps:
        step = executable.steps[number]
        for group in step.groups if isinstance(step, ExecuteStep) else ():
            _collect(executable, number, group, found, missing)
    return list(found.values()), missing


def _collect(
    executable: Executable, number: int, group: VertexGroup, found: dict[int, Use], missing: dict[str, str]
) -> None:
    extents, codelet = group_extents(executable, group), group.codelet
    try:
        parts = codelet.tile_code(extents, executable.target)
    except (NoTileCode, OutOfRegisters) as error:
        missing.setdefault(codelet.label, error.what)
        return
    basis = codelet.cycles(extents, executable.target).basis.value
    for part in parts:
        use = found.setdefault(id(part.variant), Use(codelet.label, part.variant))
        use.meet(part, number, basis, group.plan.tiles.shape)


def print_tile_code(executable: Executable) -> str:
    """Return what share of a program has code, and the code of every variant: bundles, slots, loops, registers, bytes and cycles."""
    uses, missing = uses_of(executable, range(len(executable.steps)))
    texts = [_text(executable, use) for use in uses]
    texts += [f"{label}: no tile code: {reason}" for label, reason in missing.items()]
    return "\n\n".join([str(coverage_of(executable)), *texts]) if texts else "no vertices"


def _text(executable: Executable, use: Use) -> str:
    isa = instructions_for(executable.target)
    cost = cost_of(use.variant.code, {"n": use.n, "rows": use.rows}, isa)
    steps = ", ".join(f"{executable.steps[k].name} ({k})" for k in list(use.steps)[:_STEPS_SHOWN])
    more = f" and {len(use.steps) - _STEPS_SHOWN} more" if len(use.steps) > _STEPS_SHOWN else ""
    slots = ", ".join(f"{int(n):,}" for n in cost.slots)
    where = f"{use.vertices:,} vertices in {steps}{more}; prediction {', '.join(use.bases)}"
    size = f"n = {use.n:,}" + (f", rows = {use.rows:,}" if "rows" in use.variant.code.arguments else "")
    size += f", {use.runs:,} times" if use.runs > 1 else ""
    largest = f"largest: {size}: {use.cycles:,} cycles; slots of the workers {slots}; supervisor {cost.supervisor_cycles} cycles"
    return f"{use.label}\n  {where}\n  {largest}\n{as_text(use.variant.code, isa)}"


_STEPS_SHOWN = 6


def tile_code_data(executable: Executable, steps: Iterable[int]) -> list[JsonObject]:
    """Return a row for every variant that some steps run.

    Returns:
      ``vertexType``, ``numVertices``; ``codeBytes``, ``mainRegisters``, ``auxRegisters``; ``n``, ``rows``, ``cycles``:
      of the vertex that takes longest, by the code.
    """
    return [
        {
            "vertexType": use.label,
            "numVertices": use.vertices,
            "codeBytes": use.variant.code_bytes,
            "mainRegisters": use.variant.code.registers[0],
            "auxRegisters": use.variant.code.registers[1],
            "n": use.n,
            "rows": use.rows,
            "cycles": use.cycles,
        }
        for use in uses_of(executable, steps)[0]
    ]
