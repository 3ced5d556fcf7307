"""Programs that people write every day, in plain JAX: what the machine has to run, and at what speed.

Each comes in two sizes: small enough for engines that move every word on all tiles, and large, as one would use it;
benchmarks time the large ones. A program that has a gradient returns it beside its value, so that one compilation
covers both.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ipuxla.experiments.models import cross_entropy
from tests.small_models import layer_norm, value_and_gradients

SIZES = ("small", "large")
NHWC = ("NHWC", "HWIO", "NHWC")
Function = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """A function and arguments for it."""

    function: Function
    arguments: tuple[Any, ...]


MAKERS: dict[str, Callable[[bool], Program]] = {}
"""By name, what makes a program; told whether to make the large one."""


def program(name: str, size: str) -> Program:
    """Return the program ``name`` in one of ``SIZES``."""
    return MAKERS[name](size == "large")


def _everyday(name: str) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    def register(maker: Callable[[bool], Program]) -> Callable[[bool], Program]:
        MAKERS[name] = maker
        return maker

    return register


def _normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Return normally distributed float32; every shape and seed has numbers of its own."""
    rng = np.random.default_rng((seed, *shape))
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def _weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Return weights whose products with normal inputs are about normal."""
    return _normal(*shape, seed=seed, scale=float(np.prod(shape[:-1])) ** -0.5)


def _labels(count: int, classes: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, classes, count).astype(np.int32)


# ---- networks


def convolve(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    """Convolve images ``[batch, rows, columns, channels]`` with a kernel, keeping sizes up to the stride."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=NHWC, feature_group_count=groups
    )


def batch_norm(x: Any, scale: Any, shift: Any) -> Any:
    """Return every channel with mean 0 and variance 1 over the batch and the image, scaled and shifted."""
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def pool(x: Any) -> Any:
    """Return the greatest of every two by two elements."""
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def cnn_loss(params: Any, images: Any, labels: Any) -> Any:
    """Return the loss of convolutions with batch norm, ReLU and pooling, then the mean over the image, then a dense layer."""
    x = images
    for layer in params["convolutions"]:
        x = pool(jax.nn.relu(batch_norm(convolve(x, layer["w"]), layer["scale"], layer["shift"])))
    return cross_entropy(x.reshape(x.shape[0], -1) @ params["w"] + params["b"], labels)


