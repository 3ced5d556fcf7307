"""Updates by any expression, and the last of many, under given plans: against a loop over the lookups."""

import numpy as np
import pytest

from tests.unit.tiles.poplibs_cells import extents_of
from tests.unit.tiles.test_poplibs_runtime import FRESH, UPDATE, _plan
from tiles.compiler import certify, compile_graph
from tiles.engine import coverage_of, make_engine
from tiles.errors import InvalidGraph, NoTileCode
from tiles.graph import Graph, OpForm, Site
from tiles.numerics.ring import to_ring
from tiles.poplibs.popops.updating import MultiUpdate
from tiles.poplibs.popops.updating_by import UpdateBy, UpdateLast
from tiles.poplibs.poputil import place

RNG = np.random.default_rng(1)
TABLES = RNG.integers(-9, 9, (2, 13, 6)).astype(np.float32)
ROWS = RNG.integers(-9, 9, (2, 5, 6)).astype(np.float32)
IDS = np.array([4, 12, 4, 99, 4], np.int32)
BODY = (("multiply", (0, 3), ()), ("subtract", (2, 1), ()))
"""New elements ``(a * d, c - b)`` of old ones ``a, b`` and updates ``c, d``: neither order nor tensor can be mixed up."""
TWO = OpForm(
    UPDATE.dims,
    (*UPDATE.operands[:1] * 2, *UPDATE.operands[1:2] * 2, UPDATE.operands[2]),
    UPDATE.results * 2,
)


def _run(target, codelet, form, parts, dtypes, *arrays):
    graph = Graph(target)
    inputs = [graph.add_input(x.shape, x.dtype.name) for x in arrays]
    found = place(Site(graph, "update"), codelet, form, inputs, dtypes, plan=_plan(form, **parts))
    graph.outputs = [t.name for t in found]
    executable = compile_graph(graph)
    certify(executable)
    assert coverage_of(executable).vertices_share == 1  # all of it has code
    engines = ("fast", "float"), ("literal", "ring"), ("vertex", "ring"), ("tile", "float"), ("tile", "ring")
    for engine, arithmetic in engines:
        results, _ = make_engine(executable, engine, arithmetic).run(*arrays)
        yield f"{engine} {arithmetic}", arithmetic, [np.asarray(x) for x in results]


@pytest.mark.parametrize("parts", [{}, {"r": 5, "d": 2}])
@pytest.mark.parametrize("ids", [IDS, np.array([5, 1, 0, -1, 12], np.int32)], ids=["repeated", "unique"])
def test_every_place_is_updated_in_the_order_of_the_lookups(ids, parts, small_target):
    is_unique = len(set(ids)) == len(ids)
    codelet = UpdateBy((0,), (-1,), BODY, (4, 5), ("float32", "float32"), is_unique)
    results = _run(small_target, codelet, TWO, parts, ("float32", "float32"), *TABLES, *ROWS, ids)
    for where, arithmetic, found in results:
        word = (lambda x: np.asarray(to_ring(x))) if arithmetic == "ring" else np.array
        (a, b), (c, d) = ([word(x).copy() for x in pair] for pair in (TABLES, ROWS))
        for n, row in enumerate(ids):
            if 0 <= row < 13:
                a[row], b[row] = a[row] * d[n], c[n] - b[row]
        for got, expected in zip(found, (a, b), strict=True):
            np.testing.assert_array_equal(got, expected, err_msg=where)


@pytest.mark.parametrize("parts", [{}, {"i": 3}, {"r": 3, "d": 2, "i": 2}])
def test_the_last_update_of_a_place_holds_however_lookups_are_split(parts, small_target):
    codelet = UpdateLast((0,), (-1,), "float32")
    form = OpForm(FRESH.dims, FRESH.operands, FRESH.results * 2)
    last = np.full((13, 6), -1)
    for n, row in enumerate(IDS):
        last[row if row < 13 else slice(0)] = n
    for where, arithmetic, found in _run(
        small_target, codelet, form, parts, ("int32", "float32"), ROWS[0], IDS
    ):
        np.testing.assert_array_equal(found[0], last, err_msg=where)
        rows = np.asarray(to_ring(ROWS[0])) if arithmetic == "ring" else ROWS[0]
        expected = np.take_along_axis(rows, np.maximum(last, 0), axis=0)
        np.testing.assert_array_equal(found[1][last >= 0], expected[last >= 0], err_msg=where)


def test_an_expression_of_other_types_is_refused():
    with pytest.raises(InvalidGraph, match="other dtypes"):
        UpdateBy((0,), (-1,), (("compare", (0, 1), (("direction", "LT"),)),), (2,), ("float32",))


def test_updates_of_doubles_from_their_neutral_element_have_no_code(small_target):
    form = OpForm(FRESH.dims, FRESH.operands, FRESH.results)
    extents = extents_of(form, ("float64", "int32"), ("float64",))
    with pytest.raises(NoTileCode, match="values of float64"):
        MultiUpdate((0,), (-1,), "min", "float64", is_fresh=True).tile_code(extents, small_target)
