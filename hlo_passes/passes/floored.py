"""Quotients and remainders to minus infinity, as JAX writes ``x // c`` and ``x % c`` of integers and a constant."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from hlo_passes.ir import Op, Value
from hlo_passes.ops import (
    Add,
    And,
    BroadcastInDim,
    Compare,
    Convert,
    Divide,
    Remainder,
    Reshape,
    Select,
    Sign,
    Subtract,
)
from hlo_passes.passes.rewriter import Rewriter

_HOLDS = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}

Divided = tuple[Value, int]
"""What is divided, and the positive constant that it is divided by."""


def floored_quotient(choice: Sequence[Value], rewriter: Rewriter) -> Divided | None:
    """Return x and c where a select of these operands is ``x // c``: the quotient toward zero, less one where signs differ.

    ``select(sign(x) != 1 and rem(x, c) != 0, div(x, c) - 1, div(x, c))``
    """
    differs, lowered, quotient = choice
    found = _by_constant(quotient, Divide, rewriter)
    taken, both = rewriter.producer(lowered, Subtract), rewriter.producer(differs, And)
    if found is None or taken is None or both is None or taken[1][0] != quotient:
        return None
    if _element(taken[1][1], rewriter) != 1:
        return None
    signs, rests = (_compared(value, "NE", rewriter) for value in both[1])
    for (sign, one), (rest, zero) in ((signs, rests), (rests, signs)):
        signed = None if sign is None else rewriter.producer(sign, Sign)
        is_so = signed is not None and signed[1][0] == found[0] and (one, zero) == (1, 0)
        if is_so and rest is not None and _by_constant(rest, Remainder, rewriter) == found:
            return found
    return None


def floored_remainder(choice: Sequence[Value], rewriter: Rewriter) -> Divided | None:
    """Return x and c where a select of these operands is ``x % c``: what is left toward zero, and c more where that is negative.

    ``select((rem(x, c) < 0) != (c < 0) and rem(x, c) != 0, rem(x, c) + c, rem(x, c))``; the second condition may be missing.
    """
    is_negative, raised, rest = choice
    found, total = _by_constant(rest, Remainder, rewriter), rewriter.producer(raised, Add)
    if found is None or total is None:
        return None
    if not any(a == rest and _element(b, rewriter) == found[1] for a, b in (total[1], total[1][::-1])):
        return None
    both = rewriter.producer(is_negative, And)
    conditions = (is_negative,) if both is None else both[1]
    below = [value for value in conditions if _is_below_zero(value, rest, rewriter)]
    others = [value for value in conditions if value not in below]
    return found if below and all(_compared(v, "NE", rewriter) == (rest, 0) for v in others) else None


def _is_below_zero(value: Value, x: Value, rewriter: Rewriter) -> bool:
    """Return whether a boolean is ``x < 0``, or ``(x < 0) != false``."""
    compared, constant = _compared(value, "NE", rewriter)
    if compared is not None and compared.type.is_bool and constant == 0:
        return _is_below_zero(compared, x, rewriter)
    return _compared(value, "LT", rewriter) == (x, 0)


def _by_constant(value: Value, op: type[Op], rewriter: Rewriter) -> Divided | None:
    made = rewriter.producer(value, op)
    if made is None or not value.type.is_integer:
        return None
    element = _element(made[1][1], rewriter)
    return None if element is None or element <= 0 else (made[1][0], element)


def _compared(value: Value, direction: str, rewriter: Rewriter) -> tuple[Value | None, int | None]:
    """Return what is compared in that way with which constant; None where nothing is."""
    made = rewriter.producer(value, Compare)
    if made is None or made[0].direction != direction:
        return None, None
    return made[1][0], _element(made[1][1], rewriter)


_DEEP = 8


def _element(value: Value, rewriter: Rewriter, depth: int = _DEEP) -> int | None:
    """Return the integer, or boolean as 0 or 1, that a value is everywhere, where constants say so.

    A divisor is a constant that is converted, compared with zero and asked for its sign, in JAX's own functions.
    """
    if not (value.type.is_integer or value.type.is_bool):
        return None
    constant, made = rewriter.constant(value), rewriter.maker(value)
    if constant is not None:
        return int(constant.value.flat[0]) if constant.is_splat and constant.value.size else None
    if made is None or not depth:
        return None
    op, operands = made.op, made.operands
    if not isinstance(op, BroadcastInDim | Reshape | Convert | Sign | Select | Compare):
        return None
    found = [_element(operand, rewriter, depth - 1) for operand in operands]
    if isinstance(op, Select) and found[0] is not None:
        return found[1] if found[0] else found[2]
    known = [number for number in found if number is not None]
    if len(known) != len(found):
        return None
    if isinstance(op, Compare):
        return int(_HOLDS[op.direction](*known))
    if isinstance(op, Sign):
        return (known[0] > 0) - (known[0] < 0)
    if isinstance(op, Convert):
        return known[0] if np.array(known[0]).astype(value.type.np_dtype) == known[0] else None
    return known[0]
