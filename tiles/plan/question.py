"""What the planner is asked: an operation, what is known of its operands, and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiles.graph import Codelet, Extents, Layout, OpForm, Plan
from tiles.graph.hashing import hashed_once
from tiles.target import Target

MEMORY_PROPORTION = 0.6
"""Share of a tile that an operation's temporaries may take: PopLibs' default for availableMemoryProportion."""

CODE_PRICE = 0.5
"""Cycles that a plan may take more, each time it runs, to save a byte of exchange code on the fullest tile.

A choice, not a fact: Poplar's ``opt.internalExchangeOptimisationTarget`` is the same trade of cycles for memory."""


@hashed_once
@dataclass(frozen=True)
class Operand:
    """What the planner knows of an operand: its shape, dtype, and where it lives (None: still free)."""

    shape: tuple[int, ...]
    dtype: str
    layout: Layout | None


@hashed_once
@dataclass(frozen=True)
class Question:
    """What is to be planned.

    Args:
      form: the operation's domain and maps.
      codelet: what its vertices compute.
      operands: shapes, dtypes and present layouts.
      result_dtypes: dtypes of the results.
      target: the machine.
      code_price: cycles that a byte of exchange code on the fullest tile is worth.
      within: tiles, from the first one on, that it may use; 0 for all.
    """

    form: OpForm
    codelet: Codelet
    operands: tuple[Operand, ...]
    result_dtypes: tuple[str, ...]
    target: Target
    code_price: float = CODE_PRICE
    within: int = 0

    def extents(self, plans: Sequence[Plan]) -> Extents:
        """Return the extents of a full cell of every plan, int64 ``[plans]`` along each dimension."""
        cells = np.array([plan.extents for plan in plans], np.int64).reshape(len(plans), len(self.form.dims))
        sizes = tuple(np.maximum(cells, 1).T.copy())  # an empty dimension is as long as one point
        return Extents(self.form, sizes, tuple(o.dtype for o in self.operands), self.result_dtypes)
