"""Expressions over neighbours: shifted readings of one tensor are one operand, read through a window with its halo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from jax import Array, lax

from tiles.errors import InvalidGraph
from tiles.graph import (
    WINDOW,
    Affine,
    Cell,
    Cycles,
    Dim,
    Extents,
    IndexMap,
    OpForm,
    VertexCode,
    register,
)
from tiles.poplibs.popops.map import Map
from tiles.target import Target

REACH = 8
"""How far apart readings along an axis may lie to be one operand: the halo is moved whole, what nobody reads as well."""

Taps = tuple[tuple[int, tuple[int, ...]], ...]
"""Of every value that the body takes: the operand that holds it, and the tap along each of that one's axes."""


@register
@dataclass(frozen=True)
class Stencil(Map):
    """Evaluate an expression at every point, whose values are neighbours in operands read through windows.

    Domain dimensions of kind window count the taps and stay whole.

    Args:
      body: rows of the expression as in ``Map``; an index counts the values first.
      outputs: as in ``Map``.
      operand_dtypes: dtypes of the operands.
      result_dtypes: as in ``Map``.
      taps: the values that the body takes.

    Raises:
      InvalidGraph: a malformed expression, or a value of no operand.
    """

    name: ClassVar[str] = "popops.Stencil"

    taps: Taps = ()

    def __post_init__(self) -> None:
        """Check the values, then the expression."""
        if any(not 0 <= k < len(self.operand_dtypes) for k, _ in self.taps):
            raise InvalidGraph(f"taps {self.taps} name operands beyond {len(self.operand_dtypes)}")
        super().__post_init__()

    @property
    def point(self) -> Map:
        """The expression of the values, each an operand of its own."""
        dtypes = tuple(self.operand_dtypes[k] for k, _ in self.taps)
        return Map(self.body, self.outputs, dtypes, self.result_dtypes)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the values and rows, in index order."""
        return self.point.dtypes

    @property
    def label(self) -> str:
        """Vertex type of the expression."""
        return self.point.label

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the expression's values; operands arrive as wide as the windows of the cell reach."""
        form = single_form(cell.form, self.taps)
        count = len(form.dims)
        alone = Cell(form, cell.sizes[:count], cell.origin[:count], cell.limits[:count])
        values: list[Array] = []
        for number, (k, taps) in enumerate(self.taps):
            value = operands[k]
            for axis, tap in enumerate(taps):
                terms = cell.form.operands[k].axes[axis].terms
                if len(terms) > 1:
                    size = alone.sizes[form.operands[number].axes[axis].terms[0][0]]
                    value = lax.slice_in_dim(value, tap, tap + size, axis=axis)
            values.append(value)
        return self.point.compute(alone, *values)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the estimate of the expression, which loads every neighbour."""
        return self.point.cycles(self._alone(extents), target)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of the expression of the values."""
        return self.point.tile_code(self._alone(extents), target)

    def code_operands(
        self, form: OpForm, sizes: tuple[int, ...], operands: Sequence[np.ndarray]
    ) -> tuple[OpForm, list[np.ndarray]]:
        """Return the values as operands of their own: readings from another address on."""
        single = single_form(form, self.taps)
        values: list[np.ndarray] = []
        for number, (k, taps) in enumerate(self.taps):
            value = operands[k]
            for axis, tap in enumerate(taps):
                if len(form.operands[k].axes[axis].terms) > 1:
                    size = sizes[single.operands[number].axes[axis].terms[0][0]]
                    value = value[(slice(None),) * (1 + axis) + (slice(tap, tap + size),)]
            values.append(value)
        return single, values

    def flops(self, extents: Extents) -> np.ndarray:
        """Count the expression's operations."""
        return self.point.flops(self._alone(extents))

    def may_overwrite(self, k: int) -> bool:
        """Neighbours are read after a result is written."""
        return False

    def _alone(self, extents: Extents) -> Extents:
        form = single_form(extents.form, self.taps)
        dtypes = tuple(extents.operand_dtypes[k] for k, _ in self.taps)
        return Extents(form, extents.sizes[: len(form.dims)], dtypes, extents.result_dtypes)


@lru_cache(maxsize=1024)
def single_form(form: OpForm, taps: Taps) -> OpForm:
    """Return the form whose operands are the values: without windows, which are its last dimensions."""
    maps: list[IndexMap] = []
    for k, offsets in taps:
        axes: list[Affine] = []
        for axis, tap in zip(form.operands[k].axes, offsets, strict=True):
            if len(axis.terms) > 1:
                (first, *_) = (term for term in axis.terms if form.dims[term[0]].kind != WINDOW)
                axes.append(Affine((first,), axis.offset + tap))
            else:
                axes.append(axis)
        maps.append(replace(form.operands[k], axes=tuple(axes)))
    return OpForm(tuple(dim for dim in form.dims if dim.kind != WINDOW), tuple(maps), form.results)


def merged(form: OpForm, tensors: Sequence[str], codelet: Map) -> tuple[OpForm, list[int], Stencil] | None:
    """Return an expression with shifted readings of a tensor as one operand; None where there are none.

    Args:
      form: the expression's form.
      tensors: what each operand reads.
      codelet: the expression.

    Returns:
      The form, which of the given operands each of its own stands for, and the codelet.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, (tensor, index_map) in enumerate(zip(tensors, form.operands, strict=True)):
        terms = tuple(axis.terms for axis in index_map.axes)
        groups.setdefault((tensor, index_map.fill, terms), []).append(number)
    dims, maps, kept = list(form.dims), list[IndexMap](), list[int]()
    taps: dict[int, tuple[int, tuple[int, ...]]] = {}
    for members in groups.values():
        windows = _windows(form, members)
        if windows is None:
            for number in members:
                taps[number] = (len(maps), (0,) * len(form.operands[number].axes))
                maps.append(form.operands[number])
                kept.append(number)
            continue
        axes: list[Affine] = []
        for axis, (low, span) in zip(form.operands[members[0]].axes, windows, strict=True):
            if span > 1:
                dims.append(Dim(f"w{len(dims) - len(form.dims)}", span, WINDOW))
                axis = Affine((*axis.terms, (len(dims) - 1, 1)), low)
            axes.append(axis)
        for number in members:
            own = form.operands[number].axes
            places = tuple(
                axis.offset - low if span > 1 else 0 for axis, (low, span) in zip(own, windows, strict=True)
            )
            taps[number] = (len(maps), places)
        maps.append(replace(form.operands[members[0]], axes=tuple(axes)))
        kept.append(members[0])
    if len(dims) == len(form.dims):
        return None
    dtypes = tuple(codelet.operand_dtypes[number] for number in kept)
    values = tuple(taps[number] for number in range(len(tensors)))
    stencil = Stencil(codelet.body, codelet.outputs, dtypes, codelet.result_dtypes, values)
    return OpForm(tuple(dims), tuple(maps), form.results), kept, stencil


def _windows(form: OpForm, members: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return for every axis the first offset and how many there are from it on; None if they are no one operand."""
    if len(members) < 2:
        return None
    found: list[tuple[int, int]] = []
    for axes in zip(*(form.operands[number].axes for number in members), strict=True):
        offsets = [axis.offset for axis in axes]
        low, span = min(offsets), max(offsets) - min(offsets) + 1
        if span > 1:
            first: Affine = axes[0]
            is_plain = len(first.terms) == 1 and first.terms[0][1] == 1
            if span > REACH or not is_plain or form.dims[first.terms[0][0]].size < 2:
                return None
        found.append((low, span))
    return found if any(span > 1 for _, span in found) else None
