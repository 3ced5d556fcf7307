"""A program on several IPUs of its own: what is built on which, what crosses, what it costs, and that values are right."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from tests.replicas import small_system
from tiles import Graph, certify, compile_graph, gcl, make_engine, poplin, popops
from tiles.compiler import Executable, check, step_costs
from tiles.errors import InvalidGraph, InvalidPlan
from tiles.graph import Copy, Layout, Repeat, Sequence, Site, linear_layout
from tiles.planning import Planner
from tiles.report import cost_analysis, profile, write_report
from tiles.target import exchange_phase

ENGINES = ("fast", "literal", "vertex", "tile")


def virtual(ipus: int = 2, name: str = "dss8440", num_tiles: int = 16) -> Graph:
    """Return an empty graph of several IPUs per replica on a small system."""
    return Graph(small_system(name, num_tiles), ipus_per_replica=ipus)


def two_layers(graph: Graph, same_on_all: bool = False) -> Graph:
    """Add a layer on each of two IPUs, and a third on the first again, which reads what both made."""
    x = graph.add_input((8, 24), "float32", "x")
    w = [
        graph.add_input(shape, "float32", f"w{k}", same_on_all=same_on_all)
        for k, shape in enumerate(((24, 40), (40, 16)))
    ]
    with graph.on(0):
        h = popops.add(graph, poplin.matmul(graph, x, w[0]), 1.0)
    with graph.on(1):
        y = poplin.matmul(graph, h, w[1])
        squares = popops.mul(graph, y, poplin.matmul(graph, popops.mul(graph, h, h), w[1]))
    with graph.on(0):
        graph.outputs += [popops.add(graph, squares, 2.0).name, h.name]
    return graph


def values(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def assert_near(got: Any, wanted: np.ndarray) -> None:
    assert np.abs(got - wanted).max() < 1e-5 * np.abs(wanted).max()


def expected(x: np.ndarray, w0: np.ndarray, w1: np.ndarray) -> list[np.ndarray]:
    h = x @ w0 + 1
    return [(h @ w1) * (h * h @ w1) + 2, h]


def placed(executable: Executable) -> dict[str, set[int]]:
    """Return the IPUs that each variable lies on."""
    per_ipu = executable.target.tiles_per_ipu
    return {name: set((v.layout.tiles // per_ipu).tolist()) for name, v in executable.variables.items()}


def test_what_is_built_on_an_ipu_lies_there_and_all_engines_agree() -> None:
    executable = compile_graph(two_layers(virtual()))
    where = placed(executable)
    assert where["x"] == where["w0"] == {0} and where["w1"] == {1}, "inputs lie where they are read first"
    assert all(len(ipus) == 1 for ipus in where.values())
    for step in executable.steps:
        for group in getattr(step, "groups", ()):
            ipus = set((group.plan.tiles // executable.target.tiles_per_ipu).tolist())
            assert ipus == where[group.results[0]] and len(ipus) == 1
    inputs = values(np.random.default_rng(1), (8, 24), (24, 40), (40, 16))
    for engine in ENGINES:
        found, _ = make_engine(executable, engine).run(*inputs)
        for got, wanted in zip(found, expected(*inputs), strict=True):
            assert_near(got, wanted)
    words = [
        np.asarray(make_engine(executable, engine, arithmetic="ring").run(*inputs)[0][0]).tobytes()
        for engine in ENGINES
    ]
    assert len(set(words)) == 1
    certify(executable)
    again = Executable.from_bytes(executable.to_bytes())
    check(again)
    assert again.to_bytes() == executable.to_bytes() and again.target == executable.target


def test_what_crosses_is_copied_once_and_costs_what_its_bytes_take_on_the_link() -> None:
    executable = compile_graph(two_layers(virtual()))
    crossing = [cost for cost in step_costs(executable) if cost.traffic.between_ipus.any()]
    h, squares = 8 * 40 * 4, 8 * 16 * 4
    sent = [cost.traffic.between_ipus.tolist() for cost in crossing]
    assert sent == [[[0, h], [0, 0]], [[0, 0], [squares, 0]]], "two readers share one copy"
    system = executable.system
    assert system is not None
    for cost in crossing:
        matrix = np.zeros((system.num_ipus, system.num_ipus), np.int64)
        matrix[:2, :2] = cost.traffic.between_ipus
        phase = exchange_phase(system, matrix)
        assert phase.latency_seconds is not None and cost.link_cycles is not None
        assert np.array_equal(cost.link_bytes, phase.link_bytes)
        transfer, latency = (
            math.ceil(seconds * phase.clock_hz) for seconds in (phase.transfer_seconds, phase.latency_seconds)
        )
        assert cost.exchange_cycles + cost.link_cycles == max(cost.exchange_cycles, transfer) + latency
        assert cost.sync_cycles == phase.sync.cycles
    others = [cost for cost in step_costs(executable) if not cost.traffic.between_ipus.any()]
    assert all(cost.links is None and cost.sync_cycles in (0, 64) for cost in others)


def cube(graph: Graph, name: str) -> None:
    x = graph.add_input((64, 64), "float32", name)
    y = poplin.matmul(graph, x, poplin.matmul(graph, x, x))
    graph.outputs.append(y.name)


def test_clocks_of_ipus_that_do_not_wait_for_each_other_run_apart() -> None:
    both, alone = virtual(), virtual(1)
    for ipu in range(2):
        with both.on(ipu):
            cube(both, f"x{ipu}")
    cube(alone, "x0")
    figures, one = (cost_analysis(compile_graph(graph)) for graph in (both, alone))
    assert figures["cycles"] == one["cycles"], "both IPUs work at the same time"
    assert figures["flops"] == 2 * one["flops"]


def test_replicas_of_two_chips_one_a_card_reduce_over_the_rails() -> None:
    graph = virtual()
    graph.replicate("data", 8)
    two_layers(graph, same_on_all=True)
    with graph.on(1):
        total = gcl.all_reduce(graph, graph.tensors["multiply.1"], "data")
    graph.outputs.append(total.name)
    executable = compile_graph(graph)
    inputs = values(np.random.default_rng(2), (8, 8, 24), (24, 40), (40, 16))
    squares = np.stack([expected(x, *inputs[1:])[0] - 2 for x in inputs[0]]).sum(0)
    for engine in ENGINES[:3]:
        found, _ = make_engine(executable, engine).run(*inputs)
        for r in range(8):
            assert_near(found[0][r], expected(inputs[0][r], *inputs[1:])[0])
            assert_near(found[2][r], squares)
    system, costs = executable.system, step_costs(executable)
    assert system is not None
    names = [system.links[kind].name for kind in system.table.kind]
    for cost in costs:
        if cost.links is None:
            continue
        used = {names[link] for link in np.flatnonzero(cost.link_bytes.any(axis=1))}
        within = cost.traffic.between_ipus.any()
        ends = system.table.ends[cost.link_bytes.any(axis=1)]
        cards = ends // 2
        assert used and ((cards[:, 0] == cards[:, 1]).all() == within), (
            "a card's own links, or those between cards"
        )
        assert not within or cost.sync_cycles == 48, "the two chips of a card alone"
    certify(executable)


def test_a_layout_across_ipus_made_by_hand_is_priced_as_such() -> None:
    graph = virtual(ipus=4, num_tiles=8)
    with graph.across():
        assert graph.target.num_tiles == 32
        spread = linear_layout((32, 16), "float32", 32, min_bytes=1)
        x = graph.add_tensor((32, 16), "float32", "x", spread, kind="input")
        made = graph.add_tensor((32, 16), "float32", "turned", Layout(spread.axes[::1], 0))
        graph.program.add(Copy(made.name, (x.name,)))
    with graph.on(2):
        graph.outputs.append(popops.add(graph, made, 1.0).name)
    executable = compile_graph(graph)
    where = placed(executable)
    assert where["x"] == {0, 1, 2, 3} and where["add"] == {2}
    (cost,) = [cost for cost in step_costs(executable) if cost.traffic.between_ipus.any()]
    quarter = 32 * 16 * 4 // 4
    wanted = np.zeros((4, 4), int)
    wanted[[0, 1, 3], 2] = quarter
    assert np.array_equal(cost.traffic.between_ipus, wanted)
    (value,) = values(np.random.default_rng(0), (32, 16))
    for engine in ENGINES:
        (found,), _ = make_engine(executable, engine).run(value)
        np.testing.assert_array_equal(found, value + 1)


def test_a_loop_carries_a_value_round_two_ipus() -> None:
    """A copy of what the body writes again is made every time: none is kept from the trip before."""
    graph = virtual()
    x = graph.add_input((12,), "int32", "x")
    with graph.on(0):
        carried = graph.add_variable((12,), "int32", "carried")
        graph.program.add(Copy(carried.name, (x.name,)))
        body = Sequence()
        here = popops.add(Site(graph, sequence=body), carried, 1)
    with graph.on(1):
        there = popops.mul(Site(graph, sequence=body), here, 3)
        both = popops.add(Site(graph, sequence=body), there, carried)
    body.add(Copy(carried.name, (both.name,)))
    graph.program.add(Repeat(3, body))
    graph.outputs.append(carried.name)
    executable = compile_graph(graph)
    value = np.arange(12, dtype=np.int32)
    wanted = value
    for _ in range(3):
        wanted = (wanted + 1) * 3 + wanted
    for engine in ENGINES:
        (found,), _ = make_engine(executable, engine).run(value)
        np.testing.assert_array_equal(found, wanted)
    data = profile(executable).data["execution"]
    assert data["cycles"] > 0 and data["linkBytes"] > 0
    certify(executable)


def test_plans_print_in_the_tiles_of_the_replica_and_are_pinned_so() -> None:
    planned = Planner().plan(two_layers(virtual()))
    pins = {s.name: v.plan for s in planned.compute_sets.values() for v in s.vertices}
    again = Planner(pins=pins).plan(two_layers(virtual()))
    assert {s.name: v.plan for s in again.compute_sets.values() for v in s.vertices} == pins
    name = next(v.name for s in planned.compute_sets.values() for v in s.vertices if v.plan.base >= 16)
    with pytest.raises(InvalidPlan, match=f"pinned to {name} begins on tile 0; the step is on IPU 1"):
        wrong = {name: type(pins[name])(pins[name].splits, 0)}
        Planner(pins=wrong).plan(two_layers(virtual()))


def test_reports_are_written(tmp_path) -> None:
    executable = compile_graph(two_layers(virtual()))
    run = profile(executable)
    write_report(executable, None, tmp_path)
    assert any(tmp_path.iterdir()) and run.data["target"]["numIPUs"] == 2
    busy = [
        [n * step["count"] for n in step["computeCyclesByIpu"]] for step in run.data["execution"]["steps"]
    ]
    shares = [sum(cycles) / run.data["execution"]["cycles"] for cycles in zip(*busy, strict=True)]
    assert f"IPU 0 {shares[0]:.0%}, IPU 1 {shares[1]:.0%}" in (tmp_path / "summary.txt").read_text()
    kinds = run.data["execution"]["links"]["kinds"]
    assert sum(kind["bytes"] for kind in kinds) == 8 * 40 * 4 + 8 * 16 * 4


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: virtual().on(2).__enter__(), "a graph of 2 IPUs per replica has no IPU 2"),
        (lambda: virtual(ipus=17), "do not fit on dss8440"),
        (lambda: virtual().replicate("data", 9), "9 replicas .* do not fit on dss8440"),
        (lambda: virtual(ipus=0), "replicas of 0 IPUs"),
        (lambda: Graph(small_system().chip, ipus_per_replica=2), "need several and the links between them"),
    ],
    ids=["no such IPU", "too many", "too many replicas", "none", "no system"],
)
def test_what_cannot_be_is_refused(build, message: str) -> None:
    with pytest.raises(InvalidGraph, match=message):
        build()


def scan(x, w):
    def body(carried, row):
        carried = jnp.tanh(carried @ w + row)
        return carried, carried.sum()

    return lax.scan(body, x[0], x)


def branches(x):
    return lax.cond(x.sum() > 0, lambda x: x * 2, jnp.sin, x)


def convolution(x, k):
    found = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return (found**2).sum((1, 2))


def layers(x, w):
    for _ in range(3):
        x = jax.nn.gelu(x @ w) + x
    return jnp.sort(x.T.reshape(16, 8), -1), x[jnp.argmax(x, 0)]


PROGRAMS = {
    "scan": (scan, ((4, 8, 8), (8, 8))),
    "branches": (branches, ((7, 9),)),
    "convolution": (convolution, ((2, 8, 8, 3), (3, 3, 3, 4))),
    "layers": (layers, ((8, 16), (16, 16))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_whose_operations_lie_on_any_ipu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations and reshapes of programs from JAX, each on an IPU that is drawn, against JAX."""
    function, shapes = PROGRAMS[name]
    drawn, system = random.Random(name), small_system("dss8440", 32)

    def on_any(built: Callable) -> Callable:
        def build(graph: Graph, *args, **kwargs):
            with graph.on(drawn.randrange(3)):
                return built(graph, *args, **kwargs)

        return build

    begun = Graph.__init__
    monkeypatch.setattr(
        Graph, "__init__", lambda graph, _, title="main": begun(graph, system, title, ipus_per_replica=3)
    )
    monkeypatch.setattr(Graph, "add_operation", on_any(Graph.add_operation))
    monkeypatch.setattr(Graph, "add_reshape", on_any(Graph.add_reshape))
    inputs = values(np.random.default_rng(0), *shapes)
    executable = ipuxla.jit(function, target=system.chip).lower(*inputs).compile().executable
    assert executable.target.num_ipus == 3 and len(set.union(*placed(executable).values())) > 1
    certify(executable)
    for engine in ENGINES[:2]:
        found, _ = make_engine(executable, engine).run(*inputs)
        for got, wanted in zip(found, jax.tree.leaves(jax.jit(function)(*inputs)), strict=True):
            assert_near(np.asarray(got), np.asarray(wanted))


def test_what_is_read_in_slices_lies_on_the_ipu_that_reads_it() -> None:
    graph = virtual()
    x = graph.add_input((64, 16), "float32", "x")
    with graph.on(1):
        parts = [popops.slice(Site(graph, f"part{k}"), x, (8 * k, 0), (8 * k + 8, 16)) for k in range(4)]
        graph.outputs = [popops.exp(graph, part).name for part in parts]
    planned = Planner().plan(graph)
    layout = planned.tensors["x"].layout
    assert layout is not None and layout.base >= graph.chip.num_tiles
