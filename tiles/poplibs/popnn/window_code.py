"""Tile code of windows: their taps are operands side by side, and the channels of each window are a row.

What a tap reads lies a fixed distance from what the first one reads, so all move by one pointer. Windows are taken to follow
each other at one distance; where those of a cell lie in several rows, what it takes to go to the next row is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tiles._jax_compat import Function, make_jaxpr
from tiles.elements import Access, Arrangement, CellFunction, instructions_for
from tiles.elements.cell import ELEMENT
from tiles.errors import NoTileCode
from tiles.graph import Affine, CodeData, Extents, IndexMap, OpForm, VertexCode
from tiles.numerics.dtypes import itemsize, to_jax
from tiles.poplibs.popops.fold import FOLDS
from tiles.poplibs.popops.map_code import aligned_rows, check_widths
from tiles.poplibs.popops.reduce import cast_accumulator
from tiles.target import Target

MOST_TAPS = 9
"""Of a window: every tap takes a register for its distance, of which there are a dozen."""
_ACCESS_BYTES, _WORD_BYTES = 8, 4
STAYS: dict[str, Callable[[Any, Any], Any]] = {"GE": lax.ge, "GT": lax.gt, "LE": lax.le, "LT": lax.lt}
"""By direction: whether an earlier value stays when a later one comes."""


@dataclass(frozen=True)
class Axis:
    """Windows along one axis of an operand.

    Args:
      number: of the axis.
      windows: domain dimension of the windows.
      taps: elements of a window.
      stride: distance between neighbouring windows.
      dilation: distance between neighbouring elements of a window.
    """

    number: int
    windows: int
    taps: int
    stride: int
    dilation: int = 1


def channels_of(form: OpForm, channels: set[int]) -> tuple[int, ...]:
    """Return those of some dimensions that lie innermost in the result, of more than one point.

    Raises:
      NoTileCode: there is none: windows along the innermost dimension.
    """
    found: list[int] = []
    for d in reversed([d for d in form.results[0].dims if form.dims[d].size > 1]):
        if d not in channels:
            break
        found.append(d)
    if not found:
        raise NoTileCode("windows along the innermost dimension", expected="channels innermost")
    return tuple(reversed(found))


def tap_views(x: np.ndarray, axes: Sequence[Axis], sizes: Sequence[int]) -> list[np.ndarray]:
    """Return what each tap reads of an operand of many cells ``[cells, *extents]``, in row-major order of taps."""
    views: list[np.ndarray] = []
    for taps in itertools.product(*(range(axis.taps) for axis in axes)):
        cut = [slice(None)] * x.ndim
        for axis, tap in zip(axes, taps, strict=True):
            start = tap * axis.dilation
            cut[1 + axis.number] = slice(
                start, start + axis.stride * (sizes[axis.windows] - 1) + 1, axis.stride
            )
        views.append(x[tuple(cut)])
    return views


def taps_form(form: OpForm, axes: Sequence[Axis], others: Sequence[IndexMap] = ()) -> OpForm:
    """Return the form whose operands are the taps of the first operand, and then others."""
    windows = {axis.number: axis.windows for axis in axes}
    first = form.operands[0]
    maps = tuple(Affine(((windows[i], 1),), 0) if i in windows else a for i, a in enumerate(first.axes))
    count = math.prod(axis.taps for axis in axes)
    return replace(form, operands=(replace(first, axes=maps),) * count + tuple(others))


def fold_code(
    operation: str,
    dtype: str,
    accumulate_dtype: str,
    axes: Sequence[Axis],
    extents: Extents,
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    """Return the code of folds of windows.

    Args:
      operation: what folds, as of ``FOLDS``.
      dtype: of operand and result.
      accumulate_dtype: of the fold.
      axes: where windows lie.
      extents: cell sizes.
      target: the machine.
      name: of the variants.

    Raises:
      NoTileCode: no channels innermost, too many taps, or an operation or a dtype without code.
      OutOfRegisters: too few registers.
    """
    taps = tuple(axis.taps for axis in axes)
    question = operation, dtype, accumulate_dtype, taps
    return _code("pool", _fold_cell, question, dtype, taps, 0, axes, extents, target, name)


def select_code(
    direction: str, dtype: str, axes: Sequence[Axis], extents: Extents, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code that gives each window's source to the element that it selects; windows do not overlap.

    Its last operand is the source, its results are the elements of windows.

    Raises:
      NoTileCode, OutOfRegisters: as of ``fold_code``.
    """
    taps = tuple(axis.taps for axis in axes)
    question = direction, dtype, taps
    return _code("select", _select_cell, question, dtype, taps, 1, axes, extents, target, name)


