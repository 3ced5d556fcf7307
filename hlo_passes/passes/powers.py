"""Powers by constants that need no library: squares, cubes, reciprocals, roots, and what is made of these.

``x ** 0.5``, ``(v + eps) ** -0.5``, ``r2 ** -1.5`` and ``x ** 3.0`` reach the machine as powers of floats, a routine of 312
instructions an element. A square root takes 5, a product 2.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Compare,
    Constant,
    Convert,
    Reduce,
    Reshape,
    Select,
    Slice,
    Transpose,
    simple_combiner,
)
from hlo_passes.ops.elementwise import (
    Abs,
    Add,
    Divide,
    Exponential,
    Logistic,
    Maximum,
    Multiply,
    Power,
    Rsqrt,
    Sqrt,
    Subtract,
)
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.rewriter import Rewriter

_TYPES = ("f16", "bf16", "f32", "f64")
_SAME = (BroadcastInDim, Convert, Reshape)
_POSITIVE = (Abs, Exponential, Logistic)
_KEEPING = (*_SAME, Add, Divide, Multiply, Reduce, Slice, Sqrt, Transpose)
"""What is not negative where no operand is."""
_DEPTH = 8
"""How many operations deep is looked for what a value is."""


@dataclass(frozen=True)
class Powers(LocalPass):
    """Write a power by a constant multiple of a half, up to ``largest``, as products, quotients and roots.

    Results are those of ``pow`` for zeros of either sign, infinities and NaN, too. Where more than one operation rounds,
    floats of 16 bits are computed in 32.
    """

    name: ClassVar[str] = "powers"
    largest: int = 4

    def change(self, computation: Computation) -> Computation:
        """Return the computation with such powers written out; itself when there are none."""
        return Rewriter(computation, {Power: (self._write_out,)}).run()

    def _write_out(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        base, exponent = instruction.operands
        type_, number = instruction.result.type, _number(exponent, rewriter)
        if type_.dtype not in _TYPES or number is None or abs(number) > self.largest:
            return None
        halves = int(2 * number)
        if halves != 2 * number:
            return None
        if halves == 0:
            return rewriter.emit(Constant.splat(1.0, type_))
        if base.type.shape != type_.shape:
            base = rewriter.emit(BroadcastInDim(type_.shape, ()), base)
        if type_.dtype in ("f16", "bf16") and halves not in (-2, -1, 1, 2, 4):
            wide = rewriter.emit(Convert("f32"), base)
            return rewriter.emit(Convert(type_.dtype), _power(wide, halves, rewriter))
        return _power(base, halves, rewriter)


def _number(value: Value, rewriter: Rewriter, depth: int = _DEPTH) -> float | None:
    """Return the finite number that a value is everywhere, or None; a derivative's exponent is one less than a constant."""
    made = rewriter.maker(value)
    if made is None or depth == 0 or not value.type.is_float:
        return None
    if isinstance(made.op, Constant):
        number = float(made.op.value) if made.op.is_splat else math.nan
    elif isinstance(made.op, _SAME):
        number = _number(made.operands[0], rewriter, depth - 1)
    elif isinstance(made.op, (Add, Subtract)):
        lhs, rhs = (_number(operand, rewriter, depth - 1) for operand in made.operands)
        if lhs is None or rhs is None:
            return None
        number = lhs + rhs if isinstance(made.op, Add) else lhs - rhs
    else:
        return None
    if number is None or not math.isfinite(number):
        return None
    with np.errstate(over="ignore"):
        return float(np.asarray(number).astype(value.type.np_dtype))


def _power(x: Value, halves: int, rewriter: Rewriter) -> Value:
    """Return ``x ** (halves / 2)``; ``halves`` is not 0."""
    type_, emit = x.type, rewriter.emit
    if halves % 2 == 0:
        if halves < 0:
            x = emit(Divide(), emit(Constant.splat(1.0, type_)), x)
        return _product(x, abs(halves) // 2, rewriter)
    whole = abs(halves) // 2
    if halves > 0:
        root = emit(Sqrt(), x)
        result = emit(Multiply(), _product(x, whole, rewriter), root) if whole else root
    else:  # no product of x, which can be too large where its reciprocal is not too small
        result = functools.reduce(lambda y, _: emit(Divide(), y, x), range(whole), emit(Rsqrt(), x))
    if _is_not_negative(x, rewriter):
        return result
    least = emit(Constant.splat(-math.inf, type_))
    there = emit(Constant.splat(math.inf if halves > 0 else 0.0, type_))
    is_least = emit(Compare("EQ", "FLOAT"), x, least)
    return emit(Select(), is_least, there, emit(Abs(), result))


def _product(x: Value, count: int, rewriter: Rewriter) -> Value:
    """Return the product of ``count`` times x."""
    if count == 1:
        return x
    half = _product(x, count // 2, rewriter)
    square = rewriter.emit(Multiply(), half, half)
    return rewriter.emit(Multiply(), square, x) if count % 2 else square


def _is_not_negative(value: Value, rewriter: Rewriter, depth: int = _DEPTH) -> bool:
    """Whether what makes a value shows that none of its elements is below zero, or a zero with a sign."""
    made = rewriter.maker(value)
    if made is None or depth == 0 or not value.type.is_float:
        return False

    def holds(operand: Value) -> bool:
        return _is_not_negative(operand, rewriter, depth - 1)

    op = made.op
    if isinstance(op, Constant):
        return op.is_splat and math.copysign(1.0, float(op.value)) > 0
    if isinstance(op, Multiply) and made.operands[0] == made.operands[1]:
        return True
    if isinstance(op, Maximum):
        return any(_is_positive(operand, rewriter) for operand in made.operands)
    if isinstance(op, Reduce) and simple_combiner(made.regions[0]) not in ("add", "max"):
        return False
    return isinstance(op, _POSITIVE) or (isinstance(op, _KEEPING) and all(map(holds, made.operands)))


def _is_positive(value: Value, rewriter: Rewriter) -> bool:
    number = _number(value, rewriter)
    return number is not None and number > 0
