"""Every elementwise operation against the reference interpreter, special values included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla

INF, NAN = np.inf, np.nan
FLOATS = [-INF, -2.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.5, 3.0, INF, NAN]
POSITIVE = [0.0, 0.25, 0.5, 1.0, 2.5, 100.0, INF, NAN]
SMALL = [-0.9, -0.5, -0.0, 0.0, 0.25, 0.5, 0.75, 1.0]
INTS = [-(2**31), -7, -1, 0, 1, 6, 2**31 - 1]
DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "i1": np.bool_, "i8": np.int8}
DTYPES |= {"i32": np.int32, "i64": np.int64, "ui8": np.uint8, "ui32": np.uint32}

EXACT, CLOSE = 0.0, 2e-6

UNARY = [
    ("abs", "f32", FLOATS, EXACT),
    ("abs", "i32", INTS, EXACT),
    ("cbrt", "f32", [-8.0, -1.0, 0.0, 0.5, 27.0], CLOSE),
    ("ceil", "f32", FLOATS, EXACT),
    ("count_leading_zeros", "i32", INTS, EXACT),
    ("count_leading_zeros", "ui8", [0, 1, 127, 255], EXACT),
    ("cosine", "f32", [-3.0, 0.0, 1.0, 2.5], CLOSE),
    ("exponential", "f32", [-INF, -1.0, 0.0, 1.0, 10.0, INF, NAN], CLOSE),
    ("exponential_minus_one", "f32", [-INF, -1.0, -1e-6, 0.0, 1e-6, 1.0], CLOSE),
    ("floor", "f32", FLOATS, EXACT),
    ("is_finite", "f32", FLOATS, EXACT),
    ("log", "f32", POSITIVE, CLOSE),
    ("log_plus_one", "f32", SMALL, CLOSE),
    ("logistic", "f32", [-INF, -4.0, 0.0, 4.0, INF, NAN], CLOSE),
    ("negate", "f32", FLOATS, EXACT),
    ("negate", "i32", INTS, EXACT),
    ("not", "i32", INTS, EXACT),
    ("not", "i1", [True, False], EXACT),
    ("popcnt", "i32", INTS, EXACT),
    ("round_nearest_afz", "f32", [-2.5, -1.5, -0.4, 0.5, 1.5, 2.5, 2.6], EXACT),
    ("round_nearest_even", "f32", [-2.5, -1.5, -0.4, 0.5, 1.5, 2.5, 2.6], EXACT),
    ("rsqrt", "f32", [0.25, 1.0, 2.0, INF], CLOSE),
    ("sign", "f32", FLOATS, EXACT),
    ("sign", "i32", INTS, EXACT),
    ("sine", "f32", [-3.0, 0.0, 1.0, 2.5], CLOSE),
    ("sqrt", "f32", POSITIVE, CLOSE),
    ("tan", "f32", [-1.0, 0.0, 0.5, 1.2], CLOSE),
    ("tanh", "f32", [-INF, -1.0, 0.0, 0.5, INF, NAN], CLOSE),
    ("tanh", "f64", [-1.0, 0.0, 0.5], 1e-12),
    ("tanh", "f16", [-1.0, 0.0, 0.5], 1e-3),
]

BINARY = [
    ("add", "f32", [1.5, INF, -0.0, NAN], [2.0, -INF, -0.0, 1.0], EXACT),
    ("add", "i32", [2**31 - 1, -5], [1, 3], EXACT),
    ("add", "i1", [True, True, False], [True, False, False], EXACT),
    ("add", "i64", [2**40, -1], [2**40, 2**33], EXACT),
    ("and", "i32", [12, -1], [10, 7], EXACT),
    ("and", "i1", [True, True], [True, False], EXACT),
    ("atan2", "f32", [1.0, -1.0, 0.0, 2.0], [1.0, -2.0, -1.0, 0.0], CLOSE),
    ("divide", "f32", [1.0, -1.0, 0.0, 5.0], [0.0, 0.0, 0.0, 4.0], EXACT),
    ("divide", "i32", [7, -7, 7, -7], [2, 2, -2, -2], EXACT),
    ("maximum", "f32", [1.0, NAN, -0.5, INF], [2.0, 1.0, NAN, 3.0], EXACT),
    ("maximum", "i1", [True, False], [False, False], EXACT),
    ("maximum", "ui8", [200, 3], [100, 7], EXACT),
    ("minimum", "f32", [1.0, NAN, -0.5, INF], [2.0, 1.0, NAN, 3.0], EXACT),
    ("minimum", "i1", [True, True], [False, True], EXACT),
    ("multiply", "f32", [1.5, INF, 0.1], [2.0, 0.0, 0.3], EXACT),
    ("multiply", "i32", [2**30, -3], [4, 5], EXACT),
    ("multiply", "i1", [True, True], [True, False], EXACT),
    ("or", "ui32", [12, 1], [10, 6], EXACT),
    ("or", "i1", [False, True], [False, False], EXACT),
    ("power", "f32", [2.0, 0.5, 9.0, 0.0], [3.0, -1.0, 0.5, 0.0], CLOSE),
    ("power", "i32", [2, -1, 1, 0, 5, -2, 3], [-1, -3, -2, 3, 3, 3, 40], EXACT),
    ("remainder", "f32", [7.5, -7.5, 3.0], [2.0, 2.0, -5.0], EXACT),
    ("remainder", "i32", [7, -7, 7, -7], [3, 3, -3, -3], EXACT),
    ("shift_left", "i32", [1, -3, 5, 1], [4, 1, 31, 40], EXACT),
    ("shift_right_arithmetic", "i32", [-16, 16, -1, -5], [2, 2, 31, 40], EXACT),
    ("shift_right_logical", "i32", [-16, 16, -1, -5], [2, 2, 31, 40], EXACT),
    ("subtract", "f32", [1.5, INF, 0.1], [2.0, INF, 0.3], EXACT),
    ("subtract", "ui8", [1, 200], [2, 100], EXACT),
    ("xor", "i32", [12, -1], [10, 7], EXACT),
    ("xor", "i1", [True, True], [True, False], EXACT),
]


def _function(operation: str, operands: list[str], result: str) -> str:
    parameters = ", ".join(f"%a{i}: {type_}" for i, type_ in enumerate(operands))
    names = ", ".join(f"%a{i}" for i in range(len(operands)))
    return f"""func.func @main({parameters}) -> {result} {{
      %0 = {operation.replace("$", names)} : ({", ".join(operands)}) -> {result}
      return %0 : {result}
    }}"""


def _ids(case: tuple) -> str:
    return f"{case[0]}-{case[1]}"


@pytest.mark.parametrize("case", UNARY, ids=_ids)
def test_unary_operation_has_the_specified_value(case, conforms):
    op, dtype, values, rtol = case
    type_ = f"tensor<{len(values)}x{dtype}>"
    result = type_.replace(dtype, "i1") if op == "is_finite" else type_
    conforms(_function(f'"stablehlo.{op}"($)', [type_], result), np.array(values, DTYPES[dtype]), rtol=rtol)


@pytest.mark.parametrize("case", BINARY, ids=_ids)
def test_binary_operation_has_the_specified_value(case, conforms):
    op, dtype, lhs, rhs, rtol = case
    type_ = f"tensor<{len(lhs)}x{dtype}>"
    arrays = np.array(lhs, DTYPES[dtype]), np.array(rhs, DTYPES[dtype])
    conforms(_function(f'"stablehlo.{op}"($)', [type_, type_], type_), *arrays, rtol=rtol)


def test_integer_division_by_zero_and_overflow_follow_xla(evaluates_to):
    text = """func.func @main(%a: tensor<3xi32>, %b: tensor<3xi32>) -> (tensor<3xi32>, tensor<3xi32>) {
      %0 = stablehlo.divide %a, %b : tensor<3xi32>
      %1 = stablehlo.remainder %a, %b : tensor<3xi32>
      return %0, %1 : tensor<3xi32>, tensor<3xi32>
    }"""
    least = -(2**31)
    lhs, rhs = np.array([7, -7, least], np.int32), np.array([0, 0, -1], np.int32)
    evaluates_to(text, [lhs, rhs], [np.array([-1, -1, least], np.int32), np.array([7, -7, 0], np.int32)])


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
@pytest.mark.parametrize("kind", ["f32 FLOAT", "i32 SIGNED", "ui8 UNSIGNED", "i1 UNSIGNED"])
def test_compare(direction, kind, conforms):
    dtype, kind = kind.split()
    values = {"f32": [0.0, -0.0, NAN, 1.0, INF], "i1": [True, False]}.get(dtype, [0, 1, 7])
    lhs, rhs = (x.reshape(-1) for x in np.meshgrid(*[np.array(values, DTYPES[dtype])] * 2))
    type_, result = f"tensor<{len(lhs)}x{dtype}>", f"tensor<{len(lhs)}xi1>"
    operation = f"stablehlo.compare {direction}, $, {kind}"
    conforms(_function(operation, [type_, type_], result), lhs, rhs)


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_total_order_sorts_zeros_infinities_and_nans(dtype, evaluates_to):
    values = np.array([-NAN, -INF, -1.0, -0.0, 0.0, 1.0, INF, NAN], DTYPES[dtype])
    values[0] = np.copysign(NAN, -1)
    lhs, rhs = (x.reshape(-1) for x in np.meshgrid(values, values, indexing="ij"))
    type_ = f"tensor<64x{dtype}>"
    text = _function("stablehlo.compare LT, $, TOTALORDER", [type_, type_], "tensor<64xi1>")
    evaluates_to(text, [lhs, rhs], [np.triu(np.ones((8, 8), bool), 1).reshape(-1)])


@pytest.mark.parametrize("predicate", ["tensor<3xi1>", "tensor<i1>"])
def test_select_by_element_or_as_a_whole(predicate, conforms):
    text = _function("stablehlo.select $", [predicate, "tensor<3xf32>", "tensor<3xf32>"], "tensor<3xf32>")
    chosen = np.array([True, False, True]) if "3" in predicate else np.array(False)
    conforms(text, chosen, np.array([1, NAN, 3], np.float32), np.array([4, 5, NAN], np.float32))


@pytest.mark.parametrize("bound", ["tensor<4xf32>", "tensor<f32>"])
def test_clamp_by_element_or_by_scalars(bound, conforms):
    shape = (4,) if "4" in bound else ()
    text = _function("stablehlo.clamp $", [bound, "tensor<4xf32>", bound], "tensor<4xf32>")
    low, high = np.full(shape, -1.0, np.float32), np.full(shape, 2.0, np.float32)
    conforms(text, low, np.array([-3.0, 0.5, 3.0, INF], np.float32), high)


CONVERSIONS = [
    ("f32", "i32", [-2.7, -0.5, 0.0, 2.7]),
    ("i32", "f32", INTS),
    ("f32", "f16", [1.0009765625, 70000.0, 1e-9, NAN]),
    ("f64", "f32", [1.0 + 2.0**-30, 1e300, -0.0]),
    ("i32", "i8", [-1, 127, 128, 300]),
    ("i8", "ui8", [-1, 5]),
    ("i1", "f32", [True, False]),
    ("f32", "i1", [0.0, -0.0, 0.5, -3.0]),
    ("i32", "i1", [0, 2]),
    ("ui8", "i64", [255, 0]),
]


@pytest.mark.parametrize("case", CONVERSIONS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_convert(case, conforms):
    old, new, values = case
    text = _function("stablehlo.convert $", [f"tensor<{len(values)}x{old}>"], f"tensor<{len(values)}x{new}>")
    conforms(text, np.array(values, DTYPES[old]))


def test_convert_saturates_floats_beyond_the_integer_range(evaluates_to):
    text = _function("stablehlo.convert $", ["tensor<4xf32>"], "tensor<4xi32>")
    values = np.array([1e20, -1e20, NAN, -INF], np.float32)
    evaluates_to(text, [values], [np.array([2**31 - 1, -(2**31), 0, -(2**31)], np.int32)])


def test_bfloat16_rounds_to_nearest_even(conforms):
    text = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xbf16>
      %c = stablehlo.constant dense<[1.0, 0x7F80, 3.140625, -0.0]> : tensor<4xbf16>
      %1 = stablehlo.add %0, %c : tensor<4xbf16>
      %2 = stablehlo.convert %1 : (tensor<4xbf16>) -> tensor<4xf32>
      return %2 : tensor<4xf32>
    }"""
    conforms(text, np.array([1.00390625, 2.0, 1.01171875, -0.0], np.float32))


