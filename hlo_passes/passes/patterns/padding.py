"""Padding in a form that later stages can index: only at the ends, never negative, by a known value.

Afterwards every pad has ``interior`` 0, ``low`` and ``high`` at least 0, and a constant padding value.
"""

from __future__ import annotations

import jax
import numpy as np

from hlo_passes.ir import Instruction, TensorType, Value, evaluate_instruction
from hlo_passes.ops import BroadcastInDim, Concatenate, Constant, Convert, Pad, Reshape, Select, Slice
from hlo_passes.passes.patterns.registry import rewrites, splat_element, zeros
from hlo_passes.passes.rewriter import Rewriter


@rewrites(Pad)
def drop_pad(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Padding by nothing is the operand; padding of nothing is the padding value."""
    operand, value = instruction.operands
    if operand.type.size == 0:
        return rewriter.emit(BroadcastInDim(instruction.result.type.shape, ()), value)
    op = instruction.op
    assert isinstance(op, Pad)
    if any(op.low) or any(op.high) or any(_interior(op, operand.type)):
        return None
    return operand


@rewrites(Pad)
def crop_negative_pad(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Negative padding is a slice: of the operand, or of the padded operand when elements are spread out."""
    op = instruction.op
    operand, value = instruction.operands
    assert isinstance(op, Pad)
    if min((*op.low, *op.high), default=0) >= 0:
        return None
    low, high = (tuple(max(size, 0) for size in sizes) for sizes in (op.low, op.high))
    crop_low, crop_high = (tuple(max(-size, 0) for size in sizes) for sizes in (op.low, op.high))
    strides = (1,) * operand.type.rank
    if not any(_interior(op, operand.type)):
        ends = tuple(size - cut for size, cut in zip(operand.type.shape, crop_high, strict=True))
        if all(start <= end for start, end in zip(crop_low, ends, strict=True)):
            return rewriter.emit(
                Pad(low, high, op.interior), rewriter.emit(Slice(crop_low, ends, strides), operand), value
            )
    padded = rewriter.emit(Pad(low, high, op.interior), operand, value)
    limit = tuple(size - cut for size, cut in zip(padded.type.shape, crop_high, strict=True))
    return rewriter.emit(Slice(crop_low, limit, strides), padded)


@rewrites(Pad)
def join_pads(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Padding around padding by the same value is one padding: an update of a box inside an array pads axis by axis."""
    op, (operand, value) = instruction.op, instruction.operands
    inner = rewriter.producer(operand, Pad)
    if inner is None or not isinstance(op, Pad):
        return None
    first, (source, before) = inner
    if (
        any((*op.interior, *first.interior))
        or min((*op.low, *op.high, *first.low, *first.high), default=0) < 0
    ):
        return None
    fills = rewriter.constant(value), rewriter.constant(before)
    if value != before and (
        fills[0] is None or fills[1] is None or fills[0].value.tobytes() != fills[1].value.tobytes()
    ):
        return None
    low, high = (
        tuple(a + b for a, b in zip(ours, theirs, strict=True))
        for ours, theirs in ((op.low, first.low), (op.high, first.high))
    )
    return rewriter.emit(Pad(low, high, op.interior), source, value)


@rewrites(Select)
def join_box(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Choosing a box of one array, whole in all dimensions but one, and what is around it of another, joins the pieces."""
    mask, inside, outside = instruction.operands
    chosen, padded = rewriter.producer(mask, Pad), rewriter.producer(inside, Pad)
    if chosen is None or padded is None or mask.type != outside.type.with_dtype("i1"):
        return None
    op, (box, fill) = chosen
    same, (value, _) = padded
    axes = [d for d, (low, high) in enumerate(zip(op.low, op.high, strict=True)) if low or high]
    if (op.low, op.high, op.interior) != (same.low, same.high, same.interior) or len(axes) != 1:
        return None
    if any(op.interior) or min(op.low + op.high) < 0 or 0 in box.type.shape:
        return None
    if splat_element(box, rewriter) != np.True_ or splat_element(fill, rewriter) != np.False_:
        return None
    (d,) = axes
    shape, ones = outside.type.shape, (1,) * outside.type.rank
    pieces = [value]
    for start, stop, at in ((0, op.low[d], 0), (shape[d] - op.high[d], shape[d], 2)):
        if start < stop:
            starts = tuple(start if axis == d else 0 for axis in range(len(shape)))
            limits = tuple(stop if axis == d else size for axis, size in enumerate(shape))
            pieces.insert(at, rewriter.emit(Slice(starts, limits, ones), outside))
    return rewriter.emit(Concatenate(d), *pieces)


@rewrites(Pad)
def spread_interior_pad(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Padding between elements is padding after them in a dimension of their own.

    ``[n]`` with ``k`` between: reshaped to ``[n, 1]``, padded to ``[n, k + 1]``, reshaped to ``[n * (k +
    1)]``; the ``k`` after the last element are taken off the padding that follows.
    """
    op = instruction.op
    operand, value = instruction.operands
    assert isinstance(op, Pad)
    if not any(op.interior) or min((*op.low, *op.high), default=0) < 0:
        return None
    interior, shape = _interior(op, operand.type), operand.type.shape
    split: list[int] = []
    after: list[int] = []
    for size, between in zip(shape, interior, strict=True):
        split += (size, 1) if between else (size,)
        after += (0, between) if between else (0,)
    nothing = (0,) * len(split)
    spread = rewriter.emit(Reshape(tuple(split)), operand)
    spread = rewriter.emit(Pad(nothing, tuple(after), nothing), spread, value)
    merged = tuple(n * (between + 1) for n, between in zip(shape, interior, strict=True))
    spread = rewriter.emit(Reshape(merged), spread)
    high = tuple(size - between for size, between in zip(op.high, interior, strict=True))
    return rewriter.emit(Pad(op.low, high, (0,) * len(shape)), spread, value)


@rewrites(Pad)
def pad_by_converted(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Padding by a converted constant is padding by the constant converted, which is how ``jnp.pad`` states its zeros."""
    operand, value = instruction.operands
    made = rewriter.maker(value)
    if made is None or not isinstance(made.op, Convert) or value.type.rank:
        return None
    given = rewriter.constant(made.operands[0])
    if given is None:
        return None
    with jax.enable_x64(True):
        (converted,) = evaluate_instruction(made, jax.numpy.asarray(given.value))
    return rewriter.emit(instruction.op, operand, rewriter.emit(Constant(np.asarray(converted), value.type)))


@rewrites(Pad)
def pad_by_unknown(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Padding by a value known only at run time chooses it where padding by a constant put padding."""
    op = instruction.op
    operand, value = instruction.operands
    assert isinstance(op, Pad)
    if rewriter.constant(value) is not None or any(op.interior) or min((*op.low, *op.high), default=0) < 0:
        return None
    inside = rewriter.emit(Constant.splat(True, operand.type.with_dtype("i1")))
    inside = rewriter.emit(op, inside, zeros(TensorType((), "i1"), rewriter))
    padded = rewriter.emit(op, operand, zeros(value.type, rewriter))
    outside = rewriter.emit(BroadcastInDim(instruction.result.type.shape, ()), value)
    return rewriter.emit(Select(), inside, padded, outside)


def _interior(op: Pad, operand: TensorType) -> tuple[int, ...]:
    """Return the interior padding that has any effect: between fewer than two elements there is none."""
    return tuple(between if size > 1 else 0 for between, size in zip(op.interior, operand.shape, strict=True))
