"""The contraction codelet: ``dot_general`` of one cell, its dimension numbers read off the indexing maps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jax import Array, lax

from tiles._jax_compat import dot_general
from tiles.errors import InvalidGraph
from tiles.graph import Arrangement, Cell, Codelet, Cycles, Extents, OpForm, VertexCode, register
from tiles.numerics.accumulate import accumulate
from tiles.numerics.dtypes import is_float, is_integer, is_narrow_float, itemsize, to_jax
from tiles.poplibs.poplin import matmul_cycles
from tiles.poplibs.poplin.matmul_code import matmul_code
from tiles.poplibs.poplin.matmul_cycles import METHODS, roles_of
from tiles.poplibs.poplin.methods import HELD, grouped, stream_of, streamed_dtype
from tiles.poplibs.poplin.partials import add_partials, partials_cycles
from tiles.poplibs.popops.elementwise_cycles import cpp_name
from tiles.poplibs.popops.reduce import cast_accumulator
from tiles.target import Target


@register
@dataclass(frozen=True)
class MatMul(Codelet):
    """Sum products over the reduced dimensions that both operands have.

    Dimensions of both operands that are kept are batches; the others are free.

    Args:
      operand_dtypes: dtypes of the two operands; by "amp", halves may hold integers (``methods.HELD``) that are added as such.
      accumulate_dtype: dtype in which products are formed and added, and of partials.
      out_dtype: dtype of the result.
      method: how the vertex computes: "amp", "hmac", "outer", "vmac", "scalar", or "auto", the fastest one
        for the extents of each cell.
      may_swap: whether the left operand may be the weights that the units hold, too; which of them it is says what
        lies together in the result. An image never is: what convolves the result reads its channels together.

    Raises:
      InvalidGraph: an unknown method, or floats accumulated as integers.
    """

    name: ClassVar[str] = "poplin.MatMul"
    is_contraction: ClassVar[bool] = True
    without_code: ClassVar[str] = "another method than the multiply units"

    operand_dtypes: tuple[str, str]
    accumulate_dtype: str
    out_dtype: str
    method: str = "auto"
    may_swap: bool = True

    def __post_init__(self) -> None:
        """Check the method and the dtypes."""
        if self.method not in ("auto", *METHODS):
            raise InvalidGraph(f"no matmul method {self.method!r}", expected=f"auto, {', '.join(METHODS)}")
        check_kinds(self.operand_dtypes, self.accumulate_dtype, self.out_dtype, self.method)

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """Those of both operands."""
        return self.operand_dtypes

    @property
    def label(self) -> str:
        """Vertex type, e.g. ``poplin::MatMul<half,float>`` (operands, partials, the result if it differs)."""
        method = [] if self.method == "auto" else [self.method.upper()]
        dtypes = (self.operand_dtypes[0], self.accumulate_dtype, self.out_dtype)
        names = [cpp_name(d) for d in (dtypes if self.out_dtype != self.accumulate_dtype else dtypes[:2])]
        return f"poplin::MatMul<{','.join(method + names)}>"

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the cell's sums of products; padded points of the contracted dimensions, zeros, add nothing.

        Float products are asked for at the highest precision: float32 on the machine is float32.
        """
        roles = roles_of(cell.form)
        lhs, rhs = (
            _without_constant_axes(cell, k, x)
            for k, x in enumerate(held_numbers(operands, self.accumulate_dtype))
        )
        left, right = (index_map.dims for index_map in cell.form.operands)
        contracted, batch = (
            (tuple(left.index(d) for d in dims), tuple(right.index(d) for d in dims))
            for dims in (roles.contracted, roles.batch)
        )
        numbers = (contracted, batch)
        total = dot_general(
            lhs, rhs, numbers, precision=self._precision, preferred_element_type=to_jax(self.accumulate_dtype)
        )
        given = (*roles.batch, *roles.lhs_free, *roles.rhs_free)
        order = [given.index(d) for d in cell.form.results[0].dims]
        total = total if order == sorted(order) else lax.transpose(total, order)
        return (cast_accumulator(total, self.out_dtype),)

    @property
    def _precision(self) -> lax.Precision | None:
        return lax.Precision.HIGHEST if is_float(self.accumulate_dtype) else None

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the PopLibs estimate of the vertex; see ``matmul_cycles``."""
        return matmul_cycles.matmul_cycles(
            self.method, self.accumulate_dtype, self.out_dtype, extents, target, self.may_swap
        )

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of products on the multiply units."""
        return matmul_code(
            self.method, self.accumulate_dtype, self.out_dtype, extents, target, self.may_swap, self.label
        )

    def arrangements(self, extents: Extents, target: Target) -> list[Arrangement]:
        """Return channels in groups for the units, contracted dimensions together for dot products."""
        return matmul_cycles.matmul_orders(self.method, self.accumulate_dtype, extents, target, self.may_swap)

    def flops(self, extents: Extents) -> np.ndarray:
        """Count a multiplication and an addition per point of the domain, on floats."""
        return 2 * extents.points if is_float(self.accumulate_dtype) else np.zeros_like(extents.points)

    def combiner(self) -> str | None:
        """Return how partials are combined: added, or "or" of booleans."""
        return "or" if self.accumulate_dtype == "bool" else "add"

    def combining(self, partials_dtype: str, out_dtype: str) -> Codelet | None:
        """Return poplin's own addition of partials, of floats."""
        return add_partials(partials_dtype, out_dtype) if is_float(partials_dtype) else None

    def joining_cycles(self, results: Any, partials: Any, target: Target) -> Any:
        """Return the cycles of the addition of partials."""
        return partials_cycles(self.accumulate_dtype, self.out_dtype, results, partials, target)

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the contraction that leaves sums in the accumulator's dtype."""
        return dataclasses.replace(self, out_dtype=self.accumulate_dtype), (self.accumulate_dtype,)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer contracted extents of whole weight groups and output channels of whole sets of units."""
        roles = roles_of(form)
        dtype = streamed_dtype(self.operand_dtypes)
        stream = stream_of(dtype, self.accumulate_dtype, target)
        unit = stream.channels if stream.units else max(1, 4 // itemsize(dtype))
        units = max(1, stream.units)
        grains = [1] * len(form.dims)
        for dims, grain in ((roles.contracted, unit), (roles.rhs_free, units)):
            d = grouped(form, dims, grain)
            if d is not None:
                grains[d] = grain if form.dims[d].size >= 2 * grain else 1
        return tuple(grains)

    def code_bytes(self, target: Target) -> int:
        """Estimate instructions of the convolution vertex and its remainder paths (ASSUMED)."""
        return target.instruction_bytes * 320

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Return the bytes of operands that are widened, and of the sums before they are cast to a narrower result."""
        widened = matmul_cycles.widened_bytes(
            self.method, self.accumulate_dtype, extents, target, self.may_swap
        )
        each = bytes_of_sums(self.operand_dtypes, self.accumulate_dtype, self.out_dtype, target)
        return extents.results * each + widened


