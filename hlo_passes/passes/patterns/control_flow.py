"""Loops and branches: carry, read and choose no more than needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import Case, Constant, Convert, DynamicSlice, If, Iota, Not, Repeat, While
from hlo_passes.passes.loops import (
    body_of,
    constant_in,
    num_carried,
    read_values,
    with_constants,
    with_invariants,
    without_parameters,
)
from hlo_passes.passes.patterns.registry import rewrites, splat_element, zeros
from hlo_passes.passes.rewriter import Rewriter

SMALL_CONSTANT = 64
"""Elements up to which a constant that is no splat is written into each region that reads it."""


def _num_bound(instruction: Instruction) -> int:
    """Return how many operands come before those that regions only read: carried values, or the index."""
    return num_carried(instruction) if isinstance(instruction.op, (While, Repeat)) else 1


def _first_read(instruction: Instruction) -> int:
    """Return the number of the region parameter that stands for the first of those operands."""
    return num_carried(instruction) if isinstance(instruction.op, (While, Repeat)) else 0


def _with_operands(
    instruction: Instruction, operands: Sequence[Value], regions: Sequence[Computation], rewriter: Rewriter
) -> Sequence[Value]:
    """Emit a loop or branch with other operands behind those that are carried or choose."""
    op = instruction.op
    if isinstance(op, (While, Repeat)):
        op = with_invariants(op, len(operands) - num_carried(instruction))
    return rewriter.emit_all(op, operands, regions)


@rewrites(While, Repeat)
def drop_unread_carried_values(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A carried value that neither the outside nor the condition nor another that is needed reads goes."""
    count, body = num_carried(instruction), body_of(instruction)
    needed = {i for i, value in enumerate(instruction.results) if not rewriter.is_unread(value)}
    for condition in instruction.regions[:-1]:
        read = read_values(condition)
        needed |= {i for i in range(count) if condition.parameters[i] in read}
    while True:
        read = _reached(body, [body.results[i] for i in needed])
        grown = needed | {i for i in range(count) if body.parameters[i] in read}
        if grown == needed:
            break
        needed = grown
    if len(needed) == count:
        return None
    kept = [i for i in range(len(instruction.operands)) if i >= count or i in needed]
    smaller = dataclasses.replace(body, results=tuple(body.results[i] for i in sorted(needed)))
    regions = [*instruction.regions[:-1], _without_dead(smaller)]
    regions = [without_parameters(region, kept) for region in regions]
    made = iter(rewriter.emit_all(instruction.op, [instruction.operands[i] for i in kept], regions))
    return [next(made) if i in needed else instruction.operands[i] for i in range(count)]


def _reached(region: Computation, values: Sequence[Value]) -> set[Value]:
    """Return what some values of a region, and its exchanges with the host, depend on, themselves included."""
    found = set(values)
    for instruction in reversed(region.instructions):
        if instruction.has_effect or found.intersection(instruction.results):
            found.update(instruction.operands)
    return found


def _without_dead(region: Computation) -> Computation:
    found = _reached(region, region.results)
    kept = tuple(i for i in region.instructions if i.has_effect or found.intersection(i.results))
    return dataclasses.replace(region, instructions=kept)


