"""Convolutional networks on images, as publications train and run them: ResNets and EfficientNets."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from ipuxla._jax_compat import Function, Tree
from ipuxla.calibration.kernels import convolved
from ipuxla.calibration.work import shaped

STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Bottlenecks of each stage, by the number of layers (He et al., "Deep Residual Learning", arXiv:1512.03385, table 1)."""
SCALES = (
    (1.0, 1.0, 224),
    (1.0, 1.1, 240),
    (1.1, 1.2, 260),
    (1.2, 1.4, 300),
    (1.4, 1.8, 380),
    (1.6, 2.2, 456),
    (1.8, 2.6, 528),
    (2.0, 3.1, 600),
)
"""Of EfficientNet-B0 to B7: by what channels and repeats are multiplied, and the side of an image (Tan and Le, "EfficientNet",
arXiv:1905.11946, and their github.com/tensorflow/tpu, models/official/efficientnet/efficientnet_builder.py)."""
MB_STAGES = (
    (3, 16, 1, 1, False),
    (3, 24, 2, 2, True),
    (5, 40, 2, 2, True),
    (3, 80, 3, 2, True),
    (5, 112, 3, 1, True),
    (5, 192, 4, 2, True),
    (3, 320, 1, 1, True),
)
"""Of B0: taps, channels, repeats and first stride of each stage's blocks, and whether they expand (table 1)."""


@dataclass(frozen=True)
class ResNet:
    """A ResNet of bottlenecks, version 1.5: strides are in their 3 x 3 convolutions.

    Args:
      stages: bottlenecks of each stage.
      batch: images.
      dtype: of images and of what is multiplied; statistics are in float32.
      width: channels of the first stage's 3 x 3 convolutions.
      side: of an image.
      classes: of its logits.
    """

    stages: tuple[int, ...]
    batch: int = 1
    dtype: str = "float16"
    width: int = 64
    side: int = 224
    classes: int = 1000

    @property
    def given(self) -> jax.ShapeDtypeStruct:
        """Images ``[batch, side, side, 3]``."""
        return shaped((self.batch, self.side, self.side, 3), self.dtype)

    def blocks(self) -> list[tuple[Tree, Function]]:
        """Return parameters and function of each block: the stem, bottlenecks, the head."""
        head = {"w": (4 * self.width * 2 ** (len(self.stages) - 1), self.classes)}
        return [
            ({"c": self._kernel(7, 3, self.width), "n": _scales(self.width)}, _stem),
            *self._bottlenecks(),
            ({name: shaped(shape, self.dtype) for name, shape in head.items()}, _head),
        ]

    def _bottlenecks(self) -> Iterator[tuple[Tree, Function]]:
        inputs = self.width
        for stage, count in enumerate(self.stages):
            for number in range(count):
                width, stride = self.width * 2**stage, 2 if stage and not number else 1
                sizes = ((1, inputs, width), (3, width, width), (1, width, 4 * width))
                if number == 0:
                    sizes = (*sizes, (1, inputs, 4 * width))
                yield [(self._kernel(*s), _scales(s[-1])) for s in sizes], partial(_bottleneck, stride)
                inputs = 4 * width

    def _kernel(self, taps: int, inputs: int, outputs: int) -> jax.ShapeDtypeStruct:
        return shaped((taps, taps, inputs, outputs), self.dtype)


