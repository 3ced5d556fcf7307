"""Counters in integers wider than what is kept of them: sums and products of positions and constants.

JAX numbers the elements of random bits in 64 bits and takes both halves, of which the upper one is zero for any array
that a machine holds. The machine has no integers of 64 bits.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import (
    Add,
    BroadcastInDim,
    Clamp,
    Constant,
    Convert,
    DynamicSlice,
    Iota,
    Multiply,
    Reshape,
    ShiftRightLogical,
)
from hlo_passes.passes.patterns.registry import rewrites, splat_element, zeros
from hlo_passes.passes.rewriter import Rewriter

_MOST_STEPS = 16
"""Operations of a counter that are looked at: JAX's have two for each dimension."""


@rewrites(ShiftRightLogical)
def drop_upper_bits_of_counters(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """What lies above the greatest value of a counter is zero."""
    counter, by = instruction.operands
    amount = splat_element(by, rewriter)
    if amount is None or not counter.type.is_unsigned:
        return None
    greatest = _greatest(counter, rewriter, _MOST_STEPS)
    if greatest is None or not 0 <= int(amount) < 8 * counter.type.np_dtype.itemsize:
        return None
    return None if greatest >> int(amount) else zeros(instruction.result.type, rewriter)


@rewrites(Convert)
def count_in_what_is_kept(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """The lower bits of a counter are those of the same counter in fewer bits: sums and products keep them."""
    (counter,) = instruction.operands
    wide, narrow = counter.type, instruction.result.type
    kinds = {wide.np_dtype.kind, narrow.np_dtype.kind}
    if not kinds <= {"i", "u"} or narrow.np_dtype.itemsize >= wide.np_dtype.itemsize:
        return None
    if rewriter.constant(counter) is not None:
        return None
    return _narrowed(counter, narrow.dtype, rewriter) if _counts(counter, rewriter, _MOST_STEPS) else None


@rewrites(DynamicSlice)
def slice_of_counter(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """What is sliced out of a counter counts from where the slice begins: a scan over ``jnp.arange(n)`` reads its own trip."""
    op, (counter, *starts) = instruction.op, instruction.operands
    counted = rewriter.producer(counter, Iota)
    if counted is None or not isinstance(op, DynamicSlice) or counter.type.is_complex:
        return None
    dimension, type_ = counted[0].dimension, instruction.result.type
    start = starts[dimension]
    most = counter.type.shape[dimension] - op.slice_sizes[dimension]
    if start.type.bits < 32:  # which may not have the last place where a slice may begin
        start = rewriter.emit(Convert("i32"), start)
    bounds = [rewriter.emit(Constant.splat(bound, start.type)) for bound in (0, most)]
    first = rewriter.emit(Clamp(), bounds[0], start, bounds[1])
    whole = "i32" if type_.is_float else type_.dtype  # counted in integers, and then made floats
    if first.type.dtype != whole:
        first = rewriter.emit(Convert(whole), first)
    found = rewriter.emit(BroadcastInDim(type_.shape, ()), first)
    if op.slice_sizes[dimension] > 1:
        found = rewriter.emit(Add(), found, rewriter.emit(Iota(type_.with_dtype(whole), dimension)))
    return found if whole == type_.dtype else rewriter.emit(Convert(type_.dtype), found)


def _counts(value: Value, rewriter: Rewriter, steps: int) -> int:
    """Return how many of ``steps`` are left when a value is found to be made of positions and constants alone; else 0."""
    if splat_element(value, rewriter) is not None or rewriter.producer(value, Iota) is not None:
        return steps - 1
    made = rewriter.producer(value, Add) or rewriter.producer(value, Multiply)
    if made is None:
        return 0
    for operand in made[1]:
        steps = _counts(operand, rewriter, steps) if steps > 1 else 0
    return max(steps, 0)


def _narrowed(value: Value, dtype: str, rewriter: Rewriter) -> Value:
    """Emit a counter in fewer bits."""
    type_ = dataclasses.replace(value.type, dtype=dtype)
    element = splat_element(value, rewriter)
    if element is not None:
        return rewriter.emit(Constant(np.asarray(element).astype(type_.np_dtype), type_))
    counted = rewriter.producer(value, Iota)
    if counted is not None:
        return rewriter.emit(Iota(type_, counted[0].dimension))
    made = rewriter.producer(value, Add) or rewriter.producer(value, Multiply)
    assert made is not None
    return rewriter.emit(made[0], *(_narrowed(operand, dtype, rewriter) for operand in made[1]))


def _greatest(value: Value, rewriter: Rewriter, steps: int) -> int | None:
    """Return what an unsigned value is at most, where no sum or product of it wraps round; None where that is not known."""
    made = rewriter.maker(value)
    if made is None or steps == 0:
        return None
    found: int | None = None
    if isinstance(made.op, Constant):
        found = int(made.op.value.max()) if made.op.value.size else 0
    elif isinstance(made.op, Iota):
        found = max(value.type.shape[made.op.dimension] - 1, 0)
    elif isinstance(made.op, Convert) and (
        made.operands[0].type.is_unsigned or made.operands[0].type.is_bool
    ):
        source = made.operands[0].type
        found = 1 if source.is_bool else int(np.iinfo(source.np_dtype).max)
    elif isinstance(made.op, BroadcastInDim | Reshape):
        found = _greatest(made.operands[0], rewriter, steps - 1)
    elif isinstance(made.op, Add | Multiply):
        bounds = [_greatest(operand, rewriter, steps // 2) for operand in made.operands]
        if None not in bounds:
            a, b = (bound or 0 for bound in bounds)
            found = a + b if isinstance(made.op, Add) else a * b
    limit = int(np.iinfo(value.type.np_dtype).max)
    return found if found is not None and found <= limit else None
