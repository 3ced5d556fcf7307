"""Lookups at known regular indices are slices; irregular ones, and those of arguments, stay."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module, print_module
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo

SIGNAL = np.arange(200, dtype=np.float32) + 1
TABLE = np.arange(12 * 20 * 3, dtype=np.float32).reshape(12, 20, 3)


def optimized(function, *arguments):
    return optimize(import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo")))


def frames(count, hop, length, start=0):
    return start + hop * jnp.arange(count)[:, None] + jnp.arange(length)


REGULAR = {
    "frames that overlap": lambda x: x[frames(8, 16, 40)],
    "up to the last element": lambda x: x[frames(9, 20, 40)],
    "frames apart": lambda x: x[frames(5, 30, 10, start=7)],
    "a window around every element": lambda x: x[frames(190, 1, 5)],
    "windows of every other element": lambda x: x[4 * jnp.arange(9)[:, None] + 2 * jnp.arange(6)],
    "three levels": lambda x: x[
        50 * jnp.arange(3)[:, None, None] + 8 * jnp.arange(4)[:, None] + 2 * jnp.arange(3)
    ],
    "every third": lambda x: x[jnp.arange(0, 200, 3)],
    "backwards": lambda x: x[jnp.arange(199, -1, -2)],
    "rows backwards": lambda x: x[90 - 10 * jnp.arange(6)[:, None] + jnp.arange(4)],
    "transposed": lambda x: x[frames(8, 16, 8).T],
    "one element many times": lambda x: x[jnp.full((3, 2), 5)],
    "indices below zero": lambda x: x[jnp.arange(-8, 0)],
    "beyond the end": lambda x: x.at[jnp.arange(250, 258)].get(mode="clip"),
}
PLANES = {
    "rows and columns": lambda x: x[jnp.arange(0, 12, 3)[:, None], jnp.arange(5)[None] * 4],
    "patches": lambda x: x[
        (jnp.arange(10)[:, None] + jnp.arange(3))[:, :, None, None],
        (jnp.arange(18)[:, None] + jnp.arange(3))[None, None],
    ],
    "columns": lambda x: x[:, jnp.arange(1, 20, 2)],
    "a diagonal": lambda x: jnp.diagonal(x),
    "another diagonal": lambda x: jnp.diagonal(x, -5),
    "a diagonal of planes": lambda x: jnp.diagonal(x[:, :3] * x[:, 5:8], 0, 1, 2),
    "a diagonal from below": lambda x: x[jnp.arange(11, -1, -1), jnp.arange(3, 15)],
    "every other of a steep one": lambda x: x[3 + jnp.arange(4), 2 + 3 * jnp.arange(4)],
    "blocks on a diagonal": lambda x: x[
        (3 * jnp.arange(4))[:, None] + jnp.zeros(3, int), (3 * jnp.arange(4))[:, None] + jnp.arange(3)
    ],
    "taken": lambda x: jnp.take(x, jnp.arange(6) * 2, axis=0, mode="clip"),
    "windows by slices": lambda x: jax.vmap(lambda i: lax.dynamic_slice(x, (i, 2, 0), (4, 5, 3)))(
        2 * jnp.arange(5)
    ),
}


@pytest.mark.parametrize("name", REGULAR | PLANES)
def test_regular_indices_are_slices(name: str) -> None:
    function, x = (REGULAR[name], SIGNAL) if name in REGULAR else (PLANES[name], TABLE)
    done = optimized(function, x)
    assert "stablehlo.gather" not in print_module(done)
    np.testing.assert_array_equal(evaluate_module(done, x)[0], jax.jit(function)(x))


SUMS = {
    "frames that overlap": lambda x: jnp.zeros(200).at[frames(8, 16, 40)].add(jnp.tile(x[:40], (8, 1))),
    "up to the last element": lambda x: x.at[frames(9, 20, 40)].add(jnp.ones((9, 40))),
    "less": lambda x: x.at[frames(9, 20, 10)].subtract(jnp.ones((9, 10))),
    "every third": lambda x: x.at[jnp.arange(1, 200, 3)].add(x[:67]),
    "backwards": lambda x: x.at[jnp.arange(199, -1, -2)].add(x[:100]),
    "gradient of rows": jax.grad(lambda x: jnp.sum(x.reshape(20, 10)[jnp.arange(6)] ** 3)),
    "gradient of windows": jax.grad(lambda x: jnp.sum(x[frames(190, 1, 5)] ** 3)),
    "gradient of patches": jax.grad(
        lambda x: jnp.sum(PLANES["patches"](jnp.resize(x, (720,)).reshape(12, 20, 3)) ** 3)
    ),
    "gradient of three levels": jax.grad(lambda x: jnp.sum(REGULAR["three levels"](x) ** 3)),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_at_regular_indices_are_pads(name: str) -> None:
    x = (SIGNAL % 7).astype(np.float32)[:600] if "patches" in name else SIGNAL % 7
    done = optimized(SUMS[name], x)
    assert "stablehlo.scatter" not in print_module(done)
    np.testing.assert_array_equal(evaluate_module(done, x)[0], jax.jit(SUMS[name])(x))


SQUARE = np.arange(14 * 15, dtype=np.float32).reshape(14, 15) + 1
PLACED = {
    "every third": lambda x: x.at[jnp.arange(1, 14, 3)].set(-x[:5]),
    "every other column": lambda x: x.at[:, ::2].set(7.0),
    "backwards": lambda x: x.at[jnp.arange(13, -1, -1)].set(-x),
    "rows and columns": lambda x: x.at[jnp.arange(0, 14, 3)[:, None], jnp.arange(5)[None] * 3].set(x[:5, :5]),
    "half of each row": lambda x: x.at[jnp.arange(14), 3:11].set(-x[:, :8]),
    "integers": lambda x: x.astype(int).at[::2, ::3].set(-1),
    "masks": lambda x: (x > 100).at[::2, ::3].set(True),
    "a diagonal": lambda x: x.at[jnp.arange(14), jnp.arange(14)].set(-x[:, 0]),
    "a diagonal's jitter": lambda x: x.at[jnp.diag_indices(14)].add(1e-3),
    "less on a diagonal": lambda x: x.at[jnp.arange(12), jnp.arange(12) + 2].subtract(x[:12, 3]),
    "a diagonal from below": lambda x: x.at[jnp.arange(13, -1, -1), jnp.arange(14)].set(x[0, :14]),
    "both ways": lambda x: x.at[jnp.arange(13, 1, -1), jnp.arange(12, 0, -1)].set(x[:12, 1]),
    "filled": lambda x: jnp.fill_diagonal(x, 3.0, inplace=False),
    "a diagonal of planes": lambda x: (
        jnp.stack([x, -x, 2 * x]).at[:, jnp.arange(14), jnp.arange(14)].set(0.5)
    ),
    "a diagonal of rows": lambda x: (
        jnp.stack([x[:14, :14]] * 3, -1).at[jnp.arange(14), jnp.arange(14)].set(x[:, :3])
    ),
}


@pytest.mark.parametrize("name", PLACED)
def test_updates_at_regular_places_are_chosen(name: str) -> None:
    done = optimized(PLACED[name], SQUARE)
    assert "stablehlo.scatter" not in print_module(done)
    got, want = evaluate_module(done, SQUARE)[0], jax.jit(PLACED[name])(SQUARE)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.at[jnp.arange(14), jnp.arange(14) % 5].set(1.0),
        lambda x: x.at[jnp.arange(14), jnp.arange(14) + 2].set(1.0),
        lambda x: x.at[jnp.arange(14) // 2].set(x),
        lambda x: x.at[jnp.arange(7), 2 * jnp.arange(7)].set(x[:7, 0]),
    ],
    ids=["no diagonal", "beyond the end", "rows twice", "a steep diagonal"],
)
def test_updates_at_other_places_stay(function) -> None:
    done = optimized(function, SQUARE)
    assert "stablehlo.scatter" in print_module(done)
    np.testing.assert_array_equal(evaluate_module(done, SQUARE)[0], jax.jit(function)(SQUARE))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.at[jnp.arange(190, 210)].add(1.0),
        lambda x: x.at[jnp.arange(-230, -190)].add(1.0),
        lambda x: x.at[jnp.full(7, 3)].add(x[:7]),
        lambda x: x.at[jnp.arange(5)].add(1.0),
        lambda x: x.at[jnp.arange(0, 200, 3)].max(5.0),
    ],
    ids=["beyond the end", "before the start", "one element", "few elements", "a maximum"],
)
def test_other_updates_stay(function) -> None:
    done = optimized(function, SIGNAL)
    assert "stablehlo.scatter" in print_module(done)
    np.testing.assert_array_equal(evaluate_module(done, SIGNAL)[0], jax.jit(function)(SIGNAL))


def test_signed_zeros_of_untouched_elements() -> None:
    def add(x):
        return x.at[jnp.arange(0, 200, 2)].add(1.0)

    x = np.full(200, -0.0, np.float32)
    got = np.asarray(evaluate_module(optimized(add, x), x)[0])
    np.testing.assert_array_equal(np.signbit(got), np.signbit(jax.jit(add)(x)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[jnp.asarray([0, 1, 2, 4, 8, 16])],
        lambda x: x[jnp.arange(20) ** 2 // 2],
        lambda x: x[frames(100, 1, 64)],
        lambda x: x[x[:5].astype(int)],
        lambda x: x.reshape(10, 4, 5)[jnp.arange(5), 1, jnp.arange(5)],
    ],
    ids=["listed", "squares", "windows of many slices", "an argument's", "a diagonal of planes apart"],
)
def test_others_stay(function) -> None:
    done = optimized(function, SIGNAL)
    assert "stablehlo.gather" in print_module(done)
    np.testing.assert_array_equal(evaluate_module(done, SIGNAL)[0], jax.jit(function)(SIGNAL))


@given(data=st.data())
def test_random_places(data: st.DataObject) -> None:
    """Of a matrix, by two indices that each go along one or two dimensions with any steps; some leave it, some meet twice."""
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))
    kind = data.draw(st.sampled_from(["set", "add", "subtract"]))

    def index():
        steps = [data.draw(st.sampled_from([0, 1, -1, 2, -3])) for _ in sizes]
        return data.draw(st.integers(0, 9)) + sum(
            step * np.arange(size).reshape([-1 if d == k else 1 for d in range(len(sizes))])
            for k, (step, size) in enumerate(zip(steps, sizes, strict=True))
        )

    i, j = np.broadcast_arrays(index(), index())
    x = np.arange(110, dtype=np.float32).reshape(10, 11)
    values = -np.arange(1.0, 1 + i.size, dtype=np.float32).reshape(i.shape)
    if kind == "set" and len(set(zip(i.flat, j.flat, strict=True))) < i.size:
        values[...] = 5.0  # which of several is put there is nobody's promise

    def function(x):
        return getattr(x.at[i, j], kind)(values, mode="drop", wrap_negative_indices=False)

    np.testing.assert_array_equal(evaluate_module(optimized(function, x), x)[0], jax.jit(function)(x))


@given(data=st.data())
def test_random_pairs_of_lines(data: st.DataObject) -> None:
    """Single elements of a matrix at two indices that each go along one or two dimensions, clipped where they leave it."""
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))
    indices = [
        data.draw(st.integers(0, 9))
        + sum(
            data.draw(st.sampled_from([0, 1, -1, 2, -3]))
            * np.arange(size).reshape([-1 if d == k else 1 for d in range(len(sizes))])
            for k, size in enumerate(sizes)
        )
        for _ in range(2)
    ]
    x = np.arange(220, dtype=np.int32).reshape(2, 10, 11)

    def function(x):
        return x.at[:, indices[0], indices[1]].get(mode="clip", wrap_negative_indices=False)

    np.testing.assert_array_equal(evaluate_module(optimized(function, x), x)[0], jax.jit(function)(x))


@given(data=st.data())
def test_random_lines(data: st.DataObject) -> None:
    """Indices of one to three dimensions with any steps, clipped where they leave the table."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    steps = [data.draw(st.integers(-9, 9)) for _ in sizes]
    start, window = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 4))
    indices = start + sum(
        step * np.arange(size).reshape([-1 if d == k else 1 for d in range(len(sizes))])
        for k, (step, size) in enumerate(zip(steps, sizes, strict=True))
    )

    def function(x):
        def at(i):
            return lax.dynamic_slice(x, (i, 0), (window, 2))

        for _ in sizes:
            at = jax.vmap(at)
        return at(jnp.asarray(indices, jnp.int32))

    def both(x, y):
        return function(x), jax.grad(lambda y: jnp.sum(function(y) ** 2))(y)

    x = np.arange(82, dtype=np.int32).reshape(41, 2)
    first = np.where(indices < 0, indices + 41, indices)  # from the end, as NumPy's
    rows = np.clip(first, 0, 41 - window)[..., None] + np.arange(window)
    times = np.bincount(rows.ravel(), minlength=41)[:, None]
    module = optimized(both, x, x.astype(np.float32))
    got, back = jax.jit(functools.partial(evaluate_module, module))(x, x.astype(np.float32))
    np.testing.assert_array_equal(got, x[rows])
    np.testing.assert_array_equal(back, (2 * x * times).astype(np.float32))


