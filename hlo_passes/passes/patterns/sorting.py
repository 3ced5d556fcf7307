"""Sorts of which only the first elements are read."""

from __future__ import annotations

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import Convert, Iota, Slice, Sort, SortKey, TopK, sort_keys
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
    k, key = _read_elements(sort, dimension, rewriter), _single_key(sort)
    if k is None or key is None or LARGEST_SHARE * k > shape[dimension]:
        return None
    number = sort.results.index(value)
    if number != key.operand and not _counts(sort.operands[number], dimension, rewriter):
        return None
    selected = TopK(k, dimension, key.is_descending, key.is_total)
    values, positions = rewriter.emit_all(selected, (sort.operands[key.operand],), location=sort.location)
    if number == key.operand:
        return rewriter.emit(op, values)
    taken = rewriter.emit(op, positions)
    return taken if value.type.dtype == "i32" else rewriter.emit(Convert(value.type.dtype), taken)


def _single_key(sort: Instruction) -> SortKey | None:
    keys = sort_keys(sort.regions[0])
    return keys[0] if keys is not None and len(keys) == 1 else None


def _read_elements(sort: Instruction, dimension: int, rewriter: Rewriter) -> int | None:
    """Return how many elements of a row are read, None where other operations than slices read them."""
    most = 0
    for result in sort.results:
        readers = rewriter.readers(result)
        if readers is None:
            return None
        for reader in readers:
            if not isinstance(reader.op, Slice):
                return None
            most = max(most, reader.op.limit[dimension])
    return most


def _counts(value: Value, dimension: int, rewriter: Rewriter) -> bool:
    """Whether a value holds each element's position along a dimension."""
    found = rewriter.producer(value, Iota)
    is_wide = value.type.is_integer and value.type.bits >= 32
    return found is not None and found[0].dimension == dimension and is_wide
