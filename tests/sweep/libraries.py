"""Small programs in the styles of libraries on top of JAX: networks, optimizers, inference, solvers, sequence models."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.sweep.cases import Group, booleans, definite, integers, normal, uniform

GROUP = Group("programs in the styles of libraries")
add = GROUP.add
KEY = jax.random.key(0)


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


# ---- convolutional networks


def conv(x, w, stride=1):
    """Convolve NHWC images."""
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def batch_norm(params, state, x, train):
    """Normalize channels and follow their statistics, as networks with state do."""
    if train:
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        state = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state, {"mean": mean, "var": var})
    else:
        mean, var = state["mean"], state["var"]
    return (x - mean) * lax.rsqrt(var + 1e-5) * params["scale"] + params["bias"], state


def resnet_block(params, state, x, train):
    """Return a residual block that halves the image, and its new state."""
    y, s1 = batch_norm(params["bn1"], state["bn1"], conv(x, params["conv1"], 2), train)
    y, s2 = batch_norm(params["bn2"], state["bn2"], conv(jax.nn.relu(y), params["conv2"]), train)
    return jax.nn.relu(y + conv(x, params["short"], 2)), {"bn1": s1, "bn2": s2}


def resnet_step(params, state, x, labels):
    """Return loss, gradients and the new state."""

    def loss(params):
        y, new = resnet_block(params, state, x, True)
        logits = y.mean((1, 2)) @ params["head"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean(), new

    (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return value, new, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def _bn(n: int) -> tuple[dict[str, Any], dict[str, Any]]:
    ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
    return {"scale": ones, "bias": zeros}, {"mean": zeros, "var": ones}


RESNET = {"conv1": weights(3, 3, 2, 4), "conv2": weights(3, 3, 4, 4), "short": weights(1, 1, 2, 4), "head": weights(4, 3), "bn1": _bn(4)[0], "bn2": _bn(4)[0]}
RESNET_STATE = {"bn1": _bn(4)[1], "bn2": _bn(4)[1]}
add("library: ResNet block with state", resnet_step, RESNET, RESNET_STATE, normal(3, 6, 6, 2), integers(3, 3))
add("library: ResNet block, evaluation", lambda p, s, x: resnet_block(p, s, x, False)[0], RESNET, RESNET_STATE, normal(3, 6, 6, 2))


def unet(params, x):
    """Go down once and up once, joining what was kept."""
    down = jax.nn.silu(conv(x, params["a"]))
    small = lax.reduce_window(down, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    small = jax.nn.silu(conv(small, params["b"]))
    up = jax.image.resize(small, (*down.shape[:3], small.shape[-1]), "nearest")
    return conv(jnp.concatenate([down, up], -1), params["c"])


UNET = {"a": weights(3, 3, 2, 3), "b": weights(3, 3, 3, 4), "c": weights(3, 3, 7, 2)}
add("library: U-Net", jax.value_and_grad(lambda p, x: (unet(p, x) ** 2).mean()), UNET, normal(2, 6, 6, 2))

# ---- transformers


def attend(q, k, v, mask=None):
    """Attend by heads ``[batch, length, heads, features]``."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def vit(params, images, heads=2, patch=3):
    """Cut images into patches, encode them and classify the first position."""
    b, h, w, c = images.shape
    x = images.reshape(b, h // patch, patch, w // patch, patch, c).transpose(0, 1, 3, 2, 4, 5)
    x = dense(params["embed"], x.reshape(b, -1, patch * patch * c))
    x = jnp.concatenate([jnp.broadcast_to(params["cls"], (b, 1, x.shape[-1])), x], 1) + params["pos"]
    y = layer_norm(x, 1.0, 0.0)
    q, k, v = (a.reshape(b, -1, heads, x.shape[-1] // heads) for a in jnp.split(dense(params["qkv"], y), 3, -1))
    x = x + dense(params["out"], attend(q, k, v).reshape(x.shape))
    x = x + dense(params["down"], jax.nn.gelu(dense(params["up"], layer_norm(x, 1.0, 0.0))))
    return x[:, 0]


VIT = {"embed": dense_params(18, 8), "cls": normal(8), "pos": normal(5, 8), "qkv": dense_params(8, 24), "out": dense_params(8, 8), "up": dense_params(8, 16), "down": dense_params(16, 8)}
add("library: vision transformer", jax.value_and_grad(lambda p, x: (vit(p, x) ** 2).sum()), VIT, normal(2, 6, 6, 2))


def rope(x, positions):
    """Rotate halves of features by angles that grow with the position."""
    half = x.shape[-1] // 2
    angles = positions[:, None] / 10000 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def decode(params, cache, token, position):
    """Return logits of the next token, and the cache with this one's keys and values."""
    x = params["embed"][token]
    y = x * lax.rsqrt((x * x).mean() + 1e-6)
    q, k, v = (a.reshape(1, 2, -1) for a in jnp.split(y @ params["qkv"], 3, -1))
    q, k = rope(q, position[None]), rope(k, position[None])
    cache = {n: lax.dynamic_update_slice(cache[n], a, (position, 0, 0)) for n, a in (("k", k), ("v", v))}
    mask = jnp.arange(cache["k"].shape[0]) <= position
    y = attend(q[None], cache["k"][None], cache["v"][None], mask).reshape(-1)
    x = x + y @ params["out"]
    gate, up = jnp.split(x @ params["up"], 2)
    return (x + (jax.nn.silu(gate) * up) @ params["down"]) @ params["embed"].T, cache


def generate(params, prompt, length):
    """Read a prompt, then write greedily; the cache is filled position by position."""
    cache = {n: jnp.zeros((length, 2, 4)) for n in ("k", "v")}
    tokens = jnp.zeros(length, jnp.int32).at[: prompt.shape[0]].set(prompt)

    def step(state, position):
        tokens, cache = state
        logits, cache = decode(params, cache, tokens[position], position)
        following = jnp.where(position + 1 < prompt.shape[0], tokens[(position + 1) % length], jnp.argmax(logits).astype(jnp.int32))
        return (tokens.at[position + 1].set(following), cache), logits

    (tokens, _), logits = lax.scan(step, (tokens, cache), jnp.arange(length))
    return tokens, logits


GPT = {"embed": normal(11, 8), "qkv": weights(8, 24), "out": weights(8, 8), "up": weights(8, 32), "down": weights(16, 8)}
add("library: GPT that decodes with a cache", lambda p, t: generate(p, t, 8), GPT, np.array([3, 1, 4], np.int32))
add("library: attention with rotary positions", jax.grad(lambda q, k: (attend(rope(q, jnp.arange(5.0)), rope(k, jnp.arange(5.0)), k, jnp.tril(jnp.ones((5, 5), bool))) ** 2).sum(), (0, 1)), normal(2, 5, 2, 4), normal(2, 5, 2, 4, seed=1))


def sample_top_p(key, logits, p):
    """Draw from the smallest set of tokens that has probability p."""
    order = jnp.argsort(-logits)
    probabilities = jax.nn.softmax(logits[order])
    kept = jnp.cumsum(probabilities) - probabilities < p
    return order[jax.random.categorical(key, jnp.where(kept, logits[order], -jnp.inf))]


add("library: nucleus sampling", jax.vmap(sample_top_p, (0, 0, None)), jax.random.split(KEY, 3), normal(3, 9), 0.7)


def mixture_of_experts(params, x, k=2):
    """Route every token to k experts of limited capacity."""
    gates, chosen = lax.top_k(jax.nn.softmax(x @ params["router"]), k)
    experts, capacity = params["up"].shape[0], 4
    onehot = jax.nn.one_hot(chosen, experts)
    place = (jnp.cumsum(onehot.reshape(-1, experts), 0) * onehot.reshape(-1, experts) - 1).reshape(onehot.shape)
    kept = (place >= 0) & (place < capacity)
    slots = jax.nn.one_hot(jnp.where(kept, place, -1), capacity) * onehot[..., None]
    dispatch, combine = slots.sum(1), (slots * gates[..., None, None]).sum(1)
    inputs = jnp.einsum("tec,td->ecd", dispatch, x)
    outputs = jax.nn.relu(jnp.einsum("ecd,edf->ecf", inputs, params["up"]))
    outputs = jnp.einsum("ecf,efd->ecd", outputs, params["down"])
    return jnp.einsum("tec,ecd->td", combine, outputs)


MOE = {"router": weights(6, 4), "up": weights(4, 6, 5), "down": weights(4, 5, 6)}
add("library: mixture of experts", jax.value_and_grad(lambda p, x: (mixture_of_experts(p, x) ** 2).sum()), MOE, normal(7, 6))

# ---- generative models


def vae(params, key, x):
    """Return the negative evidence bound."""
    mean, log_var = jnp.split(dense(params["enc"], x), 2, -1)
    z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)
    logits = dense(params["dec"], jnp.tanh(z))
    likelihood = -(jnp.maximum(logits, 0) - logits * (x > 0) + jnp.log1p(jnp.exp(-jnp.abs(logits)))).sum(-1)
    divergence = 0.5 * (jnp.exp(log_var) + mean**2 - 1 - log_var).sum(-1)
    return (divergence - likelihood).mean()


add("library: variational autoencoder", jax.value_and_grad(vae), {"enc": dense_params(6, 8), "dec": dense_params(4, 6)}, KEY, normal(5, 6))


def coupling_flow(params, x):
    """Return log densities under affine coupling layers."""
    log_det = 0.0
    for layer in params:
        a, b = jnp.split(x, 2, -1)
        shift, log_scale = jnp.split(jnp.tanh(dense(layer, a)), 2, -1)
        x, log_det = jnp.concatenate([b * jnp.exp(log_scale) + shift, a], -1), log_det + log_scale.sum(-1)
    return jax.scipy.stats.norm.logpdf(x).sum(-1) + log_det


add("library: normalizing flow", jax.value_and_grad(lambda p, x: -coupling_flow(p, x).mean()), [dense_params(2, 4, seed=s) for s in range(3)], normal(5, 4))


def spline(x, widths, heights, slopes):
    """Return a monotone rational quadratic spline on [0, 1] and its log derivative."""
    w, h = jax.nn.softmax(widths), jax.nn.softmax(heights)
    xs, ys = (jnp.pad(jnp.cumsum(a), (1, 0)) for a in (w, h))
    d = jnp.pad(jax.nn.softplus(slopes), 1, constant_values=1.0)
    i = jnp.clip(jnp.searchsorted(xs, x) - 1, 0, w.shape[0] - 1)
    t, s = (x - xs[i]) / w[i], h[i] / w[i]
    below = s + (d[i + 1] + d[i] - 2 * s) * t * (1 - t)
    y = ys[i] + h[i] * (s * t * t + d[i] * t * (1 - t)) / below
    slope = s * s * (d[i + 1] * t * t + 2 * s * t * (1 - t) + d[i] * (1 - t) ** 2) / below**2
    return y, jnp.log(slope)


add("library: spline flow", jax.vmap(spline, (0, None, None, None)), uniform(7), normal(5), normal(5, seed=1), normal(4))
add("library: spline flow, gradient", jax.grad(lambda w, h, d, x: jax.vmap(spline, (0, None, None, None))(x, w, h, d)[1].sum(), (0, 1, 2)), normal(5), normal(5, seed=1), normal(4), uniform(7))


def diffusion_sample(params, key, steps=4):
    """Sample by reversed diffusion."""
    betas = jnp.linspace(1e-2, 0.2, steps)
    alphas = jnp.cumprod(1 - betas)

    def step(state, i):
        x, key = state
        key, inner = jax.random.split(key)
        noise = jnp.tanh(dense(params, jnp.concatenate([x, jnp.full((x.shape[0], 1), i / steps)], -1)))
        mean = (x - betas[i] / jnp.sqrt(1 - alphas[i]) * noise) / jnp.sqrt(1 - betas[i])
        return (mean + jnp.where(i > 0, jnp.sqrt(betas[i]), 0.0) * jax.random.normal(inner, x.shape), key), mean

    return lax.scan(step, (jax.random.normal(key, (3, 4)), key), jnp.arange(steps)[::-1])


add("library: diffusion sampling", diffusion_sample, dense_params(5, 4), KEY)

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


add("library: Runge-Kutta with adaptive steps", lambda y: rk45(lambda t, y: {"x": y["v"], "v": -y["x"] - 0.1 * y["v"]}, y, 2.0).y, {"x": normal(3), "v": normal(3, seed=1)})
add("library: Runge-Kutta with adaptive steps, vmap", jax.vmap(lambda y: rk45(lambda t, y: -y * jnp.sin(t) - y, y, 1.0).y), normal(4, 2))


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


add("library: hidden Markov model", forward_backward, normal(3), np.asarray(jax.nn.log_softmax(normal(3, 3))), normal(6, 3))


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
        logp = jax.vmap(lambda m, c: jax.scipy.stats.multivariate_normal.logpdf(x, m, c), out_axes=1)(means, covariances)
        r = jax.nn.softmax(logp + logpi, 1)
        total = r.sum(0) + 1e-6
        means = r.T @ x / total[:, None]
        centered = x[:, None] - means
        covariances = jnp.einsum("nk,nki,nkj->kij", r, centered, centered) / total[:, None, None] + 0.1 * jnp.eye(x.shape[1])
        return jnp.log(total / x.shape[0]), means, covariances

    k, d = means.shape
    return lax.fori_loop(0, rounds, step, (jnp.full(k, -jnp.log(k)), means, jnp.broadcast_to(jnp.eye(d), (k, d, d))))


add("library: Gaussian mixture", gaussian_mixture, normal(12, 2), normal(3, 2))


def gaussian_process(x, y, new, log_length):
    """Return predictions and the marginal likelihood."""
    kernel = lambda a, b: jnp.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1) / jnp.exp(2 * log_length))  # noqa: E731
    factor = jax.scipy.linalg.cho_factor(kernel(x, x) + 0.1 * jnp.eye(x.shape[0]), lower=True)
    alpha = jax.scipy.linalg.cho_solve(factor, y)
    return kernel(new, x) @ alpha, -0.5 * y @ alpha - jnp.log(jnp.diag(factor[0])).sum()


