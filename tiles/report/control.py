"""Loops and branches of a run: how often each was entered, its body ran, and each branch was taken."""

from __future__ import annotations

import json
from typing import Any

from tiles.compiler import Executable
from tiles.compiler.tree import DECIDED, Trips, children, decider, runs_of_parts
from tiles.report.counts import place_of
from tiles.report.totals import add, times


def control_data(executable: Executable, trips: Trips) -> list[dict[str, Any]]:
    """Return the section ``control`` of a profile: a row per loop and branch, in program order.

    One in a function that is called several times is one row. What ``trips`` says nothing of is None.

    Args:
      executable: the program.
      trips: what a run counted.
    """
    rows: dict[str, dict[str, Any]] = {}
    control = dict[tuple[int, ...], Any]()
    for path, tree, entered in runs_of_parts(executable.program, trips):
        if isinstance(tree, int) or tree[0] not in ("repeat", *DECIDED):
            continue
        control[path] = tree
        row = _row(executable, tree, entered, trips.get(path))
        row["depth"] = sum(path[:length] in control for length in range(len(path)))
        known = rows.setdefault(json.dumps(tree), row)
        if known is not row:
            _merge(known, row)
    return list(rows.values())


def _row(executable: Executable, tree: Any, entered: int | None, trips: Any) -> dict[str, Any]:
    kind, parts = tree[0], [inner for _, inner in children(tree)]
    decided_by = None if kind == "repeat" else decider(tree)
    branches = None
    if kind == "repeat":
        trips = times(entered, tree[1])
    elif kind == "switch":
        branches = [None] * len(parts) if trips is None else list(trips)
        trips = None
    return {
        "kind": kind,
        "decidedBy": decided_by,
        **place_of(executable, decided_by or "", parts),
        "depth": 0,
        "entered": entered,
        "trips": trips,
        "branches": branches,
    }


def _merge(known: dict[str, Any], row: dict[str, Any]) -> None:
    """Add what one loop or branch did in another place that it is called from."""
    known["entered"] = add(known["entered"], row["entered"])
    known["trips"] = add(known["trips"], row["trips"])
    if known["branches"] is not None:
        known["branches"] = [add(a, b) for a, b in zip(known["branches"], row["branches"], strict=True)]
