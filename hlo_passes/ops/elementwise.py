"""Elementwise operations: one result element from the operand elements at the same index.

Operations that differ only in name, accepted element types and JAX function come from the two tables at the
end; the others are written out. Meanings are ``jax.lax`` functions that emit the same StableHLO operation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes._jax_compat import fori_loop, optimization_barrier
from hlo_passes.ir.op import FusionCategory, Op
from hlo_passes.ir.types import DTYPES, SMALL_FLOATS, TensorType

BOOL = frozenset({"i1"})
SIGNED = frozenset({"i8", "i16", "i32", "i64"})
INTEGER = SIGNED | {"ui8", "ui16", "ui32", "ui64"}
FLOAT = frozenset({"f16", "bf16", "f32", "f64", *SMALL_FLOATS})
COMPLEX = frozenset({"complex<f32>", "complex<f64>"})
INEXACT = FLOAT | COMPLEX
REAL = INTEGER | FLOAT
NUMERIC = REAL | COMPLEX
BITS = BOOL | INTEGER
ORDERED = BOOL | REAL
ANY = BOOL | NUMERIC

COMPARISON_DIRECTIONS = {
    "EQ": lax.eq,
    "NE": lax.ne,
    "LT": lax.lt,
    "LE": lax.le,
    "GT": lax.gt,
    "GE": lax.ge,
}


@dataclass(frozen=True)
class Elementwise(Op):
    """Base of the elementwise operations; ``accepts`` are the element types of the operands."""

    category: ClassVar[FusionCategory] = FusionCategory.INJECTIVE
    accepts: ClassVar[frozenset[str]] = ANY

    def require_accepted(self, operands: Sequence[TensorType]) -> None:
        """Raise ``ConstraintViolation`` ``I<n>`` for the first operand whose element type is not accepted."""
        for number, operand in enumerate(operands, 1):
            if operand.dtype not in self.accepts:
                expected = ", ".join(sorted(self.accepts))
                self.require(f"I{number}", False, f"expected an element type of {expected}, got {operand}")


@dataclass(frozen=True)
class Unary(Elementwise):
    """Base of operations with one operand, whose result has the operand's type."""

    function: ClassVar[Callable[..., Array]]

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type."""
        self.require_arity(operands, 1)
        self.require_accepted(operands)
        return operands

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply the JAX function."""
        return (type(self).function(*operands),)


@dataclass(frozen=True)
class Binary(Elementwise):
    """Base of operations with two operands of one type, which is the result's too."""

    function: ClassVar[Callable[..., Array]]
    bool_function: ClassVar[Callable[..., Array] | None] = None

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the common type of the operands."""
        self.require_arity(operands, 2)
        self.require_accepted(operands)
        lhs, rhs = operands
        if lhs != rhs:
            self.require("C1", False, f"operands have types {lhs} and {rhs}, expected one type")
        return (lhs,)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply the JAX function, or the boolean one to booleans."""
        cls = type(self)
        if cls.bool_function is not None and operands[0].dtype == jnp.bool_:
            return (cls.bool_function(*operands),)
        return (cls.function(*operands),)


