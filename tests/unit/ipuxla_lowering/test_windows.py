"""Scans and windows on tiles: every engine against ``jax.jit``, and every word in the ring."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.testing import check_engines
from tests.flow import assert_engines_agree, executable_of
from tests.unit.hlo_passes_passes.test_windows import SCATTERS, scatter_text

X = np.random.default_rng(0).normal(size=(300,)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(3, 150, 2)).astype(np.float32)

CUMULATIVE = {
    "sum": (jnp.cumsum, X),
    "sum of a middle axis, backwards": (lambda x: lax.cumsum(x, 1, reverse=True), Y),
    "product": (lambda x: lax.cumprod(1 + x / 8, 0), X),
    "minimum of a short axis": (lambda x: lax.cummin(x, 2, reverse=True), Y),
    "logarithm of sums": (lax.cumlogsumexp, X[:130]),
    "integers": (jnp.cumsum, np.arange(140, dtype=np.int8)),
    "half": (jnp.cumsum, X.astype(np.float16)),
}


@pytest.mark.parametrize("case", CUMULATIVE)
def test_cumulative_operations(case, small_target):
    f, x = CUMULATIVE[case]
    check_engines(f, small_target, x, engines=("fast", "literal"))


GRADIENTS = {
    "sum": (lambda x: jnp.sum(jnp.cumsum(x) ** 2), X[:200]),
    "maximum": (lambda x: jnp.sum(lax.cummax(x) ** 2), X[:7]),
    "product": (lambda x: jnp.sum(jnp.cumprod(1 + x / 8) ** 2), X[:7]),
    "logarithm of sums": (lambda x: jnp.sum(lax.cumlogsumexp(x) ** 2), X[:7]),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_of_cumulative_operations(case, small_target):
    f, x = GRADIENTS[case]
    check_engines(jax.grad(f), small_target, x, engines=("fast",))
    through = jax.grad(ipuxla.jit(f, target=small_target))(x)
    np.testing.assert_allclose(through, jax.grad(f)(x), atol=1e-4 * np.abs(jax.grad(f)(x)).max())


def argmax(a, b):
    """Return the greater of two (value, position), the earlier one of equals."""
    keep = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])


def test_windows_of_pairs(small_target):
    x = np.round(Y[:, :6] * 2)
    where = np.arange(x.size, dtype=np.int32).reshape(x.shape)
    start = (np.float32(-np.inf), np.int32(-1))

    def f(x, where):
        return lax.reduce_window((x, where), start, argmax, (1, 3, 2), (1, 2, 1), "SAME")

    check_engines(f, small_target, x, where, floats=("fast",))


def test_windows_of_a_region_of_several_operations(small_target):
    def f(x):
        return lax.reduce_window(x, -np.inf, jnp.logaddexp, (2, 3), (1, 2), ((0, 1), (1, 1)))

    check_engines(f, small_target, Y[0, :12], floats=("fast",))


def test_wide_windows(small_target):
    def f(x):
        return lax.reduce_window(x, 0.0, lax.add, (60,), (1,), "SAME")

    check_engines(f, small_target, X, floats=("fast",))


def test_select_and_scatter_of_any_regions(small_target):
    text = scatter_text(SCATTERS["overlapping"], "GE", "multiply")
    module = optimize(import_stablehlo(text))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((5, 6), (3, 3), ())]
    assert_engines_agree(executable_of(module, small_target), module, arrays)


def _affine(a, b):
    """Return one affine map behind another."""
    return a[0] * b[0], b[0] * a[1] + b[1]


def _running_mean(x):
    def step(carry, row):
        count, total = carry[0] + 1, carry[1] + row
        return (count, total), total / count

    return lax.scan(step, (jnp.float32(0), jnp.zeros(2)), x)[1]


SCANS = {
    "associative scan": lambda x: lax.associative_scan(_affine, (1 + x / 9, x))[1],
    "associative scan backwards": lambda x: lax.associative_scan(jnp.maximum, x, reverse=True),
    "scan": _running_mean,
    "convolve": lambda x: jnp.convolve(x[:, 0], jnp.array([1.0, -2.0, 3.0]), mode="same"),
    "correlate": lambda x: jnp.correlate(x[:, 0], x[:3, 1], mode="full"),
    "cumulative sums in a loop": lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.cumsum(y, 0) / 9, x),
}


@pytest.mark.parametrize("case", SCANS)
def test_scans_and_their_gradients(case, small_target):
    f, x = SCANS[case], Y[0, :7]
    check_engines(f, small_target, x, engines=("fast",))

    def loss(g, x):
        return jnp.sum(jnp.tanh(g(x)))

    got = jax.grad(lambda x: loss(ipuxla.jit(f, target=small_target), x))(x)
    want = jax.grad(lambda x: loss(f, x))(x)
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def test_a_long_sum_is_cheap_on_all_tiles(gc200):
    x = jax.ShapeDtypeStruct((100_000,), np.float32)
    cost = ipuxla.jit(jnp.cumsum, target=gc200).lower(x).compile().cost_analysis()
    assert cost["cycles"] < 20_000 and cost["supersteps"] < 20
    assert cost["flops"] < 10 * 100_000
