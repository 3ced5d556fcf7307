"""Tile code that reads elements' bits as elements of another width: a copy, word by word where a vertex has whole words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import jax
import numpy as np

from tiles._jax_compat import Jaxpr, make_jaxpr
from tiles.elements import CellFunction, contiguous, instructions_for
from tiles.elements.variants import existing
from tiles.errors import NoTileCode
from tiles.graph import Extents, VertexCode
from tiles.graph.cycles import CodeMemory
from tiles.numerics.dtypes import is_float, itemsize, to_jax
from tiles.poplibs.popops.map_code import named_variant
from tiles.target import Target

_CARRIERS = {4: "float32", 2: "uint16", 1: "uint8"}
"""As what bits move, by what the bytes of a vertex are a multiple of."""


def width_code(
    dtype: str, out_dtype: str, extents: Extents, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of vertices: those with a whole number of words move words, others halves or bytes.

    Args:
      dtype: of the operand.
      out_dtype: of the result.
      extents: cell sizes.
      target: the machine.
      name: of the variants.

    Raises:
      NoTileCode: integers that become floats: the ring knows them by the operand.
    """
    if is_float(to_jax(out_dtype)) and not is_float(to_jax(dtype)):
        raise NoTileCode(f"bits of {dtype} as {out_dtype} of another width")
    isa, size_bytes = (
        instructions_for(target),
        np.asarray(extents.points) * min(map(itemsize, (dtype, out_dtype))),
    )
    multiple, kernel = np.gcd(size_bytes, max(_CARRIERS)), _Bits(out_dtype)
    parts: list[VertexCode] = []
    for size, carrier in _CARRIERS.items():
        runs = (multiple == size) & (size_bytes > 0)
        if runs.any():
            variant = existing(named_variant(name, isa, "bits of another width", _cell, carrier))
            parts.append(VertexCode(variant, size_bytes // size, runs=runs, kernel=kernel))
    return tuple(parts)


@lru_cache(maxsize=8)
def _cell(carrier: str) -> CellFunction:
    def same(x: jax.Array) -> tuple[jax.Array, ...]:
        return (x,)

    jaxpr: Jaxpr = make_jaxpr(same)(jax.ShapeDtypeStruct((), to_jax(carrier)))
    return CellFunction(jaxpr, ((carrier,), (carrier,)), contiguous(1))


@dataclass(frozen=True)
class _Bits:
    """An array as it is, and its bits again. A ``Kernel``.

    Args:
      out_dtype: dtype of the result; in the ring, a float's is that of its words.
    """

    out_dtype: str

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        del sizes
        cells, (x,) = len(origins), operands
        wide = np.dtype(to_jax(self.out_dtype))
        if x.dtype.kind == "u" and is_float(wide):
            wide = np.dtype(f"u{wide.itemsize}")
        held = np.ascontiguousarray(x.reshape(cells, -1))
        return {"in0": held, "out0": np.zeros((cells, held[0].nbytes // wide.itemsize), wide)}, {}

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        found = memory["out0"]
        count = math.prod(found.shape[1:])
        shape = sizes if math.prod(sizes) == count else sizes[:-1]
        return [found.reshape(-1, *shape)]
