"""Tile code of functions of rows: their stages one after another, folds with the functions that they alone need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from tiles.elements.cell import ELEMENT, ROW
from tiles.errors import NoTileCode
from tiles.graph import CodeData, VertexCode
from tiles.graph.cycles import ValueName
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.expression import Body
from tiles.poplibs.popops.map_code import Levels, rows_code
from tiles.poplibs.popops.reduce_code import fold_code
from tiles.target import Target

FOLD = "fold"
"""The row of a body that folds a value over the whole row; its only attribute is ``operation``."""


@dataclass(frozen=True)
class RowBody:
    """An expression with folds over rows.

    Attributes:
      body: its rows, folds among them; the last one is the result.
      dtypes: of the operands and rows.
      along: whether each of these varies along a row.
      accumulates: in which dtype a fold of values of a dtype is made.
      outer, inner: domain dimensions of rows and of their elements.
    """

    body: Body
    dtypes: tuple[str, ...]
    along: tuple[bool, ...]
    accumulates: Callable[[str, str], str]
    outer: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """Return the number of operands."""
        return len(self.dtypes) - len(self.body)

    def slice(self, wanted: Collection[int], rows: set[int]) -> tuple[Body, tuple[int, ...], tuple[int, ...]]:
        """Return the part of ``rows`` that gives the wanted values, as an expression of its own; others are operands.

        Returns:
          The expression, its operands and its results by their index in the whole.
        """
        needed: set[int] = set()
        stack = list(wanted)
        while stack:
            value = stack.pop()
            if value in rows and value not in needed:
                needed.add(value)
                stack += self.body[value - self.first][1]
        inside = sorted(needed)
        read = {a for v in inside for a in self.body[v - self.first][1]}
        taken = sorted((read | set(wanted)) - needed)
        place = {value: k for k, value in enumerate((*taken, *inside))}
        own = [self.body[v - self.first] for v in inside]
        body = tuple((name, tuple(place[a] for a in arguments), attrs) for name, arguments, attrs in own)
        return body, tuple(taken), tuple(place[v] for v in wanted)

    def levels(self, values: tuple[int, ...], is_long: bool) -> Levels:
        """Return how values vary with the loops of a stage; of one that is single in a row, rows are its elements."""
        return tuple((ELEMENT if self.along[v] or not is_long else ROW, True) for v in values)

    def data(
        self, taken: Iterable[int], given: Iterable[int], is_long: bool = True, folds: str = ""
    ) -> CodeData:
        """Return what code reads and writes, values by number, that goes through rows or through what is one a row."""
        loops = (self.outer, self.inner) if is_long else ((), self.outer)
        return CodeData(tuple(map(self._name, taken)), tuple(map(self._name, given)), *loops, folds)

    def _name(self, value: int) -> ValueName:
        if value < self.first:
            return ("operand", value)
        return ("result", 0) if value == len(self.dtypes) - 1 else ("value", value)


def row_function_code(
    function: RowBody, stages: list[tuple[int, ...]], n: Amount, rows: Amount, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of the stages: each stores what others need; a fold computes what it alone needs.

    Args:
      function: the expression.
      stages: rows of the body, by number, that one loop computes together.
      n: elements of a row, of every cell.
      rows: its rows.
      target: the machine.
      name: of the variants.

    Raises:
      NoTileCode, OutOfRegisters: some part has no code.
    """
    body, first = function.body, function.first
    stage_of = {first + i: set(first + j for j in stage) for stage in stages for i in stage}
    consumers: dict[int, list[int]] = {}
    for i, (_, arguments, _) in enumerate(body):
        for a in arguments:
            consumers.setdefault(a, []).append(first + i)
    constants: set[int] = set()
    for i, (kind, arguments, _) in enumerate(body):
        if kind != FOLD and constants.issuperset(arguments):
            constants.add(first + i)
    kept = {
        v
        for stage in stages
        for v in (first + i for i in stage)
        if v == len(function.dtypes) - 1 or _leaves(body, first, v, stage_of[v], consumers)
    }
    parts: list[VertexCode] = []
    done: set[int] = set()
    for i, (kind, arguments, attrs) in enumerate(body):
        value = first + i
        if kind == FOLD:
            operation = dict(attrs)["operation"]
            computed = _computed_again(function, arguments[0], stage_of, kept, constants)
            parts += _fold(function, (arguments[0], value), operation, computed, n, rows, target, name)
        elif value in stage_of and value not in done:
            stage = stage_of[value]
            done |= stage
            if written := sorted(stage & kept):
                parts += _stage(function, written, stage | constants, n, rows, target, name)
    return _in_order(parts)


