"""Transformations of decorated functions, and custom derivative rules inside of them."""

from __future__ import annotations

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import jet, sparse
from jax.flatten_util import ravel_pytree

from tests.sweep.cases import Group, normal

GROUP = Group("transformations")
add, around = GROUP.add, GROUP.around

X, W, V = normal(3, 4), normal(4, 5), normal(4)


def layer(w, x):
    """Return a dense layer."""
    return jnp.tanh(x @ w)


def loss(w, x):
    """Return a number to derive."""
    return (layer(w, x) ** 2).sum()


def cubes(v):
    """Return a vector with a full Jacobian."""
    return v**3 + jnp.sin(v).sum() * v[::-1]


_OUTSIDE = {
    "grad": lambda jit: jax.grad(jit(loss)),
    "grad of both": lambda jit: jax.grad(jit(loss), argnums=(0, 1)),
    "value_and_grad": lambda jit: jax.value_and_grad(jit(loss)),
    "vmap": lambda jit: jax.vmap(jit(layer), (None, 0)),
    "vmap, out axis 1": lambda jit: jax.vmap(jit(layer), (1, None), out_axes=1),
    "vmap of grad": lambda jit: jax.vmap(jax.grad(jit(loss)), (None, 0)),
    "grad of vmap": lambda jit: jax.grad(lambda w, x: jax.vmap(jit(layer), (None, 0))(w, x).sum()),
    "jit": lambda jit: jax.jit(jit(layer)),
    "jit of grad": lambda jit: jax.jit(jax.grad(jit(loss))),
    "jvp": lambda jit: lambda w, x: jax.jvp(jit(layer), (w, x), (w, x)),
    "vjp": lambda jit: lambda w, x: jax.vjp(jit(layer), w, x)[1](jnp.ones((3, 5))),
    "linearize": lambda jit: lambda w, x: jax.linearize(lambda w: jit(layer)(w, x), w)[1](w),
    "linear_transpose": lambda jit: (
        lambda w, x: jax.linear_transpose(jit(lambda x: x @ w), x)(jnp.ones((3, 5)))
    ),
    "checkpoint": lambda jit: jax.grad(lambda w, x: jax.checkpoint(jit(loss))(w, x)),
    "in a scan": lambda jit: (
        lambda w, x: jax.lax.scan(lambda c, _: (jit(layer)(w[:, :4], c), None), x, length=3)[0]
    ),
    "in itself": lambda jit: jit(lambda w, x: jit(layer)(w, x) + jit(loss)(w, x)),
    "eval_shape": lambda jit: lambda w, x: jnp.zeros(jax.eval_shape(jit(layer), w, x).shape),
    "make_jaxpr": lambda jit: (
        lambda w, x: jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(jit(layer))(w, x))(w, x)
    ),
    "closure of a tracer": lambda jit: jax.grad(lambda w, x: jit(lambda y: (y @ w).sum())(x)),
    "has_aux": lambda jit: jax.grad(jit(lambda w, x: (loss(w, x), {"layer": layer(w, x)})), has_aux=True),
}
_OUTER_JITS = {"jit", "jit of grad", "in a scan", "jvp of jit of vmap of grad"}
"""What an outer ``jax.jit`` or loop traces."""
for _name, _make in _OUTSIDE.items():
    around(f"around: {_name}", _make, W, X, outer_jit=_name in _OUTER_JITS)
_SQUARE = {
    "hessian": lambda jit: jax.hessian(jit(lambda v: cubes(v).sum())),
    "jacfwd": lambda jit: jax.jacfwd(jit(cubes)),
    "jacrev": lambda jit: jax.jacrev(jit(cubes)),
    "jacfwd of jacrev": lambda jit: jax.jacfwd(jax.jacrev(jit(cubes))),
    "third derivative": lambda jit: jax.vmap(jax.grad(jax.grad(jax.grad(jit(lambda x: jnp.sin(x) * x))))),
    "vector-Hessian product": lambda jit: (
        lambda v: jax.jvp(jax.grad(jit(lambda v: cubes(v).sum())), (v,), (v,))[1]
    ),
    "vmap of vmap": lambda jit: lambda v: jax.vmap(jax.vmap(jit(jnp.multiply), (None, 0)), (0, None))(v, v),
    "vmap with axis name": lambda jit: jit(
        jax.vmap(lambda x: x / jax.lax.psum(jnp.abs(x), "i"), axis_name="i")
    ),
    "grad of a loop": lambda jit: jax.grad(
        lambda v: sum(jit(lambda a, k=k: (jnp.sin(a) * k).sum())(v) for k in range(3))
    ),
    "jvp of jit of vmap of grad": lambda jit: (
        lambda v: jax.jvp(jax.jit(jax.vmap(jax.grad(jit(lambda x: jnp.sin(x) ** 3)))), (v,), (v,))
    ),
}
for _name, _make in _SQUARE.items():
    around(f"around: {_name}", _make, V, outer_jit=_name in _OUTER_JITS)


