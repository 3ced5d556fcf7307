"""Regions of elements that are more than an expression, written out on whole arrays.

What a vertex runs per element (the body of a map, the combining function of a reduction, a comparator) is a list of
elementwise functions. A region that loops, branches, reduces, works on arrays of its own or reads values from
outside is batched by JAX instead, over all elements that it is applied to at once: a branch becomes a choice, a loop
runs while any element's condition holds. The operation around it becomes a loop over what it folds, in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes import ops
from hlo_passes.ir import (
    Builder,
    Closure,
    Computation,
    Instruction,
    Module,
    Op,
    TensorType,
    Value,
    map_regions,
    rebuild,
)
from hlo_passes.ops.sorting import sorted_by_network
from hlo_passes.ops.window import scatter_one_by_one
from hlo_passes.passes.inline import Flatten
from hlo_passes.passes.lifting import is_liftable
from ipuxla._jax_compat import Function, make_jaxpr
from ipuxla.frontend._jax_compat import mlir
from ipuxla.frontend.lower import to_stablehlo
from tiles._jax_compat import dynamic_index_in_dim, fori_loop


def is_expression(regions: Sequence[Computation]) -> bool:
    """Whether regions of elements are elementwise operations on scalars, as vertices run them."""
    return all(map(is_liftable, regions))


def without_calls(region: Computation, function: Callable[[str], Computation]) -> Computation:
    """Return a region with the functions that it calls, by name, in their place."""
    found: dict[str, Computation] = {}
    pending = [region]
    while pending:
        names = {name for i in pending.pop().walk() for name in i.op.callees} - found.keys()
        found |= {name: function(name) for name in names}
        pending += (found[name] for name in names)
    if not found:
        return region
    entry = "region of elements"  # no function has this name
    module = Module("elements", (Computation(entry, *_parts(region)), *found.values()), entry)
    return Computation(region.name, *_parts(Flatten().run(module).entry_computation))


def _parts(computation: Computation) -> tuple[tuple[Value, ...], tuple[Instruction, ...], tuple[Value, ...]]:
    return computation.parameters, computation.instructions, computation.results


def written_out(
    op: Op, operands: Sequence[TensorType], captured: Sequence[TensorType], regions: Sequence[Computation]
) -> mlir.Module:
    """Return an MLIR module whose ``main`` computes an operation with regions of elements in loops over arrays.

    Args:
      op: a map, reduction, reduction of windows, scatter, sort or select-and-scatter.
      operands: types of its operands, which are the first arguments of ``main``.
      captured: types of what its regions read from outside, the arguments behind them.
      regions: its regions, without calls; each takes the captured values last.
    """

    def program(*arrays: Array) -> tuple[Array, ...]:
        outer = arrays[len(operands) :]
        bodies = [_Bound(region, outer=outer) for region in regions]
        return tuple(_FORMS[type(op)](op, bodies, *arrays[: len(operands)]))

    return traced(program, (*operands, *captured))


def traced(function: Function, types: Sequence[TensorType]) -> mlir.Module:
    """Return an MLIR module whose ``main`` computes a function of arrays of some types, none narrowed."""
    with jax.enable_x64(True):
        jaxpr = make_jaxpr(function)(*(jax.ShapeDtypeStruct(t.shape, t.np_dtype) for t in types))
    return to_stablehlo(jaxpr, "elements")


def flattened(module: Module) -> Computation:
    """Return what such a module computes, without calls.

    Optimization barriers go too: the evaluation of a constant hides it behind one.
    """
    return _without_barriers(Flatten().run(module).entry_computation)


def _without_barriers(computation: Computation) -> Computation:
    def visit(instruction: Instruction, operands: tuple[Value, ...], builder: Builder) -> Sequence[Value]:
        if isinstance(instruction.op, ops.OptimizationBarrier):
            return operands
        return builder.clone(map_regions(instruction, _without_barriers), operands)

    return rebuild(computation, visit)


@dataclass(frozen=True, eq=False)
class _Bound(Closure):
    """A region together with the values that it reads from outside."""

    outer: tuple[Array, ...] = ()

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Evaluate the region on scalars."""
        return super().__call__(*arrays, *self.outer)

    def on_arrays(self, *arrays: Array) -> tuple[Array, ...]:
        """Evaluate the region on the elements of arrays of one shape."""
        shape = np.shape(arrays[0])
        return tuple(x.reshape(shape) for x in jax.vmap(self)(*(x.reshape(-1) for x in arrays)))


def _map(op: ops.MapElements, bodies: Sequence[_Bound], *operands: Array) -> tuple[Array, ...]:
    return bodies[0].on_arrays(*operands)


def _typed(arrays: Sequence[Array], body: _Bound) -> list[Array]:
    """Return arrays in the element types of the region's results, which may be wider."""
    return [
        lax.convert_element_type(x, value.type.np_dtype)
        for x, value in zip(arrays, body.computation.results, strict=True)
    ]


