"""How functions are called: trees, types, static and donated arguments, weak types, 64 bits, effects, meshes, exports."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.experimental import io_callback
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, PartitionSpec

import ipuxla
from tests.replicas import small_system
from tests.sweep.cases import Group, booleans, integers, normal
from tests.systems import auto_mesh

GROUP = Group("calling")
add, around = GROUP.add, GROUP.around
X, Y, V = normal(3, 4), normal(3, 4, seed=1), normal(4)
NO_RULE = "UnsupportedPrimitive"


class State(NamedTuple):
    """A tree with a hole."""

    a: Any
    b: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    """A tree with a static field."""

    w: Any
    b: Any
    name: str = dataclasses.field(metadata={"static": True}, default="m")


@jax.tree_util.register_pytree_node_class
class Box:
    """A tree of one's own."""

    def __init__(self, inner):
        self.inner = inner

    def tree_flatten(self):
        return (self.inner,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


add("call: NamedTuple", lambda s: State(s.a * 2), State(X))
add(
    "call: dataclass",
    lambda m, x: (dataclasses.replace(m, w=m.w * 2), x @ m.w + m.b),
    Model(X.T, normal(3)),
    X,
)
add("call: a class of one's own", lambda b: Box((b.inner + 1, None)), Box(X))
add("call: None and nests", lambda t: {"x": [t[0], (None, t[1]["y"])], "n": None}, (X, {"y": Y, "z": None}))
around(
    "call: keyword arguments", lambda jit: lambda x, y: jit(lambda x, *, y, k=2.0: x * y + k)(x, y=y), X, Y
)
add("call: Python scalars", lambda a, b, c, d: (a + b, b * 2.5, c, a * d), 3, 2.5, True, X)
add("call: Python complex", lambda c, x: c * x, 1 + 2j, X)
add("call: NumPy scalars", lambda a, b: (a * 2, b + a), np.float32(3), np.int32(4))
add("call: scalars", lambda x: (x[0, 0], x.sum(), jnp.float32(3.0), 1.0, 2), X)
add(
    "call: weak types",
    lambda x, a: (x.astype(jnp.float16) * a, x.astype(jnp.bfloat16) + 1.0, jnp.int8(3) * 2, a * 2),
    X,
    2.0,
)
add(
    "call: empty arrays",
    lambda e, x: (e * 2, e.sum(0), jnp.concatenate([e, x]), e @ x.T, e.T, jnp.zeros((0,))),
    np.zeros((0, 4), np.float32),
    X,
)
add(
    "call: empty arrays, more",
    lambda e: (
        jnp.sort(e, 0),
        e.max(1),
        jnp.cumsum(e, 0),
        e[:, None],
        e.reshape(2, 0),
        jnp.where(e > 0, e, 1),
        jnp.exp(e),
        jnp.pad(e, 1),
        e[jnp.zeros((0,), int)],
    ),
    np.zeros((0, 4), np.float32),
)
add("call: no arguments", lambda: (jnp.arange(4) * 2, 3.0))
add("call: no results", lambda x: None, X)
add("call: arguments returned", lambda x, y: (x, x, y, (y,)), X, Y)
add("call: unused arguments", lambda x, y: x * 2, X, Y)
add("call: constants of the function", lambda x: x + Y + jnp.asarray(V), X)
add("call: a large constant", lambda x: x @ np.arange(4096, dtype=np.float32).reshape(4, 1024) / 4096, X)
add("call: rank 7", lambda x: x.reshape(1, 3, 1, 2, 1, 2, 1).transpose(6, 5, 4, 3, 2, 1, 0).sum((0, 3)), X)
add("call: size of one", lambda x: (x * 2, x.sum(), x @ x, jnp.sort(x, 0)), np.ones((1, 1), np.float32))
add("call: lists in", lambda xs: sum(xs), [X, Y, X])
around("call: static_argnums", lambda jit: lambda x: _static(jit)(x, 3, "sum"), X)
around("call: static_argnames", lambda jit: lambda x: jit_names(jit)(x, n=2), X)
around("call: partial", lambda jit: jit(functools.partial(lambda x, n: x**n, n=3)), X)
around("call: a method", lambda jit: lambda x: type("T", (), {"f": jit(lambda self, x: x * 2)}).f(None, x), X)
around(
    "call: twice with other shapes",
    lambda jit: lambda x, v: (lambda f: (f(x), f(v), f(x)))(jit(lambda a: jnp.tanh(a) * 2)),
    X,
    V,
)
around(
    "call: jitted functions inside",
    lambda jit: jit(lambda x: jax.jit(jnp.sin)(x) + jax.jit(lambda y: jax.jit(jnp.cos)(y))(x)),
    X,
)
around("call: in jax.jit", lambda jit: jax.jit(lambda x: jit(jnp.sin)(x) * 2), X, outer_jit=True)
around("call: results as arguments", lambda jit: lambda x: jit(lambda y: y + 1)(jit(jnp.sin)(x)), X)
around(
    "call: in a tree_map", lambda jit: lambda t: jax.tree.map(jit(lambda x: x * 2), t), {"a": X, "b": (Y,)}
)
add(
    "tree.map",
    lambda t: (
        jax.tree.map(jnp.sin, t),
        jax.tree.reduce(lambda a, b: a + b.sum(), t, 0.0),
        jax.tree.transpose(
            jax.tree.structure([0, 0]), jax.tree.structure((0,)), [(x,) for x in jax.tree.leaves(t)]
        ),
    ),
    [X, Y],
)


def _static(jit):
    def function(x, n, how):
        return getattr(jnp, how)(x, axis=0) ** n

    if jit is jax.jit:
        return jax.jit(function, static_argnums=(1, 2))
    return ipuxla.jit(function, static_argnums=(1, 2), target="gc200")


def jit_names(jit):
    """Return a function with a static argument by name."""
    return (jax.jit if jit is jax.jit else ipuxla.jit)(lambda x, n=1: x[:n], static_argnames="n")


# ---- types

add(
    "types: mixed precision",
    lambda x, h, b: (
        x * h,
        h + b,
        x.astype(jnp.bfloat16) @ h.T.astype(jnp.bfloat16),
        (h * 2).sum(),
        jnp.mean(b),
        jnp.var(b),
    ),
    X,
    X.astype(np.float16),
    jnp.asarray(X, jnp.bfloat16),
)
for _type in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bool"):
    add(
        f"types: {_type}",
        lambda a: (
            a,
            a[::-1],
            jnp.sort(a, 1),
            a.max(),
            a.sum(0),
            a.astype(jnp.float32),
            jnp.argmax(a, 1),
            jnp.where(a, a, a.T[:1].T),
            jnp.concatenate([a, a]),
            a[jnp.array([1, 0])],
        ),
        integers(2 if _type == "bool" else 100, 3, 4).astype(_type),
    )
add("types: int4", lambda x: (x.astype(jnp.int4) + 1).astype(jnp.int32), X * 3)
add("types: float8", lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32), X)
add(
    "types: int8 products",
    lambda a, b: jax.lax.dot(a, b.T, preferred_element_type=jnp.int32),
    integers(100, 3, 4).astype(np.int8),
    integers(100, 3, 4, seed=1).astype(np.int8),
)
for _type in ("float64", "int64", "uint64", "complex128"):
    _array = (X + (1j * Y if _type == "complex128" else 0)) * 7 + (9 if _type[0] == "u" else 0)
    add(
        f"types: {_type}, x64",
        lambda a: (
            a * 2 + 1,
            a @ a.T,
            a.sum(0),
            a / 3,
            a[::-1],
            jnp.exp(a * 0.1),
            a.real.astype(jnp.float32),
            jnp.concatenate([a, a]),
        ),
        np.abs(_array).astype(_type) if _type != "complex128" else _array.astype(_type),
        x64=True,
    )
