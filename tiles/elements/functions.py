"""Functions without an instruction, written in those that have one: the compiler traces and compiles them as code.

All take and give f32; halves are computed in f32. Polynomials are least-maximum fits of our own, by Horner's rule.
Accuracy, against float64 over the stated domain, is tested; docs/element_compiler.md lists it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

_HALF_PI = (1.5707963705062866, -4.371138828673793e-08)
"""Pi/2 in two parts: the nearest float, and what it leaves."""
_HALF_PI_OF_HALVES = (1.5703125, 0.000484466552734375, -6.407499313354492e-07, 9.92093629470503e-10)
"""Pi/2 in parts of 8 bits, so that products with whole numbers of 16 bits are exact; the last one takes what is left."""
_TWO_OVER_PI = (0x00000051, 0x7CC1B727, 0x220A94FE, 0x13ABE8FA, 0x9A6EE06D, 0xB14ACC9E, 0x21C820FF)
"""The bits of 2/pi, behind 25 zeros: a float of exponent e has the fraction of its quarter turns in 96 bits from bit e on."""


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Return a polynomial, lowest power first."""
    total = jnp.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * x + jnp.float32(c)
    return total


def expm1(x: Array) -> Array:
    """Return ``exp(x) - 1``; by a polynomial where the difference would cancel."""
    terms = (0.5, 0.1666666716337204, 0.0416666679084301, 0.008333174511790276, 0.001388864009641111)
    near = x + x * x * _polynomial(x, (*terms, 0.00019965050159953535, 2.4950139049906284e-05))
    return jnp.where(jnp.abs(x) < 0.5, near, jnp.exp(x) - 1)


def log1p(x: Array) -> Array:
    """Return ``log(1 + x)``: the logarithm of the rounded sum, times what rounding made of x."""
    u = 1 + x
    corrected = jnp.log(u) * (x / (u - 1))
    return jnp.where((u == 1) | (u == jnp.inf), x, jnp.where(u == 0, -jnp.inf, corrected))


def erf(x: Array) -> Array:
    """Return the error function: a polynomial below 1, above it one times ``exp(-x * x)``."""
    near = (1.1283791065216064, -0.37612202763557434, 0.11278641223907471, -0.02664242312312126)
    far = (
        -0.0004100289661437273,
        0.28874844312667847,
        0.23466917872428894,
        0.4405052363872528,
        -0.3170366883277893,
    )
    size = jnp.abs(x)
    square = x * x
    small = x * _polynomial(
        square, (*near, 0.0047798724845051765, -0.00043735798681154847, -4.284887108951807e-05)
    )
    q = 1 / (1 + 0.5 * jnp.minimum(size, 4.0))
    tail = _polynomial(
        q, (*far, 0.8758805394172668, -0.7556899189949036, 0.26641717553138733, -0.03306715562939644)
    )
    large = 1 - jnp.exp(-square) * tail
    return jnp.where(size < 1, small, jnp.where(x < 0, -large, large))


def _sine_and_cosine(x: Array) -> tuple[Array, Array, Array]:
    """Return sine and cosine of x less the nearest multiple of pi/2, and that multiple's number modulo 4."""
    return _of_rest(*_reduced_angle(x))


def _sine_and_cosine_for_half(x: Array) -> tuple[Array, Array, Array]:
    """Do as ``_sine_and_cosine`` for halves, whose multiples of pi/2 are whole numbers of 16 bits."""
    turns = lax.round(x * 0.6366197723675814, lax.RoundingMethod.TO_NEAREST_EVEN)
    rest = x
    for part in _HALF_PI_OF_HALVES:
        rest = rest - turns * part
    return _of_rest(jnp.where(turns == 0, x, rest), turns)


def _of_rest(rest: Array, turns: Array) -> tuple[Array, Array, Array]:
    """Return sine and cosine of an angle from -pi/4 to pi/4, and what was taken from it."""
    square = rest * rest
    sine = rest + rest * square * _polynomial(
        square, (-0.1666666716337204, 0.008333379402756691, -0.00019852982950396836, 2.830803623510292e-06)
    )
    cosine = (
        1
        - 0.5 * square
        + square
        * square
        * _polynomial(
            square,
            (0.0416666679084301, -0.0013888980029150844, 2.4821918486850336e-05, -2.8860549150522274e-07),
        )
    )
    return sine, cosine, turns


