"""Collectives between replicas: every algorithm on every engine gives the bits of a NumPy sum in the stated order."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

from tests.replicas import drawn, reduced, replicated, small_system, turned
from tiles import (
    Copy,
    CopyBetween,
    Executable,
    Graph,
    PrintTensor,
    RepeatWhileTrue,
    Tensor,
    certify,
    compile_graph,
    find_system,
    gcl,
    make_engine,
    popops,
    poputil,
)
from tiles.compiler import step_costs
from tiles.errors import InvalidArguments, InvalidExecutable, InvalidGraph, IpuError, Unsupported
from tiles.graph import Pairs, Repeat, Sequence, Shift, Site, Swap
from tiles.poplibs.gcl import choice
from tiles.poplibs.gcl.choice import COLLECTIVES, predicted_cycles

ENGINES = ("fast", "literal", "vertex")
MESH = (("data", 2), ("model", 4))
REDUCTIONS = [
    ("ring", "add", "float32", (37,), (("data", 4),)),
    ("ring", "max", "int32", (3, 5), (("data", 3),)),
    ("two_rings", "add", "float16", (2, 11), (("data", 4),)),
    ("two_rings", "or", "bool", (9,), (("data", 2),)),
    ("halving_doubling", "add", "float32", (101,), (("data", 8),)),
    ("halving_doubling", "mul", "float16", (3,), (("data", 4),)),
    ("paired_halving", "add", "float16", (7,), (("data", 3),)),
    ("hierarchical", "add", "float32", (23,), (("data", 8),)),
    ("ring", "add", "float32", (1,), (("data", 16),)),
]


def runs(graph: Graph, *inputs: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Return by engine the outputs of a graph, after the certificate and through the file."""
    executable = compile_graph(graph)
    certificate = certify(executable)
    assert certificate.composites_run == certificate.composites
    read = Executable.from_bytes(executable.to_bytes())
    assert read.to_bytes() == executable.to_bytes()
    return {name: [np.asarray(x) for x in make_engine(read, name).run(*inputs)[0]] for name in ENGINES}


