"""Quotients of integers by constants, and what they leave, as products and shifts: hardware has no integer division.

``x // 7`` and ``x % 7`` round to minus infinity, which JAX writes as a division toward zero, what it leaves, and a choice for
the case that signs differ: they are recognized as a whole (pass ``floored-quotients``). The numbers that are divided are often
known to be small (places, bytes, what was clipped): one product is enough then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Op, Value
from hlo_passes.ops import (
    Add,
    And,
    Constant,
    Convert,
    Divide,
    Multiply,
    Remainder,
    Select,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Subtract,
    Xor,
)
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.floored import floored_quotient, floored_remainder
from hlo_passes.passes.ranges import range_of
from hlo_passes.passes.rewriter import Rewriter

_WORD, _HALF = 32, 16
_LOW = (1 << _HALF) - 1


@dataclass(frozen=True)
class FlooredQuotients(LocalPass):
    """Write ``x // c`` and ``x % c`` of integers and positive constants as one division of numbers that are not negative.

    Before values are kept or computed again, and before constants are folded: what JAX writes is still together.
    """

    name: ClassVar[str] = "floored-quotients"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with such quotients; itself when it has none."""
        if computation.op_types.isdisjoint((Divide, Remainder)):
            return computation
        return Rewriter(computation, {Select: (_floored,)}).run()


@dataclass(frozen=True)
class IntegerQuotients(LocalPass):
    """Divide integers of at most 32 bits by constants without a division, which takes 42 to 46 cycles an element on a GC200.

    So written ``x // 7`` of int32 takes 20 cycles instead of 110, and 6 where x is known to be small.
    """

    name: ClassVar[str] = "integer-quotients"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with products and shifts; itself when it divides no integers by constants."""
        if computation.op_types.isdisjoint((Divide, Remainder)):
            return computation
        return Rewriter(computation, {Divide: (_divided,), Remainder: (_divided,)}).run()


class _Words:
    """Arithmetic on the bits of elements, which constants take part in."""

    def __init__(self, x: Value, rewriter: Rewriter) -> None:
        """Start with what is divided, of at most 32 bits; smaller elements are extended."""
        self._rewriter = rewriter
        self._dtype = x.type.dtype
        self.x = x if x.type.bits >= _WORD else rewriter.emit(Convert("i32"), x)
        self.low, self.high = range_of(x, rewriter)

    def op(self, op: Op, value: Value, other: Value | int) -> Value:
        """Return what an operation makes of elements and others, or a constant of so many bits."""
        if isinstance(other, int):
            type_ = value.type
            wrapped = other & (1 << type_.bits) - 1
            if not type_.is_unsigned and wrapped >> type_.bits - 1:
                wrapped -= 1 << type_.bits
            other = self._rewriter.emit(Constant.splat(wrapped, type_))
        return self._rewriter.emit(op, value, other)

    @property
    def sign(self) -> Value:
        """All bits of what is divided where it is negative, else none."""
        return self.op(ShiftRightArithmetic(), self.x, self.x.type.bits - 1)

    def result(self, value: Value) -> Value:
        """Return words as elements of the type of what is divided."""
        return value if value.type.dtype == self._dtype else self._rewriter.emit(Convert(self._dtype), value)


def _floored(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Return ``x // c`` or ``x % c``: of a negative x by way of ``-1 - x``, whose bits are those of x the other way round.

    The quotient is -1 less that of ``-1 - x`` then, and c - 1 less what that leaves is left.
    """
    if not instruction.results[0].type.is_integer:
        return None
    quotient = floored_quotient(instruction.operands, rewriter)
    found = quotient or floored_remainder(instruction.operands, rewriter)
    if found is None:
        return None
    x, c = found
    words = _Words(x, rewriter)
    if words.low >= 0:
        return instruction.operands[2]
    if c & (c - 1) == 0:
        op, number = (ShiftRightArithmetic(), c.bit_length() - 1) if quotient else (And(), c - 1)
        return words.result(words.op(op, words.x, number))
    turned = words.op(Xor(), words.x, words.sign)
    if quotient:
        return words.result(words.op(Xor(), words.op(Divide(), turned, c), words.sign))
    rest = words.op(Xor(), words.op(Remainder(), turned, c), words.sign)
    return words.result(words.op(Add(), rest, words.op(And(), words.sign, c)))


