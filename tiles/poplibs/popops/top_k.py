"""The first elements of rows in a stable order: what a sort of the row would begin with, and where it was.

A row may be cut over tiles: each selects from its part, then survivors of parts are joined, k of every join, in as
many stages as is cheapest. Partials carry positions, so that equal elements keep their order; where a part has fewer
than k elements the rest of its partial is at position ``NOWHERE``, which comes last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles.cached import cached_property
from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import (
    REDUCTION,
    Affine,
    Cell,
    Codelet,
    Composite,
    Cycles,
    Dim,
    Extents,
    Graph,
    IndexMap,
    OpForm,
    Plan,
    Site,
    Tensor,
    VertexCode,
    Vertices,
    along,
    code_cycles,
    code_or_formula,
    identity_map,
    register,
    site_of,
    unsplit_plan,
)
from tiles.graph import Sequence as Program
from tiles.numerics.dtypes import itemsize
from tiles.numerics.greatest import greatest
from tiles.numerics.shared import Amount
from tiles.numerics.total_order import as_moved, from_moved, padded
from tiles.plan import combining_cycles
from tiles.poplibs.forms import map_form
from tiles.poplibs.popops import elementwise_cycles
from tiles.poplibs.popops.elementwise import iota
from tiles.poplibs.popops.map import Map
from tiles.poplibs.popops.merging_code import MergedRows, merging_code, sorting_bytes, split_rows
from tiles.poplibs.popops.merging_levels import NOWHERE, POSITION, Merging
from tiles.poplibs.popops.packing_code import unpacked_bytes
from tiles.poplibs.popops.sort_order import Key, Order
from tiles.poplibs.popops.sorting import sort
from tiles.poplibs.popops.sorting_stages import parts_of_rows
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

_WORD_BYTES = 4
SOURCE = "graphcore/poplibs lib/popops/codelets: HeapSortVertex estimators, a heap of k elements (ASSUMED)"
MERGE_SOURCE = "sorted partials merged two by two, a comparison and a move for each element taken (ASSUMED)"


@dataclass(frozen=True)
class _Selection(Codelet):
    """What selecting from rows and joining selections have in common.

    Args:
      k: elements selected.
      dimension: the axis of the operands along which they are selected.
      dtype: dtype of the elements.
      is_descending: whether greater elements come first.
      is_total: whether floats are ordered by sign and bits; else zeros are equal and NaN is greatest.
    """

    k: int
    dimension: int
    dtype: str
    is_descending: bool = True
    is_total: bool = True

    @cached_property
    def order(self) -> Order:
        """How elements compare."""
        return Order((self.dtype,), ((0, self.is_descending, self.is_total),))

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """That of the elements."""
        return (self.dtype,)

    @property
    def label(self) -> str:
        """Vertex type: PopLibs selects with vertices of its own kind, see ``popops::TopK``."""
        kind = self.name.partition(".")[2]
        return f"popops::{kind}<{elementwise_cycles.cpp_name(self.dtype)},{POSITION}>"

    def combiner(self) -> str | None:
        """Partials are joined by selecting again."""
        return "top_k"

    def joining(self, shape: tuple[int, ...]) -> tuple[Codelet, OpForm]:
        """Return what selects among partials ``[P, ...]`` and its form."""
        codelet = TopKJoin(self.k, self.dimension, self.dtype, self.is_descending, self.is_total)
        return codelet, _form(shape, (0, self.dimension + 1), self.dimension, self.k, 2)

    def buffered_bytes(self, elements: Amount, extents: Extents, target: Target) -> np.ndarray:
        """Return what a vertex keeps of a row of so many elements: two copies with positions, or a heap for every worker.

        Narrow elements are words meanwhile.
        """
        heap = self.k * (itemsize(self.dtype) + itemsize(POSITION)) * target.workers_per_tile
        words = unpacked_bytes((self.dtype,), extents.operand_elements(0), extents.results)
        need = 2 * (_WORD_BYTES + itemsize(POSITION)) * np.asarray(elements, np.int64) + words
        need = need if itemsize(self.dtype) <= _WORD_BYTES else np.int64(0)
        return np.broadcast_to(np.maximum(need, heap), extents.points.shape)

    @property
    def merge_slots(self) -> int:
        """A worker's slots to take the first k of two sorted lists: for each a comparison, and its elements moved."""
        return self.k * (self.order.comparison_slots + 8)

    def merging_slots(self, partials: Amount, rows: Amount, target: Target) -> Amount:
        """Return the slots of a tile that merges the partials of ``rows`` rows, which are sorted, two by two.

        Workers take a row each, or pairs of one row's partials: P - 1 merges, of which as many follow one another as
        P has levels. That takes no longer than both terms together (Brent, J. ACM 21, 1974).
        """
        workers, merges = target.workers_per_tile, np.maximum(partials - 1, 0)
        levels = np.ceil(np.log2(np.maximum(partials, 1)))
        turns = np.minimum(np.ceil(rows / workers) * merges, rows * (np.ceil(merges / workers) + levels))
        return 30 + turns.astype(np.int64) * self.merge_slots

    def joining_cycles(self, results: Amount, partials: Amount, target: Target) -> Amount:
        """Return the cycles of merging sorted partials; k of a row stay together."""
        rows = np.ceil(np.asarray(results) / max(1, self.k)).astype(np.int64)
        return self.merging_cycles(np.asarray(partials, np.int64), rows, target).value

    def merging_cycles(self, partials: Amount, rows: Amount, target: Target) -> Cycles:
        """Return the cycles of merging the partials of ``rows`` rows: of the code, else as ``merging_slots`` says."""
        try:
            return code_cycles(self.merging_parts(partials, rows, target))
        except (NoTileCode, OutOfRegisters):
            slots = self.merging_slots(np.asarray(partials), np.asarray(rows), target)
            return Cycles(target.worker_issue_interval_cycles * slots, Basis.ASSUMED, MERGE_SOURCE)

    def merging_parts(self, partials: Amount, rows: Amount, target: Target) -> tuple[VertexCode, ...]:
        """Return the code that merges the partials of ``rows`` rows, which are sorted.

        Raises:
          NoTileCode: elements that fit no word, or nothing that is wanted.
          OutOfRegisters: too few registers, even with values spilled.
        """
        what = Merging(self.order, size=NOWHERE, run=_wanted(self.k), kept=self.k)

        def rows_of(sizes: tuple[int, ...], operands: Sequence[np.ndarray]) -> list[np.ndarray]:
            moved = [np.moveaxis(x, (1, self.dimension + 2), (-2, -1)) for x in operands]
            return [x.reshape(-1, x.shape[-2] * x.shape[-1]) for x in moved]

        def results_of(sizes: tuple[int, ...], found: list[np.ndarray]) -> list[np.ndarray]:
            kept = [n for d, n in enumerate(sizes[1:-1]) if d != self.dimension]
            return [split_rows(x, kept, self.dimension) for x in found]

        def n_of(sizes: tuple[int, ...]) -> int:
            return sizes[0] * self.k

        kernel = MergedRows(what, rows_of, results_of, n_of, target.workers_per_tile)
        return merging_code(what, partials * self.k, rows, kernel, target, self.label)


