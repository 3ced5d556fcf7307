"""Padding that travels along: short parts at the end of an axis, stored at the extent of full ones.

The last part of an axis that a split does not divide lies in as much memory as the others: what it lacks is padding
between its rows. A slice that is exactly that part is stored with the same gaps. Taken row by row, it would cost a send
or a change of source and pointer for each row; taken with the padding, which nobody reads, it is one stretch, as full
parts are. So exchange programs are counted as if such axes were as long as their parts together. The bytes are those of
elements: tiles with full parts, which move more, are the busiest anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tiles.graph import Layout
from tiles.plan.receiving import Digit
from tiles.plan.slices import AxisSlices, Slices


def with_padding(
    slices: Slices, source: Layout, kept: Sequence[Digit], written: Sequence[Digit]
) -> tuple[Slices, Layout] | None:
    """Return slices and source with every axis prolonged whose padding may travel along, None where none is.

    Args:
      slices: what cells read.
      source: where it lies.
      kept: digits of the order in which parts are held, the fastest first.
      written: digits of the order in which elements of slices are written.
    """
    short = [n for n, split in enumerate(source.axes) if split.is_split and split.size % split.grain]
    if not short or tuple(kept) != tuple(written):
        return None
    extents = source.part_shape
    slices_axes, source_axes = list(slices.axes), list(source.axes)
    for n in short:
        axis, split = slices.axes[n], source.axes[n]
        if (
            axis.extent == split.grain
            and axis.is_partition
            and _has_gaps(n, split.size % split.grain, kept, extents)
        ):
            slices_axes[n] = _prolonged(axis)
            source_axes[n] = replace(split, size=split.grain * split.parts)
    if source_axes == list(source.axes):
        return None
    return replace(slices, axes=tuple(slices_axes)), _laid_out(source, tuple(source_axes))


def _has_gaps(axis: int, held: int, digits: Sequence[Digit], extents: Sequence[int]) -> bool:
    """Return whether any other axis counts on where a short part, which holds so many elements of this one, lacks some.

    Of an axis in groups that is within the last group where the part ends inside one.
    """
    short = next(
        n
        for n, digit in enumerate(digits)
        if digit.axis == axis and (held % digit.group > 0 or not digit.is_inner)
    )
    return any(digit.axis != axis and extents[digit.axis] > 1 for digit in digits[short:])


@lru_cache(maxsize=4096)
def _prolonged(axis: AxisSlices) -> AxisSlices:
    """Return the slices of an axis that they divide evenly, the last one as long as the others."""
    parts = axis.first.size
    return AxisSlices(
        parts * axis.extent,
        axis.dims,
        axis.grid,
        axis.first,
        np.full(parts, axis.extent, np.int64),
        axis.step,
    )


@lru_cache(maxsize=4096)
def _laid_out(source: Layout, axes: tuple[object, ...]) -> Layout:
    """Return a layout with other axes, the same one each time: tables are kept by it."""
    return replace(source, axes=axes)
