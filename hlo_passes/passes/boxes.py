"""What operations read for a box of their result, and the operation that computes the box from that."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from hlo_passes.ir import Instruction, Op, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Concatenate,
    Constant,
    DotGeneral,
    Iota,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Sort,
    TopK,
    Transpose,
)
from hlo_passes.ops.elementwise import Elementwise

Box: TypeAlias = tuple[tuple[int, int], ...]
"""By dimension the first element and the one behind the last."""


def whole(value: Value) -> Box:
    """Return the box that is all of a value."""
    return tuple((0, size) for size in value.type.shape)


def sizes(box: Box) -> tuple[int, ...]:
    """Return the extents of a box."""
    return tuple(end - first for first, end in box)


def _as_it_is(instruction: Instruction, box: Box) -> Op:
    return instruction.op


def _all_dimensions(instruction: Instruction) -> set[int]:
    return set(range(instruction.results[0].type.rank))


@dataclass(frozen=True)
class Rule:
    """How an operation computes a box of its result.

    Args:
      read: the box that it reads of its operand k for a box of its result.
      op: the operation that computes the box from those.
      cut: the dimensions of its result that a box may cut.
    """

    read: Callable[[Instruction, int, Box], Box]
    op: Callable[[Instruction, Box], Op] = _as_it_is
    cut: Callable[[Instruction], set[int]] = _all_dimensions


def rule_of(instruction: Instruction) -> Rule | None:
    """Return how an operation computes a box of its results, the same of each; None if it is not known to."""
    if not instruction.results:
        return None
    op, shape = instruction.op, instruction.results[0].type.shape
    if isinstance(op, Elementwise):
        is_even = all(v.type.shape in ((), shape) for v in instruction.operands)
        return _ELEMENTWISE if is_even and not op.num_regions else None
    return next((rule for kind, rule in _RULES.items() if isinstance(op, kind)), None)


def _read_elements(instruction: Instruction, k: int, box: Box) -> Box:
    return box if instruction.operands[k].type.rank else ()


def _read_slice(instruction: Instruction, k: int, box: Box) -> Box:
    op = instruction.op
    assert isinstance(op, Slice)
    return tuple(
        (start + first * stride, start + (end - 1) * stride + 1 if end > first else start + first * stride)
        for (first, end), start, stride in zip(box, op.start, op.strides, strict=True)
    )


def _read_broadcast(instruction: Instruction, k: int, box: Box) -> Box:
    op, operand = instruction.op, instruction.operands[0].type
    assert isinstance(op, BroadcastInDim)
    places = zip(operand.shape, op.broadcast_dimensions, strict=True)
    return tuple((0, 1) if size == 1 else box[place] for size, place in places)


def _smaller_broadcast(instruction: Instruction, box: Box) -> Op:
    assert isinstance(instruction.op, BroadcastInDim)
    return dataclasses.replace(instruction.op, shape=sizes(box))


def _read_transpose(instruction: Instruction, k: int, box: Box) -> Box:
    assert isinstance(instruction.op, Transpose)
    found = dict(zip(instruction.op.permutation, box, strict=True))
    return tuple(found[d] for d in range(len(box)))


def _read_reduce(instruction: Instruction, k: int, box: Box) -> Box:
    assert isinstance(instruction.op, Reduce)
    operand, kept = instruction.operands[k].type, iter(box)
    if k >= len(instruction.operands) // 2:
        return ()
    dimensions = instruction.op.dimensions
    return tuple((0, size) if d in dimensions else next(kept) for d, size in enumerate(operand.shape))


def _read_product(instruction: Instruction, k: int, box: Box) -> Box:
    assert isinstance(instruction.op, DotGeneral)
    n, operand = instruction.op.dimension_numbers, instruction.operands[k].type
    lhs_free = n.lhs_free(instruction.operands[0].type.rank)
    batching = n.rhs_batching if k else n.lhs_batching
    free = n.rhs_free(operand.rank) if k else lhs_free
    first = len(batching) + (len(lhs_free) if k else 0)
    found = dict(zip(batching, box, strict=False)) | dict(zip(free, box[first:], strict=False))
    return tuple(found.get(d, (0, size)) for d, size in enumerate(operand.shape))


def _read_concatenate(instruction: Instruction, k: int, box: Box) -> Box:
    assert isinstance(instruction.op, Concatenate)
    size = instruction.operands[k].type.shape[instruction.op.dimension]
    return tuple((0, size) if d == instruction.op.dimension else cut for d, cut in enumerate(box))


def _read_pad(instruction: Instruction, k: int, box: Box) -> Box:
    if k:
        return ()
    shape = instruction.operands[0].type.shape
    return tuple(
        (0, size) if d in _padded(instruction) else cut
        for d, (cut, size) in enumerate(zip(box, shape, strict=True))
    )


def _padded(instruction: Instruction) -> set[int]:
    """Return the dimensions that a pad changes."""
    op = instruction.op
    assert isinstance(op, Pad)
    changed = zip(op.low, op.high, op.interior, strict=True)
    return {d for d, amounts in enumerate(changed) if any(amounts)}


def _kept_by_reshape(instruction: Instruction) -> dict[int, int]:
    """Return the dimensions of a reshape's result that are dimensions of its operand, of more than one element."""
    before, after = instruction.operands[0].type.shape, instruction.results[0].type.shape
    places = {
        (math.prod(before[:d]), size): d for d, size in enumerate(before) if size > 1 and 0 not in before
    }
    found = {d: places.get((math.prod(after[:d]), size)) for d, size in enumerate(after)}
    return {d: place for d, place in found.items() if place is not None}


