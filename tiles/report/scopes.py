"""What every scope of a program costs, with all that is inside of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tiles.compiler import Executable
from tiles.files import JsonObject
from tiles.report.code import code_data
from tiles.report.totals import Count, add, share

Scope: TypeAlias = tuple[str, ...]
"""Names from the outermost on."""


def scopes_data(executable: Executable, operations: Sequence[JsonObject]) -> list[JsonObject]:
    """Return a row for every scope, each after the one around it, the costlier of two side by side first.

    Args:
      executable: the program.
      operations: the section ``operations`` of a profile.
    """
    cycles: dict[Scope, Count] = {(): 0}
    steps: dict[Scope, list[int]] = {}
    for row in operations:
        for scope in ((), *_around(row["scope"])):
            steps.setdefault(scope, []).extend(row["steps"])
        for text, part in _parts(row):
            for scope in ((), *_around(text)):
                cycles[scope] = add(cycles.get(scope, 0), part)
                steps.setdefault(scope, [])
    inside: dict[Scope, list[Scope]] = {scope: [] for scope in cycles}
    for scope in sorted(cycles, key=lambda scope: (cycles[scope] is None, -(cycles[scope] or 0))):
        if scope:
            inside[scope[:-1]].append(scope)
    return [
        {
            "scope": "/".join(scope),
            "depth": len(scope) - 1,
            "cycles": cycles[scope],
            "share": share(cycles[scope], cycles[()]),
            **code_data(executable, steps[scope]),
        }
        for scope in _below((), inside)
    ]


def _parts(row: JsonObject) -> Iterator[tuple[str, Count]]:
    """Yield the scopes that an operation's cycles go to: of several that share steps, each one's vertices to its own.

    What they share, exchange and sync, goes to the scope around all of them.
    """
    if row["cycles"] is None:
        yield row["scope"], None
        return
    yield row["scope"], row["cycles"] - sum(each["vertexCycles"] for each in row["members"])
    for each in row["members"]:
        yield each["scope"], each["vertexCycles"]


def _around(scope: str) -> Iterator[Scope]:
    """Yield the scopes that something is in, outermost first; of several scopes those around all of them."""
    first, *others = (tuple(each.split("/")) for each in scope.split("; "))
    for depth in range(1, len(first) + 1 if first != ("",) else 1):
        if all(other[:depth] == first[:depth] for other in others):
            yield first[:depth]


def _below(outer: Scope, inside: dict[Scope, list[Scope]]) -> Iterator[Scope]:
    for scope in inside[outer]:
        yield scope
        yield from _below(scope, inside)
