"""Small programs with every kind of step, and what tests do with their executables: run, compare, change, reload."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import jax
import numpy as np

from tiles.compiler import Executable, certify, compile_graph, load_executable
from tiles.compiler.executable import MAGIC
from tiles.engine import make_engine
from tiles.errors import InvalidExecutable
from tiles.files import sealed
from tiles.graph import (
    WINDOW,
    Affine,
    AxisSplit,
    Call,
    Cell,
    Codelet,
    Copy,
    CopyFromStream,
    CopyToStream,
    Cycles,
    Dim,
    Extents,
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
    along,
    register,
    whole,
)
from tiles.poplibs import poplin, popops, poputil
from tiles.target import Basis, Target

ENGINES = ("fast", "literal", "vertex")


@register
@dataclass(frozen=True)
class WindowSum(Codelet):
    """Add the elements that lie ``dilation`` apart in a window along the first axis."""

    name: ClassVar[str] = "test.WindowSum"

    dilation: int

    def compute(self, cell: Cell, *operands: jax.Array) -> tuple[jax.Array, ...]:
        (x,) = operands
        rows, _, window = cell.sizes
        return (sum((x[k * self.dilation :][:rows] for k in range(1, window)), x[:rows]),)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        return Cycles(extents.points, Basis.ASSUMED, "a cycle a point, for tests")


@register
@dataclass(frozen=True)
class WindowFirst(WindowSum):
    """Take the first element of a window."""

    name: ClassVar[str] = "test.WindowFirst"

    def compute(self, cell: Cell, *operands: jax.Array) -> tuple[jax.Array, ...]:
        return (operands[0][: cell.sizes[0]],)


# ---- programs


def split(size: int, grain: int, stride: int = 1) -> AxisSplit:
    """Cut a dimension into parts of ``grain``, ``stride`` tiles apart."""
    return AxisSplit(size, grain, ((-(-size // grain), stride),))


def rows(shape: tuple[int, ...], grain: int, base: int = 0) -> Layout:
    """Cut the first dimension into parts of ``grain`` on neighbouring tiles."""
    return Layout((split(shape[0], grain), *map(whole, shape[1:])), base)


def chain(target: Target) -> Graph:
    """Every straight step: operands in place and received, a split reduction, views, copies, joins, constants."""
    graph = Graph(target, "chain")
    x = graph.add_input((12, 8), "float32", "x", "model.py:1")
    w = graph.add_input((8, 6), "float32", "w", "model.py:2")
    shift = graph.add_constant(np.arange(6, dtype=np.float32), "float32", "shift")
    product = poplin.matmul(
        Site(graph, "dot", "model.py:3"), x, w, plan=Plan((split(12, 3, 2), whole(6), split(8, 4)))
    )
    shifted = popops.add(Site(graph, "add"), product, shift, plan=Plan((split(12, 3, 2), whole(6))))
    flat = poputil.reshape(Site(graph, "flat"), shifted, (72,))
    total = popops.reduce(Site(graph, "sum"), flat, (0,), plan=Plan((split(72, 18, 1),)))
    turned = popops.transpose(Site(graph, "turn"), shifted, (1, 0), plan=Plan((split(6, 2), whole(12))))
    again = poputil.copy(Site(graph, "again"), turned, rows((6, 12), 3, 4))
    odd = poputil.reshape(Site(graph, "odd"), again, (8, 9))
    cast = popops.cast(Site(graph, "cast"), odd, "float16", plan=Plan((split(8, 2), whole(9))))
    joined = poputil.concatenate(Site(graph, "joined"), [cast, cast], 1, layout=rows((8, 18), 1, 2))
    graph.outputs = [total.name, joined.name, shifted.name]
    return graph


def loops(target: Target) -> Graph:
    """A counted loop, a loop on a condition, a branch, and a function called twice; one input donated."""
    graph = Graph(target, "loops")
    x = graph.add_input((16,), "float32", "x")
    limit = graph.add_input((), "int32", "limit")
    plan = Plan((split(16, 4),))
    carried = graph.add_tensor((16,), "float32", "carried", rows((16,), 4))
    count = graph.add_tensor((), "int32", "count", Layout(()))
    flag = graph.add_tensor((), "bool", "flag", Layout(()))
    chosen = graph.add_tensor((16,), "float32", "chosen", rows((16,), 4))
    given = graph.add_tensor((16,), "float32", "given", rows((16,), 4, 1))
    point = Plan(())
    graph.program.add(Copy(carried.name, (x.name,)))
    body = Sequence()
    _assign(graph, body, carried, popops.mul(Site(graph, "twice", sequence=body), carried, 2.0, plan=plan))
    graph.program.add(Repeat(3, body))
    _assign(graph, graph.program, count, popops.fill(graph, (), "int32", 0, plan=point))
    condition, inner = Sequence(), Sequence()
    _assign(
        graph, condition, flag, popops.lt(Site(graph, "less", sequence=condition), count, limit, plan=point)
    )
    _assign(graph, inner, count, popops.add(Site(graph, "next", sequence=inner), count, 1, plan=point))
    _assign(graph, inner, carried, popops.add(Site(graph, "grow", sequence=inner), carried, x, plan=plan))
    graph.program.add(RepeatWhileTrue(condition, flag.name, inner))
    branches = Sequence(), Sequence()
    _assign(
        graph, branches[0], chosen, popops.neg(Site(graph, "minus", sequence=branches[0]), carried, plan=plan)
    )
    _assign(
        graph,
        branches[1],
        chosen,
        popops.add(Site(graph, "plus", sequence=branches[1]), carried, 7.0, plan=plan),
    )
    graph.program.add(Switch(limit.name, branches))
    function = Sequence()
    answer = popops.add(Site(graph, "three", sequence=function), given, 3.0, plan=Plan((split(16, 2),)))
    graph.functions["three"] = function
    results = []
    for source in (chosen, carried):
        graph.program.add(Copy(given.name, (source.name,)))
        graph.program.add(Call("three"))
        results.append(graph.add_tensor((16,), "float32", "result", rows((16,), 8)))
        graph.program.add(Copy(results[-1].name, (answer.name,)))
    graph.outputs = [popops.add(Site(graph, "end"), *results, plan=Plan((split(16, 8),))).name, count.name]
    return graph


def _assign(graph: Graph, program: Sequence, target: Tensor, value: Tensor) -> None:
    program.add(Copy(target.name, (value.name,)))


def update(target: Target) -> Graph:
    """A donated input whose successor is computed in its place."""
    graph = Graph(target, "update")
    p = graph.add_input((16, 4), "float32", "p")
    g = graph.add_input((16, 4), "float32", "g")
    graph.donated = (0,)
    plan = Plan((split(16, 4), whole(4)))
    step = popops.mul(Site(graph, "scale"), g, 0.125, plan=plan)
    graph.outputs = [popops.sub(Site(graph, "descend"), p, step, plan=plan).name]
    return graph


def padded(target: Target, codelet: Codelet | None = None) -> Graph:
    """Windows, strides, reversals and fill values; the windows' codelet is the executable's own."""
    graph = Graph(target, "padded")
    x = graph.add_input((10, 6), "float32", "x")
    x = graph.set_layout(x.name, rows((10, 6), 3))
    wide = popops.pad(Site(graph, "pad"), x, (1, 0), (2, 3), value=0.5, plan=Plan((split(13, 4), whole(9))))
    part = popops.slice(
        Site(graph, "part"), wide, (1, 0), (12, 9), (2, 3), plan=Plan((split(6, 2), whole(3)))
    )
    back = popops.reverse(Site(graph, "back"), part, (0,), plan=Plan((split(6, 1), whole(3))))
    window = OpForm(
        (Dim("i", 6), Dim("j", 3), Dim("k", 3, WINDOW)),
        (IndexMap((Affine(((0, 1), (2, 2)), -2), along(1)), 0.0),),
        (IndexMap((along(0), along(1))),),
    )
    plan = Plan((split(6, 2), whole(3), whole(3)))
    (summed,) = poputil.place(
        Site(graph, "window"), codelet or WindowSum(2), window, [back], ("float32",), plan=plan
    )
    graph.outputs = [summed.name]
    return graph


def arithmetic(target: Target) -> Graph:
    """One step: an operand in place, one received, a constant."""
    graph = Graph(target, "arithmetic")
    x = graph.set_layout(graph.add_input((6, 4), "float32", "x").name, rows((6, 4), 2))
    y, z = (
        graph.set_layout(graph.add_input((6, 4), "float32", name).name, rows((6, 4), 3, 1)) for name in "yz"
    )
    one = graph.add_constant(np.full((4,), 1.5, np.float32), "float32", "bias")
    expression = popops.arg(0) - popops.arg(1) * popops.arg(2) - popops.arg(3)
    plan = Plan((split(6, 2), whole(4)))
    graph.outputs = [popops.map(Site(graph, "step"), expression, [x, y, one, z], plan=plan).name]
    return graph


def sums(target: Target) -> Graph:
    """A reduction whose split leaves partials, combined in a second step."""
    graph = Graph(target, "sums")
    x = graph.add_input((4, 6), "float32", "x")
    graph.outputs = [
        popops.reduce(Site(graph, "sum"), x, (1,), plan=Plan((split(4, 2, 3), split(6, 2)))).name
    ]
    return graph


def joins(target: Target) -> Graph:
    """A join and a copy into another layout."""
    graph = Graph(target, "joins")
    x, y = (graph.add_input((4, 3), "float32", name) for name in "xy")
    joined = poputil.concatenate(Site(graph, "join"), [x, y], 0, layout=rows((8, 3), 3))
    graph.outputs = [poputil.copy(Site(graph, "spread"), joined, rows((8, 3), 2, 1)).name]
    return graph


def control(target: Target) -> Graph:
    """A counted loop and a branch."""
    graph = Graph(target, "control")
    x = graph.add_input((4,), "float32", "x")
    which = graph.add_input((), "int32", "which")
    plan = Plan((split(4, 2),))
    value = graph.add_tensor((4,), "float32", "value", rows((4,), 2))
    graph.program.add(Copy(value.name, (x.name,)))
    body, branches = Sequence(), (Sequence(), Sequence(), Sequence())
    _assign(graph, body, value, popops.mul(Site(graph, "grow", sequence=body), value, 3.0, plan=plan))
    graph.program.add(Repeat(2, body))
    for branch, number in zip(branches, (5.0, 6.0, 7.0), strict=True):
        after = popops.add(Site(graph, "plus", sequence=branch), value, number, plan=plan)
        _assign(graph, branch, value, after)
    graph.program.add(Switch(which.name, branches))
    graph.outputs = [value.name]
    return graph


def halves(target: Target) -> Graph:
    """A product of halves: its sums are floats until they are cast."""
    graph = Graph(target, name="halves")
    x, y = graph.add_input((8, 6), "float16", "x"), graph.add_input((6, 4), "float16", "y")
    graph.outputs.append(poplin.matmul(Site(graph, "dot"), x, y).name)
    return graph


def streaming(target: Target) -> Graph:
    """Items of two streams read in loops and in a branch; running sums sent to the host."""
    graph = Graph(target, "streaming")
    start = graph.add_input((8,), "float32", "start")
    graph.set_layout(start.name, rows((8,), 2))
    trips = graph.add_input((), "int32", "trips")
    for name in ("left", "right"):
        graph.add_host_to_device_stream(name, "float32", (8,), f"model.py:{len(name)}")
    graph.add_device_to_host_stream("sums", "float32", (8,), "model.py:9")
    plan, point = Plan((split(8, 2),)), Plan(())
    total = graph.add_tensor((8,), "float32", "total", rows((8,), 2))
    item = graph.add_tensor((8,), "float32", "item", rows((8,), 4, 8))
    count = graph.add_tensor((), "int32", "count", Layout(()))
    flag = graph.add_tensor((), "bool", "flag", Layout(()))

    def add_next(program: Sequence, stream: str) -> None:
        program.add(CopyFromStream(stream, item.name))
        _assign(
            graph, program, total, popops.add(Site(graph, stream, sequence=program), total, item, plan=plan)
        )

    graph.program.add(Copy(total.name, (start.name,)))
    body = Sequence()
    add_next(body, "left")
    body.add(CopyToStream(total.name, "sums"))
    graph.program.add(Repeat(3, body))
    _assign(graph, graph.program, count, popops.fill(graph, (), "int32", 0, plan=point))
    condition, inner = Sequence(), Sequence()
    _assign(
        graph, condition, flag, popops.lt(Site(graph, "less", sequence=condition), count, trips, plan=point)
    )
    branches = Sequence(), Sequence()
    add_next(branches[0], "left")
    add_next(branches[1], "right")
    inner.add(Switch(count.name, branches))
    _assign(graph, inner, count, popops.add(Site(graph, "next", sequence=inner), count, 1, plan=point))
    inner.add(CopyToStream(total.name, "sums"))
    graph.program.add(RepeatWhileTrue(condition, flag.name, inner))
    graph.outputs = [total.name]
    return graph


PROGRAMS: dict[str, Callable[[Target], Graph]] = {
    program.__name__: program
    for program in (chain, loops, update, padded, arithmetic, sums, joins, control, halves, streaming)
}


# ---- running


def inputs_of(executable: Executable) -> list[np.ndarray]:
    """Return fixed inputs: random floats, small integers; of replicas one for each where they differ."""
    random = np.random.default_rng(7)
    values = []
    for i, name in enumerate(executable.inputs):
        v = executable.variables[name]
        differs = executable.differs_along[i] if executable.replicas.axes else ()
        shape = (executable.replicas.count, *v.shape) if differs else v.shape
        is_small = v.dtype.startswith("int")
        values.append((np.full(shape, 2) if is_small else random.standard_normal(shape)).astype(v.dtype))
    return values


def items_of(executable: Executable, count: int = 5) -> dict[str, np.ndarray]:
    """Return fixed items of every stream from the host."""
    random = np.random.default_rng(8)
    return {
        s.name: random.standard_normal((count, *s.shape)).astype(s.dtype)
        for s in executable.streams.values()
        if not s.to_host
    }


def run(executable: Executable, engine: str, arithmetic: str = "ring") -> list[np.ndarray]:
    """Return the outputs of one run on fixed inputs."""
    streams = items_of(executable)
    outputs, _ = make_engine(executable, engine, arithmetic).run(*inputs_of(executable), streams=streams)
    return [np.asarray(x) for x in outputs]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    """Return whether two lists of arrays are equal to the bit."""
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        for x, y in zip(a, b, strict=True)
    )


# ---- changing


def rebuilt(data: dict[str, Any]) -> Executable:
    """Load an executable from plain data, as from a file."""
    return load_executable(sealed(MAGIC, json.dumps(data).encode()))


def changed(executable: Executable, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Return the executable's plain data with one change made."""
    data = copy.deepcopy(executable.to_data())
    change(data)
    assert data != executable.to_data(), "the change changes nothing"
    return data


def named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the item with a name."""
    return next(item for item in items if item["name"] == name)


def group(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the vertex group with a name."""
    return next(g for step in data["steps"] for g in step.get("vertices", ()) if g["name"] == name)


def step_of(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the step with a name."""
    return next(step for step in data["steps"] if name in (step.get("execute"), step.get("copy")))


def refused(data: dict[str, Any]) -> str:
    """Return why loading or certifying refuses the data; "" if neither does."""
    try:
        certify(rebuilt(data))
    except InvalidExecutable as error:
        return str(error)
    return ""


def ungrouped(compile_: Callable[[], Executable]) -> Executable:
    """Return what compiles without grouping: every step stands alone."""
    with mock.patch("tiles.compiler.compile.grouped", lambda tree, order, *_: (tree, order)):
        return compile_()


def compiled(name: str, target: Target) -> Executable:
    """Compile one of the programs."""
    return compile_graph(PROGRAMS[name](target))
