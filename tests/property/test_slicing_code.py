"""Slices and updates at runtime offsets by their tile code: drawn extents, types, indices and tiles, beside the module."""

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
from tiles.engine import coverage_of
from tiles.target import Target

DTYPES = st.sampled_from(["float32", "float16", "int32", "int8", "bool"])
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 8, 12]))
INDEX = st.integers(-12, 12)
TILES = st.integers(1, 12)


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)


def agrees(function, arguments, tiles: int) -> float:
    """Check engine tile in both arithmetics, words with floats, too; return the share of vertices that ran by code."""
    module = flow.optimized_module(function, arguments)
    executable = flow.executable_of(module, Target.named("gc200").replace(num_tiles=tiles))
    flow.assert_engines_agree(executable, module, arguments, ("tile",))
    (got,) = flow.run(executable, "tile", arguments)
    np.testing.assert_array_equal(got, jax.jit(function)(*arguments))
    return coverage_of(executable).vertices_share


@given(SIZES, st.integers(0, 2), st.data(), DTYPES, INDEX, TILES)
@budget(PROGRAM)
def test_a_window_is_taken_out_and_put_in(sizes, axis, data, dtype, index, tiles) -> None:
    window = data.draw(st.integers(1, sizes[axis]))
    shape = tuple(window if d == axis else n for d, n in enumerate(sizes))
    x, start = values(sizes, dtype), np.int32(index)

    def taken(x, start):
        return lax.dynamic_slice(x, [start if d == axis else 0 for d in range(3)], shape)

    def put(x, part, start):
        return lax.dynamic_update_slice(x, part, [start if d == axis else 0 for d in range(3)])

    found = agrees(taken, (x, start), tiles), agrees(put, (x, values(shape, dtype)[::-1], start), tiles)
    event(f"vertices by code: {min(found):.0%}")


