"""Functions with shardings of their arguments: what partitioning must get right, from dense layers to halos and sorts.

"d" is the axis of data, "m" that of the model. ``layout`` says how a mesh cuts a program: along its data, along its
model, or both, on a mesh of one axis as well. Dimensions that an axis does not divide stay whole there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.systems import auto_mesh


class Sharded(NamedTuple):
    """A function, the shapes of its arguments, by which axes their dimensions are cut, and what rounding may change."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    specs: tuple[tuple[str | None, ...], ...]
    has_gradient: bool = True
    tolerance: float = 2e-5


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(scores), v)


def _convolution(image: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _pooled(image: Any) -> Any:
    return lax.reduce_window(image, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")


def _embedding(table: Any, numbers: Any) -> Any:
    indices = jnp.abs(numbers * 5).astype(jnp.int32) % table.shape[0]
    return jnp.tanh(table[indices]).sum(-1)


def _scan(x: Any, weights: Any) -> Any:
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum()), x, weights)


def _cond(x: Any, w: Any) -> Any:
    return lax.cond(jnp.sum(x) > 0, lambda: x @ w, lambda: x - w[:1, : x.shape[1]])


def _while(x: Any) -> Any:
    return lax.while_loop(lambda s: jnp.sum(jnp.abs(s)) > 1, lambda s: s / 2, x)


def _batch_norm(x: Any, scale: Any) -> Any:
    mean, variance = x.mean(0), x.var(0)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale


def _random(x: Any) -> Any:
    return x + jax.random.normal(jax.random.key(3), x.shape)


def _updated(x: Any, y: Any) -> Any:
    return lax.dynamic_update_slice(x, y[:2, :3], (jnp.int32(3), jnp.int32(1)))


def _scatter(x: Any, y: Any) -> Any:
    rows = jnp.abs(y[:, 0] * 7).astype(jnp.int32) % x.shape[0]
    return x.at[rows].add(y)


def _spectrum(x: Any) -> Any:
    return jnp.abs(jnp.fft.rfft(x, axis=-1))


def _uneven(x: Any, w: Any) -> Any:
    return jnp.concatenate([x, x[:3]])[1:-1] @ w


def _moe(x: Any, experts: Any) -> Any:
    gates = jax.nn.softmax(x[:, : experts.shape[0]])
    return jnp.einsum("be,bi,eio->bo", gates, x, experts)


def _causal(x: Any, project: Any) -> Any:
    q, k, v = jnp.split(x @ project, 3, axis=-1)
    positions = jnp.arange(x.shape[1])
    scores = jnp.where(positions[:, None] >= positions, jnp.einsum("btd,bsd->bts", q, k) / 64, -1e9)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), v)


def _strided(image: Any, kernel: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        image, kernel, (2, 1), ((1, 1), (2, 2)), rhs_dilation=(1, 2), dimension_numbers=numbers
    )


