"""Streams as program steps: items in order through loops and branches, on every engine; costs, memory, refusals."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

from tests.unit.tiles.executable_programs import (
    changed,
    compiled,
    items_of,
    named,
    rebuilt,
    rows,
    same,
    split,
)
from tests.unit.tiles.test_report_profile import check as follows_schema
from tiles.compiler import Executable, certify, compile_graph, load_executable, step_costs
from tiles.compiler.control_flow import items_needed
from tiles.engine import FastEngine, make_engine
from tiles.errors import InvalidArguments, InvalidExecutable, InvalidGraph, ProgramAborted, Unsupported
from tiles.graph import (
    AbortOnCondition,
    Copy,
    CopyFromStream,
    CopyToStream,
    Graph,
    Layout,
    Plan,
    Repeat,
    RepeatWhileTrue,
    Sequence,
    Site,
)
from tiles.numerics.ring import to_ring
from tiles.poplibs import popops
from tiles.report import cost_analysis, profile, profile_schema, write_report
from tiles.target import Target

ENGINES = ("fast", "literal", "vertex")
START = np.arange(8, dtype=np.float32)


@pytest.fixture(scope="module")
def executable() -> Executable:
    target = Target.named("gc200").replace(num_tiles=16)
    return load_executable(compiled("streaming", target).to_bytes())


def expected(streams: dict[str, np.ndarray], start: np.ndarray, trips: int) -> list[np.ndarray]:
    """Return what the host receives: sums of three left items, of one more at the first trip, then of right ones."""
    left, right = (iter(streams[name]) for name in ("left", "right"))
    sums, total = [], start
    for item in [next(left) for _ in range(4)] + [next(right) for _ in range(trips - 1)]:
        total = total + item
        sums.append(total)
    return sums


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_every_execution_takes_the_next_item(executable: Executable, engine: str, arithmetic: str) -> None:
    streams = items_of(executable)
    start, given = START, streams
    if arithmetic == "ring":
        with jax.enable_x64(True):
            start, given = np.asarray(to_ring(START)), {n: np.asarray(to_ring(x)) for n, x in streams.items()}
    want = expected(given, start, 4)
    (total,), trace = make_engine(executable, engine, arithmetic).run(START, np.int32(4), streams=streams)
    assert trace.streams["sums"].shape == (7, 8)
    np.testing.assert_array_equal(trace.streams["sums"], np.stack(want))
    np.testing.assert_array_equal(total, want[-1])
    data = profile(executable, trace).data
    follows_schema(data, profile_schema(), profile_schema())
    assert [(s["name"], s["items"]) for s in data["execution"]["streams"]] == [
        ("left", 4),
        ("right", 3),
        ("sums", 7),
    ]
    assert data["execution"]["hostExchangeBytes"] == 14 * 32


def test_the_program_is_certified_and_reported(executable: Executable, tmp_path: Any) -> None:
    certificate = certify(executable)
    assert certificate.stream_copies == 5
    assert "5 copies put every element of an item on one tile" in str(certificate)
    streams = items_of(executable)
    _, trace = make_engine(executable).run(START, np.int32(1), streams=streams)
    text = profile(executable, trace).text()
    assert "host exchange" in text and "left    from the host  float32[8]" in text
    write_report(executable, trace, tmp_path)
    assert "<h2>Streams</h2>" in (tmp_path / "report.html").read_text()
    assert "stream left from the host: float32[8]    from model.py:4" in executable.text()
    assert items_needed(executable) == {"left": None, "right": None, "sums": None}


def counted(target: Target, count: int = 70, size: int = 6, base: int = 0) -> Graph:
    """Double every item of a stream and send it back."""
    graph = Graph(target, "counted")
    layout = rows((size,), 2, base)
    given = graph.add_host_to_device_stream("given", "float32", (size,))
    doubled = graph.add_device_to_host_stream("doubled", "float32", (size,))
    item = graph.add_tensor((size,), "float32", "item", layout)
    body = Sequence()
    body.add(CopyFromStream(given.name, item.name))
    twice = popops.mul(Site(graph, sequence=body), item, 2.0, plan=Plan((split(size, 2),), base))
    body.add(CopyToStream(twice.name, doubled.name))
    graph.program.add(Repeat(count, body))
    return graph


def test_streams_inside_an_outer_jit(small_target: Target) -> None:
    executable = compile_graph(counted(small_target))
    assert items_needed(executable) == {"given": 70, "doubled": 70}
    items = np.random.default_rng(0).standard_normal((80, 6)).astype(np.float32)
    traced = jax.jit(lambda xs: FastEngine(executable).trace_streams({"given": xs})[1]["doubled"])
    np.testing.assert_array_equal(traced(items), 2 * items[:70])


def until_negative(target: Target) -> Graph:
    """Read scalars until one is negative, sending each back: floats decide how many."""
    graph = Graph(target, "until negative")
    graph.add_host_to_device_stream("given", "float32", (), "sentinel.py:3")
    graph.add_device_to_host_stream("seen", "float32", ())
    value = graph.add_tensor((), "float32", "value", Layout(()))
    flag = graph.add_tensor((), "bool", "flag", Layout(()))
    condition, body = Sequence(), Sequence()
    condition.add(CopyFromStream("given", value.name))
    going = popops.gteq(Site(graph, sequence=condition), value, 0.0, plan=Plan(()))
    condition.add(Copy(flag.name, (going.name,)))
    body.add(CopyToStream(value.name, "seen"))
    graph.program.add(RepeatWhileTrue(condition, flag.name, body))
    graph.outputs = [value.name]
    return graph


@pytest.mark.parametrize("engine", ENGINES)
def test_how_many_items_may_depend_on_their_values(engine: str, small_target: Target) -> None:
    executable = compile_graph(until_negative(small_target))
    items = np.array([*range(90), -1, 5], np.float32)
    run = make_engine(executable, engine).run
    (last,), trace = run(streams={"given": items})
    assert last == -1
    np.testing.assert_array_equal(trace.streams["seen"], items[:90])
    _, in_ring = make_engine(executable, engine, "ring").run(streams={"given": items})
    assert in_ring.counts == trace.counts
    np.testing.assert_array_equal(in_ring.streams["seen"], np.asarray(to_ring(items[:90])))
    with pytest.raises(InvalidArguments, match="stream given runs out of items") as caught:
        run(streams={"given": items[:10]})
    assert caught.value.location == "sentinel.py:3"


def test_what_cannot_be_traced_is_named(small_target: Target) -> None:
    executable = compile_graph(until_negative(small_target))
    with pytest.raises(Unsupported, match="number of items that depends on data"):
        FastEngine(executable).trace_streams({"given": np.zeros((1,), np.float32)})


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        ({}, "others than those given"),
        ({"given": np.zeros((70, 6), np.float32), "more": 1}, "others than those given"),
        ({"given": np.zeros((69, 6), np.float32)}, r"runs out of items(.|\n)*70 items(.|\n)*got: 69"),
        ({"given": np.zeros((70, 5), np.float32)}, r"float32\[items, 6\](.|\n)*float32\[70, 5\]"),
        ({"given": np.zeros((70, 6), np.float64)}, r"got: float64"),
        ({"given": np.float32(1)}, "something else than items"),
    ],
)
def test_a_run_refuses_streams_that_do_not_fit(streams: Any, words: str, small_target: Target) -> None:
    executable = compile_graph(counted(small_target))
    for engine in ENGINES:
        with pytest.raises(InvalidArguments, match=words):
            make_engine(executable, engine).run(streams=streams)


def _broken(target: Target, step: Any) -> Graph:
    graph = counted(target)
    graph.add_tensor((7,), "float32", "seven")
    graph.program.add(step)
    return graph


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (CopyFromStream("none", "item", "here.py:1"), "stream 'none', which the graph does not have"),
        (CopyToStream("none", "doubled", "here.py:1"), "tensor 'none', which the graph does not have"),
        (CopyToStream("item", "given", "here.py:1"), "the wrong way: stream given goes from the host"),
        (CopyFromStream("doubled", "item", "here.py:1"), "the wrong way: stream doubled goes to the host"),
        (
            CopyFromStream("given", "seven", "here.py:1"),
            r"does not hold an item(.|\n)*float32\[6\](.|\n)*\[7\]",
        ),
    ],
)
def test_a_graph_with_a_copy_that_does_not_fit_is_refused(
    step: Any, words: str, small_target: Target
) -> None:
    with pytest.raises(InvalidGraph, match=words) as caught:
        compile_graph(_broken(small_target, step))
    assert caught.value.location == "here.py:1"
    with pytest.raises(InvalidGraph, match="has a stream given already"):
        counted(small_target).add_device_to_host_stream("given", "float32", (6,))


def test_a_changed_file_is_refused_or_another_program(executable: Executable) -> None:
    def refuse(change: Any, words: str) -> None:
        with pytest.raises(InvalidExecutable, match=words):
            certify(rebuilt(changed(executable, change)))

    refuse(lambda d: step_of_stream(d).update(to_host=True), "the wrong way")
    refuse(lambda d: step_of_stream(d).update(of="none"), "stream 'none', which does not exist")
    refuse(lambda d: step_of_stream(d).update(variable="count"), "copies items of stream left")
    refuse(lambda d: step_of_stream(d).update(variable="start"), "not donated")
    refuse(lambda d: d["streams"][0].update(shape=[9]), "copies items of stream left")
    refuse(lambda d: d["streams"].pop(), "stream 'sums', which does not exist")
    for name, words in (
        ("host exchange code", "B of hostExchangeCode"),
        ("stream.left.1.headers", "B of hostExchangePacketHeader"),
        ("stream.left.1.slice", r"B of hostMessage at step 1 \(stream.left\)"),
    ):
        refuse(lambda d, name=name: named(d["buffers"], name).update(bytes=0), words)
    other = rebuilt(changed(executable, lambda d: step_of_stream(d).update(of="right")))
    streams = items_of(executable)
    want = make_engine(executable).run(START, np.int32(1), streams=streams)[1].streams["sums"]
    found = [
        np.asarray(make_engine(other, e).run(START, np.int32(1), streams=streams)[1].streams["sums"])
        for e in ENGINES
    ]
    assert not same([found[0]], [want])
    assert same([found[0]], [found[1]]) and same([found[0]], [found[2]])


def step_of_stream(data: dict[str, Any]) -> dict[str, Any]:
    """Return the first step that copies a stream."""
    return next(step for step in data["steps"] if "stream" in step)


def test_costs_by_hand(small_target: Target) -> None:
    size = 16 * 3000
    graph = Graph(small_target, "large")
    graph.add_host_to_device_stream("given", "float32", (size,))
    graph.add_device_to_host_stream("sent", "float32", (size,))
    graph.add_tensor((size,), "float32", "item", rows((size,), 3000))
    graph.program.add(CopyFromStream("given", "item"))
    graph.program.add(CopyToStream("item", "sent"))
    executable = compile_graph(graph)
    read, sent = step_costs(executable)
    link = math.ceil(4 * size / 32e9 * 1.33e9)  # half of 64e9 B/s each way, at 1.33 GHz
    slices = 3  # 12,000 B a tile, 4,096 B at a time
    t = small_target
    assert (read.host_cycles, sent.host_cycles) == (link, link)
    assert read.sync_cycles == sent.sync_cycles == slices * t.global_sync_cycles
    assert read.compute_cycles == slices * t.local_copy_call_cycles + 12000 // t.memcpy_bytes_per_cycle
    assert sent.compute_cycles == 0
    assert read.cycles == read.compute_cycles + read.sync_cycles + link
    sizes = {b.name: b.size_bytes for b in executable.buffers.values()}
    assert sizes["stream.given.0.slice"] == 4096
    assert sizes["stream.given.0.headers"] == 12 * t.host_packet_header_bytes  # of 1,024 B
    assert sizes["stream.sent.1.headers"] == 47 * t.host_packet_header_bytes  # of 256 B
    analysis = cost_analysis(executable)
    assert analysis["host_exchange_cycles"] == 2 * link
    assert analysis["cycles"] == read.cycles + sent.cycles
    assert sum(analysis["basis_cycles"].values()) == analysis["cycles"]


def test_a_link_of_unknown_rate_makes_cycles_unknown(small_target: Target) -> None:
    executable = compile_graph(counted(small_target.replace(host_link_bytes_per_second=0.0), 2))
    _, trace = make_engine(executable).run(streams={"given": np.zeros((2, 6), np.float32)})
    data = profile(executable, trace).data
    follows_schema(data, profile_schema(), profile_schema())
    assert data["execution"]["cycles"] is None and data["execution"]["hostExchangeCycles"] is None
    assert data["execution"]["computeCycles"] > 0
    assert "host exchange  unknown cycles" in " ".join(profile(executable).text().split("\n")).replace(
        "   ", " "
    )


# ---- programs that stop themselves


def stopping(target: Target) -> Graph:
    """Add items up until the sum is above 5, at most 6 of them; then one item more. Floats decide."""
    graph = Graph(target, "stopping")
    graph.add_host_to_device_stream("given", "float32", ())
    graph.add_device_to_host_stream("sums", "float32", ())
    total = graph.add_input((), "float32", "total")
    graph.set_layout(total.name, Layout(()))
    graph.donated = (0,)
    item = graph.add_tensor((), "float32", "item", Layout(()))
    flag = graph.add_tensor((), "bool", "flag", Layout(()))
    body = Sequence()
    body.add(CopyFromStream("given", item.name))
    more = popops.add(Site(graph, sequence=body), total, item, plan=Plan(()))
    body.add(Copy(total.name, (more.name,)))
    above = popops.gt(Site(graph, sequence=body), total, 5.0, plan=Plan(()))
    body.add(Copy(flag.name, (above.name,)))
    body.add(AbortOnCondition(flag.name, "the sum is above 5", "stop.py:4"))
    body.add(CopyToStream(total.name, "sums"))
    graph.program.add(Repeat(6, body))
    graph.outputs = [total.name]
    return graph


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_a_program_may_stop_itself(engine: str, arithmetic: str, small_target: Target) -> None:
    executable = load_executable(compile_graph(stopping(small_target)).to_bytes())
    certify(executable)
    run = make_engine(executable, engine, arithmetic).run
    _, trace = run(np.float32(0), streams={"given": np.full((6,), 0.5, np.float32)})
    assert trace.streams["sums"].shape == (6,)
    if arithmetic == "float":
        np.testing.assert_array_equal(trace.streams["sums"], np.arange(1, 7) * 0.5)
    with pytest.raises(ProgramAborted, match="the sum is above 5") as caught:
        run(np.float32(0), streams={"given": np.full((6,), 2.0, np.float32)})
    assert caught.value.location == "stop.py:4"


def test_what_comes_first_halts_the_run(small_target: Target) -> None:
    """A loop on data whose stream ends before it stops itself, and the other way round: the error is the first."""
    for items, error in (([1, 2, 1], InvalidArguments), ([1, 9, 1], ProgramAborted)):
        graph = stopping(small_target)
        on = graph.add_constant(np.bool_(True), "bool", "on")
        graph.set_layout(on.name, Layout(()))
        (repeat,) = graph.program.steps
        assert isinstance(repeat, Repeat)
        graph.program.steps[:] = [RepeatWhileTrue(Sequence(), on.name, repeat.body)]
        executable = compile_graph(graph)
        assert "abort if flag: the sum is above 5    from stop.py:4" in executable.text()
        for engine in ENGINES:
            with pytest.raises(error):
                make_engine(executable, engine).run(
                    np.float32(0), streams={"given": np.array(items, np.float32)}
                )


def test_an_abortion_in_a_file_is_checked(small_target: Target) -> None:
    executable = compile_graph(stopping(small_target))
    with pytest.raises(Unsupported, match="may stop itself"):
        FastEngine(executable).trace_streams({"given": np.zeros((6,), np.float32)}, np.float32(0))

    def change(data: dict[str, Any], predicate: str) -> None:
        next(s for s in data["steps"] if "abort" in s)["predicate"] = predicate

    for predicate, words in (("item", "expected one element of bool"), ("none", "not a variable")):
        with pytest.raises(InvalidExecutable, match=words):
            rebuilt(changed(executable, lambda d, p=predicate: change(d, p)))