@rewrites(While, Repeat, Case, If)
def sink_constants(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A region that reads a small constant from outside makes it itself, where it can be folded.

    So does one that slices a counter, as a scan over ``jnp.arange(n)``.
    """
    bound, first = _num_bound(instruction), _first_read(instruction)
    sunk: dict[int, Instruction] = {}
    for number, value in enumerate(instruction.operands[bound:]):
        constant, counter = rewriter.constant(value), rewriter.producer(value, Iota)
        if counter is not None and _is_sliced(instruction, first + number):
            sunk[first + number] = Instruction(counter[0], (), (value,), (), rewriter.location(value))
        if constant is not None and (constant.is_splat or value.type.size <= SMALL_CONSTANT):
            sunk[first + number] = Instruction(constant, (), (value,), (), rewriter.location(value))
    if not sunk:
        return None
    kept = [v for n, v in enumerate(instruction.operands) if n < bound or n - bound + first not in sunk]
    return _with_operands(instruction, kept, [with_constants(r, sunk) for r in instruction.regions], rewriter)


def _is_sliced(instruction: Instruction, number: int) -> bool:
    """Whether regions read the parameter of a number by slicing it alone, and some do."""
    found = False
    for region in instruction.regions:
        parameter = region.parameters[number]
        if parameter in region.results:
            return False
        for inner in region.instructions:
            if parameter in inner.operands:
                if not isinstance(inner.op, DynamicSlice) or parameter in inner.operands[1:]:
                    return False
                found = True
    return found


@rewrites(While, Repeat, Case, If)
def drop_unread_operands(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """What no region reads is no operand, and what is read under two names is one."""
    bound, first = _num_bound(instruction), _first_read(instruction)
    read = [read_values(region) for region in instruction.regions]
    kept: dict[Value, int] = {}
    stands_for: dict[int, int] = {}
    for number, value in enumerate(instruction.operands[bound:], first):
        if any(r.parameters[number] in found for r, found in zip(instruction.regions, read, strict=True)):
            stands_for[number] = kept.setdefault(value, number)
    if len(kept) == len(instruction.operands) - bound:
        return None
    positions = [*range(first), *kept.values()]
    regions = [
        without_parameters(r, positions, {r.parameters[n]: r.parameters[k] for n, k in stands_for.items()})
        for r in instruction.regions
    ]
    return _with_operands(instruction, (*instruction.operands[:bound], *kept), regions, rewriter)


@rewrites(While, Repeat)
def carry_what_changes(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A carried value that every round leaves as it is becomes an invariant."""
    count, body = num_carried(instruction), body_of(instruction)
    changing = [i for i in range(count) if body.results[i] != body.parameters[i]]
    if len(changing) == count:
        return None
    fixed = [i for i in range(count) if i not in changing]
    order = [*changing, *range(count, len(instruction.operands)), *fixed]
    regions = [without_parameters(region, order) for region in instruction.regions]
    regions[-1] = dataclasses.replace(regions[-1], results=tuple(body.results[i] for i in changing))
    assert isinstance(instruction.op, (While, Repeat))
    op = with_invariants(instruction.op, len(order) - len(changing))
    made = iter(rewriter.emit_all(op, [instruction.operands[i] for i in order], regions))
    return [next(made) if i in changing else instruction.operands[i] for i in range(count)]


@rewrites(While)
def skip_loop(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A loop whose condition is false gives back what it is given."""
    condition = instruction.regions[0]
    if condition.has_effect:
        return None
    constant = constant_in(condition, condition.results[0])
    if constant is None or bool(constant.value[()]):
        return None
    return instruction.operands[: num_carried(instruction)]


@rewrites(Repeat)
def unroll_single_round(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A loop of no round gives back what it is given; one of a single round is its body."""
    assert isinstance(instruction.op, Repeat)
    if instruction.op.count > 1:
        return None
    if instruction.op.count == 0:
        return instruction.operands[: num_carried(instruction)]
    return rewriter.inline(body_of(instruction), instruction.operands)


@rewrites(Case, If)
def take_known_branch(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A choice that is a constant, or between one branch, is that branch."""
    index, *arguments = instruction.operands
    regions = instruction.regions
    chosen = splat_element(index, rewriter) if len(regions) > 1 else np.int32(0)
    if chosen is None:
        return None
    if isinstance(instruction.op, If):
        return rewriter.inline(regions[0 if chosen else 1], arguments)
    number = int(chosen)
    return rewriter.inline(regions[number if 0 <= number < len(regions) else -1], arguments)


@rewrites(Case)
def choose_by_predicate(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A choice between two branches by a converted predicate is an if."""
    index, *arguments = instruction.operands
    converted = rewriter.producer(index, Convert)
    if len(instruction.regions) != 2 or converted is None or not converted[1][0].type.is_bool:
        return None
    on_false, on_true = instruction.regions
    return rewriter.emit_all(If(), (converted[1][0], *arguments), (on_true, on_false))


@rewrites(If)
def choose_by_negation(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """``if not p`` is ``if p`` with its branches swapped."""
    predicate, *arguments = instruction.operands
    negated = rewriter.producer(predicate, Not)
    if negated is None:
        return None
    on_true, on_false = instruction.regions
    return rewriter.emit_all(If(), (negated[1][0], *arguments), (on_false, on_true))


@rewrites(Case, If)
def drop_needless_choices(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A result that nobody reads, or that is the same operand or constant in every branch, is not chosen."""
    known: dict[int, Value | Constant | None] = {}
    for number, value in enumerate(instruction.results):
        if rewriter.is_unread(value):
            known[number] = None
        elif (same := _same_everywhere(instruction, number)) is not None:
            known[number] = same
    if not known:
        return None
    kept = [n for n in range(len(instruction.results)) if n not in known]
    regions = [
        _without_dead(dataclasses.replace(r, results=tuple(r.results[n] for n in kept)))
        for r in instruction.regions
    ]
    is_needed = kept or instruction.has_effect
    made = iter(rewriter.emit_all(instruction.op, instruction.operands, regions) if is_needed else ())

    def chosen(number: int) -> Value:
        if number not in known:
            return next(made)
        same = known[number]
        if same is None:
            return zeros(instruction.results[number].type, rewriter)
        return rewriter.emit(same) if isinstance(same, Constant) else same

    return [chosen(number) for number in range(len(instruction.results))]


def _same_everywhere(instruction: Instruction, number: int) -> Value | Constant | None:
    """Return the operand or small constant that a result is in every branch, or None."""
    first = instruction.regions[0]
    result = first.results[number]
    if result in first.parameters:
        position = first.parameters.index(result)
        is_same = all(r.results[number] == r.parameters[position] for r in instruction.regions)
        return instruction.operands[1 + position] if is_same else None
    constants = [constant_in(r, r.results[number]) for r in instruction.regions]
    is_same = constants[0] is not None and all(constant == constants[0] for constant in constants)
    return constants[0] if is_same else None
