"""The default pipeline on programs as users write them: values to the bit, fusions as lowering wants them."""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_passes.ir import Module, parse_module, print_module
from hlo_passes.ops import DotGeneral, Fusion
from hlo_passes.passes import DEFAULT_PIPELINE, optimize
from ipuxla.frontend.importer import import_stablehlo
from tests.comparison import assert_same_bits, results
from tests.fusion_contract import check_fusions

SIZES = (12, 8, 8, 5)


def imported(function, *args) -> Module:
    lowered = jax.jit(function, keep_unused=True).lower(*args)
    return import_stablehlo(lowered.compiler_ir("stablehlo"))


def parameters():
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=(i, o)).astype(np.float32), rng.normal(size=o).astype(np.float32))
        for i, o in itertools.pairwise(SIZES)
    ]


def batch():
    rng = np.random.default_rng(1)
    return rng.normal(size=(6, SIZES[0])).astype(np.float32), np.eye(SIZES[-1], dtype=np.float32)[
        np.arange(6) % 5
    ]


def cross_entropy(params, x, y):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(x @ w + b) * y, axis=-1))


def softmax_cross_entropy(logits, labels):
    return -jnp.sum(labels * jnp.log(jax.nn.softmax(logits)))


def layer_norm(x, scale, shift):
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def adam(params, first, second, count, x, y):
    grads = jax.grad(cross_entropy)(params, x, y)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    scales = 1 - 0.9**count, 1 - 0.999**count
    step = jax.tree.map(
        lambda p, m, v: p - 1e-3 * (m / scales[0]) / (jnp.sqrt(v / scales[1]) + 1e-8), params, first, second
    )
    return step, first, second, count


def programs():
    params, (x, y) = parameters(), batch()
    zeros = jax.tree.map(np.zeros_like, params)
    scale, shift = np.full(SIZES[0], 1.5, np.float32), np.ones(SIZES[0], np.float32)

    def loss(x, scale, shift):
        return jnp.sum(layer_norm(x, scale, shift) ** 2)

    return {
        "mlp-grad": (jax.value_and_grad(cross_entropy), (params, x, y)),
        "softmax-cross-entropy-grad": (jax.grad(softmax_cross_entropy), (x[:, :5], y)),
        "layer-norm-grad": (jax.grad(loss, argnums=(0, 1, 2)), (x, scale, shift)),
        "adam": (adam, (params, zeros, jax.tree.map(np.abs, params), np.float32(0), x, y)),
    }


@pytest.mark.parametrize("name", programs())
def test_values_keep_their_bits(name):
    function, args = programs()[name]
    module, arrays = imported(function, *args), jax.tree.leaves(args)
    optimized = optimize(module)
    assert check_fusions(optimized)
    text = print_module(optimized)
    assert print_module(parse_module(text)) == text
    assert_same_bits(results(module, arrays), results(optimized, arrays))
    expected = jax.tree.leaves(jax.jit(function)(*args))
    for one, other in zip(results(optimized, arrays), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def kinds(module: Module) -> Counter:
    return Counter(
        i.op.kind if isinstance(i.op, Fusion) else i.op.name.rpartition(".")[2]
        for i in module.entry_computation.instructions
    )


def test_a_dense_layer_is_one_output_fusion():
    args = (np.ones((4, 6), np.float32), np.ones((6, 3), np.float32), np.ones(3, np.float32))
    assert kinds(optimize(imported(lambda x, w, b: jax.nn.relu(x @ w + b), *args))) == {"output": 1}


def test_softmax_is_one_function_of_rows_unrecovered_two_reductions_and_two_loops():
    module = imported(jax.nn.softmax, np.ones((4, 6), np.float32))
    assert kinds(optimize(module)) == {"row_function": 1}
    assert kinds(optimize(module, DEFAULT_PIPELINE.replace("recover-networks,", ""))) == {
        "input": 2,
        "loop": 2,
    }


def test_gradients_of_a_dense_layer_need_no_transposes():
    params, (x, y) = parameters(), batch()
    module = optimize(imported(jax.grad(cross_entropy), params, x, y))
    used = {i.op.name for i in module.walk()}
    assert "stablehlo.transpose" not in used
    dots = sum(isinstance(i.op, DotGeneral) for i in module.walk())
    assert dots == 3 + 3 + 2  # forward, gradients of weights, gradients of activations


def test_adam_updates_are_one_loop_per_result():
    function, args = programs()["adam"]
    module = optimize(imported(function, *args))
    entry = module.entry_computation
    updates = [entry.producers[value] for value in entry.results[:-1]]
    assert all(isinstance(i.op, Fusion) and i.op.kind in ("loop", "output", "input") for i in updates)
    assert len(entry.instructions) < 50


def test_functions_called_often_stay_functions():
    @jax.jit
    def block(x, w):
        for _ in range(12):
            x = jnp.tanh(x @ w) * 2 + x
        return x

    x, w = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
    module = optimize(imported(lambda x, w: block(block(block(x, w), w), w), x, w))
    assert kinds(module) == {"call": 3} and len(module.computations) == 2
    inlined = optimize(imported(lambda x, w: block(x, w) + 1, x, w))
    assert len(inlined.computations) == 1
