"""Proof of one exchange: how many elements cross tiles, counted at receivers, at senders and one by one.

An executable does not list its messages; they follow from a layout and from what holders take. Three counts made in
different ways must agree before any is believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tiles.cached import cached_property
from tiles.compiler import proof_tables as tables
from tiles.compiler.proof_tables import PAST, Table
from tiles.graph import Layout


class Exchange:
    """What holders take of a tensor that lies in a layout.

    Args:
      layout: where the source lies.
      parts: the layout's table.
      wanted: what every holder takes.
      num_tiles: tiles of the target.
    """

    def __init__(self, layout: Layout, parts: Table, wanted: Table, num_tiles: int) -> None:
        """Find what each holder's own tile holds already."""
        self.layout, self.parts, self.wanted, self.num_tiles = layout, parts, wanted, num_tiles
        self.owners = tables.element_owners(layout)
        self.local = self._local(tables.holder_on(parts, num_tiles)[wanted.tiles])

    def _local(self, part: np.ndarray) -> np.ndarray:
        """Return how many elements each holder finds in the part (-1: none) on its own tile, int64 ``[holders]``."""
        local = (part >= 0).astype(np.int64)
        for axis, owner in enumerate(self.owners):
            index = self.wanted.index[axis]
            owned = np.where(index >= 0, np.append(owner, -1)[np.maximum(index, -1)], -1)
            mine = self.parts.rows[axis][np.maximum(part, 0)]
            slots = len(self.parts.index[axis]) + 1  # the first for what no part owns
            lists = len(index)
            slot = np.arange(lists)[:, None] * slots + owned + 1
            owns = np.bincount(slot.reshape(-1), minlength=lists * slots).reshape(lists, slots)
            local *= owns[self.wanted.rows[axis], mine + 1]
        return local

    def received(self) -> int:
        """Return elements that arrive from other tiles, counted holder by holder."""
        total = np.ones(self.wanted.tiles.size, np.int64)
        for rows, index in zip(self.wanted.rows, self.wanted.index, strict=True):
            total *= (index >= 0).sum(axis=1)[rows]
        return int((total - self.local).sum())

    def sent(self) -> int:
        """Return elements that leave for other tiles, each delivery counted, part by part of the source."""
        return int(self._delivered.sum() - self.local.sum())

    @cached_property
    def senders(self) -> np.ndarray:
        """Tiles of parts of the source that others take elements of, int64 ``[senders]``."""
        local = np.zeros(self.num_tiles, np.int64)
        local[self.wanted.tiles] = self.local
        return self.parts.tiles[self._delivered > local[self.parts.tiles]]

    @cached_property
    def _delivered(self) -> np.ndarray:
        """Elements of every part that are taken, on its own tile or others, each delivery counted, int64 ``[parts]``."""
        lists = math.prod(index.shape[0] for index in self.wanted.index)
        leaving = np.full(self.parts.tiles.size, self.wanted.tiles.size // max(1, lists), np.int64)
        for axis, rows in enumerate(self.parts.rows):
            index, held = self.wanted.index[axis], self.parts.index[axis]
            readers = np.append(np.bincount(index[index >= 0], minlength=self.parts.shape[axis]), 0)
            leaving *= np.where(held >= 0, readers[held], 0).sum(axis=1)[rows]
        return leaving

    @cached_property
    def touched(self) -> Table:
        """Which parts of the source each holder takes elements of, as a table over the grid of parts."""
        index: list[np.ndarray] = []
        for axis, owner in enumerate(self.owners):
            wanted = self.wanted.index[axis]
            index.append(
                _distinct(np.where(wanted >= 0, np.append(owner, PAST)[np.maximum(wanted, -1)], PAST))
            )
        grid = tuple(parts.shape[0] for parts in self.parts.index)
        return Table(grid, self.wanted.tiles, self.wanted.rows, tuple(index))

    @cached_property
    def sources(self) -> np.ndarray:
        """How many other tiles each holder takes elements of, int64 ``[holders]``."""
        total = np.ones(self.wanted.tiles.size, np.int64)
        for rows, index in zip(self.touched.rows, self.touched.index, strict=True):
            total *= (index >= 0).sum(axis=1)[rows]
        return total - (self.local > 0)

    def pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the tiles of holders and of the parts that they take elements of, each pair once, some at a time."""
        for holders in self.touched.chunks():
            part = self.touched.flat(holders)
            holder, position = np.nonzero(part >= 0)
            yield self.wanted.tiles[holders[holder]], self.parts.tiles[part[holder, position]]

    def crossing(self) -> int:
        """Return elements whose source tile is not their holder's, looked at one by one."""
        least, outside = self.layout.base, -self.num_tiles * len(self.owners)
        tile_of: list[np.ndarray] = []
        for index, split, owner in zip(self.wanted.index, self.layout.axes, self.owners, strict=True):
            tile = tables.part_tiles(split)
            low = int(tile.min())
            least += low  # what an axis adds beyond that is less than the count of tiles, and not negative
            tile = np.append(tile[owner] - low, 0)[np.maximum(index, -1)]
            tile_of.append(np.where(index >= 0, tile, outside).astype(np.int32))
        total = 0
        for holders in self.wanted.chunks():
            source = self.wanted.summed(holders, tile_of)
            total += int(
                np.count_nonzero((source >= 0) & (source != self.wanted.tiles[holders, None] - least))
            )
        return total


def _distinct(parts: np.ndarray) -> np.ndarray:
    """Return the distinct numbers of every row, filled up with ``PAST``; negative ones are left out."""
    ordered = np.sort(parts, axis=1)
    is_new = ordered >= 0
    is_new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    width = int(is_new.sum(axis=1).max(initial=0))
    first = np.argsort(~is_new, axis=1, kind="stable")[:, :width]
    kept = np.take_along_axis(is_new, first, axis=1)
    return np.where(kept, np.take_along_axis(ordered, first, axis=1), PAST)


def reshape_crossing(source: Layout, target: Layout) -> tuple[int, int]:
    """Return elements that change tiles when row-major order pairs two layouts, and how many blocks were compared."""
    block = math.gcd(tables.block_size(source), tables.block_size(target))
    total = compared = 0
    for here, there in tables.paired_tiles(source, target):
        total += int((here != there).sum()) * block
        compared += here.size
    return total, compared


Misplaced = tuple[int, tuple[int, int], tuple[int, int]]
"""An element, and the tile and position where each of two layouts puts it."""


def misplaced(a: Layout, b: Layout) -> Misplaced | None:
    """Return the first element, in row-major order, that two layouts put elsewhere, with tile and position in each.

    None when every element lies on the same tile at the same position.
    """
    block = math.gcd(tables.block_size(a), tables.block_size(b))
    for flat in tables.blocks(a.shape, block):
        (tile_a, place_a), (tile_b, place_b) = tables.places(a, flat), tables.places(b, flat)
        wrong = np.flatnonzero((tile_a != tile_b) | (place_a != place_b))
        if wrong.size:
            i = int(wrong[0])
            return int(flat[i]), (int(tile_a[i]), int(place_a[i])), (int(tile_b[i]), int(place_b[i]))
    return None
