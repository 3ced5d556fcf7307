"""Every elementwise operation in every element type, on all pairs of edge values, and on scalars and empty arrays.

The witness is StableHLO's reference interpreter. Types that it gives no buffers of (bfloat16, 8-bit floats) enter and
leave as f32. `pytest --extended` runs the whole matrix, the tests of every day a line of each kind.
"""

import numpy as np
import pytest

from hlo_passes.ir import DTYPES, OPS, SMALL_FLOATS
from hlo_passes.ops import Binary, Unary
from tests.conformance.conftest import evaluated, reference

INTEGERS = ("i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64")
FLOATS = ("f16", "bf16", "f32", "f64", *(name for name in SMALL_FLOATS if name != "f8E8M0FNU"))
TYPES = ("i1", *INTEGERS, *FLOATS)
WIDENED = {"bf16", *SMALL_FLOATS}
EXACT = {
    *(
        "abs",
        "add",
        "and",
        "ceil",
        "count_leading_zeros",
        "floor",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
    ),
    *(
        "or",
        "popcnt",
        "remainder",
        "round_nearest_afz",
        "round_nearest_even",
        "shift_left",
        "shift_right_arithmetic",
    ),
    *("shift_right_logical", "sign", "subtract", "xor", "imag", "real"),
}
TOLERANCE = {
    "f16": 2e-3,
    "bf16": 1e-2,
    "f32": 4e-6,
    "f64": 1e-13,
} | dict.fromkeys(SMALL_FLOATS, 0.26)
OPERATIONS = {
    name.removeprefix("stablehlo."): op for name, op in OPS.items() if issubclass(op, (Unary, Binary))
}
PERIODIC = {"sine", "cosine", "tan"}


def values(dtype, name):
    """Return the edge values of a type that an operation is defined on."""
    if dtype == "i1":
        return np.array([False, True])
    kind = DTYPES[dtype].np_dtype
    if dtype in INTEGERS:
        limits = np.iinfo(kind)
        found = {
            limits.min,
            limits.min + 1,
            0,
            1,
            2,
            3,
            5,
            7,
            8,
            31,
            64,
            limits.max // 3,
            limits.max - 1,
            limits.max,
        }
        found |= {-1, -2, -3, -7, -8} if limits.min else set()
        return np.array(sorted(found), kind)
    bounded = name in PERIODIC | {"tanh", "logistic"}
    found = [-np.inf, -1, -0.0, 0.0, 0.5, 1, 1.5, 2.5, 3, 6.5, -0.25, -2.5, -3.5, np.inf, np.nan]
    found += [] if bounded else [100.0, -100.0]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(found, np.float64).astype(kind)


def program(name, dtype, count, shape):
    """Return a program of one operation on arrays of one shape; types without buffers enter and leave as f32."""
    sizes = "".join(f"{n}x" for n in shape)
    inner, outer = f"tensor<{sizes}{dtype}>", f"tensor<{sizes}{'f32' if dtype in WIDENED else dtype}>"
    letters = "xy"[:count]
    read = "\n".join(f"%{n}0 = stablehlo.convert %{n} : ({outer}) -> {inner}" for n in letters)
    operands = ", ".join(f"%{n}0" for n in letters)
    return f"""func.func @main({", ".join(f"%{n}: {outer}" for n in letters)}) -> {outer} {{
      {read}
      %0 = "stablehlo.{name}"({operands}) : ({", ".join([inner] * count)}) -> {inner}
      %1 = stablehlo.convert %0 : ({inner}) -> {outer}
      return %1 : {outer}
    }}"""


def arguments(name, dtype, count):
    """Return all values, or all pairs of values that the reference interpreter can compute with."""
    found = values(dtype, name)
    if count == 1:
        return [found]
    x, y = (part.ravel() for part in np.meshgrid(found, found, indexing="ij"))
    if dtype in INTEGERS and name in ("divide", "remainder"):
        kept = (y != 0) & ~((x == np.iinfo(x.dtype).min) & (y.astype(object) == -1))
        return [x[kept], y[kept]]
    if name == "power" and dtype in INTEGERS:  # 0 to a negative power is a division by zero
        kept = (x != 0) | (y >= 0)
        return [x[kept], y[kept]]
    return [x, y]


