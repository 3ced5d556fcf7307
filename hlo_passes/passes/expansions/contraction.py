"""Contractions and convolutions of operands of another kind than the result, and those that an algorithm prescribes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Sequence

from hlo_passes.ops import Convolution, DotAlgorithm, DotGeneral, ReducePrecision
from hlo_passes.ops.contraction import PRECISION_TYPES, product_dtypes
from hlo_passes.passes.expansions.registry import expands
from hlo_passes.passes.expansions.term import Term


@expands(DotGeneral, Convolution)
def expand_types(op: DotGeneral | Convolution, operands: Sequence[Term], options: object) -> Term | None:
    """Convert operands, or the sum, where their type is no part of the result's; see ``product_dtypes``."""
    if isinstance(op, DotGeneral) and op.algorithm is not None:
        return expand_algorithm(op, op.algorithm, operands)
    own = operands[0].type.dtype
    taken, added = product_dtypes(own, op.dtype)
    if (taken, added) == (own, op.dtype):
        return None
    lhs, rhs = (operand.convert(taken) for operand in operands)
    return lhs.apply(dataclasses.replace(op, dtype=added), rhs).convert(op.dtype)


def expand_algorithm(op: DotGeneral, algorithm: DotAlgorithm, operands: Sequence[Term]) -> Term:
    """Add the largest products of the operands' components, the smallest of them first; see ``DotGeneral``."""
    enough = math.isqrt(algorithm.num_primitive_operations - 1) + 1
    wide = algorithm.accumulation_type
    left, right = (
        _components(operand, wide, precision_type, max(count, enough))
        for operand, precision_type, count in (
            (operands[0], algorithm.lhs_precision_type, algorithm.lhs_component_count),
            (operands[1], algorithm.rhs_precision_type, algorithm.rhs_component_count),
        )
    )
    product = dataclasses.replace(op, dtype=wide, precision=("HIGHEST", "HIGHEST"), algorithm=None)
    pairs = sorted(itertools.product(range(len(left)), range(len(right))), key=sum)
    products = [
        left[i].apply(product, right[j]) for i, j in reversed(pairs[: algorithm.num_primitive_operations])
    ]
    total = functools.reduce(operator.add, products)
    return total.convert(op.dtype)


def _components(operand: Term, wide: str, precision_type: str, count: int) -> list[Term]:
    """Split into up to ``count`` terms of that precision whose sum approaches the operand, the largest first."""
    bits, own = PRECISION_TYPES[precision_type], PRECISION_TYPES.get(operand.type.dtype)
    rest, parts = operand.convert(wide), list[Term]()
    if own is not None and own[0] <= bits[0] and own[1] <= bits[1]:
        return [rest]
    for _ in range(count):
        parts.append(rest.apply(ReducePrecision(*bits)))
        rest = rest - parts[-1]
    return parts
