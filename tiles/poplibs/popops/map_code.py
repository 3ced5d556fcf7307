"""Tile code of expressions: which loop nest a cell's operands ask for, and the variants that its extents choose from.

A variant is compiled once for an expression, the way in which its operands vary, and the alignment of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from tiles._jax_compat import make_jaxpr
from tiles.elements import (
    Access,
    Arrangement,
    CellFunction,
    InstructionSet,
    Variant,
    compile_variant,
    instructions_for,
)
from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.graph import CodeData, Extents, OpForm, VertexCode
from tiles.numerics.dtypes import itemsize, to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.expression import ONE_ELEMENT, Body, Row, body_dtypes, evaluate_body
from tiles.target import Target

_ACCESS_BYTES = 8
_WORD_BYTES = 4
_COUNTER = "int32"
FEW = 64
"""Elements of an operation, at most, for which it is worth while to compile code that computes one at a time."""
Levels = tuple[tuple[int, bool], ...]
"""For every operand its level, and whether its address moves from row to row."""


def expression_code(
    body: Body,
    outputs: tuple[int, ...],
    extents: Extents,
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    """Return the code of an elementwise vertex: for each entry of ``extents`` the variants that its cell runs.

    Rows of other alignment are other variants. Where there are rows, workers take them in turn or share each of
    them, whichever is faster. Entries whose rows begin inside a word run none.

    Args:
      body: rows of the expression.
      outputs: indices of its results.
      extents: cell sizes.
      target: the machine.
      name: of the variants, for the printer.

    Raises:
      NoTileCode: an operation, a dtype, or only rows that begin inside a word.
      OutOfRegisters: too few registers, even with values spilled.
    """
    given = partial(_with_loops, body, outputs, extents, target, name)
    left = np.atleast_1d(extents.points) > 0
    is_short, single_ones = _single_elements(body, extents)
    first = left & single_ones
    found, reason = list[VertexCode](), None

    def add(single: frozenset[int], chosen: np.ndarray) -> None:
        nonlocal left, reason
        try:
            parts = given(single, chosen)
        except (NoTileCode, OutOfRegisters) as error:
            reason = error
            return
        found.extend(parts)
        for part in parts:
            left = left & ~(np.broadcast_to(np.asarray(part.runs, np.int64), left.shape) > 0)

    for single, chosen in _singles(extents, first):
        add(single, chosen)
    if left.any() or not left.size:
        add(frozenset(), left)
    for single, chosen in _singles(extents, left & ~first) if is_short else ():
        add(single, chosen)
    if reason is not None and not found:
        raise reason
    return tuple(found)


SHORT = 8
"""Elements of an operation's inner loop up to which vertices that have one of some dimensions are worth variants of their own."""


def _single_elements(body: Body, extents: Extents) -> tuple[bool, np.ndarray]:
    """Return whether an operation's inner loop is short, as over coordinates, and which cells have one element of it."""
    counted = tuple(dict(attrs)["dim"] for name, _, attrs in body if name == "iota")
    _, inner, has_rows = loops_of(extents.form, counted)
    is_short = has_rows and 1 < math.prod(extents.form.dims[d].size for d in inner) <= SHORT
    return is_short, np.atleast_1d((extents.product(inner) == 1) & (extents.results > 1) & is_short)


def _singles(extents: Extents, left: np.ndarray) -> Iterator[tuple[frozenset[int], np.ndarray]]:
    """Yield dimensions of which some cells have one element, and those of the ones left that do: they have fewer loops."""
    dims = [d for d, dim in enumerate(extents.form.dims) if dim.size > 1]
    if not left.any() or not dims:
        return
    single = np.stack([np.broadcast_to(extents.sizes[d], left.shape) == 1 for d in dims])
    for way in np.unique(single[:, left], axis=1).T:
        if way.any():
            yield (
                frozenset(d for d, is_single in zip(dims, way.tolist(), strict=True) if is_single),
                left & (single == way[:, None]).all(axis=0),
            )


