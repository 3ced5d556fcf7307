"""Windows by their tile code: drawn extents, types, windows and plans; the module's words in the ring, JAX's values as floats."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from jax import lax

from tests import flow
from tests.budgets import PROGRAM, budget
from tiles.engine import coverage_of
from tiles.numerics.tolerance import check_close
from tiles.target import Target

FOLDS = {"max": (lax.max, -100), "min": (lax.min, 100), "add": (lax.add, 0)}
AXES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
"""Taps, strides, dilations of windows along an axis."""


def folding(fold: str, axes: list[tuple[int, int, int]], dtype: str):
    """Return a fold of windows over the middle axes of ``[images, rows, columns, channels]``."""
    function, start = FOLDS[fold]
    taps, strides, dilations = ((1, *each, 1) for each in zip(*axes, strict=True))

    def fold_windows(x):
        initial = np.asarray(start, dtype)[()]
        return lax.reduce_window(x, initial, function, taps, strides, "VALID", window_dilation=dilations)

    return fold_windows


def collecting(taps: tuple[int, int]):
    """Return the gradient of the greatest of windows side by side."""
    sizes = (1, *taps, 1)

    def greatest(x):
        return lax.reduce_window(x, -np.inf, lax.max, sizes, sizes, "VALID")

    return lambda x, given: jax.vjp(greatest, x)[1](given)[0]


def collecting_anywhere(sizes: tuple[int, ...], strides: tuple[int, ...], padding, fold: str):
    """Return the gradient of the greatest or least of windows that overlap, leave elements out, or reach outside."""
    function, start = FOLDS[fold]

    def greatest(x):
        limit = start * np.inf if np.issubdtype(x.dtype, np.floating) else start
        return lax.reduce_window(x, np.asarray(limit, x.dtype)[()], function, sizes, strides, padding)

    return greatest, lambda x, given: jax.vjp(greatest, x)[1](given)[0]


def arrays(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return values among which windows have several that are the greatest."""
    return (np.random.default_rng(0).integers(-9, 10, shape) / 2).astype(dtype)


def agrees(function, arguments, tiles: int) -> float:
    """Check the tile engine in both arithmetics; return the share of vertices that ran by code."""
    module = flow.optimized_module(function, arguments)
    executable = flow.executable_of(module, Target.named("gc200").replace(num_tiles=tiles))
    flow.assert_engines_agree(executable, module, arguments, ("tile",))
    (got,) = flow.run(executable, "tile", arguments)
    check_close(got, jax.jit(function)(*arguments), "tile")
    return coverage_of(executable).vertices_share


@given(
    st.sampled_from(sorted(FOLDS)),
    st.sampled_from(["float32", "float16", "int32", "int8"]),
    st.lists(AXES, min_size=2, max_size=2),
    st.tuples(st.integers(1, 3), st.integers(5, 9), st.integers(5, 9), st.integers(1, 20)),
    st.integers(1, 9),
)
@budget(PROGRAM)
def test_folds_of_windows(fold, dtype, axes, shape, tiles) -> None:
    agrees(folding(fold, axes, dtype), [arrays(shape, dtype)], tiles)


@given(
    st.sampled_from(["float32", "float16"]),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 20)),
    st.integers(1, 9),
)
@budget(PROGRAM)
def test_gradients_of_windows_side_by_side(dtype, taps, windows, tiles) -> None:
    assume(taps != (1, 1))
    images, rows, columns, channels = windows
    shape = images, rows * taps[0], columns * taps[1], channels
    agrees(collecting(taps), [arrays(shape, dtype), arrays(windows, dtype)], tiles)


def special(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Return few different values, among them zeros of both signs, infinities and NaN."""
    values = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -1.5, 2.0])
    return np.random.default_rng(seed).choice(values, shape).astype(dtype)


COVERING = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
"""Taps, strides, and what windows reach in front of and behind the array along an axis."""


@given(
    st.sampled_from(["max", "min"]),
    st.sampled_from(["float32", "float16", "int32"]),
    st.lists(COVERING, min_size=2, max_size=2),
    st.tuples(st.integers(1, 2), st.integers(3, 9), st.integers(3, 9), st.integers(1, 14)),
    st.integers(1, 9),
    st.integers(0, 99),
)
@budget(PROGRAM)
def test_gradients_of_any_windows(fold, dtype, axes, shape, tiles, seed) -> None:
    """Every bit of what the codelet means, of zeros, infinities and NaN, too, but for the sign of NaN."""
    taps, strides, low, high = zip(*axes, strict=True)
    assume(taps != (1, 1))
    padding = [(0, 0), *zip(low, high, strict=True), (0, 0)]
    forward, backward = collecting_anywhere((1, *taps, 1), (1, *strides, 1), padding, fold)
    given_shape = jax.eval_shape(forward, jax.ShapeDtypeStruct(shape, dtype)).shape
    is_float = dtype != "int32"
    x = special(shape, dtype, seed) if is_float else arrays(shape, dtype)
    source = special(given_shape, dtype, seed + 1) if seed % 2 and is_float else arrays(given_shape, dtype)
    module = flow.optimized_module(backward, [x, source])
    executable = flow.executable_of(module, Target.named("gc200").replace(num_tiles=tiles))
    flow.assert_engines_agree(executable, module, [x, source], ("tile",))
    (got,), (want,) = (flow.run(executable, engine, [x, source]) for engine in ("tile", "literal"))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[got == got], np.signbit(want)[want == want])
    event(f"vertices by code: {coverage_of(executable).vertices_share:.0%}")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_windows_that_overlap_run_by_code(dtype) -> None:
    """As in a residual network: 3 x 3 elements every other one, with padding behind or all round."""
    x = arrays((2, 8, 8, 8), dtype)
    for padding in ([(0, 0), (0, 1), (0, 1), (0, 0)], [(0, 0), (1, 1), (1, 1), (0, 0)]):
        _, backward = collecting_anywhere((1, 3, 3, 1), (1, 2, 2, 1), padding, "max")
        assert agrees(backward, [x, arrays((2, 4, 4, 8), dtype)], 4) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_whole_words_of_channels_run_by_code(dtype) -> None:
    x = arrays((2, 6, 6, 8), dtype)
    assert agrees(folding("max", [(2, 2, 1), (3, 1, 1)], dtype), [x], 4) == 1
    assert agrees(collecting((2, 3)), [x, arrays((2, 3, 2, 8), dtype)], 4) == 1
