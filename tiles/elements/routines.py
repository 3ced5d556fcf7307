"""Code for functions that the machine has no instruction for: traced expressions, and loops over registers."""

from __future__ import annotations

import functools

import jax

from tiles._jax_compat import ClosedJaxpr, make_jaxpr
from tiles.elements.emitter import Emitter
from tiles.elements.floats import ROUNDING, Context
from tiles.elements.functions import FUNCTIONS, HALVES
from tiles.elements.integers import is_signed, lanes, width_of, wrap
from tiles.elements.tilecode import MZERO, Register
from tiles.elements.values import Value

_WORD_BITS, _HALF_WORD_BITS = 32, 16
_BELOW_ONE = 0x3F7FFFF8
"""1 - 2^-21 as a float."""


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
    divide, bits = _signed if is_signed(a.dtype) else _unsigned, width_of(a.dtype)

    def lane(e: Emitter, x: Register, y: Register) -> Register:
        out = divide(e, x, y, bits, remainder)
        return wrap(e, out, a.dtype)

    return lanes(ctx, a.dtype, "int", lane, a, b)


def _signed(e: Emitter, a: Register, b: Register, bits: int, remainder: bool) -> Register:
    """Divide magnitudes; the quotient's sign is that of both operands', the remainder's the dividend's."""
    quotient, rest = divided(e, e.main("abs", a), e.main("abs", b), bits)
    value = rest if remainder else quotient
    sign = a if remainder else e.main("xor", a, b)
    negative = e.main("cmpslt", sign, imms=(0,))
    out = e.move_conditionally("movnz", value, e.main("sub", MZERO, value), negative)
    if remainder:
        return out
    return e.move_conditionally("movz", out, e.main("xnor", MZERO, MZERO), b)


def _unsigned(e: Emitter, a: Register, b: Register, bits: int, remainder: bool) -> Register:
    """Divide; a divisor of more than 31 bits, which leaves no bit for what is over, goes 0 or 1 times."""
    quotient, rest = divided(e, a, b, bits)
    if bits < _WORD_BITS:
        return rest if remainder else quotient
    is_large = e.main("cmpslt", b, imms=(0,))
    below = e.main("cmpult", a, b)
    if remainder:
        once = e.move_conditionally("movnz", e.main("sub", a, b), a, below)
        return e.move_conditionally("movnz", rest, once, is_large)
    return e.move_conditionally("movnz", quotient, e.main("cmpeq", below, imms=(0,)), is_large)


def divided(e: Emitter, a: Register, b: Register, bits: int) -> tuple[Register, Register]:
    """Emit a division of floats, made good; return quotient and rest of unsigned numbers of so many bits.

    The divisor is at most 2^31; a divisor of 0 gives all ones and the dividend. With u = 2^-24, dividend and divisor
    as floats, their quotient and its product with 1 - 8u are each off by a factor of at most 1 + u: what comes out is at most
    the exact quotient, and at least that times 1 - 12.1u. So what is left over a first quotient is below the divisor
    and 12.1u * 2^32 = 3,098 more; over the second one, of that, it is below twice the divisor. Numbers of 16 bits take one.
    """
    divisor = e.move_conditionally("movz", b, e.constant("M", 1), b)
    as_float = _as_float(e, divisor)
    quotient, rest = _floor_at_most(e, a, divisor, as_float)
    if bits > _HALF_WORD_BITS:
        more, rest = _floor_at_most(e, rest, divisor, as_float)
        quotient = e.main("add", quotient, more)
    is_less = e.main("cmpult", rest, divisor)
    quotient = e.main("sub", e.main("add", quotient, imms=(1,)), is_less)
    rest = e.move_conditionally("movz", rest, e.main("sub", rest, divisor), is_less)
    quotient = e.move_conditionally("movz", quotient, e.main("xnor", MZERO, MZERO), b)
    return quotient, e.move_conditionally("movz", rest, a, b)


def _floor_at_most(e: Emitter, a: Register, b: Register, b_float: Register) -> tuple[Register, Register]:
    """Return a whole number that is at most a quotient, and hardly less, and what it leaves."""
    ratio = e.op("f32div", ("A", 1), _as_float(e, a), b_float)
    below = e.op("f32mul", ("A", 1), ratio, e.constant("A", _BELOW_ONE))
    whole = e.op("f32int", ("A", 1), below, imms=(ROUNDING["zero"],))
    quotient = e.main("atom", e.op("f32toui32", ("A", 1), whole))
    return quotient, e.main("sub", a, e.main("mul", quotient, b))


def _as_float(e: Emitter, x: Register) -> Register:
    return e.op("f32fromui32", ("A", 1), e.to_aux(x))
