"""A graph as text: its tensors, and its program as a tree of what is recorded or planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from tiles.graph.graph import ACROSS, CONSTANT, INPUT, ComputeSet, Graph, Tensor
from tiles.graph.program import (
    Call,
    Choice,
    Composite,
    Copy,
    Execute,
    If,
    Operation,
    Repeat,
    RepeatWhileFalse,
    RepeatWhileTrue,
    Reshape,
    Sequence,
    Step,
    Switch,
)


def print_graph(graph: Graph) -> str:
    """Return a listing of a graph: inputs, constants, outputs, then the program's and the functions' steps.

    An operation says what it computes of which tensors, over which domain (``!`` marks a reduced dimension); where it
    is planned, its plan instead.
    """
    target = graph.replica_target
    lines = [f"graph {graph.name} for {target.name} ({target.num_tiles} tiles)"]
    for tensor in graph.tensors.values():
        if tensor.kind in (INPUT, CONSTANT):
            donated = tensor.name in {graph.inputs[i] for i in graph.donated}
            lines.append(f"  {'donated ' * donated}{tensor.kind} {_typed(tensor)}{_at(tensor.location)}")
    lines += [f"  output {name}" for name in graph.outputs]
    printer = _Printer(graph)
    lines += ["  program", *printer.steps(graph.program, "    ")]
    for name, body in graph.functions.items():
        lines += [f"  function {name}", *printer.steps(body, "    ")]
    return "\n".join(lines) + "\n"


def _typed(tensor: Tensor) -> str:
    where = "" if tensor.layout is None else f" {tensor.layout}"
    on = f" on IPU {tensor.ipu}" if tensor.ipu not in (None, 0, ACROSS) else ""
    return f"{tensor.name}: {tensor.dtype}{list(tensor.shape)}{where}{on}"


def _at(location: str) -> str:
    return f"  at {location}" if location else ""


class _Printer:
    """Lines of steps, which look tensors up in their graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def steps(self, sequence: Sequence, indent: str) -> Iterator[str]:
        """Return the lines of a sequence."""
        for step in sequence.steps:
            yield from self._step(step, indent)

    def _typed(self, names: tuple[str, ...]) -> str:
        return ", ".join(_typed(self.graph.tensors[name]) for name in names)

    def _step(self, step: Step, indent: str) -> Iterator[str]:
        match step:
            case Operation():
                plan = "" if step.plan is None else f" as {step.plan}"
                yield (
                    f"{indent}{self._typed(step.results)} = {step.codelet.label}({', '.join(step.operands)}) "
                    f"over {_domain(step)}{plan}{_at(step.location)}"
                )
            case Reshape(destination, source, location):
                yield f"{indent}{self._typed((destination,))} = reshape({source}){_at(location)}"
            case Copy(destination, sources, axis, location):
                joined = "" if axis is None else f" along {axis}"
                yield f"{indent}{self._typed((destination,))} = copy({', '.join(sources)}){joined}{_at(location)}"
            case Execute(name):
                yield from self._compute_set(self.graph.compute_sets[name], indent)
            case Call(function):
                yield f"{indent}call {function}"
            case _:
                yield from self._control(step, indent)

    def _control(self, step: Step, indent: str) -> Iterator[str]:
        bodies: list[tuple[str, Sequence]] = []
        match step:
            case Sequence():
                title, bodies = "sequence", [("", step)]
            case Choice(name, alternatives, results, location):
                title = f"{self._typed(results)} = choice {name}{_at(location)}"
                bodies = [
                    (f"way {n} leaves {', '.join(a.results)}", a.body) for n, a in enumerate(alternatives)
                ]
            case Composite(body, whole):
                title, bodies = f"composite {', '.join(whole.results)} = {whole.codelet.label}", [("", body)]
            case Repeat(count, body):
                title, bodies = f"repeat {count}", [("", body)]
            case RepeatWhileTrue(condition, predicate, body) | RepeatWhileFalse(condition, predicate, body):
                word = "while" if isinstance(step, RepeatWhileTrue) else "until"
                title, bodies = f"{word} {predicate}", [("condition", condition), ("body", body)]
            case Switch(index, branches):
                title, bodies = f"switch {index}", [(f"branch {n}", b) for n, b in enumerate(branches)]
            case If(predicate, then, otherwise):
                title, bodies = f"if {predicate}", [("then", then), ("otherwise", otherwise)]
            case _:
                values = [f"{f.name}={getattr(step, f.name)!r}" for f in fields(step) if f.name != "location"]
                title = f"{type(step).__name__}({', '.join(values)}){_at(getattr(step, 'location', ''))}"
        yield indent + title
        for word, body in bodies:
            if word:
                yield f"{indent}  {word}"
            yield from self.steps(body, indent + ("    " if word else "  "))

    def _compute_set(self, compute_set: ComputeSet, indent: str) -> Iterator[str]:
        for group in compute_set.vertices:
            yield (
                f"{indent}{self._typed(group.results)} = {group.codelet.label}({', '.join(group.operands)}) "
                f"as {group.plan}{_at(group.location)}"
            )


def _domain(operation: Operation) -> str:
    """Return the domain and the maps of an operation, as ``[d0:4 d1!:8] (d0,d1) (d1) -> (d0)``."""
    form = operation.form
    dims = " ".join(f"{d.name}{'!' if d.is_reduced else ''}:{d.size}" for d in form.dims)
    maps = [f"({','.join(map(str, m.axes))})" for m in (*form.operands, *form.results)]
    reads, writes = maps[: len(form.operands)], maps[len(form.operands) :]
    return f"[{dims}] {' '.join(reads)} -> {' '.join(writes)}".replace("]  ->", "] ->")
