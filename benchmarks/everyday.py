"""Everyday programs: what the fast engine costs beside ``jax.jit``, and what a program costs on the machine.

python -m benchmarks.everyday [--rounds=15] [--only=LSTM,heat] [--target=gc200]
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from absl import app, flags, logging

import ipuxla
from benchmarks.timing import Timing, clock, contenders, interleave, machine, table, write_result
from tests.everyday import MAKERS, program
from tiles.numerics.tolerance import NotClose, check_close

MEDIAN_GOAL, EACH_GOAL = 2.0, 3.0
"""Ratios to ``jax.jit``'s to reach, of steady calls and of first ones: on the median of the programs, and on each."""

_ROUNDS = flags.DEFINE_integer("rounds", 15, "timed calls of each contender", lower_bound=1)
_ONLY = flags.DEFINE_list("only", [], "programs to run, by parts of their names; all by default")
_TARGET = flags.DEFINE_string("target", "gc200", "target")


@dataclass(frozen=True)
class Row:
    """What was measured of one program.

    Attributes:
      name: the program's.
      native: durations with ``jax.jit``.
      fast: durations with the fast engine.
      compile_seconds: our own compilation, from tracing to the executable, cold.
      compile_cpu: its processor time.
      cycles: of the machine; None where they depend on the data.
      peak_bytes: of the fullest tile.
      close: whether values and gradients agree with ``jax.jit``.
    """

    name: str
    native: Timing
    fast: Timing
    compile_seconds: float
    compile_cpu: float
    cycles: int | None
    peak_bytes: int
    close: bool

    @property
    def ratio(self) -> float:
        """Steady wall time as a multiple of ``jax.jit``'s."""
        return self.fast.wall / self.native.wall

    @property
    def cpu_ratio(self) -> float:
        """Steady processor time as a multiple of ``jax.jit``'s."""
        return self.fast.cpu / self.native.cpu

    @property
    def first_cpu_ratio(self) -> float:
        """Processor time of the first call, our compilation and XLA's, as a multiple of ``jax.jit``'s."""
        return (self.compile_cpu + self.fast.first_cpu) / self.native.first_cpu

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        first = (self.compile_seconds + self.fast.first) / self.native.first
        cycles = "depends on data" if self.cycles is None else f"{self.cycles:,}"
        return [
            self.name,
            f"{self.native.wall * 1e3:.2f}",
            f"{self.ratio:.2f}",
            f"{self.cpu_ratio:.2f}",
            f"{first:.2f}",
            f"{self.first_cpu_ratio:.2f}",
            f"{self.compile_seconds:.2f}",
            cycles,
            f"{self.peak_bytes:,}",
            "yes" if self.close else "NO",
        ]


def measure(name: str, target: str, rounds: int) -> Row:
    """Compile and time one program, large, on both sides."""
    large = program(name, "large")
    function, args = large.function, large.arguments
    native_first, native_cpu, _ = clock(lambda: jax.jit(function)(*args))
    jax.clear_caches()  # JAX traces the function for each side anew
    seconds, cpu, lowered = clock(lambda: _compiled(function, args, target))
    fast = lowered.compile(engine="fast")
    first, first_cpu, _ = clock(lambda: fast(*args))
    calls = contenders(function, lowered, args, ["fast"])
    timings = interleave(calls, rounds)
    native = replace(timings["jax.jit"], first=native_first, first_cpu=native_cpu)
    ours = replace(timings["fast"], first=first, first_cpu=first_cpu)
    compiled = lowered.compile()
    try:
        check_close(calls["fast"](), calls["jax.jit"](), name)
        close = True
    except NotClose:
        close = False
    cycles, memory = compiled.cost_analysis()["cycles"], compiled.memory_analysis()
    peak = memory["peak_bytes"]
    jax.clear_caches()  # programs share no compiled pieces, so the first call of each is its own
    return Row(name, native, ours, seconds, cpu, cycles, peak, close)


def _compiled(function: Callable[..., object], args: Sequence[Any], target: str) -> ipuxla.Lowered:
    lowered = ipuxla.jit(function, target=target).lower(*args)
    lowered.compile()
    return lowered


def render(rows: Sequence[Row], target: str, rounds: int) -> str:
    """Return the result file."""
    ratios, cpu = [row.ratio for row in rows], [row.cpu_ratio for row in rows]
    first = [row.first_cpu_ratio for row in rows]
    header = [
        "program",
        "jax.jit ms",
        "ratio",
        "CPU ratio",
        "first-call ratio",
        "of CPU",
        "own compile s",
        "cycles",
        "peak bytes",
        "close",
    ]
    beyond = [row.name for row in rows if row.ratio > EACH_GOAL]
    return f"""# Everyday programs, values with gradients, on {target}: the fast engine beside `jax.jit`

{machine()}.
Contenders took turns in one process; medians of {rounds} calls. The ratio is steady wall time; the first-call ratio holds tracing,
our own compilation and XLA's on both sides, each with JAX's caches empty. Cycles and the fullest tile's peak are the
machine's, not the emulator's.

{table(header, [row.cells for row in rows])}

Median ratio {statistics.median(ratios):.2f} (goal {MEDIAN_GOAL:g}), largest {max(ratios):.2f} (goal {EACH_GOAL:g});
beyond the goal: {", ".join(beyond) or "none"}. Of processor time, which other work on the machine disturbs less, the median ratio
is {statistics.median(cpu):.2f}, the largest {max(cpu):.2f}. First calls take {statistics.median(first):.2f} times the processor
time of `jax.jit`'s on the median (goal {MEDIAN_GOAL:g}), {max(first):.2f} at most (goal {EACH_GOAL:g}).
"""


def main(argv: Sequence[str]) -> None:
    """Measure, print, and write ``benchmarks/results/everyday.md`` unless only some programs ran."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # JAX tells at INFO what devices it misses
    names = [n for n in MAKERS if not _ONLY.value or any(part in n for part in _ONLY.value)]
    if not names:
        raise app.UsageError(f"--only={','.join(_ONLY.value)} names none of: {', '.join(MAKERS)}")
    rows = []
    for name in names:
        rows.append(measure(name, _TARGET.value, _ROUNDS.value))
        print(f"{name}: {rows[-1].ratio:.2f}", flush=True)
    text = render(rows, _TARGET.value, _ROUNDS.value)
    print(text)
    if len(names) == len(MAKERS):
        print(f"written: {write_result('everyday', text)}")


if __name__ == "__main__":
    app.run(main)