def is_sound(name, dtype):
    """Whether the reference interpreter computes an operation: of f8E3M4 it rounds everything to NaN."""
    return not (dtype == "f8E3M4" and name in ("ceil", "floor", "round_nearest_afz", "round_nearest_even"))


CASES = [
    (name, dtype)
    for name, op in OPERATIONS.items()
    for dtype in TYPES
    if dtype in op.accepts and is_sound(name, dtype)
]
SAMPLE = [
    ("power", "i32"),
    ("shift_left", "ui8"),
    ("sign", "f16"),
    ("remainder", "bf16"),
    ("tanh", "f8E4M3FN"),
]


@pytest.mark.parametrize("name, dtype", SAMPLE)
def test_sample(name, dtype):
    check(name, dtype)


@pytest.mark.parametrize("name, dtype", CASES)
def test_elementwise(name, dtype):
    check(name, dtype)


def check(name, dtype):
    """Compare our evaluation with the reference interpreter's on edge values, a scalar and an empty array."""
    count = 1 if issubclass(OPERATIONS[name], Unary) else 2
    found = arguments(name, dtype, count)
    outer = np.float32 if dtype in WIDENED else DTYPES[dtype].np_dtype
    found = [x.astype(outer) for x in found]
    for arrays in (found, [x[-1] for x in found], [x[:0].reshape(0, 3) for x in found]):
        text = program(name, dtype, count, np.shape(arrays[0]))
        arrays = [np.asarray(x) for x in arrays]
        (got,), (want,) = evaluated(text, *arrays), reference(text, *arrays)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if name in EXACT or dtype == "i1" or dtype in INTEGERS:
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] / 8)


CONVERTED = (
    "i1",
    "i4",
    "ui2",
    "i8",
    "ui8",
    "i16",
    "i32",
    "ui32",
    "i64",
    "ui64",
    "f8E4M3FN",
    "f8E5M2",
    "f16",
    "bf16",
    "f32",
    "f64",
)


def convertible(source, target):
    """Return the values of a type that another type has, or (floats) rounds: beyond its range nothing is specified."""
    holder = {"i4": "i8", "ui2": "ui8"}
    found = values(holder.get(source, source), "convert")
    if source in holder:
        limit = {"i4": (-8, 7), "ui2": (0, 3)}[source]
        return np.arange(limit[0], limit[1] + 1).astype(DTYPES[holder[source]].np_dtype)
    if target in FLOATS or target == "i1" or source == "i1":
        return found
    if source in FLOATS:
        wide = found.astype(np.float64)
        bits = {"i4": 4, "ui2": 2}.get(target) or DTYPES[target].bits
        low = 0 if target.startswith("u") else -(2 ** (bits - 1))
        return found[np.isfinite(wide) & (np.trunc(wide) >= low) & (np.trunc(wide) < low + 2.0**bits)]
    return found


@pytest.mark.parametrize("target", CONVERTED)
@pytest.mark.parametrize("source", CONVERTED)
def test_convert(source, target):
    outer_in, outer_out = (
        "f32" if t in WIDENED else {"i4": "i8", "ui2": "ui8"}.get(t, t) for t in (source, target)
    )
    x = convertible(source, target)
    x = x.astype(DTYPES[outer_in].np_dtype)
    text = f"""func.func @main(%x: tensor<{x.size}x{outer_in}>) -> tensor<{x.size}x{outer_out}> {{
      %0 = stablehlo.convert %x : (tensor<{x.size}x{outer_in}>) -> tensor<{x.size}x{source}>
      %1 = stablehlo.convert %0 : (tensor<{x.size}x{source}>) -> tensor<{x.size}x{target}>
      %2 = stablehlo.convert %1 : (tensor<{x.size}x{target}>) -> tensor<{x.size}x{outer_out}>
      return %2 : tensor<{x.size}x{outer_out}>
    }}"""
    np.testing.assert_array_equal(evaluated(text, x)[0], reference(text, x)[0])
