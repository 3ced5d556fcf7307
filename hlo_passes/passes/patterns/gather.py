"""Lookups that need none, slices and updates whose place is known, and windows that end inside along several axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from hlo_passes.ir import Instruction, Op, Value
from hlo_passes.ops import (
    Add,
    BroadcastInDim,
    Constant,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Multiply,
    Pad,
    Reshape,
    Scatter,
    Select,
    Slice,
    Subtract,
    update_kind,
)
from hlo_passes.ops.elementwise import And, Compare
from hlo_passes.passes.lifting import is_liftable, lift
from hlo_passes.passes.patterns.registry import rewrites, splat_element
from hlo_passes.passes.rewriter import Rewriter

_MUCH = 4
"""A window of one in so many elements is much of a tensor: going over all of it takes less than an update in place."""
_TILES = 1472
"""Of a GC200."""
_AN_ELEMENT, _A_PLACE, _A_STEP = 2, 30, 300
"""Cycles, about, of going over an element of a tensor on a tile, of an element along the axes that a window moves along where the
window is updated in place, and of a step, on a GC200: 1,000 of 100,000 floats in a row took 31,401 in place and 602 by going over all."""
_SUMS: dict[str, tuple[Op, float, int]] = {
    "add": (Add(), -0.0, 0),
    "sub": (Subtract(), 0.0, 0),
    "mul": (Multiply(), 1.0, 1),
}
"""Updates by an operation that one operand leaves every other as it is: that of floats, and of integers."""


@rewrites(Gather)
def read_from_the_start(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Slices as long as every axis that indices move along begin at 0, wherever they point: all are the same."""
    op, (table, indices) = instruction.op, instruction.operands
    assert isinstance(op, Gather)
    n, sizes = op.dimension_numbers, table.type.shape
    if any(op.slice_sizes[axis] != sizes[axis] for axis in n.start_index_map):
        return None
    result = instruction.result.type
    lookups = [d for d in range(result.rank) if d not in n.offset_dims]
    of_indices = [d for d in range(indices.type.rank) if d != n.index_vector_dim]
    paired = dict(zip(n.operand_batching_dims, n.start_indices_batching_dims, strict=True))
    offsets = iter(n.offset_dims)
    limits: list[int] = []
    kept: list[int] = []
    placed: list[int] = []
    for axis, size in enumerate(sizes):
        limits.append(size if axis in paired else op.slice_sizes[axis])
        if axis in n.collapsed_slice_dims:
            continue
        kept.append(limits[-1])
        placed.append(lookups[of_indices.index(paired[axis])] if axis in paired else next(offsets))
    x = rewriter.emit(Slice((0,) * len(sizes), tuple(limits), (1,) * len(sizes)), table)
    x = rewriter.emit(Reshape(tuple(kept)), x)
    return rewriter.emit(BroadcastInDim(result.shape, tuple(placed)), x)


