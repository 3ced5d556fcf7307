"""Sums of a matrix that is zero but for a diagonal, as sums of that diagonal; diagonals of what is computed, as lookups.

``jnp.trace`` and an ``einsum`` that names an axis twice choose between a matrix and zeros where two counters are equal, and add up
the matrix. ``jnp.diagonal`` is every so many elements of a matrix whose rows follow each other, which those of a product do not:
an element of each row is looked up instead, where the row lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, NamedTuple

from hlo_passes.ir import Computation, Instruction, TensorType, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Compare,
    Constant,
    Gather,
    GatherDimensionNumbers,
    Iota,
    Pad,
    Reduce,
    Reshape,
    Select,
    Slice,
)
from hlo_passes.ops.elementwise import Add, Convert, Elementwise, Subtract
from hlo_passes.ops.reduction import simple_combiner
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.patterns.registry import is_element, splat_element
from hlo_passes.passes.rewriter import Rewriter

_DEEP = 8
"""Elementwise operations before the choice, one after the other, that are computed of the diagonal alone."""


@dataclass(frozen=True)
class MaskedDiagonals(LocalPass):
    """Cut out the diagonal where a sum is of ``select(i + n == j, x, 0)`` over ``i``, ``j`` or both, neighbours in ``x``.

    Operations that are applied to elements before, and read by nothing else, are applied to the diagonal. A diagonal of
    matrices of at least ``least`` computed elements is looked up: of a product of 4,096 x 4,096 floats that takes 2,400 cycles on a
    GC200, to bring all of it into the order of its rows 102,000; of 1,024 x 1,024 both take about as long.
    """

    name: ClassVar[str] = "masked-diagonals"
    least: int = 1 << 21

    def change(self, computation: Computation) -> Computation:
        """Return the computation with diagonals instead of such matrices; itself when it has none."""
        return Rewriter(computation, {Reduce: (_summed,), Slice: (self._looked_up,)}).run()

    def _looked_up(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        op, (flat,) = instruction.op, instruction.operands
        assert isinstance(op, Slice)
        joined = rewriter.producer(flat, Reshape)
        x = None if joined is None else joined[1][0]
        if (
            x is None
            or rewriter.maker(x) is None
            or rewriter.constant(x) is not None
            or x.type.size < self.least
        ):
            return None
        found = _stepped(op, x.type.shape, flat.type.shape)
        if found is None:
            return None
        diagonal, step = found
        first, row, column, length = diagonal
        start, limit = list(op.start), list(op.limit)
        start[first : first + 1], limit[first : first + 1] = [row, 0], [row + length, x.type.shape[first + 1]]
        rows = rewriter.emit(Slice(tuple(start), tuple(limit), (1,) * x.type.rank), x)
        places = TensorType((length,), "i32")
        along = rewriter.emit(Iota(places, 0))
        from_ = rewriter.emit(Constant.splat(column, places))
        indices = rewriter.emit(Add() if step > 0 else Subtract(), from_, along)
        sizes = tuple(1 if d in (first, first + 1) else n for d, n in enumerate(rows.type.shape))
        offsets = tuple(d for d in range(x.type.rank - 1) if d != first)
        numbers = GatherDimensionNumbers(offsets, (first + 1,), (first,), (0,), (first + 1,), 1)
        return rewriter.emit(Gather(numbers, sizes), rows, indices)


def _stepped(op: Slice, shape: Sequence[int], flat: Sequence[int]) -> tuple[_Diagonal, int] | None:
    """Return which diagonal a slice takes of an array whose rows follow each other, and by how much its columns step; else None.

    Args:
      op: the slice.
      shape: of the array.
      flat: the same with two neighbouring dimensions as one.
    """
    if len(flat) != len(shape) - 1 or not all(op.limit[d] > op.start[d] for d in range(len(flat))):
        return None
    stepped = [d for d, stride in enumerate(op.strides) if stride != 1]
    if len(stepped) != 1:
        return None
    (first,) = stepped
    rows, columns = shape[first : first + 2]
    is_joined = (*shape[:first], rows * columns, *shape[first + 2 :]) == tuple(flat)
    step = op.strides[first] - columns
    if not is_joined or abs(step) != 1 or columns < 2:
        return None
    length = -(-(op.limit[first] - op.start[first]) // op.strides[first])
    row, column = divmod(op.start[first], columns)
    if not 0 <= column + step * (length - 1) < columns or row + length > rows:
        return None
    return _Diagonal(first, row, column, length), step


class _Diagonal(NamedTuple):
    """Elements of neighbouring dimensions ``first`` and ``first + 1``, from ``row`` and ``column`` on, ``length`` of them."""

    first: int
    row: int
    column: int
    length: int


class _Counter(NamedTuple):
    """A number that is ``offset`` at the beginning of a dimension, and grows by one along it."""

    dimension: int
    offset: int


def _summed(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    op, body = instruction.op, instruction.regions[0]
    assert isinstance(op, Reduce)
    if len(instruction.operands) != 2 or simple_combiner(body) != "add":
        return None
    masked, initial = instruction.operands
    if masked.type.dtype != instruction.result.type.dtype or masked.type.is_complex:
        return None
    if not is_element(splat_element(initial, rewriter), 0):
        return None
    converted = rewriter.producer(masked, Convert)
    if converted is not None and rewriter.has_one_use(masked):
        (masked,) = converted[1]
    chosen = rewriter.producer(masked, Select)
    if chosen is None or not rewriter.has_one_use(masked) or masked.type.is_complex:
        return None
    mask, x, other = chosen[1]
    if mask.type.shape != x.type.shape or not is_element(splat_element(other, rewriter), 0):
        return None
    diagonal = _diagonal(mask, rewriter)
    if diagonal is None or not {diagonal.first, diagonal.first + 1} & set(op.dimensions):
        return None
    first = diagonal.first
    found = _cut(x, diagonal, rewriter, _DEEP)
    if converted is not None:
        found = rewriter.emit(converted[0], found)
    kept = [d for d in (first, first + 1) if d not in op.dimensions]
    if kept:
        start = diagonal.row if kept[0] == first else diagonal.column
        found = _padded(found, first, start, x.type.shape[kept[0]], initial, rewriter)
    summed = {d if d <= first else d - 1 for d in op.dimensions} - ({first} if kept else set())
    if summed:
        (result,) = rewriter.emit_all(Reduce(tuple(sorted(summed))), (found, initial), (body,))
        return result
    zero = rewriter.emit(Constant.splat(0, found.type))
    return rewriter.emit(Add(), found, zero)  # a sum is no minus zero


def _diagonal(mask: Value, rewriter: Rewriter) -> _Diagonal | None:
    """Return the diagonal that a mask says; None where it is none, or empty, or not of neighbouring dimensions."""
    shape, places = mask.type.shape, list(range(mask.type.rank))
    while (spread := rewriter.producer(mask, BroadcastInDim)) is not None:
        op, (inner,) = spread
        if any(
            n != mask.type.shape[d] for n, d in zip(inner.type.shape, op.broadcast_dimensions, strict=True)
        ):
            return None
        places, mask = [places[d] for d in op.broadcast_dimensions], inner
    compared = rewriter.producer(mask, Compare)
    if compared is None or compared[0].direction != "EQ":
        return None
    one, other = (_counter(value, rewriter) for value in compared[1])
    if one is None or other is None:
        return None
    (d, a), (e, b) = ((places[each.dimension], each.offset) for each in (one, other))
    if d > e:
        (d, a), (e, b) = (e, b), (d, a)
    if e != d + 1:
        return None
    row, column = max(0, b - a), max(0, a - b)  # row + a == column + b
    length = min(shape[d] - row, shape[e] - column)
    return _Diagonal(d, row, column, length) if length > 0 else None


def _counter(value: Value, rewriter: Rewriter) -> _Counter | None:
    """Return how a value counts along a dimension; None where it does not, or might begin anew."""
    added: list[int] = []
    most, least = 1 << 62, -(1 << 62)
    places = list(range(value.type.rank))
    while (made := rewriter.maker(value)) is not None and value.type.is_integer:
        op, operands = made.op, made.operands
        most = min(most, 1 << (value.type.bits - 1))
        least = 0 if value.type.is_unsigned else max(least, -most)
        if isinstance(op, Iota):
            size, starts = value.type.shape[op.dimension], [*accumulate([0, *reversed(added)])]
            stays = all(least <= start and start + size <= most for start in starts)
            return _Counter(places[op.dimension], starts[-1]) if stays else None
        if isinstance(op, BroadcastInDim):
            (inner,) = operands
            if any(
                n != value.type.shape[d]
                for n, d in zip(inner.type.shape, op.broadcast_dimensions, strict=True)
            ):
                return None
            places, value = [places[d] for d in op.broadcast_dimensions], inner
        elif isinstance(op, Convert):
            (value,) = operands
        elif (
            isinstance(op, (Add, Subtract))
            and (found := _moved(operands, isinstance(op, Subtract), rewriter)) is not None
        ):
            value, by = found
            added.append(by)
        else:
            return None
    return None


def _moved(operands: Sequence[Value], is_less: bool, rewriter: Rewriter) -> tuple[Value, int] | None:
    """Return the operand to which the other one, a constant, is added, or which it is less, and what is added."""
    one, other = operands
    element = splat_element(other, rewriter)
    if element is not None:
        return one, -int(element) if is_less else int(element)
    element = splat_element(one, rewriter)
    return (other, int(element)) if element is not None and not is_less else None


def _cut(x: Value, diagonal: _Diagonal, rewriter: Rewriter, deep: int) -> Value:
    """Return the diagonal of a value, along the first of its dimensions."""
    made, (first, row, column, length) = rewriter.maker(x), diagonal
    is_of_elements = made is not None and isinstance(made.op, Elementwise) and not made.regions
    if made is not None and is_of_elements and deep and rewriter.has_one_use(x):
        if all(operand.type.shape == x.type.shape for operand in made.operands):
            operands = [_cut(operand, diagonal, rewriter, deep - 1) for operand in made.operands]
            return rewriter.emit(made.op, *operands)
    element = rewriter.constant(x)
    if element is not None and element.is_splat:
        shape = (*x.type.shape[:first], length, *x.type.shape[first + 2 :])
        return rewriter.emit(Constant(element.value, x.type.with_shape(shape)))
    shape = x.type.shape
    rows, columns = shape[first : first + 2]
    flat = rewriter.emit(Reshape((*shape[:first], rows * columns, *shape[first + 2 :])), x)
    start = row * columns + column
    rank = flat.type.rank
    low = tuple(start if d == first else 0 for d in range(rank))
    end = start + (length - 1) * (columns + 1) + 1
    high = tuple(end if d == first else n for d, n in enumerate(flat.type.shape))
    return rewriter.emit(Slice(low, high, tuple(columns + 1 if d == first else 1 for d in range(rank))), flat)


def _padded(x: Value, axis: int, start: int, size: int, zero: Value, rewriter: Rewriter) -> Value:
    """Return a value with ``zero`` around it along an axis, of ``size`` elements together."""
    rest = size - start - x.type.shape[axis]
    if not start and not rest:
        return x
    low, high = (tuple(n if d == axis else 0 for d in range(x.type.rank)) for n in (start, rest))
    return rewriter.emit(Pad(low, high, (0,) * x.type.rank), x, zero)
