"""The ``System``: several IPUs, the nodes between them, the links that join them, and what each figure rests on.

A system is a chip (a ``Target`` of one IPU), how many of them, kinds of nodes (gateways, switches, hosts), kinds of
links, and the wiring that says which nodes they join. Regular structures are a few parameters, so a system of 65,536
IPUs is as small as one of two; which links there are follows when asked for. How bytes travel is in ``routes``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tiles.cached import cached_property
from tiles.errors import InvalidSystem, InvalidTarget, UnknownTarget
from tiles.files import JsonObject, is_a, is_mapping, is_row
from tiles.target.basis import Basis
from tiles.target.figure import Figure, read_provenance
from tiles.target.quantity import Quantity
from tiles.target.target import Target
from tiles.target.wiring import Block, Listed, Switch, Wiring, read_node, read_wiring, wiring_data

SCHEMA = "ipuxla.system/1"
IPU = "ipu"
MAX_IPUS = 2**17
"""The largest machine announced has 65,536."""

LINK_FIGURES = {
    "parallel": Quantity(int, "links", low=1, high=4096),
    "bytes_per_second": Quantity(float, "bytes/s", low=1),
    "efficiency": Quantity(float, "ratio", low=1e-3, high=1),
    "latency_seconds": Quantity(float, "s", low=1e-12, high=1, optional=True),
}
"""What a kind of link states: links side by side, the rate of one each way, the share of it left for payload, and
how long a byte takes to the other end when nothing is in its way."""

SYSTEM_FIGURES = {
    "ipus_per_machine": Quantity(int, "IPUs/machine", low=1, high=MAX_IPUS),
    "streaming_memory_bytes": Quantity(int, "bytes/machine", low=0, optional=True),
    "streaming_memory_bytes_per_second": Quantity(float, "bytes/s/machine", low=1, optional=True),
}
"""What a system states of its machines: IPUs in one, memory beside them, and the rate of that memory."""

NODE_FIGURE = Quantity(int, "IPUs/node", low=1, high=MAX_IPUS, optional=True)
"""IPUs that one node of a kind serves; None: one node serves all."""

_ORDERED = ("nodes", "links", "wiring")
"""Keys whose entries have an order: of two wirings that could carry a message, the first does."""
_KEYS = {"schema", "name", "description", "chip", "num_ipus", "figures", *_ORDERED, "order", "routes"}


@dataclasses.dataclass(frozen=True)
class Link:
    """A kind of link between two nodes.

    Args:
      name: as the wiring calls it.
      kind: what it is: "IPU-Link", "PCIe Gen4 x8".
      figures: the four of ``LINK_FIGURES``, in order.
    """

    name: str
    kind: str
    figures: tuple[tuple[str, Figure], ...]

    def figure(self, name: str) -> Figure:
        """Return one of its figures."""
        return dict(self.figures)[name]

    @property
    def payload_bytes_per_second(self) -> float:
        """Payload each way of all parallel links together."""
        names = ("parallel", "bytes_per_second", "efficiency")
        parallel, rate, efficiency = (self.figure(name).value or 0 for name in names)
        return parallel * rate * efficiency

    @property
    def rate_basis(self) -> Basis:
        """What the payload rate rests on."""
        names = ("parallel", "bytes_per_second", "efficiency")
        return Basis.weakest(self.figure(name).basis for name in names)

    @property
    def latency_seconds(self) -> float | None:
        """The time of a hop; None: unknown."""
        return self.figure("latency_seconds").value


@dataclasses.dataclass(frozen=True)
class Node:
    """A kind of node between IPUs.

    Args:
      name: as the wiring calls it.
      kind: what it is.
      ipus_each: IPUs that one of them serves.
      above_ipus: there is one only where the system has more IPUs than this.
    """

    name: str
    kind: str
    ipus_each: Figure
    above_ipus: int = 0

    def count(self, num_ipus: int) -> int:
        """Return how many there are beside that many IPUs."""
        if num_ipus <= self.above_ipus:
            return 0
        return 1 if self.ipus_each.value is None else -(-num_ipus // int(self.ipus_each.value))


@dataclasses.dataclass(frozen=True)
class Laid:
    """One wiring of a system, by name, with what it rests on."""

    name: str
    wiring: Wiring
    basis: Basis
    source: str


@dataclasses.dataclass(frozen=True, eq=False)
class LinkTable:
    """All links of a system, one row each, blocks in the order of the wiring.

    Args:
      ends: nodes counted over the whole system (see ``System.node_offsets``), int64 ``[links, 2]``.
      kind: index into ``System.links``, int64 ``[links]``.
      payload_bytes_per_second: each way, float64 ``[links]``.
      latency_seconds: of a hop, float64 ``[links]``; NaN: unknown.
      starts: the first row of each block, by (wiring, block).
    """

    ends: np.ndarray
    kind: np.ndarray
    payload_bytes_per_second: np.ndarray
    latency_seconds: np.ndarray
    starts: dict[tuple[str, int], int]

    @cached_property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """The first row of each block that has any, and the row behind its last one."""
        firsts = [first for first in self.starts.values() if first < len(self.ends)]
        return tuple(itertools.pairwise([*dict.fromkeys(firsts), len(self.ends)]))


@dataclasses.dataclass(frozen=True)
class System:
    """Several IPUs and what joins them; see the module.

    Args:
      name: short name, as ``find_system`` takes it; a changed system's name ends in "*".
      description: the product's name.
      chip: one IPU.
      num_ipus: how many.
      figures: those of ``SYSTEM_FIGURES``, in order.
      nodes: kinds of nodes besides IPUs.
      links: kinds of links.
      wiring: which nodes they join; where two could carry a message, the first does.
      routes: paths that messages take in place of the shortest, each a list of nodes from an IPU to an IPU.
    """

    name: str
    description: str
    chip: Target
    num_ipus: int
    figures: tuple[tuple[str, Figure], ...]
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    wiring: tuple[Laid, ...]
    routes: tuple[tuple[tuple[str, int], ...], ...] = ()

    def __post_init__(self) -> None:
        """Check that names refer to something, and that the links connect all nodes.

        Raises:
          InvalidSystem: they do not, or the IPUs cannot be wired so.
        """
        is_number = is_a(self.num_ipus, int) and not is_a(self.num_ipus, bool)
        if not is_number or not 1 <= self.num_ipus <= MAX_IPUS:
            raise InvalidSystem(
                f"system {self.name!r} cannot have {self.num_ipus!r} IPUs", expected=f"1 to {MAX_IPUS:,}"
            )
        if self.chip.num_ipus != 1:
            raise InvalidSystem(
                f"system {self.name!r}: its chip {self.chip.name!r} is {self.chip.num_ipus} IPUs"
            )
        for laid in self.wiring:
            self._check_names(laid)
        self._check_connected()

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in dataclasses.fields(self)))

    def __hash__(self) -> int:
        """Return the hash of everything, computed once."""
        return self._hash

    # --- asking

    def figure(self, name: str) -> Figure:
        """Return one of ``SYSTEM_FIGURES``.

        Raises:
          InvalidSystem: no such figure.
        """
        found = dict(self.figures).get(name)
        if found is None:
            raise InvalidSystem(f"a system has no figure {name!r}", expected=", ".join(SYSTEM_FIGURES))
        return found

    @property
    def num_tiles(self) -> int:
        """Tiles of all IPUs together."""
        return self.num_ipus * self.chip.num_tiles

    @property
    def ipus_per_machine(self) -> int:
        """IPUs of one machine."""
        return int(self.figure("ipus_per_machine").value or 1)

    @property
    def num_machines(self) -> int:
        """Machines, the last of which may be used in part."""
        return -(-self.num_ipus // self.ipus_per_machine)

    def link(self, name: str) -> Link:
        """Return a kind of link by name."""
        return next(link for link in self.links if link.name == name)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many nodes of each kind there are, IPUs first; kinds that are not there are left out."""
        counts = {node.name: node.count(self.num_ipus) for node in self.nodes}
        return {IPU: self.num_ipus} | {name: count for name, count in counts.items() if count}

    @cached_property
    def ipus_each(self) -> dict[str, int]:
        """How many IPUs one node of each kind serves."""
        each = {node.name: node.ipus_each.value for node in self.nodes}
        return {IPU: 1} | {
            name: self.num_ipus if value is None else int(value) for name, value in each.items()
        }

    @cached_property
    def node_offsets(self) -> dict[str, int]:
        """The number of the first node of each kind, where nodes are counted over the whole system."""
        offsets: dict[str, int] = {}
        start = 0
        for kind, count in self.counts.items():
            offsets[kind] = start
            start += count
        return offsets

    def node_name(self, number: int) -> str:
        """Return the name of a node by its number over the whole system: "ipu 3"."""
        kind = next(kind for kind in reversed(self.node_offsets) if number >= self.node_offsets[kind])
        return f"{kind} {number - self.node_offsets[kind]}"

    @cached_property
    def laid(self) -> tuple[Laid, ...]:
        """The wiring between kinds of nodes that are there."""
        return tuple(laid for laid in self.wiring if all(kind in self.counts for kind in laid.wiring.kinds))

    def several(self, num_ipus: int) -> Target:
        """Return the tiles of so many of the chips together, as one target."""
        return _several(self.chip, num_ipus)

    @cached_property
    def is_regular(self) -> bool:
        """Whether routes follow from structures alone, without a table over all nodes."""
        return not self.routes and not any(isinstance(laid.wiring, Listed) for laid in self.wiring)

    @cached_property
    def table(self) -> LinkTable:
        """All links."""
        by_name = {link.name: index for index, link in enumerate(self.links)}
        ends: list[np.ndarray] = [np.zeros((0, 2), np.int64)]
        kinds: list[np.ndarray] = []
        bundles: list[np.ndarray] = []
        starts: dict[tuple[str, int], int] = {}
        row = 0
        for laid in self.laid:
            for number, block in enumerate(self.blocks(laid.wiring)):
                starts[laid.name, number] = row
                ends.append(block.ends)
                kinds += [np.full(len(block.ends), by_name[block.link])]
                bundles += [np.full(len(block.ends), block.bundles)]
                row += len(block.ends)
        kind = np.concatenate(kinds) if kinds else np.zeros(0, np.int64)
        bundle = np.concatenate(bundles) if bundles else np.zeros(0, np.int64)
        rates = np.array([link.payload_bytes_per_second for link in self.links] or [0.0])
        hops = np.array(
            [np.nan if x.latency_seconds is None else x.latency_seconds for x in self.links] or [0.0]
        )
        return LinkTable(np.concatenate(ends), kind, rates[kind] * bundle, hops[kind], starts)

    def blocks(self, wiring: Wiring) -> list[Block]:
        """Return the links that a wiring lays, nodes counted over the whole system."""
        offsets = self.node_offsets
        if isinstance(wiring, Listed):
            numbers = [[offsets[kind] + number for kind, number in pair] for pair in wiring.ends]
            return [Block(wiring.link, np.array(numbers, np.int64).reshape(-1, 2))]
        if isinstance(wiring, Switch):
            child = np.arange(self.counts[wiring.nodes])
            parent = child * self.ipus_each[wiring.nodes] // self.ipus_each[wiring.to]
            ends = np.stack([child + offsets[wiring.nodes], parent + offsets[wiring.to]], axis=1)
            return [Block(wiring.link, ends)]
        start = offsets[wiring.nodes]
        return [
            dataclasses.replace(block, ends=block.ends + start)
            for block in wiring.blocks(self.counts[wiring.nodes])
        ]

    # --- changing, reading and writing

    def with_ipus(self, num_ipus: int, name: str | None = None) -> System:
        """Return this system with another number of IPUs, wired by the same rules.

        Raises:
          InvalidSystem: that many cannot be wired so.
        """
        if num_ipus == self.num_ipus and name is None:
            return self
        starred = self.name if self.name.endswith("*") else f"{self.name}*"
        return dataclasses.replace(self, name=name or starred, num_ipus=num_ipus)

    def to_data(self) -> JsonObject:
        """Return this system as plain data, ready for JSON: ``from_data`` gives it back."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "description": self.description,
            "chip": self.chip.to_data(),
            "num_ipus": self.num_ipus,
            "figures": {name: figure.to_data() for name, figure in self.figures},
            "nodes": {
                node.name: {
                    "kind": node.kind,
                    "ipus_each": node.ipus_each.to_data(),
                    "above_ipus": node.above_ipus,
                }
                for node in self.nodes
            },
            "links": {
                link.name: {"kind": link.kind} | {name: figure.to_data() for name, figure in link.figures}
                for link in self.links
            },
            "wiring": {
                laid.name: wiring_data(laid.wiring) | {"basis": str(laid.basis), "source": laid.source}
                for laid in self.wiring
            },
            "routes": [[f"{kind} {number}" for kind, number in route] for route in self.routes],
            "order": {key: [entry.name for entry in getattr(self, key)] for key in _ORDERED},
        }

    @classmethod
    def from_data(cls, data: object) -> System:
        """Return the system that ``to_data`` gave; without ``order``, entries are in the order of the mappings.

        Raises:
          InvalidSystem: the data is malformed or of another schema, or describes an impossible system.
        """
        if not is_mapping(data) or data.get("schema") != SCHEMA or not set(data) <= _KEYS:
            raise InvalidSystem("this is not the data of a system", expected=f"{SCHEMA}: {sorted(_KEYS)}")
        name = data.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidSystem("a system needs a name", got=repr(name))
        where = f"system {name!r}"
        missing = sorted({"description", "chip", "num_ipus", "figures", "links", "wiring"} - set(data))
        if missing:
            raise InvalidSystem(f"{where} does not state {', '.join(missing)}")
        in_order = _ordered(data, where)
        return cls(
            name=name,
            description=_text(data["description"], f"{where}: description"),
            chip=_chip(data["chip"], where),
            num_ipus=data["num_ipus"],
            figures=_figures(data["figures"], SYSTEM_FIGURES, where),
            nodes=tuple(_node(n, x, where) for n, x in in_order["nodes"]),
            links=tuple(_link(n, x, where) for n, x in in_order["links"]),
            wiring=tuple(_laid(n, x, where) for n, x in in_order["wiring"]),
            routes=_routes(data.get("routes", []), where),
        )

    # --- checks

    def _check_names(self, laid: Laid) -> None:
        """Check that a wiring names kinds of links and nodes that exist, and nodes that are there."""
        where = f"system {self.name!r}: wiring {laid.name!r}"
        links, nodes = {link.name for link in self.links}, {IPU, *(node.name for node in self.nodes)}
        for name in laid.wiring.link_names:
            if name not in links:
                raise InvalidSystem(f"{where} uses a link {name!r} that is not there", expected=sorted(links))
        for kind in laid.wiring.kinds:
            if kind not in nodes:
                raise InvalidSystem(
                    f"{where} ends at a node {kind!r} that is not there", expected=sorted(nodes)
                )
        if isinstance(laid.wiring, Listed):
            for kind, number in (end for pair in laid.wiring.ends for end in pair):
                if number >= self.counts.get(kind, 0):
                    raise InvalidSystem(
                        f"{where} ends at {kind} {number}, and there are {self.counts.get(kind, 0)}"
                    )
            for (kind, number), other in laid.wiring.ends:
                if other == (kind, number):
                    raise InvalidSystem(f"{where} leads from {kind} {number} to itself")
        if isinstance(laid.wiring, Switch):
            below, above = self.ipus_each[laid.wiring.nodes], self.ipus_each[laid.wiring.to]
            if above % below and above < self.num_ipus:
                raise InvalidSystem(
                    f"{where}: a {laid.wiring.to} serves {above} IPUs, which no whole number of {laid.wiring.nodes}"
                    f" of {below} makes"
                )

    def _check_connected(self) -> None:
        """Check that every node can be reached from every other."""
        label = np.arange(sum(self.counts.values()))
        first, second = self.table.ends.T
        while True:
            low, high = np.minimum(label[first], label[second]), np.maximum(label[first], label[second])
            if (low == high).all():
                break
            np.minimum.at(label, high, low)
            while (label[label] != label).any():
                label = label[label]
        apart = np.flatnonzero(label != 0)
        if apart.size:
            raise InvalidSystem(
                f"system {self.name!r} is not connected: no link leads from ipu 0 to {self.node_name(apart[0])}",
                expected="wiring by which every node reaches every other",
                try_="a node above what is apart (a host, a switch), with wiring of pattern switch to it",
            )


# ---- reading


@functools.lru_cache(maxsize=64)
def _several(chip: Target, num_ipus: int) -> Target:
    """Return the tiles of several chips together."""
    return chip if num_ipus == 1 else chip.replace(num_ipus=num_ipus, name=f"{num_ipus} x {chip.name}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidSystem(f"{where} is a text", got=repr(value))
    return value


def _ordered(data: Mapping[str, Any], where: str) -> dict[str, list[tuple[str, Any]]]:
    """Return names and entries by key, in the order that a system's data states: JSON may be sorted by name."""
    stated = data.get("order", {})
    if not is_mapping(stated) or not set(stated) <= set(_ORDERED):
        raise InvalidSystem(f"{where}: order lists the names of {', '.join(_ORDERED)}")
    found: dict[str, list[tuple[str, Any]]] = {}
    for key in _ORDERED:
        entries = dict(_mapping(data.get(key, {}), f"{where}: {key}"))
        names = stated.get(key, list(entries))
        if not is_row(names) or sorted(map(str, names)) != sorted(entries):
            raise InvalidSystem(f"{where}: order of {key}", expected=", ".join(entries), got=str(names)[:80])
        found[key] = [(str(name), entries[str(name)]) for name in names]
    return found


