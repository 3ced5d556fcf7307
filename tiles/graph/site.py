"""Sites: where builders add what they record, and what it is called."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiles.graph.graph import Graph
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
    """Return a site with a name: the given one's, or the builder's own where none was given."""
    site = where if isinstance(where, Site) else Site(where)
    return site if site.name else site.named(name)
