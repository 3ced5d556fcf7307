"""Loops and branches of real programs through the passes, and the arithmetic of trip counts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_passes.ir import evaluate_module
from hlo_passes.passes import optimize
from hlo_passes.passes.while_to_repeat import trip_count
from ipuxla.frontend.importer import import_stablehlo

LIMITS = (-8, 7)
HOLDS = {
    "LT": lambda i, n: i < n,
    "LE": lambda i, n: i <= n,
    "GT": lambda i, n: i > n,
    "GE": lambda i, n: i >= n,
    "NE": lambda i, n: i != n,
}


def simulated(start, step, direction, bound):
    """Count rounds of a four-bit counter; None when it leaves its range first."""
    count = 0
    while HOLDS[direction](start, bound):
        start, count = start + step, count + 1
        if not LIMITS[0] <= start <= LIMITS[1] or count > 16:
            return None
    return count


@pytest.mark.parametrize("direction", HOLDS)
def test_trip_count_is_that_of_a_simulated_counter(direction):
    values = range(LIMITS[0], LIMITS[1] + 1)
    for start, step, bound in itertools.product(values, range(-4, 5), values):
        assert trip_count(start, step, direction, bound, LIMITS) == simulated(start, step, direction, bound)


def instructions(function, *args):
    module = import_stablehlo(jax.jit(function).lower(*args).as_text())
    optimized = optimize(module)
    for a, b in zip(evaluate_module(optimized, *args), jax.tree.leaves(function(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    return list(optimized.walk())


def names(found):
    return [i.op.name for i in found]


X = jnp.linspace(0.5, 1.5, 6)


def test_fori_loop_repeats_without_its_counter():
    found = instructions(lambda x: lax.fori_loop(0, 5, lambda i, c: c * x + 1, x), X)
    (loop,) = (i for i in found if i.op.name == "hlo.repeat")
    assert loop.op.count == 5
    assert (len(loop.results), loop.op.invariants) == (1, 1)


def test_counter_that_is_read_stays():
    found = instructions(lambda x: lax.fori_loop(2, 6, lambda i, c: c * i, x), X)
    (loop,) = (i for i in found if i.op.name == "hlo.repeat")
    assert (loop.op.count, len(loop.results)) == (4, 2)


def test_bound_that_is_an_argument_stays_a_while():
    found = instructions(lambda x, n: lax.fori_loop(0, n, lambda i, c: c * x, x), X, jnp.int32(4))
    (loop,) = (i for i in found if i.op.name == "stablehlo.while")
    assert loop.op.invariants == 2  # n and x


def test_nested_loops_both_repeat():
    def f(x):
        return lax.fori_loop(0, 3, lambda i, c: lax.fori_loop(0, 2, lambda j, d: d + x, c) * 2, x)

    assert [i.op.count for i in instructions(f, X) if i.op.name == "hlo.repeat"] == [3, 2]


def test_work_that_does_not_change_leaves_the_loop():
    found = instructions(lambda x, n: lax.fori_loop(0, n, lambda i, c: c + jnp.sin(x), x), X, jnp.int32(3))
    order = names(found)
    assert order.index("stablehlo.sine") < order.index("stablehlo.while")


def test_cond_is_an_if_and_a_known_one_is_its_branch():
    def f(x, n):
        return lax.cond(n > 2, jnp.sin, jnp.cos, lax.cond(True, lambda v: v + 1, lambda v: v * 2, x))

    found = names(instructions(f, X, jnp.int32(3)))
    assert found.count("stablehlo.if") == 1
    assert "stablehlo.case" not in found


def test_calls_and_fusions_inside_bodies():
    def f(x, n):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.tanh(s[1]) * 2 + 1), (0, x))

    (loop,) = (i for i in instructions(f, X, jnp.int32(3)) if i.op.name == "stablehlo.while")
    assert "hlo.fusion" in names(loop.regions[1].instructions)


@pytest.mark.parametrize(
    ("function", "start"),
    [
        (lambda i: jnp.arange(300)[i], np.uint8(200)),
        (lambda i: lax.dynamic_slice(lax.iota(jnp.int32, 200), (i,), (3,)), np.int8(100)),
        (lambda i: lax.dynamic_slice(lax.iota(jnp.float32, 400), (i,), (3,)), np.uint8(255)),
        (lambda i: lax.dynamic_slice(lax.iota(jnp.uint8, 600), (i,), (3,)), np.int16(-7)),
        (lambda i: lax.dynamic_slice(lax.iota(jnp.int8, 600), (i,), (3,)), np.uint32(4_000_000_000)),
    ],
)
def test_what_is_sliced_out_of_a_counter_at_an_index_of_few_bits(function, start):
    """Where a slice may begin has more places than the index' type has numbers."""
    module = import_stablehlo(jax.jit(function).lower(start).compiler_ir("stablehlo"))
    (found,) = evaluate_module(optimize(module), start)
    np.testing.assert_array_equal(found, jax.jit(function)(start))