@register
@dataclass(frozen=True)
class TopK(_Selection):
    """Select from rows: the operand's dimensions with ``dimension`` reduced, then one of k places."""

    name: ClassVar[str] = "popops.TopK"

    @property
    def keeps_partials(self) -> bool:
        """Survivors are selected again: no bit depends on where rows were cut."""
        return False

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the first elements of the cell's part and their positions in the row."""
        x = jnp.moveaxis(operands[0], self.dimension, -1)
        size, limit = x.shape[-1], cell.limits[self.dimension]
        ((number, is_descending, is_total),) = self.order.keys
        (rank,) = Order(self.order.dtypes, ((number, not is_descending, is_total),)).columns([x])
        if limit is not None:
            rank = jnp.where(lax.iota(np.int32, size) < limit, rank, _least(rank.dtype))
        _, places = greatest(rank, min(self.k, size))
        values = from_moved(jnp.take_along_axis(as_moved(x), places, -1, mode="promise_in_bounds"), x)
        positions = places + jnp.asarray(cell.origin[self.dimension], np.int32)
        if limit is not None:
            positions = jnp.where(places < limit, positions, NOWHERE)
        missing = [(0, 0, 0)] * (x.ndim - 1) + [(0, max(0, self.k - size), 0)]
        values = padded(values, jnp.zeros((), values.dtype), missing)
        positions = lax.pad(positions, np.int32(NOWHERE), missing)
        return tuple(jnp.moveaxis(y, -1, self.dimension) for y in (values, positions))

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the cycles of the code: rows are sorted by merges that keep k elements. Where there is none, of a heap.

        A worker keeps the k best it has seen in a heap, of which the worst is on top: in the worst case every
        element sinks into it, and in the end k are taken out, each as in a heap sort of k. Workers take a row
        each, or parts of one, whose survivors are then merged in turn.
        """
        n, rows, workers = *self._rows(extents), target.workers_per_tile
        whole = -(-rows // workers) * _heap_slots(n, self.k)
        shared = rows * (_heap_slots(-(-n // workers), self.k) + (workers - 1) * self.merge_slots)
        slots = 30 + np.minimum(whole, shared)
        estimated = Cycles(target.worker_issue_interval_cycles * slots, Basis.ASSUMED, SOURCE)
        try:
            return code_or_formula(self.tile_code(extents, target), estimated)
        except (NoTileCode, OutOfRegisters):
            return estimated

    def _rows(self, extents: Extents) -> tuple[np.ndarray, np.ndarray]:
        """Return the elements of a row, and the rows of a vertex."""
        n = np.asarray(extents.sizes[self.dimension], np.int64)
        return n, extents.operand_elements(0) // np.maximum(n, 1)

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Count what a row is sorted in."""
        n, rows = self._rows(extents)
        records = sorting_bytes(Merging(self.order, kept=self.k, counts=True), n, rows)
        return np.maximum(self.buffered_bytes(n, extents, target), records)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of selecting from rows, or from their parts."""
        n, rows = self._rows(extents)

        def rows_of(sizes: tuple[int, ...], operands: Sequence[np.ndarray]) -> list[np.ndarray]:
            return [np.moveaxis(operands[0], 1 + self.dimension, -1).reshape(-1, sizes[self.dimension])]

        def results_of(sizes: tuple[int, ...], found: list[np.ndarray]) -> list[np.ndarray]:
            kept = [n for d, n in enumerate(sizes[:-1]) if d != self.dimension]
            return [split_rows(x, kept, self.dimension) for x in found]

        def n_of(sizes: tuple[int, ...]) -> int:
            return sizes[self.dimension]

        what = Merging(self.order, kept=_wanted(self.k), counts=True)
        kernel = MergedRows(what, rows_of, results_of, n_of, target.workers_per_tile, self.dimension)
        return merging_code(what, n, rows, kernel, target, self.label)

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the codelet itself."""
        return self, (self.dtype, POSITION)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Cut rows, and their elements; k stays in one piece."""
        return d != len(form.dims) - 1


@register
@dataclass(frozen=True)
class TopKJoin(_Selection):
    """Select among partials of ``TopK``: values and positions ``[P, ...]``, the first and the selected axis reduced."""

    name: ClassVar[str] = "popops.TopKJoin"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the first of all partials' elements, equal ones by position."""
        values, positions = (jnp.moveaxis(x, (0, self.dimension + 1), (-2, -1)) for x in operands)
        if cell.limits[0] is not None:
            is_real = (lax.iota(np.int32, positions.shape[-2]) < cell.limits[0])[:, None]
            positions = jnp.where(is_real, positions, NOWHERE)
        values, positions = (x.reshape(*x.shape[:-2], -1) for x in (values, positions))
        is_missing = positions == NOWHERE
        (column,) = self.order.columns([values])
        found = lax.sort([is_missing, column, positions, as_moved(values)], -1, False, 3)
        selected = (lax.slice_in_dim(x, 0, self.k, axis=-1) for x in (found[3], found[2]))
        return tuple(
            jnp.moveaxis(from_moved(x, like), -1, self.dimension)
            for x, like in zip(selected, (values, positions), strict=True)
        )

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the duration of merging the partials of every row; see ``merging_cycles``."""
        return self.merging_cycles(extents.sizes[0], self._rows(extents), target)

    def _rows(self, extents: Extents) -> np.ndarray:
        n = np.maximum(extents.product((0, self.dimension + 1)), 1)
        return extents.operand_elements(0) // n

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of merging partials."""
        return self.merging_parts(np.asarray(extents.sizes[0], np.int64), self._rows(extents), target)

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Count what the partials of a row are merged in."""
        return self.buffered_bytes(np.asarray(extents.sizes[0]) * self.k, extents, target)

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the codelet itself."""
        return self, (self.dtype, POSITION)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Cut partials and rows; k stays in one piece."""
        return d not in (self.dimension + 1, len(form.dims) - 1)


def _wanted(k: int) -> int:
    """Return k.

    Raises:
      NoTileCode: it is 0.
    """
    if not k:
        raise NoTileCode("a selection of no elements")
    return k


def _heap_slots(n: np.ndarray, k: int) -> np.ndarray:
    """Return one worker's slots: ``n`` elements through a heap of k, by the terms of PopLibs' heap sort.

    That sorts n in ``8 * (19 * n * log n + 6 * n + 2)`` cycles, 16 with values beside the keys: n elements sink in
    and n are taken out. Six cycles, a worker's turn, are a slot.
    """
    kept = np.maximum(np.minimum(n, k), 1)
    levels = np.maximum(np.floor(np.log2(kept)).astype(np.int64), 1)
    return 16 * (19 * (n + kept) * levels // 2 + 6 * n + 2) // 6


def _least(dtype: np.dtype) -> Amount:
    return False if dtype == np.bool_ else np.array(np.iinfo(dtype).min, dtype)


def _form(shape: Sequence[int], reduced: Sequence[int], dimension: int, k: int, operands: int) -> OpForm:
    """Return a form that reduces dimensions of operands of one shape and has k places where ``dimension`` was."""
    last = len(shape)
    dims = tuple(Dim(f"d{d}", n, REDUCTION) if d in reduced else Dim(f"d{d}", n) for d, n in enumerate(shape))
    kept: list[Affine] = [along(d) for d in range(last) if d not in reduced]
    kept.insert(dimension, along(last))
    results = (IndexMap(tuple(kept)),) * 2
    return OpForm((*dims, Dim("k", k)), (identity_map(last),) * operands, results)


def top_k(
    where: Graph | Site,
    x: Tensor,
    k: int,
    dimension: int = -1,
    is_descending: bool = True,
    is_total: bool = True,
    *,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the first k elements along a dimension and their positions (int32); see ``TopK``.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      k: how many.
      dimension: along which.
      is_descending: whether greater elements come first.
      is_total: see ``TopK``.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: a dimension that does not exist, or more elements than it has.
    """
    site = site_of(where, "top_k")
    rank = len(x.shape)
    if not -rank <= dimension < rank or not 0 <= k <= x.shape[dimension]:
        raise InvalidGraph(f"cannot take {k} elements along dimension {dimension} of {x.shape}")
    dimension %= rank
    codelet = TopK(k, dimension, x.dtype, is_descending, is_total)
    form = _form(x.shape, (dimension,), dimension, k, 1)
    key: Key = (0, is_descending, is_total)
    pair = Order((x.dtype, POSITION), (key,))
    if plan is None:
        selecting = _least_cycles(codelet, form, site.graph.target)
        parts, sorting = parts_of_rows(pair, x.shape, dimension, site.graph.target, below=selecting)
        if parts > 1 and sorting < selecting:
            return _by_sorting(site, x, codelet, form)
    values, positions = place(site, codelet, form, [x], (x.dtype, POSITION), plan=plan)
    return values, positions


