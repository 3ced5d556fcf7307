"""What the alternatives of a choice would cost: each planned on a graph of its own, its compute sets priced."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from tiles.graph import Alternative, Choice, Operation, Sequence, bodies_of
from tiles.graph.program import Step
from tiles.plan import MEMORY_PROPORTION, Operand, Question, draft
from tiles.planning.lanes import key_of
from tiles.planning.names import named_by, outside_names
from tiles.planning.state import Cost, Planning

Run = Callable[[Planning, Sequence, Sequence], None]
"""Plans a recorded sequence into a planned one."""


def cheapest(planning: Planning, choice: Choice, run: Run) -> Alternative:
    """Return the alternative to take: one that has a pinned step, else the cheapest, the first of several.

    Alternatives whose temporaries keep to their share of a tile are preferred. Equal choices between tensors that lie
    alike are priced once; of those that may run side by side all are as the first.
    """
    for alternative in choice.alternatives:
        names = {step.name for step in _operations(alternative.body)}
        if any(name in planning.pins or f"{name}.partials" in planning.pins for name in names):
            return alternative
    alike = planning.lanes[key_of(choice)].alike if key_of(choice) in planning.lanes else None
    if alike is None or alike.taken is None:
        taken = _cheapest(planning, choice, run)
        if alike is None:
            return choice.alternatives[taken]
        alike.taken = taken
    return choice.alternatives[alike.taken]


def _cheapest(planning: Planning, choice: Choice, run: Run) -> int:
    """Return the number of the cheapest alternative, the first of several."""
    outside = list(dict.fromkeys(n for a in choice.alternatives for n in outside_names(a.body)))
    operands = [planning.tensor(name) for name in outside]
    known = tuple((t.shape, t.dtype, t.kind, t.layout, t.ipu) for t in operands)
    area = planning.area(planning.lane)
    key = tuple(_key(a.body, outside) for a in choice.alternatives), known, planning.code_price, area
    if key not in planning.estimates:
        planning.estimates[key] = tuple(_cost(planning, a, outside, run) for a in choice.alternatives)
    first, *others = planning.estimates[key]
    costs = [first, *((exceeds, cycles / choice.share) for exceeds, cycles in others)]
    return costs.index(min(costs))


def _cost(planning: Planning, alternative: Alternative, outside: list[str], run: Run) -> Cost:
    """Plan an alternative on a graph of its own and return what its compute sets cost together."""
    given = planning.graph.successor()
    given.tensors, given.functions = planning.given.tensors, planning.given.functions
    trial = Planning(given, planning.policy, {}, planning.estimates)
    trial.loads, trial.runs = None, planning.runs
    trial.lane, trial.aside = planning.lane, set(planning.aside)
    for name in outside:
        tensor = planning.tensor(name)
        trial.renamed[name] = tensor.name
        trial.graph.tensors[tensor.name] = replace(tensor, view_of="")
    run(trial, alternative.body, trial.graph.program)
    graph = trial.finish()
    cycles, temporary = 0.0, 0
    for compute_set in graph.compute_sets.values():
        for group in compute_set.vertices:
            read = [graph.tensors[name] for name in group.operands]
            known = tuple(Operand(t.shape, t.dtype, t.layout) for t in read)
            dtypes = tuple(graph.tensors[name].dtype for name in group.results)
            with graph.at(graph.tensors[group.results[0]].ipu):
                question = Question(group.form, group.codelet, known, dtypes, graph.target)
            # partials are combined by compute sets of their own
            cycles += draft(question, group.plan).alone_cycles
            temporary = max(temporary, draft(question, group.plan).temporary_bytes)
    return temporary > MEMORY_PROPORTION * graph.target.bytes_per_tile, cycles


def _operations(body: Sequence) -> Iterator[Operation]:
    for step in body.steps:
        if isinstance(step, Operation):
            yield step
        for inner in bodies_of(step):
            yield from _operations(inner)


def _key(body: Sequence, outside: list[str]) -> Hashable:
    """Return what a sequence computes, with tensors numbered, so that equal ones have equal keys."""
    numbers = {name: n for n, name in enumerate(outside)}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    def key(step: Step) -> Hashable:
        named = tuple((number(name), is_result) for name, is_result in named_by(step))
        inner = tuple(tuple(map(key, each.steps)) for each in bodies_of(step))
        if isinstance(step, Operation):
            return step.codelet, step.form, step.plan, step.ipu, named
        fixed = tuple(getattr(step, each, None) for each in ("axis", "count", "function"))
        return type(step).__name__, fixed, named, inner

    return tuple(map(key, body.steps))
