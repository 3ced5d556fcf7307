"""Primitives that place elements anew: slices, reversal, broadcasts, transposition, padding.

All are the elementwise codelet with indexing maps; only interior padding takes two steps.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from tiles.errors import InvalidGraph
from tiles.graph import Graph, IndexMap, Tensor, along
from tiles.poplibs.forms import pad_map, placed_map, reverse_map, slice_map, transpose_map
from tiles.poplibs.popops.elementwise import map
from tiles.poplibs.popops.expr import Expr, arg, call, compare
from tiles.poplibs.popops.expr import select as choose
from tiles.poplibs.poputil.copies import reshape


def _move(graph: Graph, x: Tensor, shape: Seq[int], index_map: IndexMap, name: str, **options: Any) -> Tensor:
    return map(graph, arg(0), [x], shape=shape, operand_maps=[index_map], name=name, **options)


def slice(
    graph: Graph, x: Tensor, start: Seq[int], limit: Seq[int], strides: Seq[int] | None = None, **options: Any
) -> Tensor:
    """Take elements from ``start`` up to ``limit`` in steps of ``strides``; ``options`` as in ``map``.

    Raises:
      InvalidGraph: bounds outside the tensor, or strides that are not positive.
    """
    steps = strides or (1,) * len(x.shape)
    ranges = [*zip(start, limit, steps, x.shape, strict=True)]
    if any(not (0 <= first <= last <= size and step > 0) for first, last, step, size in ranges):
        raise InvalidGraph(
            f"cannot slice {x.shape} from {tuple(start)} to {tuple(limit)} in steps of {tuple(steps)}"
        )
    shape = [-(-(last - first) // step) for first, last, step, _ in ranges]
    return _move(graph, x, shape, slice_map(start, steps), options.pop("name", "slice"), **options)


def reverse(graph: Graph, x: Tensor, dimensions: Seq[int], **options: Any) -> Tensor:
    """Reverse the order of elements along ``dimensions``; ``options`` as in ``map``."""
    return _move(
        graph, x, x.shape, reverse_map(x.shape, dimensions), options.pop("name", "reverse"), **options
    )


def broadcast_in_dim(
    graph: Graph, x: Tensor, shape: Seq[int], dimensions: Seq[int], **options: Any
) -> Tensor:
    """Repeat a tensor to ``shape``; its axis i lies along ``dimensions[i]``. ``options`` as in ``map``."""
    index_map = placed_map(x.shape, dimensions, shape)
    return _move(graph, x, shape, index_map, options.pop("name", "broadcast"), **options)


def transpose(graph: Graph, x: Tensor, permutation: Seq[int], **options: Any) -> Tensor:
    """Permute dimensions: the result's d is ``permutation[d]`` of ``x``; ``options`` as in ``map``.

    Raises:
      InvalidGraph: not a permutation.
    """
    if sorted(permutation) != list(range(len(x.shape))):
        raise InvalidGraph(f"{tuple(permutation)} is no permutation of the dimensions of {x.shape}")
    shape = [x.shape[d] for d in permutation]
    return _move(graph, x, shape, transpose_map(permutation), options.pop("name", "transpose"), **options)


def pad(
    graph: Graph,
    x: Tensor,
    low: Seq[int],
    high: Seq[int],
    interior: Seq[int] | None = None,
    value: Any = 0,
    **options: Any,
) -> Tensor:
    """Put ``value`` around a tensor's elements, and between them.

    Args:
      graph: where to add it.
      x: the tensor.
      low: elements in front, per dimension; negative ones cut.
      high: elements behind.
      interior: elements between neighbours.
      value: a number, or a scalar tensor.
      **options: as in ``map``.

    Raises:
      InvalidGraph: a padded shape with a negative size.
    """
    name = options.pop("name", "pad")
    if interior is not None and any(interior):
        x = _spread(graph, x, interior, value, name, **options)
        high = [h - between if n else h for h, between, n in zip(high, interior, x.shape, strict=True)]
    shape = [n + a + b for n, a, b in zip(x.shape, low, high, strict=True)]
    if any(n < 0 for n in shape):
        raise InvalidGraph(
            f"{x.shape} padded by {tuple(low)} and {tuple(high)} has the negative shape {tuple(shape)}"
        )
    if not isinstance(value, Tensor):
        return _move(graph, x, shape, pad_map(low, value), name, **options)
    inside = [
        mask
        for d, (first, n, size) in enumerate(zip(low, x.shape, shape, strict=True))
        for mask in _bounds(d, first, first + n, size)
    ]
    node = _choose_inside(inside)
    maps = [pad_map(low, 0), placed_map(value.shape, (), shape)]
    return map(graph, node, [x, value], shape=shape, operand_maps=maps, name=name, **options)


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


def _spread(graph: Graph, x: Tensor, interior: Seq[int], value: Any, name: str, **options: Any) -> Tensor:
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
    spread = map(graph, node, operands, shape=shape, operand_maps=maps, name=f"{name}.spread", **options)
    folded = [size * (between + 1) for size, between in zip(x.shape, interior, strict=True)]
    keep = {key: options[key] for key in ("program", "location") if key in options}
    return reshape(graph, spread, folded, **keep)
