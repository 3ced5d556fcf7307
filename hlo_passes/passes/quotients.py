"""Quotients by powers of two as products with their inverses: attention's ``scores / jnp.sqrt(64)`` for instance.

Both round the same number, so that no bit changes, and machines multiply several times as fast as they divide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_passes._jax_compat import finfo
from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import BroadcastInDim, Constant, Divide, Multiply, Reshape, Sqrt
from hlo_passes.ops.elementwise import Convert
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.rewriter import Rewriter

_DEEP = 8
"""Operations behind each other that are asked what a divisor is."""


@dataclass(frozen=True)
class Quotients(LocalPass):
    """Multiply floats with the inverse of what they are divided by where that is a power of two."""

    name: ClassVar[str] = "quotients"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with products; itself when it divides by no power of two."""
        return Rewriter(computation, {Divide: (_multiplied,)}).run()


def _multiplied(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    x, divisor = instruction.operands
    if not x.type.is_float:
        return None
    number = _number(divisor, rewriter)
    if number is None:
        return None
    fraction, exponent = math.frexp(number)  # of the inverse: the same, and 2 - exponent
    limits = finfo(x.type.np_dtype)
    if abs(fraction) != 0.5 or not limits.minexp < 2 - exponent < limits.maxexp:
        return None
    return rewriter.emit(Multiply(), x, rewriter.emit(Constant.splat(1 / number, x.type)))


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
