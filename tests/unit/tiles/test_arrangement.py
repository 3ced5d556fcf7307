"""The order of elements inside a tile: against places counted one by one, and against what PopLibs' vertices read."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.random_plans import random_layout, random_order
from tiles.compiler import certify, compile_graph, step_costs
from tiles.errors import InvalidPlan
from tiles.graph import (
    ROW_MAJOR,
    Arrangement,
    AxisSplit,
    Extents,
    Graph,
    Layout,
    Plan,
    Site,
    reshape_layout,
    whole,
)
from tiles.plan.element_order import reordering_of
from tiles.plan.transpose_cycles import transpose_cycles
from tiles.poplibs import poplin, popops
from tiles.poplibs.forms import dot_form
from tiles.target import Target

GC200 = Target.named("gc200")
CHANNELS = Arrangement(((1, 0), (0, 0), (1, 8)))
"""``[C/8][N][8]`` of a tensor ``[N, C]``."""


def places(order: Arrangement, extents: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """Count a box through, digit by digit as the order says, and return the place of every element."""
    digits = order.digits or tuple((d, 0) for d in range(len(extents)))
    groups = {d: min(group, extents[d]) for d, group in digits if group}
    radices = [groups[d] if g else -(-extents[d] // groups.get(d, 1)) for d, g in digits]
    found: dict[tuple[int, ...], int] = {}
    for place, values in enumerate(itertools.product(*map(range, radices))):
        index = [0] * len(extents)
        for (d, g), value in zip(digits, values, strict=True):
            index[d] += value * (1 if g else groups.get(d, 1))
        if all(i < n for i, n in zip(index, extents, strict=True)):
            found[tuple(index)] = place
    return found


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Arrangement, tuple[int, ...]]:
    """Draw a box and an order of its elements."""
    extents = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return random_order(rng, tuple(map(whole, extents)), 1.0), extents


@given(boxes())
def test_every_element_has_the_place_that_counting_gives_it(box) -> None:
    order, extents = box
    want = places(order, extents)
    assert len(set(want.values())) == len(want) == np.prod(extents)
    for given_order in (order, order.fit(extents)):
        offsets = given_order.offsets(extents)
        assert {i: int(sum(o[j] for o, j in zip(offsets, i, strict=True))) for i in want} == want
        assert given_order.stored_elements(extents) > max(want.values())


@given(boxes(), boxes())
def test_orders_are_equal_when_every_element_has_the_same_place(box, other) -> None:
    order, extents = box
    second = other[0]
    if len(other[1]) != len(extents):
        second = ROW_MAJOR
    same = places(order, extents) == places(second, extents)
    if order.fit(extents) == second.fit(extents):
        assert same
    if order.stored_elements(extents) == second.stored_elements(extents) == np.prod(extents):
        assert same == (order.fit(extents) == second.fit(extents))


@given(
    st.integers(0, 2**32),
    st.sampled_from([((4, 6), (24,)), ((2, 3, 4), (6, 4)), ((24,), (4, 6)), ((4, 1, 6), (4, 6))]),
)
def test_a_reshape_leaves_every_element_where_it_is(seed, shapes) -> None:
    before, after = shapes
    layout = random_layout(np.random.default_rng(seed), before, 8)
    reshaped = reshape_layout(layout, after)
    if reshaped is not None:
        np.testing.assert_array_equal(addresses(layout), addresses(reshaped))


def addresses(layout: Layout) -> np.ndarray:
    """Return tile and place of every element, in row-major order, from places counted one by one."""
    inside = places(layout.arrangement, layout.part_shape)
    found = []
    for index in np.ndindex(layout.shape):
        part = [i // axis.grain for i, axis in zip(index, layout.axes, strict=True)]
        tile = layout.base + sum(int(axis.tiles[p]) for p, axis in zip(part, layout.axes, strict=True))
        found.append(
            (tile, inside[tuple(i % axis.grain for i, axis in zip(index, layout.axes, strict=True))])
        )
    return np.array(found)


def test_merging_keeps_groups_and_what_cannot_be_named_is_copied() -> None:
    grouped = Layout((whole(4), whole(6), whole(32)), 0, Arrangement(((2, 0), (0, 0), (1, 0), (2, 8))))
    merged = reshape_layout(grouped, (24, 32))
    assert merged is not None and merged.arrangement == CHANNELS
    split = reshape_layout(merged, (24, 2, 16))
    assert split is not None and str(split.arrangement) == "1,2/8,0,2%8"
    assert reshape_layout(merged, (768,)) is None
    assert reshape_layout(grouped, (4, 192)) is None


def test_what_would_cut_groups_of_the_merged_dimension_is_copied() -> None:
    """Rows of 3 lie in groups of 2, the last one short; rows of 9 cut into parts of 3 would begin inside groups."""
    rows = Layout(
        (AxisSplit(3, 1, ((3, 1),)), whole(3), whole(4)), 0, Arrangement(((0, 0), (1, 0), (2, 0), (1, 2)))
    )
    assert reshape_layout(rows, (9, 4)) is None


@pytest.mark.parametrize(
    ("digits", "reason"),
    [
        (((0, 0), (0, 0)), "twice"),
        (((0, 4), (0, 0)), "before their elements"),
        (((0, 4),), "before their elements"),
        (((-1, 0),), "before their elements"),
    ],
)
def test_orders_that_are_none(digits, reason) -> None:
    with pytest.raises(InvalidPlan, match=reason):
        Arrangement(digits)


def test_parts_begin_at_whole_groups() -> None:
    with pytest.raises(InvalidPlan, match="groups of 8 of dimension 1, cut as"):
        Layout((whole(4), AxisSplit(40, 20, ((2, 1),))), 0, CHANNELS)
    with pytest.raises(InvalidPlan, match="does not count the dimensions"):
        Layout((whole(4), whole(5)), 0, Arrangement(((0, 0),)))
    assert Layout((whole(4), whole(20)), 0, CHANNELS).part_bytes("float32") == 4 * 24 * 4  # filled up


# ---- what contractions want


def matmul_order(rows: int, inner: int, columns: int, dtype: str) -> Arrangement:
    form = dot_form((rows, inner), (inner, columns), (), (), (1,), (0,))
    sizes = tuple(np.array([dim.size]) for dim in form.dims)
    codelet = poplin.matmul_codelet(dtype, dtype)
    (order,) = codelet.arrangements(Extents(form, sizes, (dtype, dtype), (dtype,)), GC200)
    names = {dim.name: d for d, dim in enumerate(form.dims)}
    assert list(names) == ["m0", "n0", "k0"]
    return order


@pytest.mark.parametrize(("dtype", "channels"), [("float16", 16), ("float32", 8)])
def test_the_units_read_channels_in_groups_of_what_one_of_them_holds(dtype, channels) -> None:
    """PopLibs' inChansPerGroup: the weights of a convolution unit; its partialChansPerGroup: the units."""
    plan = Plan((whole(512), whole(64), whole(256)), 0, matmul_order(512, 256, 64, dtype))
    form = dot_form((512, 256), (256, 64), (), (), (1,), (0,))
    grouped = ((1, 0), (0, 0), (1, channels))
    assert plan.operand_order(form, 0).fit((512, 256)) == Arrangement(grouped)
    assert plan.operand_order(form, 1).fit((256, 64)) == Arrangement(((0, 0), (1, 0), (0, channels)))
    units = GC200.conv_units(dtype, "float32")
    assert plan.result_layout(form).arrangement == Arrangement(((1, 0), (0, 0), (1, units)))


