"""The function table: every function against numpy, and against the HLO operation of its name in the ring."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_passes import ops
from hlo_passes.ir.op import OPS
from tests.unit.tiles.poplibs_cells import run_whole, whole_cell, words
from tiles.errors import InvalidGraph
from tiles.graph import codelet_from_data, identity_map
from tiles.numerics.ring import ring
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops import Map, arg, call
from tiles.poplibs.popops.expr import compare, constant_row, rows_of, select
from tiles.poplibs.popops.expression import FUNCTIONS, body_dtypes, kind_of

assert ops  # imported for the operations it registers

X = np.array([-1.5, 0.25, 2.5], np.float32)
Y = np.array([2.0, -0.75, 1.25], np.float32)
I = np.array([-7, 3, 40], np.int32)  # noqa: E741
J = np.array([2, 5, -3], np.int32)


def _row_codelet(name, dtypes, attrs=()):
    body = ((name, tuple(range(len(dtypes))), attrs),)
    return Map(body, (len(dtypes),), tuple(dtypes), (body_dtypes(body, tuple(dtypes))[-1],))


def _apply(name, *operands, attrs=()):
    codelet = _row_codelet(name, [x.dtype.name for x in operands], attrs)
    form = map_form(operands[0].shape, [identity_map(operands[0].ndim)] * len(operands))
    return run_whole(codelet, form, *operands)[0]


UNARY = {
    "abs": np.abs,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "floor": np.floor,
    "is_finite": np.isfinite,
    "negate": np.negative,
    "round_nearest_even": np.round,
    "round_nearest_afz": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    "sign": np.sign,
    "sine": np.sin,
    "tan": np.tan,
    "tanh": np.tanh,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
}
POSITIVE = {"log": np.log, "log_plus_one": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x)}
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "remainder": np.fmod,
    "atan2": np.arctan2,
}
INTEGER = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "divide": lambda a, b: np.trunc(a / b).astype(a.dtype),
    "remainder": np.fmod,
    "add": np.add,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_equal_numpy(name):
    np.testing.assert_allclose(_apply(name, X), UNARY[name](X), rtol=1e-6)


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers_equal_numpy(name):
    x = np.abs(X)
    np.testing.assert_allclose(_apply(name, x), POSITIVE[name](x), rtol=1e-6)


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_equal_numpy(name):
    np.testing.assert_allclose(_apply(name, X, Y), BINARY[name](X, Y), rtol=1e-6)


@pytest.mark.parametrize("name", INTEGER)
def test_integer_functions_equal_numpy(name):
    np.testing.assert_array_equal(_apply(name, I, J), INTEGER[name](I, J))


def test_power_of_floats_and_of_integers():
    np.testing.assert_allclose(_apply("power", np.abs(X), Y), np.power(np.abs(X), Y), rtol=1e-5)
    base, exponent = np.array([-3, 2, -1], np.int32), np.array([3, -1, -3], np.int32)
    np.testing.assert_array_equal(_apply("power", base, exponent), [-27, 0, -1])


def test_bits_shifts_and_counts():
    u = np.array([1, 0x80000000, 0xF0], np.uint32)
    np.testing.assert_array_equal(_apply("popcnt", u), [1, 1, 4])
    np.testing.assert_array_equal(_apply("count_leading_zeros", u), [31, 0, 24])
    np.testing.assert_array_equal(_apply("not", u), ~u)
    two = np.full(3, 2, np.int32)
    np.testing.assert_array_equal(_apply("shift_left", I, two), I * 4)
    np.testing.assert_array_equal(_apply("shift_right_arithmetic", I, two), I >> 2)
    logical = (I.view(np.uint32) >> 2).view(np.int32)
    np.testing.assert_array_equal(_apply("shift_right_logical", I, two), logical)


def test_booleans_add_as_or_and_multiply_as_and():
    a, b = np.array([True, True, False]), np.array([True, False, False])
    np.testing.assert_array_equal(_apply("add", a, b), a | b)
    np.testing.assert_array_equal(_apply("multiply", a, b), a & b)
    np.testing.assert_array_equal(_apply("maximum", a, b), a | b)
    np.testing.assert_array_equal(_apply("minimum", a, b), a & b)


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
def test_comparisons(direction):
    expected = {"EQ": X == Y, "NE": X != Y, "LT": X < Y, "LE": X <= Y, "GT": X > Y, "GE": X >= Y}[direction]
    np.testing.assert_array_equal(_apply("compare", X, Y, attrs=(("direction", direction),)), expected)


def test_total_order_puts_negative_zero_and_nan_in_their_place():
    a = np.array([-0.0, np.nan, -np.nan], np.float32)
    b = np.array([0.0, np.inf, -np.inf], np.float32)
    attrs = (("direction", "LT"), ("compare_type", "TOTALORDER"))
    np.testing.assert_array_equal(_apply("compare", a, b, attrs=attrs), [True, False, True])


def test_select_clamp_conversions_and_rounding():
    mask = np.array([True, False, True])
    np.testing.assert_array_equal(_apply("select", mask, X, Y), np.where(mask, X, Y))
    low, high = np.full(3, -1, np.float32), np.full(3, 1, np.float32)
    np.testing.assert_array_equal(_apply("clamp", low, X, high), np.clip(X, -1, 1))
    np.testing.assert_array_equal(_apply("convert", X, attrs=(("dtype", "int32"),)), X.astype(np.int32))
    np.testing.assert_array_equal(_apply("convert", X, attrs=(("dtype", "bool"),)), X != 0)
    bits = _apply("bitcast_convert", X, attrs=(("dtype", "uint32"),))
    np.testing.assert_array_equal(bits, X.view(np.uint32))
    third = np.array([1 / 3] * 3, np.float32)
    attrs = (("exponent_bits", 5), ("mantissa_bits", 10))
    np.testing.assert_array_equal(_apply("reduce_precision", third, attrs=attrs), third.astype(np.float16))


@pytest.mark.parametrize(
    ("value", "dtype", "bits"),
    [
        (1.5, "float32", 0x3FC00000),
        ("-inf", "float32", 0xFF800000),
        ("nan", "float16", 0x7E00),
        ("0x7fc1", "bfloat16", 0x7FC1),
        (1.0, "bfloat16", 0x3F80),
        (-1, "int16", 0xFFFF),
        (True, "bool", 1),
    ],
)
def test_constants_have_exactly_their_bits(value, dtype, bits):
    codelet = Map((("constant", (), (("value", value), ("dtype", dtype))),), (0,), (), (dtype,))
    (result,) = run_whole(codelet, map_form((2, 3), []))
    assert result.shape == (2, 3)
    kind = f"u{result.dtype.itemsize}"
    if np.isnan(
        result.astype(np.float32)
    ).any():  # on a CPU without bfloat16 XLA keeps no more of one than that it is a NaN
        value = np.array(bits, kind).view(result.dtype)
        bits = np.asarray(jax.jit(lambda: jnp.full((2, 3), value))()).view(kind)
    np.testing.assert_array_equal(result.view(kind), np.full((2, 3), bits, kind))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_iota_counts_from_the_cells_origin(dtype):
    codelet = Map((("iota", (), (("dim", 1), ("dtype", dtype))),), (0,), (), (dtype,))
    form = map_form((2, 6), [])
    cell = type(whole_cell(form))(form, (2, 3), (0, 3), (None, None))
    (part,) = codelet.compute(cell)
    assert part.dtype == dtype
    np.testing.assert_array_equal(part, [[3, 4, 5]] * 2)


def _sample(dtype, seed):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, (2, 3)).astype(bool)
    if kind_of(dtype) == "F":
        return np.asarray(jnp.asarray(rng.standard_normal((2, 3)), dtype))
    return rng.integers(0 if dtype.startswith("u") else -9, 9, (2, 3)).astype(dtype)


def _hlo_op(name, attrs):
    return OPS[f"stablehlo.{name}"](**dict(attrs))


SAMPLE_ATTRS = {
    "compare": [(("direction", "LT"),), (("direction", "EQ"), ("compare_type", "TOTALORDER"))],
    "reduce_precision": [(("exponent_bits", 5), ("mantissa_bits", 10))],
}
WITNESSED = ("float32", "bfloat16", "float64", "int8", "int32", "int64", "uint32", "bool")
MEANS = {"divide_by_inverse": "divide"}
"""Functions that have another's meaning and a vertex of their own."""
SHARED = [n for n, f in FUNCTIONS.items() if not f.is_source and f.attributes[:1] != ("dtype",)]


