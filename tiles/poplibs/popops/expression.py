"""Elementwise functions: one table row per function, and the expressions (lists of rows) made of them.

A row's meaning is the ``jax.lax`` function that the StableHLO operation of the same name stands for, so a
codelet and the operation evaluated on whole arrays agree under ring arithmetic on every bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import (
    broadcast,
    broadcast_in_dim,
    broadcast_shapes,
    broadcasted_iota,
    fori_loop,
    jit,
    optimization_barrier,
)
from tiles.elements.select import ONE_FUNCTION
from tiles.errors import InvalidGraph
from tiles.graph import Cell
from tiles.numerics.accumulate import accumulate
from tiles.numerics.dtypes import is_float, is_integer, may_hold, to_jax
from tiles.numerics.total_order import total_order_key

Attrs = tuple[tuple[str, Any], ...]
Row = tuple[str, tuple[int, ...], Attrs]
"""Function name, indices of its operands (first the expression's operands, then earlier rows), attributes."""
Body = tuple[Row, ...]

SPELLED = re.compile("-?inf|nan|0x[0-9a-f]+")
"""Constants that are no numbers of JSON; those in hexadecimal digits are the bits of a NaN."""
DIRECTIONS: dict[str, Callable[..., Array]] = {
    "EQ": lax.eq,
    "NE": lax.ne,
    "LT": lax.lt,
    "LE": lax.le,
    "GT": lax.gt,
    "GE": lax.ge,
}


@dataclass(frozen=True)
class Function:
    """One elementwise function.

    Args:
      name: the StableHLO operation without its dialect.
      arity: number of operands.
      apply: ``apply(cell, attrs, *operands)`` on operands of one shape (sources: of no operand).
      poplibs: what PopLibs calls it, for vertex names.
      dtype: ``dtype(attrs, *operand_dtypes)``, the result's dtype.
      attributes: names of the attributes it takes.
      accepts: kinds of its (last) operand: F floats, S signed and U unsigned integers, B booleans.
      is_arithmetic: whether it counts as a floating-point operation on floats.
    """

    name: str
    arity: int
    apply: Callable[..., Array]
    poplibs: str
    dtype: Callable[..., str]
    attributes: tuple[str, ...] = ()
    accepts: str = "FSUB"
    is_arithmetic: bool = False

    @property
    def is_source(self) -> bool:
        """Whether it makes values from no operand."""
        return self.arity == 0


def _first(attrs: Mapping[str, Any], *dtypes: str) -> str:
    return dtypes[0]


def _second(attrs: Mapping[str, Any], *dtypes: str) -> str:
    return dtypes[1]


def _boolean(attrs: Mapping[str, Any], *dtypes: str) -> str:
    return "bool"


def _stated(attrs: Mapping[str, Any], *dtypes: str) -> str:
    return attrs["dtype"]


def _plain(function: Callable[..., Array]) -> Callable[..., Array]:
    def apply(cell: Cell, attrs: Mapping[str, Any], *operands: Array) -> Array:
        return function(*operands)

    return apply


ONE_ELEMENT: Any = SimpleNamespace(sizes=(), origin=())
"""A cell without dimensions: expressions are traced for one element."""


def _divided(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a division; of integers one that XLA never sees to divide by a constant zero.

    XLA:CPU (jaxlib 0.10.2) divides such constants while it compiles, and ends the process with SIGFPE.
    """
    is_quotient = function is lax.div

    def apply(cell: Cell, attrs: Mapping[str, Any], a: Array, b: Array) -> Array:
        if cell is ONE_ELEMENT or not is_integer(a.dtype):  # the machine's code is no business of XLA's
            return function(a, b)
        is_zero = b == jnp.zeros_like(b)
        found = function(a, jnp.where(is_zero, jnp.ones_like(b), b))
        return jnp.where(is_zero, ~jnp.zeros_like(a) if is_quotient else a, found)

    return apply


def _logical(function: Callable[..., Array], on_booleans: Callable[..., Array]) -> Callable[..., Array]:
    """Return ``function``, or what it means on booleans (the sum of booleans is "or", ...)."""

    def apply(cell: Cell, attrs: Mapping[str, Any], *operands: Array) -> Array:
        return (on_booleans if operands[0].dtype == jnp.bool_ else function)(*operands)

    return apply


def _power(cell: Cell, attrs: Mapping[str, Any], base: Array, exponent: Array) -> Array:
    """Return powers; those of integers, which JAX lacks, by repeated squaring modulo 2^n."""
    if not is_integer(base.dtype):
        return lax.pow(base, exponent)
    one, zero = jnp.ones_like(base), jnp.zeros_like(base)

    def square(bit: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        result, power = state
        is_set = (lax.shift_right_logical(exponent, jnp.full_like(exponent, bit)) & 1) == 1
        return jnp.where(is_set, result * power, result), power * power

    power, _ = fori_loop(0, base.dtype.itemsize * 8, square, (one, base))
    if jnp.issubdtype(base.dtype, jnp.unsignedinteger):
        return power
    reciprocal = jnp.where(jnp.abs(base) == 1, jnp.where((exponent & 1) == 1, base, one), zero)
    return jnp.where(exponent < 0, reciprocal, power)


def _compare(cell: Cell, attrs: Mapping[str, Any], lhs: Array, rhs: Array) -> Array:
    if attrs.get("compare_type") == "TOTALORDER":
        lhs, rhs = total_order_key(lhs), total_order_key(rhs)
    return DIRECTIONS[attrs["direction"]](lhs, rhs)


def _convert(cell: Cell, attrs: Mapping[str, Any], x: Array) -> Array:
    if attrs.get("accumulates"):  # into what products are added in: of words the ring adds zeros
        return accumulate(x, attrs["dtype"])
    return _converted(x, to_jax(attrs["dtype"]))


def _converted_dtype(attrs: Mapping[str, Any], dtype: str) -> str:
    """Return the dtype that a conversion states.

    Raises:
      InvalidGraph: it accumulates something else than floats in floats, or in floats integers that they do not all hold.
    """
    made = str(attrs["dtype"])
    if attrs.get("accumulates") and not (is_float(made) and may_hold(to_jax(dtype), to_jax(made))):
        raise InvalidGraph(f"{dtype} does not accumulate in {made}", expected="floats in floats")
    return made


def _converted(x: Array, dtype: np.dtype) -> Array:
    """Return a value in a type; the same in ``hlo_passes`` and, for an iota, in ``tiles.numerics.ring_rules``."""
    if is_integer(x.dtype) and x.dtype.itemsize >= 2 and is_float(dtype) and dtype.itemsize == 1:
        x = x.astype(jnp.float32)  # XLA:CPU's older emitters round to float16 and then again (jaxlib 0.10.2)
    return lax.convert_element_type(x, dtype)


def _bitcast(cell: Cell, attrs: Mapping[str, Any], x: Array) -> Array:
    dtype = to_jax(attrs["dtype"])
    return x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype)


def _reduce_precision(cell: Cell, attrs: Mapping[str, Any], x: Array) -> Array:
    rounded = lax.reduce_precision(x, attrs["exponent_bits"], attrs["mantissa_bits"])
    if attrs["mantissa_bits"]:
        return rounded
    # XLA:CPU's older emitters leave NaN no bit of a fraction: an infinity (jaxlib 0.10.2)
    return lax.select(lax.ne(x, x), x, rounded)


def _clamp_bool(low: Array, x: Array, high: Array) -> Array:
    """Limit a truth value; XLA:CPU's older emitters have no clamp of these (jaxlib 0.10.2)."""
    return lax.bitwise_and(lax.bitwise_or(low, x), high)


def _iota(cell: Cell, attrs: Mapping[str, Any]) -> Array:
    """Count along a domain dimension from the cell's origin; floats are counted in integers first."""
    dim, dtype = attrs["dim"], to_jax(attrs["dtype"])
    counter = dtype if is_integer(dtype) else np.dtype(np.int32)
    shape = [1] * len(cell.sizes)
    shape[dim] = cell.sizes[dim]
    origin = lax.convert_element_type(jnp.asarray(cell.origin[dim]), counter)
    return _converted(broadcasted_iota(counter, shape, dim) + origin, dtype)


def _constant(cell: Cell, attrs: Mapping[str, Any]) -> Array:
    value = scalar(attrs["value"], attrs["dtype"])
    if (
        not cell.sizes
    ):  # JAX would convert a scalar constant while it traces, so that ring arithmetic did not see it
        return optimization_barrier(jnp.asarray(value))
    return broadcast(value, (1,) * len(cell.sizes))


def _named(cell: Cell, attrs: Mapping[str, Any], *operands: Array) -> Array:
    """Evaluate the expression that a named function stands for; tile code is told that it is one function."""

    def one_function(*operands: Array) -> Array:
        return evaluate_body(attrs["body"], operands, cell)[-1]

    assert one_function.__name__ == ONE_FUNCTION
    return jit(one_function)(*operands) if cell is ONE_ELEMENT else one_function(*operands)


def scalar(value: Any, dtype: str) -> np.ndarray:
    """Return a constant's value as a numpy scalar array.

    Args:
      value: a number, a boolean, "inf", "-inf", "nan", or the element's bits as "0x...".
      dtype: name of its type.
    """
    kind = to_jax(dtype)
    if isinstance(value, str) and value.startswith("0x"):
        return np.array(int(value, 16), np.dtype(f"uint{8 * kind.itemsize}")).view(kind)
    if isinstance(value, str):
        value = float(value)
    return np.array(value).astype(kind) if is_float(kind) else np.array(value, kind)


def _round(method: lax.RoundingMethod) -> Callable[..., Array]:
    def apply(cell: Cell, attrs: Mapping[str, Any], x: Array) -> Array:
        return lax.round(x, method)

    return apply


def _row(
    name: str, arity: int, accepts: str, function: Callable[..., Array], poplibs: str, arithmetic: bool = True
) -> Function:
    return Function(name, arity, function, poplibs, _first, accepts=accepts, is_arithmetic=arithmetic)


_AWAY, _EVEN = lax.RoundingMethod.AWAY_FROM_ZERO, lax.RoundingMethod.TO_NEAREST_EVEN

FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        _row("abs", 1, "FS", _plain(lax.abs), "ABSOLUTE"),
        _row("cbrt", 1, "F", _plain(lax.cbrt), "CBRT"),
        _row("ceil", 1, "F", _plain(lax.ceil), "CEIL"),
        _row("count_leading_zeros", 1, "SU", _plain(lax.clz), "COUNT_LEADING_ZEROS"),
        _row("cosine", 1, "F", _plain(lax.cos), "COS"),
        _row("exponential", 1, "F", _plain(lax.exp), "EXPONENT"),
        _row("exponential_minus_one", 1, "F", _plain(lax.expm1), "EXPONENT_MINUS_ONE"),
        _row("floor", 1, "F", _plain(lax.floor), "FLOOR"),
        _row("log", 1, "F", _plain(lax.log), "LOGARITHM"),
        _row("log_plus_one", 1, "F", _plain(lax.log1p), "LOGARITHM_ONE_PLUS"),
        _row("logistic", 1, "F", _plain(lax.logistic), "SIGMOID"),
        _row("negate", 1, "FSU", _plain(lax.neg), "NEGATE"),
        _row("not", 1, "SUB", _plain(lax.bitwise_not), "BITWISE_NOT", arithmetic=False),
        _row("popcnt", 1, "SU", _plain(lax.population_count), "POPCOUNT"),
        _row("round_nearest_afz", 1, "F", _round(_AWAY), "ROUND"),
        _row("round_nearest_even", 1, "F", _round(_EVEN), "NEARBY_INT"),
        _row("rsqrt", 1, "F", _plain(lax.rsqrt), "RSQRT"),
        _row("sign", 1, "FS", _plain(lax.sign), "SIGNUM"),
        _row("sine", 1, "F", _plain(lax.sin), "SIN"),
        _row("sqrt", 1, "F", _plain(lax.sqrt), "SQRT"),
        _row("tan", 1, "F", _plain(lax.tan), "TAN"),
        _row("tanh", 1, "F", _plain(lax.tanh), "TANH"),
        _row("add", 2, "FSUB", _logical(lax.add, lax.bitwise_or), "ADD"),
        _row("and", 2, "SUB", _plain(lax.bitwise_and), "BITWISE_AND", arithmetic=False),
        _row("atan2", 2, "F", _plain(lax.atan2), "ATAN2"),
        _row("divide", 2, "FSU", _divided(lax.div), "DIVIDE"),
        _row("divide_by_inverse", 2, "F", _plain(lax.div), "MULTIPLY_BY_INVERSE"),
        _row("maximum", 2, "FSUB", _logical(lax.max, lax.bitwise_or), "MAXIMUM"),
        _row("minimum", 2, "FSUB", _logical(lax.min, lax.bitwise_and), "MINIMUM"),
        _row("multiply", 2, "FSUB", _logical(lax.mul, lax.bitwise_and), "MULTIPLY"),
        _row("or", 2, "SUB", _plain(lax.bitwise_or), "BITWISE_OR", arithmetic=False),
        _row("power", 2, "FSU", _power, "POWER"),
        _row("remainder", 2, "FSU", _divided(lax.rem), "REMAINDER"),
        _row("shift_left", 2, "SU", _plain(lax.shift_left), "SHIFT_LEFT", arithmetic=False),
        _row(
            "shift_right_arithmetic",
            2,
            "SU",
            _plain(lax.shift_right_arithmetic),
            "SHIFT_RIGHT_SIGN_EXTEND",
            arithmetic=False,
        ),
        _row(
            "shift_right_logical", 2, "SU", _plain(lax.shift_right_logical), "SHIFT_RIGHT", arithmetic=False
        ),
        _row("subtract", 2, "FSU", _plain(lax.sub), "SUBTRACT"),
        _row("xor", 2, "SUB", _plain(lax.bitwise_xor), "BITWISE_XOR", arithmetic=False),
        _row("clamp", 3, "FSUB", _logical(lax.clamp, _clamp_bool), "CLAMP"),
        Function("is_finite", 1, _plain(lax.is_finite), "IS_FINITE", _boolean, accepts="F"),
        Function("compare", 2, _compare, "COMPARE", _boolean, ("direction", "compare_type")),
        Function("select", 3, _plain(lax.select), "SELECT", _second),
        Function("convert", 1, _convert, "CAST", _converted_dtype, ("dtype", "accumulates")),
        Function("bitcast_convert", 1, _bitcast, "BITCAST", _stated, ("dtype",)),
        Function(
            "reduce_precision",
            1,
            _reduce_precision,
            "REDUCE_PRECISION",
            _first,
            ("exponent_bits", "mantissa_bits"),
            accepts="F",
        ),
        Function("iota", 0, _iota, "IOTA", _stated, ("dim", "dtype")),
        Function("constant", 0, _constant, "FILL", _stated, ("value", "dtype")),
    )
}


