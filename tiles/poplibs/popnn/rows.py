"""popnn's functions of rows: softmax, log-softmax, normalization, and their gradients, a whole row on one tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcast_in_dim
from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import Cell, Codelet, Cycles, Extents, OpForm, VertexCode, code_or_formula, register
from tiles.numerics.dtypes import is_float, itemsize
from tiles.poplibs.popnn.rows_code import FOLD, RowBody, row_function_code
from tiles.poplibs.popops import elementwise_cycles
from tiles.poplibs.popops.expression import Body, body_dtypes, broadcast_together, evaluate_body, function_of
from tiles.poplibs.popops.fold import FOLDS, fold
from tiles.poplibs.popops.inner_loops import is_of_library, loop_of
from tiles.poplibs.popops.reduce import accumulator_of, cast_accumulator
from tiles.poplibs.popops.reduce_cycles import contiguous_slots
from tiles.target import Basis, Target

COMPOSED = ("popnn.softmax", "popnn.log_softmax")
"""What popnn computes by a vertex per function, as an SDK profile of softmax shows (``benchmarks/data/published.json``)."""

SOURCE = "graphcore/poplibs: the stages it is composed of, lib/popops elementwise and reduction estimators, fused as popops::map does"


@register
@dataclass(frozen=True)
class RowFunction(Codelet):
    """Evaluate an expression with folds over whole rows; operands and result have the domain's shape.

    Args:
      kind: what it is called, such as ``popnn.softmax``.
      body: rows as in ``popops.Map``, and ``("fold", (value,), (("operation", name),))``; the last is the result.
      dimensions: the domain's dimensions that make up a row.
      operand_dtypes: dtype of every operand.
      result_dtype: dtype of the result.

    Raises:
      InvalidGraph: a malformed expression.
    """

    name: ClassVar[str] = "popnn.RowFunction"
    any_order: ClassVar[bool] = True

    kind: str
    body: Body
    dimensions: tuple[int, ...]
    operand_dtypes: tuple[str, ...]
    result_dtype: str

    def __post_init__(self) -> None:
        """Check the expression."""
        if self.dtypes[-1] != self.result_dtype:
            raise InvalidGraph(
                "the rows give another dtype", expected=self.result_dtype, got=str(self.dtypes[-1])
            )

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the operands and rows, in index order."""
        known = list(self.operand_dtypes)
        for row in self.body:
            if row[0] != FOLD:
                known.append(body_dtypes((row,), tuple(known))[-1])
            elif dict(row[2]).get("operation") not in FOLDS or not 0 <= row[1][0] < len(known):
                raise InvalidGraph(f"no fold {row}", expected=", ".join(FOLDS))
            else:
                known.append(known[row[1][0]])
        return tuple(known)

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """Those of all operands."""
        return self.operand_dtypes

    @property
    def label(self) -> str:
        """Vertex type, e.g. ``popnn::Softmax<float>``."""
        words = self.kind.removeprefix("popnn.").split("_")
        name = "".join(word.capitalize() for word in words)
        return f"popnn::{name}<{elementwise_cycles.cpp_name(self.result_dtype)}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the function of the cell's rows."""
        values = [cell.align(k, x) for k, x in enumerate(operands)]
        for name, arguments, attrs in self.body:
            if name == FOLD:
                values.append(self._folded(cell, dict(attrs)["operation"], values[arguments[0]]))
            else:
                chosen = broadcast_together([values[a] for a in arguments])
                row = ((name, tuple(range(len(chosen))), attrs),)
                values.append(evaluate_body(row, chosen, cell)[-1])
        result = values[-1]
        if result.shape != cell.sizes:
            result = broadcast_in_dim(result, cell.sizes, range(len(cell.sizes)))
        order = cell.form.results[0].dims
        return (result if order == tuple(range(result.ndim)) else lax.transpose(result, order),)

    def _folded(self, cell: Cell, operation: str, x: Array) -> Array:
        """Return ``x`` folded over the row, of size 1 along it."""
        long = tuple(n if d in self.dimensions else x.shape[d] for d, n in enumerate(cell.sizes))
        dtype = x.dtype.name
        if x.shape != long:
            x = broadcast_in_dim(x, long, range(len(long)))
        total = fold(operation, cast_accumulator(x, accumulator_of(operation, dtype)), self.dimensions)
        short = [1 if d in self.dimensions else n for d, n in enumerate(long)]
        return lax.reshape(cast_accumulator(total, dtype), short)

    def along(self) -> tuple[bool, ...]:
        """Return for every operand and row of the body whether it varies along a row."""
        varies = [True] * len(self.operand_dtypes)
        for name, arguments, _ in self.body:
            varies.append(name != FOLD and any(varies[a] for a in arguments))
        return tuple(varies)

    def stages(self) -> list[tuple[int, ...]]:
        """Return the elementwise rows by number, those that one loop computes together; what constants give is in none.

        Between two folds of a norm or a gradient lies one expression of rows and one of what is single in a row, which
        code is generated for as for any fusion: what only later ones read is computed there, and not stored. Softmax is
        what popnn makes it of, function by function.
        """
        first, along = len(self.operand_dtypes), self.along()
        folds, known = [0] * first, [False] * first
        for name, arguments, _ in self.body:
            folds.append(max((folds[a] for a in arguments), default=0) + (name == FOLD))
            known.append(all(known[a] for a in arguments))
        levels = folds if self.kind in COMPOSED else self._latest(folds)
        loops: dict[tuple[int, ...], list[int]] = {}
        for i, (name, _, _) in enumerate(self.body):
            v = first + i
            if name != FOLD and not known[v]:
                together = (0, i) if self.kind in COMPOSED else (levels[v], along[v])
                loops.setdefault(together, []).append(i)
        return [tuple(rows) for _, rows in sorted(loops.items())]

    def _latest(self, folds: list[int]) -> list[int]:
        """Return behind how many folds each value is computed, given those that it needs: as late as readers allow.

        Not where several of its arguments would have to be stored in its place.
        """
        first, levels = len(self.operand_dtypes), list(folds)
        readers: dict[int, list[int]] = {}
        for i, (_, arguments, _) in enumerate(self.body):
            for a in set(arguments):
                readers.setdefault(a, []).append(first + i)

        def is_fold(v: int) -> bool:
            return v >= first and self.body[v - first][0] == FOLD

        def read_at(v: int) -> int:
            return folds[v] - 1 if is_fold(v) else levels[v]

        for v in reversed(range(first, len(folds) - 1)):
            if is_fold(v) or not readers.get(v):
                continue
            latest = min(map(read_at, readers[v]))
            arguments = {a for a in self.body[v - first][1] if a >= first and not is_fold(a)}
            stored = 0
            for a in arguments:
                others = [r for r in readers[a] if r != v]
                is_needed = any(read_at(r) < latest for r in others)
                stored += is_needed and not any(levels[r] >= latest for r in others if not is_fold(r))
            if latest > levels[v] and stored <= 1:
                levels[v] = latest
        return levels

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the stages' PopLibs entries one after another, each shared out to the workers.

        A stage is a loop of single functions or, where that is cheaper, of a fused expression, which loads what it
        takes once and stores what others need; a fold goes on with what the registers hold. The vertex's frame is paid
        once, a stage's start 12 slots.
        """
        first, dtypes, along = len(self.operand_dtypes), self.dtypes, self.along()
        length = extents.product(self.dimensions)
        rows = extents.points // np.maximum(length, 1)
        slots: Any = np.int64(29)
        bases = [Basis.DOCUMENTED]
        for name, arguments, _ in self.body:
            if name == FOLD:
                kind = dtypes[arguments[0]]
                slots = slots + contiguous_slots(rows, length, target.vector_width(kind), kind, target)
        for stage in self.stages():
            n = -(-(extents.points if along[first + stage[0]] else rows) // target.workers_per_tile)
            taken, basis = self._stage_slots(stage, n, target)
            slots = slots + taken
            bases.append(basis)
        total = target.supervisor_vertex_overhead_cycles + target.worker_issue_interval_cycles * slots
        stated = Cycles(np.asarray(total), Basis.weakest(bases), SOURCE)
        if stated.basis is not Basis.ASSUMED or self._calls_library():
            return stated
        try:
            return code_or_formula(self.tile_code(extents, target), stated)
        except (NoTileCode, OutOfRegisters):
            return stated

    def _calls_library(self) -> bool:
        """Return whether a row of the body is a function of the C library, whose figure stays."""
        dtypes = self.dtypes
        return any(
            name != FOLD and bool(arguments) and is_of_library(name, attrs, dtypes[arguments[-1]])
            for name, arguments, attrs in self.body
        )

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of the stages and folds, where rows lie in one piece."""
        long = [d for d in extents.form.results[0].dims if extents.form.dims[d].size > 1]
        inner = [d for d in long if d in self.dimensions]
        if long[len(long) - len(inner) :] != inner:
            raise NoTileCode("rows that do not lie in one piece", expected="the innermost dimensions")
        n = extents.product(self.dimensions)
        rows = extents.points // np.maximum(n, 1)
        outer = tuple(d for d in extents.form.results[0].dims if d not in self.dimensions)
        within = tuple(d for d in extents.form.results[0].dims if d in self.dimensions)
        function = RowBody(self.body, self.dtypes, self.along(), accumulator_of, outer, within)
        return row_function_code(function, self.stages(), n, rows, target, self.label)

    def _stage_slots(self, stage: tuple[int, ...], n: Any, target: Target) -> tuple[Any, Basis]:
        """Return a stage's slots for ``n`` elements of a worker: function by function, or fused if that is less."""
        first, dtypes, along = len(self.operand_dtypes), self.dtypes, self.along()
        is_long, inside = along[first + stage[0]], {first + i for i in stage}
        single, fused, bases, loaded = np.int64(0), np.int64(12), [Basis.DOCUMENTED], set[int]()
        for i in stage:
            name, arguments, attrs = self.body[i]
            varying = sum(along[a] for a in arguments)
            kind = dtypes[arguments[-1]]
            loop = loop_of(name, dict(attrs), kind, scalar=len(arguments) == 2 and varying < 2)
            bases.append(loop.basis)
            single = single + 12 + loop.total(n, kind, target)
            fused = fused + loop.inner(n, kind, target)
            loaded.update(a for a in arguments if along[a] == is_long and a not in inside)
        result = len(dtypes) - 1
        others = (row for i, row in enumerate(self.body) if first + i not in inside and row[0] != FOLD)
        needed = {a for _, arguments, _ in others for a in arguments} | {result}
        for value in (*loaded, *inside & needed):
            fused = fused + -(-n * itemsize(dtypes[value]) // target.data_path_bytes)
        if self.kind in COMPOSED or bool(np.all(single <= fused)):
            return single, Basis.weakest(bases)
        return np.minimum(single, fused), Basis.weakest([*bases, Basis.ASSUMED])

    def flops(self, extents: Extents) -> np.ndarray:
        """Count every arithmetic function of floats where it varies, and a fold's points."""
        first, dtypes, along = len(self.operand_dtypes), self.dtypes, self.along()
        rows = extents.points // np.maximum(extents.product(self.dimensions), 1)
        total = np.zeros_like(extents.points)
        for i, (name, arguments, _) in enumerate(self.body):
            function = function_of(name)
            counts = name == FOLD or (
                function is not None and function.is_arithmetic and is_float(dtypes[arguments[0]])
            )
            if counts:
                total = total + (extents.points if name == FOLD or along[first + i] else rows)
        return total

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep rows whole."""
        return d not in self.dimensions

    def may_overwrite(self, k: int) -> bool:
        """A row's result is written when all of the row has been read."""
        return True

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Count one row of the widest type for every worker."""
        widest = max(itemsize(dtype) for dtype in self.dtypes)
        row = extents.product(self.dimensions) * widest
        return np.broadcast_to(row * target.workers_per_tile, extents.points.shape)

    def code_bytes(self, target: Target) -> int:
        """Estimate instructions: a frame and a loop for every stage (ASSUMED)."""
        return target.instruction_bytes * (96 + 12 * len(self.body))
