"""The order of a program: steps numbered as they stand, who reads and writes what, loops, branches and functions.

Lifetimes follow from it: a storage lives from its first to its last access, and through all of a loop that brings its
value to the next round.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tiles.errors import InvalidGraph
from tiles.graph import (
    CONSTANT,
    INPUT,
    AbortOnCondition,
    Call,
    Composite,
    Copy,
    CopyFromStream,
    CopyToStream,
    Execute,
    Graph,
    If,
    Repeat,
    RepeatWhileTrue,
    Sequence,
    Switch,
    Vertices,
)
from tiles.graph.program import Step


@dataclass
class Order:
    """Steps numbered in program order, with every tensor's accesses and the loops around them."""

    graph: Graph
    steps: list[tuple[str, Any]] = field(default_factory=list)
    accesses: dict[str, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))
    loops: list[tuple[int, int]] = field(default_factory=list)
    functions: dict[str, Any] = field(default_factory=dict)
    lowest: dict[str, int] = field(default_factory=dict)
    recalls: list[tuple[int, int]] = field(default_factory=list)
    bodies: list[range] = field(default_factory=list)
    pinned: set[str] = field(default_factory=set)
    branches: list[tuple[int, int]] = field(default_factory=list)
    composites: list[Vertices] = field(default_factory=list)

    def used(self) -> set[str]:
        """Return the tensors accessed, inputs, outputs, and those that any of them is a view of."""
        names = {*self.accesses, *self.graph.inputs, *self.graph.outputs}
        for name in list(names):
            while self.graph.tensors[name].view_of:
                name = self.graph.tensors[name].view_of
                names.add(name)
        return names

    def sequence(self, sequence: Sequence) -> list[Any]:
        """Number steps one after another and return their place in the control tree."""
        return ["sequence", *(self.step(step) for step in sequence.steps)]

    def step(self, step: Step) -> Any:
        """Number one step and return its place in the control tree."""
        match step:
            case Execute(name):
                if name not in self.graph.compute_sets:
                    raise InvalidGraph(f"the program executes {name!r}, which the graph does not have")
                number = self._append(name, self.graph.compute_sets[name])
                for group in self.graph.compute_sets[name].vertices:
                    self._access(number, group.operands, group.results)
                return number
            case Copy(destination, sources):
                number = self._append(f"copy.{destination}", step)
                self._access(number, sources, (destination,))
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
                number = self._append(f"abort.{predicate}", step)
                self._access(number, (predicate,), ())
                return number
            case Sequence():
                return self.sequence(step)
            case Repeat(count, body):
                return ["repeat", count, self._loop(lambda: self.sequence(body))]
            case RepeatWhileTrue(condition, predicate, body):
                return ["while", *self._loop(lambda: self._while(condition, predicate, body))]
            case Switch(index, branches):
                self._access(len(self.steps), (index,), ())
                return ["switch", index, *(self._branch(branch) for branch in branches)]
            case If(predicate, then, otherwise):
                return self.step(Switch(predicate, (otherwise, then)))
            case Call(function):
                return self._call(function)
            case Composite(body, whole):
                self.composites.append(whole)
                return ["composite", len(self.composites) - 1, self.sequence(body)]
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

    def _while(self, condition: Sequence, predicate: str, body: Sequence) -> list[Any]:
        first = self.sequence(condition)
        self._access(len(self.steps), (predicate,), ())
        return [first, predicate, self.sequence(body)]

    def _branch(self, branch: Sequence) -> list[Any]:
        first = len(self.steps)
        tree = self.sequence(branch)
        self.branches.append((first, len(self.steps) - 1))
        return tree

    def _append(self, name: str, step: Any) -> int:
        self.steps.append((name, step))
        return len(self.steps) - 1

    def _access(self, number: int, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        for names, is_write in ((reads, False), (writes, True)):
            for name in names:
                if name not in self.graph.tensors:
                    raise InvalidGraph(f"step {number} names tensor {name!r}, which the graph does not have")
                self.accesses[name].append((number, is_write))

    def _loop(self, body: Any) -> Any:
        first = len(self.steps)
        tree = body()
        self.loops.append((first, max(first, len(self.steps) - 1)))
        return tree

    def _call(self, name: str) -> Any:
        """Number a function's steps at its first call; a later call runs the same steps again (``recalls``)."""
        if name not in self.graph.functions:
            raise InvalidGraph(f"the program calls {name!r}, which the graph does not have")
        if name in self.functions:
            self.recalls.append((len(self.steps), self.lowest[name]))
            return self.functions[name]
        first, recalls = len(self.steps), len(self.recalls)
        self.functions[name] = self.sequence(self.graph.functions[name])
        self.lowest[name] = min([first, *(low for _, low in self.recalls[recalls:])])
        self.bodies.append(range(first, len(self.steps)))
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
            for body in self.bodies:
                crosses = first not in body or last not in body
                if crosses and any(n in body for n in uses):
                    self.pinned.update(names)


def live_range(graph: Graph, order: Order, members: list[str], last: int) -> tuple[int, int]:
    """Return the first and last step a storage is live in; loops it crosses are covered whole."""
    uses = sorted({use for name in members for use in order.accesses.get(name, ())})
    start = min((n for n, _ in uses), default=-1)
    end = max((n for n, _ in uses), default=-1)
    donated = {graph.inputs[i] for i in graph.donated}
    for name in members:
        tensor = graph.tensors[name]
        if (
            name in graph.outputs
            or (tensor.kind == INPUT and name not in donated)
            or tensor.kind == CONSTANT
            or name in order.pinned
        ):
            end = last
        if tensor.kind in (INPUT, CONSTANT) or name in order.pinned:
            start = -1
    for first, final in sorted(order.loops, reverse=True):
        inside = [use for use in uses if first <= use[0] <= final]
        if inside and (len(inside) < len(uses) or start < first or end > final or not inside[0][1]):
            start, end = min(start, first), max(end, final)
    for _ in order.recalls:  # at most that many rounds: each moves the start below one more function
        crossed = [low for at, low in order.recalls if start < at <= end and low < start]
        if not crossed:
            break
        start = min(crossed)
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