@rewrites(Scatter)
def update_in_a_known_window(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x.at[1:-1].set(v)``: one window, at a constant place inside, of much of a tensor is updated element by element."""
    window = _only_window(instruction)
    if window is None:
        return None
    x, _, update = instruction.operands
    kind, starts = update_kind(instruction.regions[0]), _known_starts(instruction, rewriter)
    if starts is None or (kind != "set" and (kind not in _SUMS or x.type.is_bool or x.type.is_complex)):
        return None
    if not _is_inside(starts, window, x.type.shape):
        return None  # what does not lie inside is left out
    if not update.type.size or not _is_gone_over(x, window):
        return None
    return _updated(kind, x, rewriter.emit(Reshape(window), update), starts, rewriter)


def _is_gone_over(x: Value, window: Sequence[int]) -> bool:
    """Whether a tensor is gone over as a whole sooner than a window of it is updated in place: much of it, or a long stretch.

    What a window takes of whole axes is updated where it lies, on as many tiles as these are cut over; along the others every tile
    looks for each place.
    """
    if _MUCH * math.prod(window) >= x.type.size:
        return True
    sides = list(zip(window, x.type.shape, strict=True))
    if sum(1 < n < size for n, size in sides) > 1:
        return False  # it is updated along one axis after the other
    along = math.prod(n for n, size in sides if n != size)
    beside = math.prod(n for n, size in sides if n == size)
    in_place = _A_PLACE * along * -(-beside // _TILES)
    return in_place > _AN_ELEMENT * -(-x.type.size // _TILES) + _A_STEP


@rewrites(DynamicSlice)
def slice_at_a_known_place(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A slice at constant offsets, which are moved to the nearest place inside; those of whole dimensions are 0 anyway."""
    op, (x, *offsets) = instruction.op, instruction.operands
    assert isinstance(op, DynamicSlice)
    starts: list[int] = []
    for offset, size, whole in zip(offsets, op.slice_sizes, x.type.shape, strict=True):
        given = rewriter.constant(offset) if size < whole else None
        if size < whole and given is None:
            return None
        starts.append(0 if given is None else min(max(int(given.array), 0), whole - size))
    limits = tuple(start + size for start, size in zip(starts, op.slice_sizes, strict=True))
    return rewriter.emit(Slice(tuple(starts), limits, (1,) * len(starts)), x)


@rewrites(DynamicUpdateSlice)
def replace_a_known_window(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """The same of a slice at constant offsets, which are moved to the nearest place inside."""
    x, update, *offsets = instruction.operands
    given = [rewriter.constant(offset) for offset in offsets]
    if not given or any(each is None for each in given):
        return None
    rooms = (size - w for size, w in zip(x.type.shape, update.type.shape, strict=True))
    starts = [
        min(max(int(each.array), 0), room)
        for each, room in zip(given, rooms, strict=True)
        if each is not None
    ]
    if not update.type.size or not _is_gone_over(x, update.type.shape):
        return None
    return _updated("set", x, update, starts, rewriter)


SEVERAL = 3
"""Axes along which a window that ends inside is sliced, or replaced, along one of them first."""
LARGE, LARGE_BLOCK = 1 << 14, 1 << 6
"""Elements of a window that ends inside along several axes from which on it is quicker to go along one axis after the other.

At once, every element takes 0.1 to 0.2 cycles, and 2 to 45 where the window has several along more than one of these axes; one after
the other takes some 1,500 cycles more on a GC200.
"""


@rewrites(Scatter)
def update_one_window(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x.at[k, 1:9, :4].add(v)``: one window that ends inside along several axes is sliced, updated, and put back where it was.

    A window that does not lie inside as a whole is left out.
    """
    window = _only_window(instruction)
    if window is None or not is_liftable(instruction.regions[0]):
        return None
    x, indices, update = instruction.operands
    if not x.type.dtype == update.type.dtype == instruction.result.type.dtype:
        return None
    shape, emit = x.type.shape, rewriter.emit
    if len(_short_axes(window, shape)) < 2 or not _is_large(window, shape):
        return None
    known = _known_starts(instruction, rewriter)
    if known is not None and not _is_inside(known, window, shape):
        return x
    axes = _indexed(instruction)
    scalar, flat = indices.type.with_shape(()), emit(Reshape((len(axes),)), indices)
    starts = [emit(Constant.splat(0, scalar)) for _ in shape]
    is_inside: list[Value] = []
    for number, d in enumerate(axes):
        starts[d] = emit(Reshape(()), emit(Slice((number,), (number + 1,), (1,)), flat))
        for direction, bound in (("GE", 0), ("LE", shape[d] - window[d])):
            if bound <= np.iinfo(indices.type.np_dtype).max:
                is_inside.append(emit(Compare(direction), starts[d], emit(Constant.splat(bound, scalar))))
    old = emit(DynamicSlice(window), x, *starts)
    (new,) = lift(rewriter, instruction.regions[0], (old, emit(Reshape(window), update)))
    if known is None and is_inside:
        every = functools.reduce(lambda one, other: emit(And(), one, other), is_inside)
        new = emit(Select(), every, new, old)
    return emit(DynamicUpdateSlice(), x, new, *starts)


def _only_window(instruction: Instruction) -> tuple[int, ...] | None:
    """Return the extents, along all axes, of the window that a scatter of one array updates; None where there are several."""
    op, operands = instruction.op, instruction.operands
    assert isinstance(op, Scatter)
    n = op.dimension_numbers
    if len(operands) != 3 or n.input_batching_dims:
        return None
    x, indices, update = operands
    if indices.type.size != len(n.scatter_dims_to_operand_dims):
        return None
    sizes = iter(update.type.shape[d] for d in n.update_window_dims)
    return tuple(1 if d in n.inserted_window_dims else next(sizes) for d in range(x.type.rank))


def _indexed(instruction: Instruction) -> tuple[int, ...]:
    """Return the axes along which a scatter's indices say where its windows begin."""
    op = instruction.op
    assert isinstance(op, Scatter)
    return op.dimension_numbers.scatter_dims_to_operand_dims


def _known_starts(instruction: Instruction, rewriter: Rewriter) -> list[int] | None:
    """Return where the only window of a scatter begins along every axis, if that is constant."""
    x, indices, _ = instruction.operands
    given = rewriter.constant(indices)
    if given is None:
        return None
    starts = [0] * x.type.rank
    for d, start in zip(_indexed(instruction), given.array.reshape(-1).tolist(), strict=True):
        starts[d] = int(start)
    return starts


def _is_inside(starts: Sequence[int], window: Sequence[int], shape: Sequence[int]) -> bool:
    return all(0 <= a <= size - w for a, w, size in zip(starts, window, shape, strict=True))


@rewrites(DynamicSlice)
def slice_along_one_axis_first(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """``x[k, i:i + 8, j:j + 8]``: what is sliced along several axes is sliced along one of them first."""
    op, (x, *offsets) = instruction.op, instruction.operands
    assert isinstance(op, DynamicSlice)
    axes = _short_axes(op.slice_sizes, x.type.shape)
    if len(axes) < SEVERAL or not _is_large(op.slice_sizes, x.type.shape):
        return None
    along, beside = _along_and_beside(axes[0], offsets, rewriter)
    return rewriter.emit(op, _rows(x, axes[0], op.slice_sizes, along, rewriter), *beside)


@rewrites(DynamicUpdateSlice)
def replace_along_one_axis_first(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """The same of what is replaced: in rows that are sliced, which are put back."""
    x, update, *offsets = instruction.operands
    axes = _short_axes(update.type.shape, x.type.shape)
    if len(axes) < SEVERAL or not _is_large(update.type.shape, x.type.shape):
        return None
    along, beside = _along_and_beside(axes[0], offsets, rewriter)
    rows = _rows(x, axes[0], update.type.shape, along, rewriter)
    return rewriter.emit(instruction.op, x, rewriter.emit(instruction.op, rows, update, *beside), *along)


def _short_axes(window: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the axes along which a window is shorter than an array: those along which it has one element come first."""
    found = [d for d, (w, size) in enumerate(zip(window, shape, strict=True)) if w < size]
    return sorted(found, key=lambda d: window[d] != 1)


def _is_large(window: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether a window has so many elements that it is quicker to go along one axis after the other."""
    is_block = sum(window[d] > 1 for d in _short_axes(window, shape)) > 1
    return math.prod(window) >= (LARGE_BLOCK if is_block else LARGE)


def _along_and_beside(
    d: int, offsets: Sequence[Value], rewriter: Rewriter
) -> tuple[list[Value], list[Value]]:
    """Return a window's offsets along one axis, zero along others, and those along the others."""
    zero = rewriter.emit(Constant.splat(0, offsets[d].type))
    along = [offset if axis == d else zero for axis, offset in enumerate(offsets)]
    return along, [zero if axis == d else offset for axis, offset in enumerate(offsets)]


def _rows(x: Value, d: int, window: Sequence[int], offsets: Sequence[Value], rewriter: Rewriter) -> Value:
    """Return what of an array lies in a window along one axis."""
    sizes = tuple(window[axis] if axis == d else size for axis, size in enumerate(x.type.shape))
    return rewriter.emit(DynamicSlice(sizes), x, *offsets)


def _updated(kind: str, x: Value, update: Value, starts: Sequence[int], rewriter: Rewriter) -> Value:
    """Return a tensor with a window updated, which begins at ``starts`` and lies inside."""
    type_, window = x.type, update.type.shape
    ends = zip(type_.shape, starts, window, strict=True)
    pad = Pad(tuple(starts), tuple(size - start - w for size, start, w in ends), (0,) * type_.rank)
    element = type_.with_shape(())
    op, real, whole = _SUMS.get(kind, (None, 0.0, 0))
    if op is not None:
        neutral = rewriter.emit(Constant.splat(real if type_.is_inexact else whole, element))
        return rewriter.emit(op, x, rewriter.emit(pad, update, neutral))
    around = splat_element(x, rewriter)
    if around is not None:
        return rewriter.emit(pad, update, rewriter.emit(Constant.splat(around, element)))
    inside = rewriter.emit(Constant.splat(True, update.type.with_dtype("i1")))
    outside = rewriter.emit(Constant.splat(False, element.with_dtype("i1")))
    zero = rewriter.emit(Constant.splat(0, element))
    mask, padded = rewriter.emit(pad, inside, outside), rewriter.emit(pad, update, zero)
    return rewriter.emit(Select(), mask, padded, x)
