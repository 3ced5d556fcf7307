"""Plans and home layouts that the planner derives: legal, covering every element once, resident where they say so."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_exchange import MOST_TILES, layouts, reads, splits
from tiles.compiler import proof_tables
from tiles.errors import InvalidPlan
from tiles.graph import (
    PARALLEL,
    REDUCTION,
    Affine,
    AxisSplit,
    Dim,
    IndexMap,
    Layout,
    OpForm,
    Plan,
    along,
    whole,
)
from tiles.plan import Operand, follow, is_resident, operand_slices, operand_traffic, preferred_layout, search
from tiles.poplibs.poplin.matmul import matmul_codelet
from tiles.poplibs.popops.reduce import Reduce
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=MOST_TILES)
DTYPES = st.sampled_from(["float32", "float16", "uint8"])


@st.composite
def matmuls(draw: st.DrawFn) -> OpForm:
    """Return the form of a matrix product, its operands in either order of dimensions."""
    sizes = [draw(st.integers(1, 9)) for _ in range(3)]
    dims = tuple(
        Dim(name, size, kind)
        for name, size, kind in zip("mnk", sizes, (PARALLEL, PARALLEL, REDUCTION), strict=True)
    )
    maps = [
        IndexMap(tuple(along(d) for d in draw(st.permutations(pair)))) for pair in ((0, 2), (2, 1), (0, 1))
    ]
    return OpForm(dims, (maps[0], maps[1]), (maps[2],))


def shape_of(form: OpForm, k: int) -> tuple[int, ...]:
    return tuple(form.dims[axis.terms[0][0]].size for axis in form.operands[k].axes)


def assert_covers(layout: Layout, num_tiles: int) -> None:
    """Every element on exactly one existing tile."""
    table = proof_tables.layout_table(layout)
    assert table.tiles.min() >= 0 and table.tiles.max() < num_tiles
    assert np.unique(table.tiles).size == table.tiles.size
    flat = table.flat(np.arange(table.tiles.size))
    assert sorted(flat[flat >= 0].tolist()) == list(range(math.prod(layout.shape)))


def assert_computes_once(form: OpForm, plan: Plan) -> None:
    """Every result element (and partial) computed by exactly one cell, where the result's layout puts it."""
    table = proof_tables.result_table(form, plan, 0)
    layout = plan.result_layout(form)
    assert layout.shape == table.shape
    flat = table.flat(np.arange(table.tiles.size))
    assert sorted(flat[flat >= 0].tolist()) == list(range(math.prod(table.shape)))
    parts = proof_tables.layout_table(layout)
    held = parts.flat(proof_tables.holder_on(parts, MOST_TILES + 4)[table.tiles])
    np.testing.assert_array_equal(held, flat)


@given(matmuls(), st.data())
def test_results_lie_where_their_cells_compute_them(form, data) -> None:
    plan = Plan(*data.draw(splits(form.shape)))
    plan.check(form, MOST_TILES + 4)
    try:
        plan.result_layout(form)
    except InvalidPlan:
        assert plan.splits[2].parts % math.prod(radix for radix, _ in plan.splits[2].digits[1:])
        return
    assert_computes_once(form, plan)


@given(matmuls(), DTYPES, st.data())
def test_home_layouts_keep_every_element_with_a_reader(form, dtype, data) -> None:
    plan = Plan(*data.draw(splits(form.shape)))
    for k in (0, 1):
        layout = preferred_layout(form, plan, k, shape_of(form, k), dtype, TARGET)
        assert layout.shape == shape_of(form, k)
        assert_covers(layout, MOST_TILES + 4)
        readers = proof_tables.operand_table(form, plan, k, layout.shape)
        cell = proof_tables.holder_on(readers, MOST_TILES + 4)
        parts = proof_tables.layout_table(layout)
        for part, tile in enumerate(parts.tiles):
            held = parts.flat(np.array([part]))[0]
            read = readers.flat(cell[tile][None])[0] if cell[tile] >= 0 else []
            assert set(held[held >= 0]) <= set(read)


