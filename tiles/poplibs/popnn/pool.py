"""The pooling codelet: a fold of every window of one cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jax import Array, lax

from tiles._jax_compat import reduce_window
from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import (
    Affine,
    Cell,
    Codelet,
    Cycles,
    Extents,
    OpForm,
    VertexCode,
    code_or_formula,
    register,
)
from tiles.numerics.dtypes import is_float, to_jax
from tiles.poplibs.popnn.window_code import Axis, fold_code, tap_views, taps_form
from tiles.poplibs.popops.elementwise_cycles import cpp_name
from tiles.poplibs.popops.fold import FOLDS
from tiles.poplibs.popops.map import access_grains
from tiles.poplibs.popops.reduce import accumulator_of, cast_accumulator, neutral_element
from tiles.target import Basis, Target

POOLING = "graphcore/poplibs lib/popnn/PerformanceEstimation.hpp, getPoolingCycles"
UNROLLED = 16
"""Taps along one axis that are folded slice by slice, which XLA vectorizes; more are one operation."""


@register
@dataclass(frozen=True)
class Pool(Codelet):
    """Fold the windows of the operand.

    Args:
      operation: add, mul, max, min, and, or, xor.
      operand_dtype: dtype of the operand and of the result.
      accumulate_dtype: dtype in which windows are folded.

    Raises:
      InvalidGraph: an unknown operation.
    """

    name: ClassVar[str] = "popnn.Pool"
    any_order: ClassVar[bool] = True

    operation: str
    operand_dtype: str
    accumulate_dtype: str

    def __post_init__(self) -> None:
        """Check the operation."""
        if self.operation not in FOLDS:
            raise InvalidGraph(f"no pooling by {self.operation!r}", expected=", ".join(FOLDS))

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """That of the operand."""
        return (self.operand_dtype,)

    @property
    def label(self) -> str:
        """Vertex type, e.g. ``popnn::Pooling<MAX,float>``."""
        return f"popnn::Pooling<{self.operation.upper()},{cpp_name(self.operand_dtype)}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Fold one axis after the other; the operand arrives padded and as wide as the windows reach."""
        (x,) = operands
        x = cast_accumulator(x, self.accumulate_dtype)
        axes = cell.form.operands[0].axes
        for number in reversed(range(len(axes))):
            if len(axes[number].terms) > 1:
                x = self._fold_axis(cell, x, number, axes[number])
        order = [_output(cell.form, axis) for axis in axes]
        final = [order.index(d) for d in cell.form.results[0].dims]
        x = x if final == sorted(final) else lax.transpose(x, final)
        return (cast_accumulator(x, self.operand_dtype),)

    def _fold_axis(self, cell: Cell, x: Array, number: int, axis: Affine) -> Array:
        """Return one axis' windows folded."""
        out, tap = _output(cell.form, axis), _tap(cell.form, axis)
        coefficients = dict(axis.terms)
        count, taps = cell.sizes[out], cell.sizes[tap]
        stride, dilation = coefficients[out], coefficients[tap]
        combine = FOLDS[self.operation][1]
        if taps > UNROLLED:
            start = neutral_element(self.operation, self.accumulate_dtype)
            ones = [1] * x.ndim
            window, strides, dilations = (
                [*ones[:number], n, *ones[number + 1 :]] for n in (taps, stride, dilation)
            )
            return reduce_window(x, start, combine, window, strides, "VALID", None, dilations)
        extent = stride * (count - 1) + 1
        pieces = [
            lax.slice_in_dim(x, k * dilation, k * dilation + extent, stride, axis=number) for k in range(taps)
        ]
        total = pieces[0]
        for piece in pieces[1:]:
            total = combine(total, piece)
        return total

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return PopLibs' estimate where channels lie innermost, else its code's, else a formula's (ASSUMED)."""
        channels = self._channels(extents.form)
        if (
            channels
            and self.operation in ("max", "min", "add")
            and self.operand_dtype in ("float16", "float32")
        ):
            return self._stated(channels, extents, target)
        estimated = self._estimated(extents, target)
        try:
            return code_or_formula(self.tile_code(extents, target), estimated)
        except (NoTileCode, OutOfRegisters):
            return estimated

    def _estimated(self, extents: Extents, target: Target) -> Cycles:
        """Return a load and an operation per tap and vector of outputs (ASSUMED)."""
        outputs, taps = np.asarray(extents.results), np.asarray(extents.reduced)
        is_vector = self.operand_dtype in ("float16", "float32")
        width = target.vector_width(self.operand_dtype) if is_vector else 1
        vectors = -(-outputs // width)
        share = -(-vectors // target.workers_per_tile)
        slots = 30 + share * (8 + (2 if is_vector else 6) * taps)
        value = target.supervisor_vertex_overhead_cycles + target.worker_issue_interval_cycles * slots
        return Cycles(value, Basis.ASSUMED, "a load and an operation per tap and vector of outputs")

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of whole windows over channels; see ``window_code``."""
        axes = _code_axes(extents.form)
        whole = math.prod(axis.taps for axis in axes)
        kind = self.operation, self.operand_dtype, self.accumulate_dtype
        parts = fold_code(*kind, axes, extents, target, self.label)
        has_all = np.asarray(extents.reduced) == whole  # others are parts of windows that a plan cuts
        return tuple(replace(part, runs=part.runs & has_all) for part in parts)

    def code_operands(
        self, form: OpForm, sizes: tuple[int, ...], operands: Sequence[np.ndarray]
    ) -> tuple[OpForm, list[np.ndarray]]:
        """Return what the taps of windows read as operands of their own."""
        axes = _code_axes(form)
        return taps_form(form, axes), tap_views(operands[0], axes, sizes)

    def _channels(self, form: OpForm) -> tuple[int, ...]:
        """Return the dimensions of more than one point that lie innermost in the result and have no windows."""
        windowed = {_output(form, axis) for axis in form.operands[0].axes if len(axis.terms) > 1}
        found: list[int] = []
        for d in reversed([d for d in form.results[0].dims if form.dims[d].size > 1]):
            if d in windowed:
                return tuple(found) if found else ()
            found.append(d)
        return ()

    def _stated(self, channels: tuple[int, ...], extents: Extents, target: Target) -> Cycles:
        """Return the cycles of popnn's pooling vertex, ``getPoolingCycles``.

        A worker zeroes its share of the results; then for every row of results and every tap it goes through the
        channels' vectors, and for each of these along the row. Few rows are cut into pieces for the workers.
        """
        windowed = [_output(extents.form, a) for a in extents.form.operands[0].axes if len(a.terms) > 1]
        columns = extents.sizes[max(windowed, key=extents.form.results[0].dims.index)]
        vectors = -(-extents.product(channels) // target.vector_width(self.operand_dtype))
        outputs, taps = np.asarray(extents.results), np.asarray(extents.reduced)
        positions = outputs // np.maximum(extents.product(channels), 1)
        rows, workers = positions // np.maximum(columns, 1), target.workers_per_tile
        pieces = np.where(rows < workers, np.maximum(workers // np.maximum(rows, 1), 1), 1)
        elements = -(-columns // pieces)
        along_row = (4 if self.operation != "add" else 5) + 3 * np.maximum(elements - 1, 0)
        tap = 20 + 3 + 2 + vectors * (3 + along_row)
        zeroing = -(-positions * vectors // workers)
        slots = (45 if self.operation != "add" else 46) + zeroing
        slots = slots + -(-rows // workers) * (13 + 2 + taps * tap)
        return Cycles(13 + target.worker_issue_interval_cycles * slots, Basis.DOCUMENTED, POOLING)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count one per point of the domain, on floats."""
        is_arithmetic = is_float(self.operand_dtype) and self.operation in ("add", "mul", "max", "min")
        return extents.points if is_arithmetic else np.zeros_like(extents.points)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole 64-bit accesses along the innermost dimension of the result."""
        return access_grains(form, (self.operand_dtype,), target)

    def code_bytes(self, target: Target) -> int:
        """Estimate instructions of the frame and the inner loop (ASSUMED)."""
        return target.instruction_bytes * 120


def _code_axes(form: OpForm) -> list[Axis]:
    """Return where windows lie in the operand."""
    found: list[Axis] = []
    for number, axis in enumerate(form.operands[0].axes):
        if len(axis.terms) > 1:
            out, tap = _output(form, axis), _tap(form, axis)
            coefficients = dict(axis.terms)
            found.append(Axis(number, out, form.dims[tap].size, coefficients[out], coefficients[tap]))
    return found


def _output(form: OpForm, axis: Affine) -> int:
    """Return the kept dimension of an operand's axis."""
    return next(d for d, _ in axis.terms if not form.dims[d].is_reduced)


def _tap(form: OpForm, axis: Affine) -> int:
    """Return the window's dimension of an operand's axis."""
    return next(d for d, _ in axis.terms if form.dims[d].is_reduced)


def pool_codelet(operation: str, dtype: str) -> Pool:
    """Return the pooling of values of ``dtype``; 16-bit floats are added and multiplied in float32.

    On booleans ``add`` and ``max`` mean ``or``, ``mul`` and ``min`` mean ``and``.
    """
    if dtype == "bool":
        operation = {"add": "or", "max": "or", "mul": "and", "min": "and"}.get(operation, operation)
    to_jax(dtype)
    return Pool(operation, dtype, accumulator_of(operation, dtype))
