"""Sorts and selections by their tile code: drawn extents, types, orders and tiles, beside the module and native JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from jax import lax

from tests import flow
from tests.budgets import PROGRAM, budget
from tests.unit.tiles.elements_running import BASE, trace
from tiles.elements import (
    TileSimulator,
    compile_ends,
    compile_fours,
    compile_gathered_records,
    compile_least,
    compile_merges,
    compile_record_merges,
    cost_of,
    named,
)
from tiles.elements.merges import PIECES_SHIFT, with_halvings
from tiles.elements.verify import verify
from tiles.engine import coverage_of
from tiles.target import Target

FLOATS = ["float32", "float16", "bfloat16"]
DTYPES = st.sampled_from([*FLOATS, "int32", "uint32", "int16", "uint16", "int8", "uint8", "bool"])
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 45))
TILES = st.sampled_from([1, 2, 8])
STATE, SCRATCH, DATA = BASE, BASE + 128, BASE + 4096


def drawn(seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return few different values, so that many are equal; of floats also zeros of both signs, infinities and NaN."""
    random = np.random.default_rng(seed)
    if dtype not in FLOATS:
        return random.integers(-4, 5, shape).astype(dtype)
    least = jnp.finfo(dtype).smallest_subnormal
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -1.5, least], dtype)
    return random.choice(special, shape)


def agrees(function, x: np.ndarray, tiles: int) -> None:
    """Check engine tile in both arithmetics, and its floats against native JAX, bit for bit."""
    module = flow.optimized_module(function, (x,))
    executable = flow.executable_of(module, Target.named("gc200").replace(num_tiles=tiles))
    flow.assert_engines_agree(executable, module, (x,), ("tile",))
    for got, want in zip(
        flow.run(executable, "tile", (x,)), jax.tree.leaves(jax.jit(function)(x)), strict=True
    ):
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
    event(f"vertices by code: {coverage_of(executable).vertices_share:.0%}")


@given(SHAPES, DTYPES, st.data(), TILES, st.integers(0, 99))
@budget(PROGRAM)
def test_the_first_of_rows_are_selected(shape, dtype, data, tiles, seed) -> None:
    k = data.draw(st.integers(1, shape[1]))
    agrees(lambda x: lax.top_k(x, k), drawn(seed, shape, dtype), tiles)


@given(SHAPES, DTYPES, st.integers(0, 1), st.booleans(), TILES, st.integers(0, 99))
@budget(PROGRAM)
def test_rows_are_sorted(shape, dtype, axis, follows, tiles, seed) -> None:
    """Keys alone, or with what follows them: then equal keys show whether they kept their order."""

    def by_keys(x):
        rest = [lax.broadcasted_iota(jnp.int32, x.shape, axis)] if follows else []
        return lax.sort([x, *rest], axis, num_keys=1)

    agrees(by_keys, drawn(seed, shape, dtype), tiles)


@given(st.integers(1, 3), st.integers(17, 300), DTYPES, st.integers(0, 3), TILES, st.integers(0, 99))
@budget(PROGRAM)
def test_long_rows_are_sorted_and_selected_from(rows, n, dtype, way, tiles, seed) -> None:
    ways = (
        lambda x: jnp.sort(x, -1, descending=True),
        lambda x: jnp.argsort(x, -1),
        lambda x: lax.sort((x, x[:, ::-1], lax.broadcasted_iota(jnp.int32, x.shape, 1)), num_keys=1),
        lambda x: lax.top_k(x, 1 + seed % n),
    )
    agrees(ways[way], drawn(seed, (rows, n), dtype), tiles)


LAST = np.iinfo(np.int32).max


def _runs(keys: np.ndarray, run: int) -> np.ndarray:
    """Return rows of keys as records in sorted runs, with a record of the greatest key behind each."""
    places = np.broadcast_to(np.arange(keys.shape[1], dtype=np.int32) * 4, keys.shape)
    found = []
    for at in range(0, keys.shape[1], run):
        order = np.argsort(keys[:, at : at + run], axis=1, kind="stable")
        one = [np.take_along_axis(x[:, at : at + run], order, 1) for x in (keys, places)]
        found.append(np.stack(one, -1))
        found.append(np.broadcast_to(np.array([LAST, -1], np.int32), (len(keys), 1, 2)))
    return np.concatenate(found, 1)


