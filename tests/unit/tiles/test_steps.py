"""Steps beside copies and compute sets, on every engine: loops until, errors, prints, undefined values, syncs."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from tests.unit.tiles.executable_programs import changed, named, rebuilt, rows, split
from tests.unit.tiles.test_report_profile import check as follows_schema
from tiles.compiler import Executable, certify, compile_graph, load_executable, step_costs
from tiles.engine import FastEngine, make_engine
from tiles.errors import InvalidExecutable, InvalidGraph, ProgramAborted, Unsupported
from tiles.graph import (
    Copy,
    ErrorProgram,
    Graph,
    If,
    Layout,
    Plan,
    PrintTensor,
    Repeat,
    RepeatWhileFalse,
    Sequence,
    Site,
    Sync,
    Tensor,
    WriteUndef,
)
from tiles.numerics.ring import to_ring
from tiles.poplibs import popops
from tiles.report import cost_analysis, profile, profile_schema
from tiles.target import Target

ENGINES = ("fast", "literal", "vertex")
POINT = Plan(())
X = np.arange(6, dtype=np.float32)


def words(array: Any, arithmetic: str) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(to_ring(np.asarray(array)) if arithmetic == "ring" else array)


def doubling(target: Target, stop: Callable[[Graph, Tensor], Any] | None = None) -> Graph:
    """Double x until its first element is above 10, printing x before and the trips after every doubling."""
    graph = Graph(target, "doubling")
    x = graph.add_input((6,), "float32", "x", "doubling.py:1")
    graph.set_layout(x.name, rows((6,), 2))
    value = graph.add_tensor((6,), "float32", "value", rows((6,), 2))
    count = graph.add_tensor((), "int32", "count", Layout(()))
    flag = graph.add_tensor((), "bool", "flag", Layout(()))
    graph.program.add(Copy(value.name, (x.name,)))
    zero = popops.fill(graph, (), "int32", 0, plan=POINT)
    graph.program.add(Copy(count.name, (zero.name,)))
    graph.program.add(PrintTensor(value.name, "start", "doubling.py:5"))
    condition, body = Sequence(), Sequence()
    first = popops.slice(Site(graph, sequence=condition), value, (0,), (1,), plan=Plan((split(1, 1),)))
    above = popops.gt(Site(graph, sequence=condition), first, 10.0, plan=Plan((split(1, 1),)))
    condition.add(Copy(flag.name, (above.name,)))
    twice = popops.mul(Site(graph, sequence=body), value, 2.0, plan=Plan((split(6, 2),)))
    body.add(Copy(value.name, (twice.name,)))
    more = popops.add(Site(graph, sequence=body), count, 1, plan=POINT)
    body.add(Copy(count.name, (more.name,)))
    body.add(PrintTensor(count.name))
    if stop is not None:
        body.add(stop(graph, count))
    graph.program.add(RepeatWhileFalse(condition, flag.name, body))
    graph.program.add(PrintTensor(value.name, "end"))
    graph.outputs = [value.name, count.name]
    return graph


@pytest.fixture(scope="module")
def executable() -> Executable:
    target = Target.named("gc200").replace(num_tiles=16)
    return load_executable(compile_graph(doubling(target)).to_bytes())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_a_loop_until_and_what_it_prints(executable: Executable, engine: str, arithmetic: str) -> None:
    machine, file = make_engine(executable, engine, arithmetic), io.StringIO()
    machine.print_to = file
    (value, count), trace = machine.run(X + 1)
    assert count == 4
    assert [p.title for p in trace.prints] == ["start", "count", "count", "count", "count", "end"]
    np.testing.assert_array_equal(trace.prints[0].value, words(X + 1, arithmetic))
    assert [int(p.value) for p in trace.prints[1:5]] == [1, 2, 3, 4]
    np.testing.assert_array_equal(trace.prints[5].value, value)
    if arithmetic == "float":
        np.testing.assert_array_equal(value, 16 * (X + 1))
        assert file.getvalue().splitlines()[:2] == ["start: [1., 2., 3., 4., 5., 6.]", "count: 1"]
    (value, count), trace = make_engine(executable, engine, arithmetic).run(X + 11)
    assert count == 0 and len(trace.prints) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_more_is_printed_than_there_was_room_for(engine: str, executable: Executable) -> None:
    _, trace = make_engine(executable, engine).run(np.full(6, 1e-30, np.float32))
    assert [int(p.value) for p in trace.prints[1:-1]] == list(range(1, 104))  # 2 ** 103 * 1e-30 > 10


def test_prints_cost_what_a_stream_costs_and_are_reported(executable: Executable) -> None:
    certify(executable)
    assert "print count as count" in executable.text() and "from doubling.py:5" in executable.text()
    costs = {cost.name: cost for cost in step_costs(executable)}
    sync = executable.target.global_sync_cycles
    assert costs["print.start"].host_bytes == 24 and costs["print.start"].sync_cycles == sync
    assert costs["print.count"].host_bytes == 4
    assert cost_analysis(executable)["unresolved"][0]["kind"] == "until"
    _, trace = make_engine(executable).run(X + 1)
    data = profile(executable, trace).data
    follows_schema(data, profile_schema(), profile_schema())
    (loop,) = data["execution"]["control"]
    assert (loop["kind"], loop["trips"]) == ("until", 4)
    assert data["execution"]["hostExchangeBytes"] == 24 + 4 * 4 + 24
    assert "until on flag" in profile(executable).text()


def test_a_program_that_prints_is_traceable(executable: Executable) -> None:
    (value, _) = jax.jit(FastEngine(executable).trace)(X + 1)
    np.testing.assert_array_equal(value, 16 * (X + 1))


# ---- errors


def stopping(target: Target) -> Graph:
    """The same, but an error at the third trip."""

    def stop(graph: Graph, count: Tensor) -> Sequence:
        body, error = Sequence(), Sequence()
        error.add(ErrorProgram(count.name, "three times is enough", "doubling.py:9"))
        third = popops.eq(Site(graph, sequence=body), count, 3, plan=POINT)
        body.add(If(third.name, error, Sequence()))
        return body

    return doubling(target, stop)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_an_error_program_always_stops(engine: str, arithmetic: str, small_target: Target) -> None:
    executable = load_executable(compile_graph(stopping(small_target)).to_bytes())
    certify(executable)
    machine, file = make_engine(executable, engine, arithmetic), io.StringIO()
    machine.print_to = file
    with pytest.raises(ProgramAborted, match="three times is enough\n  count: 3\n") as caught:
        machine.run(X + 1)
    assert caught.value.location == "doubling.py:9" and caught.value.value == 3
    assert [p.title for p in caught.value.prints] == ["start", "count", "count", "count"]
    assert file.getvalue().count("count: ") == 3
    (_, count), _ = machine.run(X + 3)  # two trips
    assert count == 2
    if engine == "fast":
        with pytest.raises(Unsupported, match="may stop itself"):
            jax.jit(FastEngine(executable).trace)(X)


def test_a_program_of_nothing_but_an_error(small_target: Target) -> None:
    graph = Graph(small_target, "error")
    x = graph.add_input((2, 2), "float32", "x")
    graph.program.add(ErrorProgram(x.name))
    for engine in ENGINES:
        with pytest.raises(
            ProgramAborted, match=r"the program stopped\n  x: \[\[1\., 1\.\],\n \[1\., 1\.\]\]"
        ):
            make_engine(compile_graph(graph), engine).run(np.ones((2, 2), np.float32))


# ---- undefined values and syncs


def undefining(target: Target, again: bool = True, reads: bool = False) -> Graph:
    """Compute y from x and z from y, leave y undefined, maybe write or read it again."""
    graph = Graph(target, "undefining")
    x = graph.add_input((32,), "float32", "x")
    graph.set_layout(x.name, rows((32,), 8))
    y = graph.add_tensor((32,), "float32", "y", rows((32,), 8), location="undef.py:3")
    z = graph.add_tensor((32,), "float32", "z", rows((32,), 8))
    plan = Plan((split(32, 8),))
    twice = popops.mul(graph, x, 2.0, plan=plan)
    graph.program.add(Copy(y.name, (twice.name,)))
    graph.program.add(Sync())
    added = popops.add(graph, y, x, plan=plan)
    graph.program.add(Copy(z.name, (added.name,)))
    graph.program.add(WriteUndef(y.name, "undef.py:6"))
    graph.program.add(Sync(True))
    if again:
        graph.program.add(Copy(y.name, (z.name,)))
    if again or reads:
        last = popops.add(graph, y, z, plan=plan)
        graph.program.add(Copy(z.name, (last.name,)))
    graph.outputs = [z.name]
    return graph


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("again", [False, True])
def test_an_undefined_value_may_be_written_again(engine: str, again: bool, small_target: Target) -> None:
    executable = load_executable(compile_graph(undefining(small_target, again)).to_bytes())
    certify(executable)
    x = np.arange(32, dtype=np.float32)
    (z,), _ = make_engine(executable, engine).run(x)
    np.testing.assert_array_equal(z, (6 if again else 3) * x)
    costs = {cost.name: cost for cost in step_costs(executable)}
    assert costs["sync.internal"].cycles == small_target.internal_sync_cycles
    assert costs["sync.external"].cycles == small_target.global_sync_cycles
    assert costs["undef.y"].cycles == 0
    analysis = cost_analysis(executable)
    assert analysis["cycles"] == sum(cost.cycles or 0 for cost in costs.values())


def test_a_read_of_what_is_undefined_is_refused(small_target: Target) -> None:
    with pytest.raises(
        InvalidGraph, match=r"reads y, but its value is undefined since step 5 .undef\.y"
    ) as caught:
        compile_graph(undefining(small_target, again=False, reads=True))
    assert caught.value.location == "undef.py:3"

    def undefine_earlier(data: dict[str, Any]) -> None:
        program = data["program"]
        numbers = [k for k, step in enumerate(data["steps"]) if "undef" in step]
        program.remove(numbers[0])
        program.insert(3, numbers[0])

    executable = compile_graph(undefining(small_target, again=False))
    with pytest.raises(InvalidExecutable, match="reads y, but its value is undefined since"):
        certify(rebuilt(changed(executable, undefine_earlier)))


def test_the_literal_engine_poisons_what_is_undefined(small_target: Target) -> None:
    """A file that reads what was undefined, which no proof lets pass, reads poison and not the old value."""
    executable = compile_graph(undefining(small_target, again=False))
    data = executable.to_data()
    number = next(k for k, step in enumerate(data["steps"]) if "undef" in step)
    reader = next(
        k
        for k, s in enumerate(data["steps"])
        if s.get("execute") and s["vertices"][0]["operands"][0][0] == "y"
    )
    data["program"].remove(number)
    data["program"].insert(data["program"].index(reader), number)
    named(data["buffers"], "y")["live"] = [0, len(data["steps"])]
    other = Executable.from_data(data)
    (z,), _ = make_engine(other, "literal").run(np.arange(32, dtype=np.float32))
    assert np.isnan(z).all()  # the poison, as a float


def gapped(target: Target, undefines: bool) -> Graph:
    """Use y, then nothing but w for a while, then y again: y's memory is free meanwhile if it says so."""
    graph = Graph(target, "gapped")
    x = graph.add_input((64,), "float32", "x")
    graph.set_layout(x.name, rows((64,), 8))
    y, w = (graph.add_tensor((64,), "float32", name, rows((64,), 8)) for name in "yw")
    plan, program = Plan((split(64, 8),)), graph.program
    program.add(Copy(y.name, (x.name,)))
    total = popops.mul(graph, y, x, plan=Plan((split(64, 4),)))
    if undefines:
        program.add(WriteUndef(y.name))
    program.add(Sync())  # steps that are alike join across anything else
    program.add(Copy(w.name, (x.name,)))
    more = popops.add(graph, w, total, plan=plan)
    body = Sequence()
    body.add(Copy(y.name, (more.name,)))
    body.add(PrintTensor(y.name))
    program.add(Repeat(2, body))
    graph.outputs = [popops.add(Site(graph, "end"), y, x, plan=plan).name, y.name]
    return graph


