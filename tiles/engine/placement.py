"""Where cells lie in tile memory: views of an array of words ``[tiles, words]``, one axis per digit of a tile number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from tiles.engine.views import copy, empty
from tiles.graph import AxisSplit, Layout

Digit = tuple[int, int, int]
"""Radix, tile stride, and dimension of the grid."""


@dataclass(frozen=True)
class Block:
    """Cells whose tiles are given by digits that are all used: a box in memory.

    Args:
      cells: the block's cells along every dimension of the grid.
      base: tile of the first one.
      digits: of the cells' coordinates in the block, slowest first within a dimension.
    """

    cells: tuple[slice, ...]
    base: int
    digits: tuple[Digit, ...]

    def view(self, memory: np.ndarray, word: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return what the cells hold at a word address, one axis per digit: a view ``[*radices, *shape]``."""
        row, step = memory.strides
        assert 0 <= word <= memory.shape[1] - math.prod(shape)
        inner = [step * math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return np.ndarray(  # refuses what reaches outside the memory
            (*(radix for radix, _, _ in self.digits), *shape),
            memory.dtype,
            memory.data,
            self.base * row + word * step,
            (*(stride * row for _, stride, _ in self.digits), *inner),
        )

    def part_of(self, x: np.ndarray) -> np.ndarray:
        """Return the block's cells of ``[*grid, ...]`` as a view with one axis per digit, size 1 where the grid has."""
        rank = len(self.cells)
        cells = (c if n > 1 else slice(None) for c, n in zip(self.cells, x.shape[:rank], strict=True))
        radices = (r if x.shape[d] > 1 else 1 for r, _, d in self.digits)
        return x[(*cells, ...)].reshape((*radices, *x.shape[rank:]))


@dataclass(frozen=True)
class Placement:
    """Which tile holds which cell of a grid.

    Args:
      splits: one split per grid dimension.
      base: tile of the first cell.
    """

    splits: tuple[AxisSplit, ...]
    base: int

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Cells along every dimension."""
        return tuple(split.parts for split in self.splits)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The cells as few blocks: one, or up to one per digit of a dimension whose digits count further than it."""
        found = []
        for choice in itertools.product(*(_runs(*item) for item in enumerate(self.splits))):
            cells, offsets, digits = zip(*choice, strict=True) if choice else ((), (), ())
            found.append(Block(cells, self.base + sum(offsets), tuple(itertools.chain(*digits))))
        return tuple(found)

    def store(self, memory: np.ndarray, word: int, words: np.ndarray) -> None:
        """Write ``[*grid, ...]`` (size 1 along dimensions that repeat) at word address ``word`` of every cell."""
        shape = words.shape[len(self.splits) :]
        if 0 not in shape:
            for block in self.blocks:
                copy(block.view(memory, word, shape), block.part_of(words))

    def load(
        self,
        memory: np.ndarray,
        word: int,
        shape: tuple[int, ...],
        drop: frozenset[int] = frozenset(),
        order: Sequence[int] | None = None,
    ) -> np.ndarray:
        """Read words of ``shape`` at ``word`` of every cell's tile: ``[*grid, *shape]``, a view where there is one.

        Of cells that differ only along the dimensions in ``drop`` the first is read, and those have size 1.
        What has to be copied lies in memory by the axes in ``order``, so that this permutation of it is compact.
        """
        grid = tuple(1 if d in drop else n for d, n in enumerate(self.grid))
        first, *others = (b for b in self.blocks if not any(b.cells[d].start for d in drop))
        digits = [d for _, _, d in first.digits if d not in drop]
        if not others and len(set(digits)) == len(digits):
            return _firsts(first, first.view(memory, word, shape), drop).reshape((*grid, *shape))
        if order is None:
            out = empty((*grid, *shape), memory.dtype)
        else:  # lie as the caller goes on to read them
            axes = (*grid, *shape)
            out = empty(tuple(axes[a] for a in order), memory.dtype).transpose(np.argsort(order))
        for block in (first, *others):
            copy(block.part_of(out), _firsts(block, block.view(memory, word, shape), drop))
        return out


def _runs(d: int, split: AxisSplit) -> list[tuple[slice, int, tuple[Digit, ...]]]:
    """Return the parts of a dimension as runs with all digits used: parts, tile of the first, digits."""
    found, start, tile = [], 0, 0
    for i, (_, stride) in enumerate(split.digits if split.is_split else ()):
        rest = split.digits[i + 1 :]
        fast = math.prod(radix for radix, _ in rest)
        count = (split.parts - start) // fast
        if count:
            digits = [(count, stride), *rest]
            cells = slice(start, start + count * fast)
            found.append((cells, tile, tuple((r, s, d) for r, s in digits if r > 1)))
        start, tile = start + count * fast, tile + count * stride
    return found or [(slice(0, 1), 0, ())]


def _firsts(block: Block, view: np.ndarray, drop: frozenset[int]) -> np.ndarray:
    """Return a block's view at the first cells along the dimensions in ``drop``."""
    return view[(*(slice(0, 1) if d in drop else slice(None) for _, _, d in block.digits), ...)]


@lru_cache(maxsize=65536)
def placement(splits: tuple[AxisSplit, ...], base: int) -> Placement:
    """Return the placement of a grid, shared between callers."""
    return Placement(splits, base)


@dataclass(frozen=True)
class Box:
    """Parts of equal lengths.

    Args:
      elements: what they hold of every dimension of the tensor.
      place: their tiles.
    """

    elements: tuple[slice, ...]
    place: Placement


@lru_cache(maxsize=65536)
def boxes(layout: Layout) -> tuple[Box, ...]:
    """Return a layout's parts by their lengths: the full ones, and along each dimension the last one if it is short."""
    found = []
    for choice in itertools.product(*map(_lengths, layout.axes)):
        elements, splits, tiles = zip(*choice, strict=True) if choice else ((), (), ())
        found.append(Box(elements, placement(splits, layout.base + sum(tiles))))
    return tuple(found)


def _lengths(split: AxisSplit) -> list[tuple[slice, AxisSplit, int]]:
    """Return a dimension's full parts, and its short one, as elements, split, and tile of the first part."""
    full, rest = divmod(split.size, split.grain)
    if not (full and rest):
        return [(slice(0, split.size), split, 0)]
    end = full * split.grain
    return [
        (slice(0, end), AxisSplit(end, split.grain, split.digits), 0),
        (slice(end, split.size), AxisSplit(rest, split.grain), int(split.tiles[full])),
    ]


def of_layout(layout: Layout) -> Placement:
    """Return the placement of a layout's parts."""
    return placement(layout.axes, layout.base)
