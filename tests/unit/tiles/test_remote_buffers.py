"""Remote buffers: rows beside the IPU, kept between runs, by steps and from the host; costs, memory, refusals."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

from tests.unit.tiles.executable_programs import changed, named, rebuilt, rows, split
from tests.unit.tiles.test_report_profile import check as follows_schema
from tiles.compiler import Executable, certify, compile_graph, load_executable, step_costs
from tiles.engine import FastEngine, make_engine
from tiles.errors import InvalidArguments, InvalidExecutable, InvalidGraph, Unsupported
from tiles.graph import (
    Copy,
    CopyFromRemote,
    CopyToRemote,
    Graph,
    Layout,
    Plan,
    Repeat,
    RepeatWhileFalse,
    Sequence,
    Site,
)
from tiles.numerics.ring import to_ring
from tiles.poplibs import popops
from tiles.report import cost_analysis, profile, profile_schema, write_report
from tiles.target import Basis, Target

ENGINES = ("fast", "literal", "vertex")
POINT = Plan(())
START = np.arange(32, dtype=np.float32).reshape(4, 8)


def accumulating(target: Target) -> Graph:
    """Add x to every row of a buffer but the last, row by row, in a loop; give back the row after the last one."""
    graph = Graph(target, "accumulating")
    graph.add_remote_buffer("sums", "float32", (8,), 4, "remote.py:2")
    x = graph.add_input((8,), "float32", "x")
    graph.set_layout(x.name, rows((8,), 2))
    row = graph.add_tensor((8,), "float32", "row", rows((8,), 4, 8))
    number = graph.add_tensor((), "int32", "number", Layout(()))
    zero = popops.fill(graph, (), "int32", 0, plan=POINT)
    graph.program.add(Copy(number.name, (zero.name,)))
    body = Sequence()
    body.add(CopyFromRemote("sums", row.name, number.name, "remote.py:5"))
    total = popops.add(Site(graph, sequence=body), row, x, plan=Plan((split(8, 2),)))
    body.add(CopyToRemote(total.name, "sums", number.name))
    more = popops.add(Site(graph, sequence=body), number, 1, plan=POINT)
    body.add(Copy(number.name, (more.name,)))
    graph.program.add(Repeat(3, body))
    graph.program.add(CopyFromRemote("sums", row.name, number.name))
    graph.outputs = [row.name]
    return graph


@pytest.fixture(scope="module")
def executable() -> Executable:
    target = Target.named("gc200").replace(num_tiles=16)
    return load_executable(compile_graph(accumulating(target)).to_bytes())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_rows_are_kept_between_runs(executable: Executable, engine: str, arithmetic: str) -> None:
    x = np.linspace(1, 2, 8, dtype=np.float32)
    machine = make_engine(executable, engine, arithmetic)
    assert not machine.copy_from_remote_buffer("sums").any()
    machine.copy_to_remote_buffer("sums", START)
    machine.copy_to_remote_buffer("sums", START[3] + 100, row=3)
    given, held = x, np.concatenate([START[:3], START[3:] + 100])
    if arithmetic == "ring":
        with jax.enable_x64(True):
            given, held = np.asarray(to_ring(x)), np.asarray(to_ring(held))
    for _ in range(2):
        (row,), _ = machine.run(x)
        held[:3] += given
        np.testing.assert_array_equal(machine.copy_from_remote_buffer("sums"), held)
        np.testing.assert_array_equal(machine.copy_from_remote_buffer("sums", 1), held[1])
        np.testing.assert_array_equal(row, held[3])
    fresh = make_engine(executable, engine, arithmetic)  # another loaded engine has rows of its own
    assert not fresh.copy_from_remote_buffer("sums").any()


def rows_at_once(target: Target) -> Graph:
    """Copy rows by their numbers to other rows: numbers outside are clamped, of equal ones the last stays."""
    graph = Graph(target, "rows at once")
    graph.add_remote_buffer("table", "int32", (2, 3), 5)
    graph.add_remote_buffer("single", "float16", (), location="single.py:1")
    read, write = (graph.add_input((4,), "int32", name) for name in ("read", "write"))
    value = graph.add_tensor((4, 2, 3), "int32", "value", rows((4, 2, 3), 1))
    half = graph.add_tensor((), "float16", "half", Layout(()))
    graph.program.add(CopyFromRemote("table", value.name, read.name))
    graph.program.add(CopyToRemote(value.name, "table", write.name))
    graph.program.add(CopyFromRemote("single", half.name))
    twice = popops.mul(graph, half, 2.0, plan=POINT)
    graph.program.add(CopyToRemote(twice.name, "single"))
    graph.outputs = [value.name]
    return graph


@pytest.mark.parametrize("engine", ENGINES)
def test_several_rows_at_once(engine: str, small_target: Target) -> None:
    executable = compile_graph(rows_at_once(small_target))
    certify(executable)
    machine = make_engine(executable, engine)
    table = np.arange(30, dtype=np.int32).reshape(5, 2, 3)
    machine.copy_to_remote_buffer("table", table)
    machine.copy_to_remote_buffer("single", np.float16(1.5), row=0)
    read, write = np.array([4, -7, 9, 1], np.int32), np.array([2, 0, 0, 99], np.int32)
    (value,), _ = machine.run(read, write)
    np.testing.assert_array_equal(value, table[[4, 0, 4, 1]])
    want = table.copy()
    want[2], want[0], want[4] = table[4], table[4], table[1]
    np.testing.assert_array_equal(machine.copy_from_remote_buffer("table"), want)
    assert machine.copy_from_remote_buffer("single").tolist() == [3.0]


def until_large(target: Target) -> Graph:
    """Double the buffer's row until its value is above 50: floats decide, and stay from run to run."""
    graph = Graph(target, "until large")
    graph.add_remote_buffer("state", "float32", ())
    value = graph.add_tensor((), "float32", "value", Layout(()))
    flag = graph.add_tensor((), "bool", "flag", Layout(()))
    condition, body = Sequence(), Sequence()
    condition.add(CopyFromRemote("state", value.name))
    above = popops.gt(Site(graph, sequence=condition), value, 50.0, plan=POINT)
    condition.add(Copy(flag.name, (above.name,)))
    twice = popops.mul(Site(graph, sequence=body), value, 2.0, plan=POINT)
    body.add(CopyToRemote(twice.name, "state"))
    graph.program.add(RepeatWhileFalse(condition, flag.name, body))
    half = popops.mul(graph, value, 0.25, plan=POINT)
    graph.program.add(CopyToRemote(half.name, "state"))
    graph.outputs = [value.name]
    return graph


