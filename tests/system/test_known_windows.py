"""Stretches of a tensor at a place that is known are updated at what going over all of it costs, where that is less."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla import testing

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=16)
PAIRS = {
    "added": (
        lambda x, y: x.at[500:1500].add(y),
        lambda x, y: x + jnp.pad(y, (500, x.shape[0] - 1500)),
    ),
    "set": (
        lambda x, y: x.at[500:1500].set(y),
        lambda x, y: jnp.concatenate([x[:500], y, x[1500:]]),
    ),
    "multiplied": (
        lambda x, y: x.at[:1000].multiply(2.0),
        lambda x, y: jnp.where(jnp.arange(x.shape[0]) < 1000, 2 * x, x),
    ),
    "replaced": (
        lambda x, y: lax.dynamic_update_slice(x, y, (500,)),
        lambda x, y: jnp.concatenate([x[:500], y, x[1500:]]),
    ),
}


def cycles(function, *shapes) -> int:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return ipuxla.jit(function, target="gc200").lower(*arguments).compile().cost_analysis()["cycles"]


@pytest.mark.parametrize("name", PAIRS)
def test_a_stretch_costs_what_is_written_out(name) -> None:
    updated, written_out = PAIRS[name]
    assert cycles(updated, (100_000,), (1000,)) <= 1.2 * cycles(written_out, (100_000,), (1000,))


def test_a_row_is_updated_in_place() -> None:
    """Where going over all of a tensor takes longer: a row of 100 MB, and a stretch of them."""
    for function in (lambda x, y: x.at[7].add(y), lambda x, y: x.at[7:9].set(y)):
        compiled = ipuxla.jit(function, target="gc200", donate_argnums=(0,))
        of = jax.ShapeDtypeStruct
        lowered = compiled.lower(of((100_000, 256), jnp.float32), of((256,), jnp.float32))
        assert lowered.compile().cost_analysis()["cycles"] < 3000


@pytest.mark.parametrize("name", PAIRS)
def test_values_are_those_of_jax(name) -> None:
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(n).astype(np.float32) for n in (3000, 1000))
    testing.check_engines(PAIRS[name][0], TARGET, x, y)
