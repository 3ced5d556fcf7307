"""An input that two operations read costs about what both take alone, whichever comes first and however little one reads."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import ipuxla

NORMALIZED = {
    "softmax": jax.nn.softmax,
    "standardize": jax.nn.standardize,
    "z-score": lambda x: (x - x.mean()) / x.std(),
    "cumsum": lambda x: jnp.cumsum(x, -1),
}
READ = {
    "itself": lambda x: x * 2,
    "a row": lambda x: x[0] * 2,
    "a column": lambda x: x[..., 5] * 2,
    "half": lambda x: x[..., ::2] * 2,
    "looked up": lambda x: jnp.take(x, jnp.array([1, 5, 2, 7]), axis=-1),
    "a row set": lambda x: x.at[0].set(0),
    "a column set": lambda x: x.at[..., 3].set(0),
    "convolved": lambda x: lax.conv_general_dilated(x.reshape(1, 1, -1), jnp.ones((1, 1, 9)), (1,), "SAME"),
}
SHAPES = ((8, 20_000), (512, 784), (1000, 1000))


def cycles(function, shape) -> int:
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    return ipuxla.jit(function, target="gc200").lower(x).compile().cost_analysis()["cycles"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("one", "other"), [*itertools.product(NORMALIZED, READ)])
def test_both_cost_about_what_each_costs(one, other, shape) -> None:
    """Rows that are normalized had waited one on a tile, or all of an input beside the row that was read first; some did not fit."""
    first, second = NORMALIZED[one], READ[other]
    alone = cycles(first, shape) + cycles(second, shape)
    functions = [lambda x: (first(x), second(x)), lambda x: (second(x), first(x))]
    if other == "a column set":
        functions.append(lambda x: first(second(x)))
    for function in functions:
        assert cycles(function, shape) <= 2 * alone + 4000


@pytest.mark.parametrize("shape", [(1_000_000,), (4, 3, 512, 512), (8, 160_000)], ids=str)
def test_what_is_normalized_may_be_added_to_itself(shape) -> None:
    axes = tuple(range(1, len(shape))) or None

    def outliers(x):
        z = (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)
        return jnp.where(jnp.abs(z) > 3, x, z)

    plain = cycles(lambda x: (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True), shape)
    assert cycles(outliers, shape) <= 2 * plain


UPDATES = {
    "set": lambda x: x.at[3].set(0),
    "added": lambda x: x.at[3].add(1),
    "column": lambda x: x.at[:, 0].set(0),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_input_that_is_updated_first_is_read_in_place(name) -> None:
    """It lay on the few tiles that the update alone would do with, and all of it was brought to where it is read."""
    update = UPDATES[name]
    plain = cycles(lambda x: jnp.exp(update(2 * x)), (1000, 1000))
    assert cycles(lambda x: jnp.exp(update(x)), (1000, 1000)) <= plain
