"""Views of tile memory against the tile of every cell: ``tile_grid`` numbers them one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tiles.engine import memory, views
from tiles.engine.placement import Placement
from tiles.graph import AxisSplit, Layout, whole
from tiles.graph.layout import tile_grid

SPLITS = {
    "none": (),
    "whole": (whole(5),),
    "one block": (AxisSplit(12, 3, ((4, 1),)), AxisSplit(6, 2, ((3, 4),))),
    "two digits, interleaved": (AxisSplit(12, 1, ((3, 8), (4, 1))), AxisSplit(4, 2, ((2, 4),))),
    "gaps": (AxisSplit(6, 2, ((3, 5),)), whole(2)),
    "backwards": (AxisSplit(8, 2, ((4, -2),)),),
    "short of its digits": (AxisSplit(21, 2, ((4, 8), (3, 1))), AxisSplit(7, 3, ((3, 40),))),
    "short of three digits": (
        AxisSplit(17, 1, ((3, 12), (3, 4), (3, 1))),
        AxisSplit(5, 2, ((2, 80), (2, 40))),
    ),
}
TILES, WORDS, WORD, COUNT = 160, 23, 4, 6


@pytest.mark.parametrize("name", SPLITS)
def test_cells_are_stored_and_loaded_where_their_tiles_are(name):
    splits = SPLITS[name]
    place = Placement(splits, 8)
    grid = place.grid
    tiles = tile_grid(splits, 8).reshape(grid)
    rng = np.random.default_rng(0)
    for repeated in itertools.product((False, True), repeat=len(grid)):
        shape = (*(1 if repeats else n for repeats, n in zip(repeated, grid, strict=True)), 2, 3)
        words = rng.integers(0, 1 << 32, shape, np.uint32)
        want = rng.integers(0, 1 << 32, (TILES, WORDS), np.uint32)
        got = want.copy()
        want[tiles.reshape(-1), WORD : WORD + COUNT] = np.broadcast_to(words, (*grid, 2, 3)).reshape(
            -1, COUNT
        )
        place.store(got, WORD, words)
        np.testing.assert_array_equal(got, want)
        drop = frozenset(d for d, repeats in enumerate(repeated) if repeats)
        np.testing.assert_array_equal(place.load(got, WORD, (2, 3), drop), words)
        assert memory.replicas_agree(got, place, WORD, COUNT, drop)
        for tile in np.unique(tiles) if drop and tiles.size > words.size // COUNT else ():
            if tile in tiles[tuple(slice(0, 1) if repeats else slice(None) for repeats in repeated)]:
                continue
            got[tile, WORD + 5] ^= 1 << 9
            assert not memory.replicas_agree(got, place, WORD, COUNT, drop)
            got[tile, WORD + 5] ^= 1 << 9


def test_what_lies_outside_memory_is_refused():
    place = Placement((AxisSplit(8, 1, ((8, 1),)),), 3)
    state = np.zeros((10, 4), np.uint32)
    with pytest.raises((TypeError, ValueError)):
        place.load(state, 0, (2,))
    with pytest.raises(AssertionError):
        Placement((), 0).load(state, 3, (2,))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint8, np.float64])
def test_copies_in_pieces_and_of_short_runs(dtype, monkeypatch):
    monkeypatch.setattr(views, "PIECE_BYTES", 64)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 200, (5, 7, 3, 6)).astype(dtype)
    for order in itertools.permutations(range(4)):
        target = np.zeros((9, 9, 9, 9), dtype)[1:6, 1:8, 1:4, 1:7].transpose(order)
        views.copy(target, x.transpose(order))
        np.testing.assert_array_equal(target, x.transpose(order))
        compact = views.compact(x.transpose(order))
        assert compact.flags.c_contiguous and compact.ctypes.data % views.ALIGNMENT_BYTES in (
            0,
            x.ctypes.data % 64,
        )
        np.testing.assert_array_equal(compact, x.transpose(order))
    views.copy(target := np.zeros((4, 6), dtype), x[0, 0, 0])
    np.testing.assert_array_equal(target, np.stack([x[0, 0, 0]] * 4))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("name", SPLITS)
def test_tensors_lie_part_by_part_and_short_parts_end_in_zeros(name, dtype):
    layout = Layout(SPLITS[name], 8)
    part, words = layout.part_shape, layout.part_bytes(dtype) // 4
    value = np.random.default_rng(1).normal(size=layout.shape).astype(dtype)
    got = np.full((TILES, 40), 7, np.uint32)
    want = got.copy()
    tiles = layout.tiles.reshape(layout.grid)
    for cell in np.ndindex(*layout.grid):
        elements = tuple(slice(i * n, (i + 1) * n) for i, n in zip(cell, part, strict=True))
        padded = np.zeros(part, dtype)
        held = value[elements]
        padded[tuple(slice(0, n) for n in held.shape)] = held
        row = padded.tobytes().ljust(4 * words, b"\0")
        want[tiles[cell], WORD : WORD + words] = np.frombuffer(row, np.uint32)
    memory.write_tensor(got, layout, WORD, value)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(memory.read_tensor(got, layout, WORD, dtype), value)
