"""ResNet-50, version 1.5: bottlenecks whose strides are in their 3 x 3 convolutions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.models.base import Goals, Model, Values, register
from tests.models.layers import (
    batch_norm,
    batch_norm_in_training,
    batch_norm_params,
    convolution,
    convolution_params,
    cross_entropy,
    dense,
    dense_params,
    max_pool,
    scope,
)
from tests.models.optimizers import apply_updates, sgd

STATISTICS = ("mean", "var")


def _bottleneck_params(new: Values, inputs: int, width: int, stride: int) -> dict[str, Any]:
    params = {
        "Conv_0": convolution_params(new, 1, inputs, width),
        "Conv_1": convolution_params(new, 3, width, width),
        "Conv_2": convolution_params(new, 1, width, 4 * width),
        **{f"BatchNorm_{i}": batch_norm_params(new, n) for i, n in enumerate((width, width, 4 * width))},
    }
    if inputs != 4 * width or stride != 1:
        params["conv_proj"] = convolution_params(new, 1, inputs, 4 * width)
        params["norm_proj"] = batch_norm_params(new, 4 * width)
    return params


def blocks_of(stages: tuple[int, ...], width: int) -> list[tuple[int, int, int]]:
    """Return input channels, width and stride of every bottleneck."""
    blocks, inputs = [], width
    for stage, count in enumerate(stages):
        for number in range(count):
            blocks.append((inputs, width * 2**stage, 2 if stage and not number else 1))
            inputs = 4 * width * 2**stage
    return blocks


def params_of(new: Values, stages: tuple[int, ...], width: int, classes: int) -> dict[str, Any]:
    """Return the parameters; batch norms hold their running statistics."""
    blocks = blocks_of(stages, width)
    params: dict[str, Any] = {
        f"BottleneckResNetBlock_{i}": _bottleneck_params(new, *b) for i, b in enumerate(blocks)
    }
    return params | {
        "conv_init": convolution_params(new, 7, 3, width),
        "bn_init": batch_norm_params(new, width),
        "Dense_0": dense_params(new, 4 * blocks[-1][1], classes),
    }


def resnet(p: Any, images: Any, stages: tuple[int, ...], norm: Any) -> Any:
    """Return logits; ``norm`` is called with the path of a batch norm's parameters, these, and its argument."""
    with scope("ResNet"):
        with scope("conv_init"):
            x = convolution(p["conv_init"], images, 2, [(3, 3), (3, 3)])
        with scope("bn_init"):
            x = jax.nn.relu(norm(("bn_init",), p["bn_init"], x))
        x = max_pool(x, 3, 2)
        for i, (_, _, stride) in enumerate(blocks_of(stages, 1)):
            name = f"BottleneckResNetBlock_{i}"
            with scope(name):
                x = _bottleneck(p[name], x, stride, name, norm)
        x = jnp.mean(x, axis=(1, 2))
        with scope("Dense_0"):
            return dense(p["Dense_0"], x).astype(jnp.float32)


def _bottleneck(p: Any, x: Any, stride: int, name: str, norm: Any) -> Any:
    def normalized(which: str, y: Any) -> Any:
        with scope(which):
            return norm((name, which), p[which], y)

    def convolved(which: str, y: Any, stride: int = 1) -> Any:
        with scope(which):
            return convolution(p[which], y, stride)

    residual = x
    y = jax.nn.relu(normalized("BatchNorm_0", convolved("Conv_0", x)))
    y = jax.nn.relu(normalized("BatchNorm_1", convolved("Conv_1", y, stride)))
    y = normalized("BatchNorm_2", convolved("Conv_2", y))
    if "conv_proj" in p:
        residual = normalized("norm_proj", convolved("conv_proj", x, stride))
    return jax.nn.relu(residual + y)


PUBLISHED = (3, 4, 6, 3), 64, 224, 1000
"""Stages, width, side of images and classes."""


@register("resnet50-inference")
def _inference(published: bool) -> Model:
    stages, width, side, classes = PUBLISHED if published else ((1, 1), 2, 12, 3)
    new, batch = Values(published, "float16"), 4 if published else 2

    def infer(params: Any, images: Any) -> Any:
        return resnet(params, images, stages, lambda _, p, x: batch_norm(p, x))

    arguments = params_of(new, stages, width, classes), new.normal(batch, side, side, 3)
    return Model(infer, arguments, batch, "images", target="bow", goals=Goals(exchange_code_bytes=100_000))


@register("resnet50-training")
def _training(published: bool) -> Model:
    """A step of SGD with momentum on halves, the loss scaled, as in flax's ImageNet example."""
    stages, width, side, classes = PUBLISHED if published else ((1,), 2, 8, 3)
    new, batch = Values(published, "float16"), 4 if published else 3
    optimizer = sgd(0.1, momentum=0.9)
    loss_scale = 128.0

    def step(params: Any, running: Any, velocity: Any, images: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            new_running: dict[str, Any] = {}

            def norm(path: tuple[str, ...], p: Any, x: Any) -> Any:
                old = running
                for key in path:
                    old = old[key]
                y, found = batch_norm_in_training(p, old, x)
                inner = new_running
                for key in path[:-1]:
                    inner = inner.setdefault(key, {})
                inner[path[-1]] = found
                return y

            logits = resnet(params, images, stages, norm)
            value = cross_entropy(logits, labels).mean()
            squares = sum(jnp.sum(x.astype(jnp.float32) ** 2) for x in jax.tree.leaves(params) if x.ndim > 1)
            return (value + 1e-4 * 0.5 * squares) * loss_scale, (new_running, value)

        gradients, (new_running, value) = jax.grad(loss, has_aux=True)(params)
        with scope("optimizer"):
            gradients = jax.tree.map(lambda g: g / loss_scale, gradients)
            updates, velocity = optimizer.update(gradients, velocity, params)
            return apply_updates(params, updates), new_running, velocity, value

    params, running = _split(params_of(new, stages, width, classes))
    velocity = new.like(jax.eval_shape(optimizer.init, params))
    arguments = params, running, velocity, new.normal(batch, side, side, 3), new.integers(classes, batch)
    goals = Goals(exchange_code_bytes=130_000)
    return Model(step, arguments, batch, "images", donated=(0, 1, 2), target="bow", goals=goals)


def _split(params: Any) -> tuple[Any, Any]:
    """Return parameters that are trained and running statistics, in dictionaries of the same shape."""
    trained: dict[str, Any] = {}
    running: dict[str, Any] = {}
    for name, value in params.items():
        if "mean" in value:
            trained[name] = {k: v for k, v in value.items() if k not in STATISTICS}
            running[name] = {k: value[k] for k in STATISTICS}
        elif isinstance(next(iter(value.values())), dict):
            trained[name], running[name] = _split(value)
        else:
            trained[name] = value
    return trained, running
