"""Graphs and sequences: message passing, state-space models, recurrent losses, beam search."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.sweep.cases import integers, normal, uniform
from tests.sweep.library_parts import GROUP, dense, dense_params, weights

add = GROUP.add
KEY = jax.random.key(0)


# ---- graphs, sequences


def graph_network(params, nodes, edges, senders, receivers):
    """Update edges, then nodes by the sum of their edges, then attend over neighbours."""
    count = nodes.shape[0]
    messages = jax.nn.relu(
        dense(params["edge"], jnp.concatenate([nodes[senders], nodes[receivers], edges], -1))
    )
    pooled = jax.ops.segment_sum(messages, receivers, count)
    scores = jax.nn.leaky_relu(messages @ params["score"])
    scores = jnp.exp(scores - jax.ops.segment_max(scores, receivers, count)[receivers])
    shares = scores / jax.ops.segment_sum(scores, receivers, count)[receivers]
    attended = jax.ops.segment_sum(messages * shares[:, None], receivers, count)
    return dense(params["node"], jnp.concatenate([nodes, pooled, attended], -1))


_GRAPH = (normal(5, 3), normal(9, 2), integers(5, 9), integers(5, 9, seed=1))
add(
    "library: graph network",
    jax.value_and_grad(lambda p, *a: (graph_network(p, *a) ** 2).sum()),
    {"edge": dense_params(8, 4), "score": normal(4), "node": dense_params(11, 3)},
    *_GRAPH,
)


def s4(a, b, c, u):
    """Run a diagonal state-space model over complex states, by scan."""
    lam = -jnp.exp(a[0]) + 1j * a[1]
    step = jnp.exp(lam * 0.1)

    def cell(x, v):
        x = step * x + b * v
        return x, (c * x).sum().real

    return lax.scan(cell, jnp.zeros_like(lam), u)[1]


add(
    "library: state-space model, complex",
    s4,
    normal(2, 4),
    normal(4) + 0j,
    normal(4) + 1j * normal(4, seed=1),
    normal(9),
)
add(
    "library: state-space model, by convolution",
    lambda a, u: (lambda k: jnp.fft.irfft(jnp.fft.rfft(k, 16) * jnp.fft.rfft(u, 16), 16)[:8])(
        (jnp.exp(-a[:, None] * jnp.arange(8))).sum(0)
    ),
    uniform(3),
    normal(8),
)


def mamba(params, x):
    """Run a selective scan: decays that depend on the input."""
    delta = jax.nn.softplus(x @ params["delta"])
    b, c = x @ params["b"], x @ params["c"]
    decay = jnp.exp(-delta[..., None] * jnp.exp(params["a"]))
    inputs = (delta * x)[..., None] * b[:, None]
    combine = lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])  # noqa: E731
    states = lax.associative_scan(combine, (decay, inputs))[1]
    return (states * c[:, None]).sum(-1) * jax.nn.silu(x @ params["gate"])


add(
    "library: selective scan",
    jax.value_and_grad(lambda p, x: (mamba(p, x) ** 2).sum()),
    {
        "delta": weights(4, 4),
        "b": weights(4, 3),
        "c": weights(4, 3),
        "a": normal(4, 3),
        "gate": weights(4, 4),
    },
    normal(6, 4),
)


def gru(params, h, xs):
    """Run gated recurrent units, twice bidirectionally."""

    def cell(h, x):
        z, r = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h]) @ params["zr"]), 2)
        n = jnp.tanh(jnp.concatenate([x, r * h]) @ params["n"])
        return (1 - z) * n + z * h, h

    forward, backward = lax.scan(cell, h, xs)[1], lax.scan(cell, h, xs, reverse=True)[1]
    return jnp.concatenate([forward, backward], -1)


add(
    "library: GRU, bidirectional",
    jax.value_and_grad(lambda p, h, x: (gru(p, h, x) ** 2).sum()),
    {"zr": weights(7, 8), "n": weights(7, 4)},
    normal(4),
    normal(5, 3),
)


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


add(
    "library: transducer loss",
    jax.value_and_grad(transducer_loss, (0, 1)),
    -np.abs(normal(5, 4)),
    -np.abs(normal(5, 4, seed=1)),
)


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
