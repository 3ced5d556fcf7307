"""Loops and branches of a run: how often each was entered, its body ran, and each branch was taken."""

from __future__ import annotations

from typing import Any

from tiles.compiler import Executable
from tiles.compiler.control import Decided, Node, Path, Repeat, Switch
from tiles.compiler.control_flow import Trips, runs_of_parts
from tiles.files import JsonObject
from tiles.report.counts import place_of
from tiles.report.totals import add, times


def control_data(executable: Executable, trips: Trips) -> list[JsonObject]:
    """Return the section ``control`` of a profile: a row per loop and branch, in program order.

    One in a function that is called several times is one row. What ``trips`` says nothing of is None.

    Args:
      executable: the program.
      trips: what a run counted.
    """
    rows: dict[Node, JsonObject] = {}
    control = set[Path]()
    for path, part, entered in runs_of_parts(executable.program, trips):
        if not isinstance(part, Repeat | Decided):
            continue
        control.add(path)
        row = _row(executable, part, entered, trips.get(path))
        row["depth"] = sum(path[:length] in control for length in range(len(path)))
        known = rows.setdefault(part, row)
        if known is not row:
            _merge(known, row)
    return list(rows.values())


def _row(executable: Executable, node: Repeat | Decided, entered: int | None, trips: Any) -> JsonObject:
    decided_by = None if isinstance(node, Repeat) else node.decided_by
    branches = None
    if isinstance(node, Repeat):
        trips = times(entered, node.count)
    elif isinstance(node, Switch):
        branches = [None] * len(node.branches) if trips is None else list(trips)
        trips = None
    return {
        "kind": node.kind,
        "decidedBy": decided_by,
        **place_of(executable, decided_by or "", node.parts),
        "depth": 0,
        "entered": entered,
        "trips": trips,
        "branches": branches,
    }


def _merge(known: JsonObject, row: JsonObject) -> None:
    """Add what one loop or branch did in another place that it is called from."""
    known["entered"] = add(known["entered"], row["entered"])
    known["trips"] = add(known["trips"], row["trips"])
    if known["branches"] is not None:
        known["branches"] = [add(a, b) for a, b in zip(known["branches"], row["branches"], strict=True)]
