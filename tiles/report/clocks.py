"""One clock per IPU: how the durations of steps add up to the duration of a run.

Work advances the clocks of the IPUs that do it; a sync sets the clocks of its members to their maximum.
One IPU is the case of one clock, where this is a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from tiles.compiler import StepCost
from tiles.compiler.control import Part, Path, Repeat, Switch, While
from tiles.compiler.control_flow import Trips, runs_of_parts
from tiles.numerics.maxplus import MaxPlus, product
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
    """Return what a step of a given cost does to the clocks of ``target``.

    IPUs of which nothing crosses to another one exchange each for itself, and wait for none.
    """
    moved = (cost.traffic.received + cost.traffic.sent).reshape(target.num_ipus, -1).max(axis=1) > 0
    between, members = cost.traffic.between_ipus, np.array(moved)
    compute = cost.tile_compute_cycles.reshape(target.num_ipus, -1).max(axis=1)
    if target.num_ipus > 1 and (between.any() or cost.links is None):
        members = np.array(between.any(axis=0) | between.any(axis=1))
        on_chip = cost.exchange_cycles + target.internal_sync_cycles
        compute = compute + np.where(moved & ~members, on_chip, 0)
    members[list(cost.host_ipus)] = True
    return Superstep(
        members=members,
        exchange_cycles=cost.sync_cycles
        + cost.exchange_cycles
        + (cost.host_cycles or 0)
        + (cost.link_cycles or 0),
        compute_cycles=compute,
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
    """Return every IPU's clock after step i has run ``counts[i]`` times, the runs of a step back to back.

    Exact for one IPU, and for steps in whose exchange every IPU takes part; ``program_cycles`` knows the order.
    """
    clocks = Clocks(target.num_ipus)
    for cost, count in zip(costs, counts, strict=True):
        clocks.run(superstep(cost, target), count)
    return [int(c) for c in clocks.cycles]


def program_cycles(program: Part, steps: Sequence[Superstep], trips: Trips) -> list[int]:
    """Return every IPU's clock after a run of a program, folded over its tree: exact for any trip counts.

    A step maps the clocks by a max-plus matrix, a body is the product of its steps, a loop a power. IPUs that take part
    in the same exchanges and compute as long are one clock, so what this takes grows with their kinds.

    What data decides is known in sum. A loop that was entered several times is taken to have run equally often each
    time, rounded up; a branch that was not always the same, to take as long as the longer ones each time.

    Args:
      program: the control tree.
      steps: of each of the program's steps, over all IPUs.
      trips: of its loops and branches; a branch of which it says nothing is its first.
    """
    if not steps:
        return []
    rows = np.stack([row for step in steps for row in (step.members, step.compute_cycles)])
    _, kinds, kind_of = np.unique(rows, axis=1, return_index=True, return_inverse=True)
    clocks = _Fold(program, steps, kinds, trips).matrix(program, ()).apply([0] * len(kinds))
    return [int(clock) for clock in clocks[kind_of.reshape(-1)]]


class _Fold:
    """Max-plus matrices of the parts of a program, for one entry of each."""

    def __init__(self, program: Part, steps: Sequence[Superstep], ipus: np.ndarray, trips: Trips) -> None:
        """Take the steps as some IPUs see them."""
        self.steps = [
            MaxPlus.step(step.members[ipus], step.exchange_cycles, step.compute_cycles[ipus])
            for step in steps
        ]
        self.size, self.trips = len(ipus), trips
        self.runs = {path: count for path, _, count in runs_of_parts(program, trips)}

    def matrix(self, part: Part, path: Path) -> MaxPlus:
        """Return what one entry of a part does to the clocks."""
        match part:
            case int():
                return self.steps[part]
            case Repeat(count):
                return self.matrix(part.body, (*path, 0)).power(count)
            case While():
                once = self.matrix(part.condition, (*path, 0))
                trips = -(-(self.trips.get(path) or 0) // max(1, self.runs[path] or 0))
                return once.then(self.matrix(part.body, (*path, 1)).then(once).power(trips))
            case Switch():
                taken = self.trips.get(path) or (1, *[0] * (len(part.branches) - 1))
                inner = [
                    self.matrix(branch, (*path, k)) for k, branch in enumerate(part.branches) if taken[k]
                ]
                return reduce(MaxPlus.later, inner, inner[0]) if inner else MaxPlus.identity(self.size)
            case _:
                return product(
                    [self.matrix(inner, (*path, k)) for k, inner in enumerate(part.parts)], self.size
                )
