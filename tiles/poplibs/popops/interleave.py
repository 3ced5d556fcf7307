"""Interleave: put the phases of a result back in turn, each element exactly where it belongs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles.errors import NoTileCode, Unsupported
from tiles.graph import (
    Cell,
    Codelet,
    Cycles,
    Dim,
    Extents,
    Graph,
    IndexMap,
    OpForm,
    Site,
    Tensor,
    VertexCode,
    along,
    code_or_formula,
    identity_map,
    register,
    site_of,
)
from tiles.numerics.dtypes import itemsize, to_jax
from tiles.poplibs.popops.interleave_code import Phases
from tiles.poplibs.popops.movement import slice as slice_tensor
from tiles.poplibs.poputil.copies import reshape
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

MAX_PHASES = 1 << 14
"""Phases of windows that are computed one after another."""


@register
@dataclass(frozen=True)
class Interleave(Codelet):
    """Give result element ``(..., y, phase, ...)`` the element ``(..., y, ...)`` of that phase's operand.

    Args:
      axes: domain dimensions that count phases, in order.
      phases: numbers of phases along those dimensions.
      present: which phases, in row-major order, have an operand.
      dtype: dtype of everything.
      fill: what the other phases hold.
    """

    name: ClassVar[str] = "popops.Interleave"

    axes: tuple[int, ...]
    phases: tuple[int, ...]
    present: tuple[bool, ...]
    dtype: str
    fill: float | int | bool = 0

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Stack the operands along the phases' dimensions."""
        shape = tuple(1 if d in self.axes else n for d, n in enumerate(cell.sizes))
        given = iter(operands)
        rest = jnp.full(shape, self.fill, to_jax(self.dtype))
        parts = [next(given).reshape(shape) if is_present else rest for is_present in self.present]
        for axis, count in reversed(list(zip(self.axes, self.phases, strict=True))):
            parts = [
                lax.concatenate(parts[start : start + count], axis) for start in range(0, len(parts), count)
            ]
        return (parts[0],)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep the phases of an element together."""
        return d not in self.axes

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the code's cycles, or three slots an element where rows begin inside a word (ASSUMED)."""
        share = -(-np.asarray(extents.results) // target.workers_per_tile)
        slots = 24 + 3 * share * max(1, itemsize(self.dtype) // 4)
        value = target.supervisor_vertex_overhead_cycles + target.worker_issue_interval_cycles * slots
        assumed = Cycles(value, Basis.ASSUMED, "a strided copy, three slots per element")
        try:
            return code_or_formula(self.tile_code(extents, target), assumed)
        except NoTileCode:
            return assumed

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of copies of rows; see ``Phases``."""
        return Phases(self.axes, self.present, self.dtype, self.fill).parts(extents, target, self.label)


def interleave(
    where: Graph | Site,
    parts: Seq[Tensor | None],
    phases: Seq[int],
    sizes: Seq[int],
    *,
    dtype: str,
    shape: Seq[int],
    fill: float | int | bool = 0,
) -> Tensor:
    """Return the tensor whose element ``phase + phases * y`` along each dimension is element y of that phase.

    Args:
      where: graph, or site in it, to add to.
      parts: a tensor of ``shape`` per phase in row-major order, or None where every element is ``fill``.
      phases: number of phases along every dimension.
      sizes: shape of the result; at most ``phases * shape``, what lies beyond is dropped.
      dtype: dtype of everything.
      shape: shape of every part.
      fill: what phases without a part hold.
    """
    site = site_of(where, "interleave")
    dims: list[Dim] = []
    bare: list[int] = []
    axes: list[int] = []
    for d, (size, count) in enumerate(zip(shape, phases, strict=True)):
        bare.append(len(dims))
        dims.append(Dim(f"d{d}", int(size)))
        if count > 1:
            axes.append(len(dims))
            dims.append(Dim(f"p{d}", int(count)))
    operands = [part for part in parts if part is not None]
    maps = tuple(IndexMap(tuple(along(d) for d in bare)) for _ in operands)
    form = OpForm(tuple(dims), maps, (identity_map(len(dims)),))
    counts = tuple(int(count) for count in phases if count > 1)
    codelet = Interleave(tuple(axes), counts, tuple(part is not None for part in parts), dtype, fill)
    (stacked,) = place(site, codelet, form, operands, (dtype,))
    full = tuple(int(n) * int(count) for n, count in zip(shape, phases, strict=True))
    result = reshape(site, stacked, full)
    if full == tuple(sizes) or not math.prod(full):
        return result
    return slice_tensor(site.at("cut"), result, [0] * len(full), list(sizes))


def phase_numbers(phases: Seq[int]) -> list[tuple[int, ...]]:
    """Return the phase numbers along every dimension, of all phases in row-major order.

    Raises:
      Unsupported: there are more than MAX_PHASES, each of which is steps of its own.
    """
    if math.prod(phases) > MAX_PHASES:
        raise Unsupported(
            f"windows over dilated arrays fall into {math.prod(phases):,} phases",
            expected=f"at most {MAX_PHASES:,}",
            try_="smaller dilations of the base, or strides that share their factors",
        )
    return list(itertools.product(*(range(count) for count in phases)))
