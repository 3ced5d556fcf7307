"""Figures of compiled programs: cycles of some of their parts, with what they rest on and how far they may be off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ipuxla.calibration.parameters import NotModelled
from tiles.compiler import Executable, StepCost, step_costs
from tiles.compiler.costs import copy_cycles
from tiles.report.band import COMPUTE as COMPUTE_BANDS
from tiles.report.band import EXCHANGE as EXCHANGE_BAND
from tiles.report.band import HOST, LINKS, Band
from tiles.report.band import SYNC as SYNC_BAND
from tiles.report.counts import static_counts
from tiles.target import Basis, Target

ALL, COMPUTE, REARRANGE, EXCHANGE, SYNC = "all", "compute", "rearrange", "exchange", "sync"
"""Parts of a step: everything; vertices; copies inside tiles before them; the exchange phase; the sync before it."""


@dataclass(frozen=True)
class Figure:
    """Cycles, the least and most that they may be, and cycles by basis."""

    cycles: float
    low: float
    high: float
    basis_cycles: dict[str, float] = field(default_factory=dict[str, float])

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
    copies = copy_cycles(cost.traffic, target)
    tiles = {COMPUTE: cost.tile_compute_cycles - copies, REARRANGE: copies}
    found = {
        COMPUTE: _computed(cost.vertex_parts),
        REARRANGE: _computed(cost.copy_parts),
        EXCHANGE: _banded(cost.exchange_parts, EXCHANGE_BAND),
        SYNC: _banded(((cost.sync_basis, cost.sync_cycles),), SYNC_BAND),
    }
    if ALL in parts:
        return sum((*found.values(), _beside(cost)), NOTHING)
    total = NOTHING
    for part in parts:
        each = found[part]
        if part in tiles:  # of the tiles that a publication speaks of, in proportion to the slowest one
            cycles = float(np.mean(tiles[part]) if mean else np.max(tiles[part], initial=0))
            each = (
                each.times(cycles / each.cycles)
                if each.cycles
                else _computed(((cost.compute_basis, cycles),))
            )
        total = total + each
    return total


def _beside(cost: StepCost) -> Figure:
    """Return what the links between IPUs and the host's link take.

    Raises:
      NotModelled: one of them is not known.
    """
    if cost.link_cycles is None or cost.host_cycles is None:
        raise NotModelled(f"{cost.name}: the machine's links are not known well enough")
    links = _banded(cost.link_basis, LINKS) if cost.link_cycles else NOTHING
    return links + _banded(((cost.host_basis, cost.host_cycles),), HOST)


def _banded(parts: Iterable[tuple[Basis, float]], band: Band) -> Figure:
    """Return a figure of cycles by what they rest on, all in one band."""
    return sum((_figure(basis, cycles, band) for basis, cycles in parts), NOTHING)


def _computed(parts: Iterable[tuple[Basis, float]]) -> Figure:
    """Return a figure of cycles by what they rest on, each in the band of its basis."""
    return sum((_figure(basis, cycles, COMPUTE_BANDS[basis]) for basis, cycles in parts), NOTHING)


def _figure(basis: Basis, cycles: float, band: Band) -> Figure:
    return Figure(float(cycles), cycles * band.low, cycles * band.high, {str(basis): float(cycles)})
