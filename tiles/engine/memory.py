"""Tile memory as one array of words ``[tiles, words]`` on the host, and what is kept with it between runs.

Every part of a layout and every slice of a plan is a strided view at its allocated address, so a move is one copy
of one view to another and there is nothing to compile. Views are made once for a memory, which serves run after run:
a run then is a list of copies. Nothing is enumerated per tile, vertex or element.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from tiles._jax_compat import DTypeLike
from tiles.engine.addresses import Box, Place, boxes, in_order
from tiles.engine.placement import box_axes, cell_axes, digits_of, layout_axes
from tiles.engine.views import Moves, copy, empty, moves, pieces, threads_for, view
from tiles.errors import InvalidArguments
from tiles.graph import Layout
from tiles.numerics.dtypes import WORD_BYTES, itemsize, to_jax

POISON = 0x7FC0DEAD
SCRATCH_BYTES = 1 << 24
"""Least size of a piece of scratch memory."""

T = TypeVar("T")


class TileMemory:
    """The words of all tiles, and the views and the scratch memory that runs on them use.

    Args:
      tiles: number of tiles.
      words: of every tile.
      workspace: scratch memory, shared with other memories whose steps run at other times.
      in_file: whether the words lie in a file that is mapped, which the host may write to disk and forget.

    Raises:
      InvalidArguments: there is no room for the file.
    """

    def __init__(
        self, tiles: int, words: int, workspace: Workspace | None = None, in_file: bool = False
    ) -> None:
        """Take memory, with anything in it."""
        self._mapped = _mapped(tiles * words * WORD_BYTES) if in_file else None
        self.words = (
            np.empty((tiles, words), np.uint32)
            if self._mapped is None
            else np.frombuffer(self._mapped, np.uint32, tiles * words).reshape(tiles, words)
        )
        self.row_bytes = words * WORD_BYTES
        workspace = Workspace() if workspace is None else workspace
        self.scratch, self.checks = workspace.scratch, workspace.checks
        self._kept: dict[Any, Any] = {}

    def forget(self) -> None:
        """Let the host hold no words that lie in a file, until they are read again."""
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)  # of a shared mapping: the file keeps them

    def poison(self) -> None:
        """Fill all words with a pattern that nobody wrote."""
        whole = Box(
            (0, 0), ((self.words.shape[0], self.row_bytes, 0), (self.words.shape[1], WORD_BYTES, WORD_BYTES))
        )
        row = np.full(self.words.shape[1], POISON, np.uint32)
        copy(moves([whole], self.words, row, WORD_BYTES))

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a key before, or make it."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def address(self, tile: int, word: int, size_bytes: int) -> int:
        """Return where a tile's word lies, in bytes from the first tile's first, after checking that a tile holds so many bytes there."""
        assert 0 <= word * WORD_BYTES <= self.row_bytes - size_bytes
        return tile * self.row_bytes + word * WORD_BYTES

    def place_of(self, layout: Layout, word: int, dtype: str) -> Place:
        """Return where the elements of a tensor lie whose parts begin at a word address."""
        axes = layout_axes(layout, dtype, self.row_bytes)
        return Place(axes, self.address(layout.base, word, layout.part_bytes(dtype)))

    def tensor(self, layout: Layout, word: int, dtype: str) -> Stored:
        """Return the tensor whose parts begin at a word address."""
        return Stored(self, self.place_of(layout, word, dtype), layout.shape, dtype)

    def parts(self, layout: Layout, word: int, dtype: str) -> Stored:
        """Return the parts that begin at a word address, all at full length, as ``[*grid, *part]``."""
        digits = [digits_of(split, self.row_bytes) for split in layout.axes]
        held = box_axes(layout.part_shape, layout.arrangement, itemsize(dtype))
        axes = cell_axes(layout.grid, digits, held)
        place = Place(axes, self.address(layout.base, word, layout.part_bytes(dtype)))
        return Stored(self, place, (*layout.grid, *layout.part_shape), dtype)


class Scratch:
    """Aligned arrays that are used for a while, taken from the same few pieces of memory again and again."""

    def __init__(self) -> None:
        """Take nothing yet."""
        self._pieces: list[np.ndarray] = []
        self._number = self._used = 0

    def release(self) -> None:
        """Let the arrays taken from now on lie where earlier ones did."""
        self._number = self._used = 0

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return an array without values."""
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        while True:
            if self._number == len(self._pieces):
                self._pieces.append(empty((max(size_bytes, SCRATCH_BYTES),), np.uint8))
                self._pieces[-1].fill(0)  # what fills slices up comes from here: runs are alike to the bit
            piece = self._pieces[self._number]
            start, end = self._used, self._used + size_bytes
            if end <= piece.size:
                self._used = -(-end // 64) * 64
                return piece[start:end].view(dtype).reshape(shape)
            self._number, self._used = self._number + 1, 0


class Workspace:
    """Scratch memory of two kinds.

    Attributes:
      scratch: for operands.
      checks: for comparisons, apart, because copies are compared while operands are computed with.
    """

    def __init__(self) -> None:
        """Take nothing yet."""
        self.scratch, self.checks = Scratch(), Scratch()


def _mapped(size_bytes: int) -> mmap.mmap:
    """Return memory that lies in a file without a name, in the directory for temporary files.

    Raises:
      InvalidArguments: that has no room for it.
    """
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a fault later
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            file.truncate(size_bytes)
            return mmap.mmap(file.fileno(), size_bytes)
    except OSError as error:
        raise InvalidArguments(
            f"a replica's memory of {size_bytes:,} B does not fit into a file in {tempfile.gettempdir()}: {error}",
            try_="TMPDIR= a directory on a disk with room, or more resident_bytes",
        ) from error


class Stored:
    """A tensor in tile memory.

    Args:
      memory: where it lies.
      place: its elements.
      shape: its shape.
      dtype: its element type.
    """

    def __init__(self, memory: TileMemory, place: Place, shape: tuple[int, ...], dtype: str) -> None:
        """Make the views."""
        self.shape, self.dtype, self._size_bytes = shape, to_jax(dtype), itemsize(dtype)
        found = boxes(place, in_order(shape, self._size_bytes))
        assert found is not None  # an array without gaps fits anything
        self._boxes = pieces(found, self._size_bytes)
        self._views = [view(memory.words, b, 0, self._size_bytes) for b in self._boxes]
        self._threads = threads_for(math.prod(shape) * self._size_bytes)

    def read(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return the tensor as an array of its own, the one given if there is one."""
        x = empty(self.shape, self.dtype) if out is None else out
        copy(Moves(list(zip(self._beside(x), self._views, strict=True)), self._threads))
        return as_booleans(x) if self.dtype == bool else x

    def write(self, value: np.ndarray) -> None:
        """Write the tensor's elements where they lie; what lies between short parts' ends and the next is left alone."""
        assert value.shape == self.shape and value.dtype.itemsize == self._size_bytes
        x = np.ascontiguousarray(value)
        copy(Moves(list(zip(self._views, self._beside(x), strict=True)), self._threads))

    def _beside(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the views of an array that belong to those of memory."""
        return [view(x, b, 1, self._size_bytes) for b in self._boxes]


def as_booleans(x: np.ndarray) -> np.ndarray:
    """Make every byte of an array of booleans 0 or 1, in place, and return it; a byte is true unless it is zero."""
    np.not_equal(x.view(np.uint8), 0, out=x)
    return x
