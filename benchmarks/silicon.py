"""Estimated cycles beside published measurements on silicon: how far to trust the numbers.

python -m benchmarks.silicon

The measurements (``benchmarks/data/published.json``) are not used to fit anything: vertex cycles and the
exchange follow the formulas named in ``tiles``. Where a publication does not state the clock, both are shown.
"""

from __future__ import annotations

import json
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app

from benchmarks.timing import table, write_result
from tiles.compiler import compile_graph, step_costs
from tiles.graph import Extents, Graph
from tiles.poplibs import poplin
from tiles.poplibs.forms import dot_form
from tiles.target import Target

PUBLISHED = pathlib.Path(__file__).parent / "data" / "published.json"
CLOCKS = {"gc200": "at 1.33 GHz", "bow": "at 1.85 GHz"}


def published() -> list[dict[str, Any]]:
    """Return the measurements: shape, dtype, cycles or TFLOP/s, source."""
    return json.loads(PUBLISHED.read_text())


def vertex_cycles(entry: dict[str, Any]) -> int:
    """Return the estimate for a matmul that one tile computes alone, its operands in place."""
    m, k, n, dtype = entry["m"], entry["k"], entry["n"], entry["dtype"]
    form = dot_form((m, k), (k, n), (), (), (1,), (0,))
    codelet = poplin.matmul_codelet(dtype, dtype, "float32", "amp")
    sizes = tuple(np.array([dim.size]) for dim in form.dims)
    extents = Extents(form, sizes, (dtype, dtype), ("float32",))
    return int(np.max(codelet.cycles(extents, Target.named(entry["target"])).value))


def device_cycles(entry: dict[str, Any]) -> int:
    """Return the estimate for a matmul on a whole GC200, exchange and sync included."""
    m, k, n, dtype = entry["m"], entry["k"], entry["n"], entry["dtype"]
    graph = Graph(Target.named("gc200"))
    lhs, rhs = graph.add_input((m, k), dtype, "lhs"), graph.add_input((k, n), dtype, "rhs")
    graph.outputs.append(poplin.matmul(graph, lhs, rhs).name)
    return sum(cost.cycles for cost in step_costs(compile_graph(graph, check_memory=False)))


def on_a_tile(entries: Sequence[dict[str, Any]]) -> str:
    """Return the table of single-tile measurements."""
    rows = []
    for entry in entries:
        ours = vertex_cycles(entry)
        shape = f"{entry['m']} x {entry['k']} x {entry['n']}"
        rows.append(
            [shape, entry["dtype"], f"{entry['cycles']:,.0f}", f"{ours:,}", f"{ours / entry['cycles']:.2f}"]
        )
    return table(["m x k x n", "dtype", "measured cycles", "estimated", "ratio"], rows)


def on_a_device(entries: Sequence[dict[str, Any]]) -> str:
    """Return the table of whole-IPU measurements, and how the ratios spread."""
    rows, ratios = [], {(name, dtype): [] for name in CLOCKS for dtype in ("float32", "float16")}
    for entry in sorted(entries, key=lambda e: (e["dtype"], e["k"], e["n"])):
        ours = device_cycles(entry)
        flops = 2 * entry["m"] * entry["k"] * entry["n"]
        row = [f"{entry['m']} x {entry['k']} x {entry['n']}", entry["dtype"], f"{ours:,}"]
        for name in CLOCKS:
            measured = flops / (entry["tflops"] * 1e12) * Target.named(name).clock_hz
            ratios[name, entry["dtype"]].append(ours / measured)
            row += [f"{measured:,.0f}", f"{ours / measured:.2f}"]
        rows.append(row)
    head = [
        "m x k x n",
        "dtype",
        "estimated",
        *(x for c in CLOCKS.values() for x in (f"measured {c}", "ratio")),
    ]
    return f"{table(head, rows)}\n\n{spread(ratios)}"


def spread(ratios: dict[tuple[str, str], list[float]]) -> str:
    """Return geometric mean and middle of the ratios of estimates to measurements."""
    rows = []
    for (name, dtype), values in ratios.items():
        mean = math.exp(statistics.fmean(math.log(v) for v in values))
        low, _, high = statistics.quantiles(values, n=4)
        rows.append([dtype, CLOCKS[name], str(len(values)), f"{mean:.2f}", f"{low:.2f} to {high:.2f}"])
    return table(["dtype", "clock", "measurements", "geometric mean", "middle half"], rows)


def main(argv: Sequence[str]) -> None:
    """Compare, print, and write ``benchmarks/results/silicon.md``."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    entries = published()
    tiles = [entry for entry in entries if "cycles" in entry]
    devices = [entry for entry in entries if "tflops" in entry]
    sources = "\n".join(f"- {source}" for source in sorted({entry["source"] for entry in entries}))
    text = f"""# Estimates beside silicon

Ratios above 1: we estimate more cycles than were measured. Nothing here was fitted.

## One tile: float16 matmul on the AMP units

{on_a_tile(tiles)}

## A whole IPU: dense matmul

Read off a published plot (3 %), whose clock is not stated: a GC200's 1.33 GHz or a Bow's 1.85 GHz.

{on_a_device(devices)}

## Sources

{sources}
"""
    print(text)
    print(f"written: {write_result('silicon', text)}")


if __name__ == "__main__":
    app.run(main)
