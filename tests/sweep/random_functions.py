"""jax.random: distributions, kinds of keys, keys as arguments and results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tests.sweep.cases import Group, definite, normal, uniform

GROUP = Group("jax.random")
add = GROUP.add
R = jax.random
KEY = R.key(7)
OLD_KEY = R.PRNGKey(7)
A = uniform(5, low=0.3, high=4.0)
LOGITS = normal(4, 6)

_PLAIN = """cauchy double_sided_maxwell exponential gumbel laplace logistic lognormal maxwell normal rademacher uniform
triangular truncated_normal generalized_normal geometric rayleigh wald weibull_min bits ball"""
_EXTRA = {
    "double_sided_maxwell": (0.5, 2.0),
    "triangular": (0.0, 0.4, 1.0),
    "truncated_normal": (-1.0, 2.0),
    "generalized_normal": (1.5,),
    "geometric": (0.3,),
    "rayleigh": (1.5,),
    "wald": (1.2,),
    "weibull_min": (1.0, 1.5),
    "ball": (3,),
    "lognormal": (0.7,),
}
for _name in _PLAIN.split():
    _extra = _EXTRA.get(_name, ())
    _shape = (4, 5) if _name != "ball" else (4,)
    add(f"random.{_name}", lambda k, f=getattr(R, _name), e=_extra, s=_shape: f(k, *e, shape=s), KEY)
for _name in "beta binomial f dirichlet gamma loggamma chisquare pareto poisson t".split():
    _extra = {
        "beta": (A, A[::-1]),
        "f": (A, A[::-1]),
        "binomial": (np.array([5.0, 9.0, 30.0], np.float32), 0.4),
    }.get(_name, (A,))
    add(f"random.{_name}", lambda k, *a, f=getattr(R, _name): f(k, *a), KEY, *_extra)
add(
    "random.bernoulli",
    lambda k, p: (R.bernoulli(k, p), R.bernoulli(k, shape=(5,)), R.bernoulli(k, 0.3, (4,), mode="high")),
    KEY,
    uniform(5),
)
add(
    "random.categorical",
    lambda k, x: (R.categorical(k, x), R.categorical(k, x, shape=(3, 4)), R.categorical(k, x, axis=0)),
    KEY,
    LOGITS,
)
add(
    "random.categorical: without replacement",
    lambda k, x: R.categorical(k, x, shape=(2, 4), replace=False),
    KEY,
    LOGITS,
)
add(
    "random.choice",
    lambda k, x: (R.choice(k, x, (3,)), R.choice(k, x, (3,), replace=False), R.choice(k, 9, (2, 2))),
    KEY,
    A,
)
add(
    "random.choice: weights",
    lambda k, x, p: (R.choice(k, x, (3,), p=p / p.sum()), R.choice(k, x, (3,), replace=False, p=p / p.sum())),
    KEY,
    normal(5),
    A,
)
add("random.multinomial", lambda k, x: R.multinomial(k, 20, jax.nn.softmax(x)), KEY, LOGITS)
add(
    "random.multivariate_normal",
    lambda k, m, c: R.multivariate_normal(k, m, c, (6,)),
    KEY,
    normal(3),
    definite(3, 3),
)
for _method in ("eigh", "svd"):
    add(
        f"random.multivariate_normal: {_method}",
        lambda k, m, c, how=_method: R.multivariate_normal(k, m, c, (6,), method=how).shape[0] + m,
        KEY,
        normal(3),
        definite(3, 3),
    )
add("random.orthogonal", lambda k: R.orthogonal(k, 4, (2,)), KEY)
add(
    "random.permutation",
    lambda k, x: (R.permutation(k, 9), R.permutation(k, x), R.permutation(k, x, axis=1, independent=True)),
    KEY,
    LOGITS,
)
add(
    "random.randint",
    lambda k: (
        R.randint(k, (5,), 0, 7),
        R.randint(k, (3, 2), -100, 100, jnp.int8),
        R.randint(k, (4,), 0, jnp.array([1, 2, 3, 4])),
        R.randint(k, (3,), 0, 255, jnp.uint8),
    ),
    KEY,
)
add(
    "random.uniform: types",
    lambda k: [R.uniform(k, (4,), t) for t in (jnp.float16, jnp.bfloat16, jnp.float32)],
    KEY,
)
add(
    "random.normal: types",
    lambda k: [R.normal(k, (4,), t) for t in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.complex64)],
    KEY,
)
add("random.bits: types", lambda k: [R.bits(k, (5,), t) for t in (jnp.uint8, jnp.uint16, jnp.uint32)], KEY)
add(
    "random.normal: 64 bits",
    lambda k: (
        R.normal(k, (4,), jnp.float64),
        R.bits(k, (3,), jnp.uint64),
        R.randint(k, (3,), 0, 1 << 40),
        R.gamma(k, 2.0, (3,)),
    ),
    KEY,
    x64=True,
)
add("random.gamma: gradient", jax.grad(lambda a, k: R.gamma(k, a).sum()), A, KEY)
add("random.normal: gradient", jax.grad(lambda m, k: jnp.sin(m + R.normal(k, (5,))).sum()), A, KEY)

# ---- keys

add("random.key", lambda n: R.normal(R.key(n), (3,)), 5)
add("random.PRNGKey", lambda n: (R.PRNGKey(n), R.normal(R.PRNGKey(n), (3,))), 5)
add("random.split", lambda k: (R.split(k), R.split(k, 5), R.split(k, (2, 3))), KEY)
add("random.split: old keys", lambda k: (R.split(k), [R.normal(s, (2,)) for s in R.split(k, 3)]), OLD_KEY)
add("random.fold_in", lambda k, n: (R.fold_in(k, n), R.normal(R.fold_in(k, 3), (2,))), KEY, 9)
add("random.clone", lambda k: R.clone(k), KEY)
add("random.key_data", lambda k: (R.key_data(k), R.wrap_key_data(R.key_data(k) + 1)), KEY)
add("random.wrap_key_data", lambda d: R.normal(R.wrap_key_data(d), (3,)), np.array([1, 2], np.uint32))
for _kind in ("threefry2x32", "rbg", "unsafe_rbg"):
    _key = R.key(3, impl=_kind)
    add(
        f"random.key: {_kind}",
        lambda k: (
            R.split(k, 2),
            R.fold_in(k, 4),
            R.uniform(k, (5,)),
            R.normal(R.split(k)[0], (3,)),
            R.bits(k, (2,), jnp.uint8),
            R.randint(k, (3,), 0, 10),
        ),
        _key,
    )
    add(f"random.key: {_kind}, vmap", jax.vmap(lambda k: R.normal(k, (3,))), R.split(_key, 4))
    add(
        f"random.key: {_kind}, loop",
        lambda k: jax.lax.scan(lambda k, _: (lambda a, b: (a, R.normal(b, (2,))))(*R.split(k)), k, length=3),
        _key,
    )
add(
    "random.key: arrays of keys",
    lambda ks: (ks[1], ks.reshape(2, 2), jnp.stack([ks[0], ks[3]]), jnp.where(True, ks[0], ks[1]), ks[::-1]),
    R.split(KEY, 4),
)
add("random.key: in a cond", lambda k, b: jax.lax.cond(b, lambda k: R.split(k)[0], lambda k: k, k), KEY, True)
add("random.key: indexed by a traced number", lambda ks, i: R.normal(ks[i], (2,)), R.split(KEY, 4), 2)
