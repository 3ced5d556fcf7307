"""Sorts of which only the first elements are read, or only the last."""

from __future__ import annotations

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import (
    Constant,
    Convert,
    Iota,
    Reverse,
    Slice,
    Sort,
    SortKey,
    Subtract,
    TopK,
    sort_keys,
)
from hlo_passes.passes.patterns.registry import rewrites
from hlo_passes.passes.rewriter import Rewriter

LARGEST_SHARE = 2
"""A row is sorted as a whole when more than one in so many of its elements is read."""


@rewrites(Slice)
def select_first(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """The first elements of arrays that are sorted by one of them, and of their positions, are selected."""
    op, (value,) = instruction.op, instruction.operands
    assert isinstance(op, Slice)
    sort = rewriter.maker(value)
    if sort is None or not isinstance(sort.op, Sort):
        return None
    shape, dimension = value.type.shape, sort.op.dimension % value.type.rank
    read, key = _read_elements(sort, dimension, rewriter), _single_key(sort)
    if read is None or key is None:
        return None
    number, size = sort.results.index(value), shape[dimension]
    if number != key.operand and not _counts(sort.operands[number], dimension, rewriter):
        return None
    if LARGEST_SHARE * read.stop > size:
        is_few = LARGEST_SHARE * (size - read.start) <= size
        return _last(instruction, rewriter, sort, key, size - read.start) if is_few else None
    k = read.stop
    selected = TopK(k, dimension, key.is_descending, key.is_total)
    values, positions = rewriter.emit_all(selected, (sort.operands[key.operand],), location=sort.location)
    if number == key.operand:
        return rewriter.emit(op, values)
    taken = rewriter.emit(op, positions)
    return taken if value.type.dtype == "i32" else rewriter.emit(Convert(value.type.dtype), taken)


def _last(instruction: Instruction, rewriter: Rewriter, sort: Instruction, key: SortKey, k: int) -> Value:
    """Return a slice of the last ``k`` elements, or of their positions: the first ones of the opposite order, the other way round.

    Of equal elements the last ones come first then, as in rows that are reversed before.
    """
    op, (value,) = instruction.op, instruction.operands
    assert isinstance(op, Slice)
    assert isinstance(sort.op, Sort)
    dimension = sort.op.dimension % value.type.rank
    size, number, given = value.type.shape[dimension], sort.results.index(value), sort.operands[key.operand]
    counts = len(sort.results) > 1
    are_alike = key.is_total or given.type.is_integer  # those that are equal
    if counts or not are_alike:
        given = rewriter.emit(Reverse((dimension,)), given)
    selected = TopK(k, dimension, not key.is_descending, key.is_total)
    values, positions = rewriter.emit_all(selected, (given,), location=sort.location)

    def shifted(bounds: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(n - (size - k) if d == dimension else n for d, n in enumerate(bounds))

    taken = values if number == key.operand else positions
    taken = rewriter.emit(Reverse((dimension,)), taken)
    taken = rewriter.emit(Slice(shifted(op.start), shifted(op.limit), op.strides), taken)
    if number == key.operand:
        return taken
    last = rewriter.emit(Constant.splat(size - 1, taken.type))
    taken = rewriter.emit(Subtract(), last, taken)
    return taken if value.type.dtype == "i32" else rewriter.emit(Convert(value.type.dtype), taken)


@rewrites(Slice)
def slice_before_sorted_are_reversed(instruction: Instruction, rewriter: Rewriter) -> Value | None:
    """A slice of what is sorted and reversed, as in ``jnp.argsort(x)[::-1][:k]``, is that slice from the other end, reversed."""
    op, (value,) = instruction.op, instruction.operands
    assert isinstance(op, Slice)
    reverse = rewriter.producer(value, Reverse)
    if reverse is None:
        return None
    sort, dimensions = rewriter.maker(reverse[1][0]), reverse[0].dimensions
    if sort is None or not isinstance(sort.op, Sort) or any(op.strides[d] != 1 for d in dimensions):
        return None
    sides = list(zip(op.start, op.limit, value.type.shape, strict=True))
    start = tuple(n - last if d in dimensions else first for d, (first, last, n) in enumerate(sides))
    limit = tuple(n - first if d in dimensions else last for d, (first, last, n) in enumerate(sides))
    return rewriter.emit(Reverse(dimensions), rewriter.emit(Slice(start, limit, op.strides), reverse[1][0]))


def _single_key(sort: Instruction) -> SortKey | None:
    keys = sort_keys(sort.regions[0])
    return keys[0] if keys is not None and len(keys) == 1 else None


def _read_elements(sort: Instruction, dimension: int, rewriter: Rewriter) -> range | None:
    """Return which elements of a row are read, None where other operations than slices read them."""
    least, most = sort.operands[0].type.shape[dimension], 0
    for result in sort.results:
        readers = rewriter.readers(result)
        if readers is None:
            return None
        for reader in readers:
            if not isinstance(reader.op, Slice):
                return None
            least = min(least, reader.op.start[dimension])
            most = max(most, reader.op.limit[dimension])
    return range(least, most)


def _counts(value: Value, dimension: int, rewriter: Rewriter) -> bool:
    """Whether a value holds each element's position along a dimension."""
    found = rewriter.producer(value, Iota)
    is_wide = value.type.is_integer and value.type.bits >= 32
    return found is not None and found[0].dimension == dimension and is_wide