def same(found: dict[str, list[np.ndarray]], *expected: np.ndarray) -> None:
    """Require the bits of what is expected of every engine."""
    for engine, outputs in found.items():
        for got, want in zip(outputs, expected, strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape, engine
            assert got.tobytes() == want.tobytes(), engine


@pytest.mark.parametrize(
    ("algorithm", "operation", "dtype", "shape", "axes"),
    REDUCTIONS,
    ids=[f"{a}-{o}-{d}-{len(s)}-{x[0][1]}" for a, o, d, s, x in REDUCTIONS],
)
def test_all_reduce_adds_in_the_order_it_states(
    algorithm: str, operation: str, dtype: str, shape: tuple[int, ...], axes: tuple[tuple[str, int], ...]
) -> None:
    name = "m2000" if algorithm == "hierarchical" else "dss8440"
    graph = replicated(*axes, name="pod16" if name == "m2000" else name)
    x = graph.add_input(shape, dtype, "x")
    graph.outputs.append(gcl.all_reduce(graph, x, "data", operation, algorithm=algorithm).name)
    values = drawn(np.random.default_rng(len(shape) + axes[0][1]), (axes[0][1], *shape), dtype)
    (whole,) = compile_graph(graph).composites
    assert isinstance(whole.codelet, gcl.AllReduce)
    flat, is_folded, inner = values.reshape(axes[0][1], -1), whole.codelet.is_folded, whole.codelet.inner
    assert bool(inner) == (algorithm == "hierarchical")
    assert is_folded == ("halving" not in algorithm and (inner or axes[0][1]) in (4, 8, 16))
    one = reduced(flat, operation, algorithm, inner, is_folded).reshape(shape)
    same(runs(graph, values), np.broadcast_to(one, values.shape))


def test_small_tensors_are_combined_together_and_large_ones_by_themselves() -> None:
    """By halving every element is added in the same order, together or alone: the same bits."""
    graph = replicated(("data", 8), num_tiles=8)
    shapes = (3, 5), (2048, 32), (7,), (), (0, 2)
    xs = [graph.add_input(shape, "float32", f"x{n}") for n, shape in enumerate(shapes)]
    graph.outputs += [x.name for x in gcl.all_reduce_several(graph, xs, "data")]
    found = [whole.form.shape for whole in compile_graph(graph).composites]
    assert sorted(found) == [(23,), (2048, 32)]
    rng = np.random.default_rng(0)
    values = [drawn(rng, (8, *shape), "float32") for shape in shapes]
    single = [replicated(("data", 8), num_tiles=8) for _ in shapes]
    wanted: list[Any] = []
    for other, shape, value in zip(single, shapes, values, strict=True):
        x = other.add_input(shape, "float32", "x")
        algorithm = None if shape == (2048, 32) else "halving_doubling"
        other.outputs.append(gcl.all_reduce(other, x, "data", algorithm=algorithm).name)
        wanted.append(make_engine(compile_graph(other)).run(value)[0][0])
    for engine in ("fast", "literal"):
        outputs, _ = make_engine(compile_graph(graph), engine=engine).run(*values)
        for got, want in zip(outputs, wanted, strict=True):
            assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
    mixed = replicated(("data", 2))
    pair = [mixed.add_input((2,), dtype, "x") for dtype in ("float32", "int32")]
    with pytest.raises(InvalidGraph, match="have one type"):
        gcl.all_reduce_several(mixed, pair, "data")


@pytest.mark.parametrize("system", ["dss8440", "pod64", "pod4"])
def test_a_closed_form_ranks_collectives_before_they_are_made(system: str) -> None:
    graph = Graph(find_system(system))
    graph.replicate("data", graph.system.num_ipus if graph.system else 1)
    for collective in COLLECTIVES:
        sizes = [predicted_cycles(graph, collective, ("data",), 1 << k) for k in (0, 8, 16, 24)]
        assert sizes == sorted(sizes) and sizes[0] > 0
        assert predicted_cycles(graph, collective, ("data",), 0) == 0
    whole, scattered = (
        predicted_cycles(graph, c, ("data",), 1 << 20) for c in ("all_reduce", "reduce_scatter")
    )
    assert scattered < whole
    with pytest.raises(InvalidGraph, match="no collective 'sum'"):
        predicted_cycles(graph, "sum", ("data",), 4)


@pytest.mark.parametrize("algorithm", ["ring", "two_rings", "halving_doubling"])
def test_reduce_scatter_leaves_every_member_its_chunk(algorithm: str) -> None:
    graph = replicated(*MESH)
    x = graph.add_input((2, 12, 1), "float32", "x")
    graph.outputs.append(gcl.reduce_scatter(graph, x, "model", 1, "add", algorithm=algorithm).name)
    values = drawn(np.random.default_rng(3), (8, 2, 12, 1), "float32")
    expected = np.empty((8, 2, 3, 1), np.float32)
    for data in range(2):
        group = values[data * 4 : data * 4 + 4]
        for member in range(4):
            chunk = group[:, :, member * 3 : member * 3 + 3].reshape(4, 6)
            on_ring = member if algorithm == "halving_doubling" else turned(4).index(member)
            rows = np.zeros((4, 4, 6), np.float32)  # of all fragments only the member's own
            rows[:, on_ring] = chunk
            is_folded = algorithm != "halving_doubling"
            found = reduced(rows.reshape(4, -1), "add", algorithm, is_folded=is_folded).reshape(4, 6)
            expected[data * 4 + member] = found[on_ring].reshape(2, 3, 1)
    same(runs(graph, values), expected)


def test_movement_between_replicas_of_a_mesh() -> None:
    """One program moves along either axis and along both, in whichever order they are named."""
    graph = replicated(*MESH)
    x = graph.add_input((4, 3), "int32", "x")
    found = [
        gcl.all_gather(graph, x, "model", 1, algorithm="two_rings"),
        gcl.all_gather(graph, x, ("model", "data"), 0),
        gcl.all_to_all(graph, x, "model", 0, 1),
        gcl.permute(graph, x, "data", [(0, 1)]),
        gcl.permute(graph, x, "model", [(0, 3), (1, 0), (2, 1), (3, 2)]),
        gcl.broadcast(graph, x, "model", 2),
        gcl.replica_index(graph, ("model", "data")),
    ]
    graph.outputs += [y.name for y in found]
    values = drawn(np.random.default_rng(1), (8, 4, 3), "int32")
    mesh = values.reshape(2, 4, 4, 3)
    along_model = [[np.concatenate(list(mesh[d]), 1)] * 4 for d in range(2)]
    order = [mesh[d, m] for m in range(4) for d in range(2)]
    to_all = [
        [np.concatenate([mesh[d, source, m : m + 1] for source in range(4)], 1) for m in range(4)]
        for d in range(2)
    ]
    same(
        runs(graph, values),
        np.array(along_model).reshape(8, 4, 12),
        np.broadcast_to(np.concatenate(order), (8, 32, 3)),
        np.array(to_all).reshape(8, 1, 12),
        np.concatenate([np.zeros_like(values[:4]), values[:4]]),
        np.roll(mesh, -1, axis=1).reshape(values.shape),
        np.repeat(mesh[:, 2:3], 4, axis=1).reshape(values.shape),
        np.array([m * 2 + d for d in range(2) for m in range(4)], np.uint32),
    )


def test_a_collective_in_a_loop_and_an_input_that_is_the_same_on_all() -> None:
    graph = replicated(("data", 4))
    x = graph.add_input((6,), "float32", "x")
    w = graph.add_input((6,), "float32", "w", same_on_all=True)
    state, body = graph.add_variable((6,), "float32", "state"), Sequence()
    graph.program.add(_copy(state.name, x.name))
    moved = popops.mul(Site(graph, sequence=body), state, w)
    total = gcl.all_reduce(Site(graph, sequence=body), moved, "data", algorithm="ring")
    kept = popops.sub(Site(graph, sequence=body), state, total)
    body.add(_copy(state.name, kept.name))
    graph.program.add(Repeat(3, body))
    graph.outputs.append(state.name)
    rng = np.random.default_rng(5)
    values, weights = drawn(rng, (4, 6), "float32"), rng.random(6).astype(np.float32)
    expected = values
    for _ in range(3):
        expected = expected - reduced(expected * weights, "add", "ring", is_folded=True)
    same(runs(graph, values, weights), expected)


def _copy(destination: str, source: str) -> Copy:
    return Copy(destination, (source,))


def test_the_ring_adds_up_exactly_whatever_the_algorithm() -> None:
    """In exact arithmetic all orders are one: every algorithm on every engine gives the same words."""
    values, found = drawn(np.random.default_rng(8), (4, 13), "float32"), set()
    for algorithm in ("ring", "two_rings", "halving_doubling"):
        graph = replicated(("data", 4))
        x = graph.add_input((13,), "float32", "x")
        graph.outputs.append(gcl.all_reduce(graph, x, "data", algorithm=algorithm).name)
        executable = compile_graph(graph)
        for engine in ("fast", "literal"):
            (out,), _ = make_engine(executable, engine, arithmetic="ring").run(values)
            found.add(np.asarray(out).tobytes())
    assert len(found) == 1


def test_a_program_does_not_grow_with_its_replicas() -> None:
    sizes = []
    for count in (4, 16):
        graph = replicated(("data", count))
        x = graph.add_input((64,), "float32", "x")
        graph.outputs.append(gcl.all_reduce(graph, x, "data", algorithm="ring").name)
        sizes.append(len(compile_graph(graph).steps))
    assert sizes[0] == sizes[1]


def test_stages_of_doubling_are_a_loop_over_their_number() -> None:
    sizes = []
    for system, count in (("pod64", 32), ("pod64 x 1024", 2**16)):
        graph = replicated(("data", count), name=system, num_tiles=4)
        x = graph.add_input((7,), "float32", "x")
        graph.outputs.append(gcl.all_reduce(graph, x, "data", algorithm="halving_doubling").name)
        sizes.append(len(compile_graph(graph).steps))
        if count == 32:
            values = drawn(np.random.default_rng(1), (count, 7), "float32")
            want = reduced(values, "add", "halving_doubling")
            same(runs(graph, values), np.broadcast_to(want, values.shape))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("algorithm", "count", "radices", "dtype"),
    [
        ("halving_doubling", 8, (2, 2), "float32"),
        ("halving_doubling", 8, (2, 4), "float16"),
        ("paired_halving", 6, (4,), "float32"),
    ],
)
def test_halving_in_fragments_sends_each_to_where_it_is_kept(
    algorithm: str, count: int, radices: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members' sum on every engine; whatever else a stage's partner or a replica's rows are, is refused."""
    monkeypatch.setattr(choice, "halving_radices", lambda *_: radices)
    graph = replicated(("data", count), num_tiles=16)
    x = graph.add_input((1003,), dtype, "x")
    graph.outputs.append(gcl.all_reduce(graph, x, "data", algorithm=algorithm).name)
    values = drawn(np.random.default_rng(count), (count, 1003), dtype)
    same(runs(graph, values), np.broadcast_to(reduced(values, "add", algorithm), values.shape))
    data = compile_graph(graph).to_data()
    sends = [step["permutations"] for step in data["steps"] if "between" in step]
    kind = "swap" if count == 8 else "partial_swap"
    assert {len(send) for send in sends} == {*radices, *([1] if math.prod(radices) < count else [])}
    assert {each[0] for send in sends for each in send} == {kind, "shift"}
    for number in (0, len(sends) - 1):
        right = sends[number][-1][1]
        for wrong in ({1: 2, 2: 4, 4: 2, 3: 6}[right], 0 if count == 6 else 8):
            damaged = copy.deepcopy(data)
            found = [step for step in damaged["steps"] if "between" in step][number]
            found["permutations"][-1] = [kind, wrong]
            with pytest.raises(IpuError):
                certify(Executable.from_data(damaged))
    (rows,) = [v for step in data["steps"] for v in step.get("vertices", []) if "iota" in str(v["codelet"])]
    rows["codelet"]["params"]["body"][-1][0] = "or"
    with pytest.raises(InvalidExecutable, match="gives"):
        certify(Executable.from_data(data))


@pytest.mark.parametrize(
    ("build", "radices"), [(gcl.all_gather, (2, 4, 2)), (gcl.reduce_scatter, (2, 2, 2, 2))]
)
def test_stages_of_many_members_are_made_in_groups(
    build: Any, radices: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "scattering_radices", lambda *_: radices)
    monkeypatch.setattr(choice, "MOST_ROWS_BITS", 2 if len(radices) == 4 else 3)
    gathers = build is gcl.all_gather
    graph = replicated(("data", 16), num_tiles=16)
    x = graph.add_input((3, 5 if gathers else 80), "float32", "x")
    algorithm = "doubling" if gathers else "halving_doubling"
    graph.outputs.append(build(graph, x, "data", 1, algorithm=algorithm).name)
    values = drawn(np.random.default_rng(1), (16, *x.shape), "float32")
    if gathers:
        want = np.broadcast_to(np.concatenate(list(values), 1), (16, 3, 80))
    else:
        total = reduced(values.reshape(16, -1), "add", "halving_doubling").reshape(x.shape)
        want = np.stack(np.split(total, 16, 1))
    same(runs(graph, values), want)
    shapes = {v.shape for v in compile_graph(graph).variables.values() if ".fragment" in v.name}
    assert shapes == ({(4, 15), (4, 60)} if len(radices) == 4 else {(2, 15), (4, 30), (2, 120)})


@pytest.mark.parametrize("build", [gcl.all_gather, gcl.reduce_scatter])
def test_short_fragments_of_many_members_lie_on_many_tiles(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "MOST_ROWS_BITS", 12)
    graph = replicated(("data", 4096), name="pod64 x 1024", num_tiles=64)
    rows = 1 if build is gcl.all_gather else 4096
    x = graph.add_input((rows * 16,), "float32", "x")
    graph.outputs.append(build(graph, x, "data", 0).name)
    executable = compile_graph(graph)
    buffers = [v for v in executable.variables.values() if v.shape == (4096, 16)]
    assert buffers and all(v.layout.tiles.size == 8 for v in buffers if ".fragment" in v.name)


def staged(number: int | None) -> Graph:
    """Return a program that sends by the stage of a number, or of the replica's own place."""
    graph = replicated(("data", 4))
    x = graph.add_input((6,), "float32", "x")
    stage = gcl.replica_index(graph, "data") if number is None else popops.fill(graph, (), "uint32", number)
    found = graph.add_tensor((6,), "float32", "found")
    moves = (Shift(1), Swap(2), Pairs(((0, 3),)))
    graph.program.add(CopyBetween(x.name, found.name, ("data",), moves, "a.py:3", stage.name))
    graph.outputs.append(found.name)
    return graph


@pytest.mark.parametrize("number", [0, 1, 2, 9])
def test_a_stage_says_where_a_tensor_goes(number: int) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    wanted = [np.roll(values, 1, 0), values[[2, 3, 0, 1]], np.zeros_like(values)]
    wanted[2][3] = values[0]
    same(runs(staged(number), values), wanted[min(number, 2)])


def test_a_stage_costs_the_mean_of_all() -> None:
    (cost,) = [c for c in step_costs(compile_graph(staged(0))) if c.links is not None]
    alone = []
    for move in (Shift(1), Swap(2), Pairs(((0, 3),))):
        graph = replicated(("data", 4))
        x = graph.add_input((6,), "float32", "x")
        graph.outputs.append(gcl.permute(graph, x, "data", move).name)
        alone += [c for c in step_costs(compile_graph(graph)) if c.links is not None]
    assert np.allclose(cost.link_bytes, sum(each.link_bytes for each in alone) / 3)
    mean = sum(each.link_cycles or 0 for each in alone) / 3
    assert cost.link_cycles is not None and mean <= cost.link_cycles < mean + 2


def test_replicas_of_a_group_are_in_one_stage() -> None:
    with pytest.raises(InvalidGraph, match=r"stage replica_index may differ along data"):
        compile_graph(staged(None))
    data = compile_graph(staged(1)).to_data()
    (step,) = (s for s in data["steps"] if "between" in s)
    step["stage"] = step["source"]
    with pytest.raises(IpuError, match=r"stage .* expected one element of uint32"):
        certify(Executable.from_data(data))


def test_what_has_no_elements_or_no_partner_stays() -> None:
    graph = replicated(("data", 2), ("one", 1))
    x = graph.add_input((0, 3), "float32", "x")
    y = graph.add_input((3,), "float32", "y")
    assert gcl.all_reduce(graph, x, "data") is x
    assert gcl.all_reduce(graph, y, "one") is y
    assert gcl.all_gather(graph, x, "data", 1).shape == (0, 6)


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(InvalidGraph, match="replicas need several"):
        Graph(small_system().chip).replicate("data", 2)
    graph = replicated(("data", 6))
    x, y = (graph.add_input((n, 4), "float32", name) for n, name in ((4, "x"), (6, "y")))
    two = replicated(("data", 2))
    z = two.add_input((4,), "float32", "z")
    with pytest.raises(InvalidGraph, match="do not fit on dss8440"):
        graph.replicate("model", 4)
    alone = Graph(find_system("dss8440"))
    alone_x = alone.add_input((4,), "float32", "x")
    wrong = [
        ("no axis 'batch'", lambda: gcl.all_reduce(graph, x, "batch")),
        ("cannot combine float32 by 'and'", lambda: gcl.all_reduce(graph, x, "data", "and")),
        (
            r"(?s)halving_doubling of 6.*a power of two.*try: .*paired_halving",
            lambda: gcl.all_reduce(graph, x, "data", algorithm="halving_doubling"),
        ),
        (
            "paired_halving leaves",
            lambda: gcl.reduce_scatter(graph, y, "data", 0, algorithm="paired_halving"),
        ),
        (
            r"(?s)paired_halving of 2.*try: algorithm='halving_doubling'",
            lambda: gcl.all_reduce(two, z, "data", algorithm="paired_halving"),
        ),
        ("no algorithm 'tree'", lambda: gcl.all_reduce(graph, x, "data", algorithm="tree")),
        ("not divided by 6", lambda: gcl.reduce_scatter(graph, x, "data", 0)),
        ("receives twice", lambda: gcl.permute(graph, x, "data", [(0, 1), (2, 1)])),
        ("names place 6", lambda: gcl.permute(graph, x, "data", [(0, 6)])),
        (
            r"(?s)doubling of 6.*try: algorithm='two_rings'",
            lambda: gcl.all_gather(graph, x, "data", 0, algorithm="doubling"),
        ),
        ("no member 6", lambda: gcl.broadcast(graph, x, "data", 6)),
        (
            r"(?s)of a graph that is not replicated.*graph\.replicate\('data', n\)",
            lambda: gcl.all_reduce(alone, alone_x, "data"),
        ),
    ]
    for message, call in wrong:
        with pytest.raises(InvalidGraph, match=message):
            call()


def test_inputs_of_replicas_have_a_value_for_each() -> None:
    graph = replicated(("data", 2))
    x = graph.add_input((3,), "float32", "x")
    graph.outputs.append(popops.add(graph, x, x).name)
    executable = compile_graph(graph)
    for engine in ENGINES:
        with pytest.raises((InvalidExecutable, InvalidArguments), match=r"is \[2, 3\], got \[3\]"):
            make_engine(executable, engine).run(np.zeros(3, np.float32))


def test_replicas_do_not_exchange_values_with_the_host() -> None:
    graph = replicated(("data", 2))
    x = graph.add_input((3,), "float32", "x")
    graph.program.add(PrintTensor(x.name))
    with pytest.raises(Unsupported, match="exchanges values with the host"):
        compile_graph(graph)


@pytest.mark.parametrize("damage", ["axes", "permutation", "layout", "replicas"])
def test_a_damaged_exchange_between_replicas_is_refused(damage: str) -> None:
    graph = replicated(("data", 4))
    x = graph.add_input((12,), "float32", "x")
    graph.outputs.append(gcl.permute(graph, x, "data", Shift(1)).name)
    data = compile_graph(graph).to_data()
    (step,) = (s for s in data["steps"] if "between" in s)
    if damage == "axes":
        step["axes"] = ["model"]
    elif damage == "permutation":
        step["permutations"] = [["pairs", [[0, 1], [2, 1]]]]
    elif damage == "layout":
        step["destination"] = step["source"]
    else:
        data["replicas"] = [["data", 32]]
    with pytest.raises(IpuError, match=r"model|twice|which is not donated|receives|has 16"):
        certify(Executable.from_data(data))


def loop_on(graph: Graph, x: Tensor, limit: Tensor) -> None:
    """Halve a value as long as a number is above a limit, with a sum over replicas in every round."""
    state, body, condition = graph.add_variable(x.shape, "float32", "state"), Sequence(), Sequence()
    graph.program.add(_copy(state.name, x.name))
    goes_on = popops.gt(
        Site(graph, sequence=condition), poputil.reshape(Site(graph, sequence=condition), state, ()), limit
    )
    total = gcl.all_reduce(Site(graph, sequence=body), state, "data", "max", algorithm="ring")
    body.add(_copy(state.name, popops.mul(Site(graph, sequence=body), total, 0.5).name))
    graph.program.add(RepeatWhileTrue(condition, goes_on.name, body))
    graph.outputs.append(state.name)


def test_a_loop_around_a_collective_is_decided_alike_on_all_members() -> None:
    graph = replicated(("data", 4))
    x, limit = (graph.add_input(s, "float32", n) for s, n in (((1,), "x"), ((), "limit")))
    loop_on(graph, x, limit)
    with pytest.raises(InvalidGraph, match=r"may wait for one that does not take part.*along data"):
        compile_graph(graph)
    graph = replicated(("data", 4))
    x = graph.add_input((1,), "float32", "x")
    limit = graph.add_input((), "float32", "limit", same_on_all=True)
    loop_on(graph, gcl.all_reduce(graph, x, "data", "max", algorithm="ring"), limit)
    values = np.array([[3], [80], [5], [2]], np.float32)
    same(runs(graph, values, np.array(1.0, np.float32)), np.full((4, 1), 0.625, np.float32))


def test_what_is_done_side_by_side_with_it_does_not_make_a_value_differ() -> None:
    """A loop until all agree: what differs is computed and carried in the same steps as what decides."""
    graph = replicated(("data", 4))
    x = graph.add_input((1,), "float32", "x")
    limit = graph.add_input((), "float32", "limit", same_on_all=True)
    state, largest = (graph.add_variable(shape, "float32") for shape in ((1,), ()))
    body, condition = Sequence(), Sequence()
    inside, before = Site(graph, sequence=body), Site(graph, sequence=condition)
    graph.program.add(_copy(state.name, x.name))
    graph.program.add(_copy(largest.name, popops.fill(graph, (), "float32", 99).name))
    goes_on = popops.gt(before, largest, limit)
    half = popops.mul(inside, state, 0.5)
    quarter = popops.mul(inside, largest, 0.25)
    total = gcl.all_reduce(inside, poputil.reshape(inside, half, ()), "data", "max", algorithm="ring")
    body.add(_copy(state.name, half.name))
    body.add(_copy(largest.name, popops.max(inside, total, quarter).name))
    graph.program.add(RepeatWhileTrue(condition, goes_on.name, body))
    graph.outputs += [state.name, largest.name]
    executable = compile_graph(graph)
    assert any(len(step.flows) > 1 for step in executable.steps), "some are side by side"
    values = np.array([[3], [80], [5], [2]], np.float32)
    found = runs(graph, values, np.array(9, np.float32))
    same(found, values / 16, np.full(4, 5, np.float32))


def halved_until(limit_same_along: tuple[str, ...], axis: str) -> Graph:
    """Halve the maximum over an axis until it is at most a limit, which is the same along some axes."""
    graph = replicated(("data", 2), ("model", 3))
    x = graph.add_input((1,), "float32", "x")
    limit = graph.add_input((), "float32", "limit", same_along=limit_same_along)
    state, body, condition = graph.add_variable(x.shape, "float32", "state"), Sequence(), Sequence()
    first = gcl.all_reduce(graph, x, axis, "max", algorithm="ring")
    graph.program.add(_copy(state.name, first.name))
    number = poputil.reshape(Site(graph, sequence=condition), state, ())
    goes_on = popops.gt(Site(graph, sequence=condition), number, limit)
    total = gcl.all_reduce(Site(graph, sequence=body), state, axis, "max", algorithm="ring")
    body.add(_copy(state.name, popops.mul(Site(graph, sequence=body), total, 0.5).name))
    graph.program.add(RepeatWhileTrue(condition, goes_on.name, body))
    graph.outputs.append(state.name)
    return graph


def test_an_input_decides_around_collectives_along_axes_along_which_it_is_the_same() -> None:
    values = np.array([[3], [80], [5], [2], [7], [1]], np.float32)
    limits = np.repeat(np.array([1, 4], np.float32), 3)
    wanted = np.repeat(np.array([[80 / 128], [3.5]], np.float32), 3, axis=0)
    same(runs(halved_until(("model",), "model"), values, limits), wanted)
    for said, axis, along in (
        (("data",), "model", "model"),
        (("model",), "data", "data"),
        ((), "data", "data"),
    ):
        with pytest.raises(
            InvalidGraph, match=rf"may wait for one that does not take part.*along {along}, de"
        ):
            compile_graph(halved_until(said, axis))
    with pytest.raises(InvalidGraph, match="no axis 'rows'"):
        halved_until(("rows",), "data")
    executable = compile_graph(halved_until(("model",), "model"))
    assert executable.differs_along == (("data", "model"), ("data",))
    for engine in ENGINES:
        with pytest.raises(InvalidExecutable, match="input limit differs between replicas along model"):
            make_engine(executable, engine).run(values, limits[[0, 1, 2, 3, 0, 5]])
    assert compile_graph(halved_until(("data", "model"), "data")).differs_along[1] == ()


@pytest.mark.parametrize(
    "damage",
    [["rows"], ["data", "rows"], ["model", "data"], ["data", "data"], [0], "data", None],
    ids=str,
)
def test_axes_that_an_input_cannot_differ_along_are_refused(damage: Any) -> None:
    data = compile_graph(halved_until(("model",), "model")).to_data()
    assert data["differs_along"] == [["data", "model"], ["data"]]
    data["differs_along"] = [["data", "model"], *([] if damage is None else [damage])]
    with pytest.raises(InvalidExecutable, match=r"limit differs along|damaged|of 2 inputs"):
        certify(Executable.from_data(data))


def test_a_certificate_counts_what_replicas_send_each_other() -> None:
    """Its own count equals what a ring of n sends: n - 1 times a fragment each way, of every member."""
    graph = replicated(("data", 4), ("model", 2))
    x = graph.add_input((64,), "float32", "x")
    graph.outputs.append(gcl.all_reduce(graph, x, "data", algorithm="ring").name)
    certificate = certify(compile_graph(graph))
    assert (certificate.replicas, certificate.exchanges) == (8, 2)
    assert certificate.link_bytes == 2 * 8 * 64 // 4 * 4  # each loop's exchange counted once
    assert "2 exchanges between 8 replicas" in str(certificate)
