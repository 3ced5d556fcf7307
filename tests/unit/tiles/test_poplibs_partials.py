"""The vertex that adds partials: its cycles against PopLibs' estimator worked out by hand, its place in a split matmul."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tiles.compiler import compile_graph
from tiles.engine import make_engine
from tiles.graph import Cell, Extents, Graph, Site
from tiles.poplibs import poplin, popops
from tiles.poplibs.popops import combine_codelet, combine_form
from tiles.target import Target

GC200 = Target.named("gc200")


def cycles(partials: str, out: str, depth: int, outputs: int) -> int:
    codelet = poplin.add_partials(partials, out)
    form = combine_form((depth, outputs))
    extents = Extents(form, (np.array([depth]), np.array([outputs])), (partials,), (out,))
    return int(codelet.cycles(extents, GC200).value[0])


# 480 results are 120 accumulators of four floats (60 of eight halves), 20 (10) for each of six workers. A load brings
# half an accumulator; the first partial is the one added to.
@pytest.mark.parametrize(
    ("partials", "out", "depth", "by_hand"),
    [
        ("float32", "float32", 5, 33 + 6 * (20 + (2 * 4 + 8) * 20)),
        ("float32", "float16", 5, 33 + 6 * (20 + (2 * 4 + 7) * 20)),
        ("float16", "float16", 3, 33 + 6 * (20 + (2 * 2 + 9) * 10)),
        ("float16", "float32", 3, 33 + 6 * (20 + (2 * 2 + 10) * 10)),
    ],
)
def test_whole_accumulators_take_the_single_input_form(partials, out, depth, by_hand) -> None:
    assert cycles(partials, out, depth, 480) == by_hand


def test_a_rest_takes_the_general_form() -> None:
    # 482 results: 120 whole accumulators, and a shorter loop for the two left over.
    assert cycles("float32", "float32", 5, 482) == 6 * (32 + (2 * 5 + 13) + (3 * 5 + 7) * 20)


def test_it_computes_what_the_plain_reduction_computes() -> None:
    values = jnp.asarray(np.random.default_rng(0).integers(-9, 9, (7, 6, 10)), jnp.float32)
    form = combine_form(values.shape)
    mine = poplin.add_partials("float32", "float16").compute(
        Cell(form, form.shape, (0, 0, 0), (None, None, None)), values
    )
    plain = combine_codelet("add", "float32", "float16").compute(
        Cell(form, form.shape, (0, 0, 0), (None, None, None)), values
    )
    np.testing.assert_array_equal(mine[0], plain[0])
    np.testing.assert_array_equal(mine[0], values.sum(axis=0).astype(np.float16))


def test_a_split_matmul_adds_its_partials_with_it() -> None:
    graph = Graph(GC200.replace(num_tiles=16))
    a, b = graph.add_input((8, 512), "float32", "a"), graph.add_input((512, 8), "float32", "b")
    graph.outputs.append(poplin.matmul(graph, a, b).name)
    executable = compile_graph(graph)
    labels = [group.codelet.label for _, group in executable.groups()]
    assert "poplin::ReduceAdd<float,float>" in labels
    x, y = (np.random.default_rng(1).integers(-5, 5, s).astype(np.float32) for s in ((8, 512), (512, 8)))
    (z,), _ = make_engine(executable, "vertex").run(x, y)
    np.testing.assert_array_equal(z, x @ y)


@pytest.mark.parametrize(("shape", "stages"), [((4096,), 1), ((64, 1472), 2), ((1_000_000,), 2)])
def test_partials_of_a_scalar_are_combined_in_few_stages(shape, stages) -> None:
    graph = Graph(GC200)
    x = graph.add_input(shape, "float32", "x")
    graph.outputs.append(popops.reduce(Site(graph, "sum"), x, tuple(range(len(shape)))).name)
    names = [step.name for step in compile_graph(graph).steps]
    assert sum(".combine" in name for name in names) <= stages
