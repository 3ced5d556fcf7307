"""Slices and updates at runtime offsets: ``dynamic_slice`` and ``dynamic_update_slice``."""

import numpy as np
import pytest

X = np.arange(20, dtype=np.float32).reshape(4, 5)
U = -1 - np.arange(6, dtype=np.float32).reshape(2, 3)
OFFSETS = [(0, 0), (2, 2), (1, 1), (3, 4), (-1, 7), (-9, -9)]


@pytest.mark.parametrize("at", OFFSETS)
def test_dynamic_slice(at, conforms):
    text = """func.func @main(%x: tensor<4x5xf32>, %i: tensor<i32>, %j: tensor<i32>) -> tensor<2x3xf32> {
      %0 = stablehlo.dynamic_slice %x, %i, %j, sizes = [2, 3]
        : (tensor<4x5xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
      return %0 : tensor<2x3xf32>
    }"""
    conforms(text, X, *map(np.int32, at))


@pytest.mark.parametrize("at", OFFSETS)
def test_dynamic_update_slice(at, conforms):
    text = """func.func @main(%x: tensor<4x5xf32>, %u: tensor<2x3xf32>, %i: tensor<i32>, %j: tensor<i32>)
        -> tensor<4x5xf32> {
      %0 = stablehlo.dynamic_update_slice %x, %u, %i, %j
        : (tensor<4x5xf32>, tensor<2x3xf32>, tensor<i32>, tensor<i32>) -> tensor<4x5xf32>
      return %0 : tensor<4x5xf32>
    }"""
    conforms(text, X, U, *map(np.int32, at))


@pytest.mark.parametrize("dtype", ["ui8", "ui32", "i64"])
def test_offsets_of_any_integer_type(dtype, conforms, evaluates_to):
    text = f"""func.func @main(%x: tensor<4xf32>, %i: tensor<{dtype}>) -> tensor<2xf32> {{
      %0 = stablehlo.dynamic_slice %x, %i, sizes = [2] : (tensor<4xf32>, tensor<{dtype}>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }}"""
    kind = np.dtype({"ui8": "uint8", "ui32": "uint32", "i64": "int64"}[dtype])
    conforms(text, X[:, 0], kind.type(1))
    evaluates_to(text, [X[:, 0], kind.type(np.iinfo(kind).max)], [X[2:, 0]])


def test_scalars_have_no_offsets(evaluates_to):
    text = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
      %0 = "stablehlo.dynamic_slice"(%x) {slice_sizes = array<i64>} : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }"""
    evaluates_to(text, [np.float32(3)], [np.float32(3)])
