"""The codelet of updates at runtime offsets: dynamic update slices, row updates and scatters.

The updated tensor's axes are parallel and may be computed in place: a vertex reads all updates that could
concern it and applies those that fall into its part, in order. Without a tensor to start from it starts from
the operation's neutral element, and the lookups may be split too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import Cell, Codelet, Cycles, Extents, OpForm, VertexCode, code_cycles, register
from tiles.numerics.dtypes import is_float, itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.block_slicing_code import AXES
from tiles.poplibs.popops.block_slicing_code import taken as block_taken
from tiles.poplibs.popops.map import access_grains
from tiles.poplibs.popops.offsets import (
    NO_WINDOW,
    SCATTERS,
    arranged,
    joined,
    scatter,
    takes_rows,
    update_dims,
    update_places,
)
from tiles.poplibs.popops.reduce import combine_codelet, folding_cycles, neutral_element
from tiles.poplibs.popops.slicing_code import offset_cycles, update_code
from tiles.poplibs.popops.slicing_cycles import (
    SOURCE,
    STATED_BYTES,
    fill_cycles,
    multi_slice_cycles,
    multi_update_cycles,
    updates_of_worker,
)
from tiles.poplibs.popops.updating_code import place_bytes, updates_code
from tiles.target import Basis, Target

_UPDATE_DTYPES = ("float32", "float16", "int32", "uint32")
_UPDATE_OPERATIONS = ("add", "sub", "max")
"""Of PopLibs' ``MultiUpdateOp``: ADD and MAX. ADD multiplies every update by a factor (``multiUpdateAdd``), which is -1 to subtract."""


