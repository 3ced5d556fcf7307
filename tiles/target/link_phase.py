"""How long an exchange between IPUs lasts: its busiest link, the hops of its longest route, and the sync before it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from tiles.target.basis import Basis
from tiles.target.group_routes import route_groups
from tiles.target.routes import Loads, Routed, group_size, off_chip, repeats, route, route_matrix, table_hops
from tiles.target.system import IPU, LinkTable, System
from tiles.target.wiring import Grid


@dataclass(frozen=True)
class Sync:
    """What it takes some IPUs to wait for each other.

    Args:
      cycles: of the chip's tile clock; None: unknown. 0 for fewer than two IPUs, which sync on chip.
      hops: that the signal passes one way, to the middle of those who take part.
      basis: of ``cycles``.
    """

    cycles: int | None
    hops: int
    basis: Basis


@dataclass(frozen=True, eq=False)
class LinkPhase:
    """An exchange between IPUs.

    Args:
      loads: bytes on the links.
      busiest: the link that takes longest, -1 where nothing crosses; and the direction.
      busiest_bytes: on that link.
      transfer_seconds: what the busiest link takes.
      transfer_basis: of the busiest link's rate.
      hops: links of the longest route.
      latency_seconds: of the route with most; None: unknown.
      latency_basis: the weakest of the links that are crossed.
      sync: of the IPUs that send or receive.
      clock_hz: the chip's tile clock.
    """

    loads: Loads
    busiest: tuple[int, int]
    busiest_bytes: int
    transfer_seconds: float
    transfer_basis: Basis
    hops: int
    latency_seconds: float | None
    latency_basis: Basis
    sync: Sync
    clock_hz: float

    @property
    def link_bytes(self) -> np.ndarray:
        """Bytes by link (a row of ``System.table``) and direction, int64 ``[links, 2]``."""
        return self.loads.array()

    @property
    def cycles(self) -> int | None:
        """Transfer, latency and sync together, in cycles of the tile clock; None: unknown."""
        if self.latency_seconds is None or self.sync.cycles is None:
            return None
        return _cycles((self.transfer_seconds + self.latency_seconds) * self.clock_hz) + self.sync.cycles

    @property
    def cycles_by_basis(self) -> dict[Basis, float]:
        """How many cycles rest on each basis; what is unknown is left out."""
        parts = (
            (self.transfer_basis, self.transfer_seconds * self.clock_hz),
            (self.latency_basis, (self.latency_seconds or 0) * self.clock_hz),
            (self.sync.basis, self.sync.cycles or 0),
        )
        return {basis: sum(cycles for own, cycles in parts if own is basis) for basis in Basis}


def exchange_phase(system: System, size_bytes: np.ndarray) -> LinkPhase:
    """Return the phase in which each IPU sends each other one some bytes.

    Args:
      system: the system.
      size_bytes: integers ``[num_ipus, num_ipus]``, from row to column; the diagonal stays on chip.

    Raises:
      ValueError: another shape, or negative bytes.
    """
    moved = off_chip(system, size_bytes)
    members = moved.any(axis=0) | moved.any(axis=1)
    return _phase(system, route_matrix(system, moved), np.asarray(members))


def flow_phase(
    system: System, source: np.ndarray, destination: np.ndarray, size_bytes: np.ndarray
) -> LinkPhase:
    """Return the phase of some flows, all int64 ``[flows]``: what a large system's permutations take.

    Raises:
      ValueError: an IPU that is not there, or a flow from an IPU to itself.
    """
    members = np.zeros(system.num_ipus, bool)
    routed = route(system, source, destination, size_bytes)
    members[source] = members[destination] = True
    return _phase(system, routed, members)


Flows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""From, to and bytes of some flows, all int64 ``[flows]``."""


