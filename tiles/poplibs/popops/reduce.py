"""The reduction codelet: an elementwise prologue, then a fold of the reduced dimensions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tiles._jax_compat import broadcast, broadcast_in_dim
from tiles.errors import InvalidGraph, NoTileCode, OutOfRegisters
from tiles.graph import (
    REDUCTION,
    Cell,
    Codelet,
    Cycles,
    Dim,
    Extents,
    IndexMap,
    OpForm,
    VertexCode,
    along,
    code_or_formula,
    identity_map,
    register,
)
from tiles.numerics.dtypes import float_limits, is_float, is_narrow_float, itemsize, to_jax
from tiles.numerics.shared import Amount
from tiles.poplibs.popops import elementwise_cycles, reduce_cycles
from tiles.poplibs.popops.expression import Body, body_dtypes, evaluate_body
from tiles.poplibs.popops.fold import FOLDS, cast_accumulator, fold
from tiles.poplibs.popops.inner_loops import calls_library
from tiles.poplibs.popops.map import access_grains, body_flops
from tiles.poplibs.popops.reduce_code import reduction_code, stages_bytes
from tiles.target import Basis, Target

OPERATIONS = tuple(FOLDS)
_KEEP_ZERO = ("add", "subtract", "multiply", "negate", "convert")
"""Functions that are zero where all arguments are, also of words in the ring. Not all dtypes have a zero."""
_ON_BOOLEANS = {"add": "or", "max": "or", "mul": "and", "min": "and"}


@register
@dataclass(frozen=True)
class Reduce(Codelet):
    """Fold the value of an expression over the reduced dimensions of the domain.

    Args:
      body: the prologue's rows as in ``Map``; empty folds the only operand itself. Its last row is folded.
      operation: add, mul, max, min, and, or, xor.
      operand_dtypes: dtype of every operand.
      accumulate_dtype: dtype of partial results.
      out_dtype: dtype of the result.

    Raises:
      InvalidGraph: an unknown operation or a malformed expression.
    """

    name: ClassVar[str] = "popops.Reduce"
    any_order: ClassVar[bool] = True

    body: Body
    operation: str
    operand_dtypes: tuple[str, ...]
    accumulate_dtype: str
    out_dtype: str

    def __post_init__(self) -> None:
        """Check the operation and the dtypes."""
        if self.operation not in FOLDS:
            raise InvalidGraph(
                f"no reduction {self.operation!r}", expected=", ".join(FOLDS), got=self.operation
            )
        if not self.body and len(self.operand_dtypes) != 1:
            raise InvalidGraph("a reduction without a prologue takes one operand", got=self.operand_dtypes)
        if is_float(self.value_dtype) != is_float(self.accumulate_dtype):
            raise InvalidGraph(
                f"values of {self.value_dtype} cannot be accumulated as {self.accumulate_dtype}"
            )

    @property
    def value_dtype(self) -> str:
        """Dtype of the values folded."""
        return body_dtypes(self.body, self.operand_dtypes)[-1]

    @property
    def stated_dtypes(self) -> tuple[str, ...]:
        """Those of all operands."""
        return self.operand_dtypes

    @property
    def label(self) -> str:
        """Vertex type as PopLibs spells it, e.g. ``popops::Reduce<ReduceAdd,half,float>``."""
        kind, out = (elementwise_cycles.cpp_name(d) for d in (self.value_dtype, self.out_dtype))
        prologue = "" if not self.body else "Expression"
        return f"popops::Reduce{prologue}<Reduce{self.operation.capitalize()},{kind},{out}>"

    @property
    def is_plain_sum(self) -> bool:
        """Without a prologue."""
        dtypes = {*self.operand_dtypes, self.accumulate_dtype, self.out_dtype}
        return not self.body and self.operation == "add" and dtypes == {"float32"}

    @property
    def keeps_partials(self) -> bool:
        """Folds of integers and words do not depend on where they were cut."""
        return is_float(self.accumulate_dtype)

    def compute(self, cell: Cell, *operands: Array) -> tuple[Array, ...]:
        """Return the fold of the cell's part of the reduced dimensions, padded points left out."""
        aligned = [cell.align(k, x) for k, x in enumerate(operands)]
        value = evaluate_body(self.body, aligned, cell)[-1]
        if value.shape != cell.sizes:
            value = broadcast_in_dim(value, cell.sizes, range(len(cell.sizes)))
        value = cast_accumulator(value, self.accumulate_dtype)
        mask = None if self._is_neutral_beyond(cell) else cell.reduced_mask()
        if mask is not None:
            neutral = broadcast(neutral_element(self.operation, self.accumulate_dtype), value.shape)
            value = lax.select(jnp.broadcast_to(mask, value.shape), value, neutral)
        total = fold(self.operation, value, cell.form.reduced)
        kept = [d for d, dim in enumerate(cell.form.dims) if not dim.is_reduced]
        order = [kept.index(d) for d in cell.form.results[0].dims]
        total = total if order == sorted(order) else lax.transpose(total, order)
        return (cast_accumulator(total, self.out_dtype),)

    def _is_neutral_beyond(self, cell: Cell) -> bool:
        """Whether what operands hold at padded points, zeros, makes values of zero there, which change no sum."""
        if self.operation not in ("add", "or", "xor"):
            return False
        padded = {d for d, limit in enumerate(cell.limits) if limit is not None}
        zeros = [
            padded <= {a.terms[0][0] for a in index_map.axes if len(a.terms) == 1}
            for index_map in cell.form.operands
        ]
        for name, arguments, _ in self.body:
            zeros.append(name in _KEEP_ZERO and all(zeros[argument] for argument in arguments))
        dtypes = body_dtypes(self.body, self.operand_dtypes)
        return zeros[-1] and all(np.array(0, to_jax(d)).astype(np.float32) == 0 for d in dtypes)

    def cycles(self, extents: Extents, target: Target) -> Cycles:
        """Return the PopLibs estimate of the vertex, see ``reduce_cycles``; where it has none, its code's cycles."""
        stated = reduce_cycles.reduce_cycles(
            self.body, self.operation, self.value_dtype, self.out_dtype, extents, target
        )
        if stated.basis is not Basis.ASSUMED or calls_library(self.body, self.operand_dtypes):
            return stated
        try:
            return code_or_formula(self.tile_code(extents, target), stated)
        except (NoTileCode, OutOfRegisters):
            return stated

    def tile_code(self, extents: Extents, target: Target) -> tuple[VertexCode, ...]:
        """Return the code of the prologue and the fold."""
        order = reduce_cycles.stored_order(extents.form)
        return reduction_code(
            self.body,
            self.operation,
            self.accumulate_dtype,
            self.out_dtype,
            extents,
            order,
            target,
            self.label,
        )

    def flops(self, extents: Extents) -> np.ndarray:
        """Count the prologue's operations and one per point folded, on floats."""
        is_arithmetic = is_float(self.value_dtype) and self.operation in ("add", "mul", "max", "min")
        return body_flops(self.body, extents) + (extents.points if is_arithmetic else 0)

    def combiner(self) -> str | None:
        """Return the operation itself: all are associative."""
        return self.operation

    def partial(self) -> tuple[Codelet, tuple[str, ...]]:
        """Return the reduction that leaves its result in the accumulator's dtype."""
        return dataclasses.replace(self, out_dtype=self.accumulate_dtype), (self.accumulate_dtype,)

    def joining_cycles(self, results: Amount, partials: Amount, target: Target) -> Any:
        """Return the cycles of the reduction that folds partials."""
        folding = combine_codelet(self.operation, self.accumulate_dtype, self.out_dtype)
        return folding_cycles(folding, results, partials, target)

    def grains(self, form: OpForm, target: Target) -> tuple[int, ...]:
        """Prefer whole 64-bit accesses along the innermost dimension of the operand and of the result."""
        grains = list(access_grains(form, (self.out_dtype,), target))
        innermost = [d for d in form.operands[0].dims if form.dims[d].size > 1][-1:] if form.operands else []
        for d in innermost:
            width = max(1, target.data_path_bytes // itemsize(self.operand_dtypes[0]))
            if form.dims[d].size >= 2 * width:
                grains[d] = max(grains[d], width)
        return tuple(grains)

    def scratch_bytes(self, extents: Extents, target: Target) -> np.ndarray:
        """Return the bytes between stages, where kept dimensions lie between reduced ones."""
        return stages_bytes(self.accumulate_dtype, extents, reduce_cycles.stored_order(extents.form))

    def code_bytes(self, target: Target) -> int:
        """Estimate instructions: the reduction's frame and the prologue's functions (ASSUMED)."""
        return target.instruction_bytes * (96 + 12 * len(self.body))


def neutral_element(operation: str, dtype: str) -> np.ndarray:
    """Return the value that changes no result of a reduction, as a numpy scalar array."""
    kind = to_jax(dtype)
    if operation in ("add", "or", "xor"):
        return np.array(0, kind)
    if operation == "mul":
        return np.array(1, kind)
    if operation == "and":
        return np.array(True) if dtype == "bool" else np.invert(np.array(0, kind))
    if operation not in ("max", "min"):
        raise InvalidGraph(f"no reduction {operation!r}", expected=", ".join(FOLDS), got=operation)
    lowest = operation == "max"
    if dtype == "bool":
        return np.array(not lowest)
    if is_float(dtype):
        return np.array(float_limits(dtype)[not lowest]).astype(kind)
    return np.array(np.iinfo(kind).min if lowest else np.iinfo(kind).max, kind)


def accumulator_of(operation: str, dtype: str) -> str:
    """Return the dtype of partial results: float32 for sums and products of narrower floats, as in PopLibs."""
    return "float32" if operation in ("add", "mul") and is_narrow_float(dtype) else dtype


def reduce_codelet(
    operation: str, dtype: str, body: Body = (), operand_dtypes: tuple[str, ...] = ()
) -> Reduce:
    """Return the reduction of values of ``dtype`` to a result of the same dtype.

    On booleans ``add`` and ``max`` mean ``or``, ``mul`` and ``min`` mean ``and``.

    Args:
      operation: add, mul, max, min, and, or, xor.
      dtype: dtype of the operand, or of the prologue's last row.
      body: prologue.
      operand_dtypes: dtypes of the operands; ``(dtype,)`` without a prologue.
    """
    operation = _ON_BOOLEANS.get(operation, operation) if dtype == "bool" else operation
    dtypes = operand_dtypes if body else operand_dtypes or (dtype,)  # a prologue may read nothing but indices
    return Reduce(body, operation, dtypes, accumulator_of(operation, dtype), dtype)


def combine_codelet(operation: str, partials_dtype: str, out_dtype: str) -> Reduce:
    """Return the reduction that folds partials over their leading axis."""
    return Reduce((), operation, (partials_dtype,), partials_dtype, out_dtype)


def folding_cycles(folding: Reduce, results: Amount, partials: Amount, target: Target) -> Any:
    """Return the cycles of a vertex that folds ``partials`` of each of ``results`` neighbouring elements.

    Args:
      folding: what folds them: a reduction over the leading axis.
      results: elements, a number or an array.
      partials: of each; broadcasts against ``results``.
      target: the machine.
    """
    results, partials = np.broadcast_arrays(results, partials)
    sizes = tuple(np.asarray(n, np.int64).reshape(-1) for n in (partials, results))
    extents = Extents(combine_form((2, 2)), sizes, folding.operand_dtypes, (folding.out_dtype,))
    cycles = np.asarray(folding.cycles(extents, target).value, np.float64)
    return np.broadcast_to(cycles, sizes[0].shape).reshape(results.shape)


def combine_form(shape: tuple[int, ...]) -> OpForm:
    """Return the form that folds partials ``[P, ...]`` over their leading axis."""
    dims = (Dim("p", shape[0], REDUCTION), *(Dim(f"d{i}", size) for i, size in enumerate(shape[1:])))
    result = IndexMap(tuple(along(d) for d in range(1, len(shape))))
    return OpForm(dims, (identity_map(len(shape)),), (result,))
