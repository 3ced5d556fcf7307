"""Index tables for proofs: which elements each tile holds, reads or computes, enumerated from plain data.

Written apart from ``tiles.plan`` on purpose: a proof that shared its derivations would share its errors.
A table is a product of short per-axis lists, so it can be spread out element by element or compared axis by axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tiles.cached import cached_property
from tiles.graph import Affine, AxisSplit, IndexMap, Layout, OpForm, Plan

OUT = -1
"""A position that lies outside the tensor: the fill value stands there."""
PAST = -2
"""A position behind the end of a short part or slice: nothing stands there."""
CHUNK = 1 << 18
Digits = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Table:
    """What each of n holders (cells or parts) has of one tensor.

    Args:
      shape: the tensor's shape.
      tiles: tile of every holder, int64 ``[n]``.
      rows: per axis, the row of ``index`` that a holder has, int64 ``[n]``.
      index: per axis, tensor indices at every position of a list, int64 ``[rows, extent]``; ``OUT`` and ``PAST`` mark others.
      digits: the order in which a holder's box lies in memory, as an ``Arrangement`` writes it.
    """

    shape: tuple[int, ...]
    tiles: np.ndarray
    rows: tuple[np.ndarray, ...]
    index: tuple[np.ndarray, ...]
    digits: Digits = ()

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Positions along each axis, the same for all holders."""
        return tuple(index.shape[1] for index in self.index)

    @cached_property
    def stored(self) -> int:
        """Places of a holder's box in memory, up to its last element."""
        if 0 in self.extents:
            return 0
        return 1 + sum(int(place.max()) for place in self.places)

    @cached_property
    def places(self) -> list[np.ndarray]:
        """What each index along each axis adds to an element's place in memory."""
        return places_of(self.digits, self.extents)

    def lies_like(self, other: Table) -> bool:
        """Return whether boxes of both tables lie in memory in the same order."""
        if not self.digits and not other.digits:
            return True
        return self.extents == other.extents and all(map(np.array_equal, self.places, other.places))

    @cached_property
    def tile_mask(self) -> int:
        """The tiles, all at least 0, as the bits of one integer."""
        present = np.zeros(int(self.tiles.max(initial=-1)) + 1, np.uint8)
        present[self.tiles] = 1
        return int.from_bytes(np.packbits(present, bitorder="little").tobytes(), "little")

    @cached_property
    def positions(self) -> int:
        """Positions of all holders together."""
        return self.tiles.size * math.prod(self.extents)

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield runs of holder numbers whose positions together are few enough to spread out."""
        step = max(1, CHUNK // max(1, math.prod(self.extents)))
        for start in range(0, self.tiles.size, step):
            yield np.arange(start, min(start + step, self.tiles.size))

    def flat(self, holders: np.ndarray) -> np.ndarray:
        """Return the row-major tensor index at every position, ``[holders, positions]``; negative marks remain."""
        steps, out, past = self._steps
        total = self.summed(holders, steps)
        if not past:
            return total
        return np.where(total < 0, np.where(total < out, PAST, OUT), total).astype(total.dtype)

    @cached_property
    def _steps(self) -> tuple[list[np.ndarray], int, int]:
        """What indices along each axis add to a row-major index; marks add so much below 0 that their sums tell them apart.

        Returns:
          Per axis ``[rows, extent]``, int32 where all sums are; the least sum of marks that are all ``OUT``; what a ``PAST``
          adds, 0 where nothing is marked.
        """
        count, axes = math.prod(self.shape), len(self.shape)
        strides = [math.prod(self.shape[a + 1 :]) for a in range(axes)]
        if not any(index.size and index.min() < 0 for index in self.index):
            dtype = np.int32 if count <= np.iinfo(np.int32).max else np.int64
            steps = [(i * stride).astype(dtype) for i, stride in zip(self.index, strides, strict=True)]
            return steps, 0, 0
        most = math.prod(max(1, n) for n in self.shape)  # an axis of no elements has none inside, others may
        out = -(most + 1)  # with it no sum is an index
        past = (axes + 1) * out  # nor is one with it a sum of others
        dtype = np.int32 if -axes * past <= np.iinfo(np.int32).max else np.int64
        steps = [
            np.where(i == PAST, past, np.where(i == OUT, out, i * stride)).astype(dtype)
            for i, stride in zip(self.index, strides, strict=True)
        ]
        return steps, axes * out, past

    def summed(self, holders: np.ndarray, values: list[np.ndarray]) -> np.ndarray:
        """Return at every position the sum over axes of ``values`` (per axis ``[rows, extent]``), ``[holders, positions]``."""
        total = np.zeros((holders.size, 1), values[0].dtype if values else np.int64)
        for rows, value in zip(self.rows[::-1], values[::-1], strict=True):  # the longest runs are added last
            total = (value[rows[holders]][:, :, None] + total[:, None, :]).reshape(holders.size, -1)
        return total


def places_of(digits: Digits, extents: tuple[int, ...]) -> list[np.ndarray]:
    """Return per axis of a box what each index adds to an element's place in memory, int64 ``[extent]`` each."""
    groups = {axis: min(group, extents[axis]) for axis, group in digits if group}
    places = [np.zeros(n, np.int64) for n in extents]
    stride = 1
    for axis, group in reversed(digits or tuple((axis, 0) for axis in range(len(extents)))):
        index = np.arange(extents[axis])
        size = max(1, groups.get(axis, 1))
        places[axis] += (index % size if group else index // size) * stride
        stride *= size if group else -(-extents[axis] // size)
    return places


def projected(digits: Digits, axes: tuple[Affine, ...], lead: int = 0) -> Digits:
    """Return an order of domain dimensions as one of a tensor's axes, ``lead`` others before; a window goes by its first."""
    axis_of = {axis.terms[0][0]: lead + number for number, axis in enumerate(axes) if axis.terms}
    return tuple((axis_of[d], group) for d, group in digits if d in axis_of)


def part_tiles(split: AxisSplit) -> np.ndarray:
    """Return what every part of a split adds to the tile number, int64 ``[parts]``."""
    count = max(1, -(-split.size // split.grain))
    tiles = np.zeros(count, np.int64)
    block = 1
    for radix, stride in split.digits[::-1]:
        tiles += np.arange(count) // block % radix * stride
        block *= radix
    return tiles


def split_index(split: AxisSplit) -> np.ndarray:
    """Return the elements of every part of a split, int64 ``[parts, longest part]``."""
    count = max(1, -(-split.size // split.grain))
    element = np.arange(count)[:, None] * split.grain + np.arange(min(split.grain, split.size))[None, :]
    return np.where(element < split.size, element, PAST)


def product_tiles(splits: tuple[AxisSplit, ...], base: int) -> np.ndarray:
    """Return the tile of every combination of parts, row-major, int64."""
    tiles = np.full(1, base, np.int64)
    for split in splits:
        tiles = np.add.outer(tiles, part_tiles(split)).reshape(-1)
    return tiles


def _coordinates(counts: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    return np.unravel_index(np.arange(math.prod(counts)), counts) if counts else ()


def layout_table(layout: Layout) -> Table:
    """Return what each part of a layout holds."""
    index = tuple(split_index(axis) for axis in layout.axes)
    rows = _coordinates(tuple(table.shape[0] for table in index))
    return Table(
        tuple(axis.size for axis in layout.axes),
        product_tiles(layout.axes, layout.base),
        rows,
        index,
        layout.arrangement.digits,
    )


def operand_table(form: OpForm, plan: Plan, k: int, shape: tuple[int, ...]) -> Table:
    """Return what each cell of a plan reads of operand k, a tensor of ``shape``."""
    return read_table(form.operands[k], plan, shape)


def read_table(index_map: IndexMap, plan: Plan, shape: tuple[int, ...]) -> Table:
    """Return what each cell of a plan reads of a tensor of ``shape`` by an operand's map."""
    parts = tuple(split_index(split) for split in plan.splits)
    cells = _coordinates(tuple(part.shape[0] for part in parts))
    count = math.prod(part.shape[0] for part in parts)
    rows: list[np.ndarray] = []
    index: list[np.ndarray] = []
    for axis, size in zip(index_map.axes, shape, strict=True):
        row = np.zeros(count, np.int64)
        for d, _ in axis.terms:
            row = row * parts[d].shape[0] + cells[d]
        rows.append(row)
        index.append(_axis_index(axis, parts, size))
    digits = projected(plan.arrangement.digits, index_map.axes)
    return Table(shape, product_tiles(plan.splits, plan.base), tuple(rows), tuple(index), digits)


def _axis_index(axis: Affine, parts: tuple[np.ndarray, ...], size: int) -> np.ndarray:
    """Return an operand axis' indices for every combination of parts of its dimensions.

    One dimension: its points in order. Several (a window): every index from the smallest to the largest.
    """
    if len(axis.terms) == 1:
        ((d, coefficient),) = axis.terms
        point = parts[d]
        index = axis.offset + coefficient * point
        return np.where(point < 0, PAST, np.where((index < 0) | (index >= size), OUT, index))
    reach = np.full((1, 1), axis.offset, np.int64)
    real = np.ones((1, 1), bool)
    for d, coefficient in axis.terms:
        rows, points = reach.shape[0] * parts[d].shape[0], reach.shape[1] * parts[d].shape[1]
        reach = (reach[:, None, :, None] + coefficient * parts[d][None, :, None, :]).reshape(rows, points)
        real = (real[:, None, :, None] & (parts[d] >= 0)[None, :, None, :]).reshape(rows, points)
    if not reach.shape[1]:
        return np.zeros((reach.shape[0], 0), np.int64)
    big = np.iinfo(np.int64).max
    low = np.where(real, reach, big).min(axis=1)
    high = np.where(real, reach, -big).max(axis=1)
    position = np.arange(max(0, int((high - low).max()) + 1))
    index = low[:, None] + position
    inside = np.where((index < 0) | (index >= size), OUT, index)
    return np.where(index > high[:, None], PAST, inside)


def result_table(form: OpForm, plan: Plan, k: int) -> Table:
    """Return what each cell computes of result k; a leading axis numbers partials when a reduction is split."""
    return written_table(form.results[k], plan, tuple(dim.is_reduced for dim in form.dims))


def written_table(index_map: IndexMap, plan: Plan, is_reduced: tuple[bool, ...]) -> Table:
    """Return what each cell of a plan computes by a result's map, given which dimensions are reduced; see ``result_table``."""
    parts = tuple(split_index(split) for split in plan.splits)
    counts = tuple(part.shape[0] for part in parts)
    cells = _coordinates(counts)
    dims = [axis.terms[0][0] for axis in index_map.axes]
    rows = [cells[d] for d in dims]
    index = [parts[d] for d in dims]
    shape = [plan.splits[d].size for d in dims]
    split = [d for d, reduced in enumerate(is_reduced) if reduced and counts[d] > 1]
    if split:
        number = np.zeros(math.prod(counts), np.int64)
        for d in split:
            number = number * counts[d] + cells[d]
        partials = math.prod(counts[d] for d in split)
        rows.insert(0, number)
        index.insert(0, np.arange(partials)[:, None])
        shape.insert(0, partials)
    digits = projected(plan.arrangement.digits, index_map.axes, int(bool(split)))
    return Table(tuple(shape), product_tiles(plan.splits, plan.base), tuple(rows), tuple(index), digits)


def shifted(table: Table, shape: tuple[int, ...], axis: int, offset: int) -> Table:
    """Return the same holders' view of a tensor of ``shape`` that lies at ``offset`` along ``axis``."""
    index = list(table.index)
    moved = index[axis] - offset
    index[axis] = np.where((index[axis] < 0) | (moved < 0) | (moved >= shape[axis]), PAST, moved)
    return Table(shape, table.tiles, table.rows, tuple(index), table.digits)


def holder_on(table: Table, num_tiles: int) -> np.ndarray:
    """Return the holder that lies on every tile, -1 for none, int64 ``[num_tiles]``."""
    holder = np.full(num_tiles, -1, np.int64)
    holder[table.tiles] = np.arange(table.tiles.size)
    return holder


def element_owners(layout: Layout) -> list[np.ndarray]:
    """Return per axis the part that owns each index, int64 ``[size]``; -1 where not exactly one does."""
    owners: list[np.ndarray] = []
    for axis in layout.axes:
        table = split_index(axis)
        part, position = np.nonzero(table >= 0)
        owner = np.full(axis.size, -1, np.int64)
        owner[table[part, position]] = part
        owner[np.bincount(table[part, position], minlength=axis.size) != 1] = -1
        owners.append(owner)
    return owners


def block_size(layout: Layout) -> int:
    """Return how many row-major neighbours, in aligned blocks, always lie side by side in one part."""
    if layout.arrangement.digits:
        axis, group = layout.arrangement.digits[-1]
        last = layout.axes[-1]
        if axis != len(layout.axes) - 1:
            return 1
        return math.gcd(group or min(last.grain, last.size), math.gcd(last.grain, last.size))
    run = 1
    for axis in reversed(layout.axes):
        if axis.grain < axis.size:
            return run * math.gcd(axis.grain, axis.size)
        run *= max(1, axis.size)
    return run


def blocks(shape: tuple[int, ...], block: int) -> Iterator[np.ndarray]:
    """Yield the row-major index of the first element of every block of a tensor, a chunk at a time."""
    count = math.prod(shape)
    for start in range(0, count, block * CHUNK):
        yield np.arange(start, min(count, start + block * CHUNK), block)


def places(layout: Layout, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return tile and position inside its part of elements given by row-major index, int64 each."""
    tile = np.full(flat.shape, layout.base, np.int64)
    position = np.zeros(flat.shape, np.int64)
    shape = tuple(axis.size for axis in layout.axes)
    part = tuple(min(axis.grain, axis.size) for axis in layout.axes)
    inside = places_of(layout.arrangement.digits, part)
    coordinates = np.unravel_index(flat, shape) if shape else ()
    for axis, place, index in zip(layout.axes, inside, coordinates, strict=True):
        tile += part_tiles(axis)[index // axis.grain]
        position += place[index % axis.grain]
    return tile, position


def paired_tiles(a: Layout, b: Layout) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the tiles on which two layouts, of as many elements, put their row-major elements, a chunk of blocks at a time."""
    block = math.gcd(block_size(a), block_size(b))
    for flat in blocks(a.shape, block):
        yield places(a, flat)[0], places(b, flat)[0]