add("library: Gaussian process", gaussian_process, normal(6, 2), normal(6), normal(4, 2), np.float32(0.2))
add("library: Gaussian process, gradient", jax.grad(lambda l, *a: gaussian_process(*a, l)[1]), np.float32(0.2), normal(6, 2), normal(6), normal(4, 2))

# ---- graphs, sequences


def graph_network(params, nodes, edges, senders, receivers):
    """Update edges, then nodes by the sum of their edges, then attend over neighbours."""
    count = nodes.shape[0]
    messages = jax.nn.relu(dense(params["edge"], jnp.concatenate([nodes[senders], nodes[receivers], edges], -1)))
    pooled = jax.ops.segment_sum(messages, receivers, count)
    scores = jax.nn.leaky_relu(messages @ params["score"])
    scores = jnp.exp(scores - jax.ops.segment_max(scores, receivers, count)[receivers])
    shares = scores / jax.ops.segment_sum(scores, receivers, count)[receivers]
    attended = jax.ops.segment_sum(messages * shares[:, None], receivers, count)
    return dense(params["node"], jnp.concatenate([nodes, pooled, attended], -1))


_GRAPH = (normal(5, 3), normal(9, 2), integers(5, 9), integers(5, 9, seed=1))
add("library: graph network", jax.value_and_grad(lambda p, *a: (graph_network(p, *a) ** 2).sum()), {"edge": dense_params(8, 4), "score": normal(4), "node": dense_params(11, 3)}, *_GRAPH)


