"""Codelets of updates that are no single arithmetic operation: by any expression, and the last one of many.

Both address every element by itself. Updates of one place happen in the order of their lookups. Estimates are those of a loop
like PopLibs', which passes over updates of other parts; the code, which branches on no index, takes up to three times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcasted_iota, fori_loop, gather
from tiles.errors import InvalidGraph
from tiles.graph import (
    REDUCTION,
    Cell,
    Codelet,
    Cycles,
    Extents,
    OpForm,
    VertexCode,
    register,
)
from tiles.numerics.dtypes import is_float, itemsize
from tiles.poplibs.popops.expression import FUNCTIONS, Body, body_dtypes, evaluate_body
from tiles.poplibs.popops.fold_many import ReduceMany, combination_slots
from tiles.poplibs.popops.map import access_grains
from tiles.poplibs.popops.offsets import (
    OUTSIDE,
    UpdateDims,
    arranged,
    element_places,
    joined,
    looked_up,
    scatter,
    update_dims,
    update_places,
)
from tiles.poplibs.popops.updating_code import last_updates_code, place_bytes, updates_by_code
from tiles.target import Basis, Target

SOURCE = (
    "graphcore/poplibs lib/popops/codelets: MultiUpdateOp estimators; the expression as a fused one (ASSUMED)"
)


@register
@dataclass(frozen=True)
class UpdateBy(Codelet):
    """Update several tensors together by an expression of old elements and updates.

    Operands are the N tensors to start from, N updates, and the indices along each of ``axes``; the form is that of
    ``MultiUpdate``.

    Args:
      axes: updated axes of the results.
      windows: for each, the reduced dimension of the consecutive elements updated; -1 for a single one.
      body: expression of N old elements and N updates.
      outputs: index of the value that each result takes.
      dtypes: dtypes of the N tensors.
      is_unique: whether no two updates have the same place, as the program promises.

    Raises:
      InvalidGraph: an expression that does not give N values of these dtypes.
    """

    name: ClassVar[str] = "popops.UpdateBy"

    axes: tuple[int, ...]
    windows: tuple[int, ...]
    body: Body
    outputs: tuple[int, ...]
    dtypes: tuple[str, ...]
    is_unique: bool = False

    def __post_init__(self) -> None:
        """Check the expression against the dtypes."""
        known = body_dtypes(self.body, self.dtypes * 2)
        found = tuple(known[i] for i in self.outputs if 0 <= i < len(known))
        if found != self.dtypes:
            raise InvalidGraph("the updating expression gives other dtypes", expected=self.dtypes, got=found)

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """Those of the tensors."""
        return self.dtypes

    @property
    def label(self) -> str:
        """Vertex type: PopLibs has one for each operation; this one is named for its dtypes."""
        return f"popops::MultiUpdateBy<{','.join(self.dtypes)}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's parts after all updates: in rounds, each with at most one update of a place."""
        count = len(self.dtypes)
        parts, given, indices = operands[:count], operands[count : 2 * count], operands[2 * count :]
        dims = update_dims(cell.form, self.axes, self.windows, 2 * count)
        order = [*dims.leading, *dims.trailing]
        updates = [arranged(x, cell.form.operands[count + k].dims, order) for k, x in enumerate(given)]
        places, is_inside = _elements(cell, self.axes, self.windows, indices, dims)
        if self.is_unique:
            return tuple(self._round(cell, parts, places, updates, dims))
        turn = _turns(cell, places, is_inside, dims)

        def step(number: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            now = jnp.where((turn == number)[..., None], places, OUTSIDE)
            return tuple(self._round(cell, state, now, updates, dims))

        rounds = jnp.max(turn, initial=-1) + 1
        return fori_loop(0, rounds, step, tuple(parts))

    def _round(
        self, cell: Cell, parts: Sequence[Array], places: Array, updates: Sequence[Array], dims: UpdateDims
    ) -> list[Array]:
        """Update different places, all at once."""
        old = [_looked_up(part, places, dims) for part in parts]
        known = evaluate_body(self.body, [*old, *updates], _along(cell, (*dims.leading, *dims.trailing)))
        new = [jnp.broadcast_to(known[i], updates[0].shape) for i in self.outputs]
        return [scatter("set", part, places, x, dims.numbers) for part, x in zip(parts, new, strict=True)]

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the estimate of the updates in the part, and of looking at all of them."""
        form, count = extents.form, len(self.dtypes)
        inside, others, row = _shares(form, self.axes, extents)
        each = combination_slots(self.body, self.dtypes, np.maximum(row, 1), target)
        slots = 32 + -(-inside // target.workers_per_tile) * (11 * count + each) + others * 5
        return Cycles(target.worker_issue_interval_cycles * slots, Basis.ASSUMED, SOURCE)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code: one update after the other, of all tensors."""
        what = extents, self.axes, self.windows, self.body, self.outputs
        return updates_by_code(*what, target, self.label)

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Count the rows that take the updates of other parts."""
        rows = [place_bytes(extents, self.axes, self.windows, dtype) for dtype in self.dtypes]
        return np.asarray(np.sum(rows, axis=0))

    def flops(self, extents: Extents) -> np.ndarray:
        """Count the arithmetic of one update per element, on floats."""
        known = body_dtypes(self.body, self.dtypes * 2)
        each = sum(FUNCTIONS[name].is_arithmetic and is_float(known[a[0]]) for name, a, _ in self.body if a)
        return np.asarray(extents.operand_elements(len(self.dtypes))) * each

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole 64-bit accesses along the innermost dimension of the results."""
        return access_grains(form, self.dtypes, target)

    def may_overwrite(self, k: int) -> bool:
        """The tensors to start from are updated in place."""
        return k < len(self.dtypes)


@register
@dataclass(frozen=True)
class UpdateLast(Codelet):
    """Return, for every element, the number of the last lookup that sets it (-1 for none), and what it sets.

    Operands are the updates and the indices along each of ``axes``; the form is that of a fresh ``MultiUpdate``
    with two results. Lookups may be split: of two partials the later lookup holds.

    Args:
      axes: updated axes of the results.
      windows: for each, the reduced dimension of the consecutive elements updated; -1 for a single one.
      dtype: dtype of the updates.
    """

    name: ClassVar[str] = "popops.UpdateLast"

    axes: tuple[int, ...]
    windows: tuple[int, ...]
    dtype: str

    @property
    def label(self) -> str:
        """Vertex type: PopLibs' row update, which remembers the lookup."""
        return f"popops::MultiUpdateLast<{self.dtype}>"

    @property
    def keeps_partials(self) -> bool:
        """Partials are joined by the number of the lookup: no bit depends on where they were cut."""
        return False

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's winners and their values; zeros where there is none."""
        updates, *indices = operands
        form = cell.form
        shape = [cell.sizes[d] for d in form.results[0].dims]
        dims = update_dims(form, self.axes, self.windows, 1)
        updates = arranged(updates, form.operands[0].dims, [*dims.leading, *dims.trailing])
        places, _ = _elements(cell, self.axes, self.windows, indices, dims)
        number = jnp.broadcast_to(_numbers(cell, self.windows, dims.leading, updates.ndim), updates.shape)
        last = lax.scatter_max(jnp.full(shape, -1, jnp.int32), places, number, dims.numbers, mode="fill")
        value = jnp.zeros(shape, updates.dtype)
        return last, lax.scatter(value, places, updates, dims.numbers, mode="fill")

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the estimate of the updates in the part, and of looking at all of them."""
        inside, others, row = _shares(extents.form, self.axes, extents)
        words = -(-row * itemsize(self.dtype) // 4) + row
        slots = 32 + -(-inside // target.workers_per_tile) * (20 + 2 * words) + others * 5
        return Cycles(target.worker_issue_interval_cycles * slots, Basis.ASSUMED, SOURCE)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code: values and numbers are filled, then set by one lookup after the other."""
        return last_updates_code(extents, self.axes, self.windows, target, self.label)

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Count the rows that take the updates of other parts."""
        rows = [place_bytes(extents, self.axes, self.windows, dtype) for dtype in extents.result_dtypes]
        return np.asarray(np.sum(rows, axis=0))

    def combiner(self) -> str | None:
        """Partials are joined by their lookups' numbers."""
        return "last"

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the codelet itself."""
        return self, ("int32", self.dtype)

    def joining(self, shape: tuple[int, ...]) -> tuple[Codelet, OpForm]:
        """Return the fold of partials ``[P, ...]`` that keeps the greatest number and its value."""
        body: Body = (
            ("compare", (0, 2), (("direction", "GT"),)),
            ("select", (4, 0, 2), ()),
            ("select", (4, 1, 3), ()),
        )
        return ReduceMany(body, (5, 6), ("int32", self.dtype)).joining(shape)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Cut results and lookups; a window stays in one piece."""
        return d not in self.windows

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole 64-bit accesses along the innermost dimension of the results."""
        return access_grains(form, (self.dtype,), target)


def _elements(
    cell: Cell, axes: Sequence[int], windows: Sequence[int], indices: Sequence[Array], dims: UpdateDims
) -> tuple[Array, Array]:
    """Return the place of every updated element ``[*leading, axes]``, and whether it is in the cell's part."""
    places, is_whole = update_places(cell, axes, windows, indices)
    if is_whole:
        places = element_places(cell, axes, windows, places)
    vectors = joined(cell, places, dims.leading)
    wanted = cell.form.results[0].dims
    sizes = np.array([cell.sizes[wanted[axis]] for axis in axes], np.int32)
    is_inside = ((vectors >= 0) & (vectors < sizes)).all(-1)
    return jnp.where(is_inside[..., None], vectors, OUTSIDE), is_inside


def _along(cell: Cell, dims: Sequence[int]) -> Cell:
    """Return a cell of the domain dimensions along which updates lie, for expressions of them."""
    form = OpForm(tuple(cell.form.dims[d] for d in dims), (), ())
    sizes = tuple(cell.sizes[d] for d in dims)
    return Cell(form, sizes, tuple(cell.origin[d] for d in dims), tuple(cell.limits[d] for d in dims))


def _looked_up(part: Array, places: Array, dims: UpdateDims) -> Array:
    """Return the elements at places, zeros for places outside: ``[*leading, *trailing]``."""
    n = dims.numbers
    single = (*n.inserted_window_dims, *n.operand_batching_dims)
    sizes = tuple(1 if axis in single else size for axis, size in enumerate(part.shape))
    return gather(part, places, looked_up(n), sizes, mode="fill", fill_value=0)


def _turns(cell: Cell, places: Array, is_inside: Array, dims: UpdateDims) -> Array:
    """Return how many earlier updates have the same place ``[*leading]``; -1 for places outside."""
    wanted = cell.form.results[0].dims
    key = jnp.zeros(is_inside.shape, jnp.int64)
    for n, axis in enumerate(dims.numbers.scatter_dims_to_operand_dims):
        key = key * cell.sizes[wanted[axis]] + places[..., n]
    for position in dims.numbers.scatter_indices_batching_dims:
        key = key * is_inside.shape[position] + broadcasted_iota(jnp.int64, is_inside.shape, position)
    key = jnp.where(is_inside, key, -1).reshape(-1)
    order = jnp.arange(key.size, dtype=jnp.int32)
    found, where = lax.sort([key, order], num_keys=2)
    is_first = jnp.concatenate([jnp.ones(min(1, key.size), bool), found[1:] != found[:-1]])
    first = lax.cummax(jnp.where(is_first, order, 0))
    turn = jnp.where(found >= 0, order - first, -1)
    return jnp.zeros_like(order).at[where].set(turn, unique_indices=True).reshape(is_inside.shape)


def _numbers(cell: Cell, windows: Sequence[int], leading: Sequence[int], rank: int) -> Array:
    """Return the number of every lookup, its elements alike, with axes of size 1 behind up to ``rank``."""
    lookups = [d for d in leading if d not in windows and cell.form.dims[d].kind == REDUCTION]
    number, stride = jnp.zeros([1] * rank, jnp.int32), 1
    for d in reversed(lookups):
        shape = [1] * rank
        shape[leading.index(d)] = cell.sizes[d]
        index = lax.iota(jnp.int32, cell.sizes[d]) + cell.origin[d]
        number = number + index.reshape(shape) * np.int32(stride)
        stride *= cell.form.dims[d].size
    return number


def _shares(form: OpForm, axes: Sequence[int], extents: Extents) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how many updates are in a part, an even share of them, how many are not, and elements of one."""
    updated = [form.results[0].dims[axis] for axis in axes]
    row = extents.results // np.maximum(extents.product(updated), 1)
    whole = max(1, np.prod([form.dims[d].size for d in updated], dtype=np.int64))
    inside = np.ceil(extents.reduced * np.minimum(1.0, extents.product(updated) / whole))
    return inside, extents.reduced - inside, row
