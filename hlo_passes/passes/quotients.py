"""Quotients by constants as products with their inverses: attention's ``scores / jnp.sqrt(64)`` for instance.

By powers of two both round the same number, so that no bit changes, and machines multiply several times as fast as they divide.
By other constants of 16 bits and more the product is what XLA's algebraic simplifier makes of it, too (XLA:CPU multiplies
bfloat16 in float32), so that no bit differs from what ``jax.jit`` computes; the inverse must be a normal number here. The
gradient of a maximum divides by one or two, which a choice says. What a quotient by a power of two leaves is a product's
difference then: ``x % 1.0``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_passes._jax_compat import finfo
from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import (
    Abs,
    BroadcastInDim,
    Constant,
    Convert,
    Divide,
    Floor,
    Multiply,
    Remainder,
    Reshape,
    Select,
    Sign,
    Sqrt,
    Subtract,
)
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.rewriter import Rewriter

_DEEP = 8
"""Operations behind each other that are asked what a divisor is."""
ROUNDED = {"f16": "f16", "f32": "f32", "f64": "f64", "bf16": "f32"}
"""By type of quotients, that in which XLA multiplies with a constant's inverse as it was rounded."""
LARGEST = 2.0**12
"""Divisor up to which a remainder is a difference in every float of 16 and 32 bits."""


@dataclass(frozen=True)
class Quotients(LocalPass):
    """Multiply floats with the inverse of what they are divided by where that is constant, or one of two powers of two."""

    name: ClassVar[str] = "quotients"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with products; itself when it divides by nothing constant."""
        return Rewriter(computation, {Divide: (_multiplied,), Remainder: (_left,)}).run()


def _multiplied(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    x, divisor = instruction.operands
    if not x.type.is_float:
        return None
    inverse = _inverse_of(divisor, rewriter)
    if inverse is not None:
        return rewriter.emit(Multiply(), x, inverse)
    if x.type.dtype not in ROUNDED:
        return None
    wide = ROUNDED[x.type.dtype]
    inverse = _rounded_inverse(divisor, wide, rewriter)
    if inverse is None or wide == x.type.dtype:
        return None if inverse is None else rewriter.emit(Multiply(), x, inverse)
    product = rewriter.emit(Multiply(), rewriter.emit(Convert(wide), x), inverse)
    return rewriter.emit(Convert(x.type.dtype), product)


def _rounded_inverse(divisor: Value, dtype: str, rewriter: Rewriter) -> Value | None:
    """Return the inverses of constants, rounded to a type as XLA does, if all are normal numbers."""
    made, type_ = rewriter.maker(divisor), dataclasses.replace(divisor.type, dtype=dtype)
    if made is not None and isinstance(made.op, BroadcastInDim):
        inner = _rounded_inverse(made.operands[0], dtype, rewriter)
        return None if inner is None else rewriter.emit(made.op, inner)
    value = _rounded(divisor, rewriter)
    if value is None:
        return None
    with np.errstate(all="ignore"):
        inverses = np.ones((), type_.np_dtype) / value.astype(type_.np_dtype)
    sizes, limits = np.abs(inverses), finfo(type_.np_dtype)
    is_normal = (sizes >= limits.tiny) & (sizes <= limits.max)
    return rewriter.emit(Constant(inverses, type_)) if is_normal.all() else None


def _rounded(value: Value, rewriter: Rewriter, depth: int = _DEEP) -> np.ndarray | None:
    """Return what a constant, and conversions and roots of one, are as they are rounded; None of what is none."""
    if (constant := rewriter.constant(value)) is not None:
        return constant.value
    made = rewriter.maker(value)
    if made is None or not depth or not isinstance(made.op, (BroadcastInDim, Reshape, Convert, Sqrt)):
        return None
    found = _rounded(made.operands[0], rewriter, depth - 1)
    if found is None:
        return None
    with np.errstate(all="ignore"):
        if isinstance(made.op, Sqrt):
            return np.sqrt(found)
        if isinstance(made.op, Convert):
            return found.astype(value.type.np_dtype)
    return found if found.ndim == 0 else None


def _inverse_of(divisor: Value, rewriter: Rewriter) -> Value | None:
    """Return a value that is the inverse of powers of two."""
    chosen = rewriter.producer(divisor, Select)
    if chosen is not None:
        predicate, *values = chosen[1]
        numbers = [_inverse(_number(value, rewriter), value) for value in values]
        if None in numbers:
            return None
        splats = (Constant.splat(x, divisor.type) for x in numbers if x is not None)
        return rewriter.emit(Select(), predicate, *map(rewriter.emit, splats))
    number = _inverse(_number(divisor, rewriter), divisor)
    return None if number is None else rewriter.emit(Constant.splat(number, divisor.type))


def _inverse(number: float | None, value: Value) -> float | None:
    """Return the inverse of a power of two that a value is, if its type has both as normal numbers; else None."""
    if number is None:
        return None
    fraction, exponent = math.frexp(number)  # of the inverse: the same, and 2 - exponent
    limits = finfo(value.type.np_dtype)
    return 1 / number if abs(fraction) == 0.5 and limits.minexp < 2 - exponent < limits.maxexp else None


def _left(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Return what a division of floats by a power of two of at least one leaves: no step of it rounds what is not below it.

    The quotient of a size, its floor, and that many divisors have no more digits than the size, and what is left is a multiple of
    its last one. What is so small that its quotient is rounded has the floor zero. Zeros keep their sign.
    """
    x, divisor = instruction.operands
    is_wide = x.type.is_float and x.type.bits >= 16  # floats of 8 bits may have no zero
    number = _number(divisor, rewriter) if is_wide else None
    inverse = _inverse(number, x)
    if number is None or inverse is None or not 1 <= number <= LARGEST:
        return None
    size = rewriter.emit(Abs(), x)
    times = rewriter.emit(
        Floor(), rewriter.emit(Multiply(), size, rewriter.emit(Constant.splat(inverse, x.type)))
    )
    whole = rewriter.emit(Multiply(), times, rewriter.emit(Constant.splat(number, x.type)))
    rest = rewriter.emit(Subtract(), size, whole)
    return rewriter.emit(Multiply(), rewriter.emit(Sign(), x), rest)


def _number(value: Value, rewriter: Rewriter, depth: int = _DEEP) -> float | None:
    """Return the number that a float is everywhere, as far as no rounding is in it; None where that is not known."""
    made = rewriter.maker(value)
    if (constant := rewriter.constant(value)) is not None:
        return float(constant.value.flat[0]) if constant.is_splat and constant.value.size else None
    if made is None or not depth or not isinstance(made.op, (BroadcastInDim, Reshape, Convert, Sqrt)):
        return None
    (inner,) = made.operands
    if not (inner.type.is_float or inner.type.is_integer):
        return None
    found = _number(inner, rewriter, depth - 1)
    if found is None or not math.isfinite(found):
        return None
    if isinstance(made.op, Sqrt):
        root = math.sqrt(found) if found > 0 else math.nan
        return root if root * root == found else None
    if isinstance(made.op, Convert):
        return found if float(np.asarray(found).astype(value.type.np_dtype)) == found else None
    return found