def s4(a, b, c, u):
    """Run a diagonal state-space model over complex states, by scan."""
    lam = -jnp.exp(a[0]) + 1j * a[1]
    step = jnp.exp(lam * 0.1)

    def cell(x, v):
        x = step * x + b * v
        return x, (c * x).sum().real

    return lax.scan(cell, jnp.zeros_like(lam), u)[1]


add("library: state-space model, complex", s4, normal(2, 4), normal(4) + 0j, normal(4) + 1j * normal(4, seed=1), normal(9))
add("library: state-space model, by convolution", lambda a, u: (lambda k: jnp.fft.irfft(jnp.fft.rfft(k, 16) * jnp.fft.rfft(u, 16), 16)[:8])((jnp.exp(-a[:, None] * jnp.arange(8))).sum(0)), uniform(3), normal(8))


def mamba(params, x):
    """Run a selective scan: decays that depend on the input."""
    delta = jax.nn.softplus(x @ params["delta"])
    b, c = x @ params["b"], x @ params["c"]
    decay = jnp.exp(-delta[..., None] * jnp.exp(params["a"]))
    inputs = (delta * x)[..., None] * b[:, None]
    combine = lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])  # noqa: E731
    states = lax.associative_scan(combine, (decay, inputs))[1]
    return (states * c[:, None]).sum(-1) * jax.nn.silu(x @ params["gate"])


