"""Decoders of the GPT kind: pre-norm blocks with fused projections, causal attention, tied or own output projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tests.models.base import Goals, Model, Values, register
from tests.models.layers import (
    cross_entropy,
    dense,
    dense_params,
    embed,
    layer_norm,
    norm_params,
    scope,
)
from tests.models.optimizers import adamw, chain, clip_by_global_norm, training_step


@dataclass(frozen=True)
class Size:
    """How large a decoder is."""

    layers: int
    features: int
    heads: int
    vocabulary: int
    context: int
    tied: bool = False


def params_of(new: Values, size: Size) -> dict[str, Any]:
    """Return the parameters of a decoder."""
    n = size.features

    def block() -> dict[str, Any]:
        return {
            "LayerNorm_0": norm_params(new, n),
            "Attention_0": {"Dense_0": dense_params(new, n, 3 * n), "Dense_1": dense_params(new, n, n)},
            "LayerNorm_1": norm_params(new, n),
            "MLP_0": {"Dense_0": dense_params(new, n, 4 * n), "Dense_1": dense_params(new, 4 * n, n)},
        }

    params: dict[str, Any] = {f"Block_{i}": block() for i in range(size.layers)}
    params |= {
        "wte": new.normal(size.vocabulary, n, scale=n**-0.5),
        "wpe": new.normal(size.context, n, scale=0.1),
        "LayerNorm_0": norm_params(new, n),
    }
    return params if size.tied else params | {"Dense_0": dense_params(new, n, size.vocabulary, bias=False)}


def attention(p: Any, x: Any, heads: int) -> Any:
    """Let every position ``[batch, positions, features]`` attend to itself and those before it."""
    batch, positions, features = x.shape
    with scope("Dense_0"):
        qkv = dense(p["Dense_0"], x)
    q, k, v = (
        y.reshape(batch, positions, heads, features // heads).transpose(0, 2, 1, 3)
        for y in jnp.split(qkv, 3, axis=-1)
    )
    scores = (q @ k.swapaxes(-2, -1)) / jnp.sqrt(features // heads).astype(x.dtype)
    mask = jnp.tril(jnp.ones((positions, positions), dtype=bool))
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    y = jax.nn.softmax(scores, axis=-1) @ v
    with scope("Dense_1"):
        return dense(p["Dense_1"], y.transpose(0, 2, 1, 3).reshape(x.shape))


def logits(p: Any, ids: Any, size: Size) -> Any:
    """Return the logits of every next token."""
    with scope("GPT"):
        x = embed(p["wte"], ids) + embed(p["wpe"], jnp.arange(ids.shape[1]))
        for number in range(size.layers):
            block = p[f"Block_{number}"]
            with scope(f"Block_{number}"):
                with scope("LayerNorm_0"):
                    y = layer_norm(block["LayerNorm_0"], x)
                with scope("Attention_0"):
                    x = x + attention(block["Attention_0"], y, size.heads)
                with scope("LayerNorm_1"):
                    y = layer_norm(block["LayerNorm_1"], x)
                with scope("MLP_0/Dense_0"):
                    y = jax.nn.gelu(dense(block["MLP_0"]["Dense_0"], y))
                with scope("MLP_0/Dense_1"):
                    x = x + dense(block["MLP_0"]["Dense_1"], y)
        with scope("LayerNorm_0"):
            x = layer_norm(p["LayerNorm_0"], x)
        with scope("Dense_0"):
            return x @ p["wte"].T if size.tied else dense(p["Dense_0"], x)


def step_of(size: Size, batch: int, new: Values, **described: Any) -> Model:
    """Return a step of training with AdamW, gradients clipped."""

    def loss(params: Any, tokens: Any) -> Any:
        found = logits(params, tokens[:, :-1], size).astype(jnp.float32)
        return cross_entropy(found, tokens[:, 1:]).mean()

    optimizer = chain(clip_by_global_norm(1.0), adamw(3e-4, decay=0.1))
    params = params_of(new, size)
    # Where parameters are in halves, moments are not: squares of gradients would vanish.
    wide = jax.eval_shape(lambda p: jax.tree.map(lambda x: x.astype(jnp.float32), p), params)
    state = new.like(jax.eval_shape(optimizer.init, wide))
    step = training_step(loss, optimizer)
    tokens = new.integers(size.vocabulary, batch, size.context + 1)
    return Model(step, (params, state, tokens), batch * size.context, "tokens", donated=(0, 1), **described)


@register("gpt")
def _gpt(published: bool) -> Model:
    size = Size(6, 384, 6, 512, 128) if published else Size(1, 8, 2, 11, 5)
    goals = Goals(exchange_code_bytes=130_000)
    return step_of(size, 4 if published else 2, Values(published), goals=goals)


@register("gpt2-small-step")
def _gpt2(published: bool) -> Model:
    size = Size(12, 768, 12, 50257, 128, tied=True) if published else Size(1, 8, 2, 11, 5, tied=True)
    goals = Goals(must_fit=False, exchange_code_bytes=120_000)
    return step_of(size, 1, Values(published, "float16"), goals=goals)


@register("gpt2-small-sgd")
def _gpt2_sgd(published: bool) -> Model:
    """Return a step of plain gradient descent, whose state is the weights alone."""
    size = Size(12, 768, 12, 50257, 128, tied=True) if published else Size(2, 8, 2, 11, 5, tied=True)
    new = Values(published, "float16")
    params = params_of(new, size)

    def step(params: Any, tokens: Any) -> tuple[Any, Any]:
        def loss(params: Any) -> Any:
            found = logits(params, tokens[:, :-1], size).astype(jnp.float32)
            return cross_entropy(found, tokens[:, 1:]).mean()

        found, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - (0.01 * g).astype(p.dtype), params, gradients), found

    tokens = new.integers(size.vocabulary, 1, size.context + 1)
    goals = Goals(exchange_code_bytes=120_000)
    return Model(step, (params, tokens), size.context, "tokens", donated=(0,), goals=goals)
