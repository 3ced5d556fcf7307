"""Pieces that programs in the styles of libraries share."""

from __future__ import annotations

import numpy as np
from jax import lax

from tests.sweep.cases import Group, normal

GROUP = Group("programs in the styles of libraries")


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Return weights whose products with normal inputs are about normal."""
    return normal(*shape, seed=seed, scale=float(np.prod(shape[:-1])) ** -0.5)


def layer_norm(x, scale, shift):
    """Normalize the last axis."""
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6) * scale + shift


def dense(params, x):
    """Return an affine layer."""
    return x @ params["kernel"] + params["bias"]


def dense_params(inputs: int, outputs: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return parameters of an affine layer."""
    return {"kernel": weights(inputs, outputs, seed=seed), "bias": normal(outputs, seed=seed, scale=0.1)}