def _read_reshape(instruction: Instruction, k: int, box: Box) -> Box:
    kept = {place: box[d] for d, place in _kept_by_reshape(instruction).items()}
    return tuple(kept.get(d, (0, size)) for d, size in enumerate(instruction.operands[0].type.shape))


def _smaller_iota(instruction: Instruction, box: Box) -> Op:
    assert isinstance(instruction.op, Iota)
    return dataclasses.replace(instruction.op, type=instruction.op.type.with_shape(sizes(box)))


def _any_if_splat(instruction: Instruction) -> set[int]:
    assert isinstance(instruction.op, Constant)
    return _all_dimensions(instruction) if instruction.op.is_splat else set[int]()


def _smaller_constant(instruction: Instruction, box: Box) -> Op:
    op = instruction.op
    assert isinstance(op, Constant)
    return dataclasses.replace(op, type=op.type.with_shape(sizes(box)))


def _sorted_along(instruction: Instruction) -> int:
    assert isinstance(instruction.op, Sort | TopK)
    return instruction.op.dimension % instruction.operands[0].type.rank


def _read_whole_rows(instruction: Instruction, k: int, box: Box) -> Box:
    axis = _sorted_along(instruction)
    return (*box[:axis], (0, instruction.operands[k].type.shape[axis]), *box[axis + 1 :])


def _but_sorted(instruction: Instruction) -> set[int]:
    return _all_dimensions(instruction) - {_sorted_along(instruction)}


def _but_joined(instruction: Instruction) -> set[int]:
    assert isinstance(instruction.op, Concatenate)
    return _all_dimensions(instruction) - {instruction.op.dimension}


def _but_counted(instruction: Instruction) -> set[int]:
    assert isinstance(instruction.op, Iota)
    return _all_dimensions(instruction) - {instruction.op.dimension}


_ELEMENTWISE = Rule(_read_elements)
_RULES: dict[type[Op], Rule] = {
    Slice: Rule(_read_slice),
    BroadcastInDim: Rule(_read_broadcast, _smaller_broadcast),
    Transpose: Rule(_read_transpose),
    Reduce: Rule(_read_reduce),
    DotGeneral: Rule(_read_product),
    Concatenate: Rule(_read_concatenate, cut=_but_joined),
    Pad: Rule(_read_pad, cut=lambda i: _all_dimensions(i) - _padded(i)),
    Constant: Rule(lambda i, k, box: (), _smaller_constant, _any_if_splat),
    Sort: Rule(_read_whole_rows, cut=_but_sorted),
    TopK: Rule(_read_whole_rows, cut=_but_sorted),
    Iota: Rule(lambda i, k, box: (), _smaller_iota, _but_counted),
    Reshape: Rule(
        _read_reshape,
        lambda i, box: Reshape(sizes(box)),
        lambda i: set(_kept_by_reshape(i)),
    ),
}
