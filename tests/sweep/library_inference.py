"""Inference: differential equations, filters, sampling, mixtures, Gaussian processes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.sweep.cases import definite, normal
from tests.sweep.library_parts import GROUP, weights

add = GROUP.add
KEY = jax.random.key(0)


# ---- differential equations, filters


class Stepper(NamedTuple):
    """State of an adaptive integrator."""

    t: Any
    y: Any
    h: Any
    steps: Any


def rk45(f, y0, t1, tolerance=1e-3):
    """Integrate to t1 by the Bogacki-Shampine pair with steps of adapted size."""

    def step(s: Stepper) -> Stepper:
        h = jnp.minimum(s.h, t1 - s.t)
        k1 = f(s.t, s.y)
        k2 = f(s.t + h / 2, jax.tree.map(lambda y, a: y + h / 2 * a, s.y, k1))
        k3 = f(s.t + 3 * h / 4, jax.tree.map(lambda y, a: y + 3 * h / 4 * a, s.y, k2))
        new = jax.tree.map(lambda y, a, b, c: y + h * (2 * a + 3 * b + 4 * c) / 9, s.y, k1, k2, k3)
        k4 = f(s.t + h, new)
        error = jax.tree.map(lambda a, b, c, d: h * (-5 * a / 72 + b / 12 + c / 9 - d / 8), k1, k2, k3, k4)
        size = jnp.sqrt(sum(jnp.sum(e**2) for e in jax.tree.leaves(error))) / tolerance
        accepted = size <= 1
        factor = jnp.clip(0.9 * jnp.maximum(size, 1e-6) ** (-1 / 3), 0.2, 5.0)
        y = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, s.y)
        return Stepper(jnp.where(accepted, s.t + h, s.t), y, h * factor, s.steps + 1)

    start = Stepper(jnp.float32(0), y0, jnp.float32(0.1), jnp.int32(0))
    return lax.while_loop(lambda s: (s.t < t1 - 1e-6) & (s.steps < 100), step, start)


add(
    "library: Runge-Kutta with adaptive steps",
    lambda y: rk45(lambda t, y: {"x": y["v"], "v": -y["x"] - 0.1 * y["v"]}, y, 2.0).y,
    {"x": normal(3), "v": normal(3, seed=1)},
)
add(
    "library: Runge-Kutta with adaptive steps, vmap",
    jax.vmap(lambda y: rk45(lambda t, y: -y * jnp.sin(t) - y, y, 1.0).y),
    normal(4, 2),
)


def kalman(observations, a, c, q, r):
    """Return filtered means and the log-likelihood."""

    def step(state, y):
        m, p = state
        m, p = a @ m, a @ p @ a.T + q
        s = c @ p @ c.T + r
        gain = jax.scipy.linalg.solve(s, c @ p, assume_a="pos").T
        residual = y - c @ m
        logp = jax.scipy.stats.multivariate_normal.logpdf(residual, jnp.zeros_like(residual), s)
        return (m + gain @ residual, p - gain @ s @ gain.T), (m, logp)

    n = a.shape[0]
    (_, _), (means, logps) = lax.scan(step, (jnp.zeros(n), jnp.eye(n)), observations)
    return means, logps.sum()


_KALMAN = (normal(6, 2), weights(3, 3), weights(2, 3), definite(3, 3), definite(2, 2))
add("library: Kalman filter", kalman, *_KALMAN)
add("library: Kalman filter, gradient", jax.grad(lambda *a: kalman(*a)[1], (1, 2, 3, 4)), *_KALMAN)


def forward_backward(log_start, log_move, log_emit):
    """Return posterior marginals of a hidden Markov model."""

    def forward(a, e):
        a = jax.nn.logsumexp(a[:, None] + log_move, 0) + e
        return a, a

    def backward(b, e):
        b = jax.nn.logsumexp(log_move + (e + b)[None], 1)
        return b, b

    first = log_start + log_emit[0]
    alphas = jnp.concatenate([first[None], lax.scan(forward, first, log_emit[1:])[1]])
    last = jnp.zeros_like(first)
    betas = jnp.concatenate([lax.scan(backward, last, log_emit[1:], reverse=True)[1], last[None]])
    return jax.nn.softmax(alphas + betas, -1), jax.nn.logsumexp(alphas[-1])


add(
    "library: hidden Markov model",
    forward_backward,
    normal(3),
    np.asarray(jax.nn.log_softmax(normal(3, 3))),
    normal(6, 3),
)


def viterbi(log_move, log_emit):
    """Return the likeliest path."""

    def step(v, e):
        scores = v[:, None] + log_move
        return scores.max(0) + e, scores.argmax(0)

    last, back = lax.scan(step, log_emit[0], log_emit[1:])
    return lax.scan(lambda s, b: (b[s], s), jnp.argmax(last), back, reverse=True)


add("library: Viterbi", viterbi, normal(3, 3), normal(6, 3))

# ---- sampling


def log_density(q):
    """Return a banana."""
    return -0.5 * q[0] ** 2 - 0.5 * (q[1] - q[0] ** 2) ** 2


def hmc(key, q, steps=3, leaps=4, size=0.1):
    """Run Hamiltonian Monte Carlo."""

    def transition(q, key):
        k1, k2 = jax.random.split(key)
        p = jax.random.normal(k1, q.shape)

        def leap(_, state):
            q, p = state
            p = p + 0.5 * size * jax.grad(log_density)(q)
            q = q + size * p
            return q, p + 0.5 * size * jax.grad(log_density)(q)

        new, momentum = lax.fori_loop(0, leaps, leap, (q, p))
        ratio = log_density(new) - 0.5 * momentum @ momentum - log_density(q) + 0.5 * p @ p
        accepted = jnp.log(jax.random.uniform(k2)) < ratio
        return jnp.where(accepted, new, q), (q, accepted)

    return lax.scan(transition, q, jax.random.split(key, steps))


add("library: Hamiltonian Monte Carlo", hmc, KEY, normal(2))
add("library: Hamiltonian Monte Carlo, chains", jax.vmap(hmc), jax.random.split(KEY, 3), normal(3, 2))


def particle_filter(key, observations, count=16):
    """Return the log-likelihood of a random walk, resampling systematically."""

    def step(state, y):
        particles, key = state
        key, k1, k2 = jax.random.split(key, 3)
        particles = particles + 0.5 * jax.random.normal(k1, particles.shape)
        logw = -0.5 * (y - particles) ** 2
        positions = (jnp.arange(count) + jax.random.uniform(k2)) / count
        chosen = jnp.searchsorted(jnp.cumsum(jax.nn.softmax(logw)), positions)
        return (particles[jnp.minimum(chosen, count - 1)], key), jax.nn.logsumexp(logw) - jnp.log(count)

    return lax.scan(step, (jnp.zeros(count), key), observations)[1].sum()


add("library: particle filter", particle_filter, KEY, normal(5))


def gaussian_mixture(x, means, rounds=3):
    """Fit a mixture by expectation and maximization."""

    def step(_, state):
        logpi, means, covariances = state
        logp = jax.vmap(lambda m, c: jax.scipy.stats.multivariate_normal.logpdf(x, m, c), out_axes=1)(
            means, covariances
        )
        r = jax.nn.softmax(logp + logpi, 1)
        total = r.sum(0) + 1e-6
        means = r.T @ x / total[:, None]
        centered = x[:, None] - means
        covariances = jnp.einsum("nk,nki,nkj->kij", r, centered, centered) / total[
            :, None, None
        ] + 0.1 * jnp.eye(x.shape[1])
        return jnp.log(total / x.shape[0]), means, covariances

    k, d = means.shape
    return lax.fori_loop(
        0, rounds, step, (jnp.full(k, -jnp.log(k)), means, jnp.broadcast_to(jnp.eye(d), (k, d, d)))
    )


add("library: Gaussian mixture", gaussian_mixture, normal(12, 2), normal(3, 2))


def gaussian_process(x, y, new, log_length):
    """Return predictions and the marginal likelihood."""
    kernel = lambda a, b: jnp.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1) / jnp.exp(2 * log_length))  # noqa: E731
    factor = jax.scipy.linalg.cho_factor(kernel(x, x) + 0.1 * jnp.eye(x.shape[0]), lower=True)
    alpha = jax.scipy.linalg.cho_solve(factor, y)
    return kernel(new, x) @ alpha, -0.5 * y @ alpha - jnp.log(jnp.diag(factor[0])).sum()


add("library: Gaussian process", gaussian_process, normal(6, 2), normal(6), normal(4, 2), np.float32(0.2))
add(
    "library: Gaussian process, gradient",
    jax.grad(lambda log_length, *a: gaussian_process(*a, log_length)[1]),
    np.float32(0.2),
    normal(6, 2),
    normal(6),
    normal(4, 2),
)
