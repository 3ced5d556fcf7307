"""Gather and scatter: slices taken from, and updates made at, many places that an array of indices names.

A gather moves an index to the nearest place where its slice lies inside. A scatter leaves out an update whose
window does not lie inside, as XLA does; updates of one place happen in the order of their indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from hlo_passes._jax_compat import broadcasted_iota, fori_loop, gather
from hlo_passes.ir.interpreter import Closure, as_closure, as_computation
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import Op, attribute
from hlo_passes.ir.types import TensorType
from hlo_passes.ops.reduction import simple_combiner

UpdateKind = Literal["set", "add", "sub", "mul", "max", "min"]
_SCATTERS = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "sub": lax.scatter_sub,
    "mul": lax.scatter_mul,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
}


@attribute
@dataclass(frozen=True)
class GatherDimensionNumbers:
    """What the dimensions of a gather are to each other, in the specification's words."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...]
    start_indices_batching_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int


@attribute
@dataclass(frozen=True)
class ScatterDimensionNumbers:
    """What the dimensions of a scatter are to each other, in the specification's words."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    input_batching_dims: tuple[int, ...]
    scatter_indices_batching_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    index_vector_dim: int


def _inside(dims: Sequence[int], rank: int) -> bool:
    return all(0 <= d < rank for d in dims)


def _is_sorted(dims: Sequence[int]) -> bool:
    return list(dims) == sorted(dims)


def _is_unique(dims: Sequence[int]) -> bool:
    return len(set(dims)) == len(dims)


def _vector_size(indices: TensorType, vector: int) -> int:
    return indices.shape[vector] if vector < indices.rank else 1


def _without(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def with_last_vector(indices: Array, vector: int) -> Array:
    """Return indices with the vectors along their last axis, of size 1 where an index stands for a vector."""
    return indices[..., None] if vector == indices.ndim else jnp.moveaxis(indices, vector, -1)


def _in_order(mine: Sequence[int], theirs: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return pairs of batching dimensions in the order of the first ones, which alone JAX takes."""
    pairs = sorted(zip(mine, theirs, strict=True))
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def _last_vector_dims(dims: Sequence[int], vector: int) -> tuple[int, ...]:
    """Return dimensions of the indices as they are once the vectors lie along the last axis."""
    return tuple(d - (d > vector) for d in dims)


