"""What crosses the links between IPUs in a run: by kind of link, on the busiest of each, and by collective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiles.compiler import Executable, step_costs
from tiles.compiler.control import Composite, nodes_of, steps_of
from tiles.graph import Collective
from tiles.numerics.dtypes import itemsize
from tiles.report.places import place_data
from tiles.report.totals import Count, totals


def links_data(executable: Executable, counts: Sequence[Count]) -> dict[str, Any] | None:
    """Return the section ``execution.links`` of a profile; None for a program of one IPU."""
    if executable.system is None:
        return None
    return {
        "system": executable.system.name,
        "numIpus": executable.system.num_ipus,
        "replicas": [{"axis": name, "size": size} for name, size in executable.replicas.axes],
        "kinds": _kinds(executable, counts),
        "collectives": _collectives(executable, counts),
    }


def _kinds(executable: Executable, counts: Sequence[Count]) -> list[dict[str, Any]] | None:
    """Return every kind of link that is used; None where it is not known how often steps run."""
    assert executable.system is not None
    system, table = executable.system, executable.system.table
    loads = np.zeros((len(table.kind), 2), np.float64)
    for cost, count in zip(step_costs(executable), counts, strict=True):
        crossed = cost.link_bytes
        if not len(crossed):
            continue
        if count is None:
            return None
        loads += float(count) * crossed
    found = []
    for number, link in enumerate(system.links):
        rows = np.flatnonzero((table.kind == number) & loads.any(axis=1))
        if not rows.size:
            continue
        seconds = loads[rows] / table.payload_bytes_per_second[rows, None]
        row, direction = np.unravel_index(int(seconds.argmax()), seconds.shape)
        ends = table.ends[rows[row]][:: -1 if direction else 1]
        found.append(
            {
                "name": link.name,
                "kind": link.kind,
                "links": int(rows.size),
                "bytes": int(loads[rows].sum()),
                "busiest": " to ".join(system.node_name(int(end)) for end in ends),
                "busiestBytes": int(loads[rows[row], direction]),
                "busiestSeconds": float(seconds[row, direction]),
                "bytesPerSecond": float(table.payload_bytes_per_second[rows[row]]),
                "basis": link.rate_basis.value,
            }
        )
    return sorted(found, key=lambda entry: -entry["busiestSeconds"])


def _collectives(executable: Executable, counts: Sequence[Count]) -> list[dict[str, Any]]:
    """Return every collective, costliest first: its algorithm, cycles, and its operand's bytes over their time."""
    found, seen = [], set[int]()
    for node in nodes_of(executable.program):
        if not isinstance(node, Composite) or node.number in seen:
            continue
        seen.add(node.number)
        whole = executable.composites[node.number]
        if not isinstance(whole.codelet, Collective):
            continue
        steps = list(dict.fromkeys(steps_of(node.body)))
        sums = totals(executable, counts, steps)
        variables = [executable.variables[operand.variable] for operand in whole.operands]
        size = sum(math.prod(v.shape) * itemsize(v.dtype) for v in variables)
        runs = counts[steps[0]]
        seconds = None if not sums.cycles or not runs else executable.target.seconds(sums.cycles) / runs
        found.append(
            {
                "name": whole.name,
                "label": whole.codelet.label,
                "axes": list(whole.codelet.axes),
                **place_data(whole.location),
                "bytes": size,
                "runs": runs,
                "cycles": sums.cycles,
                "linkCycles": sums.link_cycles,
                "syncCycles": sums.sync_cycles,
                "bytesPerSecond": None if seconds is None else size / seconds,
            }
        )
    return sorted(found, key=lambda entry: -(entry["cycles"] or 0))


def links_text(data: dict[str, Any] | None) -> list[str]:
    """Return the lines of a report on links, from ``links_data``; none for a program of one IPU."""
    if data is None:
        return []
    mesh = " x ".join(f"{axis['axis']} {axis['size']}" for axis in data["replicas"]) or "one replica"
    lines = [f"replicas: {mesh}, on {data['system']} of {data['numIpus']:,} IPUs; figures are one replica's"]
    for entry in data["kinds"] or ():
        micro = entry["busiestSeconds"] * 1e6
        lines.append(
            f"  {entry['name']} ({entry['kind']}): {entry['bytes']:,} B on {entry['links']:,} links; busiest "
            f"{entry['busiest']}: {entry['busiestBytes']:,} B, {micro:,.1f} us at "
            f"{entry['bytesPerSecond'] / 1e9:.1f} GB/s ({entry['basis']})"
        )
    if data["kinds"] is None:
        lines.append("  bytes on links: unknown, they depend on data")
    for entry in data["collectives"]:
        rate = entry["bytesPerSecond"]
        known = "unknown" if rate is None else f"{rate / 1e9:.2f} GB/s of the operand"
        cycles = "unknown" if entry["cycles"] is None else f"{entry['cycles']:,}"
        lines.append(
            f"  {entry['label']} {entry['name']} along {', '.join(entry['axes'])}: {entry['bytes']:,} B, "
            f"{cycles} cycles, {known}"
        )
    return lines
