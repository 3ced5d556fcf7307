"""``batch_norm_inference``, ``batch_norm_training``, ``batch_norm_grad`` against derivatives in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_passes.ir import evaluate_module
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.conformance.conftest import evaluated

RNG = np.random.default_rng(0)
SHAPES = {0: (4, 3, 2), 1: (3, 4, 2), 2: (5, 3, 4)}


def _text(name, x, features, operands, results, index):
    tx, tf = f"tensor<{'x'.join(map(str, x))}xf32>", f"tensor<{features}xf32>"
    types = [tx if kind == "x" else tf for kind in operands]
    out = ", ".join(tx if kind == "x" else tf for kind in results)
    arguments = ", ".join(f"%a{n}: {t}" for n, t in enumerate(types))
    names = ", ".join(f"%a{n}" for n in range(len(types)))
    count = f":{len(results)}" if len(results) > 1 else ""
    returned = ", ".join(f"%0#{n}" for n in range(len(results))) if count else "%0"
    return f"""func.func @main({arguments}) -> ({out}) {{
      %0{count} = "stablehlo.{name}"({names}) {{epsilon = 0.01 : f32, feature_index = {index} : i64}}
        : ({", ".join(types)}) -> ({out})
      return {returned} : {out}
    }}"""


def _inputs(index):
    x = RNG.standard_normal(SHAPES[index]).astype(np.float32)
    scale, offset, mean = RNG.standard_normal((3, 4)).astype(np.float32)
    return x, scale, offset, mean, np.abs(scale) + 0.1


def _normalized(x, scale, offset, mean, variance, index):
    shape = [-1 if d == index else 1 for d in range(3)]
    scale, offset, mean, variance = (jnp.reshape(v, shape) for v in (scale, offset, mean, variance))
    return (x - mean) / jnp.sqrt(variance + 0.01) * scale + offset


def _trained(operands, index):
    x, scale, offset = operands
    axes = tuple(d for d in range(3) if d != index)
    mean, variance = jnp.mean(x, axes), jnp.var(x, axes)
    return _normalized(x, scale, offset, mean, variance, index), mean, variance


def _check(text, arrays, expected):
    """The operation itself, and what the pass ``expand`` makes of it."""
    module = optimize(import_stablehlo(text), "expand,inline,dce")
    assert not any("batch_norm" in instruction.op.name for instruction in module.walk())
    for results in (evaluated(text, *arrays), evaluate_module(module, *arrays)):
        for got, want in zip(results, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("index", SHAPES)
def test_batch_norm_inference(index):
    arrays = _inputs(index)
    text = _text("batch_norm_inference", SHAPES[index], 4, "xffff", "x", index)
    _check(text, arrays, [_normalized(*arrays, index)])


@pytest.mark.parametrize("index", SHAPES)
def test_batch_norm_training(index):
    arrays = _inputs(index)[:3]
    _check(
        _text("batch_norm_training", SHAPES[index], 4, "xff", "xff", index), arrays, _trained(arrays, index)
    )


@pytest.mark.parametrize("index", SHAPES)
def test_batch_norm_grad_is_the_gradient_of_training(index):
    x, scale, offset, *_ = _inputs(index)
    gradient = RNG.standard_normal(x.shape).astype(np.float32)
    with jax.enable_x64(True):
        wide = [jnp.asarray(v, jnp.float64) for v in (x, scale, offset)]
        (_, mean, variance), pull = jax.vjp(lambda *args: _trained(args, index), *wide)
        expected = pull((jnp.asarray(gradient, jnp.float64), jnp.zeros(4), jnp.zeros(4)))
        arrays = [np.asarray(v, np.float32) for v in (x, scale, mean, variance, gradient)]
    _check(_text("batch_norm_grad", SHAPES[index], 4, "xfffx", "xff", index), arrays, expected)
