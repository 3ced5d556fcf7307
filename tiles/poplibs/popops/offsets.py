"""What slices and updates at runtime offsets share: how a form's indices become places inside one cell.

An index moves along one axis of the tensor that is sliced or updated; a window of consecutive elements may
start there. A cell that holds all of an axis uses the index as it is, one that holds a part subtracts where
the part begins, and what falls outside its part is another cell's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles.graph import Cell, IndexMap, OpForm

NO_WINDOW = -1
"""In place of a window's dimension: one element is taken at each index."""
OUTSIDE = np.iinfo(np.int32).max
"""The place of an update that is left out: outside every part."""


def axis_dims(index_map: IndexMap, axes: Sequence[int]) -> tuple[int, ...]:
    """Return the domain dimension along each of the tensor's ``axes``."""
    return tuple(index_map.axes[axis].terms[0][0] for axis in axes)


def window_size(form: OpForm, window: int) -> int:
    """Return how many consecutive elements are taken at an index."""
    return 1 if window == NO_WINDOW else form.dims[window].size


def takes_places(form: OpForm, windows: Sequence[int]) -> bool:
    """Return whether an index stands for a single place along every axis that it moves along."""
    return bool(windows) and all(window_size(form, window) == 1 for window in windows)


def takes_rows(form: OpForm, windows: Sequence[int]) -> bool:
    """Return whether an index, along one axis, stands for a single place."""
    return len(windows) == 1 and takes_places(form, windows)


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
    return jnp.where(inside, index.astype(jnp.int32), OUTSIDE)


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


def update_places(
    cell: Cell,
    axes: Sequence[int],
    windows: Sequence[int],
    indices: Sequence[Array],
    is_clamped: bool = False,
) -> tuple[list[Array], bool]:
    """Return where updates go in a cell's part of the result, one aligned int32 array per updated axis.

    Args:
      cell: its form's last operands are the indices, its first result's axes are what is updated.
      axes: updated axes.
      windows: for each, the reduced dimension of the consecutive elements updated, or ``NO_WINDOW``.
      indices: the cell's indices along each axis.
      is_clamped: whether an index outside moves to the nearest place inside; else its update is ``OUTSIDE``.

    Returns:
      places: where each window begins if the cell has all of every updated axis, else of every element.
      is_whole: which of the two.
    """
    form, wanted = cell.form, cell.form.results[0].dims
    first = len(form.operands) - len(indices)
    updated = [wanted[axis] for axis in axes]
    bound = clamped if is_clamped else dropped
    starts = [
        bound(cell.align(first + n, index), form.dims[d].size - window_size(form, w))
        for n, (index, d, w) in enumerate(zip(indices, updated, windows, strict=True))
    ]
    mask = cell.reduced_mask()
    if mask is not None:
        starts = [jnp.where(mask, start, OUTSIDE) for start in starts]
    is_whole = holds_all(cell, [*updated, *(w for w in windows if w != NO_WINDOW)])
    if not is_whole:
        starts = element_places(cell, axes, windows, starts)
    return starts, is_whole


def element_places(
    cell: Cell, axes: Sequence[int], windows: Sequence[int], starts: Sequence[Array]
) -> list[Array]:
    """Return the place of every element of every window, counted from where the cell's part begins."""
    wanted = cell.form.results[0].dims
    found: list[Array] = []
    for start, window, axis in zip(starts, windows, axes, strict=True):
        place = counted(cell, start, window) - cell.origin[wanted[axis]]
        found.append(jnp.where(start == OUTSIDE, start, place))
    return found


@dataclass(frozen=True)
class UpdateDims:
    """How updates lie against what they update.

    Args:
      leading: domain dimensions with a place of their own, lookups in order, then windows.
      trailing: dimensions of the updates along the result's other axes.
      numbers: the scatter of updates ``[*leading, *trailing]`` at places ``[*leading, axes]``.
    """

    leading: tuple[int, ...]
    trailing: tuple[int, ...]
    numbers: lax.ScatterDimensionNumbers


