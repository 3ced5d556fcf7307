"""The steps of an executable: what each kind is called with, reads and writes, and how it is written to a file.

A kind of step is one class here; ``costs`` says what it takes, engines what it does.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeAlias

from tiles.cached import cached_property
from tiles.codelets import exported_from_data
from tiles.codelets.modules import Module
from tiles.files import JsonObject, is_tuple
from tiles.graph import Codelet, OpForm, Permutation, Plan, codelet_from_data
from tiles.graph.replicas import permutation_data, permutation_from_data

Flow: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""Variables that are read, and those that are written with nothing but these."""


def at_line(location: str) -> str:
    """Return how listings name a source line; nothing where it is not known."""
    return f"    from {location}" if location else ""


@dataclass(frozen=True)
class Operand:
    """What a vertex group reads: a variable, and the buffer its slices are received in ("" if read in place)."""

    variable: str
    buffer: str


@dataclass(frozen=True)
class VertexGroup:
    """The vertices of one planned operation."""

    name: str
    codelet: Codelet
    form: OpForm
    plan: Plan
    operands: tuple[Operand, ...]
    results: tuple[str, ...]
    location: str = ""

    def to_data(self) -> JsonObject:
        """Return plain data."""
        return {
            "name": self.name,
            "codelet": self.codelet.to_data(),
            "form": self.form.to_data(),
            "plan": self.plan.to_data(),
            "operands": [[o.variable, o.buffer] for o in self.operands],
            "results": list(self.results),
            "location": self.location,
        }

    @classmethod
    def from_data(cls, data: JsonObject, modules: dict[str, Module]) -> Self:
        """Build from plain data; ``modules`` hold the code of codelets that are not this package's."""
        codelet = data["codelet"]
        return cls(
            data["name"],
            exported_from_data(codelet, modules) if "carried" in codelet else _codelet(json.dumps(codelet)),
            _form(json.dumps(data["form"])),
            Plan.from_data(data["plan"]),
            tuple(Operand(v, b) for v, b in data["operands"]),
            tuple(data["results"]),
            data["location"],
        )


@lru_cache(maxsize=2048)
def _codelet(text: str) -> Codelet:
    """Return a codelet of this package from the text of its plain data: many vertices of a program are alike."""
    return codelet_from_data(json.loads(text))


@lru_cache(maxsize=2048)
def _form(text: str) -> OpForm:
    """Return a form from the text of its plain data; see ``_codelet``."""
    return OpForm.from_data(json.loads(text))


@dataclass(frozen=True)
class ExecuteStep:
    """One superstep: exchange the operands that are not in place, sync, compute.

    Everything is received before any vertex runs. Then every tile runs its vertices of the groups in their order, and
    waits for no other tile: a group may read in place what an earlier one wrote.
    """

    name: str
    groups: tuple[VertexGroup, ...]

    @cached_property
    def stages(self) -> tuple[tuple[VertexGroup, ...], ...]:
        """The groups, cut where one reads in place what a group of its own stage would have written."""
        stages: list[list[VertexGroup]] = [[]]
        written: set[str] = set()
        for group in self.groups:
            if any(not o.buffer and o.variable in written for o in group.operands):
                stages.append([])
                written = set()
            stages[-1].append(group)
            written.update(group.results)
        return tuple(map(tuple, stages))

    @property
    def reads(self) -> tuple[str, ...]:
        """Variables that it reads as they were before it."""
        found: list[str] = []
        written: set[str] = set()
        for group in self.groups:
            found.extend(o.variable for o in group.operands if o.buffer or o.variable not in written)
            written.update(group.results)
        return tuple(found)

    @property
    def writes(self) -> tuple[str, ...]:
        """Variables it writes."""
        return tuple(result for group in self.groups for result in group.results)

    @property
    def flows(self) -> tuple[Flow, ...]:
        """What of before it each group needs for what it writes: where it reads an earlier group's result, what that needs."""
        needs: dict[str, tuple[str, ...]] = {}
        found: list[Flow] = []
        for group in self.groups:
            names = [
                (o.variable,) if o.buffer else needs.get(o.variable, (o.variable,)) for o in group.operands
            ]
            read = tuple(dict.fromkeys(itertools.chain.from_iterable(names)))
            found.append((read, group.results))
            needs |= dict.fromkeys(group.results, read)
        return tuple(found)

    def texts(self) -> Iterator[Any]:
        """Yield all that must be text, its name and variables apart."""
        for group in self.groups:
            yield from (group.name, group.location)
            for operand in group.operands:
                yield operand.buffer

    def lines(self) -> Iterator[str]:
        """Yield the lines of a listing."""
        for g in self.groups:
            reads = ", ".join(f"{o.variable}{' via ' + o.buffer if o.buffer else ''}" for o in g.operands)
            done = f"{g.codelet.label} [{g.plan.describe(g.form)}] ({reads}) -> {', '.join(g.results)}"
            yield f"{g.name}: {done}" + at_line(g.location)

    def to_data(self) -> JsonObject:
        """Return plain data."""
        return {"execute": self.name, "vertices": [group.to_data() for group in self.groups]}


