"""Steps that are alike become one step: what joins, what stands in the way, and what it costs in memory."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla.lowering import lower_module
from tests.flow import assert_engines_agree, optimized_module
from tests.models.optimizers import adam
from tests.unit.tiles.executable_programs import rows, split, ungrouped
from tiles.compiler import (
    CopyStep,
    Executable,
    ExecuteStep,
    certify,
    compile_graph,
    costs,
    step_costs,
)
from tiles.compiler.grouping import SHARE
from tiles.engine import make_engine
from tiles.graph import (
    Call,
    Copy,
    Execute,
    Graph,
    Operation,
    Plan,
    PrintTensor,
    Repeat,
    Sequence,
    Site,
    Sync,
    Vertices,
    identity_map,
)
from tiles.planning import Planner
from tiles.poplibs import popops
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops.map import Map
from tiles.report import cost_analysis, memory_analysis, profile
from tiles.target import Target

ENGINES = ("fast", "literal", "vertex")
PLAN = Plan((split(16, 4),))
OTHER = Plan((split(16, 2),))
GC200 = Target.named("gc200")


def sizes(executable: Executable) -> list[int]:
    """Return how many groups or copies every step has."""
    return [len(s.groups if isinstance(s, ExecuteStep) else s.copies) for s in executable.steps]  # type: ignore[union-attr]


def leaves(target: Target, between: Callable[[Graph], None] | None = None) -> Graph:
    """Two leaves of two levels each, written one leaf after the other; on other tiles on each level."""
    graph = Graph(target, "leaves")
    inputs = [graph.add_input((16,), "float32", name) for name in "ab"]
    for x in inputs:
        graph.set_layout(x.name, rows((16,), 4))
    graph.outputs = []
    for k, x in enumerate(inputs):
        half = popops.mul(Site(graph, f"half{k}", f"net.py:{k} in Net/Leaf_{k}"), x, 0.5, plan=PLAN)
        graph.outputs.append(popops.exp(Site(graph, f"exp{k}"), half, plan=OTHER).name)
        if between is not None and k == 0:
            between(graph)
    return graph


def test_leaves_join_level_by_level(small_target: Target) -> None:
    executable = compile_graph(leaves(small_target))
    assert [[g.name for g in s.groups] for s in executable.steps if isinstance(s, ExecuteStep)] == [
        ["half0", "half1"],
        ["exp0", "exp1"],
    ]
    assert [step.name for step in executable.steps] == ["half0", "exp0"]
    certify(executable)
    before = ungrouped(lambda: compile_graph(leaves(small_target)))
    assert sizes(before) == [1, 1, 1, 1]
    x = np.arange(16, dtype=np.float32)
    for engine in ENGINES:
        for program in (executable, before):
            outputs, _ = make_engine(program, engine, "ring").run(x, -x)
            wanted, _ = make_engine(before, "fast", "ring").run(x, -x)
            for got, want in zip(outputs, wanted, strict=True):
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("trips", [0, 3])
def test_a_bias_is_received_with_the_sums_that_it_is_added_to(trips: int, small_target: Target) -> None:
    """Tiles add it to what they have computed themselves: one exchange phase and one sync, in a loop as well."""

    def made() -> Graph:
        graph = Graph(small_target, "bias")
        x = graph.add_input((16, 8), "float32", "x")
        graph.set_layout(x.name, rows((16, 8), 4, base=8))
        bias = graph.add_input((16,), "float32", "bias")
        graph.set_layout(bias.name, rows((16,), 16, base=12))
        total = graph.add_tensor((16,), "float32", "total", rows((16,), 4))
        body = Sequence()
        there, here = (Plan((split(16, 4), split(8, 8)), base) for base in (8, 0))
        first = popops.mul(Site(graph, "first", sequence=body), x, 2.0, plan=there)
        sums = popops.reduce(Site(graph, "sums", sequence=body), first, (1,), "add", plan=here)
        whole = popops.add(Site(graph, "whole", sequence=body), sums, bias, plan=PLAN)
        last = popops.neg(Site(graph, "last", sequence=body), whole, plan=PLAN)
        body.add(Copy(total.name, (last.name,)))
        graph.program.add(Repeat(trips, body) if trips else body)
        graph.outputs = [total.name]
        return graph

    executable, before = compile_graph(made()), ungrouped(lambda: compile_graph(made()))
    certify(executable)
    steps = [s for s in executable.steps if isinstance(s, ExecuteStep)]
    assert [[group.name for group in s.groups] for s in steps] == [["first"], ["sums", "whole"], ["last"]]
    assert [[bool(o.buffer) for o in group.operands] for group in steps[1].groups] == [[True], [False, True]]
    entry = small_target.internal_sync_cycles + small_target.exchange_phase_overhead_cycles
    took, takes = (sum(cost.cycles or 0 for cost in step_costs(e)) for e in (before, executable))
    assert took - takes >= entry
    between = executable.buffers[executable.variables["sums"].storage]
    assert (between.start, between.end) == (1, 2), (
        "it is there from where it is written, whatever repeats that"
    )
    x, bias = np.arange(128, dtype=np.float32).reshape(16, 8), np.linspace(-1, 1, 16, dtype=np.float32)
    for engine in ENGINES:
        (got,), _ = make_engine(executable, engine).run(x, bias)
        np.testing.assert_allclose(got, -(2 * x.sum(1) + bias), rtol=1e-6)


def test_a_report_tells_how_many_share_a_step_and_what_is_around_them(small_target: Target) -> None:
    found = profile(compile_graph(leaves(small_target)))
    half = next(row for row in found.operations if row["name"].startswith("half0"))
    assert half["name"] == "half0 and 1 more"
    assert (half["location"], half["scope"]) == ("net.py:0; net.py:1", "Net/Leaf_0; Net/Leaf_1")
    first, second = half["members"]
    assert [first[key] for key in ("name", "location", "scope")] == ["half0", "net.py:0", "Net/Leaf_0"]
    assert second["scope"] == "Net/Leaf_1"
    assert 0 < second["vertexCycles"] <= first["vertexCycles"]
    own = first["vertexCycles"] + second["vertexCycles"]
    assert own <= half["computeCycles"]
    scopes = {row["scope"]: row["cycles"] for row in found.data["scopes"]}
    assert set(scopes) == {"Net", "Net/Leaf_0", "Net/Leaf_1"}
    assert scopes["Net"] == sum(row["cycles"] for row in found.operations if row["scope"].startswith("Net"))
    listed = [each for row in found.operations for each in row["members"]]
    for name in ("Net/Leaf_0", "Net/Leaf_1"):
        assert scopes[name] == sum(each["vertexCycles"] for each in listed if each["scope"] == name)
    sets = found.data["compilation"]["computeSets"]
    assert [v["scope"] for v in sets[0]["vertices"]] == ["Net/Leaf_0", "Net/Leaf_1"]


def syncs(graph: Graph) -> None:
    graph.program.add(Sync())


def prints(graph: Graph) -> None:
    graph.program.add(PrintTensor("a"))


def repeats(graph: Graph) -> None:
    graph.program.add(Repeat(1, Sequence()))


def calls(graph: Graph) -> None:
    graph.functions["nothing"] = Sequence()
    graph.program.add(Call("nothing"))


@pytest.mark.parametrize("between", [syncs, prints, repeats, calls])
def test_nothing_joins_across_control_and_the_host(
    between: Callable[[Graph], None], small_target: Target
) -> None:
    executable = compile_graph(leaves(small_target, between))
    assert [s.name for s in executable.steps if isinstance(s, ExecuteStep)] == [
        "half0",
        "exp0",
        "half1",
        "exp1",
    ]


def copying(target: Target, *ends: str) -> Executable:
    """Copy from and to tensors named by letters, "xa" from x to a; x and y are inputs."""
    graph = Graph(target, "copying")
    for name in dict.fromkeys("".join(("xy", *ends))):
        tensor = graph.add_tensor(
            (16,), "float32", name, rows((16,), 4), "input" if name in "xy" else "temporary"
        )
        assert tensor.name == name
    for source, destination in ends:
        graph.program.add(Copy(destination, (source,)))
    graph.outputs = sorted({end[1] for end in ends})
    executable = compile_graph(graph)
    certify(executable)
    return executable


@pytest.mark.parametrize(
    ("ends", "steps"),
    [
        (["xa", "yb"], ["xa yb"]),
        (["xa", "xb"], ["xa xb"]),
        (["xa", "ab"], ["xa", "ab"]),
        (["xa", "ab", "ya"], ["xa", "ab", "ya"]),
        (["xa", "ya"], ["xa", "ya"]),
        (["xa", "ab", "yc"], ["xa yc", "ab"]),
        (["xa", "ab", "xc", "cd"], ["xa xc", "ab cd"]),
    ],
)
def test_copies_join_where_none_touches_what_another_one_writes(
    ends: list[str], steps: list[str], small_target: Target
) -> None:
    executable = copying(small_target, *ends)
    found = [s.copies for s in executable.steps if isinstance(s, CopyStep)]
    assert [" ".join(c.sources[0] + c.destination for c in copies) for copies in found] == steps


def test_joined_copies_are_one_phase_that_takes_no_longer(small_target: Target) -> None:
    def spreading() -> Executable:
        graph = Graph(small_target, "spreading")
        graph.outputs = []
        for name in "xyz":
            x = graph.add_input((16, 4), "float32", name)
            graph.set_layout(x.name, rows((16, 4), 4))
            spread = graph.add_tensor((16, 4), "float32", f"{name}_spread", rows((16, 4), 8))
            graph.program.add(Copy(spread.name, (x.name,)))
            graph.outputs.append(spread.name)
        return compile_graph(graph)

    one, three = spreading(), ungrouped(spreading)
    (cost,), costs = step_costs(one), step_costs(three)
    assert cost.sync_cycles == costs[0].sync_cycles > 0
    assert cost.exchange_bytes == sum(c.exchange_bytes for c in costs)
    assert cost.exchange_cycles <= sum(c.exchange_cycles for c in costs)
    assert one.buffers["control code"].size_bytes * 3 == three.buffers["control code"].size_bytes
    inputs = np.random.default_rng(0).standard_normal((3, 16, 4)).astype(np.float32)
    for engine in ENGINES:
        for got, want in zip(make_engine(one, engine).run(*inputs)[0], inputs, strict=True):
            np.testing.assert_array_equal(got, want)


def adam_arguments():
    """Twenty parameters, the optimizer's state, gradients."""
    rng = np.random.default_rng(0)
    shapes = [(64 + 8 * k, 256) if k % 2 else (256 + 16 * k,) for k in range(20)]
    parameters = {f"p{k}": rng.standard_normal(shape).astype(np.float32) for k, shape in enumerate(shapes)}
    return parameters, adam(1e-3).init(parameters), parameters