def test_in_the_ring_rows_that_decide_are_those_of_a_run_with_floats(small_target: Target) -> None:
    executable = compile_graph(until_large(small_target))
    trips = []
    for engine in ENGINES:
        machine, in_ring = make_engine(executable, engine), make_engine(executable, engine, "ring")
        for each in (machine, in_ring):
            each.copy_to_remote_buffer("state", np.float32(3), row=0)
        for _ in range(3):
            (value,), trace = machine.run()
            (word,), ring_trace = in_ring.run()
            assert trace.counts == ring_trace.counts
            trips.append((float(value), int(word), trace.counts))
    assert trips[:3] == trips[3:6] == trips[6:]
    assert [value for value, _, _ in trips[:3]] == [96, 96, 96]  # 3 doubled five times, then 24 twice, twice


def test_costs_memory_and_report(executable: Executable, small_target: Target, tmp_path: Any) -> None:
    certificate = certify(executable)
    assert certificate.stream_copies == 3
    costs = [cost for cost in step_costs(executable) if cost.name == "remote.sums"]
    cycles = math.ceil(32 / 20e9 * small_target.clock_hz)  # the streaming memory is slower than the link
    assert [cost.host_cycles for cost in costs] == [cycles] * 3
    assert {cost.host_basis for cost in costs} == {Basis.ASSUMED}
    assert [cost.sync_cycles for cost in costs] == [small_target.global_sync_cycles] * 3
    read, written, _ = costs
    assert read.compute_cycles > 0 and written.compute_cycles == 0  # what arrives is copied into place
    assert cost_analysis(executable)["host_exchange_bytes"] == 7 * 32
    names = {b.name for b in executable.buffers.values()}
    assert "sums" not in names and any(name.startswith("remote.sums") for name in names)
    _, trace = make_engine(executable).run(START[0])
    found = profile(executable, trace)
    follows_schema(found.data, profile_schema(), profile_schema())
    (row,) = found.data["execution"]["remoteBuffers"]
    assert (row["sizeBytes"], row["bytesRead"], row["bytesWritten"]) == (128, 4 * 32, 3 * 32)
    assert "memory beside the IPU" in found.text() and "4 x float32[8]" in found.text()
    write_report(executable, trace, tmp_path)
    assert "<h2>Memory beside the IPU</h2>" in (tmp_path / "report.html").read_text()
    assert "remote buffer sums: 4 x float32[8]    from remote.py:2" in executable.text()
    assert "remote sums[number] -> row    from remote.py:5" in executable.text()


