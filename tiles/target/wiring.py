"""How the nodes of a system are wired: regular structures of a few parameters, and lists of links.

Nodes are counted within their kind. A structure of a given size repeats: 128 IPUs in ladders of 32 rungs are two
ladders. Where there are fewer nodes than it holds, its last dimension is cut, and a cut ring is a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiles.errors import InvalidSystem
from tiles.files import JsonObject, is_mapping, is_row


@dataclass(frozen=True, eq=False)
class Block:
    """Links of one kind that a structure lays.

    Args:
      link: the kind's name.
      ends: ``[links, 2]``, nodes counted within their kind, or over the whole system for a list.
      bundles: how many times a link's own parallel links lie between the two ends.
    """

    link: str
    ends: np.ndarray
    bundles: int = 1


@dataclass(frozen=True)
class Grid:
    """A line, ring, ladder or torus: nodes at integer coordinates, linked to their neighbours.

    Args:
      nodes: the kind of node.
      sizes: extents, the dimension in which numbers run fastest first; None: as many as there are.
      links: the kind of link along each dimension; None: none.
      through: the kind of link along each dimension for what goes on along a later one; None: the same.
      joined: whether the ends of each dimension are linked.
    """

    nodes: str
    sizes: tuple[int | None, ...]
    links: tuple[str | None, ...]
    through: tuple[str | None, ...]
    joined: tuple[bool, ...]

    @property
    def link_names(self) -> tuple[str, ...]:
        """The kinds of link it lays."""
        return tuple(name for name in (*self.links, *self.through) if name is not None)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of node it links."""
        return (self.nodes,)

    def extents(self, count: int) -> tuple[int, ...]:
        """Return the extents of each repetition for ``count`` nodes.

        Raises:
          InvalidSystem: that many cannot be wired so.
        """
        extents: list[int] = []
        left = count
        for size in self.sizes:
            extent = left if size is None else min(size, left)
            if left % extent:
                words = " x ".join("?" if size is None else str(size) for size in self.sizes)
                raise InvalidSystem(
                    f"{count} nodes {self.nodes!r} cannot be wired as {words}",
                    expected=f"a multiple of {count // left * extent}",
                )
            extents.append(extent)
            left //= extent
        return tuple(extents)

    def repeated(self, count: int) -> tuple[int, ...]:
        """Return the extents of a repetition among ``count`` nodes: where equal, repetitions are wired alike."""
        return self.extents(count)

    def is_ring(self, dimension: int, extent: int) -> bool:
        """Return whether the ends of a dimension are linked by a link of their own."""
        return self.is_joined(dimension, extent) and extent > 2

    def is_joined(self, dimension: int, extent: int) -> bool:
        """Return whether a dimension goes on from its end at its start; of two nodes, by links in parallel."""
        return self.joined[dimension] and self.sizes[dimension] in (None, extent)

    def blocks(self, count: int) -> list[Block]:
        """Return the links along each dimension: those for what ends there, then those for the rest.

        The link from a node to the next along a dimension is the one of that node.
        """
        blocks: list[Block] = []
        stride = 1
        for dimension, extent in enumerate(self.extents(count)):
            node = np.arange(count)
            coordinate = node // stride % extent
            ring = self.is_ring(dimension, extent)
            node, coordinate = (x[ring | (coordinate < extent - 1)] for x in (node, coordinate))
            following = np.where(coordinate == extent - 1, node - (extent - 1) * stride, node + stride)
            ends = np.stack([node, following], axis=1).reshape(-1, 2)
            bundles = 2 if self.is_joined(dimension, extent) and extent == 2 else 1
            names = (self.links[dimension], self.through[dimension])
            blocks += [Block(name, ends, bundles) for name in names if name is not None]
            stride *= extent
        return blocks

    def meet(self, a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
        """Return which nodes ``a`` and ``b`` it connects."""
        extents = self.extents(count)
        group, stride = math.prod(extents), 1
        connected = (a // group == b // group) & (a != b)
        for dimension, extent in enumerate(extents):
            if self.links[dimension] is None:
                connected &= a // stride % extent == b // stride % extent
            stride *= extent
        return connected

    def route(self, a: np.ndarray, b: np.ndarray, size_bytes: np.ndarray, count: int) -> list[Passage]:
        """Return what flows from ``a`` to ``b`` put on each block: dimension by dimension, the shorter way.

        Of two equally short ways around a ring, the one that counts up is taken.
        """
        passages: list[Passage] = []
        stride = 1
        extents = self.extents(count)
        for dimension, extent in enumerate(extents):
            start, end = a // stride % extent, b // stride % extent
            up, down = (end - start) % extent, (start - end) % extent
            is_up = up <= down if self.is_ring(dimension, extent) else end >= start
            steps = np.where(is_up, up, down)
            later = stride * extent
            goes_on = a // later != b // later
            names = (self.links[dimension], self.through[dimension])
            ring = self.is_ring(dimension, extent)
            for is_through, name in enumerate(names):
                if name is None:
                    continue
                mine = np.full(a.shape, True) if names[1] is None else goes_on == bool(is_through)
                if not (mine & (steps > 0)).any():
                    passages.append(Passage(name, np.zeros((0, 2), np.int64), np.zeros(a.shape, np.int64)))
                    continue
                weight = np.where(mine, size_bytes, 0)
                loads = _range_loads((a, start, end), steps, is_up, weight, (count, extent, stride), ring)
                passages.append(Passage(name, loads, np.where(mine, steps, 0)))
            a = a + (end - start) * stride
            stride = later
        return passages


@dataclass(frozen=True)
class AllToAll:
    """Groups of ``size`` nodes in which each is linked to each other; None: one group of all."""

    nodes: str
    size: int | None
    link: str

    @property
    def link_names(self) -> tuple[str, ...]:
        """The kinds of link it lays."""
        return (self.link,)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of node it links."""
        return (self.nodes,)

    def group(self, count: int) -> int:
        """Return how many nodes a group has.

        Raises:
          InvalidSystem: ``count`` nodes do not fill whole groups.
        """
        group = count if self.size is None else min(self.size, count)
        if count % group:
            raise InvalidSystem(f"{count} nodes {self.nodes!r} cannot be wired in groups of {group}")
        return group

    def repeated(self, count: int) -> tuple[int, ...]:
        """Return the size of a group among ``count`` nodes: where equal, groups are wired alike."""
        return (self.group(count),)

    def blocks(self, count: int) -> list[Block]:
        """Return a link per pair, group by group."""
        group = self.group(count)
        pairs = np.stack(np.triu_indices(group, 1), axis=1)
        starts = np.arange(0, count, group)
        return [Block(self.link, (starts[:, None, None] + pairs).reshape(-1, 2))]

    def meet(self, a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
        """Return which nodes ``a`` and ``b`` it connects."""
        group = self.group(count)
        return (a // group == b // group) & (a != b)

    def route(self, a: np.ndarray, b: np.ndarray, size_bytes: np.ndarray, count: int) -> list[Passage]:
        """Return what flows from ``a`` to ``b`` put on each pair's link."""
        group = self.group(count)
        pairs = group * (group - 1) // 2
        low, high = np.minimum(a, b) % group, np.maximum(a, b) % group
        link = a // group * pairs + low * (2 * group - low - 1) // 2 + high - low - 1
        loads = np.zeros((count // group * pairs, 2), np.int64)
        np.add.at(loads, (link, (a > b).astype(np.int64)), size_bytes)
        return [Passage(self.link, loads, np.ones(a.shape, np.int64))]


@dataclass(frozen=True)
class Switch:
    """Each node of a kind linked to the node of another kind that serves its IPUs: a switch, gateway or host."""

    nodes: str
    to: str
    link: str

    @property
    def link_names(self) -> tuple[str, ...]:
        """The kinds of link it lays."""
        return (self.link,)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of node it links."""
        return (self.nodes, self.to)


@dataclass(frozen=True)
class Listed:
    """Links between nodes by name, for what is not regular.

    Args:
      link: the kind of link.
      ends: pairs of nodes, a node a kind and a number.
    """

    link: str
    ends: tuple[tuple[tuple[str, int], tuple[str, int]], ...]

    @property
    def link_names(self) -> tuple[str, ...]:
        """The kinds of link it lays."""
        return (self.link,)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of node it links."""
        return tuple(dict.fromkeys(kind for pair in self.ends for kind, _ in pair))


Wiring = Grid | AllToAll | Switch | Listed


@dataclass(frozen=True, eq=False)
class Passage:
    """What flows put on the links of one block.

    Args:
      link: the kind of link.
      loads: bytes by link and direction, int64 ``[links, 2]``; direction 0 leads from the first end. No rows where
        nothing passes.
      hops: links of this block that each flow passes, int64 ``[flows]``.
    """

    link: str
    loads: np.ndarray
    hops: np.ndarray


def _range_loads(
    flow: tuple[np.ndarray, np.ndarray, np.ndarray],
    steps: np.ndarray,
    is_up: np.ndarray,
    size_bytes: np.ndarray,
    shape: tuple[int, int, int],
    ring: bool,
) -> np.ndarray:
    """Return the bytes on each link along one dimension, int64 ``[links, 2]`` in the order of ``blocks``.

    A flow passes a run of consecutive links, so it adds at the run's first and takes off after its last, and a
    running sum along each line gives the loads: no flow's links are listed.
    """
    a, start, end = flow
    count, extent, stride = shape
    line = a // (stride * extent) * stride + a % stride
    loads: list[np.ndarray] = []
    each = 2 * extent + 1  # places on a line: twice round a ring
    at = line * each + np.where(is_up, start, end)
    for direction in (is_up, ~is_up):
        weight = np.where(direction, size_bytes, 0)
        change = np.zeros((count // extent, each), np.int64)
        if weight.any():
            np.add.at(change.reshape(-1), at, weight)
            np.add.at(change.reshape(-1), at + steps, -weight)
        running = change.cumsum(axis=1)
        by_line = (
            running[:, :extent] + running[:, extent : 2 * extent]
        )  # what ran over the end is at its start
        loads.append(by_line.reshape(-1, stride, extent).swapaxes(1, 2).reshape(-1))
    exists = ring | (np.arange(count) // stride % extent < extent - 1)
    return np.stack(loads, axis=1)[exists]


# ---- data


def read_wiring(data: object, where: str) -> Wiring:
    """Return the wiring that JSON ``data`` describes: its pattern and the pattern's parameters.

    Raises:
      InvalidSystem: an unknown pattern, or a parameter that is missing, unknown or not legal.
    """
    pattern = data.get("pattern") if is_mapping(data) else None
    if not is_mapping(data) or not isinstance(pattern, str) or pattern not in _PATTERNS:
        raise InvalidSystem(f"{where} has no legal pattern", expected=", ".join(_PATTERNS), got=pattern)
    parameters = {key: value for key, value in data.items() if key not in ("pattern", "basis", "source")}
    required, optional, make = _PATTERNS[pattern]
    missing = sorted(required - set(parameters))
    unknown = sorted(set(parameters) - required - optional)
    if missing or unknown:
        told = f"needs {', '.join(missing)}" if missing else f"has no {', '.join(unknown)}"
        raise InvalidSystem(f"{where}: pattern {pattern!r} {told}", expected=sorted(required | optional))
    try:
        return make(**parameters)
    except (TypeError, ValueError) as error:
        raise InvalidSystem(f"{where}: {error}") from None


def wiring_data(wiring: Wiring) -> JsonObject:
    """Return a wiring as plain data that ``read_wiring`` reads."""
    if isinstance(wiring, Grid):
        return {
            "pattern": "grid", "nodes": wiring.nodes, "sizes": list(wiring.sizes), "links": list(wiring.links),
            "through": list(wiring.through), "ends_joined": list(wiring.joined),
        }  # fmt: skip
    if isinstance(wiring, AllToAll):
        return {"pattern": "all-to-all", "nodes": wiring.nodes, "size": wiring.size, "link": wiring.link}
    if isinstance(wiring, Switch):
        return {"pattern": "switch", "nodes": wiring.nodes, "to": wiring.to, "link": wiring.link}
    ends = [[f"{kind} {number}" for kind, number in pair] for pair in wiring.ends]
    return {"pattern": "list", "link": wiring.link, "ends": ends}


def read_node(text: object) -> tuple[str, int]:
    """Return the kind and number of a node's name, "ipu 3".

    Raises:
      ValueError: it is none.
    """
    kind, _, number = text.rpartition(" ") if isinstance(text, str) else ("", "", "")
    if not kind or not number.isdecimal():
        raise ValueError(f'{text!r} names no node; "ipu 3" does')
    return kind, int(number)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} is a name, not {value!r}")
    return value


def _size(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"a size is a number of nodes from 1 up, or null for all there are, not {value!r}")
    return value


def _grid(nodes: object, sizes: Any, links: Any, ends_joined: Any, through: Any = None) -> Grid:
    if not is_row(sizes) or not sizes:
        raise ValueError(f"sizes are a list of extents, not {sizes!r}")
    through = [None] * len(sizes) if through is None else through
    if not all(is_row(x) and len(x) == len(sizes) for x in (links, ends_joined, through)):
        raise ValueError(f"links, through and ends_joined are lists of {len(sizes)}, one entry per size")
    if not all(isinstance(joined, bool) for joined in ends_joined):
        raise ValueError(f"ends_joined is true or false, not {ends_joined!r}")
    names = [[None if x is None else _text(x, "a link") for x in row] for row in (links, through)]
    if any(first is None and second is not None for first, second in zip(*names, strict=True)):
        raise ValueError("links for what goes through lie beside links for what ends there")
    extents = tuple(_size(size) for size in sizes)
    return Grid(_text(nodes, "nodes"), extents, tuple(names[0]), tuple(names[1]), tuple(ends_joined))


def _line(nodes: object, size: object, link: object) -> Grid:
    return _grid(nodes, [size], [link], [False])


def _ring(nodes: object, size: object, link: object) -> Grid:
    return _grid(nodes, [size], [link], [True])


def _ladder(
    nodes: object, rungs: object, rung: object, rail: object, ends_joined: object, through: object = None
) -> Grid:
    return _grid(nodes, [2, rungs], [rung, rail], [False, ends_joined], [through, None])


def _torus(nodes: object, sizes: object, links: Any) -> Grid:
    return _grid(nodes, sizes, links, [True] * len(sizes) if is_row(sizes) else [])


def _all_to_all(nodes: object, size: object, link: object) -> AllToAll:
    return AllToAll(_text(nodes, "nodes"), _size(size), _text(link, "link"))


def _switch(nodes: object, to: object, link: object) -> Switch:
    return Switch(_text(nodes, "nodes"), _text(to, "to"), _text(link, "link"))


def _listed(link: object, ends: object) -> Listed:
    if not is_row(ends):
        raise ValueError(f"ends are a list of pairs of nodes, not {ends!r}")
    for pair in ends:
        if not is_row(pair) or len(pair) != 2:
            raise ValueError(f"a link has two ends, got {pair!r}")
    return Listed(_text(link, "link"), tuple((read_node(a), read_node(b)) for a, b in ends))


_PATTERNS: dict[str, tuple[set[str], set[str], Callable[..., Wiring]]] = {
    "line": (
        {"nodes", "size", "link"},
        set(),
        _line,
    ),
    "ring": (
        {"nodes", "size", "link"},
        set(),
        _ring,
    ),
    "ladder": ({"nodes", "rungs", "rung", "rail", "ends_joined"}, {"through"}, _ladder),
    "torus": ({"nodes", "sizes", "links"}, set(), _torus),
    "grid": ({"nodes", "sizes", "links", "ends_joined"}, {"through"}, _grid),
    "all-to-all": ({"nodes", "size", "link"}, set(), _all_to_all),
    "switch": ({"nodes", "to", "link"}, set(), _switch),
    "list": ({"link", "ends"}, set(), _listed),
}
"""By pattern: required and optional parameters, and what makes its wiring."""
