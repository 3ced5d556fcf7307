"""Flows between replicas, and between the IPUs of replicas, on a system's links.

Routes of a permutation are followed once, with one byte per flow: loads grow in proportion to the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tiles.graph import PartialSwap, Permutation, Replicas, Shift, Swap
from tiles.target import LinkPhase, Sync, System, flow_phase, sync
from tiles.target.link_phase import Flows, group_phase, periodic_phase
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
    exchange = system, replicas, axes, permutations, shares
    return _between_groups(*exchange) or _periodic(*exchange) or _followed(*exchange)


def _followed(
    system: System,
    replicas: Replicas,
    axes: tuple[str, ...],
    permutations: tuple[Permutation, ...],
    shares: tuple[int, ...],
) -> Crossing:
    """Return ``crossing``, every flow followed."""
    here = np.arange(replicas.count)
    moves: list[tuple[np.ndarray, np.ndarray]] = []
    stays = misses = False
    for permutation in permutations:
        there = replicas.destinations(axes, permutation)
        moving = (there >= 0) & (there != here)
        stays |= bool((there == here).any())
        misses |= bool((there < 0).any())
        moves.append((here[moving], there[moving]))
    flows = _flows(replicas, moves, shares)
    return Crossing(flow_phase(system, *flows) if flows[0].size else None, stays, misses)


def _flows(replicas: Replicas, moves: list[tuple[np.ndarray, np.ndarray]], shares: tuple[int, ...]) -> Flows:
    """Return the flows of replicas that send, to those that receive, from every IPU that has a share."""
    own, ipus = np.flatnonzero(shares), replicas.ipus
    sides = [ipus[np.concatenate(side)] for side in zip(*moves, strict=True)]
    source, end = (np.add.outer(own, side).reshape(-1) for side in sides)
    return source, end, np.repeat(np.array(shares, np.int64)[own], source.size // max(1, own.size))


def _periodic(
    system: System,
    replicas: Replicas,
    axes: tuple[str, ...],
    permutations: tuple[Permutation, ...],
    shares: tuple[int, ...],
) -> Crossing | None:
    """Return ``crossing`` of exchanges that are the same in every period of replicas, None of others.

    Such are those in pairs, and rings among neighbours. They stay within each period, but for what is left beyond whole
    ones: nothing is done for all replicas.
    """
    spans = [_span(each) for each in permutations]
    if 0 in spans or replicas.folded or (len(axes) > 1 and axes != replicas.names):
        return None
    stride, size, count = replicas.strides(axes)[-1], replicas.size(axes), replicas.count
    span = math.lcm(*spans)
    ipus = math.lcm(span * stride * replicas.ipus_each, group_size(system))
    period, rest = divmod(ipus, replicas.ipus_each)
    is_whole = size % span == 0 or axes[:1] == replicas.names[:1]
    times = count // period
    if rest or not is_whole or times < 2 or span == 1 or not any(shares):
        return None
    stays = misses = False
    parts = list[Flows]()
    for first, behind in ((0, period), (times * period, count)):
        here = np.arange(first, behind)
        place = here // stride % size
        moves: list[tuple[np.ndarray, np.ndarray]] = []
        for permutation in permutations:
            to = place + (permutation.destinations(span) - np.arange(span))[place % span]
            moving = (to < size) & (to != place)
            stays |= bool((to == place).any())
            misses |= bool((to >= size).any())
            moves.append((here[moving], (here + (to - place) * stride)[moving]))
        parts.append(_flows(replicas, moves, shares))
    head, tail = parts
    members = np.zeros(system.num_ipus, bool)
    members[head[0]] = members[head[1]] = True
    members[: times * ipus] = np.tile(members[:ipus], times)
    members[tail[0]] = members[tail[1]] = True
    unit = periodic_phase(system, head, ipus, times, tail, members)
    return None if unit is None else Crossing(unit, stays, misses)


def _between_groups(
    system: System,
    replicas: Replicas,
    axes: tuple[str, ...],
    permutations: tuple[Permutation, ...],
    shares: tuple[int, ...],
) -> Crossing | None:
    """Return ``crossing`` of exchanges of whole groups of IPUs that are joined among themselves, None of others.

    Those between members far from each other are such: all IPUs of a group send to one other group, each to its own place
    there.
    """
    size = group_size(system)
    each, rest = divmod(size, replicas.ipus_each)
    if rest or each < 2 or replicas.count % each or replicas.folded or not any(shares):
        return None
    groups = np.arange(replicas.count // each)
    moves: list[tuple[np.ndarray, np.ndarray]] = []
    stays = misses = False
    for permutation in permutations:
        there = replicas.destinations(axes, permutation).reshape(-1, each)
        firsts = there[:, 0]
        sends = firsts >= 0
        if (firsts[sends] % each).any():
            return None
        alike = np.where(sends[:, None], firsts[:, None] + np.arange(each), -1)
        if not np.array_equal(there, alike):
            return None
        moving = sends & (firsts // each != groups)
        stays |= bool((sends & ~moving).any())
        misses |= not sends.all()
        moves.append((groups[moving], firsts[moving] // each))
    starts, ends = (np.concatenate(side) for side in zip(*moves, strict=True))
    own = np.tile(np.pad(np.array(shares, np.int64), (0, replicas.ipus_each - len(shares))), each)
    members = np.zeros((system.num_ipus // size, size), bool)
    members[starts] = members[ends] = own > 0
    unit = group_phase(system, starts, ends, own, members.reshape(-1))
    return None if unit is None else Crossing(unit, stays, misses)


def _span(permutation: Permutation) -> int:
    """Return how many places follow each other that send among themselves alike all along, 1 where all stay, 0 of others."""
    if isinstance(permutation, Swap | PartialSwap):
        return 1 << permutation.distance.bit_length()
    if not isinstance(permutation, Shift):
        return 0
    return permutation.stride * permutation.extent if permutation.by else 1


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
