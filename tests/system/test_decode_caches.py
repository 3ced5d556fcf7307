"""Caches of keys that a step of decoding writes lie as the products that read them want, wherever the new key comes from."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=16)


def turned(x, cosines, sines):
    """Rotary positions: halves of each head turned by angles."""
    n = x.shape[-1] // 2
    a, b = x[..., :n], x[..., n:]
    return jnp.concatenate([a * cosines - b * sines, a * sines + b * cosines], -1).astype(x.dtype)


def at(cache, key, positions):
    return cache.at[jnp.arange(len(positions)), positions].set(key)


def sliced(cache, key, positions):
    return jax.vmap(lambda c, k, i: lax.dynamic_update_slice(c, k[None], (i, 0, 0)))(cache, key, positions)


def at_one_place(cache, key, positions):
    return lax.dynamic_update_slice(cache, key[:, None], (0, positions[0], 0, 0))


WRITES = {"at": at, "vmap": sliced, "one place": at_one_place}


def scores(write, turn, query, key, cache, positions, cosines, sines):
    batch, groups, width = key.shape
    if turn:
        query, key = turned(query, cosines, sines), turned(key, cosines, sines)
    cache = write(cache, key, positions)
    return jnp.einsum("bgrd,bmgd->bgrm", query.reshape(batch, groups, -1, width), cache), cache


def shapes(batch=8, length=512, groups=4, width=64, dtype=jnp.float16):
    heads = 4 * groups
    of = jax.ShapeDtypeStruct
    angles = of((batch, 1, width // 2), dtype)
    cache = of((batch, length, groups, width), dtype)
    new = of((batch, heads, width), dtype), of((batch, groups, width), dtype)
    return *new, cache, of((batch,), jnp.int32), angles, angles


def cycles(write, turn) -> int:
    jitted = ipuxla.jit(functools.partial(scores, write, turn), target="gc200", donate_argnums=(2,))
    return jitted.lower(*shapes()).compile().cost_analysis()["cycles"]


@pytest.mark.parametrize("write", WRITES)
def test_a_turned_key_costs_its_turning(write) -> None:
    """The cache had lain as the turned key did, on 32 tiles, and all of it went to the product: 22,414 cycles instead of 4,792."""
    assert cycles(WRITES[write], True) <= cycles(WRITES[write], False) + 5000


@pytest.mark.parametrize("engine", ["fast", "literal"])
@pytest.mark.parametrize("write", WRITES)
def test_scores_and_caches_are_those_of_jax(write, engine) -> None:
    random = np.random.default_rng(0)
    arguments = [
        random.integers(0, 24, s.shape).astype(s.dtype)
        if s.dtype == np.int32
        else random.standard_normal(s.shape).astype(s.dtype)
        for s in shapes(3, 24, 2, 8, jnp.float32)
    ]
    function = functools.partial(scores, WRITES[write], True)
    found = ipuxla.jit(function, target=TARGET, engine=engine)(*arguments)
    for got, want in zip(found, jax.jit(function)(*arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