def _witnessed(name, dtypes, attrs):
    """Return a codelet and an HLO operation of the same meaning, each in the ring, and sample operands."""
    form = map_form((2, 3), [identity_map(2)] * len(dtypes))
    codelet, op = _row_codelet(name, dtypes, attrs), _hlo_op(MEANS.get(name, name), _spelled_for_hlo(attrs))
    ours = ring(lambda *xs: codelet.compute(whole_cell(form), *xs))
    theirs = ring(lambda *xs: op.evaluate(*xs))
    return ours, theirs, [_sample(d, seed) for seed, d in enumerate(dtypes)]


def _spelled_for_hlo(attrs):
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "bool": "i1"}
    return tuple((key, names[value] if key == "dtype" else value) for key, value in attrs)


def _check_same_bits(cases):
    """Compile all cases as one program and compare each pair of results."""
    pairs = jax.jit(lambda groups: [(c[0](*xs), c[1](*xs)) for c, xs in zip(cases, groups, strict=True)])(
        [case[2] for case in cases]
    )
    for ours, theirs in pairs:
        np.testing.assert_array_equal(np.asarray(ours[0]), np.asarray(theirs[0]))


@pytest.mark.parametrize("name", SHARED)
def test_every_function_means_what_the_hlo_operation_means_on_every_bit(name):
    function = FUNCTIONS[name]
    cases = []
    with jax.enable_x64(True):
        for dtype in WITNESSED:
            if kind_of(dtype) not in function.accepts:
                continue
            dtypes = ["bool", dtype, dtype] if name == "select" else [dtype] * function.arity
            for attrs in SAMPLE_ATTRS.get(name, [()]):
                if dict(attrs).get("compare_type") is None or kind_of(dtype) == "F":
                    cases.append(_witnessed(name, dtypes, attrs))
        _check_same_bits(cases)


