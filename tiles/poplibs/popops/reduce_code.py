"""Tile code of reductions: a prologue and a fold along rows or over them, by itself or with partials of few results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jax import lax

from tiles._jax_compat import broadcast_in_dim, make_jaxpr
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
from tiles.elements.variants import NoVariant, existing
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.graph import CodeData, Extents, OpForm, VertexCode
from tiles.numerics.dtypes import is_float, itemsize, to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.expression import Body, body_dtypes, evaluate_body
from tiles.poplibs.popops.fold import FOLDS, cast_accumulator
from tiles.poplibs.popops.map_code import Levels, check_widths, kept_cell
from tiles.target import Target

_ACCESS_BYTES = 8
_WORD_BYTES = 4
_SMALL: Any = SimpleNamespace(sizes=(2, 2), origin=(0, 0))
"""The cell that a prologue is traced for: code is the same for any extents."""
ALONG_ROWS, OVER_ROWS = "along rows", "over rows"


def reduction_code(
    body: Body,
    operation: str,
    accumulate_dtype: str,
    out_dtype: str,
    extents: Extents,
    order: tuple[int, ...],
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    """Return the code of a reduction along rows or over them.

    Args:
      body: the prologue, empty for none.
      operation: the reduction.
      accumulate_dtype: in which it is folded.
      out_dtype: of the result.
      extents: cell sizes.
      order: domain dimensions of more than one point as operand 0 stores them.
      target: the machine.
      name: of the variants.

    Raises:
      NoTileCode: another operation or dtype, an operand that varies with part of the inner loop's dimensions.
      OutOfRegisters: too few registers.
    """
    if _groups(extents.form, order) > 1:
        dtypes = accumulate_dtype, out_dtype
        return _in_stages(body, operation, dtypes, extents, order, target, name)
    kind, levels, inner, each = _loops(extents.form, order)
    n, times = extents.product(inner), extents.product(each)
    rows = extents.points // np.maximum(n * times, 1)
    reads = tuple(("operand", k) for k in range(len(extents.operand_dtypes)))
    outer = tuple(d for d in order if d not in (*inner, *each))
    data = CodeData(reads, (("result", 0),), outer, inner, "inner", each)
    if kind == ALONG_ROWS:
        dtypes = (*extents.operand_dtypes, accumulate_dtype, out_dtype)
        return fold_code(body, operation, dtypes, levels, n, rows, target, name, data)
    question = body, operation, accumulate_dtype, kind, levels, extents.operand_dtypes, out_dtype
    return _columns(question, n, rows, times, replace(data, folds="rows"), target, name)


def _groups(form: OpForm, order: tuple[int, ...]) -> int:
    """Return how many stretches of reduced dimensions there are, kept ones between them."""
    flags = [False, *(form.dims[d].is_reduced for d in order)]
    return sum(b and not a for a, b in itertools.pairwise(flags))


def _in_stages(
    body: Body,
    operation: str,
    dtypes: tuple[str, str],
    extents: Extents,
    order: tuple[int, ...],
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    """Return the code that folds one stretch of reduced dimensions after the other, the last one first.

    Arguments as of ``reduction_code``; ``dtypes`` are those in which values are folded, and of the result.
    """
    form, (accumulate_dtype, out_dtype), parts = extents.form, dtypes, list[VertexCode]()
    reads, operand_dtypes = (
        tuple(("operand", k) for k in range(len(extents.operand_dtypes))),
        extents.operand_dtypes,
    )
    levels: Levels | None = None
    has_all = np.ones(1, bool)  # vertices that have code of every stage
    for stage in range(_groups(form, order)):
        reduced = [form.dims[d].is_reduced for d in order]
        end = len(order) - reduced[::-1].index(True)
        start = next((k + 1 for k in reversed(range(end)) if not reduced[k]), 0)
        each, last, kept = order[:start], order[start:end], order[end:]
        is_final = not any(reduced[:start])
        writes, out = ((("result", 0),), out_dtype) if is_final else ((("value", stage),), accumulate_dtype)
        n, rows, times = (extents.product(dims) for dims in (kept or last, last, each))
        if kept:
            how = levels or _levels(form, order, kept, each)
            question = body, operation, accumulate_dtype, OVER_ROWS, how, operand_dtypes, out
            data = CodeData(reads, writes, last, kept, "rows", each)
            found = _columns(question, n, rows, times, data, target, name)
        else:
            how = levels or _levels(form, order, last, ())
            data = CodeData(reads, writes, each, last, "inner")
            of_fold = (*operand_dtypes, accumulate_dtype, out)
            found = fold_code(body, operation, of_fold, how, n, times, target, name, data)
        parts += found
        has_all = has_all & _which_run(found)
        order, body, levels = (*each, *kept), (), ((ELEMENT, True),)
        reads, operand_dtypes = writes, (accumulate_dtype,)
    if not has_all.any():
        raise NoTileCode("a stage of a fold has code where another has none")
    return tuple(replace(part, runs=np.where(has_all, part.runs, 0)) for part in parts)


def _which_run(parts: Sequence[VertexCode]) -> np.ndarray:
    """Return which vertices run any of some parts."""
    return np.any(np.stack(np.broadcast_arrays(*(np.atleast_1d(part.runs) > 0 for part in parts))), axis=0)


def stages_bytes(accumulate_dtype: str, extents: Extents, order: tuple[int, ...]) -> Any:
    """Return the bytes of what is left between stages of vertices that fold in several."""
    form, found = extents.form, np.zeros_like(extents.points)
    for _ in range(_groups(form, order) - 1):
        end = 1 + max(k for k, d in enumerate(order) if form.dims[d].is_reduced)
        start = next(k + 1 for k in reversed(range(end)) if not form.dims[order[k]].is_reduced)
        order = (*order[:start], *order[end:])
        found = found + extents.product(order) * itemsize(accumulate_dtype)
    return found


def _columns(
    question: tuple[Any, ...], n: Any, rows: Any, times: Any, data: CodeData, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code that folds ``rows`` rows of ``n`` elements to one, ``times`` times; the question as of ``_cell``."""
    isa = instructions_for(target)

    def columns(grain: int, chosen: np.ndarray) -> tuple[VertexCode, ...]:
        cell = partial(_cell, *question, grain)
        return (
            VertexCode(
                existing(_named_variant(name, isa, *cell.args)), n, rows, chosen * times, cell=cell, data=data
            ),
        )

    return _by_grain(_grains(n, (*question[-2], question[-1])), columns)


