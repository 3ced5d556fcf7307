"""Optimizers in plain JAX: an initial state, and an update that is part of the compiled step."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ipuxla._jax_compat import Tree, tree_map


class Optimizer(NamedTuple):
    """How gradients change parameters.

    Attributes:
      init: parameters -> state.
      update: (gradients, state, parameters) -> (parameters, state).
    """

    init: Callable[[Tree], Tree]
    update: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


def sgd(learning_rate: float) -> Optimizer:
    """Return gradient descent; it keeps no state."""

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        return tree_map(lambda p, g: p - learning_rate * g, params, grads), state

    return Optimizer(lambda params: (), update)


def momentum(learning_rate: float, decay: float = 0.9) -> Optimizer:
    """Return gradient descent along a decaying sum of gradients (Polyak 1964)."""

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        state = tree_map(lambda v, g: decay * v + g, state, grads)
        return tree_map(lambda p, v: p - learning_rate * v, params, state), state

    return Optimizer(_zeros, update)


def adam(learning_rate: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimizer:
    """Return Adam with bias correction (Kingma and Ba 2015, algorithm 1)."""

    def init(params: Tree) -> Tree:
        return {"count": jnp.zeros((), jnp.float32), "mean": _zeros(params), "square": _zeros(params)}

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        count = state["count"] + 1.0
        mean = tree_map(lambda m, g: b1 * m + (1 - b1) * g, state["mean"], grads)
        square = tree_map(lambda s, g: b2 * s + (1 - b2) * g * g, state["square"], grads)
        scale_mean, scale_square = 1 / (1 - b1**count), 1 / (1 - b2**count)

        def step(p: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
            return p - learning_rate * (m * scale_mean) / (jnp.sqrt(s * scale_square) + eps)

        params = tree_map(step, params, mean, square)
        return params, {"count": count, "mean": mean, "square": square}

    return Optimizer(init, update)


OPTIMIZERS: dict[str, Callable[[float], Optimizer]] = {"sgd": sgd, "momentum": momentum, "adam": adam}
"""Constructors by name; each takes the learning rate."""


def _zeros(params: Tree) -> Tree:
    """Return zeros like parameters."""
    return tree_map(jnp.zeros_like, params)
