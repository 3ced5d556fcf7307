"""How XLA compiles what the fast engine hands it: with which emitters, and what it leaves a computation of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from tiles._jax_compat import OLDER_EMITTERS
from tiles.engine import FastEngine

TARGET = ipuxla.Target.named("gc200").replace(num_tiles=8)
X = np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32)


def engine_of(function: Any, *arguments: Any, arithmetic: str = "float") -> FastEngine:
    executable = ipuxla.jit(function, target=TARGET).lower(*arguments).compile().executable
    return FastEngine(executable, arithmetic)


def looped(body: Any) -> Any:
    return lambda x: lax.fori_loop(0, 50, lambda _, y: body(y), x)


@pytest.mark.parametrize(
    ("function", "argument", "is_quick"),
    [
        (lambda x: jnp.tanh(x) + 1, X, True),
        (lambda x: jnp.tanh(x) + 1, X.astype(np.float16), False),  # rounded otherwise by the older emitters
        (lambda x: jnp.tanh(x).astype(jnp.bfloat16), X, False),
        (lambda x: jnp.pad(x, ((1, 1), (0, 0))), X, True),
        (looped(lambda x: jnp.tanh(x) * 0.5), X, True),
        (looped(lambda x: x + jnp.pad(x[1:], ((0, 1), (0, 0)))), X, False),
        (looped(lambda x: x + jnp.concatenate([x[1:], x[:1]])), X, False),
    ],
)
def test_older_emitters_where_they_are_as_exact_and_fast(function, argument, is_quick) -> None:
    options = engine_of(function, argument).compiler_options
    expected = OLDER_EMITTERS or None if is_quick else None
    assert options == expected


def test_emitters_do_not_change_results() -> None:
    def function(x):
        return jax.nn.softmax(jnp.tanh(x @ x.T) * 3), jnp.sum(x * x, 0), jnp.sort(x, axis=1)

    engine = engine_of(function, X)
    results, _ = engine.run(X)
    for mine, theirs in zip(results, jax.jit(engine.trace)(X), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


def test_a_long_chain_that_is_called_twice_is_computed_apart() -> None:
    def bits(key):
        first, second = jax.random.split(key)
        return jax.random.bits(first, (64,)) ^ jax.random.bits(second, (64,))

    engine = engine_of(bits, jax.random.PRNGKey(0))
    key = np.asarray(jax.random.PRNGKey(0))
    assert 'inlineable = "false"' in jax.jit(engine.trace).lower(key).as_text()
    np.testing.assert_array_equal(engine.run(key)[0][0], bits(jax.random.PRNGKey(0)))