add("library: selective scan", jax.value_and_grad(lambda p, x: (mamba(p, x) ** 2).sum()), {"delta": weights(4, 4), "b": weights(4, 3), "c": weights(4, 3), "a": normal(4, 3), "gate": weights(4, 4)}, normal(6, 4))


def gru(params, h, xs):
    """Run gated recurrent units, twice bidirectionally."""

    def cell(h, x):
        z, r = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h]) @ params["zr"]), 2)
        n = jnp.tanh(jnp.concatenate([x, r * h]) @ params["n"])
        return (1 - z) * n + z * h, h

    forward, backward = lax.scan(cell, h, xs)[1], lax.scan(cell, h, xs, reverse=True)[1]
    return jnp.concatenate([forward, backward], -1)


add("library: GRU, bidirectional", jax.value_and_grad(lambda p, h, x: (gru(p, h, x) ** 2).sum()), {"zr": weights(7, 8), "n": weights(7, 4)}, normal(4), normal(5, 3))


def transducer_loss(log_blank, log_label):
    """Return the loss of an RNN transducer from ``[time, labels + 1]`` scores."""

    def row(alpha, scores):
        blank, label = scores
        down = alpha + blank

        def across(previous, pair):
            here = jnp.logaddexp(pair[0], previous + pair[1])
            return here, here

        rest = lax.scan(across, down[0], (down[1:], label[:-1]))[1]
        return jnp.concatenate([down[:1], rest]), None

    start = jnp.concatenate([jnp.zeros(1), jnp.cumsum(log_label[0, :-1])])
    alpha, _ = lax.scan(row, start, (log_blank[:-1], log_label[1:]))
    return -(alpha[-1] + log_blank[-1, -1])


