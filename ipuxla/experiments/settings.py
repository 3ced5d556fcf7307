"""What a user chooses about an experiment, checked before anything runs."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile

from ipuxla.errors import InvalidOption
from ipuxla.experiments.models import MODELS
from ipuxla.experiments.optimizers import OPTIMIZERS
from tiles.target import System, Target


@dataclasses.dataclass(frozen=True)
class Settings:
    """The choices of a run; the command line has a flag of the same name for each.

    Args:
      target: the machine that the step is compiled for; over the IPUs of a system it is data-parallel.
      engine: how the emulated machine runs it.
      arithmetic: "float" to train; "ring" to prove that one step moves every word rightly.
      check_memory: refuse a step that does not fit into the tiles.
      model: name of a model.
      hidden: features of each hidden dense layer.
      optimizer: name of an optimizer.
      learning_rate: its learning rate.
      batch_size: rows per step.
      epochs: passes over the training rows.
      seed: of the first parameters and of the order of the batches.
      compare: also run under plain ``jax.jit``.
      output_dir: folder for the files of the run; files there with the same names are replaced.

    Raises:
      InvalidOption: a choice that no run could have.
    """

    target: Target | System
    engine: str = "fast"
    arithmetic: str = "float"
    check_memory: bool = True
    model: str = "mlp"
    hidden: tuple[int, ...] = (128, 64)
    optimizer: str = "momentum"
    learning_rate: float = 0.05
    batch_size: int = 32
    epochs: int = 20
    seed: int = 0
    compare: bool = True
    output_dir: pathlib.Path = pathlib.Path("runs/digits")

    @property
    def chip(self) -> Target:
        """One IPU."""
        return self.target.chip if isinstance(self.target, System) else self.target

    @property
    def num_ipus(self) -> int:
        """How many IPUs take part."""
        return self.target.num_ipus if isinstance(self.target, System) else 1

    def __post_init__(self) -> None:
        """Check what has no type of its own."""
        for kind, known, name in (("model", MODELS, self.model), ("optimizer", OPTIMIZERS, self.optimizer)):
            if name not in known:
                raise InvalidOption(f"there is no {kind} {name!r}", expected=", ".join(known), got=name)
        if not 0 < self.learning_rate < float("inf"):
            raise InvalidOption("the learning rate must be positive and finite", got=self.learning_rate)
        counts = {"batch_size": self.batch_size, "epochs": self.epochs}
        counts |= {f"hidden[{n}]": width for n, width in enumerate(self.hidden)}
        for name, count in counts.items():
            if count < 1:
                raise InvalidOption(f"{name} must be at least 1", got=count)
        if self.seed < 0:
            raise InvalidOption("the seed must be at least 0", got=self.seed)


def require_writable(folder: pathlib.Path) -> None:
    """Make a folder, and prove that files can be written there before a run spends time.

    Raises:
      InvalidOption: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidOption(f"cannot write into {folder}: {error.strerror}", try_="another folder") from error
