"""What the vertices of an operation take, by the extents of their cells: asked once, whatever plans cut it so.

An operation is searched several times: where its operands lie, and with one or the other of them free. Most plans of these
searches have cells of the same extents, on other tiles and in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tiles.graph import Arrangement, Codelet, Extents, OpForm, Plan
from tiles.numerics.dtypes import itemsize
from tiles.plan.question import Question
from tiles.target import Target


class CellFigures(NamedTuple):
    """What one vertex takes.

    Args:
      cycles: of a vertex that uses all workers of its tile.
      results: elements.
      scratch_bytes: temporary bytes beyond operands and results.
      operand_bytes: bytes that it reads of each operand.
    """

    cycles: float
    results: int
    scratch_bytes: int
    operand_bytes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Cells:
    """The vertices of one operation, wherever its operands lie. What is found is kept; threads at worst find it twice.

    Args:
      form: the operation's domain and maps.
      codelet: what its vertices compute.
      operand_dtypes: dtypes of the operands.
      result_dtypes: dtypes of the results.
      target: the machine.
    """

    form: OpForm
    codelet: Codelet
    operand_dtypes: tuple[str, ...]
    result_dtypes: tuple[str, ...]
    target: Target
    _figures: dict[tuple[tuple[int, ...], bool], CellFigures] = field(default_factory=dict)
    _orders: dict[tuple[int, ...], Arrangement | None] = field(default_factory=dict)

    def figures(self, plans: Sequence[Plan]) -> list[CellFigures]:
        """Return what a vertex of each plan takes; what is not known yet is computed all at once."""
        reduced = self.form.reduced
        keys = [(plan.extents, any(plan.splits[d].is_split for d in reduced)) for plan in plans]
        new = [key for key in dict.fromkeys(keys) if key not in self._figures]
        if new:
            self._figures.update(zip(new, self._computed(new), strict=True))
        return [self._figures[key] for key in keys]

    def orders(self, plans: Sequence[Plan]) -> list[Arrangement | None]:
        """Return the order in which the vertices of each plan want what they read and write, None for no wish."""
        new = [key for key in dict.fromkeys(plan.extents for plan in plans) if key not in self._orders]
        if new:
            found = self.codelet.arrangements(self._extents(new), self.target)
            self._orders.update(zip(new, found or [None] * len(new), strict=True))
        return [self._orders[plan.extents] for plan in plans]

    def _extents(self, cells: Sequence[tuple[int, ...]]) -> Extents:
        sizes = np.array(cells, np.int64).reshape(len(cells), len(self.form.dims))
        sizes = tuple(np.maximum(sizes, 1).T.copy())  # an empty dimension is as long as one point
        return Extents(self.form, sizes, self.operand_dtypes, self.result_dtypes)

    def _computed(self, cells: Sequence[tuple[tuple[int, ...], bool]]) -> list[CellFigures]:
        """Return the figures of cells, given their extents and whether they compute partials."""
        extents, count = self._extents([each for each, _ in cells]), len(cells)

        def each(values: Any) -> list[Any]:
            found = np.asarray(values)
            return (found if found.shape == (count,) else np.broadcast_to(found, count)).tolist()

        are_partials = np.array([is_partial for _, is_partial in cells])
        cycles = each(self.codelet.cycles(extents, self.target).value)
        scratch = each(vertex_scratch(self.codelet, extents, are_partials, self.target))
        read = [
            each(extents.operand_elements(k) * itemsize(dtype)) for k, dtype in enumerate(self.operand_dtypes)
        ]
        operand_bytes = zip(*read, strict=True) if read else [()] * count
        return [
            CellFigures(float(taken), elements, int(temporary), sizes)
            for taken, elements, temporary, sizes in zip(
                cycles, each(extents.results), scratch, operand_bytes, strict=True
            )
        ]


def cells_of(question: Question) -> Cells:
    """Return the vertices of a question's operation."""
    dtypes = tuple(o.dtype for o in question.operands)
    return _cells(question.form, question.codelet, dtypes, question.result_dtypes, question.target)


_cells = lru_cache(maxsize=512)(Cells)


def vertex_scratch(codelet: Codelet, extents: Extents, is_split: np.ndarray, target: Target) -> Any:
    """Return the scratch bytes of the vertices of plans, those that compute partials where reductions are split.

    Args:
      codelet: what an operation computes.
      extents: of the cells of plans.
      is_split: which plans compute partials, bool ``[plans]``.
      target: the machine.
    """
    if not is_split.any() or codelet.combiner() is None:
        return codelet.scratch_bytes(extents, target)
    found = np.zeros(is_split.shape, np.int64)
    for chosen, computed in ((~is_split, codelet), (is_split, codelet.partial()[0])):
        if chosen.any():
            sizes = tuple(np.broadcast_to(size, is_split.shape)[chosen] for size in extents.sizes)
            found[chosen] = computed.scratch_bytes(replace(extents, sizes=sizes), target)
    return found
