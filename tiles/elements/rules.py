"""Which instructions compute a primitive of JAX: one rule each, for the dtypes that it has code for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tiles._jax_compat import Params
from tiles.elements import floats, generator, integers, routines
from tiles.elements.cell import CELL
from tiles.elements.emitter import Emitter
from tiles.elements.floats import (
    Context,
    absolute,
    binary,
    inverted,
    logic,
    masked_select,
    negated,
    transcendental,
)
from tiles.elements.tilecode import Register
from tiles.elements.values import Value
from tiles.errors import NoTileCode
from tiles.numerics.accumulate import accumulate_p

Rule = Callable[..., Any]
"""From the walker, an equation's parameters and its operands to the value it gives, or a list of values."""
_FLOATS = ("float32", "float16")


def _arithmetic(name: str, integer: Rule) -> Rule:
    def rule(ctx: Context, params: Params, *values: Value) -> Value:
        folded = _folded(ctx, name, values)
        if folded is not None:
            return folded
        if values[0].dtype in _FLOATS:
            return binary(ctx, name, values[0], values[1])
        return integer(ctx, params, *values)

    return rule


def _folded(ctx: Context, name: str, values: tuple[Value, ...]) -> Value | None:
    """Return nothing-but-literals computed now, in the values' own type; None where operands are no literals."""
    numbers = [v.constant for v in values]
    if any(n is None for n in numbers) or values[0].dtype not in (*_FLOATS, "int32"):
        return None
    functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    if name not in functions:
        return None
    typed = [np.asarray(n, values[0].dtype) for n in numbers]
    return ctx.constant(functions[name](*typed).item(), values[0].dtype)


def _compare(direction: str) -> Rule:
    def rule(ctx: Context, params: Params, a: Value, b: Value) -> Value:
        if a.dtype in _FLOATS:
            to = "mask32" if a.dtype == "float32" else "mask16"
            return binary(ctx, "cmp" + direction, a, b, to=to)
        return integers.compare(ctx, direction, a, b)

    return rule


def _extremum(greater: bool) -> Rule:
    def rule(ctx: Context, params: Params, a: Value, b: Value) -> Value:
        if a.dtype in _FLOATS:
            return binary(ctx, "max" if greater else "min", a, b)
        return integers.extremum(ctx, greater, a, b)

    return rule


def _clamp(ctx: Context, params: Params, low: Value, x: Value, high: Value) -> Value:
    return _extremum(False)(ctx, params, _extremum(True)(ctx, params, x, low), high)


def _neg(ctx: Context, params: Params, x: Value) -> Value:
    if x.dtype in _FLOATS:
        return negated(ctx, x)
    return integers.plain("sub")(ctx, params, Value(x.dtype, CELL, 1, constant=0), x)


def _abs(ctx: Context, params: Params, x: Value) -> Value:
    return absolute(ctx, x) if x.dtype in _FLOATS else integers.plain("abs")(ctx, params, x)


def _integer_pow(ctx: Context, params: Params, x: Value) -> Value:
    power = abs(params["y"])
    multiply = RULES["mul"]
    result: Value | None = None
    base = x
    while power:
        if power & 1:
            result = base if result is None else multiply(ctx, {}, result, base)
        power >>= 1
        base = multiply(ctx, {}, base, base) if power else base
    result = result if result is not None else ctx.constant(1, x.dtype)
    return RULES["div"](ctx, {}, ctx.constant(1, x.dtype), result) if params["y"] < 0 else result


def _divide(ctx: Context, params: Params, a: Value, b: Value) -> Value:
    if a.dtype not in _FLOATS:
        return routines.integer_division(ctx, a, b, remainder=False)
    if a.constant == 1:
        return floats.lane_by_lane(ctx, "oox", b)
    if b.constant is not None and _is_power_of_two(float(b.constant)):
        return binary(ctx, "mul", a, ctx.constant(1 / float(b.constant), a.dtype))
    return floats.lane_by_lane(ctx, "div", a, b)


