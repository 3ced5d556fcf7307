"""What a run prints and writes at its end: results beside those of ``jax.jit``, cost of a step, files."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
from rich.console import Console

from ipuxla._jax_compat import Tree, tree_leaves
from ipuxla.errors import IpuError
from ipuxla.experiments.settings import Settings
from ipuxla.runtime import Compiled
from tiles import files
from tiles.files import JsonObject

COMPARED_STEPS = 20
"""Losses of the first steps must agree with ``jax.jit``; later ones drift apart as rounding feeds back."""
LOSS_TOLERANCE = 1e-4
COSTLIEST = 10


class WordsDiffer(IpuError):
    """Under ring arithmetic, two engines computed different words: a word was misplaced, lost or doubled."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one run achieved.

    Attributes:
      losses: float32 ``[steps]``.
      accuracy: share of the test rows classified right, 0 to 1.
      seconds: time of the training loop on the host.
    """

    losses: np.ndarray
    accuracy: float
    seconds: float

    def largest_difference(self, other: Outcome) -> float:
        """Return by how much the losses of the first steps differ at most."""
        first, second = (np.asarray(o.losses[:COMPARED_STEPS], np.float64) for o in (self, other))
        return float(np.max(np.abs(first - second)))


def show(console: Console, text: str) -> None:
    """Print text as it is: no markup, no line breaks of rich's own."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def show_outcomes(console: Console, emulated: Outcome, native: Outcome | None) -> None:
    """Print accuracy, losses and time, beside those of plain ``jax.jit`` where it ran too."""
    rows = [
        ("test accuracy", f"{emulated.accuracy:.2%}", native and f"{native.accuracy:.2%}"),
        ("last loss", f"{emulated.losses[-1]:.6f}", native and f"{native.losses[-1]:.6f}"),
        ("time on this host", f"{emulated.seconds:.1f} s", native and f"{native.seconds:.1f} s"),
    ]
    lines = [
        f"{label:18} {ours:>10}" + (f"   plain jax.jit {theirs:>10}" if theirs else "")
        for label, ours, theirs in rows
    ]
    if native is not None:
        count = min(COMPARED_STEPS, len(native.losses))
        difference = emulated.largest_difference(native)
        verdict = "agree" if difference <= LOSS_TOLERANCE else "DO NOT AGREE"
        lines.append(
            f"losses of the first {count} steps {verdict} with plain jax.jit: "
            f"largest difference {difference:.1e}, tolerance {LOSS_TOLERANCE:g}"
        )
    show(console, "\n" + "\n".join(lines) + "\n")


def require_same_words(console: Console, engine: str, words: Tree, expected: Tree) -> None:
    """Print how many words an engine computed as the HLO module says.

    Raises:
      WordsDiffer: some differ.
    """
    pairs = list(zip(tree_leaves(words), tree_leaves(expected), strict=True))
    total = sum(ours.size for ours, _ in pairs)
    wrong = sum(int(np.count_nonzero(np.asarray(ours) != np.asarray(theirs))) for ours, theirs in pairs)
    if wrong:
        raise WordsDiffer(
            f"{wrong:,} of {total:,} words of one step differ between engine {engine!r} and the HLO module",
            try_="the literal and vertex engines, to tell whether planning or movement is wrong",
        )
    show(
        console, f"ring arithmetic: all {total:,} words of one step on engine {engine} equal the HLO module's"
    )


def write_files(
    folder: pathlib.Path,
    settings: Settings,
    compiled: Compiled,
    example: tuple[Tree, ...],
    outcomes: dict[str, Outcome],
) -> list[pathlib.Path]:
    """Write the run's results, the compiled step and its report; return the paths.

    Args:
      folder: where; it exists.
      settings: what was chosen.
      compiled: one training step.
      example: its arguments.
      outcomes: by who ran it.
    """
    results = folder / "results.json"
    files.write_files({results: json.dumps(_results(settings, outcomes), indent=1) + "\n"})
    program = folder / "step.ipuxla"
    compiled.save(program)
    return [results, program, *compiled.report(folder, *example)]


def _results(settings: Settings, outcomes: dict[str, Outcome]) -> JsonObject:
    """Return the results of a run as JSON types."""
    chosen = dataclasses.asdict(dataclasses.replace(settings, target=settings.target))
    chosen |= {"target": settings.target.name, "output_dir": str(settings.output_dir)}
    return {
        "settings": chosen,
        "outcomes": {
            who: {"accuracy": o.accuracy, "seconds": o.seconds, "losses": [float(loss) for loss in o.losses]}
            for who, o in outcomes.items()
        },
    }
