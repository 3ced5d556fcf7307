"""Gathers and scatters of any dimension numbers onto the slices and updates of popops.

Every axis of the table gets one role: it follows an index, or a dimension of the indices (batching), or is
read along with the result. Indices are read component by component, so nothing moves to find this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hlo_passes.ir import Instruction
from hlo_passes.ops import Gather, Scatter, UpdateKind, update_kind
from ipuxla.lowering.indexing import in_memory
from ipuxla.lowering.regions import region_body
from ipuxla.lowering.registry import Lowering, lowers, where
from tiles.graph import REDUCTION, Affine, Codelet, Dim, IndexMap, OpForm, Site, Tensor, along, identity_map
from tiles.graph import Sequence as Program
from tiles.poplibs.popops.elementwise import map
from tiles.poplibs.popops.expr import arg, call, compare, select
from tiles.poplibs.popops.offsets import NO_WINDOW
from tiles.poplibs.popops.reduce import neutral_element
from tiles.poplibs.popops.slicing import MultiSlice
from tiles.poplibs.popops.updating import MultiUpdate
from tiles.poplibs.popops.updating_by import UpdateBy, UpdateLast
from tiles.poplibs.poputil.place import place


@dataclass
class _Form:
    """A form being written: its dimensions, and how the table's indexed axes find their indices."""

    dims: list[Dim]
    axes: list[int] = field(default_factory=list[int])
    windows: list[int] = field(default_factory=list[int])
    components: list[int | None] = field(default_factory=list[int | None])

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
        operands: list[tuple[Tensor, IndexMap]] = []
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
    axes: list[Affine] = []
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
    return place(lowering.site(where(instruction), "gather"), codelet, whole, tensors, (table.dtype,))


@lowers(Scatter)
def lower_scatter(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Update slices in place; many updates are formed apart, lookups split over tiles, and then applied."""
    assert isinstance(instruction.op, Scatter)
    count = len(instruction.operands) // 2
    inputs, given = instruction.operands[:count], instruction.operands[count]
    shape = inputs[0].type.shape
    if 0 in instruction.operands[-1].type.shape or 0 in shape:
        return tuple(in_memory(lowering, x) for x in inputs)
    indices = in_memory(lowering, given)
    updates = [in_memory(lowering, u) for u in instruction.operands[count + 1 :]]
    form, operands = _update_form(lowering, instruction.op, shape, indices, updates)
    kind = update_kind(instruction.regions[0])
    if kind is None or count > 1:
        return _update_by(lowering, instruction, form, operands)
    return (_update(lowering, instruction, kind, form, operands),)


def _update_by(
    lowering: Lowering, instruction: Instruction, form: _Form, rest: list[tuple[Tensor, IndexMap]]
) -> tuple[Tensor, ...]:
    """Update several inputs together by any region."""
    assert isinstance(instruction.op, Scatter)
    count = len(instruction.operands) // 2
    result = identity_map(len(instruction.operands[0].type.shape))
    operands = [*((in_memory(lowering, x), result) for x in instruction.operands[:count]), *rest]
    dtypes = tuple(x.dtype for x, _ in operands[:count])
    body, outputs = region_body(instruction.regions[0])
    is_unique = instruction.op.unique_indices
    codelet = UpdateBy(tuple(form.axes), tuple(form.windows), body, outputs, dtypes, is_unique)
    whole = OpForm(tuple(form.dims), tuple(m for _, m in operands), (result,) * count)
    return place(
        lowering.site(where(instruction), "scatter"), codelet, whole, [t for t, _ in operands], dtypes
    )


def _update(
    lowering: Lowering,
    instruction: Instruction,
    kind: UpdateKind,
    form: _Form,
    rest: list[tuple[Tensor, IndexMap]],
) -> Tensor:
    """Update one input by a well-known operation: in place, or apart where that is cheaper or needs less memory."""
    graph, dtype, location = lowering.graph, rest[0][0].dtype, where(instruction)
    name = f"scatter_{kind}"
    result = identity_map(len(instruction.operands[0].type.shape))
    axes, windows = tuple(form.axes), tuple(form.windows)
    tensors = [t for t, _ in rest]
    is_neutral = kind not in ("set", "sub") and _is_neutral(lowering, instruction, kind, dtype)
    apart: Codelet
    if kind == "set":
        apart, dtypes = UpdateLast(axes, windows, dtype), ("int32", dtype)
    else:
        apart, dtypes = (
            MultiUpdate(axes, windows, "add" if kind == "sub" else kind, dtype, is_fresh=True),
            (dtype,),
        )
    alone = OpForm(tuple(form.dims), tuple(m for _, m in rest), (result,) * len(dtypes))
    if is_neutral:
        return place(lowering.site(location, name), apart, alone, tensors, dtypes)[0]
    x = in_memory(lowering, instruction.operands[0])
    direct = MultiUpdate(axes, windows, kind, dtype)
    onto = OpForm(alone.dims, (result, *alone.operands), (result,))
    if kind == "set":
        expr = select(compare("GE", arg(1), 0), arg(2), arg(0))
    else:
        names = {"add": "add", "sub": "subtract", "mul": "multiply", "max": "maximum", "min": "minimum"}
        on_booleans = {"add": "or", "mul": "and", "max": "or", "min": "and"}
        expr = call((on_booleans if dtype == "bool" else names)[kind], arg(0), arg(1))

    def in_place(body: Program) -> tuple[Tensor, ...]:
        return place(Site(graph, name, location, sequence=body), direct, onto, [x, *tensors], (dtype,))

    def formed_apart(body: Program) -> tuple[Tensor, ...]:
        found = place(Site(graph, name, location, sequence=body), apart, alone, tensors, dtypes)
        return (map(Site(graph, "apply", location, sequence=body), expr, [x, *found]),)

    return graph.add_choice(name, (in_place, formed_apart), lowering.program, location)[0]


def _update_form(
    lowering: Lowering, op: Scatter, shape: tuple[int, ...], indices: Tensor, given: list[Tensor]
) -> tuple[_Form, list[tuple[Tensor, IndexMap]]]:
    """Return the form of a scatter into ``shape``, and its operands after the inputs."""
    n, updates = op.dimension_numbers, given[0]
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
    operands = [(u, IndexMap(tuple(along(d) for d in along_updates))) for u in given]
    return form, operands + form.index_operands(lowering, indices, lookups, n.index_vector_dim)


def _is_neutral(lowering: Lowering, instruction: Instruction, kind: str, dtype: str) -> bool:
    """Return whether the input is the update's neutral element everywhere, known at compile time."""
    constant = lowering.constant(instruction.operands[0])
    if constant is None or not constant.is_splat:
        return False
    neutral = neutral_element(kind, dtype)
    return constant.value.tobytes() == neutral.tobytes() or (kind == "add" and not constant.value)
