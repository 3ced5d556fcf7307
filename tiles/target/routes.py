"""What crosses the links of a system: bytes between IPUs, routed to bytes per link and direction.

Regular systems are routed by their structures, all flows at once and without listing a flow's links: inside a grid
dimension by dimension (on a ladder the rung first, then the rail), between groups through the nodes that both reach
(gateways, switches). Where bytes must leave by the gateway of another machine, as with gateways that are cabled one
to one, they first go to the IPU of their own group that stands where the receiver stands in its group. Systems with
listed links are routed by a table: fewest hops, of equally short ways the one whose next link stands first.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tiles.cached import cached_property
from tiles.errors import InvalidSystem, Unsupported
from tiles.numerics.shared import read_only
from tiles.target.system import IPU, Laid, System
from tiles.target.wiring import AllToAll, Grid, Passage, Switch

MAX_TABLE_NODES = 4096
"""Nodes up to which a table of routes is made."""


@dataclass(frozen=True, eq=False)
class Loads:
    """Bytes on the links of a system, in a form that stays small where many links have the same.

    Args:
      links: rows of ``System.table``.
      pieces: runs of rows of one block of links, by the first row: bytes by link and direction, unsigned ``[rows, 2]``,
        and how many times these follow each other. No two runs overlap, and links in none of them have no bytes.
    """

    links: int
    pieces: tuple[tuple[int, np.ndarray, int], ...]

    def array(self) -> np.ndarray:
        """Return bytes by link and direction, int64 ``[links, 2]``."""
        found = np.zeros((self.links, 2), np.int64)
        for first, rows, times in self.pieces:
            found[first : first + times * len(rows)] = np.tile(rows, (times, 1))
        return found

    @staticmethod
    def of(system: System, link_bytes: np.ndarray) -> Loads:
        """Return bytes by link and direction, ``[links, 2]``, as loads."""
        return Loads.of_blocks(
            len(link_bytes), {first: link_bytes[first:end] for first, end in system.table.blocks}
        )

    @staticmethod
    def of_blocks(links: int, blocks: Mapping[int, np.ndarray]) -> Loads:
        """Return the bytes on the first rows of blocks of links, by the first row of each, as loads."""
        pieces: list[tuple[int, np.ndarray, int]] = []
        for first, rows in sorted(blocks.items()):
            used = np.flatnonzero(rows[:, 0] | rows[:, 1])
            if used.size:
                start, stop = int(used[0]), int(used[-1]) + 1
                pieces.append((first + start, rows[start:stop], 1))
        return Loads.of_pieces(links, pieces)

    @staticmethod
    def of_pieces(links: int, pieces: Sequence[tuple[int, np.ndarray, int]]) -> Loads:
        """Return loads of pieces in order, their bytes in the smallest type that holds them."""
        return Loads(links, tuple((first, _small(rows), times) for first, rows, times in pieces))

    def repeated(self, system: System, period: int, times: int) -> Loads | None:
        """Return the loads of as many periods of so many IPUs, of those of the first; None where that does not follow."""
        pieces: list[tuple[int, np.ndarray, int]] = []
        for first, rows, _ in self.pieces:
            start, end = next(block for block in system.table.blocks if block[0] <= first < block[1])
            each, rest = divmod((end - start) * period, system.num_ipus)
            if rest or first + len(rows) > start + each:
                return None
            whole = np.zeros((each, 2), rows.dtype)
            whole[first - start : first - start + len(rows)] = rows
            pieces.append((start, whole, times))
        return Loads(self.links, tuple(pieces))

    def joined(self, system: System, other: Loads) -> Loads:
        """Return the loads of both together."""
        pieces = sorted((*self.pieces, *other.pieces), key=lambda piece: piece[0])
        ends = [first + times * len(rows) for first, rows, times in pieces]
        if any(end > piece[0] for end, piece in zip(ends, pieces[1:], strict=False)):
            return Loads.of(system, self.array() + other.array())
        return Loads(self.links, tuple(pieces))


def _small(x: np.ndarray) -> np.ndarray:
    """Return integers from 0 up as a copy of the smallest type that holds them, read-only."""
    return read_only(x.astype(np.min_scalar_type(int(x.max(initial=0)))))


@dataclass(frozen=True, eq=False)
class Routed:
    """Flows on the links of a system.

    Args:
      loads: bytes on the links; direction 0 leads from a link's first end.
      hops: links that each flow passes, int64 ``[flows]``.
      latency_seconds: of each flow's hops together, float64 ``[flows]``; NaN: unknown.
    """

    loads: Loads
    hops: np.ndarray
    latency_seconds: np.ndarray

    @property
    def link_bytes(self) -> np.ndarray:
        """Bytes by link (a row of ``System.table``) and direction, int64 ``[links, 2]``."""
        return self.loads.array()


def repeats(system: System, period: int) -> bool:
    """Return whether IPUs are joined alike after each ``period`` of them, so that the same flows take the same routes."""
    if not system.is_regular or system.num_ipus % period or period % group_size(system):
        return False
    for laid in system.laid:
        wiring = laid.wiring
        if isinstance(wiring, Switch):
            served = [system.ipus_each[kind] for kind in wiring.kinds if kind != IPU]
            if any(period % each and each < system.num_ipus for each in served):
                return False
        elif isinstance(wiring, Grid | AllToAll):
            each = system.ipus_each[wiring.nodes] if wiring.nodes != IPU else 1
            if period % (each * math.prod(wiring.repeated(system.counts[wiring.nodes]))):
                return False
    return True


def route_matrix(system: System, size_bytes: np.ndarray) -> Routed:
    """Return what a matrix of bytes puts on the links; flows are its entries above 0, row by row.

    Args:
      system: the system.
      size_bytes: what each IPU sends to each other one, integers ``[num_ipus, num_ipus]``; the diagonal stays where
        it is.

    Raises:
      ValueError: another shape, or negative bytes.
    """
    size_bytes = off_chip(system, size_bytes)
    source, destination = np.nonzero(size_bytes)
    return route(system, source, destination, size_bytes[source, destination])


def off_chip(system: System, size_bytes: np.ndarray) -> np.ndarray:
    """Return a matrix of bytes with 0 on its diagonal, int64 ``[num_ipus, num_ipus]``.

    Raises:
      ValueError: another shape, or entries that are no integers from 0 up.
    """
    size_bytes = np.asarray(size_bytes)
    legal = size_bytes.shape == (system.num_ipus, system.num_ipus) and size_bytes.dtype.kind in "iu"
    if not legal or (size_bytes < 0).any():
        raise ValueError(f"expected {system.num_ipus} x {system.num_ipus} numbers of bytes from 0 up")
    return np.where(np.eye(system.num_ipus, dtype=bool), 0, size_bytes.astype(np.int64))


def route(system: System, source: np.ndarray, destination: np.ndarray, size_bytes: np.ndarray) -> Routed:
    """Return what flows put on the links.

    Args:
      system: the system.
      source: IPUs that send, int64 ``[flows]``.
      destination: IPUs that receive, int64 ``[flows]``, none of them its flow's source.
      size_bytes: bytes of each flow, int64 ``[flows]``.

    Raises:
      ValueError: an IPU that is not there, or a flow from an IPU to itself.
      InvalidSystem: a flow that the system's wiring takes nowhere.
    """
    source, destination, size_bytes = (np.asarray(x, np.int64) for x in (source, destination, size_bytes))
    both = np.concatenate([source, destination])
    if both.size and (both.min() < 0 or both.max() >= system.num_ipus or (source == destination).any()):
        raise ValueError(f"flows lead from one to another of {system.num_ipus} IPUs")
    if system.is_regular:
        return _Regular(system, source, destination, size_bytes).routed()
    return _by_table(system, source, destination, size_bytes)


def check_routes(system: System) -> System:
    """Return the system if bytes get from IPU 0 to every other IPU, and back, and stated routes arrive.

    Raises:
      InvalidSystem: they do not.
    """
    others = np.arange(1, system.num_ipus)
    first = np.zeros_like(others)
    if not system.is_regular:
        _stated(system)
    if system.is_regular or sum(system.counts.values()) <= MAX_TABLE_NODES:
        route(system, first, others, first)
        route(system, others, first, first)
    return system


# ---- by structure


class _Regular:
    """Flows on their way through the structures of a system."""

    def __init__(self, system: System, source: np.ndarray, destination: np.ndarray, size_bytes: np.ndarray):
        self.system = system
        self.source, self.destination, self.size_bytes = source, destination, size_bytes
        self.blocks: dict[int, np.ndarray] = {}
        self.hops = np.zeros(source.shape, np.int64)
        self.latency = np.zeros(source.shape)

    def routed(self) -> Routed:
        """Send every flow by the first wiring that takes it there."""
        waiting = np.arange(len(self.source))
        for laid in self.system.laid:
            if not waiting.size:
                break
            send = self._switch if isinstance(laid.wiring, Switch) else self._structure
            waiting = send(waiting, laid)
        if waiting.size:
            a, b = self.source[waiting[0]], self.destination[waiting[0]]
            raise InvalidSystem(
                f"system {self.system.name!r}: a route from ipu {a} does not arrive at ipu {b}",
                try_="a wiring that reaches both, or a list of links",
            )
        loads = Loads.of_blocks(len(self.system.table.ends), self.blocks)
        return Routed(loads, self.hops, self.latency)

    def _switch(self, waiting: np.ndarray, laid: Laid) -> np.ndarray:
        """Send the flows whose ends meet at one node of a switch; return the others."""
        assert isinstance(laid.wiring, Switch)
        top, starts, ends = laid.wiring.to, self.source[waiting], self.destination[waiting]
        meet = self._above(starts, top) == self._above(ends, top)
        self._climb(waiting[meet], starts[meet], top, 0)
        self._climb(waiting[meet], ends[meet], top, 1)
        return waiting[~meet]

    def _structure(self, waiting: np.ndarray, laid: Laid) -> np.ndarray:
        """Send the flows that a grid, or links all to all, connects; return the others."""
        wiring = laid.wiring
        assert isinstance(wiring, Grid | AllToAll)
        count = self.system.counts[wiring.nodes]
        start, end = self.source[waiting], self.destination[waiting]
        entry = self._above(end, wiring.nodes)
        meet = wiring.meet(self._above(start, wiring.nodes), entry, count)
        if wiring.nodes != IPU and not meet.all():
            peer = self._peer(start, end)
            detour = ~meet & wiring.meet(self._above(peer, wiring.nodes), entry, count)
            self._within(waiting[detour], start[detour], peer[detour])
            start, meet = np.where(detour, peer, start), meet | detour
        flows, start, end = waiting[meet], start[meet], end[meet]
        if wiring.nodes == IPU and self._alike(flows, start, end, laid):
            return waiting[~meet]
        self._climb(flows, start, wiring.nodes, 0)
        exits, entries = self._above(start, wiring.nodes), self._above(end, wiring.nodes)
        count = _fewest(wiring, max(exits.max(initial=0), entries.max(initial=0)), count)
        self._pass(flows, laid.name, wiring.route(exits, entries, self.size_bytes[flows], count))
        self._climb(flows, end, wiring.nodes, 1)
        return waiting[~meet]

    def _alike(self, flows: np.ndarray, start: np.ndarray, end: np.ndarray, laid: Laid) -> bool:
        """Send flows among the IPUs of each group where all groups have the same ones, of one group for all.

        Links lie group after group, and a group's routes are those of its places: permutations of a large system take
        as long to follow as those of a small one.
        """
        wiring, count = laid.wiring, self.system.num_ipus
        assert isinstance(wiring, Grid | AllToAll)
        size = group_size(self.system)
        groups = count // size
        if (
            groups < 2
            or not flows.size
            or flows.size % groups
            or wiring.repeated(count) != wiring.repeated(size)
        ):
            return False
        first = np.arange(groups)[:, None] * size
        rows = [start.reshape(groups, -1) - first, end.reshape(groups, -1) - first]
        rows.append(self.size_bytes[flows].reshape(groups, -1))
        if not all((row == row[0]).all() for row in rows) or rows[0].min() < 0 or rows[0].max() >= size:
            return False
        passages = [
            Passage(each.link, np.tile(each.loads, (groups, 1)), np.tile(each.hops, groups))
            for each in wiring.route(rows[0][0], rows[1][0], rows[2][0], size)
        ]
        self._pass(flows, laid.name, passages)
        return True

    def _within(self, flows: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
        """Send flows from IPU to IPU of one group, those that are not there yet."""
        moving = start != end
        laid = self._fabric
        if moving.any() and laid is not None:
            wiring, count = laid.wiring, self.system.num_ipus
            assert isinstance(wiring, Grid | AllToAll)
            flows = flows[moving]
            self._pass(
                flows, laid.name, wiring.route(start[moving], end[moving], self.size_bytes[flows], count)
            )

    @cached_property
    def _fabric(self) -> Laid | None:
        """The wiring among IPUs themselves, if there is one."""
        laid = (
            x for x in self.system.laid if isinstance(x.wiring, Grid | AllToAll) and x.wiring.nodes == IPU
        )
        return next(laid, None)

    def _peer(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the IPUs of the senders' groups that stand where the receivers stand in theirs."""
        size = group_size(self.system)
        return start // size * size + end % size

    def _above(self, ipus: np.ndarray, kind: str) -> np.ndarray:
        """Return the nodes of a kind that serve some IPUs."""
        return ipus // self.system.ipus_each[kind]

    def _climb(self, flows: np.ndarray, ipus: np.ndarray, kind: str, direction: int) -> None:
        """Put flows on the links between IPUs and the nodes of a kind that serve them: 0 up, 1 down."""
        for name, wiring in chain(self.system, kind):
            if not flows.size:
                continue
            nodes = self._above(ipus, wiring.nodes)
            loads = np.zeros((int(nodes.max()) + 1, 2), np.int64)
            np.add.at(loads[:, direction], nodes, self.size_bytes[flows])
            self._pass(flows, name, [Passage(wiring.link, loads, np.ones(flows.shape, np.int64))])

    def _pass(self, flows: np.ndarray, name: str, passages: list[Passage]) -> None:
        """Add what flows put on the blocks of a wiring."""
        starts = self.system.table.starts
        for number, passage in enumerate(passages):
            if not passage.hops.any():
                continue
            first = starts[name, number]
            before = self.blocks.get(first, passage.loads[:0])
            longer, other = sorted((before, passage.loads), key=len, reverse=True)
            self.blocks[first] = longer.copy()
            self.blocks[first][: len(other)] += other
            chosen = slice(None) if flows.size == self.hops.size else flows  # flows are in order
            self.hops[chosen] += passage.hops
            latency = self.system.link(passage.link).latency_seconds
            if latency is None:
                self.latency[flows[passage.hops > 0]] = np.nan
            else:
                self.latency[chosen] += latency * passage.hops


