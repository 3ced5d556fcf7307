"""Small model programs that system tests and benchmarks of engines share: values, gradients and updates.

Every model is one function of arrays that returns all there is to compare, so that one compilation covers its value, its
gradients and its optimizer's step. Shapes are small, and no two sizes of one operand are equal where that is possible:
a transposition that is forgotten then does not fit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from ipuxla.experiments.models import MODELS as CLASSIFIERS
from ipuxla.experiments.models import cross_entropy
from ipuxla.experiments.optimizers import OPTIMIZERS, Optimizer
from tests.transformer import layer_norm

RNG = np.random.default_rng(2)


@dataclass(frozen=True)
class Model:
    """A function and arguments for it; ``wide`` means that it computes in 64-bit types."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    wide: bool = False


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return normally distributed numbers."""
    return RNG.standard_normal(shape).astype(dtype)


def layers(*sizes: int, dtype: Any = np.float32) -> list[dict[str, np.ndarray]]:
    """Return the parameters of an MLP; biases are not zero."""
    pairs = itertools.pairwise(sizes)
    return [{"w": normal(m, n, dtype=dtype) * dtype(m**-0.5), "b": normal(n, dtype=dtype)} for m, n in pairs]


# ---- models


def logistic_loss(params: Any, x: Any, labels: Any) -> Any:
    """Return the mean binary cross-entropy of a linear classifier; labels are 0.0 or 1.0."""
    logits = x @ params["w"] + params["b"]
    return jnp.mean(jax.nn.softplus(logits) - labels * logits)


def feed_forward(params: Any, x: Any) -> Any:
    """Return a transformer's feed-forward block: layer norm, two projections with a GELU between, residual."""
    hidden = layer_norm(x, params["scale"], params["shift"])
    hidden = jax.nn.gelu(hidden @ params["up"] + params["up_bias"])
    return x + hidden @ params["down"] + params["down_bias"]


