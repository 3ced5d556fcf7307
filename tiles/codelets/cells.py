"""Which cells a plan asks its codelet to compute: their extents, and how many of them in one call.

Few of a plan's cells differ in extents: along every dimension there are the full parts and a short last one. An
engine computes those alike in one vectorized call, or all cells in one piece. What is listed here is all that a
codelet is ever called with, so that a codelet that is exported as compiled code can be compiled for it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tiles.graph.codelet import Codelet
from tiles.graph.domain import IndexMap, OpForm, Plan
from tiles.graph.layout import AxisSplit

Level = tuple[int, tuple[bool, ...]]
"""One level of vectorization: how many cells, and which arguments vary from one to the next."""


@dataclass(frozen=True)
class CellCall:
    """One way in which a codelet is called.

    Its arguments are the cell's origin, ``int32[dimensions]``, how many leading points are real along each of
    ``limited``, ``int32[limited]`` (left out when there are none), and the operands' slices.

    Args:
      sizes: extents of the cell.
      limited: dimensions along which a cell may be padded.
      levels: vectorization, outermost first; an argument has a leading axis for every level it varies at,
        a result for every level.
    """

    sizes: tuple[int, ...]
    limited: tuple[int, ...] = ()
    levels: tuple[Level, ...] = ()


def extent_classes(split: AxisSplit) -> list[tuple[int, int, int]]:
    """Return ``(first part, end, extent)`` for the full parts of a dimension and the short last one."""
    parts, short = split.parts, int(split.hi[-1] - split.lo[-1])
    full = min(split.grain, max(split.size, 0))
    if short == full:
        return [(0, parts, full)]
    return ([(0, parts - 1, full)] if parts > 1 else []) + [(parts - 1, parts, short)]


def slice_extents(index_map: IndexMap, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of what a cell of extents ``sizes`` reads of an operand."""
    return tuple(
        sizes[axis.terms[0][0]]
        if len(axis.terms) == 1
        else 1 + sum(abs(c) * (sizes[d] - 1) for d, c in axis.terms)
        for axis in index_map.axes
    )


def computes_partials_at_once(codelet: Codelet, form: OpForm, plan: Plan) -> bool:
    """Return whether all partials of a split reduction are computed by one vectorized call."""
    split = plan.split_reductions(form)
    return bool(split) and not _cuts_windows(codelet, form, split)


def _cuts_windows(codelet: Codelet, form: OpForm, split: Sequence[int]) -> bool:
    """Return whether windows are cut in a way that no vectorized call can compute."""
    cut = [
        [c for d, c in axis.terms if d in split]
        for index_map in form.operands
        for axis in index_map.axes
        if len(axis.terms) > 1
    ]
    if codelet.vectorizes_windows:
        return any(len(coefficients) > 1 or min(coefficients, default=1) < 0 for coefficients in cut)
    return any(cut)


def cell_sizes(plan: Plan) -> list[tuple[int, ...]]:
    """Return the distinct extents of a plan's cells."""
    return list(
        itertools.product(*([extent for _, _, extent in extent_classes(split)] for split in plan.splits))
    )


def cell_calls(codelet: Codelet, form: OpForm, plan: Plan) -> list[CellCall]:
    """Return every way in which engines call the codelet of a planned operation: in one piece and by vertex."""
    calls = [*_whole_calls(codelet, form, plan), *_vertex_calls(form, plan)]
    return list(dict.fromkeys(calls))


def _whole_calls(codelet: Codelet, form: OpForm, plan: Plan) -> list[CellCall]:
    split = plan.split_reductions(form)
    if not split:
        return [CellCall(tuple(form.shape))]
    if not computes_partials_at_once(codelet, form, plan):
        classes = [extent_classes(plan.splits[d]) for d in split]
        return [CellCall(_with(form, split, extents)) for extents in _extents(classes)]
    limited = tuple(d for d in split if plan.splits[d].size % plan.splits[d].grain)
    reads = [{d for axis in index_map.axes for d, _ in axis.terms} for index_map in form.operands]
    levels: list[Level] = []
    for d in split:
        limits = (d in limited,) if limited else ()
        levels.append((plan.splits[d].parts, (True, *limits, *(d in used for used in reads))))
    sizes = _with(form, split, tuple(plan.splits[d].grain for d in split))
    return [CellCall(sizes, limited, tuple(levels))]


def _vertex_calls(form: OpForm, plan: Plan) -> list[CellCall]:
    flags = (True,) * (1 + len(form.operands))
    calls: list[CellCall] = []
    for block in itertools.product(*map(extent_classes, plan.splits)):
        count = math.prod(end - first for first, end, _ in block)
        calls.append(CellCall(tuple(extent for _, _, extent in block), (), ((count, flags),)))
    return calls


def _with(form: OpForm, split: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
    changed = dict(zip(split, extents, strict=True))
    return tuple(changed.get(d, n) for d, n in enumerate(form.shape))


def _extents(classes: list[list[tuple[int, int, int]]]) -> list[tuple[int, ...]]:
    return list(itertools.product(*([extent for _, _, extent in row] for row in classes)))
