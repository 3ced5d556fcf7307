"""Contractions that are computed slice by slice because their temporaries must keep to a bound."""

from __future__ import annotations

import numpy as np
import pytest

from tiles.compiler import certify, compile_graph
from tiles.compiler.costs import step_costs
from tiles.engine import make_engine
from tiles.graph import Graph, OpForm
from tiles.plan import Operand, search, serial_split
from tiles.plan.serial import MOST_TURNS, NEARLY, slice_form
from tiles.planning import Planner, Policy, operation_of
from tiles.poplibs import poplin
from tiles.poplibs.forms import dot_form
from tiles.target import Target

SMALL = Target.named("gc200").replace(num_tiles=16)


def product(proportion: float | None) -> Graph:
    """A product whose temporaries may take a share of a tile's memory."""
    graph = Graph(SMALL)
    x, y = graph.add_input((64, 250), "float32", "x"), graph.add_input((250, 90), "float32", "y")
    graph.outputs.append(poplin.matmul(graph, x, y).name)
    return Planner(Policy({} if proportion is None else {"matmul": proportion})).plan(graph)


@pytest.mark.parametrize("engine", ["fast", "literal", "vertex"])
def test_slices_give_the_product(engine: str) -> None:
    x, y = (np.random.default_rng(3).integers(-9, 9, s).astype(np.float32) for s in ((64, 250), (250, 90)))
    executable = compile_graph(product(0.03))
    assert any(".turn" in step.name for step in executable.steps)
    (z,), _ = make_engine(executable, engine).run(x, y)
    np.testing.assert_array_equal(z, x @ y)


def test_slices_keep_to_the_bound_and_take_longer() -> None:
    whole, slices = compile_graph(product(None)), compile_graph(product(0.03))
    certify(slices)

    def temporaries(executable) -> int:
        sizes = [0] * len(executable.steps)
        for buffer in executable.buffers.values():
            if buffer.category == "message" or buffer.name.endswith(".partials"):
                for step in range(buffer.start, buffer.end + 1):
                    sizes[step] += buffer.size_bytes
        return max(sizes)

    assert temporaries(slices) <= 0.03 * SMALL.bytes_per_tile < temporaries(whole)
    assert sum(c.cycles for c in step_costs(slices)) > sum(c.cycles for c in step_costs(whole))
    assert sum(c.flops for c in step_costs(slices)) >= 2 * 64 * 250 * 90


def test_slices_of_one_size_are_cut_alike() -> None:
    """Wherever in their operands' parts they begin: results that are cut otherwise would be joined by a relayout."""
    graph = Graph(SMALL)
    x, y = graph.add_input((100, 120), "float32", "x"), graph.add_input((120, 333), "float32", "y")
    graph.outputs.append(poplin.matmul(graph, x, y).name)
    planned = Planner(Policy({"matmul": 0.005})).plan(graph)
    slices = [
        group
        for name, compute_set in planned.compute_sets.items()
        for group in compute_set.vertices
        if ".turn" in name and group.codelet.is_contraction
    ]
    cuts = {(g.form.dims, tuple((s.grain, s.digits) for s in g.plan.splits)) for g in slices}
    assert len(cuts) == len({g.form.dims for g in slices}) < len(slices)


FORM = dot_form((64, 250), (250, 90), (), (), (1,), (0,))
CODELET = poplin.matmul_codelet("float32", "float32")
OPERANDS = [Operand((64, 250), "float32", None), Operand((250, 90), "float32", None)]


def test_what_fits_is_not_cut() -> None:
    assert serial_split(FORM, CODELET, OPERANDS, ("float32",), SMALL, 0.6) is None


def test_where_no_slices_keep_to_the_bound_those_with_few_temporaries_are_taken() -> None:
    """They were not cut at all: a product of the vocabulary in a GPT-2's step then took 721 of 639 KB on a tile."""
    bound = 1e-6

    def temporaries(form: OpForm) -> int:
        return search(form, CODELET, OPERANDS, ("float32",), SMALL, memory_proportion=bound)[
            0
        ].temporary_bytes

    split = serial_split(FORM, CODELET, OPERANDS, ("float32",), SMALL, bound)
    assert split is not None
    least = min(
        temporaries(slice_form(FORM, d, 0, extent))
        for d in FORM.results[0].dims
        for extent in range(1, FORM.dims[d].size)
        if FORM.dims[d].size <= MOST_TURNS * extent and extent % CODELET.grains(FORM, SMALL)[d] == 0
    )
    assert bound * SMALL.bytes_per_tile < least
    assert temporaries(split.forms(FORM)[0]) <= NEARLY * least < temporaries(FORM)


@pytest.mark.parametrize(
    "label", ["dot.1", "dot.1.partials", "dot.1.combine1", "dot.1.turn.2.partials", "dot.1.turn.combine"]
)
def test_steps_belong_to_an_operation(label: str) -> None:
    assert operation_of(label) == "dot.1"
