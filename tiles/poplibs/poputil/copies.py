"""Copies, reshapes and concatenations: movement of whole tensors between layouts and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

from tiles.errors import InvalidGraph
from tiles.graph import Copy, Graph, Layout, Site, Tensor, linear_layout, site_of


def map_linearly(graph: Graph, tensor: Tensor) -> Tensor:
    """Spread a tensor evenly over the tiles in row-major order and return it, placed.

    Source: PopLibs ``poputil::mapTensorLinearly``.
    """
    return graph.set_layout(tensor.name, linear_layout(tensor.shape, tensor.dtype, graph.target.num_tiles))


def copy(
    where: Graph | Site,
    x: Tensor,
    layout: Layout | None = None,
) -> Tensor:
    """Return a copy of a tensor, laid out as ``layout`` or like the original."""
    site = site_of(where, "copy")
    return _copied(site, (x,), None, x.shape, layout)


def reshape(
    where: Graph | Site,
    x: Tensor,
    shape: Seq[int],
) -> Tensor:
    """Give a tensor's elements another shape in row-major order.

    Once planned, it names the same memory where every tile's part is a box of the new shape too; else it is a copy.

    Raises:
      InvalidGraph: another number of elements.
    """
    site = site_of(where, "reshape")
    if tuple(shape) == x.shape:
        return x
    return site.graph.add_reshape(x, tuple(shape), site.program, site.name, site.location)


def concatenate(
    where: Graph | Site,
    parts: Seq[Tensor],
    dimension: int = 0,
    *,
    layout: Layout | None = None,
) -> Tensor:
    """Join tensors end to end along ``dimension``.

    Raises:
      InvalidGraph: no parts, other dtypes, or shapes that differ in another dimension.
    """
    site = site_of(where, "concatenate")
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
    return _copied(site, tuple(parts), dimension, tuple(shape), layout)


def _copied(
    site: Site,
    sources: tuple[Tensor, ...],
    axis: int | None,
    shape: tuple[int, ...],
    layout: Layout | None,
) -> Tensor:
    """Add a tensor and the step that writes it from the sources."""
    result = site.graph.add_tensor(shape, sources[0].dtype, site.name, layout, location=site.location)
    if math.prod(shape):
        filled = tuple(s.name for s in sources if math.prod(s.shape))
        site.program.add(Copy(result.name, filled, axis, site.location))
    return result