def _in_order(parts: list[VertexCode]) -> tuple[VertexCode, ...]:
    """Return parts each behind those that write what it reads: a stage is met at its first row, which others precede."""
    pending, ordered, written = list(parts), list[VertexCode](), set[ValueName]()
    while pending:
        ready = (
            k
            for k, part in enumerate(pending)
            if part.data is None or all(v[0] != "value" or v in written for v in part.data.reads)
        )
        part = pending.pop(next(ready, 0))
        ordered.append(part)
        written |= set(() if part.data is None else part.data.writes)
    return tuple(ordered)


def _leaves(body: Body, first: int, value: int, stage: set[int], consumers: dict[int, list[int]]) -> bool:
    """Return whether another stage reads a value; a fold computes it again."""
    return any(c not in stage and body[c - first][0] != FOLD for c in consumers.get(value, ()))


def _computed_again(
    function: RowBody, value: int, stage_of: dict[int, set[int]], kept: set[int], constants: set[int]
) -> set[int]:
    """Return the rows of the body that a fold of a value computes rather than reads.

    What a stage stores in any case is read, unless that takes a load more for every row that it saves.
    """
    if value not in stage_of:
        return set()
    stage = stage_of[value] | constants
    costs: list[tuple[int, set[int]]] = []
    for rows in (stage, stage - kept):
        body, taken, _ = function.slice([value], rows)
        costs.append((len(body) + sum(function.along[v] for v in taken), rows))
    (again, computed), (read, rest) = costs
    return rest if read < again else computed


def _stage(
    function: RowBody,
    kept: list[int],
    rows_of_body: set[int],
    n: Amount,
    rows: Amount,
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    part, taken, outputs = function.slice(kept, rows_of_body)
    is_long = function.along[kept[0]]
    levels = function.levels(taken, is_long)
    dtypes = tuple(function.dtypes[v] for v in taken)
    if not taken:
        raise NoTileCode("a stage of constants")
    data = function.data(taken, kept, is_long)
    if not is_long:
        found = rows_code(part, outputs, dtypes, levels, False, rows, np.asarray(1), target, name)
        return tuple(replace(p, data=data) for p in found)
    has_rows = any(level == ROW for level, _ in levels)
    found = _of_all(rows_code(part, outputs, dtypes, levels, has_rows, n, rows, target, name))
    return tuple(replace(p, data=data) for p in found)


def _fold(
    function: RowBody,
    values: tuple[int, int],
    operation: str,
    computed: set[int],
    n: Amount,
    rows: Amount,
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    """Return the code of a fold; ``values`` are what is folded and what that gives, ``computed`` rows that it computes."""
    value, total = values
    part, taken, _ = function.slice([value], computed)
    dtype = function.dtypes[value]
    dtypes = (*(function.dtypes[v] for v in taken), function.accumulates(operation, dtype), dtype)
    data = function.data(taken, (total,), folds="inner")
    return _of_all(
        fold_code(part, operation, dtypes, function.levels(taken, True), n, rows, target, name, data)
    )


def _of_all(parts: tuple[VertexCode, ...]) -> tuple[VertexCode, ...]:
    """Return parts of which every vertex runs some.

    Raises:
      NoTileCode: one runs none.
    """
    if not np.all(sum((np.asarray(part.runs, np.int64) for part in parts), np.int64(0)) > 0):
        raise NoTileCode("rows that begin inside a word", expected="whole words")
    return parts
