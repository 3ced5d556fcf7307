"""``cost_analysis``: what one run of an executable costs, without running it."""

from __future__ import annotations

import math

from tiles.compiler import Executable
from tiles.files import JsonObject
from tiles.numerics.dtypes import itemsize
from tiles.report.counts import cycle_bounds, static_counts
from tiles.report.static_trips import static_trips
from tiles.report.totals import Totals, totals


def cost_analysis(executable: Executable) -> JsonObject:
    """Return the static cost of one run as plain data.

    A superstep is an executed step: a compute set with the sync and exchange before it, or a copy. Each
    execution counts, also one that exchanges nothing (it has no sync then) or copies inside tiles only.

    Returns:
      ``flops``: floating-point operations.
      ``cycles``: tile cycles on the IPUs, the latest one's clock; the host's part is not in it.
      ``cycles_bounds``: the least and most cycles that a run may take, whatever data decides: of the cheapest and of the
        dearest branches; None for the most where a loop's trips depend on data, for both of several IPUs in a replica.
      ``cycles_range``: the least and most cycles that published measurements suggest, kind by kind; no bound
        (see ``tiles.report.band``).
      ``seconds``: ``cycles`` in seconds of the target's clock.
      ``compute_cycles``, ``exchange_cycles``, ``sync_cycles``: cycles by phase; on one IPU they add up to
        ``cycles``, with ``host_exchange_cycles``.
      ``exchange_bytes``: bytes that cross between tiles.
      ``link_cycles``: what links between IPUs add to exchanges, latency included; ``link_bytes``: bytes on the
        busiest link of every exchange between IPUs, added up. Of a program with replicas all figures are one
        replica's.
      ``host_exchange_cycles``, ``host_exchange_bytes``: of the program's copies of streams, on the host's link;
        how long the host takes to answer is not known.
      ``supersteps``: executed steps.
      ``basis_cycles``, ``basis_shares``: cycles, and their share from 0 to 1, by what the figures rest on.
      ``host_bytes_in``, ``host_bytes_out``: bytes of all inputs and outputs.
      ``host_cycles``: of moving those: None, because it is not modelled.
      ``unresolved``: each loop and branch that depends on data: ``kind`` ("while", "until" or "switch"),
        ``decided_by`` (the variable that decides), ``location``, ``scope``, ``transforms``, ``entered`` (how often it is reached, or
        None), ``steps`` (names), and ``cycles_per_trip``: of a loop its body and condition together
        (``condition_cycles`` is the condition's part, which runs once more than the body), of a branch one
        figure for each of its ``branches``. Figures that depend on them are None.
    """
    counts, unresolved = static_counts(executable)
    figures = cost_figures(executable, totals(executable, counts, trips=static_trips(executable)))
    return {**figures, "cycles_bounds": list(cycle_bounds(executable)), "unresolved": unresolved}


def cost_figures(executable: Executable, sums: Totals) -> JsonObject:
    """Return the figures that ``cost_analysis`` documents, except ``unresolved``, for given totals."""
    return {
        "flops": sums.flops,
        "cycles": sums.cycles,
        "cycles_range": None if sums.cycles_range is None else list(sums.cycles_range),
        "seconds": None if sums.cycles is None else executable.target.seconds(sums.cycles),
        "compute_cycles": sums.compute_cycles,
        "exchange_cycles": sums.exchange_cycles,
        "sync_cycles": sums.sync_cycles,
        "host_exchange_cycles": sums.host_exchange_cycles,
        "host_exchange_bytes": sums.host_exchange_bytes,
        "link_cycles": sums.link_cycles,
        "link_bytes": sums.link_bytes,
        "exchange_bytes": sums.exchange_bytes,
        "supersteps": sums.supersteps,
        "basis_cycles": dict(sums.basis_cycles),
        "basis_shares": sums.basis_shares,
        "host_bytes_in": variable_bytes(executable, executable.inputs),
        "host_bytes_out": variable_bytes(executable, executable.outputs),
        "host_cycles": None,
    }


def variable_bytes(executable: Executable, names: tuple[str, ...]) -> int:
    """Return the bytes of the elements of some variables."""
    variables = [executable.variables[name] for name in names]
    return sum(math.prod(v.shape) * itemsize(v.dtype) for v in variables)
