"""Operations on types whose edges differ: floats of 8 bits and fewer, complex numbers, arrays of nothing."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import ipuxla
from hlo_passes.ir import DTYPES, SMALL_FLOATS, TensorType, evaluate_module
from ipuxla.frontend.importer import import_stablehlo
from tests import xla
from tests.flow import assert_same_words
from tiles.target import Target


@pytest.mark.parametrize("engine", ["fast", "literal"])
@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_order_of_all_floats_of_eight_bits(dtype: str, engine: str, tiny_target: Target) -> None:
    """Numbers by their value; NaN is least where it has the bits of a negative zero, greatest elsewhere."""
    type_ = DTYPES[dtype].np_dtype
    x = np.random.default_rng(0).permutation(256).astype(np.uint8).view(type_)
    values = x.astype(np.float64)
    x = x[(values == values) & (values != 0)]
    nan = np.full(1, np.nan).astype(type_)
    x = np.concatenate([x[:90], nan, x[90:]])
    values = x.astype(np.float64)
    keys = np.where(values == values, values, -np.inf if dtype.endswith("FNUZ") else np.inf)
    order = np.lexsort((values != values, keys))  # NaN stands behind infinity

    @ipuxla.jit(target=tiny_target, engine=engine)
    def f(x):
        return jnp.argsort(x), lax.top_k(x, 5)[1]

    ascending, greatest = f(x)
    np.testing.assert_array_equal(ascending, order)
    if not np.signbit(nan.astype(np.float64))[0] or dtype.endswith("FNUZ"):
        np.testing.assert_array_equal(greatest, order[::-1][:5])


@pytest.mark.parametrize("dtype", ["f8E4M3FN", "f8E5M2FNUZ", "f4E2M1FN"])
@pytest.mark.parametrize("name", ["erf", "erfc", "bessel_i1e", "asin", "lgamma"])
def test_functions_of_small_floats_are_rounded_once(name: str, dtype: str) -> None:
    """CHLO's functions, which MLIR's formulas leave out for some types, computed as those of f32."""
    type_ = jnp.dtype(f"float{dtype[1]}_{dtype[2:].lower()}")
    x = np.linspace(-1, 1, 9, dtype=np.float32).astype(type_)
    want = np.asarray(getattr(lax, name)(x.astype(np.float32))).astype(type_)
    got = ipuxla.jit(getattr(lax, name))(x)
    assert got.dtype == type_
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 3)])
@pytest.mark.parametrize("dtype", ["f32", "complex<f64>", "i1", "i4", "ui2", "bf16", "f8E5M2", "f4E2M1FN"])
def test_constants_of_no_elements(dtype: str, shape: tuple[int, ...]) -> None:
    """MLIR writes them as nothing, or as one element that all of them equal."""
    type_ = f"tensor<{'x'.join(map(str, shape))}x{dtype}>"
    element = {"complex<f64>": "(1.0, 2.0)", "i1": "true"}.get(dtype, "1" if "i" in dtype else "1.0")
    for elements in ("", element):
        text = f"func.func @main() -> {type_} {{ %0 = stablehlo.constant dense<{elements}> : {type_}\nreturn %0 : {type_} }}"
        (got,) = evaluate_module(import_stablehlo(text))
        assert got.shape == shape


@pytest.mark.parametrize("pair", [("complex<f64>", "complex<f32>"), ("complex<f32>", "complex<f64>")])
@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
def test_bits_of_complex_numbers_are_those_in_memory(
    pair: tuple[str, str], engine: str, tiny_target: Target
) -> None:
    old, new = pair
    x = np.random.default_rng(0).standard_normal((3, 8)).view(DTYPES[old].np_dtype)
    x = x.reshape(3, -1, 2) if old == "complex<f32>" else x
    want = np.ascontiguousarray(x).view(DTYPES[new].np_dtype)
    want = want[..., 0] if old == "complex<f32>" else want.reshape(*x.shape, 2)
    tx, tr = TensorType.of(x), TensorType.of(want)
    text = f"func.func @main(%x: {tx}) -> {tr} {{ %0 = stablehlo.bitcast_convert %x : ({tx}) -> {tr}\nreturn %0 : {tr} }}"
    (got,) = ipuxla.compile_stablehlo(text, tiny_target, engine=engine)(x)
    np.testing.assert_array_equal(np.asarray(got).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
def test_complex_numbers_are_true_unless_both_parts_are_zero(engine: str, tiny_target: Target) -> None:
    x = np.array([0, 1, 1j, -0j, complex(-0.0, 0), np.nan, complex(0, np.nan), 1e-30j], np.complex64)
    text = """func.func @main(%x: tensor<8xcomplex<f32>>) -> tensor<8xi1> {
      %0 = stablehlo.convert %x : (tensor<8xcomplex<f32>>) -> tensor<8xi1>
      return %0 : tensor<8xi1>
    }"""
    (got,) = ipuxla.compile_stablehlo(text, tiny_target, engine=engine)(x)
    np.testing.assert_array_equal(got, x.astype(bool))


@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_precision_without_a_fraction_keeps_infinities(dtype: str, engine: str, tiny_target: Target) -> None:
    values = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, 1.5, -1.25, 3.0, 6e4]
    x = np.array(values).astype(DTYPES[dtype].np_dtype)
    type_ = TensorType.of(x)
    body = "\n".join(
        f"%{e} = stablehlo.reduce_precision %x, format = e{e}m0 : {type_}" for e in (1, 2, 3, 5, 8)
    )
    types = ", ".join([str(type_)] * 5)
    text = f"func.func @main(%x: {type_}) -> ({types}) {{ {body}\nreturn %1, %2, %3, %5, %8 : {types} }}"
    got = ipuxla.compile_stablehlo(text, tiny_target, engine=engine)(x)
    for mine, theirs in zip(got, xla.evaluate(text, x), strict=True):
        np.testing.assert_array_equal(np.asarray(mine).astype(np.float64), theirs.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_powers_are_as_near_as_xlas(dtype: type, tiny_target: Target) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((2, 3000)) + 1j * rng.standard_normal((2, 3000))).astype(dtype)
    x = np.concatenate([x, x * 30, np.abs(x.real) + 0j]).astype(dtype)
    y = np.concatenate([y, y, y * 5]).astype(dtype)
    exact = x.astype(np.clongdouble) ** y.astype(np.clongdouble)
    with jax.enable_x64(True):
        errors = [
            np.abs(np.asarray(f(x, y)) - exact) / np.abs(exact)
            for f in (ipuxla.jit(lax.pow, target=tiny_target), jax.jit(lax.pow))
        ]
    mine, theirs = ([np.mean(part) for part in np.split(error, 3)] for error in errors)
    assert all(m <= 1.2 * t for m, t in zip(mine, theirs, strict=True)), (mine, theirs)


@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
def test_truth_values_are_limited(engine: str, tiny_target: Target) -> None:
    low, x, high = np.array(list(itertools.product([False, True], repeat=3))).T
    got = ipuxla.jit(lax.clamp, target=tiny_target, engine=engine)(low, x, high)
    np.testing.assert_array_equal(got, (low | x) & high)


@pytest.mark.parametrize("engine", ["fast", "literal", "hlo"])
@pytest.mark.parametrize("dtype", ["int16", "int32"])
def test_integers_are_rounded_once(engine: str, dtype: str, tiny_target: Target) -> None:
    """``ml_dtypes`` rounds to the nearest; 9219 lies above the middle of two floats, which float16 would round it to."""
    x = np.concatenate([np.arange(-(2**15), 2**15, 13), [9219, -9219]]).astype(dtype)

    def function(x):
        return x.astype(jnp.float8_e5m2).astype(jnp.float32) * 2

    got = ipuxla.jit(function, target=tiny_target, engine=engine)(x)
    np.testing.assert_array_equal(got, x.astype(ml_dtypes.float8_e5m2).astype(np.float32) * 2)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint32", "int64"])
def test_converted_integers_are_the_same_words_on_every_engine(dtype: str, tiny_target: Target) -> None:
    """Fuzzing found codelets that converted by way of float32 where the module did not, which the ring tells apart."""
    x = np.array([0, 1, 5, 77, 100], dtype)

    def function(x):
        return [x.astype(DTYPES[name].np_dtype) for name in SMALL_FLOATS]

    with jax.enable_x64(True):
        words = [
            ipuxla.jit(function, target=tiny_target, engine=engine, arithmetic="ring")(x)
            for engine in ("hlo", "fast", "literal")
        ]
    for found in words[1:]:
        assert [np.asarray(f).tobytes() for f in found] == [np.asarray(w).tobytes() for w in words[0]]


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3b11fnuz", "bfloat16"])
def test_counted_floats_are_the_same_words_on_every_engine(dtype: str, tiny_target: Target) -> None:
    """Fuzzing found numbers counted by an iota and those computed from it, as in a fused concatenation, to be other words."""

    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        count = lax.iota(dtype, 4)
        return jnp.concatenate([x + count] * 2), x + count[::-1], x + count, x + jnp.arange(4).astype(dtype)

    x = np.array([0.5, -1, 3, 2]).astype(jnp.dtype(dtype))
    engines = ("hlo", "fast", "literal", "vertex", "tile")
    results = [ipuxla.jit(function, target=tiny_target, engine=e, arithmetic="ring")(x) for e in engines]
    for engine, result in zip(engines[1:], results[1:], strict=True):
        assert_same_words([*map(np.asarray, result)], [*map(np.asarray, results[0])], engine)
