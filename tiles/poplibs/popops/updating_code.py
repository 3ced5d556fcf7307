"""Tile code of updates at many indices: the engine lays tensors out with the updated axes first, in rows of words.

Updates that lie along an axis of the result, each with indices of its own, are run one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiles._jax_compat import Jaxpr, make_jaxpr
from tiles.elements import (
    Access,
    Arrangement,
    CellFunction,
    InstructionSet,
    TileCode,
    Variant,
    compile_cell,
    compile_updates,
    instructions_for,
)
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.errors import NoTileCode
from tiles.graph import Extents, OpForm, VertexCode
from tiles.graph.cycles import CodeMemory, Field
from tiles.numerics.dtypes import itemsize, to_jax
from tiles.poplibs.popops.expression import Body
from tiles.poplibs.popops.laid_out import along_axes, check_indices, index_rows, is_plain, rows_first
from tiles.poplibs.popops.map_code import check_widths, element_jaxpr
from tiles.poplibs.popops.offsets import SCATTERS, takes_places, update_dims
from tiles.poplibs.popops.reduce import neutral_element
from tiles.target import Target

_WORD_BYTES = 4
_NUMBER = "int32"


def updates_code(
    extents: Extents,
    axes: Sequence[int],
    windows: Sequence[int],
    operation: str,
    target: Target,
    name: str,
    *,
    is_clamped: bool,
    is_fresh: bool,
) -> tuple[VertexCode, ...]:
    """Return the code of a ``MultiUpdate`` at single places: for a fresh start, of filling the tensor first.

    Raises:
      NoTileCode: windows of several places, elements of several words that are computed with, rows that end inside a word.
      OutOfRegisters: too few registers, even with values spilled.
    """
    kernel = _places(extents, axes, windows, 0 if is_fresh else 1, is_clamped)
    (dtype,) = extents.result_dtypes
    parts: list[VertexCode] = []
    if is_fresh:
        neutral = neutral_element(operation, dtype).item()
        parts.append(_filling_code(extents, kernel, 0, neutral, dtype, target, name))
    function = _Combining(operation, _words_of(dtype) if operation == "set" else dtype)
    parts.append(_updating_code(extents, kernel, function, _Compiled(len(axes), is_clamped), target, name))
    return tuple(parts)


def updates_by_code(
    extents: Extents,
    axes: Sequence[int],
    windows: Sequence[int],
    body: Body,
    outputs: tuple[int, ...],
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    """Return the code of an ``UpdateBy``; errors as of ``updates_code``, and NoTileCode of expressions of positions."""
    kernel = _places(extents, axes, windows, starts=len(outputs))
    function = _ByBody(body, outputs, extents.result_dtypes)
    return (_updating_code(extents, kernel, function, _Compiled(len(axes)), target, name),)


def last_updates_code(
    extents: Extents, axes: Sequence[int], windows: Sequence[int], target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of an ``UpdateLast``: both results are filled, then values are set, then numbers of lookups.

    Raises:
      NoTileCode: as of ``updates_code``; several dimensions of lookups of which a part has not the whole of the inner ones.
    """
    kernel = _places(extents, axes, windows, starts=0)
    if any((extents.product((d,)) != extents.form.dims[d].size).any() for d in kernel.lookups[1:]):
        raise NoTileCode("the last of lookups that are split along an inner dimension")
    numbers, dtype = extents.result_dtypes
    words = _words_of(dtype)
    pairs = ((0, _Combining("set", numbers), True), (1, _Combining("set", words), False))
    return (
        _filling_code(extents, kernel, 0, -1, numbers, target, name),
        _filling_code(extents, kernel, 1, 0, "uint32", target, name),
        *(
            _updating_code(extents, kernel, f, _Compiled(len(axes), is_numbered=n), target, name, k)
            for k, f, n in pairs
        ),
    )


def place_bytes(extents: Extents, axes: Sequence[int], windows: Sequence[int], dtype: str) -> np.ndarray:
    """Return the bytes of what lies at one place, which the updates of other parts overwrite beside the tensor."""
    form = extents.form
    if not takes_places(form, windows):
        return np.zeros_like(extents.points)
    dims = form.results[0].dims
    other = {dims[axis] for axis in axes} | {
        d for m in form.operands[len(form.operands) - len(axes) :] for d in m.dims
    }
    return extents.product([d for d in dims if d not in other]) * itemsize(dtype)


def _words_of(dtype: str) -> str:
    """Return as what elements are moved."""
    return dtype if itemsize(dtype) == _WORD_BYTES else "uint32"


