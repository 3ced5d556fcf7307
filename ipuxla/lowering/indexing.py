"""Slices and updates at runtime offsets onto popops."""

from __future__ import annotations

import math
from dataclasses import replace

from hlo_passes.ir import Builder, Instruction, TensorType, Value
from hlo_passes.ops import (
    Add,
    BroadcastInDim,
    Clamp,
    Constant,
    Convert,
    DynamicSlice,
    DynamicUpdateSlice,
    Iota,
)
from ipuxla.lowering.registry import Lowering, lowers, where
from ipuxla.lowering.regular import materialize, place_expression
from tiles.graph import REDUCTION, Dim, IndexMap, OpForm, Site, Tensor, along, identity_map
from tiles.graph import Sequence as Program
from tiles.poplibs.popops.dynamic import dynamic_slice, dynamic_update_slice
from tiles.poplibs.popops.offsets import NO_WINDOW
from tiles.poplibs.popops.slicing import MultiSlice
from tiles.poplibs.poputil.place import place


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
    location = where(instruction)

    def at_once(program: Program) -> tuple[Tensor, ...]:
        site = Site(lowering.graph, f"{lowering.prefix}dynamic_slice", location, sequence=program)
        return (dynamic_slice(site, table, offsets, op.slice_sizes),)

    cut = [axis for axis, offset in enumerate(offsets) if offset is not None]
    if len(cut) != 1 or not _has_many_rows(op.slice_sizes, cut[0]):
        return at_once(lowering.program)
    (axis,) = cut
    own = replace(lowering, prefix=f"{lowering.prefix}dynamic_slice.")

    def by_rows(program: Program) -> tuple[Tensor, ...]:
        return (_rows(replace(own, program=program), table, starts[axis], axis, op.slice_sizes, location),)

    called = f"{lowering.prefix}dynamic_slice"
    return lowering.graph.add_choice(called, (at_once, by_rows), lowering.program, location)


FEW_ROWS, FEW_ELEMENTS = 2, 64
"""Rows, and elements of each, up to which a window is copied at once: more may be looked up one by one, wherever they lie."""
MANY = 1 << 12
"""Elements of a window from which on it is asked which is quicker."""


def _has_many_rows(sizes: tuple[int, ...], axis: int) -> bool:
    count, size = sizes[axis], math.prod(sizes)
    return count > FEW_ROWS and size > FEW_ELEMENTS * count and size >= MANY


def _rows(
    lowering: Lowering, table: Tensor, start: Value, axis: int, sizes: tuple[int, ...], location: str
) -> Tensor:
    """Look up the rows of a window one by one: a part of a table has some of them, or none, as of any rows."""
    count, rank = sizes[axis], len(sizes)
    builder = Builder("rows")
    given = builder.parameter(TensorType((), start.type.dtype))
    first = builder.add(Convert("i32"), given) if start.type.dtype != "i32" else given
    scalar = TensorType((), "i32")
    least, most = (builder.add(Constant.splat(n, scalar)) for n in (0, table.shape[axis] - count))
    first = builder.add(BroadcastInDim((count,), ()), builder.add(Clamp(), least, first, most))
    numbers = builder.add(Iota(TensorType((count,), "i32"), 0))
    region = builder.build(builder.add(Add(), first, numbers))
    indices = place_expression(lowering, region, [in_memory(lowering, start)], "rows", location)
    dims = (*(Dim(f"d{d}", n) for d, n in enumerate(sizes)), Dim("r", table.shape[axis], REDUCTION))
    of_table = IndexMap(tuple(along(rank if d == axis else d) for d in range(rank)))
    form = OpForm(dims, (of_table, IndexMap((along(axis),))), (identity_map(rank),))
    codelet = MultiSlice((axis,), (NO_WINDOW,), table.dtype)
    site = lowering.site(location, "lookup")
    return place(site, codelet, form, [table, indices], (table.dtype,))[0]


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
