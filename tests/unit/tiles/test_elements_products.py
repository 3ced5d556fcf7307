"""Products on the multiply units: panels over positions and over runs of a field, issue by issue and all positions at once."""

from __future__ import annotations

import numpy as np
import pytest

from tiles.elements import (
    TileCode,
    TileSimulator,
    as_text,
    compile_dots,
    compile_field_runs,
    compile_matrix_vector,
    compile_sliding_runs,
    compile_vertical,
    cost_of,
    named,
)
from tiles.elements.amp import PRODUCTS, Product, run_strides
from tiles.elements.verify import verify
from tiles.errors import NoTileCode, TileFault

MK2 = named("mk2")
BASE = 0x4C000
STATE, SCRATCH, RUNS, WEIGHTS, INPUTS, SUMS = (BASE + at for at in (0, 512, 1024, 4096, 8192, 1 << 17))
FURTHER = BASE + (1 << 16)  # in another memory element than the inputs
TILES = 2


def simulator(in_ring: bool, at_once: bool) -> TileSimulator:
    """Return tiles whose memory is interleaved from the sums on."""
    found = TileSimulator(MK2, 1 << 18, TILES, BASE, SUMS, in_ring)
    found.streams_at_once = at_once
    return found


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, in_ring: bool) -> np.ndarray:
    """Return small numbers, which any order of sums gives to the bit, or words."""
    if in_ring:
        size = 8 * np.dtype(dtype).itemsize
        return rng.integers(0, 2**size, shape, f"uint{size}")
    return rng.integers(-3, 4, shape).astype(dtype)


