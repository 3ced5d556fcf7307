"""The first few of many elements are looked for in the groups that have the first ones: most are only compared, not sorted.

A row is cut in groups of neighbours. An element that is among the first k of its row lies in a group whose first element is among
the first k of all groups' first elements: were its group not one of these, each of the k that are would have an element before it.
Equal elements come in the order of their places, as groups do, so that this holds for them, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Builder, Computation, Instruction, TensorType, Value
from hlo_passes.ops import (
    Add,
    BitcastConvert,
    BroadcastInDim,
    Compare,
    Concatenate,
    Constant,
    Gather,
    GatherDimensionNumbers,
    Iota,
    Maximum,
    Minimum,
    Multiply,
    Reduce,
    Reshape,
    Select,
    Sort,
    TopK,
    neutral_element,
)
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.rewriter import Patterns, Rewriter
from hlo_passes.passes.scans import slice_axis
from hlo_passes.passes.short_sorts import BIT_TYPES, total_order

_ALIGNED = 4
"""Groups of so many elements, and of multiples of it, begin at whole words."""


@dataclass(frozen=True)
class TopGroups(LocalPass):
    """Select from ``many`` elements or more, of ``many_rows`` rows, in two steps, where that leaves one in ``share`` of them to be sorted.

    Fewer rows are cut over tiles, which merge what they have selected twice. A vertex that selects takes some 63 cycles an
    element, one that only compares 8 to 10; one that finds the first one 13, so that of single elements ``many_single`` or more are
    found so. On a GC200, at once and in groups: of 4,096 rows of 4,096 halves the first 16 715,791 and 227,162 cycles, of 1,024 the
    first 20 200,223 and 122,936, of 1,024 rows of 1,024 the first 8 47,058 and 29,666, of 2,048 rows of 256 the first 4 23,598 and
    21,376; of 128 rows of 8,192 the first 50 84,165 and 76,467.
    """

    name: ClassVar[str] = "top-groups"
    many: int = 1 << 19
    many_single: int = 1 << 21
    many_rows: int = 128
    share: int = 3

    def change(self, computation: Computation) -> Computation:
        """Return the computation with such selections in two steps; itself when it has none."""
        if TopK not in computation.op_types:
            return computation
        patterns: Patterns = {TopK: (self._select,)}
        return Rewriter(computation, patterns).run()

    def _select(self, instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
        op, (x,) = instruction.op, instruction.operands
        assert isinstance(op, TopK)
        n = x.type.shape[op.dimension]
        many = self.many if op.k > 1 else self.many_single
        if op.k < 1 or x.type.size < max(many, self.many_rows * n):
            return None
        size = group_size(n, op.k)
        has_order = x.type.is_integer or x.type.dtype in BIT_TYPES
        if not has_order or self.share * (n // size + op.k * size + n % size) > n:
            return None
        return _in_groups(op, x, size, rewriter)


def group_size(n: int, k: int) -> int:
    """Return elements of a group of n, of which k are wanted: few groups, and few elements in k of them.

    A size that divides n is taken where there is one near the best: elements that fill no group are sorted with those of the groups.
    """
    best = max(_ALIGNED, round(math.sqrt(n / k) / _ALIGNED) * _ALIGNED)
    near = [size for size in range(_ALIGNED, 2 * best + 1, _ALIGNED) if not n % size and 2 * size >= best]
    return min(near, key=lambda size: abs(math.log(size / best)), default=best)


def _in_groups(op: TopK, x: Value, size: int, rewriter: Rewriter) -> list[Value]:
    """Return the first elements along a dimension and their places, from groups of ``size``."""
    d, k, emit = op.dimension, op.k, rewriter.emit
    shape = x.type.shape
    n, before, after = shape[d], shape[:d], shape[d + 1 :]
    groups = n // size
    whole = slice_axis(rewriter, x, d, 0, groups * size)
    grouped = emit(Reshape((*before, groups, size, *after)), whole)
    _, numbers = rewriter.emit_all(op, (_first_of_each(op, grouped, rewriter),))
    if k > 1:
        (numbers,) = rewriter.emit_all(Sort(d), (numbers,), (_ascending(),))
    # XLA:CPU moves numbers of bfloat16 as float32, which loses bits of what is no number.
    in_bits = x.type.dtype == "bf16"
    moved, words = ((emit(BitcastConvert("i16"), y) if in_bits else y) for y in (grouped, x))
    candidates = emit(Reshape((*before, k * size, *after)), _taken(moved, numbers, d, rewriter))
    counted = TensorType((*before, k, size, *after), "i32")
    start = emit(Multiply(), numbers, emit(Constant.splat(size, numbers.type)))
    dims = tuple(axis for axis in range(len(counted.shape)) if axis != d + 1)
    places = emit(Add(), emit(BroadcastInDim(counted.shape, dims), start), emit(Iota(counted, d + 1)))
    places = emit(Reshape(candidates.type.shape), places)
    if groups * size < n:
        rest = emit(Iota(x.type.with_dtype("i32"), d))
        candidates, places = (
            emit(Concatenate(d), some, slice_axis(rewriter, every, d, groups * size, n % size))
            for some, every in ((candidates, words), (places, rest))
        )
    candidates = emit(BitcastConvert("bf16"), candidates) if in_bits else candidates
    values, at = rewriter.emit_all(op, (candidates,))
    return [values, _taken(places, at, d, rewriter)]


def _first_of_each(op: TopK, grouped: Value, rewriter: Rewriter) -> Value:
    """Return the first element of each group, or an integer in its order; groups lie along the dimension behind the operation's."""
    key = _in_order(op, grouped, rewriter)
    first, combiner = (Maximum(), "max") if op.is_descending else (Minimum(), "min")
    scalar = TensorType((), key.type.dtype)
    region = Builder("first")
    one, other = (region.parameter(scalar) for _ in range(2))
    body = region.build(region.add(first, one, other))
    last = Constant.splat(neutral_element(combiner, key.type.dtype), scalar)
    return rewriter.emit_all(Reduce((op.dimension + 1,)), (key, rewriter.emit(last)), (body,))[0]


