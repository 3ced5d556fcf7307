"""How often loops and branches run that no input decides, found by running what decides them.

A branch on a loop's counter, or a loop up to the counter of another one, runs alike whatever a program is given. What
decides it is cut out of the program and run once: the steps that only integers of its own reach, and the loops around them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import jax

from tiles.compiler import CopyStep, Executable, ExecuteStep
from tiles.compiler.control import (
    Composite,
    Decided,
    Node,
    Part,
    Path,
    Repeat,
    Sequence,
    Switch,
    While,
    decided_parts,
    steps_of,
)
from tiles.compiler.control_flow import Trips
from tiles.compiler.steps import StepRecord, SyncStep, UndefStep
from tiles.compiler.wellformed import root_of
from tiles.compiler.wellformed_steps import read_by, written_by
from tiles.engine import FastEngine
from tiles.graph import Replicas
from tiles.graph.collective import Collective
from tiles.numerics.dtypes import is_float

MOST_TRIPS = 1 << 18
"""Trips of loops after which nothing is said of them: on a processor about a second, and some loops have no end."""
MOST_ELEMENTS = 1 << 16
"""Elements of all that decides, beyond which it is as well not run."""

Names: TypeAlias = frozenset[str]
_NOTHING = Sequence(())
_NO_STEP = SyncStep("", False)

_KNOWN: weakref.WeakKeyDictionary[Executable, Trips] = weakref.WeakKeyDictionary()


def static_trips(executable: Executable) -> Trips:
    """Return the trips of the loops and branches that no input, and no float, decides; once per executable.

    Floats are left out since engines, and machines, round them otherwise. What runs ``MOST_TRIPS`` times or more, or takes
    more than ``MOST_ELEMENTS``, is left out, too.
    """
    if executable not in _KNOWN:
        _KNOWN[executable] = _static_trips(executable)
    return _KNOWN[executable]


def _static_trips(executable: Executable) -> Trips:
    if next(decided_parts(executable.program), None) is None:
        return {}
    works = list(_works(executable, executable.program, ()))
    unsure = _unsure(executable, works)
    sure = _sure_parts(executable, executable.program, unsure)
    if not sure:
        return {}
    needed = _needed(works, {root_of(executable, part.decided_by) for part in sure.values()}, unsure)
    if sum(math.prod(executable.variables[name].shape) for name in needed) > MOST_ELEMENTS:
        return {}
    cut = _Cut(executable, needed, set(map(id, sure.values())))
    most = MOST_TRIPS // max(1, cut.repeats(cut.program))
    if not most:
        return {}
    engine = FastEngine(cut.executable)
    engine.most_trips = most
    with jax.ensure_compile_time_eval():  # whatever is traced around
        found = engine.run()[1].trips
    loops = [found[path] for path, part in sure.items() if isinstance(part, While)]
    return {} if any(trips >= most for trips in loops) else {path: found[path] for path in sure}


@dataclass(frozen=True)
class _Work:
    """What some vertices, a copy, a composite or another step do.

    Attributes:
      reads: variables; of views what they name.
      writes: the same.
      is_sure: whether what is written follows from what is read, on every replica alike.
      deciders: what decides the loops and branches around it.
    """

    reads: Names
    writes: Names
    is_sure: bool
    deciders: Names


def _works(executable: Executable, part: Part, deciders: tuple[str, ...]) -> Iterator[_Work]:
    """Yield what is done in a part of the program, that of a function once for each call."""

    def roots(names: tuple[str, ...]) -> Names:
        return frozenset(root_of(executable, name) for name in names)

    def work(reads: tuple[str, ...], writes: tuple[str, ...], is_sure: bool) -> _Work:
        return _Work(roots(reads), roots(writes), is_sure, frozenset(deciders))

    match part:
        case int():
            step = executable.steps[part]
            if isinstance(step, ExecuteStep):
                for group in step.groups:
                    yield work(tuple(o.variable for o in group.operands), group.results, True)
            elif isinstance(step, CopyStep):
                for copy in step.copies:
                    yield work(copy.sources, (copy.destination,), True)
            elif not isinstance(step, UndefStep) and written_by(step):
                yield work(read_by(step), written_by(step), False)
        case Composite():
            steps = [executable.steps[number] for number in steps_of(part)]
            reads, writes = (
                tuple(name for step in steps for name in of(step)) for of in (read_by, written_by)
            )
            yield work(reads, writes, _is_sure(executable, part))
        case _:
            inner = (
                (*deciders, root_of(executable, part.decided_by)) if isinstance(part, Decided) else deciders
            )
            for each in part.parts:
                yield from _works(executable, each, inner)


def _is_sure(executable: Executable, part: Composite) -> bool:
    return not isinstance(executable.composites[part.number].codelet, Collective)


def _unsure(executable: Executable, works: list[_Work]) -> Names:
    """Return the variables that inputs, replicas or floats reach, by what is read or by what decides."""
    found = {root_of(executable, name) for name in executable.inputs}
    found.update(name for name, v in executable.variables.items() if not v.view_of and is_float(v.dtype))
    left, size = works, -1
    while size != len(found):
        size, others = len(found), list[_Work]()
        for work in left:
            if work.is_sure and found.isdisjoint(work.reads) and found.isdisjoint(work.deciders):
                others.append(work)
            else:
                found |= work.writes
        left = others
    return frozenset(found)


def _sure_parts(executable: Executable, part: Part, unsure: Names, path: Path = ()) -> dict[Path, Decided]:
    """Return the loops and branches that are known to run alike whatever is given, by path: those around them are, too."""
    if isinstance(part, int | Composite):
        return {}
    found: dict[Path, Decided] = {}
    if isinstance(part, Decided):
        if root_of(executable, part.decided_by) in unsure:
            return {}
        found[path] = part
    for position, inner in enumerate(part.parts):
        found |= _sure_parts(executable, inner, unsure, (*path, position))
    return found


def _needed(works: list[_Work], wanted: set[str], unsure: Names) -> Names:
    """Return the variables that those wanted follow from, themselves included."""
    found, left, size = set(wanted), [work for work in works if work.writes.isdisjoint(unsure)], -1
    while size != len(found):
        size, others = len(found), list[_Work]()
        for work in reversed(left):
            if found.isdisjoint(work.writes):
                others.append(work)
            else:
                found |= work.reads | work.writes
        left = others[::-1]
    return frozenset(found)


class _Cut:
    """The program that computes some variables and runs some loops and branches, nothing else; paths stay what they are."""

    def __init__(self, executable: Executable, needed: Names, kept: set[int]) -> None:
        """Take the variables that are computed, and the loops and branches, by identity."""
        self._whole, self._needed, self._kept = executable, needed, kept
        self._parts: dict[int, Part] = {}
        self._steps: dict[int, StepRecord] = {}
        self.program = self._part(executable.program)
        variables = {
            name: v if v.value is None or root_of(executable, name) in needed else replace(v, value=None)
            for name, v in executable.variables.items()
        }
        self.executable = replace(
            executable,
            variables=variables,
            steps=tuple(self._steps.get(number, _NO_STEP) for number in range(len(executable.steps))),
            program=self.program,
            inputs=(),
            outputs=(),
            donated=(),
            streams={},
            remote_buffers={},
            shared_exchange={},
            replicas=Replicas(),
            system=None,
            differs_along=(),
        )
        """The program, for engines that need no memory of a tile's."""

    def _makes(self, names: tuple[str, ...]) -> bool:
        return any(root_of(self._whole, name) in self._needed for name in names)

    def _part(self, part: Part) -> Part:
        """Return what is left of a part, one that is met again the same."""
        match part:
            case int():
                return self._step(part)
            case Composite():
                steps = {number: self._whole.steps[number] for number in steps_of(part)}
                if not any(self._makes(written_by(step)) for step in steps.values()):
                    return _NOTHING
                self._steps |= steps
                return part
            case _:
                if id(part) not in self._parts:
                    self._parts[id(part)] = self._node(part)
                return self._parts[id(part)]

    def _step(self, number: int) -> Part:
        step = self._whole.steps[number]
        if isinstance(step, ExecuteStep):
            groups = tuple(group for group in step.groups if self._makes(group.results))
            self._steps[number] = replace(step, groups=groups)
            return number if groups else _NOTHING
        if isinstance(step, CopyStep):
            copies = tuple(copy for copy in step.copies if self._makes((copy.destination,)))
            self._steps[number] = replace(step, copies=copies)
            return number if copies else _NOTHING
        return _NOTHING

    def _node(self, node: Node) -> Part:
        if isinstance(node, Decided) and id(node) not in self._kept:
            return _NOTHING
        parts = tuple(map(self._part, node.parts))
        if not isinstance(node, Decided) and all(part == _NOTHING for part in parts):
            return _NOTHING
        match node:
            case While():
                return replace(node, condition=parts[0], body=parts[1])
            case Switch():
                return replace(node, branches=parts)
            case Sequence():
                return Sequence(parts)
            case _:
                return replace(node, body=parts[0])

    def repeats(self, part: Part) -> int:
        """Return how often the step that is repeated most runs in one pass, whatever is decided."""
        if isinstance(part, int | Composite):
            return 1
        most = max(map(self.repeats, part.parts), default=0)
        return part.count * most if isinstance(part, Repeat) else most