def summed(equation: str, in_ring: bool, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    wide = "uint64" if in_ring else "float64"
    return np.einsum(equation, weights.astype(wide), x.astype(wide))


def run(code: TileCode, arguments: dict[str, int], memory: dict[int, np.ndarray], in_ring: bool, n: int):
    """Return tiles' memory afterwards, the same issue by issue and at once, and the slots of the workers."""
    found: list[np.ndarray] = []
    slots: list[np.ndarray] = []
    for at_once in (True, False):
        tiles = simulator(in_ring, at_once)
        for address, x in memory.items():
            tiles.write(address, x)
        slots.append(tiles.run(code, arguments, STATE, SCRATCH).slots)
        found.append(tiles.memory.copy())
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(slots[0], slots[1])
    result = TileSimulator(MK2, 1 << 18, TILES, BASE)
    result.memory[...] = found[0]
    return result, slots[0]


@pytest.mark.parametrize("in_ring", [False, True])
@pytest.mark.parametrize("reads_partials", [False, True])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_positions_at_once_are_positions_issue_by_issue(kind, reads_partials, in_ring) -> None:
    product = PRODUCTS[kind]
    code = compile_matrix_vector(MK2, *kind, reads_partials=reads_partials, weights_bits=64)
    verify(code, MK2)
    for n in (0, 1, 5, 6, 13):
        rng = np.random.default_rng(n)
        weights = drawn(rng, (TILES, product.outputs, product.inputs), kind[0], in_ring)
        x = drawn(rng, (TILES, n, product.inputs), kind[0], in_ring)
        partials = drawn(rng, (TILES, n, product.outputs), kind[1], in_ring)
        arguments = {"in0": INPUTS, "in1": SUMS, "out0": SUMS, "n": n, "weights": WEIGHTS}
        memory = {WEIGHTS: weights, INPUTS: x, SUMS: partials}
        tiles, slots = run(code, arguments, memory, in_ring, n)
        np.testing.assert_array_equal(slots, np.broadcast_to(cost_of(code, {"n": n}, MK2).slots, slots.shape))
        want = summed("tok,tpk->tpo", in_ring, weights, x) + (partials if reads_partials else 0)
        got = tiles.read(SUMS, n * product.outputs, partials.dtype.name).reshape(TILES, n, product.outputs)
        np.testing.assert_array_equal(got, want.astype(partials.dtype))


def tapped(
    product: Product, height: int, in_ring: bool, reads_partials: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return what the code of a tap leaves of a field of 5 x 7 results, two positions apart in rows of 18, and what it should."""
    rows, columns, stride, width = 5, 7, 2, 18
    rng = np.random.default_rng(height)
    channels = product.inputs // height
    x = drawn(rng, (TILES, rows + height - 1, width, channels), product.dtype, in_ring)
    weights = drawn(rng, (TILES, product.outputs, height, channels), product.dtype, in_ring)
    partials = drawn(rng, (TILES, rows, columns, product.outputs), product.partials, in_ring)
    words, each = x[0, 0, 0].nbytes // 8, partials[0, 0, 0].nbytes // 8
    runs = [
        (row * width * words + at * stride * words, (row * columns + at) * each, count)
        for at, count in ((0, 4), (4, 3))
        for row in range(rows)
    ]
    code = compile_field_runs(
        MK2, product.dtype, product.partials, height, reads_partials=reads_partials, weights_bits=64
    )
    verify(code, MK2)
    strides = run_strides(product, height, width * words * 8, stride * words * 8)
    arguments = {"in0": INPUTS, "out0": SUMS, "runs": RUNS, "rows": len(runs), "strides": strides}
    entries = np.broadcast_to(np.array(runs, np.uint16), (TILES, len(runs), 3))
    memory = {RUNS: entries, WEIGHTS: weights, INPUTS: x, SUMS: partials}
    tiles, slots = run(code, arguments | {"weights": WEIGHTS}, memory, in_ring, len(runs))
    longest = cost_of(code, {"n": 4, "rows": len(runs)}, MK2).slots.max()
    assert (
        longest - product.phases == slots.max()
    )  # as if the second run of each worker were as long as the first
    got = tiles.read(SUMS, rows * columns * product.outputs, partials.dtype.name).reshape(partials.shape)
    near = np.stack([x[:, h : h + rows, : columns * stride : stride] for h in range(height)], axis=3)
    want = summed("tohk,trchk->trco", in_ring, weights, near) + (partials if reads_partials else 0)
    return got, want.astype(partials.dtype)


@pytest.mark.parametrize("in_ring", [False, True])
@pytest.mark.parametrize("height", [1, 2, 4])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_taps_go_over_runs_of_a_field_and_take_several_rows_at_once(kind, height, in_ring) -> None:
    for reads_partials in (False, True):
        got, want = tapped(PRODUCTS[kind], height, in_ring, reads_partials)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_load_and_a_store_of_one_instruction_may_not_meet_in_half_of_interleaved_memory(at_once) -> None:
    """Partials that lie eight bytes beside results meet them; in other memory any two addresses of an element do."""
    code = compile_matrix_vector(MK2, "float32", "float32")
    arguments = {"in0": INPUTS, "in1": SUMS + 8, "out0": SUMS, "n": 6}
    with pytest.raises(TileFault, match="one memory element"):
        simulator(False, at_once).run(code, arguments, STATE, SCRATCH)
    with pytest.raises(TileFault, match="one memory element"):
        inside = arguments | {"in1": INPUTS, "out0": INPUTS}
        simulator(False, at_once).run(code, inside, STATE, SCRATCH)
    with pytest.raises(TileFault, match="natural alignment"):
        simulator(False, at_once).run(code, arguments | {"in0": INPUTS + 4}, STATE, SCRATCH)


def test_strides_that_no_field_holds_are_refused() -> None:
    product = PRODUCTS["float32", "float32"]
    assert run_strides(product, 4, 170 * 8, 8) >= 0
    with pytest.raises(NoTileCode, match=r"strides of 540 accesses"):
        run_strides(product, 4, 180 * 8, 0)


def test_the_supervisor_loads_weights_and_goes_on_to_the_next_panel() -> None:
    own, placed = (compile_matrix_vector(MK2, weights_bits=bits) for bits in (64, 0))
    assert own.supervisor.cycles(MK2) - placed.supervisor.cycles(MK2) == 64 + 5 + 2 * 6
    assert "supervisor: 3 add, 2 st32, 2 setzi, or, 64 ld64putcs, put, runall, sync, brnzdec" in as_text(
        own, MK2
    )
    assert own.arguments[-1] == "weights"


def simulated(code: TileCode, arguments: dict[str, int], memory: dict[int, np.ndarray]) -> np.ndarray:
    """Return tiles' memory from the sums on, after a check that the slots are those of the closed form."""
    verify(code, MK2)
    tiles = simulator(False, True)
    for address, x in memory.items():
        tiles.write(address, x)
    slots = tiles.run(code, {"in0": INPUTS, "in1": FURTHER, "out0": SUMS, **arguments}, STATE, SCRATCH).slots
    extents = {name: arguments[name] for name in ("n", "rows") if name in arguments}
    np.testing.assert_array_equal(slots, np.broadcast_to(cost_of(code, extents, MK2).slots, slots.shape))
    return tiles.memory[:, SUMS - BASE :]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dot_products_begin_where_memory_says(dtype) -> None:
    """Every row of one operand with every row of the other, whole accesses each, added to what is there."""
    rng, each = np.random.default_rng(0), 8 // np.dtype(dtype).itemsize
    x, w = (drawn(rng, (TILES, count, 3 * each), dtype, False) for count in (5, 4))
    before = drawn(rng, (TILES, 5, 4), "float32", False)
    places = np.stack(np.indices((5, 4)).reshape(2, -1) * 24, -1).astype(np.uint32)
    memory = {INPUTS: x, FURTHER: w, SUMS: before, RUNS: np.broadcast_to(places, (TILES, 20, 2))}
    code = compile_dots(MK2, dtype, reads_partials=True)
    tail = simulated(code, {"n": 3, "rows": 20, "places": RUNS}, memory)
    got = np.ascontiguousarray(tail[:, : 20 * 4]).view(np.float32).reshape(before.shape)
    np.testing.assert_array_equal(got, before + summed("trk,tck->trc", False, x, w))


@pytest.mark.parametrize("width", [4, 8, 16])
def test_vectors_side_by_side_are_multiplied_and_added_up(width) -> None:
    rng, taps, rows = np.random.default_rng(0), 5, 7
    x = drawn(rng, (TILES, rows + taps - 1, width), "float16", False)
    w = drawn(rng, (TILES, taps, width), "float16", False)
    places = np.stack([np.arange(rows) * width * 2, np.zeros(rows, int)], -1).astype(np.uint32)
    steps = np.append(np.arange(taps) * width * 2, np.zeros(8)).astype(np.uint32)
    at = RUNS + 512
    own, weights = SUMS + 8192, SUMS + 16384  # all interleaved: eight halves are loaded at once
    memory = {own: x, weights: w, RUNS: places[None].repeat(TILES, 0), at: steps[None].repeat(TILES, 0)}
    code = compile_vertical(MK2, "float16", width)
    arguments = {"n": taps, "rows": rows, "places": RUNS, "at": at, "in0": own, "in1": weights}
    tail = simulated(code, arguments, memory)
    got = np.ascontiguousarray(tail[:, : rows * width * 4]).view(np.float32).reshape(TILES, rows, width)
    near = np.stack([x[:, t : t + rows] for t in range(taps)])
    np.testing.assert_array_equal(got, summed("trk,rtxk->txk", False, w, near))


@pytest.mark.parametrize("partials", ["float32", "float16"])
@pytest.mark.parametrize("stride", [1, 2])
def test_short_windows_slide_by_ones_and_twos(stride, partials) -> None:
    """Four outputs, by two passes in float32 and by one in halves, over two runs of a row and one of another."""
    rng, columns = np.random.default_rng(0), 12
    reach = (columns - 1) * stride + 4
    x = drawn(rng, (TILES, 2, reach, 4), "float16", False)
    w = drawn(rng, (TILES, 4, 4, 4), "float16", False)
    outputs = 2 if partials == "float32" else 4
    before = drawn(rng, (TILES, 4 // outputs, 2, columns, outputs), partials, False)
    each = 2 // stride
    runs = [(0, 0), (4 * stride, 4), (8 * stride, 8), (reach, columns), (reach + 6 * stride, columns + 6)]
    counts = np.array([4, 4, 4, 6, 6]) // each
    entries = np.column_stack([runs, counts]).astype(np.uint16)[np.argsort(-counts, kind="stable")]
    code = compile_sliding_runs(MK2, stride, partials=partials)
    verify(code, MK2)
    tiles = simulator(False, True)
    for address, held in ((INPUTS, x), (WEIGHTS, w), (SUMS, before), (RUNS, entries[None].repeat(TILES, 0))):
        tiles.write(address, held)
    arguments = {"in0": INPUTS, "out0": SUMS, "runs": RUNS, "rows": 5, "weights": WEIGHTS}
    slots = tiles.run(code, arguments | {"pass_bytes": 2 * columns * 8}, STATE, SCRATCH).slots
    assert slots.max() == cost_of(code, {"n": counts.max(), "rows": 5}, MK2).slots.max()
    got = tiles.read(SUMS, before[0].size, partials).reshape(before.shape)
    near = np.stack([x[:, :, t : t + columns * stride : stride][:, :, :columns] for t in range(4)])
    want = summed("tonk,ntrck->trco", False, w, near).reshape(TILES, 2, columns, 4 // outputs, outputs)
    np.testing.assert_array_equal(got, (before + want.transpose(0, 3, 1, 2, 4)).astype(partials))