def _code(
    family: str,
    make: Callable[..., CellFunction],
    question: tuple[Any, ...],
    dtype: str,
    taps: tuple[int, ...],
    sources: int,
    axes: Sequence[Axis],
    extents: Extents,
    target: Target,
    name: str,
) -> tuple[VertexCode, ...]:
    count = math.prod(taps)
    check_widths((dtype,))
    if not 1 <= count <= MOST_TAPS:
        raise NoTileCode(f"windows of {count} elements", expected=f"at most {MOST_TAPS}")
    form = extents.form
    kept = {
        term[0] for axis in form.operands[-1].axes for term in axis.terms if not form.dims[term[0]].is_reduced
    }
    inner = channels_of(form, kept - {axis.windows for axis in axes})
    outer = tuple(d for d in form.results[0].dims if d not in inner and d in kept)
    n, rows = np.broadcast_arrays(
        np.atleast_1d(extents.product(inner)), np.atleast_1d(extents.product(outer))
    )
    results = count if sources else 1
    dtypes = (dtype,) * (count + sources), (dtype,) * results
    levels = ((ELEMENT, True),) * (count + sources)
    isa = instructions_for(target)
    parts = aligned_rows(family, make, question, dtypes, levels, n, rows, isa, name)
    data = CodeData(
        tuple(("operand", k) for k in range(count + sources)),
        tuple(("result", k) for k in range(results)),
        outer,
        inner,
    )
    return tuple(replace(part, data=data) for part in parts)


def _arranged(dtype: str, taps: int, sources: int, results: int, grain: int, shares: bool) -> Arrangement:
    alignment = math.gcd(_ACCESS_BYTES, grain * itemsize(dtype))
    if alignment < _WORD_BYTES:
        raise NoTileCode(f"rows of {dtype} that begin inside a word", expected="whole words")
    moving, own = (Access(ELEMENT, alignment, beside=beside) for beside in ("in0", ""))
    written = Access(ELEMENT, alignment, beside="out0")
    operands = (own, *(moving,) * (taps - 1), *(own,) * sources)
    return Arrangement(operands, (own, *(written,) * (results - 1)), has_rows=True, shares_rows=shares)


@lru_cache(maxsize=256)
def _fold_cell(
    operation: str, dtype: str, accumulate_dtype: str, taps: tuple[int, ...], grain: int, shares: bool
) -> CellFunction:
    """Return what a variant of ``fold_code`` computes; ``grain`` is what row lengths are multiples of."""
    count, combine = math.prod(taps), FOLDS[operation][1]

    def window(*values: jax.Array) -> tuple[jax.Array, ...]:
        wide = [cast_accumulator(x, accumulate_dtype) for x in values]
        return (cast_accumulator(folded(wide, taps, combine), dtype),)

    return _cell(window, dtype, count, 0, 1, grain, shares)


@lru_cache(maxsize=256)
def _select_cell(direction: str, dtype: str, taps: tuple[int, ...], grain: int, shares: bool) -> CellFunction:
    """Return what a variant of ``select_code`` computes; ``grain`` is what row lengths are multiples of."""
    count, stays = math.prod(taps), STAYS[direction]

    def combine(left: Any, right: Any) -> Any:
        return lax.select(stays(left[0], right[0]), left[0], right[0]), left, right

    def given(tree: Any, source: jax.Array) -> list[jax.Array]:
        if len(tree) == 1:
            return [source]
        _, left, right = tree
        keep, zero = stays(left[0], right[0]), jnp.zeros((), source.dtype)
        return [
            *given(left, lax.select(keep, source, zero)),
            *given(right, lax.select(keep, zero, source)),
        ]

    def window(*values: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(given(folded([(x,) for x in values[:-1]], taps, combine), values[-1]))

    return _cell(window, dtype, count, 1, count, grain, shares)


def folded(items: list[Any], taps: tuple[int, ...], combine: Callable[[Any, Any], Any]) -> Any:
    """Return the fold of what taps hold, in row-major order: along the last axis first."""
    if len(taps) > 1:
        each = math.prod(taps[1:])
        rows = range(0, len(items), each)
        items = [folded(items[at : at + each], taps[1:], combine) for at in rows]
    total = items[0]
    for item in items[1:]:
        total = combine(total, item)
    return total


def _cell(
    window: Function, dtype: str, taps: int, sources: int, results: int, grain: int, shares: bool
) -> CellFunction:
    how = _arranged(dtype, taps, sources, results, grain, shares)
    element = jax.ShapeDtypeStruct((), to_jax(dtype))
    jaxpr = make_jaxpr(window)(*(element,) * (taps + sources))
    return CellFunction(jaxpr, ((dtype,) * (taps + sources), (dtype,) * results), how)
