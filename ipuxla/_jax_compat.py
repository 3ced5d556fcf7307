"""What JAX leaves untyped, with the types that this package uses it by.

Each is declared here once. Private names of JAX, and what is MLIR's, are in ``frontend/_jax_compat``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, cast

import jax
from jax.extend.core import ClosedJaxpr as ClosedJaxpr
from jax.sharding import NamedSharding

from tiles._jax_compat import Datum as Datum
from tiles._jax_compat import DTypeLike as DTypeLike

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


_jax = cast(Any, jax)

make_jaxpr: Callable[[Function], Callable[..., ClosedJaxpr]] = _jax.make_jaxpr
reshard: Callable[[Datum, NamedSharding], jax.Array] = _jax.sharding.reshard
devices: Callable[[str], list[Device]] = _jax.devices
tree_flatten: Callable[[Tree], tuple[list[Datum], TreeDef]] = _jax.tree.flatten
tree_flatten_with_path: Callable[[Tree], tuple[list[tuple[Path, Datum]], TreeDef]] = (
    _jax.tree.flatten_with_path
)
tree_leaves: Callable[[Tree], list[Datum]] = _jax.tree.leaves
tree_map: Callable[..., Tree] = _jax.tree.map
tree_structure: Callable[[Tree], TreeDef] = _jax.tree.structure
tree_unflatten: Callable[[TreeDef, Iterable[Datum]], Tree] = _jax.tree.unflatten
keystr: Callable[[Path], str] = _jax.tree_util.keystr
