"""The MLP step: what an emulated training step costs beside the native one, and where our compile time goes.

python -m benchmarks.mlp [--rounds=15] [--engines=fast,literal]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags, logging

import ipuxla
from benchmarks.steps import BATCH_SIZE, SIZES, mlp_step
from benchmarks.timing import Timing, clock, contenders, interleave, machine, table, write_result
from hlo_passes.passes import optimize
from ipuxla.experiments.training import Step
from ipuxla.lowering import lower_module
from ipuxla.options import make_options
from ipuxla.stages import Lowered, Pipeline
from tiles.compiler import compile_graph
from tiles.planning import Planner

_ROUNDS = flags.DEFINE_integer("rounds", 15, "timed calls of each contender", lower_bound=1)
_ENGINES = flags.DEFINE_list("engines", ["fast", "literal"], "engines to time beside native jax.jit")
_TARGET = flags.DEFINE_string("target", "gc200", "target")


def stage_seconds(step: Step, args: Sequence[Any], target: str) -> tuple[list[tuple[str, float]], Lowered]:
    """Return the wall time of each of our own stages, cold, and the lowered step."""
    options = make_options(target)
    stages: list[tuple[str, float]] = []

    def timed(name: str, function: Callable[[], Any]) -> Any:
        wall, _, result = clock(function)
        stages.append((name, wall))
        return result

    lowered = timed("trace, StableHLO, import", lambda: ipuxla.jit(step, target=target).lower(*args))
    module = Pipeline(lowered.as_text("stablehlo")).module
    optimized = timed("HLO passes", lambda: optimize(module, options.passes))
    graph = timed("lowering", lambda: lower_module(optimized, options.target))
    planned = timed("planning", lambda: Planner().plan(graph))
    timed("graph compiler", lambda: compile_graph(planned))
    stages.append(("all of ours", sum(seconds for _, seconds in stages)))
    return stages, lowered


def render(stages: Sequence[tuple[str, float]], timings: dict[str, Timing], target: str, rounds: int) -> str:
    """Return the result file."""
    native = timings["jax.jit"]
    rows = [
        [
            name,
            f"{t.wall * 1e3:.2f}",
            f"{t.wall / native.wall:.2f}",
            f"{t.cpu * 1e3:.2f}",
            f"{t.cpu / native.cpu:.2f}",
            f"{t.first:.2f}",
        ]
        for name, t in timings.items()
    ]
    shape = "-".join(map(str, SIZES))
    ratios = table(["", "wall ms", "ratio", "CPU ms", "ratio", "first call s"], rows)
    compile_table = table(["stage", "s"], [[name, f"{seconds:.3f}"] for name, seconds in stages])
    return f"""# MLP {shape}, batch {BATCH_SIZE}: one training step (forward, gradient, SGD) on {target}

{machine()}.
Contenders took turns in one process; medians of {rounds} calls. The first call includes XLA's compilation.

{ratios}

Our own compilation, once, cold:

{compile_table}
"""


def main(argv: Sequence[str]) -> None:
    """Measure, print, and write ``benchmarks/results/mlp.md``."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # JAX tells at INFO what devices it misses
    step, args = mlp_step()
    stages, lowered = stage_seconds(step, args, _TARGET.value)
    timings = interleave(contenders(step, lowered, args, _ENGINES.value), _ROUNDS.value)
    text = render(stages, timings, _TARGET.value, _ROUNDS.value)
    print(text)
    print(f"written: {write_result('mlp', text)}")


if __name__ == "__main__":
    app.run(main)
