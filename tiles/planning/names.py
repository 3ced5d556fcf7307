"""The tensors that recorded steps name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from tiles.graph import Call, Choice, Copy, Execute, Graph, Operation, Reshape, Sequence, bodies_of
from tiles.graph.program import Step


def outside_names(body: Sequence) -> list[str]:
    """Return the tensors that a sequence names before it writes them, in order."""
    written: set[str] = set()
    found: dict[str, None] = {}

    def visit(steps: list[Step]) -> None:
        for step in steps:
            for name, is_result in named_by(step):
                if is_result:
                    written.add(name)
                elif name not in written:
                    found[name] = None
            for inner in bodies_of(step):
                visit(inner.steps)

    visit(body.steps)
    return list(found)


def named_by(step: Step) -> Iterator[tuple[str, bool]]:
    """Return the tensors that a step names, with whether it writes them; operands first."""
    if isinstance(step, Operation):
        yield from ((name, False) for name in step.operands)
        yield from ((name, True) for name in step.results)
        return
    values = {f.name: getattr(step, f.name) for f in fields(step)} if is_dataclass(step) else {}
    for key in ("source", "predicate", "index", "tensor", "rows"):
        if isinstance(values.get(key), str) and values[key]:
            yield values[key], False
    yield from ((name, False) for name in values.get("sources", ()))
    if "destination" in values:
        yield values["destination"], True
    if isinstance(step, Choice):
        yield from ((name, True) for name in step.results)


def written_in(given: Graph, body: Sequence) -> set[str]:
    """Return the tensors that a body's steps may write, with those of loops, branches and functions inside."""
    return set(_written(given, body, set()))


def _written(given: Graph, body: Sequence, called: set[str]) -> Iterator[str]:
    for step in body.steps:
        says_results = isinstance(step, Operation | Copy | Reshape | Choice)
        yield from (name for name, is_result in named_by(step) if is_result or not says_results)
        for inner in bodies_of(step):
            yield from _written(given, inner, called)
        if isinstance(step, Execute):
            yield from (
                name for group in given.compute_sets[step.compute_set].vertices for name in group.results
            )
        elif isinstance(step, Call) and step.function not in called:
            called.add(step.function)
            yield from _written(given, given.functions[step.function], called)
