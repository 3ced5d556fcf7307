"""The whole-array form of planned vertices: logical operands in, logical results out.

Parallel splits vanish, because a codelet is polymorphic in extents; splits of reductions stay, as a
leading axis of partials. The number of operations depends neither on tiles nor on splits: parts are computed
by one vectorized call or, where a codelet cannot have its windows cut so, in a loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tiles._jax_compat import Datum, fori_loop, lax_map, optimization_barrier
from tiles.codelets.cells import computes_partials_at_once, extent_classes
from tiles.compiler import VertexGroup
from tiles.graph import Affine, AxisSplit, Cell, along
from tiles.numerics.total_order import concatenated, padded

UNROLLED = 4
"""Parts computed in turn without a loop; 368 of them would take XLA 3.9 s to compile."""
LAID_OUT = 16
"""Most slices by which overlapping parts of an axis are laid out; more of them are gathered."""

BLOCK_BYTES = 1 << 22
"""Of partials that are computed and added at a time, which a cache holds (products of 256 x 1,024 and more take the same time
from 2^18 to 2^23). A loop over blocks takes XLA twice as long to compile as none."""
MOST_ADDED = 32
"""Partials that are added in one expression; more are in a loop."""
ADDED_A_TRIP = 8
"""Partials that a trip of that loop adds."""
FEWER_BLOCKS = 4
"""Overlapping parts are put together of shifted blocks where that takes this many times fewer pieces than there are parts."""


def whole(
    group: VertexGroup, operands: Sequence[jax.Array], laid_out: Collection[int] = ()
) -> tuple[jax.Array, ...]:
    """Return the results of all vertices of a group at once.

    Args:
      group: codelet, form and plan.
      operands: logical arrays, in the operands' own shapes.
      laid_out: numbers of operands that come as ``lay_out`` gives them instead.

    Returns:
      one array per result; with a split reduction, shape ``[partials, ...]``.
    """
    form, plan = group.form, group.plan
    split = plan.split_reductions(form)
    counts = [plan.splits[d].parts for d in split]
    if is_laid_out(group):
        arrays = [x if k in laid_out else lay_out(group, k, x) for k, x in enumerate(operands)]
        results = _all_parts(group, arrays, split)
    else:
        spans = [_span(group, k, x) for k, x in enumerate(operands)]
        if not split:
            zeros, limits = (0,) * len(form.shape), (None,) * len(form.shape)
            return group.codelet.compute(Cell(form, tuple(form.shape), zeros, limits), *spans)
        results = _parts_serially(group, spans, split, ())
    return tuple(r.reshape(math.prod(counts), *r.shape[len(counts) :]) for r in results)


def summed(
    group: VertexGroup, *operands: jax.Array, laid_out: Collection[int] = (), by_blocks: bool = True
) -> jax.Array:
    """Return the sum of the partials, in float32, of a group whose plan cuts one reduction, added in order.

    The bits are those of adding up what ``whole`` gives, part by part. That takes memory for all parts at once, which an
    emulating host writes and reads again: so they are computed for as much of the result at a time as its caches hold, or,
    not by blocks, each is added as it is computed.

    Args:
      group: codelet, form and plan.
      operands: logical arrays, in the operands' own shapes.
      laid_out: numbers of operands that come as ``lay_out`` gives them instead, some of ``read_by_all_blocks``.
      by_blocks: see above.
    """
    if not by_blocks or not is_laid_out(group):
        return _added_serially(group, operands)
    form = group.form
    cut = _block_dim(group)
    size = 1 if cut is None else form.shape[cut]
    rows = -(-size // -(-partials_bytes(group) // BLOCK_BYTES))
    if cut is None or rows == size:
        return _added_up(whole(group, operands, laid_out)[0])
    axis, common = form.results[0].dims.index(cut), read_by_all_blocks(group)
    arrays = [
        lay_out(group, k, x) if k in common and k not in laid_out else x for k, x in enumerate(operands)
    ]

    def step(number: Datum, total: jax.Array) -> jax.Array:
        # the last block begins earlier where it would be shorter, and computes some places once more: all are one code
        start = jnp.minimum(number * rows, jnp.int32(size - rows))
        parts = list(arrays)
        for k, index_map in enumerate(form.operands):
            if k not in common:
                place = index_map.axes.index(along(cut))
                parts[k] = lax.dynamic_slice_in_dim(
                    arrays[k], start, rows, place, allow_negative_indices=False
                )
        found = _added_up(whole(_narrowed(group, cut, rows), parts, common)[0])
        return lax.dynamic_update_slice_in_dim(total, found, start, axis, allow_negative_indices=False)

    # of one type, whether JAX has 64-bit numbers or not
    first, last = jnp.int32(0), jnp.int32(-(-size // rows))
    return fori_loop(first, last, step, jnp.zeros(form.result_shape(), jnp.float32))


def read_by_all_blocks(group: VertexGroup) -> list[int]:
    """Return the numbers of operands that every block of a result reads as a whole."""
    cut = _block_dim(group)
    if not is_laid_out(group):
        return []
    return [k for k, index_map in enumerate(group.form.operands) if cut not in index_map.dims]


def partials_bytes(group: VertexGroup) -> int:
    """Return how much the partials of a group of one result take, in float32."""
    parts = math.prod(group.plan.splits[d].parts for d in group.plan.split_reductions(group.form))
    return 4 * parts * math.prod(group.form.result_shape())


def _block_dim(group: VertexGroup) -> int | None:
    """Return the dimension along which a result is computed block by block, that of the largest operand; None if there is none."""
    form, found = group.form, list[tuple[int, int, int]]()
    for d in form.results[0].dims:
        maps = [m for m in form.operands if d in m.dims]
        if maps and all(along(d) in m.axes and m.fill is None for m in maps):
            read = max(math.prod(form.shape[each] for each in m.dims) for m in maps)
            found.append((read, form.shape[d], -d))
    return -max(found)[2] if found else None


def _narrowed(group: VertexGroup, d: int, size: int) -> VertexGroup:
    """Return a group that computes as many places along a dimension that no operand reads by windows."""
    dims = [replace(dim, size=size) if n == d else dim for n, dim in enumerate(group.form.dims)]
    return replace(group, form=replace(group.form, dims=tuple(dims)))


def _added_up(partials: jax.Array) -> jax.Array:
    """Return the sum along the leading axis, in order, of partials that are computed before."""
    partials = optimization_barrier(partials)
    trips, rest = 0, len(partials) - 1
    if rest >= MOST_ADDED:
        trips, rest = divmod(rest, ADDED_A_TRIP)
    total = _added_to(partials[0], partials[1 : 1 + rest])
    if not trips:
        return total

    def trip(number: Datum, total: jax.Array) -> jax.Array:
        first = 1 + rest + number * ADDED_A_TRIP
        block = lax.dynamic_slice_in_dim(partials, first, ADDED_A_TRIP, allow_negative_indices=False)
        return _added_to(total, block)

    return fori_loop(0, trips, trip, total)


def _added_to(total: jax.Array, partials: jax.Array) -> jax.Array:
    """Return a sum to which partials are added in order, in one expression."""
    for partial in partials:
        total = total + partial
    return total


def _added_serially(group: VertexGroup, operands: Sequence[jax.Array]) -> jax.Array:
    """Return the sum of partials, each added as it is computed."""
    (d,) = group.plan.split_reductions(group.form)
    spans = [_span(group, k, x) for k, x in enumerate(operands)]
    total: jax.Array | None = None
    for run in _runs(group, d):

        def part(number: Datum, run: _Run = run) -> jax.Array:
            (found,) = _one_part(group, spans, (run,), (number,))
            return found

        first = 0
        if total is None:
            total, first = part(0), 1
        if run.count - first > UNROLLED:
            total = fori_loop(first, run.count, lambda k, before, part=part: before + part(k), total)
            continue
        for number in range(first, run.count):
            total = total + part(number)
    assert total is not None
    return total


def unsplit(group: VertexGroup, *operands: jax.Array) -> jax.Array:
    """Return the sum of the partials of a group whose plan cuts one reduction, computed as if it were not cut."""
    form, spans = group.form, [_span(group, k, x) for k, x in enumerate(operands)]
    zeros, limits = (0,) * len(form.shape), (None,) * len(form.shape)
    (found,) = group.codelet.compute(Cell(form, tuple(form.shape), zeros, limits), *spans)
    return found


def is_laid_out(group: VertexGroup) -> bool:
    """Return whether ``whole`` computes a group's partials in one call, from operands cut into parts."""
    return computes_partials_at_once(group.codelet, group.form, group.plan)


