"""The text summary of a profile: where a run's cycles went, which lines cost most, what fills the memory."""

from __future__ import annotations

import textwrap

from tiles.compiler import parts_text
from tiles.files import JsonObject
from tiles.graph import Location
from tiles.graph.location import short
from tiles.report.links import links_text
from tiles.report.places import scope_of
from tiles.target import Basis

UNKNOWN = "unknown"
LARGEST = 5
"""How many of the largest live buffers the summary shows."""


def summary(data: JsonObject, top: int = 10) -> str:
    """Return the summary of a profile's document; see ``Profile``."""
    blocks = [
        _heading(data),
        _cycles(data),
        _basis(data),
        links_text(data),
        _unresolved(data),
        _operations(data, top),
        _scopes(data, top),
        _control(data, top),
        _streams(data),
        _remote_buffers(data),
        _code(data, top),
        _memory(data),
        _largest(data),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _heading(data: JsonObject) -> list[str]:
    target, run = data["target"], data["run"]
    machine = f"{target['numTiles']:,} tiles at {target['clockFrequency'] / 1e6:,g} MHz"
    if target["numIPUs"] > 1:
        machine = f"{target['numIPUs']} IPUs, " + machine
    how = "not run" if run is None else f"engine {run['engine']}, arithmetic {run['arithmetic']}"
    lines = [f"{data['name']} on {target['name']} ({machine}), {how}"]
    if not data["compilation"]["fits"]:
        what, *notes = does_not_fit(data)
        lines += [f"DOES NOT FIT: {what}", *(f"  {note}" for note in notes)]
    return lines


def does_not_fit(data: JsonObject) -> list[str]:
    """Return why a program does not fit, in the words of its error: what is short, what lies there, what is short besides."""
    lack, *others = data["compilation"]["shortages"]
    there = f"there: {parts_text(lack['categories'])}"
    return [
        lack["what"],
        there,
        *(f"besides, {other['what']}: {parts_text(other['categories'])}" for other in others),
    ]


def _cycles(data: JsonObject) -> list[str]:
    execution, clock = data["execution"], data["target"]["clockFrequency"]
    whole = execution["cycles"]
    rows = [["one run", _number(whole, "cycles"), _microseconds(whole, clock), ""]]
    for phase in ("compute", "exchange", "sync"):
        cycles = execution[f"{phase}Cycles"]
        part = "" if not whole or cycles is None else f"{cycles / whole:.1%}"
        rows.append([f"  {phase}", _number(cycles, "cycles"), _microseconds(cycles, clock), part])
    if execution["hostExchangeBytes"] != 0:
        cycles = execution["hostExchangeCycles"]
        part = "" if not whole or cycles is None else f"{cycles / whole:.1%}"
        rows.append(["  host exchange", _number(cycles, "cycles"), _microseconds(cycles, clock), part])
    if execution["linkBytes"] != 0:
        cycles = execution["linkCycles"]
        part = "" if not whole or cycles is None else f"{cycles / whole:.1%}"
        rows.append(["  links", _number(cycles, "cycles"), _microseconds(cycles, clock), part])
    host_in, host_out = execution["hostBytesIn"], execution["hostBytesOut"]
    lines = [*_table(rows, "<>>>"), *_of_each_ipu(execution)]
    ends = execution["cyclesRange"]
    if ends and ends[1]:
        lines.append(f"  likely {ends[0]:,} to {ends[1]:,} cycles on silicon, as published measurements go")
    if whole is None and (bounds := bounds_text(data)):
        lines.append(f"  {bounds}, as data decides")
    lines.append(f"  host transfers unknown: not modelled ({host_in:,} B in, {host_out:,} B out)")
    if execution["hostExchangeBytes"] != 0:
        lines.append(
            "  host exchange is of streams, remote buffers and prints on their link; how long the host takes to answer "
            "is unknown"
        )
    lines.append(
        f"{_number(execution['supersteps'], 'supersteps')}, "
        f"{_number(execution['exchangeBytes'], 'B')} exchanged, {_number(execution['flops'], 'flops')}"
    )
    return lines


def bounds_text(data: JsonObject) -> str:
    """Return between what the cycles of a run lie that data decides; "" where that is not known."""
    least, most = data["costAnalysis"]["cyclesBounds"]
    if least is None:
        return ""
    return f"at least {least:,} cycles" if most is None else f"{least:,} to {most:,} cycles"


def _of_each_ipu(execution: JsonObject) -> list[str]:
    """Return how long each IPU of a replica computes; none of one IPU."""
    counts = [step["count"] for step in execution["steps"]]
    if len(execution["ipus"] or ()) < 2 or None in counts or not execution["cycles"]:
        return []
    steps = zip(counts, execution["steps"], strict=True)
    rows = [[count * cycles for cycles in step["computeCyclesByIpu"]] for count, step in steps]
    each = [sum(cycles) for cycles in zip(*rows, strict=True)]
    shown = (f"IPU {ipu} {cycles / execution['cycles']:.0%}" for ipu, cycles in enumerate(each))
    text = f"computing, of the run's cycles: {', '.join(shown)}; phases are of all IPUs, which overlap"
    return textwrap.wrap(text, 116, initial_indent="  ", subsequent_indent="    ")


def _basis(data: JsonObject) -> list[str]:
    shares = data["execution"]["basisShares"]
    parts = [
        f"{name} {UNKNOWN if part is None else format(part, '.1%')}"
        for name, part in shares.items()
        if name != Basis.UNKNOWN or part
    ]
    return ["cycles rest on: " + ", ".join(parts), *_not_known(data)]


def _not_known(data: JsonObject) -> list[str]:
    """Return the operations of which nobody knows how long they take, and why."""
    lines: list[str] = []
    for row in data["operations"]:
        if row["basis"] == Basis.UNKNOWN:
            cycles = f"counted with {_number(row['cycles'], 'cycles')}"
            lines.append(f"  unknown: {row['name']}, {cycles}: {'; '.join(row['sources'])}")
    return lines


def _unresolved(data: JsonObject) -> list[str]:
    """Return the loops and branches that depend on data, for a program that was not run."""
    entries = data["costAnalysis"]["unresolved"]
    if data["run"] is not None or not entries:
        return []
    lines = ["depends on data:"]
    for entry in entries:
        lines.append(f"  {entry['kind']} on {entry['decidedBy']}: {trips(entry)}" + _from(entry))
    return lines


def trips(entry: JsonObject) -> str:
    """Return what one pass through a loop or each branch takes."""
    if "cyclesPerTrip" in entry:
        return _number(entry["cyclesPerTrip"], "cycles per trip")
    figures = [_number(branch["cyclesPerTrip"], "") for branch in entry["branches"]]
    return ", ".join(f.strip() for f in figures) + " cycles by branch"


def _operations(data: JsonObject, top: int) -> list[str]:
    operations = data["operations"]
    shown = operations[:top]
    if not shown:
        return []
    head = ["operation", "cycles", "share", "compute", "exchange", "sync", "runs", "mostly rests on"]
    head += ["scope", "from"]
    rows = [head]
    for row in shown:
        part = UNKNOWN if row["share"] is None else f"{row['share']:.1%}"
        figures = [_number(row[key], "") for key in ("computeCycles", "exchangeCycles", "syncCycles", "runs")]
        rows.append(
            [
                row["name"],
                _number(row["cycles"], ""),
                part,
                *figures,
                main_basis(row),
                scope_of(row),
                short(row["location"]) or "-",
            ]
        )
    title = (
        f"the {len(shown)} costliest of {len(operations)} operations"
        if len(shown) < len(operations)
        else "operations"
    )
    return [title, *("  " + line for line in _table(rows, "<>>>>>><<<", optional=8))]


def _scopes(data: JsonObject, top: int) -> list[str]:
    """Return what the costliest scopes take, each below the one around it."""
    scopes = data["scopes"]
    known = sorted((s for s in scopes if s["cycles"] is not None), key=lambda s: (-s["cycles"], s["depth"]))
    largest = {scope["scope"] for scope in known[:top]}
    shown = [
        [
            "  " * scope["depth"] + scope["scope"].rpartition("/")[2],
            _number(scope["cycles"], ""),
            UNKNOWN if scope["share"] is None else f"{scope['share']:.1%}",
            f"{scope['exchangeCodeBytes']:,} B",
            f"{scope['vertexCodeBytes']:,} B",
        ]
        for scope in scopes
        if scope["scope"] in largest
    ]
    title = "scopes" if len(shown) == len(scopes) else f"the {len(shown)} costliest of {len(scopes)} scopes"
    rows = [["scope", "cycles", "share", "exchange code", "vertex code"], *shown]
    return [title, *("  " + line for line in _table(rows, "<>>>>"))] if shown else []


def _control(data: JsonObject, top: int) -> list[str]:
    """Return how often loops and branches of a run were entered and went round; the first of many."""
    rows = data["execution"]["control"]
    if data["run"] is None or not rows:
        return []
    head = ["loop or branch", "entered", "trips", "scope", "from"]
    shown = [
        [
            "  " * row["depth"] + row["kind"],
            _number(row["entered"], ""),
            went(row),
            scope_of(row),
            short(row["location"]) or "-",
        ]
        for row in rows[:top]
    ]
    title = "loops and branches" if len(rows) <= top else f"the first {top} of {len(rows)} loops and branches"
    return [title, *("  " + line for line in _table([head, *shown], "<>><<", optional=3))]


def _streams(data: JsonObject) -> list[str]:
    """Return what streams carried."""
    rows = [
        [
            s["name"],
            "to the host" if s["toHost"] else "from the host",
            f"{s['dtype']}{s['shape']}",
            _number(s["items"], ""),
            _number(s["bytes"], "B"),
            short(s["location"]) or "-",
        ]
        for s in data["execution"]["streams"]
    ]
    head = ["stream", "direction", "item", "items", "bytes", "from"]
    return ["streams", *("  " + line for line in _table([head, *rows], "<<<>><"))] if rows else []


def _remote_buffers(data: JsonObject) -> list[str]:
    """Return what lies beside the IPU."""
    rows = [
        [
            r["name"],
            f"{r['repeats']} x {r['dtype']}{r['shape']}",
            _number(r["sizeBytes"], "B"),
            _number(r["bytesRead"], "B"),
            _number(r["bytesWritten"], "B"),
            short(r["location"]) or "-",
        ]
        for r in data["execution"]["remoteBuffers"]
    ]
    head = ["remote buffer", "rows", "size", "read", "written", "from"]
    return (
        ["memory beside the IPU", *("  " + line for line in _table([head, *rows], "<<>>><"))] if rows else []
    )


def went(row: JsonObject) -> str:
    """Return the trips of a loop, or those of each branch."""
    if row["branches"] is None:
        return _number(row["trips"], "")
    return " | ".join(_number(trips, "") for trips in row["branches"])


def main_basis(row: JsonObject) -> str:
    """Return the basis that most of an operation's cycles rest on, and which part of them."""
    cycles = row["basisCycles"]
    if not row["cycles"] or None in cycles.values():
        return "-" if row["cycles"] == 0 else UNKNOWN
    most = max(cycles, key=lambda name: cycles[name])
    return f"{most} {cycles[most] / row['cycles']:.0%}"


def _code(data: JsonObject, top: int) -> list[str]:
    """Return the operations with the most exchange code."""
    operations = [row for row in by_exchange_code(data) if row["exchangeCodeBytes"]]
    rows = [
        [
            row["name"],
            f"{row['exchangeCodeBytes']:,} B",
            f"{row['exchangeCodeTile']:,}",
            f"{row['exchangeCodeMeanBytes']:,} B",
            f"{row['vertexCodeBytes']:,} B",
            scope_of(row),
            short(row["location"]) or "-",
        ]
        for row in operations[:top]
    ]
    if not rows:
        return []
    head = ["operation", "exchange code", "on tile", "mean of tiles", "vertex code", "scope", "from"]
    title = (
        f"the {top} operations with the most exchange code of {len(operations)} with any"
        if len(operations) > top
        else "operations with exchange code"
    )
    lines = ["  " + line for line in _table([head, *rows], "<>>>><<", optional=5)]
    return [title, *lines, f"  {CODELETS_SHARED}"]


CODELETS_SHARED = "a codelet's code is on a tile once, however many operations use it"


def by_exchange_code(data: JsonObject) -> list[JsonObject]:
    """Return the operations, those with the most exchange code on a tile first, then those with the most vertex code."""
    return sorted(
        data["operations"],
        key=lambda row: (-row["exchangeCodeBytes"], -row["exchangeCodeMeanBytes"], -row["vertexCodeBytes"]),
    )


def executable_memory_text(data: JsonObject) -> tuple[str, str]:
    """Return what code takes of executable memory, and where that is."""
    code = data["compilation"]["memory"]["executableMemory"]
    need, have = code["needBytes"], code["haveBytes"]
    kinds = ", ".join(f"{kind} {size:,} B" for kind, size in code["kinds"].items())
    return (
        f"executable memory: code needs {need:,} of {have:,} B ({need / have:.1%}) on tile {code['tile']} ({kinds})",
        f"code lies in {' and '.join(code['regions']) or 'no region'}; basis {code['basis']}, source: {code['source']}",
    )


def _memory(data: JsonObject) -> list[str]:
    memory = data["compilation"]["memory"]
    peak, limit = memory["peakBytes"], memory["limitBytes"]
    lines = [
        f"memory: tile {memory['fullestTile']} is the fullest, {peak:,} of {limit:,} B ({peak / limit:.1%}) "
        f"at step {memory['peakStepName']!r}",
        f"  always live {memory['alwaysLiveBytes']:,} B, not always live {memory['notAlwaysLiveBytes']:,} B, "
        f"all tiles together {memory['totalBytes']:,} B",
    ]
    code, where = executable_memory_text(data)
    lines += [f"  {code}", *textwrap.wrap(where, 118, initial_indent="    ", subsequent_indent="    ")]
    sizes = [(n, c["fullestTileBytes"], c["totalBytes"]) for n, c in memory["categories"].items()]
    sizes = sorted((row for row in sizes if row[2]), key=lambda row: -row[1])
    rows = [["category", "fullest tile", "all tiles"]]
    rows += [[name, f"{here:,} B", f"{everywhere:,} B"] for name, here, everywhere in sizes]
    return lines + ["  " + line for line in _table(rows, "<>>")]


def _largest(data: JsonObject) -> list[str]:
    memory = data["compilation"]["memory"]
    largest = memory["largestLive"][:LARGEST]
    if not largest:
        return []
    rows = [["buffer", "bytes", "category", "scope", "from"]]
    rows += [
        [b["name"], f"{b['bytes']:,} B", b["category"], scope_of(b), short(b["location"]) or "-"]
        for b in largest
    ]
    return ["largest live buffers there", *("  " + line for line in _table(rows, "<><<<", optional=3))]


def _number(value: int | None, unit: str) -> str:
    return f"{UNKNOWN if value is None else format(value, ',')} {unit}".rstrip()


def _microseconds(cycles: int | None, clock_hz: float) -> str:
    return UNKNOWN if cycles is None else f"{cycles / clock_hz * 1e6:,.2f} us"


def _from(entry: JsonObject) -> str:
    place = Location(short(entry["location"]), entry["scope"], tuple(entry["transforms"]))
    return f" from {place}" if place.line else ""


def _table(rows: list[list[str]], align: str, optional: int | None = None) -> list[str]:
    """Return rows as lines with columns aligned left (<) or right (>); an optional one goes if only its head is there."""
    if optional is not None and not any(row[optional] for row in rows[1:]):
        rows = [[*row[:optional], *row[optional + 1 :]] for row in rows]
        align = align[:optional] + align[optional + 1 :]
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
