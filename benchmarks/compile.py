"""Our own compile time by stage: training steps and everyday programs, from StableHLO to a checked executable.

Also how it grows with layers and with tiles, and what is left of it in a second process that reads what one kept on disk.

python -m benchmarks.compile [--rounds=3] [--only=MLP,transformer] [--target=gc200]

JAX's tracing and XLA's compilation are not in it. Every round is a process of its own, so that the planner remembers
nothing; a small program goes first, so that what Python and JAX do at their first use does not count. Processor
time is taken, which other work on the machine disturbs less than wall time, and the best round counts.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

import ipuxla
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
LAYERS = (1, 3, 6, 12, 24, 48)
TILES = (64, 184, 368, 736, 1472)
"""Of a GC200, for a transformer of 12 layers."""
AGAIN = ("MLP step", "transformer step, 12 layers")
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
    executable = timed(
        lambda graph: compile_graph(graph, check_memory=False), planned
    )  # few tiles have little memory
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


def grown(layers: int, tiles: int) -> tuple[float, float]:
    """Return processor seconds of planning, and of all stages, of a transformer step in a fresh process."""
    stage_seconds(small, Target.named("gc200").replace(num_tiles=16))
    seconds = stage_seconds(
        functools.partial(transformer_step, layers), Target.named("gc200").replace(num_tiles=tiles)
    )
    return seconds[STAGES.index("planning")], sum(seconds)


def growth(rounds: int) -> str:
    """Return the tables of how planning and all stages grow, with the exponents of the best power laws."""
    sizes = [("layers", n, (n, 1472)) for n in LAYERS] + [("tiles", n, (12, n)) for n in TILES]
    found: dict[str, list[tuple[int, float, float]]] = {"layers": [], "tiles": []}
    fresh = multiprocessing.get_context("spawn")
    for what, size, arguments in sizes:
        rounds_ = []
        for _ in range(rounds):
            with fresh.Pool(1) as pool:
                rounds_.append(pool.apply(grown, arguments))
        found[what].append((size, min(r[0] for r in rounds_), min(r[1] for r in rounds_)))
    text = ""
    for what, rows in found.items():
        cells = [[f"{size:,}", f"{planning:.2f}", f"{all_:.2f}"] for size, planning, all_ in rows]
        sizes_, *columns = zip(*rows, strict=True)
        planning, all_ = (np.polyfit(np.log(sizes_), np.log(column), 1)[0] for column in columns)
        text += f"""
{table([what, "planning", "all"], cells)}

Exponents of {what} by least squares: planning {planning:.2f}, all stages {all_:.2f}.
"""
    return text


def repeated(name: str, target: str, folder: str) -> list[float]:
    """Return processor seconds of tracing, of our compilation and of the first call, where a folder keeps what is compiled."""
    os.environ["IPUXLA_CACHE_DIR"] = os.path.join(folder, "programs")
    jax.config.update("jax_compilation_cache_dir", os.path.join(folder, "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    function, args = PROGRAMS[name]()
    first = ipuxla.jit(small()[0], target=Target.named(target).replace(num_tiles=16))
    jax.block_until_ready(first(*small()[1]))
    seconds, result = [], None
    jitted = ipuxla.jit(function, target=target, check_memory=False)
    for step in (
        lambda _: jitted.lower(*args),
        lambda lowered: lowered.compile(),
        lambda compiled: jax.block_until_ready(compiled(*args)),
    ):
        start = time.process_time()
        result = step(result)
        seconds.append(time.process_time() - start)
    return seconds


def again(target: str) -> str:
    """Return the table of what a first and a second process take that keep their programs in one folder."""
    fresh = multiprocessing.get_context("spawn")
    cells = []
    for name in AGAIN:
        with tempfile.TemporaryDirectory() as folder:
            for which in ("first", "second"):
                with fresh.Pool(1) as pool:
                    seconds = pool.apply(repeated, (name, target, folder))
                cells.append([name, which, *(f"{s:.2f}" for s in seconds)])
    return table(["program", "process", "tracing", "own compilation", "first call"], cells)


def render(rows: dict[str, list[float]], target: str, rounds: int, more: str = "") -> str:
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
{more}"""


GROWTH = """
## Growth

Of the transformer step, on a GC200. Layers are alike, so that planning answers the questions of one; the rest reads and writes
each layer. Tiles are entries of arrays.
{growth}
## Again, in a second process

Processor seconds with the fast engine; the folder of compiled programs (`IPUXLA_CACHE_DIR`) and JAX's own
(`JAX_COMPILATION_CACHE_DIR`) are empty before the first process.

{again}
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
    is_all = len(names) == len(PROGRAMS)
    more = GROWTH.format(growth=growth(rounds), again=again(target)) if is_all else ""
    text = render({name: measure(name, target, rounds) for name in names}, target, rounds, more)
    print(text)
    if is_all:
        print(f"written: {write_result('compile', text)}")


if __name__ == "__main__":
    app.run(main)
