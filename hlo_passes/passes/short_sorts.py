"""Sorts of short rows, as comparisons and exchanges of whole columns.

``jnp.median`` of nine neighbours, ``lax.top_k`` of eight experts, ``jnp.sort(jnp.stack([a, b, c]), 0)``: a vertex that
sorts merges one row after the other, which takes hundreds of cycles an element. Of columns (all first elements, all second
ones, ...) each comparison is one of arrays, and all of them are one expression, in which what is not read is not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from hlo_passes.ops.elementwise import And, Compare, Convert, Not, Or, Select, Xor
from hlo_passes.passes.base import LocalPass
from hlo_passes.passes.dce import without_dead_instructions
from hlo_passes.passes.patterns import PATTERNS
from hlo_passes.passes.rewriter import Patterns, Rewriter

BIT_TYPES = {"f16": "i16", "bf16": "i16", "f32": "i32"}
"""Floats whose total order is that of integers made of their bits."""


@dataclass(frozen=True)
class ShortSorts(LocalPass):
    """Sort at least ``many_rows`` rows by columns, where that takes at most ``most_exchanges`` of two elements in a row.

    In each pass the first of those that remain moves to the front past its neighbours: equal elements keep their order,
    and what is selected takes as many passes as elements are wanted. Nine elements are sorted by 36 exchanges, and so many
    more for each array that is sorted with them; longer expressions have more values than there are registers for. Of bytes
    four are computed at a time, so they have half as many. Of ``more_rows`` of one array with up to ``most`` elements,
    ``most_stages`` expressions follow one another.

    On 1,472 tiles a vertex that sorts rows takes longer from so many rows on (f32, columns to vertex): 65,536 rows of 12 elements
    23,889 to 37,848 cycles, of 16 42,726 to 45,240, but 4,096 rows 7,401 to 4,731 and 12,846 to 5,655, and 65,536 rows of 12 with their
    places 69,468 to 41,142, of which two are selected from 16 42,783 to 33,432.
    """

    name: ClassVar[str] = "short-sorts"
    many_rows: int = 128
    most_exchanges: int = 56
    more_rows: int = 32768
    most: int = 16
    most_stages: int = 3

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
        stages = 0 if keys is None else self._stages([x.type for x in arrays], axis, keys, read)
        return _sorted(arrays, axis, keys, read, stages, rewriter) if keys and stages else None

    def _select(self, instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
        op, (x,) = instruction.op, instruction.operands
        assert isinstance(op, TopK)
        places, keys = x.type.with_dtype("i32"), (op.key,)
        read = [_read(y, op.dimension, rewriter) for y in instruction.results]
        stages = self._stages([x.type, places], op.dimension, keys, read)
        if not stages:
            return None
        arrays = x, rewriter.emit(Iota(places, op.dimension))
        start, strides = (0,) * x.type.rank, (1,) * x.type.rank
        kept = Slice(start, instruction.results[0].type.shape, strides)
        found = _sorted(arrays, op.dimension, keys, read, stages, rewriter)
        return [rewriter.emit(kept, y) for y in found]

    def _stages(
        self, types: Sequence[TensorType], axis: int, keys: Sequence[SortKey], read: Sequence[range]
    ) -> int:
        """Return in how many expressions rows are sorted; 0 where they are too long, or too few."""
        n, wanted = types[0].shape[axis], max(places.stop for places in read)
        if not wanted or n < 2 or types[0].size < n * self.many_rows:
            return 0
        by_bits = {types[key.operand].dtype for key in keys if _is_by_bits(types[key.operand], key)}
        if not by_bits <= set(BIT_TYPES) or any(types[key.operand].is_complex for key in keys):
            return 0
        exchanges = len(types) * len(_exchanges(n, wanted))
        are_bytes = any(type_.bits <= 8 for type_ in types)
        stages = -(-exchanges * (1 + are_bytes) // self.most_exchanges)
        may_be_several = n <= self.most and len(types) == 1 and types[0].size >= n * self.more_rows
        may_be_several &= not are_bytes
        return stages if stages <= (self.most_stages if may_be_several else 1) else 0


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
    stages: int,
    rewriter: Rewriter,
) -> list[Value]:
    """Return arrays that are sorted together, in so many expressions; their elements at places that are not read are any."""
    by_bits = {key.operand for key in keys if _is_by_bits(arrays[key.operand].type, key)}
    held = [
        _Columns(x, axis, _counts(x, axis, rewriter), k in by_bits, places)
        for k, (x, places) in enumerate(zip(arrays, read, strict=True))
    ]
    exchanges = _exchanges(arrays[0].type.shape[axis], max(places.stop for places in read))
    share = -(-len(exchanges) // stages)
    for start in range(0, len(exchanges), share):
        network, operands = Builder("sorted"), list[Value]()
        chosen, is_last = exchanges[start : start + share], start + share >= len(exchanges)
        touched = sorted({place - near for place in chosen for near in (0, 1)})
        inside = [x.taken(touched, is_last, network, operands) for x in held]
        _order(inside, keys, chosen, network)
        results = [x.kept(columns, is_last, network) for x, columns in zip(held, inside, strict=True)]
        region = without_dead_instructions(network.build(*(y for found in results for y in found.values())))
        made = iter(rewriter.emit_all(Fusion("loop"), operands, (region,)))
        for x, found in zip(held, results, strict=True):
            x.values.update((place, next(made)) for place in found)
    return [x.joined(rewriter) for x in held]


@dataclass
class _Columns:
    """The columns of an array: as they lie in it, until an expression has made others.

    Args:
      array: the array.
      axis: the dimension along which it is sorted.
      counts: whether its elements are their places.
      by_bits: whether elements are integers made of their bits meanwhile.
      read: places that are read in the end.
    """

    array: Value
    axis: int
    counts: bool
    by_bits: bool
    read: range

    def __post_init__(self) -> None:
        """Start with columns that lie in the array."""
        self.values: dict[int, Value] = {}
        self.slices = _columns(self.array.type, self.axis)

    def taken(
        self, places: Sequence[int], is_last: bool, network: Builder, operands: list[Value]
    ) -> dict[int, Value]:
        """Return columns as an expression has them, those that it must leave as they were too."""
        if is_last and self.by_bits:
            places = sorted({*places, *self.read})
        return {place: self._taken(place, network, operands) for place in places}

    def _taken(self, place: int, network: Builder, operands: list[Value]) -> Value:
        made, slice_ = self.values.get(place), self.slices[place]
        if made is None and self.counts:
            return network.add(Constant.splat(place, slice_.infer(self.array.type)[0]))
        operands.append(self.array if made is None else made)
        column = network.parameter(operands[-1].type)
        if made is not None:
            return column
        column = network.add(slice_, column)
        return reordered(network.add(self._bits(), column), network.add) if self.by_bits else column

    def _bits(self) -> BitcastConvert:
        return BitcastConvert(BIT_TYPES[self.array.type.dtype])

    def kept(self, columns: dict[int, Value], is_last: bool, network: Builder) -> dict[int, Value]:
        """Return what an expression has made of columns, the last one of those that are read."""
        if not is_last:
            return columns
        found = {place: columns[place] for place in self.read if place in columns}
        if not self.by_bits:
            return found
        back = BitcastConvert(self.array.type.dtype)
        return {place: network.add(back, reordered(y, network.add)) for place, y in found.items()}

    def joined(self, rewriter: Rewriter) -> Value:
        """Return the array that has the columns in the end."""
        columns = [
            self.values[place] if place in self.read else rewriter.emit(slice_, self.array)
            for place, slice_ in enumerate(self.slices)
        ]
        return rewriter.emit(Concatenate(self.axis), *columns)


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


def _order(
    arrays: Sequence[dict[int, Value]], keys: Sequence[SortKey], exchanges: Sequence[int], network: Builder
) -> None:
    """Exchange elements of several arrays together, each with that in front of it where it goes first."""
    for place in exchanges:
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


def total_order(x: Value, add: Callable[..., Value]) -> Value:
    """Return floats of at most 32 bits as integers of 32 bits in their total order; of fewer each function would cut its results off.

    Args:
      x: floats of a type of ``BIT_TYPES``.
      add: adds an operation with its operands, and returns its result.
    """
    return reordered(add(Convert("i32"), add(BitcastConvert(BIT_TYPES[x.type.dtype]), x)), add)


def reordered(bits: Value, add: Callable[..., Value]) -> Value:
    """Return the bits of floats as integers in their total order, and of such integers the floats' bits.

    Args:
      bits: signed integers.
      add: adds an operation with its operands, and returns its result.
    """
    zero, magnitude = (
        add(Constant.splat(number, bits.type)) for number in (0, (1 << (bits.type.bits - 1)) - 1)
    )
    is_negative = add(Compare("LT"), bits, zero)
    return add(Select(), is_negative, add(Xor(), bits, magnitude), bits)