def _upsampled(image: Any, kernel: Any) -> Any:
    return lax.conv_transpose(image, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _strided_pool(image: Any) -> Any:
    largest = lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return largest - lax.reduce_window(image, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def _cross_entropy(x: Any, vocabulary: Any) -> Any:
    logits = x @ vocabulary
    labels = jnp.arange(x.shape[0]) * 3 % vocabulary.shape[1]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


def _recurrent(x: Any, w: Any, u: Any) -> Any:
    def step(state: Any, now: Any) -> Any:
        h, c = state
        i, f, o, g = jnp.split(now @ w + h @ u, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((x.shape[1], u.shape[0]))
    return lax.scan(step, (start, start), x)[1]


def _strided_slices(x: Any, y: Any) -> Any:
    return jnp.pad(x, ((1, 2), (2, 0)), constant_values=0.5)[::2, 1::3], lax.pad(
        y, 1.0, ((0, 0, 1), (-1, 2, 0))
    )


def _segments(x: Any) -> Any:
    groups = jnp.arange(x.shape[0]) * 5 % 6
    return jax.ops.segment_sum(x, groups, 6), jax.ops.segment_max(x, groups, 6)


def _dropout(x: Any, w: Any) -> Any:
    kept = jax.random.bernoulli(jax.random.key(7), 0.75, x.shape)
    return jnp.where(kept, x / 0.75, 0).astype(jnp.float16) @ w.astype(jnp.float16)


def _windows(x: Any) -> Any:
    def add(i: Any, total: Any) -> Any:
        return total + lax.dynamic_slice_in_dim(x, i * 3, 4, axis=0) * (i + 1)

    return lax.fori_loop(0, 4, add, jnp.zeros((4, x.shape[1])))


def _factors(x: Any) -> Any:
    spd = x @ x.swapaxes(-1, -2) + 8 * jnp.eye(x.shape[-2])
    lower = jnp.linalg.cholesky(spd)
    return lax.linalg.triangular_solve(lower, x, left_side=True, lower=True)


def _linear_recurrence(a: Any, b: Any) -> Any:
    def combine(one: Any, other: Any) -> Any:
        return one[0] * other[0], other[0] * one[1] + other[1]

    return lax.associative_scan(combine, (jax.nn.sigmoid(a), b), axis=0)[1]


def _switch(x: Any, y: Any) -> Any:
    branch = (jnp.abs(y).max() * 3).astype(jnp.int32) % 3
    return lax.switch(
        branch, [lambda v: v @ v.T, lambda v: jnp.cumsum(v @ v.T, 0), lambda v: (v @ v.T)[::-1]], x
    )


def _directional(x: Any, w: Any) -> Any:
    def energy(v: Any) -> Any:
        return (jax.nn.gelu(v @ w / 8) ** 2).sum()

    return jax.jvp(jax.grad(energy), (x,), (jnp.cos(x),))[1]


PROGRAMS: dict[str, Sharded] = {
    "dense": Sharded(lambda x, w: jnp.tanh(x @ w), ((16, 16), (16, 16)), (("d", None), (None, "m"))),
    "rows of weights": Sharded(lambda x, w: jnp.tanh(x @ w), ((8, 16), (16, 8)), ((None, "m"), ("m", None))),
    "mlp": Sharded(
        lambda x, a, b: jax.nn.relu(x @ a) @ b,
        ((16, 16), (16, 32), (32, 8)),
        (("d", None), (None, "m"), ("m", None)),
    ),
    "attention": Sharded(_attention, ((4, 8, 6, 4),) * 3, (("d", "m"),) * 3),
    "sequence": Sharded(
        _attention, ((2, 2, 8, 4),) * 3, ((None, None, "d"), (None, None, "m"), (None, None, "m"))
    ),
    "halo": Sharded(_convolution, ((2, 16, 16, 3), (3, 3, 3, 4)), ((None, "d", "m"), ())),
    "channels": Sharded(_convolution, ((4, 8, 8, 4), (3, 3, 4, 8)), (("d",), (None, None, None, "m"))),
    "pooling": Sharded(_pooled, ((2, 16, 8, 3),), ((None, "d", "m"),), False),
    "embedding": Sharded(_embedding, ((32, 8), (8,)), (("m",), ("d",)), False),
    "columns of a table": Sharded(_embedding, ((32, 8), (8,)), ((None, "m"), ("d",)), False),
    "sort": Sharded(lambda x: jnp.sort(x, axis=0), ((16, 16),), (("d", "m"),)),
    "order": Sharded(
        lambda x: (jnp.argsort(x, axis=1), jnp.argmax(x, axis=0)), ((16, 16),), (("d", "m"),), False
    ),
    "top k": Sharded(lambda x: lax.top_k(x, 3)[0], ((16, 16),), (("d", "m"),)),
    "cumulative sum": Sharded(lambda x: jnp.cumsum(x, axis=0), ((16, 16),), (("d", "m"),)),
    "scan over layers": Sharded(_scan, ((8, 8), (3, 8, 8)), (("d", None), (None, None, "m"))),
    "cond": Sharded(_cond, ((8, 8), (8, 8)), (("d",), (None, "m"))),
    "while": Sharded(_while, ((8, 8),), (("d", "m"),), False),
    "batch norm": Sharded(_batch_norm, ((16, 16), (16,)), (("d",), ("m",))),
    "layer norm": Sharded(
        lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5),
        ((8, 16),),
        (("d", "m"),),
    ),
    "random bits": Sharded(_random, ((16, 16),), (("d", "m"),)),
    "update at an offset": Sharded(_updated, ((16, 8), (8, 8)), (("d", "m"), ("d",))),
    "scatter": Sharded(_scatter, ((16, 8), (8, 8)), (("d",), (None, "m"))),
    "fft": Sharded(_spectrum, ((8, 16),), (("d",),)),
    "uneven": Sharded(_uneven, ((16, 8), (8, 8)), (("d",), (None, "m"))),
    "reversed and shifted": Sharded(lambda x: jnp.roll(x[::-1], 3, axis=1), ((16, 16),), (("d", "m"),)),
    "transposed": Sharded(lambda x: x.T.reshape(8, 4, 8) * 2, ((16, 16),), (("d", "m"),)),
    "experts": Sharded(_moe, ((16, 16), (16, 16, 8)), (("d",), ("m",))),
    "complex": Sharded(
        lambda x, y: jnp.abs((x + 1j * y) @ (y - 1j * x).T), ((8, 16), (8, 16)), (("d",), (None, "m"))
    ),
    "integers": Sharded(
        lambda x: ((x * 9).astype(jnp.int32).sum(0), (x > 0).any(0), (x > -1).all(1)),
        ((8, 16),),
        (("d", "m"),),
        False,
    ),
    "causal attention": Sharded(_causal, ((4, 16, 16), (16, 48)), (("d", "m"), (None, "m"))),
    "strided convolution": Sharded(_strided, ((2, 16, 16, 4), (3, 3, 4, 8)), ((None, "d", "m"), ())),
    "upsampled": Sharded(
        _upsampled, ((4, 4, 8, 4), (3, 3, 4, 16)), (("d", None, "m"), (None, None, None, "m"))
    ),
    "strided pooling": Sharded(_strided_pool, ((2, 16, 16, 3),), ((None, "d", "m"),)),
    "cross entropy": Sharded(_cross_entropy, ((16, 8), (8, 32)), (("d",), (None, "m"))),
    "recurrent": Sharded(_recurrent, ((5, 16, 4), (4, 64), (16, 64)), ((None, "d"), (None, "m"), ("m",))),
    "strided slices": Sharded(_strided_slices, ((16, 16), (8, 16)), (("d", "m"), ("d", "m"))),
    "segments": Sharded(_segments, ((16, 16),), (("d", "m"),)),
    # gradients of 16 IPUs are halves, rounded at each of four levels of their sum; values are up to 4
    "dropout": Sharded(_dropout, ((16, 16), (16, 16)), (("d",), (None, "m")), tolerance=4e-3),
    "windows of a sharded axis": Sharded(_windows, ((16, 16),), (("d", "m"),)),
    "factors": Sharded(_factors, ((16, 4, 6),), (("d",),)),
    "linear recurrence": Sharded(_linear_recurrence, ((16, 8), (16, 8)), (("d", "m"),) * 2),
    "switch": Sharded(_switch, ((16, 16), (16, 4)), (("d", "m"), ("m",)), False),
    "second derivative": Sharded(_directional, ((16, 16), (16, 16)), (("d",), (None, "m"))),
}
"""By name."""

MESHES = {"2": (2,), "4": (4,), "2x4": (2, 4), "16": (16,)}
"""Sizes of the axes; two axes are that of data and that of the model."""
KINDS = {"data": "d", "tensor": "m", "mixed": "dm"}
"""The axes of programs along which each kind of sharding cuts."""


def layout(program: Sharded, mesh: str, kind: str, devices: Any = None) -> tuple[NamedSharding, ...]:
    """Return shardings of a program's arguments, over ``devices`` in place of an abstract mesh where they are given.

    On a mesh of one axis each argument is cut along the first of its dimensions that the kind names.
    """
    sizes = MESHES[mesh]
    names = ("d", "m")[: len(sizes)]
    over = auto_mesh(sizes, names) if devices is None else Mesh(np.reshape(devices, sizes), names)
    found = []
    for shape, spec in zip(program.shapes, program.specs, strict=True):
        cut: list[str | None] = []
        for size, axis in zip(shape, spec, strict=False):
            name = axis if len(sizes) == 2 else names[0]
            is_cut = axis is not None and axis in KINDS[kind] and name not in cut
            cut.append(name if is_cut and size % sizes[names.index(name or "d")] == 0 else None)
        found.append(NamedSharding(over, PartitionSpec(*cut)))
    return tuple(found)


def arguments(program: Sharded, seed: int = 0) -> list[np.ndarray]:
    """Return arguments of a program, drawn at random."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in program.shapes]


def loss(program: Sharded) -> Callable[..., Any]:
    """Return a scalar function whose gradient reaches every argument, and differs from element to element."""

    def weighted(leaf: Any) -> Any:
        return (jnp.arctan(leaf) * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape)).sum()

    def total(*arrays: Any) -> Any:
        return sum(weighted(leaf) for leaf in jax.tree.leaves(program.function(*arrays)))

    return total


def close(got, want, tolerance=2e-5):
    """Compare trees of arrays within what another order of additions may change."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        scale = max(1.0, float(np.max(np.abs(np.asarray(other, np.float64)), initial=0)))
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance / 10 * scale)