@dataclass(frozen=True)
class Gather(Op):
    """Take a slice of ``slice_sizes`` at every index vector of the second operand.

    Spec: StableHLO "gather", constraints C1-C21.
    """

    name: ClassVar[str] = "stablehlo.gather"
    dimension_numbers: GatherDimensionNumbers
    slice_sizes: tuple[int, ...]
    indices_are_sorted: bool = False

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's element type: slices where ``offset_dims`` say, indices along the others."""
        self.require_arity(operands, 2)
        operand, indices = operands
        n, sizes = self.dimension_numbers, self.slice_sizes
        self.require("I2", indices.is_integer, lambda: f"expected integer indices, got {indices}")
        self._check_operand(operand, indices)
        self._check_batching(operand, indices)
        self.require("C20", len(sizes) == operand.rank, lambda: f"slice sizes {sizes} for {operand}")
        fits = all(0 <= size <= whole for size, whole in zip(sizes, operand.shape, strict=True))
        self.require("C21", fits, lambda: f"slices of {sizes} do not fit in {operand}")
        for tag, dims in (("C9", n.collapsed_slice_dims), ("C12", n.operand_batching_dims)):
            single = all(sizes[d] <= 1 for d in dims)
            self.require(tag, single, f"slice sizes {sizes} are not at most 1 along dimensions {dims}")
        offsets = iter(_without(sizes, (*n.collapsed_slice_dims, *n.operand_batching_dims)))
        batch = iter(_without(indices.shape, (n.index_vector_dim,)))
        rank = len(n.offset_dims) + indices.rank - (n.index_vector_dim < indices.rank)
        self.require(
            "C4",
            _is_unique(n.offset_dims) and _is_sorted(n.offset_dims),
            lambda: f"offset dimensions {n.offset_dims} are not unique and in order",
        )
        self.require(
            "C5",
            _inside(n.offset_dims, rank),
            lambda: f"offset dimensions {n.offset_dims} are not all dimensions of a result of rank {rank}",
        )
        return (
            operand.with_shape(tuple(next(offsets if d in n.offset_dims else batch) for d in range(rank))),
        )

    def _check_operand(self, operand: TensorType, indices: TensorType) -> None:
        n, collapsed = self.dimension_numbers, self.dimension_numbers.collapsed_slice_dims
        covered = len(n.offset_dims) + len(collapsed) + len(n.operand_batching_dims)
        self.require("C1", covered == operand.rank, lambda: f"{covered} dimensions are named, of {operand}")
        vector = n.index_vector_dim
        self.require("C2", 0 <= vector <= indices.rank, lambda: f"index vectors along {vector} of {indices}")
        size = _vector_size(indices, vector)
        self.require(
            "C3",
            len(n.start_index_map) == size,
            lambda: f"index vectors of {size} move along dimensions {n.start_index_map}",
        )
        apart = _is_unique((*collapsed, *n.operand_batching_dims))
        self.require("C6", apart, "collapsed and batching dimensions repeat")
        self.require("C7", _is_sorted(collapsed), "collapsed dimensions are not in order")
        self.require(
            "C8", _inside(collapsed, operand.rank), f"{collapsed} are not all dimensions of {operand}"
        )
        self.require(
            "C18", _is_unique((*n.start_index_map, *n.operand_batching_dims)), "indexed dimensions repeat"
        )
        inside = _inside(n.start_index_map, operand.rank)
        self.require("C19", inside, f"{n.start_index_map} are not all dimensions of {operand}")

    def _check_batching(self, operand: TensorType, indices: TensorType) -> None:
        n = self.dimension_numbers
        mine, theirs = n.operand_batching_dims, n.start_indices_batching_dims
        self.require("C10", _is_sorted(mine), "the operand's batching dimensions are not in order")
        self.require("C11", _inside(mine, operand.rank), f"{mine} are not all dimensions of {operand}")
        self.require("C13", _is_unique(theirs), "the indices' batching dimensions repeat")
        self.require("C14", _inside(theirs, indices.rank), f"{theirs} are not all dimensions of {indices}")
        self.require("C15", n.index_vector_dim not in theirs, "index vectors lie along a batching dimension")
        self.require(
            "C16", len(mine) == len(theirs), f"batching dimensions {mine} and {theirs} do not pair up"
        )
        same = all(operand.shape[a] == indices.shape[b] for a, b in zip(mine, theirs, strict=True))
        self.require("C17", same, f"sizes of {operand} and {indices} differ along batching dimensions")

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply XLA's gather, which clamps."""
        operand, indices = operands
        n = self.dimension_numbers
        mine, theirs = _in_order(n.operand_batching_dims, n.start_indices_batching_dims)
        numbers = lax.GatherDimensionNumbers(
            n.offset_dims,
            n.collapsed_slice_dims,
            n.start_index_map,
            mine,
            _last_vector_dims(theirs, n.index_vector_dim),
        )
        vectors = with_last_vector(indices, n.index_vector_dim)
        return (gather(operand, vectors, numbers, self.slice_sizes, mode="promise_in_bounds"),)


def update_kind(region: Computation | Closure) -> UpdateKind | None:
    """Return what a scatter's region does to an element when it is one well-known update, else None.

    On booleans ``or`` is named ``max`` and ``and`` ``min``.
    """
    body = as_computation(region)
    if len(body.parameters) == 2 and body.results == (body.parameters[1],):
        return "set"
    if _subtracts(body):
        return "sub"
    combiner = simple_combiner(body)
    if combiner in ("add", "mul", "max", "min"):
        return combiner
    if combiner in ("or", "and") and body.parameters[0].type.is_bool:
        return "max" if combiner == "or" else "min"
    return None


def _subtracts(body: Computation) -> bool:
    """Return whether a region subtracts its second parameter from the first."""
    if len(body.parameters) != 2 or len(body.instructions) != 1:
        return False
    (instruction,) = body.instructions
    is_subtraction = instruction.op.name == "stablehlo.subtract" and body.results == instruction.results
    return is_subtraction and tuple(instruction.operands) == tuple(body.parameters)