@given(
    st.integers(1, 60),
    st.sampled_from([4, 8, 16]),
    st.integers(1, 6),
    st.integers(1, 40),
    st.booleans(),
    st.integers(0, 99),
)
@budget(PROGRAM)
def test_records_are_merged_in_order(n, run, pieces, most, is_bounded, seed) -> None:
    """Rows of any length, and the beginnings of their pairs; equal keys keep their places, those that are the greatest too."""
    isa, most = named("mk2"), min(most, 2 * run)
    keys = np.random.default_rng(seed).choice(
        np.array([0, 1, -5, LAST - 1, LAST - is_bounded], np.int32), (3, n)
    )
    steps = min(run, most).bit_length() if pieces > 1 else 0
    code = compile_record_merges(isa, is_bounded, steps)
    verify(code, isa)
    source = _runs(keys, run)
    pairs, piece = -(-n // (2 * run)), -(-min(most, n) // pieces)
    simulator = TileSimulator(isa, 1 << 15, tiles=3)
    simulator.write(DATA, source)
    out = DATA + source[0].nbytes + 64
    lengths = {"run": run, "most": most, "size": n + (n - 1) // run, "piece": piece}
    fields = {name: 8 * length for name, length in lengths.items()}
    fields |= {
        "pieces": pieces,
        "factor": -(-(1 << PIECES_SHIFT) // pieces),
        "n": piece,
        "rows": pairs * pieces,
    }
    slots = simulator.run(code, {**fields, "in0": DATA, "out0": out}, STATE, SCRATCH).slots
    assert (slots <= cost_of(code, {"n": piece, "rows": pairs * pieces}, isa).slots).all()
    for pair in range(pairs):
        want = _runs(keys[:, 2 * run * pair : 2 * run * (pair + 1)], 2 * run)[:, :-1][:, :most].copy()
        want[..., 1] += 8 * run * pair
        found = simulator.read(out + 8 * (most + 1) * pair, 2 * want.shape[1] + 1, "int32")
        np.testing.assert_array_equal(found[:, :-1].reshape(want.shape), want)
        assert (found[:, -1] == LAST).all()


@given(st.integers(1, 14), st.integers(1, 60), st.booleans(), st.integers(0, 2), st.integers(0, 99))
@budget(PROGRAM)
def test_rows_in_turn_are_sorted(rows, n, is_bounded, arrays, seed) -> None:
    """Runs of four, merges of all levels, and what lies in order then: of rows that lie some bytes apart, a worker each."""
    isa, padded = named("mk2"), -(-n // 4) * 4
    keys = np.full((2, rows, padded), LAST - is_bounded, np.int32)
    keys[..., :n] = np.random.default_rng(seed).choice(np.array([0, 1, -5, 7]), (2, rows, n))
    row, records = 4 * padded + 16, 8 * (padded + padded // 4) + 24
    simulator = TileSimulator(isa, 1 << 17, tiles=2)
    simulator.write(DATA, np.concatenate([keys, np.zeros((2, rows, 4), np.int32)], -1))
    a, b = (DATA + rows * row + k * rows * records for k in range(2))
    out = b + rows * records
    pitches = {"in0_row_bytes": row, "out0_row_bytes": records, "rows": rows}

    def run(code, n, **fields):
        verify(code, isa)
        slots = simulator.run(code, {**pitches, **fields, "n": n}, STATE, SCRATCH).slots
        assert (slots <= cost_of(code, {"n": n, "rows": rows}, isa).slots).all()

    run(compile_fours(isa, in_turn=True), padded // 4, in0=DATA, out0=a)
    length, pitches["in0_row_bytes"] = 4, records
    while length < padded:
        pairs = -(-padded // (2 * length))
        code = with_halvings(compile_record_merges(isa, is_bounded, in_turn=True), pairs)
        size = 8 * (padded + (padded - 1) // length)
        lengths = {"run": 8 * length, "most": 16 * length, "size": size, "pairs": pairs}
        run(code, min(2 * length, padded), in0=a, out0=b, **lengths)
        length, a, b = 2 * length, b, a
    code = compile_gathered_records(isa, arrays, counts=True, in_turn=True)
    pitches |= {f"in{k}_row_bytes": row for k in range(arrays)} | {"records_row_bytes": records}
    pitches |= {f"out{k}_row_bytes": 4 * n for k in range(arrays + 1)}
    where = {f"in{k}": DATA for k in range(arrays)}
    where |= {f"out{k}": out + 4 * rows * n * k for k in range(arrays + 1)}
    run(code, n, records=a, first=100, **where)
    places = np.argsort(keys[..., :n], axis=-1, kind="stable")
    found = simulator.read(out, (arrays + 1) * rows * n, "int32").reshape(2, arrays + 1, rows, n)
    np.testing.assert_array_equal(found[:, -1], places + 100)
    for k in range(arrays):
        np.testing.assert_array_equal(found[:, k], np.take_along_axis(keys, places, -1))


@given(st.integers(4, 30), st.integers(3, 40), DTYPES, st.integers(0, 99))
@budget(PROGRAM)
def test_many_rows_are_sorted(rows, n, dtype, seed) -> None:
    agrees(lambda x: (jnp.sort(x, -1), jnp.argsort(x, -1)), drawn(seed, (rows, n), dtype), 1 + seed % 2)


@given(st.integers(1, 40), st.integers(0, 99))
@budget(PROGRAM)
def test_runs_of_four_are_made_by_comparisons(runs, seed) -> None:
    isa, code = named("mk2"), compile_fours(named("mk2"))
    verify(code, isa)
    keys = np.random.default_rng(seed).choice(np.array([3, -3, LAST, 0], np.int32), (3, 4 * runs))
    simulator = TileSimulator(isa, 1 << 15, tiles=3)
    simulator.write(DATA, keys)
    out = DATA + keys[0].nbytes + 64
    slots = simulator.run(code, {"n": runs, "in0": DATA, "out0": out}, STATE, SCRATCH).slots
    assert (slots == cost_of(code, {"n": runs}, isa).slots).all()
    found = simulator.read(out, 10 * runs, "int32").reshape(3, runs, 5, 2)
    np.testing.assert_array_equal(found[:, :, :4], _runs(keys, 4).reshape(3, runs, 5, 2)[:, :, :4])
    assert (found[:, :, 4, 0] == LAST).all()


@pytest.mark.parametrize(("run", "most", "pieces", "steps"), [(1, 2, 1, 0), (8, 16, 1, 0), (16, 24, 3, 8)])
def test_slots_are_those_of_the_closed_form(run, most, pieces, steps) -> None:
    """Twelve pairs of full runs; beside the results nothing changes."""
    isa, pairs = named("mk2"), 12
    code = compile_merges(trace(jnp.less, ["int32"] * 2), ("int32",), isa, search_steps=steps)
    verify(code, isa)
    if steps:
        once = compile_merges(trace(jnp.less, ["int32"] * 2), ("int32",), isa, search_steps=1)
        assert with_halvings(once, steps) == code
    x = np.random.default_rng(0).integers(-50, 50, (3, pairs * 2, run)).astype(np.int32)
    x.sort(axis=-1)
    simulator = TileSimulator(isa, 1 << 14, tiles=3)
    simulator.write(DATA, x)
    out = DATA + x[0].nbytes + 64
    before = simulator.memory.copy()
    size = {"run": 4 * run, "most": 4 * most, "size": x[0].nbytes, "piece": 4 * most // pieces}
    ways = {"pieces": pieces, "factor": -(-(1 << PIECES_SHIFT) // pieces)}
    extents = {"n": most // pieces, "rows": pairs * pieces}
    run_of = simulator.run(code, {**extents, **size, **ways, "in0": DATA, "out0": out}, STATE, SCRATCH)
    want = np.sort(x.reshape(3, pairs, 2 * run), axis=-1)[..., :most]
    np.testing.assert_array_equal(simulator.read(out, pairs * most, "int32"), want.reshape(3, -1))
    assert (run_of.slots == cost_of(code, extents, isa).slots).all()
    kept = np.ones(before.shape[1], bool)
    kept[: DATA - BASE] = False
    kept[out - BASE : out - BASE + 4 * pairs * most] = False
    assert (simulator.memory == before)[:, kept].all()


@given(st.integers(1, 70), st.integers(0, 70), st.integers(0, 70), st.integers(0, 70), st.integers(0, 99))
@budget(PROGRAM)
def test_bitonic_rows_are_sorted_from_their_first_element_on(n, rising, turned, padding, seed) -> None:
    """Rows that rise, fall, and are turned round; the last elements are equal. Slots are those of the closed form."""
    isa, comparing = named("mk2"), trace(jnp.less, ["int32"] * 2)
    x = np.minimum(np.random.default_rng(seed).permuted(np.tile(np.arange(n), (4, 1)), axis=1), padding)
    x, rising = x.astype(np.int32), rising % (n + 1)
    rows = np.concatenate([np.sort(x[:, :rising]), np.sort(x[:, rising:])[:, ::-1]], axis=1)
    simulator = TileSimulator(isa, 1 << 14, tiles=4)
    near, out, share = DATA + 1024, DATA + 2048, -(-n // isa["worker_contexts"])
    simulator.write(DATA, np.roll(rows, turned, axis=1))
    least = compile_least(comparing, ("int32",), isa)
    ends = compile_ends(comparing, ("int32",), isa, max(1, (n - 1).bit_length()))
    for code, fields, size in ((least, {"out0": near}, n), (ends, {"near": near, "out0": out}, share)):
        verify(code, isa)
        given_fields = {"in0": DATA, "n": size, "size": 4 * n, "piece": 4 * share, **fields}
        run = simulator.run(code, given_fields, STATE, SCRATCH)
        assert run.slots.max() == cost_of(code, {"n": size}, isa).slots.max()
    np.testing.assert_array_equal(simulator.read(out, n, "int32"), np.sort(rows, axis=1))
