"""The committed record of what was drawn: a line per run, added up over sessions and commits."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Mapping

RESULTS = pathlib.Path(__file__).parent / "results.md"
ROOT = pathlib.Path(__file__).parents[2]
COUNTS = (
    "programs", "long", "in floats", "control", "on all", "vertices", "by code", "unusual", "large", "modules", "executables",
    "refused", "found",
)  # fmt: skip
COLUMNS = ("date", "commit", "seed", "minutes", *COUNTS)
HEAD = """# What drawing without end has tried

`make fuzz ARGS=--write` adds a line. Columns:

- programs: certified, saved and read back, and run on the engines in the ring against the module, which engine hlo
  evaluates; of them, long: of 15 to 40 operations; in floats: on the engines against XLA, too.
- control: programs with loops and branches, in the ring; from seed 410111 on in floats, too.
- on all: programs of both kinds that ran on engines fast, literal, vertex, tile and hlo, in floats hlo beside the others; the
  rest ran on fast and literal (lines with 0), or on none, since 8-bit floats decide in them that XLA computes otherwise from run
  to run.
- vertices: of those on all; by code: those of them that engine tile ran by their tile code, the rest by their meaning.
- unusual: programs of one rare operation each (`tests/unusual_programs.py`), in both arithmetics on all engines; in no column before.
- large: programs of arrays of up to 262,144 elements on machines of 368 to 1,472 tiles, certified, and run on engine fast beside
  the module and XLA where they fit; in no column before.
- modules, executables: changed at random, and read.
- refused: programs by a named error. Found: failures, told in docs/reliability.md; a run ends its chunk of programs at the first.

A commit with a + is of a working tree with changes.
"""


def commit() -> str:
    """Return the commit that runs, with a plus where files of it were changed; a question mark without git."""
    try:
        head, changes = (
            subprocess.run(["git", *what], cwd=ROOT, capture_output=True, check=True, text=True).stdout
            for what in (
                ("rev-parse", "--short=9", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return "?"
    own = RESULTS.relative_to(ROOT).as_posix()
    return head.strip() + "+" * any(not line.endswith(own) for line in changes.splitlines())


def add(date: str, commit: str, seed: int, minutes: float, counts: Mapping[str, int]) -> None:
    """Add a run to the record and write its sums anew.

    Args:
      date: of the run's end.
      commit: what ran.
      seed: of the run.
      minutes: on the wall.
      counts: by the names of ``COUNTS``; what is not there is 0.
    """
    row = (date, commit, str(seed), f"{minutes:.0f}", *(str(counts.get(name, 0)) for name in COUNTS))
    RESULTS.write_text(text([*rows(), row]), encoding="utf-8")


def rows() -> list[tuple[str, ...]]:
    """Return the recorded runs, as they stand."""
    if not RESULTS.is_file():
        return []
    lines = [line for line in RESULTS.read_text(encoding="utf-8").splitlines() if line.startswith("| 20")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def text(runs: list[tuple[str, ...]]) -> str:
    """Return the record of runs, with its sums as the last line."""
    sums = [sum(int(run[k].replace(",", "")) for run in runs) for k in range(3, len(COLUMNS))]
    lines = [COLUMNS, ("---",) * len(COLUMNS), *runs, ("all", "", "", *(f"{n:,}" for n in sums))]
    return HEAD + "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