def _fewest(wiring: Grid | AllToAll, last: int, count: int) -> int:
    """Return as many of ``count`` nodes as the first repetitions have that hold node ``last``, if wired alike without others."""
    size = math.prod(wiring.repeated(count))
    fewest = (int(last) // size + 1) * size
    return fewest if wiring.repeated(fewest) == wiring.repeated(count) else count


def group_size(system: System) -> int:
    """Return how many IPUs each structure of links among IPUs themselves joins; 1 where there is none."""
    for laid in system.laid:
        if isinstance(laid.wiring, Grid) and laid.wiring.nodes == IPU:
            return math.prod(laid.wiring.extents(system.num_ipus))
        if isinstance(laid.wiring, AllToAll) and laid.wiring.nodes == IPU:
            return laid.wiring.group(system.num_ipus)
    return 1


def chain(system: System, kind: str) -> list[tuple[str, Switch]]:
    """Return the switches' wirings from IPUs up to a kind of node.

    Raises:
      InvalidSystem: none lead there.
    """
    chain: list[tuple[str, Switch]] = []
    at = kind
    while at != IPU:
        below = [
            (x.name, x.wiring) for x in system.laid if isinstance(x.wiring, Switch) and x.wiring.to == at
        ]
        if not below or len(chain) > len(system.laid):
            raise InvalidSystem(f"system {system.name!r}: no links lead from IPUs up to {kind!r}")
        chain.insert(0, below[0])
        at = below[0][1].nodes
    return chain


# ---- by table


@dataclass(frozen=True, eq=False)
class _Table:
    """The way from every node to every IPU.

    Args:
      hops: int64 ``[nodes, num_ipus]``.
      next_link: the link to take, int64 ``[nodes, num_ipus]``; -1 at the IPU itself.
    """

    hops: np.ndarray
    next_link: np.ndarray


@functools.lru_cache(maxsize=16)
def _table(system: System) -> _Table:
    nodes, ends = sum(system.counts.values()), system.table.ends
    if nodes > MAX_TABLE_NODES:
        raise Unsupported(
            f"system {system.name!r} lists links one by one and has {nodes:,} nodes",
            expected=f"at most {MAX_TABLE_NODES:,} nodes, or regular structures",
        )
    both = np.concatenate([ends, ends[:, ::-1]])
    link = np.tile(np.arange(len(ends)), 2)
    hops = np.full((nodes, system.num_ipus), nodes, np.int64)
    hops[np.arange(system.num_ipus), np.arange(system.num_ipus)] = 0
    for _ in range(nodes):
        before = hops.copy()
        np.minimum.at(hops, both[:, 0], before[both[:, 1]] + 1)
        if (hops == before).all():
            break
    choice = np.full(hops.shape, len(ends), np.int64)
    closer = hops[both[:, 1]] + 1 == hops[both[:, 0]]
    np.minimum.at(choice, both[:, 0], np.where(closer, link[:, None], len(ends)))
    return _Table(hops, np.where(hops == 0, -1, choice))


def table_hops(system: System) -> np.ndarray:
    """Return the fewest hops from every node to every IPU of a system of listed links, ``[nodes, num_ipus]``."""
    return _table(system).hops


@functools.lru_cache(maxsize=16)
def _stated(system: System) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return the links and directions of the stated routes, by source and destination.

    Raises:
      InvalidSystem: a route that does not lead along links from an IPU to another.
    """
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    by_ends: dict[tuple[int, int], tuple[int, int]] = {}
    ends: list[tuple[int, int]] = system.table.ends.tolist()
    for number, (a, b) in reversed(list(enumerate(ends))):
        by_ends[a, b], by_ends[b, a] = (number, 0), (number, 1)
    for path in system.routes:
        words = " -> ".join(f"{kind} {number}" for kind, number in path)
        where = f"system {system.name!r}: the route {words} does not arrive"
        if len(path) < 2 or path[0][0] != IPU or path[-1][0] != IPU or path[0] == path[-1]:
            raise InvalidSystem(f"{where}: it leads from one IPU to another")
        for kind, number in path:
            if number >= system.counts.get(kind, 0):
                raise InvalidSystem(f"{where}: there is no {kind} {number}")
        nodes = [system.node_offsets[kind] + number for kind, number in path]
        for step in itertools.pairwise(nodes):
            if step not in by_ends:
                raise InvalidSystem(
                    f"{where}: no link joins {system.node_name(step[0])} and {system.node_name(step[1])}"
                )
        found[nodes[0], nodes[-1]] = [by_ends[step] for step in itertools.pairwise(nodes)]
    return found


def _by_table(system: System, source: np.ndarray, destination: np.ndarray, size_bytes: np.ndarray) -> Routed:
    """Send flows link by link, all of them one hop at a time; those with a stated route along it."""
    table, ends, hop_seconds = _table(system), system.table.ends, system.table.latency_seconds
    stated = _stated(system)
    loads = np.zeros((len(ends), 2), np.int64)
    hops, latency = np.zeros(source.shape, np.int64), np.zeros(source.shape)
    has_route = np.zeros(source.shape, bool)
    for (a, b), path in stated.items():
        flows = np.flatnonzero((source == a) & (destination == b))
        has_route[flows] = True
        for link, direction in path:
            loads[link, direction] += size_bytes[flows].sum()
            latency[flows] += hop_seconds[link]
        hops[flows] = len(path)
    at, moving = source.copy(), np.flatnonzero(~has_route)
    while moving.size:
        link = table.next_link[at[moving], destination[moving]]
        direction = (ends[link, 0] != at[moving]).astype(np.int64)
        np.add.at(loads, (link, direction), size_bytes[moving])
        latency[moving] += hop_seconds[link]
        hops[moving] += 1
        at[moving] = ends[link, 1 - direction]
        moving = moving[at[moving] != destination[moving]]
    return Routed(Loads.of(system, loads), hops, latency)
