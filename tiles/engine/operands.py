"""An operand of a vertex group in tile memory: where its slices lie, how they are cut, and the moves that follow.

A slice that many cells read is put together once and then copied to all of them, in rows at the speed of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from tiles.engine.loops import Arrangement, Loops, boxes, dense, in_order, row_major
from tiles.engine.memory import Scratch, Stored, TileMemory, as_booleans
from tiles.engine.placement import cell_axes, digits_of, slice_axes, spread_shape
from tiles.engine.views import Moves, are_equal, copy, differences, merged, moves, shared_out
from tiles.graph import AxisSplit, Layout
from tiles.numerics.dtypes import WORD_BYTES, itemsize, to_jax, word_count
from tiles.plan import OUTSIDE, UNUSED, Slices

Call = Callable[[], Any]


@dataclass(frozen=True)
class HeldOperand:
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
        return math.prod(self.slices.extents)

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
    def is_cut_once(self) -> bool:
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

    def _spread(self, memory: TileMemory) -> Arrangement:
        """Return where the slices lie, the first copy of each."""
        axes = slice_axes(self.slices, self._digits(memory.row_bytes), self._itemsize)
        return Arrangement(tuple(axes), self._address(memory))

    def _cells(self, digits: list[Loops], address: int) -> Arrangement:
        """Return where whole slices lie, cell by cell."""
        held = dense(self._count, self._itemsize)
        return Arrangement(tuple(cell_axes(self.slices.grid, digits, held)), address)

    def _without_copies(self, digits: list[Loops]) -> list[Loops]:
        """Return digits of cells of which those that read the same slice are one."""
        grid = self.slices.grid
        return [((grid[d], 0),) if d in self._repeated else loops for d, loops in enumerate(digits)]

    def lands_on(self, other: HeldOperand) -> bool:
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
        spread = self._spread(memory)
        if direct and self._is_partition and not self.is_repeated:
            found = boxes(spread, source)
            if found is not None:
                return [], [], [moves(shared_out(found, size), memory.words, memory.words, size)]
        if self.is_repeated:
            together, last = self._sent(memory)
            found = boxes(self._apart(), source) if self._is_partition else None
            if found is not None:
                return [moves(shared_out(found, size), together, memory.words, size)], [], [last]
        value = scratch.take(self.layout.shape, to_jax(self.dtype))
        first = _moves(value, in_order(value.shape, size), memory.words, source, size)
        calls, x = self._disperse(value, scratch)
        x_order = in_order(spread_shape(self.slices), size)
        if not self.is_repeated:
            return [first], calls, [_moves(memory.words, spread, x, x_order, size)]
        together, last = self._sent(memory)
        calls.append(partial(copy, _moves(together, self._apart(), x, x_order, size)))
        return [first], calls, [last]

    def _shape_apart(self) -> tuple[int, ...]:
        grid = (1 if d in self._repeated else n for d, n in enumerate(self.slices.grid))
        return (*grid, self._count)

    def _digits_apart(self) -> list[Loops]:
        """Return where different slices lie that lie one behind the other."""
        shape = self._shape_apart()
        return [((n, stride),) for n, stride in zip(shape, row_major(shape, self._itemsize), strict=True)][
            :-1
        ]

    def _apart(self) -> Arrangement:
        return Arrangement(tuple(slice_axes(self.slices, self._digits_apart(), self._itemsize)))

    def _sent(self, memory: TileMemory) -> tuple[np.ndarray, Moves]:
        """Return an array for different slices one behind the other, and the moves from there to all cells."""
        together = memory.scratch.take(self._shape_apart(), to_jax(self.dtype))
        cells = self._cells(self._digits(memory.row_bytes), self._address(memory))
        once = self._cells(self._without_copies(self._digits_apart()), 0)
        return together, _moves(memory.words, cells, together, once, self._itemsize)

    def collected(self, memory: TileMemory, scratch: Scratch) -> tuple[Moves, list[Call], np.ndarray]:
        """Return what puts the variable's value together from the cells' slices, and the array that holds it then."""
        x = scratch.take(spread_shape(self.slices), to_jax(self.dtype))
        size = self._itemsize
        reading = _moves(x, in_order(x.shape, size), memory.words, self._spread(memory), size)
        calls: list[Call] = [partial(as_booleans, x)] if x.dtype == bool else []
        more, value = self._gather(x, scratch)
        return reading, calls + more, value

    def cells(self, memory: TileMemory) -> Stored:
        """Return what the cells hold as a tensor ``[*grid, elements of a slice]``."""
        place = self._cells(self._digits(memory.row_bytes), self._address(memory))
        return Stored(memory, place, (*self.slices.grid, self._count), self.dtype)

    def comparisons(self, memory: TileMemory) -> Moves:
        """Return the comparisons of all cells' slices with those of the first cell that reads the same."""
        digits = self._digits(memory.row_bytes)
        address = self._address(memory)
        found = boxes(self._cells(digits, address), self._cells(self._without_copies(digits), address))
        assert found is not None  # other strides of the same loops
        return differences(shared_out(found, self._itemsize), memory.words, self._itemsize)

    def agrees(self, memory: TileMemory) -> bool:
        """Return whether slices that share elements, or hold the fill value, hold the same bits there."""
        memory.checks.release()
        reading, calls, value = self.collected(memory, memory.checks)
        spreading, x = self._disperse(value, memory.checks)
        held = memory.checks.take(x.shape, x.dtype)
        copy(reading)
        for call in calls + spreading:
            call()
        again = _moves(
            held,
            in_order(spread_shape(self.slices), self._itemsize),
            memory.words,
            self._spread(memory),
            self._itemsize,
        )
        copy(again)
        same = _bits(held) == _bits(x)
        for number, axis in enumerate(self.slices.axes):
            if not axis.is_partition:
                unused = (axis.index == UNUSED).reshape(-1)
                same[(*(slice(None),) * number, unused)] = True
        return bool(same.all())

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