def test_conversions_mean_what_the_hlo_operation_means_on_every_bit():
    names = ("float32", "float16", "bfloat16", "int32", "bool")
    _check_same_bits([_witnessed("convert", [a], (("dtype", b),)) for a in names for b in names])


def test_expressions_become_rows_once_and_numbers_take_the_dtype_beside_them():
    square = arg(0) * arg(0)
    body, outputs = rows_of([square + 1.0, square], ("float16",))
    assert [row[0] for row in body] == ["multiply", "constant", "add"]
    assert outputs == (3, 1)
    assert body[1] == constant_row(1.0, "float16")


def test_an_expression_computes_what_it_says():
    x = arg(0)
    node = select((x > 0.0) & (x < 2.0), -abs(x) / 2.0, call("exponential", x - 1.0) ** 2.0)
    body, (output,) = rows_of([node], ("float32",))
    codelet = Map(body, (output,), ("float32",), ("float32",))
    (result,) = run_whole(codelet, map_form((3,), [identity_map(1)]), X)
    expected = np.where((X > 0) & (X < 2), -np.abs(X) / 2, np.exp(X - 1) ** 2)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_codelets_survive_their_data():
    body = (constant_row(float("-inf"), "float32"), ("maximum", (0, 1), ()))
    codelet = Map(body, (2,), ("float32",), ("float32",))
    assert codelet_from_data(codelet.to_data()) == codelet


@pytest.mark.parametrize(
    ("body", "operands", "message"),
    [
        ((("nonsense", (0,), ()),), ("float32",), "no elementwise function 'nonsense'"),
        ((("add", (0,), ()),), ("float32",), "add takes 2"),
        ((("add", (0, 1), ()),), ("float32", "float16"), "one dtype"),
        ((("sqrt", (0,), ()),), ("int32",), "sqrt does not take int32"),
        ((("select", (0, 0, 0), ()),), ("float32",), "boolean predicate"),
        ((("negate", (3,), ()),), ("float32",), "negate takes 1"),
        ((("negate", (0,), (("bad", 1),)),), ("float32",), "attributes"),
        ((("convert", (0,), (("dtype", "float32"), ("accumulates", True))),), ("int32",), "accumulate"),
    ],
)
def test_malformed_expressions_are_named(body, operands, message):
    with pytest.raises(InvalidGraph, match=message):
        Map(body, (len(operands),), operands, ("float32",))


def test_a_result_of_another_dtype_is_refused():
    with pytest.raises(InvalidGraph, match="other dtypes"):
        Map((("compare", (0, 0), (("direction", "EQ"),)),), (1,), ("float32",), ("float32",))
    with pytest.raises(InvalidGraph, match="numbers alone"):
        rows_of([compare("EQ", 1.0, 2.0)], ())


def test_words_of_neutral_elements_stay_neutral():
    np.testing.assert_array_equal(words(np.array([0.0, 1.0, -np.inf], np.float32)), [0, 1, 0])
