"""Which instructions fuse: every one goes into the only group that reads it, or becomes the root of its own.

A group becomes one fusion. The walk goes from results to parameters: whoever reads an instruction is placed
before it is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hlo_passes.ir import Computation, FusionCategory, Instruction, TensorType, Value
from hlo_passes.ops import (
    BroadcastInDim,
    Constant,
    DotGeneral,
    Iota,
    Pad,
    Reduce,
    Reshape,
    Reverse,
    Slice,
    Transpose,
    is_neutral,
    simple_combiner,
)
from hlo_passes.ops.elementwise import (
    Abs,
    Add,
    And,
    BitcastConvert,
    Clamp,
    Compare,
    Convert,
    Divide,
    Elementwise,
    IsFinite,
    Maximum,
    Minimum,
    Multiply,
    Negate,
    Not,
    Or,
    Power,
    Remainder,
    Select,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Sign,
    Subtract,
    Xor,
)
from hlo_passes.passes.indexing import Axes, access, compose, identity


@dataclass(eq=False)
class Group:
    """The operations to fuse behind one result.

    Args:
      root: the operation whose result the fusion returns.
      kind: ``loop``, ``input`` or ``output``.
      domain: shape of the root's result; of a reduction's operand.
      members: the operations, each with the index maps that it is read through.
      size: how many rows the members are, as ``weight`` counts them: one for each map.
      repeated: how many of them other groups compute, too, for as many elements as a worker has.
      dot: the contraction of an ``output`` group.
      has_initial: whether a reduction's initial value is a neutral constant inside the group.
    """

    root: Instruction
    kind: str
    domain: tuple[int, ...]
    members: dict[Instruction, list[Axes]] = field(default_factory=dict[Instruction, list[Axes]])
    size: int = 0
    repeated: int = 0
    dot: Instruction | None = None
    has_initial: bool = False


@dataclass
class _Use:
    """Who reads a value: fusion groups, through which maps, and others."""

    groups: dict[Group, dict[Axes, None]] = field(default_factory=dict[Group, dict[Axes, None]])
    is_outside: bool = False


class Grouping:
    """The walk over one computation.

    Args:
      computation: a valid computation.
      max_ops: how many operations a group may have, of few elements four times as many.
    """

    def __init__(self, computation: Computation, max_ops: int) -> None:
        """Start before the last instruction."""
        self.computation = computation
        self.producers = computation.producers
        self.max_ops = max_ops
        self.uses: dict[Value, _Use] = {}
        self.groups: dict[Instruction, Group] = {}

    def run(self) -> dict[Instruction, Group]:
        """Return the group of every instruction that is the root of one; others live inside groups only."""
        for value in self.computation.results:
            self._read(value)
        for instruction in reversed(self.computation.instructions):
            if instruction.op.category is FusionCategory.OPAQUE or len(instruction.results) != 1:
                self._start(instruction)
            elif self._is_repeatable(instruction):
                self._place_copies(instruction)
            else:
                self._place(instruction)
        return self.groups

    def _place(self, instruction: Instruction) -> None:
        """Join the only group that reads the instruction if it may, else start one."""
        use = self.uses.get(instruction.result, _Use())
        if not use.is_outside and len(use.groups) == 1:
            ((group, maps),) = use.groups.items()
            if self._may_join(instruction, group, list(maps)):
                self._join(instruction, group, list(maps))
                return
        elif self._may_repeat(instruction, use):
            for group, maps in use.groups.items():
                group.repeated += _repeated_work(instruction, group, maps)
                self._join(instruction, group, list(maps))
            return
        self._start(instruction)

    def _may_repeat(self, instruction: Instruction, use: _Use) -> bool:
        """Whether each of several groups had better compute an instruction than read the result of a step of its own.

        What is computed of a few elements takes fewer cycles than a step does. What only the instruction reads would be
        repeated with it, and counts.
        """
        if use.is_outside or not is_cheap(instruction) or instruction.result.type.size > FEW:
            return False
        if any(isinstance(group.root.op, Reshape) and len(group.members) == 1 for group in use.groups):
            return False  # it is needed by itself
        alone = self._work_for(instruction)
        repeated = sum(alone * len(maps) * _elements_of_worker(group) for group, maps in use.groups.items())
        if repeated * (len(use.groups) - 1) > STEP * len(use.groups):
            return False
        return all(
            group.repeated + _repeated_work(instruction, group, maps) <= _MOST_REPEATED
            and self._may_join(instruction, group, list(maps))
            for group, maps in use.groups.items()
        )

    def _work_for(self, instruction: Instruction) -> float:
        """Return what has to be computed for an instruction and for nothing else, as ``weight`` counts it.

        More than a step is not counted further; nor is what had better not be repeated, which is more than that.
        """
        found = {instruction}
        waiting = [(-self._numbers[p], p) for p in self._made_from(instruction)]
        heapq.heapify(waiting)
        total = weight(instruction)
        while waiting and total <= STEP:
            _, made = heapq.heappop(waiting)
            if made in found or not self._readers[made.result] <= found:
                continue
            if not (is_cheap(made) or self._is_repeatable(made)) or made.result.type.size > FEW:
                return math.inf
            found.add(made)
            total += 0 if self._is_repeatable(made) else weight(made)
            for producer in self._made_from(made):
                heapq.heappush(waiting, (-self._numbers[producer], producer))
        return total

    def _made_from(self, instruction: Instruction) -> list[Instruction]:
        """Return the operations that could be in one expression with an instruction that reads them."""
        made = (self.producers.get(value) for value in dict.fromkeys(instruction.operands))
        return [p for p in made if p is not None and p.op.category is FusionCategory.INJECTIVE]

    @cached_property
    def _numbers(self) -> dict[Instruction, int]:
        return {instruction: number for number, instruction in enumerate(self.computation.instructions)}

    @cached_property
    def _readers(self) -> dict[Value, set[Instruction | None]]:
        """What reads each value; None stands for the computation's caller."""
        found: dict[Value, set[Instruction | None]] = {value: {None} for value in self.computation.results}
        for instruction in self.computation.instructions:
            for value in instruction.operands:
                found.setdefault(value, set()).add(instruction)
        return found

    def _place_copies(self, instruction: Instruction) -> None:
        """Put a copy into each group that may have it; start a group if anybody else reads it."""
        use = self.uses.get(instruction.result, _Use())
        is_needed = use.is_outside or not use.groups
        for group, maps in use.groups.items():
            if self._may_join(instruction, group, list(maps)):
                self._join(instruction, group, list(maps))
            else:
                is_needed = True
        if is_needed:
            self._start(instruction)

    def _start(self, instruction: Instruction) -> None:
        op = instruction.op
        if isinstance(op, Reduce) and is_simple_fold(instruction):
            group = Group(instruction, "input", instruction.operands[0].type.shape)
        else:
            shape = instruction.results[0].type.shape if instruction.results else ()
            group = Group(instruction, "loop", shape)
        self.groups[instruction] = group
        group.members[instruction] = [identity(group.domain)]
        group.size = weight(instruction)
        if isinstance(op, Reduce) and group.kind == "input":
            self._read(instruction.operands[0], group, group.members[instruction])
            self._read_initial(instruction, group)
        elif (
            op.category is FusionCategory.INJECTIVE
            and not isinstance(op, Constant)
            and self._is_affine(instruction)
        ):
            self._read_operands(instruction, group, group.members[instruction])
        else:
            for value in instruction.operands:
                self._read(value)

    def _join(self, instruction: Instruction, group: Group, maps: list[Axes]) -> None:
        group.members[instruction] = maps
        group.size += len(maps) * weight(instruction)
        if isinstance(instruction.op, DotGeneral):
            group.kind, group.dot = "output", instruction
            for value in instruction.operands:
                self._read(value)
        else:
            self._read_operands(instruction, group, maps)

    def _read_operands(self, instruction: Instruction, group: Group, maps: list[Axes]) -> None:
        for number, value in enumerate(instruction.operands):
            if isinstance(instruction.op, Pad) and number == 0:
                self._read(value)
                continue
            inner = access(instruction, number)
            assert inner is not None
            self._read(value, group, [compose(axes, inner) for axes in maps])

    def _read_initial(self, reduce: Instruction, group: Group) -> None:
        initial = reduce.operands[1]
        if self._is_neutral(reduce):
            group.has_initial = True
            self._read(initial, group, [()])
        else:
            self._read(initial)

    def _read(self, value: Value, group: Group | None = None, maps: list[Axes] | None = None) -> None:
        use = self.uses.setdefault(value, _Use())
        if group is None:
            use.is_outside = True
        else:
            use.groups.setdefault(group, {}).update(dict.fromkeys(maps or ()))

    def _is_neutral(self, reduce: Instruction) -> bool:
        producer = self.producers.get(reduce.operands[1])
        combiner = simple_combiner(reduce.regions[0])
        if producer is None or combiner is None or not isinstance(producer.op, Constant):
            return False
        return is_neutral(combiner, producer.op)

    def _is_affine(self, instruction: Instruction) -> bool:
        """Whether an injective instruction can be part of one expression over its result."""
        if isinstance(instruction.op, Pad):
            value = self.producers.get(instruction.operands[1])
            padding = (*instruction.op.low, *instruction.op.high)
            if value is None or not isinstance(value.op, Constant) or min(padding, default=0) < 0:
                return False
        return all(access(instruction, number) is not None for number in range(len(instruction.operands)))

    def _may_join(self, instruction: Instruction, group: Group, maps: list[Axes]) -> bool:
        op, type_ = instruction.op, instruction.result.type
        is_small = is_few(group.domain)
        most = OPERATION * self.max_ops * (_FEW_TIMES if is_small and weight(instruction) < ROUTINE else 1)
        is_full = group.size + len(maps) * weight(instruction) > most
        is_free = isinstance(op, Constant) or (is_small and self._is_repeatable(instruction))
        if (is_full and not is_free) or not _has_points(group):  # constants cost nothing
            return False
        if isinstance(op, DotGeneral):
            return _may_have_dot(group) and maps == [identity(type_.shape)] and type_.shape == group.domain
        if op.category is not FusionCategory.INJECTIVE or not self._is_affine(instruction):
            return False
        if group.dot is not None and not _is_epilogue(instruction, group, maps):
            return False
        if isinstance(op, Constant):
            return op.is_splat
        if isinstance(op, Pad):
            return all(_is_inside(axes, type_.shape) for axes in maps)
        if self._is_better_apart(instruction, group, maps):
            return False
        return not isinstance(op, Elementwise) or self._is_cheap_to_join(instruction, group, maps)

    def _is_better_apart(self, instruction: Instruction, group: Group, maps: list[Axes]) -> bool:
        """Whether words that follow from where they are are computed before a result of smaller elements, row by row.

        Workers store whole words, so there is no code that computes rows of 197 halves one by one, as what asks for the element's
        row does: a mask of random bits for them takes four times as long. Of arrays that are read from end to end there is.
        """
        root, type_ = group.root.result.type, instruction.result.type
        if group.kind != "loop" or type_.bits < _WORD_BITS or root.bits >= _WORD_BITS or is_few(group.domain):
            return False
        row = next((size for size in reversed(group.domain) if size > 1), 1)
        is_inside = row * max(root.bits, _BYTE_BITS) % _WORD_BITS != 0
        has_rows = sum(size > 1 for size in group.domain) > 1
        is_whole = maps == [identity(group.domain)] and type_.shape == group.domain
        return is_inside and has_rows and is_whole and instruction.result in self._placed

    @cached_property
    def _placed(self) -> set[Value]:
        """What follows from where elements are: positions along dimensions, and what is computed of them element by element."""
        found: set[Value] = set()
        for instruction in self.computation.instructions:
            is_moved = isinstance(instruction.op, (BroadcastInDim, Reshape, Elementwise))
            if isinstance(instruction.op, Iota) or (is_moved and not found.isdisjoint(instruction.operands)):
                found.update(instruction.results)
        return found

    def _is_cheap_to_join(self, instruction: Instruction, group: Group, maps: list[Axes]) -> bool:
        """Whether an elementwise operation, joined, is not repeated and moves no more operands."""
        type_ = instruction.result.type
        if is_few(group.domain) and type_.size <= FEW and is_cheap(instruction):
            return True
        if len(maps) * _points(group.domain) > type_.size:
            return False
        if maps == [identity(group.domain)] or _is_same_order(maps, type_, group.domain):
            return True
        moved = [value for value in dict.fromkeys(instruction.operands) if value.type.size > 1]
        return len([value for value in moved if not self._is_constant(value)]) <= 1

    def _is_repeatable(self, instruction: Instruction) -> bool:
        """Whether an operation costs nothing to repeat in every fusion that reads it."""
        op = instruction.op
        if isinstance(op, Constant):
            return op.is_splat
        if isinstance(op, (Slice, Transpose, Reverse)):
            return instruction.result.type.size <= FEW and instruction.operands[0].type.size <= FEW
        if isinstance(op, Compare) and instruction.result.type.size <= FEW:
            return all(self._is_index(value) for value in instruction.operands)
        return isinstance(op, (Iota, BroadcastInDim)) or (
            isinstance(op, Reshape) and access(instruction, 0) is not None
        )

    def _is_index(self, value: Value) -> bool:
        """Whether a value says where it is in its array, or the same everywhere."""
        producer = self.producers.get(value)
        return producer is not None and isinstance(producer.op, (Iota, Constant))

    def _is_constant(self, value: Value) -> bool:
        producer = self.producers.get(value)
        return producer is not None and isinstance(producer.op, Constant)


