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
from tiles.elements import TileSimulator, compile_ends, compile_least, compile_merges, cost_of, named
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
