"""Real programs, imported and evaluated op by op, against ``jax.jit`` of the same function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_passes.ir import evaluate_module, parse_module, print_module, verify
from ipuxla.frontend.importer import import_stablehlo

RNG = np.random.default_rng(0)


def _normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def _mlp(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def _cross_entropy(params, x, labels):
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(_mlp(params, x)) * jax.nn.one_hot(labels, 3), axis=-1))


def _layer_norm(x, scale, bias):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias


def _feed_forward(x, w1, w2, scale, bias):
    return x + jax.nn.gelu(_layer_norm(x, scale, bias) @ w1, approximate=False) @ w2


def _adam(params, moments, gradients, step):
    def update(p, m, v, g):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        rate = 1e-3 * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        return p - rate * m / (jnp.sqrt(v) + 1e-8), m, v

    return [update(p, m, v, g) for p, (m, v), g in zip(params, moments, gradients, strict=True)]


PARAMS = [(_normal(4, 8), _normal(8)), (_normal(8, 3), _normal(3))]
X, LABELS = _normal(5, 4), np.array([0, 2, 1, 1, 0], np.int32)
BLOCK = (_normal(6, 8), _normal(8, 16), _normal(16, 8), _normal(8), _normal(8))

PROGRAMS = {
    "mlp": (_mlp, (PARAMS, X)),
    "cross entropy and its gradient": (jax.value_and_grad(_cross_entropy), (PARAMS, X, LABELS)),
    "layer norm gradient": (
        jax.grad(lambda *a: _layer_norm(*a).sum(), argnums=(0, 1, 2)),
        BLOCK[:1] + BLOCK[3:],
    ),
    "feed-forward block": (_feed_forward, BLOCK),
    "feed-forward gradient": (
        jax.grad(lambda *a: (_feed_forward(*a) ** 2).sum(), argnums=(1, 2, 3, 4)),
        BLOCK,
    ),
    "adam": (_adam, ([X, X[0]], [(X, X * X), (X[0], X[0] ** 2)], [X + 1, X[1]], np.float32(3))),
    "per-example gradients": (
        jax.vmap(jax.grad(lambda w, x: jnp.sum(jax.nn.relu(x @ w))), (None, 0)),
        (_normal(4, 8), X),
    ),
    "softmax in half precision": (lambda x: jax.nn.softmax(x.astype(jnp.bfloat16)).astype(jnp.float32), (X,)),
    "integers": (lambda i: (i.sum(), jnp.argmax(i), i // 2, i % 3, i >> 1), (LABELS,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_equals_jax(name):
    function, arguments = PROGRAMS[name]
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    module = import_stablehlo(lowered.compiler_ir("stablehlo"))
    verify(module)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    got = jax.jit(lambda *leaves: evaluate_module(module, *leaves))(*jax.tree.leaves(arguments))
    expected = jax.tree.leaves(lowered.compile()(*arguments))
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5 * float(jnp.abs(theirs).max()))


def test_interception_sees_every_operation_once():
    module = import_stablehlo(jax.jit(_cross_entropy).lower(PARAMS, X, LABELS).compiler_ir("stablehlo"))
    seen = []

    def apply(function, *operands):
        seen.append(function.func.__self__.name)
        return function(*operands)

    leaves = jax.tree.leaves((PARAMS, X, LABELS))
    (got,) = evaluate_module(module, *leaves, apply=apply)
    np.testing.assert_allclose(got, _cross_entropy(PARAMS, X, LABELS), rtol=1e-5)
    instructions = [i.op.name for c in module.computations for i in c.instructions if not i.op.is_control]
    assert sorted(seen) == sorted(instructions)
    assert "func.call" not in seen and "stablehlo.reduce" in seen