def _places(
    extents: Extents, axes: Sequence[int], windows: Sequence[int], starts: int, is_clamped: bool = False
) -> _Places:
    """Return how a cell's tensors lie in memory.

    Raises:
      NoTileCode: see ``updates_code``.
    """
    form = extents.form
    if not takes_places(form, windows):
        raise NoTileCode("updates of windows at several indices")
    if not all(map(is_plain, (*form.operands, *form.results))):
        raise NoTileCode("an update of a tensor that is read from an offset on")
    base = len(form.operands) - len(axes)
    dims = update_dims(form, axes, windows, base)
    wanted = form.results[0].dims
    places = tuple(wanted[axis] for axis in axes)
    batch = tuple(d for d in dims.leading if d in wanted)
    if set(batch) & set(places):
        raise NoTileCode("updates at indices that vary along what they update")
    lookups = tuple(d for d in dims.leading if d not in wanted)
    rest = tuple(d for d in wanted if d not in places and d not in batch)
    if any(set(m.dims) != {*dims.leading, *rest} for m in form.operands[starts:base]):
        raise NoTileCode("updates that are repeated along other axes")
    for dtype in extents.operand_dtypes[base:]:
        # unsigned ones are counted from the first place on: what is beyond the last one is outside
        if dtype != "uint32" or is_clamped:
            check_indices(dtype)
    sizes = tuple(map(itemsize, extents.result_dtypes))
    return _Places(form, tuple(axes), starts, base, batch, lookups, places, rest, sizes)


def _row_words(extents: Extents, kernel: _Places, dtype: str) -> np.ndarray:
    row = extents.product(kernel.rest) * itemsize(dtype)
    if (row % _WORD_BYTES).any():
        raise NoTileCode("rows that end inside a word")
    return row // _WORD_BYTES


def _filling_code(
    extents: Extents, kernel: _Places, k: int, value: float, dtype: str, target: Target, name: str
) -> VertexCode:
    """Return the code that fills a result with one element; ``dtype`` may be words that its elements make."""
    isa = instructions_for(target)
    variant = existing(_filled(isa, value, dtype)).named(name)
    count = extents.results * itemsize(extents.result_dtypes[k]) // itemsize(dtype)
    cell, turn = partial(_filling, value, dtype), partial(kernel.fill, k)
    return VertexCode(variant, count, cell=cell, kernel=kernel, compiled=compile_filling, turn=turn)


def _updating_code(
    extents: Extents,
    kernel: _Places,
    function: _Function,
    compiled: _Compiled,
    target: Target,
    name: str,
    k: int | None = None,
) -> VertexCode:
    """Return the code that updates result ``k``, or all of them."""
    isa = instructions_for(target)
    variant = existing(_updated(isa, function, compiled)).named(name)
    n = _row_words(extents, kernel, extents.result_dtypes[k or 0])
    updates, runs = extents.product(kernel.lookups), extents.product(kernel.batch)
    turn = partial(kernel.update, k, compiled.is_numbered)
    return VertexCode(variant, n, updates, runs, cell=function, kernel=kernel, compiled=compiled, turn=turn)


@lru_cache(maxsize=64)
def _filled(isa: InstructionSet, value: float, dtype: str) -> Variant | NoVariant:
    def make() -> Variant:
        return Variant.of(compile_filling(_filling(value, dtype), isa), isa)

    return kept_variant(("updates", "fill", value, dtype), isa, make)


@lru_cache(maxsize=64)
def _updated(isa: InstructionSet, function: _Function, compiled: _Compiled) -> Variant | NoVariant:
    return kept_variant(
        ("updates", *function.question, *compiled.question),
        isa,
        lambda: Variant.of(compiled(function(), isa), isa),
    )


@dataclass(frozen=True)
class _Combining:
    """What one of ``SCATTERS`` makes of an old element and an update."""

    operation: str
    dtype: str

    @property
    def question(self) -> tuple[Any, ...]:
        """By what its code is told from others."""
        return self.operation, self.dtype

    def __call__(self) -> CellFunction:
        """Return it as the function of a cell."""
        words = (self.dtype,) * 2
        taken = (jax.ShapeDtypeStruct((), to_jax(d)) for d in words)
        jaxpr: Jaxpr = make_jaxpr(SCATTERS[self.operation][1])(*taken)
        return CellFunction(jaxpr, (words, (self.dtype,)), Arrangement((), ()))


@dataclass(frozen=True)
class _ByBody:
    """What an expression makes of old elements and updates."""

    body: Body
    outputs: tuple[int, ...]
    dtypes: tuple[str, ...]

    @property
    def question(self) -> tuple[Any, ...]:
        """By what its code is told from others."""
        return self.body, self.outputs, self.dtypes

    def __call__(self) -> CellFunction:
        """Return it as the function of a cell.

        Raises:
          NoTileCode: it has a 64-bit type, or depends on positions.
        """
        if any(name == "iota" for name, _, _ in self.body):
            raise NoTileCode("an update by an expression of positions")
        jaxpr = element_jaxpr(self.body, self.outputs, self.dtypes * 2)
        return CellFunction(jaxpr, (self.dtypes * 2, self.dtypes), Arrangement((), ()))


_Function = _Combining | _ByBody


