"""Costly functions of constants and counters are computed once; what depends on an argument stays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module, parse_module, print_module
from hlo_passes.passes import DEFAULT_PIPELINE, optimize
from hlo_passes.passes.precompute import Precompute
from ipuxla.frontend.importer import import_stablehlo

COSTLY = ("stablehlo.sine", "stablehlo.cosine", "stablehlo.power")
X = np.random.default_rng(0).standard_normal((24, 16)).astype(np.float32)


def rotated(x):
    """Rotary positions: angles are products of positions and frequencies."""
    frequencies = 1.0 / 10_000.0 ** (jnp.arange(0, 16, 2) / 16)
    angles = jnp.arange(900.0, 900.0 + x.shape[0])[:, None] * frequencies
    even, odd = x[:, :8], x[:, 8:]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([even * cosine - odd * sine, even * sine + odd * cosine], -1)


def module_of(function, *arguments):
    return import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"))


def names_of(module):
    return [name for name in COSTLY if name in print_module(module)]


def test_positions_are_constants_and_values_stay() -> None:
    module = module_of(rotated, X)
    assert names_of(module) == list(COSTLY)
    done = optimize(module)
    assert names_of(done) == []
    (got,) = evaluate_module(done, X)
    np.testing.assert_allclose(got, jax.jit(rotated)(X), rtol=0, atol=1e-6 * np.abs(X).max())


def test_in_loops_too() -> None:
    def turned(x):
        return lax.fori_loop(0, 5, lambda i, y: y * jnp.cos(jnp.arange(16.0)) + 1, x)

    done = optimize(module_of(turned, X))
    assert names_of(done) == []
    (got,) = evaluate_module(done, X)
    np.testing.assert_allclose(got, jax.jit(turned)(X), rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.sin(x),
        lambda x: x + jnp.exp(jnp.arange(16.0)),
        lambda x: x * jnp.cos(jnp.arange(16.0) + x[0, 0]),
    ],
    ids=["argument", "cheap", "made of an argument"],
)
def test_what_is_cheap_or_depends_on_an_argument_stays(function) -> None:
    module = optimize(module_of(function, X), "inline")
    assert Precompute().run(module) is module


def test_no_more_elements_than_allowed() -> None:
    module = optimize(
        module_of(lambda x: x * jnp.cos(jnp.arange(16.0)) * jnp.sin(jnp.arange(16.0)), X), "inline"
    )
    assert names_of(optimize(module, "precompute{max-elements=31}")) in (
        ["stablehlo.sine"],
        ["stablehlo.cosine"],
    )
    assert names_of(optimize(module, "precompute{max-elements=15}")) == ["stablehlo.sine", "stablehlo.cosine"]
    done = optimize(module, "precompute{max-elements=32}")
    assert names_of(done) == []
    assert print_module(parse_module(print_module(done))) == print_module(done)


def test_a_program_takes_fewer_cycles() -> None:
    def cycles(passes):
        return ipuxla.jit(rotated, target="gc200", passes=passes).lower(X).compile().cost_analysis()["cycles"]

    assert 5 * cycles(None) < cycles(DEFAULT_PIPELINE.replace("precompute,", ""))


def loops_in(computation):
    """Yield the instructions in loops of a computation."""
    for instruction in computation.instructions:
        if instruction.op.name in ("hlo.repeat", "stablehlo.while"):
            for region in instruction.regions:
                yield from region.instructions
                yield from loops_in(region)


@pytest.mark.parametrize(("size", "is_inside"), [(16, False), (1 << 17, True)])
def test_angles_of_a_position_leave_the_loop_over_layers(size, is_inside) -> None:
    """Small ones, though all that they are made of is larger than the position; those of what the loop carries stay."""

    def layers(position, weights, x):
        def layer(x, w):
            angle = position / 10_000.0 ** (jnp.arange(size) / size)
            return jnp.sin(x * w) + jnp.cos(angle) + angle, None

        return lax.scan(layer, x, weights)[0]

    arguments = jnp.float32(3.0), jnp.linspace(0.5, 1.0, 4), jnp.linspace(0.0, 1.0, size)
    done = optimize(
        module_of(layers, *arguments), "inline,fix(canonicalize,fold-constants,while-to-repeat,hoist,cse,dce)"
    )
    names = [each.op.name for computation in done.computations for each in loops_in(computation)]
    assert "stablehlo.sine" in names and ("stablehlo.cosine" in names) == is_inside
    (got,) = evaluate_module(optimize(module_of(layers, *arguments)), *arguments)
    np.testing.assert_allclose(got, jax.jit(layers)(*arguments), rtol=1e-5, atol=1e-5)
