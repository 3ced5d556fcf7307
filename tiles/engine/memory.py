"""Tile memory as one array of words ``[tiles, words]``, and the moves between it and logical arrays.

Every move is a row gather or scatter at an allocated address plus reshapes and per-axis takes; nothing
is enumerated per tile, vertex or element. Rows are kept in cell (or part) order.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tiles.graph import Layout
from tiles.numerics.dtypes import from_words, to_words, word_count
from tiles.plan import OUTSIDE, AxisSlices, Slices

POISON = 0x7FC0DEAD


def read_rows(state: jax.Array, tiles: np.ndarray, word: int, dtype: str, count: int) -> jax.Array:
    """Return ``count`` elements at word address ``word`` of every tile in ``tiles``: ``[tiles, count]``."""
    words = word_count(dtype, count)
    run = _run(tiles)
    if run is not None:
        rows = lax.slice(state, (run, word), (run + tiles.size, word + words))
    else:
        rows = state[jnp.asarray(tiles), word : word + words]
    return from_words(rows, dtype, count)


def write_rows(state: jax.Array, tiles: np.ndarray, word: int, rows: jax.Array) -> jax.Array:
    """Store ``rows`` (``[tiles, count]``) at word address ``word`` of the tiles; return the new state."""
    words = to_words(rows)
    run = _run(tiles)
    if run is not None:
        return lax.dynamic_update_slice(state, words, (run, word))
    return state.at[jnp.asarray(tiles), word : word + words.shape[1]].set(words, unique_indices=True)


def _run(tiles: np.ndarray) -> int | None:
    """Return the first tile when the tiles are consecutive and ascending, else None."""
    consecutive = tiles.size == 1 or bool(np.all(np.diff(tiles) == 1))
    return int(tiles[0]) if consecutive else None


def join_parts(rows: jax.Array, layout: Layout) -> jax.Array:
    """Return the logical array whose parts are ``rows``."""
    grid, part = layout.grid, layout.part_shape
    rank = len(grid)
    x = rows.reshape(*grid, *part)
    x = x.transpose([a for d in range(rank) for a in (d, rank + d)])
    x = x.reshape([g * p for g, p in zip(grid, part, strict=True)])
    return lax.slice(x, [0] * rank, layout.shape)


def cut_parts(x: jax.Array, layout: Layout) -> jax.Array:
    """Return the parts of a logical array as rows ``[parts, elements of a full part]``; short parts are padded with 0."""
    grid, part = layout.grid, layout.part_shape
    rank = len(grid)
    padding = [(0, g * p - n, 0) for g, p, n in zip(grid, part, x.shape, strict=True)]
    if any(high for _, high, _ in padding):
        x = lax.pad(x, jnp.zeros((), x.dtype), padding)
    x = x.reshape([n for pair in zip(grid, part, strict=True) for n in pair])
    x = x.transpose([2 * d for d in range(rank)] + [2 * d + 1 for d in range(rank)])
    return x.reshape(math.prod(grid), math.prod(part))


def disperse(x: jax.Array, slices: Slices, fill: jax.Array | None) -> jax.Array:
    """Return every cell's slice of a logical array as rows ``[cells, elements of the longest slice]``."""
    for number, axis in enumerate(slices.axes):
        x = _spread_axis(x, 2 * number, axis, fill)
    return _to_cells(x, slices)


def _spread_axis(x: jax.Array, position: int, axis: AxisSlices, fill: jax.Array | None) -> jax.Array:
    """Replace one axis by (slice, element) axes."""
    count, extent = axis.first.size, axis.extent
    shape = (*x.shape[:position], count, extent, *x.shape[position + 1 :])
    if axis.is_partition:
        high = count * extent - axis.size
        if high:
            x = lax.pad(x, jnp.zeros((), x.dtype), [(0, high if a == position else 0, 0) for a in range(x.ndim)])
        return x.reshape(shape)
    index = axis.index
    if np.any(index == OUTSIDE):
        value = jnp.zeros((), x.dtype) if fill is None else fill.astype(x.dtype)
        x = lax.pad(x, value, [(0, 1 if a == position else 0, 0) for a in range(x.ndim)])
        index = np.where(index == OUTSIDE, axis.size, index)
    flat = np.maximum(index, 0).reshape(-1)
    return jnp.take(x, jnp.asarray(flat, jnp.int32), axis=position, mode="clip").reshape(shape)


