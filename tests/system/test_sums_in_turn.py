"""Reductions along dimensions that are not neighbours cost no more than one after the other does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from tiles.numerics.tolerance import check_close

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)
CASES = {
    "heads": ((512, 49, 12, 32), (1, 3), (3,)),
    "batch norm of channels first": ((16, 64, 32, 32), (0, 2, 3), (2, 3)),
    "rows of batches": ((32, 64, 500), (0, 2), (2,)),
    "columns of images": ((4, 8, 256, 256), (1, 3), (3,)),
    "groups of channels": ((8, 64, 64, 32, 2), (1, 2, 4), (1, 2)),
}


def cycles(function, shape, dtype) -> int:
    x = jax.ShapeDtypeStruct(shape, dtype)
    return ipuxla.jit(function, target="gc200").lower(x).compile().cost_analysis()["cycles"]


def in_turn(x, axes, first):
    return x.sum(first, keepdims=True).sum(tuple(d for d in axes if d not in first))


@pytest.mark.parametrize("name", CASES)
def test_several_runs_of_dimensions_cost_what_each_costs(name) -> None:
    shape, axes, first = CASES[name]
    whole, parts = (
        cycles(function, shape, jnp.float32)
        for function in (lambda x: x.sum(axes), lambda x: in_turn(x, axes, first)[...])
    )
    assert whole <= 1.05 * parts


def group_norm(x):
    grouped = x.reshape(*x.shape[:3], x.shape[3] // 2, 2)
    centered = grouped - grouped.mean((1, 2, 4), keepdims=True)
    return (centered * lax.rsqrt((centered**2).mean((1, 2, 4), keepdims=True) + 1e-5)).reshape(x.shape)


def test_a_group_norm_costs_little_more_than_a_norm_of_channels() -> None:
    """Its groups had been folded as a whole, by 256 tiles: 55,481 cycles of 8 images of 64 x 64 halves in 64 channels."""
    shape = (8, 64, 64, 64)
    plain = cycles(lambda x: x.mean((1, 2)), shape, jnp.float16)
    assert cycles(group_norm, shape, jnp.float16) <= 8 * plain


REDUCED = {
    "sum": lambda x: x.sum((0, 2, 4)),
    "greatest": lambda x: x.max((0, 2, 4)),
    "variance": lambda x: x.var((0, 2, 4)),
    "least of a product": lambda x: (x * jnp.cos(x)).min((1, 3)),
    "whether any": lambda x: (x > 3).any((0, 2, 4)),
    "all but one": lambda x: x.sum((0, 1, 3, 4)),
    "group norm": lambda x: group_norm(x.reshape(4, 16, -1, 8)),
    "product": lambda x: (1 + x / 100).prod((0, 3)),
}


@pytest.mark.parametrize("engine", ["fast", "literal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
@pytest.mark.parametrize("name", REDUCED)
def test_values_are_those_of_jax(name, dtype, engine) -> None:
    x = (np.random.default_rng(0).standard_normal((4, 8, 16, 16, 9)) * 2).astype(dtype)
    if name in ("variance", "group norm", "least of a product", "product") and dtype == np.int32:
        x = x.astype(np.float32)
    function = REDUCED[name]
    check_close(ipuxla.jit(function, target=TARGET, engine=engine)(x), jax.jit(function)(x), name)
