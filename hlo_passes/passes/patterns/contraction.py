"""Transposes merged into the dimension numbers of ``dot_general``.

The products and what is summed stay the same; only the order in which an implementation adds may differ,
which the operation leaves open.
"""

from __future__ import annotations

import dataclasses

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Constant,
    DotAlgorithm,
    DotDimensionNumbers,
    DotGeneral,
    Multiply,
    Transpose,
)
from hlo_passes.passes.patterns.registry import rewrites
from hlo_passes.passes.rewriter import Rewriter


@rewrites(DotGeneral)
def read_operand_untransposed(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Contract a transpose's operand directly, if its free dimensions are in the same order."""
    op = instruction.op
    lhs, rhs = instruction.operands
    assert isinstance(op, DotGeneral)
    n = op.dimension_numbers
    left = _untransposed(lhs, n.lhs_free(lhs.type.rank), rewriter)
    if left is not None:
        p, lhs = left
        n = dataclasses.replace(
            n, lhs_batching=_through(p, n.lhs_batching), lhs_contracting=_through(p, n.lhs_contracting)
        )
    right = _untransposed(rhs, n.rhs_free(rhs.type.rank), rewriter)
    if right is not None:
        p, rhs = right
        n = dataclasses.replace(
            n, rhs_batching=_through(p, n.rhs_batching), rhs_contracting=_through(p, n.rhs_contracting)
        )
    if left is None and right is None:
        return None
    return rewriter.emit(dataclasses.replace(op, dimension_numbers=n), lhs, rhs)


def _untransposed(
    value: Value, free: tuple[int, ...], rewriter: Rewriter
) -> tuple[tuple[int, ...], Value] | None:
    """Return permutation and operand of ``value``'s transpose, if ``free`` stays in order without it."""
    made = rewriter.producer(value, Transpose)
    if made is None:
        return None
    moved = _through(made[0].permutation, free)
    return (made[0].permutation, made[1][0]) if list(moved) == sorted(moved) else None


def _through(permutation: tuple[int, ...], dimensions: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(permutation[d] for d in dimensions)


@rewrites(Transpose)
def write_result_transposed(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Swap the operands of a contraction nobody else reads when that gives the transposed result.

    Legal when the transpose keeps batch dimensions in front (in any order) and only exchanges the block of
    free dimensions of the left operand with that of the right.
    """
    (value,) = instruction.operands
    made = rewriter.producer(value, DotGeneral)
    if made is None or not isinstance(instruction.op, Transpose) or not rewriter.has_one_use(value):
        return None
    op, (lhs, rhs) = made
    n = op.dimension_numbers
    batch, left = len(n.lhs_batching), len(n.lhs_free(lhs.type.rank))
    order, rest = instruction.op.permutation[:batch], instruction.op.permutation[batch:]
    is_identity = instruction.op.permutation == tuple(range(value.type.rank))
    if is_identity or sorted(order) != list(range(batch)):
        return None
    where = rewriter.location(value)
    lhs_batching, rhs_batching = _through(n.lhs_batching, order), _through(n.rhs_batching, order)
    start, middle, end = batch, batch + left, value.type.rank
    if rest == tuple(range(start, end)):
        numbers = DotDimensionNumbers(lhs_batching, rhs_batching, n.lhs_contracting, n.rhs_contracting)
        return rewriter.emit(dataclasses.replace(op, dimension_numbers=numbers), lhs, rhs, location=where)
    if rest != (*range(middle, end), *range(start, middle)):
        return None
    numbers = DotDimensionNumbers(rhs_batching, lhs_batching, n.rhs_contracting, n.lhs_contracting)
    swapped = dataclasses.replace(
        op, dimension_numbers=numbers, precision=op.precision[::-1], algorithm=_swapped(op.algorithm)
    )
    return rewriter.emit(swapped, rhs, lhs, location=where)


def _swapped(algorithm: DotAlgorithm | None) -> DotAlgorithm | None:
    if algorithm is None:
        return None
    return dataclasses.replace(
        algorithm,
        lhs_precision_type=algorithm.rhs_precision_type,
        rhs_precision_type=algorithm.lhs_precision_type,
        lhs_component_count=algorithm.rhs_component_count,
        rhs_component_count=algorithm.lhs_component_count,
    )


@rewrites(DotGeneral)
def sum_nothing(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A sum of no products is 0."""
    lhs, _ = instruction.operands
    return rewriter.emit(Constant.splat(0, instruction.result.type)) if lhs.type.size == 0 else None


@rewrites(DotGeneral)
def multiply_by_element(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """Products of which none are added, and one operand has batches alone, are those of elements: ``einsum("ij,j->ij")``.

    Where both have dimensions of their own, multiply units take as long as vectors.
    """
    lhs, rhs = instruction.operands
    assert isinstance(instruction.op, DotGeneral)
    n, type_ = instruction.op.dimension_numbers, instruction.result.type
    left, right = n.lhs_free(lhs.type.rank), n.rhs_free(rhs.type.rank)
    if n.lhs_contracting or (left and right) or {lhs.type.dtype, rhs.type.dtype} != {type_.dtype}:
        return None
    if not (type_.is_float or type_.is_integer):
        return None
    operands = (
        _as_result(x, (*batching, *free), type_.shape, rewriter)
        for x, batching, free in ((lhs, n.lhs_batching, left), (rhs, n.rhs_batching, right))
    )
    return rewriter.emit(Multiply(), *operands)


def _as_result(x: Value, order: tuple[int, ...], shape: tuple[int, ...], rewriter: Rewriter) -> Value:
    """Return an operand, dimensions in an order that begins the result's, as the result is."""
    if order != tuple(range(x.type.rank)):
        x = rewriter.emit(Transpose(order), x)
    return x if x.type.shape == shape else rewriter.emit(BroadcastInDim(shape, tuple(range(len(order)))), x)
