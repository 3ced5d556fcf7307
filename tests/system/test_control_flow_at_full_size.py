"""Programs with loops and branches on all 1,472 tiles: values and gradients, floats and every bit of the ring."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ipuxla.testing import check_engines
from tests.everyday import lstm

RNG = np.random.default_rng(0)


def normal(*shape, scale=1.0):
    return jnp.asarray(RNG.normal(size=shape) * scale, jnp.float32)


def lstm_loss(params, xs):
    """The mean square of what an LSTM says to ``xs[steps, rows, features]``."""
    (h, _), hs = lstm(params, xs)
    return (h**2).mean() + (hs**2).mean()


def heat(u):
    """Heat spreads over a plate with cold edges, 120 steps; the square of what is left."""

    def step(_, u):
        p = jnp.pad(u, 1)
        return u + 0.2 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u)

    return (lax.fori_loop(0, 120, step, u) ** 2).sum()


def swaps_in_nested_loops(x, y):
    def inner(_, pair):
        return pair[1], pair[0] * 0.5 + x

    def outer(_, pair):
        a, b = lax.fori_loop(0, 3, inner, pair)
        return b, a

    a, b = lax.fori_loop(0, 4, outer, (x, y))
    return (a * b).sum()


def newton(x, a):
    """Square roots, until all are good enough; how many rounds that took."""

    def is_off(state):
        return jnp.abs(state[0] * state[0] - a).max() > 1e-3

    return lax.while_loop(is_off, lambda s: ((s[0] + a / s[0]) / 2, s[1] + 1), (x, 0))


def switches(x, number):
    branches = [jnp.sum, lambda v: (v * v).sum(), lambda v: jnp.sin(v).sum(), lambda v: (v[::-1] * v).sum()]
    return lax.switch(number, branches, x)


def decides_in_a_scan(c, xs):
    def step(c, x):
        c = lax.cond(x > 0, lambda v: jnp.tanh(v + x), lambda v: v * x, c)
        return c, c.sum()

    c, sums = lax.scan(step, c, xs)
    return c.sum() + (sums**2).sum()


PARAMS = {"w": normal(16, 128, scale=0.25), "u": normal(32, 128, scale=0.2), "b": normal(128)}
LITERAL = ("fast", "literal")
CASES = {
    "lstm": (lstm_loss, (PARAMS, normal(8, 4, 16)), (0,), ("fast",)),
    "heat": (heat, (normal(48, 48),), (0,), LITERAL),
    "swaps": (swaps_in_nested_loops, (normal(3000), normal(3000)), (0, 1), LITERAL),
    "newton": (newton, (jnp.abs(normal(2000)) + 1, jnp.abs(normal(2000)) + 1), (), LITERAL),
    "switch": (switches, (normal(3000), jnp.int32(2)), (0,), LITERAL),
    "decides": (decides_in_a_scan, (normal(2000), normal(9)), (0, 1), LITERAL),
}
"""Function, arguments, which of them to derive by, engines."""


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, gc200):
    function, arguments, derived, engines = CASES[name]
    both = jax.value_and_grad(function, derived) if derived else function
    check_engines(both, gc200, *arguments, engines=engines, floats=("fast",))
