"""What slices and updates at runtime offsets share: how a form's indices become places inside one cell.

An index moves along one axis of the tensor that is sliced or updated; a window of consecutive elements may
start there. A cell that holds all of an axis uses the index as it is, one that holds a part subtracts where
the part begins, and what falls outside its part is another cell's.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles.graph import Cell, IndexMap, OpForm

NO_WINDOW = -1
"""In place of a window's dimension: one element is taken at each index."""


def axis_dims(index_map: IndexMap, axes: Sequence[int]) -> tuple[int, ...]:
    """Return the domain dimension along each of the tensor's ``axes``."""
    return tuple(index_map.axes[axis].terms[0][0] for axis in axes)


def window_size(form: OpForm, window: int) -> int:
    """Return how many consecutive elements are taken at an index."""
    return 1 if window == NO_WINDOW else form.dims[window].size


def holds_all(cell: Cell, dims: Sequence[int]) -> bool:
    """Return whether a cell has the whole of every dimension."""
    return all(cell.sizes[d] == cell.form.dims[d].size for d in dims)


def clamped(index: Array, last: int) -> Array:
    """Return int32 indices moved into ``[0, last]``, compared in their own type."""
    last = min(last, np.iinfo(index.dtype).max)
    return lax.clamp(np.array(0, index.dtype), index, np.array(last, index.dtype)).astype(jnp.int32)


def dropped(index: Array, last: int) -> Array:
    """Return int32 indices, those outside ``[0, last]`` as the greatest int32."""
    inside = (index >= 0) & (index <= min(last, np.iinfo(index.dtype).max))
    return jnp.where(inside, index.astype(jnp.int32), np.iinfo(np.int32).max)


def counted(cell: Cell, index: Array, window: int) -> Array:
    """Return the indices of a window's elements, counted from ``index`` along dimension ``window``."""
    if window == NO_WINDOW:
        return index
    shape = [1] * len(cell.sizes)
    shape[window] = cell.sizes[window]
    return index + lax.iota(jnp.int32, cell.sizes[window]).reshape(shape) + cell.origin[window]


def joined(cell: Cell, indices: Sequence[Array], dims: Sequence[int]) -> Array:
    """Return aligned indices as index vectors ``[*sizes of dims, len(indices)]``."""
    if not indices:
        return jnp.zeros([*(cell.sizes[d] for d in dims), 0], jnp.int32)
    shape = [size if d in dims else 1 for d, size in enumerate(cell.sizes)]
    full = [jnp.broadcast_to(index, shape).transpose(_to_front(dims, len(shape))) for index in indices]
    flat = [x.reshape([cell.sizes[d] for d in dims]) for x in full]
    return jnp.stack(flat, axis=-1)


def _to_front(dims: Sequence[int], rank: int) -> list[int]:
    return [*dims, *(d for d in range(rank) if d not in dims)]


def arranged(x: Array, dims: Sequence[int], wanted: Sequence[int]) -> Array:
    """Return an array whose axes lie along ``dims`` with its axes along ``wanted``."""
    order = [tuple(dims).index(d) for d in wanted]
    return x if order == sorted(order) else lax.transpose(x, order)