def _least_cycles(codelet: TopK, form: OpForm, target: Target) -> float:
    """Return about how long selection takes: rows spread over tiles, and each cut into so many parts as is best."""
    n, bytes_each = form.dims[codelet.dimension].size, itemsize(codelet.dtype) + itemsize(POSITION)
    rows = math.prod(dim.size for dim in form.dims[:-1]) // max(1, n)
    levels = np.arange(target.num_tiles.bit_length())
    parts = 1 << levels[(1 << levels) <= max(1, n)]
    held = -(-rows // np.maximum(target.num_tiles // parts, 1))  # rows, of which a tile holds a part each
    sizes = [np.ones((), np.int64)] * len(form.dims)
    sizes[codelet.dimension], sizes[-1] = -(-n // parts), np.asarray(codelet.k)
    other = next((d for d in range(len(form.dims) - 1) if d != codelet.dimension), None)
    if other is not None:
        sizes[other] = held
    extents = Extents(form, tuple(sizes), (codelet.dtype,), (codelet.dtype, POSITION))
    selecting = np.asarray(codelet.cycles(extents, target).value, np.float64)
    joining = combining_cycles(codelet, held * codelet.k, bytes_each, parts, target)
    return float(np.min(selecting + np.where(parts > 1, joining, 0)))


def _by_sorting(
    site: Site,
    x: Tensor,
    codelet: TopK,
    form: OpForm,
) -> tuple[Tensor, Tensor]:
    """Sort long rows over their tiles and take the beginning, as one composite that does what ``codelet`` does."""
    body = Program()
    inside = replace(site, sequence=body)
    d = codelet.dimension
    counter = iota(inside.at("positions"), x.shape, POSITION, d)
    found = sort(inside, [x, counter], d, codelet.order.keys)
    shape = tuple(codelet.k if axis == d else n for axis, n in enumerate(x.shape))
    first = map_form(shape, [identity_map(len(shape))] * 2, 2)
    dtypes = (x.dtype, POSITION)
    moving = Map((), (0, 1), dtypes, dtypes)
    values, positions = place(inside.at("first"), moving, first, found, dtypes)
    names = (x.name,), (values.name, positions.name)
    one = Vertices(site.name, codelet, form, unsplit_plan(form), *names, site.location)
    site.program.add(Composite(body, one))
    return values, positions
