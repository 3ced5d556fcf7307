"""What moving a variable to other replicas takes: the part of the tiles, of the links between IPUs, and of the sync.

Every tile sends its part to the tile of its number on another IPU. The phase lasts as long as its busiest tile or its
busiest link, and its longest route; a sync of exactly the IPUs that take part comes before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tiles.compiler.executable import Executable, Variable
from tiles.compiler.steps import BetweenStep
from tiles.graph.layout import ceil_div
from tiles.numerics.dtypes import WORD_BYTES, itemsize
from tiles.plan import Traffic
from tiles.plan.exchange import send_instructions
from tiles.plan.links import Crossing, crossing
from tiles.target import Basis, Target


@dataclass(frozen=True, eq=False)
class LinkCost:
    """What the links take of a step.

    Args:
      crossing: the flows.
      flow_bytes: bytes of each.
      cycles: that links and routes add to what tiles take; None: unknown.
      parts: those cycles by what they rest on.
      sync_cycles: of the IPUs that take part; None: unknown.
      sync_basis: of that.
    """

    crossing: Crossing
    flow_bytes: int
    cycles: int | None
    parts: tuple[tuple[Basis, int], ...]
    sync_cycles: int | None
    sync_basis: Basis

    @property
    def link_bytes(self) -> np.ndarray:
        """Bytes by link and direction, int64 ``[links, 2]``; see ``System.table``."""
        unit = self.crossing.unit
        return np.zeros((0, 2), np.int64) if unit is None else unit.link_bytes * self.flow_bytes

    @property
    def busiest_bytes(self) -> int:
        """Bytes on the link that takes longest."""
        unit = self.crossing.unit
        return 0 if unit is None else int(unit.link_bytes[unit.busiest]) * self.flow_bytes


def link_cost(executable: Executable, step: BetweenStep, tile_cycles: int) -> LinkCost:
    """Return what a step's bytes take on the links.

    Args:
      executable: the program, on a system.
      step: the step.
      tile_cycles: of its busiest tile.
    """
    assert executable.system is not None
    found = crossing(executable.system, executable.replicas, step.axes, step.permutations)
    v = executable.variables[step.source]
    flow_bytes = ceil_div(math.prod(v.shape) * itemsize(v.dtype), len(step.permutations))
    if found.unit is None:
        return LinkCost(found, flow_bytes, 0, (), 0, Basis.DOCUMENTED)
    unit = found.unit
    transfer = math.ceil(unit.transfer_seconds * flow_bytes * unit.clock_hz)
    latency = None if unit.latency_seconds is None else math.ceil(unit.latency_seconds * unit.clock_hz)
    excess = max(0, transfer - tile_cycles)
    return LinkCost(
        found,
        flow_bytes,
        None if latency is None else excess + latency,
        ((unit.transfer_basis, excess), (unit.latency_basis, latency or 0)),
        unit.sync.cycles,
        unit.sync.basis,
    )


def between_traffic(variable: Variable, moves: bool, target: Target) -> Traffic:
    """Return what tiles send and receive of a variable that is moved as it lies; nothing where no replica sends."""
    total = Traffic.none(target.num_tiles)
    part = variable.layout.part_bytes(variable.dtype)
    if not moves or not part:
        return total
    figures = {name: np.zeros(target.num_tiles, np.int64) for name in vars(total)}
    tiles, words = variable.layout.tiles, ceil_div(part, WORD_BYTES)
    for name in ("received", "sent"):
        figures[name][tiles] = words * WORD_BYTES
    figures["sends"][tiles] = send_instructions(words, 1, target)
    for name in ("runs", "selects", "pointers"):
        figures[name][tiles] = 1
    return Traffic(**figures)


def step_crossing(executable: Executable, step: BetweenStep) -> Crossing:
    """Return a step's flows."""
    assert executable.system is not None
    return crossing(executable.system, executable.replicas, step.axes, step.permutations)
