"""Tile code of slices and updates at runtime offsets along one axis.

The engine lays a tensor out with the sliced axis first, so that what lies at one place of it is a row of words.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.elements import (
    InstructionSet,
    Variant,
    compile_lookup,
    compile_part_slice,
    compile_slice,
    instructions_for,
)
from tiles.errors import NoTileCode, OutOfRegisters
from tiles.graph import Cycles, Extents, OpForm, VertexCode, code_or_formula
from tiles.graph.cycles import CodeMemory, Kernel
from tiles.numerics.dtypes import itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.block_slicing_code import AXES, block_code
from tiles.poplibs.popops.laid_out import along_axes, check_indices, is_plain, rows_first
from tiles.poplibs.popops.offsets import NO_WINDOW, takes_rows
from tiles.poplibs.popops.slicing_cycles import SOURCE, dynamic_slice_cycles
from tiles.target import Basis, Target

_ACCESS_BYTES, _WORD_BYTES = 8, 4


def slice_code(
    extents: Extents, axes: Sequence[int], windows: Sequence[int], dtype: str, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of a slice, or of lookups of single rows; arguments as of ``MultiSlice``.

    Raises:
      NoTileCode: more than two axes, lookups of windows, indices of other types than int32, and for lookups uint32.
    """
    if len(axes) == AXES:
        return block_code(extents, axes, windows, dtype, target, name, is_update=False)
    form = extents.form
    axis, window = _one_axis(axes, windows)
    if not all(map(is_plain, (*form.operands, *form.results))):
        raise NoTileCode("a slice of a tensor that is read from an offset on")
    ((places, _),) = form.operands[0].axes[axis].terms
    looked_up = form.operands[1].dims
    rest = tuple(d for d in form.operands[0].dims if d != places)
    leading = looked_up if window == NO_WINDOW else (*looked_up, window)
    if looked_up and takes_rows(form, windows):
        window = NO_WINDOW
    if (window != NO_WINDOW) == bool(looked_up) or set(rest) & set(looked_up):
        raise NoTileCode("lookups of windows, or in a table of their own each")
    if any(form.dims[d].size > 1 for d in rest if d not in form.results[0].dims):
        raise NoTileCode("a table of which one place of another axis is read")
    is_unsigned = extents.operand_dtypes[1] == "uint32" and window == NO_WINDOW
    if not is_unsigned:
        check_indices(extents.operand_dtypes[1])
    kernel = _Slice(form, places, leading, rest, window, extents.result_dtypes[0] != dtype)
    row = extents.product(rest) * itemsize(dtype)
    if window == NO_WINDOW:
        count = extents.product(looked_up)
        whole = _is_whole(extents, (places,))
        kind = "unsigned lookup" if is_unsigned else "lookup"
        found: list[VertexCode] = []
        for is_part, those in ((False, whole), (True, ~whole)):
            if those.any():
                own = dataclasses.replace(kernel, is_part=is_part)
                kinds = f"part {kind}" if is_part else kind
                found += _parts(kinds, row, row // _WORD_BYTES, count, those, own, target, name)
        return tuple(found)
    whole = _is_whole(extents, (places, window))
    taken = np.minimum(extents.product((window,)), extents.product((places,)))
    zeros = row * (extents.product((window,)) - taken) // _WORD_BYTES
    words = row * taken // _WORD_BYTES
    parts: list[VertexCode] = []
    if whole.any():
        parts += _parts("slice", row, words, 1, whole, kernel, target, name)
    if not whole.all():
        own = dataclasses.replace(kernel, is_part=True)
        parts += _parts("part slice", row, words, zeros, ~whole, own, target, name)
    return tuple(parts)


def update_code(
    extents: Extents, axes: Sequence[int], windows: Sequence[int], dtype: str, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code that puts a window of updates into a part of a tensor at one clamped index.

    Its slots are those of the vertex whose part the window falls into; arguments as of ``MultiUpdate``.

    Raises:
      NoTileCode: more than two axes, several indices, parts of the window, indices of other types than int32.
    """
    if len(axes) == AXES:
        return block_code(extents, axes, windows, dtype, target, name, is_update=True)
    form = extents.form
    axis, window = _one_axis(axes, windows)
    if not all(map(is_plain, (*form.operands, *form.results))):
        raise NoTileCode("an update of a tensor that is read from an offset on")
    if window == NO_WINDOW or form.operands[2].dims or form.reduced != (window,):
        raise NoTileCode("updates at several indices")
    check_indices(extents.operand_dtypes[2])
    places = form.results[0].dims[axis]
    rest = tuple(d for d in form.results[0].dims if d != places)
    if set(form.operands[0].dims) != {places, *rest} or set(form.operands[1].dims) != {window, *rest}:
        raise NoTileCode("updates that are repeated along other axes")
    row = extents.product(rest) * itemsize(dtype)
    taken = np.minimum(extents.product((window,)), extents.product((places,)))
    total = row * taken // _WORD_BYTES
    kernel = _Update(form, places, window, rest)
    return _parts("update", row, total, 1, _is_whole(extents, (window,)), kernel, target, name)


def offset_cycles(
    make: Callable[[Extents, Target], tuple[VertexCode, ...]],
    is_whole: np.ndarray,
    row: Amount,
    taken: Amount,
    zeros: Amount,
    dtype: str,
    extents: Extents,
    target: Target,
    is_block: bool = False,
) -> Cycles:
    """Return the cycles of slices, or updates, at one offset.

    PopLibs' vertices have the whole tensor. A part of it takes as long for the rows that it has, and what its code takes
    beyond that of such a slice: finding them, and zeros for those of a slice that are elsewhere.

    Args:
      make: returns the code of all vertices.
      is_whole: which of them are PopLibs'.
      row: elements at one place.
      taken: places that a vertex copies, at most.
      zeros: cycles of filling with zeros, for what has no code.
      dtype: of the elements.
      extents: the vertices'.
      target: the machine.
      is_block: whether there are two axes, whose code says nothing of zeros.
    """
    stated = dynamic_slice_cycles(row, taken, dtype, target)
    if bool(np.all(is_whole)):
        return Cycles(stated, Basis.DOCUMENTED, SOURCE)
    estimated = Cycles(stated + zeros, Basis.ASSUMED, SOURCE)
    try:
        found = code_or_formula(make(extents, target), estimated)
        isa = instructions_for(target)
    except (NoTileCode, OutOfRegisters):
        return estimated
    if found.basis is Basis.ASSUMED:
        return estimated
    size = np.asarray(row, np.int64) * itemsize(dtype)
    wide, narrow = (_variant(isa, "slice", b).formula for b in (_ACCESS_BYTES, _WORD_BYTES))
    words = size * taken // _WORD_BYTES
    ends: list[np.ndarray] = [np.asarray(formula.cycles(words)) for formula in (wide, narrow)]
    plain = np.where(size % _ACCESS_BYTES == 0, *ends)
    beyond = np.where(is_whole, 0, np.maximum(found.value - plain, 0) + (zeros if is_block else 0))
    return Cycles(stated + beyond, found.basis, f"{SOURCE}; beyond whole tensors: {found.source}")


def _one_axis(axes: Sequence[int], windows: Sequence[int]) -> tuple[int, int]:
    if len(axes) != 1:
        raise NoTileCode(f"indices along {len(axes)} axes", expected="one")
    return axes[0], windows[0]


def _is_whole(extents: Extents, dims: Sequence[int]) -> np.ndarray:
    found = [np.asarray(extents.sizes[d]) == extents.form.dims[d].size for d in dims]
    return np.asarray(np.logical_and.reduce(np.broadcast_arrays(*found)))


def _parts(
    kind: str,
    row: Amount,
    n: Amount,
    rows: Amount,
    whole: np.ndarray,
    kernel: Kernel,
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    """Return a variant for each alignment of rows of ``row`` bytes that is met."""
    isa, found = instructions_for(target), list[VertexCode]()
    row, n, rows, whole = np.broadcast_arrays(row, n, rows, whole)
    alignment = np.gcd(np.maximum(row, 1), _ACCESS_BYTES)
    for bytes_ in (_ACCESS_BYTES, _WORD_BYTES):
        runs = (whole & (alignment == bytes_)).astype(np.int64)
        if runs.any():
            variant = _variant(isa, kind, bytes_).named(name)
            found.append(VertexCode(variant, n, rows, runs, kernel=kernel))
    if not found:
        raise NoTileCode("rows that begin inside a word")
    return tuple(found)


@lru_cache(maxsize=64)
def _variant(isa: InstructionSet, kind: str, alignment_bytes: int) -> Variant:
    if kind.endswith("lookup"):
        code = compile_lookup(isa, alignment_bytes, "unsigned" in kind, is_part="part" in kind)
        return Variant.of(code, isa)
    if kind == "part slice":
        return Variant.of(compile_part_slice(isa, alignment_bytes), isa)
    return Variant.of(compile_slice(isa, alignment_bytes, kind == "update"), isa)


@dataclass(frozen=True)
class _Slice:
    """Slices, or lookups, of rows: ``leading`` numbers the rows of the result, ``rest`` their elements.

    ``window`` is the dimension of a slice's rows, or ``NO_WINDOW``; ``is_part`` says that a vertex has a part of the
    table, or of the slice; ``as_words`` that the result is the bits of what was found.
    """

    form: OpForm
    places: int
    leading: tuple[int, ...]
    rest: tuple[int, ...]
    window: int
    as_words: bool
    is_part: bool = False

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        of_table, of_indices = self.form.operands[:2]
        table = rows_first(operands[0], of_table, (self.places,), self.rest)
        indices = rows_first(operands[1], of_indices, of_indices.dims, ())
        count = math.prod(sizes[d] for d in self.leading)
        pitch = table.shape[2] * table.itemsize
        fields: dict[str, Any] = {"row_bytes": pitch, "in0_row_bytes": pitch, "out0_row_bytes": pitch}
        fields |= {"size": table.shape[1], "window": count}
        taken = 1 if self.window == NO_WINDOW else self.form.dims[self.window].size
        fields["last"] = self.form.dims[self.places].size - taken
        if self.is_part:
            start = 0 if self.window == NO_WINDOW else origins[:, self.window]
            fields["first"] = origins[:, self.places] - start
        dtype = np.dtype(f"uint{8 * table.itemsize}") if self.as_words else table.dtype
        out = np.zeros((len(table), count, table.shape[2]), dtype)
        return {"in0": table, "in1": np.ascontiguousarray(indices, np.int32), "out0": out}, fields

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        return [along_axes(memory["out0"], sizes, (*self.leading, *self.rest), self.form.results[0].dims)]


@dataclass(frozen=True)
class _Update:
    """A window of updates, put into a tensor."""

    form: OpForm
    places: int
    window: int
    rest: tuple[int, ...]

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        tensor = rows_first(operands[0], self.form.operands[0], (self.places,), self.rest)
        part = rows_first(operands[1], self.form.operands[1], (self.window,), self.rest)
        index = np.ascontiguousarray(operands[2].reshape(-1, 1), np.int32)
        fields = {
            "row_bytes": tensor.shape[2] * tensor.itemsize,
            "last": self.form.dims[self.places].size - part.shape[1],
            "first": origins[:, self.places],
            "size": tensor.shape[1],
            "window": part.shape[1],
        }
        return {"in0": part, "in1": index, "out0": tensor}, fields

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        return [along_axes(memory["out0"], sizes, (self.places, *self.rest), self.form.results[0].dims)]