@dataclass(frozen=True)
class PlainStep:
    """A step that its fields say all about; not a step itself.

    Class attributes:
      kind: the key of its name in plain data.
      keys: keys of fields that are not called as the field is.
    """

    kind: ClassVar[str]
    keys: ClassVar[Mapping[str, str]] = {}
    name: str

    @property
    def reads(self) -> tuple[str, ...]:
        """Variables it reads."""
        return ()

    @property
    def writes(self) -> tuple[str, ...]:
        """Variables it writes."""
        return ()

    @property
    def flows(self) -> tuple[Flow, ...]:
        """What it reads for what it writes: of most steps all for all."""
        return ((self.reads, self.writes),)

    def texts(self) -> Iterator[Any]:
        """Yield all that must be text, its name and variables apart."""
        for field in fields(self):
            if field.type == "str":
                yield getattr(self, field.name)

    def describe(self) -> str:
        """Return what it does, in a listing."""
        raise NotImplementedError(f"{type(self).__name__}.describe")

    def lines(self) -> Iterator[str]:
        """Yield the lines of a listing."""
        yield self.describe() + at_line(getattr(self, "location", ""))

    def to_data(self) -> JsonObject:
        """Return plain data."""
        data: JsonObject = {self.kind: self.name}
        for field in fields(self)[1:]:
            value: Any = getattr(self, field.name)
            data[self.keys.get(field.name, field.name)] = list(value) if is_tuple(value) else value
        return data

    @classmethod
    def from_data(cls, data: JsonObject) -> Self:
        """Build from plain data; what is of the wrong kind is refused later."""
        values: list[Any] = []
        for field in fields(cls)[1:]:
            value = data[cls.keys.get(field.name, field.name)]
            values.append(tuple(value) if field.type == "tuple[str, ...]" else value)
        return cls(data[cls.kind], *values)


@dataclass(frozen=True)
class VariableCopy:
    """Rewrite a variable's elements, in row-major order, from its sources; see ``tiles.graph.Copy``."""

    destination: str
    sources: tuple[str, ...]
    axis: int | None
    location: str = ""