def test_the_space_of_an_undefined_value_is_free(small_target: Target) -> None:
    executables = [compile_graph(gapped(small_target, undefines)) for undefines in (False, True)]
    assert executables[1].to_bytes() == compile_graph(gapped(small_target, True)).to_bytes()
    x = np.arange(64, dtype=np.float32)
    spans = []
    for executable in executables:
        certify(executable)
        for engine in ENGINES:
            (end, y), trace = make_engine(executable, engine).run(x)
            np.testing.assert_array_equal(y, x + x * x)
            np.testing.assert_array_equal(end, 2 * x + x * x)
            assert [p.title for p in trace.prints] == ["y", "y"]
        gap = next(k for k, step in enumerate(executable.steps) if step.name == "copy.w")
        lived = {v.storage for v in executable.variables.values() if v.name in ("y", "y.again1")}
        spans.append([b for b in (executable.buffers[name] for name in lived) if b.start <= gap <= b.end])
    assert (len(spans[0]), len(spans[1])) == (1, 0)
    graph = gapped(small_target, True)
    assert compile_graph(graph).to_bytes() == compile_graph(graph).to_bytes()  # compiling changes no graph


@pytest.mark.parametrize(
    ("tensor", "words"),
    [("none", "which the graph does not have"), ("x", "x, input that is kept"), ("v", "a view of y")],
)
def test_what_cannot_be_undefined_is_named(tensor: str, words: str, small_target: Target) -> None:
    graph = undefining(small_target)
    graph.add_reshape(graph.tensors["y"], (32,), graph.program, "v")
    graph.program.add(WriteUndef(tensor, "here.py:1"))
    with pytest.raises(InvalidGraph, match=words) as caught:
        compile_graph(graph)
    assert caught.value.location == "here.py:1"


