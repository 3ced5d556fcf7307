"""Questions about an executable's control tree: which steps, what decides, what lives through a loop.

A tree is a step's number, or a list: ``["sequence", tree...]``, ``["repeat", count, tree]``,
``["while", condition, predicate, tree]``, ``["until", condition, predicate, tree]``, ``["switch", index, tree...]``,
``["composite", number, tree]``. A path names a place in a tree by the positions that lead to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tiles.compiler.executable import Executable
from tiles.compiler.steps import AbortStep, ErrorStep, StepRecord, StreamStep
from tiles.compiler.wellformed import root_of
from tiles.compiler.wellformed_steps import read_by, written_by
from tiles.numerics.dtypes import is_float

Path = tuple[int, ...]
Trips = Mapping[Path, Any]
"""By the path of every ``while`` and ``until`` how often its body ran in all, of every ``switch`` a tuple: how often each branch
did."""


LOOPS = ("while", "until")
"""Loops on a predicate: as long as it is true, or until it is."""
DECIDED = (*LOOPS, "switch")
"""What decides, while a program runs, what runs next."""


def children(tree: Any) -> list[tuple[int, Any]]:
    """Return the trees right below a list, each with its position in it, in the order they run."""
    kind = tree[0]
    if kind in LOOPS:
        return [(1, tree[1]), (3, tree[3])]
    first = 1 if kind == "sequence" else 2
    return list(enumerate(tree))[first:]


def steps_of(tree: Any) -> Iterator[int]:
    """Yield the step numbers of a tree."""
    if isinstance(tree, int):
        yield tree
        return
    for _, inner in children(tree):
        yield from steps_of(inner)


def dynamic_parts(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every ``while``, ``until`` and ``switch`` of a tree with its path, ``tree`` itself included."""
    if isinstance(tree, int):
        return
    if tree[0] in DECIDED:
        yield path, tree
    for position, inner in children(tree):
        yield from dynamic_parts(inner, (*path, position))


def count_steps(executable: Executable, trips: Trips) -> tuple[int, ...]:
    """Return how often every step ran, given how often loops' bodies and branches did."""
    counts = [0] * len(executable.steps)
    for _, tree, runs in runs_of_parts(executable.program, trips):
        if isinstance(tree, int):
            assert runs is not None
            counts[tree] += runs
    return tuple(counts)


def runs_of_steps(executable: Executable) -> list[int | None]:
    """Return how often every step runs, None where that depends on data."""
    counts: list[int | None] = [0] * len(executable.steps)
    for _, tree, runs in runs_of_parts(executable.program, {}):
        if isinstance(tree, int):
            known = counts[tree]
            counts[tree] = None if known is None or runs is None else known + runs
    return counts


def items_needed(executable: Executable) -> dict[str, int | None]:
    """Return how many items of every stream a run moves, None where that depends on data."""
    needed: dict[str, int | None] = dict.fromkeys(executable.streams, 0)
    for step, runs in zip(executable.steps, runs_of_steps(executable), strict=True):
        if isinstance(step, StreamStep):
            known = needed[step.stream]
            needed[step.stream] = None if known is None or runs is None else known + runs
    return needed


def records_of(executable: Executable, tree: Any) -> list[StepRecord]:
    """Return the steps of a tree, each once."""
    return [executable.steps[number] for number in dict.fromkeys(steps_of(tree))]


def may_halt(executable: Executable, tree: Any) -> bool:
    """Return whether a tree has steps that may end the run: reads of streams, abortions and errors."""
    return any(
        isinstance(s, (AbortStep, ErrorStep)) or (isinstance(s, StreamStep) and not s.to_host)
        for s in records_of(executable, tree)
    )


