"""Tile code of LU, QR and Cholesky factorizations and of triangular solves: a vertex whose supervisor starts its workers column after column.

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

from tiles._jax_compat import Function, Jaxpr, make_jaxpr
from tiles.elements import (
    Access,
    Arrangement,
    CellFunction,
    InstructionSet,
    TileCode,
    Variant,
    compile_cell,
    compile_elimination,
    compile_exchange,
    compile_exchanged,
    compile_pivot,
    compile_reflection,
    compile_substitution,
    compile_variant,
    instructions_for,
)
from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.graph import Extents, OpForm, VertexCode
from tiles.graph.cycles import CodeMemory, Field
from tiles.numerics.dtypes import to_jax
from tiles.target import Target

_WORD_BYTES = 4
_POSITION = "int32"
_WORDS = Access(alignment_bytes=_WORD_BYTES)
_ARRANGED = {
    "root": Arrangement((_WORDS,), (_WORDS,)),
    "triangle": Arrangement(
        (
            _WORDS,
            Access(CELL, _WORD_BYTES),
            Access(ROW, _WORD_BYTES, counts=True),
            Access(ELEMENT, _WORD_BYTES, every_row=False, counts=True),
        ),
        (_WORDS,),
        in_place=(0,),
        has_rows=True,
    ),
}
"""How cells lie that are no nests of their own."""
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


def _substituted(factor: jax.Array, here: jax.Array, known: jax.Array) -> tuple[jax.Array, ...]:
    return (here - factor * known,)


def solve_code(
    dtype: str, is_lower: bool, is_unit: bool, extents: Extents, target: Target, name: str
) -> tuple[VertexCode, ...]:
    """Return the code of vertices that solve triangular systems: each unknown is taken out of the other equations.

    The domain's last three dimensions are right-hand sides, unknowns and columns of matrices; errors of ``lu_code``.
    """
    isa, n = instructions_for(target), extents.form.shape[-1]
    columns = np.asarray(extents.sizes[-3], np.int64)
    matrices = np.asarray(extents.points) // np.maximum(n * n * columns, 1)
    kernel = _Systems(extents.form)

    def part(
        kind: str, turn: Callable[[tuple[int, ...]], Mapping[str, Field]], n: Any, rows: Any
    ) -> VertexCode:
        variant = existing(_variant(isa, kind, dtype)).named(name)
        cell, compiled = partial(_cell, kind, dtype), _COMPILED[kind]
        return VertexCode(variant, n, rows, matrices, cell=cell, kernel=kernel, compiled=compiled, turn=turn)

    move = existing(_variant(isa, "move", dtype)).named(name)
    parts = [VertexCode(move, n * columns, 1, matrices, kernel=kernel, turn=_sides)]
    for i in range(n) if is_lower else reversed(range(n)):
        if not is_unit:
            parts.append(part("division", partial(_unknown, i), 1, columns))
        others = n - 1 - i if is_lower else i
        if others:
            fields = partial(_equations, i, i + 1 if is_lower else 0)
            parts.append(part("substitution", fields, columns, others))
    return tuple(parts)


def root_of(pivot: jax.Array) -> jax.Array:
    """Return the root of a pivot; not a number of one that is not positive."""
    return jnp.sqrt(jnp.where(pivot > 0, pivot, jnp.full_like(pivot, np.nan)))


def _root(pivot: jax.Array) -> tuple[jax.Array, ...]:
    return (root_of(pivot),)


def _triangle(x: jax.Array, last: jax.Array, column: jax.Array, row: jax.Array) -> tuple[jax.Array, ...]:
    """Return an element of a factor, of which all are NaN where the last one is; nothing above the diagonal."""
    known = jnp.where(last == last, x, jnp.full_like(x, np.nan))
    return (jnp.where(row >= column, known, jnp.zeros_like(x)),)


def cholesky_code(dtype: str, extents: Extents, target: Target, name: str) -> tuple[VertexCode, ...]:
    """Return the code of vertices that factor matrices, which lie column after column; errors of ``lu_code``.

    What the columns before contribute is taken out of whole columns, also above the diagonal, where nothing reads it.
    """
    isa, n = instructions_for(target), extents.form.shape[-1]
    matrices = np.asarray(extents.points) // max(1, n * n)
    kernel = _Columns(extents.form, target.workers_per_tile)

    def part(kind: str, turn: Callable[..., Mapping[str, Field]], n: int, rows: int = 1) -> VertexCode:
        variant = existing(_variant(isa, kind, dtype)).named(name)
        cell, compiled = partial(_cell, kind, dtype), _COMPILED[kind]
        return VertexCode(variant, n, rows, matrices, cell=cell, kernel=kernel, compiled=compiled, turn=turn)

    move = existing(_variant(isa, "move", dtype)).named(name)
    parts = [VertexCode(move, n * n, 1, matrices, kernel=kernel, turn=_moving)]
    for k in range(n):
        below = n - 1 - k
        parts.append(part("root", partial(_pivot_place, k), 1))
        if below:
            parts.append(part("division", partial(_below, k), 1, below))
            parts.append(part("substitution", partial(_columns_behind, k), below, below))
    return (*parts, part("triangle", kernel.triangle, n, n))


def _pivot_place(k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    at, _ = _diagonal(k, sizes)
    return {"in0": ("factors", at), "out0": ("factors", at)}


def _below(k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    at, _ = _diagonal(k, sizes)
    places: dict[str, Field] = {"in0": ("factors", at), "out0": ("factors", at + _WORD_BYTES)}
    return {**places, "row_bytes": _WORD_BYTES}


def _columns_behind(k: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    at, pitch = _diagonal(k, sizes)
    column = ("factors", at + _WORD_BYTES)
    behind = ("factors", at + pitch + _WORD_BYTES)
    return {"in0": column, "in1": column, "factor_bytes": _WORD_BYTES, "out0": behind, "row_bytes": pitch}


@dataclass(frozen=True)
class _Columns:
    """Matrices that become their factors, column after column: a ``Kernel``."""

    form: OpForm
    workers: int

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        rank, n = len(sizes), sizes[-1]
        own = [axis.terms[0][0] for axis in self.form.operands[0].axes]
        order = [0, *(1 + own.index(d) for d in (*range(rank - 2), rank - 1, rank - 2))]
        matrices = np.ascontiguousarray(operands[0].transpose(order).reshape(-1, n * n))
        return {"in0": matrices, "factors": np.zeros_like(matrices)}, {}

    def triangle(self, sizes: tuple[int, ...]) -> dict[str, Field]:
        """Return the fields of going over columns, and their elements, which both are counted."""
        pitch = sizes[-1] * _WORD_BYTES
        fields: dict[str, Field] = {"in0": "factors", "in1": ("factors", sizes[-1] * pitch - _WORD_BYTES)}
        fields |= {"in2": 0, "in3": 0}
        for name, each in (("in0", pitch), ("in2", 1)):
            fields |= {f"{name}_row_bytes": each, f"{name}_step_bytes": each * self.workers}
        return fields

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        rank, batch = len(sizes), sizes[:-2]
        cells = len(memory["in0"]) // math.prod(batch)
        found = memory["factors"].reshape(cells, *batch, sizes[-1], sizes[-2])
        order = [*range(rank - 2), rank - 1, rank - 2]
        return [found.transpose([0, *(1 + order.index(d) for d in self.form.results[0].dims)])]


def _sides(sizes: tuple[int, ...]) -> dict[str, Field]:
    return {"in0": "sides", "out0": "unknowns"}


def _unknown(i: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    at, _ = _diagonal(i, sizes)
    pitch = sizes[-3] * _WORD_BYTES
    return {"in0": ("matrix", at), "out0": ("unknowns", i * pitch), "row_bytes": _WORD_BYTES}


def _equations(i: int, first: int, sizes: tuple[int, ...]) -> dict[str, Field]:
    apart, pitch = sizes[-1] * _WORD_BYTES, sizes[-3] * _WORD_BYTES
    places: dict[str, Field] = {"in0": ("matrix", first * apart + i * _WORD_BYTES), "factor_bytes": apart}
    known, others = ("unknowns", i * pitch), ("unknowns", first * pitch)
    return {**places, "in1": known, "out0": others, "row_bytes": pitch}


@dataclass(frozen=True)
class _Systems:
    """Matrices with the right-hand sides that become unknowns, an equation a row: a ``Kernel``."""

    form: OpForm

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        batch = range(len(sizes) - 3)
        matrix, sides = (
            self._in_order(operands[k], k, (*batch, len(sizes) - 2, len(sizes) + last))
            for k, last in enumerate((-1, -3))
        )
        return {"matrix": matrix, "sides": sides, "unknowns": np.zeros_like(sides)}, {}

    def _in_order(self, x: np.ndarray, k: int, dims: tuple[int, ...]) -> np.ndarray:
        """Return ``[matrices of all cells, rows, columns]``."""
        own = [axis.terms[0][0] for axis in self.form.operands[k].axes]
        ordered = x.transpose([0, *(1 + own.index(d) for d in dims)])
        return np.ascontiguousarray(ordered.reshape(-1, *ordered.shape[-2:]))

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        batch, last = sizes[:-3], len(sizes)
        cells = len(memory["unknowns"]) // math.prod(batch)
        found = memory["unknowns"].reshape(cells, *batch, sizes[-2], sizes[-3])
        order = [*range(len(batch)), last - 2, last - 3]
        return [found.transpose([0, *(1 + order.index(d) for d in self.form.results[0].dims)])]


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

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
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

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
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


def _compiled_cell(cell: CellFunction, isa: InstructionSet) -> TileCode:
    return compile_cell(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)


def _compiled_substitution(cell: CellFunction, isa: InstructionSet) -> TileCode:
    return compile_substitution(cell.jaxpr, cell.dtypes[0][0], isa, UNNAMED)


def _compiled_reflection(part: str, cell: CellFunction, isa: InstructionSet) -> TileCode:
    return compile_reflection(part, cell.jaxpr, cell.dtypes[0][0], isa, UNNAMED)


_COMPILED: dict[str, Callable[[CellFunction, InstructionSet], TileCode]] = {
    "pivot": _compiled_pivot,
    "elimination": _compiled_elimination,
    "substitution": _compiled_substitution,
    "root": _compiled_cell,
    "triangle": _compiled_cell,
    **{part: partial(_compiled_reflection, part) for part in ("reflector", "division", "reflection")},
}


def _same(x: jax.Array) -> jax.Array:
    return x


@lru_cache(maxsize=64)
def _variant(isa: InstructionSet, kind: str, dtype: str) -> Variant | NoVariant:
    def make() -> Variant:
        if kind == "move":
            jaxpr: Jaxpr = make_jaxpr(_same)(jax.ShapeDtypeStruct((), to_jax(dtype)))
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
        "substitution": ((dtype,) * 3, (dtype,)),
        "root": ((dtype,), (dtype,)),
        "triangle": ((dtype, dtype, _POSITION, _POSITION), (dtype,)),
    }[kind]
    functions: dict[str, Function] = {
        "pivot": larger,
        "elimination": eliminated,
        "reflector": _reflector,
        "division": _division,
        "reflection": _reflection,
        "substitution": _substituted,
        "root": _root,
        "triangle": _triangle,
    }
    function = functions[kind]
    jaxpr: Jaxpr = make_jaxpr(function)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in dtypes[0]))
    return CellFunction(jaxpr, dtypes, _ARRANGED.get(kind, Arrangement((), ())))
