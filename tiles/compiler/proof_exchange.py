"""Proof of one exchange: how many elements cross tiles, counted at receivers, at senders and one by one.

An executable does not list its messages; they follow from a layout and from what holders take. Three counts made in
different ways must agree before any is believed.
"""

from __future__ import annotations

import math

import numpy as np

from tiles.compiler import proof_tables as tables
from tiles.compiler.proof_tables import Table
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
        self.layout, self.parts, self.wanted = layout, parts, wanted
        self.owners = tables.element_owners(layout)
        self.local = self._local(tables.holder_on(parts, num_tiles)[wanted.tiles])

    def _local(self, part: np.ndarray) -> np.ndarray:
        """Return how many elements each holder finds in the part (-1: none) on its own tile, int64 ``[holders]``."""
        local = (part >= 0).astype(np.int64)
        for axis, owner in enumerate(self.owners):
            index = self.wanted.index[axis]
            owned = np.where(index >= 0, np.append(owner, -1)[np.maximum(index, -1)], -1)
            mine = self.parts.rows[axis][np.maximum(part, 0)]
            pairs, inverse = np.unique(np.stack([self.wanted.rows[axis], mine]), axis=1, return_inverse=True)
            local *= (owned[pairs[0]] == pairs[1][:, None]).sum(axis=1)[inverse.reshape(-1)]
        return local

    def received(self) -> int:
        """Return elements that arrive from other tiles, counted holder by holder."""
        total = np.ones(self.wanted.tiles.size, np.int64)
        for rows, index in zip(self.wanted.rows, self.wanted.index, strict=True):
            total *= (index >= 0).sum(axis=1)[rows]
        return int((total - self.local).sum())

    def sent(self) -> int:
        """Return elements that leave for other tiles, each delivery counted, part by part of the source."""
        lists = math.prod(index.shape[0] for index in self.wanted.index)
        leaving = np.full(self.parts.tiles.size, self.wanted.tiles.size // max(1, lists), np.int64)
        for axis, rows in enumerate(self.parts.rows):
            index, held = self.wanted.index[axis], self.parts.index[axis]
            readers = np.append(np.bincount(index[index >= 0], minlength=self.parts.shape[axis]), 0)
            leaving *= np.where(held >= 0, readers[held], 0).sum(axis=1)[rows]
        return int(leaving.sum() - self.local.sum())

    def crossing(self) -> int:
        """Return elements whose source tile is not their holder's, looked at one by one."""
        tile_of = []
        for axis, (split, owner) in enumerate(zip(self.layout.axes, self.owners, strict=True)):
            tile = np.append(tables.part_tiles(split)[owner], 0)
            tile_of.append(tile[np.maximum(self.wanted.index[axis], -1)])
        total = 0
        for holders in self.wanted.chunks():
            inside = self.wanted.flat(holders) >= 0
            source = self.layout.base + self.wanted.summed(holders, tile_of)
            total += int((inside & (source != self.wanted.tiles[holders][:, None])).sum())
        return total


def reshape_crossing(source: Layout, target: Layout) -> tuple[int, int]:
    """Return elements that change tiles when row-major order pairs two layouts, and how many blocks were compared."""
    block = math.gcd(tables.block_size(source), tables.block_size(target))
    total = compared = 0
    for flat in tables.blocks(source.shape, block):
        crosses = tables.places(source, flat)[0] != tables.places(target, flat)[0]
        total += int(crosses.sum()) * block
        compared += flat.size
    return total, compared


def misplaced(a: Layout, b: Layout) -> tuple[int, tuple[int, int], tuple[int, int]] | None:
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
