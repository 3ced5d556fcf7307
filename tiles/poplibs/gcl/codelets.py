"""Collectives in one piece, as engines of logical arrays compute them from the operands of all members of a group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tiles.errors import InvalidGraph
from tiles.graph import Collective, folded, register
from tiles.graph.collective import alike
from tiles.poplibs.gcl import orders

ALGORITHMS = ("ring", "two_rings", "halving_doubling", "paired_halving", "hierarchical")
"""Ways to reduce; see ``AllReduce``."""
HALVING = ("halving_doubling", "paired_halving")
"""Those that halve: of a power of two members, and of others."""


@dataclass(frozen=True)
class _Reducing(Collective):
    """Base of collectives that combine.

    Args:
      axes: along which replicas form groups.
      operation: one of ``orders.OPERATIONS``.
      algorithm: one of ``ALGORITHMS``.
      inner: members next to each other that ``hierarchical`` reduces first; else 0.
      is_folded: whether rings go ``0 2 4 ... 5 3 1`` round (of ``hierarchical`` the inner ones), see ``folded``.

    Raises:
      InvalidGraph: an unknown operation or algorithm.
    """

    operation: str
    algorithm: str
    inner: int
    is_folded: bool

    def __post_init__(self) -> None:
        for what, value, legal in (
            ("operation", self.operation, orders.OPERATIONS),
            ("algorithm", self.algorithm, ALGORITHMS),
        ):
            if value not in legal:
                raise InvalidGraph(f"no {what} {value!r} of a collective", expected=", ".join(legal))

    @property
    def combines(self) -> bool:
        """Reductions do."""
        return True

    def combined(self, x: jax.Array) -> jax.Array:
        """Return ``[n, elements]`` combined from ``[n, n, elements]``, the second axis fragments.

        Fragment i is what the i-th member on the ring sums up last; by ``hierarchical``, the one that is ``i // outer``
        on the inner and ``i % outer`` on the outer ring.
        """
        n = x.shape[0]
        if self.is_folded:
            near = self.inner or n
            x = x.reshape(n // near, near, *x.shape[1:])[:, folded(near)].reshape(x.shape)
        if self.algorithm == "two_rings":
            half = -(-x.shape[2] // 2)
            ways = orders.ring(self.operation, x[..., :half]), orders.ring(self.operation, x[..., half:], -1)
            return jnp.concatenate(ways, axis=1)
        if self.algorithm in HALVING:
            return orders.halves(self.operation, x)
        if self.algorithm == "hierarchical":
            outer, inner = n // self.inner, self.inner
            x = x.reshape(outer, inner, inner, outer, x.shape[2])  # outer, inner, fragment
            around = partial(orders.ring, self.operation)
            x = jax.vmap(around)(x)  # outer, fragment's inner, outer, ...
            x = jax.vmap(around, 1)(x)  # fragment's inner, outer, ...
            return x.reshape(n, x.shape[2])
        return orders.ring(self.operation, x)


@register
@dataclass(frozen=True)
class AllReduce(_Reducing):
    """Combine the operands of all members; every member gets the result.

    The operand's elements, in row-major order and filled up with zeros, are cut into as many fragments as there are
    members; members are counted in the order of their ring. By ``ring`` and ``two_rings`` (the first half of a
    fragment's elements clockwise, the others anticlockwise) they are summed as ``orders.ring`` says; by
    ``halving_doubling`` and ``paired_halving`` as ``orders.halves``; by ``hierarchical`` as a ring among ``inner`` neighbours does, then as
    one among those of equal place in their groups.
    """

    name: ClassVar[str] = "gcl.AllReduce"

    @property
    def label(self) -> str:
        """Name in reports."""
        return f"gcl::AllReduce<{self.operation},{self.algorithm}>"

    @property
    def is_alike(self) -> bool:
        """All members get the result."""
        return True

    def members(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Return the result for each member."""
        (x,) = operands
        if self.algorithm in HALVING:
            return (alike(orders.halves(self.operation, x), x.shape[0]),)
        result = self.combined(orders.fragments(x, x.shape[0], self.algorithm))
        return (alike(orders.joined(result, x.shape[1:]), x.shape[0]),)


@register
@dataclass(frozen=True)
class ReduceScatter(_Reducing):
    """Combine the operands of all members; member i gets chunk i along a dimension, summed as ``AllReduce`` does.

    Args:
      axes: along which replicas form groups.
      operation: one of ``orders.OPERATIONS``.
      algorithm: one of ``ALGORITHMS``.
      inner: see ``_Reducing``.
      is_folded: see ``_Reducing``.
      dimension: of the operand.
    """

    name: ClassVar[str] = "gcl.ReduceScatter"

    dimension: int

    @property
    def label(self) -> str:
        """Name in reports."""
        return f"gcl::ReduceScatter<{self.operation},{self.algorithm}>"

    def members(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Return each member's chunk."""
        (x,) = operands
        n = x.shape[0]
        chunks = cut(x, self.dimension + 1, n)
        order = folded(n) if self.is_folded else np.arange(n)
        result = self.combined(chunks[:, order].reshape(n, n, -1))
        return (result[np.argsort(order)].reshape(chunks.shape[1:]),)


@register
@dataclass(frozen=True)
class AllGather(Collective):
    """Join the operands of all members along a dimension, in their order; every member gets the result."""

    name: ClassVar[str] = "gcl.AllGather"

    dimension: int

    @property
    def is_alike(self) -> bool:
        """All members get the result."""
        return True

    def members(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Return the result for each member."""
        (x,) = operands
        return (alike(together(x, self.dimension), x.shape[0]),)


@register
@dataclass(frozen=True)
class AllToAll(Collective):
    """Give chunk j along ``split`` to member j, which joins what it gets along ``concat`` in the members' order."""

    name: ClassVar[str] = "gcl.AllToAll"

    split: int
    concat: int

    def members(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Return the result for each member."""
        (x,) = operands
        chunks = cut(x, self.split + 1, x.shape[0])  # from, to, ...
        return (jax.vmap(partial(together, dimension=self.concat), 1)(chunks),)


@register
@dataclass(frozen=True)
class Broadcast(Collective):
    """Give one member's operand to all."""

    name: ClassVar[str] = "gcl.Broadcast"

    root: int

    @property
    def is_alike(self) -> bool:
        """All members get the result."""
        return True

    def members(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Return the result for each member."""
        (x,) = operands
        return (alike(x[self.root], x.shape[0]),)


@register
@dataclass(frozen=True)
class AssumeEqualAcrossReplicas(Collective):
    """Every member keeps its own operand, which is said to be the same on all; a run in which it is not is refused."""

    name: ClassVar[str] = "gcl.AssumeEqualAcrossReplicas"

    @property
    def label(self) -> str:
        """Name in reports."""
        return "gcl::AssumeEqualAcrossReplicas"

    @property
    def is_alike(self) -> bool:
        """That is what is said."""
        return True

    @property
    def expects_equal(self) -> bool:
        """It does."""
        return True

    def members(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Return the operand of each member."""
        return operands


def cut(x: jax.Array, axis: int, parts: int) -> jax.Array:
    """Return ``[members, ...]`` cut along an axis into chunks: ``[members, parts, ...]``."""
    shape = (*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 1)


def together(x: jax.Array, dimension: int) -> jax.Array:
    """Return ``[members, *shape]`` joined along a dimension of the shape."""
    shape = x.shape[1:]
    joined = (*shape[:dimension], math.prod((x.shape[0], shape[dimension])), *shape[dimension + 1 :])
    return jnp.moveaxis(x, 0, dimension).reshape(joined)
