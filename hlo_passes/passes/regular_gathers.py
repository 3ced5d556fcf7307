"""Lookups at indices that are known and regular, as slices: frames of a signal, windows of a series, every fourth row.

``x[160 * arange(n)[:, None] + arange(400)]`` reaches the machine as a lookup of single elements, wherever they may lie: every
tile that looks up gets the table, and the indices take more memory than what they find. Updates of such places are the same
turned round: every tile goes over all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from hlo_passes.ir import Computation, Instruction, TensorType, Value, evaluate_instruction
from hlo_passes.ops import (
    And,
    BroadcastInDim,
    Compare,
    Concatenate,
    Constant,
    Gather,
    Iota,
    Pad,
    Reshape,
    Reverse,
    Scatter,
    Select,
    Slice,
    Transpose,
    update_kind,
)
from hlo_passes.ops.data_movement import DataMovement
from hlo_passes.ops.elementwise import Add, Elementwise, Subtract
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.patterns.registry import splat_element
from hlo_passes.passes.rewriter import Rewriter
from hlo_passes.passes.small import evaluated_exactly

_MUCH = 4
"""A tensor of which one in so many elements is updated is gone over as a whole: that takes less than updates in place."""


@dataclass(frozen=True)
class RegularGathers(LocalPass):
    """Slice where the indices of a gather are constants plus multiples of their places; choose or add where a scatter's are.

    So are updates of every other row, or of a diagonal. Updates of a tensor stay where they are few, sums into one that is
    the same everywhere never. Windows that overlap are joined of at most ``most_pieces`` slices each; indices have at most
    ``max_elements`` elements and are made by at most ``max_steps`` operations.
    """

    name: ClassVar[str] = "regular-gathers"
    most_pieces: int = 8
    max_elements: int = 1 << 21
    max_steps: int = 64

    def change(self, computation: Computation) -> Computation:
        """Return the computation with slices, and pads, instead of such lookups and sums; itself when it has none."""
        return Rewriter(computation, {Gather: (self._slice,), Scatter: (self._update,)}).run()

    def _slice(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        """Read a table along lines."""
        op, (table, indices), result = instruction.op, instruction.operands, instruction.result.type
        assert isinstance(op, Gather)
        n = op.dimension_numbers
        if n.operand_batching_dims or 0 in result.shape or table.type.is_complex:
            return None
        starts = self._known(indices, rewriter)
        if starts is None:
            return None
        lines: dict[int, _Line | None] = {axis: _Line(0, {}) for axis in range(table.type.rank)}
        for axis, start in zip(n.start_index_map, _components(starts, n.index_vector_dim), strict=True):
            lines[axis] = _line(np.clip(start, 0, table.type.shape[axis] - op.slice_sizes[axis]))
        offsets = iter(n.offset_dims)
        windows = {axis: next(offsets) for axis in lines if axis not in n.collapsed_slice_dims}
        places = [d for d in range(result.rank) if d not in n.offset_dims]
        crossing = _crossing(lines, table.type.shape, op.slice_sizes, set(n.collapsed_slice_dims))
        if crossing is not None:
            axis, lines[axis] = crossing
            lines[axis + 1] = _Line(0, {})
        layout = self._layout(lines, windows, places, result.shape)
        if layout is None:
            return None
        x = table
        if crossing is not None:
            axis, (rows, columns) = crossing[0], table.type.shape[crossing[0] : crossing[0] + 2]
            shape = (*table.type.shape[:axis], rows * columns, 1, *table.type.shape[axis + 2 :])
            x = rewriter.emit(Reshape(shape), x)
        for axis in reversed(lines):
            x = _along(x, axis, layout.starts[axis], layout.dims[axis], rewriter)
        order = sorted(range(len(layout.numbers)), key=lambda place: layout.numbers[place])
        x = rewriter.emit(Transpose(tuple(order)), x)
        x = rewriter.emit(BroadcastInDim(result.shape, tuple(sorted(layout.numbers))), x)
        return rewriter.emit(Reverse(layout.reverse), x) if layout.reverse else x

    def _update(self, instruction: Instruction, rewriter: Rewriter) -> Value | None:
        """Add, subtract or put updates along lines, all of them at once."""
        op = instruction.op
        assert isinstance(op, Scatter)
        n, kind = op.dimension_numbers, update_kind(instruction.regions[0])
        if len(instruction.operands) != 3 or n.input_batching_dims or kind not in ("add", "sub", "set"):
            return None
        x, indices, updates = instruction.operands
        if x.type.is_complex or (x.type.is_bool and kind != "set") or not updates.type.size:
            return None
        shape = updates.type.shape
        places = [d for d in range(len(shape)) if d not in n.update_window_dims]
        if not (kind != "set" and _is_alike(x, rewriter)) and not _is_much(x, updates, places):
            return None
        starts = self._known(indices, rewriter)
        if starts is None:
            return None
        lines: dict[int, _Line | None] = {axis: _Line(0, {}) for axis in range(x.type.rank)}
        components = _components(starts, n.index_vector_dim)
        for axis, start in zip(n.scatter_dims_to_operand_dims, components, strict=True):
            lines[axis] = _line(start)
        numbers = iter(n.update_window_dims)
        windows = {axis: next(numbers) for axis in lines if axis not in n.inserted_window_dims}
        diagonal = _diagonal(lines, x.type.shape, shape, places)
        crossed = {} if diagonal is None else {diagonal.across: _Line(0, {})}
        layout = self._layout({**lines, **crossed}, windows, places, shape)
        if layout is None or not layout.is_inside(x.type.shape):
            return None  # what does not lie inside is left out
        rest = [d for d in range(len(shape)) if d not in layout.numbers]
        if any(shape[d] > 1 for d in rest) or (kind == "set" and not layout.is_apart):
            return None  # several updates of one element
        u = rewriter.emit(Reverse(layout.reverse), updates) if layout.reverse else updates
        u = rewriter.emit(Transpose((*layout.numbers, *rest)), u)
        u = rewriter.emit(Reshape(tuple(shape[d] for d in layout.numbers)), u)
        zero = -0.0 if kind == "add" and x.type.is_inexact else 0
        whole = _spread(u, layout, x.type.shape, zero, diagonal, rewriter)
        if diagonal is None and kind != "set":
            return rewriter.emit(Add() if kind == "add" else Subtract(), x, whole)
        inside = rewriter.emit(Constant.splat(True, u.type.with_dtype("i1")))
        mask = _spread(inside, layout, x.type.shape, False, diagonal, rewriter)
        if diagonal is not None:
            mask = rewriter.emit(And(), mask, _is_on(diagonal, x.type.shape, rewriter))
        if kind == "set":
            return rewriter.emit(Select(), mask, whole, x)
        whole = rewriter.emit(Select(), mask, whole, rewriter.emit(Constant.splat(zero, x.type)))
        return rewriter.emit(Add() if kind == "add" else Subtract(), x, whole)

    def _layout(
        self,
        lines: Mapping[int, _Line | None],
        windows: Mapping[int, int],
        places: Sequence[int],
        shape: Sequence[int],
    ) -> _Layout | None:
        """Return how lines and windows lie along a table's axes; None where they are no lines, or overlap too much.

        Args:
          lines: the indices of each axis.
          windows: dimensions of a slice's elements, by axis.
          places: dimensions of the indices, as they are numbered in ``shape``.
          shape: of all slices together.
        """
        starts, dims, reverse = dict[int, int](), dict[int, list[_Dim]](), list[int]()
        for axis, line in lines.items():
            if line is None:
                return None
            starts[axis], dims[axis] = line.start, []
            for k, step in line.steps.items():
                number = places[k]
                if step < 0:
                    starts[axis] += step * (shape[number] - 1)
                    reverse.append(number)
                dims[axis].append(_Dim(number, abs(step), shape[number]))
            if axis in windows and shape[windows[axis]] > 1:
                dims[axis].append(_Dim(windows[axis], 1, shape[windows[axis]]))
            dims[axis].sort(key=lambda dim: (-dim.step, -dim.size))
            if any(_pieces(dims[axis][k:]) > self.most_pieces for k in range(len(dims[axis]))):
                return None
        layout = _Layout(starts, dims, tuple(sorted(reverse)))
        return layout if len(set(layout.numbers)) == len(layout.numbers) else None

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


class _Layout(NamedTuple):
    """Where slices lie in a table: where they start, and their dimensions from the longest step to the shortest, by axis.

    Dimensions in ``reverse`` go towards lower indices. Those of one element are in none.
    """

    starts: Mapping[int, int]
    dims: Mapping[int, Sequence[_Dim]]
    reverse: tuple[int, ...]

    @property
    def numbers(self) -> list[int]:
        """All dimensions, axis by axis."""
        return [dim.number for dims in self.dims.values() for dim in dims]

    @property
    def is_apart(self) -> bool:
        """Whether no element is reached twice."""
        return all(_pieces(dims[k:]) == 1 for dims in self.dims.values() for k in range(len(dims)))

    def is_inside(self, shape: Sequence[int]) -> bool:
        """Whether all indices are those of elements."""
        ends = {axis: sum(dim.step * (dim.size - 1) for dim in dims) for axis, dims in self.dims.items()}
        return all(0 <= start and start + ends[axis] < shape[axis] for axis, start in self.starts.items())


class _Diagonal(NamedTuple):
    """Two axes along which indices go together: at ``along`` 0, 1, 2, ... ``across`` is ``start``, ``start + step``, ..."""

    along: int
    across: int
    start: int
    step: int


def _diagonal(
    lines: Mapping[int, _Line | None], sizes: Sequence[int], shape: Sequence[int], places: Sequence[int]
) -> _Diagonal | None:
    """Return the diagonal that two of the lines make up, if two do, an element a step, and it lies inside."""
    by_place: dict[int, list[int]] = {}
    for axis, line in lines.items():
        if line is not None and len(line.steps) == 1:
            by_place.setdefault(next(iter(line.steps)), []).append(axis)
    for k, axes in by_place.items():
        if len(axes) != 2:
            continue
        (one, other), last = axes, shape[places[k]] - 1
        (a, da), (b, db) = ((line.start, line.steps[k]) for axis in axes if (line := lines[axis]) is not None)
        if abs(da) != 1 or abs(db) != 1 or not all(0 <= end < sizes[other] for end in (b, b + db * last)):
            return None
        return _Diagonal(one, other, b - a * da * db, da * db)
    return None


def _crossing(
    lines: Mapping[int, _Line | None], shape: Sequence[int], sizes: Sequence[int], collapsed: set[int]
) -> tuple[int, _Line] | None:
    """Return the first of two neighbouring axes whose indices go together, and the line of both as one; None without such.

    The diagonal of a matrix is every element so many behind the last one, of its rows one after the other.
    """
    for axis in range(len(shape) - 1):
        one, other = lines[axis], lines[axis + 1]
        if one is None or other is None or one.steps.keys().isdisjoint(other.steps):
            continue
        if sizes[axis] == sizes[axis + 1] == 1 and {axis, axis + 1} <= collapsed:
            columns, steps = shape[axis + 1], dict(other.steps)
            for k, step in one.steps.items():
                steps[k] = steps.get(k, 0) + step * columns
            kept = {k: step for k, step in steps.items() if step}
            return axis, _Line(one.start * columns + other.start, kept)
    return None


def _is_on(diagonal: _Diagonal, shape: tuple[int, ...], rewriter: Rewriter) -> Value:
    """Return which elements of a tensor lie on a diagonal, or on its lengthening."""
    counted = TensorType(shape, "i32")
    along, across = (rewriter.emit(Iota(counted, axis)) for axis in (diagonal.along, diagonal.across))
    start = rewriter.emit(Constant.splat(diagonal.start, counted))
    wanted = rewriter.emit(Add() if diagonal.step > 0 else Subtract(), start, along)
    return rewriter.emit(Compare("EQ"), across, wanted)


_FEW_UPDATES, _ELEMENTS_AN_UPDATE = 10, 11_000
"""A tile goes over all updates of a tensor, some 30 cycles each; over its own elements, four cycles each, and one of a gc200's
1,472 tiles has few: from so many updates on, and one more for so many elements, that takes less."""


def _is_much(x: Value, updates: Value, places: Sequence[int]) -> bool:
    """Whether a tensor is gone over as a whole sooner than it is updated in place."""
    count = math.prod(updates.type.shape[d] for d in places)
    many = _FEW_UPDATES + x.type.size // _ELEMENTS_AN_UPDATE
    return _MUCH * updates.type.size >= x.type.size or count > many


def _spread(
    u: Value,
    layout: _Layout,
    shape: tuple[int, ...],
    zero: float,
    diagonal: _Diagonal | None,
    rewriter: Rewriter,
) -> Value:
    """Return updates where they belong in a tensor of a shape, and zeros; those of a diagonal wherever it may cross."""
    sizes = [
        1 if diagonal is not None and axis == diagonal.across else size for axis, size in enumerate(shape)
    ]
    for axis, size in enumerate(sizes):
        u = _back(u, axis, layout.starts[axis], layout.dims[axis], size, zero, rewriter)
    if diagonal is None:
        return u
    u = rewriter.emit(Reshape(tuple(size for axis, size in enumerate(sizes) if axis != diagonal.across)), u)
    others = tuple(axis for axis in range(len(shape)) if axis != diagonal.across)
    return rewriter.emit(BroadcastInDim(shape, others), u)


def _components(indices: np.ndarray, dimension: int) -> np.ndarray:
    """Return index vectors component by component; their dimension is left out where they have one."""
    shape = (*indices.shape, 1) if dimension == indices.ndim else indices.shape
    return np.moveaxis(indices.reshape(shape), dimension, 0)


def _is_alike(value: Value, rewriter: Rewriter) -> bool:
    """Whether a value is one constant everywhere."""
    while (made := rewriter.maker(value)) is not None and isinstance(made.op, BroadcastInDim):
        (value,) = made.operands
    return splat_element(value, rewriter) is not None


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


def _back(
    u: Value, axis: int, start: int, dims: Sequence[_Dim], size: int, zero: float, rewriter: Rewriter
) -> Value:
    """Add up what ``_along`` would have read: put an axis of ``size`` in the place of dimensions."""

    def pad(x: Value, axis: int, low: int, high: int, interior: int = 0) -> Value:
        if (low, high, interior) == (0, 0, 0):
            return x
        amounts = [
            tuple(amount if d == axis else 0 for d in range(x.type.rank)) for amount in (low, high, interior)
        ]
        element = rewriter.emit(Constant.splat(zero, x.type.with_shape(())))
        return rewriter.emit(Pad(amounts[0], amounts[1], amounts[2]), x, element)

    if not dims:
        u = rewriter.emit(Reshape((*u.type.shape[:axis], 1, *u.type.shape[axis:])), u)
        return pad(u, axis, start, size - start - 1)
    (_, step, count), rest = dims[0], dims[1:]
    if not rest:
        return pad(u, axis, start, size - start - (count - 1) * step - 1, step - 1)
    pieces = _pieces(dims)
    u = _back(u, axis + 1, 0, rest, pieces * step, zero, rewriter)
    parts = [
        pad(_cut(u, axis + 1, piece * step, step, 1, rewriter), axis, piece, pieces - 1 - piece)
        for piece in range(pieces)
    ]
    u = functools.reduce(lambda one, other: rewriter.emit(Add(), one, other), parts)
    rows = (count + pieces - 1) * step
    u = rewriter.emit(Reshape((*u.type.shape[:axis], rows, *u.type.shape[axis + 2 :])), u)
    there = min(rows, size - start)
    return pad(_cut(u, axis, 0, there, 1, rewriter), axis, start, size - start - there)


def _cut(x: Value, axis: int, start: int, count: int, step: int, rewriter: Rewriter) -> Value:
    """Take ``count`` elements along an axis, ``step`` apart."""
    shape = x.type.shape
    low = tuple(start if d == axis else 0 for d in range(len(shape)))
    high = tuple(start + (count - 1) * step + 1 if d == axis else size for d, size in enumerate(shape))
    strides = tuple(step if d == axis else 1 for d in range(len(shape)))
    return rewriter.emit(Slice(low, high, strides), x)
