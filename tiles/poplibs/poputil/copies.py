"""Copies, reshapes and concatenations: movement of whole tensors between layouts and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

from tiles.errors import InvalidGraph
from tiles.graph import Copy, Graph, Layout, Sequence, Tensor, linear_layout


def map_linearly(graph: Graph, tensor: Tensor) -> Tensor:
    """Spread a tensor evenly over the tiles in row-major order and return it, placed.

    Source: PopLibs ``poputil::mapTensorLinearly``.
    """
    return graph.set_layout(tensor.name, linear_layout(tensor.shape, tensor.dtype, graph.target.num_tiles))


def copy(
    graph: Graph,
    x: Tensor,
    layout: Layout | None = None,
    *,
    name: str = "copy",
    location: str = "",
    program: Sequence | None = None,
) -> Tensor:
    """Return a copy of a tensor, laid out as ``layout`` or like the original."""
    return _copied(graph, (x,), None, x.shape, layout, name, location, program)


def reshape(
    graph: Graph,
    x: Tensor,
    shape: Seq[int],
    *,
    name: str = "reshape",
    location: str = "",
    program: Sequence | None = None,
) -> Tensor:
    """Give a tensor's elements another shape in row-major order.

    Once planned, it names the same memory where every tile's part is a box of the new shape too; else it is a copy.

    Raises:
      InvalidGraph: another number of elements.
    """
    if tuple(shape) == x.shape:
        return x
    return graph.add_reshape(x, tuple(shape), graph.program if program is None else program, name, location)


def concatenate(
    graph: Graph,
    parts: Seq[Tensor],
    dimension: int = 0,
    *,
    layout: Layout | None = None,
    name: str = "concatenate",
    location: str = "",
    program: Sequence | None = None,
) -> Tensor:
    """Join tensors end to end along ``dimension``.

    Raises:
      InvalidGraph: no parts, other dtypes, or shapes that differ in another dimension.
    """
    if not parts or not 0 <= dimension < len(parts[0].shape):
        raise InvalidGraph(f"{len(parts)} tensors cannot be joined along dimension {dimension}")
    first = parts[0]
    for part in parts[1:]:
        others = [
            (p.shape[:dimension], p.shape[dimension + 1 :], len(p.shape), p.dtype) for p in (first, part)
        ]
        if others[0] != others[1]:
            described = f"{first.dtype} {first.shape} and {part.dtype} {part.shape}"
            raise InvalidGraph(f"{described} cannot be joined along dimension {dimension}")
    shape = list(first.shape)
    shape[dimension] = sum(part.shape[dimension] for part in parts)
    return _copied(graph, tuple(parts), dimension, tuple(shape), layout, name, location, program)


def _copied(
    graph: Graph,
    sources: tuple[Tensor, ...],
    axis: int | None,
    shape: tuple[int, ...],
    layout: Layout | None,
    name: str,
    location: str,
    program: Sequence | None,
) -> Tensor:
    """Add a tensor and the step that writes it from the sources."""
    result = graph.add_tensor(shape, sources[0].dtype, name, layout, location=location)
    if math.prod(shape):
        filled = tuple(s.name for s in sources if math.prod(s.shape))
        sequence = graph.program if program is None else program
        sequence.add(Copy(result.name, filled, axis, location))
    return result
