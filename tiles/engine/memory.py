"""Tile memory as one array of words ``[tiles, words]``, and the moves between it and logical arrays.

The array lies on the host, and moves are NumPy's: every part of a layout and every slice of a plan is a
strided view at its allocated address, so a move is one copy of one view to another, in place, and there is
nothing to compile. Nothing is enumerated per tile, vertex or element. A slice that many cells read is put
together once and repeated by the final copy, in rows at the speed of memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiles.engine.placement import Placement, boxes, of_layout
from tiles.engine.views import by_pieces, compact, copy, empty
from tiles.graph import Layout
from tiles.numerics.dtypes import WORD_BYTES, from_words, itemsize, to_jax, to_words, word_count
from tiles.plan import OUTSIDE, AxisSlices, Slices

POISON = 0x7FC0DEAD


def poison(memory: np.ndarray) -> None:
    """Fill memory with a pattern that nobody wrote."""
    by_pieces(lambda piece: piece.fill(POISON), memory)


# ---- logical arrays


def as_words(x: np.ndarray, rank: int) -> np.ndarray:
    """Return elements ``[*grid, *shape]``, the grid of ``rank`` dimensions, as words.

    Elements that are words keep their axes; others are packed into ``[*grid, words]``.
    """
    if x.dtype.itemsize != WORD_BYTES:
        x = x.reshape((*x.shape[:rank], math.prod(x.shape[rank:])))
    return to_words(x)


def load_elements(
    memory: np.ndarray,
    place: Placement,
    word: int,
    dtype: str,
    shape: tuple[int, ...],
    drop: frozenset[int] = frozenset(),
    order: Sequence[int] | None = None,
) -> np.ndarray:
    """Return elements of ``shape`` at ``word`` of every cell's tile: ``[*grid, *shape]``; see ``Placement.load``."""
    if itemsize(dtype) == WORD_BYTES:
        return place.load(memory, word, shape, drop, order).view(to_jax(dtype))
    count = math.prod(shape)
    words = place.load(memory, word, (word_count(dtype, count),), drop)
    return from_words(words, dtype, count).reshape((*words.shape[:-1], *shape))


def read_tensor(memory: np.ndarray, layout: Layout, word: int, dtype: str) -> np.ndarray:
    """Return the logical array that lies in ``layout`` at word address ``word``; it may be a view of memory."""
    part = layout.part_shape
    rank = len(part)
    order = [a for d in range(rank) for a in (d, rank + d)]
    x = compact(load_elements(memory, of_layout(layout), word, dtype, part, order=order).transpose(order))
    x = x.reshape([g * p for g, p in zip(layout.grid, part, strict=True)])
    return x[(*(slice(n) for n in layout.shape), ...)]


def write_tensor(memory: np.ndarray, layout: Layout, word: int, value: np.ndarray) -> None:
    """Write a logical array's parts at word address ``word`` of their tiles; short parts are padded with 0."""
    part = layout.part_shape
    rank = len(part)
    for box in boxes(layout):
        x = value[(*box.elements, ...)]
        grid = box.place.grid
        for axis, (g, p) in enumerate(zip(grid, part, strict=True)):
            x = _padded(x, axis, g * p - x.shape[axis], 0)  # the last part alone, so little is copied
        x = x.reshape([n for pair in zip(grid, part, strict=True) for n in pair])
        parts = x.transpose([2 * d for d in range(rank)] + [2 * d + 1 for d in range(rank)])
        box.place.store(memory, word, as_words(parts, rank))


def _padded(x: np.ndarray, axis: int, count: int, value: Any) -> np.ndarray:
    """Return an array with ``count`` more elements of one value at the end of an axis."""
    if not count:
        return x
    shape = list(x.shape)
    shape[axis] += count
    out = empty(tuple(shape), x.dtype)
    before = (slice(None),) * axis
    copy(out[(*before, slice(x.shape[axis]))], x)
    out[(*before, slice(x.shape[axis], None))] = value
    return out


def disperse(x: np.ndarray, slices: Slices, fill: Any) -> np.ndarray:
    """Return the slices of a logical array, ``[*grid, *extents of the longest slice]``.

    Dimensions of the grid along which cells read the same slice have size 1.
    """
    for number, axis in enumerate(slices.axes):
        x = _spread_axis(x, 2 * number, axis, fill)
    shape: list[int] = []
    where: dict[int, int] = {}
    elements: list[int] = []
    for axis in slices.axes:
        shape += axis.grid
        where |= {d: len(shape) - len(axis.dims) + i for i, d in enumerate(axis.dims)}
        elements.append(len(shape))
        shape.append(axis.extent)
    x = x.reshape(shape).transpose([where[d] for d in sorted(where)] + elements)
    return x.reshape((*(n if d in where else 1 for d, n in enumerate(slices.grid)), *slices.extents))


