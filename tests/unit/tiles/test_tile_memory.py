"""Moves in tile memory against the tile of every cell: ``tile_grid`` numbers them one by one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.tiles.executable_programs import compiled
from tiles.compiler import Executable
from tiles.engine import addresses, make_engine, views
from tiles.engine.memory import POISON, TileMemory
from tiles.engine.operands import StoredOperand
from tiles.engine.supersteps import Agreement, Collected, Exchange
from tiles.graph import AxisSplit, Layout, whole
from tiles.graph.layout import tile_grid
from tiles.plan.slices import AxisSlices, Slices
from tiles.target import Target

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
TILES, WORDS, SOURCE, WORD = 160, 60, 4, 40


def filled(seed: int = 0) -> TileMemory:
    """Return a memory of random words."""
    memory = TileMemory(TILES, WORDS)
    memory.words[:] = np.random.default_rng(seed).integers(0, 1 << 32, (TILES, WORDS), np.uint32)
    return memory


def operand(
    splits: tuple[AxisSplit, ...], layout: Layout, slices: Slices, dtype: str, fill: float | None = None
) -> StoredOperand:
    value = None if fill is None else np.asarray(fill, dtype)
    return StoredOperand("x", layout, SOURCE, True, splits, 8, slices, WORD, dtype, value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bool"])
@pytest.mark.parametrize("name", SPLITS)
def test_tensors_lie_part_by_part(name, dtype):
    layout = Layout(SPLITS[name], 8)
    part, words = layout.part_shape, layout.part_bytes(dtype) // 4
    value = (np.random.default_rng(1).normal(size=layout.shape) * 3).astype(dtype)
    memory = filled()
    want = memory.words.copy()
    tiles = layout.tiles.reshape(layout.grid)
    size = value.dtype.itemsize
    for cell in np.ndindex(*layout.grid):
        held = value[tuple(slice(i * n, (i + 1) * n) for i, n in zip(cell, part, strict=True))]
        row = (
            want[tiles[cell], WORD : WORD + words].view(value.dtype)[: np.prod(part, dtype=int)].reshape(part)
        )
        row[tuple(slice(0, n) for n in held.shape)] = held
    assert np.prod(part, dtype=int) * size <= words * 4
    tensor = memory.tensor(layout, WORD, dtype)
    tensor.write(value)
    np.testing.assert_array_equal(memory.words, want)
    got = tensor.read()
    assert got.dtype == value.dtype and not np.may_share_memory(got, memory.words)
    np.testing.assert_array_equal(got, value)


def sliced(rng: np.random.Generator, splits: tuple[AxisSplit, ...], repeats: tuple[bool, ...]) -> Slices:
    """Return what cells read of a tensor whose axes are the dimensions along which cells do not repeat."""
    axes = tuple(
        AxisSlices(split.size, (d,), (split.parts,), split.lo, split.hi - split.lo, 1)
        for d, split in enumerate(splits)
        if not repeats[d]
    )
    return Slices(axes, tuple(s.parts for s in splits), tile_grid(splits, 8))


@pytest.mark.parametrize("dtype", ["uint32", "uint16"])
@pytest.mark.parametrize("name", SPLITS)
def test_every_cell_gets_its_slice_wherever_the_parts_lie(name, dtype):
    splits, rng = SPLITS[name], np.random.default_rng(2)
    for repeats in itertools.product((False, True), repeat=len(splits)):
        slices = sliced(rng, splits, repeats)
        shape = tuple(axis.size for axis in slices.axes)
        value = rng.integers(0, 1 << 16, shape).astype(dtype)
        for grain in (1, 2, 3):
            grains = [min(grain, n) for n in shape]
            strides = np.cumprod([1, *(-(-n // g) for n, g in zip(shape, grains, strict=True))])
            parts = [
                AxisSplit(n, g, ((-(-n // g), int(s)),))
                for n, g, s in zip(shape, grains, strides, strict=False)
            ]
            layout = Layout(tuple(parts), 1)
            held = operand(splits, layout, slices, dtype)
            memory = filled()
            memory.tensor(layout, SOURCE, dtype).write(value)
            before = memory.words.copy()
            Exchange(memory, [held]).run()
            untouched = np.ones((TILES, WORDS), bool)
            for cell, tile in zip(np.ndindex(*slices.grid), slices.tiles, strict=True):
                place = dict(zip((d for d, r in enumerate(repeats) if not r), slices.axes, strict=True))
                bounds = [
                    slice(a.first[cell[d]], a.first[cell[d]] + a.count[cell[d]]) for d, a in place.items()
                ]
                row = memory.words[tile, WORD : WORD + held.words].view(dtype)
                got = row[: np.prod(slices.extents, dtype=int)].reshape(slices.extents)
                want = value[tuple(bounds)]
                np.testing.assert_array_equal(got[tuple(slice(0, n) for n in want.shape)], want)
                untouched[tile, WORD : WORD + held.words] = False
            np.testing.assert_array_equal(memory.words[untouched], before[untouched])
            np.testing.assert_array_equal(Collected(memory, [[held]]).read()[0][0], value)
            assert not Agreement(memory, [held]).differing()
            if not held.is_repeated:
                continue
            agreement = Agreement(memory, [held])
            for tile in np.unique(slices.tiles)[:: max(1, slices.tiles.size // 5)]:
                memory.words[tile, WORD + held.words - 1] ^= 1 << 9
                assert agreement.differing() == ["x"]
                memory.words[tile, WORD + held.words - 1] ^= 1 << 9


@pytest.mark.parametrize(("first", "count", "step"), [(0, 5, 2), (8, 5, -2), (-1, 6, 1), (4, 6, 1)])
def test_slices_that_overlap_skip_or_reach_outside(first, count, step):
    """Three cells along the axis, each two elements on from the one before; two cells read each slice."""
    splits = (AxisSplit(3, 1, ((3, 2),)), AxisSplit(2, 1, ((2, 1),)))
    starts = first + 2 * np.arange(3) * (1 if step > 0 else -1) * (step % 2 or 2)
    size = 13 if step > 0 else 9
    axis = AxisSlices(size, (0,), (3,), starts, np.array([count, count, count - 1]), step)
    slices = Slices((axis,), (3, 2), tile_grid(splits, 8))
    layout = Layout((AxisSplit(size, 3, ((5, 1),)),), 20)
    value = np.random.default_rng(3).normal(size=size).astype(np.float32)
    held = operand(splits, layout, slices, "float32", -7.0)
    memory = filled()
    memory.tensor(layout, SOURCE, "float32").write(value)
    Exchange(memory, [held]).run()
    for cell, tile in zip(np.ndindex(3, 2), slices.tiles, strict=True):
        index = starts[cell[0]] + step * np.arange(axis.count[cell[0]])
        inside = (index >= 0) & (index < size)
        want = np.where(inside, value[np.where(inside, index, 0)], np.float32(-7))
        np.testing.assert_array_equal(memory.words[tile, WORD : WORD + want.size].view(np.float32), want)
    read = np.zeros(size, bool)
    read[axis.index[axis.index >= 0]] = True
    np.testing.assert_array_equal(Collected(memory, [[held]]).read()[0][0], np.where(read, value, 0))
    agreement = Agreement(memory, [held])
    assert not agreement.differing()
    if not held.is_split_once:  # the same wrong word in both copies of one slice
        position = next(p for p in range(count) if (axis.index == axis.index[0, p]).sum() > 1)
        memory.words[[8, 9], WORD + position] += 1
        assert agreement.differing() == ["x"]


def test_nothing_is_written_before_all_is_read_where_a_slice_lands_on_a_source():
    """A vector's parts are sent one tile on, to the address where they lie."""
    split = AxisSplit(12, 3, ((4, 1),))
    slices = sliced(np.random.default_rng(0), (split,), (False,))
    held = StoredOperand("x", Layout((split,), 7), WORD, True, (split,), 8, slices, WORD, "float32", None)
    assert held.lands_on(held)
    memory, value = filled(), np.arange(12, dtype=np.float32)
    memory.tensor(held.layout, WORD, "float32").write(value)
    Exchange(memory, [held]).run()
    np.testing.assert_array_equal(Collected(memory, [[held]]).read()[0][0], value)