BITCASTS = ["2xf32 2xi32", "2xf32 2x2xf16", "2x2xf16 2xf32", "2xf32 2x4xui8", "3x4xui8 3xi32"]


@pytest.mark.parametrize("case", BITCASTS)
def test_bitcast_convert(case, conforms):
    old, new = case.split()
    *shape, dtype = old.split("x")
    size = np.prod([int(n) for n in shape], dtype=int)
    array = np.arange(1, size + 1).astype(DTYPES[dtype]).reshape([int(n) for n in shape])
    conforms(_function("stablehlo.bitcast_convert $", [f"tensor<{old}>"], f"tensor<{new}>"), array)


@pytest.mark.parametrize("bits", [(5, 10), (8, 7), (4, 3)])
def test_reduce_precision(bits, conforms):
    operation = f"stablehlo.reduce_precision $, format = e{bits[0]}m{bits[1]}"
    text = _function(operation, ["tensor<5xf32>"], "tensor<5xf32>")
    text = text.replace(": (tensor<5xf32>) -> tensor<5xf32>", ": tensor<5xf32>")
    conforms(text, np.array([1.0 + 2.0**-11, 3.14159, 1e6, -1e-7, NAN], np.float32))


def test_sixty_four_bit_integers_keep_their_width_inside_a_narrow_jit(evaluates_to):
    text = """func.func @main(%a: tensor<2xi32>) -> tensor<2xi64> {
      %0 = stablehlo.convert %a : (tensor<2xi32>) -> tensor<2xi64>
      %1 = stablehlo.multiply %0, %0 : tensor<2xi64>
      return %1 : tensor<2xi64>
    }"""
    evaluates_to(text, [np.array([2**20, -(2**31)], np.int32)], [np.array([2**40, 2**62], np.int64)])