@lru_cache(maxsize=64)
def _filling(value: float, dtype: str) -> CellFunction:
    """Return an element as the function of a cell.

    Raises:
      NoTileCode: an element of several words.
    """
    check_widths((dtype,))
    jaxpr: Jaxpr = make_jaxpr(lambda: jnp.asarray(value, to_jax(dtype)))()
    how = Arrangement((), (Access(alignment_bytes=_WORD_BYTES),))
    return CellFunction(jaxpr, ((), (dtype,)), how)


def compile_filling(cell: CellFunction, isa: InstructionSet) -> TileCode:
    """Return the code that fills a tensor with one element."""
    return compile_cell(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)


@dataclass(frozen=True)
class _Compiled:
    """Makes the code of updates, for another arithmetic, too; arguments as of ``Updates``."""

    axes: int
    is_clamped: bool = False
    is_numbered: bool = False

    @property
    def question(self) -> tuple[int, bool, bool]:
        """By what its code is told from others."""
        return self.axes, self.is_clamped, self.is_numbered

    def __call__(self, cell: CellFunction, isa: InstructionSet) -> TileCode:
        return compile_updates(cell.jaxpr, cell.dtypes[1], isa, *self.question, name=UNNAMED)


@dataclass(frozen=True)
class _Places:
    """Rows of tensors' parts ("out0" and so on, one row more than a part has) and updates of rows: a ``Kernel``.

    Args:
      form: of the cells.
      axes: updated axes.
      starts: how many operands are tensors to start from.
      base: the first operand of indices; those between are updates.
      batch: dimensions of the results along which updates have indices of their own.
      lookups: the other dimensions of updates, in order.
      places: dimensions of the results that are updated.
      rest: their others, of what lies at one place.
      item_bytes: of an element of each result.
    """

    form: OpForm
    axes: tuple[int, ...]
    starts: int
    base: int
    batch: tuple[int, ...]
    lookups: tuple[int, ...]
    places: tuple[int, ...]
    rest: tuple[int, ...]
    item_bytes: tuple[int, ...]

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        lead, form = (*self.batch, *self.lookups), self.form
        memory: dict[str, np.ndarray] = {}
        updates = range(self.starts, self.base)
        for k, at in enumerate(updates):
            memory[f"in{k}"] = rows_first(operands[at], form.operands[at], lead, self.rest)
        for k, at in enumerate(range(self.base, len(operands))):
            memory[f"in{len(updates) + k}"] = index_rows(operands[at], form.operands[at], lead, sizes)
        held = (*self.batch, *self.places)
        rows, row = (math.prod(sizes[d] for d in dims) for dims in (held, self.rest))
        for k in range(len(form.results)):
            # numbers of lookups come with no update: they are the result before that of the updates
            given = k - (len(form.results) - len(updates))
            dtype = memory[f"in{given}"].dtype if given >= 0 else np.dtype(_NUMBER)
            out = memory[f"out{k}"] = np.zeros((len(origins), rows + 1, row), dtype)
            if self.starts:
                out[:, :rows] = rows_first(operands[k], form.results[k], held, self.rest)
        fields: dict[str, Any] = {}
        for k, d in enumerate(self.places):
            fields |= {f"first{k}": origins[:, d], f"size{k}": sizes[d], f"last{k}": form.dims[d].size - 1}
        number, stride = np.zeros(len(origins), np.int64), 1
        for d in reversed(self.lookups):
            number, stride = number + stride * origins[:, d], stride * form.dims[d].size
        return memory, {**fields, "number": number}

    def fill(self, k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of filling a result: nothing but where it is."""
        return {"out0": f"out{k}"}

    def update(self, k: int | None, is_numbered: bool, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """Return the fields of the updates of result ``k``, or of all, one after the other along ``batch``."""
        count, given = len(self.form.results), self.base - self.starts
        size = self.item_bytes[k or 0]
        row = math.prod(sizes[d] for d in self.rest) * size
        updates = math.prod(sizes[d] for d in self.lookups)
        part, fixed = row, dict[str, Field]()
        for axis, d in reversed(list(enumerate(self.places))):
            fixed[f"bytes{axis}"], part = part, part * sizes[d]
        batch = math.prod(sizes[d] for d in self.batch)
        results = range(count) if k is None else (k,)
        found: list[dict[str, Field]] = []
        for b in range(batch):
            fields: dict[str, Field] = {**fixed, "outside": (batch - b) * part}
            for at, result in enumerate(results):
                fields[f"out{at}"] = f"out{result}", b * part
            for at in range(0 if is_numbered else given):
                fields[f"in{at}"] = f"in{at}", b * updates * row
            for at in range(given, given + len(self.axes)):
                fields[f"in{at}"] = f"in{at}", b * updates * _WORD_BYTES
            found.append(fields)
        return found

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        dims = (*self.batch, *self.places, *self.rest)
        return [
            along_axes(memory[f"out{k}"][:, :-1], sizes, dims, each.dims)
            for k, each in enumerate(self.form.results)
        ]
