"""What must not grow with the machine: XLA operations of every engine, and lines of Python run to compile and trace."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiles.compiler import Executable, certify, compile_graph, step_costs
from tiles.engine import FastEngine, LiteralEngine, VertexEngine, vertices
from tiles.graph import AxisSplit, Graph, Plan, whole
from tiles.poplibs import poplin, popops, poputil
from tiles.target import Target

PARTS = (2, 16, 256, 1472)


def split(size: int, parts: int, stride: int = 1) -> AxisSplit:
    return AxisSplit(size, -(-size // parts), ((parts, stride),))


def pinned(parts: int) -> Executable:
    """Compile a program whose every step is cut into ``parts``: in place, exchanged, repeated, reduced, reshaped."""
    n = 2944
    graph = Graph(Target.named("gc200"), "pinned")
    x, w = graph.add_input((n, 6), "float32", "x"), graph.add_input((6, 4), "float32", "w")
    rows = Plan((split(n, parts), whole(6)))
    scaled = popops.mul(graph, x, 3.0, plan=rows)
    product = poplin.matmul(graph, scaled, w, plan=Plan((split(n, parts), whole(4), whole(6))))
    backward = popops.reverse(graph, product, (0,), plan=Plan((split(n, parts), whole(4))))
    gram = poplin.dot_general(
        graph, product, backward, (((0,), (0,)), ((), ())), plan=Plan((whole(4), whole(4), split(n, parts)))
    )
    flat = poputil.reshape(graph, product, (4, n))
    total = popops.reduce(graph, flat, (1,), plan=Plan((whole(4), split(n, parts))))
    graph.outputs = [gram.name, total.name, backward.name]
    return compile_graph(graph)


def planned(num_tiles: int) -> Executable:
    """Compile the same computation as the planner cuts it for a machine of ``num_tiles``."""
    graph = Graph(Target.named("gc200").replace(num_tiles=num_tiles), "planned")
    x, w = graph.add_input((600, 96), "float32", "x"), graph.add_input((96, 70), "float32", "w")
    product = poplin.matmul(graph, x, w)
    total = popops.reduce(graph, popops.mul(graph, product, product), (0,))
    graph.outputs = [popops.sub(graph, product, total).name]
    return compile_graph(graph)


def operations(function: Callable[..., Any], *arguments: Any) -> int:
    """Count the StableHLO operations of a function's lowered text."""
    return len(re.findall(r"= \"?stablehlo\.", jax.jit(function).lower(*arguments).as_text()))


def arguments_of(executable: Executable) -> list[jax.ShapeDtypeStruct]:
    variables = [executable.variables[name] for name in executable.inputs]
    return [jax.ShapeDtypeStruct(v.shape, jnp.dtype(v.dtype)) for v in variables]


def fast_operations(executable: Executable) -> int:
    return operations(FastEngine(executable).trace, *arguments_of(executable))


def memory_operations(engine: type[LiteralEngine], executable: Executable) -> int:
    """Run an engine on tile memory, and count the operations of all functions it calls."""
    counts: list[int] = []
    jitted = vertices._jitted

    def counted(function: Callable[..., Any], options: vertices.Options) -> Callable[..., Any]:
        run = jitted(function, options)

        def call(*arguments: Any) -> Any:
            counts.append(operations(function, *arguments))
            return run(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vertices, "_jitted", counted)
        for cache in (vertices._whole, vertices._cells):
            cache.cache_clear()
        engine(executable).run(*(np.zeros(a.shape, a.dtype) for a in arguments_of(executable)))
    for cache in (vertices._whole, vertices._cells):
        cache.cache_clear()
    return sum(counts)


def per_step(executables: dict[int, Executable], count: Callable[[Executable], int]) -> dict[int, float]:
    """Return operations per step: more partials are combined in more steps, each of which is as large as any."""
    return {parts: count(executable) / len(executable.steps) for parts, executable in executables.items()}


COUNTS = {
    "fast": fast_operations,
    "literal": partial(memory_operations, LiteralEngine),
    "vertex": partial(memory_operations, VertexEngine),
}


