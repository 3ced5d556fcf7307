"""Tile code of folds of several arrays together, by workers in turn or by all of them together.

What elements below 32 bits come to are words, which are made narrow at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from tiles._jax_compat import make_jaxpr
from tiles.elements import (
    Arrangement,
    CellFunction,
    InstructionSet,
    TileCode,
    Variant,
    compile_folds,
    instructions_for,
)
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.errors import NoTileCode
from tiles.graph import Extents, VertexCode
from tiles.graph.cycles import CodeMemory, Field
from tiles.graph.domain import OpForm
from tiles.numerics.dtypes import is_float, to_jax, unsigned_of
from tiles.poplibs.popops.expression import ONE_ELEMENT, Body, Row, body_dtypes, evaluate_body
from tiles.poplibs.popops.map_code import check_widths
from tiles.poplibs.popops.packing_code import Narrow, is_narrow, word_of
from tiles.target import Target

_POSITION = "int32"
_WORD_BYTES = 4


@dataclass(frozen=True)
class Folding:
    """What is folded.

    Args:
      body, outputs, dtypes, prologue, sources: as of ``ReduceMany``.
      operands: dtypes of the operands.
      in_words: whether every element of an operand is a word in memory.
    """

    body: Body
    outputs: tuple[int, ...]
    dtypes: tuple[str, ...]
    prologue: Body
    sources: tuple[int, ...]
    operands: tuple[str, ...]
    in_words: bool = False

    @property
    def counted(self) -> tuple[int, ...]:
        """Dimensions along which positions are counted."""
        return tuple(sorted({dict(attrs)["dim"] for name, _, attrs in self.prologue if name == "iota"}))

    @property
    def joining(self) -> Folding:
        """The fold of what workers found."""
        return Folding(self.body, self.outputs, self.dtypes, (), (), self.dtypes, in_words=True)


def folding_code(
    folding: Folding, extents: Extents, target: Target, name: str, shares_rows: bool
) -> tuple[VertexCode, ...]:
    """Return the code of vertices that fold rows.

    Args:
      folding: what.
      extents: of the cells.
      target: the machine.
      name: of the variants, for the printer.
      shares_rows: whether workers may take rows together.

    Raises:
      NoTileCode: elements of several words or floats smaller than one, operands that do not vary along all dimensions, positions
        along others than the one that is folded, an operation without code, or one that branches.
      OutOfRegisters: too few registers, even with values spilled.
    """
    form, isa = extents.form, instructions_for(target)
    _check(folding, form)
    n, rows = np.broadcast_arrays(np.asarray(extents.reduced), np.asarray(extents.results))

    def part(of: Folding, shares: bool, kernel: _Folds, count: Any, turn: Any) -> VertexCode:
        asked = _question(of)
        variant = existing(_variant(isa, shares, *asked)).named(name)
        compiled, cell = partial(_compiled, of, shares), partial(_cell, *asked)
        return VertexCode(variant, count, rows, cell=cell, kernel=kernel, compiled=compiled, turn=turn)

    def packed(kernel: _Folds) -> list[VertexCode]:
        narrow = [(k, Narrow(dtype)) for k, dtype in enumerate(folding.dtypes) if is_narrow(dtype)]
        return [
            VertexCode(x.variant(True, target, name), rows, kernel=kernel, turn=partial(_packing, k))
            for k, x in narrow
        ]

    workers, join = target.workers_per_tile, folding.joining
    in_turn = _Folds(folding, form, 0)
    turn = partial(_results, len(folding.dtypes))
    alone = [part(folding, False, in_turn, n, turn), *packed(in_turn)]
    if not shares_rows or not np.any(n >= workers):
        return _running(alone, n > 0)
    kernel = _Folds(folding, form, workers)
    together = [
        part(folding, True, kernel, np.maximum(n, workers), partial(_parts, len(folding.dtypes))),
        part(join, False, kernel, workers, partial(_joining, len(folding.dtypes), workers)),
        *packed(kernel),
    ]
    is_faster = (n >= workers) & (together[0].cycles + together[1].cycles < alone[0].cycles)
    if not is_faster.any():
        return _running(alone, n > 0)
    return *_running(alone, (n > 0) & ~is_faster), *_running(together, is_faster)


def shared_bytes(parts: Sequence[VertexCode]) -> Any:
    """Return the bytes of words that become narrow results, and of what workers find who take rows together."""
    total: Any = np.int64(0)
    for part in parts:
        kernel = part.kernel
        assert isinstance(kernel, _Folds)
        if part is next(x for x in parts if x.kernel is kernel):
            dtypes = kernel.folding.dtypes
            words = kernel.sharers * len(dtypes) + sum(map(is_narrow, dtypes))
            total = total + part.runs * part.rows * words * _WORD_BYTES
    return total


def _running(parts: Sequence[VertexCode], runs: np.ndarray) -> tuple[VertexCode, ...]:
    if not runs.any():
        return ()
    return tuple(replace(part, runs=runs.astype(np.int64)) for part in parts)


def _check(folding: Folding, form: OpForm) -> None:
    """Raise NoTileCode for operands or positions that the code does not go through."""
    every = tuple(range(len(form.dims)))
    for index_map in form.operands:
        is_whole = all(len(axis.terms) == 1 and axis.terms[0][1] == 1 for axis in index_map.axes)
        if not is_whole or tuple(sorted(index_map.dims)) != every:
            raise NoTileCode("a fold of operands that are windows, or do not vary along all dimensions")
    if any(map(is_float, folding.dtypes)) and not any(map(is_float, folding.operands)):
        raise NoTileCode("a fold of floats that are made of other numbers")
    folded = tuple(d for d in form.reduced if form.dims[d].size > 1)
    if folding.counted and (
        len(folding.counted) > 1 or not set(folded) <= set(folding.counted) <= set(form.reduced)
    ):
        raise NoTileCode("a fold with positions along others than the one dimension that is folded")


def _question(folding: Folding) -> tuple[Any, ...]:
    return tuple(getattr(folding, each.name) for each in fields(folding))


@lru_cache(maxsize=256)
def _variant(isa: InstructionSet, shares: bool, *question: Any) -> Variant | NoVariant:
    def make() -> Variant:
        return Variant.of(_compiled(Folding(*question), shares, _cell(*question), isa, UNNAMED), isa)

    return kept_variant(("folds", shares, *question), isa, make)


def _compiled(
    folding: Folding, shares: bool, cell: CellFunction, isa: InstructionSet, name: str = "folds"
) -> TileCode:
    (given, found), counts = cell.dtypes, bool(folding.counted)
    dtypes = given[: len(folding.operands)], found[: len(folding.dtypes)]
    return compile_folds(cell.jaxpr, dtypes, isa, counts, shares, folding.in_words, name)


@lru_cache(maxsize=256)
def _cell(*question: Any) -> CellFunction:
    """Return both functions in one: of operands, and a position where one is counted, and of the arrays before and after."""
    folding = Folding(*question)
    counted, operands, count = folding.counted, len(folding.operands), len(folding.dtypes)
    body = _with_positions(folding.prologue, operands) if counted else folding.prologue
    given = (*folding.operands, *(_POSITION for _ in counted))
    sources = [x if x < operands else x + len(counted) for x in folding.sources] or list(range(count))
    check_widths(body_dtypes(folding.body, folding.dtypes * 2))
    check_widths(body_dtypes(body, given))

    def both(*values: jax.Array) -> tuple[jax.Array, ...]:
        own, pair = values[: len(given)], values[len(given) :]
        known = evaluate_body(body, list(own), ONE_ELEMENT)
        combined = evaluate_body(folding.body, list(pair), ONE_ELEMENT)
        return (*(known[i] for i in sources), *(combined[i] for i in folding.outputs))

    dtypes = (*given, *folding.dtypes * 2)
    jaxpr = make_jaxpr(both)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in dtypes))
    return CellFunction(jaxpr, (dtypes, folding.dtypes * 2), Arrangement((), ()))


def _with_positions(prologue: Body, operands: int) -> Body:
    """Return an expression whose position is an operand behind the others."""

    def place(value: int) -> int:
        return value if value < operands else value + 1

    rows: list[Row] = []
    for name, arguments, attrs in prologue:
        if name == "iota":
            rows.append(("convert", (operands,), (("dtype", dict(attrs)["dtype"]),)))
        else:
            rows.append((name, tuple(map(place, arguments)), attrs))
    return tuple(rows)


def _results(arrays: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    del sizes
    return {f"out{k}": f"word{k}" for k in range(arrays)}


def _parts(arrays: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    del sizes
    return {f"out{k}": f"part{k}" for k in range(arrays)}


def _joining(arrays: int, workers: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    lie: dict[str, Field] = {f"in{k}": f"part{k}" for k in range(arrays)}
    apart: dict[str, Field] = {f"in{k}_row_bytes": workers * _WORD_BYTES for k in range(arrays)}
    return lie | apart | _results(arrays, sizes)


def _packing(k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    del sizes
    return {"in0": f"word{k}", "out0": f"out{k}"}


@dataclass(frozen=True)
class _Folds:
    """Rows that lie along the reduced dimensions, and what ``sharers`` find of each."""

    folding: Folding
    form: OpForm
    sharers: int

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        n = math.prod(sizes[d] for d in self.form.reduced)
        kept = [d for d in range(len(sizes)) if d not in self.form.reduced]
        memory: dict[str, np.ndarray] = {}
        for k, (x, index_map) in enumerate(zip(operands, self.form.operands, strict=True)):
            order = [1 + index_map.dims.index(d) for d in (*kept, *self.form.reduced)]
            memory[f"in{k}"] = np.ascontiguousarray(x.transpose([0, *order]).reshape(len(x), -1, n))
        rows = math.prod(sizes[d] for d in kept)
        # in the ring a float is a word, as which it is found
        floats = [x for x, dtype in zip(operands, self.folding.operands, strict=True) if is_float(dtype)]
        in_ring = any(x.dtype.kind == "u" for x in floats)
        for k, dtype in enumerate(self.folding.dtypes):
            kind = np.dtype(unsigned_of(dtype) if in_ring and is_float(dtype) else to_jax(dtype))
            word = np.dtype(to_jax(word_of(dtype))) if is_narrow(dtype) else kind
            memory[f"word{k}"] = np.zeros((len(origins), rows), word)
            if is_narrow(dtype):
                memory[f"out{k}"] = np.zeros((len(origins), rows), kind)
            if self.sharers:
                memory[f"part{k}"] = np.zeros((len(origins), rows, self.sharers), word)
        given: dict[str, Any] = {f"in{k}_row_bytes": n * x.itemsize for k, x in enumerate(operands)}
        if self.folding.counted:
            given["first"] = origins[:, self.folding.counted[0]]
        return memory, given

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        kept = [d for d in range(len(sizes)) if d not in self.form.reduced]
        found: list[np.ndarray] = []
        for k, result in enumerate(self.form.results):
            name = "out" if is_narrow(self.folding.dtypes[k]) else "word"
            x = memory[f"{name}{k}"].reshape(-1, *(sizes[d] for d in kept))
            found.append(x.transpose([0, *(1 + kept.index(d) for d in result.dims)]))
        return found
