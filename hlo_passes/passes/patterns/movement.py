"""Identities and compositions of reshapes, broadcasts, transposes, slices, reverses and concatenations."""

from __future__ import annotations

import itertools

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Concatenate,
    Constant,
    Iota,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from hlo_passes.passes.patterns.registry import rewrites, splat_element, zeros
from hlo_passes.passes.rewriter import Rewriter

Shape = tuple[int, ...]


def without_ones(shape: Shape) -> Shape:
    """Return the sizes other than 1."""
    return tuple(size for size in shape if size != 1)


def is_degenerate(old: Shape, new: Shape) -> bool:
    """Whether a reshape only adds and removes dimensions of size 1."""
    return without_ones(old) == without_ones(new)


@rewrites(BroadcastInDim, Reshape, Transpose, Slice, Reverse, Concatenate, Pad)
def move_splat(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Copies of one element are that element, wherever they go."""
    elements = [splat_element(value, rewriter) for value in instruction.operands]
    first = elements[0]
    if first is None or any(e is None or e.tobytes() != first.tobytes() for e in elements):
        return None
    return rewriter.emit(Constant.splat(first, instruction.result.type))


@rewrites(Iota)
def count_to_one(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Counting along a dimension of size 1 gives zeros."""
    op = instruction.op
    assert isinstance(op, Iota)
    return zeros(op.type, rewriter) if op.type.shape[op.dimension] == 1 else None


# ---- reshapes


@rewrites(Reshape)
def drop_reshape(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A reshape to the same shape is its operand."""
    (operand,) = instruction.operands
    return operand if operand.type == instruction.result.type else None


@rewrites(Reshape)
def merge_reshapes(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A reshape of a reshape is one reshape."""
    inner = rewriter.producer(instruction.operands[0], Reshape)
    return rewriter.emit(instruction.op, inner[1][0]) if inner else None


@rewrites(Reshape)
def reshape_broadcast(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Broadcast to the reshaped shape at once: any of a scalar, otherwise one that only moves sizes of 1."""
    inner = rewriter.producer(instruction.operands[0], BroadcastInDim)
    if inner is None:
        return None
    op, (operand,) = inner
    new = instruction.result.type.shape
    if operand.type.rank == 0:
        return rewriter.emit(BroadcastInDim(new, ()), operand)
    if not is_degenerate(op.shape, new):
        return None
    kept = [d for d, size in enumerate(op.shape) if size != 1]
    places = dict(zip(kept, (d for d, size in enumerate(new) if size != 1), strict=True))
    if not all(d in places for d in op.broadcast_dimensions):
        return None
    return rewriter.emit(BroadcastInDim(new, tuple(places[d] for d in op.broadcast_dimensions)), operand)


# ---- broadcasts


@rewrites(BroadcastInDim)
def drop_broadcast(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A broadcast that repeats nothing is its operand, or a reshape or transpose of it."""
    op = instruction.op
    (operand,) = instruction.operands
    assert isinstance(op, BroadcastInDim)
    if operand.type.size != instruction.result.type.size:
        return None
    order = [d for d, size in zip(op.broadcast_dimensions, operand.type.shape, strict=True) if size != 1]
    if order == sorted(order):
        return rewriter.emit(Reshape(op.shape), operand)
    if len(order) == len(op.shape):
        permutation = tuple(op.broadcast_dimensions.index(d) for d in range(len(op.shape)))
        return rewriter.emit(Transpose(permutation), operand)
    return None


@rewrites(BroadcastInDim)
def merge_broadcasts(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A broadcast of a broadcast is one broadcast."""
    inner = rewriter.producer(instruction.operands[0], BroadcastInDim)
    op = instruction.op
    if inner is None or not isinstance(op, BroadcastInDim):
        return None
    places = tuple(op.broadcast_dimensions[d] for d in inner[0].broadcast_dimensions)
    return rewriter.emit(BroadcastInDim(op.shape, places), inner[1][0])


@rewrites(BroadcastInDim)
def broadcast_transpose(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A broadcast places dimensions in any order, so it needs no transpose before it."""
    inner = rewriter.producer(instruction.operands[0], Transpose)
    op = instruction.op
    if inner is None or not isinstance(op, BroadcastInDim):
        return None
    places = [0] * len(inner[0].permutation)
    for result, operand in enumerate(inner[0].permutation):
        places[operand] = op.broadcast_dimensions[result]
    return rewriter.emit(BroadcastInDim(op.shape, tuple(places)), inner[1][0])


@rewrites(BroadcastInDim)
def broadcast_reshape(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A broadcast needs no reshape before it that only adds and removes dimensions of size 1."""
    inner = rewriter.producer(instruction.operands[0], Reshape)
    op = instruction.op
    if inner is None or not isinstance(op, BroadcastInDim):
        return None
    (operand,) = inner[1]
    old, middle = operand.type.shape, inner[0].shape
    if not is_degenerate(old, middle):
        return None
    placed = iter([op.broadcast_dimensions[d] for d, size in enumerate(middle) if size != 1])
    places = [next(placed) if size != 1 else -1 for size in old]
    spare = iter([d for d in range(len(op.shape)) if d not in places])
    places = [next(spare, -1) if place < 0 else place for place in places]
    if -1 in places:
        return None
    return rewriter.emit(BroadcastInDim(op.shape, tuple(places)), operand)


# ---- transposes


@rewrites(Transpose)
def drop_transpose(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A transpose that keeps the order of all sizes other than 1 is a reshape."""
    op = instruction.op
    (operand,) = instruction.operands
    assert isinstance(op, Transpose)
    moved = [d for d in op.permutation if operand.type.shape[d] != 1]
    return rewriter.emit(Reshape(instruction.result.type.shape), operand) if moved == sorted(moved) else None


@rewrites(Transpose)
def merge_transposes(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A transpose of a transpose is one transpose."""
    inner = rewriter.producer(instruction.operands[0], Transpose)
    op = instruction.op
    if inner is None or not isinstance(op, Transpose):
        return None
    return rewriter.emit(Transpose(tuple(inner[0].permutation[d] for d in op.permutation)), inner[1][0])


@rewrites(Transpose)
def transpose_broadcast(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A transposed broadcast is a broadcast to other places."""
    inner = rewriter.producer(instruction.operands[0], BroadcastInDim)
    op = instruction.op
    if inner is None or not isinstance(op, Transpose):
        return None
    places = tuple(op.permutation.index(d) for d in inner[0].broadcast_dimensions)
    return rewriter.emit(BroadcastInDim(instruction.result.type.shape, places), inner[1][0])


# ---- slices


@rewrites(Slice)
def drop_slice(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A slice of everything is its operand."""
    (operand,) = instruction.operands
    return operand if operand.type == instruction.result.type else None


@rewrites(Slice)
def merge_slices(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A slice of a slice is one slice."""
    inner = rewriter.producer(instruction.operands[0], Slice)
    op = instruction.op
    if inner is None or not isinstance(op, Slice):
        return None
    first = inner[0]
    start = tuple(a + b * s for a, b, s in zip(first.start, op.start, first.strides, strict=True))
    strides = tuple(a * b for a, b in zip(first.strides, op.strides, strict=True))
    shape = instruction.result.type.shape
    limit = tuple(
        begin + (size - 1) * stride + 1 if size else begin
        for begin, size, stride in zip(start, shape, strides, strict=True)
    )
    return rewriter.emit(Slice(start, limit, strides), inner[1][0])


@rewrites(Slice)
def merge_reshaped_slices(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A slice of a slice that lost or gained dimensions of size 1 is one slice that does: of a plane, as of ``x[k]``."""
    reshaped = rewriter.producer(instruction.operands[0], Reshape)
    op = instruction.op
    if reshaped is None or not isinstance(op, Slice) or 0 in instruction.result.type.shape:
        return None
    before, after = reshaped[1][0], instruction.operands[0].type.shape
    if rewriter.producer(before, Slice) is None or not is_degenerate(before.type.shape, after):
        return None
    cuts = zip(op.start, op.limit, op.strides, strict=True)
    left = iter([cut for cut, size in zip(cuts, after, strict=True) if size != 1])
    start, limit, strides = zip(
        *((0, 1, 1) if n == 1 else next(left) for n in before.type.shape), strict=True
    )
    sliced = rewriter.emit(Slice(start, limit, strides), before)
    return rewriter.emit(Reshape(instruction.result.type.shape), sliced)


@rewrites(Slice)
def slice_broadcast(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A slice that cuts only what a broadcast repeated is a smaller broadcast."""
    inner = rewriter.producer(instruction.operands[0], BroadcastInDim)
    if inner is None:
        return None
    op, (operand,) = inner
    shape = instruction.result.type.shape
    for size, place in zip(operand.type.shape, op.broadcast_dimensions, strict=True):
        if size != 1 and shape[place] != size:
            return None
    return rewriter.emit(BroadcastInDim(shape, op.broadcast_dimensions), operand)


@rewrites(Slice)
def slice_concatenation(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A slice that touches one operand of a concatenation is a slice of that operand; of whole ones, these joined."""
    inner = rewriter.producer(instruction.operands[0], Concatenate)
    op = instruction.op
    if inner is None or not isinstance(op, Slice):
        return None
    axis = inner[0].dimension
    begin = 0
    for operand in inner[1]:
        end = begin + operand.type.shape[axis]
        if begin <= op.start[axis] and op.limit[axis] <= end:
            start = _replaced(op.start, axis, op.start[axis] - begin)
            limit = _replaced(op.limit, axis, op.limit[axis] - begin)
            return rewriter.emit(Slice(start, limit, op.strides), operand)
        begin = end
    ends = [0, *itertools.accumulate(operand.type.shape[axis] for operand in inner[1])]
    first, limit = op.start[axis], op.limit[axis]
    if op.strides[axis] > 1 or first not in ends or limit not in ends or limit - first in (0, ends[-1]):
        return None
    joined = rewriter.emit(Concatenate(axis), *inner[1][ends.index(first) : ends.index(limit)])
    start, limit = _replaced(op.start, axis, 0), _replaced(op.limit, axis, limit - first)
    return rewriter.emit(Slice(start, limit, op.strides), joined)


@rewrites(Slice)
def slice_pad(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A slice of padded elements that reaches into no padding is a slice of the elements."""
    inner = rewriter.producer(instruction.operands[0], Pad)
    op = instruction.op
    if inner is None or not isinstance(op, Slice) or any(inner[0].interior):
        return None
    operand = inner[1][0]
    start = tuple(begin - low for begin, low in zip(op.start, inner[0].low, strict=True))
    limit = tuple(end - low for end, low in zip(op.limit, inner[0].low, strict=True))
    if min(start, default=0) < 0 or any(
        end > size for end, size in zip(limit, operand.type.shape, strict=True)
    ):
        return None
    return rewriter.emit(Slice(start, limit, op.strides), operand)


# ---- reverses and concatenations


@rewrites(Reverse)
def drop_reverse(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Reversing dimensions of size 1 does nothing; reversing twice neither."""
    op = instruction.op
    (operand,) = instruction.operands
    assert isinstance(op, Reverse)
    inner = rewriter.producer(operand, Reverse)
    source = inner[1][0] if inner else operand
    turned = set(op.dimensions) ^ set(inner[0].dimensions if inner else ())
    kept = tuple(sorted(d for d in turned if operand.type.shape[d] != 1))
    if not kept:
        return source
    return (
        None
        if source == operand and kept == tuple(sorted(op.dimensions))
        else rewriter.emit(Reverse(kept), source)
    )


@rewrites(Concatenate)
def flatten_concatenation(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Take in concatenations along the same dimension that nobody else reads; drop empty operands."""
    op = instruction.op
    assert isinstance(op, Concatenate)
    operands: list[Value] = []
    for value in instruction.operands:
        inner = rewriter.producer(value, Concatenate)
        if inner is not None and inner[0].dimension == op.dimension and rewriter.has_one_use(value):
            operands += inner[1]
        elif value.type.shape[op.dimension]:
            operands.append(value)
    if len(operands) == 1:
        return operands[0]
    return rewriter.emit(op, *operands) if tuple(operands) != instruction.operands else None


@rewrites(Concatenate)
def join_slices(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Adjacent operands that are adjacent slices of one value are one slice of it."""
    op = instruction.op
    assert isinstance(op, Concatenate)
    operands: list[Value] = []
    for value in instruction.operands:
        joined = _joined(operands[-1], value, op.dimension, rewriter) if operands else None
        if joined is None:
            operands.append(value)
        else:
            operands[-1] = rewriter.emit(joined[0], joined[1])
    if len(operands) == len(instruction.operands):
        return None
    return operands[0] if len(operands) == 1 else rewriter.emit(op, *operands)


def _joined(before: Value, after: Value, axis: int, rewriter: Rewriter) -> tuple[Slice, Value] | None:
    """Return the slice that two slices make up end to end, and what it is of."""
    first, second = rewriter.producer(before, Slice), rewriter.producer(after, Slice)
    if first is None or second is None or first[1] != second[1]:
        return None
    one, two = first[0], second[0]
    same = all(
        a == b or d == axis
        for d, (a, b) in enumerate(
            zip(
                zip(one.start, one.limit, one.strides, strict=True),
                zip(two.start, two.limit, two.strides, strict=True),
                strict=True,
            )
        )
    )
    follows = one.start[axis] + before.type.shape[axis] * one.strides[axis] == two.start[axis]
    if not same or one.strides[axis] != two.strides[axis] or not follows:
        return None
    return Slice(one.start, _replaced(one.limit, axis, two.limit[axis]), one.strides), first[1][0]


def _replaced(numbers: Shape, axis: int, number: int) -> Shape:
    return (*numbers[:axis], number, *numbers[axis + 1 :])
