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
from hlo_passes.passes.scans import cut_out, pad

FEW_TAPS = 32
"""Taps along an axis up to which windows of one operation stay windows: a tap is a load and an operation."""
FEW_ROW_TAPS = 4
"""Taps of windows that do not overlap up to which they are folded tap by tap rather than as rows."""


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


def geometries(op: ReduceWindow, shape: Sequence[int], outputs: Sequence[int]) -> list[Geometry]:
    """Return how windows lie along every axis of inputs of ``shape``."""
    fields = (op.window_dimensions, op.window_strides, op.base_dilations, op.window_dilations)
    columns = (shape, outputs, *fields, op.low, op.high)
    return [Geometry(*each) for each in zip(*columns, strict=True)]


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
    valid: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])

    def fold(self, axis: int, g: Geometry) -> None:
        """Fold the windows along one axis."""
        if g.is_trivial:
            return
        if g.is_cumulative and g.size > 1:
            scan = Scan(axis, reverse=g.low == 0)
            self.values = list(self.rewriter.emit_all(scan, self.values, (self.region,)))
            return
        mask = self._spread(axis, g)
        span = (g.taps - 1) * g.dilation + 1
        if (span <= g.stride or g.outputs == 1) and g.taps > FEW_ROW_TAPS and mask.all():
            self._fold_rows(axis, g)
        else:
            mask = self._fold_by_doubling(axis, g, mask)
            if not mask.all():
                self.valid[axis] = mask

    def _spread(self, axis: int, g: Geometry) -> np.ndarray:
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
        position = np.arange(extent) - g.low
        inside = (position >= 0) & (position <= (g.size - 1) * g.base) & (position % g.base == 0)
        return inside | (self.fill is not None)

    def _fold_rows(self, axis: int, g: Geometry) -> None:
        """Fold windows that do not overlap, as rows of a scan of which the last elements count."""
        row = g.stride if g.outputs > 1 else (g.taps - 1) * g.dilation + 1
        results: list[Value] = []
        for x in self.values:
            shape = x.type.shape
            short = max(0, g.outputs * row - shape[axis])
            whole = cut_out(self.rewriter, pad(self.rewriter, x, axis, 0, short), axis, 0, g.outputs * row)
            cut = (*shape[:axis], g.outputs, row, *shape[axis + 1 :])
            whole = self.rewriter.emit(Reshape(cut), whole)
            results.append(cut_out(self.rewriter, whole, axis + 1, 0, g.taps, g.dilation))
        scanned = self.rewriter.emit_all(Scan(axis + 1), results, (self.region,))
        last = [cut_out(self.rewriter, x, axis + 1, g.taps - 1, 1) for x in scanned]
        kept = [x.type.shape[: axis + 1] + x.type.shape[axis + 2 :] for x in last]
        self.values = [self.rewriter.emit(Reshape(shape), x) for x, shape in zip(last, kept, strict=True)]

    def _fold_by_doubling(self, axis: int, g: Geometry, mask: np.ndarray) -> np.ndarray:
        """Fold windows out of folds of 1, 2, 4, ... taps, the greatest first; return which met anything."""
        power, power_mask, taps = self.values, mask, 1
        pieces: dict[int, tuple[list[Value], np.ndarray]] = {}
        while True:
            if g.taps & taps:
                pieces[taps] = power, power_mask
            if 2 * taps > g.taps:
                break
            step, count = taps * g.dilation, len(power_mask) - taps * g.dilation
            a, b = (self._taken(axis, power, power_mask, start, count, 1) for start in (0, step))
            power, power_mask = self._combined(axis, a, b)
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
        self, axis: int, values: list[Value], mask: np.ndarray, start: int, count: int, stride: int
    ) -> tuple[list[Value], np.ndarray]:
        taken = [cut_out(self.rewriter, x, axis, start, count, stride) for x in values]
        return taken, mask[start : start + stride * (count - 1) + 1 : stride]

    def _combined(
        self, axis: int, a: tuple[list[Value], np.ndarray], b: tuple[list[Value], np.ndarray]
    ) -> tuple[list[Value], np.ndarray]:
        """Combine folds of earlier with folds of later elements; where one met padding only, take the other."""
        (left, in_left), (right, in_right) = a, b
        combined = lift(self.rewriter, self.region, (*left, *right))
        for present, missing, others in ((in_right, in_left, right), (in_left, in_right, left)):
            if np.any(present & ~missing):
                taken = self.mask(axis, missing, others[0].type.shape)
                combined = [
                    self.rewriter.emit(Select(), taken, x, y) for x, y in zip(combined, others, strict=True)
                ]
        return combined, in_left | in_right

    def mask(self, axis: int, mask: np.ndarray, shape: tuple[int, ...]) -> Value:
        """Return booleans that vary along one axis: comparisons with a counter where true ones lie together."""
        emit = self.rewriter.emit
        places = np.flatnonzero(mask)
        if len(places) in (0, len(mask)):
            return emit(Constant.splat(len(places) > 0, TensorType(shape, "i1")))
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
        for axis, mask in self.valid.items():
            real = self.mask(axis, mask, self.values[0].type.shape)
            found = real if found is None else self.rewriter.emit(And(), found, real)
        return found
