"""Tile code of slices and updates at runtime offsets along two axes: a block of a tensor, or of what a vertex has of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.elements import InstructionSet, Variant, compile_block_slice, instructions_for
from tiles.errors import NoTileCode
from tiles.graph import Extents, OpForm, VertexCode
from tiles.graph.cycles import CodeMemory
from tiles.numerics.dtypes import itemsize
from tiles.poplibs.popops.laid_out import along_axes, check_indices, is_plain, rows_first
from tiles.poplibs.popops.offsets import NO_WINDOW
from tiles.target import Target

_ACCESS_BYTES, _WORD_BYTES = 8, 4
AXES = 2


def block_code(
    extents: Extents,
    axes: Sequence[int],
    windows: Sequence[int],
    dtype: str,
    target: Target,
    name: str,
    is_update: bool,
) -> tuple[VertexCode, ...]:
    """Return the code that copies a block from, or to, one offset along each of two axes.

    Slots are those of the vertex that has most of the block, but for the zeros that a slice has for the rest.

    Args:
      extents: cell sizes.
      axes: sliced, or updated, axes of the tensor.
      windows: the dimension of the block along each.
      dtype: of the elements.
      target: the machine.
      name: of the variants.
      is_update: whether the block goes into the tensor.

    Raises:
      NoTileCode: other numbers of axes, several offsets, indices of other types than int32, places inside a word.
    """
    form = extents.form
    first = 2 if is_update else 1
    if len(axes) != AXES or NO_WINDOW in windows or any(m.dims for m in form.operands[first:]):
        raise NoTileCode(f"indices along {len(axes)} axes", expected="one, or one block along two")
    if not all(map(is_plain, (*form.operands, *form.results))):
        raise NoTileCode("a block of a tensor that is read from an offset on")
    for given in extents.operand_dtypes[first:]:
        check_indices(given)
    tensor = form.results[0] if is_update else form.operands[0]
    places = tuple(tensor.axes[axis].terms[0][0] for axis in axes)
    rest = tuple(d for d in tensor.dims if d not in places)
    block = form.operands[1] if is_update else form.results[0]
    if set(block.dims) != {*windows, *rest} or set(form.operands[0].dims) != {*places, *rest}:
        raise NoTileCode("a block that is repeated along other axes")
    kernel = _Block(form, places, tuple(windows), rest, is_update, extents.result_dtypes[0] != dtype)
    row = extents.product(rest) * itemsize(dtype)
    rows, columns = taken(extents, places, windows)
    whole = [np.asarray(extents.sizes[d]) == form.dims[d].size for d in (*places, *windows)]
    has_zeros = ~np.logical_and.reduce(np.broadcast_arrays(*whole)) & (not is_update)
    words, rows, row, has_zeros = np.broadcast_arrays(row * columns // _WORD_BYTES, rows, row, has_zeros)
    alignment, isa, found = (
        np.gcd(np.maximum(row, 1), _ACCESS_BYTES),
        instructions_for(target),
        list[VertexCode](),
    )
    for bytes_ in (_ACCESS_BYTES, _WORD_BYTES):
        for zeros in (False, True):
            runs = ((alignment == bytes_) & (has_zeros == zeros)).astype(np.int64)
            if runs.any():
                variant = _variant(isa, bytes_, is_update, zeros).named(name)
                found.append(VertexCode(variant, words, rows, runs, kernel=kernel))
    if not found:
        raise NoTileCode("places that begin inside a word")
    return tuple(found)


def taken(extents: Extents, places: Sequence[int], windows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a block that a vertex copies at most, and the places of each."""
    found = [
        np.minimum(extents.product((place,)), extents.product((window,)))
        for place, window in zip(places, windows, strict=True)
    ]
    return found[0], found[1]


@lru_cache(maxsize=64)
def _variant(isa: InstructionSet, alignment_bytes: int, is_update: bool, has_zeros: bool) -> Variant:
    return Variant.of(compile_block_slice(isa, alignment_bytes, is_update, has_zeros), isa)


@dataclass(frozen=True)
class _Block:
    """A block that is taken out of a tensor, or put into it."""

    form: OpForm
    places: tuple[int, ...]
    windows: tuple[int, ...]
    rest: tuple[int, ...]
    is_update: bool
    as_words: bool

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        maps, first = self.form.operands, 2 if self.is_update else 1
        tensor = rows_first(operands[0], maps[0], self.places, self.rest)
        size = tensor.itemsize
        fields: dict[str, Any] = {"row_bytes": tensor.shape[2] * size}
        for k, (place, window) in enumerate(zip(self.places, self.windows, strict=True)):
            fields[f"size{k}"], fields[f"window{k}"] = sizes[place], sizes[window]
            fields[f"last{k}"] = self.form.dims[place].size - self.form.dims[window].size
            fields[f"first{k}"] = origins[:, place] - origins[:, window]
        memory = {
            f"in{1 + k}": np.ascontiguousarray(x.reshape(-1, 1), np.int32)
            for k, x in enumerate(operands[first:])
        }
        if self.is_update:
            block = rows_first(operands[1], maps[1], self.windows, self.rest)
            return {"in0": block, **memory, "out0": tensor}, fields
        count = math.prod(sizes[d] for d in self.windows)
        dtype = np.dtype(f"uint{8 * size}") if self.as_words else tensor.dtype
        out = np.zeros((len(tensor), count, tensor.shape[2]), dtype)
        return {"in0": tensor, **memory, "out0": out}, fields

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        first = self.places if self.is_update else self.windows
        return [along_axes(memory["out0"], sizes, (*first, *self.rest), self.form.results[0].dims)]