def periodic_phase(
    system: System, first: Flows, period: int, times: int, others: Flows, members: np.ndarray
) -> LinkPhase | None:
    """Return the phase of flows that are the same among each ``period`` IPUs, ``times`` times, and of some others.

    The routes of the first ones are followed once. None where a system is not wired so that all others follow.

    Args:
      system: the system.
      first: the flows among the first period of IPUs.
      period: IPUs.
      times: how often they follow each other.
      others: flows among the IPUs beyond.
      members: the IPUs that take part, bool ``[num_ipus]``.
    """
    if not repeats(system, period):
        return None
    head = route(system, *first)
    loads = head.loads.repeated(system, period, times)
    if loads is None:
        return None
    rest = route(system, *others)
    loads = loads.joined(system, rest.loads)
    hops = np.concatenate([head.hops, rest.hops])
    return _phase_of(
        system, loads, hops, np.concatenate([head.latency_seconds, rest.latency_seconds]), members
    )


def group_phase(
    system: System, starts: np.ndarray, ends: np.ndarray, size_bytes: np.ndarray, members: np.ndarray
) -> LinkPhase | None:
    """Return the phase of flows between whole groups; None where one group does not stand for all.

    Args:
      system: the system.
      starts: groups that send, as ``route_groups`` takes them.
      ends: groups that receive.
      size_bytes: what each IPU of a group sends, int64 ``[group]``.
      members: the IPUs that take part, bool ``[num_ipus]``.
    """
    routed = route_groups(system, starts, ends, size_bytes)
    return None if routed is None else _phase(system, routed, members)


def _phase(system: System, routed: Routed, members: np.ndarray) -> LinkPhase:
    return _phase_of(system, routed.loads, routed.hops, routed.latency_seconds, members)


def _phase_of(
    system: System, loads: Loads, hops: np.ndarray, latencies: np.ndarray, members: np.ndarray
) -> LinkPhase:
    busiest, most, transfer, kinds = _busiest(system.table, loads)
    used = [system.links[kind] for kind in kinds]
    latency = float(latencies.max(initial=0))
    return LinkPhase(
        loads=loads,
        busiest=busiest,
        busiest_bytes=most,
        transfer_seconds=transfer,
        transfer_basis=system.links[int(system.table.kind[busiest[0]])].rate_basis
        if transfer
        else Basis.DOCUMENTED,
        hops=int(hops.max(initial=0)),
        latency_seconds=None if math.isnan(latency) else latency,
        latency_basis=Basis.weakest(link.figure("latency_seconds").basis for link in used)
        if used
        else Basis.DOCUMENTED,
        sync=sync(system, members),
        clock_hz=system.chip.clock_hz,
    )


