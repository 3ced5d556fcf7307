"""Lookups and updates whose indices are zero along some axes, as lookups and updates along the others.

``jax.vmap`` of ``lax.dynamic_update_slice(cache, row, (i, 0, 0))`` gives every update an index along each axis, of which the last two
say nothing: a window begins at zero along an axis that no index names. Rows that are updated so are found by one index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import BroadcastInDim, Concatenate, Gather, Reshape, Scatter, Slice, Transpose
from hlo_passes.ops.elementwise import Clamp
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.ranges import range_of
from hlo_passes.passes.rewriter import Rewriter


@dataclass(frozen=True)
class FixedIndices(LocalPass):
    """Leave out the components of index vectors that are zero everywhere, all but one."""

    name: ClassVar[str] = "fixed-indices"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with shorter index vectors; itself when all say something."""
        return Rewriter(computation, {Gather: (_looked_up,), Scatter: (_updated,)}).run()


def _looked_up(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    op, (table, indices) = instruction.op, instruction.operands
    assert isinstance(op, Gather)
    n = op.dimension_numbers
    whole = {k for k, a in enumerate(n.start_index_map) if table.type.shape[a] == op.slice_sizes[a]}
    if whole and len(whole) == len(n.start_index_map) and indices.type.is_integer:
        return _repeated(instruction, rewriter)
    kept = _kept(indices, n.index_vector_dim, len(n.start_index_map), rewriter, whole)
    if kept is None:
        return None
    moved = dataclasses.replace(n, start_index_map=tuple(n.start_index_map[k] for k in kept))
    shorter = components(indices, n.index_vector_dim, kept, rewriter)
    return rewriter.emit(dataclasses.replace(op, dimension_numbers=moved), table, shorter)


def _updated(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    op, count = instruction.op, len(instruction.operands) // 2
    assert isinstance(op, Scatter)
    n, indices = op.dimension_numbers, instruction.operands[count]
    kept = _kept(indices, n.index_vector_dim, len(n.scatter_dims_to_operand_dims), rewriter)
    if kept is None:
        return None
    axes = tuple(n.scatter_dims_to_operand_dims[k] for k in kept)
    moved = dataclasses.replace(n, scatter_dims_to_operand_dims=axes)
    shorter = components(indices, n.index_vector_dim, kept, rewriter)
    operands = (*instruction.operands[:count], shorter, *instruction.operands[count + 1 :])
    return rewriter.emit_all(dataclasses.replace(op, dimension_numbers=moved), operands, instruction.regions)


def _repeated(instruction: Instruction, rewriter: Rewriter) -> Value:
    """Return what is looked up where every index, clamped, is zero: the table, once for each of them."""
    op, (table, indices) = instruction.op, instruction.operands
    assert isinstance(op, Gather)
    n, type_ = op.dimension_numbers, instruction.result.type
    places = [d for d in range(type_.rank) if d not in n.offset_dims]  # of the indices' dimensions
    dims = [d for d in range(indices.type.rank) if d != n.index_vector_dim]
    batch = dict(zip(n.operand_batching_dims, n.start_indices_batching_dims, strict=True))
    offsets = iter(n.offset_dims)
    limits = tuple(size if a in batch else op.slice_sizes[a] for a, size in enumerate(table.type.shape))
    if limits != table.type.shape:
        table = rewriter.emit(Slice((0,) * len(limits), limits, (1,) * len(limits)), table)
    axes = [a for a in range(len(limits)) if a not in n.collapsed_slice_dims]
    to = [places[dims.index(batch[a])] if a in batch else next(offsets) for a in axes]
    shape = tuple(limits[a] for a in axes)
    order = sorted(range(len(to)), key=to.__getitem__)
    found = rewriter.emit(Transpose(tuple(order)), rewriter.emit(Reshape(shape), table))
    return rewriter.emit(BroadcastInDim(type_.shape, tuple(sorted(to))), found)


def _kept(
    indices: Value, axis: int, count: int, rewriter: Rewriter, zero: Collection[int] = ()
) -> list[int] | None:
    """Return the components that are not known to be zero, as ``zero`` are; None where none can be left out.

    Of several that are all zero the first one is kept.
    """
    if count < 2 or not indices.type.is_integer:
        return None
    kept = [
        k for k in range(count) if k not in zero and range_of(indices, rewriter, (axis, k)) != (0, 0)
    ] or [0]
    return kept if len(kept) < count else None


def components(value: Value, axis: int, kept: Sequence[int], rewriter: Rewriter) -> Value:
    """Return some components of index vectors: of what they are clamped or joined of, that nothing is made of all of them."""
    if (found := rewriter.producer(value, Clamp)) is not None:
        _, bounded = found
        taken = [x if x.type.rank == 0 else components(x, axis, kept, rewriter) for x in bounded]
        return rewriter.emit(Clamp(), *taken)
    if (joined := rewriter.producer(value, Concatenate)) is not None and joined[0].dimension == axis:
        pieces = joined[1]
        if all(piece.type.shape[axis] == 1 for piece in pieces):
            taken = [pieces[k] for k in kept]
            return taken[0] if len(taken) == 1 else rewriter.emit(Concatenate(axis), *taken)
    parts = [_component(value, axis, k, rewriter) for k in kept]
    return parts[0] if len(parts) == 1 else rewriter.emit(Concatenate(axis), *parts)


def _component(value: Value, axis: int, k: int, rewriter: Rewriter) -> Value:
    shape = value.type.shape
    starts = tuple(k if d == axis else 0 for d in range(len(shape)))
    limits = tuple(k + 1 if d == axis else n for d, n in enumerate(shape))
    return rewriter.emit(Slice(starts, limits, (1,) * len(shape)), value)