@dataclass(frozen=True)
class Scatter(Op):
    """Update inputs (the first N operands) with updates (the last N) at the index vectors between them.

    The region combines N elements with N updates into N. Spec: StableHLO "scatter", constraints C1-C23.
    """

    name: ClassVar[str] = "stablehlo.scatter"
    replaces_elements: ClassVar[bool] = True
    num_regions: ClassVar[int] = 1
    dimension_numbers: ScatterDimensionNumbers
    indices_are_sorted: bool = False
    unique_indices: bool = False

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the inputs' types."""
        count = len(operands) // 2
        odd = len(operands) == 2 * count + 1 and count > 0
        self.require(
            "C5", odd, lambda: f"{len(operands)} operands are not inputs, indices and as many updates"
        )
        inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
        self.require("I2", indices.is_integer, lambda: f"expected integer indices, got {indices}")
        for one, update in zip(inputs, updates, strict=True):
            self.require("C1", one.shape == inputs[0].shape, f"shapes of {inputs[0]} and {one} differ")
            self.require(
                "C3", update.shape == updates[0].shape, f"shapes of {updates[0]} and {update} differ"
            )
            self.require("C6", update.dtype == one.dtype, f"element types of {one} and {update} differ")
        self._check_input(inputs[0], indices, updates[0])
        self._check_batching(inputs[0], indices)
        self._check_updates(inputs[0], indices, updates[0])
        self.require("C23", len(regions) == 1, lambda: f"expected 1 region, got {len(regions)}")
        scalars = tuple(t.with_shape(()) for t in inputs)
        body = as_computation(regions[0])
        typed = body.parameter_types == scalars * 2 and body.result_types == scalars
        self.require("C23", typed, lambda: f"the region is not {scalars * 2} -> {scalars}")
        return tuple(inputs)

    def _check_input(self, operand: TensorType, indices: TensorType, update: TensorType) -> None:
        n = self.dimension_numbers
        windows, inserted = n.update_window_dims, n.inserted_window_dims
        covered = len(windows) + len(inserted) + len(n.input_batching_dims)
        self.require("C2", covered == operand.rank, lambda: f"{covered} dimensions are named, of {operand}")
        ordered = _is_unique(windows) and _is_sorted(windows)
        self.require("C7", ordered, f"window dimensions {windows} are not unique and in order")
        self.require("C8", _inside(windows, update.rank), f"{windows} are not all dimensions of {update}")
        apart = _is_unique((*inserted, *n.input_batching_dims))
        self.require("C9", apart, "inserted and batching dimensions repeat")
        self.require("C10", _is_sorted(inserted), "inserted dimensions are not in order")
        self.require(
            "C11", _inside(inserted, operand.rank), f"{inserted} are not all dimensions of {operand}"
        )
        vector = n.index_vector_dim
        self.require("C22", 0 <= vector <= indices.rank, lambda: f"index vectors along {vector} of {indices}")
        size, moved = _vector_size(indices, vector), n.scatter_dims_to_operand_dims
        self.require("C19", len(moved) == size, lambda: f"index vectors of {size} move along {moved}")
        self.require("C20", _is_unique((*moved, *n.input_batching_dims)), "indexed dimensions repeat")
        self.require("C21", _inside(moved, operand.rank), f"{moved} are not all dimensions of {operand}")

    def _check_batching(self, operand: TensorType, indices: TensorType) -> None:
        n = self.dimension_numbers
        mine, theirs = n.input_batching_dims, n.scatter_indices_batching_dims
        self.require("C12", _is_sorted(mine), "the inputs' batching dimensions are not in order")
        self.require("C13", _inside(mine, operand.rank), f"{mine} are not all dimensions of {operand}")
        self.require("C14", _is_unique(theirs), "the indices' batching dimensions repeat")
        self.require("C15", _inside(theirs, indices.rank), f"{theirs} are not all dimensions of {indices}")
        self.require("C16", n.index_vector_dim not in theirs, "index vectors lie along a batching dimension")
        self.require(
            "C17", len(mine) == len(theirs), f"batching dimensions {mine} and {theirs} do not pair up"
        )
        same = all(operand.shape[a] == indices.shape[b] for a, b in zip(mine, theirs, strict=True))
        self.require("C18", same, f"sizes of {operand} and {indices} differ along batching dimensions")

    def _check_updates(self, operand: TensorType, indices: TensorType, update: TensorType) -> None:
        n = self.dimension_numbers
        kept = _without(operand.shape, (*n.inserted_window_dims, *n.input_batching_dims))
        windows = tuple(update.shape[d] for d in n.update_window_dims)
        scattered = _without(update.shape, n.update_window_dims)
        fits = scattered == _without(indices.shape, (n.index_vector_dim,)) and all(
            size <= whole for size, whole in zip(windows, kept, strict=True)
        )
        self.require("C4", fits, lambda: f"{update} is not windows of {operand} at indices {indices}")

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Apply XLA's scatter for well-known updates; else run the region update after update."""
        count = len(operands) // 2
        n, kind = self.dimension_numbers, update_kind(regions[0])
        inputs, updates = operands[:count], operands[count + 1 :]
        vectors = with_last_vector(operands[count], n.index_vector_dim)
        if kind is not None:
            return (self._scatter(inputs[0], vectors, updates[0], kind),)
        return self._in_turn(inputs, vectors, updates, as_closure(regions[0]))

    def _scatter(self, operand: Array, vectors: Array, update: Array, kind: UpdateKind) -> Array:
        n = self.dimension_numbers
        mine, theirs = _in_order(n.input_batching_dims, n.scatter_indices_batching_dims)
        numbers = lax.ScatterDimensionNumbers(
            n.update_window_dims,
            n.inserted_window_dims,
            n.scatter_dims_to_operand_dims,
            mine,
            _last_vector_dims(theirs, n.index_vector_dim),
        )
        is_bool = operand.dtype == bool and kind != "set"
        if is_bool:
            operand, update = operand.astype(jnp.uint8), update.astype(jnp.uint8)
        result = _SCATTERS[kind](operand, vectors, update, numbers, mode="promise_in_bounds")
        return result.astype(bool) if is_bool else result

    def _in_turn(
        self, inputs: Sequence[Array], vectors: Array, updates: Sequence[Array], body: Closure
    ) -> tuple[Array, ...]:
        """Make one update after the other: cut the window out, run the region on it, put it back."""
        n, shape = self.dimension_numbers, inputs[0].shape
        outside = (*n.inserted_window_dims, *n.input_batching_dims)
        kept = [axis for axis in range(len(shape)) if axis not in outside]
        window = [1] * len(shape)
        for axis, d in zip(kept, n.update_window_dims, strict=True):
            window[axis] = updates[0].shape[d]
        lookups = vectors.shape[:-1]
        batch = _last_vector_dims(n.scatter_indices_batching_dims, n.index_vector_dim)
        starts = self._starts(vectors, batch, len(shape)).reshape(-1, len(shape))
        leading = [d for d in range(updates[0].ndim) if d not in n.update_window_dims]
        pieces = [
            u.transpose(*leading, *n.update_window_dims).reshape(math.prod(lookups), *window) for u in updates
        ]
        last = jnp.array([size - w for size, w in zip(shape, window, strict=True)], starts.dtype)

        def update(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            start = starts[i]
            fits = ((start >= 0) & (start <= last)).all()
            place = list(jnp.clip(start, 0, last))
            old = [lax.dynamic_slice(x, place, window, allow_negative_indices=False) for x in state]
            flat = [x.reshape(-1) for x in (*old, *(piece[i] for piece in pieces))]
            new = jax.vmap(body)(*flat)
            return tuple(
                lax.dynamic_update_slice(
                    x, jnp.where(fits, y.reshape(window), before), place, allow_negative_indices=False
                )
                for x, y, before in zip(state, new, old, strict=True)
            )

        return tuple(fori_loop(0, starts.shape[0], update, tuple(inputs)))

    def _starts(self, vectors: Array, batch: Sequence[int], rank: int) -> Array:
        """Return where each update's window begins along every axis, int64 ``[*lookups, rank]``."""
        n, lookups = self.dimension_numbers, vectors.shape[:-1]
        columns: list[Array] = [jnp.zeros(lookups, jnp.int64)] * rank
        for position, axis in enumerate(n.scatter_dims_to_operand_dims):
            columns[axis] = vectors[..., position].astype(jnp.int64)
        for axis, d in zip(n.input_batching_dims, batch, strict=True):
            columns[axis] = broadcasted_iota(jnp.int64, lookups, d)
        return jnp.stack(columns, axis=-1) if columns else jnp.zeros((*lookups, 0), jnp.int64)
