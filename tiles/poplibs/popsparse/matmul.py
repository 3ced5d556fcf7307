"""A sparse matrix times a dense one: the codelet of a part, and the builder that places it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcasted_iota, dot_general
from tiles.errors import InvalidGraph
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
    Site,
    Tensor,
    along,
    register,
    site_of,
)
from tiles.numerics.dtypes import to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.poplin.partials import add_partials, partials_cycles
from tiles.poplibs.popops.elementwise_cycles import cpp_name
from tiles.poplibs.popops.reduce import cast_accumulator
from tiles.poplibs.popsparse.cycles import SOURCE, dynamic_cycles, static_cycles
from tiles.poplibs.popsparse.pattern import BLOCKS
from tiles.poplibs.poputil import place, reshape
from tiles.target import Basis, Target

BAND, PART, COLUMN, ROW, ROW_IN_BLOCK, PLACE, COLUMN_IN_BLOCK, BAND_COLUMN = range(8)
"""Dimensions of the domain. Bands, parts and columns of the dense operand are cut, the others stay whole."""
ACCUMULATE = "float32"


@register
@dataclass(frozen=True)
class SparseDenseMatMul(Codelet):
    """Multiply blocks by the rows of a dense matrix that meet them, and add up the products of every block row.

    Operands: values ``[bands, parts, places, b, b]``, block rows and columns ``[bands, parts, places]``, and the dense
    matrix ``[bands, columns, b, n]``; result ``[parts, rows, b, n]``. A place whose row is none holds no block.

    Args:
      dtype: of values and dense matrix, float16 or float32.
      out_dtype: of the result; sums are float32.
      block: elements along a block's side.
      is_dynamic: whether the pattern is data of the run, so that vertices read it from buckets.

    Raises:
      InvalidGraph: a block or dtype that PopLibs has no vertex for.
    """

    name: ClassVar[str] = "popsparse.SparseDenseMatMul"

    dtype: str
    out_dtype: str
    block: int
    is_dynamic: bool

    def __post_init__(self) -> None:
        """Check block and dtype."""
        if self.block not in BLOCKS or self.dtype not in ("float16", "float32"):
            raise InvalidGraph(
                f"no vertex multiplies blocks of {self.block} {self.dtype}",
                expected="blocks of 1, 4, 8 or 16, float16 or float32",
            )

    @property
    def label(self) -> str:
        """Vertex type, e.g. ``popsparse::StaticSparseDenseMatMulBlock<half,float,16,16>``."""
        kind = "SparseDenseMatMul" if self.is_dynamic else "StaticSparseDenseMatMul"
        types = f"{cpp_name(self.dtype)},{cpp_name(ACCUMULATE)}"
        if self.block == 1:
            return f"popsparse::{kind}ElementWise<{types}>"
        return f"popsparse::{kind}Block<{types},{self.block},{self.block}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the sums of the cell's parts."""
        values, rows, columns, dense = operands
        real = cell.reduced_mask()
        if real is not None:  # bands beyond the last one
            kept = real.reshape(-1)[:, None, None] if real.size > 1 else real.reshape(1, 1, 1)
            rows = jnp.where(kept, rows, jnp.asarray(cell.sizes[ROW], rows.dtype))
        bands = broadcasted_iota(jnp.int32, rows.shape, 0)
        parts = broadcasted_iota(jnp.int32, rows.shape, 1)
        met = dense[bands, columns.astype(jnp.int32)]
        product = dot_general(
            values,
            met,
            (((4,), (3,)), ((0, 1, 2), (0, 1, 2))),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=to_jax(ACCUMULATE),
        )
        shape = tuple(cell.sizes[d] for d in (PART, ROW, ROW_IN_BLOCK, COLUMN))
        total = (
            jnp.zeros(shape, to_jax(ACCUMULATE)).at[parts, rows.astype(jnp.int32)].add(product, mode="drop")
        )
        return (cast_accumulator(total, self.out_dtype),)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return PopLibs' estimate of the vertex; parts of one cell one after another."""
        rows, places, columns = (extents.sizes[d] for d in (ROW, PLACE, COLUMN))
        cost = dynamic_cycles if self.is_dynamic else static_cycles
        each = cost(np.minimum(rows, places), places, columns, self.block, self.dtype, target)
        value = extents.sizes[BAND] * extents.sizes[PART] * each
        return Cycles(np.where(columns > 0, value, 0), Basis.DOCUMENTED, SOURCE)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count a multiplication and an addition per element of a block and column."""
        used = (BAND, PART, COLUMN, ROW_IN_BLOCK, PLACE, COLUMN_IN_BLOCK)
        return 2 * extents.product(used)

    def combiner(self) -> str | None:
        """Return that partials of bands are added."""
        return "add"

    def combining(self, partials_dtype: str, out_dtype: str) -> Codelet | None:
        """Return poplin's addition of partials."""
        return add_partials(partials_dtype, out_dtype)

    def joining_cycles(self, results: Amount, partials: Amount, target: Target) -> Any:
        """Return the cycles of the addition of partials."""
        return partials_cycles(ACCUMULATE, self.out_dtype, results, partials, target)

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the codelet that leaves sums in float32."""
        return dataclasses.replace(self, out_dtype=ACCUMULATE), (ACCUMULATE,)

    def may_split(self, form: OpForm, d: int) -> bool:
        """Return whether it is bands, parts or the dense operand's columns."""
        return d in (BAND, PART, COLUMN)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole vectors of columns."""
        return tuple(target.vector_width(self.dtype) if d == COLUMN else 1 for d in range(len(form.dims)))


def _form(bands: int, parts: int, n: int, rows: int, block: int, room: int, columns: int) -> OpForm:
    sizes = {
        BAND: Dim("band", bands, REDUCTION),
        PART: Dim("part", parts),
        COLUMN: Dim("n", n),
        ROW: Dim("row", rows),
        ROW_IN_BLOCK: Dim("i", block),
        PLACE: Dim("place", room, REDUCTION),
        COLUMN_IN_BLOCK: Dim("j", block, REDUCTION),
        BAND_COLUMN: Dim("column", columns, REDUCTION),
    }

    def at(*dims: int) -> IndexMap:
        return IndexMap(tuple(along(d) for d in dims))

    operands = (
        at(BAND, PART, PLACE, ROW_IN_BLOCK, COLUMN_IN_BLOCK),
        at(BAND, PART, PLACE),
        at(BAND, PART, PLACE),
        at(BAND, BAND_COLUMN, COLUMN_IN_BLOCK, COLUMN),
    )
    return OpForm(tuple(sizes[d] for d in range(8)), operands, (at(PART, ROW, ROW_IN_BLOCK, COLUMN),))


def sparse_dense_matmul(
    where: Graph | Site,
    values: Tensor,
    block_rows: Tensor,
    block_columns: Tensor,
    dense: Tensor,
    rows: int,
    *,
    is_dynamic: bool = False,
) -> Tensor:
    """Return a sparse matrix times a dense one, ``[m, n]``.

    Args:
      where: graph, or site in it, to add to.
      values: blocks by part, ``[bands, parts, places, b, b]``, as ``cut`` orders them.
      block_rows: uint16 ``[bands, parts, places]``, row of a block inside its part; ``rows`` where there is none.
      block_columns: uint16, column of a block inside its band.
      dense: ``[k, n]``.
      rows: block rows of a part.
      is_dynamic: whether the pattern is known only at run time.

    Raises:
      InvalidGraph: operands that do not belong together.
    """
    site = site_of(where, "sparse_dense_matmul")
    bands, parts, room, block, wide = values.shape
    k, n = dense.shape
    if (
        block != wide
        or k % (bands * block)
        or {t.shape for t in (block_rows, block_columns)} != {values.shape[:3]}
    ):
        raise InvalidGraph(
            f"values {values.shape}, rows {block_rows.shape}, columns {block_columns.shape} and a dense matrix "
            f"{dense.shape} do not belong together"
        )
    columns = k // (bands * block)
    form = _form(bands, parts, n, rows, block, room, columns)
    codelet = SparseDenseMatMul(values.dtype, values.dtype, block, is_dynamic)
    by_band = reshape(site, dense, (bands, columns, block, n))
    (result,) = place(site, codelet, form, [values, block_rows, block_columns, by_band], (values.dtype,))
    return reshape(site, result, (parts * rows * block, n))
