"""An operand of a vertex group in tile memory: where its slices lie, how they are cut, and the moves that follow.

A slice that many cells read is put together once and then copied to all of them, in rows at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tiles.cached import cached_property
from tiles.engine.addresses import Loops, Place, boxes, dense, in_order, row_major
from tiles.engine.memory import Scratch, Stored, TileMemory, as_booleans
from tiles.engine.placement import box_axes, cell_axes, digits_of, slice_axes, spread_shape
from tiles.engine.views import Moves, comparisons, copy, moves
from tiles.graph import AxisSplit, Layout
from tiles.numerics.arrays import distinct
from tiles.numerics.dtypes import WORD_BYTES, itemsize, to_jax, word_count
from tiles.plan import OUTSIDE, UNUSED, Slices

Call = Callable[[], Any]


@dataclass(frozen=True)
class StoredOperand:
    """What every cell of a group finds on its own tile for one operand.

    Args:
      variable: name of the variable that is read.
      layout: of the variable.
      source: word address of its parts.
      is_received: whether an exchange brings the slices; else they are the variable's parts, in place.
      splits: the cells' grid, one split per dimension.
      base: tile of the first cell.
      slices: what each cell reads.
      word: word address of every cell's slice.
      dtype: element type as the engine carries it.
      fill: value of what lies outside the variable, as carried, or None.
    """

    variable: str
    layout: Layout
    source: int
    is_received: bool
    splits: tuple[AxisSplit, ...]
    base: int
    slices: Slices
    word: int
    dtype: str
    fill: np.ndarray | None

    # ---- how slices are cut

    @cached_property
    def words(self) -> int:
        """Words of a slice."""
        return word_count(self.dtype, self._count)

    @cached_property
    def _count(self) -> int:
        """Elements of a slice in memory."""
        return self.slices.arrangement.stored_elements(self.slices.extents)

    @cached_property
    def _itemsize(self) -> int:
        return itemsize(self.dtype)

    @cached_property
    def _is_partition(self) -> bool:
        return all(axis.is_partition for axis in self.slices.axes)

    @cached_property
    def _repeated(self) -> frozenset[int]:
        """The grid dimensions along which cells read the same slice."""
        used = {d for axis in self.slices.axes for d in axis.dims}
        return frozenset(d for d in range(len(self.slices.grid)) if d not in used)

    @property
    def is_repeated(self) -> bool:
        """Whether several cells read the same slice."""
        return self.slices.replication > 1 and self._count > 0

    @cached_property
    def is_split_once(self) -> bool:
        """Whether no two different slices share an element and none reaches outside the variable."""
        return all(
            axis.is_partition or (bool(np.all(axis.num_inside == axis.count)) and _is_disjoint(axis.index))
            for axis in self.slices.axes
        )

    # ---- where they lie

    def _digits(self, tile_bytes: int) -> list[Loops]:
        return [digits_of(split, tile_bytes) for split in self.splits]

    def _address(self, memory: TileMemory) -> int:
        return memory.address(self.base, self.word, self.words * WORD_BYTES)

    def _spread(self, memory: TileMemory) -> Place:
        """Return where the slices lie, the first copy of each."""
        axes = slice_axes(self.slices, self._digits(memory.row_bytes), self._itemsize)
        return Place(axes, self._address(memory))

    def _cells(self, digits: list[Loops], address: int) -> Place:
        """Return where whole slices lie, cell by cell."""
        held = dense(self._count, self._itemsize)
        return Place(cell_axes(self.slices.grid, digits, [held]), address)

    def _without_copies(self, digits: list[Loops]) -> list[Loops]:
        """Return digits of cells of which those that read the same slice are one."""
        grid = self.slices.grid
        return [((grid[d], 0),) if d in self._repeated else loops for d, loops in enumerate(digits)]

    def lands_on(self, other: StoredOperand) -> bool:
        """Return whether slices may come to lie, on some tile, where another operand's variable does."""
        end = other.source + other.layout.part_bytes(other.dtype) // WORD_BYTES
        return self.word < end and other.source < self.word + self.words

    # ---- moves

    def arriving(self, memory: TileMemory, direct: bool) -> tuple[list[Moves], list[Call], list[Moves]]:
        """Return what brings the slices: moves that read memory, what to do then, and moves that write memory.

        Args:
          memory: tile memory.
          direct: whether slices may be written while others are read.
        """
        size, scratch = self._itemsize, memory.scratch
        source = memory.place_of(self.layout, self.source, self.dtype)
        if self.is_repeated:
            target, there = scratch.take(self._shape_apart, to_jax(self.dtype)), self._apart
            last = [self._sent(memory, target)]
        else:
            target, there, last = memory.words, self._spread(memory), list[Moves]()
        found = boxes(there, source) if self._is_partition and (direct or self.is_repeated) else None
        if found is not None:
            straight = moves(found, target, memory.words, size)
            return ([straight], [], last) if self.is_repeated else ([], [], [straight])
        value = scratch.take(self.layout.shape, to_jax(self.dtype))
        first = _moves(value, in_order(value.shape, size), memory.words, source, size)
        calls, x = self._disperse(value, scratch)
        cut = _moves(target, there, x, in_order(spread_shape(self.slices), size), size)
        return ([first], [*calls, partial(copy, cut)], last) if self.is_repeated else ([first], calls, [cut])

    @cached_property
    def _shape_apart(self) -> tuple[int, ...]:
        """The shape of an array that holds every slice once, ``[*grid, elements]``."""
        grid = (1 if d in self._repeated else n for d, n in enumerate(self.slices.grid))
        return (*grid, self._count)

    @cached_property
    def _digits_apart(self) -> list[Loops]:
        """Where slices lie in such an array."""
        strides = row_major(self._shape_apart, self._itemsize)
        return [((n, stride),) for n, stride in zip(self._shape_apart[:-1], strides, strict=False)]

    @property
    def _apart(self) -> Place:
        return Place(slice_axes(self.slices, self._digits_apart, self._itemsize))

    def _sent(self, memory: TileMemory, together: np.ndarray) -> Moves:
        """Return the moves from such an array to all cells."""
        cells = self._cells(self._digits(memory.row_bytes), self._address(memory))
        once = self._cells(self._without_copies(self._digits_apart), 0)
        return _moves(memory.words, cells, together, once, self._itemsize)

    def collected(self, memory: TileMemory, scratch: Scratch) -> tuple[Moves, list[Call], np.ndarray]:
        """Return what puts the variable's value together from the cells' slices, and the array that holds it then."""
        x = scratch.take(spread_shape(self.slices), to_jax(self.dtype))
        size = self._itemsize
        reading = _moves(x, in_order(x.shape, size), memory.words, self._spread(memory), size)
        calls: list[Call] = [partial(as_booleans, x)] if x.dtype == bool else []
        more, value = self._gather(x, scratch)
        return reading, calls + more, value

    def cells(self, memory: TileMemory) -> Stored:
        """Return what the cells hold as a tensor ``[*grid, *extents]``."""
        slices = self.slices
        held = box_axes(slices.extents, slices.arrangement, self._itemsize)
        axes = cell_axes(slices.grid, self._digits(memory.row_bytes), held)
        return Stored(memory, Place(axes, self._address(memory)), (*slices.grid, *slices.extents), self.dtype)

    def comparisons(self, memory: TileMemory) -> Moves:
        """Return the comparisons of all cells' slices with those of the first cell that reads the same."""
        digits = self._digits(memory.row_bytes)
        address = self._address(memory)
        found = boxes(self._cells(digits, address), self._cells(self._without_copies(digits), address))
        assert found is not None  # other strides of the same loops
        return comparisons(found, memory.words, self._itemsize)

    def agreeing(self, memory: TileMemory) -> Callable[[], bool]:
        """Return what tells whether slices that share elements, or hold the fill value, hold the same bits there."""
        memory.checks.release()
        size = self._itemsize
        reading, calls, value = self.collected(memory, memory.checks)
        spreading, x = self._disperse(value, memory.checks)
        held = memory.checks.take(x.shape, x.dtype)
        order = in_order(spread_shape(self.slices), size)
        again = _moves(held, order, memory.words, self._spread(memory), size)
        unused = [
            (*(slice(None),) * number, (axis.index == UNUSED).reshape(-1))
            for number, axis in enumerate(self.slices.axes)
            if not axis.is_partition
        ]

        def agree() -> bool:
            copy(reading)
            for call in calls + spreading:
                call()
            copy(again)
            same = _bits(held) == _bits(x)
            for key in unused:
                same[key] = True
            return bool(same.all())

        return agree

    # ---- axes whose slices overlap, skip or reach outside

    def _disperse(self, value: np.ndarray, scratch: Scratch) -> tuple[list[Call], np.ndarray]:
        """Return what cuts a value along such axes, and the array then: slices one behind the other along each."""
        calls: list[Call] = []
        for number, axis in enumerate(self.slices.axes):
            if axis.is_partition:
                continue
            index = axis.index.reshape(-1)
            shape = (*value.shape[:number], index.size, *value.shape[number + 1 :])
            out = scratch.take(shape, value.dtype)
            calls.append(_taking(value, index, number, out, self.fill, index == OUTSIDE))
            value = out
        return calls, value

    def _gather(self, x: np.ndarray, scratch: Scratch) -> tuple[list[Call], np.ndarray]:
        """Return what puts a value together from such slices, the first copy of each element; 0 for what nobody reads."""
        calls: list[Call] = []
        x = x.reshape([a.size if a.is_partition else a.first.size * a.extent for a in self.slices.axes])
        for number, axis in enumerate(self.slices.axes):
            if axis.is_partition:
                continue
            flat = axis.index.reshape(-1)
            positions = np.flatnonzero(flat >= 0)[::-1]
            source = np.full(axis.size, -1, np.int64)
            source[flat[positions]] = positions
            out = scratch.take((*x.shape[:number], axis.size, *x.shape[number + 1 :]), x.dtype)
            calls.append(_taking(x, source, number, out, None, source < 0))
            x = out
        return calls, x


def _is_disjoint(index: np.ndarray) -> bool:
    inside = index[index >= 0]
    return distinct(inside).size == inside.size


def _bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def _moves(target: np.ndarray, there: Place, source: np.ndarray, here: Place, size: int) -> Moves:
    """Return the moves between places one of which has no gaps, or is cut as the other."""
    found = boxes(there, here)
    assert found is not None
    return moves(found, target, source, size)


def _taking(
    x: np.ndarray, index: np.ndarray, axis: int, out: np.ndarray, fill: np.ndarray | None, filled: np.ndarray
) -> Call:
    """Return what takes elements along an axis into an array; where none is meant, the fill value or 0."""
    index = np.maximum(index, 0)
    key = (*(slice(None),) * axis, np.flatnonzero(filled))
    bits, value = (_bits(x), _bits(out)), 0 if fill is None else _bits(fill)

    def call() -> None:
        if x.size:
            np.take(bits[0], index, axis=axis, out=bits[1], mode="clip")
        if filled.any():
            bits[1][key] = value

    return call