def _reduced_angle(x: Array) -> tuple[Array, Array]:
    """Return x less the nearest multiple of pi/2, to its last bit but one, and that multiple's number modulo 4.

    Below 1 the number is 0 or 1. From there on 24 bits of x are multiplied by 96 bits of 2/pi, those that have the
    fraction of a whole turn: M. Payne and R. Hanek, Radian reduction for trigonometric functions, 1983. No float
    is nearer to a multiple than 2**-31 of a quarter turn, so that 30 of the 62 bits behind the point are left.
    """
    size = jnp.abs(x)
    first, second = _HALF_PI
    near = jnp.where(size > 0.7853981633974483, (size - first) - second, size)
    whole, below = _quarter_turns(lax.bitcast_convert_type(size, jnp.uint32))
    number = lax.shift_right_logical(whole + jnp.uint32(1 << 29), jnp.uint32(30))
    signed = lax.bitcast_convert_type(whole - lax.shift_left(number, jnp.uint32(30)), jnp.int32)
    fraction = signed.astype(jnp.float32) * 2.0**-30 + below.astype(jnp.float32) * 2.0**-62
    far = fraction * first + fraction * second + (x - x)  # infinities have no angle
    is_near = size < 1
    rest = jnp.where(is_near, near, far)
    turns = jnp.where(
        is_near,
        jnp.where(size > 0.7853981633974483, jnp.float32(1), jnp.float32(0)),
        number.astype(jnp.float32),
    )
    is_below = x < 0
    return jnp.where(is_below, -rest, rest), jnp.where(is_below, -turns, turns)


def _quarter_turns(bits: Array) -> tuple[Array, Array]:
    """Return a number's quarter turns modulo 4, from its bits: words of units of 2**-30 and of 2**-62."""
    u32 = jnp.uint32
    exponent = lax.shift_right_logical(bits, u32(23)) - u32(127)
    mantissa = (bits & u32(0x7FFFFF)) | u32(0x800000)
    words = [u32(w) for w in _TWO_OVER_PI]
    for skipped in (2, 1):
        is_later = (exponent & u32(32 * skipped)) != 0
        words = [jnp.where(is_later, b, a) for a, b in zip(words[:-skipped], words[skipped:], strict=True)]
    shift = exponent & u32(31)
    a, b, c = (
        lax.shift_left(left, shift)
        | lax.shift_right_logical(lax.shift_right_logical(right, u32(1)), shift ^ u32(31))
        for left, right in itertools.pairwise(words)
    )
    high, low = lax.shift_right_logical(mantissa, u32(16)), mantissa & u32(0xFFFF)
    carried = _upper_product(high, low, c)
    below = mantissa * b + carried
    whole = mantissa * a + _upper_product(high, low, b) + (below < carried).astype(u32)
    return whole, below


def _upper_product(high: Array, low: Array, word: Array) -> Array:
    """Return the upper word of the product of a word with a number of 24 bits, that is with its upper 8 and lower 16."""
    shift, half = jnp.uint32(16), jnp.uint32(0xFFFF)
    upper, lower = lax.shift_right_logical(word, shift), word & half
    middle = low * upper
    rest = (middle & half) + high * lower + lax.shift_right_logical(low * lower, shift)
    return high * upper + lax.shift_right_logical(middle, shift) + lax.shift_right_logical(rest, shift)


def _quadrant(turns: Array) -> Array:
    return turns - 4 * jnp.floor(turns * 0.25)


def _signed_turn(sine: Array, cosine: Array, quarter: Array) -> Array:
    """Return the sine of an angle whose rest and quarter (0 to 3) are known."""
    is_odd = (quarter == 1) | (quarter == 3)
    value = jnp.where(is_odd, cosine, sine)
    return jnp.where(quarter >= 2, -value, value)


def sin(x: Array) -> Array:
    """Return the sine."""
    return jnp.where(x == 0, x, _sine_of(_sine_and_cosine(x)))


