"""Where an operation comes from: a line of the user's program, and the names the program gave to that part of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_IMPLIED = {"transpose": "jvp", "rematted": "checkpoint"}
"""Transforms that say that of another, which is then not named."""


@dataclass(frozen=True, slots=True)
class Location:
    """A source position and a scope. ``line`` and ``column`` count from 1; a column of 0 is unknown.

    A scope is that of the program itself, without what transforms it: a layer's forward and backward pass have one
    scope and different ``transforms``. In a computation that is called, scopes go on from the call's (``within``).

    Args:
      file: the user's file; empty if unknown.
      line: line in it.
      column: column in it.
      function: name of the Python function around it.
      scope: names from the outermost on, ``GPT/Block_3/Dense_0``; no name holds a space.
      transforms: what made this from the operation written there, outermost first: ``transpose``, ``vmap``.
      is_provisional: the line is an installed package's, or that of one of several calls; a line of the user's own
        that leads there takes its place.
    """

    file: str
    line: int
    column: int = 0
    function: str = ""
    scope: str = ""
    transforms: tuple[str, ...] = ()
    is_provisional: bool = False

    @property
    def is_known(self) -> bool:
        """Whether this names a file at all."""
        return bool(self.file)

    @property
    def is_own(self) -> bool:
        """Whether this names a line that no other takes the place of."""
        return self.is_known and not self.is_provisional

    @property
    def source(self) -> str:
        """``file:line``, or nothing."""
        return f"{self.file}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        """Return ``file:line in scope [transforms]`` without what is not there; ``unknown`` for no file."""
        applied = f"[{', '.join(self.transforms)}]" if self.transforms else ""
        named = " ".join(part for part in (self.scope, applied) if part)
        return (self.source or "unknown") + (f" in {named}" if named else "")

    def or_line_of(self, other: Location) -> Location:
        """Return this location, with another's line if it has none, and another's scope if it has none either.

        A line that is not provisional also takes the place of one that is.
        """
        if self.is_known:
            return self._at(other) if self.is_provisional and other.is_own else self
        return self._at(other) if self.scope else other

    def _at(self, other: Location) -> Location:
        """Return this location with another's line."""
        return dataclasses.replace(other, scope=self.scope, transforms=self.transforms)

    def without_scope(self) -> Location:
        """Return the line alone."""
        return dataclasses.replace(self, scope="", transforms=()) if self.scope or self.transforms else self

    def within(self, call: Location) -> Location:
        """Return what this location of a callee is seen from the caller: scopes and transforms go on from the call's.

        The line is the call's where the callee has none, or a provisional one and the call another.
        """
        is_kept = self.is_known and not (self.is_provisional and call.is_own)
        found = self if is_kept else self._at(call)
        if not call.scope and not call.transforms:
            return found
        scope = "/".join(part for part in (call.scope, self.scope) if part)
        return dataclasses.replace(
            found, scope=scope, transforms=plain_transforms((*call.transforms, *self.transforms))
        )

    def below(self, call: Location) -> Location:
        """Return what this location is in a callee: the names after the call's, none where it is not in its scope."""
        names, outer = self.scope.split("/"), call.scope.split("/") if call.scope else []
        inner = names[len(outer) :] if names[: len(outer)] == outer else []
        return dataclasses.replace(self, scope="/".join(inner))


UNKNOWN = Location("", 0)


def plain_transforms(transforms: Iterable[str]) -> tuple[str, ...]:
    """Return transforms, each once, without those that others imply."""
    distinct = dict.fromkeys(transforms)
    implied = {_IMPLIED[name] for name in distinct if name in _IMPLIED}
    return tuple(name for name in distinct if name not in implied)


def shared_scope(locations: Iterable[Location]) -> tuple[str, ...]:
    """Return the names that all scopes begin with; locations without any do not count."""
    return tuple(_head([each.scope.split("/") for each in locations if each.scope]))


def agreed(locations: Sequence[Location]) -> Location:
    """Return one location for what stands for several alike: the first line that is known, and what scopes agree on.

    Provisional lines come last. Scopes of as many names agree name by name, ``Block_*`` for ``Block_0`` and
    ``Block_1``; of others the names are left that all begin with. Transforms are those of all.
    """
    known = [each for each in locations if each.is_known]
    first = next((each for each in known if each.is_own), (known or locations)[0])
    if all(each.scope == first.scope and each.transforms == first.transforms for each in locations):
        return first
    names = [each.scope.split("/") for each in locations]
    if len({len(each) for each in names}) == 1:
        scope = "/".join(_agreed_name(each) for each in zip(*names, strict=True))
    else:
        scope = "/".join(_head(names))
    transforms = tuple(t for t in first.transforms if all(t in each.transforms for each in locations))
    return dataclasses.replace(first, scope=scope, transforms=transforms)


def _agreed_name(names: Sequence[str]) -> str:
    if len(set(names)) == 1:
        return names[0]
    return re.sub(r"\d+$", "", "".join(_head(names))) + "*"


def _head(sequences: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield what all sequences begin with."""
    for alike in zip(*sequences, strict=False):
        if len(set(alike)) > 1:
            return
        yield alike[0]
