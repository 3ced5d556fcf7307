"""Codelets at runtime offsets under given plans: split tables and lookups give the words of whole ones."""

import numpy as np
import pytest

from tests.unit.tiles.poplibs_cells import extents_of
from tiles.compiler import certify, compile_graph
from tiles.engine import coverage_of, make_engine
from tiles.errors import InvalidGraph, InvalidPlan
from tiles.graph import (
    REDUCTION,
    AxisSplit,
    Dim,
    Graph,
    IndexMap,
    OpForm,
    Plan,
    Site,
    along,
    identity_map,
    whole,
)
from tiles.numerics.ring import to_ring
from tiles.planning import Planner
from tiles.poplibs import popops
from tiles.poplibs.popops import MultiSlice, MultiUpdate
from tiles.poplibs.poprand import random_bits
from tiles.poplibs.poputil import place
from tiles.target import Basis, Target

RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((13, 6)).astype(np.float32)
TABLE[4] = [-0.0, 0.0, np.inf, -np.inf, 1e-45, -1.0]
IDS = np.array([4, 12, 0, 4, 9], np.int32)
ROWS = RNG.standard_normal((5, 6)).astype(np.float32)


@pytest.fixture
def graph(small_target) -> Graph:
    return Graph(small_target)


def _plan(form, **parts):
    """Cut dimensions by name into parts, each on tiles of its own."""
    splits, stride = [], 1
    for dim in form.dims:
        count = parts.get(dim.name, 1)
        if count == 1:
            splits.append(whole(dim.size))
            continue
        grain = -(-dim.size // count)
        splits.append(AxisSplit(dim.size, grain, ((-(-dim.size // grain), stride),)))
        stride *= -(-dim.size // grain)
    return Plan(tuple(splits))


def _run(graph, results, *inputs):
    """Yield each engine's results, as floats or as ring words, and certify the executable."""
    graph.outputs = [t.name for t in results]
    executable = compile_graph(graph)
    certify(executable)
    for engine, arithmetic in (("fast", "float"), ("literal", "ring"), ("vertex", "float")):
        found, _ = make_engine(executable, engine, arithmetic).run(*inputs)
        yield f"{engine} {arithmetic}", arithmetic, [np.asarray(x) for x in found]


def _expected(x, arithmetic):
    return np.asarray(to_ring(x)) if arithmetic == "ring" else x


LOOKUP = OpForm(
    (Dim("i", 5), Dim("d", 6), Dim("r", 13, REDUCTION)),
    (IndexMap((along(2), along(1))), IndexMap((along(0),))),
    (identity_map(2),),
)
UPDATE = OpForm(
    (Dim("r", 13), Dim("d", 6), Dim("i", 5, REDUCTION)),
    (identity_map(2), IndexMap((along(2), along(1))), IndexMap((along(2),))),
    (identity_map(2),),
)
FRESH = OpForm(UPDATE.dims, UPDATE.operands[1:], UPDATE.results)


@pytest.mark.parametrize("parts", [{"r": 5, "i": 3}, {"r": 3, "d": 2, "i": 2}])
def test_lookups_in_a_split_table_keep_every_bit(parts, graph):
    table = graph.add_input(TABLE.shape, "float32")
    ids = graph.add_input(IDS.shape, "int32")
    codelet = MultiSlice((0,), (-1,), "float32")
    plan = _plan(LOOKUP, **parts)
    rows = place(Site(graph, "lookup"), codelet, LOOKUP, [table, ids], ("float32",), plan=plan)
    assert Planner().plan(graph).program.steps[-1].whole.codelet == codelet
    for where, arithmetic, (found,) in _run(graph, rows, TABLE, IDS):
        expected = _expected(TABLE, arithmetic)[IDS]
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32), err_msg=where)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float64"])
def test_split_lookups_of_every_width(dtype, graph):
    values = (TABLE[:, :6] * 3).clip(-9, 9).astype(np.int8 if dtype == "uint8" else np.float32).astype(dtype)
    table = graph.add_input(values.shape, dtype)
    ids = graph.add_input(IDS.shape, "int32")
    codelet = MultiSlice((0,), (-1,), dtype)
    plan = _plan(LOOKUP, r=4, i=2)
    rows = place(Site(graph, "lookup"), codelet, LOOKUP, [table, ids], (dtype,), plan=plan)
    for where, arithmetic, (found,) in _run(graph, rows, values, IDS):
        np.testing.assert_array_equal(found, _expected(values, arithmetic)[IDS], err_msg=where)


@pytest.mark.parametrize("operation", ["set", "add", "max"])
@pytest.mark.parametrize("parts", [{"r": 5, "d": 3}])
def test_updates_of_a_split_table(operation, parts, graph):
    table = graph.add_input(TABLE.shape, "float32")
    rows = graph.add_input(ROWS.shape, "float32")
    ids = graph.add_input(IDS.shape, "int32")
    codelet = MultiUpdate((0,), (-1,), operation, "float32")
    plan = _plan(UPDATE, **parts)
    result = place(Site(graph, "update"), codelet, UPDATE, [table, rows, ids], ("float32",), plan=plan)
    apply = {"set": None, "add": np.add, "max": np.maximum}[operation]
    for where, arithmetic, (found,) in _run(graph, result, TABLE, ROWS, IDS):
        expected, new = _expected(TABLE, arithmetic).copy(), _expected(ROWS, arithmetic)
        for number, row in zip(IDS, new, strict=True):
            expected[number] = row if apply is None else apply(expected[number], row)
        np.testing.assert_allclose(found, expected, rtol=1e-6 if arithmetic == "float" else 0, err_msg=where)


@pytest.mark.parametrize("parts", [{"i": 2}, {"i": 5, "r": 3}])
def test_updates_split_over_lookups_are_summed(parts, graph):
    rows = graph.add_input(ROWS.shape, "float32")
    ids = graph.add_input(IDS.shape, "int32")
    codelet = MultiUpdate((0,), (-1,), "add", "float32", is_fresh=True)
    result = place(
        Site(graph, "update"), codelet, FRESH, [rows, ids], ("float32",), plan=_plan(FRESH, **parts)
    )
    assert Planner().plan(graph).program.steps[-1].whole.codelet == codelet
    for where, arithmetic, (found,) in _run(graph, result, ROWS, IDS):
        expected = np.zeros_like(_expected(TABLE, arithmetic))
        np.add.at(expected, IDS, _expected(ROWS, arithmetic))
        np.testing.assert_allclose(found, expected, rtol=1e-6 if arithmetic == "float" else 0, err_msg=where)


WINDOW = OpForm(
    (Dim("t", 4), Dim("d", 6), Dim("r", 13, REDUCTION)),
    (IndexMap((along(2), along(1))), IndexMap(())),
    (identity_map(2),),
)
INTO = OpForm(
    (Dim("r", 13), Dim("d", 6), Dim("t", 4, REDUCTION)),
    (identity_map(2), IndexMap((along(2), along(1))), IndexMap(())),
    (identity_map(2),),
)


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
@pytest.mark.parametrize("parts", [{"r": 5}, {"r": 2, "t": 2}, {"r": 5, "d": 2}])
def test_slices_and_updates_of_parts_are_tile_code(parts, arithmetic, graph):
    """Where a window begins in one part and ends in another, or is moved inside; every vertex runs its code."""
    table = graph.add_input(TABLE.shape, "float32")
    rows = graph.add_input((4, 6), "float32")
    start = graph.add_input((), "int32")
    taken = MultiSlice((0,), (0,), "float32")
    put = MultiUpdate((0,), (2,), "set", "float32", is_clamped=True)
    plans = _plan(WINDOW, **parts), _plan(INTO, r=parts["r"])
    found = place(Site(graph, "slice"), taken, WINDOW, [table, start], ("float32",), plan=plans[0])
    after = place(Site(graph, "update"), put, INTO, [table, rows, start], ("float32",), plan=plans[1])
    graph.outputs = [found[0].name, after[0].name]
    executable = compile_graph(graph)
    coverage = coverage_of(executable, arithmetic)
    assert coverage.vertices_share == 1, coverage
    words, new = _expected(TABLE, arithmetic), _expected(ROWS[:4], arithmetic)
    for at in (0, 1, 5, 9, 12, -3):
        inputs = TABLE, ROWS[:4], np.int32(at)
        results, _ = make_engine(executable, "tile", arithmetic).run(*inputs)
        first = min(max(at, 0), 9)
        np.testing.assert_array_equal(np.asarray(results[0]), words[first : first + 4])
        np.testing.assert_array_equal(
            np.asarray(results[1]), np.concatenate([words[:first], new, words[first + 4 :]])
        )


OUT_OF = OpForm(
    (Dim("t", 4), Dim("u", 2), Dim("k", 3), Dim("r", 13, REDUCTION), Dim("d", 6, REDUCTION)),
    (IndexMap((along(3), along(4), along(2))), IndexMap(()), IndexMap(())),
    (identity_map(3),),
)
BLOCK_INTO = OpForm(
    (Dim("r", 13), Dim("d", 6), Dim("k", 3), Dim("t", 4, REDUCTION), Dim("u", 2, REDUCTION)),
    (identity_map(3), IndexMap((along(3), along(4), along(2))), IndexMap(()), IndexMap(())),
    (identity_map(3),),
)


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
@pytest.mark.parametrize("parts", [{}, {"r": 5}, {"r": 2, "d": 3, "t": 2}])
def test_blocks_of_parts_are_tile_code(parts, arithmetic, graph):
    """Offsets along two axes: what falls into no part is zero there, and every vertex runs its code."""
    values = RNG.standard_normal((13, 6, 3)).astype(np.float32)
    new = RNG.standard_normal((4, 2, 3)).astype(np.float32)
    table = graph.add_input(values.shape, "float32")
    block = graph.add_input(new.shape, "float32")
    starts = [graph.add_input((), "int32") for _ in range(2)]
    taken = MultiSlice((0, 1), (0, 1), "float32")
    put = MultiUpdate((0, 1), (3, 4), "set", "float32", is_clamped=True)
    plans = _plan(OUT_OF, **parts), _plan(BLOCK_INTO, **{k: n for k, n in parts.items() if k != "t"})
    found = place(Site(graph, "slice"), taken, OUT_OF, [table, *starts], ("float32",), plan=plans[0])
    after = place(
        Site(graph, "update"), put, BLOCK_INTO, [table, block, *starts], ("float32",), plan=plans[1]
    )
    graph.outputs = [found[0].name, after[0].name]
    executable = compile_graph(graph)
    assert coverage_of(executable, arithmetic).vertices_share == 1
    words, put_in = _expected(values, arithmetic), _expected(new, arithmetic)
    for i, j in ((0, 0), (3, 1), (9, 4), (12, -3), (-1, 9)):
        inputs = values, new, np.int32(i), np.int32(j)
        results, _ = make_engine(executable, "tile", arithmetic).run(*inputs)
        a, b = min(max(i, 0), 9), min(max(j, 0), 4)
        expected = words.copy()
        expected[a : a + 4, b : b + 2] = put_in
        np.testing.assert_array_equal(np.asarray(results[0]), words[a : a + 4, b : b + 2])
        np.testing.assert_array_equal(np.asarray(results[1]), expected)


def test_what_cannot_be_cut_is_refused(graph):
    table = graph.add_input(TABLE.shape, "float32")
    rows = graph.add_input(ROWS.shape, "float32")
    ids = graph.add_input(IDS.shape, "int32")
    codelet = MultiUpdate((0,), (-1,), "set", "float32")
    with pytest.raises(InvalidPlan, match="cuts dimension i of 5 into 2"):
        place(
            Site(graph, "update"), codelet, UPDATE, [table, rows, ids], ("float32",), plan=_plan(UPDATE, i=2)
        )
    with pytest.raises(InvalidPlan, match="cuts dimension d1 of 6"):
        form = OpForm((Dim("d0", 13), Dim("d1", 6)), (identity_map(2),), (identity_map(2),))
        popops.sort(graph, [table], 1, plan=_plan(form, d1=2))


def test_bits_do_not_depend_on_how_they_are_cut(graph):
    state = graph.add_input((2,), "uint64")
    after, bits = random_bits(graph, state, (9, 11), "uint32", "threefry")
    form = OpForm((Dim("d0", 9), Dim("d1", 11)), (), (identity_map(2),))
    again, cut = random_bits(graph, state, (9, 11), "uint32", "threefry", plan=_plan(form, d0=3, d1=4))
    given = np.array([5, 2**32 - 7], np.uint64)
    for where, _, (one, other, a, b) in _run(graph, (bits, cut, after, again), given):
        np.testing.assert_array_equal(one, other, err_msg=where)
        np.testing.assert_array_equal(a, [5, 2**32 - 7 + 9 * 6], err_msg=where)
        np.testing.assert_array_equal(a, b)


def test_slices_that_do_not_fit_are_refused(graph):
    table = graph.add_input(TABLE.shape, "float32")
    start = graph.add_input((), "int32")
    with pytest.raises(InvalidGraph, match="does not fit"):
        popops.dynamic_slice(graph, table, [start, start], (14, 2))
    with pytest.raises(InvalidGraph, match="cannot be updated with int32"):
        popops.dynamic_update_slice(graph, table, graph.add_input((2, 2), "int32"), [start, start])
    with pytest.raises(InvalidGraph, match="not all of them have a start"):
        popops.dynamic_slice(graph, table, [None, None], (3, 2))


# --- cycles, by hand from the public estimators (lib/popops/PerformanceEstimation.cpp)


def _cycles(codelet, form, dtypes, sizes):
    extents = extents_of(form, dtypes, (codelet.dtype,), sizes)
    return int(codelet.cycles(extents, Target.named("gc200")).value[0])


@pytest.mark.parametrize(
    ("dtype", "copies", "fill"),
    [("float32", 2 * 32, 23 + 3200), ("float16", 2 * 32, 26 + 1600), ("int8", 3 * 16, 39 + 800)],
)
def test_a_lookup_copies_two_elements_at_once_and_four_bytes_of_single_ones(dtype, copies, fill):
    """600 lookups of 64 elements over six workers, in half of the rows; elsewhere zeros, which are filled in before."""
    dims = (Dim("i", 600), Dim("d", 64), Dim("r", 1000, REDUCTION))
    form = OpForm(dims, LOOKUP.operands, LOOKUP.results)
    codelet = MultiSlice((0,), (-1,), dtype)
    slots = 30 + 50 * (19 + copies) + 50 * 8
    assert _cycles(codelet, form, (dtype, "int32"), (600, 64, 500)) == 6 * (slots + fill)
    whole = 30 + 100 * (19 + copies)
    assert _cycles(codelet, form, (dtype, "int32"), (600, 64, 1000)) == 6 * whole


@pytest.mark.parametrize(
    ("dtype", "slots"), [("float32", 39 + 3 * 44), ("float16", 39 + 3 * 34), ("int8", 76 + 3 * 82)]
)
def test_a_dynamic_update_takes_what_a_dynamic_slice_does(dtype, slots):
    """Three rows of 120 elements at one offset, 20 of each row to a worker: one estimator states both."""
    dims = (Dim("t", 3), Dim("d", 120), Dim("r", 50, REDUCTION))
    sliced = OpForm(dims, (IndexMap((along(2), along(1))), IndexMap(())), (IndexMap((along(0), along(1))),))
    extents = extents_of(sliced, (dtype, "int32"), (dtype,), (3, 120, 50))
    slice_ = MultiSlice((0,), (0,), dtype).cycles(extents, Target.named("gc200"))
    dims = (Dim("t", 50), Dim("d", 120), Dim("u", 3, REDUCTION))
    whole, part = IndexMap((along(0), along(1))), IndexMap((along(2), along(1)))
    updated = OpForm(dims, (whole, part, IndexMap(())), (whole,))
    extents = extents_of(updated, (dtype, dtype, "int32"), (dtype,), (50, 120, 3))
    update = MultiUpdate((0,), (2,), "set", dtype, is_clamped=True).cycles(extents, Target.named("gc200"))
    assert int(slice_.value[0]) == int(update.value[0]) == 25 + 6 * slots
    assert slice_.basis is update.basis is Basis.DOCUMENTED


@pytest.mark.parametrize("operation", ["add", "sub"])
@pytest.mark.parametrize(
    ("dtype", "row", "frame", "each"),
    [
        ("float32", 64, 32, 11 + 63 * 3),
        ("float16", 64, 33, 12 + 31 * 3),
        ("float16", 63, 33, 12 + 63 * 20),
    ],
)
def test_workers_own_rows_and_see_all_updates(operation, dtype, row, frame, each):
    """600 updates of half of 1,000 rows: a worker owns 84 and finds 51 of them; C++ adds rows that end inside a word.

    PopLibs' vertex multiplies by a factor, so that subtracting is adding.
    """
    dims = (Dim("r", 1000), Dim("d", row), Dim("i", 600, REDUCTION))
    form = OpForm(dims, UPDATE.operands, UPDATE.results)
    extents = extents_of(form, (dtype, dtype, "int32"), (dtype,), (500, row, 600))
    found = MultiUpdate((0,), (-1,), operation, dtype).cycles(extents, Target.named("gc200"))
    assert int(found.value[0]) == 6 * (frame + 51 * each + 549 * 5)
    assert found.basis is Basis.DOCUMENTED
