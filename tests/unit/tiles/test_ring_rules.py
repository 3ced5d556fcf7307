"""Every family of primitives has a ring meaning that is the same fused, op by op and batched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tiles.numerics.ring import ring, to_ring

IMAGE = (2, 4, 4, 3)
POOL = ((1, 2, 2, 1), (1, 2, 2, 1), "VALID")
NHWC = ("NHWC", "HWIO", "NHWC")


def _convolve(x, strides=(1, 1)):
    kernel = jnp.arange(3 * 3 * 3 * 4, dtype=jnp.float32).reshape(3, 3, 3, 4) * 0.1
    return lax.conv_general_dilated(x, kernel.astype(x.dtype), strides, "SAME", dimension_numbers=NHWC)


def _max_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, *POOL)


FUNCTIONS = {
    "convolution gradient": jax.grad(lambda x: (_convolve(x, (2, 2)) ** 2).sum()),
    "max pooling": _max_pool,
    "max pooling gradient": jax.grad(lambda x: (_max_pool(x) ** 2).sum()),
    "max pooling tangent": lambda x: jax.jvp(_max_pool, (x,), (x * 0.3,)),
    "sum pooling": lambda x: lax.reduce_window(x, 0.0, lax.add, *POOL),
    "any pooling": lambda x: lax.reduce_window(x, 0.0, lambda a, b: a + b + a * b, *POOL),
    "joint reduction": lambda x: lax.reduce(
        (x, x * 0.5), (-jnp.inf, 0.0), lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1]), (1,)
    ),
    "order": lambda x: (
        jnp.argmax(x, 1),
        jnp.argmin(x, 0),
        jnp.sort(x, 1),
        lax.top_k(x, 2),
        jnp.argsort(x, 0),
    ),
    "cumulative": lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x), lax.cummin(x)),
    "scatter": lambda x: (
        x.at[jnp.array([1, 0])].add(x * 0.5).at[0].set(0.25).at[1].mul(x[0]).at[1].max(x[1]).at[0].min(x[1])
    ),
    "gather": lambda x: (x[jnp.array([1, 20])], jnp.take(x, jnp.array([1, 20]), axis=0, mode="fill")),
    "narrow types": lambda x: (_convolve(x.astype(jnp.bfloat16)), x.astype(jnp.float16).sum(1)),
    "elementwise": lambda x: (
        x**3,
        x**-2,
        x**2.5,
        jnp.abs(x),
        jnp.sign(x),
        x % 1.3,
        jnp.isfinite(x),
        x > 0.5,
    ),
    "special functions": lambda x: (
        jax.scipy.special.erf(x),
        lax.lgamma(x),
        lax.erf_inv(x),
        jnp.arctan2(x, 1 + x),
    ),
    "clamp and select": lambda x: (jnp.clip(x, -0.5, 0.5), jnp.where(x > 0, x, 2.5), jax.nn.relu(x)),
    "movement": lambda x: (jnp.pad(x, 1, constant_values=1.5)[:, ::-1], jnp.roll(x, 1, 2), jnp.tile(x, 2)),
    "runtime offsets": lambda x: lax.dynamic_update_slice(x, x[:1], (jnp.argmax(x[0, 0, :, 0]) % 2, 0, 0, 0)),
    "random numbers": lambda x: x + jax.random.uniform(jax.random.key(3), x.shape),
    "checkpoint": jax.grad(lambda x: jax.checkpoint(lambda v: jnp.sin(v) * 2.5)(x).sum()),
    "scan of a dot": lambda x: lax.map(lambda r: jnp.dot(r[0], r[0].T), x),
    "associative scan": lambda x: lax.associative_scan(lambda a, b: a * b + a, x),
    "bitcast": lambda x: lax.bitcast_convert_type(x, jnp.int32) ^ 5,
    "platforms": lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.sin),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fused_equals_op_by_op(name):
    x = jnp.asarray(np.random.default_rng(0).standard_normal(IMAGE), jnp.float32)
    function = ring(FUNCTIONS[name])
    eager, jitted = function(x), jax.jit(function)(x)
    floats = jax.eval_shape(FUNCTIONS[name], x)
    for a, b, f in zip(*map(jax.tree.leaves, (eager, jitted, floats)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        unsigned = {
            jnp.dtype("float32"): "uint32",
            jnp.dtype("float16"): "uint16",
            jnp.dtype("bfloat16"): "uint16",
        }
        assert (a.shape, str(a.dtype)) == (f.shape, unsigned.get(f.dtype, str(f.dtype)))


def test_max_pooling_gradient_sends_each_word_to_its_windows_maximum():
    x = jnp.asarray(np.random.default_rng(1).standard_normal((1, 4, 4, 1)), jnp.float32)
    weights = jnp.asarray(np.random.default_rng(2).standard_normal((1, 2, 2, 1)), jnp.float32)
    got = np.asarray(ring(jax.grad(lambda v: (_max_pool(v) * weights).sum()))(x))[0, :, :, 0]
    words, factors = np.asarray(to_ring(x))[0, :, :, 0], np.asarray(to_ring(weights))[0, :, :, 0]
    want = np.zeros_like(words)
    for i in range(2):
        for j in range(2):
            window = words[2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            a, b = np.unravel_index(window.argmax(), (2, 2))
            want[2 * i + a, 2 * j + b] = factors[i, j]
    np.testing.assert_array_equal(got, want)


def test_convolution_is_the_integers_convolution():
    x = jnp.asarray(np.random.default_rng(3).standard_normal((1, 5, 1)), jnp.float32)
    kernel = jnp.asarray(np.random.default_rng(4).standard_normal((3, 1, 1)), jnp.float32)
    dims = ("NWC", "WIO", "NWC")
    got = ring(lambda a, k: lax.conv_general_dilated(a, k, (1,), "VALID", dimension_numbers=dims))(x, kernel)
    words, factors = (np.asarray(to_ring(v)).ravel().astype(object) for v in (x, kernel))
    want = [int(sum(words[i + k] * factors[k] for k in range(3)) % 2**32) for i in range(3)]
    assert np.asarray(got).ravel().tolist() == want