def update_dims(
    form: OpForm, axes: Sequence[int], windows: Sequence[int], base: int, pieces: Collection[int] = ()
) -> UpdateDims:
    """Return how the updates of a form lie.

    Args:
      form: the form; its operands from ``base`` on are the indices, the one before them updates.
      axes: updated axes of the result.
      windows: for each, its window's dimension, or ``NO_WINDOW``.
      base: the first operand of indices.
      pieces: windows that are updated in one piece.
    """
    wanted, held = form.results[0].dims, form.operands[base - 1].dims
    index_dims = {d for m in form.operands[base:] for d in m.dims} | set(windows) - {NO_WINDOW}
    index_dims |= {d for d in held if form.dims[d].is_reduced}
    leading = [d for d in range(len(form.dims)) if d in index_dims and d not in pieces]
    axis_of = {d: axis for axis, d in enumerate(wanted)}
    batch = sorted((d for d in leading if d in wanted), key=axis_of.__getitem__)
    axis_of |= {w: axis for axis, w in zip(axes, windows, strict=True)}
    trailing = sorted((d for d in held if d not in leading), key=axis_of.__getitem__)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(len(leading), len(leading) + len(trailing))),
        inserted_window_dims=tuple(sorted(a for a, w in zip(axes, windows, strict=True) if w not in pieces)),
        scatter_dims_to_operand_dims=tuple(axes),
        operand_batching_dims=tuple(axis_of[d] for d in batch),
        scatter_indices_batching_dims=tuple(leading.index(d) for d in batch),
    )
    return UpdateDims(tuple(leading), tuple(trailing), numbers)


SCATTERS: dict[str, tuple[Callable[..., Array], Callable[[Array, Array], Array]]] = {
    "set": (lax.scatter, lambda old, new: new),
    "add": (lax.scatter_add, lax.add),
    "sub": (lax.scatter_sub, lax.sub),
    "mul": (lax.scatter_mul, lax.mul),
    "max": (lax.scatter_max, lax.max),
    "min": (lax.scatter_min, lax.min),
}
"""By operation, many updates, and what one makes of old elements."""


def scatter(
    operation: str,
    part: Array,
    places: Array,
    updates: Array,
    numbers: lax.ScatterDimensionNumbers,
    *,
    are_inside: bool = False,
) -> Array:
    """Return a part after updates, those outside of it left out.

    A single update is a slice that is replaced: XLA:CPU makes one of it, too, but of a scatter it also compiles a test of
    whether the place is inside, and a selection. A single update outside is one inside that writes what it finds: XLA:CPU
    (jaxlib 0.10.2) takes a slice of a slice to begin where the two starts add up, though each is clamped, and then writes
    elements that lie beside the part in the array which that was sliced from.

    Args:
      operation: one of ``SCATTERS``.
      part: what is updated.
      places: where updates begin, int32 ``[*leading, axes]``.
      updates: ``[*leading, *trailing]``.
      numbers: how the three lie against each other; see ``UpdateDims``.
      are_inside: whether no place is outside.
    """
    many, one = SCATTERS[operation]
    if math.prod(places.shape[:-1]) != 1:
        return many(part, places, updates, numbers, mode="fill")
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = iter(numbers.update_window_dims)
    sizes = [1 if axis in single else updates.shape[next(window)] for axis in range(part.ndim)]
    axes = numbers.scatter_dims_to_operand_dims
    found, new = places.reshape(len(axes)), updates.reshape(sizes)
    inside = found
    if not are_inside:
        last = np.array([part.shape[axis] - sizes[axis] for axis in axes], np.int32)
        inside = lax.clamp(np.zeros_like(last), found, last)
    starts: list[Array | np.int32] = [np.int32(0)] * part.ndim
    for number, axis in enumerate(axes):
        starts[axis] = lax.index_in_dim(inside, number, keepdims=False)
    if operation != "set" or not are_inside:
        old = lax.dynamic_slice(part, starts, sizes, allow_negative_indices=False)
        new = one(old, new)
        if not are_inside:
            new = jnp.where((inside == found).all(), new, old)
    return lax.dynamic_update_slice(part, new, starts, allow_negative_indices=False)


def looked_up(numbers: lax.ScatterDimensionNumbers) -> lax.GatherDimensionNumbers:
    """Return the gather of the elements that a scatter updates."""
    return lax.GatherDimensionNumbers(
        offset_dims=tuple(numbers.update_window_dims),
        collapsed_slice_dims=tuple(numbers.inserted_window_dims),
        start_index_map=tuple(numbers.scatter_dims_to_operand_dims),
        operand_batching_dims=tuple(numbers.operand_batching_dims),
        start_indices_batching_dims=tuple(numbers.scatter_indices_batching_dims),
    )
