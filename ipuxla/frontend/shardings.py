"""The mesh that a traced function is written for, and the shardings that were said of its arguments and results."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ipuxla._jax_compat import ClosedJaxpr, Datum, Tree
from ipuxla.errors import InvalidOption, Undivided, Unsupported
from ipuxla.frontend import _jax_compat as compat


@dataclass(frozen=True)
class Shardings:
    """What was said of how arrays lie on devices.

    Args:
      mesh: the devices, which need not exist.
      inputs: sharding of each argument, None where none is said.
      outputs: likewise of each result.
    """

    mesh: AbstractMesh
    inputs: tuple[NamedSharding | None, ...]
    outputs: tuple[NamedSharding | None, ...]

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the mesh's axes."""
        return tuple(zip(map(str, self.mesh.axis_names), self.mesh.axis_sizes, strict=True))

    def free(self, num_inputs: int, num_outputs: int) -> Shardings:
        """Return the same mesh with nothing said of a number of arguments and results."""
        return Shardings(self.mesh, (None,) * num_inputs, (None,) * num_outputs)


def find_shardings(
    jaxpr: ClosedJaxpr,
    inputs: Sequence[jax.sharding.Sharding | None],
    outputs: Sequence[jax.sharding.Sharding | None],
) -> Shardings | None:
    """Return what a function says of many devices; None where it is written for one.

    Raises:
      InvalidOption: two meshes in one function, or two axes of one name.
      Undivided: a size that the sharding of an argument does not divide.
      Unsupported: a sharding that names no axes of a mesh.
    """
    named = [_named(sharding) for sharding in inputs], [_named(sharding) for sharding in outputs]
    found: dict[Hashable, tuple[AbstractMesh, str | None]] = {}
    said = [(sharding.mesh, None) for role in named for sharding in role if sharding is not None]
    context = compat.context_mesh()
    around = [] if context is None else [(context, None)]
    inside = list(compat.meshes_of(jaxpr))
    for mesh, place in (*inside, *said, *around):  # those that have a place first
        _require_own_names(mesh, place)
    for mesh, place in (*said, *inside, *around):
        if mesh.size > 1:
            key = (mesh.axis_names, mesh.axis_sizes)
            found.setdefault(key, (mesh.abstract_mesh, place))
    if not found:
        return None
    (mesh, first), *others = found.values()
    if others:
        other, place = others[0]
        raise InvalidOption(
            "one function is written for two meshes",
            location=place or first,
            expected=_shown(mesh),
            got=_shown(other),
            try_="one mesh with the axes of both; collectives and shardings name the axes they are about",
        )
    arguments = zip(compat.argument_names(jaxpr), jaxpr.in_avals, named[0], strict=True)
    for number, (name, aval, sharding) in enumerate(arguments):
        if sharding is not None:
            _require_divided(f"argument {name or number}", aval.shape, sharding)
    return Shardings(mesh, tuple(named[0]), tuple(named[1]))


def _require_divided(what: str, shape: Sequence[int], sharding: NamedSharding) -> None:
    """Raise Undivided where parts do not divide a dimension, by the name that it has in the user's function."""
    for dim, (size, axes) in enumerate(zip(shape, sharding.spec, strict=False)):
        names = axes if isinstance(axes, tuple) else (axes,)
        parts = math.prod(sharding.mesh.shape[name] for name in names if name in sharding.mesh.shape)
        if size % parts:
            raise Undivided(
                f"{what}: {parts} parts do not divide dimension {dim} of {list(shape)}, sharded by {sharding.spec}",
                expected=f"a size that {parts} divides",
                got=str(size),
                try_="another dimension, an axis of fewer IPUs, or padding; values inside a function need not divide",
            )


def sharding_of_leaf(leaf: Datum) -> NamedSharding | None:
    """Return the sharding over several devices that an array or a description of one carries.

    Raises:
      InvalidOption: its mesh has two axes of one name.
    """
    found = getattr(leaf, "sharding", None)
    if not isinstance(found, NamedSharding):
        return None
    _require_own_names(found.mesh)
    return found if found.mesh.size > 1 else None


def with_mesh_around(shardings: Tree) -> Tree:
    """Return a tree of shardings with partition specs made shardings over the mesh around, where there is one.

    Raises:
      InvalidOption: it has two axes of one name.
    """
    mesh = compat.context_mesh()
    if mesh is None:
        return shardings
    _require_own_names(mesh)
    return jax.tree.map(
        lambda s: NamedSharding(mesh, s) if isinstance(s, PartitionSpec) else s,
        shardings,
        is_leaf=lambda s: s is None or isinstance(s, PartitionSpec),
    )


def require_named(role: str, shardings: Tree) -> None:
    """Check that shardings, in a tree, name axes of a mesh.

    Raises:
      Unsupported: one does not.
      InvalidOption: a mesh has two axes of one name.
    """
    leaves = jax.tree.leaves(shardings, is_leaf=lambda s: s is None or isinstance(s, PartitionSpec))
    for leaf in leaves:
        if isinstance(leaf, NamedSharding):
            _require_own_names(leaf.mesh)
        if leaf is not None and not isinstance(leaf, NamedSharding | PartitionSpec):
            raise Unsupported(
                f"{role}: a sharding that names no axes of a mesh",
                expected="jax.sharding.NamedSharding, a PartitionSpec, or None",
                got=str(leaf)[:200],
                try_="NamedSharding(ipuxla.mesh(system, shape, names), PartitionSpec(...))",
            )


def _named(sharding: jax.sharding.Sharding | None) -> NamedSharding | None:
    if sharding is None or isinstance(sharding, jax.sharding.SingleDeviceSharding):
        return None
    if isinstance(sharding, NamedSharding):
        mesh = sharding.mesh.abstract_mesh
        return NamedSharding(mesh, sharding.spec) if mesh.size > 1 else None
    raise Unsupported(
        "a sharding that names no axes of a mesh",
        expected="jax.sharding.NamedSharding",
        got=str(sharding)[:200],
        try_="NamedSharding(ipuxla.mesh(system, shape, names), PartitionSpec(...))",
    )


def _require_own_names(mesh: Mesh | AbstractMesh, place: str | None = None) -> None:
    """Raise InvalidOption where two axes of a mesh have one name, of which JAX says nothing until XLA reads it."""
    names = [str(name) for name in mesh.axis_names]
    if len(set(names)) != len(names):
        raise InvalidOption(
            "a mesh needs a name of its own for every axis",
            location=place,
            expected=f"{len(names)} different names",
            got=", ".join(map(repr, names)),
        )


def _shown(mesh: AbstractMesh) -> str:
    return ", ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