def _with_loops(
    body: Body,
    outputs: tuple[int, ...],
    extents: Extents,
    target: Target,
    name: str,
    single: frozenset[int],
    own: np.ndarray,
) -> tuple[VertexCode, ...]:
    """Return the code of some vertices, ``own``, which have one element of the dimensions ``single``; else as ``expression_code``."""
    operands = len(extents.operand_dtypes)
    body, outputs, counted = _counters(body, outputs, operands)
    levels, inner, has_rows = loops_of(extents.form, counted, single)
    n = extents.product(inner)
    n, rows = np.broadcast_arrays(np.atleast_1d(n), extents.results // np.maximum(n, 1))
    dtypes = (*extents.operand_dtypes, *(_COUNTER,) * len(counted))
    most = math.prod(dim.size for dim in extents.form.dims)
    found: list[VertexCode] = []
    for varies, counting in _counting(extents, counted, inner, levels):
        chosen = counting & own
        if not chosen.any():
            continue
        n_, rows_ = (np.where(chosen, each, each[chosen][0]) for each in (n, rows))
        parts = rows_code(
            body, outputs, dtypes, varies, has_rows, n_, rows_, target, name, len(counted), most
        )
        found += (replace(part, runs=np.where(chosen, part.runs, 0)) for part in parts)
    dims = extents.form.results[0].dims if extents.form.results else ()
    data = CodeData(
        (*(("operand", k) for k in range(operands)), *(("position", d) for d in counted)),
        tuple(("result", k) for k in range(len(outputs))),
        tuple(d for d in dims if d not in inner),
        inner,
    )
    return tuple(replace(part, data=data) for part in found)


def _counting(
    extents: Extents, counted: tuple[int, ...], inner: tuple[int, ...], levels: Levels
) -> Iterator[tuple[Levels, np.ndarray]]:
    """Yield how operands vary in cells whose positions count rows along one dimension, and which cells these are.

    A position along a dimension of rows is the number of a row, or the same in all of them: of several such dimensions all
    but one have one place in the cell.

    Raises:
      NoTileCode: no cell is so.
    """
    form = extents.form
    long = tuple(d for d in form.results[0].dims if form.dims[d].size > 1) if form.results else ()
    outer = [d for d in long if d not in inner]
    every = np.ones(np.atleast_1d(extents.results).shape, bool)
    if len(outer) < 2 or not set(counted) & set(outer):
        yield levels, every
        return
    left, first = every, len(levels) - len(counted)
    for moving in outer:
        chosen = left & (extents.product(tuple(d for d in outer if d != moving)) == 1)
        if not chosen.any():
            continue
        left = left & ~chosen
        kept = (
            level if d not in outer else (ROW, True) if d == moving else (CELL, False)
            for d, level in zip(counted, levels[first:], strict=True)
        )
        yield (*levels[:first], *kept), chosen
    if left.all():
        raise NoTileCode("an expression of the element's position along several dimensions of rows")


def _counters(
    body: Body, outputs: tuple[int, ...], operands: int
) -> tuple[Body, tuple[int, ...], tuple[int, ...]]:
    """Return an expression whose positions are operands of their own, after the others, and the dimension of each."""
    counted = tuple(dict(attrs)["dim"] for name, _, attrs in body if name == "iota")

    def place(value: int) -> int:
        return value if value < operands else value + len(counted)

    rows: list[Row] = []
    met = 0
    for name, arguments, attrs in body:
        if name == "iota":
            rows.append(("convert", (operands + met,), (("dtype", dict(attrs)["dtype"]),)))
            met += 1
        else:
            rows.append((name, tuple(map(place, arguments)), attrs))
    return tuple(rows), tuple(map(place, outputs)), counted


def rows_code(
    body: Body,
    outputs: tuple[int, ...],
    operand_dtypes: tuple[str, ...],
    levels: Levels,
    has_rows: bool,
    n: Amount,
    rows: Amount,
    target: Target,
    name: str,
    counters: int = 0,
    most: float = math.inf,
) -> tuple[VertexCode, ...]:
    """Return the code of an expression at ``rows`` rows of ``n`` elements, see ``expression_code``.

    Args:
      body: rows of the expression.
      outputs: indices of its results.
      operand_dtypes: dtypes of its operands.
      levels: how operands vary.
      has_rows: whether any of them takes notice of rows; else all elements are one vector.
      n: elements of a row, a number or an array.
      rows: the same.
      target: the machine.
      name: of the variants.
      counters: how many of the operands, the last ones, are no memory but positions.
      most: elements of the whole operation; vertices of one of a few that have no more than workers take one at a time.
    """
    isa = instructions_for(target)
    known = body_dtypes(body, operand_dtypes)
    dtypes = (operand_dtypes, tuple(known[i] for i in outputs))
    n, rows = np.broadcast_arrays(np.atleast_1d(n), np.atleast_1d(rows))
    question = (body, outputs, dtypes, levels, counters)
    if not has_rows:
        short = n * rows <= (isa["worker_contexts"] if most <= FEW else 0)
        parts: list[VertexCode] = []
        for is_short in (True, False):
            runs = short if is_short else ~short
            if runs.any() or (not is_short and not runs.size):
                cell = partial(_cell, *question, 0, False, is_short)
                variant = existing(named_variant(name, isa, "map", _cell, *cell.args))
                parts.append(VertexCode(variant, n * rows, runs=1 if runs.all() else runs, cell=cell))
        return tuple(parts)
    return aligned_rows("map", _cell, question, dtypes, levels, n, rows, isa, name, rows == 1)


def aligned_rows(
    family: str,
    make: Callable[..., CellFunction],
    question: tuple[Any, ...],
    dtypes: tuple[tuple[str, ...], tuple[str, ...]],
    levels: Levels,
    n: np.ndarray,
    rows: np.ndarray,
    isa: InstructionSet,
    name: str,
    alone: np.ndarray | bool = False,
) -> tuple[VertexCode, ...]:
    """Return the code of cells of rows: a variant for each alignment of them, and for each way to share them.

    Args:
      family: what kind of cell ``make`` makes.
      make: of the question, what row lengths are multiples of, and whether workers share each row, the cell.
      question: what else decides the cell.
      dtypes: of its operands and results.
      levels: how operands vary.
      n: elements of a row of every vertex.
      rows: rows of every vertex.
      isa: the instruction set.
      name: of the variants.
      alone: which vertices have one row, that begins where the memory of each operand and result does.

    Raises:
      NoTileCode, OutOfRegisters: there is no code for any alignment.
    """
    parts: list[VertexCode] = []
    reason: NoTileCode | OutOfRegisters | None = None
    for grain, chosen in _alignments(n, alone, dtypes, levels):
        cells = [partial(make, *question, grain, shares) for shares in (False, True)]
        try:
            by_rows, together = (
                existing(named_variant(name, isa, family, make, *cell.args)) for cell in cells
            )
        except (NoTileCode, OutOfRegisters) as error:
            reason = error
            continue
        is_faster = np.less(together.formula.cycles(n, rows), by_rows.formula.cycles(n, rows))
        parts.append(VertexCode(by_rows, n, rows, chosen & ~is_faster, cell=cells[0]))
        parts.append(VertexCode(together, n, rows, chosen & is_faster, cell=cells[1]))
    if reason is not None and not parts:
        raise reason
    return tuple(part for part in parts if np.any(part.runs))


@lru_cache(maxsize=4096)
def loops_of(
    form: OpForm, counted: tuple[int, ...] = (), single: frozenset[int] = frozenset()
) -> tuple[Levels, tuple[int, ...], bool]:
    """Return how operands, and positions along dimensions, vary with the loops of a cell.

    The inner loop runs over as many of the results' innermost dimensions as every operand varies with all of or
    none of; there are none over the dimensions ``single``.

    Returns:
      levels: of every operand.
      inner: the domain dimensions of the inner loop.
      has_rows: whether there is a loop around it that operands take notice of.
    """
    long = {d for d, dim in enumerate(form.dims) if dim.size > 1 and d not in single}
    order = [d for d in form.results[0].dims if d in long] if form.results else []
    varies = [long.intersection(index_map.dims) for index_map in form.operands]
    varies += [long & {d} for d in counted]
    cut = next(
        (c for c in range(len(order)) if all(not v & set(order[c:]) or v >= set(order[c:]) for v in varies)),
        len(order),
    )
    outer, inner = set(order[:cut]), set(order[cut:])
    levels = tuple((ELEMENT if v & inner else ROW if v else CELL, bool(v & outer)) for v in varies)
    has_rows = any(
        level == ROW or (level == ELEMENT and v < outer | inner)
        for (level, _), v in zip(levels, varies, strict=True)
    )
    return levels, tuple(order[cut:]), has_rows


def _alignments(
    n: np.ndarray, alone: np.ndarray | bool, dtypes: tuple[tuple[str, ...], tuple[str, ...]], levels: Levels
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield numbers of elements that row lengths are multiples of, up to whole accesses, and the entries with each.

    Of entries that are ``alone``, nothing follows their row, which may be of any length.
    """
    moving = [d for d, (level, moves) in zip(dtypes[0], levels, strict=True) if level == ELEMENT and moves]
    most = max(_ACCESS_BYTES // itemsize(d) for d in (*moving, *dtypes[1]))
    grains = np.where(alone, max(most, 1), np.gcd(n, max(most, 1)))
    for grain in sorted({int(g) for g in np.unique(grains)}, reverse=True):
        yield grain, grains == grain


@lru_cache(maxsize=4096)
def named_variant(name: str, *key: Any) -> Variant | NoVariant:
    """Return a variant under the name of a vertex: vertices of other names may run the same code."""
    return _variant(*key).named(name)


@lru_cache(maxsize=4096)
def _variant(
    isa: InstructionSet, family: str, make: Callable[..., CellFunction], *question: Any
) -> Variant | NoVariant:
    """Return the variant of the cell that ``make`` makes of a question."""
    return kept_cell(family, isa, make, question)


def kept_cell(
    family: str, isa: InstructionSet, cell: Callable[..., CellFunction], question: tuple[Any, ...]
) -> Variant | NoVariant:
    """Return the variant of the cell that ``cell`` makes of a question, from disk where it was compiled before."""

    def make() -> Variant:
        found = cell(*question)
        return compile_variant(found.jaxpr, found.dtypes, found.arrangement, isa, UNNAMED)

    return kept_variant((family, *question), isa, make)


@lru_cache(maxsize=4096)
def _cell(
    body: Body,
    outputs: tuple[int, ...],
    dtypes: tuple[tuple[str, ...], tuple[str, ...]],
    levels: Levels,
    counters: int,
    grain: int,
    shares_rows: bool,
    is_short: bool = False,
) -> CellFunction:
    """Return what a variant computes; ``grain`` is what row lengths are multiples of, 0 for cells that are one vector."""
    how = replace(_arrangement(dtypes, levels, counters, grain, shares_rows), is_short=is_short)
    return CellFunction(element_jaxpr(body, outputs, dtypes[0]), dtypes, how)


def _arrangement(
    dtypes: tuple[tuple[str, ...], tuple[str, ...]],
    levels: Levels,
    counters: int,
    grain: int,
    shares_rows: bool,
) -> Arrangement:
    def alignment(dtype: str, level: int, moves: bool) -> int:
        if level != ELEMENT:
            return itemsize(dtype)
        return math.gcd(_ACCESS_BYTES, grain * itemsize(dtype)) if grain and moves else _ACCESS_BYTES

    operands = tuple(
        Access(level, alignment(dtype, level, moves), moves or not grain, k >= len(levels) - counters)
        for k, (dtype, (level, moves)) in enumerate(zip(dtypes[0], levels, strict=True))
    )
    results = tuple(Access(ELEMENT, alignment(dtype, ELEMENT, True)) for dtype in dtypes[1])
    if any(access.alignment_bytes < _WORD_BYTES for access in results):
        raise NoTileCode(f"rows of {', '.join(dtypes[1])} that begin inside a word", expected="whole words")
    return Arrangement(operands, results, has_rows=bool(grain), shares_rows=shares_rows)


def check_widths(dtypes: tuple[str, ...]) -> None:
    """Raise NoTileCode where values are of more than 32 bits."""
    wide = sorted({dtype for dtype in dtypes if itemsize(dtype) > _WORD_BYTES})
    if wide:
        raise NoTileCode(f"values of {', '.join(wide)}", expected="at most 32 bits")


def element_jaxpr(body: Body, outputs: tuple[int, ...], operand_dtypes: tuple[str, ...]) -> Any:
    """Return the closed jaxpr of an expression at one element.

    Raises:
      NoTileCode: it has a 64-bit type.
    """
    check_widths(body_dtypes(body, operand_dtypes))

    def element(*operands: jax.Array) -> tuple[jax.Array, ...]:
        values = evaluate_body(body, list(operands), ONE_ELEMENT)
        return tuple(values[i] for i in outputs)

    return make_jaxpr(element)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in operand_dtypes))
