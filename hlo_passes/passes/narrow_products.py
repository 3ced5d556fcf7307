"""Products of operands that are widened first, as products of what they are widened from.

``x.astype(float32) @ w.astype(float32)`` of halves, or ``x.astype(int32) @ w.astype(int32)`` of bytes: a product of two numbers of 16
bits is a float32 to the bit, and one of two bytes an integer modulo any power of two, so that the same is added up. An IPU's multiply
units take halves four times as fast as float32, bytes as halves, and wider integers not at all. Vertices that do without the units
may round products of halves: what they would take stays as it is.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from hlo_passes.ir import SMALL_FLOATS, Computation, Instruction, Op, Value
from hlo_passes.ops import BroadcastInDim, Convolution, DotGeneral, Reshape, Reverse, Slice, Transpose
from hlo_passes.ops.elementwise import Convert
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.rewriter import Rewriter

_MOVEMENT = (BroadcastInDim, Reshape, Reverse, Slice, Transpose)
_DEEP = 8
"""Movements between a conversion and a product that are looked through."""
_BYTES = frozenset({"i1", "i8", "ui8"})
_UNSIGNED = frozenset({"ui8", "ui16", "ui32"})
_HALVES = frozenset({"f16", *SMALL_FLOATS}) - {"f8E8M0FNU"} | _BYTES
"""Types whose finite numbers are all halves."""
_EXACT = frozenset({"f16", "bf16", *SMALL_FLOATS})
"""Floats of which a product of two is a float32 to the bit."""


@dataclass(frozen=True)
class NarrowProducts(LocalPass):
    """Multiply what operands are widened from where the result is exact in the wide type as well."""

    name: ClassVar[str] = "narrow-products"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with products of narrow operands; itself when no product's operands are widened."""
        return Rewriter(computation, {DotGeneral: (_narrowed,), Convolution: (_narrowed,)}).run()


class _Source(NamedTuple):
    """What a value is widened from, and the movements after that, the last one first."""

    value: Value
    movements: tuple[Op, ...]


def _narrowed(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    op = instruction.op
    assert isinstance(op, (DotGeneral, Convolution))
    if isinstance(op, DotGeneral) and op.algorithm is not None:
        return None
    if any(x.type.dtype != op.dtype for x in instruction.operands):
        return None
    sources = [_source(x, rewriter) for x in instruction.operands]
    lhs, rhs = sources
    if lhs is None or rhs is None:
        return None
    dtype = _common(lhs.value.type.dtype, rhs.value.type.dtype, op.dtype)
    if dtype is None:
        return None
    if isinstance(op, Convolution) and (dtype in _UNSIGNED) != (op.dtype in _UNSIGNED):
        return None  # XLA has none whose sums have a sign where operands have none, or the other way round
    if dtype == "f16" and _may_round(op, *instruction.operands):
        return None
    if dtype == "bf16" and not all(rewriter.has_one_use(x) for x in instruction.operands):
        return None  # the units take it as float32, which is there anyway
    return rewriter.emit(dataclasses.replace(op), *(_moved(each, dtype, rewriter) for each in (lhs, rhs)))


def _may_round(op: DotGeneral | Convolution, lhs: Value, rhs: Value) -> bool:
    """Return whether products of halves may go to vertices that round each: of one channel, and of vectors side by side."""
    if isinstance(op, Convolution):
        return rhs.type.shape[op.dimension_numbers.kernel_input_feature] < 2
    n = op.dimension_numbers
    batch, added, left, right = (
        math.prod(x.type.shape[d] for d in dims)
        for x, dims in (
            (lhs, n.lhs_batching),
            (lhs, n.lhs_contracting),
            (lhs, n.lhs_free(lhs.type.rank)),
            (rhs, n.rhs_free(rhs.type.rank)),
        )
    )
    return added < 2 or (batch > 1 and min(left, right) < 2)


def _source(value: Value, rewriter: Rewriter) -> _Source | None:
    """Return what a value is widened from; None where it is not."""
    movements: list[Op] = []
    while len(movements) <= _DEEP and (made := rewriter.maker(value)) is not None:
        if isinstance(made.op, Convert):
            return _Source(made.operands[0], tuple(movements))
        if not isinstance(made.op, _MOVEMENT):
            return None
        movements.append(made.op)
        (value,) = made.operands
    return None


def _common(lhs: str, rhs: str, wide: str) -> str | None:
    """Return the type in which both operands multiply to the same as in the wide one; None if there is none that is narrower."""
    if wide in ("i16", "i32", "ui16", "ui32") and {lhs, rhs} <= _BYTES:
        numbers = {lhs, rhs} - {"i1"} or {"ui8" if wide in _UNSIGNED else "i8"}
        return numbers.pop() if len(numbers) == 1 else None
    if wide != "f32":
        return None
    if lhs == rhs and lhs in _EXACT:
        return lhs
    return "f16" if {lhs, rhs} <= _HALVES else None


def _moved(source: _Source, dtype: str, rewriter: Rewriter) -> Value:
    """Return what a value is widened from, as ``dtype``, moved as the value is."""
    found = source.value if source.value.type.dtype == dtype else rewriter.emit(Convert(dtype), source.value)
    for op in reversed(source.movements):
        found = rewriter.emit(op, found)
    return found
