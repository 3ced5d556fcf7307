"""Quantized types: the integers that are stored, against the specification's formulas in numpy."""

import numpy as np
import pytest

import ipuxla
from hlo_passes.errors import UnsupportedType
from ipuxla.frontend.importer import import_stablehlo
from tests.conformance.conftest import evaluated

A = np.array([1, -2, 100, -128], np.int8)
B = np.array([3, 5, 127, -128], np.int8)
X = np.array([[1.1, -5, 60, 300], [0.24, 0.75, -1000, 2]], np.float32)


def _type(scale, zero=0, storage="i8"):
    return f"!quant.uniform<{storage}:f32, {scale}:{zero}>"


def _dequantized(x, scale, zero=0):
    return (x.astype(np.float32) - np.float32(zero)) * np.asarray(scale, np.float32)


def _quantized(x, scale, zero=0, storage=np.int8):
    limits = np.iinfo(storage)
    stored = x / np.asarray(scale, np.float32) + np.asarray(zero, np.float32)
    return np.rint(np.clip(stored, limits.min, limits.max)).astype(storage)


def _binary(name):
    a, b, r = (f"tensor<4x{_type(*each)}>" for each in ((0.5, 3), (0.25, -1), (1.0, 2)))
    return f"""func.func @main(%a: {a}, %b: {b}) -> {r} {{
      %0 = "stablehlo.{name}"(%a, %b) : ({a}, {b}) -> {r}
      return %0 : {r}
    }}"""


@pytest.mark.parametrize(
    "name, function", [("add", np.add), ("multiply", np.multiply), ("maximum", np.maximum)]
)
def test_binary(name, function):
    if name == "maximum":  # takes operands of one type
        a = f"tensor<4x{_type(0.5, 3)}>"
        text = f"func.func @main(%a: {a}, %b: {a}) -> {a} {{ %0 = stablehlo.maximum %a, %b : {a} return %0 : {a} }}"
        want = function(A, B)
    else:
        text = _binary(name)
        want = _quantized(function(_dequantized(A, 0.5, 3), _dequantized(B, 0.25, -1)), 1.0, 2)
    np.testing.assert_array_equal(evaluated(text, A, B)[0], want)


@pytest.mark.parametrize("storage, holder", [("i8", np.int8), ("ui8", np.uint8), ("i16", np.int16)])
def test_per_axis(storage, holder):
    scales, zeros = (0.5, 0.25, 1.0, 2.0), (3, 0, 2, 1)
    pairs = ", ".join(f"{s}:{z}" for s, z in zip(scales, zeros, strict=True))
    q = f"tensor<2x4x!quant.uniform<{storage}:f32:1, {{{pairs}}}>>"
    text = f"""func.func @main(%x: tensor<2x4xf32>) -> ({q}, tensor<2x4xf32>) {{
      %0 = stablehlo.uniform_quantize %x : (tensor<2x4xf32>) -> {q}
      %1 = stablehlo.uniform_dequantize %0 : ({q}) -> tensor<2x4xf32>
      return %0, %1 : {q}, tensor<2x4xf32>
    }}"""
    stored, back = evaluated(text, X)
    want = _quantized(X, scales, zeros, holder)
    assert stored.dtype == holder
    np.testing.assert_array_equal(stored, want)
    np.testing.assert_array_equal(back, (want.astype(np.float32) - zeros) * np.float32(scales))


DOT = """func.func @main(%a: tensor<2x3x!quant.uniform<i8:f32, 0.5:3>>,
    %b: tensor<3x4x!quant.uniform<i8<-127:127>:f32:1, {0.5, 0.25, 1.0, 2.0}>>)
    -> tensor<2x4x!quant.uniform<i32:f32:1, {0.25, 0.125, 0.5, 1.0}>> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<2x3x!quant.uniform<i8:f32, 0.5:3>>,
       tensor<3x4x!quant.uniform<i8<-127:127>:f32:1, {0.5, 0.25, 1.0, 2.0}>>)
    -> tensor<2x4x!quant.uniform<i32:f32:1, {0.25, 0.125, 0.5, 1.0}>>
  return %0 : tensor<2x4x!quant.uniform<i32:f32:1, {0.25, 0.125, 0.5, 1.0}>>
}"""


@pytest.mark.parametrize("engine", ["fast", "literal"])
def test_contraction_on_tiles(engine, tiny_target):
    a, b = np.arange(6, dtype=np.int8).reshape(2, 3), np.arange(12, dtype=np.int8).reshape(3, 4)
    product = _dequantized(a, 0.5, 3) @ _dequantized(b, [0.5, 0.25, 1.0, 2.0])
    want = np.rint(product / np.array([0.25, 0.125, 0.5, 1.0])).astype(np.int32)
    (got,) = ipuxla.compile_stablehlo(DOT, tiny_target, engine=engine)(a, b)
    np.testing.assert_array_equal(got, want)


def test_what_has_no_form_in_integers_is_a_named_error():
    q = _type(0.5)
    text = f"""func.func @main(%a: tensor<3x{q}>) -> tensor<3x{q}> {{
      %0 = "stablehlo.sort"(%a) ({{
      ^bb0(%x: tensor<{q}>, %y: tensor<{q}>):
        %c = stablehlo.compare LT, %x, %y : (tensor<{q}>, tensor<{q}>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }}) {{dimension = 0 : i64}} : (tensor<3x{q}>) -> tensor<3x{q}>
      return %0 : tensor<3x{q}>
    }}"""
    with pytest.raises(UnsupportedType, match=r"quantized types(.|\n)*:2:(.|\n)*uniform_dequantize"):
        import_stablehlo(text)
