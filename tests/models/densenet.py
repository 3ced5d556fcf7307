"""DenseNet-121: every layer reads what all layers of its block before it made."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.base import Goals, Model, Values, register
from tests.models.layers import (
    batch_norm,
    batch_norm_params,
    convolution,
    convolution_params,
    dense,
    dense_params,
    max_pool,
    mean_pool,
    scope,
)


def params_of(new: Values, blocks: tuple[int, ...], growth: int, first: int, classes: int) -> dict[str, Any]:
    """Return the parameters; batch norms hold their running statistics."""
    params: dict[str, Any] = {
        "conv_init": convolution_params(new, 7, 3, first),
        "bn_init": batch_norm_params(new, first),
    }
    channels = first
    for i, count in enumerate(blocks):
        for j in range(count):
            params[f"DenseBlock_{i}/Layer_{j}"] = {
                "BatchNorm_0": batch_norm_params(new, channels),
                "Conv_0": convolution_params(new, 1, channels, 4 * growth),
                "BatchNorm_1": batch_norm_params(new, 4 * growth),
                "Conv_1": convolution_params(new, 3, 4 * growth, growth),
            }
            channels += growth
        if i < len(blocks) - 1:
            params[f"Transition_{i}"] = {
                "BatchNorm_0": batch_norm_params(new, channels),
                "Conv_0": convolution_params(new, 1, channels, channels // 2),
            }
            channels //= 2
    return params | {
        "bn_last": batch_norm_params(new, channels),
        "Dense_0": dense_params(new, channels, classes),
    }


def _activated(p: Any, which: int, x: Any) -> Any:
    """Return what a convolution after batch norm and ReLU gives."""
    with scope(f"BatchNorm_{which}"):
        x = jax.nn.relu(batch_norm(p[f"BatchNorm_{which}"], x))
    with scope(f"Conv_{which}"):
        return convolution(p[f"Conv_{which}"], x)


@register("densenet121-inference")
def _inference(published: bool) -> Model:
    blocks, growth, first = ((6, 12, 24, 16), 32, 64) if published else ((2, 1), 2, 4)
    batch, side, classes = (2, 224, 1000) if published else (2, 12, 3)
    new = Values(published, "float16")

    def infer(p: Any, images: Any) -> Any:
        with scope("DenseNet"):
            with scope("conv_init"):
                x = convolution(p["conv_init"], images, 2, [(3, 3), (3, 3)])
            with scope("bn_init"):
                x = max_pool(jax.nn.relu(batch_norm(p["bn_init"], x)), 3, 2)
            for i, count in enumerate(blocks):
                for j in range(count):
                    name = f"DenseBlock_{i}/Layer_{j}"
                    with scope(name):
                        x = jnp.concatenate([x, _activated(p[name], 1, _activated(p[name], 0, x))], axis=-1)
                if i < len(blocks) - 1:
                    with scope(f"Transition_{i}"):
                        x = mean_pool(_activated(p[f"Transition_{i}"], 0, x), 2, 2)
            with scope("bn_last"):
                x = jax.nn.relu(batch_norm(p["bn_last"], x))
            with scope("Dense_0"):
                return dense(p["Dense_0"], jnp.mean(x, axis=(1, 2)))

    arguments = params_of(new, blocks, growth, first, classes), new.normal(batch, side, side, 3)
    return Model(infer, arguments, batch, "images", target="bow", goals=Goals(exchange_code_bytes=100_000))