def cos(x: Array) -> Array:
    """Return the cosine: the sine a quarter turn on."""
    return _cosine_of(_sine_and_cosine(x))


def tan(x: Array) -> Array:
    """Return the tangent."""
    return jnp.where(x == 0, x, _tangent_of(_sine_and_cosine(x)))


def sin_for_half(x: Array) -> Array:
    """Return the sine of a half."""
    return jnp.where(x == 0, x, _sine_of(_sine_and_cosine_for_half(x)))


def cos_for_half(x: Array) -> Array:
    """Return the cosine of a half."""
    return _cosine_of(_sine_and_cosine_for_half(x))


def tan_for_half(x: Array) -> Array:
    """Return the tangent of a half."""
    return jnp.where(x == 0, x, _tangent_of(_sine_and_cosine_for_half(x)))


def _sine_of(parts: tuple[Array, Array, Array]) -> Array:
    sine, cosine, turns = parts
    return _signed_turn(sine, cosine, _quadrant(turns))


def _cosine_of(parts: tuple[Array, Array, Array]) -> Array:
    sine, cosine, turns = parts
    return _signed_turn(sine, cosine, _quadrant(turns + 1))


def _tangent_of(parts: tuple[Array, Array, Array]) -> Array:
    """Return sine over cosine, the other way round in odd quarters."""
    sine, cosine, turns = parts
    is_odd = (turns - 2 * jnp.floor(turns * 0.5)) == 1
    return jnp.where(is_odd, -cosine, sine) / jnp.where(is_odd, sine, cosine)


def _atan_reduced(x: Array) -> Array:
    """Return the arc tangent of numbers from 0 to 1, shifted by pi/4 where they exceed tan(pi/8)."""
    is_large = x > 0.41421356
    t = jnp.where(is_large, (x - 1) / (x + 1), x)
    square = t * t
    terms = (
        -0.3333331346511841,
        0.1999835968017578,
        -0.14241309463977814,
        0.10576621443033218,
        -0.0603293776512146,
    )
    value = t + t * square * _polynomial(square, terms)
    return jnp.where(is_large, 0.7853981633974483 + value, value)


def atan(x: Array) -> Array:
    """Return the arc tangent."""
    size = jnp.abs(x)
    value = _atan_reduced(jnp.minimum(size, 1 / size))
    value = jnp.where(size > 1, 1.5707963267948966 - value, value)
    return jnp.where(x < 0, -value, value)


def atan2(y: Array, x: Array) -> Array:
    """Return the angle of a point; zeros have signs, and infinite coordinates are alike."""
    a, b = jnp.abs(y), jnp.abs(x)
    lesser, greater = jnp.minimum(a, b), jnp.maximum(a, b)
    ratio = jnp.where(greater == 0, greater, jnp.where(lesser == jnp.inf, 1.0, lesser / greater))
    value = _atan_reduced(ratio)
    value = jnp.where(a > b, 1.5707963267948966 - value, value)
    value = jnp.where(_has_sign(x), 3.141592653589793 - value, value)
    return jnp.where(_has_sign(y), -value, value)


def _has_sign(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.int32) < 0


def cbrt(x: Array) -> Array:
    """Return the cube root: by logarithm and exponential, then two steps of Newton's method."""
    size = jnp.abs(x)
    guess = jnp.exp(jnp.log(size) * 0.3333333333333333)
    guess = guess - (guess - size / (guess * guess)) * 0.3333333333333333
    root = guess - (guess - size / (guess * guess)) * 0.3333333333333333
    root = jnp.where((size == 0) | (size == jnp.inf), size, root)
    return jnp.where(x < 0, -root, root)


def sinh(x: Array) -> Array:
    """Return the hyperbolic sine."""
    u = expm1(jnp.abs(x))
    value = 0.5 * (u + jnp.where(u == jnp.inf, 1.0, u / (u + 1)))
    return jnp.where(x < 0, -value, value)


def cosh(x: Array) -> Array:
    """Return the hyperbolic cosine."""
    e = jnp.exp(jnp.abs(x))
    return 0.5 * e + 0.5 / e


