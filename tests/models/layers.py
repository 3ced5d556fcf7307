"""Layers in the operations that flax's linen emits for them, and what makes their parameters.

Parameters are dictionaries named as flax names them. Where a layer normalizes, statistics and what follows from them
are in float32, and the result has the type that came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.models.base import Values

scope = jax.named_scope
NHWC = ("NHWC", "HWIO", "NHWC")

# ---- dense


def dense_params(new: Values, inputs: int, outputs: int, bias: bool = True) -> dict[str, Any]:
    params = {"kernel": new.weights(inputs, outputs)}
    return params | {"bias": new.normal(outputs, scale=0.1)} if bias else params


def dense(p: Any, x: Any) -> Any:
    y = lax.dot_general(x, p["kernel"], (((x.ndim - 1,), (0,)), ((), ())))
    return y + jnp.reshape(p["bias"], (1,) * (y.ndim - 1) + (-1,)) if "bias" in p else y


def embed(table: Any, ids: Any) -> Any:
    return jnp.take(table, ids, axis=0)


# ---- norms


def norm_params(new: Values, features: int, dtype: Any = None) -> dict[str, Any]:
    return {
        "scale": new.positive(features, dtype=dtype),
        "bias": new.normal(features, scale=0.1, dtype=dtype),
    }


def statistics(x: Any, axes: Sequence[int]) -> tuple[Any, Any]:
    """Return mean and variance, the latter from the mean of squares, in one pass over ``x``."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean, squares = x.mean(axes), lax.square(x).mean(axes)
    return mean, jnp.maximum(0.0, squares - lax.square(mean))


def normalize(p: Any, x: Any, mean: Any, variance: Any, axes: Sequence[int], epsilon: float) -> Any:
    mean, variance = jnp.expand_dims(mean, axes), jnp.expand_dims(variance, axes)
    shape = (1,) * (x.ndim - 1) + (-1,)
    y = x - mean
    factor = lax.rsqrt(variance + epsilon) * p["scale"].reshape(shape)
    return (y * factor + p["bias"].reshape(shape)).astype(x.dtype)


def layer_norm(p: Any, x: Any, epsilon: float = 1e-6) -> Any:
    axes = (x.ndim - 1,)
    return normalize(p, x, *statistics(x, axes), axes, epsilon)


def group_norm(p: Any, x: Any, groups: int, epsilon: float = 1e-6) -> Any:
    size = x.shape[-1] // groups
    inner = tuple(range(1, x.ndim - 1))
    mean, variance = statistics(x.reshape(*x.shape[:-1], groups, size), (*inner, x.ndim))
    mean, variance = (jnp.repeat(s, size, axis=-1) for s in (mean, variance))
    return normalize(p, x, mean, variance, inner, epsilon)


def batch_norm_params(new: Values, features: int) -> dict[str, Any]:
    """Return the parameters and, as ``mean`` and ``var``, running statistics; all in float32, as flax has them."""
    running = {
        "mean": new.normal(features, scale=0.1, dtype="float32"),
        "var": new.positive(features, dtype="float32"),
    }
    return norm_params(new, features, "float32") | running


def batch_norm(p: Any, x: Any, epsilon: float = 1e-5) -> Any:
    """Normalize by running statistics."""
    return normalize(p, x, p["mean"], p["var"], tuple(range(x.ndim - 1)), epsilon)


def batch_norm_in_training(
    p: Any, running: Any, x: Any, momentum: float = 0.9, epsilon: float = 1e-5
) -> tuple[Any, Any]:
    """Normalize by the batch's statistics; return the result and the new running ones."""
    axes = tuple(range(x.ndim - 1))
    mean, variance = statistics(x, axes)
    running = {
        "mean": momentum * running["mean"] + (1 - momentum) * mean,
        "var": momentum * running["var"] + (1 - momentum) * variance,
    }
    return normalize(p, x, mean, variance, axes, epsilon), running


# ---- convolutions


def convolution_params(
    new: Values, taps: int, inputs: int, outputs: int, groups: int = 1, bias: bool = False
) -> dict[str, Any]:
    params = {"kernel": new.weights(taps, taps, inputs // groups, outputs)}
    return params | {"bias": new.normal(outputs, scale=0.1)} if bias else params


def convolution(p: Any, x: Any, stride: int = 1, padding: Any = "SAME", groups: int = 1) -> Any:
    y = lax.conv_general_dilated(
        x, p["kernel"], (stride, stride), padding, dimension_numbers=NHWC, feature_group_count=groups
    )
    return y + jnp.reshape(p["bias"], (1, 1, 1, -1)) if "bias" in p else y


def max_pool(x: Any, window: int, stride: int, padding: Any = "SAME") -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, window, window, 1), (1, stride, stride, 1), padding)


def mean_pool(x: Any, window: int, stride: int) -> Any:
    total = lax.reduce_window(x, 0.0, lax.add, (1, window, window, 1), (1, stride, stride, 1), "VALID")
    return total / (window * window)


# ---- attention


def attention_params(new: Values, features: int, heads: int) -> dict[str, Any]:
    """Return parameters as of flax's multi-head attention: heads are a dimension of the kernels."""
    size = features // heads
    params = {
        name: {
            "kernel": new.weights(features, heads, size, inputs=features),
            "bias": new.normal(heads, size, scale=0.1),
        }
        for name in ("query", "key", "value")
    }
    out = {"kernel": new.weights(heads, size, features), "bias": new.normal(features, scale=0.1)}
    return params | {"out": out}


def attention(p: Any, x: Any, bias: Any = None, mask: Any = None) -> Any:
    """Let positions ``[..., positions, features]`` attend to each other."""

    def project(name: str) -> Any:
        with scope(name):
            kernel = p[name]["kernel"]
            y = lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))
            return y + jnp.reshape(p[name]["bias"], (1,) * (x.ndim - 1) + kernel.shape[1:])

    query, key, value = (project(name) for name in ("query", "key", "value"))
    y = dot_product_attention(query, key, value, bias, mask)
    with scope("out"):
        y = lax.dot_general(y, p["out"]["kernel"], (((y.ndim - 2, y.ndim - 1), (0, 1)), ((), ())))
        return y + jnp.reshape(p["out"]["bias"], (1,) * (y.ndim - 1) + (-1,))


def dot_product_attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None) -> Any:
    """Return what queries ``[..., positions, heads, features]`` find."""
    query = query / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    weights = jnp.einsum("...qhd,...khd->...hqk", query, key)
    if bias is not None:
        weights = weights + bias
    if mask is not None:
        weights = jnp.where(mask, weights, jnp.finfo(query.dtype).min)
    weights = jax.nn.softmax(weights).astype(query.dtype)
    return jnp.einsum("...hqk,...khd->...qhd", weights, value)


# ---- losses


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return what optax's softmax cross-entropy with integer labels does: a loss for every label."""
    label_logits = jnp.take_along_axis(logits, jnp.expand_dims(labels, -1), axis=-1).take(0, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - label_logits
