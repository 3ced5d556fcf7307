"""Operations that stand for a piece of a network a vendor's library has a name for; what they mean is their region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from hlo_passes.ir.interpreter import Closure, as_closure
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import FusionCategory, Op
from hlo_passes.ir.types import TensorType
from hlo_passes.ops.elementwise import FLOAT, Elementwise


def _region_results(
    op: Op, operands: Sequence[TensorType], regions: Sequence[Computation]
) -> tuple[TensorType, ...]:
    """Return the types of the only region's results, after checking that it takes the operands."""
    op.require("C1", len(regions) == 1, lambda: f"expected 1 region, got {len(regions)}")
    taken = regions[0].parameter_types
    op.require(
        "C2",
        tuple(operands) == taken and len(regions[0].results) == 1,
        lambda: (
            f"the region takes {', '.join(map(str, taken))}, got {', '.join(map(str, operands))}; it has one result"
        ),
    )
    return regions[0].result_types


@dataclass(frozen=True)
class Nonlinearity(Elementwise):
    """Apply a non-linearity, or to a gradient its derivative, element by element. Spec: the region.

    ``kind`` is a name such as ``popnn.gelu`` or ``popnn.gelu_gradient``; ``is_approximate`` where constants are not
    quite the function's, or it is told otherwise at a tie. Constraints: C1 one region of elementwise operations and
    splat constants, C2 it takes the operands, C3 all of one shape.
    """

    name: ClassVar[str] = "hlo.nonlinearity"
    accepts: ClassVar[frozenset[str]] = FLOAT
    is_control: ClassVar[bool] = True
    is_unit: ClassVar[bool] = True
    num_regions: ClassVar[int] = 1
    kind: str
    is_approximate: bool = False

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the region's result type."""
        self.require_accepted(operands)
        types = _region_results(self, operands, regions)
        same = all(t.shape == types[0].shape for t in operands)
        self.require("C3", same, lambda: f"shapes of {', '.join(map(str, operands))} differ from {types[0]}")
        return types

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Run the region."""
        return as_closure(regions[0])(*operands)


@dataclass(frozen=True)
class RowFunction(Op):
    """Compute every row from itself: softmax, normalization, their gradients. Spec: the region.

    A row is what lies along ``dimensions``. ``kind`` is a name such as ``popnn.softmax``. Constraints: C1 one
    region, C2 it takes the operands and gives one result, C3 all of one shape, C4 the dimensions exist.
    """

    name: ClassVar[str] = "hlo.row_function"
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE
    is_control: ClassVar[bool] = True
    is_unit: ClassVar[bool] = True
    num_regions: ClassVar[int] = 1
    kind: str
    dimensions: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the region's result type."""
        types = _region_results(self, operands, regions)
        same = all(t.shape == types[0].shape for t in operands)
        self.require("C3", same, lambda: f"shapes of {', '.join(map(str, operands))} differ from {types[0]}")
        inside = all(0 <= d < types[0].rank for d in self.dimensions)
        self.require(
            "C4", inside, lambda: f"dimensions {self.dimensions} are not all dimensions of {types[0]}"
        )
        return types

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Run the region."""
        return as_closure(regions[0])(*operands)
