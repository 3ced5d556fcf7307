"""Meshes of a system's IPUs, and functions mapped over all of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import SupportsIndex, Unpack

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from ipuxla._jax_compat import Datum, Function, Tree, tree_leaves, tree_map
from ipuxla.api import JitOptions, jit
from ipuxla.errors import InvalidOption, WrongArguments
from ipuxla.options import make_options
from tiles.target import System


def mesh(
    system: str | System, shape: Sequence[int] | None = None, names: Sequence[str] | None = None
) -> AbstractMesh:
    """Return a mesh of a system's IPUs, for JAX's shardings. No device is needed.

    The device of number n, counted row by row, is IPU n of the system. IPUs are numbered along their links (the two of
    a card or a rung, then the next rung), so a last axis of 2 is a card. Along an axis that the program sends round itself
    (``ppermute``, halos), devices are numbered along a folded ring of links where that takes less time: neighbours, the
    last and the first too, are a hop or two apart then. Rings within reductions and gathers fold themselves.

    Args:
      system: a name ("dss8440", "gc2 x 16"), the path of a data file, or a ``System``.
      shape: sizes of axes, the slowest first; all IPUs along one axis unless given.
      names: names of axes; "ipu" for one, else one for each is needed.

    Raises:
      InvalidOption: more devices than IPUs, sizes below 1, or names that are not as many or not different.
      UnknownTarget: no system has the name.
    """
    options = make_options(system)
    sizes = (options.num_ipus,) if shape is None else _sizes(shape)
    axes = ("ipu",) if names is None and len(sizes) == 1 else _names(names or ())
    if min(sizes, default=0) < 1 or math.prod(sizes) > options.num_ipus:
        raise InvalidOption(
            f"a mesh of {' x '.join(map(str, sizes)) or 'no axes'} does not fit on {options.machine_name}",
            expected=f"axes of at least 1, and at most {options.num_ipus:,} devices",
            got=f"{math.prod(sizes):,} devices",
        )
    if len(axes) != len(sizes) or len(set(axes)) != len(axes):
        raise InvalidOption(
            "a mesh needs a name of its own for every axis",
            expected=f"{len(sizes)} different names",
            got=", ".join(map(repr, axes)) or "none",
        )
    # From JAX 0.11 on an abstract mesh is explicit unless told: types of arrays would have to name its axes.
    return AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes))


def _sizes(given: Iterable[object]) -> tuple[int, ...]:
    """Return the sizes of axes, of what a caller gave, whose types may be unchecked."""
    try:
        sizes = tuple(given)
    except TypeError:  # a single number
        sizes = (None,)
    whole = tuple(operator.index(size) for size in sizes if isinstance(size, SupportsIndex))
    if len(whole) != len(sizes):
        raise InvalidOption("the shape of a mesh is a sequence of whole numbers", got=repr(given)[:80])
    return whole


def _names(given: Sequence[object]) -> tuple[str, ...]:
    """Return the names of axes, of what a caller gave, whose types may be unchecked."""
    names = tuple(name for name in given if isinstance(name, str))
    if len(names) != len(given):
        raise InvalidOption("the axes of a mesh are named by strings", got=repr(given)[:80])
    return names


def _first(x: jax.Array) -> jax.Array:
    return x[0]


def _with_leading_axis(x: Datum) -> jax.Array:
    return jax.numpy.asarray(x)[None]


def pmap(
    function: Function,
    axis_name: str = "ipu",
    *,
    target: str | System,
    in_axes: int | Sequence[int | None] | None = 0,
    **options: Unpack[JitOptions],
) -> Function:
    """Map a function over leading axes, one entry for each IPU of a system, as ``jax.pmap`` does over devices.

    It is ``jax.shard_map`` over all IPUs: collectives in ``function`` name ``axis_name``.

    Args:
      function: of arrays without the leading axis.
      axis_name: of the axis of IPUs.
      target: the system.
      in_axes: 0 for arguments with a leading axis, None for those that are the same on every IPU; for all, or for each.
      **options: as for ``jit``.

    Raises:
      InvalidOption: other axes.
      WrongArguments: a leaf whose leading axis is not as long as there are IPUs, or more or fewer arguments than axes.
      UnknownTarget: no system has the name.
    """
    over = mesh(target, names=(axis_name,))
    axes = tuple(in_axes) if isinstance(in_axes, Sequence) else (in_axes,)
    if any(isinstance(axis, bool) or axis not in (0, None) for axis in axes):
        raise InvalidOption(
            "an argument of pmap is mapped over its leading axis, or the same on every IPU",
            expected="in_axes of 0 and None",
            got=repr(in_axes),
        )
    specs = tuple(PartitionSpec() if axis is None else PartitionSpec(axis_name) for axis in axes)
    each_axis = specs if isinstance(in_axes, Sequence) else specs[0]

    def axes_of(args: tuple[Tree, ...]) -> tuple[int | None, ...]:
        return axes if isinstance(in_axes, Sequence) else axes * len(args)

    def each(*parts: Tree) -> Tree:
        own = (
            part if axis is None else tree_map(_first, part)
            for part, axis in zip(parts, axes_of(parts), strict=True)
        )
        return tree_map(_with_leading_axis, function(*own))

    mapped = jit(
        jax.shard_map(
            each, mesh=over, in_specs=each_axis, out_specs=PartitionSpec(axis_name), check_vma=False
        ),
        target=target,
        **options,
    )

    def call(*args: Tree) -> Tree:
        if len(args) != len(axes_of(args)):
            raise WrongArguments(
                "pmap has an axis for each argument", expected=f"{len(axes)} arguments", got=str(len(args))
            )
        split = [arg for arg, axis in zip(args, axes_of(args), strict=True) if axis is not None]
        for leaf in tree_leaves(split):
            if np.shape(leaf)[:1] != (over.size,):
                raise WrongArguments(
                    f"an argument of pmap has a leading axis for each of {over.size:,} IPUs",
                    expected=f"[{over.size}, ...]",
                    got=str(list(np.shape(leaf))),
                )
        return mapped(*args)

    return call
