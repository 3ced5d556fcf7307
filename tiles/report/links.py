"""What crosses the links between IPUs in a run: by kind of link, on the busiest of each, and by collective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiles.compiler import Executable, step_costs
from tiles.compiler.control import Composite, nodes_of, steps_of
from tiles.compiler.steps import CopyStep, ExecuteStep, StepRecord
from tiles.compiler.wellformed import root_of
from tiles.files import JsonObject
from tiles.graph import Collective
from tiles.numerics.dtypes import itemsize
from tiles.report.places import place_data
from tiles.report.totals import Count, totals

DRAWN = 64
"""IPUs of a drawing of a system's graph."""


LISTED = 12
"""Arguments whose shardings the text lists; the page has all."""


@dataclass(frozen=True)
class Argument:
    """What the caller knows of an input of an executable that several replicas run.

    Args:
      name: what the caller calls it.
      shape: of the whole array.
      sharding: how it is cut, as the caller writes that: "P('data', None)".
    """

    name: str
    shape: tuple[int, ...]
    sharding: str


def links_data(
    executable: Executable, counts: Sequence[Count], arguments: Sequence[Argument] = ()
) -> JsonObject | None:
    """Return the section ``execution.links`` of a profile; None for a program of one IPU.

    Args:
      executable: the program.
      counts: how often its steps ran.
      arguments: one for each input; none where the caller knows no more than the executable.
    """
    if executable.system is None:
        return None
    loads = _loads(executable, counts)
    return {
        "system": executable.system.name,
        "numIpus": executable.system.num_ipus,
        "replicas": [{"axis": name, "size": size} for name, size in executable.replicas.axes],
        "kinds": None if loads is None else _kinds(executable, counts, loads),
        "drawing": None if loads is None else _drawing(executable, loads),
        "collectives": _collectives(executable, counts),
        "arguments": _arguments(executable, arguments),
    }


def _arguments(executable: Executable, arguments: Sequence[Argument]) -> list[JsonObject]:
    """Return what of each input a replica holds, and where it is read first."""
    first: dict[str, str] = {}
    for step in executable.steps:
        for names, location in located_reads(step):
            for name in names:
                first.setdefault(root_of(executable, name), location)
    found: list[JsonObject] = []
    for number, (name, axes) in enumerate(zip(executable.inputs, executable.differs_along, strict=True)):
        v = executable.variables[name]
        said = arguments[number] if arguments else Argument(name, v.shape, "")
        found.append(
            {
                "name": said.name,
                "shape": list(said.shape),
                "sharding": said.sharding or None,
                "dtype": v.dtype,
                "ownShape": list(v.shape),
                "ownBytes": math.prod(v.shape) * itemsize(v.dtype),
                "differsAlong": list(axes),
                "location": first.get(root_of(executable, name), ""),
            }
        )
    return found


def _loads(executable: Executable, counts: Sequence[Count]) -> np.ndarray | None:
    """Return the bytes on every link and direction in a run, float64 ``[links, 2]``; None where counts are not known."""
    assert executable.system is not None
    loads = np.zeros((len(executable.system.table.kind), 2), np.float64)
    for cost, count in zip(step_costs(executable), counts, strict=True):
        crossed = cost.link_bytes
        if not len(crossed):
            continue
        if count is None:
            return None
        loads += float(count) * crossed
    return loads


def located_reads(step: StepRecord) -> list[tuple[tuple[str, ...], str]]:
    """Return the variables that a step reads, with the source lines that they are read for."""
    if isinstance(step, ExecuteStep):
        return [(tuple(o.variable for o in group.operands), group.location) for group in step.groups]
    if isinstance(step, CopyStep):
        return [(copy.sources, copy.location) for copy in step.copies]
    return [(step.reads, getattr(step, "location", ""))]


def _kinds(executable: Executable, counts: Sequence[Count], loads: np.ndarray) -> list[JsonObject]:
    """Return every kind of link that is used."""
    assert executable.system is not None
    system, table = executable.system, executable.system.table
    found: list[JsonObject] = []
    for number, link in enumerate(system.links):
        rows = np.flatnonzero((table.kind == number) & loads.any(axis=1))
        if not rows.size:
            continue
        rates = table.payload_bytes_per_second[rows, None]
        seconds = loads[rows] / rates
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
                "cyclesByStep": _cycles_by_step(executable, counts, rows, rates),
            }
        )
    return sorted(found, key=lambda entry: -entry["busiestSeconds"])


def _cycles_by_step(
    executable: Executable, counts: Sequence[Count], rows: np.ndarray, rates: np.ndarray
) -> list[int]:
    """Return how long the busiest of some links carries what each step sends, over all its runs."""
    found: list[int] = []
    for cost, count in zip(step_costs(executable), counts, strict=True):
        crossed = cost.link_bytes
        seconds = float((crossed[rows] / rates).max(initial=0)) if len(crossed) else 0.0
        found.append(math.ceil(seconds * executable.target.clock_hz * float(count or 0)))
    return found


