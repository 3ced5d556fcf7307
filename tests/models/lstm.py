"""A language model of LSTM cells, which scan over the steps of a sequence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.models.base import Model, Values, register
from tests.models.layers import cross_entropy, dense, dense_params, embed, scope
from tests.models.optimizers import chain, clip_by_global_norm, sgd, training_step


def cell_params(new: Values, inputs: int, features: int) -> dict[str, Any]:
    """Return the parameters of a cell: the kernels of its four gates side by side, the bias with the state's."""
    return {
        "input": dense_params(new, inputs, 4 * features, bias=False),
        "hidden": dense_params(new, features, 4 * features),
    }


def cell(p: Any, carry: Any, x: Any) -> Any:
    """Return the cell's next state and its output."""
    c, h = carry
    gates = dense(p["hidden"], h) + dense(p["input"], x)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (c, h), h


@register("lstm-lm")
def _step(published: bool) -> Model:
    layers, features, vocabulary = (2, 512, 10_000) if published else (2, 6, 11)
    batch, steps = (8, 32) if published else (2, 3)
    new = Values(published)
    params: dict[str, Any] = {f"LSTMCell_{i}": cell_params(new, features, features) for i in range(layers)}
    params |= {
        "Embed_0": new.normal(vocabulary, features, scale=features**-0.5),
        "Dense_0": dense_params(new, features, vocabulary),
    }

    def loss(p: Any, tokens: Any) -> Any:
        with scope("LSTM"):
            x = embed(p["Embed_0"], tokens[:-1])
            zeros = jnp.zeros((x.shape[1], features), x.dtype)

            def turn(carries: Any, x: Any) -> Any:
                after = []
                for i, carry in enumerate(carries):
                    with scope(f"LSTMCell_{i}"):
                        carry, x = cell(p[f"LSTMCell_{i}"], carry, x)
                    after.append(carry)
                return tuple(after), x

            _, x = lax.scan(turn, ((zeros, zeros),) * layers, x)
            with scope("Dense_0"):
                return cross_entropy(dense(p["Dense_0"], x), tokens[1:]).mean()

    optimizer = chain(clip_by_global_norm(0.25), sgd(1.0))
    state = new.like(jax.eval_shape(optimizer.init, params))
    arguments = params, state, new.integers(vocabulary, steps + 1, batch)
    return Model(training_step(loss, optimizer), arguments, batch * steps, "tokens", donated=(0, 1))
