"""Gathers and scatters of any dimension numbers onto the slices and updates of popops.

Every axis of the table gets one role: it follows an index, or a dimension of the indices (batching), or is
read along with the result. Indices are read component by component, so nothing moves to find this form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hlo_passes.ir import Instruction
from hlo_passes.ops import Gather, Scatter, update_kind
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.indexing import in_memory
from ipuxla.lowering.registry import Lowering, lowers, where
from tiles.graph import REDUCTION, Affine, Dim, IndexMap, OpForm, Tensor, along, identity_map
from tiles.poplibs.popops.elementwise import map
from tiles.poplibs.popops.expr import arg, call
from tiles.poplibs.popops.offsets import NO_WINDOW
from tiles.poplibs.popops.reduce import neutral_element
from tiles.poplibs.popops.slicing import MultiSlice
from tiles.poplibs.popops.updating import MultiUpdate
from tiles.poplibs.poputil.place import place

FRESH_RATIO = 2
"""Updates per element of the tensor from which on they are summed apart, so that lookups can be split."""


@dataclass
class _Form:
    """A form being written: its dimensions, and how the table's indexed axes find their indices."""

    dims: list[Dim]
    axes: list[int] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    components: list[int | None] = field(default_factory=list)

    def reduced(self, name: str, size: int) -> int:
        """Add a reduced dimension and return its number."""
        self.dims.append(Dim(name, size, REDUCTION))
        return len(self.dims) - 1

    def index(self, axis: int, window: int, component: int | None) -> None:
        """Let ``axis`` follow a component of the index vectors, or None for the index 0 everywhere."""
        self.axes.append(axis)
        self.windows.append(window)
        self.components.append(component)

    def index_operands(
        self, lowering: Lowering, indices: Tensor, along_dims: Sequence[int], vector: int
    ) -> list[tuple[Tensor, IndexMap]]:
        """Return an operand for every indexed axis: one component of ``indices``, or a constant 0.

        Args:
          lowering: where a constant goes.
          indices: the index vectors.
          along_dims: domain dimensions of the indices' dimensions but ``vector``, in order.
          vector: the dimension index vectors lie along.
        """
        operands = []
        for component in self.components:
            if component is None:
                zero = lowering.graph.add_constant(np.zeros((), np.int32), "int32")
                operands.append((zero, IndexMap(())))
                continue
            axes = [along(d) for d in along_dims]
            if vector < len(indices.shape):
                axes.insert(vector, Affine((), component))
            operands.append((indices, IndexMap(tuple(axes))))
        return operands


