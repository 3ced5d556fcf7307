"""Bytes on links against flows walked hop by hop, on random small systems."""

from __future__ import annotations

import collections
import itertools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np

from tests.systems import link, make, node
from tiles.target import System, exchange_phase, flow_phase
from tiles.target.routes import route_matrix

Loads = collections.Counter
"""Bytes by (from node, to node, kind of link)."""


def matrices(num_ipus: int) -> st.SearchStrategy[np.ndarray]:
    entries = st.lists(st.sampled_from([0, 0, 1, 7, 1000, 2**40]), min_size=num_ipus**2, max_size=num_ipus**2)
    return entries.map(lambda e: np.array(e, np.int64).reshape(num_ipus, num_ipus))


def loads_of(system: System, link_bytes: np.ndarray) -> Loads:
    """Return the bytes of each direction of each link that carries any."""
    found: Loads = collections.Counter()
    for row, (ends, kind) in enumerate(zip(system.table.ends.tolist(), system.table.kind, strict=True)):
        for direction in (0, 1):
            a, b = ends if direction == 0 else ends[::-1]
            found[system.node_name(a), system.node_name(b), system.links[kind].name] += int(
                link_bytes[row, direction]
            )
    return +found


def neighbours(system: System) -> dict[str, set[str]]:
    found: dict[str, set[str]] = collections.defaultdict(set)
    for a, b in system.table.ends.tolist():
        found[system.node_name(a)].add(system.node_name(b))
        found[system.node_name(b)].add(system.node_name(a))
    return found


def distances(system: System, start: str) -> dict[str, int]:
    """Return the fewest hops to every node, breadth first."""
    found, queue, near = {start: 0}, collections.deque([start]), neighbours(system)
    while queue:
        at = queue.popleft()
        for other in sorted(near[at] - set(found)):
            found[other] = found[at] + 1
            queue.append(other)
    return found


