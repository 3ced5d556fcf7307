"""The execution half of a profile: supersteps, operations and tile balance, static cost times count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from tiles.compiler import (
    HOST_STEPS,
    CopyStep,
    Executable,
    ExecuteStep,
    RemoteStep,
    StepCost,
    StreamStep,
    VariableCopy,
    step_costs,
)
from tiles.compiler.control_flow import Trips
from tiles.compiler.steps import StepRecord
from tiles.files import JsonObject
from tiles.graph import RemoteBuffer, Stream
from tiles.report.code import code_data
from tiles.report.compilation import camel
from tiles.report.control import control_data
from tiles.report.cost import cost_figures
from tiles.report.counts import step_locations
from tiles.report.links import Argument, links_data
from tiles.report.places import place_data
from tiles.report.tile_code import tile_code_data
from tiles.report.totals import Count, Totals, add, share, times, totals
from tiles.target import Basis

_STAGE = re.compile(r"\.(partials|combine\d*)$")
"""What the stages of one operation with a split reduction add to its name."""


def execution_data(
    executable: Executable, counts: Sequence[Count], trips: Trips, arguments: Sequence[Argument] = ()
) -> JsonObject:
    """Return the section ``execution`` of a profile for steps that ran ``counts`` times, and loops' ``trips``.

    ``arguments`` are what a caller knows of the inputs of a program of several replicas.
    """
    sums = totals(executable, counts, trips=trips)
    active = _active_cycles(executable, counts)
    ipus = [{"cycles": cycles} for cycles in sums.ipu_cycles] if sums.ipu_cycles is not None else None
    return {
        **camel(cost_figures(executable, sums)),
        "ipus": ipus,
        "tileBalance": None if active is None else balance(active),
        "activeCyclesByTile": None if active is None else active.tolist(),
        "steps": [
            _step(executable, number, cost, counts[number])
            for number, cost in enumerate(step_costs(executable))
        ],
        "control": control_data(executable, trips),
        "links": links_data(executable, counts, arguments),
        "streams": [_stream(executable, stream, counts) for stream in executable.streams.values()],
        "remoteBuffers": [_remote(executable, r, counts) for r in executable.remote_buffers.values()],
    }


def _stream(executable: Executable, stream: Stream, counts: Sequence[Count]) -> JsonObject:
    """Return a stream and how many items a run moves."""
    items: Count = 0
    for number, step in enumerate(executable.steps):
        if isinstance(step, StreamStep) and step.stream == stream.name:
            items = add(items, counts[number])
    return {
        "name": stream.name,
        "toHost": stream.to_host,
        "dtype": stream.dtype,
        "shape": list(stream.shape),
        "itemBytes": stream.item_bytes,
        "items": items,
        "bytes": times(items, stream.item_bytes),
        **place_data(stream.location),
    }


def _remote(executable: Executable, buffer: RemoteBuffer, counts: Sequence[Count]) -> JsonObject:
    """Return a remote buffer and how many bytes a run copies from and to it."""
    read: Count = 0
    written: Count = 0
    for number, step in enumerate(executable.steps):
        if isinstance(step, RemoteStep) and step.buffer == buffer.name:
            moved = times(counts[number], step_costs(executable)[number].host_bytes)
            written = add(written, moved) if step.to_remote else written
            read = read if step.to_remote else add(read, moved)
    return {
        "name": buffer.name,
        "dtype": buffer.dtype,
        "shape": list(buffer.shape),
        "repeats": buffer.repeats,
        "sizeBytes": buffer.size_bytes,
        "bytesRead": read,
        "bytesWritten": written,
        **place_data(buffer.location),
    }


def balance(active: np.ndarray) -> float | None:
    """Return the mean of the tiles' active cycles over the busiest tile's; None when no tile computes."""
    busiest = int(active.max(initial=0))
    return round(float(active.mean()) / busiest, 6) if busiest else None


def _active_cycles(executable: Executable, counts: Sequence[Count]) -> np.ndarray | None:
    """Return the cycles every tile computes in a run, int64 ``[num_tiles]``; None when counts are unknown."""
    active = np.zeros(executable.target.num_tiles, np.int64)
    for cost, count in zip(step_costs(executable), counts, strict=True):
        if count is None:
            return None
        active += count * cost.tile_compute_cycles
    return active


def _step(executable: Executable, number: int, cost: StepCost, count: Count) -> JsonObject:
    """Return one superstep: cycles of one execution, how often it ran, and both multiplied."""
    target = executable.target
    basis = {
        "compute": cost.compute_basis.value if cost.compute_cycles else None,
        "exchange": cost.exchange_basis.value if cost.exchange_cycles else None,
        "sync": cost.sync_basis.value if cost.sync_cycles else None,
        "hostExchange": cost.host_basis.value if cost.host_cycles else None,
        "link": Basis.weakest(basis for basis, _ in cost.link_basis).value if cost.link_cycles else None,
    }
    return {
        "step": number,
        "name": cost.name,
        **place_data(*step_locations(executable, number)),
        "count": count,
        "computeCycles": cost.compute_cycles,
        "exchangeCycles": cost.exchange_cycles,
        "syncCycles": cost.sync_cycles,
        "hostExchangeCycles": cost.host_cycles,
        "linkCycles": cost.link_cycles,
        "linkBytes": 0 if cost.links is None else cost.links.busiest_bytes,
        "cycles": cost.cycles,
        "totalCycles": times(count, cost.cycles),
        "computeCyclesByIpu": cost.tile_compute_cycles.reshape(target.num_ipus, -1).max(axis=1).tolist(),
        "tileBalance": balance(cost.tile_compute_cycles),
        "activeTiles": int(np.count_nonzero(cost.tile_compute_cycles)),
        "exchangeBytes": cost.exchange_bytes,
        "exchangeProgramsOf": sorted(
            {f for (s, _), (f, _) in executable.shared_exchange.items() if s == number}
        ),
        "hostExchangeBytes": cost.host_bytes,
        "flops": cost.flops,
        "basis": basis,
        "source": cost.source,
    }


def operations_data(executable: Executable, counts: Sequence[Count]) -> list[JsonObject]:
    """Return what every operation cost in the run, costliest first, operations of unknown cost last.

    An operation is all steps of one name, source line and scope; the stages of a split reduction are one
    operation. Operations that share a step, a compute set or an exchange of copies, are one row, named after the
    one whose vertices take longest (the first copy) with the count of the others, and list what each one's take.
    """
    members: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for number in range(len(executable.steps)):
        key = _operation_name(executable, number), step_locations(executable, number)
        members.setdefault(key, []).append(number)
    whole = totals(executable, counts)
    rows = [
        _operation(executable, name, places, steps, counts, whole.all_cycles)
        for (name, places), steps in members.items()
    ]
    return sorted(rows, key=lambda row: (row["cycles"] is None, -(row["cycles"] or 0), row["steps"][0]))


def _operation_name(executable: Executable, number: int) -> str:
    step = executable.steps[number]
    if isinstance(step, ExecuteStep):
        cycles = [taken for _, taken in step_costs(executable)[number].vertex_parts]
        longest = _STAGE.sub("", step.groups[cycles.index(max(cycles))].name)
        return f"{longest} and {len(cycles) - 1} more" if len(cycles) > 1 else longest
    copies = step.copies if isinstance(step, CopyStep) else ()
    return f"{step.name} and {len(copies) - 1} more" if len(copies) > 1 else step.name


def _members(executable: Executable, steps: Sequence[int], counts: Sequence[Count]) -> list[JsonObject]:
    """Return the operations that share steps, with what each one's vertices take, the costliest first; one alone is none."""
    found: dict[tuple[str, str, str], Count] = {}
    for number in steps:
        step = executable.steps[number]
        if isinstance(step, ExecuteStep):
            parts = step_costs(executable)[number].vertex_parts
            for group, (_, cycles) in zip(step.groups, parts, strict=True):
                key = _STAGE.sub("", group.name), group.location, group.codelet.label
                found[key] = add(found.get(key, 0), times(counts[number], cycles))
    if len({(name, location) for name, location, _ in found}) < 2:
        return []
    rows = [
        {"name": name, **place_data(location), "vertexType": label, "vertexCycles": cycles}
        for (name, location, label), cycles in found.items()
    ]
    return sorted(rows, key=lambda row: (row["vertexCycles"] is None, -(row["vertexCycles"] or 0)))