@given(st.permutations([1, 1, 6]), st.lists(INDEX, min_size=3, max_size=9), DTYPES, TILES)
@budget(PROGRAM)
def test_elements_of_a_table_that_is_long_along_one_axis(sizes, indices, dtype, tiles) -> None:
    """Along its other axes, of one element each, nothing is looked up; the result lacks them."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(), collapsed_slice_dims=(0, 1, 2), start_index_map=(0, 1, 2)
    )

    def elements(x, indices):
        return lax.gather(x, indices, numbers, (1, 1, 1), mode="clip")

    rows = np.array(indices[: len(indices) // 3 * 3], np.int32).reshape(-1, 3)
    agrees(elements, (values(tuple(sizes), dtype), rows), tiles)


@given(SIZES, st.integers(0, 2), st.lists(INDEX, min_size=1, max_size=14), st.booleans(), DTYPES, TILES)
@budget(PROGRAM)
def test_rows_are_looked_up(sizes, axis, indices, is_unsigned, dtype, tiles) -> None:
    """Unsigned indices that would be negative are the greatest."""

    def rows(x, indices):
        return x.take(indices, axis=axis, mode="clip")

    kind = np.uint32 if is_unsigned else np.int32
    share = agrees(jax.jit(rows), (values(sizes, dtype), np.array(indices, np.int32).astype(kind)), tiles)
    event(f"vertices by code: {share:.0%}")


@given(
    SIZES,
    st.lists(st.tuples(INDEX, INDEX), min_size=1, max_size=9),
    st.sampled_from(["two indices", "two and a window", "batched", "along an axis"]),
    DTYPES,
    TILES,
)
@budget(PROGRAM)
def test_places_with_several_indices_are_looked_up(sizes, indices, kind, dtype, tiles) -> None:
    """Places along two axes, and places of tables that lie side by side."""
    x, at = values(sizes, dtype), np.array(indices, np.int32)

    def found(x, at):
        if kind == "two indices":
            return x.at[at[:, 0], at[:, 1]].get(mode="clip")
        if kind == "two and a window":
            return jax.vmap(lambda at: lax.dynamic_slice(x, (at[0], at[1], 0), (1, 1, x.shape[2])))(at)
        own = at[:, 0] + jnp.arange(len(x), dtype=jnp.int32)[:, None]
        if kind == "batched":
            return jax.vmap(lambda x, at: x.at[at].get(mode="clip"))(x, own)
        own = own[:, None, : x.shape[2]] % x.shape[1]
        return jnp.take_along_axis(x, jnp.broadcast_to(own, (len(x), 1, own.shape[2])), axis=1, mode="clip")

    share = agrees(jax.jit(found), (x[:, :, : len(at)], at), tiles)
    event(f"vertices by code: {share:.0%}")


@pytest.mark.parametrize("kind", ["two indices", "batched", "last axis"])
def test_lookups_of_places_with_several_indices_run_by_code(kind) -> None:
    x, at = values((3, 5, 7), "float32"), np.array([[1, 4], [0, 2], [2, 0], [5, -1]], np.int32)

    def found(x, at):
        if kind == "two indices":
            return x.at[at[:, 0], at[:, 1]].get(mode="clip")
        if kind == "batched":
            return jax.vmap(lambda x, at: x.at[at].get(mode="clip"))(x, at[:3])
        return jnp.take_along_axis(x, at[:3, :1, None] + jnp.zeros((1, 5, 1), jnp.int32), axis=2, mode="clip")

    assert agrees(found, (x, at), 4) == 1


@given(
    SIZES,
    st.integers(0, 2),
    st.lists(INDEX, min_size=1, max_size=14),
    st.sampled_from(["float32", "int32", "uint32", "float16", "int8", "uint16"]),
    st.sampled_from(["add", "mul", "max", "min"]),
    st.booleans(),
    TILES,
)
@budget(PROGRAM)
def test_rows_are_updated(sizes, axis, indices, dtype, operation, is_fresh, tiles) -> None:
    """One row may be updated again and again; what lies outside is left out. Small integers: sums and products are exact."""
    given_rows = tuple(len(indices) if d == axis else n for d, n in enumerate(sizes))
    x, updates = values(sizes, dtype) // 50, np.sign(values(given_rows, dtype)[::-1])
    neutral = {"add": 0, "mul": 1, "max": -np.inf, "min": np.inf}[operation]
    if np.isinf(neutral) and not dtype.startswith("float"):
        neutral = getattr(np.iinfo(dtype), "min" if operation == "max" else "max")

    def updated(x, updates, indices):
        start = jnp.full(x.shape, neutral, x.dtype) if is_fresh else x
        place = (slice(None),) * axis + (indices,)
        return getattr(start.at[place], operation)(updates, mode="drop", wrap_negative_indices=False)

    share = agrees(jax.jit(updated), (x, updates, np.array(indices, np.int32)), tiles)
    event(f"vertices by code: {share:.0%}")


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint16"])
@pytest.mark.parametrize("operation", ["add", "mul", "max", "min"])
def test_updates_of_several_elements_a_word_run_by_code(dtype, operation) -> None:
    x, updates = values((6, 4, 8), dtype) // 50, np.sign(values((5, 4, 8), dtype)[::-1])

    def updated(x, updates, indices):
        return getattr(x.at[indices], operation)(updates, mode="drop", wrap_negative_indices=False)

    assert agrees(updated, (x, updates, np.array([3, 0, 3, 9, 5], np.int32)), 4) == 1


@given(
    SIZES,
    st.lists(st.tuples(INDEX, INDEX), min_size=1, max_size=9),
    st.sampled_from(["float32", "int32", "float16", "uint8"]),
    st.sampled_from(["set", "add", "min", "apply", "batched set", "batched add"]),
    TILES,
)
@budget(PROGRAM)
def test_places_with_several_indices_are_updated(sizes, indices, dtype, kind, tiles) -> None:
    """A place along two axes, one of every row, or changed by an expression. Who sets a place last, holds."""
    x, at = values(sizes, dtype) // 50, np.array(indices, np.int32)
    updates = np.sign(values((len(at), sizes[2]), dtype)[::-1])
    drop = {"mode": "drop", "wrap_negative_indices": False}

    def updated(x, updates, at):
        if kind == "apply":
            return x.at[at[:, 0], at[:, 1]].apply(lambda old: old + old, **drop)
        return getattr(x.at[at[:, 0], at[:, 1]], kind)(updates, **drop)

    def batched(x, updates, at):
        own = at[:, 0] + jnp.arange(len(x), dtype=jnp.int32)[:, None]
        return jax.vmap(lambda x, at: getattr(x.at[at], kind.split()[1])(updates, **drop))(x, own)

    function = jax.jit(batched if " " in kind else updated)
    share = agrees(function, (x, updates, at), tiles)
    event(f"vertices by code: {share:.0%}")


@pytest.mark.parametrize("operation", ["set", "mul"])
@pytest.mark.parametrize("is_batched", [False, True])
def test_updates_of_places_with_several_indices_run_by_code(operation, is_batched) -> None:
    x, updates = values((3, 5, 7), "float32"), values((4, 7), "float32")
    rows, columns = np.array([1, 0, 1, 2], np.int32), np.array([4, 2, 4, 0], np.int32)

    def updated(x, updates, rows, columns):
        if is_batched:
            return jax.vmap(lambda x, at: getattr(x.at[at], operation)(updates))(x, columns + rows[:3, None])
        return getattr(x.at[rows, columns], operation)(updates)

    assert agrees(updated, (x, updates, rows, columns), 4) == 1


@pytest.mark.parametrize("operation", ["set", "mul"])
def test_unsigned_indices_beyond_the_last_place_are_left_out(operation) -> None:
    x, updates = values((9, 4), "float32"), values((4, 4), "float32")

    def updated(x, updates, at):
        numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
        scatter = lax.scatter if operation == "set" else lax.scatter_mul
        return scatter(x, at[:, None], updates, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP)

    at = np.array([8, 2**32 - 1, 9, 0], np.uint32)
    assert agrees(updated, (x, updates, at), 4) == 1


def test_a_place_of_constant_index_is_set() -> None:
    x, y = values((6, 4), "float32"), values((4,), "float32")
    assert (
        agrees(lambda x, y, i: x.at[i[0]].set(y).at[2, 3].set(y[0]), (x, y, np.array([3], np.int32)), 4) == 1
    )


def test_code_runs_wherever_a_part_of_the_tensor_lies() -> None:
    """A window across two tiles' parts, of which one begins inside a 64-bit word's row."""
    x = values((9, 7, 3), "float32")

    def put(x, part, start):
        return lax.dynamic_update_slice(x, part, (start, 0, 0))

    for index in (-4, 2, 3, 4, 20):
        assert agrees(put, (x, x[:4] * 2, np.int32(index)), 8) == 1
