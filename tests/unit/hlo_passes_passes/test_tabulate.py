"""Costly functions of what a loop counts become tables; what floats carry, and what an argument begins, is computed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module, print_module
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo

COSTLY = ("stablehlo.sine", "stablehlo.cosine", "stablehlo.power", "stablehlo.tan", "stablehlo.atan2")
X = np.random.default_rng(0).standard_normal(6).astype(np.float32)


def optimized(function, *arguments):
    return optimize(import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo")))


def costly_in(module):
    return [name for name in COSTLY if name in print_module(module)]


def source(x):
    """A field with a source that swings in time."""
    return lax.scan(lambda x, t: (x.at[2].add(jnp.sin(0.3 * t)), x[1]), x, jnp.arange(10.0))


def embedded(x):
    """Times counted down, with frequencies, as samplers of diffusion models embed them."""
    times = jnp.linspace(999, 0, 7).astype(jnp.int32)
    frequencies = jnp.exp(-jnp.arange(3.0))

    def step(x, time):
        angles = time.astype(jnp.float32) * frequencies
        return 0.9 * x + jnp.concatenate([jnp.sin(angles), jnp.cos(angles)]), None

    return lax.scan(step, x, times)[0]


def scheduled(x):
    """A count of steps beside the loop's own, as optimizers carry it, that stops at a limit."""

    def step(carry, _):
        x, count = carry
        rate = 0.5 * (1 + jnp.cos(jnp.pi * count / 20)) / (1 - 0.9 ** (count + 1))
        return (x - rate * x, jnp.where(count < 5, count + 1, count)), rate

    return lax.scan(step, (x, jnp.int32(0)), None, length=9)


def from_three(x):
    return lax.fori_loop(3, 9, lambda i, x: x * jnp.cos(0.1 * i) + jnp.sin(jnp.arange(6.0) + i), x)


def downwards(x):
    return lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] - 2, s[1] * jnp.sin(1.0 * s[0])), (9, x))[1]


def reversed_scan(x):
    return lax.scan(lambda x, i: (x * jnp.cos(i), jnp.sin(i * i)), x, jnp.arange(8.0), reverse=True)


@pytest.mark.parametrize("function", [source, embedded, scheduled, from_three, downwards, reversed_scan])
def test_functions_of_counters_are_looked_up(function) -> None:
    done = optimized(function, X)
    assert costly_in(done) == []
    got, want = evaluate_module(done, X), jax.tree.leaves(jax.jit(function)(X))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-6)


def test_inner_counters_of_nested_loops() -> None:
    def nested(x):
        def inner(i, x):
            return lax.fori_loop(0, 3, lambda j, x: x + jnp.sin(0.5 * j) * i, x)

        return lax.fori_loop(0, 4, inner, x)

    done = optimized(nested, X)
    assert costly_in(done) == []
    np.testing.assert_allclose(evaluate_module(done, X)[0], jax.jit(nested)(X), rtol=2e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.fori_loop(0, 5, lambda i, x: jnp.sin(x + i), x),
        lambda x: lax.scan(lambda a, _: (a + 0.1 * jnp.sin(a), a), jnp.float32(0.1), None, length=9),
        lambda x: lax.fori_loop(0, x.astype(int)[0], lambda i, x: x + jnp.sin(1.0 * i), x),
        lambda x: lax.fori_loop(0, 70_000, lambda i, x: x + jnp.sin(1.0 * i), x),
        lambda x: lax.scan(lambda n, _: (n + 1, jnp.sin(1.0 * n)), x.astype(int)[0], None, length=5),
    ],
    ids=["of an argument", "floats carried", "of unknown length", "of too many trips", "from an argument"],
)
def test_others_stay(function) -> None:
    assert costly_in(optimized(function, X)) == ["stablehlo.sine"]


def test_engines_and_cycles() -> None:
    target = ipuxla.Target.named("gc200").replace(num_tiles=8)
    for function in (embedded, scheduled):
        want = jax.tree.leaves(jax.jit(function)(X))
        for engine in ("fast", "literal"):
            compiled = ipuxla.jit(function, target=target, engine=engine).lower(X).compile()
            for one, other in zip(jax.tree.leaves(compiled(X)), want, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        compiled.certify()
    cycles = ipuxla.jit(source, target="gc200").lower(X).compile().cost_analysis()["cycles"]
    assert cycles < 25_000  # a sine in each of ten rounds took 14,000
