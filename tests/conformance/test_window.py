"""``reduce_window`` and ``select_and_scatter`` against the reference interpreter."""

import numpy as np
import pytest

ADD = """^bb0(%x: tensor<{t}>, %y: tensor<{t}>):
    %r = stablehlo.{op} %x, %y : tensor<{t}>
    stablehlo.return %r : tensor<{t}>"""


def _attributes(window, strides=None, padding=None, **dilations):
    """Return the attributes of windows over a matrix."""
    found = [f"window_dimensions = array<i64: {window}>"]
    found += [f"window_strides = array<i64: {strides}>"] if strides else []
    found += [f"padding = dense<{padding}> : tensor<2x2xi64>"] if padding else []
    found += [f"{name} = array<i64: {value}>" for name, value in dilations.items()]
    return ", ".join(found)


WINDOWS = [
    ("plain", (4, 6), (3, 5), _attributes("2, 2")),
    ("strided", (5, 6), (2, 3), _attributes("3, 2", "2, 2")),
    ("padded", (4, 4), (4, 3), _attributes("3, 3", padding="[[1, 1], [1, 0]]")),
    ("negative padding", (5, 5), (3, 4), _attributes("2, 2", padding="[[-1, 0], [1, -1]]")),
    ("spread operand", (3, 3), (4, 6), _attributes("2, 2", base_dilations="2, 3")),
    ("spread window", (5, 6), (1, 4), _attributes("3, 2", window_dilations="2, 2")),
]


def _type(shape, dtype):
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


def _reduce(shape, result, attributes, operation="add", dtype="f32"):
    operand, start, out = _type(shape, dtype), _type((), dtype), _type(result, dtype)
    return f"""func.func @main(%a: {operand}, %i: {start}) -> {out} {{
      %0 = "stablehlo.reduce_window"(%a, %i) <{{{attributes}}}> ({{
        {ADD.format(t=dtype, op=operation)}
      }}) : ({operand}, {start}) -> {out}
      return %0 : {out}
    }}"""


@pytest.mark.parametrize("case", WINDOWS, ids=lambda case: case[0])
def test_windows(case, conforms):
    _, shape, result, attributes = case
    x = np.random.default_rng(0).integers(-9, 10, shape).astype(np.float32)
    conforms(_reduce(shape, result, attributes), x, np.float32(0))


@pytest.mark.parametrize("case", ["maximum 3", "minimum 3", "multiply 1", "add 0", "and -1", "or 2", "xor 0"])
def test_combiners(case, conforms):
    operation, start = case.split()
    x = np.random.default_rng(0).integers(-9, 10, (4, 4)).astype(np.int32)
    text = _reduce((4, 4), (4, 3), WINDOWS[2][3], operation, "i32")
    conforms(text, x, np.int32(start))


def test_padding_takes_no_part(evaluates_to):
    text = _reduce((2,), (3,), "padding = dense<1> : tensor<1x2xi64>, window_dimensions = array<i64: 2>")
    x = np.array([10, 20], np.float32)
    evaluates_to(text, [x, np.float32(3)], [np.array([13, 33, 23], np.float32)])


def test_a_region_of_several_operations(evaluates_to):
    text = """func.func @main(%a: tensor<5xf32>, %i: tensor<f32>) -> tensor<4xf32> {
      %0 = "stablehlo.reduce_window"(%a, %i) <{window_dimensions = array<i64: 2>}> ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %m = stablehlo.maximum %x, %y : tensor<f32>
          %r = stablehlo.abs %m : tensor<f32>
          stablehlo.return %r : tensor<f32>
      }) : (tensor<5xf32>, tensor<f32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    x = np.array([1, 2, 5, 3, 4], np.float32)
    evaluates_to(text, [x, np.float32(0)], [np.array([2, 5, 5, 4], np.float32)])


def test_two_inputs(evaluates_to):
    text = """func.func @main(%a: tensor<4xf32>, %b: tensor<4xi32>, %i: tensor<f32>, %j: tensor<i32>)
        -> (tensor<3xf32>, tensor<3xi32>) {
      %0:2 = "stablehlo.reduce_window"(%a, %b, %i, %j) <{window_dimensions = array<i64: 2>}> ({
        ^bb0(%x: tensor<f32>, %p: tensor<i32>, %y: tensor<f32>, %q: tensor<i32>):
          %s = stablehlo.add %x, %y : tensor<f32>
          %m = stablehlo.maximum %p, %q : tensor<i32>
          stablehlo.return %s, %m : tensor<f32>, tensor<i32>
      }) : (tensor<4xf32>, tensor<4xi32>, tensor<f32>, tensor<i32>) -> (tensor<3xf32>, tensor<3xi32>)
      return %0#0, %0#1 : tensor<3xf32>, tensor<3xi32>
    }"""
    arrays = [np.arange(4, dtype=np.float32), np.array([3, 1, 2, 0], np.int32), np.float32(0), np.int32(0)]
    evaluates_to(text, arrays, [np.array([1, 3, 5], np.float32), np.array([3, 2, 2], np.int32)])


SCATTERS = [
    ("apart", (4, 6), (2, 3), _attributes("2, 2", "2, 2")),
    ("overlapping", (5, 5), (2, 2), _attributes("3, 3", "2, 2")),
    ("gaps", (5, 6), (2, 2), _attributes("2, 1", "3, 4")),
    ("padded", (4, 4), (3, 3), _attributes("2, 2", "2, 2", "1")),
]


def _scatter(shape, windows, attributes, direction="GE", combine="add"):
    operand, source = _type(shape, "f32"), _type(windows, "f32")
    return f"""func.func @main(%a: {operand}, %s: {source}, %i: tensor<f32>) -> {operand} {{
      %0 = "stablehlo.select_and_scatter"(%a, %s, %i) <{{{attributes}}}> ({{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %p = stablehlo.compare {direction}, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
      }}, {{
        {ADD.format(t="f32", op=combine)}
      }}) : ({operand}, {source}, tensor<f32>) -> {operand}
      return %0 : {operand}
    }}"""


@pytest.mark.parametrize("direction", ["GE", "GT", "LE", "LT"])
@pytest.mark.parametrize("case", SCATTERS, ids=lambda case: case[0])
def test_select_and_scatter_with_ties(case, direction, conforms):
    _, shape, windows, attributes = case
    rng = np.random.default_rng(1)
    operand = rng.integers(-2, 3, shape).astype(np.float32)
    source = rng.integers(-9, 10, windows).astype(np.float32)
    conforms(_scatter(shape, windows, attributes, direction), operand, source, np.float32(0))


@pytest.mark.parametrize("case", ["multiply 1", "maximum 0", "minimum 9"])
def test_select_and_scatter_combines_as_its_region_says(case, conforms):
    combine, start = case.split()
    _, shape, windows, attributes = SCATTERS[1]
    rng = np.random.default_rng(1)
    operand = rng.integers(-2, 3, shape).astype(np.float32)
    source = rng.integers(1, 5, windows).astype(np.float32)
    conforms(_scatter(shape, windows, attributes, "GE", combine), operand, source, np.float32(start))


def test_select_and_scatter_starts_from_the_initial_value(evaluates_to):
    text = _scatter((4,), (3,), "window_dimensions = array<i64: 2>", "GE", "subtract")
    operand, source = np.array([1, 5, 2, 3], np.float32), np.array([1, 2, 4], np.float32)
    evaluates_to(text, [operand, source, np.float32(10)], [np.array([10, 7, 10, 6], np.float32)])
