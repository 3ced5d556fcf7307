"""Loops whose trip count is known before the program runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import Add, Compare, Constant, Repeat, Subtract, While
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.loops import body_of, constant_in
from hlo_passes.passes.rewriter import Patterns, Rewriter

_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


@dataclass(frozen=True)
class WhileToRepeat(LocalPass):
    """Make a ``while`` that counts an integer from a constant by a constant to a constant a ``repeat``.

    ``lax.scan`` and ``lax.fori_loop`` with a constant length emit such loops. A counter that would leave its
    type's range before the loop ends is left alone. The counter stays a carried value as long as something
    reads it.
    """

    name: ClassVar[str] = "while-to-repeat"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with repeats; itself when no trip count is known."""
        patterns: Patterns = {While: (_to_repeat,)}
        return Rewriter(computation, patterns).run()


class _Test(NamedTuple):
    """``parameter <direction> bound`` decides whether a loop goes on."""

    parameter: Value
    direction: str
    bound: int


class Counted(NamedTuple):
    """A loop that runs its body ``trips`` times; its parameter at ``position`` is ``start + step * number`` of the round."""

    position: int
    start: int
    step: int
    trips: int


def counted(instruction: Instruction, constant: Callable[[Value], Constant | None]) -> Counted | None:
    """Return how a ``while`` counts, or None where that is not known.

    Args:
      instruction: the loop.
      constant: which constant an operand of it is, or None.
    """
    condition, body = instruction.regions
    test = None if condition.has_effect else _test(condition)
    if test is None or test.parameter.type.rank or not test.parameter.type.is_integer:
        return None
    position = condition.parameters.index(test.parameter)
    if position >= len(body.results):  # an invariant: the loop never ends or never starts
        return None
    start, step = constant(instruction.operands[position]), _step(body, position)
    if start is None or step is None:
        return None
    limits, first = np.iinfo(test.parameter.type.np_dtype), int(start.value[()])
    trips = trip_count(first, step, test.direction, test.bound, (limits.min, limits.max))
    return None if trips is None else Counted(position, first, step, trips)


def _to_repeat(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    assert isinstance(instruction.op, While)
    loop = counted(instruction, rewriter.constant)
    if loop is None:
        return None
    op = Repeat(loop.trips, instruction.op.invariants)
    return rewriter.emit_all(op, instruction.operands, (body_of(instruction),))


def _test(condition: Computation) -> _Test | None:
    """Return the comparison of a parameter with a constant that a condition is, or None."""
    producer = condition.producers.get(condition.results[0])
    if producer is None or not isinstance(producer.op, Compare) or producer.op.direction not in _MIRRORED:
        return None
    lhs, rhs = producer.operands
    for counter, other, direction in (
        (lhs, rhs, producer.op.direction),
        (rhs, lhs, _MIRRORED[producer.op.direction]),
    ):
        bound = constant_in(condition, other)
        if bound is not None and counter in condition.parameters and not counter.type.is_inexact:
            return _Test(counter, direction, int(bound.value.flat[0]))
    return None


def _step(body: Computation, position: int) -> int | None:
    """Return the constant that every round adds to a carried value, or None."""
    producer = body.producers.get(body.results[position])
    if producer is None or not isinstance(producer.op, (Add, Subtract)):
        return None
    lhs, rhs = producer.operands
    if lhs != body.parameters[position]:
        lhs, rhs = rhs, lhs
        if isinstance(producer.op, Subtract):
            return None
    constant: Constant | None = constant_in(body, rhs)
    if lhs != body.parameters[position] or constant is None:
        return None
    step = int(constant.value.flat[0])
    return -step if isinstance(producer.op, Subtract) else step


def trip_count(start: int, step: int, direction: str, bound: int, limits: tuple[int, int]) -> int | None:
    """Return how often ``i = start; while i <direction> bound: i += step`` runs its body.

    Args:
      start: first value of the counter.
      step: what a round adds.
      direction: "LT", "LE", "GT", "GE" or "NE".
      bound: what the counter is compared with.
      limits: least and greatest value of the counter's type.

    Returns:
      The count, or None when the loop does not end before the counter leaves its range.
    """
    if direction in ("GT", "GE"):
        lowest, highest = limits
        mirrored = "LT" if direction == "GT" else "LE"
        return trip_count(-start, -step, mirrored, -bound, (-highest, -lowest))
    if direction == "NE":
        if start == bound:
            return 0
        if not step or (bound - start) % step or (bound - start) // step < 0:
            return None
        return (bound - start) // step
    end = bound + 1 if direction == "LE" else bound
    if start >= end:
        return 0
    if step <= 0:
        return None
    count = -((start - end) // step)
    return count if start + count * step <= limits[1] else None
