"""Operations that move, choose, fold and look up, in every element type, on tiles, for shapes at the edges.

Shapes without elements, of one element, and that no number of tiles divides. The witness is StableHLO's reference
interpreter; values are small integers, so every result is exact in every type. `pytest --extended` runs all.
"""

import numpy as np
import pytest

import ipuxla
from hlo_passes.ir import DTYPES
from tests.conformance.conftest import reference
from tests.conformance.test_matrix import FLOATS, TYPES, WIDENED

SHAPES = ((2, 3), (0, 3), (1, 1), (7, 1))
ANY, NUMBERS, BITS = "any", "numbers", "bits"

FOLD = """%z = stablehlo.constant dense<{init}> : tensor<{t}>
  %r = stablehlo.reduce(%x init: %z) applies stablehlo.{op} across dimensions = [{dims}]
    : (tensor<{n}{t}>, tensor<{t}>) -> tensor<{out}{t}>"""
OPERATIONS = {
    "transpose": (
        ANY,
        "{b}x{a}x",
        "%r = stablehlo.transpose %x, dims = [1, 0] : (tensor<{n}{t}>) -> tensor<{out}{t}>",
    ),
    "reverse": (ANY, "{n}", "%r = stablehlo.reverse %x, dims = [0, 1] : tensor<{n}{t}>"),
    "broadcast": (
        ANY,
        "{b}x2x{a}x",
        "%r = stablehlo.broadcast_in_dim %x, dims = [2, 0] : (tensor<{n}{t}>) -> tensor<{out}{t}>",
    ),
    "pad": (
        ANY,
        "{a1}x{b2}x",
        """%z = stablehlo.constant dense<{one}> : tensor<{t}>
  %r = stablehlo.pad %x, %z, low = [1, -1], high = [0, 2], interior = [0, 1]
    : (tensor<{n}{t}>, tensor<{t}>) -> tensor<{out}{t}>""",
    ),
    "concatenate": (
        ANY,
        "{a}x{bb}x",
        """%e = stablehlo.slice %x [0:{a}, 0:0] : (tensor<{n}{t}>) -> tensor<{a}x0x{t}>
  %r = stablehlo.concatenate %x, %e, %x, dim = 1
    : (tensor<{n}{t}>, tensor<{a}x0x{t}>, tensor<{n}{t}>) -> tensor<{out}{t}>""",
    ),
    "dynamic_slice": (
        "rows",
        "1x{b}x",
        """%m = stablehlo.negate %k : tensor<i32>
  %r = stablehlo.dynamic_slice %x, %k, %m, sizes = [1, {b}]
    : (tensor<{n}{t}>, tensor<i32>, tensor<i32>) -> tensor<{out}{t}>""",
    ),
    "dynamic_update_slice": (
        "rows",
        "{n}",
        """%u = stablehlo.constant dense<{one}> : tensor<1x1x{t}>
  %r = stablehlo.dynamic_update_slice %x, %u, %k, %k
    : (tensor<{n}{t}>, tensor<1x1x{t}>, tensor<i32>, tensor<i32>) -> tensor<{out}{t}>""",
    ),
    "gather": (
        "rows",
        "3x{b}x",
        """%i = stablehlo.constant dense<[[5],[-3],[0]]> : tensor<3x1xi64>
  %r = "stablehlo.gather"(%x, %i) {{dimension_numbers = #stablehlo.gather<offset_dims = [1],
    collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, {b}>}}
    : (tensor<{n}{t}>, tensor<3x1xi64>) -> tensor<{out}{t}>""",
    ),
    "scatter": (
        ANY,
        "{n}",
        """%i = stablehlo.constant dense<[[5],[0],[0]]> : tensor<3x1xi32>
  %u = stablehlo.constant dense<{one}> : tensor<3x{b}x{t}>
  %r = "stablehlo.scatter"(%x, %i, %u) ({{
  ^bb0(%p: tensor<{t}>, %q: tensor<{t}>):
    %s = stablehlo.{joins} %p, %q : tensor<{t}>
    stablehlo.return %s : tensor<{t}>
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
    scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
    : (tensor<{n}{t}>, tensor<3x1xi32>, tensor<3x{b}x{t}>) -> tensor<{out}{t}>""",
    ),
    "sort": (
        ANY,
        "{n}",
        """%r = "stablehlo.sort"(%x) ({{
  ^bb0(%p: tensor<{t}>, %q: tensor<{t}>):
    %c = stablehlo.compare GT, %p, %q{order} : (tensor<{t}>, tensor<{t}>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }}) {{dimension = 1 : i64, is_stable = true}} : (tensor<{n}{t}>) -> tensor<{out}{t}>""",
    ),
    "select": (
        ANY,
        "{n}",
        """%z = stablehlo.constant dense<0> : tensor<i32>
  %p = stablehlo.compare GT, %k, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %w = stablehlo.reverse %x, dims = [0] : tensor<{n}{t}>
  %r = stablehlo.select %p, %x, %w : tensor<i1>, tensor<{n}{t}>""",
    ),
    "clamp": (
        ANY,
        "{n}",
        """%z = stablehlo.constant dense<{zero}> : tensor<{t}>
  %o = stablehlo.constant dense<{one}> : tensor<{t}>
  %r = stablehlo.clamp %z, %x, %o : (tensor<{t}>, tensor<{n}{t}>, tensor<{t}>) -> tensor<{n}{t}>""",
    ),
    "iota": (
        NUMBERS,
        "{n}",
        "%o = stablehlo.iota dim = 1 : tensor<{n}{t}>\n %r = stablehlo.add %o, %x : tensor<{n}{t}>",
    ),
    "dot_general": (
        NUMBERS,
        "{a}x{a}x",
        "%r = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<{n}{t}>, tensor<{n}{t}>) -> tensor<{out}{t}>",
    ),
    "convolution": (
        NUMBERS,
        "{a}x{b}x2x",
        """%y = stablehlo.reshape %x : (tensor<{n}{t}>) -> tensor<{n}1x{t}>
  %z = stablehlo.constant dense<[[[{zero}, {one}]], [[{one}, {one}]]]> : tensor<2x1x2x{t}>
  %r = stablehlo.convolution(%y, %z) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {{pad = [[1, 0]]}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : (tensor<{n}1x{t}>, tensor<2x1x2x{t}>) -> tensor<{out}{t}>""",
    ),
    "reduce_window": (
        NUMBERS,
        "{n}",
        """%z = stablehlo.constant dense<{zero}> : tensor<{t}>
  %r = "stablehlo.reduce_window"(%x, %z) ({{
  ^bb0(%p: tensor<{t}>, %q: tensor<{t}>):
    %s = stablehlo.add %p, %q : tensor<{t}>
    stablehlo.return %s : tensor<{t}>
  }}) {{window_dimensions = array<i64: 1, 2>, padding = dense<[[0,0],[1,0]]> : tensor<2x2xi64>}}
    : (tensor<{n}{t}>, tensor<{t}>) -> tensor<{out}{t}>""",
    ),
    **{
        f"reduce {op}": (
            kind,
            "{a}x",
            FOLD.replace("{op}", op).replace("{dims}", "1").replace("{init}", f"{{{init}}}"),
        )
        for op, kind, init in (
            *(
                ("add", ANY, "zero"),
                ("maximum", ANY, "one"),
                ("minimum", ANY, "one"),
                ("multiply", ANY, "one"),
            ),
            *(("and", BITS, "one"), ("or", BITS, "zero"), ("xor", BITS, "zero")),
        )
    },
    "reduce all": (
        ANY,
        "",
        FOLD.replace("{op}", "{joins}").replace("{dims}", "0, 1").replace("{init}", "{one}"),
    ),
}