def runs_of_parts(
    tree: Any, trips: Trips, path: Path = (), runs: int | None = 1
) -> Iterator[tuple[Path, Any, int | None]]:
    """Yield every part of a tree with its path and how often it ran, the tree itself first.

    Args:
      tree: what ran.
      trips: see ``Trips``; where it says nothing the numbers are None.
      path: where the tree is.
      runs: how often it ran.
    """
    yield path, tree, runs
    if isinstance(tree, int):
        return
    for number, (position, inner) in enumerate(children(tree)):
        yield from runs_of_parts(
            inner, trips, (*path, position), _inner_runs(tree, number, runs, trips.get(path))
        )


def _inner_runs(tree: Any, number: int, runs: int | None, trips: Any) -> int | None:
    """Return how often the part ``number`` right below a tree ran."""
    if tree[0] not in DECIDED:
        return runs if runs is None or tree[0] != "repeat" else runs * tree[1]
    if trips is None:
        return None
    if tree[0] == "switch":
        return trips[number]
    return trips + runs if number == 0 and runs is not None else trips


def written_in(executable: Executable, tree: Any) -> set[str]:
    """Return the variables that steps of a tree write; of a view, what it names."""
    return {root_of(executable, v) for n in steps_of(tree) for v in written_by(executable.steps[n])}


def carried_through(executable: Executable, tree: Any) -> list[str]:
    """Return the variables a loop or branch writes whose value is read afterwards or in a later round."""
    written = written_in(executable, tree)
    if not written:
        return []
    wanted: set[str] = {root_of(executable, name) for name in executable.outputs}
    _reads(executable, executable.program, tree, wanted)
    _exposed(executable, tree, set(), wanted)
    return sorted(written & wanted)


def _reads(executable: Executable, tree: Any, leaving_out: Any, found: set[str]) -> None:
    """Add what a tree reads to ``found``, one of its parts left out."""
    if tree is leaving_out and not isinstance(tree, int):
        return
    if isinstance(tree, int):
        found.update(root_of(executable, name) for name in read_by(executable.steps[tree]))
        return
    if tree[0] in DECIDED:
        found.add(root_of(executable, decider(tree)))
    for _, inner in children(tree):
        _reads(executable, inner, leaving_out, found)


def _exposed(executable: Executable, tree: Any, written: set[str], found: set[str]) -> None:
    """Add to ``found`` what a tree may read before it writes it; ``written`` becomes what surely is."""
    if isinstance(tree, int):
        step = executable.steps[tree]
        found.update({root_of(executable, name) for name in read_by(step)} - written)
        written.update(root_of(executable, name) for name in written_by(step))
        return
    kind = tree[0]
    if kind in ("sequence", "composite"):
        for _, inner in children(tree):
            _exposed(executable, inner, written, found)
        return
    if kind == "switch":
        found.update({root_of(executable, tree[1])} - written)
        branches = [set(written) for _ in children(tree)]
        for (_, inner), after in zip(children(tree), branches, strict=True):
            _exposed(executable, inner, after, found)
        written.update(set.intersection(*branches))
        return
    if kind in LOOPS:
        _exposed(executable, tree[1], written, found)
        found.update({root_of(executable, tree[2])} - written)
        _exposed(executable, tree[3], set(written), found)
        return
    _exposed(executable, tree[2], written if tree[1] else set(written), found)


def decider(tree: Any) -> str:
    """Return the variable that decides a loop or ``switch``."""
    return tree[2] if tree[0] in LOOPS else tree[1]


def decided_by_floats(executable: Executable) -> bool:
    """Return whether a loop, a branch or an abortion may depend on the value of a float."""
    names = [decider(tree) for _, tree in dynamic_parts(executable.program)]
    names += [step.predicate for step in executable.steps if isinstance(step, AbortStep)]
    deciders = [root_of(executable, name) for name in names]
    if not deciders:
        return False
    tainted = {name for name, v in executable.variables.items() if is_float(v.dtype)}
    while True:
        before = len(tainted)
        for step in executable.steps:
            if any(name in tainted or root_of(executable, name) in tainted for name in read_by(step)):
                tainted.update(root_of(executable, name) for name in written_by(step))
        if len(tainted) == before:
            return not tainted.isdisjoint(deciders)
