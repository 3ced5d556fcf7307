"""Operations whose offsets are known only when the program runs: slices and updates at scalar places.

Offsets that would leave the operand are clamped, as the specification says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax import Array, lax

from hlo_passes.ir.op import Op
from hlo_passes.ir.types import TensorType


def _require_offsets(
    op: Op, tags: tuple[str, str], operand: TensorType, offsets: Sequence[TensorType]
) -> None:
    """Require one scalar integer per dimension of the operand (first tag), all of one type (second)."""
    number, same = tags
    complete = len(offsets) == operand.rank
    op.require(number, complete, lambda: f"{len(offsets)} start indices for {operand}")
    for offset in offsets:
        is_index = offset.rank == 0 and offset.is_integer
        op.require("I3", is_index, f"expected scalar integer start indices, got {offset}")
        op.require(same, offset == offsets[0], f"start indices have types {offsets[0]} and {offset}")


@dataclass(frozen=True)
class DynamicSlice(Op):
    """Take ``slice_sizes`` elements from offsets given as one scalar operand per dimension.

    An offset is moved to the nearest one at which the slice lies inside.

    Spec: StableHLO "dynamic_slice", constraints C2-C4.
    """

    name: ClassVar[str] = "stablehlo.dynamic_slice"
    slice_sizes: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's element type in the slice's shape."""
        self.require("arity", bool(operands), "no operands")
        operand, sizes = operands[0], self.slice_sizes
        self.require("C2", len(sizes) == operand.rank, lambda: f"slice sizes {sizes} for {operand}")
        _require_offsets(self, ("C2", "C3"), operand, operands[1:])
        fits = all(0 <= n <= size for n, size in zip(sizes, operand.shape, strict=True))
        self.require("C4", fits, lambda: f"a slice of {sizes} does not fit in {operand}")
        return (operand.with_shape(sizes),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.dynamic_slice``; a negative offset does not count from the end."""
        operand, *offsets = operands
        if not offsets:
            return (operand,)
        return (lax.dynamic_slice(operand, offsets, self.slice_sizes, allow_negative_indices=False),)


@dataclass(frozen=True)
class DynamicUpdateSlice(Op):
    """Replace a slice of the first operand by the second, at one scalar offset operand per dimension.

    An offset is moved to the nearest one at which the slice lies inside.

    Spec: StableHLO "dynamic_update_slice", constraints C2-C6.
    """

    name: ClassVar[str] = "stablehlo.dynamic_update_slice"
    replaces_elements: ClassVar[bool] = True

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type."""
        self.require("arity", len(operands) >= 2, lambda: f"expected 2 operands or more, got {len(operands)}")
        operand, update = operands[:2]
        same = update.dtype == operand.dtype
        self.require("C2", same, lambda: f"element types of {operand} and {update} differ")
        self.require("C3", update.rank == operand.rank, lambda: f"ranks of {operand} and {update} differ")
        _require_offsets(self, ("C4", "C5"), operand, operands[2:])
        fits = all(n <= size for n, size in zip(update.shape, operand.shape, strict=True))
        self.require("C6", fits, lambda: f"{update} does not fit in {operand}")
        return (operand,)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.dynamic_update_slice``; a negative offset does not count from the end."""
        operand, update, *offsets = operands
        if not offsets:
            return (update,)
        return (lax.dynamic_update_slice(operand, update, offsets, allow_negative_indices=False),)
