"""Instructions for functions of f32 and f16: vector forms where the machine has them, else lane by lane.

Rules take the walker's context (``select``), the equation's parameters and its operands, and return a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tiles._jax_compat import Datum, Jaxpr, Params
from tiles.elements.emitter import Emitter
from tiles.elements.tilecode import AZERO, AZEROS, Register
from tiles.elements.values import Forms, Pieces, Value, piece_width
from tiles.errors import NoTileCode

_BROADCAST = {"add", "sub", "mul", "cmpeq", "cmpne", "cmplt", "cmple", "cmpgt", "cmpge"}
_COMMUTES = {"add", "mul", "cmpeq", "cmpne"}
_MIRROR = {"cmplt": "cmpgt", "cmpgt": "cmplt", "cmple": "cmpge", "cmpge": "cmple"}
ROUNDING = {"nearest": 0, "up": 1, "down": 2, "zero": 3}
"""Codes of ``f32int``: 3 is seen in public source; the others are assumed."""


class Context(Protocol):
    """What rules need of the walker."""

    emitter: Emitter
    forms: Forms

    def level(self, *values: Value) -> int:
        """Return the level at which a function of the values is computed."""
        ...

    def constant(self, number: float | int | bool, dtype: str) -> Value:
        """Return a literal."""
        ...

    def run(self, jaxpr: Jaxpr, consts: list[Datum], operands: list[Value]) -> list[Value]:
        """Return the values of a jaxpr's results."""
        ...


def float_form(dtype: str) -> str:
    """Return the form of a float dtype.

    Raises:
      NoTileCode: it has none.
    """
    forms = {"float32": "f32", "float16": "f16"}
    if dtype not in forms:
        raise NoTileCode(f"no float instructions for {dtype}", expected="float32, float16")
    return forms[dtype]


def mnemonic(form: str, width: int, name: str) -> str:
    """Return an instruction's name for pieces of a form, as ``f16v4add``."""
    lanes = {("f32", 1): "f32", ("f32", 2): "f32v2", ("f16", 1): "f16v2", ("f16", 2): "f16v4"}
    return lanes[form, width] + name


def binary(
    ctx: Context, name: str, a: Value, b: Value, form: str | None = None, to: str | None = None
) -> Value:
    """Return a vector instruction of two values; a value of a lower level is broadcast by the instruction if it can.

    Args:
      ctx: the walker.
      name: the instruction's name without its lanes, as "add".
      a: the first operand.
      b: the second.
      form: of the operands; by default that of their dtype.
      to: form of the result where another, as of comparisons.
    """
    form = form or float_form(a.dtype)
    level = ctx.level(a, b)
    lanes = max(a.lanes, b.lanes)
    if a.lanes == lanes and b.lanes < lanes and name in _BROADCAST:
        a, b, name = _swapped(ctx, name, a, b)
    width = piece_width(form, lanes)
    by_broadcast = a.lanes < lanes and width == 2 and name in _BROADCAST and b.lanes == lanes
    left = ctx.forms.get(a, form) if by_broadcast else ctx.forms.spread(a, form, lanes)
    right = ctx.forms.spread(b, form, lanes)
    left = left * len(right) if by_broadcast else left
    modifier = ("B" if form == "f32" else "BL") if by_broadcast else ""
    operation = mnemonic(form, width, name)
    with ctx.emitter.at(level):
        pieces = tuple(
            ctx.emitter.op(operation, ("A", width), x, y, modifier=modifier)
            for x, y in zip(left, right, strict=True)
        )
    return Value("bool" if to else a.dtype, level, lanes, {to or form: pieces})


def _swapped(ctx: Context, name: str, a: Value, b: Value) -> tuple[Value, Value, str]:
    """Put the value that is broadcast first, which is where instructions take it."""
    if name in _COMMUTES:
        return b, a, name
    if name in _MIRROR:
        return b, a, _MIRROR[name]
    return negated(ctx, b), a, "add"  # x - c is x + (-c), to the bit


def negated(ctx: Context, x: Value) -> Value:
    """Return ``-x``: minus zero less x, which has the right sign for zeros too."""
    if x.constant is not None:
        return ctx.constant(-x.constant, x.dtype)
    return binary(ctx, "sub", ctx.constant(-0.0, x.dtype), x)


def absolute(ctx: Context, x: Value) -> Value:
    """Return ``|x|`` by the instruction that adds magnitudes."""
    return binary(ctx, "absadd", ctx.constant(0.0, x.dtype), x)


def lane_by_lane(ctx: Context, name: str, *values: Value) -> Value:
    """Return a function that exists for single f32 lanes; halves are widened first and narrowed after."""
    if values[0].dtype == "float16":
        wide = [convert_float(ctx, v, "float32") for v in values]
        return convert_float(ctx, lane_by_lane(ctx, name, *wide), "float16")
    level = ctx.level(*values)
    lanes = max(v.lanes for v in values)
    taken = [ctx.forms.get(v, "f32") for v in values]
    imms: tuple[int, ...] = ()
    if name.startswith("int:"):
        name, imms = "int", (ROUNDING[name[4:]],)
    pieces = ctx.forms.new("f32", lanes)
    with ctx.emitter.at(level):
        for at, piece in enumerate(pieces):
            for k in range(piece.width):
                ins = tuple(_lane(p, v.lanes == lanes, at, k) for p, v in zip(taken, values, strict=True))
                ctx.emitter.op(f"f32{name}", piece.part(k) if piece.width > 1 else piece, *ins, imms=imms)
    return Value(values[0].dtype, level, lanes, {"f32": pieces})