@pytest.mark.parametrize("engine", COUNTS)
def test_parts_do_not_change_the_operations_of_a_step(engine):
    """Partials are folded by halves: three operations for every doubling of them."""
    found = per_step({parts: pinned(parts) for parts in PARTS}, COUNTS[engine])
    doublings = (max(PARTS) // min(PARTS)).bit_length()
    assert max(found.values()) <= min(found.values()) + 3 * doublings, found


@pytest.mark.parametrize("engine", COUNTS)
def test_tiles_do_not_change_the_operations_of_a_step(engine):
    found = per_step({tiles: planned(tiles) for tiles in (16, 256, 1472)}, COUNTS[engine])
    assert max(found.values()) <= 2 * min(found.values()), found


def test_steps_grow_no_faster_than_the_stages_that_combine_partials():
    """Two sums are split; each stage at least halves their partials."""
    few, many = pinned(2), pinned(1472)
    assert len(many.steps) <= len(few.steps) + 2 * 10


@contextmanager
def counted_lines() -> Iterator[Counter[str]]:
    """Count the lines of this project's Python run inside the context, by file."""
    lines: Counter[str] = Counter()

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines[frame.f_code.co_filename.rpartition("/tiles/")[2]] += 1
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return (
            local
            if "/tiles/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename
            else None
        )

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield lines
    finally:
        sys.settrace(before)


def lines_to_run(make: Callable[[int], Executable], size: int) -> tuple[int, Counter[str]]:
    """Return the steps of a program, and the lines run to build, compile, certify, price and trace it."""
    with counted_lines() as lines:
        executable = make(size)
        certify(executable)
        step_costs(executable)
        for count in COUNTS.values():
            count(executable)
    return len(executable.steps), lines


@pytest.mark.parametrize("make", [pinned, planned])
def test_no_python_runs_for_every_tile_vertex_or_part(make):
    """Twenty times the parts or tiles make larger tables; the lines of Python that a step takes stay."""
    make(8)  # imports, and caches of what does not depend on the parts
    (few_steps, few), (many_steps, many) = lines_to_run(make, 64), lines_to_run(make, 1472)
    grown = {
        file: (few[file] / few_steps, many[file] / many_steps)
        for file in many
        if many[file] / many_steps > 3 * few[file] / few_steps + 40
    }
    assert not grown, grown


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_partials_are_kept_where_they_round(dtype):
    graph = Graph(Target.named("gc200").replace(num_tiles=16))
    x = graph.add_input((4096, 5), dtype)
    plan = Plan((split(4096, 12), whole(5)))
    graph.outputs = [popops.reduce(graph, x, (0,), plan=plan).name]
    executable = compile_graph(graph)
    text = jax.jit(FastEngine(executable).trace).lower(*arguments_of(executable)).as_text()
    assert ("tensor<12x5x" in text) == (dtype == "float32")


def test_much_work_that_several_steps_read_is_done_once():
    graph = Graph(Target.named("gc200").replace(num_tiles=16))
    x, w = graph.add_input((256, 128), "float32", "x"), graph.add_input((128, 8), "float32", "w")
    y = x
    for _ in range(3):
        y = popops.sin(graph, y)
    graph.outputs = [poplin.matmul(graph, y, w).name, popops.mul(graph, y, y).name]
    executable = compile_graph(graph)
    assert len([group for _, group in executable.groups() if "sin" in group.name]) == 3
    compiled = jax.jit(FastEngine(executable).trace).lower(*arguments_of(executable)).compile()
    assert compiled.as_text().count(" sine(") == 3


@pytest.mark.parametrize("engine", [LiteralEngine, VertexEngine])
def test_equal_codelets_on_other_tiles_compile_once(engine, monkeypatch):
    graph = Graph(Target.named("gc200").replace(num_tiles=16))
    y = graph.add_input((32, 4), "float32")
    rows = (Plan((split(32, 8), whole(4)), base) for base in (0, 3, 8))
    for plan in (*rows, Plan((split(32, 8, stride=2), whole(4)))):
        y = popops.mul(graph, y, y, plan=plan)
    graph.outputs = [y.name]
    executable = compile_graph(graph)
    functions: list[Any] = []
    jitted = vertices._jitted

    def counted(function: Callable[..., Any], options: vertices.Options) -> Callable[..., Any]:
        functions.append(function)
        return jitted(function, options)

    monkeypatch.setattr(vertices, "_jitted", counted)
    for cache in (vertices._whole, vertices._cells):
        cache.cache_clear()
    ((result,), _) = engine(executable).run(np.full((32, 4), 1.01, np.float32))
    np.testing.assert_allclose(result, 1.01**16, rtol=1e-5)
    assert len(executable.steps) == 4 and len(functions) == 1
