"""Folding the windows along one axis with any region, out of elementwise operations, slices and scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hlo_passes.ir import Computation, TensorType, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Compare,
    Constant,
    Iota,
    Pad,
    ReduceWindow,
    Reshape,
    Scan,
    Select,
)
from hlo_passes.ops.elementwise import And
from hlo_passes.passes.lifting import lift
from hlo_passes.passes.rewriter import Rewriter
from hlo_passes.passes.scans import pad, slice_axis

FEW_TAPS = 32
"""Taps along an axis up to which windows of one operation stay windows: a tap is a load and an operation."""
FEW_ROW_TAPS = 4
"""Taps of windows that do not overlap up to which they are folded tap by tap rather than as rows."""
MOST_TOLD_APART = 1 << 24
"""Elements along an axis of which a table says which are padding; no tile's memory holds as many."""


class Geometry(NamedTuple):
    """How windows lie along one axis; fields as in ``ReduceWindow``, ``size`` and ``outputs`` counted."""

    size: int
    outputs: int
    taps: int
    stride: int
    base: int
    dilation: int
    low: int
    high: int

    @property
    def is_trivial(self) -> bool:
        """Whether every element is a window."""
        return self == Geometry(self.size, self.size, 1, 1, 1, 1, 0, 0)

    @property
    def is_cumulative(self) -> bool:
        """Whether windows cover everything up to an element, or everything from it on."""
        plain = self.stride == self.base == self.dilation == 1 and self.taps >= self.size
        return plain and (self.low, self.high) in ((self.taps - 1, 0), (0, self.taps - 1))

    @property
    def is_large(self) -> bool:
        """Whether windows overlap in many taps."""
        return self.outputs > 1 and self.taps > FEW_TAPS and self.stride < self.taps

    @property
    def may_meet_padding(self) -> bool:
        """Whether there is padding before, behind or between the elements."""
        return self.low > 0 or self.high > 0 or self.base > 1

    @property
    def extent(self) -> int:
        """How many elements there are with padding."""
        return (self.size - 1) * self.base + 1 + self.low + self.high

    @property
    def is_told_apart(self) -> bool:
        """Whether a table of which elements are padding, where there is any, is not too long."""
        return not self.may_meet_padding or self.extent <= MOST_TOLD_APART


def geometries(op: ReduceWindow, shape: Sequence[int], outputs: Sequence[int]) -> list[Geometry]:
    """Return how windows lie along every axis of inputs of ``shape``."""
    fields = (op.window_dimensions, op.window_strides, op.base_dilations, op.window_dilations)
    columns = (shape, outputs, *fields, op.low, op.high)
    return [Geometry(*each) for each in zip(*columns, strict=True)]


@dataclass(frozen=True, eq=False)
class Met:
    """Which elements along an axis have met anything but padding.

    Args:
      size: of the axis.
      table: bool ``[size]``; None if all have.
    """

    size: int
    table: np.ndarray | None = None

    @property
    def is_all(self) -> bool:
        """Whether all have."""
        return self.table is None or bool(self.table.all())

    def taken(self, start: int, count: int, stride: int) -> Met:
        """Return that of ``count`` elements, each ``stride`` behind the last."""
        table = None if self.table is None else self.table[start : start + stride * (count - 1) + 1 : stride]
        return Met(count, table)

    def has_more_than(self, other: Met) -> bool:
        """Return whether an element has that has not in ``other``."""
        if self.table is None or other.table is None:
            return not other.is_all
        return bool(np.any(self.table & ~other.table))

    def either(self, other: Met) -> Met:
        """Return which elements have here or in ``other``."""
        if self.table is None or other.table is None:
            return Met(self.size)
        return Met(self.size, self.table | other.table)