@register
@dataclass(frozen=True)
class MultiUpdate(Codelet):
    """Apply updates to a tensor at indices, one after the other.

    Operands are the tensor to start from (unless ``is_fresh``), the updates, and the indices along each of
    ``axes``. The form's parallel dimensions are the result's axes in order.

    Args:
      axes: updated axes of the result.
      windows: for each, the reduced dimension of the consecutive elements updated; -1 for a single one.
      operation: set, add, sub, mul, max, min.
      dtype: dtype of the result.
      is_clamped: whether an index outside moves to the nearest place inside; else its update is left out.
      is_fresh: whether to start from the neutral element instead of an operand.

    Raises:
      InvalidGraph: an unknown operation, not one window per axis, or a fresh start of ``set``.
    """

    name: ClassVar[str] = "popops.MultiUpdate"
    any_order: ClassVar[bool] = True
    replaces_elements: ClassVar[bool] = True

    axes: tuple[int, ...]
    windows: tuple[int, ...]
    operation: str
    dtype: str
    is_clamped: bool = False
    is_fresh: bool = False

    def __post_init__(self) -> None:
        """Check the operation, and that axes and windows belong together."""
        if self.operation not in SCATTERS:
            raise InvalidGraph(
                f"no update {self.operation!r}", expected=", ".join(SCATTERS), got=self.operation
            )
        if len(self.axes) != len(self.windows):
            raise InvalidGraph(f"{len(self.axes)} updated axes, {len(self.windows)} windows")
        if self.is_fresh and self.operation in ("set", "sub"):
            raise InvalidGraph(
                f"{self.operation} has no neutral element to start from; see UpdateLast, or add"
            )

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """That of what is updated."""
        return (self.dtype,)

    @property
    def label(self) -> str:
        """Vertex type as PopLibs spells it."""
        if self.operation != "set":
            return f"popops::MultiUpdateOp<{self.operation.upper()},{self.dtype}>"
        kind = "DynamicUpdateSlice1d" if self.is_clamped else "MultiUpdate"
        return f"popops::{kind}<{self.dtype}>"

    @property
    def keeps_partials(self) -> bool:
        """Partials of updates are nearly all zeros: 61 of a million elements each for 100,000 updates of as many."""
        return False

    @property
    def only_moves(self) -> bool:
        """Elements that are set were in one operand or in the other."""
        return self.operation == "set"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's part after all updates."""
        form, wanted = cell.form, cell.form.results[0].dims
        given = list(operands)
        if self.is_fresh:
            part = jnp.full([cell.sizes[d] for d in wanted], neutral_element(self.operation, self.dtype))
        else:
            part = given.pop(0)
        updates, *indices = given
        places, is_whole = update_places(cell, self.axes, self.windows, indices, self.is_clamped)
        base = len(operands) - len(indices)
        pieces = {w for w in self.windows if w != NO_WINDOW} if is_whole else set[int]()
        dims = update_dims(form, self.axes, self.windows, base, pieces)
        is_bool = self.dtype == "bool" and self.operation != "set"
        if is_bool:
            part, updates = part.astype(jnp.uint8), updates.astype(jnp.uint8)
        updates = arranged(updates, form.operands[base - 1].dims, [*dims.leading, *dims.trailing])
        are_inside = self.is_clamped and is_whole and cell.reduced_mask() is None
        places = joined(cell, places, dims.leading)
        result = scatter(self.operation, part, places, updates, dims.numbers, are_inside=are_inside)
        return (result.astype(bool) if is_bool else result,)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return PopLibs' estimate of an update at one offset, see ``offset_cycles``, or of many: workers own places."""
        form, size = extents.form, itemsize(self.dtype)
        updated = [form.results[0].dims[axis] for axis in self.axes]
        places, updates = extents.product(updated), extents.reduced
        row = extents.results // np.maximum(places, 1)
        whole = max(1, int(np.prod([form.dims[d].size for d in updated], dtype=np.int64)))
        inside, outside = updates_of_worker(updates, places, whole, target)
        is_lookup = takes_rows(form, self.windows)
        if self.operation != "set":
            value = multi_update_cycles(row, inside, outside, self.dtype, target)
            if self.is_fresh:
                value = value + fill_cycles(extents.results, self.dtype, target)
            is_stated = is_lookup and self.operation in _UPDATE_OPERATIONS and self.dtype in _UPDATE_DTYPES
            return self._stated(value, is_stated, extents, target)
        windows = extents.product([w for w in self.windows if w != NO_WINDOW])
        if not (self.is_clamped and bool(np.all(updates == windows))):
            sharers = np.where(updates == 1, target.workers_per_tile, 1)
            value = multi_slice_cycles(row, inside, outside, self.dtype, target, sharers, frame=29)
            is_stated = is_lookup and size <= STATED_BYTES
            return self._stated(value, is_stated, extents, target)
        is_whole = (places == whole) & (len(self.axes) == 1)
        taken = np.minimum(updates, places)
        if len(self.axes) == AXES:
            taken, columns = block_taken(extents, updated, self.windows)
            row = row * columns
        return offset_cycles(self.tile_code, is_whole, row, taken, 0, self.dtype, extents, target)

    def _stated(self, value: Any, is_stated: bool, extents: Extents, target: Target) -> Cycles:
        """Return what PopLibs states; of what it does not, the cycles of the code, or as if it were stated.

        Along several axes updates are taken to cost what they would along one of as many places: PopLibs' loop passes
        over what lies in other parts, and our code, which branches on no index, takes up to three times as long.
        """
        if is_stated:
            return Cycles(value, Basis.DOCUMENTED, SOURCE)
        if len(self.axes) > 1:
            return Cycles(value, Basis.ASSUMED, SOURCE)
        try:
            return code_cycles(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            return Cycles(value, Basis.ASSUMED, SOURCE)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of an update at one offset, or of updates at many."""
        if self._is_slice(extents.form):
            return update_code(extents, self.axes, self.windows, self.dtype, target, self.label)
        what = extents, self.axes, self.windows, self.operation
        return updates_code(*what, target, self.label, is_clamped=self.is_clamped, is_fresh=self.is_fresh)

    def _is_slice(self, form: OpForm) -> bool:
        """Return whether there is one offset, as of a dynamic update slice."""
        base = len(form.operands) - len(self.axes)
        return self.operation == "set" and self.is_clamped and not any(m.dims for m in form.operands[base:])

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Count the row that takes the updates of other parts."""
        if self._is_slice(extents.form):
            return np.zeros_like(extents.points)
        return place_bytes(extents, self.axes, self.windows, self.dtype)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count one operation per element updated, on floats."""
        if self.operation == "set" or not is_float(self.dtype):
            return np.zeros_like(extents.points)
        return np.asarray(extents.operand_elements(0 if self.is_fresh else 1))

    def combiner(self) -> str | None:
        """Combine partials by the operation itself, where they start from its neutral element."""
        on_booleans = {"add": "or", "max": "or", "mul": "and", "min": "and"}
        operation = on_booleans[self.operation] if self.dtype == "bool" and self.is_fresh else self.operation
        return operation if self.is_fresh else None

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the codelet itself: partials are sums of fewer updates."""
        return self, (self.dtype,)

    def joining_cycles(self, results: Amount, partials: Amount, target: Target) -> Any:
        """Return the cycles of the reduction that folds partials."""
        folding = combine_codelet(self.combiner() or "add", self.dtype, self.dtype)
        return folding_cycles(folding, results, partials, target)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Cut the result, and lookups where partials can be combined; a window stays in one piece."""
        return d not in self.windows and super().may_split(form, d)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole 64-bit accesses along the innermost dimension of the result."""
        return access_grains(form, (self.dtype,), target)

    def may_overwrite(self, k: int) -> bool:
        """The tensor to start from is updated in place."""
        return k == 0 and not self.is_fresh
