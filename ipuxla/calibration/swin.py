"""Swin transformers: attention inside windows of an image, every other time shifted by half of one.

Source: Liu et al., "Swin Transformer", arXiv:2103.14030 (sizes: section 3.3).
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from ipuxla._jax_compat import Function, Tree
from ipuxla.calibration.kernels import convolved, layer_norm
from ipuxla.calibration.work import shaped

WINDOW = 7
"""Side of a window, in tokens."""
DEPTHS = {"tiny": (96, (2, 2, 6, 2)), "small": (96, (2, 2, 18, 2)), "base": (128, (2, 2, 18, 2))}
"""Channels of the first stage and layers of each, by name."""


@dataclass(frozen=True)
class Swin:
    """A Swin transformer on images of 224 x 224.

    Args:
      width: channels of the first stage; the next ones have twice as many each.
      depths: layers of each stage.
      batch: images.
      dtype: of all but statistics, which are in float32.
    """

    width: int
    depths: tuple[int, ...]
    batch: int = 1
    dtype: str = "float16"

    @property
    def given(self) -> jax.ShapeDtypeStruct:
        """Images ``[batch, 224, 224, 3]``."""
        return shaped((self.batch, 224, 224, 3), self.dtype)

    def blocks(self) -> list[tuple[Tree, Function]]:
        """Return parameters and function of each layer; the first one's has the patches, a stage's first one merges before it."""
        parts: list[tuple[Tree, Function]] = []
        for stage, depth in enumerate(self.depths):
            width = self.width * 2**stage
            for number in range(depth):
                parameters = self._layer(width)
                before = None
                if not number:
                    parameters["before"] = self._before(stage, width)
                    before = _merged if stage else _patches
                is_last = stage + 1 == len(self.depths) and number + 1 == depth
                if is_last:
                    parameters["head"] = [*self._vectors(width, 2), self._matrix(width, 1000)]
                shift = WINDOW // 2 if number % 2 else 0
                parts.append((parameters, partial(_layer, before, width // 32, shift, is_last)))
        return parts

    def _layer(self, width: int) -> dict[str, Tree]:
        places = WINDOW**2
        return {
            "norm1": self._vectors(width, 2),
            "qkv": self._matrix(width, 3 * width),
            "bias": shaped((width // 32, places, places), self.dtype),
            "out": self._matrix(width, width),
            "norm2": self._vectors(width, 2),
            "up": self._matrix(width, 4 * width),
            "down": self._matrix(4 * width, width),
        }

    def _before(self, stage: int, width: int) -> list[Tree]:
        if stage:
            return [*self._vectors(2 * width, 2), self._matrix(2 * width, width)]
        return [shaped((4, 4, 3, width), self.dtype), *self._vectors(width, 2)]

    def _matrix(self, rows: int, columns: int) -> jax.ShapeDtypeStruct:
        return shaped((rows, columns), self.dtype)

    def _vectors(self, size: int, count: int) -> list[jax.ShapeDtypeStruct]:
        return [shaped((size,), self.dtype)] * count


def named(words: str) -> Swin | None:
    """Return the network that a text names; None if it names none."""
    return next((Swin(*sizes) for name, sizes in DEPTHS.items() if f"swin-{name}" in words), None)


def _patches(x: jax.Array, p: list[jax.Array]) -> jax.Array:
    return layer_norm(convolved(x, p[0], 4, padding="VALID"), p[1], p[2])


def _merged(x: jax.Array, p: list[jax.Array]) -> jax.Array:
    """Return tokens ``[batch, side / 2, side / 2, 2 width]`` of four neighbours each."""
    four = [x[:, down::2, right::2] for right in (0, 1) for down in (0, 1)]
    return layer_norm(jnp.concatenate(four, -1), p[0], p[1]) @ p[2]


def _layer(
    before: Function | None, heads: int, shift: int, is_last: bool, x: jax.Array, p: dict[str, Tree]
) -> jax.Array:
    """Return tokens ``[batch, side, side, width]`` after a layer; of the last one, logits."""
    if before is not None:
        x = before(x, p["before"])
    x = x + _attended(layer_norm(x, *p["norm1"]), p, heads, shift if x.shape[1] > WINDOW else 0)
    x = x + jax.nn.gelu(layer_norm(x, *p["norm2"]) @ p["up"], approximate=True) @ p["down"]
    if not is_last:
        return x
    scale, bias, matrix = p["head"]
    return layer_norm(x, scale, bias).mean((1, 2)) @ matrix


def _attended(x: jax.Array, p: dict[str, Tree], heads: int, shift: int) -> jax.Array:
    """Return tokens mixed inside windows, which begin ``shift`` tokens further where that is not 0."""
    batch, side, _, width = x.shape
    count, each = side // WINDOW, width // heads
    x = jnp.roll(x, (-shift, -shift), (1, 2)) if shift else x
    windows = x.reshape(batch, count, WINDOW, count, WINDOW, width).swapaxes(2, 3)
    qkv = windows.reshape(batch, count**2, WINDOW**2, width) @ p["qkv"]
    q, k, v = (a.reshape(*a.shape[:3], heads, each) for a in jnp.split(qkv, 3, -1))
    scores = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k) * jnp.asarray(each**-0.5, x.dtype) + p["bias"]
    if shift:
        scores = scores + _mask(count, shift, scores.dtype)[:, None]
    mixed = jnp.einsum("bnhqk,bnkhd->bnqhd", jax.nn.softmax(scores, axis=-1), v)
    out = mixed.reshape(*windows.shape[:3], WINDOW, WINDOW, width).swapaxes(2, 3) @ p["out"]
    y = out.reshape(batch, side, side, width)
    return jnp.roll(y, (shift, shift), (1, 2)) if shift else y


def _mask(count: int, shift: int, dtype: jnp.dtype) -> jax.Array:
    """Return ``[windows, tokens, tokens]``: what keeps tokens from those that the shift brought from the other side."""
    place = jnp.arange(count * WINDOW)
    part = (place >= count * WINDOW - WINDOW).astype(jnp.int32) + (place >= count * WINDOW - shift)
    regions = (3 * part[:, None] + part).reshape(count, WINDOW, count, WINDOW).swapaxes(1, 2)
    regions = regions.reshape(count**2, WINDOW**2)
    return jnp.where(regions[:, :, None] == regions[:, None], 0, -100).astype(dtype)
