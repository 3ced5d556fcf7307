"""BERT base: encoder layers with the norm after each sum, as in Hugging Face's flax model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.models.base import Goals, Model, Values, register
from tests.models.layers import (
    attention,
    attention_params,
    dense,
    dense_params,
    embed,
    layer_norm,
    norm_params,
    scope,
)
from tests.models.optimizers import adamw, chain, clip_by_global_norm, training_step

EPSILON = 1e-12


def layer_params(new: Values, features: int, heads: int) -> dict[str, Any]:
    """Return the parameters of an encoder layer."""
    return {
        "attention": attention_params(new, features, heads),
        "LayerNorm_0": norm_params(new, features),
        "intermediate": dense_params(new, features, 4 * features),
        "output": dense_params(new, 4 * features, features),
        "LayerNorm_1": norm_params(new, features),
    }


def layer(p: Any, x: Any, bias: Any) -> Any:
    """Return hidden states after a layer; ``bias`` is added to attention scores."""
    with scope("attention"):
        y = attention(p["attention"], x, bias)
    with scope("LayerNorm_0"):
        x = layer_norm(p["LayerNorm_0"], x + y, EPSILON)
    with scope("intermediate"):
        y = jax.nn.gelu(dense(p["intermediate"], x), approximate=False)
    with scope("output"):
        y = dense(p["output"], y)
    with scope("LayerNorm_1"):
        return layer_norm(p["LayerNorm_1"], y + x, EPSILON)


def attention_bias(mask: Any, dtype: Any) -> Any:
    """Return 0 for positions that count, and a number that softmax turns into 0 for others."""
    mask = jnp.expand_dims(mask, (-3, -2))
    zeros, lowest = jnp.full(mask.shape, 0.0, dtype), jnp.full(mask.shape, jnp.finfo(dtype).min, dtype)
    return lax.select(mask > 0, zeros, lowest)


@register("bert-base-inference")
def _inference(published: bool) -> Model:
    layers, features, heads, vocabulary = (12, 768, 12, 30522) if published else (1, 8, 2, 13)
    batch, positions, most = (2, 128, 512) if published else (2, 5, 7)
    new = Values(published, "float16")
    params: dict[str, Any] = {f"layer_{i}": layer_params(new, features, heads) for i in range(layers)}
    params |= {
        "word_embeddings": new.normal(vocabulary, features),
        "position_embeddings": new.normal(most, features),
        "token_type_embeddings": new.normal(2, features),
        "LayerNorm": norm_params(new, features),
        "pooler": dense_params(new, features, features),
    }

    def infer(p: Any, ids: Any, mask: Any, types: Any, places: Any) -> Any:
        with scope("BERT/embeddings"):
            x = embed(p["word_embeddings"], ids) + embed(p["token_type_embeddings"], types)
            x = layer_norm(p["LayerNorm"], x + embed(p["position_embeddings"], places), EPSILON)
        bias = attention_bias(mask, x.dtype)
        for i in range(layers):
            with scope(f"BERT/layer_{i}"):
                x = layer(p[f"layer_{i}"], x, bias)
        with scope("BERT/pooler"):
            return x, jnp.tanh(dense(p["pooler"], x[:, 0]))

    ids = [new.integers(high, batch, positions) for high in (vocabulary, 2, 2, most)]
    return Model(infer, (params, *ids), batch, "sequences")


@register("bert-layer-training")
def _layer(published: bool) -> Model:
    """One layer in float32 that learns given hidden states, such as another model's."""
    features, heads, batch, positions = (768, 12, 2, 128) if published else (8, 2, 2, 5)
    new = Values(published)

    def loss(params: Any, x: Any, mask: Any, wanted: Any) -> Any:
        with scope("BERT/layer_0"):
            found = layer(params, x, attention_bias(mask, x.dtype))
        return jnp.mean(lax.square(found - wanted))

    optimizer = chain(clip_by_global_norm(1.0), adamw(1e-4, decay=0.01))
    params = layer_params(new, features, heads)
    state = new.like(jax.eval_shape(optimizer.init, params))
    x, wanted = (new.normal(batch, positions, features) for _ in range(2))
    arguments = params, state, x, new.integers(2, batch, positions), wanted
    goals = Goals(exchange_code_bytes=130_000)
    return Model(training_step(loss, optimizer), arguments, batch, "sequences", donated=(0, 1), goals=goals)
