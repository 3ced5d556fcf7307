"""How elements come from the order in which a part holds them into the order in which a vertex reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.graph import Arrangement, Layout, common_run
from tiles.graph.layout import ceil_div
from tiles.numerics.dtypes import WORD_BYTES
from tiles.plan.transpose_cycles import fills_blocks, rearrange_cycles, transpose_cycles
from tiles.target import Target

SHORTEST_RUN_BYTES = 8
"""Runs of so many bytes, an access of the data path, are sent to where they are read, one by one; what stays together
in shorter ones arrives in the order it is held in and is transposed on the tile, as PopLibs does, or comes word by word."""


@dataclass(frozen=True)
class Reordering:
    """Where elements are held in another order than row-major, or read in one: how they come from one to the other.

    Args:
      is_kept: whether both orders are the same.
      run: elements that are neighbours in both orders.
      together: elements that arrive together: a run, or what is held together if it is reordered after it arrived.
      rows: elements of a block that are neighbours where they are read, 0 if blocks are not transposed.
      columns: elements of a block that are neighbours where they are held.
      arrives_as_stored: whether the exchange leaves them in the order they are held in.
    """

    is_kept: bool
    run: int
    together: int
    rows: int
    columns: int
    arrives_as_stored: bool

    def is_regressed(self, element_bytes: int) -> bool:
        """Whether PopLibs' regression for copies says what it takes, at least in part, and not its transpose vertex."""
        return not (self.rows and self.columns and fills_blocks(self.rows, self.columns, element_bytes))

    def cycles(self, need: np.ndarray, own: np.ndarray, element_bytes: int, target: Target) -> Any:
        """Return the cycles of ordering ``need`` elements, of which a tile held ``own`` before; int64.

        Source: PopLibs' transpose vertices, and its rule for other rearrangements (``tiles.plan.transpose_cycles``).
        """
        count = np.asarray(need if self.arrives_as_stored else own, np.int64)
        if self.rows and self.columns:
            blocks = ceil_div(count, self.rows * self.columns)
            cycles = transpose_cycles(blocks, self.rows, self.columns, element_bytes, target).value
        else:
            cycles = rearrange_cycles(count * element_bytes, self.run * element_bytes, target)
        return np.where(count > 0, np.ceil(np.asarray(cycles, np.float64)), 0).astype(np.int64)


@lru_cache(maxsize=16384)
def reordering_of(
    source: Layout, into: Arrangement, extents: tuple[int, ...], element_bytes: int
) -> Reordering | None:
    """Return how slices of ``extents`` of a tensor in ``source`` come into an order; None where all is row-major."""
    held = source.arrangement
    if held.is_row_major and into.is_row_major:
        return None
    here = tuple(min(a, b) for a, b in zip(source.part_shape, extents, strict=True))
    run = common_run(held, source.part_shape, into, extents)
    has_runs = run * element_bytes >= SHORTEST_RUN_BYTES
    is_kept = held.fit(here) == into.fit(here) and (has_runs or run == math.prod(here))
    if is_kept or has_runs:
        return Reordering(is_kept, run, run, 0, 0, False)
    d, columns = _fastest(held, extents)  # it lies whole in its buffer before it is reordered
    e, rows = _fastest(into, extents)
    if d != e:
        return Reordering(False, run, common_run(held, source.part_shape, held, extents), rows, columns, True)
    if run * element_bytes % WORD_BYTES == 0:
        return Reordering(False, run, run, 0, 0, False)
    return Reordering(False, run, common_run(held, source.part_shape, held, extents), 0, 0, True)


def _fastest(order: Arrangement, extents: Sequence[int]) -> tuple[int, int]:
    """Return the dimension whose elements are neighbours, and how many of them."""
    return next(((d, n) for d, n, _ in reversed(order.factors(extents)) if n > 1), (-1, 1))
