"""The codelet that reads the bits of elements as elements of another width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jax import Array, lax

from tiles._jax_compat import optimization_barrier
from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import (
    REDUCTION,
    Cell,
    Codelet,
    Cycles,
    Dim,
    Extents,
    Graph,
    IndexMap,
    OpForm,
    Plan,
    Site,
    Tensor,
    VertexCode,
    along,
    code_cycles,
    identity_map,
    register,
    site_of,
)
from tiles.numerics.dtypes import itemsize, to_jax
from tiles.plan.transpose_cycles import copy_cycles
from tiles.poplibs.popops.widths_code import width_code
from tiles.poplibs.poputil.place import place
from tiles.target import Basis, Target

SOURCE = "a copy inside the tile; graphcore/poplibs memcpy rate"


@register
@dataclass(frozen=True)
class BitcastWidth(Codelet):
    """Read elements' bits as elements of another width, which form, or are formed of, the last dimension.

    Args:
      dtype: dtype of the operand.
      out_dtype: dtype of the result.
    """

    name: ClassVar[str] = "popops.BitcastWidth"

    dtype: str
    out_dtype: str

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the same bits.

        Behind a barrier: XLA (jaxlib 0.10.2) merges two bitcasts in a row whatever dimensions they make and take.
        """
        return (lax.bitcast_convert_type(optimization_barrier(operands[0]), to_jax(self.out_dtype)),)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return what the code takes; where there is none, the cycles of a contiguous copy."""
        try:
            return code_cycles(self.tile_code(extents, target))
        except (NoTileCode, OutOfRegisters):
            pass
        size_bytes = np.asarray(extents.results) * itemsize(self.out_dtype)
        return Cycles(copy_cycles(size_bytes, target), Basis.ASSUMED, SOURCE)

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return a copy, see ``width_code``."""
        return width_code(self.dtype, self.out_dtype, extents, target, self.label)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Keep together what makes up one element."""
        return d != len(form.dims) - 1


def bitcast_width(where: Graph | Site, x: Tensor, dtype: str, plan: Plan | None = None) -> Tensor:
    """Return a tensor's bits as elements of another width.

    Narrower ones get a last dimension of their own; wider ones take up the last dimension.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      dtype: an element type of another width.
      plan: use this plan instead of searching.

    Raises:
      InvalidGraph: the last dimension is not one element of ``dtype``, or the width is the same.
    """
    site = site_of(where, "bitcast")
    old, new, rank = itemsize(x.dtype), itemsize(dtype), len(x.shape)
    if old == new or (new > old and (not rank or x.shape[-1] * old != new)):
        raise InvalidGraph(f"{x.name} of {x.dtype} {x.shape} cannot be read as {dtype} of another width")
    dims = [Dim(f"d{i}", size) for i, size in enumerate(x.shape)]
    if new > old:
        dims[-1] = Dim("part", x.shape[-1], REDUCTION)
        result = IndexMap(tuple(along(d) for d in range(rank - 1)))
    else:
        dims.append(Dim("part", old // new))
        result = identity_map(rank + 1)
    form = OpForm(tuple(dims), (identity_map(rank),), (result,))
    codelet = BitcastWidth(x.dtype, dtype)
    return place(site, codelet, form, [x], (dtype,), plan=plan)[0]