@given(reads(), DTYPES)
def test_home_layouts_of_any_map_cover_every_element(case, dtype) -> None:
    form, plan, shape = case
    assert_covers(preferred_layout(form, plan, 0, shape, dtype, TARGET), MOST_TILES + 4)


@given(matmuls(), st.data())
def test_a_plan_that_follows_an_operand_reads_it_in_place(form, data) -> None:
    codelet = matmul_codelet("float32", "float32")
    k = data.draw(st.integers(0, 1))
    layout = data.draw(layouts(shape_of(form, k)))
    plan = follow(form, codelet, k, Operand(layout.shape, "float32", layout), TARGET)
    if plan is None:
        assert layout.tiles.max() >= TARGET.num_tiles or any(
            axis.parts % math.prod(r for r, _ in axis.digits[1:]) for axis in layout.axes if axis.is_split
        )
        return
    plan.check(form, TARGET.num_tiles)
    assert is_resident(form, plan, k, layout)
    assert_computes_once(form, plan)


@given(reads(), st.data())
def test_a_plan_that_follows_any_map_is_legal(case, data) -> None:
    form, _, shape = case
    codelet = Reduce((), "add", ("float32",), "float32", "float32")
    layout = data.draw(layouts(shape))
    plan = follow(form, codelet, 0, Operand(shape, "float32", layout), TARGET)
    if plan is None:
        return
    plan.check(form, TARGET.num_tiles)
    plan.result_layout(form)
    plain = all(
        not a.terms or (len(a.terms) == 1 and a.terms[0][1] == 1 and not a.offset)
        for a in form.operands[0].axes
    )
    sizes = [1 if not a.terms else form.dims[a.terms[0][0]].size for a in form.operands[0].axes]
    if plain and sizes == list(shape) and not any(a.offset for a in form.operands[0].axes):
        assert is_resident(form, plan, 0, layout)


@given(matmuls(), st.data())
def test_searched_plans_are_legal_and_compute_every_element_once(form, data) -> None:
    operands = [
        Operand(shape_of(form, k), "float32", data.draw(st.one_of(st.none(), layouts(shape_of(form, k)))))
        for k in (0, 1)
    ]
    target = TARGET.replace(num_tiles=MOST_TILES + 4)
    priced = search(form, matmul_codelet("float32", "float32"), operands, ("float32",), target)
    assert priced
    for candidate in priced:
        candidate.plan.check(form, target.num_tiles)
        assert_computes_once(form, candidate.plan)
        for k, operand in enumerate(operands):
            operand_slices(form, candidate.plan, k, operand.shape)


@given(st.integers(1, 3), st.integers(2, 6), st.integers(1, 3), st.integers(1, 4))
def test_an_image_waits_beside_the_tiles_that_read_its_windows(stride, parts, grain, taps) -> None:
    """The cells of the same windows hold what these reach over, but for what is beyond their own part."""
    outputs = parts * grain
    dims = (Dim("y", outputs), Dim("o", 4), Dim("k", taps, REDUCTION), Dim("i", 8, REDUCTION))
    size = stride * (outputs - 1) + taps
    image = IndexMap((Affine(((0, stride), (2, 1))), along(3)))
    form = OpForm(dims, (image, IndexMap((along(2), along(3), along(1)))), (IndexMap((along(0), along(1))),))
    plan = Plan((AxisSplit(outputs, grain, ((parts, 2),)), AxisSplit(4, 2, ((2, 1),)), whole(taps), whole(8)))
    layout = preferred_layout(form, plan, 0, (size, 8), "float32", TARGET)
    moved = operand_traffic(layout, form, plan, 0, (size, 8), "float32", TARGET)
    beyond = max(taps - stride, 0) + (size - stride * (outputs - grain) > stride * grain)  # of other parts
    assert moved.received[plan.tiles].max() <= 4 * 8 * (stride * grain // 2 + beyond + 4)
    assert moved.local[plan.tiles].reshape(parts, 2).sum(axis=1).min() > 0
