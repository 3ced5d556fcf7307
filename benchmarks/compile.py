"""Our own compile time by stage: training steps and everyday programs, from StableHLO to a checked executable.

python -m benchmarks.compile [--rounds=3] [--only=MLP,transformer] [--target=gc200]

JAX's tracing and XLA's compilation are not in it. Every round is a process of its own, so that the planner remembers
nothing; a small program goes first, so that what Python and JAX do at their first use does not count. Processor
time is taken, which other work on the machine disturbs less than wall time, and the best round counts.
"""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

from benchmarks.steps import mlp_step, transformer_step
from benchmarks.timing import machine, table, write_result
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.lowering import lower_module
from tests import everyday
from tiles.compiler import check, compile_graph
from tiles.planning import Planner
from tiles.target import Target

GOALS_SECONDS = {"MLP step": 1.0, "transformer step, 12 layers": 3.0}
"""What own compile time is to stay below, by program."""
EVERYDAY = ("CNN, pooling, batch norm", "depthwise-separable block", "transformer block, causal attention")
STAGES = ("import", "HLO passes", "lowering", "planning", "graph compiler", "check")

_ROUNDS = flags.DEFINE_integer("rounds", 3, "compilations of each program; the best counts", lower_bound=1)
_ONLY = flags.DEFINE_list("only", [], "programs to run, by parts of their names; all by default")
_TARGET = flags.DEFINE_string("target", "gc200", "target")

Program = tuple[Callable[..., Any], Sequence[Any]]


def _everyday(name: str) -> Program:
    found = everyday.program(name, "large")
    return found.function, found.arguments


PROGRAMS: dict[str, Callable[[], Program]] = {
    "MLP step": mlp_step,
    "transformer step, 12 layers": transformer_step,
    **{name: functools.partial(_everyday, name) for name in EVERYDAY},
}


def small() -> Program:
    """Return a program that has a bit of everything."""
    return lambda x: jax.nn.softmax(x @ x.T).sum(), (np.ones((3, 5), np.float32),)


def stage_seconds(make: Callable[[], Program], target: Target) -> list[float]:
    """Return the processor seconds of each of ``STAGES``."""
    function, args = make()
    stablehlo = jax.jit(function, keep_unused=True).lower(*args).compiler_ir("stablehlo")
    seconds: list[float] = []

    def timed(function: Callable[..., Any], *args: Any) -> Any:
        start = time.process_time()
        result = function(*args)
        seconds.append(time.process_time() - start)
        return result

    module = timed(optimize, timed(import_stablehlo, stablehlo))
    planned = timed(Planner().plan, timed(lower_module, module, target))
    executable = timed(compile_graph, planned)
    timed(check, executable)
    return seconds


def once(name: str, target: str) -> list[float]:
    """Return the stages of one program in a process that has compiled nothing but ``small`` before."""
    stage_seconds(small, Target.named(target).replace(num_tiles=16))
    return stage_seconds(PROGRAMS[name], Target.named(target))


def measure(name: str, target: str, rounds: int) -> list[float]:
    """Return the stages of a program's best round."""
    fresh = multiprocessing.get_context("spawn")
    found = []
    for _ in range(rounds):
        with fresh.Pool(1) as pool:
            found.append(pool.apply(once, (name, target)))
    return min(found, key=sum)


def render(rows: dict[str, list[float]], target: str, rounds: int) -> str:
    """Return the result file."""
    cells = [
        [
            name,
            *(f"{s:.2f}" for s in seconds),
            f"{sum(seconds):.2f}",
            f"{GOALS_SECONDS[name]:g}" if name in GOALS_SECONDS else "",
        ]
        for name, seconds in rows.items()
    ]
    return f"""# Own compile time on {target}: processor seconds from StableHLO to a checked executable

{machine()}.
The best of {rounds} rounds, each in a fresh process. JAX's tracing and XLA's compilation are not in it.

{table(["program", *STAGES, "all", "goal"], cells)}
"""


def main(argv: Sequence[str]) -> None:
    """Measure, print, and write ``benchmarks/results/compile.md`` unless only some programs ran."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # JAX tells at INFO what devices it misses
    names = [n for n in PROGRAMS if not _ONLY.value or any(part in n for part in _ONLY.value)]
    if not names:
        raise app.UsageError(f"--only={','.join(_ONLY.value)} names none of: {', '.join(PROGRAMS)}")
    target, rounds = _TARGET.value, _ROUNDS.value
    text = render({name: measure(name, target, rounds) for name in names}, target, rounds)
    print(text)
    if len(names) == len(PROGRAMS):
        print(f"written: {write_result('compile', text)}")


if __name__ == "__main__":
    app.run(main)
