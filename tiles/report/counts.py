"""How often every step runs as far as the control tree tells, and the loops and branches where it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tiles._jax_compat import Datum
from tiles.compiler import CopyStep, Executable, ExecuteStep, step_costs
from tiles.compiler.control import Decided, Node, Part, Path, Repeat, Switch, While, steps_of
from tiles.compiler.control_flow import Trips
from tiles.files import JsonObject
from tiles.report.places import place_data
from tiles.report.static_trips import static_trips
from tiles.report.totals import Count, Totals, add, times, totals


def static_counts(executable: Executable) -> tuple[list[Count], list[JsonObject]]:
    """Return every step's runs in one run of the program, and what depends on data.

    A repetition multiplies. What no input decides runs as often as ``static_trips`` says. A switch whose branches cost
    the same counts as its first branch. What runs inside any other switch or a loop on a predicate is None.

    Returns:
      counts: per step a number or None.
      unresolved: per loop or branch a dictionary of plain data; see ``cost_analysis``.
    """
    counter = _Counter(executable, static_trips(executable))
    counter.walk(executable.program, 1, ())
    return counter.counts, list(counter.unresolved.values())


def cycle_bounds(executable: Executable) -> tuple[int | None, int | None]:
    """Return the least and the most cycles of a run, over all ways in which data may decide its branches and loops.

    The least is of the cheapest branches, and of loops that are left at once; the most is of the dearest branches, None
    where a loop's trips are not known. Both are None where the clocks of several IPUs run apart, or a step's cycles are
    unknown.
    """
    if executable.target.num_ipus > 1:
        return None, None
    costs = [cost.cycles for cost in step_costs(executable)]
    trips = static_trips(executable)
    least, most = (_bound(executable.program, (), 1, costs, trips, pick) for pick in (min, max))
    return least, most


def _bound(
    part: Part,
    path: Path,
    runs: Count,
    costs: Sequence[Count],
    trips: Trips,
    pick: Callable[[Iterable[int]], int],
) -> Count:
    """Return the least (``pick`` is ``min``) or most cycles that ``runs`` runs of a part take.

    Args:
      part: of the program.
      path: where it is.
      runs: how often it runs in all.
      costs: cycles of every step.
      trips: of the loops and branches for which they are known.
      pick: ``min`` or ``max``.
    """
    if runs == 0:
        return 0
    if isinstance(part, int):
        return times(runs, costs[part])
    known = trips.get(path)
    if known is None and isinstance(part, Switch):
        inner = [_bound(b, (*path, k), runs, costs, trips, pick) for k, b in enumerate(part.branches)]
        return None if None in inner else pick(cycles for cycles in inner if cycles is not None)
    if known is None and isinstance(part, While):
        if pick is max:
            return None
        known = 0
    total: Count = 0
    for (position, inner), count in zip(enumerate(part.parts), _runs(part, runs, known), strict=True):
        total = add(total, _bound(inner, (*path, position), count, costs, trips, pick))
    return total


def _runs(node: Node, runs: Count, trips: Datum) -> list[Count]:
    """Return how often each part right below a node runs, given its own runs and trips."""
    match node:
        case Repeat():
            return [times(runs, node.count)]
        case While():
            return [add(trips, runs), trips]
        case Switch():
            return list(trips)
        case _:
            return [runs] * len(node.parts)


class _Counter:
    """Counts the steps of one control tree, given the trips that are known."""

    def __init__(self, executable: Executable, trips: Trips) -> None:
        self.executable, self.trips = executable, trips
        self.counts: list[Count] = [0] * len(executable.steps)
        self.unresolved: dict[Node, JsonObject] = {}

    def walk(self, part: Part, count: Count, path: Path) -> None:
        """Add ``count`` runs of a part, which is at a place of the program."""
        if count == 0:
            return
        if isinstance(part, int):
            self.counts[part] = add(self.counts[part], count)
            return
        known = self.trips.get(path)
        if isinstance(part, Decided) and known is None:
            if isinstance(part, While):
                self._loop(part, count, path)
            else:
                self._branch(part, count, path)
            return
        for position, (inner, runs) in enumerate(zip(part.parts, _runs(part, count, known), strict=True)):
            self.walk(inner, runs, (*path, position))

    def _loop(self, loop: While, count: Count, path: Path) -> None:
        once, trip = self._totals([loop.condition]), self._totals(loop.parts)
        entry = {"condition_cycles": once.cycles, "cycles_per_trip": trip.cycles}
        self._record(loop, count, entry)
        self.walk(loop.condition, None, (*path, 0))
        self.walk(loop.body, None, (*path, 1))

    def _branch(self, switch: Switch, count: Count, path: Path) -> None:
        branches = switch.branches
        costs = [self._totals([branch]) for branch in branches]
        if all(cost.is_known and cost == costs[0] for cost in costs):
            self.walk(branches[0], count, (*path, 0))
            return
        listed = [
            {"steps": self._names([branch]), "cycles_per_trip": cost.cycles}
            for branch, cost in zip(branches, costs, strict=True)
        ]
        self._record(switch, count, {"branches": listed})
        for number, branch in enumerate(branches):
            self.walk(branch, None, (*path, number))

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
        inner = _Counter(self.executable, {})  # nothing is known of what is inside of what is not
        for part in parts:
            inner.walk(part, 1, ())
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