def _operation(
    executable: Executable,
    name: str,
    places: tuple[str, ...],
    steps: list[int],
    counts: Sequence[Count],
    all_cycles: Count,
) -> JsonObject:
    sums = totals(executable, counts, steps)
    cycles = sums.all_cycles
    records = [executable.steps[n] for n in steps]
    groups = [g for step in records if isinstance(step, ExecuteStep) for g in step.groups]
    sources = [step_costs(executable)[n].source for n in steps]
    return {
        "name": name,
        **place_data(*places),
        "steps": steps,
        "members": _members(executable, steps, counts),
        "runs": sums.supersteps,
        "vertexTypes": _distinct(g.codelet.label for g in groups),
        "plans": _distinct(_plan(executable, step) for step in records),
        "numVertices": sum(g.plan.num_cells for g in groups),
        "computeCycles": sums.compute_cycles,
        "exchangeCycles": sums.exchange_cycles,
        "syncCycles": sums.sync_cycles,
        "hostExchangeCycles": sums.host_exchange_cycles,
        "linkCycles": sums.link_cycles,
        "cycles": cycles,
        "share": share(cycles, all_cycles),
        "flops": sums.flops,
        "exchangeBytes": sums.exchange_bytes,
        **code_data(executable, steps),
        "tileCode": tile_code_data(executable, steps),
        "basis": _weakest(sums),
        "basisCycles": dict(sums.basis_cycles),
        "sources": _distinct(sources),
    }


def _plan(executable: Executable, step: StepRecord) -> str:
    """Return how a step is cut: its vertices' plans, or the layouts a copy reads and writes."""
    if isinstance(step, HOST_STEPS):
        return str(executable.variables[step.variable].layout)
    if isinstance(step, CopyStep):
        return " | ".join(dict.fromkeys(_layouts(executable, copy) for copy in step.copies))
    if not isinstance(step, ExecuteStep):
        return ""
    return " | ".join(dict.fromkeys(group.plan.describe(group.form) for group in step.groups))


def _layouts(executable: Executable, copy: VariableCopy) -> str:
    """Return the layouts a copy reads and writes."""
    layouts = [str(executable.variables[name].layout) for name in (*copy.sources, copy.destination)]
    return ", ".join(layouts[:-1]) + " -> " + layouts[-1]


def _weakest(sums: Totals) -> str | None:
    """Return the weakest basis that any cycles rest on; None when there are no cycles."""
    bases = [Basis(name) for name, cycles in sums.basis_cycles if cycles != 0]
    return Basis.weakest(bases).value if bases else None


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))
