"""``reduce`` with well-known combiners, several inputs, promotion and arbitrary regions."""

import numpy as np
import pytest

from hlo_passes.ir import Closure
from hlo_passes.ops import simple_combiner
from ipuxla.frontend.importer import import_stablehlo

X = np.array([[1, -2, 3], [5, 4, -6]], np.float32)


def _text(op, dtype, init, dimensions="[1]", shape="2"):
    result = f"tensor<{shape}{'x' if shape else ''}{dtype}>"
    return f"""func.func @main(%x: tensor<2x3x{dtype}>) -> {result} {{
      %i = stablehlo.constant dense<{init}> : tensor<{dtype}>
      %0 = stablehlo.reduce(%x init: %i) applies stablehlo.{op} across dimensions = {dimensions}
        : (tensor<2x3x{dtype}>, tensor<{dtype}>) -> {result}
      return %0 : {result}
    }}"""


@pytest.mark.parametrize("init", ["0.0", "10.0"])
@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum"])
def test_of_floats(op, init, conforms):
    conforms(_text(op, "f32", init), X)


@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum", "and", "or", "xor"])
def test_of_integers(op, conforms):
    conforms(_text(op, "i32", "3"), X.astype(np.int32))


@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum", "and", "or", "xor"])
def test_of_booleans(op, conforms):
    conforms(_text(op, "i1", "false"), X > 2)


@pytest.mark.parametrize(
    ("dimensions", "shape"), [("[0, 1]", ""), ("[0]", "3"), ("[]", "2x3"), ("[1, 0]", "")]
)
def test_dimensions(dimensions, shape, conforms):
    conforms(_text("add", "f32", "0.5", dimensions, shape), X)


def test_maximum_of_nan_is_nan(conforms):
    conforms(_text("maximum", "f32", "0xFF800000"), np.where(X == 4, np.nan, X).astype(np.float32))


def test_several_inputs_with_one_region(conforms):
    text = """func.func @main(%x: tensor<2x3xf32>, %i: tensor<2x3xi32>) -> (tensor<2xf32>, tensor<2xi32>) {
      %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %0:2 = stablehlo.reduce(%x init: %low), (%i init: %zero) across dimensions = [1]
        : (tensor<2x3xf32>, tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
        reducer(%a: tensor<f32>, %c: tensor<f32>) (%b: tensor<i32>, %d: tensor<i32>) {
          %p = stablehlo.compare GT, %a, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>
          %v = stablehlo.select %p, %a, %c : tensor<i1>, tensor<f32>
          %w = stablehlo.select %p, %b, %d : tensor<i1>, tensor<i32>
          stablehlo.return %v, %w : tensor<f32>, tensor<i32>
        }
      return %0#0, %0#1 : tensor<2xf32>, tensor<2xi32>
    }"""
    conforms(text, X, np.arange(6, dtype=np.int32).reshape(2, 3))


GENERAL = """func.func @main(%x: tensor<2x3xf32>, %i: tensor<f32>) -> tensor<2xf32> {
  %0 = stablehlo.reduce(%x init: %i) across dimensions = [1]
    : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {
      %s = stablehlo.abs %b : tensor<f32>
      %m = stablehlo.maximum %a, %s : tensor<f32>
      stablehlo.return %m : tensor<f32>
    }
  return %0 : tensor<2xf32>
}"""


def test_a_region_of_several_operations(conforms):
    conforms(GENERAL, X, np.float32(0))


def test_half_precision_accumulates_as_the_region_says(evaluates_to):
    text = """func.func @main(%x: tensor<4xf16>, %i: tensor<f16>) -> tensor<f32> {
      %0 = "stablehlo.reduce"(%x, %i) ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }) {dimensions = array<i64: 0>} : (tensor<4xf16>, tensor<f16>) -> tensor<f32>
      return %0 : tensor<f32>
    }"""
    values = np.array([65504, 65504, 1, 1], np.float16)
    evaluates_to(text, [values, np.float16(0)], [values.sum(dtype=np.float32)])


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [("add", "f32", "add"), ("multiply", "i32", "mul"), ("add", "i1", "or"), ("minimum", "i1", "and")],
)
def test_simple_combiner_names_the_operation(op, dtype, expected):
    init = "false" if dtype == "i1" else "0"
    reduce = import_stablehlo(_text(op, dtype, init.replace("0", "0.0") if dtype == "f32" else init))
    region = reduce.entry_computation.instructions[-1].regions[0]
    assert simple_combiner(region) == simple_combiner(Closure(region)) == expected


def test_simple_combiner_of_a_general_region_is_none():
    (reduce,) = import_stablehlo(GENERAL).entry_computation.instructions
    assert simple_combiner(reduce.regions[0]) is None
