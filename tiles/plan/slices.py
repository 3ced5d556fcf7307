"""What each vertex of a planned operation reads: slices derived from the indexing maps.

Slices are kept per axis: for every grid coordinate along the axis' domain dimensions a first index, a
step and a count. A cell's slice is the product of its axes, so nothing is enumerated per element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tiles.cached import cached_property
from tiles.errors import InvalidPlan, Unsupported
from tiles.graph import ROW_MAJOR, Affine, Arrangement, AxisSplit, Layout, OpForm, Plan, whole
from tiles.graph.layout import align_up, ceil_div
from tiles.numerics.dtypes import WORD_BYTES
from tiles.numerics.shared import all_read_only, read_only
from tiles.plan.coverage import Counted, Coverage, Stretches, Strided

MAX_COUNTED = 1 << 28
"""Elements of an axis, or of all slices of one, that tables are made of: 2 GiB of numbers."""
OUTSIDE = -1
UNUSED = -2
SHORT = 1 << 14
"""Elements of an axis up to which what slices read is counted one by one; of longer ones stretches between slices' ends are."""


@dataclass(frozen=True, eq=False)
class AxisSlices:
    """The slices of one operand axis; equal to itself alone, so that it may be a key of tables derived from it.

    Args:
      size: elements of the tensor along the axis.
      dims: grid dimensions the axis varies with (indices into the domain).
      grid: parts along those dimensions.
      first: index of the first element of each slice, int64 ``[prod(grid)]``; may lie outside the tensor.
      count: elements of each slice, int64 ``[prod(grid)]``.
      step: distance between neighbouring elements, never 0.
    """

    size: int
    dims: tuple[int, ...]
    grid: tuple[int, ...]
    first: np.ndarray
    count: np.ndarray
    step: int

    def __post_init__(self) -> None:
        all_read_only((self.first, self.count))

    @cached_property
    def extent(self) -> int:
        """The longest slice."""
        return int(self.count.max(initial=0))

    @cached_property
    def inside(self) -> tuple[np.ndarray, np.ndarray]:
        """First and last slice position (inclusive) inside the tensor; last < first when none is."""
        if self.step > 0:
            lo = -(self.first // self.step)
            hi = (self.size - 1 - self.first) // self.step
        else:
            lo = -((self.size - 1 - self.first) // -self.step)
            hi = self.first // -self.step
        return read_only(np.maximum(lo, 0)), read_only(np.minimum(hi, self.count - 1))

    @cached_property
    def num_inside(self) -> np.ndarray:
        """Elements of each slice that lie inside the tensor."""
        lo, hi = self.inside
        return read_only(np.maximum(hi - lo + 1, 0))

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest (inclusive) tensor index inside each slice; largest < smallest if none."""
        lo, hi = self.inside
        a, b = self.first + lo * self.step, self.first + hi * self.step
        empty = hi < lo
        low, high = np.minimum(a, b), np.maximum(a, b)
        return read_only(np.where(empty, 0, low)), read_only(np.where(empty, -1, high))

    def _require_countable(self, elements: int) -> None:
        """Raise Unsupported where a table of so many elements would take the host's memory."""
        if elements > MAX_COUNTED:
            raise Unsupported(
                f"an axis of {self.size:,} elements, read in {self.first.size:,} slices of up to {self.extent:,}, is too long "
                "to plan for",
                expected=f"at most {MAX_COUNTED:,} elements in all",
                try_="smaller arrays, padding or dilations",
            )

    @cached_property
    def index(self) -> np.ndarray:
        """Tensor index of every slice position, int64 ``[prod(grid), extent]``.

        ``OUTSIDE`` marks positions outside the tensor (the fill value), ``UNUSED`` those past a short slice.
        """
        self._require_countable(self.first.size * self.extent)
        position = np.arange(self.extent)
        index = self.first[:, None] + position * self.step
        index = np.where((index < 0) | (index >= self.size), OUTSIDE, index)
        return read_only(np.where(position < self.count[:, None], index, UNUSED))

    @cached_property
    def coverage(self) -> np.ndarray:
        """By how many of the slices each tensor index is read, int64 ``[size]``."""
        self._require_countable(self.size)
        low, high = self.bounds
        present = high >= low
        if abs(self.step) == 1:
            delta = np.zeros(self.size + 1, np.int64)
            np.add.at(delta, low[present], 1)
            np.add.at(delta, high[present] + 1, -1)
            return read_only(np.cumsum(delta[:-1]))
        index = self.index
        return read_only(np.bincount(index[index >= 0], minlength=self.size))

    @cached_property
    def covered(self) -> Coverage:
        """Which tensor indices slices read, by what planning asks about them."""
        step = abs(self.step)
        if self.size > max(SHORT, 4 * step * self.first.size):
            low, high = self.bounds
            present = high >= low
            low, high = low[present], high[present]
            if step == 1:
                return Stretches.of(low, high + 1, self.size)
            if not (low % step != low[:1] % step).any():
                return Strided.of(low, high, step, self.size)
        return Counted(self.coverage)

    def runs_between(self, lo: np.ndarray, hi: np.ndarray, least: int = 1) -> np.ndarray:
        """Return how many contiguous runs of indices in ``[lo, hi)`` are read by ``least`` (1 or 2) slices or more."""
        covered = self.covered
        begins = covered.is_read(np.minimum(lo, hi - 1), least) & (lo < hi)
        begun = covered.begun(np.maximum(hi, lo + 1) - 1, least) - covered.begun(lo, least)
        return np.where(begins, 1, 0) + begun

    def runs_of_others(
        self, lo: np.ndarray, hi: np.ndarray, start: np.ndarray, stop: np.ndarray
    ) -> np.ndarray:
        """Return the runs in ``[lo, hi)`` less what only the slice of ``[start, stop)``, a part of it, reads."""
        is_read = self.covered.is_read
        joins = (is_read(start - 1, 1) & is_read(start, 2) & (lo < start)).astype(np.int64)
        joins += is_read(stop - 1, 2) & is_read(stop, 1) & (stop < hi)
        runs = self.runs_between(lo, start) + self.runs_between(stop, hi) - joins
        return np.where(
            start < stop, runs + self.runs_between(start, stop, least=2), self.runs_between(lo, hi)
        )

    @cached_property
    def is_inside(self) -> bool:
        """Whether nothing is read outside the tensor."""
        return not np.any(self.num_inside != self.count)

    @cached_property
    def is_partition(self) -> bool:
        """Whether the slices are the consecutive parts of the axis, each element once, in order."""
        parts = np.arange(self.first.size)
        return (
            self.step == 1
            and len(self.dims) <= 1
            and bool(np.all(self.first == parts * self.extent))
            and int(self.num_inside.sum()) == self.size
            and bool(np.all(self.num_inside == self.count))
        )

    def overlap(self, g: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Return how many elements of slices ``g`` have tensor indices in ``[lo, hi)``."""
        low, high = (bound[g] for bound in self.bounds)
        step = abs(self.step)
        a = np.maximum(lo, low)
        b = np.minimum(hi - 1, high)
        first = -(-(a - low) // step)
        last = (b - low) // step
        return np.where(b >= a, np.maximum(last - first + 1, 0), 0)


def axis_slices(axis: Affine, splits: tuple[AxisSplit, ...], size: int) -> AxisSlices:
    """Return the slices of one operand axis of length ``size``, whose terms' dimensions are cut by ``splits``.

    An axis that follows one dimension keeps its stride (only what is read is moved); an axis that sums
    several (a window) reads the contiguous hull. Plans that cut its dimensions alike share the tables.
    """
    return _axis_slices(axis, tuple((split.size, split.grain) for split in splits), size)


@lru_cache(maxsize=4096)
def _axis_slices(axis: Affine, cuts: tuple[tuple[int, int], ...], size: int) -> AxisSlices:
    """Return the slices of an axis whose terms' dimensions have ``(size, grain)``, on whatever tiles their parts lie."""
    dims = tuple(d for d, _ in axis.terms)
    splits = [
        whole(extent) if extent <= grain else AxisSplit(extent, grain, ((ceil_div(extent, grain), 0),))
        for extent, grain in cuts
    ]
    grid = tuple(split.parts for split in splits)
    if not dims:
        return AxisSlices(size, (), (), np.array([axis.offset]), np.array([1]), 1)
    lows = np.meshgrid(*[split.lo for split in splits], indexing="ij")
    highs = np.meshgrid(*[np.maximum(split.hi, split.lo) for split in splits], indexing="ij")
    if len(dims) == 1:
        coefficient = axis.terms[0][1]
        first = axis.offset + coefficient * lows[0].reshape(-1)
        count = (highs[0] - lows[0]).reshape(-1)
        return AxisSlices(size, dims, grid, first, count, coefficient)
    low = high = np.int64(axis.offset)
    for (_, c), lo, hi in zip(axis.terms, lows, highs, strict=True):
        ends = (c * lo, c * (hi - 1))
        low, high = low + np.minimum(*ends), high + np.maximum(*ends)
    return AxisSlices(size, dims, grid, np.ravel(low), np.ravel(high - low + 1), 1)


@dataclass(frozen=True)
class Slices:
    """The slices of one operand: per axis, and which cell sits on which tile.

    Args:
      axes: slices per axis.
      grid: the plan's grid (parts per domain dimension).
      tiles: tile of every cell, int64 ``[prod(grid)]``.
      order: order of a slice's elements in a tile's memory, by the operand's axes.
    """

    axes: tuple[AxisSlices, ...]
    grid: tuple[int, ...]
    tiles: np.ndarray
    order: Arrangement = ROW_MAJOR

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Shape of the buffer that holds any cell's slice."""
        return tuple(axis.extent for axis in self.axes)

    @cached_property
    def arrangement(self) -> Arrangement:
        """The order of the longest slice, in which every slice is stored, in its simplest form."""
        return self.order.fit(self.extents)

    def stored_bytes(self, element_bytes: int) -> int:
        """Return the bytes, in whole words, of the buffer that holds any cell's slice."""
        return stored_bytes(self.arrangement, self.extents, element_bytes)

    @cached_property
    def coordinates(self) -> tuple[np.ndarray, ...]:
        """For every axis, each cell's position in the axis' own grid, int64 ``[cells]``."""
        return tuple(_positions(self.grid, axis.dims) for axis in self.axes)

    @cached_property
    def number(self) -> np.ndarray:
        """For each cell the number of its slice, in row-major order of the axes' grids, int64 ``[cells]``."""
        return _positions(self.grid, tuple(d for axis in self.axes for d in axis.dims))

    @property
    def replication(self) -> int:
        """Cells that read each slice."""
        used = {d for axis in self.axes for d in axis.dims}
        return math.prod(parts for d, parts in enumerate(self.grid) if d not in used)


def slice_extents(form: OpForm, plan: Plan, k: int) -> tuple[int, ...]:
    """Return the shape of the buffer that holds any cell's slice of operand ``k``: that of the first cell."""
    full, extents = plan.extents, list[int]()
    for axis in form.operands[k].axes:
        if len(axis.terms) == 1:
            extents.append(full[axis.terms[0][0]])
        elif any(not full[d] for d, _ in axis.terms):
            extents.append(0)
        else:
            extents.append(1 + sum(abs(c) * (full[d] - 1) for d, c in axis.terms))
    return tuple(extents)


def stored_bytes(order: Arrangement, extents: tuple[int, ...], element_bytes: int) -> int:
    """Return the bytes, in whole words, of a buffer of ``extents`` whose elements lie in an order."""
    return align_up(order.stored_elements(extents) * element_bytes, WORD_BYTES)


@lru_cache(maxsize=1024)
def _positions(grid: tuple[int, ...], dims: tuple[int, ...]) -> np.ndarray:
    """Return each cell's position in the grid of some dimensions, row-major, int64 ``[cells]``; shared, so read-only."""
    position = np.zeros((1,) * len(grid), np.int64)
    for d in dims:
        along = [1] * len(grid)
        along[d] = grid[d]
        position = position * grid[d] + np.arange(grid[d]).reshape(along)
    cells = np.broadcast_to(position, grid).reshape(-1)
    cells.flags.writeable = False
    return cells


@lru_cache(maxsize=512)
def operand_slices(form: OpForm, plan: Plan, k: int, shape: tuple[int, ...]) -> Slices:
    """Return what every cell reads of operand k, a tensor of ``shape``; derived once per question.

    Raises:
      InvalidPlan: the map has another rank, or reads outside the tensor without a fill value.
    """
    index_map = form.operands[k]
    if len(index_map.axes) != len(shape):
        raise InvalidPlan(f"operand {k} has rank {len(shape)}, its map has {len(index_map.axes)} axes")
    axes = tuple(
        axis_slices(a, tuple(plan.splits[d] for d, _ in a.terms), n)
        for a, n in zip(index_map.axes, shape, strict=True)
    )
    if index_map.fill is None:
        for number, axis in enumerate(axes):
            if not axis.is_inside:
                raise InvalidPlan(
                    f"operand {k} is read outside its {shape[number]} elements along axis {number}, with no fill value"
                )
    return Slices(axes, plan.grid, plan.tiles, plan.operand_order(form, k))


def layout_slices(layout: Layout, shape: tuple[int, ...], axis: int | None = None, offset: int = 0) -> Slices:
    """Return what every part of a layout takes from a tensor of ``shape`` placed at ``offset`` along ``axis``."""
    axes = (
        _part_slices(number, split.size, split.grain, shape[number], offset if number == axis else 0)
        for number, split in enumerate(layout.axes)
    )
    return Slices(tuple(axes), layout.grid, layout.tiles, layout.arrangement)


@lru_cache(maxsize=4096)
def _part_slices(number: int, size: int, grain: int, elements: int, shift: int) -> AxisSlices:
    """Return what parts of ``grain`` of ``size`` elements take from ``elements`` that begin at ``shift``, along axis ``number``."""
    lo = np.arange(max(1, ceil_div(size, grain)), dtype=np.int64) * grain
    first = np.maximum(lo - shift, 0)
    last = np.minimum(np.minimum(lo + grain, size) - shift, elements)
    return AxisSlices(elements, (number,), (lo.size,), first, np.maximum(last - first, 0), 1)


def is_resident(form: OpForm, plan: Plan, k: int, layout: Layout) -> bool:
    """Return whether every cell's slice of operand k is exactly the part its tile already holds, in its order."""
    return is_local(form, plan, k, layout) and (
        plan.operand_order(form, k).fit(layout.part_shape) == layout.arrangement
    )


def is_local(form: OpForm, plan: Plan, k: int, layout: Layout) -> bool:
    """Return whether every cell's slice of operand k has the elements of the part its tile already holds."""
    if layout.base != plan.base:
        return False
    index_map = form.operands[k]
    for axis, split in zip(index_map.axes, layout.axes, strict=True):
        if axis.offset or len(axis.terms) > 1 or (not axis.terms and split.size != 1):
            return False
        for d, coefficient in axis.terms:
            if coefficient != 1 or not same_parts(plan.splits[d], split):
                return False
    used = index_map.dims
    return not any(split.is_split and d not in used for d, split in enumerate(plan.splits))


def reads_all(form: OpForm, k: int, layout: Layout) -> bool:
    """Return whether cells read operand k, which is not empty, as a whole and one beside the other, however they are cut.

    Such an operand lies where cells read it (``is_local``), or some cell reads what its tile does not hold: parts
    lie on different tiles, as cells do.
    """
    for axis, split in zip(form.operands[k].axes, layout.axes, strict=True):
        sizes = [form.dims[d].size if coefficient == 1 else -1 for d, coefficient in axis.terms] or [1]
        if axis.offset or not split.size or sizes != [split.size]:
            return False
    return True


def same_parts(a: AxisSplit, b: AxisSplit) -> bool:
    """Return whether two splits have the same parts on the same tiles."""
    if a.size != b.size or a.parts != b.parts or (a.is_split and a.grain != b.grain):
        return False
    return not a.is_split or a.digits == b.digits or bool(np.array_equal(a.tiles, b.tiles))