def _in_order(op: TopK, x: Value, rewriter: Rewriter) -> Value:
    """Return what the greatest, or the least, of some elements is found of: integers in the order of floats.

    The greatest of floats whose zeros are equal is the floats' own: what is no number passes through.
    """
    if not x.type.is_float or (op.is_descending and not op.is_total):
        return x
    emit = rewriter.emit
    if not op.is_total:
        zero, nan = (emit(Constant.splat(number, x.type)) for number in (0, math.nan))
        x = emit(Select(), emit(Compare("EQ"), x, zero), zero, x)
        x = emit(Select(), emit(Compare("NE"), x, x), nan, x)
    return total_order(x, emit)


def _ascending() -> Computation:
    region = Builder("ascending")
    one, other = (region.parameter(TensorType((), "i32")) for _ in range(2))
    return region.build(region.add(Compare("LT"), one, other))


def _taken(x: Value, indices: Value, d: int, rewriter: Rewriter) -> Value:
    """Return what lies at indices along a dimension of an array, whose other dimensions, but for one behind it, the indices have too."""
    rank, sizes = x.type.rank, [1] * x.type.rank
    offsets: tuple[int, ...] = ()
    if rank > indices.type.rank:
        offsets, sizes[d + 1] = (d + 1,), x.type.shape[d + 1]
    batch = tuple(axis for axis in range(rank) if axis != d and axis not in offsets)
    others = tuple(axis for axis in range(indices.type.rank) if axis != d)
    numbers = GatherDimensionNumbers(offsets, (d,), batch, others, (d,), indices.type.rank)
    return rewriter.emit(Gather(numbers, tuple(sizes)), x, indices)
