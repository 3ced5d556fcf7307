"""Codelets from JAX functions, as parts of decorated functions; and functions mapped over tiles by hand."""

# pyright: standard
# (it calls functions that their packages leave untyped)

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from hlo_passes.errors import MalformedForm
from hlo_passes.ops import PointForm
from hlo_passes.ops.point_form import COMBINERS
from ipuxla._jax_compat import (
    ClosedJaxpr,
    Datum,
    Function,
    Tree,
    TreeDef,
    tree_leaves,
    tree_structure,
    tree_unflatten,
)
from ipuxla.errors import InvalidCodelet
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend import codelet_call
from tiles._jax_compat import eval_shape

ENTRY_POINTS = "ipuxla.codelets"
"""The group of entry points under which packages offer codelets."""


class Codelet:
    """A function of one point of an index domain, called with whole arrays; see ``codelet``."""

    def __init__(
        self,
        function: Function,
        choices: codelet_call.Codelet,
        parts: Mapping[str, int] | None,
        tiles: range | None,
    ) -> None:
        """Keep the function; calls trace it."""
        functools.update_wrapper(self, function)
        self._function = function
        self._choices = choices
        self._parts = parts
        self._tiles = tiles

    def __repr__(self) -> str:
        """Name and form."""
        return f"<codelet {self._choices.label}: {self._choices.form}>"

    def __call__(self, *arrays: Datum) -> Tree:
        """Run at every point.

        Args:
          *arrays: one for every operand of the form.

        Returns:
          What the function returns, an array for each of its leaves.

        Raises:
          InvalidCodelet: arrays that do not fit the form, or a function that does not.
        """
        operands = [jnp.asarray(x) for x in arrays]
        label, form = self._choices.label, self._choices.form
        try:
            sizes = form.sizes([x.shape for x in operands])
            slices = [
                jax.ShapeDtypeStruct(form.slice_shape(k, x.shape), x.dtype) for k, x in enumerate(operands)
            ]
            jaxpr, tree = _traced(self._function, slices)
            if len(jaxpr.out_avals) != len(form.results):
                raise MalformedForm(str(form), f"{len(form.results)} results", str(len(jaxpr.out_avals)))
            for k, aval in enumerate(jaxpr.out_avals):
                form.result_shape(k, sizes, aval.shape)
        except MalformedForm as error:
            raise InvalidCodelet(f"codelet {label} does not fit its arguments: {error}") from None
        for x in (*operands, *jaxpr.out_avals):
            if jnp.issubdtype(x.dtype, jnp.complexfloating):
                raise InvalidCodelet(
                    f"codelet {label} has complex operands or results",
                    expected="reals",
                    got=x.dtype,
                    try_="real and imaginary parts as two arrays",
                )
        jaxpr, outer = compat.with_consts_as_arguments(jaxpr)
        outer = [jnp.asarray(x) for x in outer]
        choices = codelet_call.Codelet(
            label,
            PointForm(
                (*form.with_whole([x.ndim for x in outer]).operands[len(operands) :], *form.operands),
                form.results,
            ),
            self._choices.combiner,
            self._choices.cycles,
            *self._parts_and_tiles(sizes),
        )
        return tree_unflatten(tree, codelet_call.call(choices, jaxpr, *outer, *operands))

    def _parts_and_tiles(self, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return how many parts every index is split into, and the tiles, as calls carry them."""
        label, form = self._choices.label, self._choices.form
        if self._parts is None and self._tiles is None:
            return (), ()
        names = (*form.points, *form.combined)
        given = dict(self._parts or {})
        if self._parts is None:
            assert self._tiles is not None
            given = {form.points[0]: len(self._tiles)} if form.points else {}
        if odd := [name for name in given if name not in names]:
            raise InvalidCodelet(f"codelet {label} has no index {odd[0]!r} to cut", expected=", ".join(names))
        parts = tuple(int(given.get(name, 1)) for name in names)
        for name, count in zip(names, parts, strict=True):
            if not 1 <= count <= max(1, sizes[name]):
                raise InvalidCodelet(
                    f"codelet {label} cuts index {name} into {count} parts", expected=f"1 to {sizes[name]}"
                )
        total = functools.reduce(lambda a, b: a * b, parts, 1)
        tiles = self._tiles if self._tiles is not None else range(total)
        if len(tiles) != total:
            raise InvalidCodelet(
                f"codelet {label} has {total} parts for {len(tiles)} tiles", expected="a tile for each part"
            )
        return parts, (tiles.start, tiles.step)


def codelet(
    form: str,
    *,
    name: str | None = None,
    combine: str | None = None,
    cycles: int | None = None,
    parts: Mapping[str, int] | None = None,
    tiles: Sequence[int] | None = None,
) -> Callable[[Function], Codelet]:
    """Make a codelet of a JAX function, to be called inside decorated functions.

    ::

        @ipuxla.codelet("x[i + :3, :], w[:3] -> y[i, :]")
        def smooth(x, w):  # x [3, channels], w [3]
            return w @ x

    The function computes one point; a vertex runs it at all points of its cell. It is planned, certified and reported
    under its own name, differentiated by its body or ``jax.custom_vjp``, and ``jax.vmap`` adds an index. Outside decorated
    functions it is what JAX makes of it.

    Args:
      form: what a point reads and writes; see ``hlo_passes.ops.point_form``: ``i`` an index, ``2*i + k`` two, ``:3`` a
        window of three elements, ``:`` a whole axis. Indices that no result has are combined.
      name: its vertex type in reports; by default the function's name.
      combine: how contributions of points to one result are combined: "add" (the default), "mul", "max" or "min".
      cycles: of one point on one worker, in that worker's issue slots; by default estimated from the function's
        operations. A function of single elements rests on the code generated for it (DERIVED), the others are ASSUMED.
      parts: how many parts an index is split into; planned where it is not given.
      tiles: tiles of the parts, evenly spaced; of the first index's, where ``parts`` is not given.

    Raises:
      InvalidCodelet: no form, or choices that do not fit it.
    """
    if combine is not None and combine not in COMBINERS:
        raise InvalidCodelet(f"combine={combine!r} is no way to combine", expected=", ".join(COMBINERS))
    if cycles is not None and (not isinstance(cycles, int) or cycles < 1):
        raise InvalidCodelet(f"cycles={cycles!r} is no number of issue slots", expected="an integer above 0")
    try:
        read = PointForm.parse(form)
    except MalformedForm as error:
        raise InvalidCodelet(str(error)) from None
    combiner = (combine or "add") if read.combined else ""
    if combine is not None and not read.combined:
        raise InvalidCodelet(
            f"combine={combine!r}, but every result of {form!r} is one point's", try_="leave combine out"
        )
    where = None if tiles is None else _evenly_spaced(tiles)

    def decorate(function: Function) -> Codelet:
        label = name or getattr(function, "__name__", "codelet")
        return Codelet(function, codelet_call.Codelet(label, read, combiner, cycles or 0), parts, where)

    return decorate


def tile_map(
    function: Function,
    *arrays: Datum,
    tiles: Sequence[int] | int | None = None,
    in_axes: Sequence[int | None] | int | None = 0,
    name: str | None = None,
    cycles: int | None = None,
) -> Tree:
    """Run a function on tiles by hand: once for every entry of the arrays' leading axis, each on a tile of its own.

    Args:
      function: of what one tile holds, the arrays without their leading axis.
      *arrays: ``[tiles, ...]``; what is not mapped is given to every tile.
      tiles: where: tile numbers, evenly spaced, or the first one; tiles 0, 1, 2, ... by default.
      in_axes: 0 or None for each array, or for all: whether it has the leading axis.
      name: its vertex type in reports.
      cycles: of the function on one worker; see ``codelet``.

    Returns:
      The function's results with a leading axis ``[tiles, ...]``; they stay on their tiles for whatever reads them there.

    Raises:
      InvalidCodelet: arrays of different leading axes, or tiles that are not evenly spaced or of another number.
    """
    axes = [in_axes] * len(arrays) if in_axes is None or isinstance(in_axes, int) else list(in_axes)
    operands = [jnp.asarray(x) for x in arrays]
    label = name or getattr(function, "__name__", "tile_map")
    if len(axes) != len(operands) or any(a not in (0, None) for a in axes) or 0 not in axes:
        raise InvalidCodelet(
            f"tile_map of {label}: in_axes={in_axes!r} does not say which arrays are mapped",
            expected=f"0 or None for each of {len(operands)} arrays, at least one 0",
        )
    counts = {x.shape[0] if x.ndim else None for x, a in zip(operands, axes, strict=True) if a == 0}
    if len(counts) != 1 or None in counts:
        shapes = ", ".join(str(x.shape) for x in operands)
        raise InvalidCodelet(
            f"tile_map of {label}: mapped arrays need one leading axis for the tiles", got=shapes
        )
    (count,) = counts
    assert isinstance(count, int)
    where = (
        range(count) if tiles is None else range(tiles, tiles + count) if isinstance(tiles, int) else tiles
    )
    if len(where) != count:
        raise InvalidCodelet(
            f"tile_map of {label} maps {count} entries to {len(where)} tiles",
            expected="a tile for each entry",
        )
    slices = [
        jax.ShapeDtypeStruct(x.shape[1:] if a == 0 else x.shape, x.dtype)
        for x, a in zip(operands, axes, strict=True)
    ]
    parts = tree_leaves(eval_shape(function, *slices))
    read = ", ".join(
        _entry("tile" if a == 0 else "", len(s.shape)) for a, s in zip(axes, slices, strict=True)
    )
    written = ", ".join(_entry("tile", len(part.shape)) for part in parts)
    mapped = codelet(f"{read} -> {written}", name=label, cycles=cycles, tiles=where)(function)
    return mapped(*operands)


def installed_codelets() -> dict[str, Codelet]:
    """Return the codelets that installed packages offer as entry points of the group ``ipuxla.codelets``, by name.

    Raises:
      InvalidCodelet: an entry point that is none.
    """
    found: dict[str, Codelet] = {}
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda e: (e.name, e.value)):
        loaded = entry.load()
        if not isinstance(loaded, Codelet):
            raise InvalidCodelet(
                f"entry point {entry.name!r} of group {ENTRY_POINTS} is {type(loaded).__name__}: {entry.value}",
                expected="what ipuxla.codelet returns",
            )
        found[entry.name] = loaded
    return found


def _entry(index: str, rank: int) -> str:
    return f"[{', '.join([*([index] if index else []), *([':'] * rank)])}]"


def _traced(function: Function, slices: Sequence[jax.ShapeDtypeStruct]) -> tuple[ClosedJaxpr, TreeDef]:
    traced: tuple[ClosedJaxpr, Tree] = jax.make_jaxpr(function, return_shape=True)(*slices)
    return traced[0], tree_structure(traced[1])


def _evenly_spaced(tiles: Sequence[int]) -> range:
    """Return tile numbers as a range.

    Raises:
      InvalidCodelet: they are not evenly spaced.
    """
    numbers = [int(t) for t in tiles]
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if not numbers or step < 1 or numbers != list(range(numbers[0], numbers[0] + step * len(numbers), step)):
        raise InvalidCodelet(
            "tiles are not evenly spaced",
            expected="such as range(64) or range(1, 512, 4)",
            got=str(numbers)[:80],
        )
    return range(numbers[0], numbers[0] + step * len(numbers), step)
