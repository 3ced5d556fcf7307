"""A tensor that is left undefined and written again is another one from there on, with a lifetime of its own.

That holds where the program comes by once: at its top level, for tensors that no function and no view names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from tiles.files import is_tuple
from tiles.graph import TEMPORARY, ComputeSet, Execute, Graph, PrintTensor, Sequence, Switch, Vertices
from tiles.graph.program import Step

READ = ("sources", "source", "rows", "predicate", "tensor", "stage")
WRITTEN = ("destination",)
"""Fields of steps that name tensors."""


class Renaming:
    """What tensors are called at one point of the program.

    Attributes:
      graph: what is compiled: the given one, or a copy of it with tensors of other names.
    """

    def __init__(self, graph: Graph) -> None:
        """Start at the beginning of the program."""
        self.graph = graph
        self._given = graph
        self._names: dict[str, str] = {}
        self._undefined: set[str] = set()
        self._viewed = {tensor.view_of for tensor in graph.tensors.values()}
        self._in_functions = {
            name for body in graph.functions.values() for step in body.steps for name in _named(graph, step)
        }

    def now(self, name: str) -> str:
        """Return what a tensor that is read is called."""
        self._undefined.discard(name)
        return self._names.get(name, name)

    def original(self, name: str) -> str:
        """Return what the program calls a tensor."""
        return next((given for given, new in self._names.items() if new == name), name)

    def undefine(self, name: str) -> None:
        """Note that a tensor, by its original name, is undefined from here on, where the program comes by once."""
        if name not in self._viewed and name not in self._in_functions:
            self._undefined.add(name)

    def applied(self, step: Any) -> Any:
        """Return a step that names tensors, or the compute set of one, with their names; what it writes may be renamed."""
        if isinstance(step, ComputeSet):
            for name in (name for v in step.vertices for name in v.operands):
                self.now(name)
            self._write(name for v in step.vertices for name in v.results)
            return replace(step, vertices=tuple(map(self.vertices, step.vertices))) if self._names else step
        changes = {}
        for field in READ:
            if hasattr(step, field):
                changes[field] = _mapped(getattr(step, field), self.now)
        for field in WRITTEN:
            if hasattr(step, field):
                self._write((getattr(step, field),))
                changes[field] = self._names.get(getattr(step, field), getattr(step, field))
        if isinstance(step, PrintTensor):
            changes["title"] = step.title or step.tensor
        return replace(step, **changes)

    def vertices(self, group: Vertices) -> Vertices:
        """Return a group of vertices with the names that tensors have now."""
        names = self._names
        operands = tuple(names.get(name, name) for name in group.operands)
        return replace(
            group, operands=operands, results=tuple(names.get(name, name) for name in group.results)
        )

    def close(self) -> None:
        """Give the program's outputs the names that they have at its end."""
        if self._names:
            self.graph.outputs = [self._names.get(name, name) for name in self.graph.outputs]

    def _write(self, names: Iterable[str]) -> None:
        for name in self._undefined.intersection(names):
            self._undefined.discard(name)
            self._rename(name)

    def _rename(self, name: str) -> None:
        if self.graph is self._given:
            self.graph = copy.copy(self._given)
            self.graph.tensors = dict(self._given.tensors)
        tensors, count = self.graph.tensors, 1
        while f"{name}.again{count}" in tensors:
            count += 1
        new = self._names[name] = f"{name}.again{count}"
        tensors[new] = replace(tensors[name], name=new, kind=TEMPORARY, value=None)


def _mapped(names: Any, now: Callable[[str], str]) -> Any:
    if is_tuple(names):
        return tuple(map(now, names))
    return now(names) if names else names


def _named(graph: Graph, step: Step) -> Iterator[str]:
    """Yield the tensors that a step of a function names."""
    if isinstance(step, Execute):
        groups = (
            graph.compute_sets[step.compute_set].vertices if step.compute_set in graph.compute_sets else ()
        )
        yield from (name for v in groups for name in (*v.operands, *v.results))
    if isinstance(step, Switch):
        yield step.index
    for field in (*READ, *WRITTEN):
        names = getattr(step, field, ())
        yield from names if isinstance(names, tuple) else (names,)
    inner = [x for x in vars(step).values() if isinstance(x, Sequence)]
    inner += [step] if isinstance(step, Sequence) else []
    inner += step.branches if isinstance(step, Switch) else ()
    for sequence in inner:
        yield from (name for part in sequence.steps for name in _named(graph, part))