@dataclass(frozen=True)
class EfficientNet:
    """An EfficientNet.

    Args:
      scale: 0 to 7, as in B0 to B7.
      group: channels that a spatial convolution mixes; 1 for a depthwise one. 16 with ``expand`` 4 is "G16" (Masters et al., "Making
        EfficientNet More Efficient", arXiv:2106.03640).
      expand: by how much blocks widen.
      batch: images.
      dtype: of images and of what is multiplied; statistics are in float32.
    """

    scale: int
    group: int = 1
    expand: int = 6
    batch: int = 1
    dtype: str = "float16"

    @property
    def given(self) -> jax.ShapeDtypeStruct:
        """Images ``[batch, side, side, 3]``."""
        side = SCALES[self.scale][2]
        return shaped((self.batch, side, side, 3), self.dtype)

    def blocks(self) -> list[tuple[Tree, Function]]:
        """Return parameters and function of each block: the stem, inverted bottlenecks, the head."""
        inputs, last = self._channels(32), self._channels(1280)
        parts: list[tuple[Tree, Function]] = [(self._convolution(3, 3, inputs), _first)]
        for taps, channels, repeats, stride, expands in MB_STAGES:
            for number in range(math.ceil(repeats * SCALES[self.scale][1])):
                outputs = self._channels(channels)
                parameters = self._inverted(taps, inputs, outputs, self.expand if expands else 1)
                parts.append((parameters, partial(_inverted, 1 if number else stride, self.group)))
                inputs = outputs
        head = {"last": self._convolution(1, inputs, last), "w": shaped((last, 1000), self.dtype)}
        return [*parts, (head, _classified)]

    def _channels(self, channels: int) -> int:
        """Return channels times the scale's width, as a multiple of 8 that is no less than nine tenths of it."""
        wanted = channels * SCALES[self.scale][0]
        found = max(8, int(wanted + 4) // 8 * 8)
        return found if found >= 0.9 * wanted else found + 8

    def _convolution(self, taps: int, inputs: int, outputs: int) -> Tree:
        return shaped((taps, taps, inputs, outputs), self.dtype), _scales(outputs)

    def _inverted(self, taps: int, inputs: int, outputs: int, expand: int) -> dict[str, Tree]:
        wide, narrow = inputs * expand, max(1, inputs // 4)
        wide = -(-wide // self.group) * self.group
        found: dict[str, Tree] = {
            "spatial": self._convolution(taps, self.group, wide),
            "squeeze": shaped((wide, narrow), self.dtype),
            "excite": shaped((narrow, wide), self.dtype),
            "project": self._convolution(1, wide, outputs),
        }
        return found | ({"widen": self._convolution(1, inputs, wide)} if wide > inputs else {})


def named(words: str) -> ResNet | EfficientNet | None:
    """Return the network that a text names; None if it names none."""
    if found := re.search(r"resnet[- ]?(50|101|152)\b", words):
        return ResNet(STAGES[int(found[1])])
    if found := re.search(r"efficientnet[- ]?b([0-7])\b", words):
        is_grouped = re.search(r"\bg16\b", words) is not None
        return EfficientNet(int(found[1]), group=16, expand=4) if is_grouped else EfficientNet(int(found[1]))
    return None


def _scales(features: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return shaped((features,), "float32"), shaped((features,), "float32")


def _normalized(x: jax.Array, scales: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return a batch of mean 0 and variance 1, scaled and shifted channel by channel."""
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    variance = jnp.maximum((wide * wide).mean((0, 1, 2)) - mean * mean, 0)
    return ((wide - mean) * (jax.lax.rsqrt(variance + 1e-5) * scales[0]) + scales[1]).astype(x.dtype)


def _stem(x: jax.Array, p: dict[str, Tree]) -> jax.Array:
    x = jax.nn.relu(_normalized(convolved(x, p["c"], 2), p["n"]))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _bottleneck(stride: int, x: jax.Array, p: list[Tree]) -> jax.Array:
    y = x
    for number, ((kernel, scales), step) in enumerate(zip(p[:3], (1, stride, 1), strict=True)):
        y = _normalized(convolved(y, kernel, step), scales)
        y = jax.nn.relu(y) if number < 2 else y
    if len(p) > 3:
        x = _normalized(convolved(x, p[3][0], stride), p[3][1])
    return jax.nn.relu(x + y)


def _head(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
    return x.mean((1, 2)) @ p["w"]


def _first(x: jax.Array, p: Tree) -> jax.Array:
    return jax.nn.silu(_normalized(convolved(x, p[0], 2), p[1]))


def _inverted(stride: int, group: int, x: jax.Array, p: dict[str, Tree]) -> jax.Array:
    y = x
    if "widen" in p:
        y = jax.nn.silu(_normalized(convolved(y, p["widen"][0]), p["widen"][1]))
    kernel, scales = p["spatial"]
    y = jax.nn.silu(_normalized(convolved(y, kernel, stride, groups=y.shape[-1] // group), scales))
    excited = jax.nn.silu(y.mean((1, 2)) @ p["squeeze"]) @ p["excite"]
    y = y * jax.nn.sigmoid(excited)[:, None, None]
    y = _normalized(convolved(y, p["project"][0]), p["project"][1])
    return x + y if x.shape == y.shape else y


def _classified(x: jax.Array, p: dict[str, Tree]) -> jax.Array:
    y = jax.nn.silu(_normalized(convolved(x, p["last"][0]), p["last"][1]))
    return y.mean((1, 2)) @ p["w"]