def _busiest(table: LinkTable, loads: Loads) -> tuple[tuple[int, int], int, float, list[int]]:
    """Return the link and direction that take longest, (-1, 0) where nothing crosses; their bytes, seconds, kinds crossed.

    The links of a block are alike, so the one with most bytes takes longest of them.
    """
    busiest, found, longest, kinds = (-1, 0), 0, 0.0, set[int]()
    for first, rows, _ in loads.pieces:
        place = int(rows.argmax())
        most, rate = int(rows.reshape(-1)[place]), float(table.payload_bytes_per_second[first])
        if not most:
            continue
        kinds.add(int(table.kind[first]))
        seconds = most / rate if rate else math.inf
        if seconds > longest:
            busiest, found, longest = (first + place // 2, place % 2), most, seconds
    return busiest, found, longest, sorted(kinds)


def sync(system: System, members: np.ndarray) -> Sync:
    """Return what it takes the IPUs of ``members``, bool ``[num_ipus]``, to wait for each other.

    A signal goes to the middle of those who take part and back. Where the chip states the time of a hop, that times
    the hops, as PopLibs has it (15 ns on GC2: 48, 96, 144 and 240 cycles for ladders of 2, 4, 8 and 16 IPUs); else
    what the chip states for any sync of several IPUs. Between groups that IPU-Links do not join it also goes by the
    links of messages, there and back.

    Source: github.com/graphcore/poplibs: lib/poplibs_test/Util.cpp.
    """
    return _sync(system, np.asarray(members, bool).tobytes())


@functools.lru_cache(maxsize=64)
def _sync(system: System, members: bytes) -> Sync:
    """Return ``sync``, once for the same IPUs."""
    ipus = np.flatnonzero(np.frombuffer(members, bool))
    if ipus.size < 2:
        return Sync(0, 0, Basis.DOCUMENTED)
    hops, chip = _sync_hops(system, ipus), system.chip
    if chip.sync_hop_seconds is None:
        cycles, basis = chip.global_sync_cycles, chip.basis("global_sync_cycles")[0]
    else:
        cycles = _cycles(2 * hops * chip.sync_hop_seconds * chip.clock_hz)
        basis = chip.basis("sync_hop_seconds")[0]
    first = ipus[np.unique(ipus // group_size(system), return_index=True)[1]]
    if not system.is_regular or first.size < 2:
        return Sync(cycles, hops, basis)
    across = _from_first(system, first)
    kinds = {int(system.table.kind[first]) for first, rows, _ in across.loads.pieces if rows.any()}
    used = [system.links[kind] for kind in sorted(kinds)]
    basis = Basis.weakest([basis, *(link.figure("latency_seconds").basis for link in used)])
    there = float(across.latency_seconds.max())
    together = None if math.isnan(there) else cycles + _cycles(2 * there * chip.clock_hz)
    return Sync(together, hops + int(across.hops.max()), basis)


def _from_first(system: System, ipus: np.ndarray) -> Routed:
    """Return what flows of a byte from the first of some IPUs, each of another group, to every other put on the links."""
    size, others = group_size(system), len(ipus) - 1
    places, groups = ipus % size, ipus // size
    if (places == places[0]).all():
        one = (np.arange(size) == places[0]).astype(np.int64)
        routed = route_groups(system, np.full(others, groups[0]), groups[1:], one)
        if routed is not None:
            return routed
    return route(system, np.full(others, ipus[0]), ipus[1:], np.ones(others, np.int64))


def _sync_hops(system: System, ipus: np.ndarray) -> int:
    """Return the hops from the middle of some IPUs to the farthest of them, in the group where that is most."""
    if not system.is_regular:
        return int(table_hops(system)[: system.num_ipus, ipus].max(axis=1).min())
    grids = [x.wiring for x in system.laid if isinstance(x.wiring, Grid) and x.wiring.nodes == IPU]
    size = group_size(system)
    if size == 1:
        return 0
    if not grids:
        return 1
    ipus, groups = _unlike_groups(system.num_ipus, ipus, size)
    hops, stride, group = np.zeros(groups, np.int64), 1, ipus // size
    for dimension, extent in enumerate(grids[0].extents(system.num_ipus)):
        present = np.zeros((len(hops), extent), bool)
        present[group, ipus // stride % extent] = True
        hops += (_spans(present, grids[0].is_ring(dimension, extent)) + 1) // 2
        stride *= extent
    return int(hops.max())


def _unlike_groups(count: int, ipus: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Return IPUs such that of groups in which the same places take part there is one, and how many groups that are."""
    members = np.zeros(count, bool)
    members[ipus] = True
    places = np.packbits(members.reshape(-1, size), axis=1)
    rows = places.view(f"V{places.shape[1]}").reshape(-1)
    _, firsts = np.unique(rows, return_index=True)
    return np.flatnonzero(members.reshape(-1, size)[firsts]), len(firsts)


def _spans(present: np.ndarray, ring: bool) -> np.ndarray:
    """Return how many links hold those that are present together, ``[groups]`` of bool ``[groups, extent]``."""
    extent = int(present.shape[1])
    place = np.arange(extent)
    first = np.where(present, place, extent).min(axis=1)
    last = np.where(present, place, -1).max(axis=1)
    span = np.where(present.any(axis=1), last - first, 0)
    if not ring:
        return span
    # Around a ring they leave out the longest gap between neighbours, the one over the end included.
    before = np.maximum.accumulate(np.where(present, place, -1), axis=1)
    gaps = np.where(present[:, 1:] & (before[:, :-1] >= 0), place[1:] - before[:, :-1], 0).max(
        axis=1, initial=0
    )
    longest = np.maximum(gaps, extent - span)
    return np.where(present.any(axis=1), extent - longest, 0)


def _cycles(number: float) -> int:
    """Round up to whole cycles, but for what multiplying decimal fractions adds."""
    return math.ceil(number - 1e-6)
