"""Blocks that a reshape cuts out and a reduction folds are windows; other reductions of reshapes stay; witness ``jax.jit``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module
from hlo_passes.ops import DynamicSlice, ReduceWindow
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.testing import check_engines
from tests.budgets import PLAN, budget

PIPELINE = "inline,fix(canonicalize,fold-constants,while-to-repeat,cse,dce),reshaped-windows,dce"
TARGET = ipuxla.Target.named("gc200").replace(num_tiles=4)
RNG = np.random.default_rng(2)


def found(function, *arguments):
    """Return the module after the pass, and what it gives."""
    module = import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"))
    changed = optimize(module, PIPELINE)
    return changed, [np.asarray(x) for x in evaluate_module(changed, *arguments)]


def operations(module, kind):
    return [i.op for computation in module.computations for i in computation.walk() if isinstance(i.op, kind)]


@given(
    st.lists(st.tuples(st.integers(2, 5), st.integers(1, 4)), min_size=2, max_size=3),
    st.sampled_from(["sum", "max", "min", "mean"]),
    st.sampled_from(["float32", "float16", "int32"]),
    st.booleans(),
)
@budget(PLAN)
def test_blocks(blocks, fold, dtype, keeps_channels):
    """Of any sizes, with a dimension behind them or without."""
    last = (3,) if keeps_channels else ()
    x = RNG.integers(-9, 9, [a * b for a, b in blocks] + [*last]).astype(dtype)
    cut = [n for block in blocks for n in block] + [*last]
    axes = tuple(range(1, 2 * len(blocks), 2))

    def function(x):
        return getattr(x.reshape(cut), fold)(axes)

    module, (value,) = found(function, x)
    expected = np.asarray(jax.jit(function)(x))
    np.testing.assert_allclose(value, expected, rtol=2e-3 if dtype == "float16" else 1e-6)
    windows = operations(module, ReduceWindow)
    assert len(windows) == 1 or any(b == 1 for _, b in blocks)  # dimensions of one element go before
    if windows:
        assert windows[0].window_dimensions == windows[0].window_strides


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(4, 2, 6, 3).sum((0, 2)),
        lambda x: x.reshape(2, 4, 18).sum(1),
        lambda x: x.reshape(4, 2, 6, 3).sum((1, 2, 3)),
        lambda x: x.reshape(8, 2, 3, 3).sum((2, 3)),
        lambda x: lax.reduce(x.reshape(4, 2, 6, 3), 1.0, lax.add, (1, 3)),
    ],
)
def test_other_reductions_stay(function):
    x = RNG.standard_normal((8, 18)).astype(np.float32)
    module, (value,) = found(function, x)
    assert not operations(module, ReduceWindow)
    np.testing.assert_allclose(value, jax.jit(function)(x), rtol=1e-5, atol=1e-5)


def test_gradients_of_repeated_pixels_on_all_engines():
    x = RNG.standard_normal((1, 4, 4, 3)).astype(np.float32)

    def loss(x):
        return (jnp.repeat(jnp.repeat(x, 2, 1), 2, 2) ** 2 * jnp.arange(64.0).reshape(1, 8, 8, 1)).sum()

    check_engines(jax.grad(loss), TARGET, x)
    check_engines(lambda x: x.reshape(2, 2, 2, 2, 3).max((1, 3)), TARGET, x[0])


@pytest.mark.parametrize("last", [7, 7.0, np.uint8(7)])
def test_scans_over_counters_read_their_trip(last):
    def function(c):
        return lax.scan(lambda c, i: (c * 0.5 + i, c * i.astype(jnp.float32)), c, jnp.arange(last))

    def rows(c, k):
        numbers = lax.broadcasted_iota(jnp.int32, (7, 3), 0)
        return lax.fori_loop(0, 4, lambda t, c: c + lax.dynamic_slice(numbers, (k + t, 0), (2, 3)).sum(), c)

    c = jnp.ones(3)
    module, _ = found(function, c)
    assert not operations(module, DynamicSlice)
    check_engines(function, TARGET, c)
    for k in (-3, 2, 9):
        module, (value,) = found(rows, c, jnp.int32(k))
        assert not operations(module, DynamicSlice)
        np.testing.assert_array_equal(value, jax.jit(rows)(c, jnp.int32(k)))