def _is_power_of_two(number: float) -> bool:
    return (
        number != 0
        and math.isfinite(number)
        and abs(math.frexp(number)[0]) == 0.5
        and 2**-14 <= abs(number) <= 2**14
    )


def _remainder(ctx: Context, params: Params, a: Value, b: Value) -> Value:
    if a.dtype not in _FLOATS:
        return routines.integer_division(ctx, a, b, remainder=True)
    routine = routines.find("rem", (a.dtype, b.dtype))
    assert routine is not None
    return ctx.run(routine.jaxpr, list(routine.consts), [a, b])[0]


def _logic(name: str) -> Rule:
    def rule(ctx: Context, params: Params, a: Value, b: Value) -> Value:
        if a.dtype != "bool":
            return integers.plain(name, wraps=False)(ctx, params, a, b)
        form = _mask_form(a, b)
        if form and name != "xor":
            return logic(ctx, name, form, a, b)
        if form:
            either, both = logic(ctx, "or", form, a, b), logic(ctx, "and", form, a, b)
            return logic(ctx, "andc", form, either, both)
        return integers.bool_logic(ctx, name, a, b)

    return rule


def _mask_form(*values: Value) -> str:
    """Return the form of masks where one of the booleans is one, else ""."""
    for value in values:
        for form in ("mask16", "mask32"):
            if form in value.forms:
                return form
    return ""


def _not(ctx: Context, params: Params, x: Value) -> Value:
    form = _mask_form(x)
    if x.dtype == "bool" and form:
        return inverted(ctx, form, x)
    if x.dtype == "bool":
        return integers.bool_logic(ctx, "xor", x, ctx.constant(True, "bool"))
    return integers.plain("xor", wraps=False)(ctx, params, x, ctx.constant(_all_ones(x.dtype), x.dtype))


def _all_ones(dtype: str) -> int:
    return -1 if integers.is_signed(dtype) else (1 << integers.width_of(dtype)) - 1


def _select_n(ctx: Context, params: Params, which: Value, *cases: Value) -> Value:
    if len(cases) != 2 or which.dtype != "bool":
        raise NoTileCode(f"a select of {len(cases)} cases by {which.dtype}", expected="2 cases by bool")
    # One predicate for all elements, such as an optimizer's clipping, is made a mask once, ahead of them.
    is_mask = _mask_form(which) or which.level < ctx.level(*cases)
    if cases[0].dtype in _FLOATS and is_mask:
        return masked_select(ctx, which, *cases)
    return integers.select_lanes(ctx, which, *cases)


def _sign(ctx: Context, params: Params, x: Value) -> Value:
    """Return the sign: by masks for floats, with NaN and zeros passed on; by comparisons for integers."""
    if x.dtype not in _FLOATS:
        one, minus = ctx.constant(1, x.dtype), ctx.constant(-1, x.dtype)
        upper = integers.extremum(ctx, False, x, one)
        return integers.extremum(ctx, True, upper, minus) if integers.is_signed(x.dtype) else upper
    zero = ctx.constant(0.0, x.dtype)
    above, below = _compare("gt")(ctx, {}, x, zero), _compare("lt")(ctx, {}, x, zero)
    signed = masked_select(ctx, above, x, ctx.constant(1.0, x.dtype))
    return masked_select(ctx, below, signed, ctx.constant(-1.0, x.dtype))


def _is_finite(ctx: Context, params: Params, x: Value) -> Value:
    return _compare("lt")(ctx, {}, absolute(ctx, x), ctx.constant(float("inf"), x.dtype))


def _round(ctx: Context, params: Params, x: Value) -> Value:
    if int(params.get("rounding_method", 1)) == 1:
        return floats.lane_by_lane(ctx, "int:nearest", x)
    routine = routines.find("round_away", (x.dtype,))
    assert routine is not None
    return ctx.run(routine.jaxpr, list(routine.consts), [x])[0]


def _convert(ctx: Context, params: Params, x: Value) -> Value:
    dtype = params["new_dtype"].name
    if dtype == "bool" and x.dtype != "bool":
        return RULES["ne"](ctx, {}, x, ctx.constant(0, x.dtype))
    return integers.convert(ctx, x, dtype)


