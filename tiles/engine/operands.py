"""An operand of a vertex group in tile memory: where its slices lie and how they are cut, derived once per engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tiles.engine import memory
from tiles.engine.placement import Placement
from tiles.engine.views import compact
from tiles.numerics.dtypes import word_count
from tiles.plan import Slices


@dataclass(frozen=True)
class HeldOperand:
    """What every cell of a group finds on its own tile for one operand.

    Args:
      variable: name of the variable that is read.
      is_received: whether an exchange brings the slices; else they are the variable's parts, in place.
      place: the cells' tiles.
      slices: what each cell reads.
      word: word address of every cell's slice.
      dtype: element type as the engine carries it.
      fill: value of what lies outside the variable, as carried, or None.
    """

    variable: str
    is_received: bool
    place: Placement
    slices: Slices
    word: int
    dtype: str
    fill: np.ndarray | None

    @cached_property
    def _repeated(self) -> frozenset[int]:
        return memory.repeated_dims(self.slices)

    @cached_property
    def _is_cut_once(self) -> bool:
        return memory.is_cut_once(self.slices)

    def words_of(self, value: np.ndarray) -> np.ndarray:
        """Return the slices of the variable's value as words, as ``Placement.store`` takes them."""
        slices = memory.disperse(value, self.slices, self.fill)
        if self.slices.replication > 1:  # what is copied often had better lie together
            slices = compact(slices)
        return memory.as_words(slices, len(self.place.grid))

    @cached_property
    def _order(self) -> list[int]:
        return memory.collecting_order(self.slices)

    def load(
        self, state: np.ndarray, drop: frozenset[int] = frozenset(), order: Sequence[int] | None = None
    ) -> np.ndarray:
        """Return what the cells find: ``[*grid, *extents]``, size 1 along ``drop``; see ``Placement.load``."""
        return memory.load_elements(
            state, self.place, self.word, self.dtype, self.slices.extents, drop, order
        )

    def collect(self, state: np.ndarray) -> np.ndarray:
        """Return the variable's value put together from the cells' slices."""
        return memory.collect(self.load(state, self._repeated, self._order), self.slices)

    def copies_agree(self, state: np.ndarray) -> bool:
        """Return whether all copies of every element are the same words."""
        count = word_count(self.dtype, math.prod(self.slices.extents))
        if self.slices.replication > 1 and count:
            if not memory.replicas_agree(state, self.place, self.word, count, self._repeated):
                return False
        if self._is_cut_once:
            return True
        held = self.load(state, self._repeated)
        return memory.slices_agree(held, memory.collect(held, self.slices), self.slices, self.fill)
