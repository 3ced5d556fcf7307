"""Primitives that place elements anew: slices, reversal, broadcasts, transposition, padding.

All are the elementwise codelet with indexing maps; only interior padding takes two steps.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from tiles.errors import InvalidGraph
from tiles.graph import (
    Graph,
    IndexMap,
    Plan,
    Site,
    Tensor,
    along,
    require_dimensions,
    require_tensors,
    site_of,
)
from tiles.poplibs.forms import pad_map, placed_map, reverse_map, slice_map, transpose_map
from tiles.poplibs.popops.elementwise import map
from tiles.poplibs.popops.expr import Expr, arg, call, compare
from tiles.poplibs.popops.expr import select as choose
from tiles.poplibs.poputil.copies import reshape


def _move(site: Site, x: Tensor, shape: Seq[int], index_map: IndexMap, plan: Plan | None = None) -> Tensor:
    return map(site, arg(0), [x], shape=shape, operand_maps=[index_map], plan=plan)


def slice(
    where: Graph | Site,
    x: Tensor,
    start: Seq[int],
    limit: Seq[int],
    strides: Seq[int] | None = None,
    *,
    plan: Plan | None = None,
) -> Tensor:
    """Take elements from ``start`` up to ``limit`` in steps of ``strides``.

    Raises:
      InvalidGraph: bounds outside the tensor, or strides that are not positive.
    """
    site = site_of(where, "slice")
    require_tensors(site, x)
    steps = strides or (1,) * len(x.shape)
    ranges = [*zip(start, limit, steps, x.shape, strict=True)]
    if any(not (0 <= first <= last <= size and step > 0) for first, last, step, size in ranges):
        raise InvalidGraph(
            f"cannot slice {x.shape} from {tuple(start)} to {tuple(limit)} in steps of {tuple(steps)}"
        )
    shape = [-(-(last - first) // step) for first, last, step, _ in ranges]
    return _move(site, x, shape, slice_map(start, steps), plan)


def reverse(where: Graph | Site, x: Tensor, dimensions: Seq[int], *, plan: Plan | None = None) -> Tensor:
    """Reverse the order of elements along ``dimensions``."""
    site = site_of(where, "reverse")
    require_tensors(site, x)
    return _move(site, x, x.shape, reverse_map(x.shape, dimensions), plan)


def broadcast_in_dim(
    where: Graph | Site, x: Tensor, shape: Seq[int], dimensions: Seq[int], *, plan: Plan | None = None
) -> Tensor:
    """Repeat a tensor to ``shape``; its axis i lies along ``dimensions[i]``."""
    site = site_of(where, "broadcast")
    index_map = placed_map(x.shape, dimensions, shape)
    return _move(site, x, shape, index_map, plan)


def transpose(where: Graph | Site, x: Tensor, permutation: Seq[int], *, plan: Plan | None = None) -> Tensor:
    """Permute dimensions: the result's d is ``permutation[d]`` of ``x``.

    Raises:
      InvalidGraph: not a permutation.
    """
    site = site_of(where, "transpose")
    require_tensors(site, x)
    require_dimensions(site, permutation)
    if sorted(permutation) != list(range(len(x.shape))):
        raise InvalidGraph(f"{tuple(permutation)} is no permutation of the dimensions of {x.shape}")
    shape = [x.shape[d] for d in permutation]
    return _move(site, x, shape, transpose_map(permutation), plan)


def pad(
    where: Graph | Site,
    x: Tensor,
    low: Seq[int],
    high: Seq[int],
    interior: Seq[int] | None = None,
    value: Any = 0,
    *,
    plan: Plan | None = None,
) -> Tensor:
    """Put ``value`` around a tensor's elements, and between them.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      low: elements in front, per dimension; negative ones cut.
      high: elements behind.
      interior: elements between neighbours.
      value: a number, or a scalar tensor.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: a padded shape with a negative size.
    """
    site = site_of(where, "pad")
    require_tensors(site, x)
    if interior is not None and any(interior):
        x = _spread(site, x, interior, value)
        high = [h - between if n else h for h, between, n in zip(high, interior, x.shape, strict=True)]
    shape = [n + a + b for n, a, b in zip(x.shape, low, high, strict=True)]
    if any(n < 0 for n in shape):
        raise InvalidGraph(
            f"{x.shape} padded by {tuple(low)} and {tuple(high)} has the negative shape {tuple(shape)}"
        )
    if not isinstance(value, Tensor):
        return _move(site, x, shape, pad_map(low, value), plan)
    inside = [
        mask
        for d, (first, n, size) in enumerate(zip(low, x.shape, shape, strict=True))
        for mask in _bounds(d, first, first + n, size)
    ]
    node = _choose_inside(inside)
    maps = [pad_map(low, 0), placed_map(value.shape, (), shape)]
    return map(site, node, [x, value], shape=shape, operand_maps=maps, plan=plan)


def _bounds(dimension: int, first: int, end: int, size: int) -> list[Expr]:
    """Return the comparisons that hold inside ``[first, end)`` of a dimension, none where all of it is."""
    counter = call("iota", dim=dimension, dtype="int32")
    low = [compare("GE", counter, first)] if first > 0 else []
    return low + ([compare("LT", counter, end)] if end < size else [])


def _choose_inside(masks: Seq[Expr]) -> Expr:
    """Return operand 0 where all masks hold, else operand 1."""
    if not masks:
        return arg(0)
    every = masks[0]
    for mask in masks[1:]:
        every = every & mask
    return choose(every, arg(0), arg(1))


def _spread(site: Site, x: Tensor, interior: Seq[int], value: Any) -> Tensor:
    """Put ``interior`` values behind every element: a domain with a dimension for them, folded afterwards."""
    shape: list[int] = []
    axes: list[int] = []
    masks: list[Expr] = []
    for size, between in zip(x.shape, interior, strict=True):
        axes.append(len(shape))
        shape.append(size)
        if between:
            masks.append(compare("EQ", call("iota", dim=len(shape), dtype="int32"), 0))
            shape.append(between + 1)
    elements = IndexMap(tuple(along(d) for d in axes))
    operands, maps = [x], [elements]
    node = _choose_inside(masks)
    if isinstance(value, Tensor):
        operands, maps = [x, value], [elements, placed_map(value.shape, (), shape)]
    else:
        node = choose(node.arguments[0], arg(0), value)
    spread = map(site.at("spread"), node, operands, shape=shape, operand_maps=maps)
    folded = [size * (between + 1) for size, between in zip(x.shape, interior, strict=True)]
    return reshape(site.named("reshape"), spread, folded)
