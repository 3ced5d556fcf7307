"""One clock per IPU: how the durations of steps add up to the duration of a run.

Work advances the clocks of the IPUs that do it; a sync sets the clocks of its members to their maximum.
One IPU is the case of one clock, where this is a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiles.compiler import StepCost
from tiles.target import Target


@dataclass(frozen=True, eq=False)
class Superstep:
    """What one step does to the clocks: its members sync, exchange, then every IPU computes.

    Args:
      members: the IPUs that take part in the exchange, bool ``[num_ipus]``; none when nothing is exchanged.
      exchange_cycles: sync and exchange of a member, with other tiles or with the host.
      compute_cycles: slowest tile of every IPU, int64 ``[num_ipus]``.
    """

    members: np.ndarray
    exchange_cycles: int
    compute_cycles: np.ndarray


def superstep(cost: StepCost, target: Target) -> Superstep:
    """Return what a step of a given cost does to the clocks of ``target``."""
    moved = (cost.traffic.received + cost.traffic.sent).reshape(target.num_ipus, -1)
    members = moved.max(axis=1) > 0
    members[list(cost.host_ipus)] = True
    return Superstep(
        members=members,
        exchange_cycles=cost.sync_cycles
        + cost.exchange_cycles
        + (cost.host_cycles or 0)
        + (cost.link_cycles or 0),
        compute_cycles=cost.tile_compute_cycles.reshape(target.num_ipus, -1).max(axis=1),
    )


class Clocks:
    """The clocks of all IPUs, in tile cycles since the start of the run."""

    def __init__(self, num_ipus: int) -> None:
        """Start every clock at 0."""
        # Python's integers, because a loop's trip count has no bound.
        self.cycles = np.zeros(num_ipus, object)

    def work(self, cycles: np.ndarray) -> None:
        """Advance every IPU's clock by its own ``cycles [num_ipus]``."""
        self.cycles = self.cycles + cycles.astype(object)

    def sync(self, members: np.ndarray) -> None:
        """Set the clocks of ``members``, bool ``[num_ipus]``, to the latest of them."""
        if members.any():
            self.cycles[members] = self.cycles[members].max()

    def run(self, step: Superstep, times: int = 1) -> None:
        """Run one step ``times`` times back to back.

        After the first sync the members start level, so each further run takes them as long as the slowest
        of them; the other IPUs just work.
        """
        if times == 0:
            return
        self.sync(step.members)
        exchange = np.where(step.members, step.exchange_cycles, 0).astype(object)
        compute = step.compute_cycles.astype(object)
        level = compute.copy()
        if step.members.any():
            level[step.members] = compute[step.members].max()
        self.work((times - 1) * (exchange + level))
        self.work(exchange + compute)


def run_cycles(costs: Sequence[StepCost], counts: Sequence[int], target: Target) -> list[int]:
    """Return every IPU's clock after step i has run ``counts[i]`` times.

    Counts do not say in which order loops ran their steps, so the runs of a step are taken back to back, in
    program order: exact for one IPU, and for steps in whose exchange every IPU takes part.
    """
    clocks = Clocks(target.num_ipus)
    for cost, count in zip(costs, counts, strict=True):
        clocks.run(superstep(cost, target), count)
    return [int(c) for c in clocks.cycles]
