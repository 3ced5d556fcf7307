"""How long tiles compute side by side, so that what is small is not all computed where its operands happen to lie.

Independent operations become one superstep (``compiler.grouping``), in which every tile does what lies there one after
another. An operation that reads a few elements is cheapest where they lie, and so is every other one that reads some of
them: one tile would compute the sines of all elements of a vector that are taken from it one by one. Operations are
counted by level: how many operations, one after another, it takes to come to what they read, since control was last met.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from tiles.graph import Plan

MOST_SHARE = 0.25
"""Of all tiles: what covers more leaves none free."""


class Loads:
    """Cycles of what lies on few tiles, by level and tile.

    Args:
      num_tiles: of an IPU.
    """

    def __init__(self, num_tiles: int) -> None:
        """Start with idle tiles."""
        self._num_tiles = num_tiles
        self._levels: dict[str, int] = {}
        self._cycles: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(num_tiles))

    def clear(self) -> None:
        """Begin anew: nothing runs beside what came before."""
        self._levels.clear()
        self._cycles.clear()

    def level(self, operands: Iterable[str]) -> int:
        """Return the level of what reads these tensors."""
        return max((self._levels.get(name, 0) for name in operands), default=0)

    def set_level(self, results: Iterable[str], level: int) -> None:
        """Say at which level tensors can be read."""
        self._levels.update(dict.fromkeys(results, level))

    def covers_few(self, plan: Plan) -> bool:
        """Whether a plan lies on so few tiles that others may be free."""
        return plan.num_cells <= MOST_SHARE * self._num_tiles

    def busy_cycles(self, plan: Plan, level: int) -> float:
        """Return for how long the busiest of a plan's tiles computes something else at a level."""
        return float(self._cycles[level][plan.tiles].max()) if level in self._cycles else 0.0

    def add(self, plan: Plan, level: int, cycles: float) -> None:
        """Count an operation of so many cycles on each of a plan's tiles."""
        self._cycles[level][plan.tiles] += cycles
