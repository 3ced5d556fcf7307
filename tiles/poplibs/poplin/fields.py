"""Fields that vertices of convolutions read: their windows, where the elements of these lie, and in which runs workers take them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from tiles.elements import Formula, Variant
from tiles.elements.amp import RUN_FIELDS
from tiles.graph import OpForm, VertexCode
from tiles.graph.cycles import Field, Kernel
from tiles.poplibs.poplin.conv_cycles import conv_roles
from tiles.poplibs.poplin.units_code import SUMS, extent_of, filled_up


def window_axes(x: np.ndarray, form: OpForm, before: Sequence[int], after: Sequence[int]) -> np.ndarray:
    """Return the left operand, ``[cells, *before, *windows, *after]``; axes of constant index vanish."""
    axes = form.operands[0].axes
    single = {axis.terms[0][0]: 1 + n for n, axis in enumerate(axes) if len(axis.terms) == 1}
    windows = [1 + n for n, axis in enumerate(axes) if len(axis.terms) > 1]
    constant = [1 + n for n, axis in enumerate(axes) if not axis.terms]
    order = [0, *(single[d] for d in before), *windows, *(single[d] for d in after)]
    return x.transpose(*order, *constant).reshape([x.shape[n] for n in order])


@dataclass(frozen=True)
class Geometry:
    """A cell's fields: rows of two dimensions at least.

    Attributes:
      batch: fields.
      field, taps, strides, dilations, reach: of every dimension; the reach is of what a cell reads, in elements.
    """

    batch: int
    field: tuple[int, ...]
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    reach: tuple[int, ...]

    def place(self, index: Sequence[int]) -> int:
        """Return where an element lies in a field."""
        at = 0
        for i, reach in zip(index, self.reach, strict=True):
            at = at * reach + i
        return at


def geometry_of(form: OpForm, sizes: Sequence[int], height: int = 1) -> Geometry:
    """Return a cell's fields, of which rows are read up to whole multiples of ``height`` taps."""
    roles = conv_roles(form)
    one = (1,) if len(roles.field) < 2 else ()
    field, taps = ((*one, *(sizes[d] for d in dims)) for dims in (roles.field, roles.taps))
    strides, dilations = (*one, *roles.strides), (*one, *roles.dilations)
    whole = (-(-taps[0] // height) * height, *taps[1:])
    reach = tuple(
        (f - 1) * s + (t - 1) * d + 1 for f, s, t, d in zip(field, strides, whole, dilations, strict=True)
    )
    return Geometry(extent_of(sizes, roles.batch), field, taps, strides, dilations, reach)


def held_fields(
    x: np.ndarray, form: OpForm, sizes: Sequence[int], geometry: Geometry, multiple: int
) -> np.ndarray:
    """Return the left operand, ``[cells, groups, channels, batch, *reach]``, with zeros where nothing is held.

    Args:
      x: what cells hold of it, ``[cells, *axes]``.
      form: the operation.
      sizes: extents of a cell.
      geometry: of its fields.
      multiple: of channels of a group, to which these are filled up.
    """
    roles = conv_roles(form)
    x = window_axes(x, form, (*roles.groups, *roles.inputs, *roles.batch), ())
    held = x.shape[len(x.shape) - len(roles.field) :]
    held = held if len(held) == len(geometry.reach) else (1, *held)
    x = x.reshape(len(x), extent_of(sizes, roles.groups), -1, geometry.batch, *held)
    x = filled_up(x, 2, multiple)
    missing = [(0, 0)] * 4 + [(0, r - h) for r, h in zip(geometry.reach, held, strict=True)]
    return np.pad(x, missing)


MOST_PIECES = 12
"""Into how many runs rows are cut at most."""


def pieces_of(rows: Any, columns: Any, formula: Formula) -> np.ndarray:
    """Return into how many runs rows are cut, so that the busiest worker has least to do by a variant's closed form."""
    cuts = np.arange(1, MOST_PIECES + 1).reshape(-1, *[1] * np.ndim(rows))
    length = -(-np.asarray(columns) // cuts)
    return 1 + np.argmin(np.asarray(formula.cycles(length, np.asarray(rows) * cuts)), axis=0)


def runs_of(g: Geometry, formula: Formula, accesses: tuple[int, int], each: int = 1) -> np.ndarray:
    """Return where inputs and results of runs begin, in accesses, and their turns: uint16 ``[runs, 3]``, longest first.

    Args:
      g: a cell's fields.
      formula: closed form of a panel over runs, which says how rows are cut.
      accesses: of an element's inputs, and of a position's results.
      each: positions of a turn, which divide a row.
    """
    rows, turns = g.batch * math.prod(g.field[:-1]), g.field[-1] // each
    length = -(-turns // int(pieces_of(rows, turns, formula)))
    first = np.indices((g.batch, *g.field[:-1])).reshape(len(g.field), -1)
    at = first[0]
    for index, step, reach in zip(first[1:], g.strides, g.reach, strict=False):
        at = at * reach + index * step
    start = np.arange(0, turns, length)
    count = np.broadcast_to(np.minimum(length, turns - start), (rows, len(start)))
    inputs = (at[:, None] * g.reach[-1] + start * each * g.strides[-1]) * accesses[0]
    results = (np.arange(rows)[:, None] * g.field[-1] + start * each) * accesses[1]
    found = np.stack([inputs, results, count], axis=-1).reshape(-1, RUN_FIELDS)
    return found[np.argsort(-found[:, 2], kind="stable")].astype(np.uint16)


class RunKernel(Kernel, Protocol):
    """A kernel of panels over runs."""

    def turns(self, is_first: bool, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """Return the fields of the panels that begin sums, or of all others."""
        ...


def run_parts(
    kernel: RunKernel,
    variants: tuple[Variant, Variant],
    rows: Any,
    columns: Any,
    runs: tuple[Any, Any],
    formula: Formula,
) -> Iterator[VertexCode]:
    """Yield the code of panels over runs: of those that begin sums, and of those that add to them.

    Args:
      kernel: what lies in memory.
      variants: of the two.
      rows: of all fields of a cell.
      columns: turns of the loop that a row takes.
      runs: how often a vertex runs each.
      formula: closed form of a panel over runs, which says how rows are cut.
    """
    pieces = pieces_of(rows, columns, formula)
    for is_first, variant, times in zip((True, False), variants, runs, strict=True):
        turn = partial(kernel.turns, is_first)
        yield VertexCode(
            variant,
            -(-columns // pieces),
            rows * pieces,
            times,
            kernel=kernel,
            turn=turn,
            interleaved=(SUMS,),
        )
