"""Comparisons of integers that are known by the ranges that their operands lie in.

``jnp.take_along_axis(x, jnp.clip(i, 0, n - 1), 1)`` asks of every index whether it lies inside, for the fill value elsewhere, and
wraps negative ones first: what is clipped, or counted, needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hlo_passes.ir import Instruction, Op, Value
from hlo_passes.ops import (
    Add,
    And,
    BroadcastInDim,
    Clamp,
    Compare,
    Concatenate,
    Constant,
    Convert,
    Divide,
    Iota,
    Maximum,
    Minimum,
    Multiply,
    Remainder,
    Reshape,
    Select,
    Slice,
    Subtract,
    TopK,
    Transpose,
)
from hlo_passes.passes.patterns.registry import rewrites
from hlo_passes.passes.rewriter import Rewriter

Range = tuple[int, int]
"""The least and the greatest number that an element may be."""

DEEP = 12
"""Operations behind each other that are asked what lies in them."""
_MOVED = (BroadcastInDim, Reshape, Slice, Transpose, Concatenate)


@rewrites(Compare)
def compare_ranges(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A comparison of integers that holds for all that the operands may be, or for none of it, is known."""
    op, (lhs, rhs) = instruction.op, instruction.operands
    assert isinstance(op, Compare)
    if not lhs.type.is_integer or not lhs.type.size:
        return None
    (low, high), (least, most) = (range_of(value, rewriter) for value in (lhs, rhs))
    known: dict[str, tuple[bool, bool]] = {  # whether it holds for all, and for none
        "LT": (high < least, low >= most),
        "LE": (high <= least, low > most),
        "GT": (low > most, high <= least),
        "GE": (low >= most, high < least),
        "EQ": (low == high == least == most, high < least or low > most),
        "NE": (high < least or low > most, low == high == least == most),
    }
    holds, fails = known[op.direction]
    return rewriter.emit(Constant.splat(holds, instruction.result.type)) if holds or fails else None


def range_of(value: Value, rewriter: Rewriter) -> Range:
    """Return the range that the elements of an integer or boolean value lie in."""
    return _Ranges(rewriter).of(value, DEEP)


class _Ranges:
    """Ranges of values that are asked for together, each found once."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._known: dict[Value, Range] = {}

    def of(self, value: Value, depth: int) -> Range:
        """Return the range of a value, looked for so many operations back."""
        if value not in self._known:
            unknown = _whole(value)
            found = self._found(value, depth) if value.type.size else unknown
            # what may leave the type wraps around
            inside = found is not None and unknown[0] <= found[0] and found[1] <= unknown[1]
            self._known[value] = found if found is not None and inside else unknown
        return self._known[value]

    def _found(self, value: Value, depth: int) -> Range | None:
        constant = self._rewriter.constant(value)
        if constant is not None:
            return int(np.min(constant.array)), int(np.max(constant.array))
        made = self._rewriter.maker(value)
        if made is None or not depth:
            return None
        op = made.op
        if isinstance(op, Iota):
            return 0, value.type.shape[op.dimension] - 1
        if isinstance(op, TopK):
            return (0, made.operands[0].type.shape[op.dimension] - 1) if value == made.results[1] else None
        if not all(x.type.is_integer or x.type.is_bool for x in made.operands) or value.type.is_bool:
            return None
        operands = [self.of(x, depth - 1) for x in made.operands]
        if isinstance(op, _MOVED):
            return min(low for low, _ in operands), max(high for _, high in operands)
        rule = _RULES.get(type(op))
        return None if rule is None else rule(*operands)


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
