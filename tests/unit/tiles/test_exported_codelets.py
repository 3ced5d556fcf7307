"""Users' codelets as executables carry them: what is compiled, what runs it, and codelets that cannot be exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.tiles.executable_programs import rows, split
from tiles.codelets import ExportedCodelet
from tiles.compiler import Executable, certify, compile_graph, load_executable, step_costs
from tiles.engine import FastEngine, coverage_of, make_engine
from tiles.errors import InvalidExecutable, InvalidGraph, Unsupported
from tiles.graph import (
    Cell,
    Codelet,
    Cycles,
    Extents,
    Graph,
    IndexMap,
    OpForm,
    Plan,
    Site,
    along,
)
from tiles.poplibs import forms, poputil
from tiles.poplibs.popops.map import Map
from tiles.target import Basis, Target


@dataclass(frozen=True)
class Any2(Codelet):
    """What it is told: of the cell and two operands."""

    name: ClassVar[str] = "test.Any2"

    function: Callable[..., Any]

    def compute(self, cell: Cell, *operands: jax.Array) -> tuple[jax.Array, ...]:
        return (self.function(cell, *operands),)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        return Cycles(extents.points * 1.5, Basis.FITTED, "one and a half a point")

    def combiner(self) -> str:
        return "add"

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        return self, ("float32",)


def weighted(cell: Cell, x: jax.Array, y: jax.Array) -> jax.Array:
    """Sum rows of a product, each element weighted by its column's number."""
    column = cell.origin[1] + jnp.arange(cell.sizes[1])
    mask = cell.reduced_mask()
    product = x * y * column.astype(x.dtype)
    return jnp.sum(product if mask is None else jnp.where(mask, product, 0), axis=1)


def build(target: Target, function: Callable[..., Any], plan: Plan, size: int = 10) -> Graph:
    """Reduce rows of ``x * y`` by a function of a cell; 6 rows of ``size``, the second operand one row for all."""
    graph = Graph(target, "carried")
    x = graph.set_layout(graph.add_input((6, size), "float32", "x").name, rows((6, size), 2))
    y = graph.add_input((size,), "float32", "y")
    form = forms.reduce_form((6, size), (1,))
    form = OpForm(form.dims, (*form.operands, IndexMap((along(1),))), form.results)
    (total,) = poputil.place(
        Site(graph, "sum", "user.py:7"), Any2(function), form, [x, y], ("float32",), plan=plan
    )
    graph.outputs = [total.name]
    return graph


PLANS = {
    "whole": Plan((split(6, 6), split(10, 10))),
    "rows": Plan((split(6, 4), split(10, 10))),
    "partials": Plan((split(6, 6), split(10, 5))),
    "uneven": Plan((split(6, 4, 4), split(10, 3))),
}
X, Y = np.random.default_rng(3).standard_normal((2, 6, 10)).astype(np.float32)
Y = Y[0]


@pytest.mark.parametrize("plan", PLANS)
def test_every_engine_runs_what_is_exported(plan: str, small_target: Target) -> None:
    executable = load_executable(compile_graph(build(small_target, weighted, PLANS[plan])).to_bytes())
    certify(executable)
    assert all(
        isinstance(g.codelet, ExportedCodelet)
        for _, g in executable.groups()
        if g.codelet.name == "test.Any2"
    )
    words = set()
    for engine in ("fast", "literal", "vertex"):
        (total,), _ = make_engine(executable, engine).run(X, Y)
        np.testing.assert_allclose(total, (X * Y * np.arange(10)).sum(axis=1), rtol=1e-5, atol=1e-5)
        words.add(np.asarray(make_engine(executable, engine, "ring").run(X, Y)[0][0]).tobytes())
    assert len(words) == 1


def test_figures_are_exported_for_every_kind_of_cell(small_target: Target) -> None:
    executable = compile_graph(build(small_target, weighted, PLANS["rows"]))
    (group,) = (g for _, g in executable.groups())
    assert isinstance(group.codelet, ExportedCodelet)
    assert [(f.sizes, f.cycles) for f in group.codelet.figures] == [
        ((4, 10), 60),
        ((2, 10), 30),
        ((6, 10), 90),
    ]
    cost = step_costs(executable)[0]
    assert (cost.compute_basis, cost.source) == (Basis.FITTED, "one and a half a point")


