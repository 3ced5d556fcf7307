"""Map: a region of scalars applied to every element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
from jax import Array

from hlo_passes.ir.interpreter import Closure, as_closure, as_computation
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import Op
from hlo_passes.ir.types import TensorType


@dataclass(frozen=True)
class MapElements(Op):
    """Apply the region to the operands' elements at every index. Spec: StableHLO "map", constraints C1-C4."""

    name: ClassVar[str] = "stablehlo.map"
    num_regions: ClassVar[int] = 1
    dimensions: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the operands' shape with the element type of the region's result."""
        self.require("C2", bool(operands), "no operands")
        first = operands[0]
        for operand in operands:
            self.require("C1", operand.shape == first.shape, f"shapes of {first} and {operand} differ")
        in_order = self.dimensions == tuple(range(first.rank))
        self.require("C3", in_order, lambda: f"dimensions {self.dimensions} are not all of {first} in order")
        self.require("C4", len(regions) == 1, lambda: f"expected 1 region, got {len(regions)}")
        body = as_computation(regions[0])
        scalars = tuple(operand.with_shape(()) for operand in operands)
        typed = body.parameter_types == scalars and len(body.results) == 1 and not body.result_types[0].rank
        self.require("C4", typed, lambda: f"the region does not make one scalar of {scalars}")
        return (body.result_types[0].with_shape(first.shape),)

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Apply the region with ``jax.vmap``."""
        shape = operands[0].shape
        (result,) = jax.vmap(as_closure(regions[0]))(*(x.reshape(-1) for x in operands))
        return (result.reshape(shape),)
