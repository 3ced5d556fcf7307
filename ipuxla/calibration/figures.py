"""Figures of compiled programs: cycles of some of their parts, with what they rest on and how far they may be off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tiles.compiler import Executable, StepCost, step_costs
from tiles.compiler.costs import copy_cycles
from tiles.report.band import part_ranges
from tiles.report.counts import static_counts
from tiles.target import Target

ALL, COMPUTE, REARRANGE, EXCHANGE, SYNC = "all", "compute", "rearrange", "exchange", "sync"
"""Parts of a step: everything; vertices; copies inside tiles before them; the exchange phase; the sync before it."""


@dataclass(frozen=True)
class Figure:
    """Cycles, the least and most that they may be, and cycles by basis."""

    cycles: float
    low: float
    high: float
    basis_cycles: dict[str, float] = field(default_factory=dict)

    def __add__(self, other: Figure) -> Figure:
        """Return both one after another."""
        bases = {
            b: self.basis_cycles.get(b, 0) + other.basis_cycles.get(b, 0)
            for b in sorted(self.basis_cycles | other.basis_cycles)
        }
        return Figure(self.cycles + other.cycles, self.low + other.low, self.high + other.high, bases)

    def times(self, factor: float) -> Figure:
        """Return the figure of ``factor`` runs."""
        bases = {b: c * factor for b, c in self.basis_cycles.items()}
        return Figure(self.cycles * factor, self.low * factor, self.high * factor, bases)

    @property
    def basis_shares(self) -> dict[str, float]:
        """Share of the cycles on each basis, 0 to 1."""
        whole = sum(self.basis_cycles.values())
        return {b: round(c / whole, 4) for b, c in self.basis_cycles.items() if c} if whole else {}


NOTHING = Figure(0, 0, 0)


def figure(
    executable: Executable,
    parts: Sequence[str] = (ALL,),
    *,
    mean: bool = False,
    only: Callable[[StepCost], bool] | None = None,
) -> Figure:
    """Return the cycles of one run of a program.

    Args:
      executable: the program.
      parts: which parts of its steps count.
      mean: the mean over tiles in place of the slowest tile, for vertices and copies.
      only: which steps count; all by default.
    """
    counts, _ = static_counts(executable)
    total = NOTHING
    for cost, count in zip(step_costs(executable), counts, strict=True):
        if count and (only is None or only(cost)):
            total = total + _step(cost, parts, mean, executable.target).times(count)
    return total


def _step(cost: StepCost, parts: Sequence[str], mean: bool, target: Target) -> Figure:
    ranges = part_ranges(cost)
    copies = copy_cycles(cost.traffic, target)
    vertices = cost.tile_compute_cycles - copies
    of_tiles = (lambda x: float(np.mean(x))) if mean else (lambda x: float(np.max(x, initial=0)))
    values = {
        COMPUTE: (of_tiles(vertices), cost.compute_basis, ranges[COMPUTE]),
        REARRANGE: (of_tiles(copies), cost.compute_basis, ranges[COMPUTE]),
        EXCHANGE: (float(cost.exchange_cycles), cost.exchange_basis, ranges[EXCHANGE]),
        SYNC: (float(cost.sync_cycles), cost.sync_basis, ranges[SYNC]),
    }
    if ALL in parts:
        values[COMPUTE] = (float(cost.compute_cycles), cost.compute_basis, ranges[COMPUTE])
        parts = (COMPUTE, EXCHANGE, SYNC)
    total = NOTHING
    for part in parts:
        cycles, basis, band = values[part]
        total = total + Figure(cycles, cycles * band.low, cycles * band.high, {str(basis): cycles})
    return total
