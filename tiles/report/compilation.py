"""The compilation half of a profile: memory of every tile, variables, buffers, compute sets and exchanges."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiles.compiler import (
    Buffer,
    CopyStep,
    Executable,
    ExecuteStep,
    StreamStep,
    Variable,
    VertexGroup,
    shortage_text,
    shortages,
    step_costs,
)
from tiles.compiler.control import functions_of, part_data
from tiles.files import JsonObject, is_dict, is_list
from tiles.report.memory import TileMemory, memory_figures
from tiles.report.places import place_data
from tiles.target import Target


def compilation_data(executable: Executable, memory: TileMemory) -> JsonObject:
    """Return the section ``compilation`` of a profile; nouns are those of Poplar's profile."""
    groups = [group for _, group in executable.groups()]
    figures = memory_figures(executable, memory)
    del figures["live_bytes"]
    return {
        "fits": executable.fits,
        "shortages": _shortages(executable),
        "graph": {
            "numVariables": len(executable.variables),
            "numBuffers": len(executable.buffers),
            "numComputeSets": sum(isinstance(step, ExecuteStep) for step in executable.steps),
            "numVertices": sum(group.plan.num_cells for group in groups),
            "numSteps": len(executable.steps),
        },
        "memory": camel(figures),
        "tiles": _tiles(memory),
        "variables": [_variable(executable, v) for v in executable.variables.values()],
        "buffers": [_buffer(executable, b) for b in executable.buffers.values()],
        "computeSets": [
            {"name": step.name, "step": number, "vertices": [_vertices(group) for group in step.groups]}
            for number, step in enumerate(executable.steps)
            if isinstance(step, ExecuteStep)
        ],
        "copies": [
            {
                "name": step.name,
                "step": number,
                "destination": copy.destination,
                "sources": list(copy.sources),
                "axis": copy.axis,
                **place_data(copy.location),
            }
            for number, step in enumerate(executable.steps)
            if isinstance(step, CopyStep)
            for copy in step.copies
        ],
        "streamCopies": [
            {
                "name": step.name,
                "step": number,
                "stream": step.stream,
                "variable": step.variable,
                "toHost": step.to_host,
                **place_data(step.location),
            }
            for number, step in enumerate(executable.steps)
            if isinstance(step, StreamStep)
        ],
        "exchanges": _exchanges(executable),
        "livenessProgramSteps": _liveness(executable, memory),
        "program": part_data(executable.program),
        "functions": {name: part_data(body) for name, body in functions_of(executable.program).items()},
    }


def _shortages(executable: Executable) -> list[JsonObject]:
    """Return what a program that does not fit lacks, in the words of its error; nothing for one that fits."""
    return [
        {
            "kind": lack.kind,
            "what": shortage_text(executable, lack),
            "tile": lack.tile,
            "step": None if lack.kind == "code" else lack.step,
            "stepName": None if lack.kind == "code" else executable.step_name(lack.step),
            "needBytes": lack.need_bytes,
            "haveBytes": lack.have_bytes,
            "categories": dict(lack.categories),
        }
        for lack in (() if executable.fits else shortages(executable))
    ]


def target_data(target: Target) -> JsonObject:
    """Return the section ``target`` of a profile."""
    return {
        "name": target.name,
        "description": target.description,
        "numIPUs": target.num_ipus,
        "tilesPerIpu": target.tiles_per_ipu,
        "numTiles": target.num_tiles,
        "bytesPerTile": target.bytes_per_tile,
        "clockFrequency": target.clock_hz,
        "memoryRegions": [
            {
                "name": r.name,
                "base": r.base,
                "bytes": r.size_bytes,
                "interleave": r.interleave,
                "executable": r.executable,
            }
            for r in target.memory_regions
        ],
    }


def camel(data: Any) -> Any:
    """Return plain data with the keys of its dictionaries in camel case, as Poplar's profile spells them."""
    if is_dict(data):
        return {_camel_word(key): camel(value) for key, value in data.items()}
    return [camel(value) for value in data] if is_list(data) else data


def _camel_word(word: str) -> str:
    head, *tail = word.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _tiles(memory: TileMemory) -> JsonObject:
    """Return arrays with one entry per tile, at each tile's own peak."""
    arrays = {
        "total": memory.peak,
        "alwaysLive": memory.always_live,
        "notAlwaysLive": memory.not_always_live,
        "includingGaps": memory.including_gaps,
        "highestAddress": memory.highest_address,
        "peakStep": memory.peak_step,
    }
    data: JsonObject = {name: array.tolist() for name, array in arrays.items()}
    data["category"] = {name: array.tolist() for name, array in memory.category.items()}
    return data


def _variable(executable: Executable, variable: Variable) -> JsonObject:
    return {
        "name": variable.name,
        "shape": list(variable.shape),
        "dtype": variable.dtype,
        "kind": variable.kind,
        "layout": str(variable.layout),
        "storage": variable.storage,
        "viewOf": variable.view_of,
        "address": executable.address(variable.name),
        "bytesPerTile": variable.layout.part_bytes(variable.dtype),
        "numTiles": int(np.unique(variable.layout.tiles).size),
        **place_data(variable.location),
    }


def _buffer(executable: Executable, buffer: Buffer) -> JsonObject:
    return {
        "name": buffer.name,
        "category": buffer.category,
        "address": buffer.address,
        "bytesPerTile": buffer.size_bytes,
        "tiles": [list(span) for span in buffer.tiles],
        "numTiles": sum(end - first for first, end in buffer.tiles),
        "live": [buffer.start, buffer.end],
        "alwaysLive": buffer.start == -1 and buffer.end == len(executable.steps),
        **place_data(buffer.location),
    }


def _vertices(group: VertexGroup) -> JsonObject:
    return {
        "name": group.name,
        "vertexType": group.codelet.label,
        "plan": group.plan.describe(group.form),
        "grid": list(group.plan.grid),
        "numVertices": group.plan.num_cells,
        "operands": [{"variable": o.variable, "buffer": o.buffer} for o in group.operands],
        "results": list(group.results),
        **place_data(group.location),
    }


def _exchanges(executable: Executable) -> list[JsonObject]:
    """Return the exchange of every step that has one."""
    rows: list[JsonObject] = []
    for number, cost in enumerate(step_costs(executable)):
        moved = cost.traffic
        if moved.is_empty:
            continue
        rows.append(
            {
                "step": number,
                "name": cost.name,
                "cycles": cost.exchange_cycles,
                "bytes": cost.exchange_bytes,
                "mostReceivedBytes": int(moved.received.max()),
                "mostSentBytes": int(moved.sent.max()),
                "receivingTiles": int(np.count_nonzero(moved.received)),
                "sendingTiles": int(np.count_nonzero(moved.sent)),
            }
        )
    return rows


def _liveness(executable: Executable, memory: TileMemory) -> list[JsonObject]:
    """Return live bytes before the program, at every step and after it; of the fullest tile and of all."""
    always = int(memory.always_live[memory.fullest_tile])
    return [
        {
            "step": step,
            "name": executable.step_name(step),
            "alwaysLiveBytes": always,
            "notAlwaysLiveBytes": int(live) - always,
            "allTilesBytes": int(everywhere),
        }
        for step, (live, everywhere) in enumerate(zip(memory.live, memory.device_live, strict=True), start=-1)
    ]
