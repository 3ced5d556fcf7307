"""What no trip of a loop changes is brought once, before the loop, to where its steps read it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.testing import check_engines

RNG = np.random.default_rng(11)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape) * 0.2, jnp.float32)


def scanned(c, xs):
    """A scan over rows that were computed before it."""
    return lax.scan(lambda c, x: (jnp.tanh(c * 0.5 + x), None), c, jnp.tanh(xs))[0]


def derived(c, xs):
    """The same and its gradient: the second loop reads what the first one stacked."""
    return jax.grad(lambda c, xs: scanned(c, xs).sum(), (0, 1))(c, xs)


def weighted(w, x):
    """A recurrence by weights that were narrowed before it."""
    narrow = (w * 0.1).astype(jnp.float16)
    return lax.fori_loop(0, 40, lambda _, x: jnp.tanh(x @ narrow), x.astype(jnp.float16))


def nested(c, xs):
    """Rows read in a loop in a loop; the inner one runs more often."""
    rows = jnp.sin(xs)
    return lax.fori_loop(0, 3, lambda j, c: lax.fori_loop(0, 9, lambda i, c: c * 0.5 + rows[i + j], c), c)


def rewritten(c, xs):
    """Rows that the loop changes while it reads others of them."""

    def step(i, state):
        c, rows = state
        c = jnp.tanh(c + rows[31 - i])
        return c, rows.at[i].set(c)

    return lax.fori_loop(0, 32, step, (c, jnp.tanh(xs)))


def in_a_branch(c, xs):
    """Rows that only some trips read."""
    rows = jnp.tanh(xs)
    return lax.fori_loop(0, 32, lambda i, c: lax.cond(c[0] > 0, lambda: c - rows[i], lambda: c + 0.5), c)


def farthest(points, start):
    """Farthest points: a step reads one of them and its distance to all."""

    def step(carry, _):
        least, i = carry
        least = jnp.minimum(least, ((points - points[i]) ** 2).sum(-1))
        return (least, jnp.argmax(least).astype(jnp.int32)), i

    return lax.scan(step, (jnp.full(len(points), jnp.inf), start), length=12)[1]


def until_small(c, xs):
    """Nobody knows how often."""
    rows = jnp.tanh(xs)
    step = lambda s: (s[0] * 0.5 + 0.1 * rows[s[1]], s[1] + 1)  # noqa: E731
    return lax.while_loop(lambda s: (s[1] < 30) & (jnp.abs(s[0]).max() > 0.05), step, (c, 0))


def stacked_again(c, xs):
    """Each trip of a loop stacks rows in one loop and reads them, the last one first, in another."""

    def trip(_, c):
        rows = lax.scan(lambda c, x: (jnp.tanh(c + x), c), c, xs)[1]
        return lax.scan(lambda c, x: (c * 0.5 + x, None), c, rows, reverse=True)[0]

    return lax.fori_loop(0, 3, trip, c)


def recurrent(w, xs):
    """The gradient of gated cells: the second loop reads a row of everything that the first one kept."""

    def loss(w):
        def cell(state, x):
            c, h = state
            i, f, g, o = jnp.split(h @ w + x, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (c, jax.nn.sigmoid(o) * jnp.tanh(c)), None

        zeros = jnp.zeros((xs.shape[1], w.shape[0]), xs.dtype)
        return lax.scan(cell, (zeros, zeros), xs)[0][1].sum()

    return jax.grad(loss)(w)


CASES = {
    "scanned": (scanned, (normal(24), normal(96, 24))),
    "derived": (derived, (normal(24), normal(48, 24))),
    "weighted": (weighted, (normal(64, 64), normal(8, 64))),
    "nested": (nested, (normal(24), normal(16, 24))),
    "rewritten": (rewritten, (normal(24), normal(32, 24))),
    "in a branch": (in_a_branch, (normal(24), normal(32, 24))),
    "farthest": (farthest, (normal(96, 3), jnp.int32(5))),
    "stacked again": (stacked_again, (normal(24), normal(32, 24))),
    "recurrent": (recurrent, (normal(8, 32), normal(6, 4, 32))),
    "until small": (until_small, (normal(24), normal(32, 24))),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name, gc200):
    function, arguments = CASES[name]
    check_engines(
        function, gc200.replace(num_tiles=48), *arguments, engines=("fast", "literal"), floats=("fast",)
    )


def operations(function, target, *arguments):
    return (
        ipuxla.jit(function, target=target).lower(*arguments).compile().profile(*arguments).data["operations"]
    )


@pytest.mark.parametrize(("name", "reads"), [("scanned", 0), ("weighted", 1)])
def test_a_trip_exchanges_less_than_what_it_reads(name, reads, gc200):
    function, arguments = CASES[name]
    found = operations(function, gc200.replace(num_tiles=48), *arguments)
    trips = max(op["runs"] for op in found)
    (once,) = [op for op in found if ".order" in op["name"]]
    assert once["runs"] == 1
    shared = arguments[1 - reads].nbytes // (2 if name == "weighted" else 1)
    for op in found:
        if op["runs"] >= trips:
            assert op["exchangeBytes"] / op["runs"] < shared, op["name"]


def test_what_any_step_reads_as_a_whole_is_brought_once(gc200):
    """Points lie on the tile that looks one of them up; the distances to all of them are taken elsewhere."""
    points = normal(4096, 3)
    found = operations(farthest, gc200, points, jnp.int32(5))
    repeated = [op for op in found if op["runs"] >= 12]
    assert repeated
    for op in repeated:
        assert op["exchangeBytes"] / op["runs"] < points.nbytes, (op["name"], op["plans"])


def test_what_an_earlier_loop_stacked_is_brought_once(gc200):
    """Of all that a trip exchanges, less than a stack: no row is read from where whole stacks would have to come from."""
    xs = normal(32, 8, 1024)
    found = operations(recurrent, gc200, normal(256, 1024), xs)
    slices = [op for op in found if op["name"].startswith("dynamic_slice") and op["runs"] >= len(xs)]
    stack = len(xs) * 8 * 256 * 4
    assert slices and sum(op["exchangeBytes"] / op["runs"] for op in slices) < stack


@pytest.mark.parametrize("name", ["rewritten", "in a branch"])
def test_what_changes_or_is_seldom_read_stays(name, gc200):
    function, arguments = CASES[name]
    found = operations(function, gc200.replace(num_tiles=48), *arguments)
    assert not [op for op in found if ".order" in op["name"] and op["runs"] == 1]


def test_a_row_of_a_stack_is_written_and_read_where_it_lies(gc200):
    """A gradient through a scan on all tiles: its stacks are cut along what a step makes, never along steps."""
    found = operations(derived, gc200, normal(2048), normal(400, 2048))
    kinds = "dynamic_slice", "dynamic_update_slice"
    stacks = [op for op in found if op["name"].startswith(kinds) and op["runs"] > 1]
    assert {op["runs"] for op in stacks} >= {400}
    for op in stacks:
        assert op["exchangeBytes"] / op["runs"] < 4 * 2048 * 4, (op["name"], op["plans"])