def test_the_leaves_of_an_update_are_few_steps_and_stay_in_place() -> None:
    def compiled() -> Executable:
        def adam_update(parameters, moments, gradients):  # anew: compilations are kept by function
            updates, moments = adam(1e-3).update(gradients, moments, parameters)
            return jax.tree.map(jnp.add, parameters, updates), moments

        update = ipuxla.jit(adam_update, target=GC200, donate_argnums=(0, 1))
        return update.lower(*adam_arguments()).compile().executable

    before, after = ungrouped(compiled), compiled()
    assert len(before.steps) >= 20 and len(after.steps) <= 6
    certify(after)
    storages = [{v.name: v.storage for v in e.variables.values()} for e in (before, after)]
    assert storages[0] == storages[1]
    costs = [cost_analysis(e) for e in (before, after)]
    assert costs[1]["cycles"] < costs[0]["cycles"]
    peaks = [memory_analysis(e)["peak_bytes"] for e in (before, after)]
    assert peaks[1] <= peaks[0] + SHARE * GC200.bytes_per_tile
    assert after.to_bytes() == compiled().to_bytes()


def test_vertices_of_one_compute_set_overwrite_what_no_other_one_reads(small_target: Target) -> None:
    graph = Graph(small_target, "pair")
    x = graph.add_input((16,), "float32", "x")
    graph.set_layout(x.name, rows((16,), 4))
    made = Sequence()
    a, b = (popops.mul(Site(graph, f"made{n:g}", sequence=made), x, n, plan=PLAN) for n in (2.0, 3.0))
    graph.program.steps += made.steps
    later = Sequence()
    c = popops.exp(Site(graph, "c", sequence=later), a, plan=PLAN)
    d = popops.add(Site(graph, "d", sequence=later), b, a, plan=PLAN)
    members: list[Vertices] = []
    for step in later.steps:
        assert isinstance(step, Operation)
        graph.set_layout(step.results[0], PLAN.result_layout(step.form))
        members.append(Vertices(step.name, step.codelet, step.form, PLAN, step.operands, step.results))
    graph.program.add(Execute(graph.add_compute_set("both", *members).name))
    graph.outputs = [c.name, d.name]
    executable = compile_graph(graph)
    certify(executable)
    storage = {name: executable.variables[name].storage for name in (a.name, b.name, c.name, d.name)}
    assert storage[c.name] == c.name, "d reads a, too"
    assert storage[d.name] == storage[b.name]
    values = np.linspace(-1, 1, 16, dtype=np.float32)
    for engine in ENGINES:
        (got_c, got_d), _ = make_engine(executable, engine).run(values)
        np.testing.assert_allclose(got_c, np.exp(2 * values), rtol=1e-6)
        np.testing.assert_allclose(got_d, 5 * values, rtol=1e-6, atol=1e-6)


