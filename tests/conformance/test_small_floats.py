"""Floats of 8 bits: every value, and every pair of values, against numpy's types of ml_dtypes."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import ipuxla
from hlo_passes.ir import DTYPES, SMALL_FLOATS
from ipuxla.signature import narrow_name
from tests.conformance.conftest import evaluated

ARITHMETIC = [name for name in SMALL_FLOATS if name != "f8E8M0FNU"]  # that one has neither zero nor sign


def _all(name):
    return np.arange(256, dtype=np.uint8).view(DTYPES[name].np_dtype)


def _same(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_conversion(name):
    """Every value to f32, and numbers between, at and beyond the values of the type from f32 and f16."""
    x = _all(name)
    numbers = np.unique(np.abs(x.astype(np.float32))[np.isfinite(x.astype(np.float32))])
    between = np.concatenate(
        [numbers, (numbers[1:] + numbers[:-1]) / 2, numbers * np.float32(1.07), [3e8, np.inf, np.nan]]
    )
    between = np.concatenate([between, -between]).astype(np.float32)
    if name == "f8E8M0FNU":  # beyond a power of two that numpy rounds up to infinity there is none
        between = between[(between > 1e-30) & (between < 1e30)]
    n = len(between)
    text = f"""func.func @main(%x: tensor<256x{name}>, %y: tensor<{n}xf32>) -> (tensor<256xf32>, tensor<{n}x{name}>, tensor<256xui8>) {{
      %0 = stablehlo.convert %x : (tensor<256x{name}>) -> tensor<256xf32>
      %1 = stablehlo.convert %y : (tensor<{n}xf32>) -> tensor<{n}x{name}>
      %2 = stablehlo.bitcast_convert %x : (tensor<256x{name}>) -> tensor<256xui8>
      return %0, %1, %2 : tensor<256xf32>, tensor<{n}x{name}>, tensor<256xui8>
    }}"""
    wide, narrow, bits = evaluated(text, x, between)
    np.testing.assert_array_equal(wide, x.astype(np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        _same(narrow, between.astype(DTYPES[name].np_dtype))
    np.testing.assert_array_equal(bits, np.arange(256))


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name):
    """What is computed in f32 and rounded once: that is enough bits for sums, products and quotients."""
    values = _all(name)
    x, y = (part.ravel() for part in np.meshgrid(values, values))
    type_ = f"tensor<{x.size}x{name}>"
    operations = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
    operations |= {"maximum": np.maximum, "minimum": np.minimum}
    rows = "\n".join(f"%{op} = stablehlo.{op} %x, %y : {type_}" for op in operations)
    text = f"""func.func @main(%x: {type_}, %y: {type_}) -> ({", ".join([type_] * len(operations))}, tensor<{x.size}xi1>) {{
      {rows}
      %c = stablehlo.compare LT, %x, %y : ({type_}, {type_}) -> tensor<{x.size}xi1>
      return {", ".join(f"%{op}" for op in operations)}, %c : {", ".join([type_] * len(operations))}, tensor<{x.size}xi1>
    }}"""
    *got, less = evaluated(text, x, y)
    wide = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        for mine, function in zip(got, operations.values(), strict=True):
            _same(mine, function(*wide).astype(x.dtype))
        np.testing.assert_array_equal(less, wide[0] < wide[1])


def test_constants_keep_their_bits():
    text = """func.func @main() -> (tensor<3xf8E4M3FN>, tensor<2xf8E5M2>, tensor<f8E8M0FNU>) {
      %0 = stablehlo.constant dense<[1.5, -448.0, 0x7F]> : tensor<3xf8E4M3FN>
      %1 = stablehlo.constant dense<0xFC> : tensor<2xf8E5M2>
      %2 = stablehlo.constant dense<4.0> : tensor<f8E8M0FNU>
      return %0, %1, %2 : tensor<3xf8E4M3FN>, tensor<2xf8E5M2>, tensor<f8E8M0FNU>
    }"""
    first, second, third = (np.asarray(x).view(np.uint8).tolist() for x in evaluated(text))
    assert (first, second, third) == ([0x3C, 0xFE, 0x7F], [0xFC, 0xFC], 0x81)


def _network(name):
    return f"""func.func @main(%x: tensor<6x9x{name}>, %w: tensor<9x5x{name}>) -> (tensor<6x5xf32>, tensor<5x{name}>, tensor<6x{name}>) {{
      %zero = stablehlo.constant dense<0.0> : tensor<{name}>
      %low = stablehlo.constant dense<-8.0> : tensor<{name}>
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<6x9x{name}>, tensor<9x5x{name}>) -> tensor<6x5xf32>
      %1 = stablehlo.reduce(%w init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<9x5x{name}>, tensor<{name}>) -> tensor<5x{name}>
      %2 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1]
        : (tensor<6x9x{name}>, tensor<{name}>) -> tensor<6x{name}>
      return %0, %1, %2 : tensor<6x5xf32>, tensor<5x{name}>, tensor<6x{name}>
    }}"""


@pytest.mark.parametrize("engine", ["fast", "literal", "vertex"])
@pytest.mark.parametrize("name", ["f8E4M3FN", "f8E5M2"])
def test_engines(name, engine, tiny_target):
    rng = np.random.default_rng(0)
    dtype = DTYPES[name].np_dtype
    x, w = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((6, 9), (9, 5)))
    run, ring, witness = (
        ipuxla.compile_stablehlo(_network(name), tiny_target, engine=e, arithmetic=a)(x, w)
        for e, a in ((engine, "float"), (engine, "ring"), ("hlo", "ring"))
    )
    wide = x.astype(np.float32), w.astype(np.float32)
    np.testing.assert_array_equal(run[0], wide[0] @ wide[1])
    _same(run[1], wide[1].sum(0).astype(dtype))
    _same(run[2], wide[0].max(1).astype(dtype))
    for mine, theirs in zip(ring, witness, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_a_constant_that_counts_in_the_ring(engine, tiny_target):
    """XLA makes a count of it, whose 8-bit floats its CPU compiler has no code for."""
    text = """func.func @main(%x: tensor<3xf8E4M3FN>) -> tensor<3xf8E4M3FN> {
      %0 = stablehlo.constant dense<[0.0, 1.0, 2.0]> : tensor<3xf8E4M3FN>
      %1 = stablehlo.add %x, %0 : tensor<3xf8E4M3FN>
      return %1 : tensor<3xf8E4M3FN>
    }"""
    x = _all("f8E4M3FN")[40:43]
    found, witness = (
        ipuxla.compile_stablehlo(text, tiny_target, engine=e, arithmetic="ring")(x) for e in (engine, "hlo")
    )
    np.testing.assert_array_equal(found, witness)


@pytest.mark.parametrize("engine", ["hlo", "fast", "literal"])
@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3fn", "float8_e4m3b11fnuz"])
def test_a_constant_that_counts_in_a_loop(dtype, engine, tiny_target):
    """Of which plain ``jax.jit`` makes invalid code (jaxlib 0.10.2): XLA makes a count of the constant there."""
    dtype = jnp.dtype(dtype)
    x, step = np.array([1, 0, 3]).astype(dtype), np.array([0, 1, 2]).astype(dtype)

    def f(x):
        return jax.lax.fori_loop(0, 3, lambda _, y: y + jnp.asarray(step), x)

    _same(ipuxla.jit(f, target=tiny_target, engine=engine)(x), np.array([1, 3, 9]).astype(dtype))


NARROW = ("f4E2M1FN", "f6E2M3FN", "f6E3M2FN")


def _narrow_values(name):
    dtype = np.dtype(getattr(ml_dtypes, narrow_name(name)))
    return np.arange(1 << int(name[1]), dtype=np.uint8).view(dtype)


@pytest.mark.parametrize("name", NARROW)
def test_narrow_conversion(name):
    """Numbers between, at and beyond those of the type; NaN becomes -0."""
    x = _narrow_values(name)
    numbers = x.astype(np.float32)[: len(x) // 2]
    middle = (numbers[1:] + numbers[:-1]) / 2
    found = [
        numbers,
        middle,
        np.nextafter(middle, 99),
        np.nextafter(middle, -99),
        [100, 1e30, np.inf, 1e-30],
    ]
    y = np.concatenate(found).astype(np.float32)
    y = np.concatenate([y, -y, np.array([np.nan], np.float32)])
    text = f"""func.func @main(%y: tensor<{y.size}xf32>) -> tensor<{y.size}x{name}> {{
      %0 = stablehlo.convert %y : (tensor<{y.size}xf32>) -> tensor<{y.size}x{name}>
      return %0 : tensor<{y.size}x{name}>
    }}"""
    (got,) = evaluated(text, y)
    want = y.astype(x.dtype).astype(np.float16)
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize("name", NARROW)
def test_narrow_arithmetic(name):
    values = _narrow_values(name)
    x, y = (part.ravel() for part in np.meshgrid(values, values))
    type_ = f"tensor<{x.size}x{name}>"
    text = f"""func.func @main(%x: {type_}, %y: {type_}) -> ({type_}, {type_}, {type_}) {{
      %0 = stablehlo.add %x, %y : {type_}
      %1 = stablehlo.multiply %x, %y : {type_}
      %2 = stablehlo.maximum %x, %y : {type_}
      return %0, %1, %2 : {type_}, {type_}, {type_}
    }}"""
    wide = x.astype(np.float16), y.astype(np.float16)
    for got, function in zip(evaluated(text, *wide), (np.add, np.multiply, np.maximum), strict=True):
        np.testing.assert_array_equal(got, function(*wide).astype(x.dtype).astype(np.float16))


def test_bits_of_four_bit_floats_and_constants(tiny_target):
    text = """func.func @main(%x: tensor<8x2xf4E2M1FN>) -> (tensor<8xui8>, tensor<8x2xf4E2M1FN>, tensor<2xf4E2M1FN>) {
      %0 = stablehlo.bitcast_convert %x : (tensor<8x2xf4E2M1FN>) -> tensor<8xui8>
      %1 = stablehlo.bitcast_convert %0 : (tensor<8xui8>) -> tensor<8x2xf4E2M1FN>
      %2 = stablehlo.constant dense<[1.5, -0.5]> : tensor<2xf4E2M1FN>
      return %0, %1, %2 : tensor<8xui8>, tensor<8x2xf4E2M1FN>, tensor<2xf4E2M1FN>
    }"""
    x = _narrow_values("f4E2M1FN").reshape(8, 2)
    bits, back, constant = ipuxla.compile_stablehlo(text, tiny_target)(x)
    codes = np.arange(16)
    np.testing.assert_array_equal(bits, codes[::2] | codes[1::2] << 4)
    np.testing.assert_array_equal(np.asarray(back).view(np.uint8), x.view(np.uint8))
    assert np.asarray(constant).astype(float).tolist() == [1.5, -0.5] and back.dtype == x.dtype


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3fn"])
def test_sums_of_updates_in_small_floats_certify(dtype, small_target):
    """Steps add them in another order than the codelet, which changes such sums by any factor; the ring tells what is wrong."""

    def function(x, at):
        return jnp.zeros(300, x.dtype).at[at].add(x)

    x = np.arange(300).astype(ml_dtypes.finfo(dtype).dtype)
    at = (np.arange(300) * 7919 % 300).astype(np.uint32)
    compiled = ipuxla.jit(function, target=small_target).lower(x, at).compile()
    compiled.certify()
    assert compiled.executable.composites
    np.testing.assert_array_equal(compiled(x, at)[at].astype(np.float32), x.astype(np.float32))
