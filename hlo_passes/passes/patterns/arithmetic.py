"""Algebraic identities of elementwise operations.

Floats are rewritten only where every result keeps its bits (signed zeros, infinities and NaN included; a
subnormal that the host flushes to zero, and the payload of a NaN, are no part of a result), and where the
identity also holds when floats are integers modulo 2^n: ``x / 1.0`` stays, because a division has no meaning
there that would make it ``x``.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hlo_passes.ir import Instruction, TensorType, Value
from hlo_passes.ops import (
    Add,
    And,
    BitcastConvert,
    BroadcastInDim,
    Compare,
    Constant,
    Convert,
    Divide,
    Maximum,
    Minimum,
    Multiply,
    Negate,
    Not,
    Or,
    Remainder,
    Select,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Subtract,
    Xor,
    neutral_element,
)
from hlo_passes.passes.patterns.registry import is_element, ones_like, rewrites, splat_element, zeros
from hlo_passes.passes.ranges import range_of
from hlo_passes.passes.rewriter import Rewriter

_COMMUTATIVE = (Add, Multiply, And, Or, Xor, Maximum, Minimum)
_INVERSE = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}
_HOLDS_FOR_EQUAL = {"EQ": True, "LE": True, "GE": True, "NE": False, "LT": False, "GT": False}


def _neutral(op: type, type_: TensorType) -> float | None:
    """Return the element that leaves any left operand as it is, or None."""
    if op in (Maximum, Minimum) and not type_.is_complex:
        return _limit(op, type_)
    if type_.is_float:
        return {Add: -0.0, Subtract: 0.0, Multiply: 1.0}.get(op)
    if type_.is_complex:
        return None
    if op in (Add, Subtract, Or, Xor, ShiftLeft, ShiftRightArithmetic, ShiftRightLogical):
        return 0
    if op in (Multiply, Divide):
        return 1
    if op is And:
        return ones_like(type_)
    return None


def _limit(op: type, type_: TensorType) -> float:
    """Return the least value of a type for ``Maximum``, the greatest for ``Minimum``; infinities where it has any."""
    if type_.is_bool:
        return int(op is Minimum)
    return neutral_element("max" if op is Maximum else "min", type_.dtype).item()


def _absorbing(op: type, type_: TensorType) -> float | None:
    """Return the element that makes any result itself, or None; floats have none (NaN)."""
    if type_.is_inexact:
        return None
    if op in (Multiply, And):
        return 0
    if op is Or or (op is Add and type_.is_bool):
        return ones_like(type_)
    if op in (Maximum, Minimum):
        return _limit(Minimum if op is Maximum else Maximum, type_)
    return None


@rewrites(*_COMMUTATIVE, Subtract, Divide, ShiftLeft, ShiftRightArithmetic, ShiftRightLogical)
def drop_neutral_operand(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x + -0.0``, ``x * 1``, ``x | 0``, ``x / 1`` of integers, ... are ``x``."""
    lhs, rhs = instruction.operands
    op = type(instruction.op)
    neutral = _neutral(op, lhs.type)
    if neutral is None:
        return None
    if is_element(splat_element(rhs, rewriter), neutral):
        return lhs
    if op in _COMMUTATIVE and is_element(splat_element(lhs, rewriter), neutral):
        return rhs
    return None