def test_bitcasts_in_a_row_that_take_and_make_a_dimension(evaluates_to, tiny_target):
    """XLA would merge the two as if both were elementwise."""
    x = np.array([[1, 2], [3, 4]], np.float32)
    text = """func.func @main(%x: tensor<2x2xf32>) -> tensor<2x4xi16> {
      %0 = stablehlo.bitcast_convert %x : (tensor<2x2xf32>) -> tensor<2xf64>
      %1 = stablehlo.bitcast_convert %0 : (tensor<2xf64>) -> tensor<2x4xi16>
      return %1 : tensor<2x4xi16>
    }"""
    evaluates_to(text, [x], [x.view(np.int16)])
    (got,) = ipuxla.compile_stablehlo(text, tiny_target)(x)
    np.testing.assert_array_equal(got, x.view(np.int16))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8", "int16", "uint8"])
def test_a_division_by_a_constant_zero_does_not_end_the_process(dtype, small_target):
    """XLA:CPU (jaxlib 0.10.2) divides such constants while it compiles: ``jax.jit`` of this dies of SIGFPE."""
    x = np.array([5, 0, 3], dtype)

    def function(x):
        nothing = x ^ x
        zeros = jnp.zeros_like(x)
        quotient, rest = lax.div(jnp.full_like(x, 7) + nothing, zeros), lax.rem(jnp.full_like(x, 7), zeros)
        return quotient, rest, lax.rem(nothing, zeros), lax.div(x, jnp.where(x == 3, 2, zeros))

    ones = np.array(-1).astype(dtype)
    want = [ones] * 3, [7] * 3, [0] * 3, [ones, ones, 1]
    for engine in ("fast", "literal", "hlo"):
        found = ipuxla.jit(function, target=small_target, engine=engine)(x)
        for got, expected in zip(found, want, strict=True):
            np.testing.assert_array_equal(got, np.array(expected, dtype))


