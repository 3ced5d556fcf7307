"""The certifier: what it proves, what it refuses, and compiler errors that only it can see."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from tests.unit.tiles.executable_programs import PROGRAMS, WindowSum, compiled, rows, split
from tiles.compiler import Executable, certify, check, compile_graph, control, step_costs
from tiles.compiler.steps import CopyStep, ExecuteStep, Operand
from tiles.errors import InvalidExecutable
from tiles.graph import (
    AxisSplit,
    Call,
    Copy,
    Execute,
    Graph,
    Layout,
    Plan,
    Repeat,
    Sequence,
    Switch,
    Tensor,
    Vertices,
    identity_map,
    whole,
)
from tiles.poplibs import popops
from tiles.poplibs.forms import map_form, transpose_map
from tiles.poplibs.popops.map import Map
from tiles.target import Target

# ---- what is proved


@pytest.mark.parametrize("program", PROGRAMS)
def test_compiled_programs_are_certified(program: str, small_target: Target) -> None:
    executable = compiled(program, small_target)
    certificate = certify(executable)
    assert certificate.fits
    copies = [step for step in executable.steps if isinstance(step, CopyStep)]
    assert certificate.copies == sum(len(step.copies) for step in copies)
    moved = len(copies) + certificate.stream_copies
    assert certificate.executes + moved == len(executable.steps)
    assert certificate.variables == len(executable.variables)
    received = sum(o.buffer != "" for _, group in executable.groups() for o in group.operands)
    assert certificate.received == received
    assert certificate.by_axis == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_proofs_by_axis_agree_with_proofs_by_element(program: str, small_target: Target) -> None:
    executable = compiled(program, small_target)
    by_element, by_axis = certify(executable), certify(executable, limit=0)
    assert by_axis.by_axis and not by_element.by_axis
    same = ("in_place", "received", "results", "copies", "views", "moved_bytes", "reads", "writes")
    assert [getattr(by_axis, f) for f in same] == [getattr(by_element, f) for f in same]


@pytest.mark.parametrize("program", ["loops", "update", "padded", "arithmetic", "sums", "joins", "control"])
def test_bytes_moved_are_those_of_the_cost_model(program: str, small_target: Target) -> None:
    """Both count 4-byte elements here, by code that shares nothing."""
    executable = compiled(program, small_target)
    moved = sum(cost.exchange_bytes for cost in step_costs(executable))
    assert certify(executable).moved_bytes == moved


def test_a_certificate_reads_well(small_target: Target) -> None:
    text = str(certify(compiled("sums", small_target)))
    assert text.splitlines()[0] == "certificate of sums for gc200* (16 tiles)"
    assert "11 buffers" in text and "inside memory, code where it can run" in text
    assert "2 results of 2 compute sets and 0 copies are covered exactly once" in text
    assert "72 B of exchange code are the least that any exchange program needs, and have room" in text
    assert "not proved the size of the exchange code beyond that lower bound, which is estimated" in text


def test_a_program_that_does_not_fit_is_certified_but_for_that(gc200: Target) -> None:
    target = gc200.replace(num_tiles=4, bytes_per_tile=16384)
    graph = Graph(target)
    x = graph.add_input((4, 4096), "float32", "x")
    graph.outputs = [popops.neg(graph, x, plan=Plan((split(4, 1), whole(4096)))).name]
    certificate = certify(compile_graph(graph, check_memory=False))
    assert not certificate.fits
    assert "NOT inside memory" in str(certificate) and "that the program fits" in str(certificate)


def test_a_check_is_remembered(small_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = compiled("sums", small_target)
    check(executable)
    monkeypatch.setitem(executable.variables, "x", None)  # would fail, were it looked at again
    check(executable)


# ---- what is refused


def changed(executable: Executable, **changes: Any) -> Executable:
    return dataclasses.replace(executable, **changes)


def with_group(executable: Executable, number: int, **changes: Any) -> Executable:
    """Change the only vertex group of a step."""
    step = executable.steps[number]
    assert isinstance(step, ExecuteStep)
    steps = list(executable.steps)
    steps[number] = ExecuteStep(step.name, (dataclasses.replace(step.groups[0], **changes),))
    return changed(executable, steps=tuple(steps))


def with_variable(executable: Executable, name: str, **changes: Any) -> Executable:
    variable = dataclasses.replace(executable.variables[name], **changes)
    return changed(executable, variables=executable.variables | {name: variable})


def with_buffer(executable: Executable, name: str, **changes: Any) -> Executable:
    buffer = dataclasses.replace(executable.buffers[name], **changes)
    return changed(executable, buffers=executable.buffers | {name: buffer})


def assert_refused(executable: Executable, words: str) -> None:
    """Both ways of proof must refuse."""
    for limit in (1 << 20, 0):
        with pytest.raises(InvalidExecutable, match=words):
            certify(executable, limit)


def test_an_operand_in_place_must_hold_what_its_vertex_reads(small_target: Target) -> None:
    executable = compiled("arithmetic", small_target)
    (step,) = executable.steps
    assert isinstance(step, ExecuteStep)
    operands = list(step.groups[0].operands)
    operands[0] = Operand("y", "")
    assert_refused(with_group(executable, 0, operands=tuple(operands)), "reads operand 0, y .* in place, but")


def test_an_operand_in_place_must_be_on_its_vertex_tile(small_target: Target) -> None:
    executable = compiled("update", small_target)
    moved = with_variable(executable, "g", layout=rows((16, 4), 4, 4))
    moved = with_buffer(moved, "g", tiles=((4, 8),), address=executable.buffers["g"].address + 4096)
    assert_refused(moved, "step 0 .scale. reads operand 0, g .* in place, but tile 0 holds no part")


def test_replaced_parts_are_found_element_by_element(small_target: Target) -> None:
    executable = compiled("update", small_target)
    backwards = Layout((AxisSplit(16, 4, ((4, -1),)), whole(4)), 3)
    assert_refused(with_variable(executable, "g", layout=backwards), "in place, but")


def test_results_must_lie_where_they_are_computed(small_target: Target) -> None:
    executable = compiled("sums", small_target)
    layout = executable.variables["sum.partials"].layout
    turned = Layout((AxisSplit(3, 1, ((3, -1),)), *layout.axes[1:]), layout.base + 2)
    assert_refused(
        with_variable(executable, "sum.partials", layout=turned), "computes sum.partials elsewhere"
    )


def test_a_received_operand_needs_its_own_buffer(small_target: Target) -> None:
    executable = compiled("arithmetic", small_target)
    (step,) = executable.steps
    assert isinstance(step, ExecuteStep)
    operands = list(step.groups[0].operands)
    operands[3] = Operand("z", operands[1].buffer)
    assert_refused(
        with_group(executable, 0, operands=tuple(operands)), "where y of step 0 .step. is received too"
    )


def test_a_receive_buffer_nobody_uses_is_refused(small_target: Target) -> None:
    executable = compiled("arithmetic", small_target)
    spare = dataclasses.replace(executable.buffers["step.in1"], name="spare", address=0x90000)
    assert_refused(
        changed(executable, buffers=executable.buffers | {"spare": spare}),
        "nothing is received in buffer spare",
    )


def test_two_groups_may_not_write_one_buffer(small_target: Target) -> None:
    executable = compiled("update", small_target)
    first, second = executable.steps
    assert isinstance(first, ExecuteStep) and isinstance(second, ExecuteStep)
    both = ExecuteStep("both", (second.groups[0], dataclasses.replace(first.groups[0], results=("scale2",))))
    twin = dataclasses.replace(executable.variables["scale"], name="scale2", storage="p")
    one = changed(executable, variables=executable.variables | {"scale2": twin}, steps=(first, both))
    assert_refused(one, "writes scale2 into buffer p, where descend is written too")


def in_one_step(executable: Executable) -> Executable:
    """Return a program of two steps whose groups are one step's."""
    first, second = executable.steps
    assert isinstance(first, ExecuteStep) and isinstance(second, ExecuteStep)
    buffers = {
        name: dataclasses.replace(b, start=min(b.start, 0), end=1 if b.end == 2 else min(b.end, 0))
        for name, b in executable.buffers.items()
    }
    control_code = dataclasses.replace(
        buffers["control code"], size_bytes=executable.target.control_code_bytes_per_step
    )
    return changed(
        executable,
        steps=(ExecuteStep(first.name, (*first.groups, *second.groups)),),
        program=control.Sequence((0,)),
        buffers=buffers | {"control code": control_code},
    )


