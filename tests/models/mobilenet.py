"""MobileNet, version 2: inverted residuals with depthwise convolutions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.base import Model, Values, register
from tests.models.layers import (
    batch_norm,
    batch_norm_params,
    convolution,
    convolution_params,
    dense,
    dense_params,
    scope,
)

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks and the first block's stride."""
Block = tuple[int, int, int, int]
"""Channels that come in, that are expanded to, that go out, and the stride."""


def blocks_of(inputs: int, stages: tuple[tuple[int, int, int, int], ...]) -> list[Block]:
    """Return every block of the stages."""
    blocks = []
    for expansion, channels, count, stride in stages:
        for number in range(count):
            blocks.append((inputs, expansion * inputs, channels, 1 if number else stride))
            inputs = channels
    return blocks


def _normed(new: Values, taps: int, inputs: int, outputs: int, groups: int = 1) -> dict[str, Any]:
    return {
        "Conv": convolution_params(new, taps, inputs, outputs, groups),
        "BatchNorm": batch_norm_params(new, outputs),
    }


def _block_params(new: Values, block: Block) -> dict[str, Any]:
    inputs, wide, outputs, _ = block
    params = {"depthwise": _normed(new, 3, wide, wide, wide), "project": _normed(new, 1, wide, outputs)}
    return params if wide == inputs else params | {"expand": _normed(new, 1, inputs, wide)}


def _convolved(p: Any, name: str, x: Any, stride: int = 1, groups: int = 1) -> Any:
    with scope(f"{name}/Conv"):
        x = convolution(p[name]["Conv"], x, stride, groups=groups)
    with scope(f"{name}/BatchNorm"):
        return batch_norm(p[name]["BatchNorm"], x, 1e-3)


def _inverted_residual(p: Any, x: Any, stride: int) -> Any:
    y = jax.nn.relu6(_convolved(p, "expand", x)) if "expand" in p else x
    y = jax.nn.relu6(_convolved(p, "depthwise", y, stride, groups=y.shape[-1]))
    y = _convolved(p, "project", y)
    return x + y if stride == 1 and x.shape == y.shape else y


@register("mobilenet-v2-inference")
def _inference(published: bool) -> Model:
    stages = STAGES if published else ((1, 2, 1, 1), (2, 3, 2, 2))
    batch, side, first, last, classes = (8, 224, 32, 1280, 1000) if published else (2, 8, 3, 5, 4)
    new, blocks = Values(published, "float16"), blocks_of(first, stages)
    params: dict[str, Any] = {f"InvertedResidual_{i}": _block_params(new, b) for i, b in enumerate(blocks)}
    params |= {
        "stem": _normed(new, 3, 3, first),
        "head": _normed(new, 1, blocks[-1][2], last),
        "Dense_0": dense_params(new, last, classes),
    }

    def infer(p: Any, images: Any) -> Any:
        with scope("MobileNetV2"):
            x = jax.nn.relu6(_convolved(p, "stem", images, 2))
            for i, (*_, stride) in enumerate(blocks):
                with scope(f"InvertedResidual_{i}"):
                    x = _inverted_residual(p[f"InvertedResidual_{i}"], x, stride)
            x = jnp.mean(jax.nn.relu6(_convolved(p, "head", x)), axis=(1, 2))
            with scope("Dense_0"):
                return dense(p["Dense_0"], x)

    return Model(infer, (params, new.normal(batch, side, side, 3)), batch, "images", target="bow")
