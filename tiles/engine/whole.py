"""The whole-array form of planned vertices: logical operands in, logical results out.

Parallel splits vanish, because a codelet is polymorphic in extents; splits of reductions stay, as a
leading axis of partials. The number of operations does not depend on tiles, nor
(windows aside) on splits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tiles.compiler import VertexGroup
from tiles.graph import Affine, Cell


def whole(group: VertexGroup, operands: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Return the results of all vertices of a group at once.

    Args:
      group: codelet, form and plan.
      operands: logical arrays, in the operands' own shapes.

    Returns:
      one array per result; with a split reduction, shape ``[partials, ...]``.
    """
    form, plan = group.form, group.plan
    spans = [map_axes(x, m.axes, form.shape, m.fill) for x, m in zip(operands, form.operands, strict=True)]
    split = plan.split_reductions(form)
    sizes, origin = list(form.shape), [0] * len(form.dims)
    if not split:
        return group.codelet.compute(Cell(form, tuple(sizes), tuple(origin), (None,) * len(sizes)), *spans)
    counts = [plan.splits[d].parts for d in split]
    windows = any(
        len(a.terms) > 1 and any(d in split for d, _ in a.terms) for m in form.operands for a in m.axes
    )
    if windows:
        parts = [
            _one_part(group, spans, dict(zip(split, p, strict=True)))
            for p in itertools.product(*map(range, counts))
        ]
        return tuple(jnp.stack(results) for results in zip(*parts, strict=True))
    results = _all_parts(group, spans, split)
    return tuple(r.reshape(math.prod(counts), *r.shape[len(counts) :]) for r in results)


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
        x = lax.pad(x, jnp.asarray(0 if fill is None else fill, x.dtype), padding)
    start, stop = offset + low, last + low + 1
    if count == 0:
        return lax.slice_in_dim(x, 0, 0, axis=number)
    if start == 0 and stop == x.shape[number] and step == 1:
        return x
    return lax.slice_in_dim(x, start, stop, step, axis=number)


def _one_part(group: VertexGroup, spans: Sequence[jax.Array], part: dict[int, int]) -> tuple[jax.Array, ...]:
    """Compute one partial from its own slices, exact in extent."""
    form, plan = group.form, group.plan
    lo = [int(plan.splits[d].lo[part[d]]) if d in part else 0 for d in range(len(form.dims))]
    hi = [int(plan.splits[d].hi[part[d]]) if d in part else form.shape[d] for d in range(len(form.dims))]
    cut = []
    for span, index_map in zip(spans, form.operands, strict=True):
        for number, axis in enumerate(index_map.axes):
            if not any(d in part for d, _ in axis.terms):
                continue
            if len(axis.terms) == 1:
                start, stop = lo[axis.terms[0][0]], hi[axis.terms[0][0]]
            else:
                base = sum(min(0, c * (form.shape[d] - 1)) for d, c in axis.terms)
                start = sum(min(c * lo[d], c * (hi[d] - 1)) for d, c in axis.terms) - base
                stop = sum(max(c * lo[d], c * (hi[d] - 1)) for d, c in axis.terms) - base + 1
            span = lax.slice_in_dim(span, start, stop, axis=number)
        cut.append(span)
    sizes = tuple(h - low for h, low in zip(hi, lo, strict=True))
    return group.codelet.compute(Cell(form, sizes, tuple(lo), (None,) * len(sizes)), *cut)


def _all_parts(
    group: VertexGroup, spans: Sequence[jax.Array], split: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    """Compute all partials with one vectorized call: a parts axis per split dimension, padded to full grain."""
    form, plan = group.form, group.plan
    arrays, depends = [], []
    for span, index_map in zip(spans, form.operands, strict=True):
        mine = [(d, a) for a, axis in enumerate(index_map.axes) for d, _ in axis.terms if d in split]
        moved = _split_axes(span, {a: (plan.splits[d].parts, plan.splits[d].grain) for d, a in mine})
        order = sorted(range(len(mine)), key=lambda i: mine[i][0])
        leading = [moved[1][mine[i][1]] for i in order]
        rest = [a for a in range(moved[0].ndim) if a not in leading]
        arrays.append(moved[0].transpose(leading + rest))
        depends.append({d for d, _ in mine})

    def compute(coordinates: tuple[jax.Array, ...], *parts: jax.Array) -> tuple[jax.Array, ...]:
        sizes = list(form.shape)
        origin: list[Any] = [0] * len(form.dims)
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


def _split_axes(x: jax.Array, parts: dict[int, tuple[int, int]]) -> tuple[jax.Array, dict[int, int]]:
    """Pad and reshape axes into (parts, grain); return the array and where each parts axis went."""
    shape: list[int] = []
    where: dict[int, int] = {}
    padding = []
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
        x = lax.pad(x, jnp.zeros((), x.dtype), padding)
    return x.reshape(shape), where
