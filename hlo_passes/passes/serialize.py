"""Chains of large values are computed slice by slice where all of them at once would crowd the memory.

The scores of attention over 4,096 tokens and the distances from every point to every other are larger than what they are made
of and what is made of them, and each row of them is made alone. Some rows at a time, in a loop, they need a part of the memory.
PopART has the same for a batch and for matrix products ("serialized matmul").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from hlo_passes.ir import Builder, Computation, Instruction, Op, TensorType, Value, value_names
from hlo_passes.ops import (
    Add,
    BroadcastInDim,
    Constant,
    Convert,
    DynamicSlice,
    DynamicUpdateSlice,
    Iota,
    Minimum,
    Multiply,
    Repeat,
)
from hlo_passes.passes.base import LocalPass, map_control_regions
from hlo_passes.passes.boxes import rule_of
from hlo_passes.passes.chains import (
    Chain,
    Held,
    arrays_of,
    chain_from,
    held_bytes,
    inside_bytes,
    is_free,
    is_large,
)
from hlo_passes.passes.slicing import UnknownSlice, axis_read, sliced_type, smaller
from hlo_passes.passes.structure import FreshNames, users_of

MOST_HELD = 0.75
"""Share of the memory that a computation's values may take at once before any are computed in slices."""
LESS_HELD = 0.35
"""The same for a program that does not fit: code, messages and what waits in pieces take more of it than of others."""
HELD_IN_SLICES = 0.35
"""Share of it up to which values are there while slices are computed: the fewer these are the better."""
LEAST_GAIN = 0.1
"""Share of it that slices leave free at least: less is not worth their loop."""
SLICE = 0.08
"""Share of it that the values inside a slice may take in any case."""
LARGE = 1 / 64
"""Share of it from which on a value is large: chains consist of operations that make or read such."""
_INDEX = TensorType((), "i32")


@dataclass(frozen=True)
class Serialize(LocalPass):
    """Compute chains of large values in slices along an axis that all of them keep, in a loop.

    A chain is what lies between values that are small and values that are small again: products, elementwise functions,
    functions of rows, folds and sorts along other axes. Where the slices do not divide the axis, the last one begins earlier.

    Args:
      memory: bytes of the machine that the program is for; with 0 nothing changes.
      most_held: share of it that values may take before any are computed in slices.
    """

    name: ClassVar[str] = "serialize"
    memory: int = 0
    most_held: float = MOST_HELD

    def change(self, computation: Computation) -> Computation:
        """Return the computation with loops over slices; itself when its values leave room or no chain is found."""
        if not self.memory or self._largest(computation) < self.memory * LARGE:
            return computation
        computation = self._in_slices(computation)
        instructions = tuple(map_control_regions(i, self.change) for i in computation.instructions)
        if any(new is not old for new, old in zip(instructions, computation.instructions, strict=True)):
            computation = dataclasses.replace(computation, instructions=instructions)
        return computation

    def _in_slices(self, computation: Computation) -> Computation:
        """Return the computation with as many chains in slices as it takes; itself if they do not leave room in the end."""
        if sum(v.type.size_bytes for v in computation.parameters) > self.memory:
            return computation  # what it is given leaves no room, whatever is made of it
        before = held = held_bytes(computation)
        found, rejected = computation, set[tuple[Value, int]]()
        while held.most > self.memory * self.most_held:
            way = self._best(found, held, rejected)
            if way is None:
                break
            found, held = way.result, way.held
            rejected -= {(v, axis) for v in way.touched for axis in range(v.type.rank)}
        return found if held.most <= before.most - self.memory * LEAST_GAIN else computation

    def _largest(self, computation: Computation) -> int:
        """Return the bytes of the largest value that instructions make, those of loops and branches included."""
        return max((v.type.size_bytes for i in computation.walk() for v in i.results), default=0)

    def _best(self, computation: Computation, held: Held, rejected: set[tuple[Value, int]]) -> _Slices | None:
        """Return the chain in slices that leaves most room: among those of what is held at most, else among all."""
        least = int(self.memory * LARGE)
        others = [v for i in computation.instructions if is_large(i, least) for v in i.results]
        for values in (held.values, others):
            found = min(self._ways(computation, values, rejected), key=self._order, default=None)
            if (
                found is not None
                and self._beyond(found.held) <= self._beyond(held) - self.memory * LEAST_GAIN
            ):
                return found
        return None

    def _beyond(self, held: Held) -> float:
        return held.beyond(self.memory * self.most_held)

    def _order(self, way: _Slices) -> tuple[float, bool, int]:
        """Order ways by what is beyond the limit; then by what they compute again, and what slices read."""
        return self._beyond(way.held), way.repeats, way.read_bytes

    def _ways(
        self, computation: Computation, values: Sequence[Value], rejected: set[tuple[Value, int]]
    ) -> Iterator[_Slices]:
        """Yield in slices the chains that values are among, if what they leave is small; note which are not."""
        least = int(self.memory * LARGE)
        users, arrays = users_of(computation), arrays_of(computation)
        made = dict.fromkeys(computation.producers[v] for v in values)
        tried: set[tuple[Value, int]] = set()
        for seed in (i for i in made if is_large(i, least) and not is_free(i)):
            for axis, size in enumerate(seed.results[0].type.shape):
                if size == 1 or (seed.results[0], axis) in tried | rejected:
                    continue
                chain = chain_from(computation, users, arrays, seed, axis, least)
                alike = {(i.results[0], a) for i, a in chain.members.items()} | {(seed.results[0], axis)}
                tried |= alike
                chains = [Chain(chain.members, {}), *([chain] if chain.again else [])]
                ways = [_Slices(computation, users, arrays, each) for each in chains]
                worth_it = [way for way in ways if self._is_worth_it(way)]
                if not worth_it:
                    rejected |= alike
                for way in worth_it:
                    way.cut(self.memory * SLICE, self.memory * min(self.most_held, HELD_IN_SLICES))
                    yield way

    def _is_worth_it(self, way: _Slices) -> bool:
        return way.takes(max(self.memory * LEAST_GAIN, 2 * way.left_bytes))