def _to_cells(x: jax.Array, slices: Slices) -> jax.Array:
    """Bring ``[G0, E0, G1, E1, ...]`` to rows in cell order, repeating slices that several cells read."""
    shape: list[int] = []
    dims: list[int] = []
    where: dict[int, int] = {}
    elements: list[int] = []
    for axis in slices.axes:
        for d, parts in zip(axis.dims, axis.grid, strict=True):
            where[d] = len(shape)
            shape.append(parts)
        elements.append(len(shape) + (0 if axis.dims else 1))
        shape += [axis.extent] if axis.dims else [1, axis.extent]
    x = x.reshape(shape)
    dims = sorted(where)
    singles = [a for a in range(len(shape)) if a not in where.values() and a not in elements]
    x = x.transpose([where[d] for d in dims] + singles + elements)
    extents = slices.extents
    x = x.reshape([slices.grid[d] if d in where else 1 for d in range(len(slices.grid))] + list(extents))
    x = jnp.broadcast_to(x, (*slices.grid, *extents))
    return x.reshape(math.prod(slices.grid), math.prod(extents))


def collect(rows: jax.Array, slices: Slices) -> jax.Array:
    """Return the logical array that the cells' slices were cut from; elements nobody reads are 0.

    Where several cells hold an element, the first one's copy is taken; see ``replicas_agree``.
    """
    grid, extents = slices.grid, slices.extents
    x = rows.reshape(*grid, *extents)
    used = {d for axis in slices.axes for d in axis.dims}
    x = x[tuple(slice(None) if d in used else 0 for d in range(len(grid)))]
    kept = sorted(used)
    order: list[int] = []
    for number, axis in enumerate(slices.axes):
        order += [*(kept.index(d) for d in axis.dims), len(kept) + number]
    x = x.transpose(order).reshape([axis.first.size * axis.extent for axis in slices.axes])
    for number, axis in enumerate(slices.axes):
        if axis.is_partition:
            x = lax.slice_in_dim(x, 0, axis.size, axis=number)
            continue
        flat = axis.index.reshape(-1)
        inside = flat >= 0
        source = np.full(axis.size, -1, np.int64)
        positions = np.flatnonzero(inside)[::-1]
        source[flat[positions]] = positions
        x = jnp.take(x, jnp.asarray(np.maximum(source, 0), jnp.int32), axis=number, mode="clip")
        if np.any(source < 0):
            known = (source >= 0).reshape([-1 if a == number else 1 for a in range(x.ndim)])
            x = jnp.where(known, x, jnp.zeros((), x.dtype))
    return x


def has_replicas(slices: Slices) -> bool:
    """Return whether any element is held by more than one cell, or filled in from outside."""
    return slices.replication > 1 or not all(
        int(axis.num_inside.sum()) <= axis.size and bool(np.all(axis.num_inside == axis.count)) and not _overlaps(axis)
        for axis in slices.axes
    )


def _overlaps(axis: AxisSlices) -> bool:
    index = axis.index[axis.index >= 0]
    return np.unique(index).size != index.size


def replicas_agree(rows: jax.Array, x: jax.Array, slices: Slices, fill: jax.Array | None) -> jax.Array:
    """Return whether every cell's row is, word for word, the slice of ``x`` it should be (a boolean scalar)."""
    expected = disperse(x, slices, fill)
    same = _bits(rows) == _bits(expected)
    if any(bool(np.any(axis.count < axis.extent)) for axis in slices.axes):
        same = same | ~jnp.asarray(_real(slices))
    return jnp.all(same)


def _real(slices: Slices) -> np.ndarray:
    """Return which row positions belong to a slice, bool ``[cells, elements]``."""
    real = np.ones((slices.tiles.size, 1), bool)
    for axis, where in zip(slices.axes, slices.coordinates, strict=True):
        valid = (np.arange(axis.extent) < axis.count[:, None])[where]
        real = (real[:, :, None] & valid[:, None, :]).reshape(real.shape[0], -1)
    return real


def _bits(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        return x
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
