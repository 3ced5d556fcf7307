"""Windows by their tile code: drawn extents, types, windows and plans; the module's words in the ring, JAX's values as floats."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import assume, given
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


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_whole_words_of_channels_run_by_code(dtype) -> None:
    x = arrays((2, 6, 6, 8), dtype)
    assert agrees(folding("max", [(2, 2, 1), (3, 1, 1)], dtype), [x], 4) == 1
    assert agrees(collecting((2, 3)), [x, arrays((2, 3, 2, 8), dtype)], 4) == 1
