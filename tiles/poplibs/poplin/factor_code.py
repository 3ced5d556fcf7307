"""Tile code of LU and QR factorizations: a vertex whose supervisor starts its workers column after column.

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
    compile_reflection,
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


def reflected_by(alpha: jax.Array, rest: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return what a column's element becomes, the factor of its reflection, and what those below are divided by.

    As LAPACK's larfg: of a column whose other elements have no squares nothing changes.
    """
    zero, one = jnp.zeros_like(alpha), jnp.ones_like(alpha)
    norm = jnp.sqrt(alpha * alpha + rest)
    is_done = rest == zero
    beta = jnp.where(is_done, alpha, jnp.where(alpha < zero, norm, zero - norm))
    tau = jnp.where(is_done, zero, (beta - alpha) / jnp.where(is_done, one, beta))
    return beta, tau, jnp.where(is_done, one, alpha - beta)


def _reflector(x: jax.Array, total: jax.Array, alpha: jax.Array, rest: jax.Array) -> tuple[jax.Array, ...]:
    return total + x * x, *reflected_by(alpha, rest)


def _division(x: jax.Array, divisor: jax.Array) -> tuple[jax.Array, ...]:
    return (x / divisor,)


def _reflection(*values: jax.Array) -> tuple[jax.Array, ...]:
    x, v, total, tau, found, first, y, w, product = values
    share = tau * found
    return total + v * x, share, first - share, y - w * product


def qr_code(dtype: str, extents: Extents, target: Target, name: str) -> tuple[VertexCode, ...]:
    """Return the code of vertices that reflect the columns of matrices of at least as many rows; errors of ``lu_code``."""
    isa = instructions_for(target)
    m, n = extents.form.shape[-2:]
    matrices = np.asarray(extents.points) // max(1, m * n)
    kernel = _Reflected()
    move = existing(_variant(isa, "move", dtype)).named(name)

    def part(kind: str, turn: Callable[..., Mapping[str, Field]], k: int, n: int, rows: int) -> VertexCode:
        variant = existing(_variant(isa, kind, dtype)).named(name)
        cell, compiled = partial(_cell, kind, dtype), _COMPILED[kind]
        fields = partial(turn, k)
        return VertexCode(
            variant, n, rows, matrices, cell=cell, compiled=compiled, kernel=kernel, turn=fields
        )

    parts = [VertexCode(move, m * n, 1, matrices, kernel=kernel, turn=_moving)]
    for k in range(n):
        below = m - 1 - k
        parts.append(part("reflector", _reflector_fields, k, below, 1))
        if below:
            parts.append(part("division", _division_fields, k, 1, below))
        if n - 1 - k:
            parts.append(part("reflection", _reflection_fields, k, below, n - 1 - k))
    return tuple(parts)


def _diagonal(k: int, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Return at how many bytes a diagonal element lies, and the bytes of a row."""
    pitch = sizes[-1] * _WORD_BYTES
    return k * (pitch + _WORD_BYTES), pitch


def _reflector_fields(k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    at, pitch = _diagonal(k, sizes)
    return {"out0": ("factors", at), "out1": ("taus", k * _WORD_BYTES), "out2": "divisor", "row_bytes": pitch}


def _division_fields(k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    at, pitch = _diagonal(k, sizes)
    return {"in0": "divisor", "out0": ("factors", at + pitch), "row_bytes": pitch}


def _reflection_fields(k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    at, pitch = _diagonal(k, sizes)
    places = {"in0": ("factors", at), "in1": ("taus", k * _WORD_BYTES)}
    return {**places, "out0": ("factors", at + _WORD_BYTES), "row_bytes": pitch}


@dataclass(frozen=True)
class _Reflected:
    """Matrices with the factors of their columns' reflections: a ``Kernel``."""

    def find(
        self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """See ``Kernel``."""
        m, n = sizes[-2:]
        matrices = np.ascontiguousarray(operands[0].reshape(-1, m * n))
        memory = {"in0": matrices, "factors": np.zeros_like(matrices)}
        memory["taus"] = np.zeros((len(matrices), n), matrices.dtype)
        memory["divisor"] = np.zeros((len(matrices), 1), matrices.dtype)
        return memory, {}

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        cells, batch = len(memory["in0"]) // math.prod(sizes[:-2]), sizes[:-2]
        shapes = {"factors": sizes, "taus": (*batch, sizes[-1])}
        return [memory[name].reshape(cells, *shape) for name, shape in shapes.items()]


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


def _compiled_reflection(part: str, cell: CellFunction, isa: InstructionSet) -> TileCode:
    return compile_reflection(part, cell.jaxpr, cell.dtypes[0][0], isa, UNNAMED)


_COMPILED: dict[str, Callable[[CellFunction, InstructionSet], TileCode]] = {
    "pivot": _compiled_pivot,
    "elimination": _compiled_elimination,
    **{part: partial(_compiled_reflection, part) for part in ("reflector", "division", "reflection")},
}


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
    """Return what one loop of a factorization computes."""
    dtypes = {
        "pivot": ((dtype, dtype, _POSITION, _POSITION), (dtype, _POSITION)),
        "elimination": ((dtype,) * 4, (dtype,) * 2),
        "reflector": ((dtype,) * 4, (dtype,) * 4),
        "division": ((dtype,) * 2, (dtype,)),
        "reflection": ((dtype,) * 9, (dtype,) * 4),
    }[kind]
    functions = {"pivot": larger, "elimination": eliminated, "reflector": _reflector}
    function: Callable[..., Any] = {**functions, "division": _division, "reflection": _reflection}[kind]
    jaxpr: Any = make_jaxpr(function)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in dtypes[0]))
    return CellFunction(jaxpr, dtypes, Arrangement((), ()))
