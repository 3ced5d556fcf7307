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
from tiles.graph.cycles import CodeMemory, Field, Kernel
from tiles.numerics.dtypes import itemsize
from tiles.numerics.shared import Amount
from tiles.poplibs.popops.block_slicing_code import AXES, block_code
from tiles.poplibs.popops.laid_out import along_axes, check_indices, index_rows, is_plain, rows_first
from tiles.poplibs.popops.offsets import NO_WINDOW, takes_places
from tiles.poplibs.popops.slicing_cycles import SOURCE, dynamic_slice_cycles
from tiles.target import Basis, Target

_ACCESS_BYTES, _WORD_BYTES = 8, 4


def slice_code(
    extents: Extents, axes: Sequence[int], windows: Sequence[int], dtype: str, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of a slice, or of lookups of single rows; arguments as of ``MultiSlice``.

    Raises:
      NoTileCode: blocks along more than two axes, lookups of windows, indices of other types than int32, and for lookups uint32.
    """
    form = extents.form
    if takes_places(form, windows) and any(m.dims for m in form.operands[1:]):
        return _lookup_code(extents, axes, windows, dtype, target, name)
    if len(axes) == AXES:
        return block_code(extents, axes, windows, dtype, target, name, is_update=False)
    axis, window = _one_axis(axes, windows)
    if not all(map(is_plain, (*form.operands, *form.results))):
        raise NoTileCode("a slice of a tensor that is read from an offset on")
    ((places, _),) = form.operands[0].axes[axis].terms
    if window == NO_WINDOW or form.operands[1].dims:
        raise NoTileCode("lookups of windows")
    rest = tuple(d for d in form.operands[0].dims if d != places)
    if any(form.dims[d].size > 1 for d in rest if d not in form.results[0].dims):
        raise NoTileCode("a table of which one place of another axis is read")
    check_indices(extents.operand_dtypes[1])
    kernel = _Slice(form, places, (window,), rest, window, extents.result_dtypes[0] != dtype)
    row = extents.product(rest) * itemsize(dtype)
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


def _lookup_code(
    extents: Extents, axes: Sequence[int], windows: Sequence[int], dtype: str, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of lookups of single places; where they lie along an axis of the table, one after the other.

    Raises:
      NoTileCode: see ``slice_code``.
    """
    form = extents.form
    if not all(map(is_plain, (*form.operands, *form.results))):
        raise NoTileCode("a slice of a tensor that is read from an offset on")
    places = tuple(form.operands[0].axes[axis].terms[0][0] for axis in axes)
    of_table, wanted = form.operands[0].dims, form.results[0].dims
    indexed = {d for m in form.operands[1:] for d in m.dims}
    looked_up = tuple(d for d in wanted if d in {*indexed, *windows} and d not in of_table)
    batch = tuple(d for d in of_table if d in indexed)
    rest = tuple(d for d in of_table if d not in (*places, *batch))
    if set(batch) & set(places) or set(wanted) != {*looked_up, *batch, *(d for d in rest if d in wanted)}:
        raise NoTileCode("lookups at indices that vary along what they look up")
    if any(form.dims[d].size > 1 for d in rest if d not in wanted):
        raise NoTileCode("a table of which one place of another axis is read")
    is_unsigned = set(extents.operand_dtypes[1:]) == {"uint32"}
    if not is_unsigned:
        for given in extents.operand_dtypes[1:]:
            check_indices(given)
    kernel = _Lookups(
        form, places, batch, looked_up, rest, extents.result_dtypes[0] != dtype, itemsize(dtype)
    )
    row = extents.product(rest) * itemsize(dtype)
    count, times = extents.product(looked_up), extents.product(batch)
    whole = _is_whole(extents, places)
    found: list[VertexCode] = []
    for is_part, those in ((False, whole), (True, ~whole)):
        if those.any():
            own = dataclasses.replace(kernel, is_part=is_part)
            kind = f"{'part ' * is_part}{'unsigned ' * is_unsigned}lookup {len(places)}"
            parts = _parts(kind, row, row // _WORD_BYTES, count, those, own, target, name)
            found += [dataclasses.replace(part, runs=part.runs * times, turn=own.turns) for part in parts]
    return tuple(found)


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
    if "lookup" in kind:
        axes = int(kind.split()[-1])
        code = compile_lookup(isa, alignment_bytes, "unsigned" in kind, is_part="part" in kind, axes=axes)
        return Variant.of(code, isa)
    if kind == "part slice":
        return Variant.of(compile_part_slice(isa, alignment_bytes), isa)
    return Variant.of(compile_slice(isa, alignment_bytes, kind == "update"), isa)


@dataclass(frozen=True)
class _Slice:
    """Slices of rows: ``leading`` numbers the rows of the result, ``rest`` their elements.

    ``window`` is the dimension of a slice's rows; ``is_part`` says that a vertex has a part of the table, or of the slice;
    ``as_words`` that the result is the bits of what was found.
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
        fields["last"] = self.form.dims[self.places].size - self.form.dims[self.window].size
        if self.is_part:
            fields["first"] = origins[:, self.places] - origins[:, self.window]
        dtype = np.dtype(f"uint{8 * table.itemsize}") if self.as_words else table.dtype
        out = np.zeros((len(table), count, table.shape[2]), dtype)
        return {"in0": table, "in1": np.ascontiguousarray(indices, np.int32), "out0": out}, fields

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        return [along_axes(memory["out0"], sizes, (*self.leading, *self.rest), self.form.results[0].dims)]


@dataclass(frozen=True)
class _Lookups:
    """Lookups of rows, one after the other along ``batch``, along which tables and indices lie alike.

    ``places`` are what is looked up, ``looked_up`` numbers a table's lookups, ``rest`` the elements of rows; ``as_words`` as of
    ``_Slice``, ``is_part`` says that a vertex has a part of the table.
    """

    form: OpForm
    places: tuple[int, ...]
    batch: tuple[int, ...]
    looked_up: tuple[int, ...]
    rest: tuple[int, ...]
    as_words: bool
    item_bytes: int
    is_part: bool = False

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        table = rows_first(operands[0], self.form.operands[0], (*self.batch, *self.places), self.rest)
        lead = (*self.batch, *self.looked_up)
        memory = {"in0": table}
        for k, (of_indices, x) in enumerate(zip(self.form.operands[1:], operands[1:], strict=True)):
            memory[f"in{1 + k}"] = index_rows(x, of_indices, lead, sizes)
        dtype = np.dtype(f"uint{8 * table.itemsize}") if self.as_words else table.dtype
        memory["out0"] = np.zeros((len(table), math.prod(sizes[d] for d in lead), table.shape[2]), dtype)
        pitch = table.shape[2] * table.itemsize
        fields: dict[str, Any] = {"out0_row_bytes": pitch}
        for k, d in reversed(list(enumerate(self.places))):
            end = str(k) if k else ""
            fields |= {f"in0_row_bytes{end}": pitch, f"size{end}": sizes[d]}
            pitch *= sizes[d]
            if self.is_part:
                fields |= {f"last{end}": self.form.dims[d].size - 1, f"first{end}": origins[:, d]}
        return memory, fields

    def turns(self, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """Return the fields of every table's lookups."""
        row = math.prod(sizes[d] for d in self.rest) * self.item_bytes
        table = row * math.prod(sizes[d] for d in self.places)
        count = math.prod(sizes[d] for d in self.looked_up)
        return [
            {
                "in0": ("in0", b * table),
                **{f"in{1 + k}": (f"in{1 + k}", b * count * _WORD_BYTES) for k in range(len(self.places))},
                "out0": ("out0", b * count * row),
            }
            for b in range(math.prod(sizes[d] for d in self.batch))
        ]

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        dims = (*self.batch, *self.looked_up, *self.rest)
        return [along_axes(memory["out0"], sizes, dims, self.form.results[0].dims)]


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
