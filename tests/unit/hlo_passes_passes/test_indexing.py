"""Expressions: maps and rows of single operations, and whole regions against their evaluation."""

import math

import numpy as np
import pytest

from hlo_passes.ir import Computation, TensorType, parse_computation
from hlo_passes.passes import NotAffine, expression, index_maps
from hlo_passes.passes.indexing import Axis, compose
from tests.comparison import assert_same_bits, special_array
from tests.expressions import evaluate_expression, evaluate_region


def computation(parameters: str, body: str) -> Computation:
    return parse_computation(f"@c({parameters}) {{\n{body}\nreturn %r\n}}")


def maps(parameters: str, body: str):
    return [
        (m.parameter, [tuple(axis) for axis in m.axes], m.fill)
        for m in index_maps(computation(parameters, body))
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%r = stablehlo.tanh(%x) : tensor<4x6xf32>", [(0, 1, 0), (1, 1, 0)]),
        ("%r = stablehlo.transpose(%x) {permutation = [1, 0]} : tensor<6x4xf32>", [(1, 1, 0), (0, 1, 0)]),
        (
            "%r = stablehlo.slice(%x) {start = [1, 0], limit = [4, 6], strides = [2, 3]} : tensor<2x2xf32>",
            [(0, 2, 1), (1, 3, 0)],
        ),
        ("%r = stablehlo.reverse(%x) {dimensions = [1]} : tensor<4x6xf32>", [(0, 1, 0), (1, -1, 5)]),
        ("%r = stablehlo.reshape(%x) {shape = [4, 1, 6]} : tensor<4x1x6xf32>", [(0, 1, 0), (2, 1, 0)]),
        (
            "%r = stablehlo.broadcast_in_dim(%x) {shape = [6, 3, 4], broadcast_dimensions = [2, 0]}"
            " : tensor<6x3x4xf32>",
            [(2, 1, 0), (0, 1, 0)],
        ),
        (
            "%r = stablehlo.slice(%x) {start = [2, 0], limit = [3, 6], strides = [1, 1]} : tensor<1x6xf32>",
            [(None, 0, 2), (1, 1, 0)],
        ),
    ],
)
def test_map_of_one_operation(body, expected):
    assert maps("%x: tensor<4x6xf32>", body) == [(0, expected, None)]


def test_maps_compose():
    body = """%a = stablehlo.slice(%x) {start = [1, 0], limit = [4, 6], strides = [1, 2]} : tensor<3x3xf32>
    %b = stablehlo.reverse(%a) {dimensions = [0]} : tensor<3x3xf32>
    %r = stablehlo.transpose(%b) {permutation = [1, 0]} : tensor<3x3xf32>"""
    assert maps("%x: tensor<4x6xf32>", body) == [(0, [(1, -1, 3), (0, 2, 0)], None)]


def test_compose_agrees_with_indexing():
    outer, inner = (Axis(1, -2, 7), Axis(None, 0, 3)), (Axis(1, 1, 1), Axis(0, 3, -1))
    for i in range(3):
        for j in range(3):
            domain = (i, j)
            value = [7 - 2 * domain[1], 3]
            operand = [value[1] + 1, 3 * value[0] - 1]
            got = [
                a.offset + (a.coefficient * domain[a.dim] if a.dim is not None else 0)
                for a in compose(outer, inner)
            ]
            assert got == operand


def test_pads_have_a_fill_value():
    body = """%v = stablehlo.constant() {value = dense<-inf : tensor<f32>>} : tensor<f32>
    %a = stablehlo.pad(%x, %v) {low = [2], high = [1], interior = [0]} : tensor<7xf32>
    %r = stablehlo.slice(%a) {start = [1], limit = [7], strides = [2]} : tensor<3xf32>"""
    assert maps("%x: tensor<4xf32>", body) == [(0, [(0, 2, -1)], -math.inf)]


def test_a_parameter_read_in_two_ways_has_two_maps():
    body = """%a = stablehlo.reverse(%x) {dimensions = [0]} : tensor<4xf32>
    %b = stablehlo.add(%x, %a) : tensor<4xf32>
    %r = stablehlo.multiply(%b, %x) : tensor<4xf32>"""
    rows, read = expression(computation("%x: tensor<4xf32>", body))
    assert [tuple(m) for m in read] == [(0, ((0, 1, 0),), None), (0, ((0, -1, 3),), None)]
    assert [(row.function, row.arguments) for row in rows] == [("add", (0, 1)), ("multiply", (2, 0))]