def test_engines_gradients_and_cycles() -> None:
    def spectrum(x):
        return jnp.sum(jnp.abs(x[frames(8, 16, 40)] * jnp.hanning(40)) ** 2.0, -1)

    def both(x):
        return spectrum(x), jax.grad(lambda x: jnp.sum(spectrum(x)))(x)

    target = ipuxla.Target.named("gc200").replace(num_tiles=8)
    for engine in ("fast", "literal"):
        compiled = ipuxla.jit(both, target=target, engine=engine).lower(SIGNAL).compile()
        for one, other in zip(compiled(SIGNAL), jax.jit(both)(SIGNAL), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)
    compiled.certify()
    matrix = jax.ShapeDtypeStruct((1024, 1024), np.float32)
    diagonal = ipuxla.jit(jnp.diagonal, target="gc200").lower(matrix).compile()
    assert diagonal.cost_analysis()["cycles"] < 600  # 7,626 as a lookup
    signal = jax.ShapeDtypeStruct((160_000,), np.float32)
    whole = ipuxla.jit(lambda x: x[frames(998, 160, 400)], target="gc200").lower(signal).compile()
    assert whole.cost_analysis()["cycles"] < 10_000
    assert whole.memory_analysis()["peak_bytes"] < 20_000
    back = ipuxla.jit(lambda x: jnp.zeros(160_000).at[frames(998, 160, 400)].add(x), target="gc200")
    pieces = jax.ShapeDtypeStruct((998, 400), np.float32)
    assert back.lower(pieces).compile().cost_analysis()["cycles"] < 10_000