add("library: transducer loss", jax.value_and_grad(transducer_loss, (0, 1)), -np.abs(normal(5, 4)), -np.abs(normal(5, 4, seed=1)))


def ctc_loss(logits, labels):
    """Return the loss of connectionist temporal classification; blanks are 0."""
    logp = jax.nn.log_softmax(logits)
    extended = jnp.zeros(2 * labels.shape[0] + 1, jnp.int32).at[1::2].set(labels)
    can_skip = jnp.concatenate([jnp.zeros(2, bool), (extended[2:] != 0) & (extended[2:] != extended[:-2])])
    start = jnp.full(extended.shape, -1e9).at[:2].set(logp[0, extended[:2]])

    def step(alpha, lp):
        one = jnp.concatenate([jnp.array([-1e9]), alpha[:-1]])
        two = jnp.where(can_skip, jnp.concatenate([jnp.full(2, -1e9), alpha[:-2]]), -1e9)
        return jnp.logaddexp(jnp.logaddexp(alpha, one), two) + lp[extended], None

    alpha, _ = lax.scan(step, start, logp[1:])
    return -jnp.logaddexp(alpha[-1], alpha[-2])


add("library: CTC loss", jax.value_and_grad(ctc_loss), normal(7, 5), np.array([1, 3, 3], np.int32))


def beam_search(params, length=4, width=3):
    """Search the likeliest sequences of a Markov model."""
    words = params.shape[0]

    def step(state, t):
        tokens, scores = state
        following = scores[:, None] + jax.nn.log_softmax(params)[tokens[:, t]]
        scores, flat = lax.top_k(following.reshape(-1), width)
        tokens = tokens[flat // words].at[:, t + 1].set(flat % words)
        return (tokens, scores), None

    start = jnp.zeros((width, length + 1), jnp.int32), jnp.array([0.0] + [-1e9] * (width - 1))
    return lax.scan(step, start, jnp.arange(length))[0]


add("library: beam search", beam_search, normal(6, 6))

# ---- optimizers

PARAMS = {"w": normal(4, 5), "b": normal(5)}
GRADS = {"w": normal(4, 5, seed=1), "b": normal(5, seed=1)}
ZEROS = jax.tree.map(np.zeros_like, PARAMS)


def adam(params, grads, state):
    """Return AdamW's update, with bias corrections, decay and clipping by the global norm."""
    count, m, v = state
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), grads)
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, grads)
    rate = 1e-3 * jnp.minimum(count / 10.0, 1.0) * 0.5 * (1 + jnp.cos(jnp.pi * count / 100))
    step = lambda p, m, v: p - rate * (m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8) + 0.01 * p)  # noqa: E731
    return jax.tree.map(step, params, m, v), (count, m, v)


add("library: AdamW", adam, PARAMS, GRADS, (np.int32(4), ZEROS, ZEROS))
add("library: Lion", lambda p, g, m: (jax.tree.map(lambda p, g, m: p - 1e-3 * (jnp.sign(0.9 * m + 0.1 * g) + 0.1 * p), p, g, m), jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g, m, g)), PARAMS, GRADS, ZEROS)


def adafactor(p, g, row, column):
    """Return Adafactor's update of a matrix by factored second moments."""
    square = g * g + 1e-30
    row, column = 0.9 * row + 0.1 * square.mean(-1), 0.9 * column + 0.1 * square.mean(-2)
    update = g * lax.rsqrt(row / row.mean())[:, None] * lax.rsqrt(column)[None]
    update = update / jnp.maximum(1.0, jnp.sqrt((update**2).mean()))
    return p - 1e-2 * jnp.maximum(1e-3, jnp.sqrt((p**2).mean())) * update, row, column


add("library: Adafactor", adafactor, normal(4, 5), normal(4, 5, seed=1), uniform(4), uniform(5))
add("library: LAMB", lambda p, u: jax.tree.map(lambda p, u: p - 1e-2 * jnp.where((jnp.linalg.norm(p) > 0) & (jnp.linalg.norm(u) > 0), jnp.linalg.norm(p) / jnp.linalg.norm(u), 1.0) * u, p, u), PARAMS, GRADS)


