"""Loops, branches and solvers: jax.lax's control flow under transformations, ODEs, associative scans."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.ode import odeint

from tests.sweep.cases import Group, booleans, integers, normal

GROUP = Group("control flow")
add = GROUP.add

X, W = normal(5, 4), normal(4, 4, scale=0.5)
V = normal(4)


def cell(carry, x):
    """Return the next state of a small recurrence, and what it shows."""
    carry = jnp.tanh(carry * 0.7 + x)
    return carry, carry * 2


add("lax.scan", lambda v, xs: lax.scan(cell, v, xs), V, X)
add("lax.scan: reverse", lambda v, xs: lax.scan(cell, v, xs, reverse=True), V, X)
add(
    "lax.scan: unroll",
    lambda v, xs: (lax.scan(cell, v, xs, unroll=2), lax.scan(cell, v, xs, unroll=True)),
    V,
    X,
)
add(
    "lax.scan: split transpose",
    jax.grad(lambda v, xs: lax.scan(cell, v, xs, _split_transpose=True)[0].sum()),
    V,
    X,
)
add("lax.scan: length only", lambda v: lax.scan(lambda c, _: (c * 2, None), v, length=4), V)
add(
    "lax.scan: of trees",
    lambda v, xs: lax.scan(
        lambda c, x: ({"a": c["a"] + x[0], "n": c["n"] + 1}, (c["a"], None)),
        {"a": v, "n": 0},
        (xs, {"y": xs}),
    ),
    V,
    X,
)
add("lax.scan: gradient", jax.grad(lambda v, xs: (lax.scan(cell, v, xs)[1] ** 2).sum(), (0, 1)), V, X)
add("lax.scan: vmap", jax.vmap(lambda v, xs: lax.scan(cell, v, xs)), normal(3, 4), normal(3, 5, 4))
add("lax.scan: empty", lambda v: lax.scan(cell, v, jnp.zeros((0, 4))), V)
add("lax.scan: nested", lambda v, xs: lax.scan(lambda c, x: lax.scan(cell, c, x), v, xs), V, normal(3, 2, 4))
add("lax.scan: checkpoint", jax.grad(lambda v, xs: lax.scan(jax.checkpoint(cell), v, xs)[0].sum()), V, X)
add(
    "lax.scan: jvp of grad",
    lambda v, xs: jax.jvp(jax.grad(lambda v: lax.scan(cell, v, xs)[0].sum()), (v,), (v,)),
    V,
    X,
)
add(
    "lax.scan: carried keys",
    lambda k: lax.scan(lambda k, _: (jax.random.split(k)[0], jax.random.normal(k, (2,))), k, None, 3),
    jax.random.key(1),
)
add(
    "lax.scan: integers and booleans",
    lambda n: lax.scan(lambda c, x: ((c[0] + x, ~c[1]), c[0] > 3), (0, True), n),
    integers(5, 6),
)
add(
    "lax.associative_scan",
    lambda x: (
        lax.associative_scan(jnp.add, x),
        lax.associative_scan(jnp.matmul, jnp.stack([x[:4]] * 3), reverse=True),
    ),
    normal(7, 4),
)
add(
    "lax.associative_scan: of pairs",
    lambda a, b: lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b), axis=1),
    normal(3, 9),
    normal(3, 9, seed=1),
)
add(
    "lax.associative_scan: gradient",
    jax.grad(lambda a: lax.associative_scan(jnp.multiply, a)[-1].sum()),
    normal(6, 2),
)
add(
    "lax.map",
    lambda xs: (
        lax.map(jnp.sin, xs),
        lax.map(lambda x: x.sum(), xs, batch_size=2),
        lax.map(lambda t: t[0] * t[1], (xs, xs)),
    ),
    X,
)
add("lax.map: gradient", jax.grad(lambda xs: lax.map(lambda x: jnp.tanh(x).sum(), xs, batch_size=3).sum()), X)

add("lax.while_loop", lambda v: lax.while_loop(lambda c: jnp.abs(c).max() > 0.1, lambda c: c * 0.5, v), V)
add(
    "lax.while_loop: vmap",
    jax.vmap(lambda v: lax.while_loop(lambda c: c[1] > 0.1, lambda c: (c[0] + 1, c[1] * 0.5), (0, v))),
    np.abs(V),
)
add(
    "lax.while_loop: vmap of the bound",
    jax.vmap(lambda n, x: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 1.5), (0, x))),
    integers(5, 4),
    V,
)
add(
    "lax.while_loop: jvp",
    lambda v: jax.jvp(
        lambda v: lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, v))[1],
        (v,),
        (v,),
    ),
    V,
)
add("lax.while_loop: never", lambda v: lax.while_loop(lambda c: c.sum() > 1e9, lambda c: c + 1, v), V)
add(
    "lax.while_loop: nested",
    lambda n: lax.while_loop(
        lambda c: c[0] < n,
        lambda c: (c[0] + 1, lax.while_loop(lambda d: d < c[0], lambda d: d + 2, c[1])),
        (0, 0),
    ),
    6,
)
add(
    "lax.while_loop: effects of order",
    lambda v: lax.while_loop(lambda c: c[2] < 5, lambda c: (c[1], c[0] + c[1], c[2] + 1), (v, v * 0.5, 0)),
    V,
)

add("lax.fori_loop", lambda v: lax.fori_loop(0, 4, lambda i, c: c + i * 0.5, v), V)
add(
    "lax.fori_loop: traced bounds",
    lambda v, a, b: lax.fori_loop(a, b, lambda i, c: jnp.sin(c) + i, v),
    V,
    2,
    6,
)
add(
    "lax.fori_loop: gradient",
    jax.grad(lambda v: lax.fori_loop(0, 4, lambda i, c: jnp.sin(c) * (i + 1), v).sum()),
    V,
)
add(
    "lax.fori_loop: writes rows",
    lambda x: lax.fori_loop(0, 5, lambda i, c: c.at[i].set(c[i - 1] * 0.5 + x[i]), jnp.zeros((5, 4))),
    X,
)
add("lax.fori_loop: unroll", lambda v: lax.fori_loop(0, 7, lambda i, c: c * 0.5 + i, v, unroll=3), V)
add(
    "lax.fori_loop: vmap of bounds",
    jax.vmap(lambda v, n: lax.fori_loop(0, n, lambda i, c: c + i, v)),
    V,
    integers(5, 4),
)

add("lax.cond", lambda b, v: lax.cond(b, jnp.sin, jnp.cos, v), True, V)
add("lax.cond: of a number", lambda v: lax.cond(v[0] > 0, lambda: v, lambda: -v), V)
add("lax.cond: vmap", jax.vmap(lambda b, v: lax.cond(b, jnp.sin, jnp.cos, v)), booleans(4), V)
add(
    "lax.cond: vmap of operands",
    lambda b, v: jax.vmap(lambda x: lax.cond(b, jnp.sin, jnp.cos, x))(v),
    False,
    V,
)
add(
    "lax.cond: gradient",
    jax.grad(lambda v: lax.cond(v[0] > 0, lambda a: (a**2).sum(), lambda a: a.sum(), v)),
    V,
)
add(
    "lax.cond: gradient of vmap",
    jax.grad(lambda v: jax.vmap(lambda x: lax.cond(x > 0, jnp.sin, lambda y: y * 2, x))(v).sum()),
    V,
)
add(
    "lax.cond: of trees",
    lambda b, v: lax.cond(b, lambda a: {"x": a, "n": 1}, lambda a: {"x": a * 2, "n": 0}, v),
    False,
    V,
)
add("lax.switch", lambda n, v: lax.switch(n, [jnp.sin, jnp.cos, jnp.tanh], v), 2, V)
add(
    "lax.switch: out of range",
    lambda n, v: (lax.switch(n, [jnp.sin, jnp.cos], v), lax.switch(-n, [jnp.sin, jnp.cos], v)),
    7,
    V,
)
add(
    "lax.switch: vmap",
    jax.vmap(lambda n, v: lax.switch(n, [jnp.sin, jnp.cos, jnp.tanh], v)),
    integers(3, 4),
    V,
)
add(
    "lax.switch: gradient in a scan",
    jax.grad(
        lambda v, n: lax.scan(
            lambda c, i: (lax.switch(i, [jnp.sin, lambda y: y * 2, jnp.tanh], c), None), v, n
        )[0].sum()
    ),
    V,
    integers(3, 6),
)
add(
    "lax.cond: in a while loop",
    lambda v: lax.while_loop(
        lambda c: c[0] < 6,
        lambda c: (c[0] + 1, lax.cond(c[0] % 2 == 0, jnp.sin, lambda y: y + 1, c[1])),
        (0, v),
    ),
    V,
)

add(
    "lax.custom_root",
    lambda y: lax.custom_root(
        lambda x: x**3 - y,
        jnp.ones_like(y),
        lambda f, x0: lax.fori_loop(0, 20, lambda i, x: x - f(x) / (3 * x * x + 1e-6), x0),
        lambda g, b: b / g(jnp.ones_like(b)),
    ),
    np.abs(V) + 0.5,
)
add(
    "lax.custom_root: gradient",
    jax.grad(
        lambda y: lax.custom_root(
            lambda x: x**3 - y,
            1.0,
            lambda f, x0: lax.fori_loop(0, 20, lambda i, x: x - f(x) / (3 * x * x), x0),
            lambda g, b: b / g(1.0),
        )
    ),
    2.0,
)
add(
    "lax.custom_linear_solve",
    lambda w, v: lax.custom_linear_solve(
        lambda x: w @ x, v, lambda mv, b: jnp.linalg.solve(w, b), lambda mv, b: jnp.linalg.solve(w.T, b)
    ),
    W + 2 * np.eye(4, dtype=np.float32),
    V,
)
add(
    "lax.custom_linear_solve: gradient",
    jax.grad(
        lambda w, v: (
            lax.custom_linear_solve(
                lambda x: w @ x,
                v,
                lambda mv, b: jnp.linalg.solve(w, b),
                lambda mv, b: jnp.linalg.solve(w.T, b),
            )
            ** 2
        ).sum(),
        (0, 1),
    ),
    W + 2 * np.eye(4, dtype=np.float32),
    V,
)
add(
    "lax.linear_solve_p: vmap of solve",
    jax.vmap(jnp.linalg.solve, (None, 0)),
    W + 2 * np.eye(4, dtype=np.float32),
    X,
)

add(
    "ode.odeint",
    lambda y, t: odeint(lambda y, t: -y * jnp.array([1.0, 2.0]) + jnp.sin(t), y, t),
    normal(2),
    np.linspace(0, 1, 4, dtype=np.float32),
)
add(
    "ode.odeint: gradient",
    jax.grad(lambda y, k, t: odeint(lambda y, t, k: -k * y, y, t, k)[-1].sum(), (0, 1)),
    normal(2),
    np.float32(0.7),
    np.linspace(0, 1, 3, dtype=np.float32),
)
