"""Rows of two to four elements are combined by element."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_passes.ir import Module, evaluate_module, verify
from hlo_passes.ops import Reduce
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo

RNG = np.random.default_rng(17)
ROWS = RNG.standard_normal((64, 80, 3)).astype(np.float32)
X = ROWS.reshape(-1, 3)


def rewritten(function, *args) -> tuple[Module, Module]:
    """Return a function's module before and after, whose results have the same bits."""
    module = import_stablehlo(jax.jit(function).lower(*args).compiler_ir("stablehlo"))
    before = optimize(module, "inline,dce")
    after = optimize(module, "inline,dce,fix(canonicalize,cse,dce)")
    verify(after)
    arrays = [jnp.asarray(x) for x in args]
    for a, b in zip(evaluate_module(before, *arrays), evaluate_module(after, *arrays), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-6)
    return before, after


def folds(module: Module) -> int:
    return sum(isinstance(i.op, Reduce) for i in module.walk())


@pytest.mark.parametrize(
    ("function", "args", "left"),
    [
        (lambda x: x.sum(-1), (X,), 0),
        (lambda x: (x > 0).any(-1), (X,), 0),
        (lambda x, y: ((x - y) ** 2).sum(-1), (X, X[::-1]), 0),
        (lambda x, y: (jnp.broadcast_to(y, x.shape) * x).max(-1), (X, X[:, :1]), 0),
        (lambda x, y: (x * y).min(-1), (X, X[0]), 0),
        (lambda x: (lax.broadcast_in_dim(x, (80, 64, 3), (1, 0, 2)) * 2).sum(-1), (ROWS,), 0),
        (lambda x: (lax.broadcast_in_dim(x, (3, 64, 5120), (2, 0)) * 2).sum(0), (X.reshape(-1, 3),), 1),
        (lambda x: x.sum(0), (X,), 1),  # not the last dimension
        (lambda x: x[:64].sum(-1), (X,), 1),  # few rows
        (
            lambda x: lax.reduce(x, np.float16(0), lax.add, (1,)),
            (X.astype(np.float16),),
            1,
        ),  # rounds at every step
        (lambda x: (lambda d: (d.sum(-1), d))(x * 2), (X,), 1),  # what is computed for something else
    ],
)
def test_what_is_folded_by_element(function, args, left) -> None:
    _, after = rewritten(function, *args)
    assert folds(after) == left


def test_dimensions_placed_in_another_order() -> None:
    """StableHLO places a broadcast's dimensions in any order; the last one is not where the last operand's is."""
    text = """
    func.func @main(%a: tensor<3x5000xf32>, %b: tensor<5000x3xf32>) -> tensor<5000xf32> {
      %0 = stablehlo.broadcast_in_dim %a, dims = [1, 0] : (tensor<3x5000xf32>) -> tensor<5000x3xf32>
      %1 = stablehlo.multiply %0, %b : tensor<5000x3xf32>
      %c = stablehlo.constant dense<0.0> : tensor<f32>
      %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [1] : (tensor<5000x3xf32>, tensor<f32>) -> tensor<5000xf32>
      return %2 : tensor<5000xf32>
    }
    """
    after = optimize(import_stablehlo(text), "canonicalize,dce")
    verify(after)
    a, b = (
        RNG.standard_normal((3, 5000)).astype(np.float32),
        RNG.standard_normal((5000, 3)).astype(np.float32),
    )
    (found,) = evaluate_module(after, jnp.asarray(a), jnp.asarray(b))
    np.testing.assert_allclose(found, (a.T * b).sum(-1), rtol=1e-5, atol=1e-5)
    assert folds(after) == 0


def test_values_read_twice_are_computed_once() -> None:
    def squared(x):
        for _ in range(12):
            x = x * x
        return x.sum(-1)

    before, after = rewritten(squared, np.ones((4096, 2), np.float32))
    assert len(list(after.walk())) <= 3 * len(list(before.walk()))