def _reduce(op: ops.Reduce, bodies: Sequence[_Bound], *operands: Array) -> tuple[Array, ...]:
    """Fold one element after the other, in row-major order of the reduced dimensions."""
    (body,), half = bodies, len(operands) // 2
    inputs, initial = _typed(operands[:half], body), _typed(operands[half:], body)
    sizes = inputs[0].shape
    reduced = sorted(op.dimensions)
    kept = [d for d in range(len(sizes)) if d not in reduced]
    shape = tuple(sizes[d] for d in kept)
    count = math.prod(sizes[d] for d in reduced)
    rows = [x.transpose(*reduced, *kept).reshape(count, *shape) for x in inputs]

    def combine(i: Array, folded: tuple[Array, ...]) -> tuple[Array, ...]:
        return body.on_arrays(*folded, *(dynamic_index_in_dim(row, i, 0, False) for row in rows))

    return fori_loop(0, count, combine, tuple(jnp.broadcast_to(x, shape) for x in initial))


def _reduce_window(op: ops.ReduceWindow, bodies: Sequence[_Bound], *operands: Array) -> tuple[Array, ...]:
    half = len(operands) // 2

    def combine(folded: Sequence[Array], new: Sequence[Array]) -> tuple[Array, ...]:
        return bodies[0].on_arrays(*folded, *new)

    return _folded_windows(op, operands[:half], operands[half:], combine)


def _folded_windows(
    op: ops.ReduceWindow,
    inputs: Sequence[Array],
    initial: Sequence[Array],
    combine: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]],
) -> tuple[Array, ...]:
    """Fold one place of all windows after the other, in row-major order; padding takes no part."""
    padding = [
        (low, high, base - 1) for low, high, base in zip(op.low, op.high, op.base_dilations, strict=True)
    ]
    padded = [lax.pad(x, start, padding) for x, start in zip(inputs, initial, strict=True)]
    is_inside = lax.pad(jnp.ones(inputs[0].shape, jnp.bool_), np.False_, padding)
    shape, taps = op.counts(inputs[0].shape), op.window_dimensions
    spans = [(n - 1) * stride + 1 for n, stride in zip(shape, op.window_strides, strict=True)]

    def taken(x: Array, start: Sequence[Array]) -> Array:
        whole = lax.dynamic_slice(x, start, spans, allow_negative_indices=False)
        return lax.slice(whole, [0] * x.ndim, spans, op.window_strides)

    def fold(i: Array, folded: tuple[Array, ...]) -> tuple[Array, ...]:
        place = jnp.unravel_index(i, taps)
        start = [p * dilation for p, dilation in zip(place, op.window_dilations, strict=True)]
        new, counted = combine(folded, [taken(x, start) for x in padded]), taken(is_inside, start)
        return tuple(jnp.where(counted, x, old) for x, old in zip(new, folded, strict=True))

    first = tuple(jnp.broadcast_to(x, shape) for x in initial)
    return first if 0 in shape else fori_loop(0, math.prod(taps), fold, first)


def _select_and_scatter(
    op: ops.SelectAndScatter, bodies: Sequence[_Bound], operand: Array, source: Array, initial: Array
) -> tuple[Array, ...]:
    """Find each window's element by folding pairs (value, position), then update one after the other."""
    select, scatter = bodies
    ones = (1,) * operand.ndim
    windows = ops.ReduceWindow(op.window_dimensions, op.window_strides, ones, ones, op.low, op.high)
    position = jnp.arange(operand.size, dtype=jnp.int32).reshape(operand.shape)

    def better(folded: Sequence[Array], new: Sequence[Array]) -> tuple[Array, ...]:
        stays = (folded[1] >= 0) & select.on_arrays(folded[0], new[0])[0]
        return tuple(jnp.where(stays, x, y) for x, y in zip(folded, new, strict=True))

    nothing = jnp.zeros((), operand.dtype), jnp.int32(-1)
    _, chosen = _folded_windows(windows, (operand, position), nothing, better)
    start = jnp.broadcast_to(initial, (operand.size,))
    made = (
        scatter_one_by_one(start, chosen.reshape(-1), source.reshape(-1), scatter) if operand.size else start
    )
    return (made.reshape(operand.shape),)


def _sort(op: ops.Sort, bodies: Sequence[_Bound], *operands: Array) -> tuple[Array, ...]:
    """Sort by a network of comparisons."""

    def before(a: Sequence[Array], b: Sequence[Array]) -> Array:
        return bodies[0].on_arrays(*(x for pair in zip(a, b, strict=True) for x in pair))[0]

    return sorted_by_network(operands, before, op.dimension % operands[0].ndim)


def _scatter(op: ops.Scatter, bodies: Sequence[_Bound], *operands: Array) -> tuple[Array, ...]:
    """Do as the operation's own meaning does: one update after the other."""
    return op.evaluate(*operands, regions=bodies)


_FORMS: dict[type[Op], Callable[..., tuple[Array, ...]]] = {
    ops.MapElements: _map,
    ops.Reduce: _reduce,
    ops.ReduceWindow: _reduce_window,
    ops.Scatter: _scatter,
    ops.SelectAndScatter: _select_and_scatter,
    ops.Sort: _sort,
}
