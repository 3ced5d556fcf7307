"""Flows of permutations between replicas on a system's links.

Routes are followed once for a permutation, with one byte per flow: loads grow in proportion to the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tiles.graph import Permutation, Replicas
from tiles.numerics.shared import read_only
from tiles.target import LinkPhase, System, flow_phase


@dataclass(frozen=True, eq=False)
class Crossing:
    """The flows of a permutation on a system's links.

    Args:
      unit: the phase in which every flow has one byte; None where nothing leaves an IPU.
      stays: whether a replica sends to itself.
      misses: whether nothing is sent to some replica.
    """

    unit: LinkPhase | None
    stays: bool
    misses: bool


@lru_cache(maxsize=256)
def crossing(
    system: System, replicas: Replicas, axes: tuple[str, ...], permutations: tuple[Permutation, ...]
) -> Crossing:
    """Return the flows of permutations along axes, between the IPUs that replicas run on."""
    here, ipus = np.arange(replicas.count), replicas.ipus
    sources, ends, stays, misses = [], [], False, False
    for permutation in permutations:
        there = replicas.destinations(axes, permutation)
        moves = (there >= 0) & (there != here)
        stays |= bool((there == here).any())
        misses |= bool((there < 0).any())
        sources.append(ipus[here[moves]])
        ends.append(ipus[there[moves]])
    source, end = np.concatenate(sources), np.concatenate(ends)
    unit = flow_phase(system, source, end, np.ones(source.size, np.int64)) if source.size else None
    if unit is not None:
        read_only(unit.link_bytes)  # kept, and shared by all who ask
    return Crossing(unit, stays, misses)


def permutation_cycles(
    system: System,
    replicas: Replicas,
    axes: Sequence[str],
    permutations: Sequence[Permutation],
    size_bytes: int,
) -> float:
    """Return the cycles in which flows of so many bytes cross, sync and latency included; infinite where unknown."""
    unit = crossing(system, replicas, tuple(axes), tuple(permutations)).unit
    if unit is None:
        return 0.0
    if unit.latency_seconds is None or unit.sync.cycles is None:
        return math.inf
    return (unit.transfer_seconds * size_bytes + unit.latency_seconds) * unit.clock_hz + unit.sync.cycles
