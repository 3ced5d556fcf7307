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


def scale_by_lion(b1: float = 0.9, b2: float = 0.99) -> Optimizer:
    """Go by the sign of a mean of gradients."""

    def init(params: Any) -> Any:
        return {"count": jnp.zeros([], jnp.int32), "mu": jax.tree.map(jnp.zeros_like, params)}

    def update(updates: Any, state: Any, _: Any) -> tuple[Any, Any]:
        signs = jax.tree.map(lambda g, m: jnp.sign((1.0 - b1) * g + b1 * m), updates, state["mu"])
        mu = jax.tree.map(lambda g, t: (1 - b2) * g + b2 * t, updates, state["mu"])
        return signs, {"count": state["count"] + 1, "mu": mu}

    return Optimizer(init, update)


def lion(rate: float, decay: float = 1e-3) -> Optimizer:
    """Lion with decoupled weight decay."""
    return chain(scale_by_lion(), add_decayed_weights(decay), scale(-rate))


def scale_by_factored_rms(decay: float = 0.8, least_factored: int = 128, epsilon: float = 1e-30) -> Optimizer:
    """Divide gradients by the root of the mean of their squares, which large matrices keep as rows and columns."""

    def factored(shape: tuple[int, ...]) -> tuple[int, int] | None:
        order = np.argsort(shape)
        if len(shape) < 2 or shape[order[-2]] < least_factored:
            return None
        return int(order[-2]), int(order[-1])

    def init(params: Any) -> Any:
        def leaf(p: Any) -> Any:
            dims, none = factored(p.shape), jnp.zeros((1,), p.dtype)
            if dims is None:
                return {"row": none, "column": none, "whole": jnp.zeros(p.shape, p.dtype)}
            row, column = (jnp.zeros(np.delete(p.shape, d), p.dtype) for d in reversed(dims))
            return {"row": row, "column": column, "whole": none}

        return {"count": jnp.zeros([], jnp.int32), "v": [leaf(p) for p in jax.tree.leaves(params)]}

    def step(g: Any, v: Any, rate: Any) -> tuple[Any, Any]:
        squares, rate, dims = lax.square(g) + epsilon, rate.astype(v["row"].dtype), factored(g.shape)
        if dims is None:
            whole = rate * v["whole"] + (1.0 - rate) * squares
            return g * whole**-0.5, v | {"whole": whole}
        d1, d0 = dims
        row = rate * v["row"] + (1.0 - rate) * jnp.mean(squares, axis=d0)
        column = rate * v["column"] + (1.0 - rate) * jnp.mean(squares, axis=d1)
        mean = jnp.mean(row, axis=d1 - 1 if d1 > d0 else d1, keepdims=True)
        factors = jnp.expand_dims((row / mean) ** -0.5, d0) * jnp.expand_dims(column**-0.5, d1)
        return g * factors, v | {"row": row, "column": column}

    def update(updates: Any, state: Any, _: Any) -> tuple[Any, Any]:
        rate = 1.0 - (state["count"].astype(jnp.float32) + 1.0) ** -decay
        leaves, tree = jax.tree.flatten(updates)
        found = [step(g, v, rate) for g, v in zip(leaves, state["v"], strict=True)]
        state = {"count": state["count"] + 1, "v": [v for _, v in found]}
        return jax.tree.unflatten(tree, [g for g, _ in found]), state

    return Optimizer(init, update)


def clip_by_block_rms(greatest: float) -> Optimizer:
    """Scale every parameter's gradient down to a root of the mean of squares."""

    def update(updates: Any, state: Any, _: Any) -> tuple[Any, Any]:
        def clip(u: Any) -> Any:
            return u / jnp.maximum(1.0, jnp.sqrt(jnp.mean(lax.square(u))) / greatest)

        return jax.tree.map(clip, updates), state

    return Optimizer(lambda _: (), update)


def scale_by_param_block_rms(least: float = 1e-3) -> Optimizer:
    """Multiply by how large each parameter is."""

    def update(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        def scaled(u: Any, p: Any) -> Any:
            return u * jnp.maximum(jnp.sqrt(jnp.mean(lax.square(p))), least).astype(u.dtype)

        return jax.tree.map(scaled, updates, params), state

    return Optimizer(lambda _: (), update)


def adafactor(rate: float) -> Optimizer:
    """Second moments as rows and columns, updates clipped and as large as their parameters."""
    return chain(
        scale_by_factored_rms(), clip_by_block_rms(1.0), scale(rate), scale_by_param_block_rms(), scale(-1)
    )


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