@_everyday("CNN, pooling, batch norm")
def _cnn(large: bool) -> Program:
    batch, side, channels, classes = (32, 32, (3, 32, 64), 10) if large else (3, 8, (2, 4, 5), 3)
    layers = [
        {"w": _weights(3, 3, m, n), "scale": 1 + _normal(n, scale=0.1), "shift": _normal(n, seed=1)}
        for m, n in itertools.pairwise(channels)
    ]
    features = (side // 4) ** 2 * channels[-1]
    params = {"convolutions": layers, "w": _weights(features, classes), "b": _normal(classes)}
    images = _normal(batch, side, side, channels[0], seed=2)
    return Program(jax.value_and_grad(cnn_loss), (params, images, _labels(batch, classes)))


def separable_block(x: Any, params: Any) -> Any:
    """Expand channels, convolve each by itself, project, add what came in: the inverted residual of mobile networks."""
    y = jax.nn.relu6(batch_norm(convolve(x, params["expand"]), *params["norm 1"]))
    y = jax.nn.relu6(batch_norm(convolve(y, params["depth"], groups=y.shape[-1]), *params["norm 2"]))
    return x + batch_norm(convolve(y, params["project"]), *params["norm 3"])


@_everyday("depthwise-separable block")
def _separable(large: bool) -> Program:
    batch, side, narrow, wide = (16, 28, 24, 96) if large else (2, 5, 3, 6)
    params: dict[str, Any] = {
        "expand": _weights(1, 1, narrow, wide),
        "depth": _weights(3, 3, 1, wide),
        "project": _weights(1, 1, wide, narrow),
    }
    for number, channels in enumerate((wide, wide, narrow), 1):
        params[f"norm {number}"] = 1 + _normal(channels, scale=0.1), _normal(channels, seed=number)
    return Program(value_and_gradients(separable_block, 2), (_normal(batch, side, side, narrow), params))


def attention(params: Any, x: Any, heads: int) -> Any:
    """Let every position ``[positions, features]`` attend to itself and those before it."""
    positions, features = x.shape
    q, k, v = (y.reshape(positions, heads, -1) for y in jnp.split(x @ params["in"], 3, axis=1))
    scores = jnp.einsum("qhf,khf->hqk", q, k) * (features // heads) ** -0.5
    seen = jnp.tril(jnp.ones((positions, positions), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("hqk,khf->qhf", weights, v).reshape(positions, features) @ params["out"]


def transformer_block(params: Any, x: Any, heads: int) -> Any:
    """Return a pre-norm block: attention, then two projections with a GELU between, each added to what came in."""
    x = x + attention(params, layer_norm(x, *params["norm 1"]), heads)
    hidden = jax.nn.gelu(layer_norm(x, *params["norm 2"]) @ params["up"] + params["up bias"])
    return x + hidden @ params["down"] + params["down bias"]


def transformer_loss(params: Any, tokens: Any, heads: int) -> Any:
    """Return the mean cross-entropy of every next token; the embedding also is the last projection."""
    x = params["embedding"][tokens[:-1]] + params["positions"]
    for block in params["blocks"]:
        x = transformer_block(block, x, heads)
    logits = layer_norm(x, *params["norm"]) @ params["embedding"].T
    return cross_entropy(logits, tokens[1:])


def transformer_params(tokens: int, features: int, vocabulary: int, blocks: int = 1) -> dict[str, Any]:
    """Return parameters for ``transformer_loss`` of one sequence; hidden layers are four times as wide."""

    def norm(seed: int) -> tuple[np.ndarray, np.ndarray]:
        return 1 + _normal(features, seed=seed, scale=0.1), _normal(features, seed=seed + 1, scale=0.1)

    def block(seed: int) -> dict[str, Any]:
        return {
            "norm 1": norm(seed),
            "in": _weights(features, 3 * features, seed=seed),
            "out": _weights(features, features, seed=seed),
            "norm 2": norm(seed + 2),
            "up": _weights(features, 4 * features, seed=seed),
            "up bias": _normal(4 * features, seed=seed, scale=0.1),
            "down": _weights(4 * features, features, seed=seed),
            "down bias": _normal(features, seed=seed, scale=0.1),
        }

    return {
        "embedding": _normal(vocabulary, features, scale=features**-0.5),
        "positions": _normal(tokens, features, seed=1, scale=0.1),
        "blocks": [block(10 * number) for number in range(blocks)],
        "norm": norm(5),
    }


@_everyday("transformer block, causal attention")
def _transformer(large: bool) -> Program:
    tokens, features, heads, vocabulary = (128, 256, 8, 512) if large else (6, 8, 2, 11)
    loss = functools.partial(transformer_loss, heads=heads)
    params = transformer_params(tokens, features, vocabulary)
    return Program(jax.value_and_grad(loss), (params, _labels(tokens + 1, vocabulary)))


def lstm(params: Any, xs: Any) -> Any:
    """Return the last state of an LSTM cell that reads ``xs[steps, batch, features]``, and all it says."""

    def cell(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(x @ params["w"] + h @ params["u"] + params["b"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((xs.shape[1], params["u"].shape[0]))
    return lax.scan(cell, (zeros, zeros), xs)


@_everyday("LSTM, scan")
def _lstm(large: bool) -> Program:
    steps, batch, features, hidden = (24, 32, 64, 128) if large else (4, 3, 5, 6)
    params = {
        "w": _weights(features, 4 * hidden),
        "u": _weights(hidden, 4 * hidden),
        "b": _normal(4 * hidden, scale=0.1),
    }
    return Program(
        value_and_gradients(lambda params, xs: lstm(params, xs)[1], 1),
        (params, _normal(steps, batch, features)),
    )


# ---- control flow


@_everyday("while_loop: power iteration")
def _while(large: bool) -> Program:
    """The greatest eigenvalue of a matrix; how many steps it takes depends on the numbers."""
    size = 256 if large else 9
    a = _normal(size, size)
    a = a @ a.T / size

    def iterate(a: Any, x: Any) -> Any:
        def goes_on(state: Any) -> Any:
            step, x, before = state
            return (step < 200) & (jnp.max(jnp.abs(x - before)) > 1e-3)

        def turn(state: Any) -> Any:
            step, x, _ = state
            y = a @ x
            return step + 1, y * lax.rsqrt(jnp.sum(y * y)), x

        steps, x, _ = lax.while_loop(goes_on, turn, (0, x, jnp.zeros_like(x)))
        return steps > 0, x @ a @ x

    return Program(iterate, (a, np.full(size, size**-0.5, np.float32)))


@_everyday("fori_loop, nested, with swaps")
def _nested(large: bool) -> Program:
    rows, features = (64, 128) if large else (3, 7)

    def turns(w: Any, x: Any) -> Any:
        def outer(i: Any, state: Any) -> Any:
            a, b, c = state
            a = lax.fori_loop(0, 3, lambda j, v: jnp.tanh(v @ w + b), a)
            return b, c, a + c

        return sum(lax.fori_loop(0, 5, outer, (x, x * 0.5, x[::-1])))

    return Program(value_and_gradients(turns, 2), (_weights(features, features), _normal(rows, features)))


@_everyday("cond and switch in a loop")
def _branches(large: bool) -> Program:
    rows, features = (256, 256) if large else (3, 7)

    def choose(x: Any, w: Any, choices: Any) -> Any:
        branches = [
            lambda u, v: (u @ w, v),
            lambda u, v: (v, u),
            lambda u, v: (jnp.sin(u) + v, jnp.tanh(v)),
        ]

        def body(state: Any, choice: Any) -> Any:
            u, v = lax.switch(choice, branches, *state)
            u = lax.cond(choice > 1, lambda y: y * 0.5, lambda y: y + 1.0, u)
            return (u, v), u.mean()

        return lax.scan(body, (x, x * 0.5), choices)[0][0]

    arguments = _normal(rows, features), _weights(features, features), np.array([0, 2, 1, 0, 1, 2], np.int32)
    return Program(value_and_gradients(choose, 2), arguments)


@_everyday("heat equation")
def _heat(large: bool) -> Program:
    """Steps of explicit Euler on a plate with insulated edges."""
    side, steps = (256, 20) if large else (7, 3)

    def heat(plate: Any) -> Any:
        def step(_: Any, u: Any) -> Any:
            p = jnp.pad(u, 1, mode="edge")
            return u + 0.2 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * u)

        return lax.fori_loop(0, steps, step, plate)

    return Program(value_and_gradients(heat, 1), (_normal(side, side),))


# ---- random numbers


@_everyday("dropout")
def _dropout(large: bool) -> Program:
    rows, features = (128, 512) if large else (3, 7)

    def layer(x: Any, w: Any, key: Any) -> Any:
        kept = jax.random.bernoulli(key, 0.8, x.shape)
        return jnp.where(kept, x / 0.8, 0.0) @ w

    arguments = _normal(rows, features), _weights(features, features), jax.random.key(1)
    return Program(value_and_gradients(layer, 2), arguments)


@_everyday("normals")
def _normals(large: bool) -> Program:
    shape = (256, 256) if large else (3, 7)
    return Program(lambda key: jax.random.normal(key, shape), (jax.random.key(2),))


@_everyday("permutation")
def _permutation(large: bool) -> Program:
    rows = _normal(2048 if large else 37, 8)
    return Program(lambda key, x: jax.random.permutation(key, x), (jax.random.key(3), rows))


@_everyday("categorical samples")
def _categorical(large: bool) -> Program:
    logits = _normal(128, 512) if large else _normal(3, 7)
    return Program(lambda key, x: jax.random.categorical(key, x), (jax.random.key(4), logits))


# ---- order and indices


@_everyday("sort")
def _sort(large: bool) -> Program:
    x = _normal(64, 2048) if large else _normal(3, 37)
    return Program(value_and_gradients(lambda x: jnp.sort(x, axis=1), 1), (x,))


@_everyday("top_k")
def _top_k(large: bool) -> Program:
    x = _normal(64, 2048) if large else _normal(3, 37)
    return Program(lambda x: (lax.top_k(x, 5), jax.grad(lambda x: (lax.top_k(x, 5)[0] ** 2).sum())(x)), (x,))


@_everyday("searchsorted")
def _searchsorted(large: bool) -> Program:
    table, values = (4096, 8192) if large else (37, 13)
    return Program(jnp.searchsorted, (np.sort(_normal(table)), _normal(values)))


@_everyday("segment_sum")
def _segment_sum(large: bool) -> Program:
    rows, features, segments = (2048, 64, 256) if large else (19, 3, 7)

    def pooled(x: Any, segment: Any) -> Any:
        return jax.ops.segment_sum(x, segment, num_segments=segments) ** 2

    return Program(value_and_gradients(pooled, 1), (_normal(rows, features), _labels(rows, segments)))


@_everyday("unique")
def _unique(large: bool) -> Program:
    count, kinds, size = (4096, 1000, 512) if large else (19, 9, 6)

    def distinct(x: Any) -> Any:
        return jnp.unique(x, return_counts=True, size=size, fill_value=-1)

    return Program(distinct, (_labels(count, kinds),))


@_everyday("embedding")
def _embedding(large: bool) -> Program:
    words, features, count = (4096, 128, 512) if large else (13, 5, 7)

    def look_up(table: Any, ids: Any) -> Any:
        return jnp.tanh(table[ids])

    return Program(value_and_gradients(look_up, 1), (_normal(words, features), _labels(count, words)))


@_everyday("cumulative sum")
def _cumulative(large: bool) -> Program:
    x = _normal(64, 1024) if large else _normal(3, 37)
    return Program(value_and_gradients(lambda x: jnp.cumsum(jnp.tanh(x), axis=1), 1), (x,))


# ---- linear algebra and transforms


@_everyday("Cholesky and triangular solves")
def _cholesky(large: bool) -> Program:
    """The negative log-likelihood of a Gaussian process, up to a constant."""
    size = 96 if large else 5

    def likelihood(points: Any, y: Any) -> Any:
        squares = ((points[:, None] - points[None]) ** 2).sum(-1)
        covariance = jnp.exp(-0.5 * squares) + 0.5 * jnp.eye(size)
        factor = jnp.linalg.cholesky(covariance)
        white = lax.linalg.triangular_solve(factor, y[:, None], left_side=True, lower=True)
        return (white**2).sum() / 2 + jnp.log(jnp.diagonal(factor)).sum()

    return Program(value_and_gradients(likelihood, 2), (_normal(size, 3), _normal(size)))


@_everyday("FFT")
def _fft(large: bool) -> Program:
    """A low-pass filter of signals, by their spectrum."""
    rows, size = (64, 512) if large else (2, 8)

    def smooth(x: Any) -> Any:
        spectrum = jnp.fft.rfft(x)
        kept = jnp.arange(spectrum.shape[-1]) < size // 8
        return jnp.fft.irfft(jnp.where(kept, spectrum, 0), size)

    return Program(value_and_gradients(smooth, 1), (_normal(rows, size),))
