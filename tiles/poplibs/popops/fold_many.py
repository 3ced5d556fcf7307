"""The codelet of reductions to several results by any combining expression, such as argmax."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import reduce
from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import (
    REDUCTION,
    Cell,
    Codelet,
    Cycles,
    Dim,
    Extents,
    Graph,
    IndexMap,
    OpForm,
    Plan,
    Site,
    Tensor,
    VertexCode,
    along,
    identity_map,
    register,
    site_of,
)
from tiles.graph.cycles import code_or_formula
from tiles.numerics.dtypes import is_float, itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.forms import reduce_form
from tiles.poplibs.popops import elementwise_cycles
from tiles.poplibs.popops.expression import FUNCTIONS, Body, body_dtypes, evaluate_body
from tiles.poplibs.popops.folding_code import Folding, folding_code, shared_bytes
from tiles.poplibs.popops.inner_loops import loop_of
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

SOURCE = "graphcore/poplibs lib/popops: elementwise entries, one combination per element folded"
CLASS_SOURCE = "graphcore/poplibs lib/popnn/codelets/popnnCycleEstimators.cpp: ReduceMaxClassGather, ReduceMaxClassSparse"
FLOATS = ("float32", "float16")
INTEGERS = ("int32", "uint32")


@register
@dataclass(frozen=True)
class ReduceMany(Codelet):
    """Fold several arrays together over the reduced dimensions.

    The expression combines N values (its first N operands, the earlier ones along one reduced dimension) with N
    others into N; it must be associative and, where several dimensions are reduced, not depend on order.

    Args:
      body: the combining expression.
      outputs: index of the value that each of the N results takes.
      dtypes: dtypes of the N arrays.
      prologue: expression of the operands that gives the arrays, computed where they are folded; empty to fold
        the operands themselves.
      sources: index of the value of the prologue that each array is.

    Raises:
      InvalidGraph: an expression that does not give N values of these dtypes.
    """

    name: ClassVar[str] = "popops.ReduceMany"

    body: Body
    outputs: tuple[int, ...]
    dtypes: tuple[str, ...]
    prologue: Body = ()
    sources: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the expression against the dtypes."""
        known = body_dtypes(self.body, self.dtypes * 2)
        found = tuple(known[i] for i in self.outputs if 0 <= i < len(known))
        if found != self.dtypes:
            raise InvalidGraph("the combining expression gives other dtypes", expected=self.dtypes, got=found)

    @property
    def label(self) -> str:
        """Vertex type: PopLibs has one for each such reduction; this one is named for its dtypes."""
        return f"popops::ReduceMany<{','.join(map(elementwise_cycles.cpp_name, self.dtypes))}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the fold of the cell's part, padded points left out."""
        known = [cell.align(k, x) for k, x in enumerate(operands)]
        if self.sources:
            known = evaluate_body(self.prologue, known, cell)
            known = [known[i] for i in self.sources]
        values = [jnp.broadcast_to(x, cell.sizes) for x in known]
        real = cell.reduced_mask()
        if real is not None:
            real = jnp.broadcast_to(real, cell.sizes)
        if is_selection(self.body, self.outputs):
            reduced = self._reduced(cell, values, real)
        else:
            for d in reversed(cell.form.reduced):
                values, real = self._halved(cell, values, real, d)
            reduced = [lax.squeeze(value, cell.form.reduced) for value in values]
        kept = [d for d, dim in enumerate(cell.form.dims) if not dim.is_reduced]
        results: list[Array] = []
        for k, folded in enumerate(reduced):
            order = [kept.index(d) for d in cell.form.results[k].dims]
            results.append(folded if order == sorted(order) else lax.transpose(folded, order))
        return tuple(results)

    def _reduced(self, cell: Cell, values: list[Array], real: Array | None) -> list[Array]:
        """Fold by one reduction, for which any order of combination in sequence gives the same bits.

        Which values are real goes with them, so that it can start from one that is not.
        """
        point = Cell(OpForm((), (), ()), (), (), ())
        if real is None:
            real = jnp.ones(cell.sizes, bool)
        count = len(values)

        def combine(a: Sequence[Array], b: Sequence[Array]) -> tuple[Array, ...]:
            joined, mask = self._joined(point, a[:count], b[:count], a[count], b[count])
            assert mask is not None
            return (*joined, mask)

        starts = [np.zeros((), x.dtype) for x in values]
        return reduce([*values, real], [*starts, np.array(False)], combine, cell.form.reduced)[:count]

    def _halved(
        self, cell: Cell, values: list[Array], real: Array | None, axis: int
    ) -> tuple[list[Array], Array | None]:
        """Fold one dimension to size 1 by combining neighbours, in order; an odd one waits for the next round."""
        while (size := values[0].shape[axis]) > 1:
            paired = size - size % 2

            def part(x: Array, first: int, last: int, step: int = 1) -> Array:
                return lax.slice_in_dim(x, first, last, step, axis=axis)

            firsts, seconds = ([part(x, first, paired, 2) for x in values] for first in (0, 1))
            if real is None:
                joined, mask = self._joined(cell, firsts, seconds, None, None)
            else:
                are_real = part(real, 0, paired, 2), part(real, 1, paired, 2)
                joined, mask = self._joined(cell, firsts, seconds, *are_real)
            if size % 2:
                rest = [part(x, paired, size) for x in values]
                joined = [lax.concatenate([x, y], axis) for x, y in zip(joined, rest, strict=True)]
                if mask is not None and real is not None:
                    mask = lax.concatenate([mask, part(real, paired, size)], axis)
            values, real = joined, mask
        return values, real

    def _joined(
        self, cell: Cell, a: Sequence[Array], b: Sequence[Array], real_a: Array | None, real_b: Array | None
    ) -> tuple[list[Array], Array | None]:
        """Combine values; where one side is not real, take the other."""
        known = evaluate_body(self.body, [*a, *b], cell)
        combined = [known[i] for i in self.outputs]
        combined = [x if x.shape == a[0].shape else jnp.broadcast_to(x, a[0].shape) for x in combined]
        if real_a is None or real_b is None:
            return combined, None
        picked = [
            lax.select(real_b, lax.select(real_a, c, y), x) for x, y, c in zip(a, b, combined, strict=True)
        ]
        return picked, real_a | real_b

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return what code takes; without one, the slots of one combination per element, as in a fused expression (ASSUMED).

        The largest or smallest element with its index takes what PopLibs' vertices for it take, although theirs pass over
        elements that are not a number.
        """
        if self._is_class:
            return _class_cycles(extents, self.dtypes[0] in FLOATS, target)
        assumed = self._assumed(extents, target)
        try:
            return code_or_formula(self.tile_code(extents, target), assumed)
        except (NoTileCode, OutOfRegisters):
            return assumed

    @property
    def _is_class(self) -> bool:
        """Whether PopLibs has a vertex for it: the largest or smallest element with its index."""
        counts_only = all(name == "iota" for name, _, _ in self.prologue)
        is_known = counts_only and self.dtypes[0] in FLOATS + INTEGERS
        return is_known and is_extreme(self.body, self.outputs)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of rows; workers take them together where that is faster and PopLibs states no figure."""
        operands = tuple(extents.operand_dtypes)
        folding = Folding(self.body, self.outputs, self.dtypes, self.prologue, self.sources, operands)
        return folding_code(folding, extents, target, self.label, shares_rows=not self._is_class)

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Return the bytes of words that become narrow results, and of what workers find who take rows together."""
        try:
            parts = self.tile_code(extents, target)
        except (NoTileCode, OutOfRegisters):
            return super().scratch_bytes(extents, target)
        return np.zeros_like(extents.points) + shared_bytes(parts)

    def _assumed(self, extents: Extents, target: Target) -> Cycles:
        n = -(-extents.points // target.workers_per_tile)
        slots = 33 + combination_slots(self.body, self.dtypes, n, target)
        return Cycles(target.worker_issue_interval_cycles * slots, Basis.ASSUMED, SOURCE)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count the arithmetic of one combination per element, on floats."""
        known = body_dtypes(self.body, self.dtypes * 2)
        each = sum(FUNCTIONS[name].is_arithmetic and is_float(known[a[0]]) for name, a, _ in self.body if a)
        return extents.points * each

    def combiner(self) -> str | None:
        """Partials are combined by the codelet itself, which has no one operation's name."""
        return "many"

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the codelet itself."""
        return self, self.dtypes

    def joining(self, shape: tuple[int, ...]) -> tuple[Codelet, OpForm]:
        """Return the fold of partials ``[P, ...]`` over their leading axis."""
        dims = (Dim("p", shape[0], REDUCTION), *(Dim(f"d{i}", size) for i, size in enumerate(shape[1:])))
        kept = IndexMap(tuple(along(d) for d in range(1, len(shape))))
        count = len(self.dtypes)
        form = OpForm(dims, (identity_map(len(shape)),) * count, (kept,) * count)
        return dataclasses.replace(self, prologue=(), sources=()), form


COMPARISONS: Mapping[str, np.ufunc] = MappingProxyType(
    {
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
        "EQ": np.equal,
        "NE": np.not_equal,
    }
)


@lru_cache(maxsize=256)
def is_selection(body: Body, outputs: tuple[int, ...]) -> bool:
    """Return whether an expression picks one of two values with its index, and is associative, as that of an argmax.

    As for ``is_extreme``, but with zeros of both signs and what is not a number among the values, which only compare: all
    that three of each can be are combined both ways.
    """
    if not is_extreme(body, outputs):
        return False
    values, counts = np.array([-0.0, 0.0, 1.0, 2.0, np.nan]), np.arange(3)
    grid = [x.ravel() for x in np.meshgrid(*[values, counts] * 3)]
    a, b, c = grid[:2], grid[2:4], grid[4:]

    def joined(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> list[np.ndarray]:
        known = _selected(body, [*x, *y])
        assert known is not None
        return [known[n] for n in outputs]

    first, second = joined(joined(a, b), c), joined(a, joined(b, c))
    same = all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(first, second, strict=True)
    )
    return same and bool((np.signbit(first[0]) == np.signbit(second[0])).all())


def _selected(body: Body, operands: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Return operands and rows of an expression that compares values with values, indices with indices, and selects."""
    known = list(operands)
    for name, arguments, attributes in body:
        given = [known[a] for a in arguments]
        if name == "compare" and set(arguments) in ({0}, {1}, {2}, {3}, {0, 2}, {1, 3}):
            known.append(COMPARISONS[dict(attributes)["direction"]](*given))
        elif name in ("and", "or", "xor") and all(a.dtype == bool for a in given):
            known.append(getattr(np, f"logical_{name}")(*given))
        elif name == "not" and given[0].dtype == bool:
            known.append(~given[0])
        elif name == "select" and given[0].dtype == bool:
            known.append(np.where(*given))
        else:
            return None
    return known


