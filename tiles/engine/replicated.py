"""Replicas in the fast engine: ``jax.vmap`` over one replica's program, in which collectives see all of them.

A collective is a function of arrays with a leading axis of replicas. Under ``vmap`` it is handed all replicas at once;
what is equal on all of them, such as a sum over all, is kept once from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from tiles._jax_compat import Datum, eval_shape, lax_map
from tiles.graph import Permutation, Replicas

REPLICA = "a replica's number"
"""Under which name, no variable's, values of one replica hold its number."""


def over_replicas(
    replicas: Replicas,
    function: Callable[..., tuple[jax.Array, ...]],
    number: jax.Array,
    *operands: jax.Array,
) -> tuple[jax.Array, ...]:
    """Return a replica's results of a function of all replicas' operands.

    Args:
      replicas: the mesh.
      function: arrays ``[replicas, *shape]`` to arrays ``[replicas, *shape]``, or ``[1, *shape]`` where all replicas get the same.
      number: the replica's, batched by the ``vmap`` over replicas.
      *operands: the replica's own.
    """

    def all_of(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x, (replicas.count, *x.shape))

    stacked = [jax.ShapeDtypeStruct((replicas.count, *x.shape), x.dtype) for x in operands]
    types = eval_shape(function, *stacked)

    @custom_vmap
    def own(number: jax.Array, *operands: jax.Array) -> tuple[jax.Array, ...]:
        # It runs under the ``vmap`` over replicas only: what counts of it is the type. With ``function`` in it, arrays that
        # that holds would be arguments, which JAX batches in a branch that replicas decide for themselves.
        return tuple(jnp.zeros(x.shape[1:], x.dtype) for x in types)

    @own.def_vmap
    def _(size: int, batched: Sequence[bool], number: jax.Array, *operands: jax.Array) -> Datum:
        assert size == replicas.count
        results = function(*(x if b else all_of(x) for x, b in zip(operands, batched[1:], strict=True)))
        own = tuple(len(x) > 1 for x in results)
        return tuple(x if each else x[0] for x, each in zip(results, own, strict=True)), own

    return own(number, *operands)


def few_at_once(
    function: Callable[..., jax.Array],
    size_bytes: int,
    most_bytes: int,
    prepare: Mapping[int, Callable[[jax.Array], jax.Array]],
) -> Callable[..., jax.Array]:
    """Return a function of one replica's operands that ``vmap`` calls for some replicas at a time, not for all.

    Args:
      function: one replica's; ``prepared=`` has the numbers of operands that were prepared.
      prepare: by number of an operand what to do with it, once, where it is the same on all replicas.
      size_bytes: what a replica's values take on the way to its result.
      most_bytes: for how much of that at a time; always for one replica.
    """

    @custom_vmap
    def own(*operands: jax.Array) -> jax.Array:
        return function(*operands)

    @own.def_vmap
    def _(size: int, batched: Sequence[bool], *operands: jax.Array) -> Datum:
        if not any(batched):
            return function(*operands), False
        most = max(1, min(size, most_bytes // max(1, size_bytes)))
        count = next(n for n in range(most, 0, -1) if size % n == 0)
        if count == size:
            return jax.vmap(function, in_axes=tuple(0 if b else None for b in batched))(*operands), True
        prepared = [k for k in prepare if not batched[k]]
        operands = tuple(prepare[k](x) if k in prepared else x for k, x in enumerate(operands))
        one = partial(function, prepared=prepared)
        run = jax.vmap(one, in_axes=tuple(0 if b else None for b in batched))

        def block(number: jax.Array) -> jax.Array:
            here = (
                lax.dynamic_slice_in_dim(x, number * count, count) if b else x
                for x, b in zip(operands, batched, strict=True)
            )
            if count > 1:
                return run(*here)
            return one(*(x[0] if b else x for x, b in zip(here, batched, strict=True)))

        found = lax_map(block, jnp.arange(size // count, dtype=jnp.int32))
        return (found.reshape(size, *found.shape[2:]) if count > 1 else found), True

    return own


def moved(
    replicas: Replicas,
    axes: tuple[str, ...],
    exchanges: tuple[tuple[Permutation, ...], ...],
    x: jax.Array,
    stage: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """Return what a ``CopyBetween`` brings to every replica of ``x``, ``[replicas, *shape]``.

    Args:
      replicas: the mesh.
      axes: along which replicas form groups.
      exchanges: the permutations of each stage.
      x: what is sent.
      stage: every replica's, ``[replicas]``, equal in a group; None where there is one exchange.
    """
    if stage is None:
        return (_arrived(replicas, axes, exchanges[0], x),)
    found = _arrived(replicas, axes, exchanges[-1], x)
    for number in reversed(range(len(exchanges) - 1)):
        is_now = (stage == number).reshape(-1, *[1] * (x.ndim - 1))
        found = jnp.where(is_now, _arrived(replicas, axes, exchanges[number], x), found)
    return (found,)


def _arrived(
    replicas: Replicas, axes: tuple[str, ...], permutations: tuple[Permutation, ...], x: jax.Array
) -> jax.Array:
    """Return what permutations bring, one of each part along the first dimension where there are several."""
    sources = np.full((len(permutations), replicas.count), replicas.count, np.int64)
    for k, permutation in enumerate(permutations):
        there = replicas.destinations(axes, permutation)
        here = np.flatnonzero(there >= 0)
        sources[k, there[here]] = here
    if len(permutations) == 1:
        return _rows(x, sources[0], replicas.count)
    parts = jnp.split(x, len(permutations), axis=1)
    found = [_rows(part, own, replicas.count) for part, own in zip(parts, sources, strict=True)]
    return jnp.concatenate(found, axis=1)


def _rows(x: jax.Array, sources: np.ndarray, count: int) -> jax.Array:
    """Return the rows that arrive: row ``sources[i]`` of ``x`` at i, zeros where nothing is sent."""
    found = x[np.minimum(sources, count - 1)]
    is_sent = (sources < count).reshape(-1, *[1] * (x.ndim - 1))
    return found if is_sent.all() else jnp.where(is_sent, found, jnp.zeros((), x.dtype))


def compared(replicas: Replicas, axes: tuple[str, ...], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return ``x``, ``[replicas, *shape]``, kept once where all are to be equal, and which replicas differ from their group's first."""
    firsts = replicas.firsts(axes)
    bits = x
    if jnp.issubdtype(x.dtype, jnp.floating):
        bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    differs = (bits != bits[firsts]).reshape(replicas.count, -1).any(axis=1)
    return (x[:1] if not firsts.any() else x), differs


def replica_index(replicas: Replicas, axes: tuple[str, ...], number: jax.Array) -> jax.Array:
    """Return a replica's place along some axes, a uint32 scalar."""
    sizes, place = dict(replicas.axes), jnp.zeros((), jnp.uint32)
    for name, stride in zip(axes, replicas.strides(axes), strict=True):
        digit = number.astype(jnp.uint32) // jnp.uint32(stride) % jnp.uint32(sizes[name])
        place = place * jnp.uint32(sizes[name]) + digit
    return place
