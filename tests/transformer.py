"""A pre-norm transformer's training step, written with a loop over layers and with ``lax.scan``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

HEADS = 2


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    """Return rows of mean 0 and variance 1, scaled and shifted."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def block(params: Any, x: Any, heads: int) -> Any:
    """Return one layer: causal attention and a feed-forward part, each behind a norm and beside a residual."""
    tokens = x.shape[0]
    h = layer_norm(x, params["scale1"], params["shift1"])
    q, k, v = ((h @ params[n]).reshape(tokens, heads, -1).transpose(1, 0, 2) for n in ("q", "k", "v"))
    scores = q @ k.transpose(0, 2, 1) * np.float32(q.shape[-1] ** -0.5)
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))
    attention = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    x = x + (attention @ v).transpose(1, 0, 2).reshape(x.shape) @ params["o"]
    h = layer_norm(x, params["scale2"], params["shift2"])
    return x + jax.nn.gelu(h @ params["up"] + params["up_bias"]) @ params["down"] + params["down_bias"]


def logits(params: Any, tokens: Any, heads: int = HEADS) -> Any:
    """Return next-token logits; layers are a list, or one tree of stacked arrays for ``lax.scan``."""
    x = params["embedding"][tokens] + params["position"]
    layers = params["layers"]
    if isinstance(layers, list):
        for layer in layers:
            x = block(layer, x, heads)
    else:
        x, _ = lax.scan(lambda x, layer: (block(layer, x, heads), None), x, layers)
    return layer_norm(x, params["scale"], params["shift"]) @ params["head"]


def loss(params: Any, tokens: Any, labels: Any, heads: int = HEADS) -> Any:
    """Return the mean cross-entropy."""
    log_p = jax.nn.log_softmax(logits(params, tokens, heads))
    return -jnp.take_along_axis(log_p, labels[:, None], 1).mean()


def sgd_step(params: Any, tokens: Any, labels: Any, heads: int = HEADS) -> Any:
    """Return the parameters after one step of gradient descent, and the loss."""
    value, gradients = jax.value_and_grad(loss)(params, tokens, labels, heads)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value


def parameters(layers: int, width: int, tokens: int, vocabulary: int) -> Any:
    """Return parameters as a tree with a list of layers."""
    rng = np.random.default_rng(5)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)

    def ones_and_zeros(suffix: str) -> dict[str, np.ndarray]:
        return {f"scale{suffix}": np.ones(width, np.float32), f"shift{suffix}": np.zeros(width, np.float32)}

    def layer() -> dict[str, np.ndarray]:
        square = {name: normal(width, width) for name in ("q", "k", "v", "o")}
        wide = {"up": normal(width, 4 * width), "down": normal(4 * width, width)}
        biases = {"up_bias": np.zeros(4 * width, np.float32), "down_bias": np.zeros(width, np.float32)}
        return {**square, **wide, **biases, **ones_and_zeros("1"), **ones_and_zeros("2")}

    ends = {"embedding": normal(vocabulary, width), "position": normal(tokens, width)}
    return {
        **ends,
        **ones_and_zeros(""),
        "head": normal(width, vocabulary),
        "layers": [layer() for _ in range(layers)],
    }


def stacked(params: Any) -> Any:
    """Return the parameters with the layers' arrays stacked, for ``lax.scan``."""
    return {**params, "layers": jax.tree.map(lambda *x: np.stack(x), *params["layers"])}


def batch(tokens: int, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and labels."""
    rng = np.random.default_rng(6)
    first, second = (rng.integers(0, vocabulary, tokens).astype(np.int32) for _ in range(2))
    return first, second
