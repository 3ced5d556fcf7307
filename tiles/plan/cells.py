"""What the vertices of an operation take, by the extents of their cells: asked once, whatever plans cut it so.

An operation is searched several times: where its operands lie, and with one or the other of them free. Most plans of these
searches have cells of the same extents, on other tiles and in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tiles.graph import Arrangement, Codelet, Extents, OpForm, Plan
from tiles.numerics.dtypes import itemsize
from tiles.plan.question import Question
from tiles.target import Target

K = TypeVar("K", bound=Hashable)


def remembering() -> Callable[[Sequence[Any], Callable[[list[Any]], Sequence[Any]]], list[Any]]:
    """Return what answers questions, given what finds the answers to new ones, all at once.

    What it knows grows through it alone; whoever holds it can change no answer.
    """
    known: dict[Any, Any] = {}

    def answered(questions: Sequence[K], find: Callable[[list[K]], Sequence[Any]]) -> list[Any]:
        new = [each for each in dict.fromkeys(questions) if each not in known]
        if new:
            known.update(zip(new, find(new), strict=True))
        return [known[each] for each in questions]

    return answered


def keeping_last() -> Callable[[Hashable, Callable[[], Any]], Any]:
    """Return what makes something for a key, or returns it once more if it was asked for the same before."""
    last: list[tuple[Hashable, Any]] = [(None, None)]

    def kept(key: Hashable, make: Callable[[], Any]) -> Any:
        known, value = last[0]
        if known is None or known != key:
            value = make()
            last[0] = key, value
        return value

    return kept


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
    _figures: Callable[..., list[CellFigures]] = field(default_factory=remembering)
    _orders: Callable[..., list[Arrangement | None]] = field(default_factory=remembering)
    _kept: Callable[[Hashable, Callable[[], Extents]], Extents] = field(default_factory=keeping_last)

    def figures(self, plans: Sequence[Plan]) -> list[CellFigures]:
        """Return what a vertex of each plan takes; what is not known yet is computed all at once."""
        reduced = self.form.reduced
        keys = [(plan.extents, any(plan.splits[d].is_split for d in reduced)) for plan in plans]
        return self._figures(keys, self._computed)

    def learn(self, plan: Plan, find: Callable[[], CellFigures]) -> None:
        """Take what a vertex of a plan takes from who knows it already, if nobody has asked for it yet."""
        key = plan.extents, any(plan.splits[d].is_split for d in self.form.reduced)

        def found(new: list[Any]) -> list[CellFigures]:
            return [find() for _ in new]

        self._figures([key], found)

    def orders(self, plans: Sequence[Plan]) -> list[Arrangement | None]:
        """Return the order in which the vertices of each plan want what they read and write, None for no wish."""
        return self._orders([plan.extents for plan in plans], self._wanted)

    def _wanted(self, cells: list[tuple[int, ...]]) -> Sequence[Arrangement | None]:
        found = self.codelet.arrangements(self._extents(cells), self.target)
        return found or [None] * len(cells)

    def _extents(self, cells: Sequence[tuple[int, ...]]) -> Extents:
        """Return the extents of cells: of the last ones the same object, from which formulas derive some figures once."""

        def make() -> Extents:
            sizes = np.array(cells, np.int64).reshape(len(cells), len(self.form.dims))
            sizes = tuple(np.maximum(sizes, 1).T.copy())  # an empty dimension is as long as one point
            return Extents(self.form, sizes, self.operand_dtypes, self.result_dtypes)

        return self._kept(tuple(cells), make)

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
    partial = codelet.partial()[0].scratch_bytes(extents, target)
    return partial if is_split.all() else np.where(is_split, partial, codelet.scratch_bytes(extents, target))
