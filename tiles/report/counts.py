"""How often every step runs as far as the control tree tells, and the loops and branches where it cannot."""

from __future__ import annotations

from collections.abc import Sequence

from tiles.compiler import CopyStep, Executable, ExecuteStep, step_costs
from tiles.compiler.control import Decided, Node, Part, Repeat, Switch, While, steps_of
from tiles.files import JsonObject
from tiles.report.places import place_data
from tiles.report.totals import Count, Totals, add, times, totals


def static_counts(executable: Executable) -> tuple[list[Count], list[JsonObject]]:
    """Return every step's runs in one run of the program, and what depends on data.

    A repetition multiplies. A switch whose branches cost the same counts as its first branch. What runs
    inside any other switch or a loop on a predicate is None.

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
        self.unresolved: dict[Node, JsonObject] = {}

    def walk(self, part: Part, count: Count) -> None:
        """Add ``count`` runs of a part."""
        if count == 0:
            return
        match part:
            case int():
                self.counts[part] = add(self.counts[part], count)
            case Repeat():
                self.walk(part.body, times(count, part.count))
            case While():
                self._loop(part, count)
            case Switch():
                self._branch(part, count)
            case _:
                for inner in part.parts:
                    self.walk(inner, count)

    def _loop(self, loop: While, count: Count) -> None:
        once, trip = self._totals([loop.condition]), self._totals(loop.parts)
        entry = {"condition_cycles": once.cycles, "cycles_per_trip": trip.cycles}
        self._record(loop, count, entry)
        self.walk(loop.condition, None)
        self.walk(loop.body, None)

    def _branch(self, switch: Switch, count: Count) -> None:
        branches = switch.branches
        costs = [self._totals([branch]) for branch in branches]
        if all(cost.is_known and cost == costs[0] for cost in costs):
            self.walk(branches[0], count)
            return
        listed = [
            {"steps": self._names([branch]), "cycles_per_trip": cost.cycles}
            for branch, cost in zip(branches, costs, strict=True)
        ]
        self._record(switch, count, {"branches": listed})
        for branch in branches:
            self.walk(branch, None)

    def _record(self, node: Decided, count: Count, more: JsonObject) -> None:
        """Note a loop or branch; one in a function that is called twice is one entry, entered twice."""
        known = self.unresolved.get(node)
        if known is not None:
            known["entered"] = add(known["entered"], count)
            return
        self.unresolved[node] = {
            "kind": node.kind,
            "decided_by": node.decided_by,
            **place_of(self.executable, node.decided_by, node.parts),
            "entered": count,
            "steps": self._names(node.parts),
            **more,
        }

    def _totals(self, parts: Sequence[Part]) -> Totals:
        """Return what one pass through some parts costs."""
        inner = _Counter(self.executable)
        for part in parts:
            inner.walk(part, 1)
        return totals(self.executable, inner.counts)

    def _names(self, parts: Sequence[Part]) -> list[str]:
        numbers = dict.fromkeys(number for part in parts for number in steps_of(part))
        return [self.executable.steps[number].name for number in numbers]


def place_of(executable: Executable, variable: str, parts: Sequence[Part]) -> JsonObject:
    """Return where the variable that decides a loop or branch is from, else the first of its steps that says so."""
    places: list[tuple[str, ...]] = [
        (executable.variables[variable].location,) if variable in executable.variables else ()
    ]
    places += [step_locations(executable, number) for part in parts for number in steps_of(part)]
    return place_data(*next((place for place in places if any(place)), ()))


def step_locations(executable: Executable, number: int) -> tuple[str, ...]:
    """Return where a step is from; its vertices may be from several places, those that take longest first."""
    step = executable.steps[number]
    if isinstance(step, ExecuteStep):
        taken = [cycles for _, cycles in step_costs(executable)[number].vertex_parts]
        places = [step.groups[k].location for k in sorted(range(len(taken)), key=lambda k: -taken[k])]
    elif isinstance(step, CopyStep):
        places = [copy.location for copy in step.copies]
    else:
        places = [step.location]
    return tuple(dict.fromkeys(place for place in places if place))
