"""Printer and parser: exact texts, and errors that name line, column and what was expected."""

import numpy as np
import pytest

from hlo_passes.errors import ParseError
from hlo_passes.ir import TensorType, parse_computation, parse_module, print_computation, print_module, verify
from hlo_passes.ops import Constant

MODULE = """module @m entry @main donated(0, 2) {
  @main(%x: tensor<2x3xf32>, %s: tensor<f32>, %h: tensor<3x4xf32>) {
    %0 = stablehlo.dot_general(%x, %h) {dimension_numbers = #DotDimensionNumbers<lhs_contracting = [1], \
rhs_contracting = [0]>, dtype = "f32", precision = ["HIGH", \
"DEFAULT"]} : tensor<2x4xf32> loc("a b.py":3:7 "f")
    %1 = stablehlo.reduce(%0, %s) {dimensions = [1]} [
      @region0(%arg0: tensor<f32>, %arg1: tensor<f32>) {
        %0 = stablehlo.add(%arg0, %arg1) : tensor<f32>
        return %0
      }
    ] : tensor<2xf32> loc("m.py":4 in "GPT/Block_0" [transpose, vmap])
    %2 = stablehlo.iota() {dimension = 0} : tensor<2xf32> loc("":0 in "GPT")
    %3, %4 = func.call(%1, %2) {callee = "pair"} : tensor<2xf32>, tensor<2xi1>
    return %4, %3
  }
  @pair(%a: tensor<2xf32>, %b: tensor<2xf32>) {
    %c = stablehlo.compare(%a, %b) {direction = "LT"} : tensor<2xi1>
    return %a, %c
  }
  @"odd name"() {
    return
  }
}
"""


def test_text_is_read_and_written_unchanged():
    module = parse_module(MODULE)
    verify(module)
    assert print_module(module) == MODULE
    assert module.donated == (0, 2)
    assert module.entry_computation.instructions[0].location.function == "f"


def test_comments_and_layout_do_not_matter():
    text = MODULE.replace("    return %4, %3", "  // results\n return %4,\n      %3")
    assert print_module(parse_module(text)) == MODULE


def _constant(array):
    builder_text = (
        f"@c() {{\n  %0 = stablehlo.constant() {{value = {array[0]}}} : {array[1]}\n  return %0\n}}\n"
    )
    return builder_text, parse_computation(builder_text).instructions[0].op


CONSTANTS = [
    ("dense<0.1 : tensor<f32>>", "tensor<4xf32>", np.full(4, 0.1, np.float32)),
    ("dense<[-0.0, 0.0] : tensor<2xf32>>", "tensor<2xf32>", np.array([-0.0, 0.0], np.float32)),
    ("dense<[true, false] : tensor<2xi1>>", "tensor<2xi1>", np.array([True, False])),
    ("dense<[[1, -2], [3, 4]] : tensor<2x2xi64>>", "tensor<2x2xi64>", np.array([[1, -2], [3, 4]])),
    ("dense<[inf, -inf] : tensor<2xf16>>", "tensor<2xf16>", np.array([np.inf, -np.inf], np.float16)),
    ("dense<0x7fc00001 : tensor<f32>>", "tensor<f32>", np.uint32(0x7FC00001).view(np.float32)),
    ("dense<[] : tensor<0xf32>>", "tensor<0xf32>", np.zeros(0, np.float32)),
    ("dense<[[], []] : tensor<2x0xf32>>", "tensor<2x0xf32>", np.zeros((2, 0), np.float32)),
    ("dense<1e-45 : tensor<f32>>", "tensor<f32>", np.float32(1e-45)),
    (
        "dense<[0.33333334, 16777216.0] : tensor<2xf32>>",
        "tensor<2xf32>",
        np.array([1 / 3, 2**24], np.float32),
    ),
]


@pytest.mark.parametrize("case", CONSTANTS, ids=lambda case: case[0])
def test_constants_are_exact(case):
    text, op = _constant(case)
    assert print_computation(parse_computation(text)) == text
    assert op.array.tobytes() == np.asarray(case[2]).tobytes()


def test_big_constants_print_as_bytes():
    values = np.arange(40, dtype=np.float32)
    text, op = _constant((f'dense<"0x{values.tobytes().hex()}" : tensor<40xf32>>', "tensor<40xf32>"))
    assert op == Constant.of(values)
    assert print_computation(parse_computation(text)) == text


def test_constants_compare_to_the_bit():
    type_ = TensorType((2,), "f32")
    assert Constant.splat(0.0, type_) != Constant.splat(-0.0, type_)
    assert Constant.splat(np.nan, type_) == Constant(np.full(2, np.nan, np.float32), type_)
    assert Constant.of([1, 1], "f32").is_splat and not Constant.of([1, 2], "f32").is_splat
    with pytest.raises(ValueError, match="read-only"):
        Constant.of([1, 2], "f32").value[0] = 3


ERRORS = [
    ("module @m", 1, 10, "'entry'", "the end of the text"),
    (MODULE.replace("stablehlo.iota", "stablehlo.yota"), 10, 10, "a known operation", "'stablehlo.yota'"),
    (MODULE.replace("(%x, %h)", "(%x, %y)"), 3, 36, "a value defined above", "'%y'"),
    (MODULE.replace("{dimension = 0}", "{dim = 0}"), 10, 28, "one of dimension, each once", "'dim'"),
    (MODULE.replace(" {dimension = 0}", ""), 10, 10, "attribute 'dimension' of", "'stablehlo.iota'"),
    (
        MODULE.replace("tensor<2xi1>\n    return", "tensor<2xc64>\n    return"),
        11,
        67,
        "a supported type",
        "'tensor<2xc64>'",
    ),
    (MODULE.replace("%2 = ", "%1 = "), 10, 5, "a name not defined before", "'%1'"),
    (MODULE.replace("#Dot", "#Dott"), 3, 61, "a known attribute class", "'#DottDimensionNumbers'"),
    (MODULE + "x", 22, 1, "the end of the text", "'x'"),
    (MODULE.replace('loc("m.py":4 ', "loc(4 "), 9, 27, "a quoted file name", "'4'"),
    (MODULE.replace('in "GPT/Block_0"', "in GPT"), 9, 39, "a quoted scope", "'GPT'"),
    (MODULE.replace("[transpose, vmap]", "[1]"), 9, 54, "the name of a transform", "'1'"),
    (MODULE.replace("tensor<2x3xf32>", "tensor<2x3xf32"), 2, 13, "a type such as", "'tensor'"),
    (MODULE.replace("@m entry", "@m € entry"), 1, 11, "a name, value", "'€'"),
]


@pytest.mark.parametrize("case", ERRORS, ids=range(len(ERRORS)))
def test_errors_name_place_and_expectation(case):
    text, line, column, expected, got = case
    with pytest.raises(ParseError) as caught:
        parse_module(text)
    error = caught.value
    assert (error.line, error.column, error.got) == (line, column, got)
    assert error.expected.startswith(expected)
    assert f"line {line}, column {column}: expected {expected}" in str(error)


@pytest.mark.parametrize(
    "value",
    [
        "dense<[1, 2] : tensor<3xi32>>",
        "dense<300 : tensor<i8>>",
        "dense<1e300 : tensor<f32>>",
        'dense<"0x00" : tensor<2xi8>>',
        "dense<yes : tensor<i1>>",
    ],
)
def test_constants_that_do_not_fit_their_type_are_refused(value):
    with pytest.raises(ParseError):
        _constant((value, "tensor<2xi8>"))