def test_a_value_read_in_two_ways_is_two_rows():
    body = """%a = stablehlo.tanh(%x) : tensor<4xf32>
    %b = stablehlo.reverse(%a) {dimensions = [0]} : tensor<4xf32>
    %r = stablehlo.add(%a, %b) : tensor<4xf32>"""
    rows, _ = expression(computation("%x: tensor<4xf32>", body))
    assert [(row.function, row.arguments) for row in rows] == [
        ("tanh", (0,)),
        ("tanh", (1,)),
        ("add", (2, 3)),
    ]


def test_attributes_are_plain_data():
    body = """%z = stablehlo.constant() {value = dense<1.5 : tensor<bf16>>} : tensor<3xbf16>
    %a = stablehlo.convert(%x) {dtype = "bf16"} : tensor<3xbf16>
    %p = stablehlo.compare(%a, %z) {direction = "LT"} : tensor<3xi1>
    %q = stablehlo.reduce_precision(%a) {exponent_bits = 5, mantissa_bits = 2} : tensor<3xbf16>
    %r = stablehlo.select(%p, %a, %q) : tensor<3xbf16>"""
    rows, _ = expression(computation("%x: tensor<3xi32>", body))
    found = {row.function: row.attributes for row in rows}
    assert found == {
        "convert": {"dtype": "bfloat16"},
        "constant": {"value": 1.5, "dtype": "bfloat16"},
        "compare": {"direction": "LT", "compare_type": "FLOAT"},
        "reduce_precision": {"exponent_bits": 5, "mantissa_bits": 2},
        "select": {},
    }


@pytest.mark.parametrize(
    ("element", "type_", "value"),
    [
        ("true", "i1", True),
        ("-7", "i8", -7),
        ("18446744073709551615", "ui64", 2**64 - 1),
        ("inf", "f32", math.inf),
        ("-0.0", "f32", "0x80000000"),
        ("-0.0", "bf16", "0x8000"),
        ("nan", "f16", "0x7e00"),
        ("0x7fc00001", "f32", "0x7fc00001"),
    ],
)
def test_constants_keep_their_bits(element, type_, value):
    body = f"%r = stablehlo.constant() {{value = dense<{element} : tensor<{type_}>>}} : tensor<2x{type_}>"
    ((row,), read) = expression(computation("", body))
    assert (row.function, row.attributes["value"], read) == ("constant", value, ())
    assert type(row.attributes["value"]) is type(value)


@pytest.mark.parametrize("type_", ["i32", "ui8", "f32", "bf16"])
@pytest.mark.parametrize(
    "body",
    [
        "%r = stablehlo.reverse(%i) {dimensions = [0]} : tensor<5x3xT>",
        "%r = stablehlo.slice(%i) {start = [1, 0], limit = [5, 3], strides = [3, 1]} : tensor<2x3xT>",
        "%r = stablehlo.slice(%i) {start = [3, 1], limit = [4, 3], strides = [1, 1]} : tensor<1x2xT>",
        "%r = stablehlo.transpose(%i) {permutation = [1, 0]} : tensor<3x5xT>",
    ],
)
def test_iotas_count_through_maps(body, type_):
    body = "%i = stablehlo.iota() {dimension = 0} : tensor<5x3xT>\n" + body
    region = computation("", body.replace("T", type_))
    assert_same_bits(evaluate_expression(region, []), evaluate_region(region, []))