@lowers(Gather)
def lower_gather(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Look up slices: rows, elements, or windows of a batch."""
    op = instruction.op
    assert isinstance(op, Gather)
    n = op.dimension_numbers
    table, indices = (in_memory(lowering, v) for v in instruction.operands)
    shape = instruction.result.type.shape
    form = _Form([Dim(f"d{i}", size) for i, size in enumerate(shape)])
    lookups = [d for d in range(len(shape)) if d not in n.offset_dims]
    of_indices = [b for b in range(len(indices.shape)) if b != n.index_vector_dim]
    offsets = iter(n.offset_dims)
    axes = []
    for axis, size in enumerate(table.shape):
        component = n.start_index_map.index(axis) if axis in n.start_index_map else None
        if axis in n.operand_batching_dims:
            paired = n.start_indices_batching_dims[n.operand_batching_dims.index(axis)]
            axes.append(along(lookups[of_indices.index(paired)]))
            continue
        window = NO_WINDOW if axis in n.collapsed_slice_dims else next(offsets)
        taken = op.slice_sizes[axis]
        if component is not None and taken != size:
            axes.append(along(form.reduced(f"r{axis}", size)))
            form.index(axis, window, component)
        else:  # a slice of the whole axis, or one that always begins at 0
            axes.append(along(form.reduced(f"r{axis}", 1) if window == NO_WINDOW else window))
    operands = [(table, IndexMap(tuple(axes)))]
    operands += form.index_operands(lowering, indices, lookups, n.index_vector_dim)
    codelet = MultiSlice(tuple(form.axes), tuple(form.windows), table.dtype)
    whole = OpForm(tuple(form.dims), tuple(m for _, m in operands), (identity_map(len(shape)),))
    tensors = [t for t, _ in operands]
    options: dict[str, Any] = {"location": where(instruction), "program": lowering.program}
    return place(lowering.graph, codelet, whole, tensors, (table.dtype,), "gather", **options)


@lowers(Scatter)
def lower_scatter(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Update slices in place; sums, products and extrema of many updates are formed apart and then applied.

    Raises:
      UnsupportedLowering: several inputs, or a region that is not one well-known update.
    """
    kind = update_kind(instruction.regions[0])
    if kind is None or len(instruction.operands) != 3:
        raise UnsupportedLowering(
            "this scatter's update is not to set, add, multiply or take the greatest or least of one input",
            location=where(instruction),
            try_="x.at[i].set of a value computed from x[i], where no index repeats",
        )
    assert isinstance(instruction.op, Scatter)
    x, given, new = instruction.operands
    indices, updates = in_memory(lowering, given), in_memory(lowering, new)
    if 0 in updates.shape or 0 in x.type.shape:
        return (in_memory(lowering, x),)
    location, graph = where(instruction), lowering.graph
    options: dict[str, Any] = {"location": location, "program": lowering.program}
    form, rest = _update_form(lowering, instruction.op, x.type.shape, indices, updates)
    dtype = updates.dtype
    result = identity_map(len(x.type.shape))
    many = math.prod(updates.shape) > FRESH_RATIO * math.prod(x.type.shape)
    is_neutral = kind != "set" and _is_neutral(lowering, instruction, kind, dtype)
    is_fresh = is_neutral or (many and kind != "set")
    base = [] if is_fresh else [(in_memory(lowering, x), result)]
    operands = [*base, *rest]
    codelet = MultiUpdate(tuple(form.axes), tuple(form.windows), kind, dtype, is_fresh=is_fresh)
    whole = OpForm(tuple(form.dims), tuple(m for _, m in operands), (result,))
    (updated,) = place(
        graph, codelet, whole, [t for t, _ in operands], (dtype,), f"scatter_{kind}", **options
    )
    if not is_fresh or is_neutral:
        return (updated,)
    on_booleans = {"max": "or", "min": "and"}
    names = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
    name = on_booleans[kind] if dtype == "bool" else names[kind]
    return (
        map(graph, call(name, arg(0), arg(1)), [in_memory(lowering, x), updated], name="apply", **options),
    )


def _update_form(
    lowering: Lowering, op: Scatter, shape: tuple[int, ...], indices: Tensor, updates: Tensor
) -> tuple[_Form, list[tuple[Tensor, IndexMap]]]:
    """Return the form of a scatter into ``shape``, and its operands after the input."""
    n = op.dimension_numbers
    form = _Form([Dim(f"d{i}", size) for i, size in enumerate(shape)])
    paired = dict(zip(n.scatter_indices_batching_dims, n.input_batching_dims, strict=True))
    lookups = [
        paired[b] if b in paired else form.reduced(f"i{b}", size)
        for b, size in enumerate(indices.shape)
        if b != n.index_vector_dim
    ]
    remaining, windows = iter(lookups), iter(n.update_window_dims)
    along_updates = [-1 if d in n.update_window_dims else next(remaining) for d in range(len(updates.shape))]
    for axis, size in enumerate(shape):
        moved = n.scatter_dims_to_operand_dims
        component = moved.index(axis) if axis in moved else None
        if axis in n.input_batching_dims:
            continue
        if axis in n.inserted_window_dims:
            form.index(axis, NO_WINDOW, component)
            continue
        d = next(windows)
        if component is None and updates.shape[d] == size:
            along_updates[d] = axis
        else:
            along_updates[d] = form.reduced(f"u{axis}", updates.shape[d])
            form.index(axis, along_updates[d], component)
    operands = [(updates, IndexMap(tuple(along(d) for d in along_updates)))]
    return form, operands + form.index_operands(lowering, indices, lookups, n.index_vector_dim)


def _is_neutral(lowering: Lowering, instruction: Instruction, kind: str, dtype: str) -> bool:
    """Return whether the input is the update's neutral element everywhere, known at compile time."""
    constant = lowering.constant(instruction.operands[0])
    if constant is None or not constant.is_splat:
        return False
    neutral = neutral_element(kind, dtype)
    return constant.value.tobytes() == neutral.tobytes() or (kind == "add" and not constant.value)
