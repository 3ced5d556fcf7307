"""The codelet of a collective in one piece: what engines of logical arrays run in place of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from tiles.errors import InvalidGraph
from tiles.files import is_a
from tiles.graph.codelet import Cell, Codelet
from tiles.graph.replicas import Replicas


@dataclass(frozen=True)
class Collective(Codelet):
    """Base of codelets that see all replicas at once; a composite's whole form, never a vertex.

    Args:
      axes: along which replicas form groups.
    """

    axes: tuple[str, ...]

    @property
    def is_alike(self) -> bool:
        """Whether all members of a group get the same words."""
        return False

    @property
    def combines(self) -> bool:
        """Whether members' elements are combined, not only moved."""
        return False

    @property
    def expects_equal(self) -> bool:
        """Whether nothing is exchanged, and a run is refused where members' operands are not the same words."""
        return False

    def members(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Return the results of one group: ``[members, *shape]`` to ``[members, *shape]`` each."""
        raise NotImplementedError

    def together(self, replicas: Replicas, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Return the results of all replicas: ``[replicas, *shape]`` to ``[replicas, *shape]`` each."""
        order = replicas.leading(self.axes)
        back = sorted(range(len(order)), key=order.__getitem__)
        sizes = [size for _, size in replicas.axes]
        size, others = replicas.size(self.axes), [sizes[i] for i in order[len(self.axes) :]]

        def to_groups(x: jax.Array) -> jax.Array:
            rest = range(len(sizes), len(sizes) + x.ndim - 1)
            return x.reshape(*sizes, *x.shape[1:]).transpose([*order, *rest]).reshape(size, -1, *x.shape[1:])

        def from_groups(x: jax.Array) -> jax.Array:
            inner = x.shape[2:]
            rest = range(len(sizes), len(sizes) + len(inner))
            ordered = x.reshape(*(sizes[i] for i in order[: len(self.axes)]), *others, *inner)
            return ordered.transpose([*back, *rest]).reshape(replicas.count, *inner)

        grouped = [to_groups(x) for x in operands]
        results = jax.vmap(self.members, in_axes=1, out_axes=1)(*grouped)
        return tuple(from_groups(x) for x in results)

    def compute(self, cell: Cell, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Refuse: one replica alone has no collective.

        Raises:
          InvalidGraph: always.
        """
        raise InvalidGraph(f"{self.label} computes with all members of a group, never on one tile")


def alike(x: jax.Array, size: int) -> jax.Array:
    """Return a result that all members of a group get."""
    return jnp.broadcast_to(x[None], (size, *x.shape))


def as_axes(axes: str | Sequence[str]) -> tuple[str, ...]:
    """Return axes as builders take them: one name or several.

    Raises:
      InvalidGraph: they are something else.
    """
    if not is_a(axes, (str, Sequence)) or not all(is_a(each, str) for each in axes):
        got = f"{type(axes).__name__} {str(axes)[:80]!r}"
        raise InvalidGraph("axes of replicas are names", expected='"data", or ("data", "model")', got=got)
    return (axes,) if isinstance(axes, str) else tuple(axes)
