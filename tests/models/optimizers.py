"""Optimizers in the operations that optax emits for them; gradients of any type, states in that of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Optimizer:
    """``init`` makes a state of parameters; ``update`` turns gradients, state and parameters into what to add, and a state."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]


def chain(*parts: Optimizer) -> Optimizer:
    """Apply one after the other."""

    def update(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        states = []
        for part, old in zip(parts, state, strict=True):
            updates, new = part.update(updates, old, params)
            states.append(new)
        return updates, tuple(states)

    return Optimizer(lambda params: tuple(part.init(params) for part in parts), update)


def clip_by_global_norm(greatest: float) -> Optimizer:
    """Scale gradients down to a norm."""

    def update(updates: Any, state: Any, _: Any) -> tuple[Any, Any]:
        norm = jnp.sqrt(sum(jnp.sum(lax.square(g)) for g in jax.tree.leaves(updates)))
        trigger = jnp.squeeze(norm < greatest)
        return jax.tree.map(
            lambda g: lax.select(trigger, g, (g / norm.astype(g.dtype)) * greatest), updates
        ), state

    return Optimizer(lambda _: (), update)


def scale_by_adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimizer:
    """Divide the mean of gradients by the root of the mean of their squares."""

    def init(params: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"count": jnp.zeros([], jnp.int32), "mu": zeros, "nu": jax.tree.map(jnp.zeros_like, params)}

    def update(updates: Any, state: Any, _: Any) -> tuple[Any, Any]:
        mu = jax.tree.map(lambda g, t: (1 - b1) * g + b1 * t, updates, state["mu"])
        nu = jax.tree.map(lambda g, t: (1 - b2) * (g**2) + b2 * t, updates, state["nu"])
        most = jnp.array(np.iinfo(np.int32).max, jnp.int32)
        count = jnp.where(state["count"] < most, state["count"] + jnp.array(1, jnp.int32), most)
        mu_hat, nu_hat = _bias_corrected(mu, b1, count), _bias_corrected(nu, b2, count)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v + 0.0) + eps), mu_hat, nu_hat)
        return updates, {"count": count, "mu": mu, "nu": nu}

    return Optimizer(init, update)


def _bias_corrected(moment: Any, decay: float, count: Any) -> Any:
    correction = 1 - decay**count
    return jax.tree.map(lambda t: t / correction.astype(t.dtype), moment)


def add_decayed_weights(decay: float) -> Optimizer:
    """Pull parameters towards zero."""
    return Optimizer(
        lambda _: (),
        lambda updates, state, params: (jax.tree.map(lambda g, p: g + decay * p, updates, params), state),
    )


def trace(decay: float) -> Optimizer:
    """Go on with momentum."""

    def update(updates: Any, state: Any, _: Any) -> tuple[Any, Any]:
        new = jax.tree.map(lambda g, t: g + decay * t, updates, state)
        return new, new

    return Optimizer(lambda params: jax.tree.map(jnp.zeros_like, params), update)


def scale(factor: float) -> Optimizer:
    """Multiply."""
    return Optimizer(
        lambda _: (), lambda updates, state, _: (jax.tree.map(lambda g: factor * g, updates), state)
    )


def adamw(rate: float, decay: float = 1e-4) -> Optimizer:
    """Adam with decoupled weight decay."""
    return chain(scale_by_adam(), add_decayed_weights(decay), scale(-rate))


def adam(rate: float) -> Optimizer:
    """Adam."""
    return chain(scale_by_adam(), scale(-rate))


def sgd(rate: float, momentum: float | None = None) -> Optimizer:
    """Stochastic gradient descent, with momentum if it is given."""
    return scale(-rate) if momentum is None else chain(trace(momentum), scale(-rate))


def apply_updates(params: Any, updates: Any) -> Any:
    """Return the parameters after a step."""
    return jax.tree.map(lambda p, u: jnp.asarray(p + u).astype(jnp.asarray(p).dtype), params, updates)


def training_step(loss_of: Callable[..., Any], optimizer: Optimizer) -> Callable[..., Any]:
    """Return a step of training: parameters, state and a batch to new parameters, new state and loss.

    Gradients have the type of the parameters, or the state's where that is wider: then people keep moments in float32
    beside parameters in float16.
    """

    def step(params: Any, state: Any, *batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        with jax.named_scope("optimizer"):
            updates, state = optimizer.update(gradients, state, params)
            return apply_updates(params, updates), state, loss

    return step