def _span(group: VertexGroup, k: int, operand: jax.Array) -> jax.Array:
    """Return what the whole domain reads of operand k."""
    index_map = group.form.operands[k]
    return map_axes(operand, index_map.axes, group.form.shape, index_map.fill)


def map_axes(
    x: jax.Array, axes: Sequence[Affine], shape: Sequence[int], fill: float | int | bool | None
) -> jax.Array:
    """Return an operand as the whole domain reads it: padded, sliced, strided and reversed per axis."""
    for number, axis in enumerate(axes):
        x = _map_axis(x, number, axis, shape, fill)
    return x


def _map_axis(
    x: jax.Array, number: int, axis: Affine, shape: Sequence[int], fill: float | int | bool | None
) -> jax.Array:
    size = x.shape[number]
    offset, step = axis.offset, 1
    count = 1
    if len(axis.terms) == 1:
        d, step = axis.terms[0]
        count = shape[d]
        if step < 0:
            x, offset, step = lax.rev(x, (number,)), size - 1 - offset, -step
    elif axis.terms:
        ends = [(0, c * (shape[d] - 1)) for d, c in axis.terms]
        offset += sum(min(e) for e in ends)
        count = sum(max(e) - min(e) for e in ends) + 1
    last = offset + step * (count - 1)
    low, high = max(0, -offset), max(0, last + 1 - size) if count else 0
    if low or high:
        padding = [(low, high, 0) if a == number else (0, 0, 0) for a in range(x.ndim)]
        x = padded(x, jnp.asarray(0 if fill is None else fill, x.dtype), padding)
    start, stop = offset + low, last + low + 1
    if count == 0:
        return lax.slice_in_dim(x, 0, 0, axis=number)
    if start == 0 and stop == x.shape[number] and step == 1:
        return x
    return lax.slice_in_dim(x, start, stop, step, axis=number)