@dataclass(frozen=True)
class CopyStep(PlainStep):
    """One exchange in which variables are rewritten; none of the copies reads or writes what another one writes."""

    kind: ClassVar[str] = "copy"
    copies: tuple[VariableCopy, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """The sources."""
        return tuple(source for copy in self.copies for source in copy.sources)

    @property
    def writes(self) -> tuple[str, ...]:
        """The destinations."""
        return tuple(copy.destination for copy in self.copies)

    @property
    def flows(self) -> tuple[Flow, ...]:
        """The sources of each destination."""
        return tuple((copy.sources, (copy.destination,)) for copy in self.copies)

    def texts(self) -> Iterator[Any]:
        """Yield all that must be text, its name and variables apart."""
        for copy in self.copies:
            yield copy.location

    def lines(self) -> Iterator[str]:
        """Yield the lines of a listing."""
        for copy in self.copies:
            yield f"copy {', '.join(copy.sources)} -> {copy.destination}" + at_line(copy.location)

    def to_data(self) -> JsonObject:
        """Return plain data."""
        return {
            self.kind: self.name,
            "copies": [{**vars(c), "sources": list(c.sources)} for c in self.copies],
        }

    @classmethod
    def from_data(cls, data: JsonObject) -> Self:
        """Build from plain data; what is of the wrong kind is refused later."""
        copies = data["copies"]
        return cls(
            data[cls.kind],
            tuple(
                VariableCopy(c["destination"], tuple(c["sources"]), c["axis"], c["location"]) for c in copies
            ),
        )


@dataclass(frozen=True)
class BetweenStep(PlainStep):
    """Move a variable to other replicas along axes; see ``tiles.graph.CopyBetween``."""

    kind: ClassVar[str] = "between"
    source: str
    destination: str
    axes: tuple[str, ...]
    permutations: tuple[Permutation, ...]
    location: str = ""
    stage: str = ""

    @property
    def exchanges(self) -> tuple[tuple[Permutation, ...], ...]:
        """The permutations of each exchange that it may be: of every stage, or all at once."""
        return tuple((each,) for each in self.permutations) if self.stage else (self.permutations,)

    @property
    def reads(self) -> tuple[str, ...]:
        """What is sent, and the number of the stage."""
        return (self.source, *((self.stage,) if self.stage else ()))

    @property
    def writes(self) -> tuple[str, ...]:
        """What arrives."""
        return (self.destination,)

    def describe(self) -> str:
        """Return both ends, axes and permutations."""
        moves = ", ".join(map(str, self.permutations)) + (f" in stage {self.stage}" if self.stage else "")
        return f"between {self.source} -> {self.destination} along {', '.join(self.axes)} by {moves}"

    def to_data(self) -> JsonObject:
        """Return plain data."""
        return {**super().to_data(), "permutations": [permutation_data(p) for p in self.permutations]}

    @classmethod
    def from_data(cls, data: JsonObject) -> Self:
        """Build from plain data; what is of the wrong kind is refused later."""
        permutations = tuple(permutation_from_data(p) for p in data["permutations"])
        ends = data[cls.kind], data["source"], data["destination"]
        return cls(*ends, tuple(data["axes"]), permutations, data["location"], data["stage"])


@dataclass(frozen=True)
class IndexStep(PlainStep):
    """Write a replica's place along axes into a variable; see ``tiles.graph.WriteReplicaIndex``."""

    kind: ClassVar[str] = "index"
    variable: str
    axes: tuple[str, ...]
    location: str = ""

    @property
    def writes(self) -> tuple[str, ...]:
        """The variable."""
        return (self.variable,)

    def describe(self) -> str:
        """Return variable and axes."""
        return f"replica index {self.variable} along {', '.join(self.axes)}"


@dataclass(frozen=True)
class StreamStep(PlainStep):
    """Exchange the next item of a stream with the host: into a variable, or from it when ``to_host``."""

    kind: ClassVar[str] = "stream"
    keys: ClassVar[Mapping[str, str]] = {"stream": "of"}
    stream: str
    variable: str
    to_host: bool
    location: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """What is sent."""
        return (self.variable,) if self.to_host else ()

    @property
    def writes(self) -> tuple[str, ...]:
        """What arrives."""
        return () if self.to_host else (self.variable,)

    def describe(self) -> str:
        """Return both ends."""
        ends = (self.variable, self.stream) if self.to_host else (self.stream, self.variable)
        return f"stream {' -> '.join(ends)}"


@dataclass(frozen=True)
class RemoteStep(PlainStep):
    """Copy rows of a remote buffer into a variable, or from it when ``to_remote``.

    Args:
      name: label.
      buffer: the remote buffer.
      variable: of a row's shape, or ``[n, *row]`` where ``rows`` has n numbers.
      to_remote: the direction.
      rows: variable with the numbers of rows, "" for row 0.
      location: the user's source line.
    """

    kind: ClassVar[str] = "remote"
    buffer: str
    variable: str
    to_remote: bool
    rows: str = ""
    location: str = ""

    @property
    def to_host(self) -> bool:
        """Whether bytes leave the device."""
        return self.to_remote

    @property
    def reads(self) -> tuple[str, ...]:
        """What is sent, and the numbers of rows."""
        return (*((self.variable,) if self.to_remote else ()), *((self.rows,) if self.rows else ()))

    @property
    def writes(self) -> tuple[str, ...]:
        """What arrives."""
        return () if self.to_remote else (self.variable,)

    def describe(self) -> str:
        """Return both ends."""
        remote = f"{self.buffer}[{self.rows or 0}]"
        ends = (self.variable, remote) if self.to_remote else (remote, self.variable)
        return f"remote {' -> '.join(ends)}"


@dataclass(frozen=True)
class AbortStep(PlainStep):
    """Stop the run when the scalar ``predicate`` is true; see ``tiles.graph.AbortOnCondition``."""

    kind: ClassVar[str] = "abort"
    predicate: str
    message: str = ""
    location: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The predicate."""
        return (self.predicate,)

    def describe(self) -> str:
        """Return condition and message."""
        return f"abort if {self.predicate}" + (f": {self.message}" if self.message else "")


@dataclass(frozen=True)
class ErrorStep(PlainStep):
    """Stop the run with a message and a variable's value; see ``tiles.graph.ErrorProgram``."""

    kind: ClassVar[str] = "error"
    variable: str
    message: str = ""
    location: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The variable."""
        return (self.variable,)

    def describe(self) -> str:
        """Return message and variable."""
        return f"stop with {self.variable}" + (f": {self.message}" if self.message else "")


@dataclass(frozen=True)
class PrintStep(PlainStep):
    """Send a variable's value to the host under a title; see ``tiles.graph.PrintTensor``."""

    kind: ClassVar[str] = "print"
    variable: str
    title: str
    location: str = ""
    message: str = ""
    part: int = 0

    @property
    def to_host(self) -> bool:
        """The value goes to the host."""
        return True

    @property
    def reads(self) -> tuple[str, ...]:
        """The variable."""
        return (self.variable,)

    def describe(self) -> str:
        """Return title and variable."""
        part = f", part {self.part}" if self.part else ""
        return f"print {self.variable} as {self.title if not self.message else repr(self.title)}{part}"


@dataclass(frozen=True)
class UndefStep(PlainStep):
    """From here on a variable's value is undefined; see ``tiles.graph.WriteUndef``."""

    kind: ClassVar[str] = "undef"
    variable: str
    location: str = ""

    def describe(self) -> str:
        """Return the variable."""
        return f"undefine {self.variable}"


@dataclass(frozen=True)
class SyncStep(PlainStep):
    """Wait for all tiles, with ``external`` for the host, too; see ``tiles.graph.Sync``."""

    kind: ClassVar[str] = "sync"
    external: bool
    location: str = ""

    def describe(self) -> str:
        """Return who waits."""
        return f"sync {'with the host' if self.external else 'all tiles'}"


HostStep: TypeAlias = StreamStep | RemoteStep | PrintStep
"""Steps that exchange a variable's value with the host or its memory."""
HOST_STEPS = (StreamStep, RemoteStep, PrintStep)
StepRecord: TypeAlias = (
    ExecuteStep
    | CopyStep
    | BetweenStep
    | IndexStep
    | StreamStep
    | RemoteStep
    | AbortStep
    | ErrorStep
    | PrintStep
    | UndefStep
    | SyncStep
)
_PLAIN: dict[str, Any] = {cls.kind: cls for cls in PlainStep.__subclasses__()}


def step_from_data(data: JsonObject, modules: dict[str, Module]) -> StepRecord:
    """Build a step from plain data; ``modules`` hold the code of codelets that are not this package's."""
    for kind, cls in _PLAIN.items():
        if kind in data:
            return cls.from_data(data)
    return ExecuteStep(data["execute"], tuple(VertexGroup.from_data(g, modules) for g in data["vertices"]))
