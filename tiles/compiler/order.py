"""The order of a program: steps numbered as they stand, who reads and writes what, loops, branches and functions.

Lifetimes follow from it: a storage lives from its first to its last access, and through all of a loop that brings its
value to the next round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from tiles.cached import cached_property
from tiles.compiler import control
from tiles.compiler.renaming import Renaming
from tiles.errors import InvalidGraph
from tiles.graph import (
    CONSTANT,
    INPUT,
    AbortOnCondition,
    Call,
    Composite,
    ComputeSet,
    Copy,
    CopyBetween,
    CopyFromRemote,
    CopyFromStream,
    CopyToRemote,
    CopyToStream,
    ErrorProgram,
    Execute,
    Graph,
    If,
    PrintTensor,
    Repeat,
    RepeatWhileFalse,
    RepeatWhileTrue,
    Sequence,
    Switch,
    Sync,
    Vertices,
    WriteReplicaIndex,
    WriteUndef,
)
from tiles.graph.program import Step
from tiles.numerics.dtypes import is_integer

NAMING = (
    *(Copy, CopyBetween, WriteReplicaIndex, CopyFromStream, CopyToStream, CopyFromRemote, CopyToRemote),
    *(AbortOnCondition, ErrorProgram, PrintTensor, WriteUndef),
)
"""Steps that name tensors in fields of their own."""
Tree = TypeVar("Tree", bound=control.Node)


@dataclass(frozen=True)
class Copies:
    """Copies that are one exchange; none of them reads or writes what another one writes."""

    copies: tuple[Copy, ...]


NumberedStep: TypeAlias = (
    ComputeSet
    | Copy
    | Copies
    | CopyBetween
    | WriteReplicaIndex
    | CopyFromStream
    | CopyToStream
    | CopyFromRemote
    | CopyToRemote
    | AbortOnCondition
    | ErrorProgram
    | PrintTensor
    | WriteUndef
    | Sync
)
"""What has a number: a step that is no control, a compute set in the place of its execution."""


@dataclass
class Order:
    """Steps numbered in program order, with every tensor's accesses and the loops around them.

    Attributes:
      given: the graph as it came.
      steps: name and step, by number; a function's steps stand once, where it is called first.
      accesses: by tensor every step that reads (False) or writes (True) it, with the step's number.
      loops: first and last step of every loop's body.
      functions: control tree of every function that was called.
      lowest: by function the first step that a call of it may run: its own, or one of a function that it calls.
      recalls: for every call after the first, the number of the step that follows it, and the function's ``lowest``.
      bodies: by function its own steps.
      recalled: by function the numbers of the steps that follow calls after the first.
      pinned: tensors that a function shares with its callers: all calls find them in one place.
      branches: first and last step of every branch.
      composites: vertices that composites stand for.
      undefined: by tensor the steps that leave it undefined.
      depth: how many loops, branches, functions and composites are around the step that is numbered next.
    """

    given: Graph
    steps: list[tuple[str, NumberedStep]] = field(default_factory=list[tuple[str, NumberedStep]])
    accesses: dict[str, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))
    loops: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    functions: dict[str, control.Sequence] = field(default_factory=dict[str, control.Sequence])
    lowest: dict[str, int] = field(default_factory=dict[str, int])
    recalls: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    bodies: dict[str, range] = field(default_factory=dict[str, range])
    recalled: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    pinned: set[str] = field(default_factory=set[str])
    branches: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    composites: list[Vertices] = field(default_factory=list[Vertices])
    undefined: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    depth: int = 0

    def __post_init__(self) -> None:
        """Start with the names that the graph gives tensors."""
        self.renaming = Renaming(self.given)

    @property
    def graph(self) -> Graph:
        """What is compiled: the given graph, or one in which tensors are renamed."""
        return self.renaming.graph

    @cached_property
    def donated(self) -> frozenset[str]:
        """Inputs whose memory results may take over; asked for once the program is numbered."""
        return frozenset(self.graph.inputs[i] for i in self.graph.donated)

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Results of the program; asked for once it is numbered."""
        return frozenset(self.graph.outputs)

    def program(self) -> control.Sequence:
        """Number the main program's steps and return its control tree."""
        tree = self.sequence(self.given.program)
        self.renaming.close()
        return tree

    def used(self) -> set[str]:
        """Return the tensors accessed, inputs, outputs, and those that any of them is a view of."""
        names = {*self.accesses, *self.undefined, *self.graph.inputs, *self.graph.outputs}
        for name in list(names):
            while self.graph.tensors[name].view_of:
                name = self.graph.tensors[name].view_of
                names.add(name)
        return names

    def sequence(self, sequence: Sequence) -> control.Sequence:
        """Number steps one after another and return their place in the control tree."""
        return control.Sequence(tuple(self.step(step) for step in sequence.steps))

    def step(self, step: Step) -> control.Part:
        """Number one step and return its place in the control tree."""
        if isinstance(step, NAMING):
            step = self.renaming.applied(step)
        match step:
            case Execute(name):
                if name not in self.graph.compute_sets:
                    raise InvalidGraph(f"the program executes {name!r}, which the graph does not have")
                compute_set = self.renaming.applied(self.graph.compute_sets[name])
                number = self._append(name, compute_set)
                for group in compute_set.vertices:
                    self._access(number, group.operands, group.results)
                return number
            case Copy(destination, sources):
                number = self._append(f"copy.{destination}", step)
                self._access(number, sources, (destination,))
                return number
            case CopyBetween(source, destination, stage=stage):
                number = self._append(f"between.{destination}", step)
                self._access(number, (source, stage) if stage else (source,), (destination,))
                return number
            case WriteReplicaIndex(destination):
                number = self._append(f"index.{destination}", step)
                self._access(number, (), (destination,))
                return number
            case CopyFromStream(stream, destination):
                number = self._stream(step, stream, destination, False)
                self._access(number, (), (destination,))
                return number
            case CopyToStream(source, stream):
                number = self._stream(step, stream, source, True)
                self._access(number, (source,), ())
                return number
            case AbortOnCondition(predicate):
                return self._reading(f"abort.{predicate}", step, predicate)
            case ErrorProgram(tensor):
                return self._reading(f"error.{tensor}", step, tensor)
            case PrintTensor(tensor, title):
                return self._reading(f"print.{title or tensor}", step, tensor)
            case CopyFromRemote(buffer, destination, rows):
                number = self._remote(step, buffer, destination, rows)
                self._access(number, (rows,) if rows else (), (destination,))
                return number
            case CopyToRemote(source, buffer, rows):
                number = self._remote(step, buffer, source, rows)
                self._access(number, (source, rows) if rows else (source,), ())
                return number
            case WriteUndef(tensor):
                return self._undefine(step, tensor)
            case Sync(external):
                return self._append(f"sync.{'external' if external else 'internal'}", step)
            case Sequence():
                return self.sequence(step)
            case Repeat(count, body):
                return control.Repeat(count, self._loop(lambda: self.sequence(body)))
            case RepeatWhileTrue(condition, predicate, body):
                return self._loop(lambda: self._while(condition, predicate, body, True))
            case RepeatWhileFalse(condition, predicate, body):
                return self._loop(lambda: self._while(condition, predicate, body, False))
            case Switch(index, branches):
                index = self.renaming.now(index)
                self._access(len(self.steps), (index,), ())
                return control.Switch(index, tuple(self._branch(branch) for branch in branches))
            case If(predicate, then, otherwise):
                return self.step(Switch(predicate, (otherwise, then)))
            case Call(function):
                return control.Call(function, self._called(function))
            case Composite(body, whole):
                self.composites.append(whole)
                number, tree = len(self.composites) - 1, self._inside(lambda: self.sequence(body))
                self.composites[number] = self.renaming.vertices(whole)
                return control.Composite(number, tree)
            case _:
                raise InvalidGraph(f"{step!r} is not a program step")

    def _stream(self, step: CopyFromStream | CopyToStream, name: str, tensor: str, to_host: bool) -> int:
        """Number a copy of a stream that fits its tensor."""
        stream, end = self.graph.streams.get(name), self.graph.tensors.get(tensor)
        at = step.location or None
        if stream is None or end is None:
            missing = f"stream {name!r}" if stream is None else f"tensor {tensor!r}"
            raise InvalidGraph(f"the program copies {missing}, which the graph does not have", location=at)
        if stream.to_host != to_host:
            way = "to the host" if stream.to_host else "from the host"
            raise InvalidGraph(f"the program copies the wrong way: stream {name} goes {way}", location=at)
        if (stream.shape, stream.dtype) != (end.shape, end.dtype):
            raise InvalidGraph(
                f"tensor {tensor} does not hold an item of stream {name}",
                expected=f"{stream.dtype}{list(stream.shape)}",
                got=f"{end.dtype}{list(end.shape)}",
                location=at,
            )
        return self._append(f"stream.{name}", step)

    def _reading(self, name: str, step: NumberedStep, tensor: str) -> int:
        """Number a step that reads one tensor."""
        number = self._append(name, step)
        self._access(number, (tensor,), ())
        return number

    def _undefine(self, step: WriteUndef, name: str) -> int:
        """Number a step that leaves a tensor undefined; it is no access, and the tensor must be the program's own."""
        tensor, at = self.graph.tensors.get(name), step.location or None
        if tensor is None:
            raise InvalidGraph(f"the program undefines {name!r}, which the graph does not have", location=at)
        base = self.graph.tensors[self.graph.storage(name)]
        donated = {self.graph.inputs[i] for i in self.graph.donated}
        if base is not tensor or base.kind == CONSTANT or (base.kind == INPUT and name not in donated):
            what = f"a view of {base.name}" if base is not tensor else f"{base.kind} that is kept"
            raise InvalidGraph(
                f"the program undefines {name}, {what}",
                location=at,
                try_="undefine a tensor of its own, or donate",
            )
        number = self._append(f"undef.{name}", step)
        self.undefined[name].append(number)
        if not self.depth:
            self.renaming.undefine(self.renaming.original(name))
        return number

    def _remote(self, step: CopyFromRemote | CopyToRemote, name: str, tensor: str, rows: str) -> int:
        """Number a copy of rows of a remote buffer that fits its tensors."""
        graph, at = self.graph, step.location or None
        buffer, end, numbers = graph.remote_buffers.get(name), graph.tensors.get(tensor), None
        if buffer is None or end is None or (rows and rows not in graph.tensors):
            missing = f"remote buffer {name!r}" if buffer is None else f"tensor {tensor!r} or {rows!r}"
            raise InvalidGraph(f"the program copies {missing}, which the graph does not have", location=at)
        numbers = graph.tensors[rows] if rows else None
        if numbers is not None and not (is_integer(numbers.dtype) and len(numbers.shape) < 2):
            found = f"{numbers.dtype}{list(numbers.shape)}"
            raise InvalidGraph(
                f"{rows} numbers no rows", location=at, expected="integers, [] or [n]", got=found
            )
        shape = (*(numbers.shape if numbers is not None else ()), *buffer.shape)
        if (end.shape, end.dtype) != (shape, buffer.dtype):
            raise InvalidGraph(
                f"tensor {tensor} does not hold the rows that are copied of remote buffer {name}",
                expected=f"{buffer.dtype}{list(shape)}",
                got=f"{end.dtype}{list(end.shape)}",
                location=at,
            )
        return self._append(f"remote.{name}", step)

    def _while(self, condition: Sequence, predicate: str, body: Sequence, goes_on: bool) -> control.While:
        first, predicate = self.sequence(condition), self.renaming.now(predicate)
        self._access(len(self.steps), (predicate,), ())
        return control.While(first, predicate, self.sequence(body), goes_on)

    def _branch(self, branch: Sequence) -> control.Sequence:
        first = len(self.steps)
        tree = self._inside(lambda: self.sequence(branch))
        self.branches.append((first, len(self.steps) - 1))
        return tree

    def _append(self, name: str, step: NumberedStep) -> int:
        self.steps.append((name, step))
        return len(self.steps) - 1

    def _access(self, number: int, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        for names, is_write in ((reads, False), (writes, True)):
            for name in names:
                if name not in self.graph.tensors:
                    raise InvalidGraph(f"step {number} names tensor {name!r}, which the graph does not have")
                self.accesses[name].append((number, is_write))

    def _loop(self, body: Callable[[], Tree]) -> Tree:
        first = len(self.steps)
        tree = self._inside(body)
        self.loops.append((first, max(first, len(self.steps) - 1)))
        return tree

    def _inside(self, body: Callable[[], Tree]) -> Tree:
        """Number what may run several times or not at all."""
        self.depth += 1
        tree = body()
        self.depth -= 1
        return tree

    def _called(self, name: str) -> control.Sequence:
        """Number a function's steps at its first call; a later call runs the same steps again (``recalls``)."""
        if name not in self.graph.functions:
            raise InvalidGraph(f"the program calls {name!r}, which the graph does not have")
        if name in self.functions:
            self.recalls.append((len(self.steps), self.lowest[name]))
            self.recalled[name].append(len(self.steps))
            return self.functions[name]
        first, recalls = len(self.steps), len(self.recalls)
        self.functions[name] = self._inside(lambda: self.sequence(self.graph.functions[name]))
        self.lowest[name] = min([first, *(low for _, low in self.recalls[recalls:])])
        self.bodies[name] = range(first, len(self.steps))
        return self.functions[name]

    def pin(self) -> None:
        """Pin what functions share with their callers: all calls find it in the same place."""
        storages: dict[str, list[str]] = defaultdict(list)
        for name in self.accesses:
            storages[self.graph.storage(name)].append(name)
        for storage, names in storages.items():
            uses = {n for name in names for n, _ in self.accesses[name]}
            is_given = self.graph.tensors[storage].kind in (INPUT, CONSTANT)  # written before the program
            first, last = -1 if is_given else min(uses), max(uses)
            for body in self.bodies.values():
                crosses = first not in body or last not in body
                if crosses and any(n in body for n in uses):
                    self.pinned.update(names)

    @cached_property
    def call_spans(self) -> dict[range, tuple[int, int]]:
        """By the steps of a function called again, the first and last step before which it, or a caller of it, is.

        Asked for once the program is numbered.
        """
        spans = {name: (min(sites), max(sites)) for name, sites in self.recalled.items()}
        sites = {name: list(found) for name, found in self.recalled.items()}
        for _ in self.bodies:  # callers are nested at most that deep
            before = dict(spans)
            for name in spans:
                callers = [
                    spans[caller]
                    for caller, body in self.bodies.items()
                    if caller in spans and caller != name and any(at in body for at in sites[name])
                ]
                spans[name] = _hull([spans[name], *callers])
            if spans == before:
                break
        return {self.bodies[name]: span for name, span in spans.items()}


def _hull(spans: list[tuple[int, int]]) -> tuple[int, int]:
    return min(low for low, _ in spans), max(high for _, high in spans)


def live_range(graph: Graph, order: Order, members: list[str], last: int) -> tuple[int, int]:
    """Return the first and last step a storage is live in; loops it crosses are covered whole.

    What a function shares with its callers lives from its first use to its last, all calls between included. What lives
    across a later call of a function does so while its steps run, which have lower numbers.
    """
    start, end = uncalled_range(graph, order, members, last)
    for _ in order.recalls:  # at most that many rounds: each moves the start below one more function
        crossed = [low for at, low in order.recalls if start < at <= end and low < start]
        if not crossed:
            break
        start = min(crossed)
    return start, end


def uncalled_range(graph: Graph, order: Order, members: list[str], last: int) -> tuple[int, int]:
    """Return the first and last step a storage is live in, as ``live_range`` does, but not the steps of functions called meanwhile."""
    uses = sorted({use for name in members for use in order.accesses.get(name, ())})
    start = min((n for n, _ in uses), default=-1)
    end = max((n for n, _ in uses), default=-1)
    for name in members:
        tensor = graph.tensors[name]
        if (
            name in order.outputs
            or (tensor.kind == INPUT and name not in order.donated)
            or tensor.kind == CONSTANT
        ):
            end = last
        if tensor.kind in (INPUT, CONSTANT):
            start = -1
    if not order.pinned.isdisjoint(members):
        spans = [s for body, s in order.call_spans.items() if any(n in body for n, _ in uses)]
        start, end = _hull([(start, end), *spans])
    for first, final in sorted(order.loops, reverse=True):
        inside = [use for use in uses if first <= use[0] <= final]
        if inside and (len(inside) < len(uses) or start < first or end > final or not inside[0][1]):
            start, end = min(start, first), max(end, final)
    return start, end


def is_carried_around(order: Order, members: list[str], number: int) -> bool:
    """Return whether a loop around step ``number`` brings the members' value to its next round."""
    uses = sorted({use for name in members for use in order.accesses.get(name, ())})
    for first, final in order.loops:
        if first <= number <= final:
            inside = [use for use in uses if first <= use[0] <= final]
            if len(inside) < len(uses) or not inside[0][1]:
                return True
    return False
