"""Which words of which blocks the elements of random bits are, as XLA numbers them.

A generator makes a block of a counter: two words of threefry, four of Philox. Philox' words, and those of 64-bit elements, are
elements in row-major order. Elsewhere two neighbours along one dimension share a counter of threefry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiles.cached import cached_property
from tiles.numerics.dtypes import itemsize

BLOCK_WORDS = {"threefry": 2, "philox": 4}


def paired_dimension(shape: tuple[int, ...]) -> int | None:
    """Return the dimension whose neighbours share a threefry counter: the first even, else the longest."""
    if not shape:
        return None
    even = [d for d, size in enumerate(shape) if size % 2 == 0]
    return even[0] if even else shape.index(max(shape))


@dataclass(frozen=True)
class Numbering:
    """The numbers of an array's words.

    Args:
      algorithm: threefry or philox.
      dtype: of the elements.
      shape: of the array.
    """

    algorithm: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def block_words(self) -> int:
        """Words of a block."""
        return BLOCK_WORDS[self.algorithm]

    @property
    def element_words(self) -> int:
        """Words of an element; one of fewer bits keeps the lower bits of its word."""
        return 2 if itemsize(self.dtype) == 8 else 1

    @cached_property
    def paired(self) -> int | None:
        """The dimension along which neighbours share a counter of threefry; None where words follow one another."""
        return None if self.algorithm == "philox" or self.element_words == 2 else paired_dimension(self.shape)

    @cached_property
    def apart(self) -> bool:
        """Whether the two words of a block lie in different rows."""
        return self.paired is not None and math.prod(self.shape[self.paired + 1 :]) > 1

    @cached_property
    def numbered(self) -> tuple[int, ...]:
        """The shape in whose row-major order blocks that are apart, or else words, are numbered."""
        sizes = list(self.shape)
        if self.paired is not None:
            pairs = -(-sizes[self.paired] // 2)
            sizes[self.paired] = pairs if self.apart else 2 * pairs
        return tuple(sizes)

    @property
    def blocks(self) -> int:
        """How many counters the array uses up."""
        if self.apart:
            return math.prod(self.numbered)
        return -(-math.prod(self.numbered) * self.element_words // self.block_words)

    @property
    def _innermost(self) -> int:
        """The first dimension that may be part of a row."""
        return 0 if self.paired is None or not self.apart else self.paired + 1

    def rows(self, sizes: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the elements of the rows of cells, whose blocks are numbered one after the other, and their number.

        Rows whose words are apart are counted in pairs.

        Args:
          sizes: of the cells along every dimension.
        """
        length, is_whole = np.int64(1), np.bool_(True)
        for d in reversed(range(self._innermost, len(self.shape))):
            length = length * np.where(is_whole, sizes[d], 1)
            is_whole = is_whole & (sizes[d] == self.numbered[d])
        total = np.int64(1)
        for d, size in enumerate(sizes):
            total = total * (-(-size // 2) if self.apart and d == self.paired else size)
        return np.asarray(length), np.asarray(total // np.maximum(length, 1))

    def blocks_of_rows(self, sizes: Sequence[np.ndarray]) -> np.ndarray:
        """Return the blocks of a row of cells: one more than it fills where rows may begin inside blocks."""
        length, rows = self.rows(sizes)
        if self.apart:
            return length
        words, each = length * self.element_words, self.block_words
        pitch = self.element_words * next((n for n in reversed(self.numbered) if n > 1), each)
        is_even = (words % each == 0) & ((rows == 1) | (pitch % each == 0))
        return -(-np.where(is_even, words, words + each - 1) // each)

    def table(self, sizes: tuple[int, ...], origins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what ``tiles.elements.blocks`` wants to know of rows, uint32 ``[cells, rows, fields]``, and their number.

        Args:
          sizes: of the cells.
          origins: where they begin, ``[cells, dims]``.
        """
        length = int(self.rows([np.asarray(size) for size in sizes])[0])
        cut, held = len(sizes), 1
        while held < length:
            cut -= 1
            held *= sizes[cut]
        if self.apart:
            return self._apart(sizes, origins.astype(np.int64), cut, length)
        indices = self._indices(sizes[:cut], origins)
        place = self._place(indices, origins, cut) * self.element_words
        found = np.stack([place // self.block_words, place % self.block_words], axis=-1)
        return found.astype(np.uint32), np.full(len(origins), place.shape[1])

    def _apart(
        self, sizes: tuple[int, ...], origins: np.ndarray, cut: int, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the table of pairs of rows; the pairs that a cell does not have are the last ones."""
        assert self.paired is not None
        d, size = self.paired, sizes[self.paired]
        start = origins[:, d]
        pairs = (start + size - 1) // 2 - start // 2 + 1
        others = [n for k, n in enumerate(sizes[:cut]) if k != d]
        grid = np.indices((int(pairs.max()), *others)).reshape(1 + len(others), -1)
        local = np.insert(grid[1:], d, 0, axis=0)[:, None].repeat(len(origins), axis=1)
        first = 2 * (start[:, None] // 2 + grid[0]) - start[:, None]
        halved = origins.copy()
        halved[:, d] = start // 2
        indices = [(grid[0] if k == d else local[k]) + halved[:, k, None] for k in range(cut)]
        number = self._place(indices, halved, cut)
        steps = [math.prod(sizes[k + 1 : cut]) for k in range(cut)]
        rest = np.zeros_like(first)
        for k, step in enumerate(steps):
            rest = rest + local[k] * step
        rows: list[np.ndarray] = [first, first + 1]
        is_there = [(row >= 0) & (row < size) for row in rows]
        where: list[np.ndarray] = []
        for one, other in ((0, 1), (1, 0)):
            row: np.ndarray = np.where(is_there[one], rows[one], rows[other])
            where.append((rest + row * steps[d]) * length * 4 + ~is_there[one])
        found = np.stack([number, *where], axis=-1)
        return found.astype(np.uint32), pairs * math.prod(others)

    def _indices(self, sizes: Sequence[int], origins: np.ndarray) -> list[np.ndarray]:
        """Return the indices of rows along the dimensions that they do not run over, ``[cells, rows]`` each."""
        grid = np.indices(tuple(sizes)).reshape(len(sizes), math.prod(sizes))
        return [origins[:, d, None].astype(np.int64) + grid[d] for d in range(len(sizes))]

    def _place(self, indices: Sequence[np.ndarray], origins: np.ndarray, cut: int) -> np.ndarray:
        """Return the numbers with which rows begin, ``[cells, rows]``."""
        place = np.zeros((len(origins), 1), np.int64)
        for d in range(len(self.numbered)):
            step = math.prod(self.numbered[d + 1 :])
            place = place + step * (indices[d] if d < cut else origins[:, d, None].astype(np.int64))
        return place
