"""Sites: where builders add what they record, and what it is called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tiles.errors import InvalidGraph
from tiles.files import is_a
from tiles.graph.graph import Graph, Tensor
from tiles.graph.program import Sequence


@dataclass(frozen=True)
class Site:
    """Where a builder adds its steps, and what they are called; every builder takes one, or a graph alone.

    Args:
      graph: where to add operations and tensors.
      name: of the steps, made unique; "" for the builder's own. A plan pinned to that name is used.
      location: the user's source line.
      sequence: to append to; the graph's main program if None.
    """

    graph: Graph
    name: str = ""
    location: str = ""
    sequence: Sequence | None = None

    @property
    def program(self) -> Sequence:
        """The sequence to append to."""
        return self.graph.program if self.sequence is None else self.sequence

    def at(self, suffix: str) -> Site:
        """Return the site of a part of an operation: ``pool.interleave`` of ``pool``."""
        return replace(self, name=f"{self.name}.{suffix}")

    def named(self, name: str) -> Site:
        """Return the site with another name."""
        return replace(self, name=name)


def site_of(where: Graph | Site, name: str) -> Site:
    """Return a site with a name: the given one's, or the builder's own where none was given.

    Raises:
      InvalidGraph: neither a graph nor a site, as where a builder's arguments stand in another order.
    """
    if not is_a(where, (Graph, Site)):
        raise InvalidGraph(
            f"{name}: the first argument says where to add it",
            expected="a graph, or a site in it",
            got=f"{type(where).__name__} {str(where)[:80]!r}",
        )
    site = where if isinstance(where, Site) else Site(where)
    return site if site.name else site.named(name)


def require_tensors(site: Site, *operands: Tensor) -> None:
    """Raise InvalidGraph where an operand of a builder is no tensor, as where its arguments stand in another order."""
    wrong = [each for each in operands if not is_a(each, Tensor)]
    if wrong:
        raise InvalidGraph(
            f"{site.name}: an operand is no tensor",
            expected="a tensor of the graph",
            got=f"{type(wrong[0]).__name__} {str(wrong[0])[:80]!r}",
            location=site.location or None,
        )


def require_dimensions(site: Site, dimensions: Iterable[int]) -> None:
    """Raise InvalidGraph where dimensions that a builder takes are no row of whole numbers."""
    if not is_a(dimensions, Iterable) or not all(is_a(each, (int, np.integer)) for each in dimensions):
        raise InvalidGraph(
            f"{site.name}: dimensions are numbers, in a list or tuple",
            expected="such as [0] or (0, 1)",
            got=f"{type(dimensions).__name__} {str(dimensions)[:80]!r}",
            location=site.location or None,
        )