# ---- grids, and what leads out of them


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[bool, ...], int]:
    """Extents, which ends are joined, and how many grids."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda s: math.prod(s) <= 20))
    joined = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    return tuple(sizes), tuple(joined), draw(st.integers(1, 3))


def walk(start: list[int], end: list[int], sizes: tuple[int, ...], joined: tuple[bool, ...]):
    """Yield the coordinates passed, with the dimension, one neighbour at a time."""
    at = list(start)
    for dimension, size in enumerate(sizes):
        while at[dimension] != end[dimension]:
            up = (end[dimension] - start[dimension]) % size
            if joined[dimension] and size > 2:
                forward = up <= size - up
            else:
                forward = end[dimension] > start[dimension]
            following = list(at)
            following[dimension] = (at[dimension] + (1 if forward else -1)) % size
            yield dimension, tuple(at), tuple(following)
            at = following


def coordinates(number: int, sizes: tuple[int, ...]) -> list[int]:
    found = []
    for size in sizes:
        found.append(number % size)
        number //= size
    return found


def number_of(at: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    return sum(c * math.prod(sizes[:d]) for d, c in enumerate(at))


@hypothesis.given(grids(), st.booleans(), st.data())
def test_grids_and_a_switch_between_them(grid: Any, through: bool, data: st.DataObject):
    sizes, joined, groups = grid
    size = math.prod(sizes)
    names = [f"along{d}" for d in range(len(sizes))]
    # the last dimension has nothing after it, so no link of it is for what goes on
    on = [f"on{d}" if through and d < len(sizes) - 1 else None for d in range(len(sizes))]
    pattern = {
        "pattern": "grid", "nodes": "ipu", "sizes": list(sizes), "links": names, "ends_joined": list(joined),
        "through": on,
    }  # fmt: skip
    system = make(
        size * groups,
        {
            "grid": pattern,
            "up": {"pattern": "switch", "nodes": "ipu", "to": "gateway", "link": "up"},
            "top": {"pattern": "switch", "nodes": "gateway", "to": "switch", "link": "top"},
        },
        nodes={"gateway": node(size), "switch": node(None)},
        links={name: link() for name in [*names, *filter(None, on), "up", "top"]},
    )
    matrix = data.draw(matrices(system.num_ipus))
    expected: Loads = collections.Counter()
    hops = []
    for a, b in zip(*np.nonzero(matrix * (1 - np.eye(len(matrix), dtype=np.int64))), strict=True):
        a, b, moved = int(a), int(b), int(matrix[a, b])
        if a // size != b // size:
            path = [f"ipu {a}", f"gateway {a // size}", "switch 0", f"gateway {b // size}", f"ipu {b}"]
            for (x, y), kind in zip(itertools.pairwise(path), ["up", "top", "top", "up"], strict=True):
                expected[x, y, kind] += moved
            hops.append(4)
            continue
        start, end = coordinates(a % size, sizes), coordinates(b % size, sizes)
        steps = list(walk(start, end, sizes, joined))
        hops.append(len(steps))
        for dimension, x, y in steps:
            goes_on = start[dimension + 1 :] != end[dimension + 1 :]
            kind = (on[dimension] if goes_on else None) or names[dimension]
            base = a // size * size
            expected[f"ipu {base + number_of(x, sizes)}", f"ipu {base + number_of(y, sizes)}", kind] += moved
    routed = route_matrix(system, matrix)
    assert loads_of(system, routed.link_bytes) == expected
    assert routed.hops.tolist() == hops
    assert np.allclose(routed.latency_seconds, 1e-6 * routed.hops)


@hypothesis.given(grids())
def test_inside_a_grid_no_way_is_shorter(grid: Any):
    sizes, joined, _ = grid
    entry = {"pattern": "grid", "nodes": "ipu", "sizes": list(sizes), "links": ["wire"] * len(sizes),
             "ends_joined": list(joined)}  # fmt: skip
    system = make(math.prod(sizes), {"grid": entry})
    routed = route_matrix(system, np.ones((system.num_ipus,) * 2, np.int64))
    expected = [
        hops
        for a in range(system.num_ipus)
        for b, hops in sorted((int(n.split()[1]), h) for n, h in distances(system, f"ipu {a}").items())
        if a != b
    ]
    assert routed.hops.tolist() == expected


@hypothesis.given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 2), st.data())
def test_gateways_cabled_one_to_one_are_reached_by_the_peer(domains, machines, each, data):
    """Bytes for another domain go to the sender's peer of the receiver, up, around the ring of domains, and down."""
    size = machines * each
    system = make(
        domains * size,
        {
            "group": {"pattern": "all-to-all", "nodes": "ipu", "size": size, "link": "near"},
            "up": {"pattern": "switch", "nodes": "ipu", "to": "gateway", "link": "up"},
            "far": {"pattern": "grid", "nodes": "gateway", "sizes": [machines, None], "links": [None, "far"],
                    "ends_joined": [False, True]},
        },
        nodes={"gateway": node(each)},
        links={name: link() for name in ("near", "up", "far")},
    )  # fmt: skip
    matrix = data.draw(matrices(system.num_ipus))
    expected: Loads = collections.Counter()
    for a, b in zip(*np.nonzero(matrix), strict=True):
        a, b, moved = int(a), int(b), int(matrix[a, b])
        peer = b if a // size == b // size else a // size * size + b % size
        if peer != b and a % size // each == b % size // each:
            peer = a  # its own gateway leads there
        if a != peer:
            expected[f"ipu {a}", f"ipu {peer}", "near"] += moved
        if peer == b:
            continue
        expected[f"ipu {peer}", f"gateway {peer // each}", "up"] += moved
        expected[f"gateway {b // each}", f"ipu {b}", "up"] += moved
        machine = b % size // each
        for _, (_, x), (_, y) in walk(
            [machine, a // size], [machine, b // size], (machines, domains), (False, True)
        ):
            expected[f"gateway {x * machines + machine}", f"gateway {y * machines + machine}", "far"] += moved
    assert loads_of(system, route_matrix(system, matrix).link_bytes) == expected


# ---- links one by one


@st.composite
def listed(draw: st.DrawFn) -> System:
    """Any connected graph over some IPUs and boxes."""
    ipus, boxes = draw(st.integers(2, 5)), draw(st.integers(0, 3))
    names = [f"ipu {i}" for i in range(ipus)] + [f"box {i}" for i in range(boxes)]
    ends = [(name, draw(st.sampled_from(names[:i]))) for i, name in enumerate(names) if i]
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(lambda p: p[0] != p[1])
    ends += draw(st.lists(pairs, max_size=6))
    order = draw(st.permutations(ends))
    nodes = {"box": node(-(-ipus // boxes))} if boxes else None
    hypothesis.assume(not boxes or -(-ipus // -(-ipus // boxes)) == boxes)
    return make(
        ipus, {"all": {"pattern": "list", "link": "wire", "ends": [list(p) for p in order]}}, nodes=nodes
    )


@hypothesis.given(listed(), st.data())
def test_listed_links_take_the_first_of_the_shortest_ways(system: System, data: st.DataObject):
    matrix = data.draw(matrices(system.num_ipus))
    rows = [tuple(map(system.node_name, pair)) for pair in system.table.ends.tolist()]
    to = {b: distances(system, f"ipu {b}") for b in range(system.num_ipus)}
    expected = np.zeros((len(rows), 2), np.int64)
    hops = []
    for a, b in zip(*np.nonzero(matrix * (1 - np.eye(len(matrix), dtype=np.int64))), strict=True):
        at, near = f"ipu {a}", to[int(b)]
        hops.append(near[at])
        while near[at]:
            row = next(r for r, pair in enumerate(rows) if at in pair and
                       near[pair[1 - pair.index(at)]] == near[at] - 1)  # fmt: skip
            direction = rows[row].index(at)
            expected[row, direction] += matrix[a, b]
            at = rows[row][1 - direction]
    routed = route_matrix(system, matrix)
    assert (routed.link_bytes == expected).all()
    assert routed.hops.tolist() == hops


# ---- phases


@hypothesis.given(st.data())
def test_a_phase_is_its_busiest_link_its_longest_route_and_its_sync(data: st.DataObject):
    """PopLibs' four limits on a ladder: to the partner, through the rung, up and down, summed over all flows."""
    rungs = data.draw(st.integers(1, 5))
    limits = {"rung": 64e9, "through": 32e9, "rail": 32e9}
    system = make(
        2 * rungs,
        {"ladder": {"pattern": "ladder", "nodes": "ipu", "rungs": rungs, "rung": "rung", "through": "through",
                    "rail": "rail", "ends_joined": False}},
        links={name: link(rate=rate, efficiency=0.85) for name, rate in limits.items()},
    )  # fmt: skip
    matrix = data.draw(matrices(2 * rungs))
    np.fill_diagonal(matrix, 0)
    busy = [0.0]
    for ipu in range(2 * rungs):
        rung, side = ipu // 2, ipu % 2
        flows = [(a, b, int(matrix[a, b])) for a in range(2 * rungs) for b in range(2 * rungs)]
        to_partner = sum(n for a, b, n in flows if a == ipu and b == ipu ^ 1)
        across = sum(n for a, b, n in flows if a == ipu and b % 2 != side and b // 2 != rung)
        up = sum(n for a, b, n in flows if b % 2 == side and a // 2 <= rung < b // 2)
        down = sum(n for a, b, n in flows if b % 2 == side and b // 2 < rung <= a // 2)
        busy += [to_partner / 54.4e9, across / 27.2e9, up / 27.2e9, down / 27.2e9]
    longest = max(
        (abs(a // 2 - b // 2) + (a % 2 != b % 2) for a, b in np.argwhere(matrix).tolist()), default=0
    )
    phase = exchange_phase(system, matrix)
    assert math.isclose(phase.transfer_seconds, max(busy), rel_tol=1e-12)
    assert phase.hops == longest and math.isclose(phase.latency_seconds or 0, 1e-6 * longest, rel_tol=1e-9)
    members = sorted({i for pair in np.argwhere(matrix).tolist() for i in pair})
    rows, sides = {i // 2 for i in members}, {i % 2 for i in members}
    hops = (max(rows) - min(rows) + 1) // 2 + (len(sides) - 1) if members else 0
    assert phase.sync.cycles == (hops * 48 if len(members) > 1 else 0)
    seconds = (phase.transfer_seconds + phase.latency_seconds) * system.chip.clock_hz
    assert phase.cycles == math.ceil(seconds - 1e-6) + phase.sync.cycles
    source, destination = np.nonzero(matrix)
    again = flow_phase(system, source, destination, matrix[source, destination])
    assert (again.link_bytes == phase.link_bytes).all() and again.cycles == phase.cycles
