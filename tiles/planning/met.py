"""What is known of a result before it is planned: what later operations read together with it, and where that lies."""

from __future__ import annotations

from dataclasses import dataclass

from tiles.graph import Layout


@dataclass(frozen=True)
class Met:
    """What later operations read together with a result, of its shape.

    Args:
      dtype: its dtype.
      layout: where it lies.
      passes: operations that go over the result, or what such operations made of it, element by element.
    """

    dtype: str
    layout: Layout
    passes: int = 0