def shampoo(p, g, left, right):
    """Return Shampoo's update: inverse fourth roots of both sides' statistics."""

    def root(a):
        w, v = jnp.linalg.eigh(a + 1e-3 * jnp.eye(a.shape[0]))
        return (v * jnp.maximum(w, 1e-3) ** -0.25) @ v.T

    left, right = left + g @ g.T, right + g.T @ g
    return p - 0.1 * root(left) @ g @ root(right), left, right


add("library: Shampoo", shampoo, normal(4, 3), normal(4, 3, seed=1), definite(4, 4), definite(3, 3))


def muon(g, steps=3):
    """Return the nearest orthogonal matrix by Newton-Schulz iterations."""
    x = g / (jnp.linalg.norm(g) + 1e-7)

    def step(_, x):
        a = x @ x.T
        return 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x

    return lax.fori_loop(0, steps, step, x)


add("library: Muon", muon, normal(4, 6))
add("library: SGD with a schedule by switch", lambda p, g, n: jax.tree.map(lambda p, g: p - lax.switch(jnp.searchsorted(jnp.array([10, 20]), n), [lambda: 0.1, lambda: 0.01, lambda: 0.001]) * g, p, g), PARAMS, GRADS, 15)


def conjugate_gradient(a, b):
    """Solve by conjugate gradients, until the residual is small."""

    def step(state):
        x, r, p, rs, n = state
        ap = a @ p
        alpha = rs / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        return x, r, r + new / rs * p, new, n + 1

    return lax.while_loop(lambda s: (s[3] > 1e-8) & (s[4] < 20), step, (jnp.zeros_like(b), b, b, b @ b, 0))[0]


add("library: conjugate gradients", conjugate_gradient, definite(6, 6), normal(6))


def lbfgs(x, memory=3, rounds=5):
    """Minimize by L-BFGS with a backtracking line search."""
    f = lambda x: ((x[1:] - x[:-1] ** 2) ** 2).sum() + ((1 - x) ** 2).sum()  # noqa: E731

    def direction(g, s, y, rho):
        def first(q, i):
            a = rho[i] * (s[i] @ q)
            return q - a * y[i], a

        q, alphas = lax.scan(first, g, jnp.arange(memory), reverse=True)
        gamma = jnp.where(rho[-1] > 0, (s[-1] @ y[-1]) / jnp.maximum(y[-1] @ y[-1], 1e-10), 1.0)
        return -lax.scan(lambda r, i: (r + s[i] * (alphas[i] - rho[i] * (y[i] @ r)), None), q * gamma, jnp.arange(memory))[0]

    def step(_, state):
        x, s, y, rho = state
        g = jax.grad(f)(x)
        d = direction(g, s, y, rho)
        size = lax.while_loop(lambda t: (f(x + t * d) > f(x) + 1e-4 * t * (g @ d)) & (t > 1e-4), lambda t: t * 0.5, jnp.float32(1))
        new = x + size * d
        ds, dy = new - x, jax.grad(f)(new) - g
        curvature = ds @ dy
        push = lambda a, v: jnp.roll(a, -1, 0).at[-1].set(v)  # noqa: E731
        return new, push(s, ds), push(y, dy), push(rho, jnp.where(curvature > 1e-10, 1 / curvature, 0.0))

    zeros = jnp.zeros((memory, x.shape[0]))
    return lax.fori_loop(0, rounds, step, (x, zeros, zeros, jnp.zeros(memory)))[0]


add("library: L-BFGS", lbfgs, normal(4, scale=0.3))


def k_means(x, centers, rounds=4):
    """Assign and average."""

    def step(centers, _):
        nearest = jnp.argmin(((x[:, None] - centers[None]) ** 2).sum(-1), 1)
        count = jnp.zeros(centers.shape[0]).at[nearest].add(1.0)
        total = jnp.zeros_like(centers).at[nearest].add(x)
        return jnp.where(count[:, None] > 0, total / jnp.maximum(count, 1)[:, None], centers), nearest

    return lax.scan(step, centers, None, rounds)


add("library: K-means", k_means, normal(13, 2), normal(3, 2))


def sinkhorn(cost, rounds=5):
    """Return a transport plan by Sinkhorn's iterations on logarithms."""
    n, m = cost.shape

    def step(fg, _):
        f, g = fg
        f = -jax.nn.logsumexp(g[None] - cost / 0.5, 1) - jnp.log(n)
        return (f, -jax.nn.logsumexp(f[:, None] - cost / 0.5, 0) - jnp.log(m)), None

    (f, g), _ = lax.scan(step, (jnp.zeros(n), jnp.zeros(m)), None, rounds)
    return jnp.exp(f[:, None] + g[None] - cost / 0.5)


