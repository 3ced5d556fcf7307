"""The command line: parse, call the library, print. Bad input is one line on stderr and exit code 2.

Each command has flags of its own (absl), so ``--flagfile`` works everywhere and a flag of one command is unknown to
another. Exit codes: 0 success, 1 the library refused a legal request, 2 bad input.
"""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

import ipuxla
from hlo_passes.errors import HloError
from ipuxla.errors import InvalidOption, IpuError
from ipuxla.experiments import EXPERIMENTS, Settings, require_writable
from ipuxla.experiments.optimizers import OPTIMIZERS
from ipuxla.options import ARITHMETICS, ENGINES
from tiles.target import Target, known_names

BAD_INPUT = 2
REFUSED = 1


class UsageError(Exception):
    """Input that no command can work with; its message is one line."""


@dataclasses.dataclass(frozen=True)
class Command:
    """One word after ``ipuxla``.

    Attributes:
      summary: what it does, in one line.
      positional: names of its positional arguments, as usage shows them; one in brackets may be left out.
      define: adds its flags.
      run: does it, given flags and positional arguments.
    """

    summary: str
    positional: tuple[str, ...]
    define: Callable[[flags.FlagValues], None]
    run: Callable[[flags.FlagValues, Sequence[str]], None]


@dataclasses.dataclass(frozen=True)
class Invocation:
    """A command line, understood."""

    command: Command
    values: flags.FlagValues
    arguments: Sequence[str]


# ---- ipuxla run


def _define_run(values: flags.FlagValues) -> None:
    """Add the flags of ``run``: one for each field of ``Settings``."""
    _define_machine(values)
    flags.DEFINE_enum("experiment", "digits", sorted(EXPERIMENTS), "what to run", flag_values=values)
    flags.DEFINE_list("hidden", ["128", "64"], "features of each hidden layer", flag_values=values)
    flags.DEFINE_enum("optimizer", "momentum", sorted(OPTIMIZERS), "optimizer", flag_values=values)
    flags.DEFINE_float("learning_rate", 0.05, "learning rate", flag_values=values)
    flags.DEFINE_integer("batch_size", 32, "rows per step", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("epochs", 20, "passes over the training rows", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("seed", 0, "seed of parameters and batches", lower_bound=0, flag_values=values)
    flags.DEFINE_bool("compare", True, "also run under plain jax.jit", flag_values=values)
    flags.DEFINE_string("output_dir", "runs/digits", "folder for the files of the run", flag_values=values)


def _run(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Run an experiment."""
    del arguments
    chosen = {field.name: getattr(values, field.name) for field in dataclasses.fields(Settings)}
    with _as_usage_error(InvalidOption):
        chosen["target"] = _target(values.target)
        chosen["hidden"] = tuple(_integer("hidden", text) for text in values.hidden)
        chosen["output_dir"] = pathlib.Path(values.output_dir)
        settings = Settings(**chosen)
        require_writable(settings.output_dir)
    EXPERIMENTS[values.experiment](settings)
