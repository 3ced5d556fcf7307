"""Functions that networks use, as ``jax.nn`` has them and as people write them, and others that are nearly the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Function = Callable[[Any], Any]


def with_gradient(function: Any) -> Any:
    """Return a function's value and its gradient, as a function of operand and cotangent."""

    def both(x: Any, g: Any) -> Any:
        value, back = jax.vjp(function, x)
        return value, back(g)[0]

    return both


def _softmax(x: Any) -> Any:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _softmax_unstable(x: Any) -> Any:
    return jnp.exp(x) * (1 / jnp.exp(x).sum(0))[None]


def _layer_norm(x: Any, epsilon: float = 1e-5) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + epsilon)


def _layer_norm_of_squares(x: Any) -> Any:
    mean = jnp.sum(x, -1) / x.shape[-1]
    square = jnp.sum(x * x, -1) / x.shape[-1]
    return (x - mean[:, None]) / jnp.sqrt(1e-3 + square - mean * mean)[:, None]


def _batch_norm(x: Any) -> Any:
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)


def _group_norm(x: Any) -> Any:
    grouped = x.reshape(x.shape[0], 2, x.shape[1] // 2)
    mean, variance = grouped.mean(2, keepdims=True), grouped.var(2, keepdims=True)
    return ((grouped - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)


def _gelu(x: Any) -> Any:
    return x * (0.5 + 0.5 * jnp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


KNOWN: dict[str, tuple[str, Function]] = {
    "jax.nn.relu": ("relu", jax.nn.relu),
    "maximum": ("relu", lambda x: jnp.maximum(0, x)),
    "jnp.tanh": ("tanh", jnp.tanh),
    "jax.nn.sigmoid": ("sigmoid", jax.nn.sigmoid),
    "sigmoid by exp": ("sigmoid", lambda x: 1 / (jnp.exp(-x) + 1)),
    "sigmoid by tanh": ("sigmoid", lambda x: (jnp.tanh(x * 0.5) + 1) / 2),
    "jax.nn.silu": ("silu", jax.nn.silu),
    "silu by division": ("silu", lambda x: x / (1 + jnp.exp(-x))),
    "jax.nn.gelu": ("gelu", jax.nn.gelu),
    "gelu": ("gelu", _gelu),
    "jax.nn.gelu exact": ("gelu_erf", lambda x: jax.nn.gelu(x, approximate=False)),
    "gelu by erf": ("gelu_erf", lambda x: x * (1 + lax.erf(x / jnp.sqrt(2.0).astype(x.dtype))) / 2),
    "jax.nn.softmax": ("softmax", jax.nn.softmax),
    "softmax of columns": ("softmax", lambda x: jax.nn.softmax(x, 0)),
    "softmax": ("softmax", _softmax),
    "softmax unstable": ("softmax", _softmax_unstable),
    "jax.nn.log_softmax": ("log_softmax", jax.nn.log_softmax),
    "x - logsumexp": ("log_softmax", lambda x: x - jax.nn.logsumexp(x, 1, keepdims=True)),
    "layer norm": ("layer_norm", _layer_norm),
    "layer norm of squares": ("layer_norm", _layer_norm_of_squares),
    "jax.nn.standardize": ("layer_norm", jax.nn.standardize),
    "batch norm": ("batch_norm", _batch_norm),
    "group norm": ("layer_norm", _group_norm),
}
"""By name the kind, without ``popnn.``, and the function of a matrix."""

NEARLY: dict[str, Function] = {
    "relu up to 8": lambda x: jnp.where(x > 8, jnp.exp(-x) / (x * x + 1), jnp.maximum(x, 0)),
    "gelu up to 8": lambda x: jnp.where(x > 8, x**3, jax.nn.gelu(x)),
    "sigmoid down to -9": lambda x: jnp.maximum(jax.nn.sigmoid(x), 1e-4),
    "softmax up to 12": lambda x: jax.nn.softmax(jnp.minimum(x, 12)),
    "layer norm up to 10": lambda x: jnp.minimum(_layer_norm(x), 10),
    "silu rounded on the way": lambda x: jax.nn.silu(lax.reduce_precision(x, 8, 3)),
    "leaky relu": lambda x: jax.nn.leaky_relu(x, 0.01),
    "relu6": jax.nn.relu6,
    "elu": jax.nn.elu,
    "softplus": jax.nn.softplus,
    "half a sigmoid": lambda x: jax.nn.sigmoid(x) * 0.5 + x,
    "gelu with another constant": lambda x: 0.5 * x * (1 + lax.erf(x * 0.6)),
    "softmax of twice": lambda x: jnp.exp(2 * x) / jnp.exp(x).sum(-1, keepdims=True),
    "softmax over a constant": lambda x: jnp.exp(x) / (1 + jnp.exp(x).sum(-1, keepdims=True)),
    "softmax over rows and columns": lambda x: (
        jnp.exp(x) / jnp.exp(x).sum(0) / jnp.exp(x).sum(1, keepdims=True)
    ),
    "norm without a mean": lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5),
    "norm with a large epsilon": lambda x: _layer_norm(x, 0.5),
    "norm of a sample": lambda x: (x - x.mean(-1, keepdims=True)) / jnp.std(x, -1, keepdims=True, ddof=1),
    "norm of other rows": lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(0) + 1e-5),
}
"""Functions that are not recognized, though parts of them may be."""
