"""Lookups at indices that are known and regular, as slices: frames of a signal, windows of a series, every fourth row.

``x[160 * arange(n)[:, None] + arange(400)]`` reaches the machine as a lookup of single elements, wherever they may lie: every
tile that looks up gets the table, and the indices take more memory than what they find.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from hlo_passes.ir import Computation, Instruction, Value, evaluate_instruction
from hlo_passes.ops import (
    BroadcastInDim,
    Concatenate,
    Constant,
    Gather,
    Iota,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from hlo_passes.ops.data_movement import DataMovement
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.rewriter import Rewriter
from hlo_passes.passes.small import evaluated_exactly


@dataclass(frozen=True)
class RegularGathers(LocalPass):
    """Slice where the indices of a gather are constants plus multiples of their places.

    Windows that overlap are joined of at most ``most_pieces`` slices each; indices have at most ``max_elements`` elements and
    are made by at most ``max_steps`` operations.
    """

    name: ClassVar[str] = "regular-gathers"
    most_pieces: int = 8
    max_elements: int = 1 << 21
    max_steps: int = 64

    def change(self, computation: Computation) -> Computation:
        """Return the computation with slices instead of such gathers; itself when there are none."""
        return Rewriter(computation, {Gather: (self._slice,)}).run()

    def _slice(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        op, (table, indices) = instruction.op, instruction.operands
        assert isinstance(op, Gather)
        n = op.dimension_numbers
        if n.operand_batching_dims or 0 in instruction.result.type.shape or table.type.is_complex:
            return None
        starts = self._known(indices, rewriter)
        if starts is None:
            return None
        starts = np.moveaxis(
            starts.reshape(_with_vectors(starts.shape, n.index_vector_dim)), n.index_vector_dim, 0
        )
        axes = {axis: _Line(0, {}) for axis in range(table.type.rank)}
        read: set[int] = set()
        for axis, start in zip(n.start_index_map, starts, strict=True):
            line = _line(np.clip(start, 0, table.type.shape[axis] - op.slice_sizes[axis]))
            if line is None or not read.isdisjoint(line.steps):
                return None
            read.update(line.steps)
            axes[axis] = line
        return self._unfolded(instruction, axes, rewriter)

    def _unfolded(self, instruction: Instruction, axes: dict[int, _Line], rewriter: Rewriter) -> Value | None:
        """Read a table along lines; None where windows overlap too much."""
        op, (table, _), result = instruction.op, instruction.operands, instruction.result.type
        assert isinstance(op, Gather)
        n = op.dimension_numbers
        lookups = [d for d in range(result.rank) if d not in n.offset_dims]
        offsets = iter(n.offset_dims)
        of_axis = {axis: None if axis in n.collapsed_slice_dims else next(offsets) for axis in axes}
        starts, found, reverse = dict[int, int](), dict[int, list[_Dim]](), list[int]()
        for axis, line in axes.items():
            starts[axis], found[axis] = line.start, []
            for k, step in line.steps.items():
                size = result.shape[lookups[k]]
                if step < 0:
                    starts[axis] += step * (size - 1)
                    reverse.append(lookups[k])
                found[axis].append(_Dim(lookups[k], abs(step), size))
            offset = of_axis[axis]
            if offset is not None and op.slice_sizes[axis] > 1:
                found[axis].append(_Dim(offset, 1, op.slice_sizes[axis]))
            found[axis].sort(key=lambda dim: (-dim.step, -dim.size))
        if any(_pieces(dims[k:]) > self.most_pieces for dims in found.values() for k in range(len(dims))):
            return None
        x, dims = table, list[int]()
        for axis in reversed(axes):
            x = _along(x, axis, starts[axis], found[axis], rewriter)
            dims = [dim.number for dim in found[axis]] + dims
        order = sorted(range(len(dims)), key=lambda place: dims[place])
        x = rewriter.emit(Transpose(tuple(order)), x)
        x = rewriter.emit(BroadcastInDim(result.shape, tuple(sorted(dims))), x)
        return rewriter.emit(Reverse(tuple(sorted(reverse))), x) if reverse else x

    def _known(self, value: Value, rewriter: Rewriter) -> np.ndarray | None:
        """Return the integers that a value is whatever the arguments are; None where that takes more to find out."""
        steps: dict[Value, Instruction] = {}
        waiting = [value]
        while waiting:
            made = rewriter.maker(waiting[-1])
            if made is None or len(steps) > self.max_steps or not self._is_simple(made):
                return None
            missing = [operand for operand in made.operands if operand not in steps]
            if missing:
                waiting += missing
            else:
                steps[waiting.pop()] = made

        constants = {result: each.op.array for result, each in steps.items() if isinstance(each.op, Constant)}

        def evaluate(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            known: dict[Value, Any] = dict(zip(constants, arrays, strict=True))
            for result, each in steps.items():
                if result not in known:
                    (known[result],) = evaluate_instruction(each, *(known[v] for v in each.operands))
            return (known[value],)

        with jax.enable_x64(True):
            found = evaluated_exactly(evaluate, *constants.values())
        return None if found is None else found[0].astype(np.int64)

    def _is_simple(self, made: Instruction) -> bool:
        return (
            isinstance(made.op, (Constant, DataMovement, Elementwise, Iota))
            and len(made.results) == 1
            and not made.regions
            and (made.result.type.is_integer or made.result.type.is_bool)
            and made.result.type.size <= self.max_elements
        )


class _Line(NamedTuple):
    """Indices ``start + sum(steps[k] * (index along dimension k))``; steps are not 0."""

    start: int
    steps: dict[int, int]


class _Dim(NamedTuple):
    """A dimension of a gather's result: its number there, how far apart what it reads lies, and its size."""

    number: int
    step: int
    size: int