def _divided(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Return a quotient toward zero by a constant of two or more, or what it leaves."""
    x, divisor = instruction.operands
    constant = rewriter.constant(divisor)
    if constant is None or not constant.is_splat or not x.type.is_integer:
        return None
    c = int(constant.value.flat[0])
    is_power = c & (c - 1) == 0
    if c < 2 or (x.type.bits > _WORD and not is_power):
        return None
    words = _Words(x, rewriter)
    if is_power and words.low < 0:
        quotient, rest = _by_power(words, c)
    else:
        quotient, rest = _by_product(words, c), None
    if isinstance(instruction.op, Remainder):
        quotient = rest or words.op(Subtract(), words.x, words.op(Multiply(), quotient, c))
    return words.result(quotient)


def _by_power(words: _Words, c: int) -> tuple[Value, Value]:
    """Return the quotient of numbers of any sign by a power of two, and what it leaves.

    Shifts round to minus infinity: to a negative number c - 1 is added before.
    Source: Warren, Hacker's Delight, "Signed Division by a Known Power of 2".
    """
    log, bits = c.bit_length() - 1, words.x.type.bits
    total = words.op(Add(), words.x, words.op(ShiftRightLogical(), words.sign, bits - log))
    rest = words.op(Subtract(), words.x, words.op(And(), total, -c))
    return words.op(ShiftRightArithmetic(), total, log), rest


def _by_product(words: _Words, c: int) -> Value:
    """Return the quotient of words: that of their sizes, with the sign of each."""
    if words.low >= 0:
        return _size_quotient(words, words.x, words.high, c)
    sign = words.sign
    size = words.op(Subtract(), words.op(Xor(), words.x, sign), sign)
    quotient = _size_quotient(words, size, max(-words.low, words.high), c)
    return words.op(Subtract(), words.op(Xor(), quotient, sign), sign)


def _size_quotient(words: _Words, y: Value, most: int, c: int) -> Value:
    """Return the quotient of numbers from 0 to ``most``, below 2^32, as bits that have no sign.

    With ``m = ceil(2^s / c)`` and ``e = m c - 2^s``, ``y m / 2^s`` is ``y / c + y e / (c 2^s)``: more than ``y / c`` by less than 1 / c,
    so that both have the same whole part, where ``y e < 2^s``. Products of 32 bits are enough for small y; else s is 32 or more,
    and the upper half of a product of 64 bits is put together.
    Source: Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (PLDI 1994).
    """
    if most < c:
        return words.op(And(), y, 0)
    if c & (c - 1) == 0:
        return words.op(ShiftRightLogical(), y, c.bit_length() - 1)
    for s in range(c.bit_length(), 2 * _WORD + 1):
        m = -(-(1 << s) // c)
        if (m * c - (1 << s)) * most >= 1 << s:
            continue
        if s < _WORD and m * most < 1 << _WORD:
            return words.op(ShiftRightLogical(), words.op(Multiply(), y, m), s)
        if s >= _WORD and m < 1 << _WORD:
            upper = _upper_half(words, y, most, m)
            return upper if s == _WORD else words.op(ShiftRightLogical(), upper, s - _WORD)
        if s >= _WORD:  # m has 33 bits: y is added to the upper half, and halved so that the sum has 32
            upper = _upper_half(words, y, most, m - (1 << _WORD))
            half = words.op(ShiftRightLogical(), words.op(Subtract(), y, upper), 1)
            return words.op(ShiftRightLogical(), words.op(Add(), half, upper), s - _WORD - 1)
    raise AssertionError(f"no multiple of 1 / {c} in 33 bits")


def _upper_half(words: _Words, y: Value, most: int, m: int) -> Value:
    """Return the upper 32 bits of products of 64 with a constant, by products of 16 bits, as no instruction has them.

    Source: Warren, Hacker's Delight, "High-Order Half of 64-Bit Product"; no sum here passes 2^32 - 1.
    """
    low, high = m & _LOW, m >> _HALF
    if most <= _LOW:
        carry = words.op(ShiftRightLogical(), words.op(Multiply(), y, low), _HALF)
        return words.op(ShiftRightLogical(), words.op(Add(), words.op(Multiply(), y, high), carry), _HALF)
    lower, upper = words.op(And(), y, _LOW), words.op(ShiftRightLogical(), y, _HALF)
    carry = words.op(ShiftRightLogical(), words.op(Multiply(), lower, low), _HALF)
    middle = words.op(Add(), words.op(Multiply(), upper, low), carry)
    other = words.op(Add(), words.op(Multiply(), lower, high), words.op(And(), middle, _LOW))
    above = words.op(Add(), words.op(Multiply(), upper, high), words.op(ShiftRightLogical(), middle, _HALF))
    return words.op(Add(), above, words.op(ShiftRightLogical(), other, _HALF))