# ---- files


def _step(data: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(step for step in data["steps"] if kind in step)


def _loop(data: dict[str, Any], kind: str) -> None:
    next(tree for tree in data["program"] if isinstance(tree, list) and tree[0] == "until")[0] = kind


REFUSED: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "print's variable": ("stopping", lambda d: _step(d, "print").update(variable="none"), "not a variable"),
    "print's title": (
        "stopping",
        lambda d: _step(d, "print").update(title=3),
        "where names or locations belong",
    ),
    "print before it is written": (
        "stopping",
        lambda d: _step(d, "print").update(variable="flag"),
        "reads flag, but nothing was written",
    ),
    "headers of a print": (
        "stopping",
        lambda d: next(b for b in d["buffers"] if b["name"].startswith("print.start")).update(bytes=0),
        "B of hostExchangePacketHeader",
    ),
    "error's variable": ("stopping", lambda d: _step(d, "error").update(variable="none"), "not a variable"),
    "error's message": ("stopping", lambda d: _step(d, "error").update(message=None), "where names or"),
    "undefined variable": (
        "undefining",
        lambda d: _step(d, "undef").update(variable="none"),
        "not a variable",
    ),
    "undefined input": ("undefining", lambda d: _step(d, "undef").update(variable="x"), "kept by the caller"),
    "undefined too soon": (
        "undefining",
        lambda d: _step(d, "undef").update(variable="z"),
        "reads z, but its value",
    ),
    "kind of a sync": ("undefining", lambda d: _step(d, "sync").update(external=1), "syncs with 1"),
    "predicate of a loop": (
        "stopping",
        lambda d: next(t for t in d["program"] if isinstance(t, list)).__setitem__(2, "count"),
        "predicate 'count'",
    ),
    "a field more": ("stopping", lambda d: _step(d, "print").update(more=1), "lacks or adds more"),
}
MADE = {"stopping": stopping, "undefining": undefining}


