"""What an exchange between IPUs takes: the part of the tiles, of the links between IPUs, and of the sync.

A variable moves to other replicas, every tile's part to the tile of its number; or what vertices read, or a copy moves,
crosses between the IPUs of a replica. The phase lasts as long as its busiest tile or its busiest link, and its longest
route; a sync of exactly the IPUs that take part comes before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np

from tiles.compiler.executable import Executable, Variable
from tiles.compiler.steps import BetweenStep
from tiles.graph.layout import ceil_div
from tiles.numerics.dtypes import WORD_BYTES, itemsize
from tiles.plan import Traffic
from tiles.plan.exchange import send_instructions
from tiles.plan.links import Crossing, crossing, crossing_within
from tiles.target import Basis, Target


@dataclass(frozen=True, eq=False)
class LinkCost:
    """What the links take of one run of a step; of a step with stages, the mean of them, rounded up.

    Args:
      crossings: the flows of each stage; one where there are none.
      flow_bytes: by which the bytes of the crossings' flows are multiplied.
      cycles: that links and routes add to what tiles take; None: unknown.
      parts: those cycles by what they rest on.
      sync_cycles: of the IPUs that take part; None: unknown.
      sync_basis: of that.
    """

    crossings: tuple[Crossing, ...]
    flow_bytes: int
    cycles: int | None
    parts: tuple[tuple[Basis, int], ...]
    sync_cycles: int | None
    sync_basis: Basis

    @property
    def link_bytes(self) -> np.ndarray | None:
        """Bytes by link and direction, ``[links, 2]``, see ``System.table``; None where nothing leaves an IPU.

        int64; of several stages float64.
        """
        units = [found.unit.link_bytes for found in self.crossings if found.unit is not None]
        if not units:
            return None
        whole = sum(units[1:], units[0]) * self.flow_bytes
        return whole if len(self.crossings) == 1 else whole / len(self.crossings)

    @property
    def busiest_bytes(self) -> int:
        """Bytes on the link that takes longest."""
        units = [found.unit for found in self.crossings if found.unit is not None]
        whole = sum(unit.busiest_bytes for unit in units) * self.flow_bytes
        return ceil_div(whole, len(self.crossings))

    @property
    def copies_on_tiles(self) -> bool:
        """Whether a replica sends to itself, or gets zeros."""
        return any(found.stays or found.misses for found in self.crossings)


def between_cost(executable: Executable, step: BetweenStep, tile_cycles: int) -> LinkCost:
    """Return what a variable that moves to other replicas takes on the links.

    Args:
      executable: the program, on a system.
      step: the step.
      tile_cycles: of its busiest tile.
    """
    v = executable.variables[step.source]
    flows = len(step.exchanges[0]) * sum(_shares(executable, v))
    flow_bytes = ceil_div(math.prod(v.shape) * itemsize(v.dtype), max(1, flows))
    return _link_cost(step_crossings(executable, step), flow_bytes, tile_cycles)


def within_cost(executable: Executable, between_ipus: np.ndarray, tile_cycles: int) -> LinkCost | None:
    """Return what an exchange between the IPUs of a replica takes on the links; None where nothing crosses.

    Args:
      executable: the program, on a system.
      between_ipus: bytes that each IPU of a replica sends to each other one, ``[num_ipus, num_ipus]``.
      tile_cycles: of its busiest tile.
    """
    if not between_ipus.any():
        return None
    assert executable.system is not None
    rows = tuple(tuple(row) for row in between_ipus.tolist())
    crossing = crossing_within(executable.system, executable.replicas, rows)
    return _link_cost((crossing,), 1, tile_cycles)


def _link_cost(crossings: tuple[Crossing, ...], flow_bytes: int, tile_cycles: int) -> LinkCost:
    """Return what crosses the links beside what tiles take; of several stages the mean."""
    by_basis: dict[Basis, int] = {}
    syncs: list[int | None] = []
    bases: list[Basis] = []
    is_known = True
    for unit in (found.unit for found in crossings):
        if unit is None:
            continue
        transfer = math.ceil(unit.transfer_seconds * flow_bytes * unit.clock_hz)
        latency = None if unit.latency_seconds is None else math.ceil(unit.latency_seconds * unit.clock_hz)
        is_known = is_known and latency is not None
        for basis, part in (
            (unit.transfer_basis, max(0, transfer - tile_cycles)),
            (unit.latency_basis, latency or 0),
        ):
            by_basis[basis] = by_basis.get(basis, 0) + part
        syncs.append(unit.sync.cycles)
        bases.append(unit.sync.basis)
    parts = tuple((basis, ceil_div(part, len(crossings))) for basis, part in by_basis.items())
    return LinkCost(
        crossings,
        flow_bytes,
        sum(part for _, part in parts) if is_known else None,
        parts,
        None if None in syncs else ceil_div(sum(each or 0 for each in syncs), len(crossings)),
        Basis.weakest(bases) if bases else Basis.DOCUMENTED,
    )


def between_traffic(variable: Variable, moves: bool, target: Target) -> Traffic:
    """Return what tiles send and receive of a variable that is moved as it lies; nothing where no replica sends."""
    total = Traffic.none(target)
    part = variable.layout.part_bytes(variable.dtype)
    if not moves or not part:
        return total
    figures = {name: array.copy() for name, array in vars(total).items()}
    tiles, words = variable.layout.tiles, ceil_div(part, WORD_BYTES)
    for name in ("received", "sent"):
        figures[name][tiles] = words * WORD_BYTES
    figures["sends"][tiles] = send_instructions(words, 1, target)
    for name in ("runs", "selects", "pointers"):
        figures[name][tiles] = 1
    return Traffic(**figures)


def step_crossings(executable: Executable, step: BetweenStep) -> tuple[Crossing, ...]:
    """Return the flows of each of a step's stages; one where it has none."""
    assert executable.system is not None
    system, replicas = executable.system, executable.replicas
    shares = _shares(executable, executable.variables[step.source])
    return tuple(crossing(system, replicas, step.axes, moves, shares) for moves in step.exchanges)


def _shares(executable: Executable, variable: Variable) -> tuple[int, ...]:
    """Return how many of a variable's elements lie on each IPU of a replica, in the smallest numbers of that ratio."""
    if executable.target.num_ipus == 1:
        return (1,)
    layout = variable.layout
    lengths = (axis.hi - axis.lo for axis in layout.axes)
    elements = reduce(np.multiply.outer, lengths, np.ones((), np.int64)).reshape(-1)
    counts = np.bincount(layout.tiles // executable.target.tiles_per_ipu, elements).astype(np.int64)
    return tuple((counts // max(1, np.gcd.reduce(counts))).tolist())
