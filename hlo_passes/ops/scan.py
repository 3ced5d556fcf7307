"""Scan: the fold of everything up to each element, which cumulative sums and windows over everything become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from hlo_passes.ir.interpreter import Closure, as_closure, as_computation
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import FusionCategory, Op
from hlo_passes.ir.types import TensorType


@dataclass(frozen=True)
class Scan(Op):
    """Replace each element along ``dimension`` by the fold of it and all before it (``reverse``: behind it).

    The region combines N values, the earlier ones of a row, with N later ones into N. Elements are taken one
    after another from the end that the scan starts at, so the order of rounding is stated. Spec: the recurrence
    ``y[i] = region(y[i - 1], x[i])`` (``reverse``: ``y[i] = region(x[i], y[i + 1])``), constraints C1 (inputs of
    one shape), C2 (``dimension`` is one of theirs), C3 (the region's type). StableHLO writes it as a
    "reduce_window" over everything.
    """

    name: ClassVar[str] = "hlo.scan"
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE
    num_regions: ClassVar[int] = 1
    dimension: int
    reverse: bool = False

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the operands' types."""
        self.require("C1", bool(operands), "no operands")
        first = operands[0]
        for operand in operands:
            self.require("C1", operand.shape == first.shape, f"shapes of {first} and {operand} differ")
        inside = 0 <= self.dimension < first.rank
        self.require("C2", inside, lambda: f"dimension {self.dimension} is not a dimension of {first}")
        scalars = tuple(operand.with_shape(()) for operand in operands)
        self.require("C3", len(regions) == 1, lambda: f"expected 1 region, got {len(regions)}")
        body = as_computation(regions[0])
        typed = body.parameter_types == scalars * 2 and body.result_types == scalars
        self.require("C3", typed, lambda: f"the region does not combine two each of {scalars}")
        return operands

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Walk the dimension with ``lax.scan``, all rows abreast."""
        if operands[0].shape[self.dimension] < 2 or not operands[0].size:
            return operands
        body = jax.vmap(as_closure(regions[0]))
        moved = [jnp.moveaxis(x, self.dimension, 0) for x in operands]
        rows = [x.reshape(x.shape[0], -1) for x in moved]

        def step(before: Any, here: Any) -> tuple[Any, Any]:
            folded = body(*here, *before) if self.reverse else body(*before, *here)
            return folded, folded

        first = -1 if self.reverse else 0
        rest = tuple(x[:-1] if self.reverse else x[1:] for x in rows)
        _, folds = lax.scan(step, tuple(x[first] for x in rows), rest, reverse=self.reverse)
        results: list[Array] = []
        for x, row, fold in zip(moved, rows, folds, strict=True):
            pieces = [fold, row[-1:]] if self.reverse else [row[:1], fold]
            results.append(jnp.moveaxis(jnp.concatenate(pieces).reshape(x.shape), 0, self.dimension))
        return tuple(results)
