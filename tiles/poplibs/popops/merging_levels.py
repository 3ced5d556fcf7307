"""What sorts merge, and how: level by level, runs of sorted elements two by two until there is one a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiles.numerics.shared import Amount
from tiles.poplibs.popops.packing_code import Narrow, narrow_arrays, word_of
from tiles.poplibs.popops.sort_order import Order

POSITION = "int32"
NOWHERE = np.iinfo(np.int32).max
"""The position of what fills a row that has fewer elements than are wanted; a row is never that long."""
_PIECES_MAX = 6
"""Pieces of a pair: no more than there are workers."""
SEARCH = 3.0, 1.0
"""Elements in whose time a piece finds where it begins, and those for each of its halvings."""


@dataclass(frozen=True)
class Merging:
    """What is merged.

    Args:
      order: of the elements.
      has_positions: whether positions lie behind the arrays, and decide between equal elements; else runs do.
      size: positions from here on are padding; None where there is none.
      run: elements of the sorted runs that there are at first.
      kept: how many of a row are wanted; None for all.
      counts: whether the positions of the first runs are counted, not read.
      ascends: whether positions ascend from run to run, as those that are counted do: runs decide between equal elements.
    """

    order: Order
    has_positions: bool = True
    size: int | None = None
    run: int = 1
    kept: int | None = None
    counts: bool = False
    ascends: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the arrays that are merged."""
        return (*self.order.dtypes, POSITION) if self.has_positions else self.order.dtypes

    @property
    def narrow(self) -> dict[int, Narrow]:
        """The arrays whose elements are smaller than words, by number."""
        return narrow_arrays(self.order)

    @property
    def words(self) -> tuple[str, ...]:
        """Dtypes of the arrays' words."""
        return tuple(map(word_of, self.dtypes))

    @property
    def question(self) -> tuple[Order, bool, int | None, bool]:
        """What code depends on beside the level: order, whether there are positions, their padding, whether they ascend."""
        return self.order, self.has_positions, self.size, self.counts or self.ascends


@dataclass(frozen=True)
class Level:
    """One time that the code goes over a row; numbers, or arrays with one entry per vertex.

    Attributes:
      number: of the level.
      run: elements of a run, and at most of a result.
      most: elements of a result.
      elements: of a row.
      pairs: of runs in a row.
      pieces: of a pair's result.
      active: whether there is this level.
    """

    number: int
    run: int
    most: int
    elements: Amount
    pairs: Amount
    pieces: Amount
    active: np.ndarray

    @property
    def piece(self) -> Any:
        """Elements of a piece."""
        return -(-np.minimum(self.most, self.elements) // self.pieces)

    @property
    def found(self) -> Any:
        """Elements of a row afterwards."""
        return (self.pairs - 1) * self.most + np.minimum(
            self.most, self.elements - 2 * self.run * (self.pairs - 1)
        )

    @property
    def steps(self) -> int:
        """Halvings by which a piece finds where it begins."""
        return _steps(self.run, self.most)


def levels_of(
    n: Amount,
    run: int,
    kept: int | None,
    workers: int,
    *,
    is_sorted: bool = False,
    search: tuple[float, float] = SEARCH,
) -> Iterator[Level]:
    """Yield the levels of rows of ``n`` elements: the first, and more as long as there are several runs.

    A row of one run has none if ``is_sorted``: what is wanted of it need not be moved. ``search`` says in the time of how many
    elements a piece finds where it begins, and for each halving more.
    """
    elements, number = np.asarray(n, np.int64), 0
    active = elements > run if is_sorted else np.ones(np.shape(n), bool)
    while active.any():
        most = 2 * run if kept is None else min(2 * run, kept)
        pairs = np.maximum(-(-elements // (2 * run)), 1)
        searching = search[0] + search[1] * _steps(run, most)
        pieces = _pieces(pairs, np.minimum(most, elements), searching, workers)
        level = Level(number, run, most, elements, pairs, pieces, active)
        yield level
        elements, run, number = np.where(active, level.found, elements), most, number + 1
        active = active & (elements > run)


def _steps(run: int, most: int) -> int:
    """Return how many halvings tell how many of up to ``most`` elements are of one of two runs."""
    return min(run, most).bit_length()


def _pieces(pairs: Amount, found: Any, searching: float, workers: int) -> Any:
    """Return into how many pieces results of ``found`` elements are cut so that workers have done soonest."""
    choices = np.arange(1, _PIECES_MAX + 1)
    turns = -(-np.asarray(pairs)[..., None] * choices // workers)
    each = -(-np.asarray(found)[..., None] // choices) + np.where(choices > 1, searching, 0)
    return choices[np.argmin(turns * each, axis=-1)]
