"""What exchanges between IPUs cost: the busiest tile or link, the longest route, the sync of those who take part."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.replicas import replicated, small_system, turned
from tiles import Executable, Graph, compile_graph, find_system, gcl, popops
from tiles.compiler import step_costs
from tiles.errors import InvalidGraph
from tiles.graph import Pairs, Permutation, Replicas, Shift, Site, Swap, folded
from tiles.graph.replicas import swap
from tiles.plan import links
from tiles.report import cost_analysis, profile
from tiles.target import Basis, exchange_phase, link_phase
from tiles.target.routes import group_size, route


def moved(graph: Graph, permutation: Shift | Swap, size: int) -> Graph:
    """Add a permutation of ``size`` words along all axes."""
    x = graph.add_input((size,), "int32", "x")
    graph.outputs.append(gcl.permute(graph, x, graph.replicas.names, permutation).name)
    return graph


@pytest.mark.parametrize(
    ("name", "count", "permutation"),
    [("c2_card", 2, Swap(1)), ("dss8440", 16, Shift(1)), ("dss8440", 6, Shift(2)), ("pod16", 16, Swap(4))],
    ids=["card", "ladder", "part", "pod"],
)
def test_a_permutation_costs_what_its_flows_take_on_the_links(
    name: str, count: int, permutation: Shift | Swap
) -> None:
    """Beside the phase of the whole matrix of bytes between IPUs, which shares no code with one byte a flow."""
    size = 50_000
    executable = compile_graph(moved(replicated(("all", count), name=name, num_tiles=64), permutation, size))
    loaded = Executable.from_bytes(executable.to_bytes())
    assert loaded.system == executable.system and cost_analysis(loaded) == cost_analysis(executable)
    (cost,) = [c for c in step_costs(loaded) if c.links is not None]
    system = small_system(name, 64)
    matrix = np.zeros((system.num_ipus, system.num_ipus), np.int64)
    matrix[np.arange(count), permutation.destinations(count)] = 4 * size
    phase = exchange_phase(system, matrix)
    assert np.array_equal(cost.link_bytes, phase.link_bytes)
    assert cost.sync_cycles == phase.sync.cycles and phase.latency_seconds is not None
    transfer = math.ceil(phase.transfer_seconds * phase.clock_hz)
    latency = math.ceil(phase.latency_seconds * phase.clock_hz)
    assert cost.link_cycles is not None
    lasts = cost.exchange_cycles + cost.link_cycles
    assert lasts == max(cost.exchange_cycles, transfer) + latency
    assert sum(cycles for _, cycles in cost.link_basis) == cost.link_cycles
    assert {basis for basis, cycles in cost.link_basis if cycles} & {Basis.ASSUMED, Basis.FITTED}, (
        "latency has no source"
    )


def test_links_add_to_a_run_and_are_reported() -> None:
    executable = compile_graph(moved(replicated(("all", 2), name="c2_card", num_tiles=64), Swap(1), 1000))
    figures = cost_analysis(executable)
    parts = [f"{part}_cycles" for part in ("compute", "exchange", "sync", "host_exchange", "link")]
    assert figures["cycles"] == sum(figures[part] for part in parts) and figures["link_cycles"] > 0
    data = profile(executable).data
    (kind,) = data["execution"]["links"]["kinds"]
    assert (kind["bytes"], kind["busiestBytes"], kind["links"]) == (8000, 4000, 1)
    assert kind["busiest"] == "ipu 0 to ipu 1"
    assert math.isclose(kind["busiestSeconds"], 4000 / kind["bytesPerSecond"])
    assert "ipu 0 to ipu 1: 4,000 B" in profile(executable).text()


def test_a_collective_is_reported_with_its_algorithm_and_rate() -> None:
    graph = replicated(("data", 4))
    x = graph.add_input((600,), "float32", "x")
    graph.outputs.append(gcl.all_reduce(Site(graph, location="model.py:3"), x, "data", algorithm="ring").name)
    executable = compile_graph(graph)
    (entry,) = profile(executable).data["execution"]["links"]["collectives"]
    assert (entry["label"], entry["bytes"], entry["location"]) == (
        "gcl::AllReduce<add,ring>",
        2400,
        "model.py:3",
    )
    assert entry["cycles"] == cost_analysis(executable)["cycles"]
    assert math.isclose(entry["bytesPerSecond"], 2400 / executable.target.seconds(entry["cycles"]))


def test_a_program_of_one_ipu_says_nothing_of_replicas() -> None:
    graph = Graph(small_system().chip)
    x = graph.add_input((8,), "float32", "x")
    graph.outputs.append(popops.add(graph, x, x).name)
    executable = compile_graph(graph)
    assert not {"system", "replicas", "differs_along"} & set(executable.to_data())
    assert profile(executable).data["execution"]["links"] is None


def test_a_folded_ring_hops_along_rails() -> None:
    """Up the even IPUs, over the last rung, down the odd ones: no hop but two is longer than a link."""
    assert folded(16).tolist() == turned(16)
    one, other = Shift(1), Shift(1, is_folded=True)
    (plain,), (turn,) = (
        [
            c
            for c in step_costs(compile_graph(moved(replicated(("all", 16)), ring, 4096)))
            if c.links is not None
        ]
        for ring in (one, other)
    )
    assert plain.links is not None and turn.links is not None
    hops = [found.unit.hops for cost in (plain, turn) for found in cost.links.crossings if found.unit]
    assert hops == [8, 1]


def test_replicas_are_numbered_row_major_and_permuted_along_axes() -> None:
    replicas = Replicas((("a", 2), ("b", 3)))
    assert replicas.place("a").tolist() == [0, 0, 0, 1, 1, 1]
    assert replicas.place(("b", "a")).tolist() == [0, 2, 4, 1, 3, 5]
    assert replicas.destinations(("b",), Shift(1)).tolist() == [1, 2, 0, 4, 5, 3]
    assert replicas.destinations(("b", "a"), Shift(1)).tolist() == [3, 4, 5, 1, 2, 0]


@pytest.mark.parametrize(
    ("name", "axes", "ipus_each"),
    [
        ("pod64 x 4", (("d", 256),), 1),
        ("pod64 x 4", (("d", 200),), 1),
        ("pod256", (("d", 64), ("m", 4)), 1),
        ("pod64 x 4", (("d", 128),), 2),
        ("dss8440_pair", (("d", 32),), 1),
        ("bow_pod64 x 4", (("d", 50), ("m", 4)), 1),
    ],
)
def test_what_repeats_over_a_system_is_followed_once(
    name: str, axes: tuple[tuple[str, int], ...], ipus_each: int
) -> None:
    """Exchanges in pairs, and rings among neighbours, of a period of replicas stand for all; beside every flow followed by itself."""
    system, replicas = find_system(name), Replicas(axes, ipus_each=ipus_each)
    shares = (1,) if ipus_each == 1 else (2, 1)
    found = 0
    for along in (replicas.names[:1], replicas.names[-1:], replicas.names):
        size = replicas.size(along)
        ways: list[tuple[Permutation, ...]] = []
        for distances in ((1,), (2, 1, 3), (8, 16, 24), (64,), (1 << size.bit_length() - 1,)):
            if max(distances) >= (2 * size if size & (size - 1) else size):
                continue
            ways.append((Shift(0), *(swap(distance, size) for distance in distances)))
        for by, stride, extent, is_folded in (
            (1, 1, 2, False),
            (-1, 1, 4, True),
            (3, 2, 4, False),
            (1, 1, 64, True),
        ):
            if size % (stride * extent) == 0:
                ways.append((Shift(by, stride, extent, is_folded), Shift(0)))
        for moves in ways:
            all_flows = links._followed(system, replicas, along, moves, shares)
            once = links._periodic(system, replicas, along, moves, shares)
            if once is None:
                continue
            found += 1
            assert_alike(once, all_flows)
    assert found


def assert_alike(once: links.Crossing, all_flows: links.Crossing) -> None:
    assert (once.stays, once.misses) == (all_flows.stays, all_flows.misses)
    assert (once.unit is None) == (all_flows.unit is None)
    if once.unit is not None and all_flows.unit is not None:
        one, other = (dataclasses.asdict(unit) for unit in (once.unit, all_flows.unit))
        assert np.array_equal(once.unit.link_bytes, all_flows.unit.link_bytes)
        assert {**one, "loads": None} == {**other, "loads": None}


@pytest.mark.parametrize(
    ("name", "axes", "ipus_each", "expected"),
    [
        ("pod64 x 8", (("d", 512),), 1, 6),
        ("pod64 x 8", (("d", 448),), 1, 6),
        ("pod64 x 8", (("d", 224),), 2, 6),
        ("pod64 x 8", (("d", 8), ("m", 64)), 1, 7),
        ("pod64 x 8", (("a", 4), ("b", 2), ("m", 64)), 1, 7),
        ("pod256", (("d", 256),), 1, 6),
        ("dss8440_pair", (("d", 32),), 1, 4),
        ("c600_host x 4", (("d", 32),), 1, 6),
        ("dss8440", (("d", 16),), 1, 0),
    ],
)
def test_exchanges_of_whole_groups_are_followed_for_one_of_them(
    name: str, axes: tuple[tuple[str, int], ...], ipus_each: int, expected: int
) -> None:
    """Beside every flow followed by itself."""
    system, replicas = find_system(name), Replicas(axes, ipus_each=ipus_each)
    shares = (1,) if ipus_each == 1 else (2, 1)
    along = replicas.names[:1]
    size = replicas.size(along)
    group = math.prod(count for _, count in axes) // size
    group = max(1, (16 if "dss" in name else 8 if "c600" in name else 64) // ipus_each // group)
    ways: list[tuple[Permutation, ...]] = [
        (swap(group, size),),
        (swap(2 * group, size), Shift(0)),
        (swap(group, size), swap(3 * group, size)),
        (Shift(-1, group, size // group),),
        (Shift(1, group, size // group), Shift(-1, group, size // group)),
        (Pairs(tuple((i, i + group) for i in range(group))),),
        (Shift(1),),
        (Pairs(tuple((i, i + group) for i in range(group - 1))),),
    ]
    found = 0
    for moves in ways:
        try:
            all_flows = links._followed(system, replicas, along, moves, shares)
        except InvalidGraph:  # more groups than there are
            continue
        once = links._between_groups(system, replicas, along, moves, shares)
        if once is not None:
            found += 1
            assert_alike(once, all_flows)
    assert found == expected


@pytest.mark.parametrize("name", ["pod64 x 8", "pod256", "dss8440_pair", "c600_host x 4"])
def test_a_sync_over_groups_goes_to_the_farthest_of_them(name: str) -> None:
    """Beside every flow followed by itself: members in the same place of their groups, and in others."""
    system = find_system(name)
    size = group_size(system)
    groups = system.num_ipus // size
    for ipus in (np.arange(groups) * size + 3, np.arange(groups) * size + np.arange(groups) % size):
        once = link_phase._from_first(system, ipus)
        all_flows = route(system, np.full(groups - 1, ipus[0]), ipus[1:], np.ones(groups - 1, np.int64))
        assert np.array_equal(once.link_bytes, all_flows.link_bytes)
        assert once.hops.max() == all_flows.hops.max()
        assert once.latency_seconds.max() == all_flows.latency_seconds.max()
