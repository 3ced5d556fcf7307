"""Ranges that integers lie in: what clips, counts, masks and divides them says between which numbers they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hlo_passes.ir import Instruction, Op, Value
from hlo_passes.ops import (
    Add,
    And,
    BroadcastInDim,
    Clamp,
    Concatenate,
    Convert,
    Divide,
    Iota,
    Maximum,
    Minimum,
    Multiply,
    Remainder,
    Reshape,
    Select,
    ShiftRightArithmetic,
    Slice,
    Subtract,
    TopK,
    Transpose,
    Xor,
)
from hlo_passes.passes.rewriter import Rewriter

Range = tuple[int, int]
"""The least and the greatest number that an element may be."""
Place = tuple[int, int] | None
"""The elements that are asked for: an axis, and their number along it; None for all."""

DEEP = 16
"""Operations behind each other that are asked what lies in them."""


def range_of(value: Value, rewriter: Rewriter, place: Place = None) -> Range:
    """Return the range that the elements of an integer or boolean value lie in, or those of one place along an axis."""
    return _Ranges(rewriter).of(value, place, DEEP)


class _Ranges:
    """Ranges of values that are asked for together, each found once."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._known: dict[tuple[Value, Place], Range] = {}

    def of(self, value: Value, place: Place, depth: int) -> Range:
        """Return the range of a value, looked for so many operations back."""
        key = value, place
        if key not in self._known:
            unknown = _whole(value)
            found = self._found(value, place, depth) if value.type.size else None
            # what may leave the type wraps around
            inside = found is not None and unknown[0] <= found[0] and found[1] <= unknown[1]
            self._known[key] = found if found is not None and inside else unknown
        return self._known[key]

    def _found(self, value: Value, place: Place, depth: int) -> Range | None:
        constant = self._rewriter.constant(value)
        if constant is not None:
            held = constant.value
            if place is not None and not constant.is_splat:
                held = np.take(held, place[1], place[0])
            return int(np.min(held)), int(np.max(held))
        made = self._rewriter.maker(value)
        if made is None or not depth:
            return None
        op = made.op
        if isinstance(op, Iota):
            if place is not None and place[0] == op.dimension:
                return place[1], place[1]
            return 0, value.type.shape[op.dimension] - 1
        if isinstance(op, TopK):
            return (0, made.operands[0].type.shape[op.dimension] - 1) if value == made.results[1] else None
        if not all(x.type.is_integer or x.type.is_bool for x in made.operands) or value.type.is_bool:
            return None
        if isinstance(op, Add | Xor):
            turned = self._turned(made, place, depth)
            if turned is not None:
                return turned
        moved = _read(made, place)
        if moved is not None:
            found = [self.of(x, at, depth - 1) for x, at in moved]
            return min(low for low, _ in found), max(high for _, high in found)
        rule = _RULES.get(type(op))
        if rule is None:
            return None
        return rule(*(self.of(x, place if x.type.rank else None, depth - 1) for x in made.operands))

    def _turned(self, made: Instruction, place: Place, depth: int) -> Range | None:
        """Return the range of numbers that are turned round bit by bit where a number x is negative, as ``x // c`` and ``x % c`` are.

        ``y ^ (x >> 31)`` is y or -1 - y; of x itself it is not negative. ``(y ^ (x >> 31)) + ((x >> 31) & c)`` is y or c - 1 - y.
        """
        for first, other in (made.operands, made.operands[::-1]):
            if isinstance(made.op, Xor):
                of_sign = self._signed(other)
                if of_sign is not None:
                    low, high = self.of(first, place, depth - 1)
                    return (0 if of_sign == first else min(low, ~high)), max(high, ~low)
                continue
            turned, masked = self._rewriter.producer(first, Xor), self._rewriter.producer(other, And)
            if turned is None or masked is None:
                continue
            (y, sign), (mask, c) = turned[1], masked[1]
            if self._signed(sign) is None or not (sign == mask or self._signed(sign) == self._signed(mask)):
                continue
            (low, high), (c_low, c_high) = (self.of(v, place, depth - 1) for v in (y, c))
            if c_low == c_high:
                return min(low, c_low - 1 - high), max(high, c_low - 1 - low)
        return None

    def _signed(self, value: Value) -> Value | None:
        """Return the number of which a value is the sign, in every bit."""
        made = self._rewriter.producer(value, ShiftRightArithmetic)
        if made is None:
            return None
        low, high = self.of(made[1][1], None, DEEP)
        return made[1][0] if low == high == value.type.bits - 1 else None


