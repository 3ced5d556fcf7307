"""Networks: convolutions with state, transformers, generative models."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.sweep.cases import integers, normal, uniform
from tests.sweep.library_parts import GROUP, dense, dense_params, layer_norm, weights

add = GROUP.add
KEY = jax.random.key(0)


# ---- convolutional networks


def conv(x, w, stride=1):
    """Convolve NHWC images."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


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


RESNET = {
    "conv1": weights(3, 3, 2, 4),
    "conv2": weights(3, 3, 4, 4),
    "short": weights(1, 1, 2, 4),
    "head": weights(4, 3),
    "bn1": _bn(4)[0],
    "bn2": _bn(4)[0],
}
RESNET_STATE = {"bn1": _bn(4)[1], "bn2": _bn(4)[1]}
add("library: ResNet block with state", resnet_step, RESNET, RESNET_STATE, normal(3, 6, 6, 2), integers(3, 3))
add(
    "library: ResNet block, evaluation",
    lambda p, s, x: resnet_block(p, s, x, False)[0],
    RESNET,
    RESNET_STATE,
    normal(3, 6, 6, 2),
)


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
    q, k, v = (
        a.reshape(b, -1, heads, x.shape[-1] // heads) for a in jnp.split(dense(params["qkv"], y), 3, -1)
    )
    x = x + dense(params["out"], attend(q, k, v).reshape(x.shape))
    x = x + dense(params["down"], jax.nn.gelu(dense(params["up"], layer_norm(x, 1.0, 0.0))))
    return x[:, 0]


VIT = {
    "embed": dense_params(18, 8),
    "cls": normal(8),
    "pos": normal(5, 8),
    "qkv": dense_params(8, 24),
    "out": dense_params(8, 8),
    "up": dense_params(8, 16),
    "down": dense_params(16, 8),
}
add(
    "library: vision transformer",
    jax.value_and_grad(lambda p, x: (vit(p, x) ** 2).sum()),
    VIT,
    normal(2, 6, 6, 2),
)


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
        following = jnp.where(
            position + 1 < prompt.shape[0],
            tokens[(position + 1) % length],
            jnp.argmax(logits).astype(jnp.int32),
        )
        return (tokens.at[position + 1].set(following), cache), logits

    (tokens, _), logits = lax.scan(step, (tokens, cache), jnp.arange(length))
    return tokens, logits


GPT = {
    "embed": normal(11, 8),
    "qkv": weights(8, 24),
    "out": weights(8, 8),
    "up": weights(8, 32),
    "down": weights(16, 8),
}
add(
    "library: GPT that decodes with a cache",
    lambda p, t: generate(p, t, 8),
    GPT,
    np.array([3, 1, 4], np.int32),
)
add(
    "library: attention with rotary positions",
    jax.grad(
        lambda q, k: (
            attend(rope(q, jnp.arange(5.0)), rope(k, jnp.arange(5.0)), k, jnp.tril(jnp.ones((5, 5), bool)))
            ** 2
        ).sum(),
        (0, 1),
    ),
    normal(2, 5, 2, 4),
    normal(2, 5, 2, 4, seed=1),
)


def sample_top_p(key, logits, p):
    """Draw from the smallest set of tokens that has probability p."""
    order = jnp.argsort(-logits)
    probabilities = jax.nn.softmax(logits[order])
    kept = jnp.cumsum(probabilities) - probabilities < p
    return order[jax.random.categorical(key, jnp.where(kept, logits[order], -jnp.inf))]


add(
    "library: nucleus sampling",
    jax.vmap(sample_top_p, (0, 0, None)),
    jax.random.split(KEY, 3),
    normal(3, 9),
    0.7,
)


def mixture_of_experts(params, x, k=2):
    """Route every token to k experts of limited capacity."""
    gates, chosen = lax.top_k(jax.nn.softmax(x @ params["router"]), k)
    experts, capacity = params["up"].shape[0], 4
    onehot = jax.nn.one_hot(chosen, experts)
    place = (jnp.cumsum(onehot.reshape(-1, experts), 0) * onehot.reshape(-1, experts) - 1).reshape(
        onehot.shape
    )
    kept = (place >= 0) & (place < capacity)
    slots = jax.nn.one_hot(jnp.where(kept, place, -1), capacity) * onehot[..., None]
    dispatch, combine = slots.sum(1), (slots * gates[..., None, None]).sum(1)
    inputs = jnp.einsum("tec,td->ecd", dispatch, x)
    outputs = jax.nn.relu(jnp.einsum("ecd,edf->ecf", inputs, params["up"]))
    outputs = jnp.einsum("ecf,efd->ecd", outputs, params["down"])
    return jnp.einsum("tec,ecd->td", combine, outputs)


MOE = {"router": weights(6, 4), "up": weights(4, 6, 5), "down": weights(4, 5, 6)}
add(
    "library: mixture of experts",
    jax.value_and_grad(lambda p, x: (mixture_of_experts(p, x) ** 2).sum()),
    MOE,
    normal(7, 6),
)

# ---- generative models


def vae(params, key, x):
    """Return the negative evidence bound."""
    mean, log_var = jnp.split(dense(params["enc"], x), 2, -1)
    z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)
    logits = dense(params["dec"], jnp.tanh(z))
    likelihood = -(jnp.maximum(logits, 0) - logits * (x > 0) + jnp.log1p(jnp.exp(-jnp.abs(logits)))).sum(-1)
    divergence = 0.5 * (jnp.exp(log_var) + mean**2 - 1 - log_var).sum(-1)
    return (divergence - likelihood).mean()