def _drawing(executable: Executable, loads: np.ndarray) -> JsonObject:
    """Return the part of the system's graph around its busiest link: what a page can show.

    The IPUs are up to ``DRAWN`` in a row of which the busiest link's first IPU is one, with the nodes between them.
    """
    system = executable.system
    assert system is not None
    table, ipus = system.table, system.num_ipus
    seconds = loads.max(axis=1) / table.payload_bytes_per_second
    own = np.flatnonzero((table.ends < ipus).any(axis=1))
    busiest = int(table.ends[own[int(seconds[own].argmax())]].min()) if own.size else 0
    first = busiest // DRAWN * DRAWN
    drawn = (table.ends >= first) & (table.ends < first + DRAWN)
    near = np.unique(table.ends[drawn.any(axis=1)])
    shown = np.union1d(near[near >= ipus], np.arange(first, min(first + DRAWN, ipus)))
    degree = np.bincount(table.ends.reshape(-1))
    for _ in range(2):  # what those nodes lead to: switches to hosts, hosts to a network, and no further
        leading = shown[(shown >= ipus) & (degree[shown] <= DRAWN)]
        beyond = table.ends[np.isin(table.ends, leading).any(axis=1)]
        shown = np.union1d(shown, beyond[beyond >= ipus])
    rows = np.flatnonzero(np.isin(table.ends, shown).all(axis=1))
    place = {int(node): number for number, node in enumerate(shown)}
    return {
        "nodes": [system.node_name(int(node)) for node in shown],
        "links": [
            {
                "ends": [place[int(end)] for end in table.ends[row]],
                "name": system.links[int(table.kind[row])].name,
                "bytes": [int(load) for load in loads[row]],
                "seconds": float(seconds[row]),
            }
            for row in rows
        ],
    }


def _collectives(executable: Executable, counts: Sequence[Count]) -> list[JsonObject]:
    """Return every collective, costliest first: its algorithm, cycles, and its operand's bytes over their time."""
    found: list[JsonObject] = []
    seen = set[int]()
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


def replicas_text(data: JsonObject) -> str:
    """Return the mesh and its system in a sentence, from ``links_data``."""
    mesh = " x ".join(f"{axis['axis']} {axis['size']}" for axis in data["replicas"]) or "one replica"
    return f"replicas: {mesh}, on {data['system']} of {data['numIpus']:,} IPUs; figures are one replica's"


def bound_text(profile: JsonObject) -> str:
    """Return what most of a run waits for, and what one replica and all do in a second; "" where it is not known."""
    execution, links = profile["execution"], profile["execution"]["links"]
    phases = {name: execution[f"{name}Cycles"] for name in ("compute", "exchange", "sync", "link")}
    if not execution["cycles"] or None in phases.values():
        return ""
    most = max(phases, key=lambda name: phases[name])
    what = "links between IPUs" if most == "link" else most
    if most == "link" and links["kinds"]:
        what = f"links between IPUs ({links['kinds'][0]['name']} is the busiest)"
    share, rate = phases[most] / execution["cycles"], execution["flops"] / execution["seconds"]
    count = math.prod(axis["size"] for axis in links["replicas"])
    return (
        f"bound by {what}: {share:.0%} of the cycles; {1 / execution['seconds']:,.0f} runs/s, "
        f"{rate / 1e12:,.3g} Tflop/s a replica, {rate * count / 1e12:,.3g} together"
    )


def links_text(profile: JsonObject) -> list[str]:
    """Return the lines of a report on links, from a profile's document; none for a program of one IPU."""
    data = profile["execution"]["links"]
    if data is None:
        return []
    bound = bound_text(profile)
    lines = [replicas_text(data), *(["  " + bound] if bound else [])]
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
    largest = sorted(data["arguments"], key=lambda entry: -entry["ownBytes"])
    lines += [f"  argument {argument_words(entry)}" for entry in largest[:LISTED]]
    if len(largest) > LISTED:
        own = sum(entry["ownBytes"] for entry in largest[LISTED:])
        lines.append(f"  and {len(largest) - LISTED} smaller arguments: {own:,} B on each IPU")
    return lines


def argument_words(entry: JsonObject) -> str:
    """Return in words how an argument is shared out, from ``links_data``."""
    whole, own = (f"{entry['dtype']}{entry[key]}" for key in ("shape", "ownShape"))
    along = " and ".join(entry["differsAlong"])
    cut = f" {entry['sharding']}" if entry["sharding"] else ""
    held = f"{own}, {entry['ownBytes']:,} B on each IPU"
    return f"{entry['name']} {whole}{cut}: {held}, {f'another along {along}' if along else 'the same on all'}"
