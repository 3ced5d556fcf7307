"""Values that a program says are equal on all replicas: they may decide around collectives, and every run compares them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.replicas import replicated
from tiles import Executable, If, certify, compile_graph, gcl, make_engine, popops, poputil
from tiles.errors import InvalidExecutable, InvalidGraph
from tiles.graph import Copy, Graph, RepeatWhileTrue, Sequence, Site, Tensor
from tiles.report import cost_analysis

ENGINES = ("fast", "literal", "vertex")
MESH = (("data", 2), ("model", 3))
VALUES = np.array([[3], [80], [5], [2], [9], [1]], np.float32)


def halved(graph: Graph, x: Tensor, limit: Tensor, axes: Any, assumed: Any = ()) -> None:
    """Halve the greatest ``x`` of a group as long as it is above a limit: a collective in every round."""
    state, body, condition = graph.add_variable(x.shape, x.dtype, "state"), Sequence(), Sequence()
    inside, before = Site(graph, sequence=body), Site(graph, sequence=condition)
    graph.program.add(Copy(state.name, (x.name,)))
    number = poputil.reshape(before, state, ())
    goes_on = popops.gt(before, number, limit)
    if assumed:
        goes_on = gcl.assume_equal_across_replicas(before, goes_on, assumed)
    total = gcl.all_reduce(inside, state, axes, "max", algorithm="ring")
    body.add(Copy(state.name, (popops.mul(inside, total, 0.5).name,)))
    graph.program.add(RepeatWhileTrue(condition, goes_on.name, body))
    graph.outputs.append(state.name)


def program(axes: Any, is_in_loop: bool) -> Executable:
    """Return a loop along axes that a limit decides, which is said to be equal before it, or what it decides inside."""
    graph = replicated(*MESH)
    x, limit = (graph.add_input(shape, "float32", name) for shape, name in (((1,), "x"), ((), "limit")))
    if is_in_loop:
        halved(graph, x, limit, axes, axes)
    else:
        limit = gcl.assume_equal_across_replicas(graph, limit, axes)
        halved(graph, gcl.all_reduce(graph, x, axes, "max", algorithm="ring"), limit, axes)
    executable = compile_graph(graph)
    certificate = certify(executable)
    assert certificate.composites_run == certificate.composites
    return Executable.from_bytes(executable.to_bytes())


def wanted(limits: np.ndarray) -> np.ndarray:
    """Return what the loop along "model" leaves on every replica."""
    found = np.repeat(VALUES.reshape(2, 3).max(axis=1), 3)
    for n, limit in enumerate(limits):
        while found[n] > limit:
            found[n] /= 2
    return found[:, None]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_said_to_be_equal_decides_around_a_collective(engine: str) -> None:
    """Groups decide for themselves: those along "data" take another number of rounds."""
    made = make_engine(program("model", is_in_loop=False), engine)
    limits = np.array([1, 1, 1, 4, 4, 4], np.float32)
    (got,), trace = made.run(VALUES, limits)
    np.testing.assert_array_equal(got, wanted(limits))
    assert list(trace.trips.values()) == [7]
    limits[4] = 3
    with pytest.raises(
        InvalidExecutable, match=r"(?s)limit is not equal on all .* along model.*replica 4 than on 3"
    ):
        made.run(VALUES, limits)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_round_decides_is_compared_in_every_round(engine: str) -> None:
    """In the first round all replicas of the second group go on; after the second one of them would not."""
    made = make_engine(program("model", is_in_loop=True), engine)
    values = np.repeat(wanted(np.full(6, 200)), 1, axis=0)
    (got,), _ = made.run(values, np.array([1, 1, 1, 4, 4, 4], np.float32))
    np.testing.assert_array_equal(got, [[0.625]] * 3 + [[2.25]] * 3)
    with pytest.raises(InvalidExecutable, match=r"(?s)along model, as the program says.*replica 5 than on 3"):
        made.run(values, np.array([1, 1, 1, 4, 4, 5], np.float32))


def test_words_are_compared_not_numbers() -> None:
    graph = replicated(("data", 4))
    x = graph.add_input((3,), "float16", "x")
    graph.outputs.append(gcl.assume_equal_across_replicas(graph, x, "data").name)
    executable = compile_graph(graph)
    assert cost_analysis(executable)["link_bytes"] == 0
    same, zeros = np.full((4, 3), np.nan, np.float16), np.zeros((4, 3), np.float16)
    zeros[1, 2] = -0.0
    for engine in ENGINES:
        made = make_engine(executable, engine)
        np.testing.assert_array_equal(made.run(same)[0][0], same)
        with pytest.raises(InvalidExecutable, match="replica 1 than on 0"):
            made.run(zeros)


def test_what_some_replicas_may_not_compute_is_not_called_equal() -> None:
    graph = replicated(("data", 4))
    x, switch = graph.add_input((2,), "float32", "x"), graph.add_input((), "bool", "switch")
    branch, result = Sequence(), graph.add_variable((2,), "float32", "result")
    inside = Site(graph, sequence=branch)
    branch.add(Copy(result.name, (gcl.assume_equal_across_replicas(inside, x, "data").name,)))
    graph.program.add(Copy(result.name, (x.name,)))
    graph.program.add(If(switch.name, branch, Sequence()))
    graph.outputs.append(result.name)
    with pytest.raises(
        InvalidGraph, match=r"some may not compute it: switch on .*which may differ along data"
    ):
        compile_graph(graph)


def test_who_is_alone_is_equal_to_itself_and_axes_are_the_graphs() -> None:
    graph = replicated(("data", 4), ("model", 1))
    x = graph.add_input((2,), "float32", "x")
    assert gcl.assume_equal_across_replicas(graph, x, "model") is x
    with pytest.raises(InvalidGraph, match="no axis 'rows'"):
        gcl.assume_equal_across_replicas(graph, x, "rows")