NAMED: dict[str, Function] = {
    name: Function(name, arity, _named, "", _stated, ("kind", "body", "dtype", "is_approximate"), "F")
    for name, arity in (("nonlinearity", 1), ("nonlinearity_gradient", 2))
}
"""Functions that stand for an expression: attributes ``kind`` (such as ``popnn.gelu``), ``body``, ``dtype``, and
``is_approximate`` where the expression is the function only up to its constants or at ties."""


def function_of(name: str) -> Function | None:
    """Return the function of that name, or None."""
    return FUNCTIONS.get(name) or NAMED.get(name)


def kind_of(dtype: str) -> str:
    """Return the kind of a dtype: F float, S signed and U unsigned integer, B boolean."""
    if dtype == "bool":
        return "B"
    return "F" if is_float(dtype) else "U" if dtype.startswith("uint") else "S"


def body_dtypes(body: Body, operand_dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dtypes of an expression's operands and rows, in index order.

    Raises:
      InvalidGraph: an unknown function, a wrong number or kind of operands, an index of something not yet computed, or
        attributes of another kind.
    """
    dtypes = _body_dtypes(body, operand_dtypes)
    for row, dtype in zip(body, dtypes[len(operand_dtypes) :], strict=True):
        if row[2]:  # not remembered: false is equal to 0
            _check_attributes(row, dtype)
    return dtypes


@lru_cache(maxsize=4096)
def _body_dtypes(body: Body, operand_dtypes: tuple[str, ...]) -> tuple[str, ...]:
    dtypes = list(operand_dtypes)
    for name, arguments, attrs in body:
        function = function_of(name)
        if function is None:
            raise InvalidGraph(f"no elementwise function {name!r}", expected=", ".join(sorted(FUNCTIONS)))
        if len(arguments) != function.arity or any(not 0 <= a < len(dtypes) for a in arguments):
            raise InvalidGraph(
                f"{name} takes {function.arity} of the {len(dtypes)} values before it, got {arguments}"
            )
        if not set(dict(attrs)) <= set(function.attributes):
            raise InvalidGraph(f"{name} takes attributes {function.attributes}, got {attrs}")
        taken = [dtypes[a] for a in arguments]
        _check_kinds(function, taken)
        dtypes.append(function.dtype(dict(attrs), *taken))
    return tuple(dtypes)


def _check_attributes(row: Row, dtype: str) -> None:
    """Raise InvalidGraph unless a constant is a number of its dtype, a dimension one, and a named function's body whole."""
    name, arguments, attrs = row
    for attribute, value in attrs:
        if attribute == "value":
            is_truth = isinstance(value, (bool, np.bool_)) or (dtype == "bool" and value in (0, 1))
            is_spelled = is_float(dtype) and isinstance(value, str) and bool(SPELLED.fullmatch(value))
            is_number = isinstance(value, (int, float, np.generic)) and is_truth == (dtype == "bool")
            if not is_number and not is_spelled:
                raise InvalidGraph(f"a constant of {dtype} cannot be {value!r}")
        elif attribute == "dim" and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidGraph(f"{name} takes the number of a dimension, got {value!r}")
        elif attribute == "body":
            for number, (inner, read, _) in enumerate(cast("Body", value), len(arguments)):
                if function_of(inner) is None or any(not 0 <= a < number for a in read):
                    raise InvalidGraph(f"the body of {name} cannot compute {inner} of its values {read}")


def _check_kinds(function: Function, taken: list[str]) -> None:
    """Raise InvalidGraph unless the operands have one dtype that the function accepts."""
    compared = () if function.name in NAMED else taken[1:] if function.name == "select" else taken
    if len(set(compared)) > 1:
        raise InvalidGraph(f"{function.name} takes operands of one dtype", got=", ".join(taken))
    if function.name == "select" and taken[0] != "bool":
        raise InvalidGraph("select takes a boolean predicate", got=taken[0])
    if taken and kind_of(taken[-1]) not in function.accepts:
        raise InvalidGraph(f"{function.name} does not take {taken[-1]}", expected=f"kinds {function.accepts}")


def evaluate_body(body: Body, operands: Sequence[Array], cell: Cell) -> list[Array]:
    """Return the values of an expression's operands and rows, in index order.

    Args:
      body: the rows.
      operands: one axis per domain dimension, size 1 where an operand does not vary.
      cell: sizes and origin of the cell computed.

    Returns:
      Arrays of the domain's rank, of size 1 along the dimensions that a value does not depend on.
    """
    values = list(operands)
    for name, arguments, attrs in body:
        chosen = broadcast_together([values[a] for a in arguments])
        function = function_of(name)
        assert function is not None
        values.append(function.apply(cell, dict(attrs), *chosen))
    return values


def broadcast_together(arrays: Sequence[Array]) -> list[Array]:
    """Return arrays of one rank repeated along their dimensions of size 1 to a common shape."""
    if len(arrays) < 2:
        return list(arrays)
    shape = broadcast_shapes(*(a.shape for a in arrays))
    return [a if a.shape == shape else broadcast_in_dim(a, shape, range(len(shape))) for a in arrays]