# ---- inside


@jax.custom_jvp
def safe_sqrt(x):
    """Return a root whose derivative at 0 is 0."""
    return jnp.sqrt(jnp.maximum(x, 0))


@safe_sqrt.defjvp
def _safe_sqrt_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    y = safe_sqrt(x)
    return y, jnp.where(y > 0, t / (2 * jnp.where(y > 0, y, 1)), 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def clipped(x, limit):
    """Return x; gradients are clipped."""
    return x


clipped.defvjp(lambda x, limit: (x, None), lambda limit, _, g: (jnp.clip(g, -limit, limit),))


@jax.custom_vjp
def straight_through(x):
    """Round; gradients pass."""
    return jnp.round(x)


straight_through.defvjp(lambda x: (jnp.round(x), ()), lambda _, g: (g,))


@jax.custom_batching.custom_vmap
def doubled(x):
    """Return twice x."""
    return x * 2


doubled.def_vmap(lambda size, batched, x: (x + x, batched[0]))

_INSIDE = {
    "custom_jvp": lambda v: (
        safe_sqrt(v),
        jax.grad(lambda v: safe_sqrt(v).sum())(v),
        jax.jvp(safe_sqrt, (v,), (v,)),
    ),
    "custom_vjp": lambda v: jax.grad(lambda v: (clipped(v, 0.5) ** 3).sum())(v),
    "custom_vjp: straight through": lambda v: jax.value_and_grad(lambda v: (straight_through(v) * v).sum())(
        v
    ),
    "custom_vmap": lambda v: jax.vmap(doubled)(v),
    "grad": jax.grad(lambda v: cubes(v).sum()),
    "hessian": jax.hessian(lambda v: cubes(v).sum()),
    "jacfwd": jax.jacfwd(cubes),
    "jacrev": jax.jacrev(cubes),
    "vmap of grad": jax.vmap(jax.grad(lambda x: jnp.sin(x) * x)),
    "jit": lambda v: jax.jit(cubes)(v) + jax.jit(jax.jit(cubes), inline=True)(v),
    "checkpoint": jax.grad(lambda v: jax.checkpoint(lambda v: cubes(jnp.sin(v)).sum())(v)),
    "checkpoint: a policy": jax.grad(
        lambda v: jax.checkpoint(
            lambda v: jnp.sin(jnp.outer(v, v) @ v).sum(), policy=jax.checkpoint_policies.dots_saveable
        )(v)
    ),
    "checkpoint: names": jax.grad(
        lambda v: jax.checkpoint(
            lambda v: jnp.sin(checkpoint_name(jnp.cos(v), "c")).sum(),
            policy=jax.checkpoint_policies.save_only_these_names("c"),
        )(v)
    ),
    "checkpoint: everything saved": jax.grad(
        lambda v: jax.checkpoint(
            lambda v: cubes(v).sum(), policy=jax.checkpoint_policies.everything_saveable
        )(v)
    ),
    "linearize": lambda v: jax.linearize(cubes, v)[1](v),
    "closure_convert": lambda v: jax.closure_convert(jnp.sin, v)[0](v),
    "named_call": jax.named_call(cubes, name="cubes"),
    "named_scope": lambda v: jax.named_scope("part")(cubes)(v),
    "ravel_pytree": lambda v: (lambda flat, back: (flat, back(flat * 2)))(
        *ravel_pytree({"a": v, "b": (v[0], 3.0)})
    ),
    "float0": lambda v: jax.vjp(lambda v, n: v * n, v, jnp.arange(4))[1](v)[0],
    "enable_checks of NaN": lambda v: jnp.where(v > 9, jnp.nan, v),
    "pure function of numpy": lambda v: v * np.arange(4) + np.float32(2) + np.array(3),
    "axis_index and collectives in vmap": jax.vmap(
        lambda x: (
            jax.lax.axis_index("i"),
            jax.lax.pmean(x, "i"),
            jax.lax.all_gather(x, "i"),
            jax.lax.pmax(x, "i"),
            jax.lax.ppermute(x, "i", [(0, 1), (1, 0), (2, 3), (3, 2)]),
        ),
        axis_name="i",
    ),
    "jet": lambda v: jet.jet(jnp.sin, (v,), ([v, v],)),
    "experimental.sparse": lambda v: sparse.BCOO.fromdense(jnp.diag(v), nse=4) @ v,
}
for _name, _function in _INSIDE.items():
    add(f"inside: {_name}", _function, V)
