"""Models in plain JAX: parameters are a pytree, a model a function of them. Nothing here knows of an IPU."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Layer = dict[str, jax.Array]
Params = list[Layer]

CHANNELS = (16, 32)
"""Output channels of the convolutions of a convolutional network."""
KERNEL = 3
"""Rows and columns of a convolution's kernel."""


def init_mlp(key: jax.Array, sizes: Sequence[int]) -> Params:
    """Return the layers of a multi-layer perceptron: He-normal weights, zero biases.

    Args:
      key: a JAX random key.
      sizes: features of the input, of each hidden layer, and classes.
    """
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (n_in, n_out)) * jnp.sqrt(2.0 / n_in), "b": jnp.zeros(n_out)}
        for k, n_in, n_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def apply_mlp(params: Params, images: jax.Array) -> jax.Array:
    """Return logits ``[batch, classes]`` of images ``[batch, features]``: ReLU between the layers."""
    *hidden, last = params
    activations = images
    for layer in hidden:
        activations = jax.nn.relu(activations @ layer["w"] + layer["b"])
    return activations @ last["w"] + last["b"]


def init_cnn(key: jax.Array, sizes: Sequence[int]) -> Params:
    """Return the layers of a convolutional network: convolutions of ``CHANNELS``, then a perceptron.

    Args:
      key: a JAX random key.
      sizes: pixels of a square image, features of each hidden dense layer, and classes.
    """
    keys = jax.random.split(key, len(CHANNELS) + 1)
    layers: Params = []
    side, n_in = math.isqrt(sizes[0]), 1
    for k, n_out in zip(keys, CHANNELS, strict=False):
        shape = (KERNEL, KERNEL, n_in, n_out)
        scale = jnp.sqrt(2.0 / (KERNEL * KERNEL * n_in))
        layers.append({"w": jax.random.normal(k, shape) * scale, "b": jnp.zeros(n_out)})
        side, n_in = side // 2, n_out
    return layers + init_mlp(keys[-1], (side * side * n_in, *sizes[1:]))


def apply_cnn(params: Params, images: jax.Array) -> jax.Array:
    """Return logits ``[batch, classes]`` of square images ``[batch, pixels]``.

    Every convolution keeps the size and is followed by ReLU; the maximum of 2 by 2 windows halves rows and
    columns.
    """
    side = math.isqrt(images.shape[-1])
    activations = images.reshape(-1, side, side, 1)
    count = sum(layer["w"].ndim == 4 for layer in params)
    for layer in params[:count]:
        numbers = ("NHWC", "HWIO", "NHWC")
        summed = lax.conv_general_dilated(activations, layer["w"], (1, 1), "SAME", dimension_numbers=numbers)
        activations = jax.nn.relu(summed + layer["b"])
        window = (1, 2, 2, 1)
        activations = lax.reduce_window(activations, -jnp.inf, lax.max, window, window, "VALID")
    return apply_mlp(params[count:], activations.reshape(images.shape[0], -1))


class Model(NamedTuple):
    """A classifier.

    Attributes:
      init: (key, sizes) -> parameters; sizes are those of an image, of each hidden dense layer, and classes.
      apply: (parameters, images ``[batch, pixels]``) -> logits ``[batch, classes]``.
    """

    init: Callable[[jax.Array, Sequence[int]], Params]
    apply: Callable[[Params, jax.Array], jax.Array]

    def loss(self, params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the mean cross-entropy of one batch."""
        return cross_entropy(self.apply(params, images), labels)

    def predict(self, params: Params, images: jax.Array) -> jax.Array:
        """Return the class scores ``[batch, classes]`` as probabilities."""
        return jax.nn.softmax(self.apply(params, images))


MODELS = {"mlp": Model(init_mlp, apply_mlp), "cnn": Model(init_cnn, apply_cnn)}
"""Models by name."""


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean softmax cross-entropy of logits ``[batch, classes]`` and integer labels ``[batch]``."""
    one_hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(one_hot * jax.nn.log_softmax(logits), axis=-1))
