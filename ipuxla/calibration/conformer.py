"""Conformers: encoders of speech in which tokens attend to each other and are convolved with their neighbours.

Source: Gulati et al., "Conformer", arXiv:2005.08100; sizes and the way positions enter as in github.com/graphcore/examples,
speech/conformer/pytorch (configs/train.yaml, src/layers), which follows WeNet.
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


@dataclass(frozen=True)
class Conformer:
    """A conformer's encoder.

    Args:
      batch: utterances.
      dtype: of all but statistics, which are in float32.
      frames: of an utterance.
      mels: of a frame.
      width: of a token; one is made of four frames.
      heads: of attention.
      hidden: width of the feed-forward layers.
      taps: tokens that a convolution sees.
      layers: how many.
    """

    batch: int = 1
    dtype: str = "float16"
    frames: int = 1220
    mels: int = 80
    width: int = 256
    heads: int = 4
    hidden: int = 2048
    taps: int = 15
    layers: int = 12

    @property
    def given(self) -> jax.ShapeDtypeStruct:
        """Frames ``[batch, frames, mels, 1]``."""
        return shaped((self.batch, self.frames, self.mels, 1), self.dtype)

    def blocks(self) -> list[tuple[Tree, Function]]:
        """Return parameters and function of each block: what makes tokens of frames, then the layers."""
        tokens, high = (((size - 1) // 2 - 1) // 2 for size in (self.frames, self.mels))
        made = {"first": (3, 3, 1, self.width), "second": (3, 3, self.width, self.width)}
        made |= {"out": (high * self.width, self.width)}
        shapes = {name: shaped(shape, self.dtype) for name, shape in made.items()}
        return [(shapes, _tokens), *[(self._layer(tokens), partial(_layer, self.heads))] * self.layers]

    def _layer(self, tokens: int) -> dict[str, Tree]:
        width = self.width
        vectors = [shaped((width,), self.dtype)] * 2
        shapes = {
            "up1": (width, self.hidden),
            "down1": (self.hidden, width),
            "qkv": (width, 3 * width),
            "positions": (tokens, width),
            "place": (width, width),
            "own": (2, self.heads, width // self.heads),
            "out": (width, width),
            "widen": (width, 2 * width),
            "near": (self.taps, 1, width),
            "narrow": (width, width),
            "up2": (width, self.hidden),
            "down2": (self.hidden, width),
        }
        norms: dict[str, Tree] = {
            name: vectors for name in ("norm1", "norm2", "norm3", "norm4", "norm5", "norm6")
        }
        return norms | {name: shaped(shape, self.dtype) for name, shape in shapes.items()}


def named(words: str) -> Conformer | None:
    """Return the network that a text names; None if it names none."""
    return Conformer() if "conformer-medium" in words else None


def _tokens(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
    """Return tokens ``[batch, tokens, width]`` of frames."""
    for name in ("first", "second"):
        x = jax.nn.relu(convolved(x, p[name], 2, padding="VALID"))
    return x.reshape(*x.shape[:2], -1) @ p["out"]


def _layer(heads: int, x: jax.Array, p: dict[str, Tree]) -> jax.Array:
    half = jnp.asarray(0.5, x.dtype)
    x = x + half * (jax.nn.silu(layer_norm(x, *p["norm1"]) @ p["up1"]) @ p["down1"])
    x = x + _attended(heads, layer_norm(x, *p["norm2"]), p)
    x = x + _convolved(layer_norm(x, *p["norm3"]), p)
    x = x + half * (jax.nn.silu(layer_norm(x, *p["norm5"]) @ p["up2"]) @ p["down2"])
    return layer_norm(x, *p["norm6"])


def _attended(heads: int, x: jax.Array, p: dict[str, Tree]) -> jax.Array:
    """Return tokens mixed by what they say and where they are."""
    each = x.shape[-1] // heads
    q, k, v = (a.reshape(*a.shape[:2], heads, each) for a in jnp.split(x @ p["qkv"], 3, -1))
    places = (p["positions"] @ p["place"]).reshape(-1, heads, each)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q + p["own"][0], k)
    scores = (scores + jnp.einsum("bqhd,khd->bhqk", q + p["own"][1], places)) * jnp.asarray(
        each**-0.5, x.dtype
    )
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    return mixed.reshape(x.shape) @ p["out"]


def _convolved(x: jax.Array, p: dict[str, Tree]) -> jax.Array:
    """Return tokens mixed with their neighbours, channel by channel, between two gates."""
    value, gate = jnp.split(x @ p["widen"], 2, -1)
    y = value * jax.nn.sigmoid(gate)
    numbers = ("NWC", "WIO", "NWC")
    y = jax.lax.conv_general_dilated(
        y, p["near"], (1,), "SAME", dimension_numbers=numbers, feature_group_count=y.shape[-1]
    )
    return jax.nn.silu(layer_norm(y, *p["norm4"])) @ p["narrow"]