def test_a_machine_without_streaming_memory_keeps_them_on_the_host() -> None:
    target = Target.named("gc2").replace(num_tiles=16)
    (cost, *_) = (c for c in step_costs(compile_graph(accumulating(target))) if c.name == "remote.sums")
    assert cost.host_cycles == math.ceil(32 / (target.host_link_bytes_per_second / 2) * target.clock_hz)
    assert cost.host_basis is Basis.ASSUMED


def test_remote_memory_is_bounded(small_target: Target) -> None:
    graph = accumulating(small_target)
    graph.add_remote_buffer("huge", "float32", (1 << 30,), 1 << 10)
    with pytest.raises(InvalidGraph, match=r"remote buffers than the machine has(.|\n)*448,000,000,000 B"):
        compile_graph(graph)


def test_calls_that_do_not_fit_are_named(executable: Executable, small_target: Target) -> None:
    machine = make_engine(executable)
    for name, row in (("none", None), ("sums", 4), ("sums", -1)):
        with pytest.raises(InvalidArguments, match=r"no such remote buffer(.|\n)*sums of 4 rows"):
            machine.copy_from_remote_buffer(name, row)
    for value in (START[:3], START.astype(np.float64), START[0]):
        with pytest.raises(InvalidArguments, match=r"float32\[4, 8\]") as caught:
            machine.copy_to_remote_buffer("sums", value)
        assert caught.value.location == "remote.py:2"
    with pytest.raises(Unsupported, match="remote buffers, which it keeps between runs"):
        jax.jit(FastEngine(executable).trace)(START[0])
    with pytest.raises(InvalidGraph, match="another of that name"):
        accumulating(small_target).add_remote_buffer("sums", "float32", (8,), 1)
    with pytest.raises(InvalidGraph, match="0 rows"):
        Graph(small_target).add_remote_buffer("none", "float32", (8,), 0)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            CopyFromRemote("none", "row", "", "here.py:1"),
            "remote buffer 'none', which the graph does not have",
        ),
        (CopyFromRemote("sums", "none", "", "here.py:1"), "tensor 'none'"),
        (CopyToRemote("x", "sums", "none", "here.py:1"), "'none', which the graph does not have"),
        (CopyToRemote("x", "sums", "x", "here.py:1"), "numbers no rows"),
        (CopyFromRemote("sums", "number", "", "here.py:1"), r"float32\[8\](.|\n)*int32\[\]"),
    ],
)
def test_a_graph_with_a_copy_that_does_not_fit_is_refused(
    step: Any, words: str, small_target: Target
) -> None:
    graph = accumulating(small_target)
    graph.program.add(step)
    with pytest.raises(InvalidGraph, match=words) as caught:
        compile_graph(graph)
    assert caught.value.location == "here.py:1"


def _remote(data: dict[str, Any]) -> dict[str, Any]:
    return next(step for step in data["steps"] if "remote" in step)


def test_a_changed_file_is_refused_or_another_program(executable: Executable) -> None:
    def refuse(change: Any, words: str) -> None:
        with pytest.raises(InvalidExecutable, match=words):
            certify(rebuilt(changed(executable, change)))

    refuse(lambda d: _remote(d).update(buffer="none"), "remote buffer 'none', which does not exist")
    refuse(lambda d: _remote(d).update(to_remote=1), "in direction 1")
    refuse(lambda d: _remote(d).update(to_remote=True), "reads row, but nothing was written")
    refuse(lambda d: _remote(d).update(rows="none"), "'none', which is not a variable")
    refuse(lambda d: _remote(d).update(rows="x"), "numbers rows by float32")
    refuse(lambda d: _remote(d).update(variable="number"), "copies rows of remote buffer sums")
    refuse(lambda d: d["remote_buffers"][0].update(shape=[9]), "copies rows of remote buffer sums")
    refuse(lambda d: d["remote_buffers"][0].update(repeats=0), "has 0 rows")
    refuse(lambda d: d.update(remote_buffers=[]), "which does not exist")
    at = next(k for k, step in enumerate(executable.steps) if step.name == "remote.sums")
    refuse(
        lambda d: named(d["buffers"], f"remote.sums.{at}.slice").update(bytes=0), "B of hostMessage at step"
    )
    other = rebuilt(changed(executable, lambda d: _remote(d).update(rows="")))
    found = []
    for each in (executable, other):
        for engine in ENGINES:
            machine = make_engine(each, engine)
            machine.copy_to_remote_buffer("sums", START)
            machine.run(START[1])
            found.append(machine.copy_from_remote_buffer("sums").tobytes())
    assert len(set(found[:3])) == len(set(found[3:])) == 1 and found[0] != found[3]
