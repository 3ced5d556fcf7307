"""Ordinary networks at published size: seconds to compile, cycles, memory, and what bounds them.

python -m benchmarks.models [--only=gpt,resnet] [--target=gc200] [--limit=1200]

Nothing runs and no weight is made: the networks (``tests/models``) are compiled from shapes. Each is compiled in a
process of its own, so that the planner remembers nothing; one that fails, or takes longer than the limit, is a row
that says so.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import jax
import numpy as np
from absl import app, flags, logging

import ipuxla
from benchmarks.timing import machine, table, write_result
from ipuxla import fitting, stages, ways
from ipuxla.errors import OutOfTileMemory
from tests.models import MAKERS, Model, model
from tiles.compiler import Executable, ExecuteStep, certify, check, step_costs
from tiles.kept import FOLDER
from tiles.report import cost_analysis, memory_analysis
from tiles.report.counts import static_counts
from tiles.target import Target

ROOT = pathlib.Path(__file__).parents[1]
PUBLISHED = pathlib.Path(__file__).parent / "data" / "throughput.json"
STAGES = ("trace", "import", "HLO passes", "lowering", "planning", "graph compiler", "check", "error")
"""The first is JAX's; the others are our own compile time, with what it takes to say that a program does not fit."""
CATEGORIES = {
    "variables": ("variable", "constant"),
    "messages": ("message",),
    "vertices": ("vertexInstanceState", "vertexScratch", "vertexCode"),
    "exchange code": ("internalExchangeCode", "hostExchangeCode"),
    "rest": ("hostExchangePacketHeader", "hostMessage", "controlCode", "stack"),
}
"""Columns of the memory table, and the categories of buffers in each."""
LARGEST = 5
"""How many kinds of vertices are named."""

_ONLY = flags.DEFINE_list("only", [], "models to compile, by parts of their names; all by default")
_TARGET = flags.DEFINE_string("target", None, "target of all; by default each model's own")
_LIMIT = flags.DEFINE_float("limit", 1200, "wall seconds after which a model is given up", lower_bound=1)

Row = dict[str, Any]


class Clock:
    """Adds up processor seconds by stage."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()

    def run(self, stage: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what a call returns."""
        start = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            self.seconds[stage] += time.process_time() - start
            self.calls[stage] += 1

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, its calls timed."""
        return lambda *args, **kwargs: self.run(stage, function, *args, **kwargs)


def compiled(made: Model, target: Target, clock: Clock) -> Executable:
    """Return a model as ``ipuxla.jit`` compiles it, from nothing that an earlier process kept."""
    timed = {
        (stages, "import_stablehlo"): "import",
        (ways, "optimize"): "HLO passes",
        (fitting, "lower_module"): "lowering",
        (fitting, "planned"): "planning",
        (fitting, "compile_graph"): "graph compiler",
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {FOLDER: ""}))
        for (module, name), stage in timed.items():
            function = clock.timed(stage, getattr(module, name))
            stack.enter_context(mock.patch.object(module, name, function))
        jitted = ipuxla.jit(made.function, target=target, donate_argnums=made.donated)
        lowered = clock.run("trace", jitted.lower, *made.arguments)
        clock.seconds["trace"] -= clock.seconds["import"]
        executable = lowered.compile(check_memory=False).executable
        clock.run("check", check, executable)
        if not executable.fits:
            clock.run("error", _refused, lowered)
    return executable


def _refused(lowered: ipuxla.Lowered) -> str:
    try:
        lowered.compile(check_memory=True)
    except OutOfTileMemory as error:
        return str(error)
    raise AssertionError("a program that does not fit was compiled")


def measure(name: str, target: str | None) -> Row:
    """Compile a model and return its figures, or as many as there are before an error."""
    made, clock = model(name, "published"), Clock()
    row: Row = {"name": name, "target": target or made.target, "error": ""}
    machine_ = Target.named(row["target"])
    try:
        executable = compiled(made, machine_, clock)
        row["plannings"] = clock.calls["planning"]
        row |= figures(executable, made)
        row["certify"] = ""
        clock.run("certify", certify, executable)
        row["certify"] = "yes"
    except Exception as error:
        first = str(error).strip().splitlines() or [""]
        row["error"] = f"{type(error).__name__}: {first[0]}"
    row["seconds"] = dict(clock.seconds)
    return row


def figures(executable: Executable, made: Model) -> Row:
    """Return what an executable takes, as plain data."""
    cost, memory = cost_analysis(executable), memory_analysis(executable)
    exchange_code = np.zeros(executable.target.num_tiles, np.int64)
    for buffer in executable.buffers.values():
        if buffer.category == "internalExchangeCode":
            for first, end in buffer.tiles:
                exchange_code[first:end] += buffer.size_bytes
    halves = any(leaf.dtype == np.float16 for leaf in jax.tree.leaves(made.arguments))
    seconds = cost["seconds"]
    return {
        "cycles": cost["cycles"],
        "range": cost["cycles_range"],
        "items": None if seconds is None else made.items / seconds,
        "share": None
        if seconds is None or cost["flops"] is None
        else cost["flops"] / seconds / executable.target.peak_flops("float16" if halves else "float32"),
        "phases": {kind: cost[f"{kind}_cycles"] for kind in ("compute", "exchange", "sync")},
        "largest": largest(executable),
        "memory": {
            label: sum(memory["categories"][kind]["fullest_tile_bytes"] for kind in kinds)
            for label, kinds in CATEGORIES.items()
        },
        "peak": memory["peak_bytes"],
        "gaps": memory["bytes_including_gaps"],
        "at": memory["peak_step_name"],
        "fits": memory["fits"],
        "code": (int(exchange_code.max()), int(exchange_code.mean())),
        "steps": len(executable.steps),
    }


def largest(executable: Executable) -> list[tuple[str, str, int, int]]:
    """Return the vertices that take the most cycles, those of one codelet and source line together.

    Vertices that share a superstep count with what they take on the tile that it waits for.

    Returns:
      What runs, the source line, in how many steps, and the cycles of all their runs.
    """
    counts, _ = static_counts(executable)
    steps: Counter[tuple[str, str]] = Counter()
    cycles: Counter[tuple[str, str]] = Counter()
    for step, cost, count in zip(executable.steps, step_costs(executable), counts, strict=True):
        if not isinstance(step, ExecuteStep):
            continue
        keys = [(g.codelet.label, g.location.removeprefix(f"{ROOT}/")) for g in step.groups]
        steps.update(set(keys))
        for key, (_, taken) in zip(keys, cost.vertex_parts, strict=True):
            cycles[key] += (count or 0) * taken
    return [(*key, steps[key], total) for key, total in cycles.most_common(LARGEST)]


# ---- one process for each


def _send(pipe: Connection, name: str, target: str | None) -> None:
    logging.set_verbosity(logging.WARNING)
    pipe.send(measure(name, target))


def apart(name: str, target: str | None, limit: float) -> Row:
    """Return a model's row, from a process of its own, whatever becomes of it."""
    fresh = multiprocessing.get_context("spawn")
    ours, theirs = fresh.Pipe()
    process = fresh.Process(target=_send, args=(theirs, name, target))
    process.start()
    theirs.close()
    try:
        if ours.poll(limit):
            return ours.recv()
        error = f"given up after {limit:g} s"
    except EOFError:
        process.join()
        error = f"its process ended with code {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return {
        "name": name,
        "target": target or model(name, "published").target,
        "seconds": {},
        "error": error,
    }


