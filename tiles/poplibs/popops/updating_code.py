"""Tile code of updates at many indices along one axis: the engine lays tensors out with that axis first, in rows of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

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
from tiles.poplibs.popops.laid_out import along_axes, check_indices, is_plain, rows_first
from tiles.poplibs.popops.offsets import SCATTERS, takes_rows, update_dims
from tiles.poplibs.popops.reduce import neutral_element
from tiles.target import Target

_WORD_BYTES = 4


@dataclass(frozen=True)
class Updating:
    """What a vertex does.

    Args:
      axes, windows: as of ``MultiUpdate``.
      operation: one of ``SCATTERS``.
      dtype: of the tensor.
      is_clamped: whether indices outside stand for the nearest place.
      is_fresh: whether it starts from the neutral element.
    """

    axes: tuple[int, ...]
    windows: tuple[int, ...]
    operation: str
    dtype: str
    is_clamped: bool
    is_fresh: bool


def updates_code(extents: Extents, what: Updating, target: Target, name: str) -> tuple[VertexCode, ...]:
    """Return the code of updates at single places along one axis: for a fresh start, of filling the tensor first.

    Raises:
      NoTileCode: several axes, windows of several places, indices that vary along the tensor, elements of several words
        that are computed with, rows that end inside a word.
      OutOfRegisters: too few registers, even with values spilled.
    """
    form = extents.form
    if not takes_rows(form, what.windows):
        raise NoTileCode("updates of windows, or along several axes, at several indices")
    if not all(map(is_plain, (*form.operands, *form.results))):
        raise NoTileCode("an update of a tensor that is read from an offset on")
    base = len(form.operands) - 1
    dims = update_dims(form, what.axes, what.windows, base)
    places = form.results[0].dims[what.axes[0]]
    rest = tuple(d for d in form.results[0].dims if d != places)
    if set(dims.leading) & set(form.results[0].dims):
        raise NoTileCode("updates at indices of their own along another axis")
    if set(form.operands[base - 1].dims) != {*dims.leading, *rest}:
        raise NoTileCode("updates that are repeated along other axes")
    check_indices(extents.operand_dtypes[base])
    words = what.dtype
    if itemsize(what.dtype) != _WORD_BYTES and what.operation == "set":
        words = "uint32"
    row = extents.product(rest) * itemsize(what.dtype)
    if (row % _WORD_BYTES).any():
        raise NoTileCode("rows that end inside a word")
    isa, kernel = instructions_for(target), _Rows(form, what, places, dims.leading, rest)
    n = row // _WORD_BYTES
    parts: list[VertexCode] = []
    if what.is_fresh:
        variant = existing(_variant(isa, "fill", what.operation, what.dtype, False)).named(name)
        cell = partial(_filling, what.operation, what.dtype)
        filled = extents.product((places, *rest))
        parts.append(
            VertexCode(variant, filled, cell=cell, kernel=kernel, compiled=compile_filling, turn=kernel.fill)
        )
    variant = existing(_variant(isa, "update", what.operation, words, what.is_clamped)).named(name)
    cell = partial(_combining, what.operation, words)
    compiled = _Compiled(what.is_clamped)
    updates = extents.product(dims.leading)
    parts.append(
        VertexCode(variant, n, updates, cell=cell, kernel=kernel, compiled=compiled, turn=kernel.update)
    )
    return tuple(parts)


@lru_cache(maxsize=64)
def _variant(
    isa: InstructionSet, kind: str, operation: str, dtype: str, is_clamped: bool
) -> Variant | NoVariant:
    def make() -> Variant:
        if kind == "fill":
            return Variant.of(compile_filling(_filling(operation, dtype), isa), isa)
        return Variant.of(_Compiled(is_clamped)(_combining(operation, dtype), isa), isa)

    return kept_variant(("updates", kind, operation, dtype, is_clamped), isa, make)


@lru_cache(maxsize=64)
def _combining(operation: str, dtype: str) -> CellFunction:
    """Return what an update makes of an old element."""
    words = (dtype,) * 2
    jaxpr: Jaxpr = make_jaxpr(SCATTERS[operation][1])(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in words))
    return CellFunction(jaxpr, (words, (dtype,)), Arrangement((), ()))


@lru_cache(maxsize=64)
def _filling(operation: str, dtype: str) -> CellFunction:
    """Return the element that changes no result."""
    value = neutral_element(operation, dtype)
    jaxpr: Jaxpr = make_jaxpr(lambda: jnp.asarray(value))()
    how = Arrangement((), (Access(alignment_bytes=_WORD_BYTES),))
    return CellFunction(jaxpr, ((), (dtype,)), how)


def compile_filling(cell: CellFunction, isa: InstructionSet) -> TileCode:
    """Return the code that fills a tensor with one element."""
    return compile_cell(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)


@dataclass(frozen=True)
class _Compiled:
    """Makes the code of updates for another arithmetic."""

    is_clamped: bool

    def __call__(self, cell: CellFunction, isa: InstructionSet) -> TileCode:
        return compile_updates(cell.jaxpr, cell.dtypes[1][0], isa, self.is_clamped, UNNAMED)


@dataclass(frozen=True)
class _Rows:
    """Rows of a tensor ("out0", one more than its part has) and updates of rows: a ``Kernel``."""

    form: OpForm
    what: Updating
    places: int
    leading: tuple[int, ...]
    rest: tuple[int, ...]

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        base = len(operands) - 1
        updates = rows_first(operands[base - 1], self.form.operands[base - 1], self.leading, self.rest)
        of_indices = self.form.operands[base]
        whole = [sizes[d] for d in self.leading]
        held = [sizes[d] if d in of_indices.dims else 1 for d in self.leading]
        indices = rows_first(
            operands[base], of_indices, [d for d in self.leading if d in of_indices.dims], ()
        )
        indices = np.broadcast_to(indices.reshape(len(indices), *held), (len(indices), *whole))
        size = sizes[self.places]
        out = np.zeros((len(updates), size + 1, updates.shape[2]), updates.dtype)
        if not self.what.is_fresh:
            out[:, :size] = rows_first(operands[0], self.form.results[0], (self.places,), self.rest)
        fields = {
            "row_bytes": updates.shape[2] * updates.itemsize,
            "first": origins[:, self.places],
            "size": size,
            "last": self.form.dims[self.places].size - 1,
        }
        index = np.ascontiguousarray(indices.reshape(len(indices), -1), np.int32)
        return {"in0": updates, "in1": index, "out0": out}, fields

    def fill(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of filling the tensor: nothing but where it is."""
        return {"out0": "out0"}

    def update(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of the updates."""
        return {name: name for name in ("in0", "in1", "out0")}

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        found = memory["out0"][:, : sizes[self.places]]
        return [along_axes(found, sizes, (self.places, *self.rest), self.form.results[0].dims)]
