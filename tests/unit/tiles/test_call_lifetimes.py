"""How long lives what functions share with their callers: from its first use to its last, all calls between included."""

from __future__ import annotations

import numpy as np
import pytest

import tiles
from tiles.compiler import Executable, certify
from tiles.engine import make_engine
from tiles.graph import Call, Copy, Graph, Site, Tensor, linear_layout
from tiles.poplibs import popops
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=4)
X = np.arange(8, dtype=np.float32)


def variable(graph: Graph, name: str) -> Tensor:
    """Return a tensor that several steps write."""
    return graph.add_tensor((8,), "float32", name, linear_layout((8,), "float32", 4))


def compiled(graph: Graph) -> Executable:
    """Return the program, certified: no step reads what was given up, whichever way control takes."""
    executable = tiles.compile_graph(graph)
    certify(executable)
    return executable


def span(executable: Executable, tensor: Tensor) -> tuple[int, int]:
    """Return the first and last step that a tensor's buffer lives in."""
    buffer = executable.buffers[executable.variables[tensor.name].storage]
    return buffer.start, buffer.end


@pytest.fixture(params=["fast", "literal"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_parameter_and_a_result_live_around_the_calls(engine: str) -> None:
    graph = Graph(TARGET, "calls")
    x = graph.add_input((8,), "float32", "x")
    before = popops.mul(graph, popops.add(graph, x, 1.0), 2.0)
    given, made, function = variable(graph, "given"), variable(graph, "made"), tiles.Sequence()
    graph.functions["f"] = function
    function.add(Copy(made.name, (popops.mul(Site(graph, sequence=function), given, 3.0).name,)))
    results = []
    for source in (before, x):
        graph.program.add(Copy(given.name, (source.name,)))
        graph.program.add(Call("f"))
        results.append(popops.add(graph, made, 1.0))
    after = popops.mul(graph, popops.add(graph, *results), popops.add(graph, results[0], 5.0))
    graph.outputs = [after.name]
    executable = compiled(graph)
    first, last = span(executable, given)
    assert first > 0
    assert last < len(executable.steps) - 1
    assert span(executable, made)[0] > 0
    first, second = (2 * (X + 1)) * 3 + 1, X * 3 + 1
    (got,), _ = make_engine(executable, engine).run(X)
    assert np.array_equal(got, (first + second) * (first + 5))


def test_updates_between_calls_lie_where_the_donated_inputs_did(engine: str) -> None:
    """Each result lives across the calls that follow, as weights do that are updated when their layer's gradient is known."""
    graph = Graph(TARGET, "updates")
    weights = [graph.add_input((8,), "float32", f"w{n}") for n in range(3)]
    x = graph.add_input((8,), "float32", "x")
    graph.donated = (0, 1, 2)
    given, made, function = variable(graph, "given"), variable(graph, "made"), tiles.Sequence()
    graph.functions["f"] = function
    function.add(Copy(made.name, (popops.mul(Site(graph, sequence=function), given, 3.0).name,)))
    value, updated = x, []
    for weight in weights:
        graph.program.add(Copy(given.name, (value.name,)))
        graph.program.add(Call("f"))
        value = popops.add(graph, made, weight)
        updated.append(popops.sub(graph, weight, made))
    graph.outputs = [tensor.name for tensor in updated]
    executable = compiled(graph)
    for weight, tensor in zip(weights, updated, strict=True):
        assert executable.variables[tensor.name].storage == weight.name
    given_weights = [X + n for n in range(3)]
    got, _ = make_engine(executable, engine).run(*given_weights, X)
    want, carried = [], X
    for weight in given_weights:
        want.append(weight - 3 * carried)
        carried = 3 * carried + weight
    for found, expected in zip(got, want, strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("nested", [False, True])
def test_what_a_call_leaves_for_the_next_one_lives_between_them(engine: str, nested: bool) -> None:
    """A function that counts its calls; between them others want the room."""
    graph = Graph(TARGET, "state")
    x = graph.add_input((8,), "float32", "x")
    count, function = variable(graph, "count"), tiles.Sequence()
    graph.functions["counting"] = function
    function.add(Copy(count.name, (popops.add(Site(graph, sequence=function), count, 1.0).name,)))
    name = "counting"
    if nested:
        name, around = "around", tiles.Sequence([Call("counting")])
        graph.functions[name] = around
    graph.program.add(Copy(count.name, (x.name,)))
    value = x
    for _ in range(3):
        graph.program.add(Call(name))
        for factor in (3.0, 0.5, 2.0):
            value = popops.mul(graph, value, factor)
    graph.outputs = [value.name, popops.mul(graph, count, 1.0).name]
    executable = compiled(graph)
    got, _ = make_engine(executable, engine).run(X)
    assert np.array_equal(got[0], X * 27)
    assert np.array_equal(got[1], X + 3)