# ---- the result file


def published() -> list[dict[str, Any]]:
    """Return published throughputs, by model."""
    return json.loads(PUBLISHED.read_text())


def _number(value: float | None, form: str = ",.0f") -> str:
    return "unknown" if value is None else format(value, form)


def own_seconds(row: Row) -> float:
    """Return the seconds of our own compilation."""
    return sum(row["seconds"].get(stage, 0.0) for stage in STAGES[1:])


def of_compilation(rows: Sequence[Row]) -> str:
    """Return the table of seconds."""
    cells = []
    for row in rows:
        seconds = [f"{row['seconds'][s]:.1f}" if s in row["seconds"] else "" for s in (*STAGES, "certify")]
        goal = f"{model(row['name'], 'published').goals.compile_seconds:g}"
        plannings = str(row.get("plannings", ""))
        cells.append([row["name"], row["target"], *seconds, f"{own_seconds(row):.1f}", goal, plannings])
    return table(["model", "target", *STAGES, "certify", "own", "goal", "plannings"], cells)


def of_speed(rows: Sequence[Row]) -> str:
    """Return the table of cycles."""
    cells = []
    for row in (row for row in rows if "cycles" in row):
        low_high = " to ".join(f"{cycles:,}" for cycles in row["range"] or ()) or "unknown"
        share = "unknown" if row["share"] is None else f"{row['share']:.1%}"
        unit = model(row["name"], "published").unit
        phases = [
            _number(None if part is None or not row["cycles"] else part / row["cycles"], ".0%")
            for part in row["phases"].values()
        ]
        speed = f"{_number(row['items'])} {unit}"
        cells.append([row["name"], _number(row["cycles"]), low_high, speed, share, *phases])
    header = ["model", "cycles", "range", "items/s", "of peak", *("compute", "exchange", "sync")]
    return table(header, cells)