FEW = 64
"""Elements of which each worker of a tile or two has a few: computing them again takes fewer cycles than reading them."""

_WORD_BITS, _BYTE_BITS = 32, 8
_WORKERS = 6
STEP = 96
"""About as many cycles as a step takes at least, as ``weight`` counts work."""

_FEW_TIMES = 4
"""How many times as much a group of few elements may compute: a step more costs more than registers that are spilled."""

_MOST_REPEATED = 256
"""What a group may compute that others compute, too: more code would be worth a step."""


def _elements_of_worker(group: Group) -> int:
    """Return how many points of a group's domain a worker computes, if one tile computes all of them."""
    return -(-_points(group.domain) // _WORKERS)


def _repeated_work(instruction: Instruction, group: Group, maps: Collection[Axes]) -> int:
    """Return what an instruction adds to the work of a worker that computes some points of a group's domain."""
    return len(maps) * weight(instruction) * _elements_of_worker(group)


_CHEAP = (
    *(Abs, Add, And, BitcastConvert, Clamp, Compare, Convert, IsFinite, Maximum, Minimum, Multiply, Negate),
    *(Not, Or, Select, ShiftLeft, ShiftRightArithmetic, ShiftRightLogical, Sign, Subtract, Xor),
)


def is_cheap(instruction: Instruction) -> bool:
    """Whether an operation takes an instruction or a few for an element."""
    return isinstance(instruction.op, _CHEAP) and not instruction.result.type.is_complex


_WORD_TYPES = frozenset({"i1", "i8", "i16", "i32", "ui8", "ui16", "ui32"})
_WORD, OPERATION, ROUTINE = 1, 4, 64
"""What an operation counts as: on words of integers it is an instruction or two, on floats several.

Powers and remainders of floats are routines of hundreds: what holds many of them is no faster than a vertex for every
four, and all that they keep meanwhile has to be spilled.
"""
_DIVISIONS = (Divide, Remainder, Power)
_ROUTINES = (Remainder, Power)


def weight(instruction: Instruction) -> int:
    """Return what an operation adds to a group."""
    types = [value.type for value in (*instruction.operands, *instruction.results)]
    if all(type_.dtype in _WORD_TYPES for type_ in types):
        return OPERATION if isinstance(instruction.op, _DIVISIONS) else _WORD
    return ROUTINE if isinstance(instruction.op, _ROUTINES) else OPERATION


def is_simple_fold(reduce: Instruction) -> bool:
    """Whether a reduction has one operand, a well-known combiner and accumulates in the operand's type."""
    if len(reduce.operands) != 2 or simple_combiner(reduce.regions[0]) is None:
        return False
    return reduce.operands[0].type.dtype == reduce.result.type.dtype


def is_few(domain: tuple[int, ...]) -> bool:
    """Whether a domain has so few elements that each worker of a tile or two has a few."""
    return _points(domain) <= FEW


def _has_points(group: Group) -> bool:
    return 0 not in group.domain


def _points(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _is_same_order(maps: list[Axes], type_: TensorType, domain: tuple[int, ...]) -> bool:
    """Whether a value is read once, as a whole and in the order of its own dimensions."""
    if len(maps) != 1 or type_.size != _points(domain):
        return False
    moving = [axis for axis, size in zip(maps[0], type_.shape, strict=True) if size != 1]
    dims = [axis.dim for axis in moving if axis.dim is not None]
    return (
        len(dims) == len(moving)
        and dims == sorted(dims)
        and all(axis.coefficient == 1 and axis.offset == 0 for axis in moving)
    )


def _is_inside(axes: Axes, shape: tuple[int, ...]) -> bool:
    """Whether the indices that are the same everywhere lie inside ``shape``."""
    return all(
        axis.dim is not None or 0 <= axis.offset < size for axis, size in zip(axes, shape, strict=True)
    )


def _may_have_dot(group: Group) -> bool:
    if group.kind != "loop" or group.dot is not None:
        return False
    return all(_is_epilogue(member, group, maps) for member, maps in group.members.items())


def _is_epilogue(instruction: Instruction, group: Group, maps: list[Axes]) -> bool:
    """Whether an operation may stand behind a contraction: of its shape, or a broadcast to it."""
    if isinstance(instruction.op, Elementwise):
        return maps == [identity(group.domain)] and instruction.result.type.shape == group.domain
    return isinstance(instruction.op, (Constant, Iota, BroadcastInDim, Reshape))
