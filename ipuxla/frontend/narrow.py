"""Integers of 2 and 4 bits, held in 8, and floats of 4 and 6, held in f16: brought back after what may leave them.

No machine has them. A program's arguments and results keep their type (``Module.declared``); inside, every value
is the wider one of the same number, so that movement, comparisons and conversions need no care.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hlo_passes import ops
from hlo_passes.ir import DTYPES, Builder, Op, TensorType, Value


class Narrow(NamedTuple):
    """The type that holds a narrow one, and how many of its bits count."""

    holder: str
    bits: int


NARROW = {
    "i2": Narrow("i8", 2),
    "i4": Narrow("i8", 4),
    "ui2": Narrow("ui8", 2),
    "ui4": Narrow("ui8", 4),
    "f4E2M1FN": Narrow("f16", 4),
    "f6E2M3FN": Narrow("f16", 6),
    "f6E3M2FN": Narrow("f16", 6),
}


class Format(NamedTuple):
    """A narrow float without infinities and NaN: bias of its exponent, bits of its fraction, greatest number."""

    bias: int
    fraction: int
    greatest: float


FORMATS = {"f4E2M1FN": Format(1, 1, 6.0), "f6E2M3FN": Format(1, 3, 7.5), "f6E3M2FN": Format(3, 2, 28.0)}
"""Source: Open Compute Project, Microscaling Formats (MX) Specification 1.0."""

_ELEMENT = re.compile(r"tensor<(?:\d+x)*(u?i[24]|f4E2M1FN|f6E2M3FN|f6E3M2FN)>")
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|[-+0-9.eE]+")

LEAVES_RANGE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *(
            "abs",
            "add",
            "convert",
            "convolution",
            "divide",
            "dot_general",
            "iota",
            "multiply",
            "negate",
            "not",
        ),
        *("power", "shift_left", "subtract", "count_leading_zeros", "popcnt", "shift_right_logical"),
        "rng_bit_generator",
    )
)
"""Operations whose result, computed in 8 bits, may need wrapping."""

READS_BITS = frozenset(
    f"stablehlo.{name}" for name in ("count_leading_zeros", "popcnt", "shift_right_logical")
)
"""Operations that must not see the copies of a sign in the upper bits."""

Emit = Callable[..., Value]
"""``emit(op, *values)`` appends an operation and returns its result."""


def narrow_element(type_: str) -> str | None:
    """Return the narrow element type of an MLIR type's text, or None."""
    found = _ELEMENT.fullmatch(type_)
    return found[1] if found else None


def stored_type(type_: str) -> TensorType:
    """Return the type that holds a narrow one's elements."""
    element = narrow_element(type_)
    assert element is not None
    return TensorType.parse(f"{type_[: -len(element) - 1]}{NARROW[element].holder}>")


def wrapped(element: str, value: Value, emit: Emit) -> Value:
    """Return a value modulo 2^n in the range of a narrow type."""
    holder, bits = NARROW[element]
    if holder.startswith("u"):
        return masked(element, value, emit)
    count = _splat(8 - bits, value, emit)
    return emit(ops.ShiftRightArithmetic(), emit(ops.ShiftLeft(), value, count), count)


def masked(element: str, value: Value, emit: Emit) -> Value:
    """Return a value with only the bits of a narrow type."""
    return emit(ops.And(), value, _splat((1 << NARROW[element].bits) - 1, value, emit))


