"""A graph network: edges read both their nodes, nodes sum what their edges say."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.base import Model, Values, register
from tests.models.layers import cross_entropy, dense, dense_params, layer_norm, norm_params, scope
from tests.models.optimizers import adam, training_step


def _mlp_params(new: Values, inputs: int, features: int) -> dict[str, Any]:
    return {
        "Dense_0": dense_params(new, inputs, features),
        "Dense_1": dense_params(new, features, features),
        "LayerNorm_0": norm_params(new, features),
    }


def _mlp(p: Any, x: Any) -> Any:
    return layer_norm(p["LayerNorm_0"], dense(p["Dense_1"], jax.nn.relu(dense(p["Dense_0"], x))))


@register("graph-network")
def _step(published: bool) -> Model:
    nodes, edges, features, classes, rounds = (10_000, 50_000, 64, 16, 2) if published else (7, 11, 4, 3, 1)
    new = Values(published)
    params: dict[str, Any] = {"encode": dense_params(new, features, features)}
    for i in range(rounds):
        params[f"edges_{i}"] = _mlp_params(new, 2 * features, features)
        params[f"nodes_{i}"] = _mlp_params(new, 2 * features, features)
    params["decode"] = dense_params(new, features, classes)

    def loss(p: Any, x: Any, senders: Any, receivers: Any, labels: Any) -> Any:
        with scope("GraphNetwork"):
            x = jax.nn.relu(dense(p["encode"], x))
            for i in range(rounds):
                with scope(f"edges_{i}"):
                    messages = _mlp(p[f"edges_{i}"], jnp.concatenate([x[senders], x[receivers]], axis=-1))
                    heard = jax.ops.segment_sum(messages, receivers, num_segments=nodes)
                with scope(f"nodes_{i}"):
                    x = x + _mlp(p[f"nodes_{i}"], jnp.concatenate([x, heard], axis=-1))
            with scope("decode"):
                return cross_entropy(dense(p["decode"], x), labels).mean()

    optimizer = adam(1e-3)
    state = new.like(jax.eval_shape(optimizer.init, params))
    ends = [new.integers(nodes, edges) for _ in range(2)]
    arguments = params, state, new.normal(nodes, features), *ends, new.integers(classes, nodes)
    return Model(training_step(loss, optimizer), arguments, edges, "edges", donated=(0, 1))
