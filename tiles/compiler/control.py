"""The control tree of an executable: in which order its steps run, how often, and on what that depends.

A part of a tree is the number of a step or a node. A node's ``parts`` are what is right below it, in the order in which
they run first. A path names a place in a tree by the positions among ``parts`` that lead to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tiles.errors import InvalidExecutable

Path: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Sequence:
    """Runs its parts one after another."""

    parts: tuple[Part, ...]

    kind = "sequence"


@dataclass(frozen=True)
class Repeat:
    """Runs its body ``count`` times."""

    count: int
    body: Part

    kind = "repeat"

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its body."""
        return (self.body,)


@dataclass(frozen=True)
class While:
    """Runs its condition, and as long as that leaves ``goes_on`` in the predicate, its body and the condition again."""

    condition: Part
    predicate: str
    body: Part
    goes_on: bool = True

    @property
    def kind(self) -> str:
        """``while`` the predicate is true, or ``until`` it is."""
        return "while" if self.goes_on else "until"

    @property
    def parts(self) -> tuple[Part, ...]:
        """Condition and body."""
        return (self.condition, self.body)

    @property
    def decided_by(self) -> str:
        """The variable that decides how often its body runs."""
        return self.predicate


@dataclass(frozen=True)
class Switch:
    """Runs the branch that a variable counts; the last one, if there is none of that number."""

    index: str
    branches: tuple[Part, ...]

    kind = "switch"

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its branches."""
        return self.branches

    @property
    def decided_by(self) -> str:
        """The variable that decides which branch runs."""
        return self.index


@dataclass(frozen=True)
class Call:
    """Runs a function's body. All calls of a function hold one body: the same steps."""

    function: str
    body: Part

    kind = "call"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The function's body."""
        return (self.body,)


@dataclass(frozen=True)
class Composite:
    """Runs a body that is also known in one piece: entry ``number`` of the executable's composites."""

    number: int
    body: Part

    kind = "composite"

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its body."""
        return (self.body,)


Decided: TypeAlias = While | Switch
"""Nodes that decide, while a program runs, what runs next."""
Node: TypeAlias = Sequence | Repeat | While | Switch | Call | Composite
Part: TypeAlias = int | Node


def steps_of(part: Part) -> Iterator[int]:
    """Yield the step numbers of a part of a tree, a function's once for each call."""
    if isinstance(part, int):
        yield part
        return
    for inner in part.parts:
        yield from steps_of(inner)


def nodes_of(part: Part) -> Iterator[Node]:
    """Yield the nodes of a part of a tree, each before those below it."""
    if isinstance(part, int):
        return
    yield part
    for inner in part.parts:
        yield from nodes_of(inner)


def decided_parts(part: Part, path: Path = ()) -> Iterator[tuple[Path, Decided]]:
    """Yield all that decides what runs next with its path, ``part`` itself included; ``path`` is where that is."""
    if isinstance(part, int):
        return
    if isinstance(part, Decided):
        yield path, part
    for position, inner in enumerate(part.parts):
        yield from decided_parts(inner, (*path, position))


# ---- in files


def part_data(part: Part) -> Any:
    """Return a part of a tree as plain data; of a call, its function's name."""
    match part:
        case int():
            return part
        case Repeat():
            return ["repeat", part.count, part_data(part.body)]
        case While():
            return [part.kind, part_data(part.condition), part.predicate, part_data(part.body)]
        case Switch():
            return ["switch", part.index, *map(part_data, part.branches)]
        case Call():
            return ["call", part.function]
        case Composite():
            return ["composite", part.number, part_data(part.body)]
        case Sequence():
            return ["sequence", *map(part_data, part.parts)]


def functions_of(part: Part) -> dict[str, Part]:
    """Return the bodies of the functions that are called, by name; each after those that it calls."""
    found: dict[str, Part] = {}
    _add_functions(part, found)
    return found


def _add_functions(part: Part, found: dict[str, Part]) -> None:
    if isinstance(part, int) or (isinstance(part, Call) and part.function in found):
        return
    for inner in part.parts:
        _add_functions(inner, found)
    if isinstance(part, Call):
        found[part.function] = part.body


def part_from(data: Any, functions: Mapping[str, Part]) -> Part:
    """Build a part of a tree from plain data.

    Args:
      data: see ``part_data``.
      functions: the bodies of the functions that it may call, by name.

    Raises:
      InvalidExecutable: the data is no control tree.
    """
    match data:
        case bool():
            pass
        case int():
            return data
        case ["sequence", *parts]:
            return Sequence(tuple(part_from(part, functions) for part in parts))
        case ["repeat", int(count), body] if count >= 0 and type(count) is int:
            return Repeat(count, part_from(body, functions))
        case ["while" | "until" as kind, condition, str(predicate), body]:
            return While(
                part_from(condition, functions), predicate, part_from(body, functions), kind == "while"
            )
        case ["switch", str(index), first, *others]:
            return Switch(index, tuple(part_from(part, functions) for part in (first, *others)))
        case ["call", str(name)] if name in functions:
            return Call(name, functions[name])
        case ["composite", int(number), body] if number >= 0 and type(number) is int:
            return Composite(number, part_from(body, functions))
        case _:
            pass
    raise InvalidExecutable(f"the program has {str(data)[:80]}, which is no control step")