@pytest.mark.parametrize("engine", ["hlo", "fast", "literal"])
def test_functions_of_what_is_known_to_be_no_number(engine, tiny_target) -> None:
    """Plain ``jax.jit`` of ``exp(x + nan)`` makes any numbers of a few elements (jaxlib 0.10.2)."""

    def softmax(x):
        weights = jnp.exp(x - x.max(1, keepdims=True))
        return weights / weights.sum(1, keepdims=True)

    nan = np.float32(np.nan)
    functions = (softmax, jnp.exp, jnp.tanh, jnp.log, jnp.sin, jnp.square)
    x = np.array([[0.5, 0.0, -1.0]], np.float32)
    for found in ipuxla.jit(lambda x: [f(x + nan) for f in functions], target=tiny_target, engine=engine)(x):
        np.testing.assert_array_equal(found, np.full_like(x, np.nan))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("function", [jnp.abs, lambda x: x, lambda x: x + x])
def test_bits_of_what_is_known_to_be_no_number(function, dtype, tiny_target) -> None:
    words = np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")

    def bits(_):
        return lax.bitcast_convert_type(function(jnp.full((1, 3), np.nan, dtype)), words)

    x = np.ones((1, 3), dtype)
    np.testing.assert_array_equal(ipuxla.jit(bits, target=tiny_target)(x), jax.jit(bits)(x))