@dataclass(frozen=True)
class _Run:
    """Consecutive parts of one split dimension that have the same extent."""

    dim: int
    lo: int
    extent: int
    count: int


def _runs(group: VertexGroup, d: int) -> list[_Run]:
    """Return the full parts of a dimension, then the short one at its end if there is one."""
    split = group.plan.splits[d]
    return [_Run(d, first * split.grain, extent, end - first) for first, end, extent in extent_classes(split)]


def _parts_serially(
    group: VertexGroup, spans: Sequence[jax.Array], split: Sequence[int], runs: tuple[_Run, ...]
) -> tuple[jax.Array, ...]:
    """Compute partials one after another, exact in extent, with a leading parts axis per split dimension."""
    if len(runs) == len(split):
        return _equal_parts(group, spans, runs)
    pieces = [_parts_serially(group, spans, split, (*runs, run)) for run in _runs(group, split[len(runs)])]
    if len(pieces) == 1:
        return pieces[0]
    return tuple(concatenated(arrays, len(runs)) for arrays in zip(*pieces, strict=True))


def _equal_parts(
    group: VertexGroup, spans: Sequence[jax.Array], runs: tuple[_Run, ...]
) -> tuple[jax.Array, ...]:
    """Compute parts of equal extents: a few of them unrolled, many in a loop."""
    counts = [run.count for run in runs]
    if math.prod(counts) <= UNROLLED:
        parts = [_one_part(group, spans, runs, p) for p in itertools.product(*map(range, counts))]
        results = tuple(jnp.stack(arrays) for arrays in zip(*parts, strict=True))
    else:

        def one(number: jax.Array) -> tuple[jax.Array, ...]:
            place: list[jax.Array] = []
            for count in reversed(counts):
                place.insert(0, lax.rem(number, np.int32(count)))
                number = lax.div(number, np.int32(count))
            return _one_part(group, spans, runs, place)

        results = lax_map(one, jnp.arange(math.prod(counts), dtype=jnp.int32))
    return tuple(r.reshape(*counts, *r.shape[1:]) for r in results)