def _bitcast(ctx: Context, params: Params, x: Value) -> Value:
    """Return the same bits as another dtype of the same width."""
    dtype = np.dtype(params["new_dtype"]).name
    if x.dtype == dtype:
        return x
    sizes = [np.dtype(d).itemsize for d in (x.dtype, dtype)] if "bfloat16" not in (x.dtype, dtype) else [0, 1]
    if sizes[0] != sizes[1] or "bool" in (x.dtype, dtype):
        raise NoTileCode(f"no tile code for 'bitcast_convert_type' of {x.dtype} to {dtype}")
    if x.constant is not None:
        return ctx.constant(np.asarray(x.constant, x.dtype).view(dtype).item(), dtype)
    if x.dtype not in _FLOATS and dtype not in _FLOATS:
        return integers.convert(ctx, x, dtype)
    if x.dtype == "float32" and "int" not in x.forms:
        return Value(dtype, x.level, x.lanes, {"word": ctx.forms.get(x, "f32")})
    pieces = ctx.forms.get(x, "int")
    bits = Value("uint16" if sizes[0] == 2 else "uint32", x.level, x.lanes, {"int": pieces})
    return (
        Value(dtype, x.level, x.lanes, bits.forms) if dtype in _FLOATS else integers.convert(ctx, bits, dtype)
    )


def _counted(name: str) -> Rule:
    """Return the rule of a count of bits: of those that the dtype has."""

    def rule(ctx: Context, params: Params, x: Value) -> Value:
        spare = 32 - integers.width_of(x.dtype) if name == "clz" else 0

        def lane(e: Emitter, register: Register) -> Register:
            count = e.main(name, integers.unsigned(e, register, x.dtype))
            return e.main("add", count, imms=(-spare,)) if spare else count

        return integers.lanes(ctx, x.dtype, "int", lane, x)

    return rule


def _same(ctx: Context, params: Params, x: Value) -> Value:
    return x


def _square(ctx: Context, params: Params, x: Value) -> Value:
    return RULES["mul"](ctx, {}, x, x)


def _unchanged(ctx: Context, params: Params, *values: Value) -> list[Value]:
    return list(values)


RULES: dict[str, Rule] = {
    "add": _arithmetic("add", integers.plain("add")),
    "add_any": _arithmetic("add", integers.plain("add")),
    "sub": _arithmetic("sub", integers.plain("sub")),
    "mul": _arithmetic("mul", integers.plain("mul")),
    "div": _divide,
    "rem": _remainder,
    "max": _extremum(True),
    "min": _extremum(False),
    "clamp": _clamp,
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "square": _square,
    "integer_pow": _integer_pow,
    "exp": transcendental("exp", "exp"),
    "exp2": transcendental("exp2", "exp2"),
    "log": transcendental("ln", "ln"),
    "tanh": transcendental("tanh", "tanh"),
    "logistic": transcendental("sigm", "sigm"),
    "sqrt": transcendental("sqrt", None),
    "rsqrt": transcendental("oorx", None),
    "floor": transcendental("int:down", None),
    "ceil": transcendental("int:up", None),
    "round": _round,
    "is_finite": _is_finite,
    **{d: _compare(d) for d in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": _logic("and"),
    "or": _logic("or"),
    "xor": _logic("xor"),
    "not": _not,
    "select_n": _select_n,
    "shift_left": integers.shift("shl"),
    "shift_right_logical": integers.shift("shr"),
    "shift_right_arithmetic": integers.shift("shrs"),
    "population_count": _counted("popc"),
    "clz": _counted("clz"),
    "convert_element_type": _convert,
    accumulate_p.name: _convert,
    "bitcast_convert_type": _bitcast,
    "optimization_barrier": _unchanged,
    generator.drawn_p.name: generator.rule,
    **dict.fromkeys(
        ("copy", "copy_p", "stop_gradient", "broadcast_in_dim", "reshape", "squeeze", "expand_dims"), _same
    ),
}