def block_params(features: int, hidden: int, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Return parameters of a feed-forward block."""
    return {
        "scale": 1 + normal(features, dtype=dtype) / dtype(4),
        "shift": normal(features, dtype=dtype),
        "up": normal(features, hidden, dtype=dtype) * dtype(features**-0.5),
        "up_bias": normal(hidden, dtype=dtype),
        "down": normal(hidden, features, dtype=dtype) * dtype(hidden**-0.5),
        "down_bias": normal(features, dtype=dtype),
    }


def value_and_gradients(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a function's value and the gradients of its weighted sum by its first ``count`` arguments."""

    def both(*arguments: Any) -> Any:
        def loss(*leading: Any) -> Any:
            value = function(*leading, *arguments[count:])
            weights = jnp.cos(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape)
            return (value * weights).sum(), value

        (_, value), gradients = jax.value_and_grad(loss, tuple(range(count)), has_aux=True)(
            *arguments[:count]
        )
        return value, gradients

    return both


def training_step(loss_of: Callable[..., Any], optimizer: Optimizer) -> Callable[..., Any]:
    """Return one step of training: new parameters, new optimizer state, loss."""

    def step(params: Any, state: Any, x: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, labels)
        params, state = optimizer.update(gradients, state, params)
        return params, state, loss

    return step


# ---- other element types


def quantized(image: Any, weights: Any, zero_point: Any) -> Any:
    """Multiply bytes as integers, then clip back to bytes; all exact."""
    total = lax.dot_general(
        image.astype(jnp.int32) - zero_point, weights.astype(jnp.int32), (((1,), (0,)), ((), ()))
    )
    scaled = lax.shift_right_arithmetic(total, jnp.full_like(total, 6))
    return jnp.clip(scaled + zero_point, 0, 255).astype(jnp.uint8), total.sum(0), total.max(1)


def masks(x: Any, keep: Any) -> Any:
    """Combine comparisons, reduce them, and select with them."""
    large = (x > 0.5) & keep
    return large.any(0), large.all(1), ~large ^ keep, jnp.where(large, x, -1.0), large.sum(1, dtype=jnp.int32)


def wide_integers(x: Any, y: Any) -> Any:
    """Compute beyond 32 bits."""
    product = x[:, None] * y[None, :]
    return product.sum(0), product ^ (product >> 33), product.min(1), (product % 1_000_003).astype(jnp.int32)


def _adam_state(params: Any) -> Any:
    state = jax.tree.map(np.asarray, OPTIMIZERS["adam"](0.0).init(params))
    return {
        "count": np.float32(3),
        "mean": jax.tree.map(lambda x: normal(*x.shape) / 8, state["mean"]),
        "square": jax.tree.map(lambda x: normal(*x.shape) ** 2 / 8, state["square"]),
    }


def _models() -> dict[str, Model]:
    labels = RNG.integers(0, 5, 6).astype(np.int32)
    mlp, x = layers(9, 7, 5), normal(6, 9)
    linear = {"w": normal(11), "b": np.float32(0.25)}
    samples = normal(8, 11), RNG.integers(0, 2, 8).astype(np.float32)
    rows, norm = normal(5, 12), (1 + normal(12) / 4, normal(12))
    sgd, momentum, adam = (OPTIMIZERS[name](0.05) for name in ("sgd", "momentum", "adam"))
    velocity = jax.tree.map(lambda p: normal(*p.shape), linear)
    return {
        "mlp": Model(jax.value_and_grad(CLASSIFIERS["mlp"].loss), (mlp, x, labels)),
        "logistic": Model(jax.value_and_grad(logistic_loss), (linear, *samples)),
        "cross_entropy": Model(jax.value_and_grad(cross_entropy), (normal(6, 5) * 3, labels)),
        "layer_norm": Model(value_and_gradients(layer_norm, 3), (rows, *norm)),
        "feed_forward": Model(value_and_gradients(feed_forward, 2), (block_params(10, 14), normal(4, 10))),
        "sgd": Model(training_step(logistic_loss, sgd), (linear, (), *samples)),
        "momentum": Model(training_step(logistic_loss, momentum), (linear, velocity, *samples)),
        "adam": Model(training_step(logistic_loss, adam), (linear, _adam_state(linear), *samples)),
    }


def _typed_models() -> dict[str, Model]:
    bytes_ = RNG.integers(0, 256, (7, 10)).astype(np.uint8), RNG.integers(-128, 128, (10, 6)).astype(np.int8)
    big = RNG.integers(-(2**40), 2**40, 9), RNG.integers(-(2**20), 2**20, 5)
    norm = value_and_gradients(layer_norm, 3)
    rows = tuple(normal(*shape, dtype=ml_dtypes.bfloat16) for shape in ((5, 12), (12,), (12,)))
    half = (
        layers(9, 7, 5, dtype=np.float16),
        normal(6, 9, dtype=np.float16),
        np.array([0, 2, 4, 1, 3, 0], np.int32),
    )
    double = {"w": normal(11, dtype=np.float64), "b": np.float64(0.25)}, normal(8, 11, dtype=np.float64)
    return {
        "float16": Model(jax.value_and_grad(CLASSIFIERS["mlp"].loss), half),
        "bfloat16": Model(norm, rows),
        "float64": Model(
            jax.value_and_grad(logistic_loss), (*double, RNG.integers(0, 2, 8).astype(np.float64)), wide=True
        ),
        "integers": Model(quantized, (*bytes_, np.int32(128))),
        "int64": Model(wide_integers, big, wide=True),
        "bool": Model(masks, (normal(6, 9), RNG.integers(0, 2, (6, 9)).astype(bool))),
    }


def large_step() -> Model:
    """Return a training step large enough for the planner to split sums over a whole GC200."""
    labels = RNG.integers(0, 10, 16).astype(np.int32)
    arguments = (layers(600, 96, 10), (), normal(16, 600), labels)
    return Model(training_step(CLASSIFIERS["mlp"].loss, OPTIMIZERS["sgd"](0.05)), arguments)


MODELS = _models()
"""Models in float32: values with gradients, and whole training steps."""

TYPED = _typed_models()
"""Programs in every other element type."""