def asin(x: Array) -> Array:
    """Return the arc sine."""
    return 2 * atan2(x, 1 + jnp.sqrt((1 - x) * (1 + x)))


def acos(x: Array) -> Array:
    """Return the arc cosine."""
    return 2 * atan2(jnp.sqrt(1 - x), jnp.sqrt(1 + x))


def atanh(x: Array) -> Array:
    """Return the inverse hyperbolic tangent."""
    size = jnp.abs(x)
    value = 0.5 * log1p(2 * size / (1 - size))
    return jnp.where(x < 0, -value, value)


def asinh(x: Array) -> Array:
    """Return the inverse hyperbolic sine of numbers whose square is finite."""
    size = jnp.abs(x)
    value = log1p(size + size * size / (1 + jnp.sqrt(size * size + 1)))
    return jnp.where(x < 0, -value, value)


def acosh(x: Array) -> Array:
    """Return the inverse hyperbolic cosine of numbers whose square is finite."""
    t = x - 1
    return log1p(t + jnp.sqrt(t * (x + 1)))


def round_away(x: Array) -> Array:
    """Return the nearest whole number; halves go away from zero."""
    down = jnp.floor(jnp.abs(x))
    up = jnp.where(jnp.abs(x) - down >= 0.5, down + 1, down)
    return jnp.where(x < 0, -up, up)


def _split(x: Array) -> tuple[Array, Array]:
    """Return a number in two parts of 12 bits each, so that products of parts are exact."""
    upper = lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32) & -4096, jnp.float32)
    return upper, x - upper


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a product and what its rounding left out (T. J. Dekker, A floating-point technique, 1971)."""
    product, (a_high, a_low), (b_high, b_low) = a * b, _split(a), _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _log2_parts(x: Array) -> tuple[Array, Array]:
    """Return the binary logarithm of a positive number as a sum of two, the second below the first one's last bit.

    The number is ``m * 2**e`` with m near 1, and ``log(m) = 2 * artanh((m - 1) / (m + 1))``.
    """
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent = lax.shift_right_arithmetic(bits - _ROOT_HALF_BITS, jnp.int32(23))
    m = lax.bitcast_convert_type(bits - lax.shift_left(exponent, jnp.int32(23)), jnp.float32)
    above, sum_ = m - 1, m + 1
    s = above / sum_
    product, rest = _product(s, sum_)
    s_low = (((above - product) - rest) - s * (m - (sum_ - 1))) / sum_
    square = s * s
    tail = s * square * _polynomial(square, (0.33333333, 0.2, 0.14285715, 0.11111111, 0.09090909))
    high, low = 2 * s, 2 * (s_low + tail)
    product, rest = _product(high, jnp.full_like(x, _LOG2_E[0]))
    low = rest + (high * _LOG2_E[1] + low * _LOG2_E[0])
    whole = exponent.astype(jnp.float32)
    total = whole + product
    low = low + (product - (total - whole))
    first = total + low
    return first, low - (first - total)


_ROOT_HALF_BITS = 0x3F3504F3
"""The bits of sqrt(1/2): numbers from it to sqrt(2) have exponent 0."""
_LOG2_E = (1.4426950216293335, 1.925963033500442e-08)
_BEYOND = 400.0
"""Powers of two beyond which all are 0 or infinite."""


def pow(x: Array, y: Array) -> Array:
    """Return a power: of a logarithm in two parts times the exponent, by IEEE 754's rules for special operands."""
    first, second = _log2_parts(jnp.abs(x))
    product, rest = _product(y, first)
    is_inside = jnp.abs(product) < _BEYOND
    within = jnp.minimum(jnp.maximum(product, -_BEYOND), _BEYOND)
    whole = lax.round(within, lax.RoundingMethod.TO_NEAREST_EVEN)
    fraction = (within - whole) + jnp.where(is_inside, rest + y * second, 0.0)
    half = jnp.floor(whole * 0.5)
    size = jnp.exp2(fraction) * jnp.exp2(half) * jnp.exp2(whole - half)
    is_up = (jnp.abs(x) == jnp.inf) == (y > 0)
    size = jnp.where(
        (x == 0) | (jnp.abs(x) == jnp.inf),
        jnp.where(is_up, jnp.full_like(x, jnp.inf), jnp.zeros_like(x)),
        size,
    )
    is_odd = (y - 2 * jnp.floor(y * 0.5)) == 1
    value = jnp.where(_has_sign(x) & is_odd, -size, size)
    value = jnp.where((x < 0) & (x != -jnp.inf) & (jnp.floor(y) != y), jnp.nan, value)
    value = jnp.where((x != x) | (y != y), jnp.nan, value)
    is_one = (x == 1) | (y == 0) | ((x == -1) & (jnp.abs(y) == jnp.inf))
    return jnp.where(is_one, 1.0, value)


