"""Batch normalization: over every dimension but the one that numbers features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from hlo_passes._jax_compat import broadcast_in_dim
from hlo_passes.ir.op import Op
from hlo_passes.ir.types import TensorType
from hlo_passes.ops.elementwise import FLOAT


@dataclass(frozen=True)
class BatchNorm(Op):
    """What the three have in common; not an operation itself."""

    epsilon: float
    feature_index: int

    def check_operands(self, operands: Sequence[TensorType], count: int, per_feature: Sequence[int]) -> None:
        """Raise ``ConstraintViolation`` unless the operands at ``per_feature`` have one element per feature."""
        self.require_arity(operands, count)
        x = operands[0]
        self.require("I1", x.dtype in FLOAT, lambda: f"expected an element type of {sorted(FLOAT)}: {x}")
        inside = 0 <= self.feature_index < x.rank
        self.require("C1", inside, lambda: f"feature index {self.feature_index} of {x}")
        for operand in operands:
            self.require("C2", operand.dtype == x.dtype, f"element types of {x} and {operand} differ")
        expected = x.with_shape((x.shape[self.feature_index],))
        for tag, position in enumerate(per_feature, 3):
            got = operands[position]
            self.require(f"C{tag}", got == expected, f"expected {expected} per feature, got {got}")

    def axes(self, rank: int) -> tuple[int, ...]:
        """Return the dimensions normalized over."""
        return tuple(d for d in range(rank) if d != self.feature_index)

    def spread(self, values: Array, like: Array) -> Array:
        """Return one value per feature in the shape of ``like``."""
        return broadcast_in_dim(values, like.shape, (self.feature_index,))

    def normalized(self, x: Array, mean: Array, variance: Array) -> Array:
        """Return elements less their feature's mean, by its deviation."""
        deviation = jnp.sqrt(variance + jnp.asarray(self.epsilon, x.dtype))
        return (x - self.spread(mean, x)) / self.spread(deviation, x)


@dataclass(frozen=True)
class BatchNormInference(BatchNorm):
    """Normalize with given means and variances, then scale and offset.

    Spec: StableHLO "batch_norm_inference", constraints C1-C7.
    """

    name: ClassVar[str] = "stablehlo.batch_norm_inference"

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type."""
        self.check_operands(operands, 5, (1, 2, 3, 4))
        return operands[:1]

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Follow the specification's formula."""
        x, scale, offset, mean, variance = operands
        return (self.normalized(x, mean, variance) * self.spread(scale, x) + self.spread(offset, x),)


@dataclass(frozen=True)
class BatchNormTraining(BatchNorm):
    """Normalize with the batch's own means and variances, which are results too.

    Spec: StableHLO "batch_norm_training", constraints C1-C7.
    """

    name: ClassVar[str] = "stablehlo.batch_norm_training"

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type, and twice that of one value per feature."""
        self.check_operands(operands, 3, (1, 2))
        return (operands[0], operands[1], operands[1])

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Follow the specification's formula."""
        x, scale, offset = operands
        axes = self.axes(x.ndim)
        count = math.prod(x.shape[d] for d in axes)
        mean = jnp.sum(x, axes) / count
        centered = x - self.spread(mean, x)
        variance = jnp.sum(centered * centered, axes) / count
        y = self.normalized(x, mean, variance) * self.spread(scale, x) + self.spread(offset, x)
        return (y, mean, variance)


@dataclass(frozen=True)
class BatchNormGrad(BatchNorm):
    """Return the gradients of operand, scale and offset.

    Spec: StableHLO "batch_norm_grad", constraints C1-C4: operands are the normalized operand, scale, mean,
    variance and the gradient of the result.
    """

    name: ClassVar[str] = "stablehlo.batch_norm_grad"

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type, and twice that of one value per feature."""
        self.require_arity(operands, 5)
        x, gradient = operands[0], operands[4]
        same = x.shape == gradient.shape
        self.require("C3", same, lambda: f"shapes of {x} and {gradient} differ")
        expected = (x.shape[self.feature_index],) if 0 <= self.feature_index < x.rank else ()
        for operand in operands[1:4]:
            fits = not expected or operand.shape == expected
            self.require("C4", fits, f"expected shape {expected} per feature, got {operand}")
        self.check_operands(operands, 5, ())
        return (x, operands[1], operands[1])

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Follow the specification's formula."""
        x, scale, mean, variance, gradient = operands
        axes = self.axes(x.ndim)
        count = math.prod(x.shape[d] for d in axes)
        centered = x - self.spread(mean, x)
        power = variance + jnp.asarray(self.epsilon, x.dtype)
        offset_gradient = jnp.sum(gradient, axes)
        scale_gradient = jnp.sum(gradient * self.normalized(x, mean, variance), axes)
        correlation = jnp.sum(gradient * centered, axes)
        rest = gradient * count - self.spread(offset_gradient, x)
        rest = rest - self.spread(correlation, x) * centered / self.spread(power, x)
        factor = scale / jnp.sqrt(power) / count
        return (self.spread(factor, x) * rest, scale_gradient, offset_gradient)
