"""Layouts by example: mixed radices, short parts, words, reshapes that keep every part and those that cannot."""

from __future__ import annotations

import numpy as np
import pytest

from tiles.errors import InvalidPlan
from tiles.graph import AxisSplit, Layout, linear_layout, reshape_layout, whole
from tiles.graph.layout import align_up, ceil_div, mask_of, tile_grid, tiles_of


def test_a_part_index_is_read_in_mixed_radix_slowest_digit_first() -> None:
    split = AxisSplit(12, 2, ((2, 100), (3, 10)))
    assert split.parts == 6
    assert split.tiles.tolist() == [0, 10, 20, 100, 110, 120]
    assert split.lo.tolist() == [0, 2, 4, 6, 8, 10]


def test_the_last_part_may_be_short() -> None:
    split = AxisSplit(10, 4, ((3, 1),))
    assert (split.hi - split.lo).tolist() == [4, 4, 2]


def test_an_empty_dimension_has_one_empty_part() -> None:
    split = whole(0)
    assert (split.parts, split.lo.tolist(), split.hi.tolist()) == (1, [0], [0])
    assert Layout((split, whole(3))).part_bytes("float32") == 0


@pytest.mark.parametrize(
    ("size", "grain", "digits"), [(8, 2, ((3, 1),)), (8, 0, ()), (-1, 1, ()), (8, 4, ())], ids=str
)
def test_a_split_needs_digits_for_its_parts(size: int, grain: int, digits: tuple) -> None:
    with pytest.raises(InvalidPlan):
        AxisSplit(size, grain, digits)


def test_a_layout_is_the_product_of_its_splits() -> None:
    layout = Layout((AxisSplit(4, 2, ((2, 1),)), AxisSplit(6, 2, ((3, 2),))), 5)
    assert layout.tiles.reshape(2, 3).tolist() == [[5, 7, 9], [6, 8, 10]]
    assert layout.part_shape == (2, 2)
    assert layout.part_of_tile(12).tolist() == [-1] * 5 + [0, 3, 1, 4, 2, 5, -1]
    assert str(layout) == "[4/2@2x1, 6/2@3x2]+5"


def test_parts_take_whole_words() -> None:
    assert Layout((whole(3),)).part_bytes("float16") == 8
    assert Layout((whole(3),)).part_bytes("bool") == 4
    assert Layout((whole(3),)).part_bytes("float64") == 24
    assert Layout(()).part_bytes("uint8") == 4


def test_tile_sets_are_bits() -> None:
    tiles = np.array([3, 0, 64])
    assert mask_of(tiles) == 1 | 1 << 3 | 1 << 64
    assert tiles_of(mask_of(tiles)).tolist() == [0, 3, 64]
    assert tiles_of(0).tolist() == []
    assert (ceil_div(7, 4), ceil_div(8, 4), align_up(7, 4)) == (2, 2, 8)


@pytest.mark.parametrize(
    ("shape", "dtype", "tiles", "parts"),
    [
        ((1024,), "float32", 16, 16),
        ((64,), "float32", 16, 2),
        ((31,), "float32", 16, 1),
        ((3, 5, 7), "float32", 100, 3),
        ((), "int32", 8, 1),
    ],
)
def test_a_linear_layout_keeps_128_bytes_a_tile(shape, dtype, tiles, parts) -> None:
    assert linear_layout(shape, dtype, tiles).tiles.size == parts


ROWS = AxisSplit(6, 2, ((3, 4),))


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        ((ROWS, whole(4)), (24,), (AxisSplit(24, 8, ((3, 4),)),)),
        ((ROWS, whole(4)), (3, 8), (AxisSplit(3, 1, ((3, 4),)), whole(8))),
        ((ROWS, whole(4)), (3, 2, 4), (AxisSplit(3, 1, ((3, 4),)), whole(2), whole(4))),
        ((ROWS, whole(4)), (2, 12), None),  # a part would be half a row
        ((ROWS, whole(4)), (6, 1, 4), (ROWS, whole(1), whole(4))),
        (
            (AxisSplit(2, 1, ((2, 1),)), AxisSplit(3, 1, ((3, 2),))),
            (6,),
            (AxisSplit(6, 1, ((2, 1), (3, 2))),),
        ),
        ((whole(4), AxisSplit(6, 2, ((3, 1),))), (24,), None),  # a part is no run of the flat tensor
        (  # what one digit counts, three do
            (AxisSplit(128, 4, ((32, 5),)),),
            (2, 2, 32),
            (AxisSplit(2, 1, ((2, 80),)), AxisSplit(2, 1, ((2, 40),)), AxisSplit(32, 4, ((8, 5),))),
        ),
        ((AxisSplit(24, 2, ((12, 1),)),), (3, 8), (AxisSplit(3, 1, ((3, 4),)), AxisSplit(8, 2, ((4, 1),)))),
        ((AxisSplit(20, 2, ((12, 1),)),), (2, 10), None),  # five of twelve, of which two are nobody's
    ],
)  # fmt: skip
def test_a_reshaped_layout_keeps_the_parts_or_is_none(axes, shape, expected) -> None:
    layout = Layout(axes, 7)
    found = reshape_layout(layout, shape)
    assert found == (None if expected is None else Layout(expected, 7))
    if found is not None:
        assert _tiles(found) == _tiles(layout)


def _tiles(layout: Layout) -> list[int]:
    """Return the tile of every element, row-major."""
    parts = [np.arange(axis.size) // axis.grain for axis in layout.axes]
    tiles = tile_grid(layout.axes, layout.base).reshape([axis.parts for axis in layout.axes])
    return tiles[np.ix_(*parts)].reshape(-1).tolist()


def test_shapes_of_other_sizes_have_no_common_layout() -> None:
    assert reshape_layout(Layout((whole(4),)), (5,)) is None
    assert reshape_layout(Layout((whole(0), whole(3))), (0, 2)) is None


def test_shared_tile_arrays_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Layout((whole(3),)).tiles[0] = 1
