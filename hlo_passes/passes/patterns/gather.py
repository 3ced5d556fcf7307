"""Lookups that need none."""

from __future__ import annotations

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import BroadcastInDim, Gather, Reshape, Slice
from hlo_passes.passes.patterns.registry import rewrites
from hlo_passes.passes.rewriter import Rewriter


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
    limits, kept, placed = [], [], []
    for axis, size in enumerate(sizes):
        limits.append(size if axis in paired else op.slice_sizes[axis])
        if axis in n.collapsed_slice_dims:
            continue
        kept.append(limits[-1])
        placed.append(lookups[of_indices.index(paired[axis])] if axis in paired else next(offsets))
    x = rewriter.emit(Slice((0,) * len(sizes), tuple(limits), (1,) * len(sizes)), table)
    x = rewriter.emit(Reshape(tuple(kept)), x)
    return rewriter.emit(BroadcastInDim(result.shape, tuple(placed)), x)
