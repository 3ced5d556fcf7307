"""Models in plain JAX: parameters are a pytree, a model a function of them. Nothing here knows of an IPU."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

Layer = dict[str, jax.Array]
Params = list[Layer]


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


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean softmax cross-entropy of logits ``[batch, classes]`` and integer labels ``[batch]``."""
    one_hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(one_hot * jax.nn.log_softmax(logits), axis=-1))


def mlp_loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the loss of a classifying MLP on one batch."""
    return cross_entropy(apply_mlp(params, images), labels)


def predict_mlp(params: Params, images: jax.Array) -> jax.Array:
    """Return the class scores ``[batch, classes]`` as probabilities."""
    return jax.nn.softmax(apply_mlp(params, images))
