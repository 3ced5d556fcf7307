"""The main job: a model learns handwritten digits, each training step one program on the emulated IPU.

Beside it the same run under plain ``jax.jit``; at the end what a step costs, what memory it needs, and where
the files of the run lie.
"""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping

import jax
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import ipuxla
from ipuxla._jax_compat import Tree
from ipuxla.errors import InvalidOption
from ipuxla.experiments.data import Dataset, load_digits
from ipuxla.experiments.models import MODELS, Model
from ipuxla.experiments.optimizers import OPTIMIZERS, Optimizer
from ipuxla.experiments.settings import Settings
from ipuxla.experiments.summary import (
    COSTLIEST,
    Outcome,
    require_same_words,
    show,
    show_outcomes,
    write_files,
)
from ipuxla.experiments.training import Predict, Schedule, Step, accuracy, make_step, train
from ipuxla.options import TargetChoices

DONATED = (0, 1)
"""A step replaces its parameters and the optimizer's state, so they need no second place in tile memory."""
LOSS_SHOWN_EVERY = 10
"""Steps between two losses on the progress bar."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What an IPU and plain ``jax.jit`` both run."""

    data: Dataset
    schedule: Schedule
    model: Model
    optimizer: Optimizer
    step: Step
    sizes: tuple[int, ...]

    def start(self) -> tuple[Tree, Tree]:
        """Return the first parameters and the optimizer's first state."""
        params = self.model.init(jax.random.key(self.schedule.seed), self.sizes)
        return params, self.optimizer.init(params)

    def first_arguments(self) -> tuple[Tree, ...]:
        """Return the arguments of the first step."""
        return (*self.start(), *next(self.schedule.batches(self.data)))

    def run(
        self, step: Step, predict: Predict, on_step: Callable[[jax.Array], None] = lambda loss: None
    ) -> Outcome:
        """Train from the start, then use the test rows once."""
        run = train(step, *self.start(), self.data, self.schedule, on_step)
        return Outcome(run.losses, accuracy(predict, run.params, self.data), run.seconds)


def make_job(settings: Settings) -> Job:
    """Load the data and set up the model.

    Raises:
      InvalidOption: a batch is larger than the training set.
    """
    data = load_digits()
    if settings.batch_size > len(data.train):
        raise InvalidOption(
            "a batch is larger than the training set",
            expected=f"at most {len(data.train)} rows",
            got=settings.batch_size,
        )
    optimizer = OPTIMIZERS[settings.optimizer](settings.learning_rate)
    model = MODELS[settings.model]
    return Job(
        data=data,
        model=model,
        schedule=Schedule(settings.epochs, settings.batch_size, settings.seed),
        optimizer=optimizer,
        step=make_step(model.loss, optimizer),
        sizes=(data.num_features, *settings.hidden, data.num_classes),
    )


def run_digits(settings: Settings) -> None:
    """Train, compare, print, and write the report into the settings' folder.

    Under ring arithmetic there is nothing to learn from: one step proves instead that the engine moves every
    word as the HLO module says.

    Raises:
      InvalidOption: a batch is larger than the training set.
      OutOfTileMemory: the step does not fit into the target's tiles.
      WordsDiffer: under ring arithmetic the engine and the HLO module disagree.
    """
    console = Console()
    job = make_job(settings)
    machine_options: TargetChoices = {
        "target": settings.target,
        "engine": settings.engine,
        "check_memory": settings.check_memory,
    }
    shardings = data_parallel(settings)
    step = ipuxla.jit(job.step, donate_argnums=DONATED, **machine_options, **shardings)
    start = time.perf_counter()
    lowered = step.lower(*job.first_arguments())
    compiled = lowered.compile(arithmetic=settings.arithmetic)
    chip = settings.chip
    several = f"{settings.num_ipus} of " if settings.num_ipus > 1 else ""
    machine = f"{several}{chip.name} with {chip.num_tiles:,} tiles"
    show(console, f"one training step compiled for {machine} in {time.perf_counter() - start:.1f} s")
    if settings.engine == "tile":
        show(console, str(compiled.tile_coverage()))
    if settings.arithmetic == "ring":
        witness = lowered.compile(engine="hlo", arithmetic="ring")
        expected = witness(*job.first_arguments())
        require_same_words(console, settings.engine, compiled(*job.first_arguments()), expected)
        return

    machine_options["target"] = settings.chip
    predict = ipuxla.jit(job.model.predict, **machine_options)
    with _progress(console, job.schedule.num_steps(job.data)) as on_step:
        outcomes = {"emulated": job.run(compiled, predict, on_step)}
    if settings.compare:
        outcomes["jax.jit"] = job.run(jax.jit(job.step, donate_argnums=DONATED), jax.jit(job.model.predict))

    show_outcomes(console, outcomes["emulated"], outcomes.get("jax.jit"))
    # Engine "hlo" evaluates the module and counts no supersteps; the program it stands for has them.
    program = lowered.compile(engine="fast") if settings.engine == "hlo" else compiled
    show(console, program.profile(*job.first_arguments()).text(COSTLIEST))
    written = write_files(settings.output_dir, settings, program, job.first_arguments(), outcomes)
    show(console, "written:\n" + "\n".join(f"  {path}" for path in written))


def data_parallel(settings: Settings) -> Mapping[str, Tree]:
    """Return the shardings of a step over several IPUs: each has its rows of a batch, and all of the parameters.

    Raises:
      InvalidOption: the IPUs do not divide a batch.
    """
    if settings.num_ipus == 1:
        return {}
    if settings.batch_size % settings.num_ipus:
        raise InvalidOption(
            "each IPU takes as many rows of a batch as the others",
            expected=f"a batch size that {settings.num_ipus} divides",
            got=settings.batch_size,
        )
    mesh = ipuxla.mesh(settings.target, names=("data",))  # pyright: ignore[reportArgumentType]
    rows, everywhere = (NamedSharding(mesh, spec) for spec in (PartitionSpec("data"), PartitionSpec()))
    return {
        "in_shardings": (everywhere, everywhere, rows, rows),
        "out_shardings": (everywhere, everywhere, everywhere),
    }


@contextlib.contextmanager
def _progress(console: Console, num_steps: int) -> Iterator[Callable[[jax.Array], None]]:
    """Show a bar while training; yield what to call with the loss of each step."""
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, loss {task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=num_steps, loss="")
        done = 0

        def on_step(loss: jax.Array) -> None:
            nonlocal done
            done += 1
            if done % LOSS_SHOWN_EVERY == 0 or done == num_steps:  # reading a loss waits for its step
                bar.update(task, loss=f"{float(loss):.4f}")
            bar.advance(task)

        yield on_step