def test_products_join_and_share_their_exchange_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two products side by side are one superstep; what comes to the second comes by the programs of the first."""

    def two(x, w, y, v):
        return x @ w, y @ v

    monkeypatch.setattr(costs, "LEAST_BYTES", 1)  # programs this small are shared, too

    rng = np.random.default_rng(3)
    arguments = [rng.standard_normal(s).astype(np.float32) for s in ((64, 64), (64, 64)) * 2]
    module = optimized_module(two, arguments)
    target = Target.named("gc200").replace(num_tiles=16)
    alone = Planner().plan(lower_module(optimized_module(lambda x, w: x @ w, arguments[:2]), target))
    plan = alone.compute_sets["dot"].vertices[0].plan
    graph = Planner(pins={"dot": plan, "dot.1": plan}).plan(lower_module(module, target))  # not side by side
    executable = compile_graph(graph)
    certify(executable)
    products = [
        s for s in executable.steps if isinstance(s, ExecuteStep) and s.groups[0].codelet.is_contraction
    ]
    assert [len(s.groups) for s in products] == [2]
    assert executable.shared_exchange and all(s == f for (s, _), (f, _) in executable.shared_exchange.items())
    assert_engines_agree(executable, module, arguments)


def test_what_writes_a_tensor_again_is_a_step_of_its_own(small_target: Target) -> None:
    """The second difference reads in place what the first one wrote, and writes the same tensor."""
    graph = Graph(small_target, "again")
    x, y = (graph.add_input((16,), "float32", name) for name in "xy")
    graph.set_layout(x.name, rows((16,), 4))
    graph.set_layout(y.name, rows((16,), 16, 2))  # it comes from another tile to both
    written = graph.add_tensor((16,), "float32", "written", rows((16,), 4))
    form = map_form((16,), [identity_map(1)] * 2)
    codelet = Map((("subtract", (0, 1), ()),), (2,), ("float32",) * 2, ("float32",))
    for k, operand in enumerate((x, written)):
        group = Vertices(f"step{k}", codelet, form, PLAN, (operand.name, y.name), (written.name,))
        graph.program.add(Execute(graph.add_compute_set(f"step{k}", group).name))
    graph.outputs = [written.name]
    executable = compile_graph(Planner().plan(graph))
    certify(executable)
    assert sizes(executable) == [1, 1]
    values = [np.arange(16, dtype=np.float32) * n for n in (3, 1)]
    for engine in ENGINES:
        found, _ = make_engine(executable, engine).run(*values)
        np.testing.assert_array_equal(
            found[0] if isinstance(found, (tuple, list)) else found, values[0] - 2 * values[1]
        )
