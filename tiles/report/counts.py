"""How often every step runs as far as the control tree tells, and the loops and branches where it cannot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tiles.compiler import CopyStep, Executable, ExecuteStep
from tiles.compiler.tree import LOOPS, steps_of
from tiles.report.places import place_data
from tiles.report.totals import Count, Totals, add, times, totals


def static_counts(executable: Executable) -> tuple[list[Count], list[dict[str, Any]]]:
    """Return every step's runs in one run of the program, and what depends on data.

    ``repeat`` multiplies. A ``switch`` whose branches cost the same counts as its first branch. What runs
    inside any other ``switch`` or a ``while`` is None.

    Returns:
      counts: per step a number or None.
      unresolved: per loop or branch a dictionary of plain data; see ``cost_analysis``.
    """
    counter = _Counter(executable)
    counter.walk(executable.program, 1)
    return counter.counts, list(counter.unresolved.values())


class _Counter:
    """Counts the steps of one control tree."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.counts: list[Count] = [0] * len(executable.steps)
        self.unresolved: dict[str, dict[str, Any]] = {}

    def walk(self, tree: Any, count: Count) -> None:
        """Add ``count`` runs of ``tree``."""
        if count == 0:
            return
        if isinstance(tree, int):
            self.counts[tree] = add(self.counts[tree], count)
            return
        kind, *rest = tree
        if kind == "sequence":
            for part in rest:
                self.walk(part, count)
        elif kind == "repeat":
            self.walk(rest[1], times(count, rest[0]))
        elif kind == "composite":
            self.walk(rest[1], count)
        elif kind in LOOPS:
            self._loop(tree, count)
        else:
            self._branch(tree, count)

    def _loop(self, tree: Any, count: Count) -> None:
        kind, condition, predicate, body = tree
        once, trip = self._totals([condition]), self._totals([condition, body])
        entry = {"condition_cycles": once.cycles, "cycles_per_trip": trip.cycles}
        self._record(tree, kind, predicate, [condition, body], count, entry)
        self.walk(condition, None)
        self.walk(body, None)

    def _branch(self, tree: Any, count: Count) -> None:
        _, index, *branches = tree
        costs = [self._totals([branch]) for branch in branches]
        if all(cost.is_known and cost == costs[0] for cost in costs):
            self.walk(branches[0], count)
            return
        listed = [
            {"steps": self._names([branch]), "cycles_per_trip": cost.cycles}
            for branch, cost in zip(branches, costs, strict=True)
        ]
        self._record(tree, "switch", index, branches, count, {"branches": listed})
        for branch in branches:
            self.walk(branch, None)

    def _record(
        self, tree: Any, kind: str, decides: str, parts: Sequence[Any], count: Count, more: dict[str, Any]
    ) -> None:
        """Note a loop or branch; one in a function that is called twice is one entry, entered twice."""
        key = json.dumps(tree)
        known = self.unresolved.get(key)
        if known is not None:
            known["entered"] = add(known["entered"], count)
            return
        self.unresolved[key] = {
            "kind": kind,
            "decided_by": decides,
            **place_of(self.executable, decides, parts),
            "entered": count,
            "steps": self._names(parts),
            **more,
        }

    def _totals(self, trees: Sequence[Any]) -> Totals:
        """Return what one pass through ``trees`` costs."""
        inner = _Counter(self.executable)
        for tree in trees:
            inner.walk(tree, 1)
        return totals(self.executable, inner.counts)

    def _names(self, trees: Sequence[Any]) -> list[str]:
        numbers = dict.fromkeys(number for tree in trees for number in steps_of(tree))
        return [self.executable.steps[number].name for number in numbers]


def place_of(executable: Executable, variable: str, trees: Sequence[Any]) -> dict[str, Any]:
    """Return where the variable that decides a loop or branch is from, else the first of its steps that says so."""
    places: list[tuple[str, ...]] = [
        (executable.variables[variable].location,) if variable in executable.variables else ()
    ]
    places += [step_locations(executable, number) for tree in trees for number in steps_of(tree)]
    return place_data(*next((place for place in places if any(place)), ()))


def step_locations(executable: Executable, number: int) -> tuple[str, ...]:
    """Return where a step is from; its vertices may be from several places."""
    step = executable.steps[number]
    parts = (
        step.groups
        if isinstance(step, ExecuteStep)
        else step.copies
        if isinstance(step, CopyStep)
        else (step,)
    )
    return tuple(dict.fromkeys(part.location for part in parts if part.location))
