"""Questions about how control runs through an executable: how often, what decides, what lives through a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tiles._jax_compat import Datum
from tiles.compiler.control import (
    Decided,
    Node,
    Part,
    Path,
    Repeat,
    Switch,
    While,
    decided_parts,
    steps_of,
)
from tiles.compiler.executable import Executable
from tiles.compiler.steps import AbortStep, ErrorStep, ExecuteStep, StepRecord, StreamStep
from tiles.compiler.wellformed import root_of
from tiles.compiler.wellformed_steps import read_by, written_by
from tiles.numerics.dtypes import is_float

Trips = Mapping[Path, Datum]
"""By the path of every ``While`` how often its body ran in all, of every ``Switch`` a tuple: how often each branch did."""


def count_steps(executable: Executable, trips: Trips) -> tuple[int, ...]:
    """Return how often every step ran, given how often loops' bodies and branches did."""
    counts = [0] * len(executable.steps)
    for _, part, runs in runs_of_parts(executable.program, trips):
        if isinstance(part, int):
            assert runs is not None
            counts[part] += runs
    return tuple(counts)


def runs_of_steps(executable: Executable) -> list[int | None]:
    """Return how often every step runs, None where that depends on data."""
    counts: list[int | None] = [0] * len(executable.steps)
    for _, part, runs in runs_of_parts(executable.program, {}):
        if isinstance(part, int):
            known = counts[part]
            counts[part] = None if known is None or runs is None else known + runs
    return counts


def items_needed(executable: Executable) -> dict[str, int | None]:
    """Return how many items of every stream a run moves, None where that depends on data."""
    needed: dict[str, int | None] = dict.fromkeys(executable.streams, 0)
    for step, runs in zip(executable.steps, runs_of_steps(executable), strict=True):
        if isinstance(step, StreamStep):
            known = needed[step.stream]
            needed[step.stream] = None if known is None or runs is None else known + runs
    return needed


def records_of(executable: Executable, part: Part) -> list[StepRecord]:
    """Return the steps of a part of the program, each once."""
    return [executable.steps[number] for number in dict.fromkeys(steps_of(part))]


def may_halt(executable: Executable, part: Part) -> bool:
    """Return whether a part of the program has steps that may end the run: reads of streams, abortions and errors."""
    return any(
        isinstance(s, (AbortStep, ErrorStep)) or (isinstance(s, StreamStep) and not s.to_host)
        for s in records_of(executable, part)
    )


def runs_of_parts(
    part: Part, trips: Trips, path: Path = (), runs: int | None = 1
) -> Iterator[tuple[Path, Part, int | None]]:
    """Yield every part of a tree with its path and how often it ran, the given part first.

    Args:
      part: what ran.
      trips: see ``Trips``; where it says nothing the numbers are None.
      path: where the part is.
      runs: how often it ran.
    """
    yield path, part, runs
    if isinstance(part, int):
        return
    for position, inner in enumerate(part.parts):
        yield from runs_of_parts(
            inner, trips, (*path, position), _inner_runs(part, position, runs, trips.get(path))
        )


def _inner_runs(node: Node, position: int, runs: int | None, trips: Datum) -> int | None:
    """Return how often a part right below a node ran."""
    match node:
        case Repeat(count):
            return None if runs is None else runs * count
        case Switch():
            return None if trips is None else trips[position]
        case While():
            is_condition = position == 0 and runs is not None
            return None if trips is None else trips + runs if is_condition else trips
        case _:
            return runs


def written_in(executable: Executable, part: Part) -> set[str]:
    """Return the variables that steps of a part write; of a view, what it names."""
    return {root_of(executable, v) for n in steps_of(part) for v in written_by(executable.steps[n])}


def loop_carried(executable: Executable, part: Part) -> list[str]:
    """Return the variables a loop or branch writes whose value is read afterwards or in a later round."""
    written = written_in(executable, part)
    if not written:
        return []
    wanted: set[str] = {root_of(executable, name) for name in executable.outputs}
    _reads(executable, executable.program, part, wanted)
    _exposed(executable, part, set(), wanted)
    return sorted(written & wanted)


def read_first(executable: Executable, part: Part) -> set[str]:
    """Return the variables that a part may read before it writes them; of a view, what it names."""
    found: set[str] = set()
    _exposed(executable, part, set(), found)
    return found


def _reads(executable: Executable, part: Part, leaving_out: Part, found: set[str]) -> None:
    """Add what a part of a tree reads to ``found``, one node below it left out."""
    if isinstance(part, int):
        found.update(root_of(executable, name) for name in read_by(executable.steps[part]))
        return
    if part is leaving_out:
        return
    if isinstance(part, Decided):
        found.add(root_of(executable, part.decided_by))
    for inner in part.parts:
        _reads(executable, inner, leaving_out, found)


def _exposed(executable: Executable, part: Part, written: set[str], found: set[str]) -> None:
    """Add to ``found`` what a part may read before it writes it; ``written`` becomes what surely is."""
    match part:
        case int():
            step = executable.steps[part]
            found.update({root_of(executable, name) for name in read_by(step)} - written)
            written.update(root_of(executable, name) for name in written_by(step))
        case Switch():
            found.update({root_of(executable, part.index)} - written)
            branches = [set(written) for _ in part.branches]
            for branch, after in zip(part.branches, branches, strict=True):
                _exposed(executable, branch, after, found)
            written.update(branches[0].intersection(*branches))
        case While():
            _exposed(executable, part.condition, written, found)
            found.update({root_of(executable, part.predicate)} - written)
            _exposed(executable, part.body, set(written), found)
        case Repeat():
            _exposed(executable, part.body, written if part.count else set(written), found)
        case _:
            for inner in part.parts:
                _exposed(executable, inner, written, found)


def decided_by_floats(executable: Executable) -> bool:
    """Return whether a loop, a branch or an abortion may depend on the value of a float."""
    names = [part.decided_by for _, part in decided_parts(executable.program)]
    names += [step.predicate for step in executable.steps if isinstance(step, AbortStep)]
    deciders = [root_of(executable, name) for name in names]
    if not deciders:
        return False
    tainted = {name for name, v in executable.variables.items() if is_float(v.dtype)}
    groups = (group for step in executable.steps if isinstance(step, ExecuteStep) for group in step.groups)
    for group in groups:
        if group.codelet.names_floats:  # whose values may be floats between integers that it reads and writes
            tainted.update(root_of(executable, name) for name in group.results)
    while True:
        before = len(tainted)
        for read, written in (flow for step in executable.steps for flow in step.flows):
            if any(name in tainted or root_of(executable, name) in tainted for name in read):
                tainted.update(root_of(executable, name) for name in written)
        if len(tainted) == before:
            return not tainted.isdisjoint(deciders)
