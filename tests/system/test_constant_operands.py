"""Operations of constants that nobody folds: their splats are written to memory where something reads them there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from tiles.target import Target

SMALL = Target.named("gc200").replace(num_tiles=4)
X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def ones(*shape, dtype="float32"):
    return jnp.ones(shape, dtype)


FUNCTIONS = {
    "softmax": lambda x: jax.nn.softmax(ones(3, 4)) + x,
    "gradient of softmax": lambda x: jax.grad(lambda v: (jax.nn.softmax(v) * x).sum())(ones(3, 4)),
    "layer norm": lambda x: jax.nn.standardize(ones(3, 4)) + x,
    "gelu": lambda x: jax.nn.gelu(ones(3, 4)) + x,
    "sort and top_k": lambda x: (jnp.sort(ones(3, 4)), *lax.top_k(ones(3, 4), 2), x + 1),
    "matmul": lambda x: (x @ ones(4, 5), ones(2, 3) @ x),
    "convolution": lambda x: lax.conv(ones(1, 1, 8, 8), x[None, None], (1, 1), "SAME"),
    "lookups": lambda x: (x[ones(3, dtype="int32")], ones(5)[jnp.argmax(x, 1)]),
    "updates": lambda x: (x.at[ones(2, dtype="int32")].add(ones(2, 4)), ones(5).at[jnp.argmax(x, 1)].add(2)),
    "control": lambda x: (
        lax.scan(lambda c, a: (c + a, c), ones(4), x),
        lax.cond(x[0, 0] > 0, jnp.exp, jnp.sin, ones(3)),
    ),
}


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_constants_are_operands_of_anything(name, arithmetic) -> None:
    function = FUNCTIONS[name]
    compiled = ipuxla.jit(function, target=SMALL, arithmetic=arithmetic).lower(X).compile()
    if arithmetic == "ring":
        witness = ipuxla.jit(function, target=SMALL, arithmetic=arithmetic, engine="hlo").lower(X).compile()
        jax.tree.map(np.testing.assert_array_equal, compiled(X), witness(X))
    else:
        for got, wanted in zip(*map(jax.tree.leaves, (compiled(X), jax.jit(function)(X))), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


UNDEFINED = {
    "logarithm below zero": lambda x: jnp.exp(jnp.log(-1.0)) + x,
    "product with NaN": lambda x: jnp.exp(x * jnp.nan),
    "infinity less itself": lambda x: jnp.tanh(jnp.exp((jnp.inf - jnp.inf) * x)),
    "behind a barrier": lambda x: jnp.exp(lax.optimization_barrier(jnp.full(3, jnp.nan))) + x[0, 0],
    "in a branch": lambda x: lax.cond(
        x[0, 0] >= 0, lambda v: jnp.exp(jnp.sqrt(-jnp.ones(3)) + v), jnp.sin, x[0, :3]
    ),
}


@pytest.mark.parametrize("engine", ["fast", "literal", "tile", "hlo"])
@pytest.mark.parametrize("name", UNDEFINED)
def test_what_is_undefined_is_nan(name: str, engine: str) -> None:
    """Of an exponential of a constant NaN XLA:CPU makes any number; ``jax.jit`` of some of these, too."""
    result = ipuxla.jit(UNDEFINED[name], target=SMALL, engine=engine)(X)
    assert np.isnan(result).all()