def fold_code(
    body: Body,
    operation: str,
    dtypes: tuple[str, ...],
    levels: Levels,
    n: Amount,
    rows: Amount,
    target: Target,
    name: str,
    data: CodeData | None = None,
) -> tuple[VertexCode, ...]:
    """Return the code that folds each of ``rows`` rows of ``n`` elements.

    Where rows are fewer than workers, these share the elements of each, and a second loop nest folds what they found.
    A result is a word, as workers take rows in turn: narrower ones are converted after.

    Args:
      body: the prologue.
      operation: the reduction.
      dtypes: of the operands, of what is folded, and of the results.
      levels: how operands vary.
      n: elements of a row, a number or an array.
      rows: the same.
      target: the machine.
      name: of the variants.
      data: what the fold reads and writes.

    Raises:
      NoTileCode, OutOfRegisters: as ``reduction_code``.
    """
    isa = instructions_for(target)
    *taken, accumulate_dtype, out_dtype = dtypes
    operand_dtypes = tuple(taken)
    n, rows = np.broadcast_arrays(np.atleast_1d(n), np.atleast_1d(rows))
    stored = out_dtype if itemsize(out_dtype) >= _WORD_BYTES else accumulate_dtype
    if itemsize(stored) < _WORD_BYTES:
        stored = "float32" if is_float(stored) else "int32"
    sharers = np.maximum(target.workers_per_tile // np.maximum(rows, 1), 1)
    shares = -(-n // sharers)
    found, shared, narrow = _writes(data, stored != out_dtype)

    # what several workers find of a row are words: integers and booleans are folded as such from there on
    joined = (
        accumulate_dtype
        if is_float(accumulate_dtype) or itemsize(accumulate_dtype) >= _WORD_BYTES
        else stored
    )
    prologue = body, accumulate_dtype, levels, operand_dtypes
    plain = (), joined, ((ELEMENT, True),), (joined,)

    def part(of: Any, dtype: str, n: Amount, rows: Amount, data: CodeData | None, grain: int) -> VertexCode:
        body, accumulate_dtype, levels, operand_dtypes = of
        question = (body, operation, accumulate_dtype, ALONG_ROWS, levels, operand_dtypes, dtype, grain)
        found = existing(_named_variant(name, isa, *question))
        return VertexCode(found, n, rows, cell=partial(_cell, *question), data=data)

    may_share = np.any(sharers > 1) and not itemsize(joined) % _WORD_BYTES

    def folds(grain: int, chosen: np.ndarray) -> tuple[VertexCode, ...]:
        whole = part(prologue, stored, n, rows, found, grain)
        if not may_share:
            return (replace(whole, runs=chosen),)
        of_share = part(prologue, joined, shares, rows * sharers, shared[0], grain)
        joining = part(plain, stored, sharers, rows, shared[1], 1)
        split = (replace(of_share, sharers=sharers), joining)
        is_faster = (sharers > 1) & (sum(each.cycles for each in split) < whole.cycles)
        return (
            replace(whole, runs=chosen & ~is_faster),
            *(replace(each, runs=chosen & is_faster) for each in split),
        )

    grains = np.minimum(_grains(n, operand_dtypes), _grains(shares, operand_dtypes))
    parts = [*_by_grain(grains, folds)]
    if stored != out_dtype:
        cell = partial(_narrowing_cell, stored, out_dtype)
        variant = existing(_narrowing(stored, out_dtype, isa))
        parts.append(VertexCode(variant, rows, runs=_which_run(parts), cell=cell, data=narrow))
    return tuple(part for part in parts if np.any(part.runs))


def _writes(
    data: CodeData | None, is_narrowed: bool
) -> tuple[CodeData | None, tuple[CodeData | None, CodeData | None], CodeData | None]:
    """Return what a fold's code reads and writes: in one piece, in shares and over these, and what narrows its results."""
    if data is None:
        return None, (None, None), None
    ((kind, number),) = data.writes
    own = -2 * (0 if kind == "result" else 1 + number)  # a fold's values are its own where there are several
    wide = (("value", own - 1),) if is_narrowed else data.writes
    shares = (("value", own - 2),)
    first = replace(data, writes=shares, folds="inner")
    return (
        replace(data, writes=wide),
        (first, replace(data, reads=shares, writes=wide, folds="shares")),
        CodeData(wide, data.writes, (), data.rows),
    )


@lru_cache(maxsize=4096)
def _loops(form: OpForm, order: tuple[int, ...]) -> tuple[str, Levels, tuple[int, ...], tuple[int, ...]]:
    """Return which way rows are folded, how operands vary with them, and the dimensions of the inner loop.

    The last are those outside both loops: what is kept before reduced dimensions that others follow.
    """
    reduced = [form.dims[d].is_reduced for d in order]
    each: tuple[int, ...] = ()
    if reduced == sorted(reduced):
        kind, inner = ALONG_ROWS, tuple(d for d in order if form.dims[d].is_reduced)
    else:
        first = reduced.index(True)
        each, kind = order[:first], OVER_ROWS
        inner = tuple(d for d in order[first:] if not form.dims[d].is_reduced)
    return kind, _levels(form, order, inner, each), inner, each


def _levels(form: OpForm, order: tuple[int, ...], inner: tuple[int, ...], each: tuple[int, ...]) -> Levels:
    """Return how operands vary with loops.

    Raises:
      NoTileCode: one varies with part of the inner loop's dimensions.
    """
    outer, levels = set(order) - {*inner, *each}, list[tuple[int, bool]]()
    for index_map in form.operands:
        varies = set(order).intersection(index_map.dims)
        if varies & set(inner) and not varies >= set(inner):
            raise NoTileCode("an operand that varies with part of the inner loop's dimensions")
        is_inner, moves = bool(varies & set(inner)), bool(varies & outer)
        levels.append((ELEMENT if is_inner else ROW if moves else CELL, moves))
    return tuple(levels)


def _grains(n: Amount, dtypes: tuple[str, ...]) -> np.ndarray:
    """Return of each row length what it is a multiple of, up to whole accesses of the narrowest of some types."""
    most = _ACCESS_BYTES // min(map(itemsize, dtypes), default=_ACCESS_BYTES)
    return np.gcd(np.atleast_1d(n), most)


def _by_grain(
    grains: np.ndarray, make: Callable[[int, np.ndarray], tuple[VertexCode, ...]]
) -> tuple[VertexCode, ...]:
    """Return the code of vertices, those with rows of one grain together: what one costs depends on no other.

    Raises:
      NoTileCode, OutOfRegisters: no grain has code.
    """
    parts: list[VertexCode] = []
    reason: NoTileCode | OutOfRegisters | None = None
    for grain in sorted({int(g) for g in np.unique(grains)}, reverse=True):
        try:
            parts += make(grain, grains == grain)
        except (NoTileCode, OutOfRegisters) as error:
            reason = error
    if reason is not None and not parts:
        raise reason
    return tuple(part for part in parts if np.any(part.runs))


@lru_cache(maxsize=4096)
def _named_variant(name: str, *key: Any) -> Variant | NoVariant:
    """Return a variant under the name of a vertex: vertices of other names may run the same code."""
    return _variant(*key).named(name)


@lru_cache(maxsize=4096)
def _variant(isa: InstructionSet, *question: Any) -> Variant | NoVariant:
    """Return a variant; the question as of ``_cell``."""
    return kept_cell("fold", isa, _cell, question)


@lru_cache(maxsize=4096)
def _cell(
    body: Body,
    operation: str,
    accumulate_dtype: str,
    kind: str,
    levels: Levels,
    operand_dtypes: tuple[str, ...],
    out_dtype: str,
    grain: int,
) -> CellFunction:
    """Return what a variant computes; ``grain`` is what row lengths are multiples of."""
    jaxpr = _jaxpr(body, operation, accumulate_dtype, kind, levels, operand_dtypes, out_dtype)
    accesses = tuple(
        Access(level, math.gcd(_ACCESS_BYTES, grain * itemsize(d)) if level == ELEMENT else itemsize(d))
        for d, (level, _) in zip(operand_dtypes, levels, strict=True)
    )
    result = Access(ELEMENT, math.gcd(_ACCESS_BYTES, grain * itemsize(out_dtype)))
    if kind == OVER_ROWS and result.alignment_bytes < _WORD_BYTES:
        raise NoTileCode(f"columns of {out_dtype} that end inside a word", expected="whole words")
    how = Arrangement(accesses, (result if kind == OVER_ROWS else Access(),), has_rows=True)
    return CellFunction(jaxpr, (operand_dtypes, (out_dtype,)), how)


def _jaxpr(
    body: Body,
    operation: str,
    accumulate_dtype: str,
    kind: str,
    levels: Levels,
    operand_dtypes: tuple[str, ...],
    out_dtype: str,
) -> Any:
    """Return the jaxpr of a reduction of a small array of two dimensions."""
    if any(name == "iota" for name, _, _ in body):
        raise NoTileCode("an expression of the element's own position")
    check_widths((*body_dtypes(body, operand_dtypes), accumulate_dtype, out_dtype))
    inner, outer = (1, 0)
    shapes: list[tuple[int, ...]] = []
    for level, moves in levels:
        shape = [1, 1]
        shape[inner] = 2 if level == ELEMENT else 1
        shape[outer] = 2 if moves else 1
        shapes.append(tuple(shape))

    def cell(*operands: jax.Array) -> jax.Array:
        value = evaluate_body(body, list(operands), _SMALL)[-1]
        if value.shape != (2, 2):
            value = broadcast_in_dim(value, (2, 2), (0, 1))
        value = cast_accumulator(value, accumulate_dtype)
        if (operation, accumulate_dtype) == ("add", "float16"):
            value = cast_accumulator(value, "float32")  # as the machine's accumulators add them
        (total, _) = FOLDS[operation]
        total = total(value, (0 if kind == OVER_ROWS else 1,))
        return _kept(cast_accumulator(total, accumulate_dtype), out_dtype)

    arguments = [jax.ShapeDtypeStruct(s, to_jax(d)) for s, d in zip(shapes, operand_dtypes, strict=True)]
    return make_jaxpr(cell)(*arguments)


@lru_cache(maxsize=256)
def _narrowing(dtype: str, out_dtype: str, isa: InstructionSet) -> Variant | NoVariant:
    """Return the code that converts results one after another."""

    def make() -> Variant:
        cell = _narrowing_cell(dtype, out_dtype)
        return compile_variant(cell.jaxpr, cell.dtypes, cell.arrangement, isa, "convert results")

    return kept_variant(("narrowing", dtype, out_dtype), isa, make)


@lru_cache(maxsize=256)
def _narrowing_cell(dtype: str, out_dtype: str) -> CellFunction:
    stored = jax.ShapeDtypeStruct((), to_jax(dtype))
    jaxpr = make_jaxpr(partial(_kept, dtype=out_dtype))(stored)
    return CellFunction(jaxpr, ((dtype,), (out_dtype,)), Arrangement((Access(),), (Access(),)))


def _kept(x: jax.Array, dtype: str) -> jax.Array:
    """Return results in the dtype in which they are stored, or back in their own; words behind a float are its bits."""
    if is_float(dtype) and not is_float(x.dtype.name):
        x = lax.convert_element_type(x, f"uint{8 * itemsize(dtype)}")
    elif is_float(x.dtype.name) != is_float(dtype):
        return lax.convert_element_type(x, to_jax(dtype))
    return cast_accumulator(x, dtype)