def of_memory(rows: Sequence[Row]) -> str:
    """Return the table of bytes."""
    cells = []
    for row in (row for row in rows if "memory" in row):
        goals = model(row["name"], "published").goals
        fits = "yes" if row["fits"] else "NO" if goals.must_fit else "no (too large)"
        code, mean = row["code"]
        goal = "" if goals.exchange_code_bytes is None else f"{goals.exchange_code_bytes:,}"
        parts = [f"{size:,}" for size in row["memory"].values()]
        cells.append(
            [
                row["name"],
                fits,
                f"{row['peak']:,}",
                *parts,
                f"{code:,}",
                f"{mean:,}",
                goal,
                f"{row['steps']:,}",
            ]
        )
    most = ["most exchange code", "mean", "goal", "steps"]
    return table(["model", "fits", "peak", *CATEGORIES, *most], cells)


def of_bounds(rows: Sequence[Row]) -> str:
    """Return a list of the vertices that take the most cycles."""
    lines = []
    for row in (row for row in rows if row.get("largest")):
        parts = {phase: part for phase, part in row["phases"].items() if part is not None}
        most = max(parts, key=lambda phase: parts[phase]) if parts else "unknown"
        lines.append(
            f"- {row['name']}: {most}; the memory is fullest at {row['at']}. Vertices that take most:"
        )
        for what, where, steps, cycles in row["largest"]:
            share = f" ({cycles / row['cycles']:.1%})" if row["cycles"] else ""
            lines.append(
                f"  - {what}{f' of {where}' if where else ''}: {cycles:,} cycles{share} in {steps} steps"
            )
    return "\n".join(lines)


def of_published(rows: Sequence[Row]) -> str:
    """Return the table of published throughputs beside ours."""
    ours = {row["name"]: row.get("items") for row in rows}
    cells, notes = [], []
    for entry in (entry for entry in published() if entry["model"] in ours):
        share = entry["items_per_second"] / entry["ipus"]
        what = f"{entry['what']}, {entry['ipus']} x {entry['target']}"
        cells.append(
            [
                entry["model"],
                what,
                f"{entry['items_per_second']:,}",
                f"{share:,.0f}",
                _number(ours[entry["model"]]),
            ]
        )
        notes.append(f"- {what} ({entry['source']}): {entry['note']}.")
    if not cells:
        return "None for these models."
    header = ["model", "published", "items/s", "an IPU's share", "ours"]
    return f"{table(header, cells)}\n\n" + "\n".join(dict.fromkeys(notes))


def of_errors(rows: Sequence[Row]) -> str:
    """Return a list of what failed."""
    return "\n".join(f"- {row['name']}: {row['error']}" for row in rows if row["error"]) or "None."


TEXT = """# Ordinary networks at published size

{machine}.
Compiled from shapes, each in a process of its own; nothing ran. Estimates of cycles, not measurements.

## Seconds to compile

Processor seconds, which grow by a tenth and more where others use the cores (see the load average above). JAX's tracing is
not in "own", nor is certification. "plannings" counts how often the program was planned:
again while it does not fit and planning otherwise may help. "error" is what it takes to say why it does not fit, advice tried.

{compilation}

## Speed

Shares of peak are floating-point operations of all kinds over the machine's peak for the type of the weights.

{speed}

## Memory of the fullest tile, at its peak

Bytes; a tile has {limit}. With gaps: up to the highest address that is used in each region of memory.
Exchange code is given for the tile that has the most of it, and on average.

{memory}

## What bounds them

{bounds}

## Published throughput

None of these is the same program; what differs is below the table. Ours is a call's items over its cycles: no transfer from and
to the host, no other IPU.

{published}

## Errors

{errors}
"""


def render(rows: Sequence[Row]) -> str:
    """Return the result file."""
    limits = sorted({(row["target"], Target.named(row["target"]).bytes_per_tile) for row in rows})
    return TEXT.format(
        machine=machine(),
        compilation=of_compilation(rows),
        speed=of_speed(rows),
        limit=", ".join(f"{size:,} on {name}" for name, size in limits),
        memory=of_memory(rows),
        bounds=of_bounds(rows),
        published=of_published(rows),
        errors=of_errors(rows),
    )


def main(argv: Sequence[str]) -> None:
    """Compile, print, and write ``benchmarks/results/models.md`` unless only some models ran or elsewhere."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    names = [n for n in MAKERS if not _ONLY.value or any(part in n for part in _ONLY.value)]
    if not names:
        raise app.UsageError(f"--only={','.join(_ONLY.value)} names none of: {', '.join(MAKERS)}")
    rows = []
    for name in names:
        row = apart(name, _TARGET.value, _LIMIT.value)
        rows.append(row)
        fits = "does not compile" if "fits" not in row else "fits" if row["fits"] else "does not fit"
        print(f"{name}: {own_seconds(row):.1f} s, {fits} {row['error']}".rstrip(), flush=True)
    text = render(rows)
    print(text)
    if len(names) == len(MAKERS) and _TARGET.value is None:
        print(f"written: {write_result('models', text)}")


if __name__ == "__main__":
    app.run(main)
