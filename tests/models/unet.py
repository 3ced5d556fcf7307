"""A small U-Net that learns to remove noise, as in diffusion models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.models.base import Goals, Model, Values, register
from tests.models.layers import (
    convolution,
    convolution_params,
    dense,
    dense_params,
    dot_product_attention,
    group_norm,
    norm_params,
    scope,
)
from tests.models.optimizers import adam, training_step

STEPS = 1000
"""How many steps noise is added in."""
KEPT = np.cumprod(1.0 - np.linspace(1e-4, 0.02, STEPS)).astype(np.float32)
"""The share of an image's variance that is left after each step."""


@dataclass(frozen=True)
class Size:
    """How large a U-Net is: every level halves the image and has ``width`` times its multiple channels."""

    side: int
    width: int
    multiples: tuple[int, ...]
    blocks: int
    groups: int
    channels: int = 3


def _block_params(new: Values, inputs: int, outputs: int, time: int) -> dict[str, Any]:
    params = {
        "GroupNorm_0": norm_params(new, inputs),
        "Conv_0": convolution_params(new, 3, inputs, outputs, bias=True),
        "Dense_0": dense_params(new, time, outputs),
        "GroupNorm_1": norm_params(new, outputs),
        "Conv_1": convolution_params(new, 3, outputs, outputs, bias=True),
    }
    return params if inputs == outputs else params | {"shortcut": dense_params(new, inputs, outputs)}


def _attention_params(new: Values, channels: int) -> dict[str, Any]:
    return {"GroupNorm_0": norm_params(new, channels)} | {
        name: dense_params(new, channels, channels) for name in ("query", "key", "value", "out")
    }


def params_of(new: Values, size: Size) -> dict[str, Any]:
    """Return the parameters, by the names of the blocks in the order in which they run."""
    time = 4 * size.width
    params: dict[str, Any] = {
        "time_0": dense_params(new, size.width, time),
        "time_1": dense_params(new, time, time),
        "conv_in": convolution_params(new, 3, size.channels, size.width, bias=True),
    }
    channels, skips = size.width, [size.width]
    for level, multiple in enumerate(size.multiples):
        for number in range(size.blocks):
            params[f"down_{level}_{number}"] = _block_params(new, channels, size.width * multiple, time)
            channels = size.width * multiple
            skips.append(channels)
        if level < len(size.multiples) - 1:
            params[f"downsample_{level}"] = convolution_params(new, 3, channels, channels, bias=True)
            skips.append(channels)
    params |= {
        "mid_0": _block_params(new, channels, channels, time),
        "mid_attention": _attention_params(new, channels),
        "mid_1": _block_params(new, channels, channels, time),
    }
    for level, multiple in reversed(list(enumerate(size.multiples))):
        for number in range(size.blocks + 1):
            inputs = channels + skips.pop()
            channels = size.width * multiple
            params[f"up_{level}_{number}"] = _block_params(new, inputs, channels, time)
        if level:
            params[f"upsample_{level}"] = convolution_params(new, 3, channels, channels, bias=True)
    params |= {
        "norm_out": norm_params(new, channels),
        "conv_out": convolution_params(new, 3, channels, size.channels, bias=True),
    }
    return params


def time_embedding(times: Any, features: int) -> Any:
    """Return sines and cosines of times at frequencies from 1 to 1 / 10,000."""
    half = features // 2
    frequencies = jnp.exp(-math.log(10000) * jnp.arange(half, dtype=jnp.float32) / (half - 1))
    angles = times.astype(jnp.float32)[:, None] * frequencies[None, :]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)


def _block(p: Any, x: Any, time: Any, groups: int) -> Any:
    with scope("Conv_0"):
        y = convolution(p["Conv_0"], jax.nn.swish(group_norm(p["GroupNorm_0"], x, groups)))
    with scope("Dense_0"):
        y = y + dense(p["Dense_0"], jax.nn.swish(time))[:, None, None, :]
    with scope("Conv_1"):
        y = convolution(p["Conv_1"], jax.nn.swish(group_norm(p["GroupNorm_1"], y, groups)))
    return (dense(p["shortcut"], x) if "shortcut" in p else x) + y


def _attention(p: Any, x: Any, groups: int) -> Any:
    batch, rows, columns, channels = x.shape
    y = group_norm(p["GroupNorm_0"], x, groups).reshape(batch, rows * columns, 1, channels)
    y = dot_product_attention(*(dense(p[name], y) for name in ("query", "key", "value")))
    return x + dense(p["out"], y).reshape(x.shape)


def unet(p: Any, x: Any, times: Any, size: Size) -> Any:
    """Return the noise in images ``x`` after the given numbers of steps."""

    def block(name: str, x: Any) -> Any:
        with scope(name):
            return _block(p[name], x, time, size.groups)

    with scope("UNet/time"):
        time = dense(p["time_1"], jax.nn.swish(dense(p["time_0"], time_embedding(times, size.width))))
    with scope("UNet"):
        x = convolution(p["conv_in"], x)
        skips = [x]
        for level in range(len(size.multiples)):
            for number in range(size.blocks):
                x = block(f"down_{level}_{number}", x)
                skips.append(x)
            if level < len(size.multiples) - 1:
                with scope(f"downsample_{level}"):
                    x = convolution(p[f"downsample_{level}"], x, 2)
                skips.append(x)
        x = block("mid_0", x)
        with scope("mid_attention"):
            x = _attention(p["mid_attention"], x, size.groups)
        x = block("mid_1", x)
        for level in reversed(range(len(size.multiples))):
            for number in range(size.blocks + 1):
                x = block(f"up_{level}_{number}", jnp.concatenate([x, skips.pop()], axis=-1))
            if level:
                with scope(f"upsample_{level}"):
                    batch, rows, columns, channels = x.shape
                    x = jax.image.resize(x, (batch, 2 * rows, 2 * columns, channels), "nearest")
                    x = convolution(p[f"upsample_{level}"], x)
        with scope("conv_out"):
            return convolution(p["conv_out"], jax.nn.swish(group_norm(p["norm_out"], x, size.groups)))


@register("unet-training")
def _training(published: bool) -> Model:
    size = Size(32, 64, (1, 2, 4), 2, 32) if published else Size(4, 4, (1, 2), 0, 2)
    batch, new = 4 if published else 2, Values(published)

    def loss(params: Any, images: Any, key: Any) -> Any:
        key_of_times, key_of_noise = jax.random.split(key)
        times = jax.random.randint(key_of_times, (batch,), 0, STEPS)
        noise = jax.random.normal(key_of_noise, images.shape)
        kept = jnp.asarray(KEPT)[times][:, None, None, None]
        noisy = jnp.sqrt(kept) * images + jnp.sqrt(1.0 - kept) * noise
        return jnp.mean((unet(params, noisy, times, size) - noise) ** 2)

    optimizer = adam(1e-4)
    params = params_of(new, size)
    state = new.like(jax.eval_shape(optimizer.init, params))
    images = new.normal(batch, size.side, size.side, size.channels)
    arguments = params, state, images, jax.random.key(0)
    goals = Goals(exchange_code_bytes=130_000)
    return Model(training_step(loss, optimizer), arguments, batch, "images", donated=(0, 1), goals=goals)
