"""Operations that run other computations: calls and fusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from hlo_passes.ir.interpreter import Closure, as_closure
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import FusionCategory, Op
from hlo_passes.ir.types import TensorType


@dataclass(frozen=True)
class Call(Op):
    """Run the module's computation ``callee``. Spec: MLIR "func.call"; the verifier checks the signature.

    ``types`` are the result types. ``evaluate`` is handed the callee as its only region.
    """

    name: ClassVar[str] = "func.call"
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE
    is_control: ClassVar[bool] = True
    callee: str
    types: tuple[TensorType, ...]

    @property
    def callees(self) -> tuple[str, ...]:
        """The one callee."""
        return (self.callee,)

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return ``types``."""
        return self.types

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Run the callee."""
        return as_closure(regions[0])(*operands)


@dataclass(frozen=True)
class Fusion(Op):
    """Run the region as one unit. Spec: XLA HLO "fusion".

    ``kind`` says what the unit is planned as; the pass that makes fusions gives it its meaning.
    """

    name: ClassVar[str] = "hlo.fusion"
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE
    is_control: ClassVar[bool] = True
    is_unit: ClassVar[bool] = True
    num_regions: ClassVar[int] = 1
    kind: str

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the region's result types."""
        self.require("C1", len(regions) == 1, lambda: f"expected 1 region, got {len(regions)}")
        expected = regions[0].parameter_types
        self.require(
            "C2",
            operands == expected,
            lambda: f"the region takes {', '.join(map(str, expected))}, got {', '.join(map(str, operands))}",
        )
        return regions[0].result_types

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Run the region."""
        return as_closure(regions[0])(*operands)
