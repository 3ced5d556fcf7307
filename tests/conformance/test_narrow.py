"""Integers of 2 and 4 bits: every pair of operands, against arithmetic modulo 2^n."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ipuxla
from ipuxla.frontend.importer import import_stablehlo
from tests.conformance.conftest import evaluated
from tiles.target import Target

TYPES = ("i2", "i4", "ui2", "ui4")


def _pairs(dtype):
    bits = int(dtype[-1])
    low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    values = np.arange(low, low + (1 << bits))
    x, y = (part.ravel() for part in np.meshgrid(values, values))
    return bits, low, x, y


def _wrapped(values, bits, low):
    return (np.asarray(values) - low) % (1 << bits) + low


def _check(dtype, name, arrays, expected, operands):
    holder = np.uint8 if dtype.startswith("u") else np.int8
    type_ = f"tensor<{expected.size}x{dtype}>"
    arguments = ", ".join(f"%{n}: {type_}" for n in "xy"[:operands])
    names = ", ".join(f"%{n}" for n in "xy"[:operands])
    body = f"%0 = stablehlo.{name} {names} : {type_}\nreturn %0 : {type_}"
    text = f"func.func @main({arguments}) -> {type_} {{ {body} }}"
    (got,) = evaluated(text, *(x.astype(holder) for x in arrays))
    np.testing.assert_array_equal(got, expected)
    assert import_stablehlo(text).declared == ((dtype,) * operands, (dtype,))


def _quotient(x, y):
    return np.sign(x) * np.sign(y) * (abs(x) // abs(y))


BINARY = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", TYPES)
def test_binary(dtype, name):
    bits, low, x, y = _pairs(dtype)
    _check(dtype, name, (x, y), _wrapped(BINARY[name](x, y), bits, low), 2)


@pytest.mark.parametrize("dtype", TYPES)
def test_division(dtype):
    bits, low, x, y = _pairs(dtype)
    x, y = x[y != 0], y[y != 0]
    _check(dtype, "divide", (x, y), _wrapped(_quotient(x, y), bits, low), 2)
    _check(dtype, "remainder", (x, y), x - _quotient(x, y) * y, 2)


@pytest.mark.parametrize("dtype", TYPES)
def test_shifts(dtype):
    """An amount is read without a sign; a shift by all bits leaves none, or copies of the sign."""
    bits, low, x, y = _pairs(dtype)
    words, amount = x % (1 << bits), y % (1 << bits)
    is_over = amount >= bits
    _check(dtype, "shift_left", (x, y), _wrapped(np.where(is_over, 0, words << amount), bits, low), 2)
    _check(dtype, "shift_right_logical", (x, y), _wrapped(words >> amount, bits, low), 2)
    if not dtype.startswith("u"):
        _check(dtype, "shift_right_arithmetic", (x, y), x >> amount, 2)


@pytest.mark.parametrize("dtype", TYPES)
def test_unary(dtype):
    bits, low, x, _ = _pairs(dtype)
    words = [int(v) % (1 << bits) for v in x]
    _check(dtype, "negate", (x,), _wrapped(-x, bits, low), 1)
    _check(dtype, "not", (x,), _wrapped(~x, bits, low), 1)
    _check(dtype, "popcnt", (x,), _wrapped([v.bit_count() for v in words], bits, low), 1)
    _check(dtype, "count_leading_zeros", (x,), _wrapped([bits - v.bit_length() for v in words], bits, low), 1)
    if low:
        _check(dtype, "abs", (x,), _wrapped(abs(x), bits, low), 1)
        _check(dtype, "sign", (x,), np.sign(x), 1)


def test_constants_counting_conversion_and_reduction():
    text = """func.func @main(%x: tensor<3xi32>) -> (tensor<3xi4>, tensor<2xui4>, tensor<3xi4>, tensor<i4>, tensor<3xi1>) {
      %0 = stablehlo.constant dense<[1, -8, 7]> : tensor<3xi4>
      %1 = stablehlo.constant dense<13> : tensor<2xui4>
      %2 = stablehlo.convert %x : (tensor<3xi32>) -> tensor<3xi4>
      %z = stablehlo.constant dense<0> : tensor<i4>
      %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [0]
        : (tensor<3xi4>, tensor<i4>) -> tensor<i4>
      %4 = stablehlo.compare LT, %0, %2 : (tensor<3xi4>, tensor<3xi4>) -> tensor<3xi1>
      return %0, %1, %2, %3, %4 : tensor<3xi4>, tensor<2xui4>, tensor<3xi4>, tensor<i4>, tensor<3xi1>
    }"""
    got = evaluated(text, np.array([7, 23, -100], np.int32))
    expected = [[1, -8, 7], [13, 13], [7, 7, -4], -6, [True, True, False]]
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


WIDTHS = {"i1": 1, "i2": 2, "ui2": 2, "i4": 4, "ui4": 4, "i8": 8, "ui8": 8, "f16": 16, "i32": 32, "f64": 64}


def _bits_of(x, element):
    """Return the bits of the elements of an array of one dimension, the least significant first."""
    if WIDTHS[element] >= 8:
        return np.unpackbits(x.view(np.uint8), bitorder="little")
    return ((x.astype(np.int64)[:, None] >> np.arange(WIDTHS[element])) & 1).ravel().astype(np.uint8)


@pytest.mark.parametrize(
    "source, target",
    [
        *(
            ("i8", "i4"),
            ("f16", "ui4"),
            ("i32", "i2"),
            ("f64", "ui2"),
            ("i4", "ui4"),
            ("i4", "i2"),
            ("ui8", "i1"),
        ),
        *(
            ("i4", "i8"),
            ("ui4", "f16"),
            ("i2", "i32"),
            ("ui2", "f64"),
            ("ui4", "i4"),
            ("ui2", "i4"),
            ("i1", "i8"),
        ),
    ],
)
def test_packed_bits(source, target):
    """The bits of what comes out, in order, are those of what went in."""
    have, want = WIDTHS[source], WIDTHS[target]
    count = max(want // have, 1)
    if source == "i1":
        x = np.random.default_rng(0).integers(0, 2, (3, count)).astype(bool)
    elif have < 8:
        _, low, values, _ = _pairs(source)
        x = np.random.default_rng(0).choice(values, (3, count)).astype(np.uint8 if low == 0 else np.int8)
    else:
        raw = np.random.default_rng(0).integers(0, 256, (3, have // 8), dtype=np.uint8)
        x = raw.view(
            {"f16": np.float16, "i32": np.int32, "f64": np.float64, "i8": np.int8, "ui8": np.uint8}[source]
        )
    shape = "3x" if count == 1 else f"3x{count}x"
    out = f"3x{have // want}x" if have > want else "3x"
    text = f"""func.func @main(%x: tensor<{shape}{source}>) -> tensor<{out}{target}> {{
      %0 = stablehlo.bitcast_convert %x : (tensor<{shape}{source}>) -> tensor<{out}{target}>
      return %0 : tensor<{out}{target}>
    }}"""
    (got,) = evaluated(text, x.reshape(3) if count == 1 else x)
    np.testing.assert_array_equal(_bits_of(got.ravel(), target), _bits_of(x.ravel(), source))


def test_random_bits_are_the_lower_ones():
    text = """func.func @main(%s: tensor<2xui64>) -> (tensor<9xi4>, tensor<9xi8>) {
      %0:2 = stablehlo.rng_bit_generator %s, algorithm = PHILOX : (tensor<2xui64>) -> (tensor<2xui64>, tensor<9xi4>)
      %1:2 = stablehlo.rng_bit_generator %s, algorithm = PHILOX : (tensor<2xui64>) -> (tensor<2xui64>, tensor<9xi8>)
      return %0#1, %1#1 : tensor<9xi4>, tensor<9xi8>
    }"""
    four, eight = evaluated(text, np.array([1, 2], np.uint64))
    np.testing.assert_array_equal(four, _wrapped(eight.astype(int), 4, -8))


@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
def test_a_jax_function_keeps_its_types(engine, small_target):
    def f(x):
        return x + x, x.astype(jnp.int32) * 3, jnp.where(x > 0, x, -x)

    x = jnp.array([1, -8, 7, 3], jnp.int4)
    got = ipuxla.jit(f, target=small_target, engine=engine)(x)
    for mine, theirs in zip(got, jax.jit(f)(x), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


def test_a_module_takes_and_returns_its_own_types(small_target):
    text = """func.func @main(%x: tensor<3xui4>) -> tensor<3xui4> {
      %0 = stablehlo.multiply %x, %x : tensor<3xui4>
      return %0 : tensor<3xui4>
    }"""
    x = np.array([1, 7, 15]).astype("uint4")
    (y,) = ipuxla.compile_stablehlo(text, small_target)(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(y).astype(int), [1, 1, 1])


@pytest.mark.parametrize("dtype", TYPES)
def test_floats_saturate(dtype, tiny_target):
    """As they do in wider integers; the specification leaves it open."""

    def f(x):
        return x.astype({"i2": jnp.int2, "i4": jnp.int4, "ui2": jnp.uint2, "ui4": jnp.uint4}[dtype])

    x = np.array([0, 0.9, -1.9, 2.5, 7.5, -8.5, 100, -100, 1e9, -1e9, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(ipuxla.jit(f, target=tiny_target)(x), jax.jit(f)(x))


def test_narrow_numbers_beside_wide_ones() -> None:
    text = """func.func @main(%a: tensor<3xf64>, %b: tensor<3xui4>) -> (tensor<3xf64>, tensor<3xui4>) {
      return %a, %b : tensor<3xf64>, tensor<3xui4>
    }"""
    given = np.array([1.5, -2, 3]), np.array([1, 2, 15], jnp.uint4)
    found = ipuxla.compile_stablehlo(text, Target.named("gc200").replace(num_tiles=1))(*given)
    assert [x.dtype for x in found] == [x.dtype for x in given]
    assert all(map(np.array_equal, found, given))


@pytest.mark.parametrize("dtype", ["int2", "int4", "uint2", "uint4"])
@pytest.mark.parametrize("size", [9, 500])
def test_constants_of_any_length(size, dtype, tiny_target) -> None:
    """MLIR writes short ones as numbers, long ones as bytes of which the lower bits count."""
    numbers = jnp.iinfo(dtype)
    values = np.random.default_rng(0).integers(numbers.min, numbers.max + 1, size)
    constant = values.astype(jnp.dtype(dtype))
    found = ipuxla.jit(lambda x: jnp.asarray(constant).astype(jnp.float32) + x, target=tiny_target)(0.0)
    np.testing.assert_array_equal(found, values)