def _mapping(data: object, where: str) -> list[tuple[str, Any]]:
    if not is_mapping(data):
        raise InvalidSystem(f"{where} are an object, by name", got=type(data).__name__)
    return list(data.items())


def _chip(data: object, where: str) -> Target:
    try:
        return Target.named(data) if isinstance(data, str) else Target.from_data(data)
    except (InvalidTarget, UnknownTarget) as error:
        raise InvalidSystem(f"{where}: its chip: {error.what}") from None


def _figures(data: object, legal: Mapping[str, Quantity], where: str) -> tuple[tuple[str, Figure], ...]:
    """Return the figures of ``legal`` in its order.

    Raises:
      InvalidSystem: one is missing, unknown or not legal.
    """
    given = dict(_mapping(data, f"{where}: figures"))
    missing, unknown = sorted(set(legal) - set(given)), sorted(set(given) - set(legal))
    if missing or unknown:
        told = f"does not state {', '.join(missing)}" if missing else f"has no figure {', '.join(unknown)}"
        raise InvalidSystem(f"{where} {told}", expected=", ".join(legal))
    return tuple(
        (name, Figure.read(given[name], quantity, f"{where}: {name}")) for name, quantity in legal.items()
    )


def _node(name: str, data: object, where: str) -> Node:
    where = f"{where}: node {name!r}"
    fields = dict(_mapping(data, where))
    if name == IPU or not {"kind", "ipus_each"} <= set(fields) <= {"kind", "ipus_each", "above_ipus"}:
        raise InvalidSystem(f"{where} needs a name but {IPU!r}, kind, ipus_each, and may state above_ipus")
    above = fields.get("above_ipus", 0)
    if not isinstance(above, int) or isinstance(above, bool) or above < 0:
        raise InvalidSystem(f"{where}: above_ipus is a number of IPUs from 0 up", got=repr(above))
    each = Figure.read(fields["ipus_each"], NODE_FIGURE, f"{where}: ipus_each")
    return Node(name, _text(fields["kind"], f"{where}: kind"), each, above)


def _link(name: str, data: object, where: str) -> Link:
    where = f"{where}: link {name!r}"
    fields = dict(_mapping(data, where))
    kind = _text(fields.pop("kind", None), f"{where}: kind")
    return Link(name, kind, _figures(fields, LINK_FIGURES, where))


def _laid(name: str, data: Any, where: str) -> Laid:
    where = f"{where}: wiring {name!r}"
    wiring = read_wiring(data, where)
    return Laid(name, wiring, *read_provenance(data, where))


def _routes(data: object, where: str) -> tuple[tuple[tuple[str, int], ...], ...]:
    if not is_row(data) or not all(is_row(route) for route in data):
        raise InvalidSystem(f"{where}: routes are a list of lists of nodes", got=repr(data))
    try:
        return tuple(tuple(read_node(node) for node in route) for route in data)
    except ValueError as error:
        raise InvalidSystem(f"{where}: a route: {error}") from None
