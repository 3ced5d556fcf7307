"""What JAX leaves untyped, with the types that this package uses it by.

Each is declared here once. Private names of JAX, and what is MLIR's, are in ``frontend/_jax_compat``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from jax.extend.core import ClosedJaxpr

from tiles._jax_compat import Datum, DTypeLike

__all__ = [
    "ClosedJaxpr",
    "DTypeLike",
    "Datum",
    "Device",
    "Function",
    "Params",
    "Path",
    "Tree",
    "TreeDef",
]

Tree: TypeAlias = Any
"""A pytree: an array, or tuples, lists, dictionaries and registered classes of pytrees. No type describes them all."""


Path: TypeAlias = tuple[Any, ...]
"""Where in a pytree a leaf is: keys, positions and attributes, from outside in."""


class Device(Protocol):
    """A JAX device."""

    @property
    def platform(self) -> str: ...
    @property
    def id(self) -> int: ...


class TreeDef(Protocol):
    """The structure of a pytree, which compares and hashes as a value."""

    @property
    def num_leaves(self) -> int: ...
    def node_data(self) -> tuple[type, Any] | None: ...
    def children(self) -> Sequence[TreeDef]: ...
    def __hash__(self) -> int: ...


Params: TypeAlias = dict[str, Any]
"""Parameters of a primitive, of any kinds, by name; static arguments of a function."""

Function: TypeAlias = Callable[..., Any]
"""A function of pytrees that JAX can trace."""
