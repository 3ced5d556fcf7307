"""jax.lax but control flow and linear algebra, which have modules of their own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.sweep.cases import SPECIAL, Group, booleans, integers, normal, uniform

GROUP = Group("jax.lax")
add = GROUP.add

X, Y = normal(3, 4), normal(3, 4, seed=1)
V = normal(7)
N, M = integers(9, 3, 4, low=-8), integers(9, 3, 4, low=1, seed=1)
B, C = booleans(3, 4), booleans(3, 4, seed=1)
Z = X + 1j * Y
P, Q = uniform(3, 4, low=0.2, high=3.0), uniform(3, 4, low=0.2, high=3.0, seed=1)
HALF, BRAIN = X.astype(np.float16), jnp.asarray(X, jnp.bfloat16)

# ---- elementwise: most have their case by jax.numpy's name; here are those without one and their options

_UNARY = """abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc exp
exp2 expm1 floor is_finite lgamma log log1p logistic neg reciprocal round rsqrt sign sin sinh sqrt square tan tanh"""
for _name in _UNARY.split():
    add(f"lax.{_name}", lambda *xs, f=getattr(lax, _name): [f(x) for x in xs], X, SPECIAL, HALF, BRAIN)
for _name in "abs sign neg integer_pow bitwise_not clz population_count square".split():
    _function = (lambda n: lax.integer_pow(n, 3)) if _name == "integer_pow" else getattr(lax, _name)
    add(f"lax.{_name}: integers", lambda *ns, f=_function: [f(n) for n in ns], N, N.astype(np.int8))
_BINARY = "add atan2 complex div eq ge gt le lt max min mul ne nextafter pow rem sub".split()
for _name in _BINARY:
    add(f"lax.{_name}", getattr(lax, _name), X, Y)
for (
    _name
) in "bitwise_and bitwise_or bitwise_xor shift_left shift_right_arithmetic shift_right_logical mulhi".split():
    add(f"lax.{_name}", getattr(lax, _name), N, M)
for _name in "div rem max min".split():
    add(
        f"lax.{_name}: integers",
        lambda a, b, f=getattr(lax, _name): (f(a, b), f(a.astype(jnp.uint8), b.astype(jnp.uint8))),
        N,
        M,
    )
add("lax.div: by zero", lambda a, b: (lax.div(a, b), lax.rem(a, b)), N, N // 4)
for _name in "igamma igammac igamma_grad_a random_gamma_grad zeta".split():
    add(f"lax.{_name}", lambda a, b, f=getattr(lax, _name), s=_name == "zeta": f(a + s, b), P, Q)
add("lax.polygamma", lax.polygamma, M.astype(np.float32), P)
add("lax.betainc", lambda a, b, x: lax.betainc(a, b, x / 4), P, Q, P)
add("lax.conj", lambda z: (lax.conj(z), lax.real(z), lax.imag(z)), Z)
add("lax.real", lax.real, Z)
add("lax.imag", lax.imag, Z)
add("lax.bitwise_not", lax.bitwise_not, B)
add("lax.clz", lax.clz, N)
add("lax.population_count", lax.population_count, N)
add("lax.integer_pow", lambda x: (lax.integer_pow(x, -3), lax.integer_pow(x, 7), lax.integer_pow(x, 0)), X)
add("lax.round: to even", lambda x: lax.round(x * 2, lax.RoundingMethod.TO_NEAREST_EVEN), X)
add("lax.clamp", lambda x, y: (lax.clamp(-0.5, x, 0.5), lax.clamp(-jnp.abs(y), x, jnp.abs(y))), X, Y)
add("lax.select", lax.select, B, X, Y)
add("lax.select_n", lambda n, x, y: lax.select_n(n % 3, x, y, x + y), N, X, Y)
add("lax.nextafter: special", lambda x: lax.nextafter(x[:, None], x[None]), SPECIAL)
add(
    "lax.convert_element_type",
    lambda x, n: [
        lax.convert_element_type(v, t)
        for v in (x, n)
        for t in (jnp.int8, jnp.uint8, jnp.int16, jnp.uint32, jnp.float16, jnp.bfloat16, bool, jnp.complex64)
    ],
    X * 3,
    N,
)
add(
    "lax.convert_element_type: out of range",
    lambda x: [x.astype(t) for t in (jnp.int32, jnp.uint32, jnp.int8, jnp.uint8)],
    np.array([3e9, -3e9, 300, -1, np.inf, -np.inf, np.nan], np.float32),
)
add(
    "lax.bitcast_convert_type",
    lambda x, n: (
        lax.bitcast_convert_type(x, jnp.int32),
        lax.bitcast_convert_type(n, jnp.float32),
        lax.bitcast_convert_type(n, jnp.uint8),
        lax.bitcast_convert_type(x.reshape(6, 2).astype(jnp.float16), jnp.uint32),
    ),
    X,
    N,
)
add(
    "lax.reduce_precision",
    lambda x: (lax.reduce_precision(x, 8, 7), lax.reduce_precision(x, 5, 2), lax.reduce_precision(x, 4, 3)),
    X * 100,
)
add("lax.reduce_precision: special", lambda x: lax.reduce_precision(x * 1e-3, 5, 10), SPECIAL)
for _type in (jnp.int8, jnp.uint8, jnp.int16, jnp.uint32):
    _name = jnp.dtype(_type).name
    add(
        f"integers: {_name}",
        lambda n, m, t=_type: (
            lambda a, b: (
                a + b,
                a * b,
                a - b,
                a // b,
                a % b,
                -a,
                a >> 1,
                a << 2,
                a < b,
                a.sum(),
                a.max(0),
                a @ b.T,
            )
        )(n.astype(t) * 29, m.astype(t)),
        N,
        M,
    )

# ---- shapes and types

add("lax.broadcast", lambda x: lax.broadcast(x, (2,)), X)
add("lax.broadcast_in_dim", lambda v: lax.broadcast_in_dim(v, (3, 7, 2), (1,)), V)
add("lax.broadcast_to_rank", lambda v: lax.broadcast_to_rank(v, 3), V)
add("lax.broadcast_like", lambda x: lax.full_like(x, 1) + lax.broadcast(x[0, 0], (3, 4)), X)
add("lax.broadcasted_iota", lambda x: lax.broadcasted_iota(jnp.int32, (3, 4), 1) + x, X)
add("lax.iota", lambda: lax.iota(jnp.float32, 5))
add("lax.collapse", lambda x: lax.collapse(x[None], 0, 2), X)
add("lax.concatenate", lambda x, y: lax.concatenate([x, y, x], 1), X, Y)
add("lax.stack", lambda x, y: lax.stack([x, y]), X, Y)
add("lax.unstack", lambda x: lax.unstack(x), X)
add("lax.split", lambda x: lax.split(x, (1, 3), axis=1), X)
add("lax.tile", lambda x: lax.tile(x, (2, 1)), X)
add("lax.expand_dims", lambda x: lax.expand_dims(x, (1,)), X)
add("lax.squeeze", lambda x: lax.squeeze(x[None], (0,)), X)
add("lax.full", lambda x: lax.full((2, 3), x[0, 0]), X)
add("lax.full_like", lambda x: lax.full_like(x, 3), X)
add("lax.empty", lambda x: lax.empty((3, 4), jnp.float32).at[:].set(x), X)
add(
    "lax.pad",
    lambda x: (lax.pad(x, 1.0, ((1, 2, 1), (-1, 0, 0))), lax.pad(x, 0.0, ((-1, -1, 2), (0, 0, 0)))),
    X,
)
add("lax.reshape", lambda x: (lax.reshape(x, (2, 6)), lax.reshape(x, (12,), dimensions=(1, 0))), X)
add("lax.rev", lambda x: lax.rev(x, (0, 1)), X)
add("lax.slice", lambda x: lax.slice(x, (0, 1), (3, 4), (2, 2)), X)
add("lax.slice_in_dim", lambda x: lax.slice_in_dim(x, 1, -1, axis=1), X)
add("lax.transpose", lambda x: lax.transpose(x[None], (2, 0, 1)), X)
add("lax.optimization_barrier", lambda x, y: lax.optimization_barrier((x, y * 2)), X, Y)
add("lax.stop_gradient", jax.grad(lambda x: (lax.stop_gradient(x) * x).sum()), X)
add("lax.composite", lax.composite(lambda x: jnp.sin(x) * 2, "my.double_sine"), X)
add("lax.platform_dependent", lambda x: lax.platform_dependent(x, default=jnp.sin), X)
add(
    "lax.platform_dependent: a branch of cpu",
    lambda x: lax.platform_dependent(x, cpu=lambda v: jnp.sin(v), default=lambda v: jnp.sin(v)),
    X,
)
add("lax.stage", lambda x: lax.stage(3.0) * x, X)
add("lax.dce_sink", lambda x: (lax.dce_sink(x * 2), x)[1], X)

# ---- runtime offsets

add(
    "lax.dynamic_slice",
    lambda x, i: (lax.dynamic_slice(x, (i, 1), (2, 2)), lax.dynamic_slice_in_dim(x, i, 2, 1)),
    X,
    2,
)
add("lax.dynamic_slice_in_dim", lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, 1), X, 1)
add("lax.dynamic_index_in_dim", lambda x, i: lax.dynamic_index_in_dim(x, i, 1, keepdims=False), X, 1)
add("lax.dynamic_update_slice", lambda x, y, i: lax.dynamic_update_slice(x, y[:2, :2], (i, i)), X, Y, 1)
add(
    "lax.dynamic_update_slice_in_dim",
    lambda x, y, i: lax.dynamic_update_slice_in_dim(x, y[:1], i, 0),
    X,
    Y,
    -1,
)
add(
    "lax.dynamic_update_index_in_dim", lambda x, y, i: lax.dynamic_update_index_in_dim(x, y[0], i, 0), X, Y, 2
)
add("lax.index_in_dim", lambda x: lax.index_in_dim(x, 1, 1), X)
add("lax.index_take", lambda x, n: lax.index_take(x, (n,), (0,)), X, np.array([2, 0]))
_GATHER = lax.GatherDimensionNumbers((1,), (0,), (0,))
for _mode in ("clip", "fill", "promise_in_bounds"):
    add(
        f"lax.gather: {_mode}",
        lambda x, n, m=_mode: lax.gather(x, n, _GATHER, (1, 2), mode=m),
        X,
        np.array([[0], [2], [1]]),
    )
add(
    "lax.gather",
    lambda x, n: lax.gather(
        x, n, lax.GatherDimensionNumbers((), (0, 1), (0, 1)), (1, 1), mode="fill", fill_value=7
    ),
    X,
    np.array([[0, 1], [2, 3], [5, 0]]),
)
_SCATTER = lax.ScatterDimensionNumbers((1,), (0,), (0,))
for _name in "scatter scatter_add scatter_sub scatter_mul scatter_min scatter_max".split():
    add(
        f"lax.{_name}",
        lambda x, n, y, f=getattr(lax, _name): f(x, n, y, _SCATTER),
        X,
        np.array([[0], [2], [9]]),
        Y,
    )
add(
    "lax.scatter_apply",
    lambda x, n: lax.scatter_apply(x, n, jnp.sin, _SCATTER, update_shape=(2, 4)),
    X,
    np.array([[0], [2]]),
)

# ---- reductions, windows, order

add(
    "lax.reduce",
    lambda x: (
        lax.reduce(x, 0.0, lax.add, (0,)),
        lax.reduce(x, 1.0, lax.mul, (0, 1)),
        lax.reduce(x, 0.0, jnp.logaddexp, (1,)),
    ),
    X,
)
add(
    "lax.reduce: of two operands",
    lambda x, y: lax.reduce((x, y), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)),
    X,
    Y,
)
for _name in "reduce_sum reduce_prod reduce_max reduce_min".split():
    add(f"lax.{_name}", lambda x, f=getattr(lax, _name): f(x, (0,)), X)
for _name in "reduce_and reduce_or reduce_xor".split():
    add(f"lax.{_name}", lambda b, n, f=getattr(lax, _name): (f(b, (0,)), f(n, (1,))), B, N)
for _name in "argmax argmin".split():
    add(f"lax.{_name}", lambda x, f=getattr(lax, _name): f(x, 1, jnp.int32), X)
for _name in "cumsum cumprod cummax cummin cumlogsumexp".split():
    add(f"lax.{_name}", lambda x, f=getattr(lax, _name): (f(x, axis=0), f(x, axis=1, reverse=True)), X)
    add(f"lax.{_name}: gradient", jax.grad(lambda x, f=getattr(lax, _name): (f(x, axis=1) ** 2).sum()), X)
IMAGE = normal(2, 6, 6, 3)
for _name, _init, _op in (
    ("max", -np.inf, lax.max),
    ("min", np.inf, lax.min),
    ("sum", 0.0, lax.add),
    ("product", 1.0, lax.mul),
):
    add(
        f"lax.reduce_window: {_name}",
        lambda x, i=_init, o=_op: lax.reduce_window(x, i, o, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        IMAGE,
    )
add(
    "lax.reduce_window",
    lambda x: lax.reduce_window(
        x,
        0.0,
        lambda a, b: jnp.maximum(a, b) + a * 0,
        (1, 2, 2, 1),
        (1, 1, 1, 1),
        "VALID",
        (1, 2, 1, 1),
        (1, 1, 2, 1),
    ),
    IMAGE,
)
add(
    "lax.reduce_window: gradient",
    jax.grad(
        lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2).sum()
    ),
    IMAGE,
)
add(
    "lax.reduce_window: gradient of overlaps",
    jax.grad(
        lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") ** 2).sum()
    ),
    IMAGE,
)
add(
    "lax.reduce_window: mean",
    jax.value_and_grad(
        lambda x: ((lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9) ** 2).sum()
    ),
    IMAGE,
)
add(
    "lax.reduce_window: second derivative",
    lambda x, t: jax.jvp(
        jax.grad(
            lambda x: (
                lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 3
            ).sum()
        ),
        (x,),
        (t,),
    ),
    IMAGE,
    normal(2, 6, 6, 3, seed=1),
)
add(
    "lax.sort",
    lambda x, n: (lax.sort(x, dimension=0), lax.sort((n, x), num_keys=2), lax.sort(x, is_stable=False)),
    X,
    N // 4,
)
add("lax.sort_key_val", lambda n, x: lax.sort_key_val(n, x), N, X)
add("lax.sort: special", lambda x: lax.sort(x), SPECIAL)

# ---- products

add("lax.dot", lambda x, y: lax.dot(x, y.T, precision=lax.Precision.HIGHEST), X, Y)
add("lax.dot_general", lambda x: lax.dot_general(x, x, (((3,), (3,)), ((0, 2), (0, 2)))), IMAGE)
add(
    "lax.dot_general: preferred type",
    lambda n, h: (
        lax.dot_general(n, n, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32),
        lax.dot_general(h, h, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32),
    ),
    N.astype(np.int8),
    HALF,
)
for _preset in ("F32_F32_F32", "BF16_BF16_F32", "F16_F16_F16", "BF16_BF16_F32_X3"):
    add(
        f"lax.dot_general: algorithm {_preset}",
        lambda x, y, p=_preset: lax.dot(x, y.T, precision=lax.DotAlgorithmPreset[p]),
        np.round(X * 8)
        / 8,  # XLA's kernels for a CPU do not round operands to bfloat16: these need no rounding
        np.round(Y * 8) / 8,
    )
add("lax.batch_matmul", lambda x: lax.batch_matmul(x, x), normal(2, 3, 3))
add(
    "lax.ragged_dot",
    lambda x, w, g: lax.ragged_dot(x, w, g),
    normal(6, 4),
    normal(3, 4, 5),
    np.array([2, 1, 3], np.int32),
)
add(
    "lax.ragged_dot_general",
    lambda x, w, g: lax.ragged_dot_general(
        x, w, g, lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
    ),
    normal(6, 4),
    normal(3, 4, 5),
    np.array([2, 1, 3], np.int32),
)
add(
    "lax.ragged_dot: gradient",
    jax.grad(lambda x, w, g: (lax.ragged_dot(x, w, g) ** 2).sum(), (0, 1)),
    normal(6, 4),
    normal(3, 4, 5),
    np.array([2, 1, 3], np.int32),
)

CHANNELS_FIRST, KERNEL = normal(2, 4, 7, 6), normal(6, 4, 3, 2)
add("lax.conv", lambda x, k: lax.conv(x, k, (1, 2), "SAME"), CHANNELS_FIRST, KERNEL)
add(
    "lax.conv_general_dilated",
    lambda x, k: lax.conv_general_dilated(x, k, (2, 1), ((1, 2), (0, -1)), (2, 1), (1, 2)),
    CHANNELS_FIRST,
    KERNEL,
)
add(
    "lax.conv_general_dilated: groups",
    lambda x, k: lax.conv_general_dilated(x, k[:, :2], (1, 1), "SAME", feature_group_count=2),
    CHANNELS_FIRST,
    KERNEL,
)
add(
    "lax.conv_general_dilated: batch groups",
    lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "VALID", batch_group_count=2),
    CHANNELS_FIRST,
    KERNEL,
)
add(
    "lax.conv_general_dilated: gradient",
    jax.grad(
        lambda x, k: (lax.conv_general_dilated(x, k, (2, 2), "SAME", rhs_dilation=(2, 1)) ** 2).sum(), (0, 1)
    ),
    CHANNELS_FIRST,
    KERNEL,
)
add(
    "lax.conv_general_dilated: bfloat16",
    lambda x, k: lax.conv_general_dilated(
        x.astype(jnp.bfloat16), k.astype(jnp.bfloat16), (1, 1), "SAME", preferred_element_type=jnp.float32
    ),
    CHANNELS_FIRST,
    KERNEL,
)
add(
    "lax.conv_general_dilated: integers",
    lambda x, k: lax.conv_general_dilated(
        (x * 9).astype(jnp.int8), (k * 9).astype(jnp.int8), (1, 1), "SAME", preferred_element_type=jnp.int32
    ),
    CHANNELS_FIRST,
    KERNEL,
)
add(
    "lax.conv_general_dilated: 1 and 3 dimensions",
    lambda x, v: (
        lax.conv_general_dilated(x, x[:2, :, :2], (1,), "SAME"),
        lax.conv_general_dilated(v, v[:, :, :2, :2, :2], (1, 1, 1), "VALID"),
    ),
    normal(3, 2, 5),
    normal(2, 2, 4, 3, 3),
)
add(
    "lax.conv_general_dilated: vmap",
    jax.vmap(lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME")),
    normal(3, 2, 2, 5, 5),
    normal(3, 4, 2, 3, 3),
)
add(
    "lax.conv_general_dilated: complex",
    lambda x, k: lax.conv_general_dilated(x + 1j, k * 1j, (1, 1), "SAME"),
    CHANNELS_FIRST,
    KERNEL,
)
add(
    "lax.conv_with_general_padding",
    lambda x, k: lax.conv_with_general_padding(x, k, (1, 1), ((1, 1), (0, 0)), (1, 1), (2, 2)),
    CHANNELS_FIRST,
    KERNEL,
)
add(
    "lax.conv_transpose",
    lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"),
    normal(2, 5, 5, 3),
    normal(3, 3, 3, 4),
)
add(
    "lax.conv_transpose: kernel transposed",
    lambda x, k: lax.conv_transpose(x, k, (2, 2), "VALID", transpose_kernel=True),
    normal(2, 5, 5, 3),
    normal(3, 3, 4, 3),
)
add(
    "lax.conv_general_dilated_local",
    lambda x, k: lax.conv_general_dilated_local(x, k, (1, 1), "VALID", (2, 2)),
    normal(2, 3, 4, 4),
    normal(5, 12, 3, 3),
)
add(
    "lax.conv_general_dilated_patches",
    lambda x: lax.conv_general_dilated_patches(x, (2, 2), (1, 1), "SAME"),
    CHANNELS_FIRST,
)

# ---- transforms, random bits

add(
    "lax.fft",
    lambda z, x: (lax.fft(z, "FFT", (4,)), lax.fft(z, lax.FftType.IFFT, (3, 4)), lax.fft(x, "RFFT", (4,))),
    Z,
    X,
)
for _algorithm in ("RNG_THREE_FRY", "RNG_PHILOX"):
    add(
        f"lax.rng_bit_generator: {_algorithm}",
        lambda k, a=lax.RandomAlgorithm[_algorithm]: lax.rng_bit_generator(
            k, (3, 5), jnp.uint32, algorithm=a
        ),
        np.array([1, 2, 3, 4], np.uint32),
    )
add(
    "lax.rng_bit_generator",
    lambda k: [lax.rng_bit_generator(k, (5,), t)[1] for t in (jnp.uint8, jnp.uint16, jnp.uint32)],
    np.array([1, 2, 3, 4], np.uint32),
)
add("lax.rng_uniform", lambda: (lax.rng_uniform(0.0, 1.0, (3,)) < 1).all())
