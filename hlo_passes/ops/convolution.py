"""Convolutions: sums of products of a kernel and the windows of an array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax import Array, lax

from hlo_passes.ir.op import FusionCategory, Op, attribute
from hlo_passes.ir.types import DTYPES, TensorType, dtype_name
from hlo_passes.ops.contraction import PRECISIONS, DotGeneral, product_dtypes
from hlo_passes.ops.elementwise import Convert


@attribute
@dataclass(frozen=True)
class ConvDimensionNumbers:
    """Which dimension of the operands and of the result plays which part; spatial ones in window order."""

    input_batch: int
    input_feature: int
    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]

    @property
    def input(self) -> tuple[int, ...]:
        """Batch, feature and spatial dimensions of the left operand."""
        return (self.input_batch, self.input_feature, *self.input_spatial)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Output-feature, input-feature and spatial dimensions of the kernel."""
        return (self.kernel_output_feature, self.kernel_input_feature, *self.kernel_spatial)

    @property
    def output(self) -> tuple[int, ...]:
        """Batch, feature and spatial dimensions of the result."""
        return (self.output_batch, self.output_feature, *self.output_spatial)


@dataclass(frozen=True)
class Convolution(Op):
    """Slide a kernel (second operand) over an array and sum products over window and input features.

    Spec: StableHLO "convolution", constraints C1-C24 and C27. ``low`` and ``high`` are the padding in front
    and behind (negative: cut off), counted between the elements that ``lhs_dilation`` spreads; ``dtype`` is
    the element type of the result; ``precision`` has one entry per operand or is empty (``DEFAULT``).
    """

    name: ClassVar[str] = "stablehlo.convolution"
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE
    dimension_numbers: ConvDimensionNumbers
    window_strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    window_reversal: tuple[bool, ...]
    feature_group_count: int
    batch_group_count: int
    dtype: str
    precision: tuple[str, ...] = ()

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the result's shape with elements of ``dtype``."""
        self.require_arity(operands, 2)
        lhs, rhs = operands
        self.require("C1", lhs.rank == rhs.rank >= 2, lambda: f"ranks of {lhs} and {rhs} differ")
        self._check_window(lhs.rank - 2)
        self._check_dimensions(lhs.rank)
        self._check_groups(lhs, rhs)
        self.require("C27", lhs.dtype == rhs.dtype, lambda: f"element types of {lhs} and {rhs} differ")
        self.require("O1", self.dtype in DTYPES, lambda: f"unknown element type {self.dtype!r}")
        n = self.dimension_numbers
        shape = [0] * lhs.rank
        shape[n.output_batch] = lhs.shape[n.input_batch] // self.batch_group_count
        shape[n.output_feature] = rhs.shape[n.kernel_output_feature]
        for i, (axis, kernel, out) in enumerate(
            zip(n.input_spatial, n.kernel_spatial, n.output_spatial, strict=True)
        ):
            shape[out] = window_count(
                lhs.shape[axis],
                rhs.shape[kernel],
                self.window_strides[i],
                self.low[i] + self.high[i],
                self.lhs_dilation[i],
                self.rhs_dilation[i],
            )
        return (TensorType(tuple(shape), self.dtype),)

    def _check_window(self, spatial: int) -> None:
        for tag, field in (
            ("C2", self.window_strides),
            ("C4", self.low),
            ("C4", self.high),
            ("C5", self.lhs_dilation),
            ("C7", self.rhs_dilation),
            ("C9", self.window_reversal),
        ):
            self.require(tag, len(field) == spatial, f"expected {spatial} entries, got {field}")
        for tag, field in (
            ("C3", self.window_strides),
            ("C6", self.lhs_dilation),
            ("C8", self.rhs_dilation),
        ):
            self.require(tag, min(field, default=1) > 0, f"expected positive entries, got {field}")

    def _check_dimensions(self, rank: int) -> None:
        n = self.dimension_numbers
        for count, ranges, spatial, used in (
            ("C12", "C13", n.input_spatial, n.input),
            ("C17", "C18", n.kernel_spatial, n.kernel),
            ("C19", "C20", n.output_spatial, n.output),
        ):
            self.require(count, len(spatial) == rank - 2, f"expected {rank - 2} spatial dimensions: {n}")
            complete = sorted(used) == list(range(rank))
            self.require(ranges, complete, f"not each of {rank} dimensions once: {n}")

    def _check_groups(self, lhs: TensorType, rhs: TensorType) -> None:
        n, features, batches = self.dimension_numbers, self.feature_group_count, self.batch_group_count
        self.require("C21", features > 0, lambda: f"feature_group_count is {features}")
        self.require("C22", batches > 0, lambda: f"batch_group_count is {batches}")
        self.require(
            "C23", 1 in (features, batches), lambda: f"{features} feature and {batches} batch groups"
        )
        for tag, type_, dimension, groups in (
            ("C10", lhs, n.input_batch, batches),
            ("C11", lhs, n.input_feature, features),
            ("C15", rhs, n.kernel_output_feature, batches),
            ("C16", rhs, n.kernel_output_feature, features),
        ):
            whole = type_.shape[dimension] % groups == 0
            self.require(tag, whole, f"dimension {dimension} of {type_} is no multiple of {groups} groups")
        inputs, taken = lhs.shape[n.input_feature] // features, rhs.shape[n.kernel_input_feature]
        self.require("C14", inputs == taken, f"{inputs} input features per group, the kernel takes {taken}")
        precision = self.precision
        self.require("C24", len(precision) in (0, 2), f"expected 2 precisions, got {len(precision)}")
        known = all(entry in PRECISIONS for entry in precision)
        self.require("I18", known, f"precisions {precision} are not all of {PRECISIONS}")

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.conv_general_dilated``."""
        taken, added = product_dtypes(dtype_name(operands[0].dtype), self.dtype)
        lhs, rhs = (Convert(taken).evaluate(operand)[0] for operand in operands)
        n = self.dimension_numbers
        turned = [axis for axis, back in zip(n.kernel_spatial, self.window_reversal, strict=True) if back]
        precision = tuple(lax.Precision[entry] for entry in self.precision) or None
        numbers = lax.ConvDimensionNumbers(n.input, n.kernel, n.output)
        out = lax.conv_general_dilated(
            lhs,
            lax.rev(rhs, turned) if turned else rhs,
            self.window_strides,
            list(zip(self.low, self.high, strict=True)),
            self.lhs_dilation,
            self.rhs_dilation,
            numbers,
            self.feature_group_count,
            self.batch_group_count,
            precision,  # pyright: ignore[reportArgumentType]
            DTYPES[added].np_dtype,
        )
        return Convert(self.dtype).evaluate(out)


def window_count(
    size: int, window: int, stride: int, padding: int = 0, base_dilation: int = 1, window_dilation: int = 1
) -> int:
    """Return how many windows lie along a dimension.

    Args:
      size: elements along the dimension.
      window: elements of a window.
      stride: distance between the first elements of neighbouring windows.
      padding: elements put in front and behind, together; negative ones are cut off.
      base_dilation: distance between neighbouring elements once they are spread.
      window_dilation: distance between neighbouring elements of a window.
    """
    extent = padding + (0 if size == 0 else (size - 1) * base_dilation + 1)
    span = 0 if window == 0 else (window - 1) * window_dilation + 1
    return 0 if extent <= 0 or span > extent else (extent - span) // stride + 1


def summed_products(op: Op, operands: Sequence[TensorType]) -> int:
    """Return how many products an operation sums for each element of its result; 0 if it is no contraction.

    Args:
      op: any operation.
      operands: the types of its operands.
    """
    if isinstance(op, DotGeneral):
        return math.prod(operands[0].shape[d] for d in op.dimension_numbers.lhs_contracting)
    if isinstance(op, Convolution):
        kernel = operands[1].shape
        return math.prod(n for d, n in enumerate(kernel) if d != op.dimension_numbers.kernel_output_feature)
    return 0