def repacked(source: str, target: str, value: Value, emit: Emit) -> Value:
    """Return the bits of elements read as another type, one of them narrower than a byte.

    Narrower elements get a last dimension of their own, the least significant bits first; wider ones take up the
    last dimension. A boolean is one bit.

    Args:
      source: element type that the program names for the operand.
      target: the one it names for the result.
      value: what holds the operand.
      emit: where operations go.
    """
    have, want = width(source), width(target)
    bits = _bits(source, value, f"ui{max(have, want, 8)}", emit)
    if want < have:
        shape = (*value.type.shape, have // want)
        spread = emit(ops.BroadcastInDim(shape, tuple(range(value.type.rank))), bits)
        bits = emit(ops.ShiftRightLogical(), spread, _offsets(spread, want, emit))
    elif want > have:
        moved = emit(ops.ShiftLeft(), bits, _offsets(bits, have, emit))
        bits = _joined(moved, emit)
    if want < 8:
        bits = emit(ops.And(), bits, _splat((1 << want) - 1, bits, emit))
    return _read(target, bits, emit)


def width(element: str) -> int:
    """Return the bits of an element type, narrow ones included."""
    return NARROW[element].bits if element in NARROW else DTYPES[element].bits


def _bits(element: str, value: Value, words: str, emit: Emit) -> Value:
    """Return elements' bits as unsigned words at least as wide, zeros above."""
    if element in FORMATS:
        value = _encoded(element, value, emit)
    elif element in NARROW:
        value = masked(element, value, emit)
    if not value.type.is_bool:
        value = emit(ops.BitcastConvert(f"ui{value.type.bits}"), value)
    return emit(ops.Convert(words), value)


def _read(element: str, bits: Value, emit: Emit) -> Value:
    """Return what holds the elements whose bits are the lower ones of unsigned words."""
    if element == "i1":
        return emit(ops.Convert("i1"), bits)
    if element not in NARROW:
        return emit(ops.BitcastConvert(element), bits)
    if element in FORMATS:
        return _decoded(element, emit(ops.Convert("ui8"), bits), emit)
    holder = emit(ops.BitcastConvert(NARROW[element].holder), emit(ops.Convert("ui8"), bits))
    return wrapped(element, holder, emit)


def _offsets(like: Value, bits: int, emit: Emit) -> Value:
    """Return ``bits`` times the index along the last dimension."""
    counts = emit(ops.Iota(like.type, like.type.rank - 1))
    return emit(ops.Multiply(), counts, _splat(bits, like, emit))


def _joined(words: Value, emit: Emit) -> Value:
    """Return the "or" of words along the last dimension."""
    scalar = words.type.with_shape(())
    body = Builder("or")
    region = body.build(body.add(ops.Or(), body.parameter(scalar), body.parameter(scalar)))
    zero = emit(ops.Constant.splat(0, scalar))
    return emit(ops.Reduce((words.type.rank - 1,)), words, zero, regions=[region])


def saturated(element: str, value: Value, emit: Emit) -> Value:
    """Return a value limited to the range of a narrow type."""
    holder, bits = NARROW[element]
    low = 0 if holder.startswith("u") else -(1 << (bits - 1))
    bounds = (_splat(bound, value, emit) for bound in (low, low + (1 << bits) - 1))
    return emit(ops.Clamp(), next(bounds), value, next(bounds))


def rounded(element: str, value: Value, emit: Emit) -> Value:
    """Return a value rounded to the nearest number of a narrow float, ties to even.

    Greater ones become the greatest, NaN becomes -0, as in XLA and in ml_dtypes.
    """
    format_ = FORMATS[element]
    wide = emit(ops.Convert("f32"), value)
    size = emit(ops.Minimum(), emit(ops.Abs(), wide), _splat(format_.greatest, wide, emit))
    least = emit(ops.Maximum(), size, _splat(2.0 ** (1 - format_.bias), wide, emit))
    bits = emit(ops.BitcastConvert("ui32"), least)
    power = emit(ops.BitcastConvert("f32"), emit(ops.And(), bits, _splat(0x7F800000, bits, emit)))
    step = emit(ops.Multiply(), power, _splat(2.0**-format_.fraction, wide, emit))
    nearest = emit(ops.Multiply(), emit(ops.RoundNearestEven(), emit(ops.Divide(), size, step)), step)
    is_number = emit(ops.Compare("EQ"), wide, wide)
    zero, minus = _splat(0, wide, emit), _splat(0x80000000, bits, emit)
    sign = emit(ops.And(), emit(ops.BitcastConvert("ui32"), wide), minus)
    sign = emit(ops.Select(), is_number, sign, minus)
    magnitude = emit(ops.BitcastConvert("ui32"), emit(ops.Select(), is_number, nearest, zero))
    return emit(ops.Convert("f16"), emit(ops.BitcastConvert("f32"), emit(ops.Or(), magnitude, sign)))


def _encoded(element: str, value: Value, emit: Emit) -> Value:
    """Return the bits of a narrow float as ui8: scaled, its fields lie in the middle of a half's."""
    format_, size = FORMATS[element], NARROW[element].bits
    scaled = emit(ops.Multiply(), value, _splat(2.0 ** (format_.bias - 15), value, emit))
    bits = emit(ops.BitcastConvert("ui16"), scaled)
    sign = emit(ops.ShiftRightLogical(), bits, _splat(15, bits, emit))
    sign = emit(ops.ShiftLeft(), sign, _splat(size - 1, bits, emit))
    fields = emit(ops.And(), bits, _splat(0x7FFF, bits, emit))
    fields = emit(ops.ShiftRightLogical(), fields, _splat(10 - format_.fraction, bits, emit))
    return emit(ops.Convert("ui8"), emit(ops.Or(), sign, fields))


def _decoded(element: str, bits: Value, emit: Emit) -> Value:
    """Return what holds the narrow float of some bits (ui8)."""
    format_, size = FORMATS[element], NARROW[element].bits
    words = emit(ops.Convert("ui16"), bits)
    sign = emit(ops.ShiftRightLogical(), words, _splat(size - 1, words, emit))
    sign = emit(ops.ShiftLeft(), sign, _splat(15, words, emit))
    fields = emit(ops.And(), words, _splat((1 << (size - 1)) - 1, words, emit))
    fields = emit(ops.ShiftLeft(), fields, _splat(10 - format_.fraction, words, emit))
    scaled = emit(ops.BitcastConvert("f16"), emit(ops.Or(), sign, fields))
    return emit(ops.Multiply(), scaled, _splat(2.0 ** (15 - format_.bias), scaled, emit))


def settled(op: Op, element: str, value: Value, of_float: bool, emit: Emit) -> Value:
    """Return what stands for an operation's result of a narrow type: in range, of its bits alone.

    Args:
      op: the operation, which computed in what holds the type.
      element: the narrow type.
      value: its result.
      of_float: whether its operand is a float, whose conversion saturates.
      emit: where operations go.
    """
    if element in FORMATS:
        keeps = isinstance(op, (ops.Select, ops.Clamp, ops.DataMovement)) and not isinstance(op, ops.Iota)
        return value if keeps else rounded(element, value, emit)
    if of_float and isinstance(op, ops.Convert):
        return saturated(element, value, emit)
    if isinstance(op, ops.CountLeadingZeros):
        value = emit(ops.Subtract(), value, _splat(8 - NARROW[element].bits, value, emit))
    return wrapped(element, value, emit) if op.name in LEAVES_RANGE else value


def elements(text: str, type_: TensorType, element: str) -> np.ndarray:
    """Read ``dense<[1, -2]> : ...`` or ``dense<"0x...">``, MLIR's text of narrow numbers, one byte each."""
    content = text[text.index("<") + 1 : text.rindex(">", 0, text.rindex(": tensor"))]
    if content.startswith('"'):
        array = _of_bits(np.frombuffer(bytes.fromhex(content.strip('"')[2:]), np.uint8), element, type_)
    else:
        found = [_number(number, element, type_) for number in _NUMBER.findall(content)]
        array = np.array(found, type_.np_dtype)
    if not type_.size:  # MLIR writes one element for any number of equal ones, none included
        return array[:0].reshape(type_.shape)
    return array[0] if array.size == 1 else array.reshape(type_.shape)


def _number(text: str, element: str, type_: TensorType) -> float | np.generic:
    if text.startswith("0x"):
        return _of_bits(np.array([int(text, 16)], np.uint8), element, type_)[0]
    return float(text) if element in FORMATS else int(text)


def _of_bits(array: np.ndarray, element: str, type_: TensorType) -> np.ndarray:
    """Return the numbers that bytes stand for, of which only the lower bits are given."""
    if element not in FORMATS:
        above = 8 - NARROW[element].bits
        return (array << above).view(type_.np_dtype) >> above  # copies of the sign where there is one
    form = FORMATS[element]
    magnitude = (array & ((1 << (NARROW[element].bits - 1)) - 1)).astype(np.uint16) << (10 - form.fraction)
    numbers = magnitude.view(np.float16).astype(np.float32) * 2.0 ** (15 - form.bias)
    return np.copysign(numbers, np.where(array >> (NARROW[element].bits - 1), -1, 1)).astype(type_.np_dtype)


def _splat(number: float, like: Value, emit: Emit) -> Value:
    return emit(ops.Constant.splat(number, like.type))
