"""Training steps that benchmarks measure: forward, gradient and SGD update in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ipuxla.experiments.models import MODELS
from ipuxla.experiments.optimizers import sgd
from ipuxla.experiments.training import Step, make_step
from tests import transformer

SIZES = (784, 1024, 1024, 10)
BATCH_SIZE = 128
LEARNING_RATE = 0.1


def mlp_step() -> tuple[Step, tuple[Any, ...]]:
    """Return the step of a multilayer perceptron and its arguments."""
    model = MODELS["mlp"]
    params = model.init(jax.random.key(0), SIZES)
    rng = np.random.default_rng(0)
    images = jax.numpy.asarray(rng.random((BATCH_SIZE, SIZES[0]), np.float32))
    labels = jax.numpy.asarray(rng.integers(0, SIZES[-1], BATCH_SIZE, np.int32))
    optimizer = sgd(LEARNING_RATE)
    return make_step(model.loss, optimizer), (params, optimizer.init(params), images, labels)


def transformer_step(layers: int = 12) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a training step of a transformer 256 wide, on 128 tokens, and its arguments."""
    arguments = transformer.parameters(layers, 256, 128, 64), *transformer.batch(128, 64)
    return functools.partial(transformer.sgd_step, heads=8), arguments