def rem(x: Array, y: Array) -> Array:
    """Return the remainder of a division toward zero, exact for quotients below 2**66: three rounds of 22 bits."""
    rest, divisor = jnp.abs(x), jnp.abs(y)
    for scale in (2.0**44, 2.0**22, 1.0):
        rest = _reduced(rest, divisor * scale)
    is_undefined = (divisor == 0) | (jnp.abs(x) == jnp.inf) | (y != y)
    value = jnp.where(x == 0, x, jnp.where(x < 0, -rest, rest))
    return jnp.where(is_undefined, jnp.nan, value)


def _reduced(x: Array, divisor: Array) -> Array:
    """Return what a positive number leaves over ``divisor``, of a quotient below 2**23."""
    quotient = jnp.floor(x / divisor)
    product, missing = _product(quotient, divisor)
    rest = (x - product) - missing
    rest = jnp.where(rest < 0, rest + divisor, rest)
    rest = jnp.where(rest >= divisor, rest - divisor, rest)
    return jnp.where(x >= divisor, rest, x)


def expm1_for_half(x: Array) -> Array:
    """Return ``exp(x) - 1`` to the bits of a half: three terms of its series where the difference would cancel."""
    near = x + x * x * (0.5 + x * 0.1666666716337204)
    return jnp.where(jnp.abs(x) < 0.0625, near, jnp.exp(x) - 1)


def log1p_for_half(x: Array) -> Array:
    """Return ``log(1 + x)`` to the bits of a half: three terms of its series where the sum would lose them."""
    near = x - x * x * (0.5 - x * 0.3333333432674408)
    return jnp.where(jnp.abs(x) < 0.015625, near, jnp.log(1 + x))


def cbrt_for_half(x: Array) -> Array:
    """Return the cube root to the bits of a half: by logarithm and exponential alone."""
    root = jnp.exp(jnp.log(jnp.abs(x)) * 0.3333333333333333)
    return jnp.where(x < 0, -root, root)


def erf_for_half(x: Array) -> Array:
    """Return the error function to the bits of a half, as ``erf`` with shorter polynomials."""
    near = (1.128377914428711, -0.37606415152549744, 0.1123417392373085, -0.02544781006872654)
    far = (-0.00864229816943407, 0.359613835811615, 0.021456139162182808, 0.6309472918510437)
    size, square = jnp.abs(x), x * x
    small = x * _polynomial(square, (*near, 0.0034940699115395546))
    large = 1 - jnp.exp(-square) * _polynomial(1 / (1 + 0.5 * jnp.minimum(size, 4.0)), far)
    return jnp.where(size < 1, small, jnp.where(x < 0, -large, large))


HALVES: dict[str, Callable[..., Array]] = {
    "expm1": expm1_for_half,
    "log1p": log1p_for_half,
    "erf": erf_for_half,
    "cbrt": cbrt_for_half,
    "sin": sin_for_half,
    "cos": cos_for_half,
    "tan": tan_for_half,
}
"""Shorter ways for halves, which are computed in f32 and rounded once."""
FUNCTIONS: dict[str, Callable[..., Array]] = {
    f.__name__: f
    for f in (
        expm1,
        log1p,
        erf,
        sin,
        cos,
        tan,
        atan,
        atan2,
        cbrt,
        sinh,
        cosh,
        asin,
        acos,
        atanh,
        asinh,
        acosh,
        round_away,
        pow,
        rem,
    )
}
