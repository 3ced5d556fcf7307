"""Sorts of short rows, as comparisons and exchanges of whole columns.

``jnp.median`` of nine neighbours, ``lax.top_k`` of eight experts, ``jnp.sort(jnp.stack([a, b, c]), 0)``: a vertex that
sorts merges one row after the other, which takes hundreds of cycles an element. Of columns (all first elements, all second
ones, ...) each comparison is one of arrays, and all of them are one expression, in which what is not read is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Builder, Computation, Instruction, TensorType, Value
from hlo_passes.ops import (
    BitcastConvert,
    Concatenate,
    Constant,
    Fusion,
    Iota,
    Slice,
    Sort,
    SortKey,
    TopK,
    sort_keys,
)
from hlo_passes.ops.elementwise import And, Compare, Not, Or, Select, Xor
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.dce import without_dead_instructions
from hlo_passes.passes.patterns import PATTERNS
from hlo_passes.passes.rewriter import Patterns, Rewriter

_BIT_TYPES = {"f16": "i16", "bf16": "i16", "f32": "i32"}
"""Floats whose total order is that of integers made of their bits."""


@dataclass(frozen=True)
class ShortSorts(LocalPass):
    """Sort at least ``many_rows`` rows by columns, where that takes at most ``most_exchanges`` of two elements in a row.

    In each pass the first of those that remain moves to the front past its neighbours: equal elements keep their order,
    and what is selected takes as many passes as elements are wanted. Nine elements are sorted by 36 exchanges, and so many
    more for each array that is sorted with them; longer expressions have more values than there are registers for. Of bytes
    four are computed at a time, so they have half as many.
    """

    name: ClassVar[str] = "short-sorts"
    many_rows: int = 128
    most_exchanges: int = 56

    def change(self, computation: Computation) -> Computation:
        """Return the computation with such sorts as expressions; itself when it has none."""
        if computation.op_types.isdisjoint((Sort, TopK)):
            return computation
        patterns: Patterns = {Sort: (self._sort,), TopK: (self._select,), Slice: PATTERNS[Slice]}
        return Rewriter(computation, patterns).run()

    def _sort(self, instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
        op, arrays = instruction.op, instruction.operands
        assert isinstance(op, Sort)
        keys, axis = sort_keys(instruction.regions[0]), op.dimension % arrays[0].type.rank
        read = [_read(x, axis, rewriter) for x in instruction.results]
        if keys is None or not self._is_short([x.type for x in arrays], axis, keys, read):
            return None
        return _sorted(arrays, axis, keys, read, rewriter)

    def _select(self, instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
        op, (x,) = instruction.op, instruction.operands
        assert isinstance(op, TopK)
        places = x.type.with_dtype("i32")
        read = [_read(y, op.dimension, rewriter) for y in instruction.results]
        if not self._is_short([x.type, places], op.dimension, (op.key,), read):
            return None
        arrays = x, rewriter.emit(Iota(places, op.dimension))
        start, strides = (0,) * x.type.rank, (1,) * x.type.rank
        kept = Slice(start, instruction.results[0].type.shape, strides)
        return [rewriter.emit(kept, y) for y in _sorted(arrays, op.dimension, (op.key,), read, rewriter)]

    def _is_short(
        self, types: Sequence[TensorType], axis: int, keys: Sequence[SortKey], read: Sequence[range]
    ) -> bool:
        """Whether rows are so short, and so many, that columns are compared sooner."""
        n, wanted = types[0].shape[axis], max(places.stop for places in read)
        if not wanted or n < 2 or types[0].size < n * self.many_rows:
            return False
        exchanges = len(types) * len(_exchanges(n, wanted))
        if any(type_.bits <= 8 for type_ in types):
            exchanges *= 2
        if exchanges > self.most_exchanges:
            return False
        by_bits = {types[key.operand].dtype for key in keys if _is_by_bits(types[key.operand], key)}
        return by_bits <= set(_BIT_TYPES) and not any(types[key.operand].is_complex for key in keys)


def _is_by_bits(type_: TensorType, key: SortKey) -> bool:
    """Whether elements compare as integers made of their bits."""
    return key.is_total and type_.is_float


def _read(x: Value, axis: int, rewriter: Rewriter) -> range:
    """Return which places along a dimension of a result are read: from the first to the last."""
    readers, n = rewriter.readers(x), x.type.shape[axis]
    if readers is None or not all(isinstance(reader.op, Slice) for reader in readers):
        return range(n)
    ends = [(r.op.start[axis], r.op.limit[axis]) for r in readers if isinstance(r.op, Slice)]
    return range(min((start for start, _ in ends), default=0), max((limit for _, limit in ends), default=0))


def _sorted(
    arrays: Sequence[Value],
    axis: int,
    keys: Sequence[SortKey],
    read: Sequence[range],
    rewriter: Rewriter,
) -> list[Value]:
    """Return arrays that are sorted together; their elements at places that are not read are any."""
    network, operands = Builder("sorted"), list[Value]()
    inside: list[list[Value]] = []
    for x in arrays:
        columns = _columns(x.type, axis)
        if _counts(x, axis, rewriter):
            types = [column.infer(x.type)[0] for column in columns]
            inside.append([network.add(Constant.splat(place, type_)) for place, type_ in enumerate(types)])
        else:
            inside.append([network.add(column, network.parameter(x.type)) for column in columns])
            operands += [x] * len(columns)
    by_bits = {key.operand for key in keys if _is_by_bits(arrays[key.operand].type, key)}
    for k in by_bits:
        bits = BitcastConvert(_BIT_TYPES[arrays[k].type.dtype])
        inside[k] = [_reordered(network.add(bits, y), network) for y in inside[k]]
    _order(inside, keys, max(places.stop for places in read), network)
    for k in by_bits:
        back = BitcastConvert(arrays[k].type.dtype)
        inside[k] = [network.add(back, _reordered(y, network)) for y in inside[k]]
    wanted = [columns[place] for columns, places in zip(inside, read, strict=True) for place in places]
    region = without_dead_instructions(network.build(*wanted))
    found = iter(rewriter.emit_all(Fusion("loop"), operands, (region,)))
    results: list[Value] = []
    for x, places in zip(arrays, read, strict=True):
        made = {place: next(found) for place in places}
        columns = [made.get(n) or rewriter.emit(column, x) for n, column in enumerate(_columns(x.type, axis))]
        results.append(rewriter.emit(Concatenate(axis), *columns))
    return results


def _columns(type_: TensorType, axis: int) -> list[Slice]:
    """Return what takes, for each place along a dimension, what lies there."""
    found: list[Slice] = []
    for place in range(type_.shape[axis]):
        start, limit = [0] * type_.rank, list(type_.shape)
        start[axis], limit[axis] = place, place + 1
        found.append(Slice(tuple(start), tuple(limit), (1,) * type_.rank))
    return found


def _counts(x: Value, axis: int, rewriter: Rewriter) -> bool:
    """Whether elements are their places along a dimension."""
    made = rewriter.producer(x, Iota)
    return made is not None and made[0].dimension == axis


def _exchanges(n: int, wanted: int) -> list[int]:
    """Return at which places of ``n``, one after the other, an element may go before that in front of it."""
    return [place for first in range(min(wanted, n - 1)) for place in reversed(range(first + 1, n))]


def _order(arrays: Sequence[list[Value]], keys: Sequence[SortKey], wanted: int, network: Builder) -> None:
    """Put the first ``wanted`` elements of rows, of several arrays together, in their places."""
    for place in _exchanges(len(arrays[0]), wanted):
        before, here = ([columns[at] for columns in arrays] for at in (place - 1, place))
        stays = _stays(before, here, keys, network)
        for columns, one, other in zip(arrays, before, here, strict=True):
            columns[place - 1] = network.add(Select(), stays, one, other)
            columns[place] = network.add(Select(), stays, other, one)


def _stays(
    before: Sequence[Value], here: Sequence[Value], keys: Sequence[SortKey], network: Builder
) -> Value:
    """Return whether an element does not go before that in front of it."""
    key, *others = keys
    one, other = before[key.operand], here[key.operand]
    stays = _is_no_later(one, other, key, network)
    if not others:
        return stays
    is_later = network.add(Not(), _is_no_later(other, one, key, network))
    return network.add(And(), stays, network.add(Or(), is_later, _stays(before, here, others, network)))


def _is_no_later(one: Value, other: Value, key: SortKey, network: Builder) -> Value:
    """Return whether an element comes before another by a key, or where it does: NaNs, which are equal, are greatest."""
    found = network.add(Compare("GE" if key.is_descending else "LE"), one, other)
    if not one.type.is_float:
        return found
    greater = one if key.is_descending else other
    return network.add(Or(), found, network.add(Compare("NE"), greater, greater))


def _reordered(bits: Value, network: Builder) -> Value:
    """Return the bits of floats as integers in their total order, and of such integers the floats' bits."""
    zero, magnitude = (
        network.add(Constant.splat(number, bits.type)) for number in (0, (1 << (bits.type.bits - 1)) - 1)
    )
    is_negative = network.add(Compare("LT"), bits, zero)
    return network.add(Select(), is_negative, network.add(Xor(), bits, magnitude), bits)