@dataclass
class Folding:
    """Arrays whose windows are folded one axis after the other.

    Args:
      rewriter: where operations go.
      region: combines N values with N.
      values: the N arrays.
      fill: what padding holds: a neutral element each, or None where there is none and padding is left out.
      valid: per axis, which of its elements have met anything but padding; axes without padding are absent.
    """

    rewriter: Rewriter
    region: Computation
    values: list[Value]
    fill: list[np.ndarray] | None = None
    valid: dict[int, Met] = field(default_factory=dict[int, Met])

    def fold(self, axis: int, g: Geometry) -> None:
        """Fold the windows along one axis."""
        if g.is_trivial:
            return
        if g.is_cumulative and g.size > 1:
            scan = Scan(axis, reverse=g.low == 0)
            self.values = list(self.rewriter.emit_all(scan, self.values, (self.region,)))
            return
        met = self._spread(axis, g)
        span = (g.taps - 1) * g.dilation + 1
        if (span <= g.stride or g.outputs == 1) and g.taps > FEW_ROW_TAPS and met.is_all:
            self._fold_rows(axis, g)
        else:
            met = self._fold_by_doubling(axis, g, met)
            if not met.is_all:
                self.valid[axis] = met

    def _spread(self, axis: int, g: Geometry) -> Met:
        """Pad, spread and cut the arrays; return which elements along the axis are not padding."""
        rank = self.values[0].type.rank
        low, high, interior = (
            tuple(size if d == axis else 0 for d in range(rank)) for size in (g.low, g.high, g.base - 1)
        )
        if any((*low, *high, *interior)):
            fills = self.fill or [0] * len(self.values)
            self.values = [
                self.rewriter.emit(
                    Pad(low, high, interior),
                    x,
                    self.rewriter.emit(Constant.splat(fill, x.type.with_shape(()))),
                )
                for x, fill in zip(self.values, fills, strict=True)
            ]
        extent = self.values[0].type.shape[axis]
        if self.fill is not None or not g.may_meet_padding:
            return Met(extent)
        position = np.arange(extent) - g.low
        return Met(extent, (position >= 0) & (position <= (g.size - 1) * g.base) & (position % g.base == 0))

    def _fold_rows(self, axis: int, g: Geometry) -> None:
        """Fold windows that do not overlap, as rows of a scan of which the last elements count."""
        row = g.stride if g.outputs > 1 else (g.taps - 1) * g.dilation + 1
        results: list[Value] = []
        for x in self.values:
            shape = x.type.shape
            short = max(0, g.outputs * row - shape[axis])
            whole = slice_axis(self.rewriter, pad(self.rewriter, x, axis, 0, short), axis, 0, g.outputs * row)
            cut = (*shape[:axis], g.outputs, row, *shape[axis + 1 :])
            whole = self.rewriter.emit(Reshape(cut), whole)
            results.append(slice_axis(self.rewriter, whole, axis + 1, 0, g.taps, g.dilation))
        scanned = self.rewriter.emit_all(Scan(axis + 1), results, (self.region,))
        last = [slice_axis(self.rewriter, x, axis + 1, g.taps - 1, 1) for x in scanned]
        kept = [x.type.shape[: axis + 1] + x.type.shape[axis + 2 :] for x in last]
        self.values = [self.rewriter.emit(Reshape(shape), x) for x, shape in zip(last, kept, strict=True)]

    def _fold_by_doubling(self, axis: int, g: Geometry, met: Met) -> Met:
        """Fold windows out of folds of 1, 2, 4, ... taps, the greatest first; return which met anything."""
        power, power_met, taps = self.values, met, 1
        pieces: dict[int, tuple[list[Value], Met]] = {}
        while True:
            if g.taps & taps:
                pieces[taps] = power, power_met
            if 2 * taps > g.taps:
                break
            step, count = taps * g.dilation, power_met.size - taps * g.dilation
            a, b = (self._taken(axis, power, power_met, start, count, 1) for start in (0, step))
            power, power_met = self._combined(axis, a, b)
            taps *= 2
        total, position = None, 0
        for taps in sorted(pieces, reverse=True):
            piece = self._taken(axis, *pieces[taps], position * g.dilation, g.outputs, g.stride)
            total = piece if total is None else self._combined(axis, total, piece)
            position += taps
        assert total is not None
        self.values, found = total
        return found

    def _taken(
        self, axis: int, values: list[Value], met: Met, start: int, count: int, stride: int
    ) -> tuple[list[Value], Met]:
        taken = [slice_axis(self.rewriter, x, axis, start, count, stride) for x in values]
        return taken, met.taken(start, count, stride)

    def _combined(
        self, axis: int, a: tuple[list[Value], Met], b: tuple[list[Value], Met]
    ) -> tuple[list[Value], Met]:
        """Combine folds of earlier with folds of later elements; where one met padding only, take the other."""
        (left, in_left), (right, in_right) = a, b
        combined = lift(self.rewriter, self.region, (*left, *right))
        for present, missing, others in ((in_right, in_left, right), (in_left, in_right, left)):
            if present.has_more_than(missing):
                taken = self.mask(axis, missing, others[0].type.shape)
                combined = [
                    self.rewriter.emit(Select(), taken, x, y) for x, y in zip(combined, others, strict=True)
                ]
        return combined, in_left.either(in_right)

    def mask(self, axis: int, met: Met, shape: tuple[int, ...]) -> Value:
        """Return booleans that vary along one axis: comparisons with a counter where true ones lie together."""
        emit = self.rewriter.emit
        mask = met.table
        if mask is None or mask.all() or not mask.any():
            return emit(Constant.splat(mask is None or bool(mask.any()), TensorType(shape, "i1")))
        places = np.flatnonzero(mask)
        first, last = int(places[0]), int(places[-1])
        if last - first + 1 != len(places):
            constant = emit(Constant.of(mask, "i1"))
            return emit(BroadcastInDim(shape, (axis,)), constant)
        counter = emit(Iota(TensorType(shape, "i32"), axis))
        tests = [
            emit(Compare(direction), counter, emit(Constant.splat(bound, counter.type)))
            for direction, bound, is_needed in (
                ("GE", first, first > 0),
                ("LE", last, last < len(mask) - 1),
            )
            if is_needed
        ]
        return tests[0] if len(tests) == 1 else emit(And(), *tests)

    def is_real(self) -> Value | None:
        """Return which windows met anything but padding; None when all did."""
        found = None
        for axis, met in self.valid.items():
            real = self.mask(axis, met, self.values[0].type.shape)
            found = real if found is None else self.rewriter.emit(And(), found, real)
        return found