def check_kinds(operand_dtypes: tuple[str, str], accumulate: str, out_dtype: str, method: str) -> None:
    """Check that operands, sums and results of a contraction are all floats, or none are but halves that hold integers.

    Raises:
      InvalidGraph: they are not.
    """
    dtypes = (*operand_dtypes, accumulate, out_dtype)
    holds = method == "amp" and operand_dtypes == ("float16", "float16") and is_integer(to_jax(accumulate))
    if len({is_float(dtype) for dtype in (dtypes[2:] if holds else dtypes)}) != 1:
        raise InvalidGraph(f"{operand_dtypes} cannot be contracted into {accumulate} by method {method}")


def held_numbers(operands: Sequence[Array], accumulate_dtype: str) -> list[Array]:
    """Return operands of a contraction, those that hold integers as these."""
    is_exact = is_integer(to_jax(accumulate_dtype))
    return [accumulate(x, HELD) if is_exact and is_float(x.dtype) else x for x in operands]


def bytes_of_sums(operand_dtypes: tuple[str, str], accumulate: str, out_dtype: str, target: Target) -> int:
    """Return the bytes of a sum that does not lie where its result does: one that is wider, or cast on the way."""
    if out_dtype != accumulate:
        return itemsize(accumulate)
    sums = stream_of(streamed_dtype(operand_dtypes), accumulate, target).sums
    return itemsize(sums) if itemsize(sums) > itemsize(out_dtype) else 0


def _without_constant_axes(cell: Cell, k: int, operand: Array) -> Array:
    """Return operand k without its axes of constant index."""
    return operand.reshape(tuple(cell.sizes[d] for d in cell.form.operands[k].dims))


def accumulator_of(dtype: str) -> str:
    """Return the dtype in which products are added: float32 for narrower floats, else their own."""
    return "float32" if is_narrow_float(dtype) else dtype


def partials_of(lhs: str, out: str) -> str:
    """Return the dtype in which products of ``lhs`` are added for a result of ``out``.

    A result wider than the accumulator is accumulated in itself. 8-bit floats that go into halves are accumulated in
    halves, the only partials that product units have for them (PopLibs' vertices for quarters); their products are
    halves to the bit but for overflow, which a result of halves has as well. Integers are added in the result's type.
    """
    if is_integer(to_jax(out)):
        return out
    own = accumulator_of(lhs)
    if out == "float16" and is_narrow_float(lhs) and itemsize(lhs) == 1:
        return out
    return out if itemsize(out) > itemsize(own) or not is_float(lhs) else own


def matmul_codelet(
    lhs: str, rhs: str, out_dtype: str | None = None, method: str = "auto", may_swap: bool = True
) -> MatMul:
    """Return the contraction of operands of the given dtypes.

    Args:
      lhs: dtype of the left operand.
      rhs: dtype of the right operand.
      out_dtype: dtype of the result, by default the left operand's. A wider one is accumulated in itself.
      method: see ``MatMul``.
      may_swap: see ``MatMul``.
    """
    out = out_dtype or lhs
    return MatMul((lhs, rhs), partials_of(lhs, out), out, method_for(lhs, out, method), may_swap)


def method_for(lhs: str, out: str, method: str) -> str:
    """Return the method of a contraction: the multiply units where halves hold integers."""
    return "amp" if method == "auto" and is_float(lhs) and is_integer(to_jax(out)) else method
