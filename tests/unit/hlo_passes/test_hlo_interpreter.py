"""The interpreter: arguments, widths, tracing and interception."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_passes.errors import EvaluationError
from hlo_passes.ir import Closure, evaluate_instruction, evaluate_module, parse_module

TEXT = """module @m entry @main {
  @main(%x: tensor<3xf32>, %n: tensor<i64>) {
    %0 = func.call(%x) {callee = "square"} : tensor<3xf32>
    %1 = stablehlo.multiply(%n, %n) : tensor<i64>
    %2 = hlo.fusion(%0) {kind = "loop"} [
      @body(%a: tensor<3xf32>) {
        %b = stablehlo.negate(%a) : tensor<3xf32>
        return %b
      }
    ] : tensor<3xf32>
    return %2, %1
  }
  @square(%a: tensor<3xf32>) {
    %0 = stablehlo.multiply(%a, %a) : tensor<3xf32>
    return %0
  }
}
"""
MODULE = parse_module(TEXT)
X, N = np.array([1, 2, 3], np.float32), np.int64(2**31)


def test_values_and_widths_whatever_the_setting():
    assert not jax.config.jax_enable_x64
    negated, squared = evaluate_module(MODULE, X, N)
    np.testing.assert_array_equal(negated, -X * X)
    assert squared.dtype == np.int64 and int(squared) == 2**62


def test_is_traceable():
    text = TEXT.replace("i64", "i32")
    traced = jax.jit(lambda *arrays: evaluate_module(parse_module(text), *arrays))
    np.testing.assert_array_equal(traced(X, np.int32(3))[0], -X * X)
    gradient = jax.grad(lambda x: evaluate_module(parse_module(text), x, np.int32(3))[0].sum())(X)
    np.testing.assert_array_equal(gradient, -2 * X)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((X,), "@main: expected 2 arrays, got 1"),
        ((X[:2], N), "@main %x: expected tensor<3xf32>, got tensor<2xf32>"),
        ((X, np.int32(1)), "@main %n: expected tensor<i64>, got tensor<i32>"),
    ],
)
def test_wrong_arguments_are_named(arrays, message):
    with pytest.raises(EvaluationError, match=message):
        evaluate_module(MODULE, *arrays)


def test_interception_reaches_into_calls_and_fusions():
    seen = []

    def apply(function, *operands):
        seen.append(function.func.__self__.name.partition(".")[2])
        return [result + 1 for result in function(*operands)]

    negated, squared = evaluate_module(MODULE, X, N, apply=apply)
    assert seen == ["multiply", "multiply", "negate"]
    np.testing.assert_array_equal(negated, -(X * X + 1) + 1)
    assert int(squared) == 2**62 + 1


def test_interception_may_change_the_representation():
    def in_words(function, *operands):
        avals = [
            jax.ShapeDtypeStruct(x.shape, jnp.float32 if x.dtype == jnp.uint32 else x.dtype) for x in operands
        ]
        return [jnp.zeros(out.shape, jnp.uint32) for out in jax.eval_shape(function, *avals)]

    results = evaluate_module(MODULE, X.view(np.uint32), N, apply=in_words)
    assert [result.dtype for result in results] == [np.uint32, np.uint32]


def test_one_instruction_and_one_region_can_be_evaluated():
    call, _, fusion = MODULE.entry_computation.instructions
    np.testing.assert_array_equal(evaluate_instruction(call, X, module=MODULE)[0], X * X)
    with pytest.raises(EvaluationError, match="only a module can resolve"):
        evaluate_instruction(call, X)
    np.testing.assert_array_equal(Closure(fusion.regions[0])(X)[0], -X)