def _lane(pieces: Pieces, varies: bool, at: int, k: int) -> Register:
    piece = pieces[at] if varies else pieces[0]
    return piece.part(k) if varies and piece.width > 1 else piece


def halves(ctx: Context, name: str, x: Value) -> Value:
    """Return a function that exists for two halves at a time (``f16v2exp``) of a float16 value."""
    source = ctx.forms.get(x, "f16")
    pieces = ctx.forms.new("f16", x.lanes)
    with ctx.emitter.at(x.level):
        for a, out in zip(source, pieces, strict=True):
            for k in range(out.width):
                whole = out.width == 1
                ctx.emitter.op(f"f16v2{name}", out if whole else out.part(k), a if whole else a.part(k))
    return Value(x.dtype, x.level, x.lanes, {"f16": pieces})


def transcendental(f32_name: str, f16_name: str | None) -> Callable[..., Value]:
    """Return the rule of a function of one operand that has an instruction for f32 lanes, maybe for pairs of f16."""

    def rule(ctx: Context, params: Params, x: Value) -> Value:
        if x.dtype == "float16" and f16_name:
            return halves(ctx, f16_name, x)
        return lane_by_lane(ctx, f32_name, x)

    return rule


def convert_float(ctx: Context, x: Value, dtype: str) -> Value:
    """Return a conversion between f32 and f16, to nearest even."""
    if x.dtype == dtype:
        return x
    if x.constant is not None:
        return ctx.constant(x.constant, dtype)
    pieces = ctx.forms.get(x, float_form(x.dtype))
    with ctx.emitter.at(x.level):
        out = _widen(ctx, pieces, x.lanes) if dtype == "float32" else _narrow(ctx, pieces, x.lanes)
    return Value(dtype, x.level, x.lanes, {float_form(dtype): out})


def _widen(ctx: Context, pieces: Pieces, lanes: int) -> Pieces:
    if lanes == 1:
        return (ctx.emitter.op("f16tof32", ("A", 1), pieces[0]),)
    words = [p.part(k) if p.width > 1 else p for p in pieces for k in range(p.width)]
    return tuple(ctx.emitter.op("f16v2tof32", ("A", 2), word) for word in words)


def _narrow(ctx: Context, pieces: Pieces, lanes: int) -> Pieces:
    if lanes <= 2:
        name = "f32tof16" if lanes == 1 else "f32v2tof16"
        return (ctx.emitter.op(name, ("A", 1), pieces[0]),)
    out = ctx.forms.new("f16", lanes)
    for at, piece in enumerate(pieces):
        ctx.emitter.op("f32v2tof16", out[at // 2].part(at % 2), piece)
    return out


def logic(ctx: Context, name: str, form: str, a: Value, b: Value) -> Value:
    """Return a bitwise function of masks (``and``, ``or``, ``andc``) in a mask's form."""
    level = ctx.level(a, b)
    lanes = max(a.lanes, b.lanes)
    pairs = zip(ctx.forms.spread(a, form, lanes), ctx.forms.spread(b, form, lanes), strict=True)
    width = piece_width(form, lanes)
    with ctx.emitter.at(level):
        pieces = tuple(
            ctx.emitter.op(name + ("64" if width == 2 else ""), ("A", width), x, y) for x, y in pairs
        )
    return Value(a.dtype, level, lanes, {form: pieces})


def inverted(ctx: Context, form: str, x: Value) -> Value:
    """Return the bitwise inverse of masks in a mask's form."""
    width = piece_width(form, x.lanes)
    name = "not64" if width == 2 else "not"
    pieces = ctx.forms.get(x, form)
    with ctx.emitter.at(x.level):
        return Value(
            x.dtype, x.level, x.lanes, {form: tuple(ctx.emitter.op(name, ("A", width), p) for p in pieces)}
        )


def masked_select(ctx: Context, mask: Value, on_false: Value, on_true: Value) -> Value:
    """Return ``mask ? on_true : on_false`` by masks over the bits of floats."""
    form = float_form(on_true.dtype)
    as_mask = "mask32" if form == "f32" else "mask16"
    level = ctx.level(mask, on_false, on_true)
    lanes = max(mask.lanes, on_false.lanes, on_true.lanes)
    bits, no, yes = (
        ctx.forms.spread(v, f, lanes) for v, f in ((mask, as_mask), (on_false, form), (on_true, form))
    )
    width = piece_width(form, lanes)
    suffix = "64" if width == 2 else ""
    zero = AZEROS if width == 2 else AZERO
    with ctx.emitter.at(level):
        pieces = tuple(
            _select_piece(ctx.emitter, suffix, width, zero, *each) for each in zip(bits, no, yes, strict=True)
        )
    return Value(on_true.dtype, level, lanes, {form: pieces})


def _select_piece(
    e: Emitter, suffix: str, width: int, zero: Register, bits: Register, no: Register, yes: Register
) -> Register:
    out = ("A", width)
    if no == zero:
        return e.op("and" + suffix, out, yes, bits)
    if yes == zero:
        return e.op("andc" + suffix, out, no, bits)
    taken = e.op("and" + suffix, out, yes, bits)
    kept = e.op("andc" + suffix, out, no, bits)
    return e.op("or" + suffix, out, taken, kept)
