"""Operations that place elements, each against the reference interpreter."""

import numpy as np
import pytest

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)

CASES = [
    ("broadcast_in_dim", "stablehlo.broadcast_in_dim %x, dims = [1, 2]", "4x2x3"),
    ("broadcast_in_dim transposing", "stablehlo.broadcast_in_dim %x, dims = [2, 0]", "3x4x2"),
    ("reshape", "stablehlo.reshape %x", "3x2"),
    ("reshape adds ones", "stablehlo.reshape %x", "1x6x1"),
    ("transpose", "stablehlo.transpose %x, dims = [1, 0]", "3x2"),
    ("slice", "stablehlo.slice %x [0:2, 1:3]", "2x2"),
    ("slice with strides", "stablehlo.slice %x [1:2, 0:3:2]", "1x2"),
    ("slice empty", "stablehlo.slice %x [1:1, 0:3]", "0x3"),
    ("reverse", "stablehlo.reverse %x, dims = [1]", "2x3"),
    ("reverse both", "stablehlo.reverse %x, dims = [0, 1]", "2x3"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_operation_on_one_operand(case, conforms):
    _, operation, shape = case
    conforms(
        f"""func.func @main(%x: tensor<2x3xf32>) -> tensor<{shape}xf32> {{
          %0 = {operation} : (tensor<2x3xf32>) -> tensor<{shape}xf32>
          return %0 : tensor<{shape}xf32>
        }}""",
        X,
    )


def test_broadcast_of_a_size_one_dimension(conforms):
    text = """func.func @main(%x: tensor<2x1xi1>) -> tensor<2x3xi1> {
      %0 = stablehlo.broadcast_in_dim %x, dims = [0, 1] : (tensor<2x1xi1>) -> tensor<2x3xi1>
      return %0 : tensor<2x3xi1>
    }"""
    conforms(text, np.array([[True], [False]]))


PADS = [
    ("around", [1, 0], [0, 2], [0, 0], "3x5"),
    ("between", [0, 0], [0, 0], [2, 1], "4x5"),
    ("negative", [-1, 1], [0, -2], [0, 0], "1x2"),
    ("negative with interior", [0, -1], [1, -1], [1, 1], "4x3"),
]


@pytest.mark.parametrize("case", PADS, ids=lambda case: case[0])
def test_pad(case, conforms):
    _, low, high, interior, shape = case
    text = f"""func.func @main(%x: tensor<2x3xf32>, %v: tensor<f32>) -> tensor<{shape}xf32> {{
      %0 = stablehlo.pad %x, %v, low = {low}, high = {high}, interior = {interior}
        : (tensor<2x3xf32>, tensor<f32>) -> tensor<{shape}xf32>
      return %0 : tensor<{shape}xf32>
    }}"""
    conforms(text, X, np.float32(-1))


def test_concatenate(conforms):
    text = """func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x1xf32>) -> tensor<2x7xf32> {
      %0 = stablehlo.concatenate %x, %y, %x, dim = 1
        : (tensor<2x3xf32>, tensor<2x1xf32>, tensor<2x3xf32>) -> tensor<2x7xf32>
      return %0 : tensor<2x7xf32>
    }"""
    conforms(text, X, X[:, :1] * 10)


@pytest.mark.parametrize("dtype", ["i32", "f32", "ui8", "f16"])
def test_iota(dtype, conforms):
    text = f"""func.func @main() -> tensor<2x3x{dtype}> {{
      %0 = stablehlo.iota dim = 1 : tensor<2x3x{dtype}>
      return %0 : tensor<2x3x{dtype}>
    }}"""
    conforms(text)


CONSTANTS = [
    ("splat", "2x3xf32", "1.5"),
    ("negative zero and infinities", "3xf32", "[-0.0, 0x7F800000, 0xFF800000]"),
    ("booleans", "3xi1", "[true, false, true]"),
    ("boolean splat", "9xi1", "true"),
    ("sixty-four bits", "2xui64", "[1, 18446744073709551615]"),
    ("half precision", "1x2xf16", "[[0.1, -65504.0]]"),
    ("nothing", "0x3xf32", ""),
    ("many", "40xi8", f"{list(range(40))}"),
]


@pytest.mark.parametrize("case", CONSTANTS, ids=lambda case: case[0])
def test_constant(case, conforms):
    _, type_, value = case
    conforms(
        f"""func.func @main() -> tensor<{type_}> {{
          %0 = stablehlo.constant dense<{value}> : tensor<{type_}>
          return %0 : tensor<{type_}>
        }}"""
    )


@pytest.mark.parametrize("count", [3, 300])
def test_constant_of_bfloat16(count, conforms):
    values = [round(0.1 * n - 3, 4) for n in range(count)]
    text = f"""func.func @main() -> tensor<{count}xf32> {{
      %0 = stablehlo.constant dense<{values}> : tensor<{count}xbf16>
      %1 = stablehlo.convert %0 : (tensor<{count}xbf16>) -> tensor<{count}xf32>
      return %1 : tensor<{count}xf32>
    }}"""
    conforms(text)


def test_optimization_barrier(conforms):
    text = """func.func @main(%x: tensor<2x3xf32>, %i: tensor<i32>) -> (tensor<2x3xf32>, tensor<i32>) {
      %0:2 = stablehlo.optimization_barrier %x, %i : tensor<2x3xf32>, tensor<i32>
      return %0#0, %0#1 : tensor<2x3xf32>, tensor<i32>
    }"""
    conforms(text, X, np.int32(7))
