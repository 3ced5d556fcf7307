"""Batch normalization as reductions and expressions, by the specification's formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_passes.ops import BatchNormGrad, BatchNormInference, BatchNormTraining, Sqrt
from hlo_passes.ops.normalization import BatchNorm
from hlo_passes.passes.expansions.registry import expands
from hlo_passes.passes.expansions.term import Term


def _spread(op: BatchNorm, values: Term, like: Term) -> Term:
    """Return one value per feature in a shape that broadcasts to that of ``like``."""
    return values.reshape(tuple(n if d == op.feature_index else 1 for d, n in enumerate(like.shape)))


def _normalized(op: BatchNorm, x: Term, mean: Term, variance: Term) -> Term:
    deviation = (variance + op.epsilon).apply(Sqrt())
    return (x - _spread(op, mean, x)) / _spread(op, deviation, x)


def _count(op: BatchNorm, x: Term) -> int:
    """Return how many elements a feature has."""
    return math.prod(x.shape[d] for d in op.axes(len(x.shape)))


@expands(BatchNormInference)
def expand_inference(op: BatchNormInference, operands: Sequence[Term], _: object) -> Term:
    """Normalize with given means and variances."""
    x, scale, offset, mean, variance = operands
    return _normalized(op, x, mean, variance) * _spread(op, scale, x) + _spread(op, offset, x)


@expands(BatchNormTraining)
def expand_training(op: BatchNormTraining, operands: Sequence[Term], _: object) -> list[Term]:
    """Normalize with the batch's means and variances."""
    x, scale, offset = operands
    axes, count = op.axes(len(x.shape)), _count(op, x)
    mean = x.sum(axes) / count
    centered = x - _spread(op, mean, x)
    variance = (centered * centered).sum(axes) / count
    y = _normalized(op, x, mean, variance) * _spread(op, scale, x) + _spread(op, offset, x)
    return [y, mean, variance]


@expands(BatchNormGrad)
def expand_gradient(op: BatchNormGrad, operands: Sequence[Term], _: object) -> list[Term]:
    """Return the gradients of operand, scale and offset."""
    x, scale, mean, variance, gradient = operands
    axes, count = op.axes(len(x.shape)), _count(op, x)
    centered = x - _spread(op, mean, x)
    power = variance + op.epsilon
    offset_gradient = gradient.sum(axes)
    scale_gradient = (gradient * _normalized(op, x, mean, variance)).sum(axes)
    correlation = (gradient * centered).sum(axes)
    rest = gradient * count - _spread(op, offset_gradient, x)
    rest = rest - _spread(op, correlation, x) * centered / _spread(op, power, x)
    factor = scale / power.apply(Sqrt()) / count
    return [_spread(op, factor, x) * rest, scale_gradient, offset_gradient]
