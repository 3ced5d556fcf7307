"""Windows of many elements in several dimensions are folded along one after the other; the witness is ``jax.jit``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module
from hlo_passes.ops import ReduceWindow
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.testing import check_engines
from tests.budgets import PLAN, budget

PIPELINE = "inline,fix(canonicalize,fold-constants,windows,cse,dce)"
FOLDS = {"add": (lax.add, 0), "max": (lax.max, None), "min": (lax.min, None)}


def windows(module) -> list[tuple[int, ...]]:
    instructions = (i for computation in module.computations for i in computation.walk())
    return [i.op.window_dimensions for i in instructions if isinstance(i.op, ReduceWindow)]


def folded(x, fold, *geometry):
    function, start = FOLDS[fold]
    if start is None:
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        sign = -1 if fold == "max" else 1
        limits = None if is_float else jnp.iinfo(x.dtype)
        start = sign * np.inf if is_float else limits.min if fold == "max" else limits.max
    return lax.reduce_window(x, jnp.asarray(start, x.dtype), function, *geometry)


def separated(function, x):
    """Return the windows that are left, and what the module gives."""
    module = optimize(import_stablehlo(jax.jit(function).lower(x).compiler_ir("stablehlo")), PIPELINE)
    (found,) = evaluate_module(module, x)
    return windows(module), np.asarray(found)


@given(
    st.sampled_from(list(FOLDS)),
    st.sampled_from(["float32", "float16", "int32", "uint8"]),
    st.lists(st.sampled_from([1, 2, 5, 9]), min_size=2, max_size=3),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=3),
    st.lists(st.integers(1, 2), min_size=3, max_size=3),
    st.booleans(),
)
@example("add", "float32", [1, 5, 5], [1, 1, 1], [(0, 1), (0, 0), (0, 0)], [1, 1, 1], False)
@example("max", "int32", [5, 5, 1], [1, 2, 3], [(2, 4), (2, 0), (1, 1)], [1, 1, 1], False)
@budget(PLAN)
def test_any_windows(fold, dtype, taps, strides, padding, dilations, has_nan):
    rank = len(taps)
    x = np.random.default_rng(0).integers(0, 40, [18 + k for k in range(rank)]).astype(dtype)
    if has_nan and dtype.startswith("float"):
        x.reshape(-1)[[3, -5]] = np.nan

    def function(x):
        return folded(x, fold, taps, strides[:rank], padding[:rank], (1,) * rank, dilations[:rank])

    kept, found = separated(function, x)
    expected = np.asarray(jax.jit(function)(x))
    np.testing.assert_allclose(found, expected, rtol=1e-2 if dtype == "float16" else 1e-6)
    if len(kept) > 1:
        assert all(sum(n > 1 for n in each) <= 1 for each in kept)


@pytest.mark.parametrize(
    ("taps", "strides", "expected"),
    [
        ((5, 5), (1, 1), [(5, 1), (1, 5)]),
        ((13, 13), (1, 1), [(13, 1), (1, 13)]),
        ((3, 3), (1, 1), [(3, 3)]),
        ((3, 3), (2, 2), [(3, 3)]),
        ((4, 4), (4, 4), [(4, 4)]),
        ((9, 1), (1, 1), [(9, 1)]),
    ],
)
def test_what_is_separated(taps, strides, expected):
    x = np.ones((32, 32), np.float32)
    kept, _ = separated(lambda x: folded(x, "max", taps, strides, "SAME"), x)
    assert kept == expected


def test_windows_that_do_not_begin_at_the_neutral_element_are_left():
    x = np.arange(400, dtype=np.float32).reshape(20, 20)

    def function(x):
        return lax.reduce_window(x, jnp.float32(1), lax.add, (5, 5), (1, 1), "VALID")

    kept, found = separated(function, x)
    assert kept == [(5, 5)]
    np.testing.assert_allclose(found, jax.jit(function)(x), rtol=1e-6)


def test_on_all_engines():
    x = np.random.default_rng(1).standard_normal((1, 9, 9, 4)).astype(np.float32)
    target = ipuxla.Target.named("gc200").replace(num_tiles=4)
    check_engines(lambda x: folded(x, "max", (1, 5, 5, 1), (1, 1, 1, 1), "SAME"), target, x)