add(
    "types: defaults, x64",
    lambda x: (
        jnp.arange(3),
        jnp.ones(2),
        x * 2,
        jnp.array(3.5),
        jnp.argmax(x),
        x.sum(dtype=jnp.float64),
        jnp.float32(1) * 2,
    ),
    X,
    x64=True,
)
add("types: 64-bit arguments without x64", lambda a: a, X)
add(
    "types: large integers, x64",
    lambda a: (a * a, a // 7, a % 1000, a >> 5, a.astype(jnp.int32), jnp.sort(a), a.astype(jnp.float64)),
    np.array([2**40 + 3, -(2**50), 5], np.int64),
    x64=True,
)

# ---- the host, other devices, exports

around(
    "effects: debug.print",
    lambda jit: jit(lambda x: (jax.debug.print("x {}", x[0, 0]), x)[1]),
    X,
)
around(
    "effects: debug.callback",
    lambda jit: jit(lambda x: (jax.debug.callback(lambda v: None, x), x)[1]),
    X,
    refused=NO_RULE,
)
around(
    "effects: pure_callback",
    lambda jit: jit(
        lambda x: jax.pure_callback(lambda v: np.sin(v), jax.ShapeDtypeStruct((3, 4), np.float32), x)
    ),
    X,
    refused=NO_RULE,
)
around(
    "effects: io_callback",
    lambda jit: jit(lambda x: io_callback(lambda v: np.sin(v), jax.ShapeDtypeStruct((3, 4), np.float32), x)),
    X,
    refused=NO_RULE,
)
around(
    "effects: debug.print in a loop",
    lambda jit: jit(lambda x: jax.lax.fori_loop(0, 2, lambda i, c: (jax.debug.print("{}", i), c + 1)[1], x)),
    X,
)
MESH = Mesh(np.array(jax.devices()[:1]), ("d",))
_P = PartitionSpec
around(
    "mesh: shard_map",
    lambda jit: jit(
        jax.shard_map(
            lambda x: jax.lax.psum(x * 2, "d") + jax.lax.axis_index("d"),
            mesh=MESH,
            in_specs=_P("d"),
            out_specs=_P("d"),
        )
    ),
    X[:1],
)
around(
    "mesh: shard_map, collectives",
    lambda jit: jit(
        jax.shard_map(
            lambda x: (
                jax.lax.all_gather(x, "d"),
                jax.lax.ppermute(x, "d", [(0, 0)]),
                jax.lax.psum_scatter(x, "d", tiled=True),
                jax.lax.all_to_all(x, "d", 0, 0, tiled=True),
            ),
            mesh=MESH,
            in_specs=_P("d"),
            out_specs=_P("d"),
            check_vma=False,
        )
    ),
    X,
)
around(
    "mesh: shard_map, gradient",
    lambda jit: jit(
        jax.grad(
            lambda x: jax.shard_map(
                lambda y: jax.lax.pmean((y**2).sum(), "d"), mesh=MESH, in_specs=_P("d"), out_specs=_P()
            )(x)
        )
    ),
    X,
)


FOUR = auto_mesh((4,), ("i",))
FOUR_IPUS = small_system("m2000", 16)


def over_four(decorator, function):
    """Return a function of arrays with a leading axis of four devices: JAX's vmap has it as "i", ours four IPUs."""
    if decorator is jax.jit:
        return jax.jit(jax.vmap(function, axis_name="i"))
    options = decorator(function).options

    def local(*parts):
        results = function(*(part[0] for part in parts))
        return jax.tree.map(lambda y: jnp.asarray(y)[None], results)

    manual = jax.shard_map(local, mesh=FOUR, in_specs=_P("i"), out_specs=_P("i"), check_vma=False)
    return ipuxla.jit(manual, target=FOUR_IPUS, engine=options.engine, arithmetic=options.arithmetic)


OF_FOUR = {
    "psum": lambda x: jax.lax.psum(x, "i"),
    "psum of a tree": lambda x: jax.lax.psum({"a": x, "b": (x[0], 2)}, "i"),
    "pmean": lambda x: jax.lax.pmean(x, "i"),
    "pmax and pmin": lambda x: (jax.lax.pmax(x, "i"), jax.lax.pmin(x[0], "i")),
    "all_gather": lambda x: (jax.lax.all_gather(x, "i"), jax.lax.all_gather(x, "i", axis=1, tiled=True)),
    "psum_scatter": lambda x: (
        jax.lax.psum_scatter(x, "i"),
        jax.lax.psum_scatter(x.T, "i", scatter_dimension=1, tiled=True),
    ),
    "all_to_all": lambda x: (
        jax.lax.all_to_all(x, "i", 0, 1),
        jax.lax.all_to_all(x, "i", 0, 1, tiled=True),
    ),
    "ppermute": lambda x: (
        jax.lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]),
        jax.lax.ppermute(x, "i", [(0, 2), (2, 0), (1, 3), (3, 1)]),
    ),
    "pshuffle": lambda x: jax.lax.pshuffle(x, "i", [2, 0, 3, 1]),
    "pswapaxes": lambda x: jax.lax.pswapaxes(x, "i", 0),
    "axis_index and axis_size": lambda x: x * jax.lax.axis_index("i") + jax.lax.axis_size("i"),
    "in a loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y / 2 + jax.lax.pmean(y, "i"), x),
}
for _name, _function in OF_FOUR.items():
    around(
        f"four devices: {_name}",
        functools.partial(lambda function, jit: over_four(jit, function), _function),
        normal(4, 4, 8),
    )


