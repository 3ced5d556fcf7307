"""Flows between replicas, and between the IPUs of replicas, on a system's links.

Routes of a permutation are followed once, with one byte per flow: loads grow in proportion to the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tiles.graph import Permutation, Replicas
from tiles.numerics.shared import read_only
from tiles.target import LinkPhase, Sync, System, flow_phase, sync
from tiles.target.routes import group_size


@dataclass(frozen=True, eq=False)
class Crossing:
    """The flows of an exchange on a system's links.

    Args:
      unit: the phase in which every flow has as many bytes as its IPU's share; None where nothing leaves an IPU.
      stays: whether a replica sends to itself.
      misses: whether nothing is sent to some replica.
    """

    unit: LinkPhase | None
    stays: bool
    misses: bool


@lru_cache(maxsize=256)
def crossing(
    system: System,
    replicas: Replicas,
    axes: tuple[str, ...],
    permutations: tuple[Permutation, ...],
    shares: tuple[int, ...] = (1,),
) -> Crossing:
    """Return the flows of permutations along axes, between the IPUs that replicas run on.

    Args:
      system: the system.
      replicas: on it.
      axes: along which the permutations go.
      permutations: of the replicas of a group.
      shares: bytes that lie on each IPU of a replica, up to the last that has any; they go to the IPU of its place.
    """
    here, ipus = np.arange(replicas.count), replicas.ipus
    sources: list[np.ndarray] = []
    ends: list[np.ndarray] = []
    stays = misses = False
    for permutation in permutations:
        there = replicas.destinations(axes, permutation)
        moves = (there >= 0) & (there != here)
        stays |= bool((there == here).any())
        misses |= bool((there < 0).any())
        sources.append(ipus[here[moves]])
        ends.append(ipus[there[moves]])
    own = np.flatnonzero(shares)
    source, end = (np.add.outer(own, np.concatenate(each)).reshape(-1) for each in (sources, ends))
    size = np.repeat(np.array(shares, np.int64)[own], source.size // max(1, own.size))
    unit = flow_phase(system, source, end, size) if source.size else None
    if unit is not None:
        read_only(unit.link_bytes)  # kept, and shared by all who ask
    return Crossing(unit, stays, misses)


@lru_cache(maxsize=256)
def crossing_within(
    system: System, replicas: Replicas, between_ipus: tuple[tuple[int, ...], ...]
) -> Crossing:
    """Return the flows of an exchange between the IPUs of each replica, all replicas at once.

    Those IPUs of a replica sync that send or receive; where groups differ in where they lie, that of the longest way
    counts.

    Args:
      system: the system.
      replicas: on it.
      between_ipus: bytes that each IPU of a replica sends to each other one, from row to column; 0 on the diagonal.
    """
    size_bytes, ipus = np.array(between_ipus, np.int64), replicas.ipus
    sends, receives = np.nonzero(size_bytes)
    if not sends.size:
        return Crossing(None, stays=False, misses=False)
    source, end = (np.add.outer(ipus, own).reshape(-1) for own in (sends, receives))
    unit = flow_phase(system, source, end, np.tile(size_bytes[sends, receives], replicas.count))
    read_only(unit.link_bytes)
    return Crossing(
        replace(unit, sync=_longest_sync(system, ipus, np.union1d(sends, receives))), False, False
    )


def _longest_sync(system: System, ipus: np.ndarray, members: np.ndarray) -> Sync:
    """Return the longest sync of the IPUs of some places in a replica; replicas that lie alike in their groups are one."""
    numbers, size = np.add.outer(ipus, members), group_size(system)
    places = numbers - numbers.min(axis=1, keepdims=True) // size * size
    _, firsts = np.unique(places, axis=0, return_index=True)
    found: list[Sync] = []
    for row in numbers[firsts]:
        taking_part = np.zeros(system.num_ipus, bool)
        taking_part[row] = True
        found.append(sync(system, taking_part))
    return max(found, key=lambda each: math.inf if each.cycles is None else each.cycles)


def permutation_cycles(
    system: System,
    replicas: Replicas,
    axes: Sequence[str],
    permutations: Sequence[Permutation],
    size_bytes: int,
    shares: tuple[int, ...] = (1,),
) -> float:
    """Return the cycles in which flows of so many bytes cross, sync and latency included; infinite where unknown.

    Args:
      system: the system.
      replicas: on it.
      axes: along which the permutations go.
      permutations: of the replicas of a group.
      size_bytes: of each flow.
      shares: as in ``crossing``, with a sum of 1.
    """
    unit = crossing(system, replicas, tuple(axes), tuple(permutations), shares).unit
    if unit is None:
        return 0.0
    if unit.latency_seconds is None or unit.sync.cycles is None:
        return math.inf
    return (unit.transfer_seconds * size_bytes + unit.latency_seconds) * unit.clock_hz + unit.sync.cycles
