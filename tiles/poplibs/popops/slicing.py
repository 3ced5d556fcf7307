"""The codelet of slices at runtime offsets: dynamic slices, row lookups and gathers.

The sliced axes of the table are reduced dimensions: a vertex takes what falls into its part of the table and
leaves zeros elsewhere, so that partials are words joined by ``or``, which is exact for every bit pattern.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jax import Array, lax

from tiles._jax_compat import gather
from tiles.errors import InvalidGraph
from tiles.graph import Cell, Codelet, Cycles, Extents, OpForm, VertexCode, register
from tiles.numerics.dtypes import is_float, itemsize, unsigned_of
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.block_slicing_code import AXES
from tiles.poplibs.popops.block_slicing_code import taken as block_taken
from tiles.poplibs.popops.map import access_grains
from tiles.poplibs.popops.offsets import (
    NO_WINDOW,
    arranged,
    axis_dims,
    clamped,
    counted,
    holds_all,
    joined,
    takes_rows,
    window_size,
)
from tiles.poplibs.popops.reduce import combine_codelet, folding_cycles
from tiles.poplibs.popops.slicing_code import offset_cycles, slice_code
from tiles.poplibs.popops.slicing_cycles import (
    SOURCE,
    STATED_BYTES,
    fill_cycles,
    multi_slice_cycles,
    slices_of_worker,
)
from tiles.target import Basis, Target


@register
@dataclass(frozen=True)
class MultiSlice(Codelet):
    """Take elements of a table at indices, moved to the nearest place where a whole window lies inside.

    Operand 0 is the table, its sliced axes along reduced dimensions, as are axes read at 0 alone; operand
    1 + n holds the indices along ``axes[n]``.

    Args:
      axes: sliced axes of the table.
      windows: for each, the parallel dimension of the consecutive elements taken; -1 for a single one.
      dtype: dtype of the table.
      as_words: whether the result is the bits of what was found, zero where nothing was.

    Raises:
      InvalidGraph: not one window per axis.
    """

    name: ClassVar[str] = "popops.MultiSlice"
    any_order: ClassVar[bool] = True
    looked_up: ClassVar[int | None] = 0

    axes: tuple[int, ...]
    windows: tuple[int, ...]
    dtype: str
    as_words: bool = False

    def __post_init__(self) -> None:
        """Check that axes and windows belong together."""
        if len(self.axes) != len(self.windows):
            raise InvalidGraph(f"{len(self.axes)} sliced axes, {len(self.windows)} windows")

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """That of the table."""
        return (self.dtype,)

    @property
    def label(self) -> str:
        """Vertex type as PopLibs spells it."""
        kind = "DynamicSlice1d" if all(w != NO_WINDOW for w in self.windows) else "MultiSlice"
        return f"popops::{kind}<{self.dtype}>"

    @property
    def keeps_partials(self) -> bool:
        """Words are joined by "or": no bit depends on where the table was cut."""
        return False

    @property
    def only_moves(self) -> bool:
        """Elements of the table, or their words."""
        return True

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the elements that fall into the cell's part of the table; zeros elsewhere."""
        table, *indices = operands
        if self.as_words:
            table = lax.bitcast_convert_type(table, unsigned_of(self.dtype))
        form, wanted = cell.form, cell.form.results[0].dims
        sliced = axis_dims(form.operands[0], self.axes)
        is_all = holds_all(cell, sliced)
        starts = [
            clamped(cell.align(1 + n, index), form.dims[d].size - window_size(form, w))
            for n, (index, d, w) in enumerate(zip(indices, sliced, self.windows, strict=True))
        ]
        reached = {*form.operands[0].dims, *self.windows}
        if is_all and reached.issuperset(wanted) and not any(m.dims for m in form.operands[1:]):
            return (self._slice(cell, table, starts, wanted),)
        places = [counted(cell, start, w) for start, w in zip(starts, self.windows, strict=True)]
        if not is_all:
            places = [place - cell.origin[d] for place, d in zip(places, sliced, strict=True)]
        return (self._gather(cell, table, places, is_all, wanted),)

    def _slice(self, cell: Cell, table: Array, starts: list[Array], wanted: tuple[int, ...]) -> Array:
        """Take one window at scalar offsets from a whole table."""
        offsets: list[Array | int] = [0] * table.ndim
        sizes, dims = list(table.shape), list(cell.form.operands[0].dims)
        for axis, start, window in zip(self.axes, starts, self.windows, strict=True):
            first = start.reshape(())
            offsets[axis] = first if window == NO_WINDOW else first + cell.origin[window]
            sizes[axis] = 1 if window == NO_WINDOW else cell.sizes[window]
            dims[axis] = window
        found = lax.dynamic_slice(
            table,
            [np.int32(x) if isinstance(x, int) else x for x in offsets],
            sizes,
            allow_negative_indices=False,
        )
        gone = [axis for axis, d in enumerate(dims) if d not in wanted]
        kept = [d for axis, d in enumerate(dims) if axis not in gone]
        return arranged(lax.squeeze(found, gone), kept, wanted)

    def _gather(
        self, cell: Cell, table: Array, places: list[Array], is_all: bool, wanted: tuple[int, ...]
    ) -> Array:
        """Take one element of every place, with all that lies along the table's other axes."""
        form = cell.form
        index_dims = {d for m in form.operands[1:] for d in m.dims} | set(self.windows) - {NO_WINDOW}
        leading = [d for d in wanted if d in index_dims]
        axis_of = {d: axis for axis, d in enumerate(form.operands[0].dims)}
        batch = sorted((d for d in leading if d in axis_of), key=axis_of.__getitem__)
        offset = sorted((d for d in wanted if d not in index_dims), key=axis_of.__getitem__)
        numbers = lax.GatherDimensionNumbers(
            offset_dims=tuple(range(len(leading), len(leading) + len(offset))),
            collapsed_slice_dims=tuple(axis for d, axis in axis_of.items() if form.dims[d].is_reduced),
            start_index_map=self.axes,
            operand_batching_dims=tuple(axis_of[d] for d in batch),
            start_indices_batching_dims=tuple(leading.index(d) for d in batch),
        )
        sizes = tuple(n if axis in map(axis_of.get, offset) else 1 for axis, n in enumerate(table.shape))
        found = gather(
            table,
            joined(cell, places, leading),
            numbers,
            sizes,
            mode="promise_in_bounds" if is_all else "fill",
            fill_value=None if is_all else 0,
        )
        return arranged(found, [*leading, *offset], wanted)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return PopLibs' estimate of a slice, see ``offset_cycles``, or of lookups.

        A part of a table leaves zeros where it has nothing: before lookups, the result is filled. Of several dimensions
        PopLibs slices one after the other, and looks up in one: lookups along several are taken to cost what they would
        along one of as many places (ASSUMED). Their code skips no index, and takes longer.
        """
        form = extents.form
        sliced = axis_dims(form.operands[0], self.axes)
        looked_up = {d for m in form.operands[1:] for d in m.dims}
        windows = set(self.windows) - {NO_WINDOW}
        places, taken = extents.product(sliced), extents.product(sorted(windows))
        share = places / max(1, np.prod([form.dims[d].size for d in sliced], dtype=np.int64))
        zeros = np.where(share < 1, fill_cycles(extents.results, self.dtype, target), 0)
        if not looked_up and len(windows) == len(self.axes):
            row, is_whole = extents.results // np.maximum(taken, 1), (share == 1) & (len(self.axes) == 1)
            found, is_block = np.minimum(taken, places), len(self.axes) == AXES
            if is_block:
                found, columns = block_taken(extents, sliced, self.windows)
                row = row * columns
            how = (self.tile_code, is_whole, row, found, zeros, self.dtype)
            return offset_cycles(*how, extents, target, is_block)
        lookups = extents.product(sorted(looked_up - windows))
        row = extents.results // np.maximum(lookups, 1)
        sharers = np.where(lookups == 1, target.workers_per_tile, 1)
        inside, outside = slices_of_worker(lookups, share, target)
        value = multi_slice_cycles(row, inside, outside, self.dtype, target, sharers) + zeros
        is_stated = takes_rows(form, self.windows) and itemsize(self.dtype) <= STATED_BYTES
        return Cycles(value, Basis.DOCUMENTED if is_stated else Basis.ASSUMED, SOURCE)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of a slice along one axis or two, or of lookups along any."""
        return slice_code(extents, self.axes, self.windows, self.dtype, target, self.label)

    def combiner(self) -> str | None:
        """Join the words of partials: at most one is not zero."""
        return "or"

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the slice that leaves words, or elements that are integers and can be joined as they are."""
        if not is_float(self.dtype):
            return self, (self.dtype,)
        return dataclasses.replace(self, as_words=True), (unsigned_of(self.dtype).name,)

    def joining_cycles(self, results: Amount, partials: Amount, target: Target) -> Any:
        """Return the cycles of joining words."""
        (words,) = self.partial()[1]
        return folding_cycles(combine_codelet("or", words, words), results, partials, target)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole 64-bit accesses along the innermost dimension of the result."""
        return access_grains(form, (self.dtype,), target)
