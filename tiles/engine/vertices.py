"""Codelets as compiled functions of what vertices read: one for all plans, steps and executables that compute the same.

What a codelet computes depends on no address and no tile, so a function compiles once per codelet, form, extents and
arithmetic in a process; layers that repeat, and runs with another plan of the same parts, share it.
"""

from __future__ import annotations

from functools import lru_cache

import jax

from tiles._jax_compat import Function, jit
from tiles.compiler import VertexGroup
from tiles.engine.compilation import quickly
from tiles.engine.interface import FLOAT, RING
from tiles.engine.whole import whole
from tiles.graph import AxisSplit, Cell, Codelet, OpForm, Plan
from tiles.graph import whole as unsplit
from tiles.numerics.ring import ring

KEPT = 512
"""Compiled functions kept for programs to come; the one longest unused goes first."""

Options = tuple[tuple[str, bool | int], ...]


def whole_function(group: VertexGroup, dtypes: tuple[str, ...], arithmetic: str, size_bytes: int) -> Function:
    """Return the whole-array form of a group: logical operands to logical results, see ``tiles.engine.whole``.

    Args:
      group: codelet, form and plan.
      dtypes: element types of the operands.
      arithmetic: "float" or "ring"; in the ring operands are words.
      size_bytes: of all values of the program, by which XLA optimizes more or less.
    """
    options = _options(size_bytes, arithmetic)
    return _whole(group.codelet, group.form, kept_splits(group), dtypes, arithmetic, options)


def whole_form(group: VertexGroup, dtypes: tuple[str, ...], arithmetic: str) -> Function:
    """Return what ``whole_function`` compiles, as a function that JAX can trace."""
    form, splits = group.form, kept_splits(group)
    return _in_arithmetic(_unplaced(group.codelet, form, splits), dtypes, arithmetic)


def kept_splits(group: VertexGroup) -> tuple[AxisSplit, ...]:
    """Return how a group's dimensions are cut as far as results depend on it: in a reduction."""
    split = group.plan.split_reductions(group.form)
    return tuple(
        AxisSplit(s.size, s.grain, ((s.parts, 1),)) if d in split else unsplit(s.size)
        for d, s in enumerate(group.plan.splits)
    )


def cell_function(
    group: VertexGroup, sizes: tuple[int, ...], dtypes: tuple[str, ...], arithmetic: str, size_bytes: int
) -> Function:
    """Return the codelet of many cells of equal extents: origins ``int32[cells, dims]`` and slices ``[cells, ...]``.

    Args:
      group: codelet and form.
      sizes: extents of every cell.
      dtypes: element types of the operands.
      arithmetic: "float" or "ring"; in the ring operands are words.
      size_bytes: of all values of the program, by which XLA optimizes more or less.
    """
    return _cells(group.codelet, group.form, sizes, dtypes, arithmetic, _options(size_bytes, arithmetic))


def cell_form(
    group: VertexGroup, sizes: tuple[int, ...], dtypes: tuple[str, ...], arithmetic: str
) -> Function:
    """Return what ``cell_function`` compiles, as a function that JAX can trace."""
    function = _vectorized(group.codelet, group.form, sizes)
    return _in_arithmetic(function, ("int32", *dtypes), arithmetic)


def _options(size_bytes: int, arithmetic: str) -> Options:
    return tuple((quickly(size_bytes, rounds=arithmetic == FLOAT) or {}).items())


def _compiled(function: Function, dtypes: tuple[str, ...], arithmetic: str, options: Options) -> Function:
    return _jitted(_in_arithmetic(function, dtypes, arithmetic), options)


def _jitted(function: Function, options: Options) -> Function:
    return jit(function, compiler_options=dict(options) or None)


def _in_arithmetic(function: Function, dtypes: tuple[str, ...], arithmetic: str) -> Function:
    return ring(function, dtypes) if arithmetic == RING else function


def _unplaced(codelet: Codelet, form: OpForm, splits: tuple[AxisSplit, ...]) -> Function:
    """Return the whole-array form of a codelet, wherever its cells lie."""
    group = VertexGroup("", codelet, form, Plan(splits), (), ())
    return lambda *operands: whole(group, operands)


@lru_cache(maxsize=KEPT)
def _whole(
    codelet: Codelet,
    form: OpForm,
    splits: tuple[AxisSplit, ...],
    dtypes: tuple[str, ...],
    arithmetic: str,
    options: Options,
) -> Function:
    return _compiled(_unplaced(codelet, form, splits), dtypes, arithmetic, options)


@lru_cache(maxsize=KEPT)
def _cells(
    codelet: Codelet,
    form: OpForm,
    sizes: tuple[int, ...],
    dtypes: tuple[str, ...],
    arithmetic: str,
    options: Options,
) -> Function:
    return _compiled(_vectorized(codelet, form, sizes), ("int32", *dtypes), arithmetic, options)


def _vectorized(codelet: Codelet, form: OpForm, sizes: tuple[int, ...]) -> Function:
    """Return the codelet of many cells of equal extents, as ``cell_function`` does."""

    def vertex(origin: jax.Array, *slices: jax.Array) -> tuple[jax.Array, ...]:
        cell = Cell(form, sizes, tuple(origin[d] for d in range(len(sizes))), (None,) * len(sizes))
        return codelet.compute(cell, *slices)

    return jax.vmap(vertex)