def test_integers_are_multiplied_as_they_lie() -> None:
    assert matmul_order(64, 64, 64, "int32") == ROW_MAJOR


def test_what_is_held_in_another_order_is_turned_in_blocks() -> None:
    """[64, 32] held row-major, read with its first dimension in groups of 16: blocks of 16 x 32 are transposed."""
    wanted = Arrangement(((0, 0), (1, 0), (0, 16)))
    found = reordering_of(Layout((whole(64), whole(32))), wanted, (64, 32), 2)
    assert found is not None and (found.rows, found.columns, found.arrives_as_stored) == (16, 32, True)
    need = np.array([64 * 32])
    by_hand = transpose_cycles(4, 16, 32, 2, GC200).value
    assert found.cycles(need, need, 2, GC200) == by_hand
    narrow = Layout(
        (AxisSplit(64, 1, ((64, 1),)), AxisSplit(32, 3, ((11, 64),)))
    )  # it arrives three by three
    assert reordering_of(narrow, wanted, (64, 32), 2) == dataclasses.replace(found, together=3)
    kept = reordering_of(Layout((whole(64), whole(32)), 0, wanted), wanted, (64, 32), 2)
    assert kept is not None and kept.is_kept and kept.together == 64 * 32


def chain(target: Target) -> Graph:
    """A product, a function of it, and the product with the same weights transposed, as a gradient has it."""
    graph = Graph(target)
    x, w = graph.add_input((64, 64), "float32", "x"), graph.add_input((64, 64), "float32", "w")
    y = popops.tanh(Site(graph, "tanh"), poplin.matmul(Site(graph, "forward"), x, w))
    back = poplin.dot_general(Site(graph, "backward"), y, w, (((1,), (1,)), ((), ())))
    graph.outputs = [y.name, back.name]
    return graph


def test_weights_wait_as_their_first_reader_wants_them_and_are_turned_for_the_second() -> None:
    graph = chain(GC200.replace(num_tiles=4))
    executable = compile_graph(graph)
    certify(executable)
    costs = {cost.name: cost for cost in step_costs(executable)}
    forward = next(name for name in costs if name.startswith("forward"))
    assert not costs[forward].traffic.reordering.any()
    w = executable.variables["w"].layout
    assert w.arrangement.digits and w.arrangement.digits[-1] in ((0, 8), (0, 0))
    reordered = [c for name, c in costs.items() if name.startswith("backward") and c.traffic.reordering.any()]
    assert reordered
    assert all(c.tile_compute_cycles.max() >= c.traffic.reordering.max() for c in reordered)
    tanh = next(g for _, g in executable.groups() if g.name == "tanh")
    source, result = (executable.variables[v].layout for v in (tanh.operands[0].variable, tanh.results[0]))
    assert source.arrangement == result.arrangement  # it goes on in the order it finds


@pytest.mark.parametrize("sizes", [(128, 1024, 1024), (256, 2048, 512), (96, 1024, 1536), (128, 2048, 2048)])
def test_a_share_of_partials_arrives_in_few_runs_of_each(sizes: tuple[int, int, int]) -> None:
    """Shares are cut from what is slowest in memory, groups of channels stay together; rows that wrap make a second run.

    Two runs take two changes of source and as many of the pointer; of four that follow one another the pointer need not change.
    """
    rows, inner, columns = sizes
    graph = Graph(GC200)
    x, w = graph.add_input((rows, inner), "float32", "x"), graph.add_input((inner, columns), "float32", "w")
    graph.outputs = [poplin.matmul(Site(graph, "dot"), x, w).name]
    executable = compile_graph(graph)
    certify(executable)
    partials = executable.variables["dot.partials"].layout.axes[0].parts
    moved = next(cost.traffic for cost in step_costs(executable) if cost.name == "dot.combine")
    assert partials > 1
    assert (
        moved.selects + moved.pointers
    ).max() <= 4 * partials + 2  # pointers around what the tile has itself
