"""The first elements of rows: selected in one piece, in parts of rows, and by sorting; every order and dtype."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest

from tests.random_plans import random_planner
from tiles.compiler import certify, compile_graph
from tiles.engine import make_engine
from tiles.errors import InvalidGraph, UnsupportedDtype
from tiles.graph import Composite, Graph
from tiles.numerics.greatest import greatest
from tiles.numerics.ring import to_ring
from tiles.planning import Planner
from tiles.poplibs.popops.elementwise import iota
from tiles.poplibs.popops.sorting import sort
from tiles.poplibs.popops.top_k import top_k
from tiles.report import cost_analysis

RNG = np.random.default_rng(0)
VALUES = RNG.integers(-9, 9, (3, 40)).astype(np.float32)
VALUES[:, 5:30:4] = -0.0
VALUES[1, [5, 39]] = np.nan
VALUES[2, 3:] = -np.inf  # as little as what fills partials
VALUES[2, 7] = -np.nan


@pytest.fixture
def eight(gc200):
    return gc200.replace(num_tiles=8)


def _bits(x, is_total=True):
    """Return integers that are ordered as floats are, in total order or with zeros equal and NaN greatest."""
    x = x if is_total else np.where(x == 0, np.float32(0), np.where(np.isnan(x), np.float32(np.nan), x))
    words = x.view(np.int32)
    return (words ^ ((words >> 31) & 0x7FFFFFFF)).astype(np.int64)


def _first(columns, k, is_descending):
    return np.argsort(-columns if is_descending else columns, axis=1, kind="stable")[:, :k]


def _run(target, x, k, engine, arithmetic="float", **how):
    graph = Graph(target)
    results = top_k(graph, graph.add_input(x.shape, x.dtype.name), k, **how)
    graph.outputs = [t.name for t in results]
    executable = compile_graph(graph)
    certify(executable)
    found, _ = make_engine(executable, engine, arithmetic).run(x)
    return Planner().plan(graph), [np.asarray(y) for y in found]


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_greatest_integers_of_every_width(dtype):
    words = RNG.integers(0, 256, (2, 3, 50 * 8), np.uint8).view(np.uint8 if dtype == "bool" else dtype)
    x = words % 2 == 0 if dtype == "bool" else words
    x[0, :, 10:40] = x.max()
    x[1, 0, 5:7] = x.min()
    with jax.enable_x64(True):
        values, places = jax.jit(jax.vmap(lambda x: greatest(x, 33)))(x)
    expected = np.argsort(~x if dtype != "bool" else 1 - x, axis=-1, kind="stable")[..., :33]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, -1))


def test_greatest_of_floats_is_refused():
    with pytest.raises(UnsupportedDtype, match="float32"):
        greatest(VALUES, 3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("engine", ["literal", "vertex", "tile"])
def test_any_cut_of_rows_gives_what_one_piece_does(engine, seed, eight):
    k, is_descending, is_total = (1, 7, 12, 30)[seed], seed % 2 == 0, seed < 2
    how = {"is_descending": is_descending, "is_total": is_total}
    expected = _first(_bits(VALUES, is_total), k, is_descending)
    with random_planner(seed, following=0):
        _, (values, positions) = _run(eight, VALUES, k, engine, **how)
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(
        values.view(np.int32), np.take_along_axis(VALUES, expected, 1).view(np.int32)
    )


@pytest.mark.parametrize("seed", [2, 5, 14])
def test_survivors_are_joined_where_no_plan_found_leaves_half_of_them(seed, eight):
    x = np.array([[3, 1, 2, 9, 5, 9, 0, 4, 8]], np.float32).repeat(2, 0)
    with random_planner(seed):
        _, (values, positions) = _run(eight, x, 1, "literal")
    np.testing.assert_array_equal(positions, [[3], [3]])
    np.testing.assert_array_equal(values, [[9], [9]])


def test_in_the_ring_words_are_ordered_as_the_bits_of_floats(eight):
    words = np.asarray(to_ring(VALUES))
    expected = _first(_bits(words.view(np.float32)), 4, True)
    for engine in ("fast", "literal"):
        _, found = _run(eight, VALUES, 4, engine, "ring")
        np.testing.assert_array_equal(found[1], expected, err_msg=engine)
        np.testing.assert_array_equal(found[0], np.take_along_axis(words, expected, 1), err_msg=engine)


@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_a_long_row_of_which_all_is_wanted_is_sorted(engine, eight):
    x = RNG.integers(-9, 9, (600, 2)).astype(np.int16)
    graph, (values, positions) = _run(eight, x, 600, engine, dimension=0)
    (step,) = graph.program.steps
    assert isinstance(step, Composite) and step.whole.codelet.name == "popops.TopK"
    assert any("exchange" in name for name in graph.compute_sets)
    expected = np.argsort(-x, axis=0, kind="stable")
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 0))


@pytest.mark.parametrize(("shape", "k"), [((2, 2100), 200), ((2, 2100), 30), ((16, 1000), 5)])
def test_the_first_elements_cost_about_as_much_as_all_in_order_at_most(shape, k, gc200):
    """Survivors are sorted: they are merged, not selected from anew; and a row is sorted where that takes less."""

    def cycles(take):
        graph = Graph(gc200)
        graph.outputs = [take(graph, graph.add_input(shape, "float32"))[0].name]
        return cost_analysis(compile_graph(graph))["cycles"]

    def in_order(graph, x):
        return sort(graph, [x, iota(graph, shape, "int32", 1)], 1, ((0, True, True),))

    assert cycles(lambda graph, x: top_k(graph, x, k)) < 1.1 * cycles(in_order)


@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_padding_and_sorting_keep_the_signs_of_nans(engine, eight):
    """Rows that do not fill their parts: XLA:CPU pads and sorts 8-bit floats as wider ones, whose NaN has no sign left."""
    words = RNG.integers(0, 256, (1, 75), np.uint8)
    words[:, ::2] |= 0x7C  # infinities and NaN of either sign
    order = words.view(np.int8).astype(np.int64)
    expected = _first(np.where(order < 0, -1 - (order & 0x7F), order), 40, True)
    _, (values, positions) = _run(eight, words.view(ml_dtypes.float8_e5m2), 40, engine)
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(values.view(np.uint8), np.take_along_axis(words, expected, 1))


def test_more_elements_than_there_are(eight):
    graph = Graph(eight)
    with pytest.raises(InvalidGraph, match="41 elements"):
        top_k(graph, graph.add_input((3, 40), "float32"), 41)
