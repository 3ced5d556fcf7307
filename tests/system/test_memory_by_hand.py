"""The memory of a training step, added up by hand from shapes: what the compiler reports is that, plus named overheads."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

import ipuxla
from ipuxla.experiments.models import MODELS
from ipuxla.experiments.optimizers import OPTIMIZERS
from tests.everyday import cnn_loss, program, transformer_loss
from tests.small_models import layers, training_step

FLOAT, INTEGER = 4, 4
"""Bytes of a float32 and of an int32."""


def compiled_step(loss, optimizer, params, *batch):
    """Return a compiled training step that gives parameters and state back where they were."""
    state = jax.tree.map(np.asarray, OPTIMIZERS[optimizer](0.01).init(params))
    step = training_step(loss, OPTIMIZERS[optimizer](0.01))
    return ipuxla.jit(step, target="gc200", donate_argnums=(0, 1)).lower(params, state, *batch).compile()


def check(compiled, weights, state, batch, intermediates):
    """Compare bytes with the report: within 10 %, overheads apart and named, and all of it fits."""
    memory = compiled.memory_analysis()
    tensors = memory["tensors"]
    kinds = tensors["kinds"]
    given = (
        kinds["inputs"] + kinds["outputs"]
    )  # what is updated early has already made room for its successor
    assert given == pytest.approx(weights + state + batch, rel=0.01)
    assert kinds["intermediates"] == pytest.approx(intermediates, rel=0.1)
    total = weights + state + batch + intermediates
    assert sum(kinds.values()) == pytest.approx(total, rel=0.1)
    assert tensors["padding_bytes"] < 0.1 * total
    device = sum(memory["categories"][name]["total_bytes"] for name in ("variable", "constant"))
    named = tensors["padding_bytes"] + tensors["partials_bytes"]
    assert device <= 1.1 * total + named
    assert memory["fits"]


def test_a_perceptron_with_adam():
    """The most at one time is the gradient of the first layer: every other one was used up by its update.

    It is left on the tiles that made its partials, and the operands of its product are read where they lie.
    """
    sizes, batch = (784, 512, 256, 10), 128
    weights = FLOAT * sum(m * n + n for m, n in itertools.pairwise(sizes))
    moments = 2 * weights + FLOAT  # mean, square, count
    first_gradient = FLOAT * sizes[0] * sizes[1]
    activations = FLOAT * batch * 2 * (sizes[1] + sizes[2])  # before and after each ReLU
    assert first_gradient > activations
    images, labels = np.zeros((batch, sizes[0]), np.float32), np.zeros(batch, np.int32)
    compiled = compiled_step(MODELS["mlp"].loss, "adam", layers(*sizes), images, labels)
    check(compiled, weights, moments, FLOAT * batch * sizes[0] + INTEGER * batch, first_gradient)


def test_a_convolutional_network_with_momentum():
    """The most at one time is when the gradient reaches the last activations, all stored ones still there.

    The dense layer is updated in the same superstep: its weights are there with what follows them.
    """
    params, images, labels = program("CNN, pooling, batch norm", "large").arguments
    batch, side, _, _ = images.shape
    channels = (3, 32, 64)
    dense = FLOAT * side // 4 * side // 4 * channels[-1] * 10
    weights, stored = dense + FLOAT * 10, 0
    for n_in, n_out in itertools.pairwise(channels):
        weights += FLOAT * (3 * 3 * n_in * n_out + 2 * n_out)  # kernel, scale and shift
        image = FLOAT * batch * side * side * n_out
        stored += 3 * image  # before the norm, less its mean, after ReLU: what is scaled is computed again
        stored += image // 4  # pooled: the next layer's input
        gradient = image
        side //= 2
    batch_bytes = images.nbytes + INTEGER * batch
    compiled = compiled_step(cnn_loss, "momentum", params, images, labels)
    check(compiled, weights + dense, weights, batch_bytes, stored + gradient)


def test_a_transformer_block_with_adam():
    """The most at one time is at the loss: every stored activation, and what cross-entropy works with."""
    tokens, features, heads, vocabulary = 128, 256, 8, 512
    params, ids = program("transformer block, causal attention", "large").arguments
    block = features * (3 + 1 + 4 + 4) * features + (4 + 1) * features + 2 * 2 * features
    weights = FLOAT * (vocabulary * features + tokens * features + block + 2 * features)
    per_feature = 3 * 3  # of three norms: input, normalized, scaled
    per_feature += 3 + 1  # queries, keys, values; what attention returns
    stored = FLOAT * tokens * features * per_feature
    stored += FLOAT * 2 * heads * tokens * tokens  # scores and weights
    stored += FLOAT * 2 * tokens * 4 * features  # before and after GELU
    stored += FLOAT * tokens * 4 * features  # one of them once more, in the order in which a product reads it
    loss = FLOAT * 3 * tokens * vocabulary  # logits, labels as one-hot rows, the gradient of the logits
    compiled = compiled_step(
        lambda p, ids, _: transformer_loss(p, ids, heads), "adam", params, ids, np.int32(0)
    )
    check(compiled, weights, 2 * weights + FLOAT, ids.nbytes, stored + loss)