@dataclass(frozen=True)
class Abs(Unary):
    """Magnitude; the least integer is its own. Spec: StableHLO "abs", constraints C1-C2."""

    name: ClassVar[str] = "stablehlo.abs"
    accepts: ClassVar[frozenset[str]] = SIGNED | INEXACT
    function: ClassVar[Callable[..., Array]] = staticmethod(lax.abs)

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type, of complex numbers that of their parts."""
        return (super().infer(*operands)[0].part,)


@dataclass(frozen=True)
class IsFinite(Elementwise):
    """Tell which elements are neither infinite nor NaN. Spec: StableHLO "is_finite", constraint C1."""

    name: ClassVar[str] = "stablehlo.is_finite"
    accepts: ClassVar[frozenset[str]] = FLOAT

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return booleans in the operand's shape."""
        self.require_arity(operands, 1)
        self.require_accepted(operands)
        return (operands[0].with_dtype("i1"),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.is_finite``."""
        return (lax.is_finite(*operands),)


@dataclass(frozen=True)
class Compare(Elementwise):
    """Compare two tensors. Spec: StableHLO "compare", constraints C1-C3.

    ``compare_type`` is ``FLOAT``, ``TOTALORDER``, ``SIGNED`` or ``UNSIGNED``; empty means what the element
    type implies.
    """

    name: ClassVar[str] = "stablehlo.compare"
    direction: str
    compare_type: str = ""

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return booleans in the operands' shape."""
        self.require_arity(operands, 2)
        lhs, rhs = operands
        if self.direction not in COMPARISON_DIRECTIONS:
            directions = ", ".join(COMPARISON_DIRECTIONS)
            self.require("I3", False, f"direction {self.direction!r} is none of {directions}")
        self.require("C1", lhs.dtype == rhs.dtype, lambda: f"element types of {lhs} and {rhs} differ")
        self.require("C2", lhs.shape == rhs.shape, lambda: f"shapes of {lhs} and {rhs} differ")
        allowed = ("", *compare_types(lhs.dtype))
        is_ordered = lhs.is_complex and self.direction not in ("EQ", "NE")
        self.require("C3", not is_ordered, lambda: f"{lhs} has no order, direction is {self.direction}")
        if self.compare_type not in allowed:
            self.require(
                "C3", False, f"compare type {self.compare_type!r} of {lhs}, expected one of {allowed[1:]}"
            )
        return (lhs.with_dtype("i1"),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Compare; ``TOTALORDER`` is IEEE's: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""
        if self.compare_type == "TOTALORDER":
            operands = tuple(total_order_key(operand) for operand in operands)
        return (COMPARISON_DIRECTIONS[self.direction](*operands),)


def compare_types(dtype: str) -> tuple[str, ...]:
    """Return the compare types an element type allows, the implied one first."""
    if dtype in INEXACT:
        return ("FLOAT", "TOTALORDER") if dtype in FLOAT else ("FLOAT",)
    return ("SIGNED",) if dtype in SIGNED else ("UNSIGNED",)


def total_order_key(operand: Array) -> Array:
    """Return signed integers that are ordered as the floats are in the IEEE 754 total order.

    As XLA where a format lacks something: the one NaN of formats without a negative zero has its bits and is
    least; without a sign, bits count.
    """
    signed = np.dtype(f"int{operand.dtype.itemsize * 8}")
    bits = lax.bitcast_convert_type(operand, signed)
    least, magnitude = (jnp.asarray(limit, signed) for limit in (np.iinfo(signed).min, np.iinfo(signed).max))
    if operand.dtype == jnp.float8_e8m0fnu:
        return bits ^ least
    if operand.dtype.name.endswith("fnuz"):
        return jnp.where((bits < 0) & (bits != least), least - bits, bits)
    return jnp.where(bits < 0, bits ^ magnitude, bits)


@dataclass(frozen=True)
class Select(Elementwise):
    """Choose between the last two operands by the first. Spec: StableHLO "select", constraints C1-C2."""

    name: ClassVar[str] = "stablehlo.select"

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the type of the second operand."""
        self.require_arity(operands, 3)
        predicate, on_true, on_false = operands
        self.require("I1", predicate.is_bool, lambda: f"expected a boolean predicate, got {predicate}")
        fits = predicate.rank == 0 or predicate.shape == on_true.shape
        self.require(
            "C1", fits, lambda: f"predicate {predicate} is neither a scalar nor in the shape of {on_true}"
        )
        self.require("C2", on_true == on_false, lambda: f"choices have types {on_true} and {on_false}")
        return (on_true,)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.select``."""
        return (lax.select(*operands),)


@dataclass(frozen=True)
class Clamp(Elementwise):
    """Limit the second operand by the first and third. Spec: StableHLO "clamp", constraints C1-C3."""

    name: ClassVar[str] = "stablehlo.clamp"
    accepts: ClassVar[frozenset[str]] = ORDERED

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the type of the second operand."""
        self.require_arity(operands, 3)
        self.require_accepted(operands)
        low, operand, high = operands
        for tag, bound in (("C1", low), ("C2", high)):
            fits = bound.rank == 0 or bound.shape == operand.shape
            self.require(tag, fits, f"bound {bound} is neither a scalar nor in the shape of {operand}")
        same = low.dtype == operand.dtype == high.dtype
        self.require("C3", same, lambda: f"element types of {low}, {operand} and {high} differ")
        return (operand,)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Take the minimum with the upper bound of the maximum with the lower one."""
        low, operand, high = operands
        shape = operand.shape
        return (lax.clamp(jnp.broadcast_to(low, shape), operand, jnp.broadcast_to(high, shape)),)


@dataclass(frozen=True)
class Convert(Elementwise):
    """Convert elements to ``dtype``. Spec: StableHLO "convert", constraint C1.

    Floats become integers by truncation, saturated to the integer's range, NaN becomes 0 (XLA's choice where
    the specification leaves one); anything becomes a boolean by comparing with zero; complex numbers become
    real by dropping the imaginary part.
    """

    name: ClassVar[str] = "stablehlo.convert"
    dtype: str

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's shape with elements of ``dtype``."""
        self.require_arity(operands, 1)
        self.require("O1", self.dtype in ANY, lambda: f"unknown element type {self.dtype!r}")
        return (operands[0].with_dtype(self.dtype),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.convert_element_type``."""
        (operand,), dtype = operands, DTYPES[self.dtype]
        if jnp.iscomplexobj(operand) and dtype.kind != "complex":
            operand = operand != 0 if dtype.kind == "bool" else lax.real(operand)
        if operand.dtype.kind in "iu" and operand.dtype.itemsize >= 2 and self.dtype in SMALL_FLOATS:
            # The same in codelets: XLA:CPU's older emitters round to float16 and then again (jaxlib 0.10.2).
            operand = operand.astype(jnp.float32)
        return (lax.convert_element_type(operand, dtype.np_dtype),)


@dataclass(frozen=True)
class BitcastConvert(Elementwise):
    """Read the elements' bits as ``dtype``. Spec: StableHLO "bitcast_convert", constraint C1.

    A narrower ``dtype`` adds a last dimension, a wider one consumes it; least significant part first. The bits of
    a complex number are those of its real, then of its imaginary part; they make up complex numbers only.
    """

    name: ClassVar[str] = "stablehlo.bitcast_convert"
    dtype: str

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the type whose bits fill the operand exactly."""
        self.require_arity(operands, 1)
        self.require_accepted(operands)
        (operand,) = operands
        known = self.dtype in ANY
        self.require("O1", known, lambda: f"{self.dtype!r} is no element type whose bits can be given")
        mixed = (self.dtype == "i1") != operand.is_bool or (self.dtype in COMPLEX) != operand.is_complex
        self.require("C1", not mixed, lambda: f"bits of {operand} do not make up elements of {self.dtype}")
        old, new = operand.bits, DTYPES[self.dtype].bits
        if new == old:
            return (operand.with_dtype(self.dtype),)
        if new < old:
            return (TensorType((*operand.shape, old // new), self.dtype),)
        fits = operand.rank > 0 and operand.shape[-1] * old == new
        self.require("C1", fits, lambda: f"the last dimension of {operand} does not make up one {self.dtype}")
        return (TensorType(operand.shape[:-1], self.dtype),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.bitcast_convert_type``."""
        (operand,), dtype = operands, DTYPES[self.dtype].np_dtype
        if operand.dtype == dtype:
            return operands
        if operand.dtype.itemsize != dtype.itemsize:  # XLA merges two in a row whatever dimensions they make
            operand = optimization_barrier(operand)
        if not jnp.iscomplexobj(operand):
            return (lax.bitcast_convert_type(operand, dtype),)
        if dtype.itemsize < operand.dtype.itemsize:
            parts = (lax.bitcast_convert_type(part, jnp.float32) for part in (operand.real, operand.imag))
            halves = jnp.stack(tuple(parts), -2)
            return (lax.complex(halves[..., 0], halves[..., 1]),)
        parts = jnp.stack((operand.real, operand.imag), -1)
        whole = lax.bitcast_convert_type(parts, jnp.float64)
        return (lax.complex(whole[..., 0], whole[..., 1]),)


@dataclass(frozen=True)
class ReducePrecision(Elementwise):
    """Round to fewer bits within the type. Spec: StableHLO "reduce_precision", constraints C2-C3."""

    name: ClassVar[str] = "stablehlo.reduce_precision"
    accepts: ClassVar[frozenset[str]] = FLOAT
    exponent_bits: int
    mantissa_bits: int

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type."""
        self.require_arity(operands, 1)
        self.require_accepted(operands)
        self.require(
            "C2", self.exponent_bits >= 1, lambda: f"{self.exponent_bits} exponent bits, expected at least 1"
        )
        self.require(
            "C3", self.mantissa_bits >= 0, lambda: f"{self.mantissa_bits} mantissa bits, expected at least 0"
        )
        return operands

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.reduce_precision``."""
        return (lax.reduce_precision(operands[0], self.exponent_bits, self.mantissa_bits),)


def _define(
    base: type[Op], op: str, summary: str, constraints: str, members: Mapping[str, object]
) -> type[Op]:
    """Return a new subclass of ``base`` for the StableHLO operation ``op``."""
    class_name = "".join(word.capitalize() for word in op.split("_"))
    doc = f'{summary} Spec: StableHLO "{op}", constraint {constraints}.'
    namespace = {"name": f"stablehlo.{op}", "__doc__": doc, "__module__": __name__, **members}
    return dataclasses.dataclass(frozen=True)(type(class_name, (base,), namespace))


def _unary(op: str, accepts: frozenset[str], function: Callable[..., Array], summary: str) -> type[Op]:
    return _define(Unary, op, summary, "C1", {"accepts": accepts, "function": staticmethod(function)})


def _binary(
    op: str,
    accepts: frozenset[str],
    function: Callable[..., Array],
    summary: str,
    bool_function: Callable[..., Array] | None = None,
) -> type[Op]:
    members = {"accepts": accepts, "function": staticmethod(function)}
    if bool_function is not None:
        members["bool_function"] = staticmethod(bool_function)
    return _define(Binary, op, summary, "C1", members)


def _round_half_away(operand: Array) -> Array:
    return lax.round(operand, lax.RoundingMethod.AWAY_FROM_ZERO)


def _round_half_even(operand: Array) -> Array:
    return lax.round(operand, lax.RoundingMethod.TO_NEAREST_EVEN)


def _power(base: Array, exponent: Array) -> Array:
    """Return powers; those of integers, which JAX lacks, by repeated squaring modulo 2^n."""
    if not jnp.issubdtype(base.dtype, jnp.integer):
        return lax.pow(base, exponent)
    one, zero = jnp.ones_like(base), jnp.zeros_like(base)

    def square(bit: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        result, power = state
        is_set = (lax.shift_right_logical(exponent, jnp.full_like(exponent, bit)) & 1) == 1
        return jnp.where(is_set, result * power, result), power * power

    power, _ = fori_loop(0, base.dtype.itemsize * 8, square, (one, base))
    if jnp.issubdtype(base.dtype, jnp.unsignedinteger):
        return power
    sign = jnp.where((exponent & 1) == 1, base, one)
    reciprocal = jnp.where(jnp.abs(base) == 1, sign, zero)
    return jnp.where(exponent < 0, reciprocal, power)


Cbrt = _unary("cbrt", INEXACT, lax.cbrt, "Cubic root.")
Ceil = _unary("ceil", FLOAT, lax.ceil, "Round towards positive infinity.")
CountLeadingZeros = _unary("count_leading_zeros", INTEGER, lax.clz, "Zero bits above the highest set bit.")
Cosine = _unary("cosine", INEXACT, lax.cos, "Cosine of radians.")
Exponential = _unary("exponential", INEXACT, lax.exp, "Exponential.")
ExponentialMinusOne = _unary(
    "exponential_minus_one", INEXACT, lax.expm1, "Exponential minus one, exact near 0."
)
Floor = _unary("floor", FLOAT, lax.floor, "Round towards negative infinity.")
Log = _unary("log", INEXACT, lax.log, "Natural logarithm.")
LogPlusOne = _unary(
    "log_plus_one", INEXACT, lax.log1p, "Natural logarithm of one plus the operand, exact near 0."
)
Logistic = _unary("logistic", INEXACT, lax.logistic, "Logistic function 1 / (1 + exp(-x)).")
Negate = _unary("negate", NUMERIC, lax.neg, "Negation; modulo 2^n on integers.")
Not = _unary("not", BITS, lax.bitwise_not, "Bitwise or logical complement.")
Popcnt = _unary("popcnt", INTEGER, lax.population_count, "Number of set bits.")
RoundNearestAfz = _unary(
    "round_nearest_afz", FLOAT, _round_half_away, "Round to nearest, halves away from 0."
)
RoundNearestEven = _unary("round_nearest_even", FLOAT, _round_half_even, "Round to nearest, halves to even.")
Rsqrt = _unary("rsqrt", INEXACT, lax.rsqrt, "Reciprocal of the square root.")
Sign = _unary("sign", SIGNED | INEXACT, lax.sign, "-1, 0 or 1, or x / |x|; keeps signed zeros and NaN.")
Sine = _unary("sine", INEXACT, lax.sin, "Sine of radians.")
Sqrt = _unary("sqrt", INEXACT, lax.sqrt, "Square root.")
Tan = _unary("tan", INEXACT, lax.tan, "Tangent of radians.")
Tanh = _unary("tanh", INEXACT, lax.tanh, "Hyperbolic tangent.")

Add = _binary("add", ANY, lax.add, "Sum; modulo 2^n on integers, or on booleans.", lax.bitwise_or)
And = _binary("and", BITS, lax.bitwise_and, "Bitwise or logical and.")
Atan2 = _binary("atan2", INEXACT, lax.atan2, "Angle of the point (rhs, lhs) in radians.")
Divide = _binary("divide", NUMERIC, lax.div, "Quotient; integers truncate, and divided by 0 give XLA's -1.")
Maximum = _binary("maximum", ORDERED, lax.max, "Larger element, or NaN if either is.", lax.bitwise_or)
Minimum = _binary("minimum", ORDERED, lax.min, "Smaller element, or NaN if either is.", lax.bitwise_and)
Multiply = _binary(
    "multiply", ANY, lax.mul, "Product; modulo 2^n on integers, and on booleans.", lax.bitwise_and
)
Or = _binary("or", BITS, lax.bitwise_or, "Bitwise or logical or.")
Power = _binary("power", NUMERIC, _power, "lhs to the power of rhs; integers modulo 2^n, truncated below 1.")
Remainder = _binary("remainder", REAL, lax.rem, "Remainder of the truncated quotient, with the sign of lhs.")
ShiftLeft = _binary("shift_left", INTEGER, lax.shift_left, "Shift left by rhs bits; 0 from the width on.")
ShiftRightArithmetic = _binary(
    "shift_right_arithmetic",
    INTEGER,
    lax.shift_right_arithmetic,
    "Shift right by rhs bits, repeating the sign.",
)
ShiftRightLogical = _binary(
    "shift_right_logical", INTEGER, lax.shift_right_logical, "Shift right by rhs bits, filling with zeros."
)
Subtract = _binary("subtract", NUMERIC, lax.sub, "Difference; modulo 2^n on integers.")
Xor = _binary("xor", BITS, lax.bitwise_xor, "Bitwise or logical exclusive or.")
