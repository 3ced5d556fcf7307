"""bfloat16, for which the machine has no instruction: computed as the float32 that it begins, and rounded after.

An element is the upper half of a float32, which a 32-bit register holds with zeros below it (form ``f32``), or with
anything there as rounding leaves it (form ``high``). As in StableHLO every operation rounds its result, but for those whose
result is one of its operands, or as short as they are; what is one function (an activation) rounds its own alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tiles._jax_compat import Equation
from tiles.elements import integers
from tiles.elements.emitter import Emitter
from tiles.elements.floats import Context, binary, masked_select
from tiles.elements.tilecode import Register
from tiles.elements.values import BFLOAT16, Value
from tiles.errors import NoTileCode
from tiles.numerics.accumulate import accumulate_p
from tiles.numerics.dtypes import to_jax

_CONVERSIONS = ("convert_element_type", accumulate_p.name)
_EXACT = {
    *("neg", "abs", "max", "min", "clamp", "sign", "select_n", "floor", "ceil", "round", "copy", "copy_p"),
    *("stop_gradient", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "optimization_barrier"),
}
"""Operations on bfloat16 of which float32 gives a bfloat16."""
_HALF_LESS_ONE = 0x7FFF


class RoundingContext(Context, Protocol):
    """What is needed of the walker.

    Attributes:
      rounds: whether results are rounded: not inside of what is one function.
    """

    rounds: bool


def concerns(eqn: Equation) -> bool:
    """Return whether an operation takes or gives bfloat16."""
    return any(atom.aval.dtype.name == BFLOAT16 for atom in (*eqn.invars, *eqn.outvars))


def computed(
    ctx: RoundingContext, eqn: Equation, values: list[Value], compute: Callable[[list[Value]], list[Value]]
) -> list[Value]:
    """Return the results of an operation that takes or gives bfloat16; float32 for it where nothing rounds.

    Args:
      ctx: the walker.
      eqn: the operation.
      values: its operands.
      compute: gives its results of float32 operands.

    Raises:
      NoTileCode: there is no code of float32, or its bits are taken for those of another float.
    """
    name = eqn.primitive.name
    if name == "bitcast_convert_type":
        return [_bitcast(ctx, eqn, values[0])]
    wide = [widened(ctx, v) for v in values]
    if name in _CONVERSIONS:
        if eqn.outvars[0].aval.dtype.name != BFLOAT16:
            return compute(wide)
        if values[0].dtype == BFLOAT16:
            return values
        found = integers.convert(ctx, wide[0], "float32")
        return [rounded(ctx, found) if ctx.rounds else found]
    results = compute(wide)
    if not ctx.rounds:
        return results
    if name in _EXACT:
        return [_relabelled(v, BFLOAT16) if v.dtype == "float32" else v for v in results]
    return rounded_results(ctx, eqn, results)


def rounded_results(ctx: Context, eqn: Equation, results: list[Value]) -> list[Value]:
    """Return an operation's results, those of bfloat16 that are float32 yet rounded."""
    are_wide = [
        atom.aval.dtype.name == BFLOAT16 != v.dtype for atom, v in zip(eqn.outvars, results, strict=True)
    ]
    return [rounded(ctx, v) if is_wide else v for v, is_wide in zip(results, are_wide, strict=True)]


def widened(ctx: Context, x: Value) -> Value:
    """Return a value as float32; others as they are."""
    if x.dtype != BFLOAT16:
        return x
    if x.constant is not None:
        return ctx.constant(x.constant, "float32")
    return Value("float32", x.level, x.lanes, {"f32": ctx.forms.get(x, "f32")})


def _relabelled(x: Value, dtype: str) -> Value:
    return Value(dtype, x.level, x.lanes, x.forms, x.load, x.constant)


def _bitcast(ctx: Context, eqn: Equation, x: Value) -> Value:
    """Return the bits of 16-bit integers as bfloat16, or the other way."""
    dtype = eqn.outvars[0].aval.dtype.name
    if dtype == x.dtype:
        return x
    if dtype != BFLOAT16 and x.dtype == "float32":
        x = rounded(ctx, x)
    number = dtype if x.dtype == BFLOAT16 else x.dtype
    if number not in ("int16", "uint16"):
        raise NoTileCode(f"no tile code for {eqn.primitive.name!r} of {x.dtype} to {dtype}")
    if dtype == BFLOAT16:
        return integers.lanes(ctx, BFLOAT16, "high", lambda e, bits: e.main("shl", bits, imms=(16,)), x)
    shift = "shrs" if integers.is_signed(dtype) else "shr"
    return integers.lanes(ctx, dtype, "int", lambda e, word: e.main(shift, word, imms=(16,)), widened(ctx, x))


def rounded(ctx: Context, x: Value) -> Value:
    """Return a float32 rounded to the nearest bfloat16, to an even one between two: half of what is dropped is added.

    That would carry a NaN of many ones over to a zero, so that NaN are made the usual one first.
    """
    if x.constant is not None:
        number = to_jax("float32").type(x.constant).astype(to_jax(BFLOAT16))
        return ctx.constant(float(number), BFLOAT16)
    is_number = binary(ctx, "cmpeq", x, x, to="mask32")
    x = masked_select(ctx, is_number, ctx.constant(float("nan"), "float32"), x)

    def lane(e: Emitter, bits: Register) -> Register:
        is_odd = e.main("and", e.main("shr", bits, imms=(16,)), imms=(1,))
        return e.main("add", e.main("add", bits, imms=(_HALF_LESS_ONE,)), is_odd)

    return integers.lanes(ctx, BFLOAT16, "high", lane, x)
