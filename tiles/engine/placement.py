"""Where parts, slices and cells lie in tile memory, axis by axis: addresses in bytes, counted through all tiles."""

from __future__ import annotations

from collections.abc import Sequence

from tiles.engine.addresses import Axis, Loops, part_axis
from tiles.graph import Arrangement, AxisSplit, Layout
from tiles.numerics.dtypes import itemsize
from tiles.plan import Slices


def digits_of(split: AxisSplit, tile_bytes: int) -> Loops:
    """Return where the tiles of a dimension's parts lie."""
    return tuple((radix, stride * tile_bytes) for radix, stride in split.digits) if split.is_split else ()


def in_tile(shape: Sequence[int], order: Arrangement, size_bytes: int) -> list[Loops]:
    """Return where the elements of a part or slice lie in it, for each of its axes: the one place that says so.

    Loops may count further than the axis, where its last group is filled up.
    """
    loops: list[Loops] = [() for _ in shape]
    stride = size_bytes
    for axis, radix, _ in reversed(order.factors(shape)):
        loops[axis] = ((radix, stride), *loops[axis])
        stride *= radix
    return loops


def box_axes(shape: Sequence[int], order: Arrangement, size_bytes: int) -> tuple[Axis, ...]:
    """Return where the elements of a part or slice lie from its first one, one axis for each of its own."""
    inner = in_tile(shape, order, size_bytes)
    return tuple(part_axis(n, n, (), loops) for n, loops in zip(shape, inner, strict=True))


def layout_axes(layout: Layout, dtype: str, tile_bytes: int) -> tuple[Axis, ...]:
    """Return where a tensor lies, from the address of its first part."""
    part = layout.part_shape
    return tuple(
        part_axis(split.size, n, digits_of(split, tile_bytes), loops)
        for split, n, loops in zip(
            layout.axes, part, in_tile(part, layout.arrangement, itemsize(dtype)), strict=True
        )
    )


def cell_axes(grid: Sequence[int], digits: Sequence[Loops], held: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return where whole cells lie: one axis per dimension of the grid, and those of what each holds."""
    return (*(part_axis(parts, 1, loops, ()) for parts, loops in zip(grid, digits, strict=True)), *held)


def slice_axes(slices: Slices, digits: Sequence[Loops], size_bytes: int) -> tuple[Axis, ...]:
    """Return where slices lie: an axis that is cut into parts as one, any other as its cells and what each holds.

    Args:
      slices: what every cell holds.
      digits: where the cells lie, for every dimension of the grid.
      size_bytes: of an element.
    """
    found: list[Axis] = []
    held = in_tile(slices.extents, slices.arrangement, size_bytes)
    for axis, inner in zip(slices.axes, held, strict=True):
        if axis.is_partition:
            loops = digits[axis.dims[0]] if axis.dims else ()
            found.append(part_axis(axis.size, axis.extent, loops, inner))
        else:
            found += [part_axis(n, 1, digits[d], ()) for d, n in zip(axis.dims, axis.grid, strict=True)]
            found.append(part_axis(axis.extent, axis.extent, (), inner))
    return tuple(found)


def spread_shape(slices: Slices) -> tuple[int, ...]:
    """Return the sizes of the axes of ``slice_axes``."""
    found: list[int] = []
    for axis in slices.axes:
        found += [axis.size] if axis.is_partition else [*axis.grid, axis.extent]
    return tuple(found)
