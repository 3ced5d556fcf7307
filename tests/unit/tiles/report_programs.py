"""Small programs for the tests of reports: codelets with round costs, graphs that can be added up by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from tiles.compiler import Executable, compile_graph
from tiles.graph import (
    REDUCTION,
    AxisSplit,
    Codelet,
    Copy,
    Cycles,
    Dim,
    Execute,
    Graph,
    IndexMap,
    Layout,
    OpForm,
    Plan,
    Repeat,
    RepeatWhileTrue,
    Sequence,
    Site,
    Switch,
    Tensor,
    Vertices,
    along,
    identity_map,
    register,
    whole,
)
from tiles.poplibs import poplin, popops
from tiles.target import Basis, Target


@register
@dataclass(frozen=True)
class Scale(Codelet):
    """Multiply by ``factor``; ten cycles and three per element, on the basis it is told."""

    name: ClassVar[str] = "test.report.Scale"
    factor: int = 2
    basis: str = "FITTED"

    def compute(self, cell, *operands):
        return (operands[0] * self.factor,)

    def cycles(self, extents, target):
        return Cycles(10 + 3 * extents.points, Basis(self.basis), "a test")

    def flops(self, extents):
        return extents.points


@register
@dataclass(frozen=True)
class Total(Codelet):
    """Sum each row; five cycles and two per element."""

    name: ClassVar[str] = "test.report.Total"

    def compute(self, cell, *operands):
        return (jnp.sum(operands[0], axis=-1),)

    def cycles(self, extents, target):
        return Cycles(5 + 2 * extents.points, Basis.MEASURED, "a test")

    def flops(self, extents):
        return extents.points - extents.results


@register
@dataclass(frozen=True)
class Below(Codelet):
    """Whether a scalar is below ``bound``; seven cycles."""

    name: ClassVar[str] = "test.report.Below"
    bound: int = 100

    def compute(self, cell, *operands):
        return (operands[0] < self.bound,)

    def cycles(self, extents, target):
        return Cycles(np.full(extents.points.shape, 7), Basis.ASSUMED, "a test")


def row_layout(shape: tuple[int, ...], parts: int, base: int = 0, stride: int = 1) -> Layout:
    """Cut the leading dimension into equal parts on tiles ``stride`` apart."""
    if parts == 1:
        return Layout(tuple(map(whole, shape)), base)
    first = AxisSplit(shape[0], -(-shape[0] // parts), ((parts, stride),))
    return Layout((first, *map(whole, shape[1:])), base)


def scale(
    graph: Graph,
    operand: Tensor,
    parts: int,
    name: str = "scale",
    location: str = "",
    base: int = 0,
    **options,
) -> Tensor:
    """Add a compute set that scales ``operand`` row by row, and return its result; no step is added."""
    layout = row_layout(operand.shape, parts, base)
    rank = len(operand.shape)
    form = OpForm(
        tuple(Dim(f"d{i}", n) for i, n in enumerate(operand.shape)),
        (identity_map(rank),),
        (identity_map(rank),),
    )
    result = graph.add_tensor(operand.shape, operand.dtype, name, layout, location=location)
    plan = Plan(layout.axes, base)
    vertices = Vertices(name, Scale(**options), form, plan, (operand.name,), (result.name,), location)
    graph.add_compute_set(name, vertices)
    return result


def total(graph: Graph, operand: Tensor, parts: int, name: str = "total", location: str = "") -> Tensor:
    """Add a compute set that sums the rows of a matrix, and return its result; no step is added."""
    rows, columns = operand.shape
    form = OpForm(
        (Dim("row", rows), Dim("column", columns, REDUCTION)), (identity_map(2),), (IndexMap((along(0),)),)
    )
    layout = row_layout((rows,), parts)
    result = graph.add_tensor((rows,), operand.dtype, name, layout, location=location)
    plan = Plan((*layout.axes, whole(columns)))
    graph.add_compute_set(
        name, Vertices(name, Total(), form, plan, (operand.name,), (result.name,), location)
    )
    return result


def below(graph: Graph, scalar: Tensor, name: str, bound: int = 100, location: str = "") -> Tensor:
    """Add a compute set that compares a scalar with ``bound``, and return its result; no step is added."""
    form = OpForm((), (IndexMap(()),), (IndexMap(()),))
    result = graph.add_tensor((), "bool", name, Layout(()), location=location)
    vertices = Vertices(name, Below(bound), form, Plan(()), (scalar.name,), (result.name,), location)
    graph.add_compute_set(name, vertices)
    return result


def pipeline(target: Target, check_memory: bool = True, rows: int = 8, columns: int = 64) -> Executable:
    """Scale a matrix where it lies, scale it on half as many tiles, sum its rows, copy the sums to a tile."""
    graph = Graph(target, "pipeline")
    x = graph.add_input((rows, columns), "float32", "x", location="model.py:3")
    graph.set_layout(x.name, row_layout(x.shape, 4))
    y = scale(graph, graph.tensors[x.name], 4, "first", "model.py:4", basis="DOCUMENTED")
    z = scale(graph, y, 2, "second", "model.py:5")
    sums = total(graph, z, 2, "sums", "model.py:6")
    out = graph.add_tensor((rows,), "float32", "out", row_layout((rows,), 1), location="model.py:6")
    graph.outputs = [out.name, y.name]
    for name in ("first", "second", "sums"):
        graph.program.add(Execute(name))
    graph.program.add(Copy(out.name, (sums.name,), None, "model.py:7"))
    return compile_graph(graph, check_memory)


def repeated(target: Target, count: int) -> Executable:
    """Scale a vector ``count`` times three, inside two nested loops."""
    graph = Graph(target, "repeated")
    x = graph.add_input((16,), "float32", "x", location="loop.py:1")
    graph.set_layout(x.name, row_layout((16,), 4))
    once = scale(graph, graph.tensors[x.name], 4, "once", "loop.py:2")
    again = scale(graph, once, 2, "again", "loop.py:3")
    graph.outputs = [again.name]
    inner = Sequence([Execute("again")])
    graph.program.add(Repeat(count, Sequence([Execute("once"), Repeat(3, inner)])))
    return compile_graph(graph)


def looping(target: Target, bound: int = 100) -> Executable:
    """Double a scalar while it is below ``bound``."""
    graph = Graph(target, "looping")
    x = graph.add_input((), "int32", "x", location="while.py:1")
    graph.set_layout(x.name, Layout(()))
    state = graph.add_tensor((), "int32", "state", Layout(()), location="while.py:2")
    go = below(graph, state, "go", bound, "while.py:3")
    doubled = scale(graph, state, 1, "doubled", "while.py:4")
    graph.outputs = [state.name]
    graph.program.add(Copy(state.name, (x.name,), None, "while.py:2"))
    body = Sequence([Execute("doubled"), Copy(state.name, (doubled.name,), None, "while.py:4")])
    graph.program.add(RepeatWhileTrue(Sequence([Execute("go")]), go.name, body))
    return compile_graph(graph)


def switching(target: Target, sizes: tuple[int, ...]) -> Executable:
    """Run one of several branches; branch b runs its step ``sizes[b]`` times."""
    graph = Graph(target, "switching")
    x = graph.add_input((16,), "float32", "x", location="switch.py:1")
    index = graph.add_input((), "int32", "index", location="switch.py:2")
    graph.set_layout(x.name, row_layout((16,), 4))
    graph.set_layout(index.name, Layout(()))
    out = graph.add_tensor((16,), "float32", "out", row_layout((16,), 4), location="switch.py:3")
    branches = []
    for number, size in enumerate(sizes):
        result = scale(graph, graph.tensors[x.name], 4, f"branch{number}", f"switch.py:{4 + number}")
        copy = Copy(out.name, (result.name,), None, "switch.py:3")
        branches.append(Sequence([Repeat(size, Sequence([Execute(f"branch{number}")])), copy]))
    graph.outputs = [out.name]
    graph.program.add(Switch(index.name, tuple(branches)))
    return compile_graph(graph)


def network(target: Target, check_memory: bool = True) -> Executable:
    """Two layers of a network from PopLibs' primitives: messages, and buffers that share addresses."""
    graph = Graph(target, "network")
    x = graph.add_input((32, 48), "float32", "x", location="net.py:1")
    w = graph.add_input((48, 24), "float32", "w", location="net.py:2")
    hidden = popops.tanh(Site(graph, "tanh"), poplin.matmul(Site(graph, "dot", "net.py:3"), x, w))
    v = graph.add_input((24, 10), "float32", "v", location="net.py:4")
    out = poplin.matmul(Site(graph, "head", "net.py:5"), hidden, v)
    graph.outputs = [out.name]
    return compile_graph(graph, check_memory)