add(
    "library: variational autoencoder",
    jax.value_and_grad(vae),
    {"enc": dense_params(6, 8), "dec": dense_params(4, 6)},
    KEY,
    normal(5, 6),
)


def coupling_flow(params, x):
    """Return log densities under affine coupling layers."""
    log_det = 0.0
    for layer in params:
        a, b = jnp.split(x, 2, -1)
        shift, log_scale = jnp.split(jnp.tanh(dense(layer, a)), 2, -1)
        x, log_det = jnp.concatenate([b * jnp.exp(log_scale) + shift, a], -1), log_det + log_scale.sum(-1)
    return jax.scipy.stats.norm.logpdf(x).sum(-1) + log_det


add(
    "library: normalizing flow",
    jax.value_and_grad(lambda p, x: -coupling_flow(p, x).mean()),
    [dense_params(2, 4, seed=s) for s in range(3)],
    normal(5, 4),
)


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


add(
    "library: spline flow",
    jax.vmap(spline, (0, None, None, None)),
    uniform(7),
    normal(5),
    normal(5, seed=1),
    normal(4),
)
add(
    "library: spline flow, gradient",
    jax.grad(lambda w, h, d, x: jax.vmap(spline, (0, None, None, None))(x, w, h, d)[1].sum(), (0, 1, 2)),
    normal(5),
    normal(5, seed=1),
    normal(4),
    uniform(7),
)


def diffusion_sample(params, key, steps=4):
    """Sample by reversed diffusion."""
    betas = jnp.linspace(1e-2, 0.2, steps)
    alphas = jnp.cumprod(1 - betas)

    def step(state, i):
        x, key = state
        key, inner = jax.random.split(key)
        noise = jnp.tanh(dense(params, jnp.concatenate([x, jnp.full((x.shape[0], 1), i / steps)], -1)))
        mean = (x - betas[i] / jnp.sqrt(1 - alphas[i]) * noise) / jnp.sqrt(1 - betas[i])
        return (
            mean + jnp.where(i > 0, jnp.sqrt(betas[i]), 0.0) * jax.random.normal(inner, x.shape),
            key,
        ), mean

    return lax.scan(step, (jax.random.normal(key, (3, 4)), key), jnp.arange(steps)[::-1])


add("library: diffusion sampling", diffusion_sample, dense_params(5, 4), KEY)