@pytest.mark.parametrize("case", REFUSED)
def test_a_changed_step_is_refused(case: str, small_target: Target) -> None:
    program, change, words = REFUSED[case]
    with pytest.raises(InvalidExecutable, match=words):
        certify(rebuilt(changed(compile_graph(MADE[program](small_target)), change)))


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "print's variable": lambda d: [s for s in d["steps"] if "print" in s][1].update(variable="value"),
    "print's title": lambda d: _step(d, "print").update(title="begin"),
    "error's variable": lambda d: _step(d, "error").update(variable="value"),
    "error's message": lambda d: _step(d, "error").update(message="enough"),
    "kind of a loop": lambda d: _loop(d, "while"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_step_changes_the_run_on_all_engines(case: str, small_target: Target) -> None:
    executable = compile_graph(stopping(small_target))
    other = rebuilt(changed(executable, CHANGES[case]))

    def run(each: Executable, engine: str) -> str:
        try:
            outputs, trace = make_engine(each, engine).run(X + 1)
        except ProgramAborted as error:
            return f"{error} {[*map(str, error.prints)]}"
        return f"{outputs} {[*map(str, trace.prints)]}"

    runs = [run(other, engine) for engine in ENGINES]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0] != run(executable, "fast")


def test_a_sync_of_another_kind_takes_another_time(small_target: Target) -> None:
    executable = compile_graph(undefining(small_target))
    other = rebuilt(changed(executable, lambda d: _step(d, "sync").update(external=True)))
    more = small_target.global_sync_cycles - small_target.internal_sync_cycles
    assert more and cost_analysis(other)["cycles"] == cost_analysis(executable)["cycles"] + more
