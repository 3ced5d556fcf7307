"""``convolution`` in all its forms against the reference interpreter."""

import numpy as np
import pytest

NHWC = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
NCHW = "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"
PLAIN = dict(stride=(1, 1), pad=((0, 0), (0, 0)), lhs=(1, 1), rhs=(1, 1), reverse=(False, False), f=1, b=1)
STRIDED = dict(stride=(2, 2), pad=((1, 1), (1, 0)))
SPREAD = dict(lhs=(2, 3), pad=((1, 1), (0, 0)))
GRADIENT = "[f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f]"
FORMS = [
    ("plain", NHWC, (2, 5, 6, 3), (3, 2, 3, 4), (2, 3, 5, 4), {}),
    ("channels first", NCHW, (2, 3, 5, 6), (4, 3, 3, 2), (2, 4, 3, 5), {}),
    ("weight gradient", GRADIENT, (2, 5, 5, 3), (2, 3, 3, 4), (3, 3, 3, 4), {}),
    ("strides and padding", NHWC, (1, 5, 6, 2), (3, 3, 2, 2), (1, 3, 3, 2), STRIDED),
    ("negative padding", NHWC, (1, 6, 6, 2), (2, 2, 2, 2), (1, 4, 5, 2), dict(pad=((-1, 0), (1, -1)))),
    ("spread operand", NHWC, (1, 3, 4, 2), (3, 3, 2, 2), (1, 5, 8, 2), SPREAD),
    ("spread kernel", NHWC, (1, 7, 8, 2), (2, 3, 2, 2), (1, 4, 4, 2), dict(rhs=(3, 2))),
    ("reversed window", NHWC, (1, 4, 4, 2), (3, 2, 2, 2), (1, 2, 3, 2), dict(reverse=(True, False))),
    ("feature groups", NHWC, (1, 4, 4, 6), (2, 2, 2, 9), (1, 3, 3, 9), dict(f=3)),
    ("depthwise", NHWC, (1, 4, 4, 3), (3, 3, 1, 3), (1, 2, 2, 3), dict(f=3)),
    ("batch groups", NHWC, (6, 4, 4, 2), (2, 2, 2, 9), (2, 3, 3, 9), dict(b=3)),
    ("no window fits", NHWC, (1, 2, 4, 2), (3, 3, 2, 2), (1, 0, 2, 2), {}),
]  # fmt: skip


def _type(shape, dtype):
    return f"tensor<{'x'.join(map(str, shape))}x{dtype}>"


def _text(numbers, lhs, rhs, result, changes, dtype="f32", result_dtype=None):
    w = {**PLAIN, **changes}
    lhs, rhs, result = _type(lhs, dtype), _type(rhs, dtype), _type(result, result_dtype or dtype)
    window = (
        f"stride = {list(w['stride'])}, pad = {[list(p) for p in w['pad']]}, lhs_dilate = {list(w['lhs'])}, "
        f"rhs_dilate = {list(w['rhs'])}, reverse = {str(list(w['reverse'])).lower()}"
    )
    return f"""func.func @main(%a: {lhs}, %b: {rhs}) -> {result} {{
      %0 = stablehlo.convolution(%a, %b) dim_numbers = {numbers}, window = {{{window}}}
        {{batch_group_count = {w["b"]} : i64, feature_group_count = {w["f"]} : i64}}
        : ({lhs}, {rhs}) -> {result}
      return %0 : {result}
    }}"""


def _arrays(*shapes, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("case", FORMS, ids=lambda case: case[0])
def test_forms(case, conforms):
    _, numbers, lhs, rhs, result, changes = case
    conforms(_text(numbers, lhs, rhs, result, changes), *_arrays(lhs, rhs), rtol=1e-6)


@pytest.mark.parametrize("types", ["i32 i32", "i8 i32", "ui32 ui32", "f16 f32", "f64 f64"])
def test_element_types(types, conforms):
    old, new = types.split()
    kind = {"i": "int", "u": "uint", "f": "float"}[old[0]] + old.strip("uif")
    shapes = (1, 4, 4, 2), (2, 2, 2, 3)
    arrays = _arrays(*shapes, dtype=kind)
    conforms(_text(NHWC, *shapes, (1, 3, 3, 3), {}, old, new), *arrays)


def test_one_spatial_dimension_and_none(conforms):
    conforms(
        """func.func @main(%a: tensor<2x5x3xf32>, %b: tensor<2x3x4xf32>) -> tensor<2x4x4xf32> {
          %0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
            {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
            : (tensor<2x5x3xf32>, tensor<2x3x4xf32>) -> tensor<2x4x4xf32>
          return %0 : tensor<2x4x4xf32>
        }""",
        *_arrays((2, 5, 3), (2, 3, 4)),
    )
    conforms(
        """func.func @main(%a: tensor<2x3xf32>, %b: tensor<3x4xf32>) -> tensor<2x4xf32> {
          %0 = stablehlo.convolution(%a, %b) dim_numbers = [b, f]x[i, o]->[b, f], window = {}
            {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
            : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
          return %0 : tensor<2x4xf32>
        }""",
        *_arrays((2, 3), (3, 4)),
    )
