"""Where the blocks of a sparse matrix are, and how they are cut into parts of about as many blocks each.

A pattern is cut into bands of columns, each band into parts of whole block rows, so that a part is what one vertex
multiplies. All parts have room for as many blocks as the fullest one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiles.errors import InvalidGraph
from tiles.numerics.arrays import distinct
from tiles.numerics.dtypes import itemsize
from tiles.poplibs.popsparse.cycles import dynamic_cycles, static_cycles
from tiles.target import Target

BLOCKS = (1, 4, 8, 16)
"""Elements along the side of a block for which PopLibs has vertices."""
REDUCE_SLOTS = 2
"""Slots of a 64-bit vector of partials that are added, for the choice of the split."""


@dataclass(frozen=True)
class Pattern:
    """Parts of a sparse matrix.

    Args:
      bands: bands of columns.
      parts: parts of rows in every band.
      rows: block rows of a part.
      columns: block columns of a band.
      order: which of the given blocks lies in every place, int64 ``[bands, parts, room]``; -1 in empty places.
      block_rows: block row inside its part, uint16 of that shape; ``rows`` in empty places.
      block_columns: block column inside its band; 0 in empty places.
    """

    bands: int
    parts: int
    rows: int
    columns: int
    order: np.ndarray
    block_rows: np.ndarray
    block_columns: np.ndarray

    @property
    def room(self) -> int:
        """Blocks for which a part has room."""
        return self.order.shape[2]


def pattern_of(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the block rows and columns of a boolean matrix of blocks, row by row."""
    rows, columns = np.nonzero(mask)
    return rows, columns


def cut(
    block_rows: np.ndarray, block_columns: np.ndarray, shape: tuple[int, int], bands: int, parts: int
) -> Pattern:
    """Return a pattern in parts.

    Args:
      block_rows: of every block, int.
      block_columns: likewise.
      shape: block rows and block columns of the matrix.
      bands: bands of columns; divides their number.
      parts: parts of rows; divides their number.

    Raises:
      InvalidGraph: blocks outside the matrix or twice, or numbers that do not divide it.
    """
    rows, columns = np.asarray(block_rows, np.int64), np.asarray(block_columns, np.int64)
    if shape[0] % parts or shape[1] % bands:
        raise InvalidGraph(f"{shape[0]} x {shape[1]} blocks do not come apart into {parts} x {bands} parts")
    inside = (rows >= 0) & (rows < shape[0]) & (columns >= 0) & (columns < shape[1])
    if not inside.all() or len(distinct(rows * shape[1] + columns)) != len(rows):
        raise InvalidGraph(f"blocks outside {shape[0]} x {shape[1]}, or one of them twice")
    high, wide = shape[0] // parts, shape[1] // bands
    number = columns // wide * parts + rows // high
    sequence = np.lexsort((columns, rows, number))
    counts = np.bincount(number, minlength=bands * parts)
    room = max(int(counts.max(initial=0)), 1)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.full((bands * parts, room), -1, np.int64)
    order[number[sequence], place] = sequence
    if len(rows):
        inner_rows = np.where(order < 0, high, rows[order] % high)
        inner_columns = np.where(order < 0, 0, columns[order] % wide)
    else:
        inner_rows, inner_columns = np.full_like(order, high), np.zeros_like(order)
    each = (bands, parts, room)
    return Pattern(
        bands,
        parts,
        high,
        wide,
        order.reshape(each),
        inner_rows.astype(np.uint16).reshape(each),
        inner_columns.astype(np.uint16).reshape(each),
    )


def split_of(
    shape: tuple[int, int], blocks: int, block: int, n: int, dtype: str, target: Target, *, is_dynamic: bool
) -> tuple[int, int]:
    """Return into how many bands and parts a pattern of evenly spread blocks is best cut.

    Counted as PopLibs' planner does (StaticMatMulPartitioner.cpp, getPartition): the dense rows of a band arrive, at
    twice the width where neighbours share them; blocks arrive where the columns are cut; partials of other bands arrive
    and are added.

    Args:
      shape: block rows and block columns.
      blocks: how many there are.
      block: elements along the side of one.
      n: columns of the dense operand.
      dtype: of both operands.
      target: the machine.
      is_dynamic: whether the pattern is known only at run time.
    """
    down, across = _divisors(shape[0]), _divisors(shape[1])
    parts, bands = (a.ravel() for a in np.meshgrid(down, across))
    fits = parts * bands <= target.num_tiles
    parts, bands = parts[fits], bands[fits]
    cuts = np.maximum(np.minimum(target.num_tiles // (parts * bands), -(-n // 4)), 1)
    columns = -(-n // cuts)
    mean = blocks / (parts * bands)
    room = np.ceil(mean + 3 * np.sqrt(mean)).astype(np.int64)  # the fullest of a thousand parts
    rows = np.minimum(shape[0] // parts, room)
    cost = dynamic_cycles if is_dynamic else static_cycles
    vertex = cost(rows, room, columns, block, dtype, target)
    size, width = itemsize(dtype), target.exchange_bytes_per_cycle
    dense = shape[1] // bands * block * columns * size / (2 * width)
    values = np.where(cuts > 1, room * block * block * size / width, 0)
    partials = shape[0] // parts * block * columns * itemsize("float32") * (1 - 1 / bands)
    added = partials / target.data_path_bytes * REDUCE_SLOTS
    best = int(np.argmin(vertex + dense + values + partials / width + added))
    return int(bands[best]), int(parts[best])


def _divisors(n: int) -> np.ndarray:
    every = np.arange(1, n + 1)
    return every[n % every == 0]