def _one_part(
    group: VertexGroup, spans: Sequence[jax.Array], runs: tuple[_Run, ...], place: Sequence[Datum]
) -> tuple[jax.Array, ...]:
    """Compute one partial from its own slices; ``place`` has its numbers in their runs, maybe traced."""
    form = group.form
    lo: list[Datum] = [0] * len(form.dims)
    sizes = list(form.shape)
    for run, number in zip(runs, place, strict=True):
        lo[run.dim], sizes[run.dim] = run.lo + number * run.extent, run.extent
    split_dims = {run.dim for run in runs}
    cut: list[jax.Array] = []
    for span, index_map in zip(spans, form.operands, strict=True):
        for number, axis in enumerate(index_map.axes):
            if any(d in split_dims for d, _ in axis.terms):
                span = _split_axis(span, number, axis, form.shape, lo, sizes)
        cut.append(span)
    return group.codelet.compute(Cell(form, tuple(sizes), tuple(lo), (None,) * len(sizes)), *cut)


def _split_axis(
    span: jax.Array,
    number: int,
    axis: Affine,
    shape: Sequence[int],
    lo: Sequence[Datum],
    sizes: Sequence[int],
) -> jax.Array:
    """Return what a part reads of an axis of the whole domain's span."""
    if len(axis.terms) == 1:
        d = axis.terms[0][0]
        start, extent = lo[d], sizes[d]
    else:
        # A negative coefficient reads from the far end of the span.
        start = sum(c * lo[d] if c > 0 else -c * (shape[d] - lo[d] - sizes[d]) for d, c in axis.terms)
        extent = sum(abs(c) * (sizes[d] - 1) for d, c in axis.terms) + 1
    if isinstance(start, int):
        return lax.slice_in_dim(span, start, start + extent, axis=number)
    return lax.dynamic_slice_in_dim(span, start, extent, axis=number)


def lay_out(group: VertexGroup, k: int, operand: jax.Array) -> jax.Array:
    """Return operand k as ``_all_parts`` reads it: a parts axis in front per split dimension, padded to full grain."""
    form, plan = group.form, group.plan
    split = plan.split_reductions(form)
    span, index_map = _span(group, k, operand), form.operands[k]
    mine = [(d, a) for a, axis in enumerate(index_map.axes) for d, _ in axis.terms if d in split]
    for d, a in mine:
        if len(index_map.axes[a].terms) > 1:
            span = _lay_windows(span, a, index_map.axes[a], form.shape, plan.splits[d], d)
    parts = {a: _parts_and_extent(span, a, index_map.axes[a], plan.splits[d]) for d, a in mine}
    cut, where = _split_axes(span, parts)
    leading = [where[a] for _, a in sorted(mine)]
    return cut.transpose(leading + [a for a in range(cut.ndim) if a not in leading])


