"""Long scans in blocks: scan every block, scan the blocks' totals, give each block what came before it."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_passes.ir import Computation, Instruction, TensorType, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Compare,
    Constant,
    Iota,
    Pad,
    Reshape,
    Scan,
    Select,
    Slice,
    neutral_element,
    simple_combiner,
)
from hlo_passes.passes.lifting import lift
from hlo_passes.passes.rewriter import Rewriter

LONGEST_ROW = 128
"""Elements of a row that are scanned one after another; a longer row is cut into blocks."""

_BLOCKS = sorted(range(LONGEST_ROW // 4, LONGEST_ROW + 1), key=lambda n: abs(n - LONGEST_ROW // 2))
"""Lengths of blocks, the best first: neither many steps in a block nor many blocks."""


def scan_in_blocks(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """Cut the rows of a long scan into blocks; the blocks' totals are a scan again, a shorter one.

    The work is twice that of one walk, and the operations grow with the logarithm of a row's length.
    """
    op, inputs = instruction.op, instruction.operands
    assert isinstance(op, Scan)
    d, shape = op.dimension, inputs[0].type.shape
    if shape[d] <= LONGEST_ROW:
        return None
    region = instruction.regions[0]
    block = block_of(shape[d])
    count = -(-shape[d] // block)
    cut = (*shape[:d], count, block, *shape[d + 1 :])
    rest = count * block - shape[d]
    blocks = [
        rewriter.emit(Reshape(cut), pad(rewriter, x, d, *((rest, 0) if op.reverse else (0, rest))))
        for x in inputs
    ]
    inner = rewriter.emit_all(Scan(d + 1, op.reverse), blocks, (region,))
    last = 0 if op.reverse else block - 1
    totals = [
        rewriter.emit(Reshape((*shape[:d], count, *shape[d + 1 :])), slice_axis(rewriter, x, d + 1, last, 1))
        for x in inner
    ]
    before = rewriter.emit_all(Scan(d, op.reverse), totals, (region,))
    joined = _joined(rewriter, region, before, inner, op)
    full = (*shape[:d], count * block, *shape[d + 1 :])
    first = rest if op.reverse else 0
    return [slice_axis(rewriter, rewriter.emit(Reshape(full), x), d, first, shape[d]) for x in joined]


def block_of(size: int) -> int:
    """Return the length of the blocks that a row of ``size`` elements is cut into; the last may be short."""
    return next((n for n in _BLOCKS if size % n == 0), LONGEST_ROW // 2)


def _joined(
    rewriter: Rewriter, region: Computation, before: Sequence[Value], inner: Sequence[Value], op: Scan
) -> list[Value]:
    """Combine every block with the total of all blocks before it; the first one with what changes nothing, or not."""
    d, shape = op.dimension, inner[0].type.shape
    combiner = simple_combiner(region)
    dimensions = tuple(axis for axis in range(len(shape)) if axis != d + 1)
    shifted: list[Value] = []
    for x in before:
        fill = 0 if combiner is None else neutral_element(combiner, x.type.dtype)
        moved = pad(rewriter, x, d, *((0, 1) if op.reverse else (1, 0)), fill)
        moved = slice_axis(rewriter, moved, d, 1 if op.reverse else 0, shape[d])
        shifted.append(rewriter.emit(BroadcastInDim(shape, dimensions), moved))
    combined = lift(rewriter, region, (*inner, *shifted) if op.reverse else (*shifted, *inner))
    if combiner is not None:
        return combined
    counter = rewriter.emit(Iota(TensorType(shape[d : d + 1], "i32"), 0))
    first = rewriter.emit(Constant.splat(shape[d] - 1 if op.reverse else 0, counter.type))
    is_first = rewriter.emit(BroadcastInDim(shape, (d,)), rewriter.emit(Compare("EQ"), counter, first))
    return [rewriter.emit(Select(), is_first, x, y) for x, y in zip(inner, combined, strict=True)]


def pad(rewriter: Rewriter, value: Value, axis: int, low: int, high: int, fill: object = 0) -> Value:
    """Return ``value`` with elements of ``fill`` at the ends of one axis; itself when there are none."""
    if not low and not high:
        return value
    rank = value.type.rank
    nothing = (0,) * rank
    before, behind = (tuple(size if d == axis else 0 for d in range(rank)) for size in (low, high))
    filling = rewriter.emit(Constant.splat(fill, value.type.with_shape(())))
    return rewriter.emit(Pad(before, behind, nothing), value, filling)


def slice_axis(rewriter: Rewriter, value: Value, axis: int, start: int, count: int, stride: int = 1) -> Value:
    """Return ``count`` elements along one axis from ``start`` on, ``stride`` apart; itself when these are all."""
    shape = value.type.shape
    if (start, count, stride) == (0, shape[axis], 1):
        return value
    limit = start + stride * (count - 1) + 1
    starts = tuple(start if d == axis else 0 for d in range(len(shape)))
    limits = tuple(limit if d == axis else size for d, size in enumerate(shape))
    return rewriter.emit(
        Slice(starts, limits, tuple(stride if d == axis else 1 for d in range(len(shape)))), value
    )
