"""Reductions by any region, in the order of the elements.

A region that only chooses among its values (argmax) gives the same bits however its operands are grouped, so
vertices may fold parts of a dimension and join them. Any other one rounds, or mixes bits, by how it is grouped:
its grouping is stated here, as rows of scans of which the last elements count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import (
    And,
    BroadcastInDim,
    Compare,
    Concatenate,
    Constant,
    Iota,
    Maximum,
    Minimum,
    Not,
    Or,
    Reduce,
    Reshape,
    Scan,
    Select,
    Transpose,
    Xor,
    simple_combiner,
)
from hlo_passes.passes.lifting import converted, is_liftable, lift, widened
from hlo_passes.passes.rewriter import Rewriter
from hlo_passes.passes.scans import LONGEST_ROW, block_of, slice_axis

STACKED = 16
"""Arrays in a stack of which one is chosen element by element."""
_CHOOSING = (Compare, Select, Maximum, Minimum)
_LOGICAL = (And, Or, Xor, Not)


def is_choosing(region: Computation) -> bool:
    """Whether the results of a region are some of its parameters, chosen by comparing parameters."""
    return all(
        isinstance(i.op, _CHOOSING) or (isinstance(i.op, _LOGICAL) and i.result.type.is_bool)
        for i in region.instructions
    )


def reduce_in_order(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """Fold a dimension in order; several are merged into one first."""
    op, region = instruction.op, instruction.regions[0]
    assert isinstance(op, Reduce)
    half, shape = len(instruction.results), instruction.results[0].type.shape
    if simple_combiner(region) is not None or 0 in shape or not is_liftable(region):
        return None
    types = [result.type for result in instruction.results]
    if len(op.dimensions) == 1 and is_choosing(region) and 0 not in instruction.operands[0].type.shape:
        return _chosen_of_stack(instruction, rewriter)
    wide = region if is_choosing(region) else widened(region)
    values, initial = (
        converted(rewriter, given, wide.result_types)
        for given in (instruction.operands[:half], instruction.operands[half:])
    )
    starts = [rewriter.emit(BroadcastInDim(shape, ()), value) for value in initial]
    if 0 in values[0].type.shape:
        return converted(rewriter, starts, types)
    if len(op.dimensions) > 1:
        values = [_merged(rewriter, x, op.dimensions) for x in values]
        merged = Reduce((len(shape),))
        return converted(rewriter, rewriter.emit_all(merged, (*values, *initial), (wide,)), types)
    for axis in op.dimensions:
        values = [rewriter.emit(Reshape(shape), x) for x in _folded(rewriter, wide, values, axis)]
    return converted(rewriter, lift(rewriter, wide, (*starts, *values)), types)


def _chosen_of_stack(instruction: Instruction, rewriter: Rewriter) -> list[Value] | None:
    """Return what is chosen among few arrays that are stacked for it, element by element: ``jnp.select`` looks for the first true one."""
    op, half, shape = instruction.op, len(instruction.results), instruction.results[0].type.shape
    assert isinstance(op, Reduce)
    (axis,) = op.dimensions
    count = instruction.operands[0].type.shape[axis]
    stacks = [_stacked(value, axis, rewriter) for value in instruction.operands[:half]]
    if count > STACKED or None in stacks or not any(stacks):
        return None
    found = [rewriter.emit(BroadcastInDim(shape, ()), value) for value in instruction.operands[half:]]
    for k in range(count):
        values = [
            rewriter.emit(Reshape(shape), pieces[k])
            if pieces
            else rewriter.emit(Constant.splat(k, type_.with_shape(shape)))
            for pieces, type_ in zip(stacks, (x.type for x in instruction.operands[:half]), strict=True)
            if pieces is not None
        ]
        found = lift(rewriter, instruction.regions[0], (*found, *values))
    return found


def _stacked(value: Value, axis: int, rewriter: Rewriter) -> Sequence[Value] | None:
    """Return the arrays of a stack along an axis; none of positions along it, which are 0, 1, 2 and so on; else None."""
    joined, counted = rewriter.producer(value, Concatenate), rewriter.producer(value, Iota)
    if joined is not None and joined[0].dimension == axis and len(joined[1]) == value.type.shape[axis]:
        return joined[1]
    return () if counted is not None and counted[0].dimension == axis else None


def _merged(rewriter: Rewriter, x: Value, dimensions: Sequence[int]) -> Value:
    """Return an array with its reduced dimensions as one, behind the others."""
    kept = [d for d in range(x.type.rank) if d not in dimensions]
    moved = rewriter.emit(Transpose((*kept, *sorted(dimensions))), x)
    sizes = x.type.shape
    return rewriter.emit(Reshape((*(sizes[d] for d in kept), math.prod(sizes[d] for d in dimensions))), moved)


def _folded(rewriter: Rewriter, region: Computation, values: list[Value], axis: int) -> list[Value]:
    """Fold one axis to size 1, by blocks as long as it is longer than a row may be."""
    shape = values[0].type.shape
    size = shape[axis]
    if size <= LONGEST_ROW:
        return _last(rewriter, region, values, axis) if size > 1 else values
    block = block_of(size)
    count = size // block
    whole = (*shape[:axis], count, block, *shape[axis + 1 :])
    rows = [rewriter.emit(Reshape(whole), slice_axis(rewriter, x, axis, 0, count * block)) for x in values]
    totals = _last(rewriter, region, rows, axis + 1)
    joined = [rewriter.emit(Reshape((*shape[:axis], count, *shape[axis + 1 :])), total) for total in totals]
    rest = size - count * block
    if rest:
        tail = [slice_axis(rewriter, x, axis, count * block, rest) for x in values]
        ends = _folded(rewriter, region, tail, axis)
        joined = [rewriter.emit(Concatenate(axis), x, y) for x, y in zip(joined, ends, strict=True)]
    return _folded(rewriter, region, joined, axis)


def _last(rewriter: Rewriter, region: Computation, rows: list[Value], axis: int) -> list[Value]:
    scanned = rewriter.emit_all(Scan(axis), rows, (region,))
    return [slice_axis(rewriter, x, axis, x.type.shape[axis] - 1, 1) for x in scanned]
