"""Tile code of outer products: every element of a column times a row, a row of results at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from tiles._jax_compat import make_jaxpr
from tiles.elements import Access, Arrangement, CellFunction, InstructionSet, Variant, compile_variant
from tiles.elements.cell import ACCESS_BYTES, ROW
from tiles.elements.kept_variants import kept_variant
from tiles.elements.variants import UNNAMED, NoVariant, existing
from tiles.graph import OpForm, VertexCode
from tiles.graph.cycles import CodeMemory, Field
from tiles.numerics.dtypes import is_float, itemsize, to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.poplin.casts import compiled_cast
from tiles.poplibs.poplin.conv_cycles import conv_roles
from tiles.poplibs.poplin.fields import geometry_of, held_fields
from tiles.poplibs.poplin.matmul_cycles import roles_of
from tiles.poplibs.poplin.units_code import (
    INPUTS,
    WEIGHTS,
    extent_of,
    filled_up,
    in_order,
    in_words,
)
from tiles.poplibs.popops.reduce import cast_accumulator

RESULTS = "out0"


@lru_cache(maxsize=64)
def _cell(dtype: str, accumulate: str, out_dtype: str) -> CellFunction:
    """Return the product of two elements: where it is of their dtype, rounding it once or twice is the same."""
    wide = dtype if dtype == out_dtype else accumulate

    def multiply(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        return (cast_accumulator(cast_accumulator(x, wide) * cast_accumulator(w, wide), out_dtype),)

    dtypes = (dtype, dtype), (out_dtype,)
    jaxpr = make_jaxpr(multiply)(*(jax.ShapeDtypeStruct((), to_jax(d)) for d in dtypes[0]))
    column, row = Access(ROW, itemsize(dtype)), Access(every_row=False)
    return CellFunction(jaxpr, dtypes, Arrangement((column, row), (Access(),), separate=True, has_rows=True))


@lru_cache(maxsize=64)
def _variant(isa: InstructionSet, *question: str) -> Variant | NoVariant:
    def make() -> Variant:
        cell = _cell(*question)
        return compile_variant(cell.jaxpr, cell.dtypes, cell.arrangement, isa, UNNAMED)

    return kept_variant(("outer product", *question), isa, make)


@dataclass(frozen=True)
class Outer:
    """Outer products of groups, one after the other: a ``Kernel``.

    Attributes:
      form: the operation.
      dtype: of the operands.
      accumulate: dtype in which products are formed.
      out_dtype: dtype of results.
    """

    form: OpForm
    dtype: str
    accumulate: str
    out_dtype: str

    @property
    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the dimensions of groups, of positions and of outputs."""
        raise NotImplementedError

    def columns(self, sizes: Sequence[int], x: np.ndarray) -> np.ndarray:
        """Return the left operand, ``[cells, groups, positions]`` in any shape."""
        raise NotImplementedError

    def _counts(self, sizes: Sequence[int]) -> tuple[int, int, int]:
        groups, positions, outputs = (extent_of(sizes, dims) for dims in self.kept)
        return groups, positions, outputs

    def find(self, sizes: tuple[int, ...], origins: np.ndarray, operands: Sequence[np.ndarray]) -> CodeMemory:
        """See ``Kernel``."""
        groups, positions, outputs = self._counts(sizes)
        x = self.columns(sizes, operands[0]).reshape(-1, groups, positions)
        summed = [d for d in self.form.operands[1].dims if d not in (*self.kept[0], *self.kept[2])]
        w = in_order(operands[1], self.form, 1, (*self.kept[0], *self.kept[2], *summed))
        w = filled_up(w.reshape(len(x), groups, outputs), 2, ACCESS_BYTES // w.itemsize)
        size = itemsize(self.out_dtype)
        pitch = -(-outputs * size // ACCESS_BYTES) * ACCESS_BYTES
        found = np.zeros(
            (len(x), groups, positions, pitch // size),
            in_words(self.out_dtype, is_float(self.dtype) and x.dtype.kind == "u"),
        )
        memory = {INPUTS: np.ascontiguousarray(x), WEIGHTS: np.ascontiguousarray(w), RESULTS: found}
        return memory, {}

    def turns(self, workers: int, sizes: tuple[int, ...]) -> list[dict[str, Field]]:
        """Return the fields of every group's run."""
        groups, positions, outputs = self._counts(sizes)
        size = itemsize(self.dtype)
        pitches = {
            "in0": size,
            "in1": 0,
            "out0": -(-outputs * itemsize(self.out_dtype) // ACCESS_BYTES) * ACCESS_BYTES,
        }
        strides = {f"{name}_row_bytes": pitch for name, pitch in pitches.items()}
        strides |= {f"{name}_step_bytes": workers * pitch for name, pitch in pitches.items()}
        row = -(-outputs * size // ACCESS_BYTES) * ACCESS_BYTES
        return [
            {
                **strides,
                "in0": (INPUTS, group * positions * size),
                "in1": (WEIGHTS, group * row),
                "out0": (RESULTS, group * positions * pitches["out0"]),
            }
            for group in range(groups)
        ]

    def results(self, sizes: tuple[int, ...], memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See ``Kernel``."""
        outputs = extent_of(sizes, self.kept[2])
        dims = [d for part in self.kept for d in part]
        found = memory[RESULTS][..., :outputs]
        found = found.reshape(len(found), *(sizes[d] for d in dims))
        return [found.transpose([0, *(1 + dims.index(d) for d in self.form.results[0].dims)])]

    def parts(
        self,
        isa: InstructionSet,
        does: np.ndarray,
        groups: Amount,
        positions: Amount,
        outputs: Amount,
        name: str,
    ) -> Iterator[VertexCode]:
        """Yield the code of vertices.

        Args:
          isa: the instruction set.
          does: which cells run it.
          groups: of every cell.
          positions: of every cell.
          outputs: of every cell.
          name: of the variants.
        """
        question = self.dtype, self.accumulate, self.out_dtype
        yield VertexCode(
            existing(_variant(isa, *question)).named(name),
            outputs,
            positions,
            np.where(does, groups, 0),
            cell=partial(_cell, *question),
            kernel=self,
            compiled=compiled_cast,
            turn=partial(self.turns, isa["worker_contexts"]),
            interleaved=(RESULTS,),
        )


class MatrixOuter(Outer):
    """Outer products of a product of matrices that contracts a single element."""

    @property
    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """See ``Outer``."""
        roles = roles_of(self.form)
        return roles.batch, roles.lhs_free, roles.rhs_free

    def columns(self, sizes: Sequence[int], x: np.ndarray) -> np.ndarray:
        """See ``Outer``."""
        roles = roles_of(self.form)
        return in_order(x, self.form, 0, (*roles.batch, *roles.lhs_free, *roles.contracted))


class FieldOuter(Outer):
    """Outer products of a convolution of one tap and input channel."""

    @property
    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """See ``Outer``."""
        roles = conv_roles(self.form)
        return roles.groups, (*roles.batch, *roles.field), roles.outputs

    def columns(self, sizes: Sequence[int], x: np.ndarray) -> np.ndarray:
        """See ``Outer``."""
        g = geometry_of(self.form, sizes)
        index: list[Any] = [slice(None, None, stride) for stride in g.strides]
        return held_fields(x, self.form, sizes, g, 1)[(slice(None),) * 4 + tuple(index)]
