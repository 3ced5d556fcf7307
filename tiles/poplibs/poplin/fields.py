"""Fields that vertices of convolutions read: their windows, and where the elements of these lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiles.graph import OpForm
from tiles.poplibs.poplin.conv_cycles import conv_roles
from tiles.poplibs.poplin.units_code import extent_of, filled_up


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