class Exchange:
    """What brings a step's operands to the tiles that read them: everything is read before anything is written.

    Args:
      memory: tile memory.
      operands: of all groups of the step.
    """

    def __init__(self, memory: TileMemory, operands: Sequence[HeldOperand]) -> None:
        """Make the moves."""
        memory.scratch.release()
        received = [held for held in operands if held.is_received]
        direct = not any(a.lands_on(b) for a in received for b in received)
        arriving = [held.arriving(memory, direct) for held in received]
        self._first = merged(one for first, _, _ in arriving for one in first)
        self._calls = [call for _, calls, _ in arriving for call in calls]
        self._last = merged(one for _, _, last in arriving for one in last)

    def run(self) -> None:
        """Do the moves."""
        copy(self._first)
        for call in self._calls:
            call()
        copy(self._last)


class Collected:
    """The values of a step's operands, put together from the cells' slices.

    Args:
      memory: tile memory.
      groups: the operands of every group of the step.
    """

    def __init__(self, memory: TileMemory, groups: Sequence[Sequence[HeldOperand]]) -> None:
        """Make the moves."""
        memory.scratch.release()
        found = [[held.collected(memory, memory.scratch) for held in operands] for operands in groups]
        self._moves = merged(reading for group in found for reading, _, _ in group)
        self._calls = [call for group in found for _, calls, _ in group for call in calls]
        self._values = [[value for _, _, value in group] for group in found]

    def read(self) -> list[list[np.ndarray]]:
        """Return the values, in arrays that serve the next steps too."""
        copy(self._moves)
        for call in self._calls:
            call()
        return self._values


class Agreement:
    """Whether all copies of every element of a step's operands are the same words.

    Args:
      memory: tile memory.
      operands: of all groups of the step.
    """

    def __init__(self, memory: TileMemory, operands: Sequence[HeldOperand]) -> None:
        """Make the comparisons."""
        self._memory = memory
        self._compared = [(held.variable, held.comparisons(memory)) for held in operands if held.is_repeated]
        self._overlapping = [held for held in operands if not held.is_cut_once]

    def differing(self) -> list[str]:
        """Return the names of variables of which copies differ."""
        found = [name for name, comparisons in self._compared if not are_equal(comparisons)]
        return found + [held.variable for held in self._overlapping if not held.agrees(self._memory)]


def _is_disjoint(index: np.ndarray) -> bool:
    inside = index[index >= 0]
    return np.unique(inside).size == inside.size


def _bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def _moves(target: np.ndarray, there: Arrangement, source: np.ndarray, here: Arrangement, size: int) -> Moves:
    """Return the moves between arrangements one of which has no gaps, or is cut as the other."""
    found = boxes(there, here)
    assert found is not None
    return moves(shared_out(found, size), target, source, size)


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
