"""Slices, layouts and exchange volumes against brute force: every element and every cell, one at a time."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tiles.compiler import proof_tables
from tiles.errors import Unsupported
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
    linear_layout,
    reshape_layout,
    unsplit_plan,
    whole,
)
from tiles.graph.layout import mask_of, tiles_of
from tiles.numerics.dtypes import itemsize
from tiles.plan import (
    OUTSIDE,
    UNUSED,
    exchange_code_bytes,
    is_resident,
    layout_slices,
    operand_slices,
    reshape_traffic,
    traffic,
)
from tiles.target import Target

MOST_TILES = 40
MACHINE = Target.named("gc200").replace(num_tiles=MOST_TILES + 4)
DTYPES = st.sampled_from(["float32", "float16", "uint8", "float64"])


# ---- generating layouts, plans and forms


@st.composite
def splits(draw: st.DrawFn, sizes: tuple[int, ...]) -> tuple[tuple[AxisSplit, ...], int]:
    """Return one split per size on distinct tiles below ``MOST_TILES``, with digits in any order, and a first tile."""
    radices: list[list[int]] = []
    grains = []
    room = MOST_TILES - 4
    for size in sizes:
        grain = draw(st.integers(1, max(1, size)))
        if -(-size // grain) > room:
            grain = max(1, size)
        parts = max(1, -(-size // grain))
        own: list[int] = []
        if parts > 1:
            inner = draw(st.sampled_from([r for r in range(1, parts + 1) if r * -(-parts // r) <= room]))
            own = [-(-parts // inner), inner] if inner > 1 else [parts]
        room //= max(1, math.prod(own))
        radices.append(own)
        grains.append(grain)
    order = draw(st.permutations([(d, i) for d, own in enumerate(radices) for i in range(len(own))]))
    strides: dict[tuple[int, int], int] = {}
    stride = 1
    for d, i in order:
        strides[d, i] = stride
        stride *= radices[d][i]
    axes = tuple(
        AxisSplit(size, grain, tuple((radix, strides[d, i]) for i, radix in enumerate(radices[d])))
        for d, (size, grain) in enumerate(zip(sizes, grains, strict=True))
    )
    return axes, draw(st.integers(0, 3))


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    return Layout(*draw(splits(shape)))


SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)


@st.composite
def reads(draw: st.DrawFn) -> tuple[OpForm, Plan, tuple[int, ...]]:
    """Return a form with one operand, a plan, and the operand's shape: strides, offsets, windows, fills."""
    dims = tuple(
        Dim(f"d{d}", draw(st.integers(1, 6)), draw(st.sampled_from([PARALLEL, REDUCTION])))
        for d in range(draw(st.integers(0, 3)))
    )
    free = list(draw(st.permutations(range(len(dims)))))
    axes, shape = [], []
    for _ in range(draw(st.integers(0, 3))):
        terms = [
            (free.pop(), draw(st.sampled_from([1, 1, 2, 3, -1, -2])))
            for _ in range(min(len(free), draw(st.sampled_from([0, 1, 1, 1, 2]))))
        ]
        axes.append(Affine(tuple(terms), draw(st.sampled_from([0, 0, 1, -1, 3]))))
        low = axes[-1].offset + sum(min(0, c * (dims[d].size - 1)) for d, c in terms)
        high = axes[-1].offset + sum(max(0, c * (dims[d].size - 1)) for d, c in terms)
        if draw(st.booleans()):  # wholly inside
            axes[-1] = Affine(tuple(terms), axes[-1].offset - min(low, 0))
            high -= min(low, 0)
            shape.append(high + 1 + draw(st.integers(0, 2)))
        else:
            shape.append(draw(st.integers(0, 7)))
    parallel = tuple(Affine(((d, 1),)) for d, dim in enumerate(dims) if not dim.is_reduced)
    form = OpForm(dims, (IndexMap(tuple(axes), 0.0),), (IndexMap(parallel),))
    plan = Plan(*draw(splits(form.shape)))
    return form, plan, tuple(shape)


# ---- brute force


def owner_of(layout: Layout, index: tuple[int, ...]) -> int:
    """Return the tile that holds an element."""
    tile = layout.base
    for axis, i in zip(layout.axes, index, strict=True):
        part = i // axis.grain
        for radix, stride in reversed(axis.digits):
            tile += part % radix * stride
            part //= radix
    return tile