def test_equal_codelets_are_compiled_once(small_target: Target) -> None:
    first, again = (compile_graph(build(small_target, weighted, PLANS["rows"])) for _ in range(2))
    assert next(first.groups())[1].codelet is next(again.groups())[1].codelet


def test_a_batch_of_runs_needs_no_module_of_its_own(small_target: Target) -> None:
    engine = FastEngine(compile_graph(build(small_target, weighted, PLANS["uneven"])))
    with jax.enable_x64(True):
        many = jax.jit(jax.vmap(lambda x: engine.trace(x, Y)[0]))(np.stack([X, 2 * X]))
    np.testing.assert_allclose(many[1], 2 * many[0], rtol=1e-6)
    np.testing.assert_array_equal(many[0], engine.run(X, Y)[0][0])


def test_a_codelet_without_a_ring_form_runs_with_floats_only(small_target: Target) -> None:
    def halve(cell: Cell, x: jax.Array, y: jax.Array) -> jax.Array:
        total = jnp.sum(x * y, axis=1)
        return jax.lax.while_loop(lambda t: jnp.any(jnp.abs(t) > 1), lambda t: t / 2, total)

    executable = compile_graph(build(small_target, halve, PLANS["rows"]))
    (total,), _ = make_engine(executable).run(X, Y)
    assert np.all(np.abs(total) <= 1)
    with pytest.raises(Unsupported, match=r"test\.Any2 has no meaning in ring arithmetic"):
        make_engine(executable, "fast", "ring").run(X, Y)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda cell, x, y: jnp.sum(x, axis=1).astype(jnp.float16), "other shapes or dtypes"),
        (lambda cell, x, y: x, "other shapes or dtypes"),
        (lambda cell, x, y: x @ x, r"test\.Any2 fails on cells of \(6, 10\): TypeError"),
        (lambda cell, x, y: jax.pure_callback(np.sum, x[:, 0], x), r"test\.Any2.*(callback|custom_call)"),
    ],
)
def test_a_codelet_that_cannot_be_exported_is_named(function: Any, words: str, small_target: Target) -> None:
    with pytest.raises((InvalidGraph, Unsupported), match=words) as caught:
        compile_graph(build(small_target, function, PLANS["whole"]))
    assert caught.value.location == "user.py:7"


NEGATED = Map((("negate", (0,), ()),), (1,), ("float32",), ("float32",))


@dataclass(frozen=True)
class Negated(Codelet):
    """The negative of its operand, by the package's own tile code."""

    name: ClassVar[str] = "test.Negated"

    def compute(self, cell: Cell, *operands: jax.Array) -> tuple[jax.Array, ...]:
        return (-operands[0],)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        return Cycles(extents.points, Basis.FITTED, "one a point")

    def own_code(self, extents: Extents, target: Target) -> Codelet:
        return NEGATED


def carried(data: Any) -> dict[str, Any]:
    """Return what an executable's data holds of its one exported codelet."""
    if isinstance(data, dict) and "carried" in data:
        return data["carried"]
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, (list, tuple)) else ()
    return next((found for each in inner if (found := carried(each))), {})


@pytest.mark.parametrize(
    "other",
    [
        Map((("is_finite", (0,), ()),), (1,), ("float32",), ("bool",)).to_data(),
        Map((("add", (0, 1), ()),), (2,), ("float32",) * 2, ("float32",)).to_data(),
        {"name": "popops.Map", "version": 1, "params": {}},
        {"name": "popops.Scan"},
    ],
)
def test_tile_code_of_something_else_is_refused(other: dict[str, Any], small_target: Target) -> None:
    graph = Graph(small_target, "negated")
    x = graph.add_input((6, 10), "float32", "x")
    form = forms.map_form((6, 10), [forms.broadcast_map((6, 10), (6, 10))])
    (y,) = poputil.place(Site(graph, "negated"), Negated(), form, [x], ("float32",))
    graph.outputs = [y.name]
    executable = compile_graph(graph)
    certify(executable)
    np.testing.assert_array_equal(make_engine(executable, "tile").run(X)[0][0], -X)
    assert coverage_of(executable).vertices_share == 1
    data = executable.to_data()
    carried(data["steps"])["runs"] = other
    with pytest.raises(InvalidExecutable):
        certify(Executable.from_data(data))
