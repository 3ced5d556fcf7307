"""Arithmetic on complex numbers in terms of their parts: one formula per elementwise operation.

The formulas keep clear of overflow and cancellation where the result itself does. Products are the schoolbook
ones, without the recovery of infinities that C asks for, as XLA has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hlo_passes import ops
from hlo_passes.ir import Op
from hlo_passes.passes.expansions.term import Term


class Pair(NamedTuple):
    """Real and imaginary parts."""

    real: Term
    imag: Term


def _function(op: type[Op]) -> Callable[[Term], Term]:
    return lambda term: term.apply(op())


_sqrt, _rsqrt, _cbrt, _sign = map(_function, (ops.Sqrt, ops.Rsqrt, ops.Cbrt, ops.Sign))
_exp, _expm1, _log, _log1p = map(
    _function, (ops.Exponential, ops.ExponentialMinusOne, ops.Log, ops.LogPlusOne)
)
_sin, _cos, _tan, _tanh = map(_function, (ops.Sine, ops.Cosine, ops.Tan, ops.Tanh))
_is_finite = _function(ops.IsFinite)


def add(x: Pair, y: Pair) -> Pair:
    """Return ``x + y``."""
    return Pair(x.real + y.real, x.imag + y.imag)


def subtract(x: Pair, y: Pair) -> Pair:
    """Return ``x - y``."""
    return Pair(x.real - y.real, x.imag - y.imag)


def negate(x: Pair) -> Pair:
    """Return ``-x``."""
    return Pair(-x.real, -x.imag)


def multiply(x: Pair, y: Pair) -> Pair:
    """Return ``x * y``."""
    return Pair(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def divide_by_real(x: Pair, y: Term) -> Pair:
    """Return ``x / y`` of a real divisor; infinity times its imaginary part 0 is NaN here as with any other."""
    return Pair((x.real + x.imag * 0.0) / y, (x.imag - x.real * 0.0) / y)


def divide(x: Pair, y: Pair) -> Pair:
    """Return ``x / y``, the divisor scaled by its larger part (R. L. Smith, CACM 5(8), 1962).

    What comes out as NaN but is none follows ISO C, Annex G.5.1: a number by 0 and an infinite one by a
    finite one are infinite, a finite one by an infinite one is 0.
    """
    size = abs(y.real).maximum(abs(y.imag))
    is_special = size.compare("EQ", 0.0) | size.compare("EQ", math.inf)
    scale = is_special.choose(1.0, size)
    c, d = y.real / scale, y.imag / scale
    norm = c * y.real + d * y.imag
    real, imag = (x.real * c + x.imag * d) / norm, (x.imag * c - x.real * d) / norm
    is_lost = real.compare("NE", real) & imag.compare("NE", imag)
    large = is_lost & _is_infinite(x) & _is_finite(y.real) & _is_finite(y.imag)
    small = is_lost & _is_infinite(y) & _is_finite(x.real) & _is_finite(x.imag)
    a, b = _direction(x.real), _direction(x.imag)
    far = Pair(math.inf * (a * y.real + b * y.imag), math.inf * (b * y.real - a * y.imag))
    by_zero = size.compare("EQ", 0.0)
    return Pair(
        by_zero.choose(x.real / y.real, large.choose(far.real, small.choose(0.0, real))),
        by_zero.choose(x.imag / y.real, large.choose(far.imag, small.choose(0.0, imag))),
    )


def _is_infinite(x: Pair) -> Term:
    return abs(x.real).compare("EQ", math.inf) | abs(x.imag).compare("EQ", math.inf)


def _direction(a: Term) -> Term:
    """Return 1 or -1 for an infinity, 0 for anything else."""
    return abs(a).compare("EQ", math.inf).choose(_sign(a), 0.0)


def _sizes(x: Pair) -> tuple[Term, Term]:
    """Return the larger magnitude of the parts, and the ratio of the smaller to it, 0 for 0 and infinities."""
    a, b = abs(x.real), abs(x.imag)
    large, small = a.maximum(b), a.minimum(b)
    is_special = large.compare("EQ", 0.0) | large.compare("EQ", math.inf)
    return large, is_special.choose(0.0, small / large)


def absolute(x: Pair) -> Term:
    """Return ``|x|``."""
    large, ratio = _sizes(x)
    return large * _sqrt(1.0 + ratio * ratio)


def sign(x: Pair) -> Pair:
    """Return ``x / |x|``, and 0 for 0."""
    size = absolute(x)
    is_zero = size.compare("EQ", 0.0)
    return Pair(is_zero.choose(x.real, x.real / size), is_zero.choose(x.imag, x.imag / size))


def _log_absolute(x: Pair) -> Term:
    """Return ``log |x|``; near 1 from ``|x|^2 - 1``, which does not cancel.

    Not far below 1, where XLA's ``log1p`` of f64 is off by up to 120 ulp.
    """
    large, ratio = _sizes(x)
    small = abs(x.real).minimum(abs(x.imag))
    beyond = (large - 1.0) * (large + 1.0) + small * small
    is_near = beyond.compare("GT", -0.1) & beyond.compare("LT", 0.5)
    return is_near.choose(0.5 * _log1p(beyond), _log(large) + 0.5 * _log1p(ratio * ratio))


def logarithm(x: Pair) -> Pair:
    """Return the principal logarithm."""
    return Pair(_log_absolute(x), x.imag.atan2(x.real))


def log_plus_one(x: Pair) -> Pair:
    """Return ``log(1 + x)``; for small numbers from ``|1 + x|^2 - 1``."""
    shifted = Pair(1.0 + x.real, x.imag)
    small = 0.5 * _log1p(x.real * (2.0 + x.real) + x.imag * x.imag)
    is_small = (abs(x.real) + abs(x.imag)).compare("LT", 0.5)
    return Pair(is_small.choose(small, _log_absolute(shifted)), x.imag.atan2(shifted.real))


def _without_turn(x: Pair, turned: Pair) -> Pair:
    """Return ``turned``, with its imaginary part 0 where that of ``x`` is: infinity times 0 would be NaN."""
    return Pair(turned.real, x.imag.compare("EQ", 0.0).choose(x.imag, turned.imag))


def exponential(x: Pair) -> Pair:
    """Return ``exp(x)``."""
    size = _exp(x.real)
    return _without_turn(x, Pair(size * _cos(x.imag), size * _sin(x.imag)))


def exponential_minus_one(x: Pair) -> Pair:
    """Return ``exp(x) - 1`` from ``cos(b) - 1 = -2 sin(b / 2)^2``."""
    half = _sin(0.5 * x.imag)
    turned = Pair(_expm1(x.real) * _cos(x.imag) - 2.0 * (half * half), _exp(x.real) * _sin(x.imag))
    return _without_turn(x, turned)


def square_root(x: Pair) -> Pair:
    """Return the principal square root, without squaring anything that could overflow."""
    a, b = abs(x.real), abs(x.imag)
    large, ratio = _sizes(x)
    is_zero = large.compare("EQ", 0.0)
    is_special = is_zero | large.compare("EQ", math.inf)
    share = is_special.choose(a.compare("EQ", large).choose(1.0, a.constant(0.0)), a / large)
    root = _sqrt(large) * _sqrt(0.5 * (share + _sqrt(1.0 + ratio * ratio)))
    is_aside = b.compare("EQ", math.inf) & large.compare("EQ", math.inf)
    other = is_aside.choose(math.inf, is_zero.choose(0.0, b / (2.0 * root)))
    is_left = x.real.compare("LT", 0.0)
    real, imag = is_left.choose(other, root), is_left.choose(root, other)
    is_below = x.imag.compare("LT", 0.0) | (1.0 / x.imag).compare("EQ", -math.inf)
    return Pair(real, is_below.choose(-imag, imag))


def reciprocal_root(x: Pair) -> Pair:
    """Return ``1 / sqrt(x)``, from magnitude and angle; of 0 an infinity without an angle."""
    size, half = _rsqrt(absolute(x)), 0.5 * x.imag.atan2(x.real)
    is_zero = size.compare("EQ", math.inf)
    real, imag = size * _cos(half), -(size * _sin(half))
    return Pair(is_zero.choose(math.inf, real), is_zero.choose(math.nan, imag))


def cube_root(x: Pair) -> Pair:
    """Return the principal cubic root, from magnitude and angle."""
    size, angle = _cbrt(absolute(x)), x.imag.atan2(x.real) / 3.0
    return Pair(size * _cos(angle), size * _sin(angle))


def _hyperbolic(b: Term) -> tuple[Term, Term]:
    """Return ``cosh(b)`` and ``sinh(b)``, the latter exact near 0."""
    grown, shrunk = _expm1(b), _expm1(-b)
    return 0.5 * (_exp(b) + _exp(-b)), 0.5 * (grown - shrunk)


def _product(turn: Term, size: Term) -> Term:
    """Return the product with a size that may be infinite: 0 where the first factor is."""
    return turn.compare("EQ", 0.0).choose(turn, turn * size)


def sine(x: Pair) -> Pair:
    """Return ``sin(x)``."""
    even, odd = _hyperbolic(x.imag)
    return Pair(_product(_sin(x.real), even), _cos(x.real) * odd)


def cosine(x: Pair) -> Pair:
    """Return ``cos(x)``."""
    even, odd = _hyperbolic(x.imag)
    return Pair(_cos(x.real) * even, -_product(_sin(x.real), odd))


def hyperbolic_tangent(x: Pair) -> Pair:
    """Return ``tanh(x)`` from ``t = tanh(a)`` and ``u = tan(b)``: ``(t + iu) / (1 + itu)``.

    ``1 - t^2`` comes from ``exp(-2|a|)``, which does not cancel.
    """
    t, u = _tanh(x.real), _tan(x.imag)
    decay = _exp(-2.0 * abs(x.real))
    rest = 4.0 * decay / ((1.0 + decay) * (1.0 + decay))
    norm = 1.0 + (t * u) * (t * u)
    is_far = abs(x.real).compare("EQ", math.inf)
    imag = _without_turn(x, Pair(t, is_far.choose(0.0, u * rest / norm))).imag
    return Pair(is_far.choose(t, t * (1.0 + u * u) / norm), imag)


def tangent(x: Pair) -> Pair:
    """Return ``tan(x) = -i tanh(ix)``."""
    turned = hyperbolic_tangent(Pair(-x.imag, x.real))
    return Pair(turned.imag, -turned.real)


def logistic(x: Pair) -> Pair:
    """Return ``1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2``."""
    half = hyperbolic_tangent(Pair(0.5 * x.real, 0.5 * x.imag))
    return Pair(0.5 + 0.5 * half.real, 0.5 * half.imag)


def power(x: Pair, y: Pair) -> Pair:
    """Return ``x^y``; ``x^0`` and ``1^y`` are 1; 0 to a positive real power is 0, infinity to a real one real.

    Of size ``|x|^c exp(-d arg(x))`` and angle ``c arg(x) + d log|x|`` for ``y = c + di``. Where ``|x|^2`` is in range
    the first factor is a power of it by ``c / 2``, as XLA's, which is nearer than one of a rounded root.
    """
    large, ratio = _sizes(x)
    limit = math.sqrt(float(np.finfo(x.real.type.np_dtype).max)) / 4
    is_plain = large.compare("LT", limit) & large.compare("GT", 4 / limit) & ratio.compare("NE", 0.0)
    square = x.real * x.real + x.imag * x.imag
    base, exponent = is_plain.choose(square, absolute(x)), is_plain.choose(0.5 * y.real, y.real)
    turn = x.imag.atan2(x.real)
    size = base.apply(ops.Power(), exponent) * _exp(-(y.imag * turn))
    result = _turned(size, y.real * turn + y.imag * _log_absolute(x))
    is_zero = x.real.compare("EQ", 0.0) & x.imag.compare("EQ", 0.0)
    is_one = x.real.compare("EQ", 1.0) & x.imag.compare("EQ", 0.0)
    is_flat = is_one | (y.real.compare("EQ", 0.0) & y.imag.compare("EQ", 0.0))
    is_real = y.imag.compare("EQ", 0.0)
    vanishes = is_zero & y.real.compare("GT", 0.0) & is_real
    is_far = x.real.compare("EQ", math.inf) & x.imag.compare("EQ", 0.0) & is_real
    return Pair(
        is_flat.choose(1.0, vanishes.choose(0.0, is_far.choose(size, result.real))),
        is_flat.choose(0.0, (vanishes | is_far).choose(0.0, result.imag)),
    )


def _turned(size: Term, angle: Term) -> Pair:
    """Return the number of that size and angle; without an angle its imaginary part is that of the angle."""
    return _without_turn(Pair(size, angle), Pair(size * _cos(angle), size * _sin(angle)))


def angle(y: Pair, x: Pair) -> Pair:
    """Return ``atan2(y, x) = -i log((x + iy) / sqrt(x^2 + y^2))``."""
    point = Pair(x.real - y.imag, x.imag + y.real)
    turned = logarithm(divide(point, square_root(add(multiply(x, x), multiply(y, y)))))
    return Pair(turned.imag, -turned.real)


FORMULAS: dict[type[Op], Callable[..., Pair]] = {
    ops.Add: add,
    ops.Atan2: angle,
    ops.Cbrt: cube_root,
    ops.Cosine: cosine,
    ops.Divide: divide,
    ops.Exponential: exponential,
    ops.ExponentialMinusOne: exponential_minus_one,
    ops.Log: logarithm,
    ops.LogPlusOne: log_plus_one,
    ops.Logistic: logistic,
    ops.Multiply: multiply,
    ops.Negate: negate,
    ops.Power: power,
    ops.Rsqrt: reciprocal_root,
    ops.Sign: sign,
    ops.Sine: sine,
    ops.Sqrt: square_root,
    ops.Subtract: subtract,
    ops.Tan: tangent,
    ops.Tanh: hyperbolic_tangent,
}
"""What each elementwise operation that maps complex numbers to complex numbers does to pairs."""