def _read(made: Instruction, place: Place) -> list[tuple[Value, Place]] | None:
    """Return what is read, at which places, by an operation that only moves elements; None of any other."""
    op, operands = made.op, made.operands
    if not isinstance(op, BroadcastInDim | Reshape | Slice | Transpose | Concatenate):
        return None
    if place is None or isinstance(op, Reshape):
        return [(x, None) for x in operands]
    (axis, k), (x, *_) = place, operands
    if isinstance(op, Slice):
        return [(x, (axis, op.start[axis] + k * op.strides[axis]))]
    if isinstance(op, Transpose):
        return [(x, (op.permutation[axis], k))]
    if isinstance(op, BroadcastInDim):
        if axis not in op.broadcast_dimensions:
            return [(x, None)]
        at = op.broadcast_dimensions.index(axis)
        return [(x, (at, 0 if x.type.shape[at] == 1 else k))]
    if op.dimension != axis:
        return [(piece, place) for piece in operands]
    for piece in operands:
        if k < piece.type.shape[axis]:
            return [(piece, (axis, k))]
        k -= piece.type.shape[axis]
    raise AssertionError("a place beyond all that is joined")


def _whole(value: Value) -> Range:
    if value.type.is_bool:
        return 0, 1
    bits = value.type.bits
    return (0, (1 << bits) - 1) if value.type.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _multiplied(one: Range, other: Range) -> Range:
    products = [a * b for a in one for b in other]
    return min(products), max(products)


def _divided(one: Range, other: Range) -> Range | None:
    """Of numbers that are not negative by positive ones."""
    return (one[0] // other[1], one[1] // other[0]) if one[0] >= 0 and other[0] > 0 else None


def _left(one: Range, other: Range) -> Range | None:
    """What a division by positive numbers leaves has the sign of what is divided."""
    if other[0] <= 0:
        return None
    most = other[1] - 1
    return max(-most, min(one[0], 0)), min(most, max(one[1], 0))


def _common(one: Range, other: Range) -> Range | None:
    """The bits that numbers have in common are no more than either that is not negative."""
    found = [high for low, high in (one, other) if low >= 0]
    return (0, min(found)) if found else None


def _added(one: Range, other: Range) -> Range:
    return one[0] + other[0], one[1] + other[1]


def _subtracted(one: Range, other: Range) -> Range:
    return one[0] - other[1], one[1] - other[0]


def _lesser(one: Range, other: Range) -> Range:
    return min(one[0], other[0]), min(one[1], other[1])


def _greater(one: Range, other: Range) -> Range:
    return max(one[0], other[0]), max(one[1], other[1])


def _clamped(low: Range, x: Range, high: Range) -> Range:
    return _lesser(_greater(x, low), high)


def _either(_: Range, one: Range, other: Range) -> Range:
    return min(one[0], other[0]), max(one[1], other[1])


def _itself(x: Range) -> Range:
    return x


_RULES: Mapping[type[Op], Callable[..., Range | None]] = {
    Add: _added,
    Subtract: _subtracted,
    Multiply: _multiplied,
    Divide: _divided,
    Remainder: _left,
    And: _common,
    Minimum: _lesser,
    Maximum: _greater,
    Clamp: _clamped,
    Select: _either,
    Convert: _itself,
}
"""The range of a result by those of the operands, None where nothing is known; one that leaves the type is not used."""
