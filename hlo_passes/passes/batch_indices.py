"""Lookups and updates of which an index counts along a dimension of the indices, as those of a batch.

``x[jnp.arange(n), i]``, the loss of a classifier for instance, gives every lookup a row of its own, whose number is the lookup's. All
of ``x`` would be searched for each of them; a batch finds its row where it lies, as ``jnp.take_along_axis`` and ``jax.vmap`` say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Compare,
    Concatenate,
    Gather,
    Iota,
    Reshape,
    Scatter,
    Select,
    Slice,
    Transpose,
)
from hlo_passes.ops.elementwise import Clamp, Convert
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.fixed_indices import components
from hlo_passes.passes.patterns.registry import splat_element
from hlo_passes.passes.rewriter import Rewriter

_DEEP = 16
"""Operations behind each other that are asked what an index is."""
_LISTED = 1 << 20
"""Elements of a constant of which it is found out whether they count."""


@dataclass(frozen=True)
class BatchIndices(LocalPass):
    """Make dimensions of a batch of those of the indices along which a component counts, 0, 1, 2 and so on."""

    name: ClassVar[str] = "batch-indices"

    def change(self, computation: Computation) -> Computation:
        """Return the computation with lookups and updates of batches; itself when none counts."""
        return Rewriter(computation, {Gather: (_looked_up,), Scatter: (_updated,)}).run()


def _looked_up(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    op, (table, indices) = instruction.op, instruction.operands
    assert isinstance(op, Gather)
    n = op.dimension_numbers
    counting = _counting(
        indices, n.index_vector_dim, n.start_index_map, n.start_indices_batching_dims, rewriter
    )
    batch = {
        k: d
        for k, d in counting.items()
        if n.start_index_map[k] in n.collapsed_slice_dims
        and indices.type.shape[d] <= table.type.shape[n.start_index_map[k]]
    }
    if not batch:
        return None
    axes = {n.start_index_map[k]: d for k, d in batch.items()}
    for axis, d in axes.items():
        table = _first(table, axis, indices.type.shape[d], rewriter)
    found = _ordered(n.operand_batching_dims, n.start_indices_batching_dims, axes)
    kept = [k for k in range(len(n.start_index_map)) if k not in batch]
    numbers = dataclasses.replace(
        n,
        collapsed_slice_dims=tuple(a for a in n.collapsed_slice_dims if a not in axes),
        operand_batching_dims=tuple(found),
        start_indices_batching_dims=tuple(found.values()),
        start_index_map=tuple(n.start_index_map[k] for k in kept),
    )
    shorter = components(indices, n.index_vector_dim, kept, rewriter)
    return rewriter.emit(dataclasses.replace(op, dimension_numbers=numbers), table, shorter)


def _updated(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    op, count = instruction.op, len(instruction.operands) // 2
    assert isinstance(op, Scatter)
    n, indices, shape = op.dimension_numbers, instruction.operands[count], instruction.operands[0].type.shape
    places = n.scatter_dims_to_operand_dims
    counting = _counting(indices, n.index_vector_dim, places, n.scatter_indices_batching_dims, rewriter)
    batch = {
        k: d
        for k, d in counting.items()
        if places[k] in n.inserted_window_dims and indices.type.shape[d] == shape[places[k]]
    }
    if not batch:
        return None
    axes = {places[k]: d for k, d in batch.items()}
    found = _ordered(n.input_batching_dims, n.scatter_indices_batching_dims, axes)
    kept = [k for k in range(len(places)) if k not in batch]
    numbers = dataclasses.replace(
        n,
        inserted_window_dims=tuple(a for a in n.inserted_window_dims if a not in axes),
        input_batching_dims=tuple(found),
        scatter_indices_batching_dims=tuple(found.values()),
        scatter_dims_to_operand_dims=tuple(places[k] for k in kept),
    )
    shorter = components(indices, n.index_vector_dim, kept, rewriter)
    operands = (*instruction.operands[:count], shorter, *instruction.operands[count + 1 :])
    return rewriter.emit_all(
        dataclasses.replace(op, dimension_numbers=numbers), operands, instruction.regions
    )


def _ordered(axes: Sequence[int], dimensions: Sequence[int], added: dict[int, int]) -> dict[int, int]:
    """Return the dimension of the indices of each batched axis, in the order of axes."""
    return dict(sorted({**dict(zip(axes, dimensions, strict=True)), **added}.items()))


def _counting(
    indices: Value, axis: int, places: Sequence[int], batching: Sequence[int], rewriter: Rewriter
) -> dict[int, int]:
    """Return the components that count, with the dimensions of the indices along which they do; not all of them.

    Args:
      indices: index vectors along ``axis``.
      axis: see above.
      places: the axis of the table of each component.
      batching: dimensions of the indices that are those of a batch already.
      rewriter: knows what makes a value.
    """
    if axis >= indices.type.rank or len(places) < 2 or not indices.type.is_integer:
        return {}
    found: dict[int, int] = {}
    for k, d in enumerate(_along(indices, axis, rewriter)):
        if (
            d is not None
            and d != axis
            and d not in (*batching, *found.values())
            and len(found) < len(places) - 1
        ):
            found[k] = d
    return found


def _along(indices: Value, axis: int, rewriter: Rewriter) -> list[int | None]:
    """Return of each component along which dimension of the indices it counts; of none that are known, nothing."""
    constant = rewriter.constant(indices)
    if constant is not None and indices.type.size <= _LISTED:
        shape, whole = indices.type.shape, np.broadcast_to(constant.value, indices.type.shape)
        return [_counted_in(np.take(whole, [k], axis)) for k in range(shape[axis])]
    if (clamped := rewriter.producer(indices, Clamp)) is not None:
        least, inner, most = clamped[1]
        low, high = (_components_of(bound, indices, axis, rewriter) for bound in (least, most))
        if low is None or high is None:
            return []
        return [
            d if d is not None and low[k].max() <= 0 and high[k].min() >= inner.type.shape[d] - 1 else None
            for k, d in enumerate(_along(inner, axis, rewriter))
        ]
    joined = rewriter.producer(indices, Concatenate)
    if joined is None or joined[0].dimension != axis or any(x.type.shape[axis] != 1 for x in joined[1]):
        return []
    return [_counted(piece, rewriter) for piece in joined[1]]


def _components_of(bound: Value, indices: Value, axis: int, rewriter: Rewriter) -> np.ndarray | None:
    """Return constant bounds of indices by component, which come first; None where they are not known."""
    if indices.type.size > _LISTED:
        return None
    repeated, shape = rewriter.producer(bound, BroadcastInDim), list(bound.type.shape)
    if repeated is not None:
        op, (bound,) = repeated
        placed = dict(zip(op.broadcast_dimensions, bound.type.shape, strict=True))
        shape = [placed.get(d, 1) for d in range(len(op.shape))]
        if list(op.broadcast_dimensions) != sorted(op.broadcast_dimensions):
            return None
    constant = rewriter.constant(bound)
    if constant is None:
        return None
    found = np.broadcast_to(constant.value, bound.type.shape).reshape(shape)
    return np.moveaxis(np.broadcast_to(found, indices.type.shape), axis, 0)


def _counted(value: Value, rewriter: Rewriter, depth: int = _DEEP) -> int | None:
    """Return the dimension along which a value counts from zero on, alike along all others; None where none is known."""
    made, shape = rewriter.maker(value), value.type.shape
    if (constant := rewriter.constant(value)) is not None:
        return None if constant.is_splat or value.type.size > _LISTED else _counted_in(constant.value)
    if made is None or not depth:
        return None
    op, operands = made.op, made.operands
    if isinstance(op, Iota):
        size = shape[op.dimension]
        has_all = (
            value.type.is_integer and size - 1 <= np.iinfo(value.type.np_dtype).max
        )  # else it wraps round
        return op.dimension if size > 1 and has_all else None
    inner = value
    if isinstance(op, (BroadcastInDim, Reshape, Transpose, Convert)):
        (inner,) = operands
    elif isinstance(op, Clamp):
        inner = operands[1]
    elif isinstance(op, Select):
        inner = _not_wrapped(operands, rewriter)
    if inner is value or not inner.type.is_integer:
        return None
    d = _counted(inner, rewriter, depth - 1)
    if d is None:
        return None
    size = inner.type.shape[d]
    if isinstance(op, Clamp):
        low, high = (splat_element(bound, rewriter) for bound in (operands[0], operands[2]))
        return d if low is not None and high is not None and int(low) <= 0 and int(high) >= size - 1 else None
    if isinstance(op, Convert):
        return d if size - 1 <= np.iinfo(value.type.np_dtype).max else None
    if isinstance(op, BroadcastInDim):
        at = op.broadcast_dimensions[d]
        return at if shape[at] == size else None
    if isinstance(op, Transpose):
        return op.permutation.index(d)
    if isinstance(op, Reshape):
        return _reshaped(inner.type.shape, shape, d)
    return d


def _counted_in(numbers: np.ndarray) -> int | None:
    """Return the dimension along which numbers count."""
    for d, size in enumerate(numbers.shape):
        places: np.ndarray = np.indices(numbers.shape)[d]
        if size > 1 and np.array_equal(numbers, places):
            return d
    return None


def _not_wrapped(operands: Sequence[Value], rewriter: Rewriter) -> Value:
    """Return what ``select(i < 0, i + n, i)`` is where ``i`` counts, as an index from behind never is; else the choice's own value."""
    predicate, wrapped, plain = operands
    compared = rewriter.producer(predicate, Compare)
    if compared is None or compared[0].direction != "LT" or compared[1][0] != plain:
        return wrapped if wrapped == plain else predicate
    return plain if splat_element(compared[1][1], rewriter) == 0 else predicate


def _reshaped(before: Sequence[int], after: Sequence[int], d: int) -> int | None:
    """Return where a dimension is after a reshape that adds or drops dimensions of one element; None after others."""
    if [n for n in before if n != 1] != [n for n in after if n != 1]:
        return None
    position = sum(n != 1 for n in before[:d])
    return [at for at, n in enumerate(after) if n != 1][position]


def _first(table: Value, axis: int, size: int, rewriter: Rewriter) -> Value:
    """Return the first rows of a table."""
    shape = table.type.shape
    if shape[axis] == size:
        return table
    limits = tuple(size if a == axis else n for a, n in enumerate(shape))
    return rewriter.emit(Slice((0,) * len(shape), limits, (1,) * len(shape)), table)