add("library: Sinkhorn", jax.value_and_grad(lambda c: (sinkhorn(c) * c).sum()), uniform(4, 5))

# ---- reinforcement learning


def dqn_loss(params, target, batch):
    """Return the loss of double Q-learning with Huber's function."""
    net = lambda p, s: dense(p["b"], jax.nn.relu(dense(p["a"], s)))  # noqa: E731
    q = jnp.take_along_axis(net(params, batch["s"]), batch["a"][:, None], 1)[:, 0]
    best = jnp.argmax(net(params, batch["next"]), 1)
    future = net(target, batch["next"])[jnp.arange(q.shape[0]), best]
    wanted = batch["r"] + 0.99 * (1 - batch["done"]) * lax.stop_gradient(future)
    error = jnp.abs(q - wanted)
    return jnp.where(error < 1, 0.5 * error**2, error - 0.5).mean()


_NET = {"a": dense_params(4, 6), "b": dense_params(6, 3)}
_BATCH = {"s": normal(5, 4), "a": integers(3, 5), "r": normal(5), "next": normal(5, 4, seed=1), "done": booleans(5)}
add("library: DQN loss", jax.value_and_grad(dqn_loss), _NET, jax.tree.map(lambda x: x * 0.9, _NET), _BATCH)


def advantages(rewards, values, dones):
    """Return generalized advantage estimates, backwards in time."""

    def step(state, t):
        advantage, following = state
        r, v, d = t
        delta = r + 0.99 * following * (1 - d) - v
        advantage = delta + 0.99 * 0.95 * (1 - d) * advantage
        return (advantage, v), advantage

    return lax.scan(step, (0.0, values[-1]), (rewards, values[:-1], dones), reverse=True)[1]


add("library: generalized advantages", advantages, normal(6), normal(7), booleans(6).astype(np.float32))


def cart_pole(key, policy, steps=5):
    """Roll out a policy in an environment that resets itself."""

    def step(state, key):
        x, v, angle, spin = state
        action = jax.random.categorical(key, state @ policy)
        force = jnp.where(action == 1, 10.0, -10.0)
        turned = (9.8 * jnp.sin(angle) - jnp.cos(angle) * force / 1.1) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
        new = jnp.stack([x + 0.02 * v, v + 0.02 * force / 1.1, angle + 0.02 * spin, spin + 0.02 * turned])
        done = (jnp.abs(new[0]) > 2.4) | (jnp.abs(new[2]) > 0.2)
        return lax.cond(done, lambda: jnp.zeros(4), lambda: new), (action, done)

    return lax.scan(step, jnp.array([0.0, 0.1, 0.05, 0.0]), jax.random.split(key, steps))


add("library: environment rolled out", cart_pole, KEY, normal(4, 2))
add("library: environments rolled out", jax.vmap(cart_pole, (0, None)), jax.random.split(KEY, 3), normal(4, 2))


def replay_add(buffer, item, position):
    """Write into a ring buffer, and read a batch of it."""
    buffer = jax.tree.map(lambda b, i: lax.dynamic_update_index_in_dim(b, i, position % b.shape[0], 0), buffer, item)
    chosen = jax.random.randint(KEY, (3,), 0, jnp.minimum(position + 1, 5))
    return buffer, jax.tree.map(lambda b: b[chosen], buffer)


add("library: replay buffer", replay_add, {"s": normal(5, 2), "a": integers(3, 5)}, {"s": normal(2), "a": np.int32(1)}, 7)
add("library: Monte Carlo tree search's scores", lambda visits, values, priors: jnp.argmax(jnp.where(visits > 0, values / jnp.maximum(visits, 1), 0) + 1.25 * priors * jnp.sqrt(visits.sum()) / (1 + visits)), integers(9, 6), normal(6), uniform(6))

# ---- training


def train_step_mixed(params, scale, x, y):
    """Return a step in half precision with a dynamic loss scale: overflow skips it and halves the scale."""
    half = jax.tree.map(lambda p: p.astype(jnp.float16), params)

    def loss(p):
        return jnp.mean((jnp.tanh(x.astype(jnp.float16) @ p["w"] + p["b"]).astype(jnp.float32) - y) ** 2) * scale

    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, jax.grad(loss)(half))
    finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), params, grads)
    return params, jnp.where(finite, scale * 2, scale / 2)