def _program(name, dtype, shape):
    """Return a program of one operation on ``%x``; ``%k`` is 2."""
    kind, result, body = OPERATIONS[name]
    is_float, is_bool = dtype in FLOATS, dtype == "i1"
    if kind == (NUMBERS if is_bool else BITS if is_float else None) or (kind == "rows" and not shape[0]):
        return None
    a, b = shape
    n = f"{a}x{b}x"
    names = {"a": a, "b": b, "a1": a + 1, "b2": 2 * b, "bb": 2 * b, "n": n, "t": dtype}
    names |= (
        {"one": "1.0", "zero": "0.0"}
        if is_float
        else {"one": "true", "zero": "false"}
        if is_bool
        else {"one": 1, "zero": 0}
    )
    names |= {"joins": "or" if is_bool else "add", "order": ", TOTALORDER" if is_float else ""}
    out = result.format(**names)
    outer = "f32" if dtype in WIDENED else dtype
    return f"""func.func @main(%v: tensor<{n}{outer}>, %k: tensor<i32>) -> tensor<{out}{outer}> {{
  %x = stablehlo.convert %v : (tensor<{n}{outer}>) -> tensor<{n}{dtype}>
  {body.format(**names, out=out)}
  %w0 = stablehlo.convert %r : (tensor<{out}{dtype}>) -> tensor<{out}{outer}>
  return %w0 : tensor<{out}{outer}>
}}"""


def check(name, dtype, shape, target):
    """Compare an operation on tiles with the reference interpreter."""
    outer = DTYPES["f32" if dtype in WIDENED else dtype].np_dtype
    low = 0 if dtype.startswith("u") or dtype == "i1" else -2
    x = np.random.default_rng(0).integers(low, 3, shape).astype(outer)
    text = _program(name, dtype, shape)
    (want,) = reference(text, x, np.int32(2))
    (got,) = ipuxla.compile_stablehlo(text, target)(x, np.int32(2))
    assert (got.shape, got.dtype) == (want.shape, want.dtype), shape
    np.testing.assert_array_equal(np.asarray(got), want, err_msg=str(shape))


CASES = [
    (name, dtype, shapes)
    for name in OPERATIONS
    for dtype in TYPES
    if (shapes := [shape for shape in SHAPES if _program(name, dtype, shape)])
]
SAMPLE = [
    ("gather", "i1", (1, 1)),
    ("pad", "i1", (1, 1)),
    ("reduce maximum", "f8E5M2", (2, 3)),
    ("concatenate", "ui16", (0, 3)),
    ("convolution", "i8", (7, 1)),
    ("dot_general", "i64", (2, 3)),
    ("scatter", "bf16", (2, 3)),
]


@pytest.mark.parametrize(("name", "dtype", "shape"), SAMPLE)
def test_sample(name, dtype, shape, tiny_target):
    check(name, dtype, shape, tiny_target)


@pytest.mark.parametrize(
    ("name", "dtype", "shapes"), CASES, ids=[f"{name}-{dtype}" for name, dtype, _ in CASES]
)
def test_on_tiles(name, dtype, shapes, tiny_target):
    for shape in shapes:
        check(name, dtype, shape, tiny_target)
