"""Rows sorted over many tiles: the stages on tile memory, and the composite that is known in one piece."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tiles.compiler import certify, compile_graph, control
from tiles.engine import make_engine
from tiles.errors import InvalidExecutable
from tiles.graph import Composite, Graph
from tiles.numerics.ring import to_ring
from tiles.poplibs.popops.sort_order import Order, network
from tiles.poplibs.popops.sorting import Sort, sort
from tiles.poplibs.popops.sorting_stages import SortKeys, SortPart, parts_of_rows, ways_of_rows
from tiles.report import cost_analysis

RNG = np.random.default_rng(0)
VALUES = RNG.integers(-9, 9, 300).astype(np.float32)
VALUES[[5, 60, 299]] = np.nan
VALUES[7:30:3] = -0.0
ABSOLUTE = (("abs", (0,), ()), ("abs", (1,), ()), ("compare", (4, 5), (("direction", "LT"),)))
SMALLER = (("subtract", (0, 1), ()), ("compare", (4, 1), (("direction", "LT"),)))


@pytest.fixture
def eight(gc200):
    """Eight tiles: blocks of two, four and eight are merged."""
    return gc200.replace(num_tiles=8)


def _sorted(target, arrays, engine, arithmetic="float", **how):
    graph = Graph(target)
    inputs = [graph.add_input(x.shape, x.dtype.name) for x in arrays]
    graph.outputs = [t.name for t in sort(graph, inputs, **how)]
    executable = compile_graph(graph)
    certify(executable)
    assert len(executable.composites) == 1
    found, _ = make_engine(executable, engine, arithmetic).run(*arrays)
    return [np.asarray(x) for x in found]


@pytest.mark.parametrize("width", [2, 4, 8])
def test_the_network_sorts_every_row_of_zeros_and_ones(width):
    rows = (np.arange(1 << width)[:, None] >> np.arange(width)) & 1
    for mask in network(width):
        partner = rows[:, np.arange(width) ^ mask]
        is_lower = np.arange(width) < np.arange(width) ^ mask
        rows = np.where(is_lower, np.minimum(rows, partner), np.maximum(rows, partner))
    assert (np.diff(rows, axis=1) >= 0).all()


@pytest.mark.parametrize("engine", ["literal", "vertex"])
@pytest.mark.parametrize("is_descending", [False, True])
def test_the_stages_keep_equal_elements_in_order(engine, is_descending, eight):
    values = np.concatenate([VALUES] * 2)
    position = np.arange(600, dtype=np.int32)
    columns = np.where(np.isnan(values), np.inf, values)
    order = np.argsort(-columns if is_descending else columns, kind="stable")
    found = _sorted(eight, [values, position], engine, keys=((0, is_descending, False),))
    np.testing.assert_array_equal(found[1], position[order])
    np.testing.assert_array_equal(found[0].view(np.int32), values[order].view(np.int32))


def test_several_rows_share_the_tiles_and_any_dimension_is_sorted(eight):
    values = RNG.integers(-100, 100, (300, 2, 2)).astype(np.int16)
    (found,) = _sorted(eight, [values], "literal", dimension=0)
    np.testing.assert_array_equal(found, np.sort(values, axis=0))


@pytest.mark.parametrize("comparator", [ABSOLUTE, SMALLER], ids=["by magnitude", "no order in the ring"])
def test_any_comparator_runs_the_same_network_in_stages_and_in_one_piece(comparator, eight):
    arrays = [VALUES[:100].copy(), np.arange(100, dtype=np.int32)]
    arrays[0][np.isnan(arrays[0])] = 3
    for arithmetic in ("float", "ring"):
        one, stages = (
            _sorted(eight, arrays, engine, arithmetic, keys=(), comparator=comparator)
            for engine in ("fast", "literal")
        )
        for a, b in zip(one, stages, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=arithmetic)
        if comparator is ABSOLUTE and arithmetic == "float":
            np.testing.assert_array_equal(one[1], np.argsort(np.abs(arrays[0]), kind="stable"))


def test_in_the_ring_words_are_sorted_as_the_bits_of_floats(eight):
    values = VALUES[np.isfinite(VALUES)]
    (found,) = _sorted(eight, [values], "literal", "ring")
    words = np.asarray(to_ring(values)).view(np.int32)
    order = np.argsort(words ^ ((words >> 31) & 0x7FFFFFFF), kind="stable")
    np.testing.assert_array_equal(found.view(np.int32), words[order])


def test_long_rows_are_spread_over_more_tiles_and_many_rows_are_kept_whole(gc200):
    order = Order(("float32",), ((0, False, False),))
    parts = [parts_of_rows(order, (n,), 0, gc200)[0] for n in (2, 1000, 100_000, 1_000_000)]
    assert parts[0] == 1 and parts == sorted(parts) and parts[-1] == 1024
    assert parts_of_rows(order, (8832, 32), 1, gc200)[0] == 1


@pytest.mark.parametrize("dtypes", [("float32",), ("uint32", "float32"), ("float16",)])
@pytest.mark.parametrize(
    ("shape", "dimension"), [((50,), 0), ((64, 2048), 1), ((900, 8), 0), ((3, 70_000), 1)]
)
def test_bounds_leave_the_best_way_to_sort_rows(gc200, dtypes, shape, dimension):
    order = Order(dtypes, ((0, False, False),))
    ways = list(ways_of_rows(order, shape, dimension, gc200))
    costs = {way.parts: way.cycles() for way in ways}
    assert all(way.least <= costs[way.parts] for way in ways)
    cheapest = min(costs, key=lambda parts: (costs[parts], parts))
    assert parts_of_rows(order, shape, dimension, gc200) == (cheapest, costs[cheapest])
    assert parts_of_rows(order, shape, dimension, gc200, below=min(way.least for way in ways)) == (1, np.inf)


def test_more_elements_cost_little_more_than_their_share(gc200):
    def cycles(n):
        graph = Graph(gc200)
        graph.outputs = [sort(graph, [graph.add_input((n,), "float32")])[0].name]
        return cost_analysis(compile_graph(graph))["cycles"]

    assert cycles(1_000_000) < 12 * cycles(100_000) < 6_000_000


def test_stages_by_keys_of_another_order_or_of_shorter_rows_are_refused(eight):
    executable = _composite(eight)
    (whole,) = executable.composites
    forms = [group.codelet for _, group in executable.groups()]
    (keys,) = [codelet for codelet in forms if isinstance(codelet, SortKeys)]
    assert not whole.codelet.misfit(whole.form, forms)
    for changed in ({"size": 299}, {"keys": ((0, True, False),)}, {"keys": ((0, False, True),)}):
        assert "SortKeys" in whole.codelet.misfit(whole.form, [dataclasses.replace(keys, **changed)])
    part = next(codelet for codelet in forms if isinstance(codelet, SortPart))
    for changed in ({"size": 299}, {"keys": ((0, True, True),)}):
        assert "SortPart" in whole.codelet.misfit(whole.form, [dataclasses.replace(part, **changed)])


def _composite(target):
    graph = Graph(target)
    x = graph.add_input((300,), "float32")
    graph.outputs = [sort(graph, [x])[0].name]
    assert isinstance(graph.program.steps[-1], Composite)
    return compile_graph(graph)


def test_a_composite_whose_body_does_not_leave_its_results_is_refused(eight):
    executable = _composite(eight)
    (whole,) = executable.composites
    other = next(n for n, v in executable.variables.items() if v.shape == (300,) and n in executable.inputs)
    for changed in (
        dataclasses.replace(whole, results=(other,)),
        dataclasses.replace(whole, codelet=Sort(0, ("float32",), ((0, True, False),)), results=("nothing",)),
        dataclasses.replace(whole, plan=next(g.plan for _, g in executable.groups())),
    ):
        with pytest.raises(InvalidExecutable):
            certify(dataclasses.replace(executable, composites=(changed,)))
    (body,) = [part.body for part in executable.program.parts if isinstance(part, control.Composite)]
    program = control.Sequence((control.Composite(1, body),))
    with pytest.raises(InvalidExecutable, match="composite 1 of 1"):
        certify(dataclasses.replace(executable, program=program))


def test_a_composite_is_saved_with_the_program(eight):
    executable = _composite(eight)
    again = type(executable).from_bytes(executable.to_bytes())
    assert again.composites == executable.composites
    for engine in ("fast", "literal"):
        (found,), _ = make_engine(again, engine).run(VALUES)
        np.testing.assert_array_equal(found, np.sort(VALUES))
