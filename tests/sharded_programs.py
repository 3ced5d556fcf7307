"""Functions with shardings of their arguments: what partitioning must get right, from dense layers to halos and sorts.

Every program takes arrays whose named dimensions are divided by every mesh here; "d" is the axis of data, "m" that of
the model. A mesh of one axis cuts along that one only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Sharded(NamedTuple):
    """A function, the shapes of its arguments, and by which axes their dimensions are cut."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    specs: tuple[tuple[str | None, ...], ...]
    has_gradient: bool = True


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


PROGRAMS: dict[str, Sharded] = {
    "dense": Sharded(lambda x, w: jnp.tanh(x @ w), ((8, 16), (16, 8)), (("d", None), (None, "m"))),
    "rows of weights": Sharded(lambda x, w: jnp.tanh(x @ w), ((8, 16), (16, 8)), ((None, "m"), ("m", None))),
    "mlp": Sharded(
        lambda x, a, b: jax.nn.relu(x @ a) @ b,
        ((8, 16), (16, 32), (32, 8)),
        (("d", None), (None, "m"), ("m", None)),
    ),
    "attention": Sharded(_attention, ((4, 8, 6, 4),) * 3, (("d", "m"),) * 3),
    "sequence": Sharded(
        _attention, ((2, 2, 8, 4),) * 3, ((None, None, "d"), (None, None, "m"), (None, None, "m"))
    ),
    "halo": Sharded(_convolution, ((2, 16, 8, 3), (3, 3, 3, 4)), ((None, "d", "m"), ())),
    "channels": Sharded(_convolution, ((4, 8, 8, 4), (3, 3, 4, 8)), (("d",), (None, None, None, "m"))),
    "pooling": Sharded(_pooled, ((2, 16, 8, 3),), ((None, "d", "m"),), False),
    "embedding": Sharded(_embedding, ((32, 8), (8,)), (("m",), ("d",)), False),
    "columns of a table": Sharded(_embedding, ((32, 8), (8,)), ((None, "m"), ("d",)), False),
    "sort": Sharded(lambda x: jnp.sort(x, axis=0), ((16, 8),), (("d", "m"),)),
    "order": Sharded(
        lambda x: (jnp.argsort(x, axis=1), jnp.argmax(x, axis=0)), ((8, 16),), (("d", "m"),), False
    ),
    "top k": Sharded(lambda x: lax.top_k(x, 3)[0], ((8, 16),), (("d", "m"),)),
    "cumulative sum": Sharded(lambda x: jnp.cumsum(x, axis=0), ((16, 8),), (("d", "m"),)),
    "scan over layers": Sharded(_scan, ((8, 8), (3, 8, 8)), (("d", None), (None, None, "m"))),
    "cond": Sharded(_cond, ((8, 8), (8, 8)), (("d",), (None, "m"))),
    "while": Sharded(_while, ((8, 8),), (("d", "m"),), False),
    "batch norm": Sharded(_batch_norm, ((16, 8), (8,)), (("d",), ("m",))),
    "layer norm": Sharded(
        lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5),
        ((8, 16),),
        (("d", "m"),),
    ),
    "random bits": Sharded(_random, ((8, 16),), (("d", "m"),)),
    "update at an offset": Sharded(_updated, ((16, 8), (8, 8)), (("d", "m"), ("d",))),
    "scatter": Sharded(_scatter, ((16, 8), (8, 8)), (("d",), (None, "m"))),
    "fft": Sharded(_spectrum, ((8, 16),), (("d",),)),
    "uneven": Sharded(_uneven, ((16, 8), (8, 8)), (("d",), (None, "m"))),
    "reversed and shifted": Sharded(lambda x: jnp.roll(x[::-1], 3, axis=1), ((8, 16),), (("d", "m"),)),
    "transposed": Sharded(lambda x: x.T.reshape(8, 4, 4) * 2, ((8, 16),), (("d", "m"),)),
    "experts": Sharded(_moe, ((8, 16), (8, 16, 8)), (("d",), ("m",))),
    "complex": Sharded(
        lambda x, y: jnp.abs((x + 1j * y) @ (y - 1j * x).T), ((8, 16), (8, 16)), (("d",), (None, "m"))
    ),
    "integers": Sharded(
        lambda x: ((x * 9).astype(jnp.int32).sum(0), (x > 0).any(0), (x > -1).all(1)),
        ((8, 16),),
        (("d", "m"),),
        False,
    ),
}
"""By name."""


def arguments(program: Sharded, seed: int = 0) -> list[np.ndarray]:
    """Return arguments of a program, drawn at random."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in program.shapes]


def loss(program: Sharded) -> Callable[..., Any]:
    """Return a scalar function whose gradient reaches every argument."""

    def total(*arrays: Any) -> Any:
        return sum((jnp.sin(leaf) * leaf).sum() for leaf in jax.tree.leaves(program.function(*arrays)))

    return total