@pytest.mark.parametrize("number", range(4))
def test_expressions_mean_what_their_region_means(number):
    region = (
        computation(
            "%x: tensor<4x6xf32>, %y: tensor<6xf32>, %s: tensor<f32>",
            """%a = stablehlo.broadcast_in_dim(%y) {shape = [4, 6], broadcast_dimensions = [1]}
              : tensor<4x6xf32>
            %b = stablehlo.add(%x, %a) : tensor<4x6xf32>
            %c = stablehlo.clamp(%s, %b, %s) : tensor<4x6xf32>
            %d = stablehlo.transpose(%c) {permutation = [1, 0]} : tensor<6x4xf32>
            %r = stablehlo.slice(%d) {start = [1, 0], limit = [6, 3], strides = [2, 1]} : tensor<3x3xf32>""",
        ),
        computation(
            "%x: tensor<4x1xf32>, %p: tensor<i1>",
            """%v = stablehlo.constant() {value = dense<2.0 : tensor<f32>>} : tensor<f32>
            %a = stablehlo.pad(%x, %v) {low = [1, 1], high = [0, 2], interior = [0, 0]} : tensor<5x4xf32>
            %b = stablehlo.reverse(%a) {dimensions = [1]} : tensor<5x4xf32>
            %c = stablehlo.broadcast_in_dim(%x) {shape = [4, 5], broadcast_dimensions = [0, 1]}
              : tensor<4x5xf32>
            %d = stablehlo.transpose(%c) {permutation = [1, 0]} : tensor<5x4xf32>
            %r = stablehlo.select(%p, %b, %d) : tensor<5x4xf32>""",
        ),
        computation(
            "%x: tensor<3x1x2xi32>",
            """%a = stablehlo.reshape(%x) {shape = [1, 3, 2]} : tensor<1x3x2xi32>
            %i = stablehlo.iota() {dimension = 1} : tensor<1x3x2xi32>
            %b = stablehlo.compare(%a, %i) {direction = "GE"} : tensor<1x3x2xi1>
            %r = stablehlo.not(%b) : tensor<1x3x2xi1>""",
        ),
        computation("%x: tensor<f32>", "%r = stablehlo.atan2(%x, %x) : tensor<f32>"),
    )[number]
    arrays = [special_array(type_, np.random.default_rng(number)) for type_ in region.parameter_types]
    assert_same_bits(evaluate_expression(region, arrays), evaluate_region(region, arrays))


def test_pure_movement_has_no_rows():
    body = "%r = stablehlo.reverse(%x) {dimensions = [0]} : tensor<4xf32>"
    assert expression(computation("%x: tensor<4xf32>", body))[0] == ()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("%r = stablehlo.reshape(%x) {shape = [8]} : tensor<8xf32>", "not read through affine maps"),
        (
            "%r = stablehlo.concatenate(%x, %x) {dimension = 0} : tensor<8x2xf32>",
            "not read through affine maps",
        ),
        (
            '%r = stablehlo.bitcast_convert(%x) {dtype = "ui8"} : tensor<4x2x4xui8>',
            "not read through affine maps",
        ),
        (
            "%r = stablehlo.constant() {value = dense<[1.0, 2.0] : tensor<2xf32>>} : tensor<2xf32>",
            "its elements differ",
        ),
        (
            """%v = stablehlo.constant() {value = dense<0.0 : tensor<f32>>} : tensor<f32>
            %a = stablehlo.tanh(%x) : tensor<4x2xf32>
            %r = stablehlo.pad(%a, %v) {low = [1, 0], high = [0, 0], interior = [0, 0]} : tensor<5x2xf32>""",
            "pads something that is computed here",
        ),
        (
            "%r = stablehlo.pad(%x, %s) {low = [1, 0], high = [0, 0], interior = [0, 0]} : tensor<5x2xf32>",
            "padding value is not a constant",
        ),
        (
            "%r = stablehlo.pad(%x, %s) {low = [1, 0], high = [0, 0], interior = [1, 0]} : tensor<8x2xf32>",
            "pads between elements",
        ),
    ],
)
def test_what_is_no_expression_is_a_named_error(body, says):
    body += ' loc("model.py":7)'
    with pytest.raises(NotAffine, match=says) as caught:
        expression(computation("%x: tensor<4x2xf32>, %s: tensor<f32>", body))
    assert caught.value.where == "model.py:7" and "try:" in str(caught.value)


def test_long_chains_need_no_deep_recursion():
    count = 3000
    lines = ["%0 = stablehlo.negate(%x) : tensor<2xf32>"]
    lines += [f"%{i} = stablehlo.negate(%{i - 1}) : tensor<2xf32>" for i in range(1, count)]
    region = computation(
        "%x: tensor<2xf32>", "\n".join([*lines, f"%r = stablehlo.abs(%{count - 1}) : tensor<2xf32>"])
    )
    assert region.results[0].type == TensorType((2,), "f32")
    assert len(expression(region)[0]) == count + 1
