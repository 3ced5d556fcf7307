"""How far an estimate may lie from silicon: what published measurements say of each kind of cycles.

A figure's basis says what it rests on; a band says how well such figures have held. The factors turn estimated
cycles into the least and most that the measurements of their kind suggest (``python -m benchmarks.calibration`` sets
them side by side). Together they are to hold 80 % of measurements; it prints how many they hold, and how many of a
publication intervals hold that only the others taught. Errors of one kind go together, so bands add up and do not
average out. A band is no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tiles.compiler import StepCost
from tiles.target import Basis, Parts


@dataclass(frozen=True)
class Band:
    """Factors on estimated cycles.

    Args:
      low: the least silicon takes, over the estimate.
      high: the most.
      source: the measurements.
    """

    low: float
    high: float
    source: str


COMPUTE = {
    Basis.MEASURED: Band(0.95, 1.05, "the vertex itself was measured"),
    Basis.DOCUMENTED: Band(
        0.85,
        1.6,
        "of measured programs that rest mostly on this (benchmarks/results/calibration.md); PopLibs' vertex forms are 1.00 to "
        "1.04 on one tile (tessellate-ipu, IPU Peak Flops.ipynb), compute sets of an SDK profile between 0.6 and 1.3 "
        "(ipu-stack, SDK_ONNX_PROFILE_ANALYSIS.md)",
    ),
    Basis.DERIVED: Band(
        0.7,
        1.9,
        "the element compiler's code is 0.6 to 1.5 times the loops that PopLibs has in assembly, and vertices compiled from "
        "C++ take twice what their best loop would (benchmarks/results/tile_code.md); no measurement of this code",
    ),
    Basis.FITTED: Band(
        0.5, 2.2, "rearrangements of an SDK profile take twice the regression (the same profile)"
    ),
    Basis.ASSUMED: Band(
        0.7,
        2.2,
        "of measured programs that rest mostly on this 0.8 to 1.4 (benchmarks/results/calibration.md), widened: few codelets "
        "are among them, and compiled vertices have taken several times their ideal "
        "(Poplar tutorial 6: 28,300 cycles where the model has 3,800)",
    ),
    Basis.UNKNOWN: Band(0.0, math.inf, "nothing is known of it"),
}
"""By the basis of each part of the slowest tile's figure."""

EXCHANGE = Band(
    0.9,
    1.6,
    "schedules take 1.02 to 2.5 times the busiest tile's work, in the middle 1.21 (ipu-stack, "
    "EXCHANGE_COST_AND_GELU_2026_09_13.md); the regrouping of attention scores 1.45 times (its SDK profile)",
)
SYNC = Band(0.5, 2.0, "one measurement, on GC2; carried over to the other machines")
HOST = Band(
    1.0, 3.0, "no measurement: a link carries at most its stated rate, and the host's answer is not counted"
)
LINKS = Band(
    0.5,
    4.0,
    "no time of a step was published: an all-reduce of 6 MB over 16 GC2 took 1.4 times what its links take (PopLibs' "
    "commit c866d315), and latency off chip grew 4 to 7.7 times under load (Citadel, arXiv:1912.03413)",
)


def compute_range(parts: Parts) -> tuple[float, float]:
    """Return the least and most cycles of what a tile computes, each part by the band of its basis."""
    return (
        sum(cycles * COMPUTE[basis].low for basis, cycles in parts),
        sum(cycles * COMPUTE[basis].high for basis, cycles in parts),
    )


def step_range(cost: StepCost) -> tuple[float, float]:
    """Return the least and most cycles that measurements suggest for one run of a step."""
    low, high = compute_range(cost.compute_parts)
    others = (
        (cost.exchange_cycles, EXCHANGE),
        (cost.sync_cycles, SYNC),
        (cost.host_cycles or 0, HOST),
        (cost.link_cycles or 0, LINKS),
    )
    return (
        low + sum(cycles * band.low for cycles, band in others),
        high + sum(cycles * band.high for cycles, band in others),
    )
