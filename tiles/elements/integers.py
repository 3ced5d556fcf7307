"""Instructions for integers, predicates and conversions between number types: one main register a lane.

Integers below 32 bits are computed in 32-bit registers and wrapped to their width after each function that can
leave it.
"""

from __future__ import annotations

from collections.abc import Callable

from tiles._jax_compat import Params
from tiles.elements.emitter import Emitter
from tiles.elements.floats import Context, convert_float, lane_by_lane
from tiles.elements.tilecode import MZERO, Register
from tiles.elements.values import Value
from tiles.errors import NoTileCode

_WIDTHS = {"int8": 8, "int16": 16, "int32": 32, "uint8": 8, "uint16": 16, "uint32": 32}
Lane = (
    Callable[[Emitter, Register], Register]
    | Callable[[Emitter, Register, Register], Register]
    | Callable[[Emitter, Register, Register, Register], Register]
)
Rule = Callable[..., Value]


def width_of(dtype: str) -> int:
    """Return the bits of an integer dtype.

    Raises:
      NoTileCode: no code is known for it.
    """
    if dtype not in _WIDTHS:
        raise NoTileCode(f"no integer instructions for {dtype}", expected=", ".join(_WIDTHS))
    return _WIDTHS[dtype]


def is_signed(dtype: str) -> bool:
    """Return whether an integer dtype has a sign."""
    return dtype.startswith("int")


def wrap(e: Emitter, register: Register, dtype: str) -> Register:
    """Return a 32-bit result reduced to its dtype's width, sign-extended or zero-extended."""
    shift = 32 - width_of(dtype)
    if not shift:
        return register
    up = e.main("shl", register, imms=(shift,))
    return e.main("shrs" if is_signed(dtype) else "shr", up, imms=(shift,))


def lanes(
    ctx: Context, dtype: str, form: str, function: Lane, *values: Value, operand_form: str = "int"
) -> Value:
    """Return a function of main registers, lane by lane."""
    level = ctx.level(*values)
    count = max(v.lanes for v in values)
    spread = [ctx.forms.spread(v, operand_form, count) for v in values]
    with ctx.emitter.at(level):
        pieces = tuple(function(ctx.emitter, *lane) for lane in zip(*spread, strict=True))
    return Value(dtype, level, count, {form: pieces})


def plain(name: str, wraps: bool = True) -> Rule:
    """Return the rule of one instruction."""

    def rule(ctx: Context, params: Params, *values: Value) -> Value:
        dtype = values[0].dtype
        width_of(dtype)

        def lane(e: Emitter, *ins: Register) -> Register:
            out = e.main(name, *ins)
            return wrap(e, out, dtype) if wraps else out

        return lanes(ctx, dtype, "int", lane, *values)

    return rule


def unsigned_pick(greater: bool) -> Lane:
    """Return the lane function of an unsigned maximum or minimum: a comparison and a conditional move."""

    def lane(e: Emitter, a: Register, b: Register) -> Register:
        is_less = e.main("cmpult", a, b)
        kept, taken = (a, b) if greater else (b, a)
        return e.move_conditionally("movnz", kept, taken, is_less)

    return lane


def extremum(ctx: Context, greater: bool, a: Value, b: Value) -> Value:
    """Return the maximum or minimum of integers."""
    if is_signed(a.dtype):
        name = "max" if greater else "min"
        return lanes(ctx, a.dtype, "int", lambda e, x, y: e.main(name, x, y), a, b)
    return lanes(ctx, a.dtype, "int", unsigned_pick(greater), a, b)


def compare(ctx: Context, direction: str, a: Value, b: Value) -> Value:
    """Return a predicate of two integers or booleans; ``direction`` as in "lt"."""
    less = "cmpslt" if a.dtype != "bool" and is_signed(a.dtype) else "cmpult"
    form = "pred" if a.dtype == "bool" else "int"
    negated = {"ne": "cmpeq", "ge": less, "le": less}
    swapped = direction in ("gt", "le")
    name = negated.get(direction) or ("cmpeq" if direction == "eq" else less)

    def lane(e: Emitter, x: Register, y: Register) -> Register:
        out = e.main(name, y, x) if swapped else e.main(name, x, y)
        return e.main("cmpeq", out, imms=(0,)) if direction in negated else out

    return lanes(ctx, "bool", "pred", lane, a, b, operand_form=form)


def shift(name: str) -> Rule:
    """Return the rule of a shift: XLA's, where an amount beyond the width gives 0, or the sign's bits."""

    def rule(ctx: Context, params: Params, x: Value, amount: Value) -> Value:
        bits = width_of(x.dtype)

        def lane(e: Emitter, a: Register, b: Register) -> Register:
            if name == "shrs":
                out = e.main("shrs", signed(e, a, x.dtype), least_unsigned(e, b, bits - 1))
                return out if is_signed(x.dtype) else wrap(e, out, x.dtype)
            out = wrap(e, e.main(name, unsigned(e, a, x.dtype) if name == "shr" else a, b), x.dtype)
            inside = e.main("cmpult", b, e.constant("M", bits))
            return e.main("mul", out, inside)

        def by_constant(e: Emitter, a: Register, _: Register) -> Register:
            amount_bits = int(amount.constant or 0)
            if not 0 <= amount_bits < bits and name != "shrs":
                return MZERO
            within = min(amount_bits, bits - 1) if amount_bits >= 0 else bits - 1
            source = {"shr": unsigned, "shrs": signed}.get(name, _as_it_is)(e, a, x.dtype)
            return wrap(e, e.main(name, source, imms=(within,)), x.dtype)

        return lanes(ctx, x.dtype, "int", lane if amount.constant is None else by_constant, x, amount)

    return rule