def _spread_axis(x: np.ndarray, position: int, axis: AxisSlices, fill: Any) -> np.ndarray:
    """Replace one axis by (slice, element) axes."""
    count, extent = axis.first.size, axis.extent
    shape = (*x.shape[:position], count, extent, *x.shape[position + 1 :])
    if axis.is_partition:
        return _padded(x, position, count * extent - axis.size, 0).reshape(shape)
    index = axis.index
    if np.any(index == OUTSIDE):
        x = _padded(x, position, 1, 0 if fill is None else fill)
        index = np.where(index == OUTSIDE, axis.size, index)
    return np.take(x, np.maximum(index, 0).reshape(-1), axis=position, mode="clip").reshape(shape)


def collect(x: np.ndarray, slices: Slices) -> np.ndarray:
    """Return the logical array that slices ``[*grid, *extents]`` were cut from; elements nobody reads are 0.

    Where several cells hold an element, the first one's copy is taken; see ``slices_agree``.
    """
    dropped = repeated_dims(slices)
    x = x[(*(slice(0, 1) if d in dropped else slice(None) for d in range(len(slices.grid))), ...)]
    x = compact(x.transpose(collecting_order(slices)))
    x = x.reshape([axis.first.size * axis.extent for axis in slices.axes])
    for number, axis in enumerate(slices.axes):
        x = _gather_axis(x, number, axis)
    return x


def collecting_order(slices: Slices) -> list[int]:
    """Return how the axes of slices ``[*grid, *extents]`` are permuted to put the tensor together."""
    order = sorted(repeated_dims(slices))
    for number, axis in enumerate(slices.axes):
        order += [*axis.dims, len(slices.grid) + number]
    return order


def _gather_axis(x: np.ndarray, number: int, axis: AxisSlices) -> np.ndarray:
    """Replace the flattened (slice, element) axis by the tensor's own."""
    before = (slice(None),) * number
    if axis.is_partition:
        return x[(*before, slice(axis.size))]
    flat = axis.index.reshape(-1)
    source = np.full(axis.size, -1, np.int64)
    positions = np.flatnonzero(flat >= 0)[::-1]
    source[flat[positions]] = positions
    x = np.take(x, np.maximum(source, 0), axis=number, mode="clip")
    if np.any(source < 0):
        x[(*before, source < 0)] = 0
    return x


# ---- copies


def repeated_dims(slices: Slices) -> frozenset[int]:
    """Return the grid dimensions along which cells read the same slice."""
    used = {d for axis in slices.axes for d in axis.dims}
    return frozenset(d for d in range(len(slices.grid)) if d not in used)


def replicas_agree(
    memory: np.ndarray, place: Placement, word: int, count: int, repeated: frozenset[int]
) -> bool:
    """Return whether cells that differ only along ``repeated`` hold the same words."""
    first = place.load(memory, word, (count,), repeated)
    for block in place.blocks:
        x = block.view(memory, word, (count,))
        if not all(by_pieces(_are_equal, x, np.broadcast_to(block.part_of(first), x.shape))):
            return False
    return True


def _are_equal(x: np.ndarray, y: np.ndarray) -> bool:
    return bool((x == y).all())


def is_cut_once(slices: Slices) -> bool:
    """Return whether no two different slices share an element and none reaches outside the tensor."""
    return all(
        bool(np.all(axis.num_inside == axis.count)) and (axis.is_partition or _is_disjoint(axis))
        for axis in slices.axes
    )


def _is_disjoint(axis: AxisSlices) -> bool:
    index = axis.index[axis.index >= 0]
    return np.unique(index).size == index.size


def slices_agree(held: np.ndarray, x: np.ndarray, slices: Slices, fill: Any) -> bool:
    """Return whether slices ``[*grid, *extents]`` are, bit for bit, those of ``x`` and the fill value."""
    same = _bits(held) == _bits(disperse(x, slices, fill))
    for number, axis in enumerate(slices.axes):
        if np.any(axis.count < axis.extent):
            same = same | ~_real(slices, number)
    return bool(same.all())


def _real(slices: Slices, number: int) -> np.ndarray:
    """Return which positions along one axis belong to a slice, shaped to broadcast against ``[*grid, *extents]``."""
    axis = slices.axes[number]
    valid = (np.arange(axis.extent) < axis.count[:, None]).reshape((*axis.grid, axis.extent))
    valid = valid.transpose([*np.argsort(axis.dims), len(axis.dims)])
    grid = (n if d in axis.dims else 1 for d, n in enumerate(slices.grid))
    return valid.reshape((*grid, *(axis.extent if a == number else 1 for a in range(len(slices.axes)))))


def _bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"uint{8 * x.dtype.itemsize}")
