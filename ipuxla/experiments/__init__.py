"""Experiments that the command line runs, by name: data, models, optimizers, training and what they print."""

from __future__ import annotations

from collections.abc import Callable

from ipuxla.experiments.digits import run_digits
from ipuxla.experiments.models import MODELS
from ipuxla.experiments.optimizers import OPTIMIZERS
from ipuxla.experiments.settings import Settings, require_writable

__all__ = ["EXPERIMENTS", "MODELS", "OPTIMIZERS", "Settings", "require_writable"]

EXPERIMENTS: dict[str, Callable[[Settings], None]] = {"digits": run_digits}
"""Name -> function that runs the experiment and prints its result."""