def _all_parts(
    group: VertexGroup, arrays: Sequence[jax.Array], split: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    """Compute all partials in one vectorized call, from operands as ``lay_out`` gives them."""
    form, plan = group.form, group.plan
    depends = [{d for axis in m.axes for d, _ in axis.terms if d in split} for m in form.operands]

    def compute(coordinates: tuple[jax.Array, ...], *parts: jax.Array) -> tuple[jax.Array, ...]:
        sizes = list(form.shape)
        origin: list[Datum] = [0] * len(form.dims)
        limits: list[jax.Array | None] = [None] * len(form.dims)
        for d, coordinate in zip(split, coordinates, strict=True):
            s = plan.splits[d]
            sizes[d], origin[d] = s.grain, coordinate * s.grain
            if s.size % s.grain:
                limits[d] = jnp.minimum(s.size - origin[d], s.grain)
        return group.codelet.compute(Cell(form, tuple(sizes), tuple(origin), tuple(limits)), *parts)

    run = compute
    for level, d in reversed(list(enumerate(split))):
        which = tuple(0 if i == level else None for i in range(len(split)))
        run = jax.vmap(run, in_axes=(which, *(0 if d in used else None for used in depends)))
    return run(tuple(jnp.arange(plan.splits[d].parts, dtype=jnp.int32) for d in split), *arrays)


def _parts_and_extent(span: jax.Array, number: int, axis: Affine, split: AxisSplit) -> tuple[int, int]:
    """Return the parts of a split axis and the elements of each."""
    if len(axis.terms) == 1:
        return split.parts, split.grain
    return split.parts, span.shape[number] // split.parts


def _lay_windows(
    span: jax.Array, number: int, axis: Affine, shape: Sequence[int], split: AxisSplit, d: int
) -> jax.Array:
    """Return what the parts of a cut window read of an axis, one part behind the other; they overlap."""
    sizes = [split.grain if e == d else shape[e] for e, _ in axis.terms]
    extent = sum(abs(c) * (n - 1) for (_, c), n in zip(axis.terms, sizes, strict=True)) + 1
    step = dict(axis.terms)[d] * split.grain
    missing = step * (split.parts - 1) + extent - span.shape[number]
    if missing > 0:
        padding = [(0, missing if a == number else 0, 0) for a in range(span.ndim)]
        span = padded(span, jnp.zeros((), span.dtype), padding)
    blocks = -(-extent // step) if step else 0
    if 0 < FEWER_BLOCKS * blocks <= split.parts <= LAID_OUT:
        return _lay_blocks(span, number, split.parts, step, extent)
    if split.parts <= LAID_OUT:
        pieces = [
            lax.slice_in_dim(span, p * step, p * step + extent, axis=number) for p in range(split.parts)
        ]
        return concatenated(pieces, number)
    index = np.arange(split.parts)[:, None] * step + np.arange(extent)
    return jnp.take(span, jnp.asarray(index.reshape(-1), jnp.int32), axis=number, mode="clip")


def _lay_blocks(span: jax.Array, number: int, parts: int, step: int, extent: int) -> jax.Array:
    """Return parts of ``extent`` elements that begin every ``step`` of an axis, one behind the other.

    A part is put together of its blocks of ``step`` elements: all first blocks lie behind each other, and so do all second
    ones. There are fewer of these than of parts, and XLA compiles a function for each piece that it joins.
    """
    before, behind = span.shape[:number], span.shape[number + 1 :]
    blocks = -(-extent // step)
    missing = step * (parts + blocks - 1) - span.shape[number]
    if missing > 0:
        padding = [(0, missing if a == number else 0, 0) for a in range(span.ndim)]
        span = padded(span, jnp.zeros((), span.dtype), padding)
    pieces = [
        lax.slice_in_dim(span, n * step, (n + parts) * step, axis=number).reshape(
            *before, parts, step, *behind
        )
        for n in range(blocks)
    ]
    joined = concatenated(pieces, number + 1) if blocks > 1 else pieces[0]
    cut = lax.slice_in_dim(joined, 0, extent, axis=number + 1)
    return cut.reshape(*before, parts * extent, *behind)


def _split_axes(x: jax.Array, parts: dict[int, tuple[int, int]]) -> tuple[jax.Array, dict[int, int]]:
    """Pad and reshape axes into (parts, grain); return the array and where each parts axis went."""
    shape: list[int] = []
    where: dict[int, int] = {}
    padding: list[tuple[int, int, int]] = []
    for a, size in enumerate(x.shape):
        if a not in parts:
            shape.append(size)
            padding.append((0, 0, 0))
            continue
        count, grain = parts[a]
        where[a] = len(shape)
        shape += [count, grain]
        padding.append((0, count * grain - size, 0))
    if any(high for _, high, _ in padding):
        x = padded(x, jnp.zeros((), x.dtype), padding)
    return x.reshape(shape), where
