"""Loops and branches: while, case, if, and the repeat that a while with a constant trip count becomes."""

import numpy as np
import pytest

from hlo_passes.ir import Builder, Decisions, Module, TensorType, evaluate_module, verify
from hlo_passes.ops import Add, Multiply, Repeat
from ipuxla.frontend.importer import import_stablehlo

X = np.array([1, -2, 3], np.float32)

WHILE = """func.func @main(%n: tensor<i32>, %x: tensor<3xf32>) -> (tensor<i32>, tensor<3xf32>) {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<3xf32>
  cond {
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %z = stablehlo.multiply %y, %x : tensor<3xf32>
    stablehlo.return %j, %z : tensor<i32>, tensor<3xf32>
  }
  return %0#0, %0#1 : tensor<i32>, tensor<3xf32>
}"""

CASE = """func.func @main(%k: tensor<i32>, %x: tensor<3xf32>) -> (tensor<3xf32>, tensor<i32>) {
  %c = stablehlo.constant dense<7> : tensor<i32>
  %0:2 = "stablehlo.case"(%k) ({
    stablehlo.return %x, %c : tensor<3xf32>, tensor<i32>
  }, {
    %y = stablehlo.add %x, %x : tensor<3xf32>
    stablehlo.return %y, %k : tensor<3xf32>, tensor<i32>
  }, {
    %y = stablehlo.negate %x : tensor<3xf32>
    stablehlo.return %y, %c : tensor<3xf32>, tensor<i32>
  }) : (tensor<i32>) -> (tensor<3xf32>, tensor<i32>)
  return %0#0, %0#1 : tensor<3xf32>, tensor<i32>
}"""

IF = """func.func @main(%p: tensor<i1>, %x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = "stablehlo.if"(%p) ({
    %q = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %1 = "stablehlo.if"(%q) ({
      stablehlo.return %x : tensor<3xf32>
    }, {
      %y = stablehlo.multiply %x, %x : tensor<3xf32>
      stablehlo.return %y : tensor<3xf32>
    }) : (tensor<i1>) -> tensor<3xf32>
    stablehlo.return %1 : tensor<3xf32>
  }, {
    %y = stablehlo.add %x, %x : tensor<3xf32>
    stablehlo.return %y : tensor<3xf32>
  }) : (tensor<i1>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}""".replace("%x: tensor<3xf32>)", "%x: tensor<3xf32>, %a: tensor<i32>, %b: tensor<i32>)", 1)


@pytest.mark.parametrize("n", [-1, 0, 1, 4])
def test_while(conforms, n):
    conforms(WHILE, np.int32(n), X)


@pytest.mark.parametrize("k", [-1, 0, 1, 2, 3])
def test_case_runs_the_last_branch_out_of_range(conforms, k):
    conforms(CASE, np.int32(k), X)


@pytest.mark.parametrize("p", [False, True])
def test_if_reads_values_of_blocks_around(conforms, p):
    conforms(IF, np.bool_(p), X, np.int32(1), np.int32(2))
    conforms(IF, np.bool_(p), X, np.int32(2), np.int32(1))


def test_what_regions_read_from_outside_becomes_an_operand():
    (loop,) = (i for i in import_stablehlo(WHILE).walk() if i.op.name == "stablehlo.while")
    assert loop.op.invariants == 3  # n, one and x
    assert [len(region.parameters) for region in loop.regions] == [5, 5]


def _repeat(count):
    type_ = TensorType((3,), "f32")
    body = Builder("region0")
    x, y = body.parameter(type_), body.parameter(type_)
    region = body.build(body.add(Multiply(), x, y))
    main = Builder("main")
    a, b = main.parameter(type_), main.parameter(type_)
    total = main.add(Add(), main.add(Repeat(count, 1), a, b, regions=[region]), b)
    return Module("m", (main.build(total),), "main")


@pytest.mark.parametrize("count", [0, 1, 5])
def test_repeat(count):
    module = _repeat(count)
    verify(module)
    (result,) = evaluate_module(module, X, 2 * X)
    np.testing.assert_array_equal(result, X * (2 * X) ** count + 2 * X)


class _Recorded(Decisions):
    """Counts what is asked in its state, and stops loops after two rounds."""

    state = np.int32(0)

    def take(self, decision):
        self.state = self.state + 1
        return decision & (self.state < 3)


def test_decisions_are_asked_before_every_round():
    asked = _Recorded()
    i, y = evaluate_module(import_stablehlo(WHILE), np.int32(9), X, decisions=asked)
    assert (int(i), int(asked.state)) == (2, 3)
    np.testing.assert_array_equal(y, X**3)
