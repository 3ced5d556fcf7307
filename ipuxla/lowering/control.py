"""Loops and branches onto the program's own: a carried value has one buffer.

The way in and the end of the body copy into it. Branches write one common tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import Case, Constant, If, Repeat, While
from ipuxla.lowering.movement import lower_computation
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from ipuxla.lowering.regular import fill_into, materialize
from tiles.graph import Copy, Sequence, Switch, Tensor
from tiles.graph import Repeat as RepeatStep
from tiles.graph.program import RepeatWhileTrue


@lowers(While)
def lower_while(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Run the condition, and while it holds the body and the condition again."""
    assert isinstance(instruction.op, While)
    condition, body = instruction.regions
    loop = _Loop(lowering, instruction, instruction.op.invariants)
    steps = loop.body(body)
    check = Sequence()
    (predicate,) = lower_computation(replace(lowering, program=check), condition, loop.arguments)
    loop.enter()
    lowering.program.add(RepeatWhileTrue(check, predicate.name, steps))
    return loop.results()


@lowers(Repeat)
def lower_repeat(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Run the body a fixed number of times."""
    assert isinstance(instruction.op, Repeat)
    loop = _Loop(lowering, instruction, instruction.op.invariants)
    steps = loop.body(instruction.regions[0])
    loop.enter()
    lowering.program.add(RepeatStep(instruction.op.count, steps))
    return loop.results()


class _Loop:
    """One loop being lowered: its carried values' buffers, and what the regions are bound to."""

    def __init__(self, lowering: Lowering, instruction: Instruction, invariants: int) -> None:
        """Make a buffer for every carried value; nothing is placed yet."""
        self.lowering = lowering
        self.location = where(instruction)
        count = len(instruction.operands) - invariants
        self.initial = instruction.operands[:count]
        self.carried = [
            lowering.graph.add_variable(v.type.shape, dtype_of(v.type), "carried", self.location)
            for v in self.initial
        ]
        self.arguments = [*self.carried, *(materialized(lowering, v) for v in instruction.operands[count:])]

    def body(self, region: Computation) -> Sequence:
        """Place the body and, at its end, the copies into the carried buffers."""
        steps = Sequence()
        inner = replace(self.lowering, program=steps)
        made = lower_computation(inner, region, self.arguments)
        copy_at_once(inner, list(zip(made, self.carried, strict=True)), self.location)
        return steps

    def enter(self) -> None:
        """Copy the initial values in; a splat constant is written where it is carried."""
        for value, target in zip(self.initial, self.carried, strict=True):
            producer = self.lowering.computation.producers.get(value)
            is_splat = producer is not None and isinstance(producer.op, Constant) and producer.op.is_splat
            if producer is not None and is_splat and value not in self.lowering.values:
                fill_into(self.lowering, producer, target)
            else:
                copy_at_once(self.lowering, [(self.lowering.tensor(value), target)], self.location)

    def results(self) -> tuple[Tensor, ...]:
        """Return the carried buffers, which hold the last values."""
        return tuple(self.lowering.graph.tensors[t.name] for t in self.carried)


@lowers(If)
def lower_if(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Switch on the predicate: false is branch 0."""
    on_true, on_false = instruction.regions
    return _switch(lowering, instruction, (on_false, on_true))


@lowers(Case)
def lower_case(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Switch on the index."""
    return _switch(lowering, instruction, instruction.regions)


def _switch(
    lowering: Lowering, instruction: Instruction, regions: tuple[Computation, ...]
) -> tuple[Tensor, ...]:
    index, *arguments = (materialized(lowering, v) for v in instruction.operands)
    graph, location = lowering.graph, where(instruction)
    results = [
        graph.add_variable(v.type.shape, dtype_of(v.type), "chosen", location) for v in instruction.results
    ]
    placed: list[tuple[Lowering, tuple[Tensor, ...]]] = []
    for region in regions:
        inner = replace(lowering, program=Sequence())
        placed.append((inner, lower_computation(inner, region, arguments)))
    for inner, made in placed:
        copy_at_once(inner, list(zip(made, results, strict=True)), location)
    lowering.program.add(Switch(index.name, tuple(inner.program for inner, _ in placed)))
    return tuple(graph.tensors[result.name] for result in results)


def materialized(lowering: Lowering, value: Value) -> Tensor:
    """Return the tensor of a value that must lie in memory, splat constants included."""
    return materialize(lowering, value) if lowering.constant(value) is not None else lowering.tensor(value)


def copy_at_once(lowering: Lowering, moves: list[tuple[Tensor, Tensor]], location: str) -> None:
    """Copy sources to destinations as if all at the same time: a cycle of copies goes through one temporary.

    Sources may be destinations of other moves, or views of them.
    """
    program = lowering.program
    pending = [
        _Move(source.name, target.name)
        for source, target in moves
        if source.name != target.name and math.prod(source.shape)
    ]
    while pending:
        read = {lowering.graph.storage(move.source) for move in pending}
        ready = [move for move in pending if move.target not in read]
        for move in ready:
            program.add(Copy(move.target, (move.source,), None, location))
        pending = [move for move in pending if move not in ready]
        if pending and not ready:
            first = pending[0]
            source = lowering.graph.tensors[first.source]
            spare = lowering.graph.add_tensor(source.shape, source.dtype, "swapped", location=location)
            program.add(Copy(spare.name, (first.source,), None, location))
            pending[0] = _Move(spare.name, first.target)


@dataclass(frozen=True)
class _Move:
    """A copy by the tensors' names."""

    source: str
    target: str
