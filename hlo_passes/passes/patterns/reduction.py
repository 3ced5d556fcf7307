"""Reductions of nothing, of one element each, and of a few."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import Add, BroadcastInDim, Multiply, Reduce, Reshape, Slice, simple_combiner
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.patterns.registry import rewrites
from hlo_passes.passes.rewriter import Rewriter

DEEP = 16
"""Operations behind each other that are looked at."""
SHORT, MANY = 4, 4096
"""How long a row is that is combined by element, and from how many rows on that matters."""


@rewrites(Reduce)
def reduce_nothing(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """A reduction of no elements is its initial values."""
    half = len(instruction.operands) // 2
    initial = instruction.operands[half:]
    if 0 not in instruction.operands[0].type.shape or not _keeps_types(instruction):
        return None
    return [
        rewriter.emit(BroadcastInDim(result.type.shape, ()), value)
        for value, result in zip(initial, instruction.results, strict=True)
    ]


@rewrites(Reduce)
def reduce_single_elements(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A reduction along dimensions of size 1 combines each element with the initial value."""
    op, operands = instruction.op, instruction.operands
    assert isinstance(op, Reduce)
    if simple_combiner(instruction.regions[0]) is None or not _keeps_types(instruction):
        return None
    operand, initial = operands
    if any(operand.type.shape[axis] != 1 for axis in op.dimensions):
        return None
    shape = instruction.result.type.shape
    start = rewriter.emit(BroadcastInDim(shape, ()), initial)
    (combine,) = instruction.regions[0].instructions
    return rewriter.emit(combine.op, rewriter.emit(Reshape(shape), operand), start)


@rewrites(Reduce)
def combine_short_rows(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Rows of two to four elements, coordinates or colours, are combined by element: a vertex spends more on a row than on those.

    In the order in which a row is folded; sums and products of few bits are left, which vertices do not round at every step. So is
    what is computed for something else, too: differences of all pairs of points, which would have to lie somewhere then.
    """
    op, operands = instruction.op, instruction.operands
    assert isinstance(op, Reduce)
    if simple_combiner(instruction.regions[0]) is None or not _keeps_types(instruction):
        return None
    operand, initial = operands
    shape, result = operand.type.shape, instruction.result.type
    (combine,) = instruction.regions[0].instructions
    if op.dimensions != (len(shape) - 1,) or not 1 < shape[-1] <= SHORT or math.prod(result.shape) < MANY:
        return None
    if result.is_float and result.bits < 32 and isinstance(combine.op, (Add, Multiply)):
        return None
    if not _is_computed_for_it(operand, rewriter):
        return None
    value = rewriter.emit(BroadcastInDim(result.shape, ()), initial)
    for k in range(shape[-1]):
        value = rewriter.emit(combine.op, value, _column(operand, k, rewriter, {}))
    return value


def _column(value: Value, k: int, rewriter: Rewriter, known: dict[Value, Value]) -> Value:
    """Return element k of all rows, computed from those of what is computed for it element by element.

    Args:
      value: the rows.
      k: the number of the element.
      rewriter: the rewriting.
      known: what was found of element k so far, by value.
    """
    shape = value.type.shape
    if not shape:
        return value
    if value not in known:
        known[value] = _computed_column(value, k, rewriter, known)
    return known[value]


def _computed_column(value: Value, k: int, rewriter: Rewriter, known: dict[Value, Value]) -> Value:
    made, (*ends, _) = rewriter.maker(value), value.type.shape
    rows, last = tuple(ends), len(ends)
    if made is not None and isinstance(made.op, Elementwise) and _is_even(made):
        return rewriter.emit(made.op, *(_column(operand, k, rewriter, known) for operand in made.operands))
    if made is not None and isinstance(made.op, BroadcastInDim):
        (inner,), places = made.operands, made.op.broadcast_dimensions
        if last not in places:
            return rewriter.emit(BroadcastInDim(rows, places), inner)
        if places[-1] == last:  # dimensions may be placed in any order
            column = _column(inner, min(k, inner.type.shape[-1] - 1), rewriter, known)
            return rewriter.emit(BroadcastInDim(rows, places[:-1]), column)
    part = Slice((0,) * last + (k,), (*rows, k + 1), (1,) * (last + 1))
    return rewriter.emit(Reshape(rows), rewriter.emit(part, value))


def _is_even(instruction: Instruction) -> bool:
    """Whether an operation computes each element from the same of every operand, or from a single one."""
    shapes = {operand.type.shape for operand in instruction.operands}
    return shapes <= {(), instruction.result.type.shape} and not instruction.regions


def _is_computed_for_it(value: Value, rewriter: Rewriter, depth: int = DEEP) -> bool:
    """Whether what a value is computed from element by element is read by nothing else."""
    made = rewriter.maker(value)
    if made is None or not isinstance(made.op, (Elementwise, BroadcastInDim)):
        return True
    readers = rewriter.readers(value)
    if not depth or readers is None or len(readers) != 1:
        return False
    return all(_is_computed_for_it(operand, rewriter, depth - 1) for operand in dict.fromkeys(made.operands))


def _keeps_types(instruction: Instruction) -> bool:
    """Whether accumulation is in the element types of the inputs."""
    inputs = instruction.operands[: len(instruction.results)]
    return all(v.type.dtype == r.type.dtype for v, r in zip(inputs, instruction.results, strict=True))
