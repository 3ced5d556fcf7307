"""Fair timing on a shared machine: contenders take turns, medians count, processor time beside wall time."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np

from ipuxla.stages import Lowered

RESULTS = pathlib.Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True)
class Timing:
    """Durations of one contender, in seconds.

    Attributes:
      first: wall time of the first call, whatever it compiles included.
      wall: median wall time of the calls after it.
      cpu: median processor time of the same calls, all threads added up.
      first_cpu: processor time of the first call.
    """

    first: float
    wall: float
    cpu: float
    first_cpu: float


def clock(function: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return wall seconds, processor seconds and result of a call, waiting for its arrays."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = jax.block_until_ready(function())
    return time.perf_counter() - wall, time.process_time() - cpu, result


def interleave(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Call every contender once, then ``rounds`` times in turn.

    Args:
      contenders: what to call, by name; each returns arrays.
      rounds: calls of each that are timed after the first.
    """
    first = {name: clock(function)[:2] for name, function in contenders.items()}
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            samples[name].append(clock(function)[:2])
    found: dict[str, Timing] = {}
    for name, taken in samples.items():
        wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
        found[name] = Timing(first[name][0], wall, cpu, first[name][1])
    return found


def contenders(
    function: Callable[..., Any], lowered: Lowered, args: Sequence[Any], engines: Sequence[str]
) -> dict[str, Callable[[], Any]]:
    """Return the calls to time: native ``jax.jit`` first, then each engine.

    Args:
      function: what both compile.
      lowered: the function, lowered by ``ipuxla.jit``.
      args: its arguments.
      engines: names of engines.
    """
    native = jax.jit(function)
    calls: dict[str, Callable[[], Any]] = {"jax.jit": lambda: native(*args)}
    for engine in engines:
        compiled = lowered.compile(engine=engine)
        calls[engine] = lambda compiled=compiled: compiled(*args)
    return calls


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up in plain text too."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(row: Sequence[str]) -> str:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        return " | ".join((f"| {first.strip().ljust(widths[0])}", *rest)) + " |"

    return "\n".join(map(line, (header, rule, *rows)))


def machine() -> str:
    """Return what a reader needs to know about where numbers come from."""
    versions = (
        f"Python {platform.python_version()}, jax {jax.__version__}, jaxlib {metadata.version('jaxlib')}"
    )
    where = f"{os.cpu_count()} cores ({platform.machine()}), backend {jax.default_backend()}"
    load = f"load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    return f"{where}, {load}; {versions}, numpy {np.__version__}"


def write_result(name: str, text: str) -> pathlib.Path:
    """Write a result file and return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    path.write_text(text, encoding="utf-8")
    return path
