"""Regions of elements that branch, loop, reduce, call or read values from outside, in every operation that has any."""

import numpy as np
import pytest

import ipuxla
from tests.conformance.conftest import assert_equal, reference

X = np.array([1, -2, 3, 4, -5, 2], np.float32)
K = np.array([100, 0, 17, 1, 2, -3], np.int32)
C = np.float32(2)

BRANCH = """%z = stablehlo.constant dense<0.0> : tensor<f32>
  %p = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %r = "stablehlo.if"(%p) ({
    %t = stablehlo.multiply %a, %c : tensor<f32>
    stablehlo.return %t : tensor<f32>
  }, {
    stablehlo.return %b : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>"""
HALVINGS = """%z = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %r:2 = stablehlo.while(%i = %a, %n = %z) : tensor<i32>, tensor<i32>
  cond {
    %p = stablehlo.compare GT, %i, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %j = stablehlo.divide %i, %two : tensor<i32>
    %m = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %j, %m : tensor<i32>, tensor<i32>
  }"""
NORM = """%z = stablehlo.constant dense<0.0> : tensor<f32>
  %w = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %m = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<3xf32>
  %s = stablehlo.multiply %m, %w : tensor<3xf32>
  %r = stablehlo.reduce(%s init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<3xf32>, tensor<f32>) -> tensor<f32>"""
COMPARISON = """%e = stablehlo.compare EQ, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %r = "stablehlo.if"(%e) ({
    %p = stablehlo.compare GT, %k, %l : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }, {
    %p = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }) : (tensor<i1>) -> tensor<i1>"""


def _program(body, results, others=""):
    return f"""{others}
    func.func @main(%x: tensor<6xf32>, %k: tensor<6xi32>, %c: tensor<f32>) -> ({results}) {{
      {body}
    }}"""


def _map(body, operand, element):
    return _program(
        f"""%0 = "stablehlo.map"({operand}) ({{
        ^bb0(%a: tensor<{element}>):
          {body}
          stablehlo.return %r : tensor<{element}>
        }}) {{dimensions = array<i64: 0>}} : (tensor<6x{element}>) -> tensor<6x{element}>
        return %0 : tensor<6x{element}>""",
        f"tensor<6x{element}>",
    )


def _reduce(body, others=""):
    return _program(
        f"""%0 = "stablehlo.reduce"(%x, %c) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          {body}
          stablehlo.return %r : tensor<f32>
        }}) {{dimensions = array<i64: 0>}} : (tensor<6xf32>, tensor<f32>) -> tensor<f32>
        return %0 : tensor<f32>""",
        "tensor<f32>",
        others,
    )


PROGRAMS = {
    "map: loop": _map(
        HALVINGS.replace("%r:2", "%q:2") + "\n%r = stablehlo.add %q#1, %z : tensor<i32>", "%k", "i32"
    ),
    "map: reduction": _map(NORM, "%x", "f32"),
    "map: value from outside": _map("%r = stablehlo.multiply %a, %c : tensor<f32>", "%x", "f32"),
    "reduce: branch": _reduce(BRANCH),
    "reduce: value from outside": _reduce(
        "%t = stablehlo.multiply %b, %c : tensor<f32>\n%r = stablehlo.add %a, %t : tensor<f32>"
    ),
    "reduce: call": _reduce(
        "%r = func.call @f(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>",
        f"""func.func private @f(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {{
          {BRANCH.replace("%c", "%b")}
          return %r : tensor<f32>
        }}""",
    ),
    "reduce_window: branch": _program(
        f"""%0 = "stablehlo.reduce_window"(%x, %c) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          {BRANCH}
          stablehlo.return %r : tensor<f32>
        }}) {{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>, window_dilations = array<i64: 2>}}
          : (tensor<6xf32>, tensor<f32>) -> tensor<2xf32>
        return %0 : tensor<2xf32>""",
        "tensor<2xf32>",
    ),
    "sort: branch": _program(
        f"""%t = stablehlo.abs %x : tensor<6xf32>
        %0:2 = "stablehlo.sort"(%t, %k) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>, %k0: tensor<i32>, %l0: tensor<i32>):
          {COMPARISON.replace("%k", "%k0").replace("%l", "%l0")}
          stablehlo.return %r : tensor<i1>
        }}) {{dimension = 0 : i64, is_stable = true}} : (tensor<6xf32>, tensor<6xi32>) -> (tensor<6xf32>, tensor<6xi32>)
        return %0#0, %0#1 : tensor<6xf32>, tensor<6xi32>""",
        "tensor<6xf32>, tensor<6xi32>",
    ),
    "scatter: branch": _program(
        f"""%i = stablehlo.reshape %k : (tensor<6xi32>) -> tensor<6x1xi32>
        %0 = "stablehlo.scatter"(%x, %i, %x) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          {BRANCH}
          stablehlo.return %r : tensor<f32>
        }}) {{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
              scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
          : (tensor<6xf32>, tensor<6x1xi32>, tensor<6xf32>) -> tensor<6xf32>
        return %0 : tensor<6xf32>""",
        "tensor<6xf32>",
    ),
    "select_and_scatter: branch": _program(
        """%z = stablehlo.constant dense<0.0> : tensor<f32>
        %s = stablehlo.slice %x [0:3] : (tensor<6xf32>) -> tensor<3xf32>
        %0 = "stablehlo.select_and_scatter"(%x, %s, %z) ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %p = stablehlo.compare LT, %a, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>
          %r = "stablehlo.if"(%p) ({
            stablehlo.return %p : tensor<i1>
          }, {
            %q = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
            stablehlo.return %q : tensor<i1>
          }) : (tensor<i1>) -> tensor<i1>
          stablehlo.return %r : tensor<i1>
        }, {
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %r = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %r : tensor<f32>
        }) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}
          : (tensor<6xf32>, tensor<3xf32>, tensor<f32>) -> tensor<6xf32>
        return %0 : tensor<6xf32>""",
        "tensor<6xf32>",
    ),
}
ARRAYS = {"sort: branch": (np.array([3, 1, -3, 2, 1, 1], np.float32), K, C)}
OTHERS = (X, K, C)


@pytest.mark.parametrize("name", PROGRAMS)
def test_region(name, conforms):
    conforms(PROGRAMS[name], *ARRAYS.get(name, OTHERS))


@pytest.mark.parametrize("engine", ["fast", "literal", "vertex"])
@pytest.mark.parametrize("name", ["map: loop", "reduce: branch", "scatter: branch"])
def test_engines(name, engine, tiny_target):
    run = {
        arithmetic: ipuxla.compile_stablehlo(
            PROGRAMS[name], tiny_target, engine=engine, arithmetic=arithmetic
        )
        for arithmetic in ("float", "ring")
    }
    assert_equal([np.asarray(x) for x in run["float"](X, K, C)], reference(PROGRAMS[name], X, K, C), 0)
    witness = ipuxla.compile_stablehlo(PROGRAMS[name], tiny_target, engine="hlo", arithmetic="ring")
    for mine, theirs in zip(run["ring"](X, K, C), witness(X, K, C), strict=True):
        np.testing.assert_array_equal(mine, theirs)