def unsigned(e: Emitter, register: Register, dtype: str) -> Register:
    """Return a register's low bits as an unsigned number of its dtype's width."""
    return wrap(e, register, "u" + dtype) if is_signed(dtype) and width_of(dtype) < 32 else register


def signed(e: Emitter, register: Register, dtype: str) -> Register:
    """Return a register's low bits as a number of its dtype's width whose highest bit is a sign."""
    return register if is_signed(dtype) else wrap(e, register, dtype.removeprefix("u"))


def _as_it_is(_: Emitter, register: Register, __: str) -> Register:
    return register


def least_unsigned(e: Emitter, register: Register, bound: int) -> Register:
    """Return the smaller of an unsigned register and a constant."""
    limit = e.constant("M", bound)
    return e.move_conditionally("movnz", limit, register, e.main("cmpult", register, limit))


def bool_logic(ctx: Context, name: str, a: Value, b: Value) -> Value:
    """Return ``and``, ``or`` or ``xor`` of predicates."""
    return lanes(ctx, "bool", "pred", lambda e, x, y: e.main(name, x, y), a, b, operand_form="pred")


def select_lanes(ctx: Context, predicate: Value, on_false: Value, on_true: Value) -> Value:
    """Return ``predicate ? on_true : on_false`` by conditional moves of whatever the lanes hold."""
    level = ctx.level(predicate, on_false, on_true)
    count = max(predicate.lanes, on_false.lanes, on_true.lanes)
    form = "pred" if on_true.dtype == "bool" else "int"
    bits = ctx.forms.spread(predicate, "pred", count)
    no, yes = (ctx.forms.spread(v, form, count) for v in (on_false, on_true))
    with ctx.emitter.at(level):
        pieces = tuple(
            ctx.emitter.move_conditionally("movnz", n, y, p) for p, n, y in zip(bits, no, yes, strict=True)
        )
    return Value(on_true.dtype, level, count, {form: pieces})


def convert(ctx: Context, x: Value, dtype: str) -> Value:
    """Return a conversion between any two of the dtypes that have code.

    Raises:
      NoTileCode: one of them has none.
    """
    if x.dtype == dtype:
        return x
    if x.constant is not None and dtype != "bool":
        return ctx.constant(_converted_literal(x.constant, dtype), dtype)
    is_float = {v: v in ("float32", "float16") for v in (x.dtype, dtype)}
    if is_float[x.dtype] and is_float[dtype]:
        return convert_float(ctx, x, dtype)
    if dtype == "bool":
        raise NoTileCode("a conversion to bool that is no comparison")
    if is_float[dtype]:
        return convert_float(ctx, _to_float(ctx, x), dtype)
    if is_float[x.dtype]:
        return _from_float(ctx, convert_float(ctx, x, "float32"), dtype)
    width_of(dtype)
    form = "pred" if x.dtype == "bool" else "int"
    return lanes(ctx, dtype, "int", lambda e, r: _resized(e, r, x.dtype, dtype), x, operand_form=form)


def _converted_literal(number: float | int | bool, dtype: str) -> float | int:
    if dtype in ("float32", "float16"):
        return float(number)
    bits = width_of(dtype)
    wrapped = int(number) & ((1 << bits) - 1)
    return wrapped - (1 << bits) if is_signed(dtype) and wrapped >> (bits - 1) else wrapped


def _resized(e: Emitter, register: Register, have: str, want: str) -> Register:
    if have == "bool" or width_of(want) == 32:
        return register
    fits = width_of(have) < width_of(want) and not (is_signed(have) and not is_signed(want))
    return register if fits or have == want else wrap(e, register, want)


def _to_float(ctx: Context, x: Value) -> Value:
    """Return an integer or a boolean as f32; the instruction takes an integer in an aux register."""
    name = "fromui32" if x.dtype == "uint32" else "fromi32"
    if x.dtype == "bool":
        x = Value("int32", x.level, x.lanes, {"int": ctx.forms.get(x, "pred")})
    words = ctx.forms.get(x, "word")
    as_float = Value("float32", x.level, x.lanes, {"f32": words})
    return lane_by_lane(ctx, name, as_float)


def _from_float(ctx: Context, x: Value, dtype: str) -> Value:
    """Return an f32 as an integer: rounded toward zero, then converted."""
    whole = lane_by_lane(ctx, "int:zero", x)
    name = "toui32" if dtype == "uint32" else "toi32"
    converted = lane_by_lane(ctx, name, whole)
    words = Value(dtype, x.level, x.lanes, {"word": converted.forms["f32"]})
    if width_of(dtype) == 32:
        return words
    least, greatest = _limits(dtype)
    clamped = lanes(ctx, dtype, "int", lambda e, r: _clamped(e, r, least, greatest), words)
    return clamped


def _limits(dtype: str) -> tuple[int, int]:
    bits = width_of(dtype)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed(dtype) else (0, (1 << bits) - 1)


def _clamped(e: Emitter, register: Register, least: int, greatest: int) -> Register:
    return e.main("min", e.main("max", register, imms=(least,)), imms=(greatest,))
