"""The main job: a perceptron learns handwritten digits, each training step one program on the emulated IPU.

Beside it the same run under plain ``jax.jit``; at the end what a step costs, what memory it needs, and where the
files of the run lie.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import ipuxla
from ipuxla.errors import InvalidOption
from ipuxla.experiments import summary
from ipuxla.experiments.data import Dataset, load_digits
from ipuxla.experiments.models import init_mlp, mlp_loss, predict_mlp
from ipuxla.experiments.optimizers import OPTIMIZERS
from ipuxla.experiments.settings import Settings
from ipuxla.experiments.training import Predict, Schedule, Step, TrainingRun, accuracy, make_step, train

COMPARED_STEPS = 20
"""Losses of the first steps must agree with plain ``jax.jit``; later ones drift apart as rounding feeds back."""
LOSS_TOLERANCE = 1e-4


class Digits:
    """One run's data, model and optimizer, made from its settings.

    Raises:
      InvalidOption: a batch is larger than the training set.
    """

    def __init__(self, settings: Settings) -> None:
        """Load the data and set up the step; nothing is compiled yet."""
        self.data = load_digits()
        self.settings = settings
        if settings.batch_size > len(self.data.train):
            raise InvalidOption(
                "a batch is larger than the training set",
                expected=f"at most {len(self.data.train)} rows",
                got=settings.batch_size,
            )
        self.schedule = Schedule(settings.epochs, settings.batch_size, settings.seed)
        self.optimizer = OPTIMIZERS[settings.optimizer](settings.learning_rate)
        self.step = make_step(mlp_loss, self.optimizer)

    def start(self) -> tuple[Any, Any]:
        """Return the first parameters and the optimizer's first state."""
        sizes = (self.data.num_features, *self.settings.hidden, self.data.num_classes)
        params = init_mlp(jax.random.key(self.settings.seed), sizes)
        return params, self.optimizer.init(params)

    def example(self) -> tuple[Any, ...]:
        """Return the arguments of the first step."""
        return (*self.start(), *next(self.schedule.batches(self.data)))

    def run(self, step: Step, predict: Predict, on_step: Callable[[jax.Array], None]) -> Result:
        """Train from the start, then use the test rows once."""
        run = train(step, *self.start(), self.data, self.schedule, on_step)
        return Result(run.losses, accuracy(predict, run.params, self.data), run.seconds)