def _with_vectors(shape: tuple[int, ...], vectors: int) -> tuple[int, ...]:
    """Return the shape of indices with a dimension for their components, which is left out where it has one."""
    return (*shape, 1) if vectors == len(shape) else shape


def _line(indices: np.ndarray) -> _Line | None:
    """Return the line on which all indices lie, or None."""
    start = int(indices.flat[0])
    steps: dict[int, int] = {}
    wanted: np.ndarray = np.full(indices.shape, start)
    for k, size in enumerate(indices.shape):
        if size > 1:
            step = int(indices[tuple(int(d == k) for d in range(indices.ndim))]) - start
            wanted = wanted + step * np.indices(indices.shape)[k]
            if step:
                steps[k] = step
    return _Line(start, steps) if np.array_equal(wanted, indices) else None


def _pieces(dims: Sequence[_Dim]) -> int:
    """Return how many rows as long as the first step a window of the other dimensions reaches over."""
    span = 1 + sum(dim.step * (dim.size - 1) for dim in dims[1:])
    return -(-span // dims[0].step)


def _along(x: Value, axis: int, start: int, dims: Sequence[_Dim], rewriter: Rewriter) -> Value:
    """Put dimensions in the place of an axis, steps of the first one being the longest."""
    if not dims:
        x = _cut(x, axis, start, 1, 1, rewriter)
        return rewriter.emit(Reshape((*x.type.shape[:axis], *x.type.shape[axis + 1 :])), x)
    (_, step, size), rest = dims[0], dims[1:]
    if not rest:
        return _cut(x, axis, start, size, step, rewriter)
    pieces = _pieces(dims)
    rows = size + pieces - 1
    there = min(rows * step, x.type.shape[axis] - start)
    x = _cut(x, axis, start, there, 1, rewriter)
    if there < rows * step:
        high = tuple(rows * step - there if d == axis else 0 for d in range(x.type.rank))
        zero = rewriter.emit(Constant.splat(0, x.type.with_shape(())))
        none = (0,) * x.type.rank
        x = rewriter.emit(Pad(none, high, none), x, zero)
    x = rewriter.emit(Reshape((*x.type.shape[:axis], rows, step, *x.type.shape[axis + 1 :])), x)
    parts = [_cut(x, axis, piece, size, 1, rewriter) for piece in range(pieces)]
    x = parts[0] if len(parts) == 1 else rewriter.emit(Concatenate(axis + 1), *parts)
    return _along(x, axis + 1, 0, rest, rewriter)


def _cut(x: Value, axis: int, start: int, count: int, step: int, rewriter: Rewriter) -> Value:
    """Take ``count`` elements along an axis, ``step`` apart."""
    shape = x.type.shape
    low = tuple(start if d == axis else 0 for d in range(len(shape)))
    high = tuple(start + (count - 1) * step + 1 if d == axis else size for d, size in enumerate(shape))
    strides = tuple(step if d == axis else 1 for d in range(len(shape)))
    return rewriter.emit(Slice(low, high, strides), x)
