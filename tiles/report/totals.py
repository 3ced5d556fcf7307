"""Static cost times count: what the steps of a run add up to, with None for what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiles.compiler import Executable, StepCost, step_costs
from tiles.compiler.control_flow import Trips
from tiles.report.band import step_range
from tiles.report.clocks import program_cycles, run_cycles, superstep
from tiles.target import Basis

Count = int | None
"""A number of runs, or None where it depends on data."""


def add(a: Count, b: Count) -> Count:
    """Return the sum of two counts; unknown if either is."""
    return None if a is None or b is None else a + b


def times(count: Count, factor: Count) -> Count:
    """Return a product of counts; unknown if either is and neither is 0."""
    if count == 0 or factor == 0:
        return 0
    return None if count is None or factor is None else count * factor


@dataclass(frozen=True)
class Totals:
    """What a number of executed steps add up to; a field is None when it depends on an unknown count.

    Args:
      cycles: the latest IPU's clock at the end.
      ipu_cycles: every IPU's clock at the end.
      compute_cycles: slowest tile of every executed step, added up.
      exchange_cycles: exchange phases, added up.
      sync_cycles: syncs, added up.
      host_exchange_cycles: copies of streams on the host's link, added up.
      host_exchange_bytes: bytes of the items that were copied.
      link_cycles: what links between IPUs add to exchanges, latency included, added up.
      link_bytes: bytes on the busiest link of every exchange between IPUs, added up.
      exchange_bytes: bytes that crossed between tiles.
      flops: floating-point operations.
      supersteps: executed steps.
      basis_cycles: all cycles by what their figures rest on.
      cycles_range: the least and most cycles that published measurements of the kinds of cycles suggest; see
        ``tiles.report.band``.
    """

    cycles: Count
    ipu_cycles: tuple[int, ...] | None
    compute_cycles: Count
    exchange_cycles: Count
    sync_cycles: Count
    host_exchange_cycles: Count
    host_exchange_bytes: Count
    link_cycles: Count
    link_bytes: Count
    exchange_bytes: Count
    flops: Count
    supersteps: Count
    basis_cycles: tuple[tuple[str, Count], ...]
    cycles_range: tuple[int, int] | None

    @property
    def is_known(self) -> bool:
        """Whether no field is unknown."""
        return self.supersteps is not None

    @property
    def all_cycles(self) -> Count:
        """Cycles of all phases, added up."""
        tile = add(add(self.compute_cycles, self.exchange_cycles), self.sync_cycles)
        return add(add(tile, self.host_exchange_cycles), self.link_cycles)

    @property
    def basis_shares(self) -> dict[str, float | None]:
        """Share of the cycles on each basis, 0 to 1; None when cycles are unknown."""
        whole = self.all_cycles
        return {basis: share(cycles, whole) for basis, cycles in self.basis_cycles}


def share(part: Count, whole: Count) -> float | None:
    """Return ``part / whole`` rounded to six places, 0 of nothing, None when either is unknown."""
    if part is None or whole is None:
        return None
    return round(part / whole, 6) if whole else 0.0


def totals(
    executable: Executable,
    counts: Sequence[Count],
    steps: Sequence[int] | None = None,
    trips: Trips | None = None,
) -> Totals:
    """Return the cost of running step i ``counts[i]`` times; of ``steps`` only, when given.

    With ``trips``, of loops and branches that data decides, these are the counts of a run of the whole program, and the
    clocks of several IPUs are folded over its tree; else the runs of a step are taken back to back.

    A step that is not known to run leaves unknown only what it would add to: a loop without exchange leaves
    the exchange cycles of a program known.
    """
    target = executable.target
    steps = range(len(executable.steps)) if steps is None else steps
    costs = [step_costs(executable)[number] for number in steps]
    runs = [counts[number] for number in steps]

    def summed(values: Sequence[Count]) -> Count:
        total: Count = 0
        for value, count in zip(values, runs, strict=True):
            total = add(total, times(count, value))
        return total

    by_basis = [step_basis_cycles(cost) for cost in costs]
    ipu_cycles = None
    if summed([cost.cycles for cost in costs]) is not None:
        if trips is None or target.num_ipus == 1:
            ipu_cycles = tuple(run_cycles(costs, [count or 0 for count in runs], target))
        else:
            done = [superstep(cost, target) for cost in costs]
            ipu_cycles = tuple(program_cycles(executable.program, done, trips))
    cycles = max(ipu_cycles) if ipu_cycles is not None else None
    is_known = all(row[Basis.UNKNOWN] == 0 for row in by_basis)
    return Totals(
        cycles=cycles,
        ipu_cycles=ipu_cycles,
        compute_cycles=summed([cost.compute_cycles for cost in costs]),
        exchange_cycles=summed([cost.exchange_cycles for cost in costs]),
        sync_cycles=summed([cost.sync_cycles for cost in costs]),
        host_exchange_cycles=summed([cost.host_cycles for cost in costs]),
        host_exchange_bytes=summed([cost.host_bytes for cost in costs]),
        link_cycles=summed([cost.link_cycles for cost in costs]),
        link_bytes=summed([cost.links.busiest_bytes if cost.links else 0 for cost in costs]),
        exchange_bytes=summed([cost.exchange_bytes for cost in costs]),
        flops=summed([cost.flops for cost in costs]),
        supersteps=summed([1] * len(costs)),
        basis_cycles=tuple((basis.value, summed([row[basis] for row in by_basis])) for basis in Basis),
        cycles_range=None
        if cycles is None or not is_known
        else _range(cycles, costs, [count or 0 for count in runs]),
    )


def _range(cycles: int, costs: Sequence[StepCost], runs: Sequence[int]) -> tuple[int, int]:
    """Return the range of a run of ``cycles``, in proportion to that of its steps one after another.

    Counts have no bound, so they are divided by the whole before they meet floats.
    """
    whole = sum((cost.cycles or 0) * count for cost, count in zip(costs, runs, strict=True))
    if not whole:
        return cycles, cycles
    shares = [(step_range(cost), count / whole) for cost, count in zip(costs, runs, strict=True)]
    low, high = (sum(ends[i] * share for ends, share in shares) for i in (0, 1))
    return int(cycles * low), -int(-cycles * high // 1)


def step_basis_cycles(cost: StepCost) -> dict[Basis, Count]:
    """Return the cycles of one run of a step by basis."""
    cycles: dict[Basis, Count] = dict.fromkeys(Basis, 0)
    parts = (
        *cost.compute_parts,
        *cost.exchange_parts,
        (cost.sync_basis, cost.sync_cycles),
        (cost.host_basis, cost.host_cycles),
        *(cost.link_basis or ((Basis.ASSUMED, cost.link_cycles),)),
    )
    for basis, part in parts:
        cycles[basis] = add(cycles[basis], part)
    return cycles
