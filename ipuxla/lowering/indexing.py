"""Slices and updates at runtime offsets onto popops."""

from __future__ import annotations

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import DynamicSlice, DynamicUpdateSlice
from ipuxla.lowering.registry import Lowering, lowers, where
from ipuxla.lowering.regular import materialize
from tiles.graph import Tensor
from tiles.poplibs.popops.dynamic import dynamic_slice, dynamic_update_slice


def in_memory(lowering: Lowering, value: Value) -> Tensor:
    """Return the tensor of a value, a splat constant filled in first."""
    return lowering.tensor(value) if value in lowering.values else materialize(lowering, value)


@lowers(DynamicSlice)
def lower_dynamic_slice(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Slice at scalar offsets; those of axes that are taken whole need not exist."""
    op = instruction.op
    assert isinstance(op, DynamicSlice)
    x, *starts = instruction.operands
    table = in_memory(lowering, x)
    offsets = _offsets(lowering, starts, op.slice_sizes, table.shape)
    return (dynamic_slice(lowering.site(where(instruction)), table, offsets, op.slice_sizes),)


@lowers(DynamicUpdateSlice)
def lower_dynamic_update_slice(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Update a slice at scalar offsets, in place where the tensor is not read again."""
    x, new, *starts = instruction.operands
    table, update = in_memory(lowering, x), in_memory(lowering, new)
    offsets = _offsets(lowering, starts, update.shape, table.shape)
    return (dynamic_update_slice(lowering.site(where(instruction)), table, update, offsets),)


def _offsets(
    lowering: Lowering, starts: list[Value], sizes: tuple[int, ...], shape: tuple[int, ...]
) -> list[Tensor | None]:
    """Return the offset tensors of the axes that are split; None for the others."""
    return [
        in_memory(lowering, start) if n != size else None
        for start, n, size in zip(starts, sizes, shape, strict=True)
    ]