@custom_partitioning
def _partitioned(x):
    return jnp.sin(x) * 2


_partitioned.def_partition(partition=lambda *_: None, sharding_rule="i j -> i j")
add("mesh: custom_partitioning", _partitioned, X)
around(
    "mesh: with_sharding_constraint",
    lambda jit: jit(lambda x: jax.lax.with_sharding_constraint(x * 2, jax.NamedSharding(MESH, _P("d")))),
    X,
)
around(
    "mesh: sharded arguments",
    lambda jit: lambda x: jit(lambda y: y * 2)(jax.device_put(x, jax.NamedSharding(MESH, _P("d")))),
    X,
)
around("device: device_put inside", lambda jit: jit(lambda x: jax.device_put(x * 2)), X)
around("device: device_get of results", lambda jit: lambda x: jax.device_get(jit(jnp.sin)(x)), X)


def exported(jit, function, *arguments):
    """Return what an exported program computes: by JAX, or compiled by us from its serialized StableHLO."""
    made = export.export(jax.jit(function))(*arguments)
    if jit is jax.jit:
        return jax.tree.leaves(made.call(*arguments))
    compiled = ipuxla.compile_stablehlo(made.mlir_module_serialized)
    return list(compiled(*jax.tree.leaves(arguments)))


around(
    "export: a tree",
    lambda jit: lambda x, y: exported(jit, lambda x, y: {"a": jnp.tanh(x @ y.T), "b": jax.nn.gelu(x)}, x, y),
    X,
    Y,
)
around(
    "export: a loop",
    lambda jit: lambda x: exported(jit, lambda x: jax.lax.scan(lambda c, v: (c + v, c), x[0], x), x),
    X,
)
around(
    "export: called inside",
    lambda jit: jit(
        lambda x: (
            export.export(jax.jit(jnp.sin), disabled_checks=[export.DisabledSafetyCheck.platform()])(
                jax.ShapeDtypeStruct((3, 4), np.float32)
            ).call(x)
            * 2
        )
    ),
    X,
)
around(
    "export: for another platform",
    lambda jit: jit(
        lambda x: export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((3, 4), np.float32)).call(x) * 2
    ),
    X,
    refused=NO_RULE,
)
add(
    "masks: size given",
    lambda x, b: (
        jnp.nonzero(b, size=4, fill_value=-1),
        x[jnp.where(b, size=4, fill_value=0)],
        jnp.argwhere(b, size=3),
        jnp.count_nonzero(b),
    ),
    X,
    booleans(3, 4),
)