add("library: loss scaling in half precision", train_step_mixed, PARAMS, np.float32(1024), normal(3, 4), normal(3, 5))
add("library: loss scaling that overflows", train_step_mixed, PARAMS, np.float32(1e30), normal(3, 4), normal(3, 5))


def accumulate(params, batches):
    """Return gradients summed over micro-batches by a scan."""
    loss = lambda p, x: (jnp.tanh(x @ p["w"] + p["b"]) ** 2).mean()  # noqa: E731

    def step(total, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(jnp.add, total, grads), value

    return lax.scan(step, jax.tree.map(jnp.zeros_like, params), batches)


add("library: gradients accumulated by scan", accumulate, PARAMS, normal(3, 2, 4))


def layers_by_scan(params, x):
    """Run stacked layers by a scan, each checkpointed."""
    layer = jax.checkpoint(lambda x, w: (x + jax.nn.gelu(layer_norm(x, 1.0, 0.0) @ w), None))
    return lax.scan(layer, x, params)[0]


add("library: layers by scan", jax.value_and_grad(lambda p, x: (layers_by_scan(p, x) ** 2).mean()), weights(3, 6, 6), normal(4, 6))
add("library: dropout and stochastic depth", lambda k, x: jnp.where(jax.random.bernoulli(k, 0.7, (3, 1)), x * jax.random.bernoulli(jax.random.fold_in(k, 1), 0.9, x.shape) / 0.9, x), KEY, normal(3, 6))


def implicit_layer(w, x):
    """Return a fixed point, derived implicitly."""

    @jax.custom_vjp
    def solve(w, x):
        return lax.while_loop(lambda s: (s[1] > 1e-5) & (s[2] < 30), lambda s: (lambda z: (z, jnp.abs(z - s[0]).max(), s[2] + 1))(jnp.tanh(w @ s[0] + x)), (jnp.zeros_like(x), jnp.float32(1), 0))[0]

    def forward(w, x):
        z = solve(w, x)
        return z, (w, x, z)

    def backward(kept, g):
        w, x, z = kept
        _, pull = jax.vjp(lambda z: jnp.tanh(w @ z + x), z)
        u = lax.fori_loop(0, 20, lambda _, u: g + pull(u)[0], g)
        return jax.vjp(lambda w, x: jnp.tanh(w @ z + x), w, x)[1](u)

    solve.defvjp(forward, backward)
    return solve(w, x)


add("library: deep equilibrium", jax.value_and_grad(lambda w, x: (implicit_layer(w, x) ** 2).sum(), (0, 1)), weights(4, 4) * 0.4, normal(4))
add("library: contrastive loss", jax.value_and_grad(lambda a, b: -jnp.diag(jax.nn.log_softmax((a / jnp.linalg.norm(a, axis=1, keepdims=True)) @ (b / jnp.linalg.norm(b, axis=1, keepdims=True)).T / 0.1)).mean(), (0, 1)), normal(4, 6), normal(4, 6, seed=1))
add("library: physics-informed network", jax.grad(lambda p, x: (jax.vmap(jax.grad(jax.grad(lambda x: jnp.tanh(x * p["w"][0] + p["b"]).sum())))(x) ** 2).mean()), PARAMS, normal(5))
add("library: neural tangent kernel", lambda p, x: (lambda j: j @ j.T)(jnp.concatenate([v.reshape(x.shape[0], -1) for v in jax.tree.leaves(jax.vmap(jax.grad(lambda p, x: jnp.tanh(x @ p["w"] + p["b"]).sum()), (None, 0))(p, x))], 1)), PARAMS, normal(3, 4))
add("library: molecular dynamics", lambda x, v: lax.scan(lambda s, _: (lambda x, v: (lambda f: ((x + 0.01 * v, v + 0.01 * f), f))(-jax.grad(lambda x: (lambda r: jnp.where(r > 0, 1.0 / jnp.where(r > 0, r, 1.0) ** 3, 0.0).sum())(((x[:, None] - x[None]) ** 2).sum(-1)))(x)))(*s), (x, v), None, 3), normal(4, 3), normal(4, 3, seed=1))
add("library: Game of Life", lambda b: lax.fori_loop(0, 3, lambda _, g: (lambda n: (n == 3) | ((n == 2) & g))(sum(jnp.roll(g, (i, j), (0, 1)).astype(jnp.int32) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)), b), booleans(6, 6))
add("library: power iteration on a graph", functools.partial(lambda a, rounds: lax.fori_loop(0, rounds, lambda _, r: 0.85 * (a / jnp.maximum(a.sum(0), 1)) @ r + 0.15 / 6, jnp.full(6, 1 / 6)), rounds=5), booleans(6, 6).astype(np.float32))