def test_what_lies_outside_memory_is_refused():
    memory = TileMemory(10, 4)
    with pytest.raises((TypeError, ValueError)):
        memory.tensor(Layout((AxisSplit(8, 1, ((8, 1),)),), 3), 0, "float32")
    with pytest.raises(AssertionError):
        memory.tensor(Layout((whole(2),)), 3, "float32")
    memory.poison()
    assert (memory.words == POISON).all()


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_moves_are_the_same_in_pieces_and_of_short_runs(size, monkeypatch):
    monkeypatch.setattr(views, "PIECE_BYTES", 64)
    monkeypatch.setattr(views, "COMPARED", 50)
    x = np.random.default_rng(0).integers(0, 200, (5, 7, 3, 6)).astype(f"u{size}")
    for order in itertools.permutations(range(4)):
        shape = tuple(x.shape[a] for a in order)
        target = np.zeros(shape, x.dtype)
        strides = addresses.row_major(x.shape, size)
        there = addresses.Place(tuple(addresses.dense(x.shape[a], strides[a]) for a in order))
        found = addresses.boxes(addresses.in_order(shape, size), there)
        views.copy(views.moves(found, target, x, size))
        np.testing.assert_array_equal(target, x.transpose(order))
        both = np.stack([x.reshape(-1), target.reshape(-1)])
        beside = (
            addresses.Place(there.axes, 0),
            addresses.Place(addresses.in_order(shape, size).axes, x.nbytes),
        )
        pairs = views.comparisons(addresses.boxes(*beside), both, size)
        assert views.are_equal(pairs)
        both[1, -1] += 1
        assert not views.are_equal(pairs)