def test_groups_of_one_step_run_in_order(small_target: Target) -> None:
    """One may read in place what an earlier one wrote, and write over it; not a later one's, nor by exchange."""
    executable = in_one_step(compiled("update", small_target))
    (step,) = executable.steps
    assert isinstance(step, ExecuteStep)
    certify(executable)
    scale, descend = step.groups
    assert [o.buffer for o in descend.operands] == ["", ""]
    assert step.reads == ("g", "p") and step.flows == ((("g",), ("scale",)), (("p", "g"), ("descend",)))
    assert step.stages == ((scale,), (descend,))
    backwards = changed(executable, steps=(ExecuteStep("both", (descend, scale)),))
    assert_refused(backwards, "reads scale, but nothing was written to its buffer scale before")
    buffer = dataclasses.replace(executable.buffers["scale"], name="descend.in1", category="message")
    received = dataclasses.replace(descend, operands=(descend.operands[0], Operand("scale", "descend.in1")))
    early = changed(
        executable,
        steps=(ExecuteStep("both", (scale, received)),),
        buffers=executable.buffers | {"descend.in1": buffer},
    )
    assert_refused(early, "reads scale, over which another group of the same compute set writes scale")
    older = dataclasses.replace(executable.variables["scale"], name="older")
    other = dataclasses.replace(descend, operands=(descend.operands[0], Operand("older", "")))
    stale = changed(
        executable,
        steps=(ExecuteStep("both", (scale, other)),),
        variables=executable.variables | {"older": older},
    )
    assert_refused(stale, "reads older, over which another group of the same compute set writes scale")


