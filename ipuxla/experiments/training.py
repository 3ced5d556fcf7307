"""The training loop: one function per step, whoever compiled it: an IPU and ``jax.jit`` run the same."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np

from ipuxla._jax_compat import Datum, Tree
from ipuxla.experiments.data import Dataset
from ipuxla.experiments.optimizers import Optimizer

Step = Callable[[Tree, Tree, Datum, Datum], tuple[Tree, Tree, jax.Array]]
"""(parameters, optimizer state, images, labels) -> (parameters, optimizer state, loss)."""
Loss = Callable[[Tree, Datum, Datum], jax.Array]
"""(parameters, images, labels) -> loss."""
Predict = Callable[[Tree, Datum], jax.Array]
"""(parameters, images) -> scores ``[batch, classes]``."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long to train, and on which batches in which order."""

    epochs: int
    batch_size: int
    seed: int

    def num_steps(self, data: Dataset) -> int:
        """Return the number of steps of a run: whole batches only."""
        return self.epochs * (len(data.train) // self.batch_size)

    def batches(self, data: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield every batch of a run; each epoch has its own order, the same in every run of one seed."""
        for epoch in range(self.epochs):
            yield from data.train.batches(self.batch_size, order_seed=(self.seed, epoch))


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """What a run leaves behind.

    Attributes:
      params: the trained parameters.
      state: the optimizer's state after the last step.
      losses: float32 ``[steps]``.
      seconds: time on the host.
    """

    params: Tree
    state: Tree
    losses: np.ndarray
    seconds: float


def make_step(loss: Loss, optimizer: Optimizer) -> Step:
    """Return one training step: forward, gradient and update in a single function."""

    def training_step(
        params: Tree, state: Tree, images: Datum, labels: Datum
    ) -> tuple[Tree, Tree, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, images, labels)
        params, state = optimizer.update(grads, state, params)
        return params, state, value

    return training_step


def train(
    step: Step,
    params: Tree,
    state: Tree,
    data: Dataset,
    schedule: Schedule,
    on_step: Callable[[jax.Array], None] = lambda loss: None,
) -> TrainingRun:
    """Run a schedule.

    Args:
      step: a training step, compiled by anything.
      params: the first parameters.
      state: the optimizer's first state.
      data: what to learn from; its test rows are not touched.
      schedule: how long.
      on_step: called with the loss of each step, which may still be under way.
    """
    start = time.perf_counter()
    losses: list[jax.Array] = []
    for images, labels in schedule.batches(data):
        params, state, loss = step(params, state, images, labels)
        losses.append(loss)
        on_step(loss)
    params, state = jax.block_until_ready((params, state))
    return TrainingRun(params, state, np.asarray(losses, np.float32), time.perf_counter() - start)


def accuracy(predict: Predict, params: Tree, data: Dataset) -> float:
    """Return the share of test rows whose highest score is that of their label."""
    scores = np.asarray(predict(params, data.test.images))
    return float(np.mean(np.argmax(scores, axis=-1) == data.test.labels))