def arguments(executable: Executable) -> list[np.ndarray]:
    variables = [executable.variables[name] for name in executable.inputs]
    return [np.arange(np.prod(v.shape, dtype=int)).reshape(v.shape).astype(v.dtype) for v in variables]


@pytest.mark.parametrize("engine", ["literal", "vertex"])
def test_the_engine_has_no_words_where_no_data_lie(engine) -> None:
    """Buffers moved far apart compute the same in as much memory: certificates run small composites of large programs."""
    executable = compiled("sums", Target.named("gc200").replace(num_tiles=16))
    apart = {
        at: at + 4096 * n for n, at in enumerate(sorted({b.address for b in executable.buffers.values()}))
    }
    moved = replace(
        executable,
        buffers={name: replace(b, address=apart[b.address]) for name, b in executable.buffers.items()},
    )
    close, far = make_engine(executable, engine), make_engine(moved, engine)
    sizes = [sum(end - first for first, end in each.data_spans) for each in (executable, moved)]
    assert sizes[0] == sizes[1] and len(moved.data_spans) > len(executable.data_spans)
    for a, b in zip(close.run(*arguments(executable))[0], far.run(*arguments(moved))[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert far.words == close.words == sizes[0] // 4


@pytest.mark.parametrize(("program", "times"), [("sums", 1), ("loops", 2)])
def test_memory_is_poisoned_once_or_before_every_run_that_decides(program, times, monkeypatch) -> None:
    """Two runs give the same words; what no decision can change needs poison only before the first."""
    executable = compiled(program, Target.named("gc200").replace(num_tiles=16))
    poison, seen = TileMemory.poison, []
    monkeypatch.setattr(TileMemory, "poison", lambda memory: (seen.append(memory), poison(memory)))
    engine = make_engine(executable, "literal")
    first, second = (engine.run(*arguments(executable))[0] for _ in range(2))
    assert len(seen) == times
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