def test_a_codelet_that_needs_its_operand_may_not_write_over_it(
    small_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = compiled("update", small_target)
    certify(executable)
    monkeypatch.setattr(Map, "may_overwrite", lambda self, k: False)
    assert_refused(executable, "writes descend over p while it reads it in place")


def test_a_codelet_that_refuses_its_operands_is_named(small_target: Target) -> None:
    executable = compiled("padded", small_target)
    assert_refused(with_group(executable, 3, codelet=WindowSum(9)), "test.WindowSum refuses .*float32|gives")


EXCHANGING = ("chain", "loops", "padded", "arithmetic", "sums", "joins", "streaming")


@pytest.mark.parametrize("program", EXCHANGING)
def test_exchange_code_without_room_is_refused(program: str, small_target: Target) -> None:
    """Shrunk to two instructions, where a tile that receives needs a select and a pointer, and one that sends a send."""
    executable = compiled(program, small_target)
    code = [b for b in executable.buffers.values() if b.category == "internalExchangeCode"]
    fullest = max(code, key=lambda b: b.size_bytes)
    words = r"B of internalExchangeCode, any exchange program for its steps needs"
    without = {k: b for k, b in executable.buffers.items() if b not in code}
    assert_refused(changed(executable, buffers=without), rf"has 0 {words}")
    assert_refused(
        changed(executable, buffers={k: b for k, b in executable.buffers.items() if b != fullest}),
        rf"has 0 {words}",
    )
    small = {b.name: dataclasses.replace(b, size_bytes=4) for b in code}
    assert_refused(changed(executable, buffers=executable.buffers | small), rf"has 4 {words}")
    if fullest.size_bytes >= 24:
        assert_refused(with_buffer(executable, fullest.name, size_bytes=8), rf"has 8 {words}")


def test_the_least_exchange_code_is_counted_by_hand(small_target: Target) -> None:
    """Tiles 0 to 3 hold a row each, tile 3 takes all: three selects and a pointer there, a send on each of the others."""
    graph = Graph(small_target)
    x, there = rows4(graph, "x", "input"), graph.add_tensor((4, 4), "float32", "there", rows((4, 4), 4, 3))
    graph.program.add(Copy(there.name, (x.name,)))
    graph.outputs = [there.name]
    executable = compile_graph(graph)
    for limit in (1 << 20, 0):
        assert certify(executable, limit).exchange_code_bytes == (3 + 1 + 3) * 4
    sizes = {
        tile: b.size_bytes
        for b in executable.buffers.values()
        if "exchange" in b.name
        for tile in b.tile_numbers
    }
    assert sizes[3] >= 16 and sizes[0] >= 4


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
def test_exchange_code_has_room_for_the_least_whatever_the_layouts(dtype: str, small_target: Target) -> None:
    """The compiler's estimate is never below the certifier's count, also where messages are shorter than a word."""
    random = np.random.default_rng(11)

    def layout(shape: tuple[int, ...]) -> Layout:
        axes, stride = [], 1
        for size in shape:
            grain = -(-size // int(random.integers(1, min(size, 16 // stride) + 1)))
            axes.append(split(size, grain, stride) if grain < size else whole(size))
            stride *= -(-size // grain)
        return Layout(tuple(axes), int(random.integers(0, 17 - stride)))

    for number in range(40):
        shape = tuple(random.integers(1, 20, random.integers(1, 4)).tolist())
        copied = (int(np.prod(shape)),) if number % 3 == 0 else shape
        graph = Graph(small_target)
        x = graph.set_layout(graph.add_input(shape, dtype, "x").name, layout(shape))
        y = graph.add_tensor(copied, dtype, "y", layout(copied))
        graph.program.add(Copy(y.name, (x.name,)))
        graph.outputs = [y.name]
        executable = compile_graph(graph)
        assert certify(executable).exchange_code_bytes == certify(executable, 0).exchange_code_bytes


def test_a_read_outside_needs_a_fill_value(small_target: Target) -> None:
    executable = compiled("padded", small_target)
    group = next(group for _, group in executable.groups() if group.name == "pad")
    bare = dataclasses.replace(group.form, operands=(dataclasses.replace(group.form.operands[0], fill=None),))
    assert_refused(
        with_group(executable, 0, form=bare), "outside its 10 elements along axis 0, with no fill value"
    )


# ---- errors of the compiler that lifetimes by step number alone do not show


def rows4(graph: Graph, name: str, kind: str = "tensor") -> Tensor:
    layout = rows((4, 4), 1)
    if kind == "input":
        return graph.set_layout(graph.add_input((4, 4), "float32", name).name, layout)
    return graph.add_tensor((4, 4), "float32", name, layout)


def negate(graph: Graph, x: Tensor, result: Tensor, program: Sequence, transposed: bool = False) -> None:
    """Write ``-x`` into a tensor, vertices where both lie."""
    codelet = Map((("negate", (0,), ()),), (1,), ("float32",), ("float32",))
    form = map_form(result.shape, [transpose_map((1, 0)) if transposed else identity_map(2)])
    assert result.layout is not None
    plan = Plan(result.layout.axes, result.layout.base)
    vertices = Vertices(graph.unique("negate", "step"), codelet, form, plan, (x.name,), (result.name,))
    program.add(Execute(graph.add_compute_set("negate", vertices).name))


def test_each_of_many_equal_steps_is_refused(small_target: Target) -> None:
    """Equal steps are proved once; what is wrong in one of them alone is found wherever it is."""
    graph = Graph(small_target)
    tensors = [rows4(graph, "x0", "input"), *(rows4(graph, f"x{i}") for i in range(1, 6))]
    for before, after in itertools.pairwise(tensors):
        if after is tensors[3]:
            graph.program.add(Copy(after.name, (before.name,)))
        else:
            negate(graph, before, after, graph.program)
    graph.outputs = [t.name for t in tensors[1:]]
    executable = compile_graph(graph)
    alike, results = certify(executable), len(tensors) - 2
    assert (alike.results, alike.in_place, alike.copies) == (results, results, 1)
    backwards = Layout((AxisSplit(4, 1, ((4, -1),)), whole(4)), 3)
    for tensor in tensors[1:]:
        words = f"computes {tensor.name} elsewhere" if tensor is not tensors[3] else "in place, but"
        assert_refused(with_variable(executable, tensor.name, layout=backwards), words)
    for number, step in enumerate(executable.steps):
        if isinstance(step, ExecuteStep):
            plan = dataclasses.replace(step.groups[0].plan, base=1)
            assert_refused(with_group(executable, number, plan=plan), rf"step {number} .* elsewhere")


def storages(executable: Executable, *names: str) -> list[str]:
    return [executable.variables[name].storage for name in names]


def test_a_value_read_again_in_a_loop_is_not_overwritten(small_target: Target) -> None:
    graph = Graph(small_target)
    x, a, b = rows4(graph, "x", "input"), rows4(graph, "a"), rows4(graph, "b")
    negate(graph, x, a, graph.program)
    body = Sequence()
    negate(graph, a, b, body)  # the last read by number, not by time
    graph.program.add(Repeat(2, body))
    graph.outputs = [b.name]
    executable = compile_graph(graph)
    assert len(set(storages(executable, "a", "b"))) == 2
    certify(executable)
    overwritten = with_variable(executable, "b", storage="a")
    buffers = {k: v for k, v in executable.buffers.items() if k != "b"}
    overwritten = changed(overwritten, buffers=buffers | {"a": dataclasses.replace(buffers["a"], end=2)})
    assert_refused(overwritten, "reads a, but its buffer a holds")


def test_a_result_with_an_earlier_value_keeps_its_own_memory(small_target: Target) -> None:
    graph = Graph(small_target)
    x, a, b, c = rows4(graph, "x", "input"), *(rows4(graph, name) for name in "abc")
    negate(graph, x, b, graph.program)
    negate(graph, x, a, graph.program)
    negate(graph, b, c, graph.program)  # b still holds its first value here, a is alive
    negate(graph, a, b, graph.program)
    graph.outputs = [b.name, c.name]
    executable = compile_graph(graph)
    assert len(set(storages(executable, "a", "b"))) == 2
    certify(executable)


def test_a_value_kept_across_a_second_call_shares_no_memory_with_the_function(small_target: Target) -> None:
    graph = Graph(small_target)
    x, given, answer = (
        rows4(graph, "x", "input"),
        rows4(graph, "given"),
        graph.add_tensor((4, 4), "float32", "answer", rows((4, 4), 2)),
    )
    function = Sequence()
    negate(graph, given, answer, function)  # elsewhere: the function has a receive buffer
    graph.functions["f"] = function
    results = []
    for _ in range(2):
        graph.program.add(Copy(given.name, (x.name,)))
        graph.program.add(Call("f"))
        results.append(rows4(graph, "result"))
        graph.program.add(Copy(results[-1].name, (answer.name,)))
    total = rows4(graph, "total")
    negate(graph, results[0], total, graph.program)
    graph.outputs = [total.name, results[1].name]
    executable = compile_graph(graph)
    certify(executable)
    kept, message = executable.buffers[results[0].name], executable.buffers["negate.in0"]
    assert kept.start <= message.start <= kept.end
    early = with_buffer(executable, kept.name, start=2)
    assert_refused(
        early, "reads result, but its buffer result, live in steps 2 to .*, was given up at step 1"
    )


def test_a_transposition_does_not_overwrite_what_it_has_yet_to_read(small_target: Target) -> None:
    graph = Graph(small_target)
    one = Layout((whole(4), whole(4)))
    x = graph.set_layout(graph.add_input((4, 4), "float32", "x").name, one)
    a, b = (graph.add_tensor((4, 4), "float32", name, one) for name in "ab")
    negate(graph, x, a, graph.program)
    negate(graph, a, b, graph.program, transposed=True)
    graph.outputs = [b.name]
    executable = compile_graph(graph)
    assert len(set(storages(executable, "a", "b"))) == 2
    certify(executable)
    buffers = {k: v for k, v in executable.buffers.items() if k != "b"}
    overwritten = changed(
        with_variable(executable, "b", storage="a"),
        buffers=buffers | {"a": dataclasses.replace(buffers["a"], end=2)},
    )
    assert_refused(overwritten, "writes b over a while it reads it in place")


def test_a_value_written_in_one_branch_only_is_unknown_after(small_target: Target) -> None:
    graph = Graph(small_target)
    x, a = rows4(graph, "x", "input"), rows4(graph, "a")
    index = graph.set_layout(graph.add_input((), "int32", "index").name, Layout(()))
    branch = Sequence()
    negate(graph, x, a, branch)
    graph.program.add(Switch(index.name, (branch, Sequence())))
    graph.outputs = [a.name]
    assert_refused(
        compile_graph(graph),
        "the caller reads a, but its buffer a holds different variables on different paths",
    )


def test_an_index_read_after_a_second_call_is_still_there(small_target: Target) -> None:
    graph = Graph(small_target)
    x, given, answer = rows4(graph, "x", "input"), rows4(graph, "given"), rows4(graph, "answer")
    function = Sequence()
    negate(graph, given, answer, function)
    graph.functions["f"] = function
    start = graph.set_layout(graph.add_input((), "int32", "start").name, Layout(()))
    index = graph.add_tensor((), "int32", "index", Layout(()))
    graph.program.add(Copy(given.name, (x.name,)))
    graph.program.add(Call("f"))
    graph.program.add(Copy(index.name, (start.name,)))
    graph.program.add(Call("f"))
    graph.program.add(Switch(index.name, (Sequence(), Sequence())))
    graph.outputs = [answer.name]
    executable = compile_graph(graph)
    certify(executable)
    assert executable.buffers["index"].start <= 1 < executable.buffers["index"].end


def test_steps_that_move_nothing_and_tensors_without_elements_are_certified(small_target: Target) -> None:
    graph = Graph(small_target)
    x = graph.add_input((0, 3), "float32", "x")
    y = graph.add_input((3,), "float32", "y")
    graph.outputs = [popops.add(graph, x, y).name, popops.reduce(graph, x, (0,)).name]
    executable = compile_graph(graph)
    certify(executable)
    assert np.prod(executable.variables[graph.outputs[0]].shape) == 0


def test_a_copy_over_its_own_source_must_leave_every_element_in_place(small_target: Target) -> None:
    graph = Graph(small_target)
    x, a = rows4(graph, "x", "input"), rows4(graph, "a")
    graph.program.add(Copy(a.name, (x.name,)))
    graph.program.add(Copy(a.name, (a.name,)))
    graph.outputs = [a.name]
    executable = compile_graph(graph)
    certify(executable)
    flat = dataclasses.replace(executable.variables["a"], name="flat", view_of="a", shape=(2, 8))
    layout = Layout((split(2, 1, 2), split(8, 4)))
    flat = dataclasses.replace(flat, layout=layout)
    viewed = changed(executable, variables=executable.variables | {"flat": flat})
    first, second = executable.steps
    assert isinstance(second, CopyStep)
    (copy,) = second.copies
    flat_copy = dataclasses.replace(second, copies=(dataclasses.replace(copy, sources=("flat",)),))
    certify(changed(viewed, steps=(first, flat_copy)))
    turned = dataclasses.replace(executable.variables["a"], name="turned", layout=rows((4, 4), 2))
    moved = changed(executable, variables=executable.variables | {"turned": turned})
    moved = with_buffer(moved, "a", size_bytes=32)
    turned_copy = dataclasses.replace(second, copies=(dataclasses.replace(copy, destination="turned"),))
    again = changed(moved, steps=(first, turned_copy), outputs=("turned",))
    assert_refused(again, "writes turned over a while it reads it")