def cells_of(plan: Plan):
    """Yield every cell: its tile and the range of each dimension."""
    for cell in itertools.product(*(range(max(1, -(-s.size // s.grain))) for s in plan.splits)):
        ranges = [
            range(g * s.grain, min((g + 1) * s.grain, s.size)) for g, s in zip(cell, plan.splits, strict=True)
        ]
        tile = owner_of(
            Layout(plan.splits, plan.base), tuple(g * s.grain for g, s in zip(cell, plan.splits, strict=True))
        )
        yield tile, ranges


def slice_of(axis: Affine, ranges: list[range]) -> list[int]:
    """Return the indices a cell reads along one operand axis: in order of one dimension, or the hull of several."""
    points = [
        axis.offset + sum(c * i for (_, c), i in zip(axis.terms, p, strict=True))
        for p in itertools.product(*(ranges[d] for d, _ in axis.terms))
    ]
    return points if len(axis.terms) < 2 or not points else list(range(min(points), max(points) + 1))


def brute_traffic(source: Layout, held: list[tuple[int, list[tuple[int, ...]]]], dtype: str, num_tiles: int):
    """Return received, sent and local bytes, and those that both tiles of a pair receive.

    Args:
      source: where the elements lie.
      held: per holder its tile and the elements it takes.
      dtype: the elements' type.
      num_tiles: tiles of the target.
    """
    received, local = np.zeros(num_tiles, int), np.zeros(num_tiles, int)
    leaving: list[set[tuple[int, ...]]] = [set() for _ in range(num_tiles)]
    for tile, elements in held:
        for element in elements:
            origin = owner_of(source, element)
            if origin == tile:
                local[tile] += 1
            else:
                received[tile] += 1
                leaving[origin].add(element)
    in_bytes = lambda counts: -(-np.asarray(counts) * itemsize(dtype) // 4) * 4  # noqa: E731
    together = in_bytes(arriving_for_all(source, held, num_tiles))
    return in_bytes(received), in_bytes([len(x) for x in leaving]), in_bytes(local), together


def arriving_for_all(source, held, num_tiles) -> np.ndarray:
    """Count, per tile, the elements that reach both tiles of its pair and lie on neither."""
    taken = {tile: set(elements) for tile, elements in held}
    counts = np.zeros(num_tiles, int)
    for tile in range(num_tiles):
        mine, other = taken.get(tile), taken.get(tile ^ 1)
        if mine and mine == other:
            counts[tile] = sum(owner_of(source, e) not in (tile, tile ^ 1) for e in mine)
    return counts


def place_of(extents: tuple[int, ...], lists: list[list[int]], element: tuple[int, ...]) -> int:
    """Return where in a slice's buffer, stored row by row at ``extents``, an element lies."""
    place = 0
    for extent, indices, i in zip(extents, lists, element, strict=True):
        place = place * extent + indices.index(i)
    return place


def inside(lists: list[list[int]], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [e for e in itertools.product(*lists) if all(0 <= i < n for i, n in zip(e, shape, strict=True))]


def place_in_part(layout: Layout, index: tuple[int, ...]) -> int:
    """Return where in its part, stored row by row at full extents, an element lies."""
    place = 0
    for axis, i in zip(layout.axes, index, strict=True):
        place = place * min(axis.grain, max(1, axis.size)) + i % axis.grain
    return place


def brute_program(source: Layout, held: list[tuple[int, list[tuple[int, ...]]]], places, num_tiles: int):
    """Return the runs each tile sends, and its changes of source and of pointer if parts arrive one after another.

    Args:
      source: where the elements lie.
      held: per holder its tile and the elements it takes.
      places: per holder where each of its elements is written.
      num_tiles: tiles of the target.
    """
    leaving: list[set[int]] = [set() for _ in range(num_tiles)]
    selects, jumps, in_order = (np.zeros(num_tiles, int) for _ in range(3))
    for (tile, elements), written in zip(held, places, strict=True):
        arriving = []
        for element, at in zip(elements, written, strict=True):
            origin = owner_of(source, element)
            if origin != tile:
                arriving.append((origin, place_in_part(source, element), at))
                leaving[origin].add(place_in_part(source, element))
        arriving.sort()
        for before, (origin, place, at) in zip([(-1, -1, -2), *arriving], arriving, strict=False):
            selects[tile] += before[:2] != (origin, place - 1)
            jumps[tile] += before[2] != at - 1
        targets = sorted(at for *_, at in arriving)
        in_order[tile] += sum(a != b - 1 for a, b in zip([-2, *targets], targets, strict=False))
    runs = np.array([sum(p - 1 not in places_ for p in places_) for places_ in leaving])
    return runs, selects, jumps, in_order


def padded(
    source: Layout, axes: tuple[Affine, ...], lists: list[list[list[int]]]
) -> tuple[Layout, list[list[list[int]]]]:
    """Return a source and the indices of every cell, prolonged where the padding of short parts travels along.

    That is where cells read exactly the parts along an axis, of which the last is short, and rows of it lie apart.
    """
    splits, found = list(source.axes), [list(cell) for cell in lists]
    for a, split in enumerate(source.axes):
        if not split.is_split or split.size % split.grain == 0 or len(axes[a].terms) != 1:
            continue
        parts = [
            list(range(lo, min(lo + split.grain, split.size))) for lo in range(0, split.size, split.grain)
        ]
        has_rows = any(min(s.grain, s.size) > 1 for s in source.axes[:a])
        if not has_rows or sorted({tuple(cell[a]) for cell in lists}) != sorted(map(tuple, parts)):
            continue
        splits[a] = AxisSplit(split.grain * split.parts, split.grain, split.digits)
        for cell in found:
            cell[a] = list(range(cell[a][0], cell[a][0] + split.grain))
    return Layout(tuple(splits), source.base), found


def assert_traffic(
    moved, source, held, dtype, num_tiles, places=None, is_inside=True, program=None, has_steps=False
):
    received, sent, local, together = brute_traffic(source, held, dtype, num_tiles)
    assert np.all(moved.shared <= together)
    np.testing.assert_array_equal(moved.received, received)
    np.testing.assert_array_equal(moved.sent, sent)
    np.testing.assert_array_equal(moved.local, local)
    messages = received // min(4, itemsize(dtype))  # less than a word may come from each of several tiles
    for counts, moves, most in (
        (moved.selects, received, messages),
        (moved.pointers, received, received // 4),
        (moved.runs, sent, sent // 4),
    ):
        np.testing.assert_array_equal(counts > 0, moves > 0)
        assert np.all(counts <= most)
    assert np.all(moved.sends >= moved.runs) and np.all(moved.sends <= sent // 4)
    # each word its own pointer, each message its own source; each word its own wait and send
    one_by_one = messages + received // 4 + 2 * sent // 4
    assert np.all(exchange_code_bytes(moved, MACHINE) <= one_by_one * MACHINE.instruction_bytes)
    if places is None or itemsize(dtype) < 4:
        return
    runs, selects, jumps, in_order = brute_program(*(program or (source, held, places)), num_tiles)
    runs = np.minimum(runs, sent // 4)
    if has_steps:  # what one tile reads last of a row may lie beside what another reads first of the next
        assert np.all(moved.runs >= runs), "runs"
    else:
        np.testing.assert_array_equal(moved.runs, runs, err_msg="runs")
    selects = np.minimum(selects, received // 4)
    assert np.all(moved.selects >= selects), "selects"  # a part that is not full may be taken in pieces
    assert np.all(moved.pointers >= np.minimum(jumps, in_order)), "pointers"
    if local.any() or any(axis.size % axis.grain for axis in source.axes) or not is_inside:
        return
    np.testing.assert_array_equal(moved.selects, selects, err_msg="selects")
    assert np.all(moved.pointers <= np.maximum(jumps, in_order)), "pointers"


# ---- layouts


@given(SHAPES.flatmap(layouts))
def test_a_layout_puts_parts_on_the_tiles_its_digits_say(layout: Layout) -> None:
    corners = itertools.product(*(range(0, max(1, a.size), a.grain) for a in layout.axes))
    assert layout.tiles.tolist() == [owner_of(layout, corner) for corner in corners]
    assert len(set(layout.tiles.tolist())) == layout.tiles.size
    assert tiles_of(layout.tile_mask).tolist() == sorted(layout.tiles.tolist())
    assert mask_of(layout.tiles) == sum(1 << int(t) for t in layout.tiles)
    assert layout.part_of_tile(MOST_TILES + 4)[layout.tiles].tolist() == list(range(layout.tiles.size))


@given(SHAPES.flatmap(layouts))
def test_a_layout_survives_its_plain_data(layout: Layout) -> None:
    assert Layout.from_data(layout.to_data()) == layout


@given(SHAPES, DTYPES, st.integers(1, MOST_TILES))
def test_a_linear_layout_covers_every_element_on_existing_tiles(shape, dtype, num_tiles) -> None:
    layout = linear_layout(shape, dtype, num_tiles, 4)
    assert layout.shape == shape
    assert len(set(layout.tiles.tolist())) == layout.tiles.size
    assert layout.tiles.min() >= 0 and layout.tiles.max() < num_tiles


def parts_in_order(layout: Layout) -> dict[int, list[int]]:
    """Return per tile the row-major numbers of the elements it holds, in the order of its memory."""
    shape = layout.shape
    held: dict[int, list[int]] = {}
    for index in itertools.product(*map(range, shape)):
        flat = 0
        for i, n in zip(index, shape, strict=True):
            flat = flat * n + i
        held.setdefault(owner_of(layout, index), []).append(flat)
    return held


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Layout, tuple[int, ...]]:
    """Return a layout and another shape of as many elements."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5]), min_size=1, max_size=4))
    assume(math.prod(factors) <= 120)

    def shape() -> tuple[int, ...]:
        merged, run = [], 1
        for factor in factors:
            run *= factor
            if draw(st.booleans()):
                merged.append(run)
                run = 1
        return (*merged, run)

    return draw(layouts(shape())), shape()


@given(reshapes())
def test_a_reshaped_layout_leaves_every_element_where_it_is(case) -> None:
    layout, shape = case
    found = reshape_layout(layout, shape)
    if found is None:
        return
    assert found.shape == shape
    assert parts_in_order(found) == parts_in_order(layout)
    flat = np.arange(math.prod(shape))
    for mine, its in zip(proof_tables.places(found, flat), proof_tables.places(layout, flat), strict=True):
        np.testing.assert_array_equal(mine, its)


@given(reshapes(), st.randoms())
def test_reshapes_that_only_add_or_drop_unit_dimensions_keep_every_layout(case, random) -> None:
    layout, _ = case
    shape = [n for n in layout.shape if n != 1]
    for _ in range(random.randrange(3)):
        shape.insert(random.randrange(len(shape) + 1), 1)
    assert reshape_layout(layout, tuple(shape)) is not None


# ---- slices


@given(reads())
def test_slices_are_the_indices_a_cell_reads(case) -> None:
    form, plan, shape = case
    slices = operand_slices(form, plan, 0, shape)
    assert slices.tiles.tolist() == [tile for tile, _ in cells_of(plan)]
    for a, axis in enumerate(slices.axes):
        wanted = [slice_of(form.operands[0].axes[a], ranges) for _, ranges in cells_of(plan)]
        assert axis.extent == max(map(len, wanted))
        for cell, indices in enumerate(wanted):
            g = slices.coordinates[a][cell]
            marked = [i if 0 <= i < shape[a] else OUTSIDE for i in indices]
            assert axis.index[g].tolist() == marked + [UNUSED] * (axis.extent - len(indices))
            real = [i for i in indices if 0 <= i < shape[a]]
            assert axis.num_inside[g] == len(real)
            low, high = (bound[g] for bound in axis.bounds)
            assert (low, high) == (min(real), max(real)) if real else low > high
            first, last = (bound[g] for bound in axis.inside)
            assert [p for p, i in enumerate(indices) if 0 <= i < shape[a]] == list(range(first, last + 1))


@given(reads(), st.integers(0, 7), st.integers(0, 7))
def test_overlap_counts_the_indices_in_a_range(case, lo, hi) -> None:
    form, plan, shape = case
    slices = operand_slices(form, plan, 0, shape)
    for a, axis in enumerate(slices.axes):
        rows = np.arange(axis.first.size)
        found = axis.overlap(rows, np.full(rows.size, lo), np.full(rows.size, min(hi, shape[a])))
        wanted = [sum(lo <= i < min(hi, shape[a]) for i in axis.index[g] if i >= 0) for g in rows]
        assert found.tolist() == wanted


_READ_OF_NOTHING = OpForm(
    tuple(Dim(f"d{d}", 1) for d in range(3)),
    (IndexMap((Affine((), 0), Affine((), 1)), 0.0),),
    (IndexMap(tuple(Affine(((d, 1),), 0) for d in range(3)), None),),
)
NOTHING_INSIDE = _READ_OF_NOTHING, unsplit_plan(_READ_OF_NOTHING), (0, 2)
"""A read of a tensor that has no elements along one axis and some along the next."""


@given(reads())
@example(NOTHING_INSIDE)
def test_proof_tables_enumerate_the_same_slices(case) -> None:
    form, plan, shape = case
    slices, table = operand_slices(form, plan, 0, shape), proof_tables.operand_table(form, plan, 0, shape)
    np.testing.assert_array_equal(slices.tiles, table.tiles)
    assert slices.extents == table.extents
    for axis, where, rows, index in zip(
        slices.axes, slices.coordinates, table.rows, table.index, strict=True
    ):
        np.testing.assert_array_equal(axis.index[where], index[rows])
    lists = [[slice_of(a, ranges) for a in form.operands[0].axes] for _, ranges in cells_of(plan)]
    flat = table.flat(np.arange(table.tiles.size))
    for cell, axes in enumerate(lists):
        wanted = sorted(int(np.ravel_multi_index(e, shape)) if shape else 0 for e in inside(axes, shape))
        assert sorted(flat[cell][flat[cell] >= 0].tolist()) == wanted
        along = [index[rows[cell]].tolist() for rows, index in zip(table.rows, table.index, strict=True)]
        assert flat[cell].tolist() == [
            min(place)
            if min(place, default=0) < 0
            else int(np.ravel_multi_index(place, shape))
            if shape
            else 0
            for place in itertools.product(*along)
        ]


@given(reads(), st.data())
def test_operands_are_resident_exactly_when_each_slice_is_its_tiles_part(case, data) -> None:
    form, plan, shape = case
    layout = Layout(plan.splits, plan.base) if len(shape) == len(plan.splits) else None
    if layout is None or layout.shape != shape or data.draw(st.booleans()):
        layout = data.draw(layouts(shape))
    resident = is_resident(form, plan, 0, layout)
    held = parts_in_order(layout)
    same = True
    for tile, ranges in cells_of(plan):
        lists = [slice_of(a, ranges) for a in form.operands[0].axes]
        outside = any(not 0 <= i < n for indices, n in zip(lists, shape, strict=True) for i in indices)
        flat = [int(np.ravel_multi_index(e, shape)) if shape else 0 for e in inside(lists, shape)]
        same = same and not outside and held.get(tile, []) == flat
    if resident:
        assert same and set(held) <= set(plan.tiles.tolist())
    elif same and 0 not in shape and layout.base == plan.base:
        assert (
            any(a.offset or len(a.terms) != 1 for a in form.operands[0].axes)
            or len(plan.tiles) > len(layout.tiles)
            or shape_is_odd(form, plan, layout)
        )


def shape_is_odd(form: OpForm, plan: Plan, layout: Layout) -> bool:
    """Whether residency may be missed: a size that differs, a reversal of one element, or tiles numbered otherwise."""
    for axis, split in zip(form.operands[0].axes, layout.axes, strict=True):
        d, c = axis.terms[0]
        if form.dims[d].size != split.size or c != 1 or plan.splits[d].grain != split.grain:
            return True
        if not np.array_equal(plan.splits[d].tiles, split.tiles):
            return True
    return False


# ---- exchange


@given(reads(), DTYPES, st.data())
def test_traffic_is_what_brute_force_counts(case, dtype, data) -> None:
    form, plan, shape = case
    source = data.draw(layouts(shape))
    tiles = MOST_TILES + 4
    slices = operand_slices(form, plan, 0, shape)
    moved = traffic(source, slices, dtype, MACHINE)
    held = [
        (tile, inside([slice_of(a, ranges) for a in form.operands[0].axes], shape))
        for tile, ranges in cells_of(plan)
    ]
    places = [
        [place_of(slices.extents, [slice_of(a, ranges) for a in form.operands[0].axes], e) for e in elements]
        for (_, elements), (_, ranges) in zip(held, cells_of(plan), strict=True)
    ]
    is_inside = all(np.all(axis.num_inside == axis.extent) for axis in slices.axes)
    axes = form.operands[0].axes
    longer, lists = padded(
        source, axes, [[slice_of(a, ranges) for a in axes] for _, ranges in cells_of(plan)]
    )
    filled = [(tile, inside(each, longer.shape)) for (tile, _), each in zip(held, lists, strict=True)]
    filled_places = [
        [place_of(slices.extents, each, e) for e in elements]
        for (_, elements), each in zip(filled, lists, strict=True)
    ]
    program = longer, filled, filled_places
    has_steps = any(step != 1 for axis in axes for _, step in axis.terms)
    assert_traffic(moved, source, held, dtype, tiles, places, is_inside, program, has_steps)
    if slices.replication > 1 and len({tuple(elements) for _, elements in held}) * slices.replication == len(
        held
    ):
        in_bytes = -(-arriving_for_all(source, held, tiles) * itemsize(dtype) // 4) * 4
        np.testing.assert_array_equal(moved.shared, in_bytes)


@given(SHAPES, DTYPES, st.data())
def test_traffic_of_a_relayout_is_what_brute_force_counts(shape, dtype, data) -> None:
    source, target = data.draw(layouts(shape)), data.draw(layouts(shape))
    tiles = MOST_TILES + 4
    held: dict[int, list[tuple[int, ...]]] = {}
    for index in itertools.product(*map(range, shape)):
        held.setdefault(owner_of(target, index), []).append(index)
    for moved in (
        traffic(source, layout_slices(target, shape), dtype, MACHINE),
        reshape_traffic(source, target, dtype, MACHINE),
    ):
        assert_traffic(moved, source, list(held.items()), dtype, tiles)


def test_traffic_of_a_reshape_of_many_elements_takes_as_little_as_its_stretches() -> None:
    """Two hundred million elements in few stretches, by hand; lists of elements would take tens of gigabytes."""
    rows, columns = 96, 2_000_000
    source = Layout((AxisSplit(rows, 3, ((32, 1),)), whole(columns)))
    flat = Layout((AxisSplit(rows * columns, 4 * columns, ((24, 1),)),))
    moved = reshape_traffic(source, flat, "float32", MACHINE)
    stays = [sum(row // 3 == tile for row in range(4 * tile, 4 * tile + 4)) for tile in range(24)]
    received = np.zeros(MACHINE.num_tiles, np.int64)
    received[:24] = [(4 - n) * columns * 4 for n in stays]
    np.testing.assert_array_equal(moved.received, received)
    np.testing.assert_array_equal(moved.local[:24], [n * columns * 4 for n in stays])
    assert moved.sent.sum() == received.sum()
    tracemalloc.start()
    with_ones = Layout((*source.axes, whole(1)))
    np.testing.assert_array_equal(reshape_traffic(with_ones, flat, "float32", MACHINE).received, received)
    assert tracemalloc.get_traced_memory()[1] < 200 << 20  # an axis of one element is gone through 2e8 times
    tracemalloc.stop()
    with pytest.raises(Unsupported, match="stretches"):
        by_column = Layout((whole(rows), AxisSplit(columns, 1, ((2, 1), (columns // 2, 0)))))
        reshape_traffic(by_column, flat, "float32", MACHINE)
    with pytest.raises(Unsupported, match="of one axis on one tile"):  # a table of it would take 8 GB
        reshape_traffic(
            Layout((whole(10**9),)), Layout((AxisSplit(10**9, 1, ((10**9, 0),)),)), "float32", MACHINE
        )


@given(st.data(), DTYPES)
def test_traffic_of_a_join_is_what_brute_force_counts(data, dtype) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    joined = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
    target = data.draw(layouts(joined))
    tiles, offset = MOST_TILES + 4, 0
    for size in sizes:
        piece = (*shape[:axis], size, *shape[axis + 1 :])
        source = data.draw(layouts(piece))
        moved = traffic(source, layout_slices(target, piece, axis, offset), dtype, MACHINE)
        held: dict[int, list[tuple[int, ...]]] = {}
        for index in itertools.product(*map(range, piece)):
            placed = (*index[:axis], index[axis] + offset, *index[axis + 1 :])
            held.setdefault(owner_of(target, placed), []).append(index)
        assert_traffic(moved, source, list(held.items()), dtype, tiles)
        offset += size


def test_a_whole_axis_is_one_part() -> None:
    assert whole(5).parts == 1 and whole(0).parts == 1 and whole(5).tiles.tolist() == [0]
