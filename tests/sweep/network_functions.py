"""jax.nn and its initializers, jax.image, jax.ops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tests.sweep.cases import SPECIAL, Group, booleans, integers, normal

GROUP = Group("networks and images")
add = GROUP.add

X, Y = normal(3, 8), normal(3, 8, seed=1)
IDS = integers(5, 11)
KEY = jax.random.key(3)

_ACTIVATIONS = """celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log1mexp log_sigmoid
log_softmax logmeanexp logsumexp mish relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid
squareplus standardize swish tanh"""
for _name in _ACTIVATIONS.split():
    _function = getattr(jax.nn, _name)
    _inputs = (np.abs(X) + 0.1,) if _name == "log1mexp" else (X, X.astype(jnp.bfloat16))
    add(f"nn.{_name}", lambda *xs, f=_function: [f(x) for x in xs], *_inputs)
    # Cubes: the sum of squares of what is standardized is a constant, and its gradient is rounding alone.
    add(f"nn.{_name}: gradient", jax.grad(lambda x, f=_function: (f(x) ** 3).sum()), _inputs[0])
    if _name not in ("glu", "standardize", "log1mexp"):
        add(f"nn.{_name}: special", _function, SPECIAL[:8])
add("nn.gelu: exact", lambda x: jax.nn.gelu(x, approximate=False), X)
add("nn.relu: second derivative", jax.hessian(lambda x: (jax.nn.silu(x) ** 2).sum()), X[0])
add(
    "nn.softmax: where",
    lambda x, b: jax.nn.softmax(x, where=b, axis=0),
    X,
    booleans(3, 8) | (np.arange(3) == 0)[:, None],
)
add(
    "nn.log_softmax: where",
    lambda x, b: jax.nn.log_softmax(x, where=b),
    X,
    booleans(3, 8) | (np.arange(8) == 0),
)
add("nn.logsumexp: weights", lambda x, y: jax.nn.logsumexp(x, axis=1, b=y, return_sign=True), X, Y)
add("nn.one_hot", lambda n: (jax.nn.one_hot(n, 6), jax.nn.one_hot(n, 6, axis=0, dtype=jnp.bfloat16)), IDS)

QUERY, MEMORY = normal(2, 6, 4, 8), normal(2, 6, 2, 8, seed=1)
add("nn.dot_product_attention", jax.nn.dot_product_attention, QUERY, QUERY, QUERY)
add(
    "nn.dot_product_attention: grouped, causal",
    lambda q, k: jax.nn.dot_product_attention(q, k, k, is_causal=True),
    QUERY,
    MEMORY,
)
add(
    "nn.dot_product_attention: mask and bias",
    lambda q, b, m: jax.nn.dot_product_attention(q, q, q, b, m, scale=0.3),
    QUERY,
    normal(1, 4, 6, 6),
    np.tril(np.ones((1, 1, 6, 6), bool)),
)
add(
    "nn.dot_product_attention: lengths",
    lambda q, n: jax.nn.dot_product_attention(q, q, q, query_seq_lengths=n, key_value_seq_lengths=n),
    QUERY,
    np.array([6, 3], np.int32),
)
add(
    "nn.dot_product_attention: window",
    lambda q: jax.nn.dot_product_attention(q, q, q, local_window_size=(2, 1)),
    QUERY,
)
add(
    "nn.dot_product_attention: gradient",
    jax.grad(lambda q, k: (jax.nn.dot_product_attention(q, k, k, is_causal=True) ** 2).sum(), (0, 1)),
    QUERY,
    MEMORY,
)
add(
    "nn.dot_product_attention: bfloat16",
    lambda q: jax.nn.dot_product_attention(q, q, q),
    jnp.asarray(QUERY, jnp.bfloat16),
)
add(
    "nn.scaled_matmul",
    lambda a, s: jax.nn.scaled_matmul(a, a, s, s),
    jnp.asarray(normal(1, 4, 64), jnp.float8_e4m3fn),
    jnp.ones((1, 4, 2), jnp.float8_e8m0fnu),
    refused="UnsupportedPrimitive",  # on a CPU too
)

_INITIALIZERS = """glorot_normal glorot_uniform he_normal he_uniform kaiming_normal kaiming_uniform lecun_normal
lecun_uniform normal orthogonal truncated_normal uniform xavier_normal xavier_uniform"""
for _name in _INITIALIZERS.split():
    add(f"nn.initializers.{_name}", lambda key, f=getattr(jax.nn.initializers, _name)(): f(key, (4, 6)), KEY)
add("nn.initializers.constant", lambda key: jax.nn.initializers.constant(2.0)(key, (2, 3)), KEY)
add(
    "nn.initializers.ones",
    lambda key: (jax.nn.initializers.ones(key, (3,)), jax.nn.initializers.zeros(key, (3,))),
    KEY,
)
add("nn.initializers.zeros", lambda key: jax.nn.initializers.zeros(key, (3,)), KEY)
add(
    "nn.initializers.variance_scaling",
    lambda key: jax.nn.initializers.variance_scaling(2.0, "fan_avg", "truncated_normal")(key, (3, 3, 4, 5)),
    KEY,
)
add(
    "nn.initializers.delta_orthogonal",
    lambda key: jax.nn.initializers.delta_orthogonal()(key, (3, 3, 4, 5)),
    KEY,
)

PICTURE = normal(6, 5, 3)
for _method in ("nearest", "linear", "cubic", "lanczos3", "lanczos5"):
    add(
        f"image.resize: {_method}",
        lambda x, m=_method: (jax.image.resize(x, (9, 7, 3), m), jax.image.resize(x, (3, 5, 3), m)),
        PICTURE,
    )
add(
    "image.resize: from one element",
    lambda x: [jax.image.resize(x[:1, :1], (4, 5, 3), m) for m in ("linear", "bilinear", "cubic", "nearest")],
    PICTURE,
)
add(
    "image.resize",
    jax.grad(lambda x: (jax.image.resize(x, (9, 7, 3), "bilinear", antialias=False) ** 2).sum()),
    PICTURE,
)
add(
    "image.scale_and_translate",
    lambda x, s, t: jax.image.scale_and_translate(x, (7, 7, 3), (0, 1), s, t, "linear"),
    PICTURE,
    np.array([1.5, 0.7], np.float32),
    np.array([0.3, -1.0], np.float32),
)

for _name in "segment_sum segment_prod segment_max segment_min".split():
    _function = getattr(jax.ops, _name)
    add(f"ops.{_name}", lambda x, n, f=_function: f(x, n, num_segments=6), normal(11, 3), IDS)
    if _name == "segment_prod":  # JAX derives it where no segment has two members
        continue
    add(
        f"ops.{_name}: gradient",
        jax.grad(lambda x, n, f=_function: (f(x, n, num_segments=5) ** 2).sum()),
        normal(11, 3),
        np.arange(11, dtype=np.int32) % 5,
    )
add(
    "ops.segment_sum: sorted",
    lambda x, n: jax.ops.segment_sum(x, jnp.sort(n), 6, indices_are_sorted=True, bucket_size=4),
    normal(11, 3),
    IDS,
)
