"""Reductions by any region on tiles: every engine against ``jax.jit``, and every word in the ring."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.testing import check_engines

X = np.random.default_rng(0).normal(size=(6, 33)).astype(np.float32)
N = np.arange(X.size, dtype=np.int32).reshape(X.shape)


def argmax(a, b):
    """Return the greater of two (value, position), the earlier operand of equals."""
    keep = a[0] >= b[0]
    return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])


def affine(a, b):
    """Return one affine function behind another: not commutative."""
    return a[0] * b[0], b[0] * a[1] + b[1]


def counts(a, b):
    """Return three folds of three element types at once."""
    return a[0] + b[0], a[1] + b[1], a[2] | b[2]


NOTHING = (np.float32(-np.inf), np.int32(-1))
TIES = np.round(X)
CASES: dict[str, tuple[Any, ...]] = {  # operands, initial values, region, dimensions
    "several operations": ((X,), np.float32(-np.inf), jnp.logaddexp, (1,)),
    "over everything": ((X,), np.float32(-np.inf), jnp.logaddexp, (0, 1)),
    "half": ((X.astype(np.float16),), np.float16(-np.inf), jnp.logaddexp, (0,)),
    "pairs": ((TIES, N), NOTHING, argmax, (1,)),
    "pairs over two dimensions": ((TIES, N), NOTHING, argmax, (0, 1)),
    "pairs of nothing": ((X[:, :0], N[:, :0]), NOTHING, argmax, (1,)),
    "no pairs": ((X[:0], N[:0]), NOTHING, argmax, (1,)),
    "in order": ((X / 9 + 1, X), (np.float32(1), np.float32(0)), affine, (1,)),
    "three types": ((X, N, X > 0), (np.float32(1), np.int32(2), np.bool_(False)), counts, (0,)),
    "the last": ((X,), np.float32(0), lambda a, b: b, (1,)),
    "the first": ((X,), np.float32(7), lambda a, b: a, (1,)),
    "a constant": ((X,), np.float32(0), lambda a, b: jnp.float32(3), (1,)),
    "long rows": ((np.tile(X, (1, 5)),), np.float32(-np.inf), jnp.logaddexp, (1,)),
    "a greatest by choice": (
        (np.tile(X, (1, 50)),),
        np.float32(-9),
        lambda a, b: jnp.where(a > b, a, b),
        (1,),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_reductions_by_any_region(case, small_target):
    arrays, starts, region, dimensions = CASES[case]

    def f(*given):
        return lax.reduce(given if len(arrays) > 1 else given[0], starts, region, dimensions)

    check_engines(f, small_target, *arrays, engines=("fast", "literal"), floats=("fast",))


def test_a_reduction_over_no_dimension_meets_its_initial_value(small_target):
    """The specification's result; XLA drops the initial value here."""

    def f(x):
        return lax.reduce(x, np.float32(2), lambda a, b: a + b * b, ())

    got = ipuxla.jit(f, target=small_target)(X)
    np.testing.assert_allclose(got, 2 + X * X, rtol=1e-6)


def test_the_first_of_several_nans_is_the_greatest(small_target):
    x = np.array([1, np.nan, 5, np.nan, np.nan, 2], np.float32)
    for f in (jnp.argmax, jnp.argmin):
        assert ipuxla.jit(f, target=small_target)(x) == f(x) == 1


def test_a_region_may_loop(small_target):
    """XLA:CPU aborts on a loop in a region, so the witness is the sum that this one amounts to."""

    def f(x):
        return lax.reduce(x, np.float32(0), lambda a, b: lax.fori_loop(0, 2, lambda _, c: c + b / 2, a), (0,))

    np.testing.assert_allclose(ipuxla.jit(f, target=small_target)(X), X.sum(0), rtol=1e-5, atol=1e-6)