class _Slices:
    """A chain that is computed in slices.

    Attributes:
      left_bytes: of its values that others read.
      repeats: whether slices compute anything again.
      touched: values that it makes or reads.
      result: the computation with a loop in its place, once it is cut.
      held: the most that it takes.
      read_bytes: what all slices together read of values outside: along batches and heads operands are cut, too.
    """

    result: Computation
    held: Held
    read_bytes: int

    def __init__(
        self, computation: Computation, users: Mapping[Value, list[int]], arrays: set[Value], chain: Chain
    ) -> None:
        self._computation, self._users, self._arrays, self._chain = computation, users, arrays, chain
        made = {v for i in chain.members for v in i.results}
        results = set(computation.results)
        self._left = [v for i in chain.members for v in i.results if v in results or self._is_read_outside(v)]
        self.left_bytes = sum(v.type.size_bytes for v in self._left)
        repeated = {v for i in chain.again for v in i.results}
        self.repeats = bool(repeated)
        self.touched = made | repeated | {v for i in chain.members for v in i.operands}
        self._counted = (made - set(self._left)) | repeated

    @cached_property
    def inside(self) -> int:
        """The most bytes that those of its values take at once that nothing else reads, and those that slices compute again."""
        return held_bytes(self._computation, self._counted, self._arrays).most

    def takes(self, least: float) -> bool:
        """Whether there are so many bytes inside."""
        return sum(v.type.size_bytes for v in self._counted) >= least and self.inside >= least

    def cut(self, least: float, most: float) -> None:
        """Put a loop over slices in the place of the chain: as few as let ``most`` bytes be there, of ``least`` bytes in any case."""
        each = max(1, int(self._size * least / self.inside))
        self._place(each)
        (loop,) = (n for n, i in enumerate(self.result.instructions) if i.results[:1] == self._counter)
        in_slice = inside_bytes(self.result.instructions[loop].regions[0])
        room = most - (self.held.at[loop] - in_slice)
        more = min(-(-self._size // 2), int(room * each / in_slice))
        if more > each:
            self._place(-(-self._size // -(-self._size // more)))  # slices of even size

    def _is_read_outside(self, value: Value) -> bool:
        """Whether others than members read a value; a broadcast that only members read is made where they are."""
        readers = (self._computation.instructions[n] for n in self._users[value])
        return any(
            not isinstance(reader.op, BroadcastInDim)
            or reader.result in self._computation.results
            or self._is_read_outside(reader.result)
            for reader in readers
            if reader not in self._chain.members
        )

    @property
    def _size(self) -> int:
        """Elements of the axis that is cut."""
        instruction, axis = next(iter(self._chain.members.items()))
        return instruction.results[0].type.shape[axis]

    def _place(self, each: int) -> None:
        """Put a loop over slices of so many elements in the place of the chain."""
        computation = self._computation
        last = list(self._chain.members)[-1]
        trips = -(-self._size // each)
        body = self._body(each)
        inputs, region = body.built()
        names = FreshNames(value_names(computation))
        instructions: list[Instruction] = []

        def emit(op: Op, *operands: Value, regions: Sequence[Computation] = ()) -> tuple[Value, ...]:
            types = op.infer(*(v.type for v in operands), regions=regions)
            results = tuple(Value(names.new(), type_) for type_ in types)
            instructions.append(Instruction(op, operands, results, tuple(regions), last.location))
            return results

        late: list[Instruction] = []
        waiting = set(self._left)
        gone = {v for i in self._chain.members for v in i.results} - waiting
        position = computation.instructions.index(last)
        has_effect = False  # what follows one that waits waits too, if it has an effect: their order is seen
        for instruction in computation.instructions[: position + 1]:
            if instruction in self._chain.members:
                continue
            if not gone.isdisjoint(instruction.operands):  # a broadcast that members read
                gone.update(instruction.results)
            elif waiting.isdisjoint(instruction.operands) and not (has_effect and instruction.has_effect):
                instructions.append(instruction)
            else:
                late.append(instruction)
                waiting.update(instruction.results)
                has_effect = has_effect or instruction.has_effect
        zero = emit(Constant.splat(np.int32(0), _INDEX))
        starts = [emit(Constant.splat(np.zeros((), v.type.np_dtype), v.type))[0] for v in self._left]
        results = emit(Repeat(trips, len(inputs)), *zero, *starts, *inputs, regions=(region,))
        placed = dict(zip(self._left, results[1:], strict=True))
        for instruction in (*late, *computation.instructions[position + 1 :]):
            if not gone.isdisjoint(instruction.operands):  # a broadcast that only an earlier loop reads
                gone.update(instruction.results)
                continue
            if not placed.keys().isdisjoint(instruction.operands):
                operands = tuple(placed.get(v, v) for v in instruction.operands)
                instruction = dataclasses.replace(instruction, operands=operands)
            instructions.append(instruction)
        self.result = Computation(
            computation.name,
            computation.parameters,
            tuple(instructions),
            tuple(placed.get(v, v) for v in computation.results),
        )
        self.held, self.read_bytes = held_bytes(self.result), body.read_bytes(trips)
        self._counter = results[:1]

    def _body(self, each: int) -> _Body:
        axes = self._chain.members | self._chain.again
        ordered = {i: axes[i] for i in self._computation.instructions if i in axes}
        return _Body(self._computation, ordered, self._left, each, self._size)


class _Body:
    """The body of a loop over slices, being built."""

    def __init__(
        self,
        computation: Computation,
        axes: Mapping[Instruction, int],
        left: Sequence[Value],
        each: int,
        size: int,
    ) -> None:
        self._computation, self._axes, self._left = computation, axes, left
        self._each, self._latest = each, size - each
        self._builder = Builder("slice")
        self._builder.location = [*axes][-1].location
        self._axis_of = {v: axis for i, axis in axes.items() for v in i.results}
        self._known: dict[tuple[Value, int | None], Value] = {}
        self._inputs: dict[Value, Value] = {}

    def built(self) -> tuple[list[Value], Computation]:
        """Return what the loop reads, and its body: number of the slice, results so far, what is read."""
        number = self._builder.parameter(_INDEX)
        results = [self._builder.parameter(v.type) for v in self._left]
        for value in self._outer():
            self._inputs[value] = self._builder.parameter(value.type)
        (each,) = self._builder.emit(Constant.splat(np.int32(self._each), _INDEX))
        (begin,) = self._builder.emit(Multiply(), number, each)
        (latest,) = self._builder.emit(Constant.splat(np.int32(self._latest), _INDEX))
        (self._start,) = self._builder.emit(Minimum(), begin, latest)
        (self._zero,) = self._builder.emit(Constant.splat(np.int32(0), _INDEX))
        for instruction, axis in self._axes.items():
            op, regions = smaller(instruction, axis, self._each)
            operands = tuple(
                self._value(v, axis_read(instruction, k, axis)) for k, v in enumerate(instruction.operands)
            )
            made = self._builder.clone(dataclasses.replace(instruction, op=op, regions=regions), operands)
            self._known.update(zip([(v, axis) for v in instruction.results], made, strict=True))
        updated: list[Value] = []
        for value, held in zip(self._left, results, strict=True):
            axis = self._axis_of[value]
            made = self._known[value, axis]
            updated += self._builder.emit(DynamicUpdateSlice(), held, made, *self._offsets(value, axis))
        (one,) = self._builder.emit(Constant.splat(np.int32(1), _INDEX))
        (after,) = self._builder.emit(Add(), number, one)
        return list(self._inputs), self._builder.build(after, *updated)

    def read_bytes(self, trips: int) -> int:
        """Return the bytes of what so many slices read from outside: all of it once where it is cut."""
        return sum(
            value.type.size_bytes * (trips if axis is None else 1)
            for value, axis in self._known
            if value in self._inputs
        )

    def _outer(self) -> dict[Value, None]:
        """Return what the members read from outside, in order; constants and what is broadcast is made inside."""
        found: dict[Value, None] = {}

        def look(value: Value, axis: int | None) -> None:
            producer = self._computation.producers.get(value)
            if axis is not None and self._axis_of.get(value) == axis:
                return
            if producer is not None and _is_remade(producer, axis):
                for k, operand in enumerate(producer.operands):
                    look(operand, None if axis is None else axis_read(producer, k, axis))
            else:
                found[value] = None

        for instruction, axis in self._axes.items():
            for k, operand in enumerate(instruction.operands):
                look(operand, axis_read(instruction, k, axis))
        return found

    def _offsets(self, value: Value, axis: int) -> list[Value]:
        return [self._start if d == axis else self._zero for d in range(value.type.rank)]

    def _value(self, value: Value, axis: int | None) -> Value:
        """Return a value, or the slice of it along an axis, inside the body."""
        if (value, axis) not in self._known:
            producer = self._computation.producers.get(value)
            if producer is not None and _is_remade(producer, axis):
                op = producer.op if axis is None else _made_smaller(producer, axis, self._each)
                operands = tuple(
                    self._value(v, None if axis is None else axis_read(producer, k, axis))
                    for k, v in enumerate(producer.operands)
                )
                (made,) = self._builder.clone(dataclasses.replace(producer, op=op), operands)
                if isinstance(producer.op, Iota) and producer.op.dimension == axis:
                    made = self._counted_from_start(made)
            elif axis is None:
                made = self._inputs[value]
            else:
                type_ = sliced_type(value.type, axis, self._each)
                (made,) = self._builder.emit(
                    DynamicSlice(type_.shape), self._inputs[value], *self._offsets(value, axis)
                )
            self._known[value, axis] = made
        return self._known[value, axis]

    def _counted_from_start(self, counts: Value) -> Value:
        """Return 0, 1, 2, ... along an axis, counted from where the slice begins."""
        (start,) = self._builder.emit(Convert(counts.type.dtype), self._start)
        (starts,) = self._builder.emit(BroadcastInDim(counts.type.shape, ()), start)
        return self._builder.emit(Add(), counts, starts)[0]


def _made_smaller(instruction: Instruction, axis: int, size: int) -> Op:
    if isinstance(instruction.op, Iota):
        return dataclasses.replace(instruction.op, type=sliced_type(instruction.op.type, axis, size))
    return smaller(instruction, axis, size)[0]


def _is_remade(instruction: Instruction, axis: int | None) -> bool:
    """Whether a value is made again inside a loop, cut along an axis or whole, instead of handed in."""
    if not is_free(instruction):
        return False
    if isinstance(instruction.op, Constant) and not instruction.op.is_splat:
        return False
    if axis is None:
        return True
    if isinstance(instruction.op, Iota) and instruction.op.dimension == axis:
        return instruction.op.type.is_integer
    try:
        for k in range(len(instruction.operands)):
            axis_read(instruction, k, axis)
        smaller(instruction, axis, 1)
    except UnknownSlice:
        return False
    rule = rule_of(instruction)
    return rule is not None and axis in rule.cut(instruction)
