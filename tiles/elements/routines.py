"""Code for functions that the machine has no instruction for: traced expressions, and loops over registers."""

from __future__ import annotations

import functools

import jax

from tiles._jax_compat import ClosedJaxpr, make_jaxpr
from tiles.elements.emitter import Emitter
from tiles.elements.extents import const
from tiles.elements.floats import Context
from tiles.elements.functions import FUNCTIONS, HALVES
from tiles.elements.integers import is_signed, lanes, width_of, wrap
from tiles.elements.tilecode import MZERO, Register
from tiles.elements.values import Value

_WORD_BITS = 32


@functools.cache
def find(name: str, dtypes: tuple[str, ...]) -> ClosedJaxpr | None:
    """Return a function of f32 or f16 scalars as a jaxpr of functions with instructions; None if it is unknown."""
    are_halves = all(d == "float16" for d in dtypes)
    function = (HALVES.get(name) if are_halves else None) or FUNCTIONS.get(name)
    if function is None or any(d not in ("float32", "float16") for d in dtypes):
        return None

    def wide(*operands: jax.Array) -> jax.Array:
        return function(*(x.astype("float32") for x in operands)).astype(dtypes[0])

    return make_jaxpr(wide)(*(jax.ShapeDtypeStruct((), d) for d in dtypes))


def integer_division(ctx: Context, a: Value, b: Value, remainder: bool) -> Value:
    """Return a quotient or remainder as XLA defines them: toward zero; by zero all ones, and the dividend."""
    width_of(a.dtype)

    def lane(e: Emitter, x: Register, y: Register) -> Register:
        out = _signed(e, x, y, remainder) if is_signed(a.dtype) else _unsigned(e, x, y, remainder)
        return wrap(e, out, a.dtype)

    return lanes(ctx, a.dtype, "int", lane, a, b)


def _signed(e: Emitter, a: Register, b: Register, remainder: bool) -> Register:
    """Divide magnitudes; the quotient's sign is that of both operands', the remainder's the dividend's."""
    quotient, rest = divided(e, e.main("abs", a), e.main("abs", b))
    value = rest if remainder else quotient
    sign = a if remainder else e.main("xor", a, b)
    negative = e.main("cmpslt", sign, imms=(0,))
    out = e.move_conditionally("movnz", value, e.main("sub", MZERO, value), negative)
    if remainder:
        return out
    return e.move_conditionally("movz", out, e.main("xnor", MZERO, MZERO), b)


def _unsigned(e: Emitter, a: Register, b: Register, remainder: bool) -> Register:
    """Divide; a divisor of more than 31 bits, which the loop cannot take, goes 0 or 1 times."""
    quotient, rest = divided(e, a, b)
    is_large = e.main("cmpslt", b, imms=(0,))
    below = e.main("cmpult", a, b)
    if remainder:
        once = e.move_conditionally("movnz", e.main("sub", a, b), a, below)
        return e.move_conditionally("movnz", rest, once, is_large)
    return e.move_conditionally("movnz", quotient, e.main("cmpeq", below, imms=(0,)), is_large)


def divided(e: Emitter, a: Register, b: Register) -> tuple[Register, Register]:
    """Emit one step a bit; return quotient and rest of unsigned numbers.

    The divisor is below 2^31; a divisor of 0 gives all ones and the dividend. The dividend's register takes in the
    inverted bits of the quotient as it moves out.
    """
    left = e.main("or", a, imms=(0,))
    rest = e.op("or", ("M", 1), MZERO, imms=(0,))
    with e.collecting() as body:
        top = e.main("shr", left, imms=(_WORD_BITS - 1,))
        doubled = e.main("add", rest, rest)
        e.emit("or", (rest,), (doubled, top), effect="live")
        moved = e.main("add", left, left)
        is_less = e.main("cmpult", rest, b)
        e.emit("add", (left,), (moved, is_less), effect="live")
        lowered = e.main("sub", rest, b)
        e.emit("movz", (rest,), (rest, lowered, is_less), effect="live")
    e.repeat(const(_WORD_BITS), None, body)
    return e.main("xnor", left, MZERO), rest