@lru_cache(maxsize=256)
def is_extreme(body: Body, outputs: tuple[int, ...]) -> bool:
    """Return whether an expression picks the larger, or always the smaller, of two values together with its index.

    One that compares values with values and indices with indices, and selects, depends on their order alone: all orders
    are tried. Of equal values it may pick either index, and anything where one is not a number.
    """
    if len(outputs) != 2:
        return False
    x, i, y, j = (axis.ravel() for axis in np.meshgrid(*[np.arange(2)] * 4))
    known = _selected(body, [x, i, y, j])
    if known is None:
        return False
    value, index = (known[n] for n in outputs)
    for better in (np.greater, np.less):
        first, second = better(x, y), better(y, x)
        picked = np.where(first, x, y), np.where(first, i, j)
        is_index = (index == picked[1]) | (~(first | second) & ((index == i) | (index == j)))
        if np.array_equal(value, picked[0]) and is_index.all():
            return True
    return False


def _class_cycles(extents: Extents, is_float: bool, target: Target) -> Cycles:
    """Return the cycles of the largest element of each row, with its index.

    Either a worker goes through a row (ReduceMaxClassSparse), or, of floats, all workers share each row
    (ReduceMaxClassGather) and a worker goes through the largest of their parts.
    """
    workers = target.workers_per_tile
    rows, n = extents.results, extents.reduced

    def sparse(count: Amount) -> Amount:
        each = 27 + 3 * (count - 1) if is_float else 23 + 6 * count
        return -(-rows // workers) * each * target.worker_issue_interval_cycles

    total = sparse(n)
    if is_float:
        share = -(-n // workers)
        gather = (30 + 3 * (share - 1)) * target.worker_issue_interval_cycles + 9
        total = np.minimum(total, rows * gather + sparse(np.minimum(n, workers)))
    return Cycles(total, Basis.DOCUMENTED, CLASS_SOURCE)


def combination_slots(body: Body, dtypes: Sequence[str], n: Amount, target: Target) -> Amount:
    """Return one worker's slots of ``n`` combinations of arrays of ``dtypes``: loads, then every function."""
    known = body_dtypes(body, tuple(dtypes) * 2)
    slots = sum(-(-n * itemsize(dtype) // target.data_path_bytes) for dtype in dtypes)
    for row, (name, arguments, attributes) in enumerate(body):
        kind = known[arguments[-1]] if arguments else known[2 * len(dtypes) + row]
        slots = slots + loop_of(name, dict(attributes), kind).inner(n, kind, target)
    return slots


def reduce_many(
    where: Graph | Site,
    arrays: Sequence[Tensor],
    dimensions: Sequence[int],
    body: Body,
    outputs: tuple[int, ...],
    counters: Mapping[int, tuple[int, str]] = MappingProxyType({}),
    *,
    plan: Plan | None = None,
) -> tuple[Tensor, ...]:
    """Fold tensors of one shape together over ``dimensions``; see ``ReduceMany``.

    Args:
      where: graph, or site in it, to add to.
      arrays: the tensors, those left out that ``counters`` names.
      dimensions: the dimensions folded.
      body: the combining expression.
      outputs: index of the value that each result takes.
      counters: arrays that are never in memory: by their number the dimension they count along, and their dtype.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: shapes that differ, or dimensions that do not exist.
    """
    site = site_of(where, "reduce")
    shape = arrays[0].shape
    if any(x.shape != shape for x in arrays):
        raise InvalidGraph(f"arrays folded together have shapes {[x.shape for x in arrays]}")
    given, count = iter(range(len(arrays))), len(arrays) + len(counters)
    sources = tuple(-1 if n in counters else next(given) for n in range(count))
    rows = tuple(("iota", (), (("dim", d), ("dtype", kind))) for _, (d, kind) in sorted(counters.items()))
    behind = iter(range(len(arrays), count))
    sources = tuple(next(behind) if n < 0 else n for n in sources)
    dtypes = tuple(counters[n][1] if n in counters else arrays[sources[n]].dtype for n in range(count))
    single = reduce_form(shape, dimensions)
    form = OpForm(single.dims, single.operands * len(arrays), single.results * count)
    codelet = ReduceMany(body, outputs, dtypes, rows, sources if rows else ())
    return place(site, codelet, form, arrays, dtypes, plan=plan)
