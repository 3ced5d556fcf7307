"""Tile code of LU factorization: a vertex whose supervisor starts its workers column after column.

A matrix after the other is factored where it lies, by all workers of its tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiles._jax_compat import make_jaxpr
from tiles.elements import (
    Access,
    Arrangement,
    CellFunction,
    InstructionSet,
    TileCode,
    Variant,
    compile_elimination,
    compile_exchange,
    compile_exchanged,
    compile_pivot,
    compile_variant,
    instructions_for,
)
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.graph import Extents, VertexCode
from tiles.graph.cycles import Field
from tiles.numerics.dtypes import to_jax
from tiles.target import Target

_WORD_BYTES = 4
_POSITION = "int32"
_IN_PLACE = Arrangement((Access(alignment_bytes=_WORD_BYTES),), (Access(alignment_bytes=_WORD_BYTES),))


def larger(x: jax.Array, size: jax.Array, row: jax.Array, best: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the size and the row of the larger of an element and the best one before it; NaN is larger than numbers."""
    own = jnp.abs(x)
    is_larger = (own > size) | ((own != own) & (size == size))
    return jnp.where(is_larger, own, size), jnp.where(is_larger, row, best)


def eliminated(
    below: jax.Array, pivot: jax.Array, here: jax.Array, above: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return a row's factor, and an element less the factor times the one above it; a pivot of zero divides nothing."""
    factor = jnp.where(pivot == 0, below, below / jnp.where(pivot == 0, jnp.ones_like(pivot), pivot))
    return factor, here - factor * above


def lu_code(dtype: str, extents: Extents, target: Target, name: str) -> tuple[VertexCode, ...]:
    """Return the code of vertices that factor matrices, whose rows and columns are the last two dimensions.

    Raises:
      NoTileCode: elements that are no whole words.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa, n = instructions_for(target), extents.form.shape[-1]
    pivot, eliminate = (
        (existing(_variant(isa, kind, dtype)).named(name), partial(_cell, kind, dtype), _COMPILED[kind])
        for kind in ("pivot", "elimination")
    )
    move, exchange, permute = (
        existing(_variant(isa, kind, dtype)).named(name) for kind in ("move", "exchange", "exchanged")
    )
    matrices = np.asarray(extents.points) // max(1, n * n)
    kernel = _Matrices()

    def part(
        variant: Variant,
        turn: Callable[[tuple[int, ...]], Mapping[str, Field]],
        n: int,
        rows: int = 1,
        **how: Any,
    ) -> VertexCode:
        return VertexCode(variant, n, rows, matrices, kernel=kernel, turn=turn, **how)

    parts = [part(move, _moving, n * n)]
    for k in range(n):
        parts.append(part(pivot[0], partial(_pivot, k), n - k, cell=pivot[1], compiled=pivot[2]))
        if k < n - 1:
            below = n - 1 - k
            parts.append(part(exchange, partial(_exchange, k), n))
            parts.append(
                part(
                    eliminate[0],
                    partial(_elimination, k),
                    below,
                    below,
                    cell=eliminate[1],
                    compiled=eliminate[2],
                )
            )
    return (*parts, part(permute, _permutation, n))


def _moving(sizes: tuple[int, ...]) -> dict[str, Field]:
    return {"out0": "factors"}


def _pivot(k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    at = (sizes[-1] + 1) * k * _WORD_BYTES
    rows = {"row_bytes": sizes[-1] * _WORD_BYTES, "first": k}
    return {"in0": ("factors", at), "out0": ("pivots", k * _WORD_BYTES), **rows}


def _exchange(k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    pitch = sizes[-1] * _WORD_BYTES
    rows = {"row_bytes": pitch, "first": k}
    return {"in0": ("pivots", k * _WORD_BYTES), "out0": ("factors", k * pitch), **rows}


def _elimination(k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    pitch = sizes[-1] * _WORD_BYTES
    at = k * pitch + k * _WORD_BYTES
    return {"in0": ("factors", at), "out0": ("factors", at + pitch), "row_bytes": pitch}


def _permutation(sizes: tuple[int, ...]) -> dict[str, Field]:
    return {"in0": "pivots", "out0": "permutation"}


@dataclass(frozen=True)
class _Matrices:
    """Matrices, each with its pivots and the rows that they bring to its places: a ``Kernel``."""

    def find(
        self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """See ``Kernel``."""
        n = sizes[-1]
        matrices = np.ascontiguousarray(operands[0].reshape(-1, n * n))
        numbers = np.zeros((len(matrices), n), _POSITION)
        memory = {"in0": matrices, "factors": np.zeros_like(matrices)}
        return memory | {"pivots": numbers, "permutation": numbers}, {}

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        cells = len(memory["in0"]) // math.prod(sizes[:-2])
        shapes = {"factors": sizes, "pivots": sizes[:-1], "permutation": sizes[:-1]}
        return [memory[name].reshape(cells, *shape) for name, shape in shapes.items()]


def _compiled_pivot(cell: CellFunction, isa: InstructionSet) -> TileCode:
    return compile_pivot(cell.jaxpr, cell.dtypes[0][0], isa, UNNAMED)


def _compiled_elimination(cell: CellFunction, isa: InstructionSet) -> TileCode:
    return compile_elimination(cell.jaxpr, cell.dtypes[0][0], isa, UNNAMED)


_COMPILED = {"pivot": _compiled_pivot, "elimination": _compiled_elimination}


def _same(x: jax.Array) -> jax.Array:
    return x


@lru_cache(maxsize=64)
def _variant(isa: InstructionSet, kind: str, dtype: str) -> Variant | NoVariant:
    def make() -> Variant:
        if kind == "move":
            jaxpr: Any = make_jaxpr(_same)(jax.ShapeDtypeStruct((), to_jax(dtype)))
            return compile_variant(jaxpr, ((dtype,), (dtype,)), _IN_PLACE, isa, UNNAMED)
        if kind in _COMPILED:
            return Variant.of(_COMPILED[kind](_cell(kind, dtype), isa), isa)
        made = {"exchange": compile_exchange, "exchanged": compile_exchanged}[kind](isa, UNNAMED)
        return Variant.of(made, isa)

    return kept_variant(("lu", kind, dtype), isa, make)


@lru_cache(maxsize=16)
def _cell(kind: str, dtype: str) -> CellFunction:
    """Return one step of looking for a pivot, or of an elimination."""
    dtypes = {
        "pivot": ((dtype, dtype, _POSITION, _POSITION), (dtype, _POSITION)),
        "elimination": ((dtype,) * 4, (dtype,) * 2),
    }[kind]
    function = {"pivot": larger, "elimination": eliminated}[kind]
    jaxpr: Any = make_jaxpr(function)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in dtypes[0]))
    return CellFunction(jaxpr, dtypes, Arrangement((), ()))