@rewrites(*_COMMUTATIVE)
def absorb(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x * 0``, ``x & 0``, ``x | -1``, ... of integers are that constant."""
    absorbing = _absorbing(type(instruction.op), instruction.operands[0].type)
    if absorbing is None:
        return None
    for value in instruction.operands:
        if is_element(splat_element(value, rewriter), absorbing):
            return value
    return None


@rewrites(And, Or, Maximum, Minimum)
def drop_repeated_operand(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x & x``, ``max(x, x)``, ... are ``x``."""
    lhs, rhs = instruction.operands
    return lhs if lhs == rhs else None


@rewrites(Subtract, Xor)
def cancel_operand(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x - x`` of integers and ``x ^ x`` are 0."""
    lhs, rhs = instruction.operands
    return zeros(lhs.type, rewriter) if lhs == rhs and not lhs.type.is_inexact else None


@rewrites(Remainder)
def divide_by_one(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x % 1`` of integers is 0."""
    lhs, rhs = instruction.operands
    is_one = not lhs.type.is_inexact and is_element(splat_element(rhs, rewriter), 1)
    return zeros(lhs.type, rewriter) if is_one else None


@rewrites(Divide, Remainder)
def divide_by_a_power_of_two(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x / 2^k`` of integers that are not negative is a shift, and ``x % 2^k`` a mask; of others see pass ``integer-quotients``."""
    x, divisor = instruction.operands
    element = splat_element(divisor, rewriter)
    if element is None or not x.type.is_integer:
        return None
    count, log = int(element), int(element).bit_length() - 1
    if count < 2 or count != 1 << log or range_of(x, rewriter)[0] < 0:
        return None
    if isinstance(instruction.op, Divide):
        return rewriter.emit(ShiftRightLogical(), x, rewriter.emit(Constant.splat(log, x.type)))
    return rewriter.emit(And(), x, rewriter.emit(Constant.splat(count - 1, x.type)))


@rewrites(Compare)
def compare_ranges(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A comparison of integers that holds for all that the operands may be, or for none of it, is known.

    ``jnp.take_along_axis(x, jnp.clip(i, 0, n - 1), 1)`` asks of every index whether it lies inside, for the fill value elsewhere,
    and wraps negative ones first: what is clipped, or counted, needs neither.
    """
    op, (lhs, rhs) = instruction.op, instruction.operands
    if not isinstance(op, Compare) or not lhs.type.is_integer or not lhs.type.size:
        return None
    (low, high), (least, most) = (range_of(value, rewriter) for value in (lhs, rhs))
    same, apart = low == high == least == most, high < least or low > most
    holds, fails = {
        "LT": (high < least, low >= most),
        "LE": (high <= least, low > most),
        "GT": (low > most, high <= least),
        "GE": (low >= most, high < least),
        "EQ": (same, apart),
        "NE": (apart, same),
    }[op.direction]
    return rewriter.emit(Constant.splat(holds, instruction.result.type)) if holds or fails else None


@rewrites(Negate, Not)
def undo_involution(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``-(-x)`` and ``~~x`` are ``x``."""
    inner = rewriter.producer(instruction.operands[0], type(instruction.op))
    return inner[1][0] if inner else None


@rewrites(Not)
def invert_comparison(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``not (a < b)`` is ``a >= b``, unless NaN makes both false."""
    inner = rewriter.producer(instruction.operands[0], Compare)
    if inner is None:
        return None
    op, operands = inner
    if operands[0].type.is_float and op.direction not in ("EQ", "NE"):
        return None
    return rewriter.emit(dataclasses.replace(op, direction=_INVERSE[op.direction]), *operands)


@rewrites(Compare)
def compare_with_itself(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A comparison of an integer or boolean with itself is known."""
    lhs, rhs = instruction.operands
    op = instruction.op
    if lhs != rhs or lhs.type.is_inexact or not isinstance(op, Compare):
        return None
    return rewriter.emit(Constant.splat(_HOLDS_FOR_EQUAL[op.direction], instruction.result.type))


@rewrites(Compare)
def compare_boolean(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``p == true`` and ``p != false`` are ``p``; ``p == false`` and ``p != true`` are ``not p``."""
    op = instruction.op
    lhs, rhs = instruction.operands
    if not isinstance(op, Compare) or not lhs.type.is_bool or op.direction not in ("EQ", "NE"):
        return None
    for tested, other in ((lhs, rhs), (rhs, lhs)):
        element = splat_element(other, rewriter)
        if element is not None:
            return tested if bool(element) == (op.direction == "EQ") else rewriter.emit(Not(), tested)
    return None


@rewrites(Select)
def select_known(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Take the branch that a constant predicate chooses, or that both choices are."""
    predicate, on_true, on_false = instruction.operands
    if on_true == on_false:
        return on_true
    chosen = splat_element(predicate, rewriter)
    return None if chosen is None else (on_true if chosen else on_false)


@rewrites(Select)
def select_by_negation(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``select(not p, a, b)`` is ``select(p, b, a)``."""
    predicate, on_true, on_false = instruction.operands
    inner = rewriter.producer(predicate, Not)
    return rewriter.emit(Select(), inner[1][0], on_false, on_true) if inner else None


@rewrites(Select)
def select_of_booleans(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``select(p, true, false)`` is ``p``, and ``select(p, false, true)`` is ``not p``."""
    predicate, on_true, on_false = instruction.operands
    if not on_true.type.is_bool:
        return None
    choices = splat_element(on_true, rewriter), splat_element(on_false, rewriter)
    if choices[0] is None or choices[1] is None or bool(choices[0]) == bool(choices[1]):
        return None
    chosen = predicate if choices[0] else rewriter.emit(Not(), predicate)
    if chosen.type.shape != on_true.type.shape:
        return rewriter.emit(BroadcastInDim(on_true.type.shape, ()), chosen)
    return chosen


@rewrites(Convert, BitcastConvert)
def drop_conversion(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A conversion to the type that an operand has already is the operand."""
    (operand,) = instruction.operands
    return operand if operand.type == instruction.result.type else None


@rewrites(Convert)
def merge_conversions(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Skip a widening of integers or booleans in the middle of two conversions: it changes no value."""
    inner = rewriter.producer(instruction.operands[0], Convert)
    if inner is None:
        return None
    (operand,) = inner[1]
    keeps_values = _holds_all(instruction.operands[0].type, operand.type)
    return rewriter.emit(instruction.op, operand) if keeps_values else None


def _holds_all(wide: TensorType, narrow: TensorType) -> bool:
    """Whether every value of ``narrow`` is one of ``wide``; both integers or booleans."""
    if wide.is_inexact or narrow.is_inexact or wide.is_bool:
        return wide.is_bool and narrow.is_bool
    if narrow.is_bool:
        return True
    outer, inner = np.iinfo(wide.np_dtype), np.iinfo(narrow.np_dtype)
    return outer.min <= inner.min and inner.max <= outer.max


@rewrites(BitcastConvert)
def merge_bitcasts(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Skip the middle of two reinterpretations that keep the shape."""
    inner = rewriter.producer(instruction.operands[0], BitcastConvert)
    if inner is None:
        return None
    (operand,) = inner[1]
    shapes = {operand.type.shape, instruction.operands[0].type.shape, instruction.result.type.shape}
    return rewriter.emit(instruction.op, operand) if len(shapes) == 1 else None
