"""Fusion of expressions that are computed of one another or of the same arrays: one pass over the data, several results.

An update of Adam's writes two moments and a parameter. Computed apart, each is a step of its own, and the moments and the
gradient are read again for the next one.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from hlo_passes.ir import Builder, Computation, Instruction, Module, Value
from hlo_passes.ops import Constant, Fusion
from hlo_passes.ops.elementwise import (
    Atan2,
    Cbrt,
    Cosine,
    Elementwise,
    ExponentialMinusOne,
    LogPlusOne,
    Power,
    Remainder,
    Sine,
    Tan,
)
from hlo_passes.passes.base import Pass, map_control_regions
from hlo_passes.passes.buffers import InPlace, analyze, temporary_bytes
from hlo_passes.passes.fusion_groups import FEW, OPERATION, ROUTINE, STEP, is_few, weight
from hlo_passes.passes.indexing import Axes, access, identity, index_maps

_NEAREST = 8
"""How many other expressions that read the same array are tried, the last ones first."""
_ROUTINES = (Atan2, Cbrt, Cosine, ExponentialMinusOne, LogPlusOne, Power, Remainder, Sine, Tan)
"""Functions of floats that the machine has no instruction for: of two of them, joined, most is spilled."""
_WIDEST_BITS = 32
"""Of wider elements there is no code that would keep several results in registers."""


@dataclass(frozen=True)
class MultiOutputFusion(Pass):
    """Join ``loop`` fusions and elementwise operations of one shape to fusions with several results.

    Two of them are joined where one reads the other's result element by element, or both read an array so, and

    - one of them can be moved to the other's place, and never more bytes are live for it than before;
    - what they read lies as what they write does, or is repeated along whole dimensions: no windows, no strides;
    - both together have less than ``max_ops`` operations, and read and write at most ``max_arrays`` arrays of their shape,
      for each of which a worker keeps an address.
    """

    name: ClassVar[str] = "multi-output-fusion"
    max_ops: int = 32
    max_arrays: int = 8

    def run(self, module: Module) -> Module:
        """Return the module with expressions joined; itself when none are."""
        in_place = InPlace()
        temporaries = temporary_bytes(module, in_place)

        def joined(computation: Computation, donated: tuple[int, ...] = ()) -> Computation:
            inner = tuple(map_control_regions(i, joined) for i in computation.instructions)
            if any(new is not old for new, old in zip(inner, computation.instructions, strict=True)):
                computation = dataclasses.replace(computation, instructions=inner)
            live = analyze(computation, donated, temporaries, in_place).live_bytes
            return _Joining(computation, live, donated, self).run()

        entry = module.entry
        changed = tuple(joined(c, module.donated if c.name == entry else ()) for c in module.computations)
        if all(new is old for new, old in zip(changed, module.computations, strict=True)):
            return module
        return dataclasses.replace(module, computations=changed)


@dataclass(eq=False)
class _Expression:
    """What an elementwise operation, or a ``loop`` fusion, computes.

    Args:
      operands: what the region's parameters are.
      region: the expression.
      results: what the region's results are.
      source: the instruction that says where it comes from.
      known: the indices at which each parameter of the region is read, if that is known already.
    """

    operands: tuple[Value, ...]
    region: Computation
    results: tuple[Value, ...]
    source: Instruction
    known: tuple[Axes, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of every result."""
        return self.results[0].type.shape

    @cached_property
    def axes(self) -> tuple[Axes, ...] | None:
        """The indices at which each parameter of the region is read; None if some are outside of it, or several."""
        if self.known is not None:
            return self.known
        maps = index_maps(self.region)
        axes = {read.parameter: read.axes for read in maps if read.fill is None}
        is_plain = len(axes) == len(maps) == len(self.operands)
        return tuple(axes[number] for number in range(len(axes))) if is_plain else None

    @cached_property
    def in_place(self) -> list[Value]:
        """Operands that are read at the index of the results, and nowhere else."""
        read = zip(self.operands, self.axes or ((),) * len(self.operands), strict=True)
        elsewhere = {value for value, axes in read if axes != identity(self.shape)}
        return [value for value in dict.fromkeys(self.operands) if value not in elsewhere]

    @cached_property
    def weight(self) -> int:
        """How much is computed, as fusions count it."""
        return sum(_weight(i) for i in self.region.instructions if not isinstance(i.op, Constant))

    @cached_property
    def is_joinable(self) -> bool:
        """Whether it reads whole arrays, each in one order or repeated, of types that registers hold."""
        types = [value.type for value in (*self.operands, *self.results)]
        if 0 in self.shape or any(t.bits > _WIDEST_BITS or t.is_complex for t in types):
            return False
        if self.axes is None:
            return False
        return all(_is_whole(axes, v, self.shape) for v, axes in zip(self.operands, self.axes, strict=True))

    def joined(self, later: _Expression, needed: set[Value]) -> _Expression:
        """Return an expression of the results of both that are ``needed``; the other may read this one's results."""
        builder = Builder(later.region.name)
        operands: dict[tuple[Value, Axes], Value] = {}
        made: dict[Value, Value] = {}
        for part in (self, later):
            assert part.axes is not None
            arguments: list[Value] = []
            for value, axes in zip(part.operands, part.axes, strict=True):
                key = value, axes
                if value not in made and key not in operands:
                    operands[key] = builder.parameter(value.type)
                arguments.append(made[value] if value in made else operands[key])
            made |= zip(part.results, builder.inline(part.region, *arguments), strict=True)
        results = tuple(value for value in made if value in needed)
        region = builder.build(*(made[value] for value in results))
        known = tuple(axes for _, axes in operands)
        return _Expression(tuple(value for value, _ in operands), region, results, later.source, known)

    def instruction(self) -> Instruction:
        """Return the fusion."""
        return Instruction(Fusion("loop"), self.operands, self.results, (self.region,), self.source.location)


def _weight(instruction: Instruction) -> int:
    """Return what an operation adds to an expression: functions that are routines keep many registers to themselves."""
    return ROUTINE if isinstance(instruction.op, _ROUTINES) else weight(instruction)


def _is_whole(axes: Axes, value: Value, shape: tuple[int, ...]) -> bool:
    """Whether an array is read from its first to its last element along each axis."""
    return all(
        axis.offset == 0
        and (size == 1 or (axis.dim is not None and axis.coefficient == 1 and shape[axis.dim] == size))
        for axis, size in zip(axes, value.type.shape, strict=True)
    )


def _expression(computation: Computation, instruction: Instruction) -> _Expression | None:
    """Return what an instruction computes if it is an expression of its result's shape."""
    match instruction.op:
        case Fusion(kind="loop"):
            return _Expression(instruction.operands, instruction.regions[0], instruction.results, instruction)
        case Elementwise() if not instruction.regions:
            maps = [access(instruction, number) for number in range(len(instruction.operands))]
            if any(axes is None for axes in maps):  # a bit cast to elements of another width
                return None
            return _alone(computation, instruction)
        case _:
            return None


def _alone(computation: Computation, instruction: Instruction) -> _Expression:
    """Return a lone operation as an expression; constants that are the same everywhere are part of it."""
    builder = Builder(f"fused_{instruction.op.name.rpartition('.')[2]}")
    operands: dict[Value, Value] = {}
    made: dict[Value, Value] = {}
    for value in dict.fromkeys(instruction.operands):
        producer = computation.producers.get(value)
        if producer is None or not isinstance(producer.op, Constant) or not producer.op.is_splat:
            operands[value] = made[value] = builder.parameter(value.type)
    for value in dict.fromkeys(instruction.operands):
        if value not in made:
            (made[value],) = builder.clone(computation.producers[value])
    results = builder.clone(instruction, [made[value] for value in instruction.operands])
    own = identity(instruction.result.type.shape)
    known = tuple(own if value.type.rank else () for value in operands)
    return _Expression(tuple(operands), builder.build(*results), instruction.results, instruction, known)


@dataclass(eq=False)
class _Unit:
    """What runs as one step: an instruction, or several that were joined.

    Args:
      place: position of the instruction in whose place it runs.
      instruction: the one, or the fusion of several.
      expression: what it computes, if it may be joined with others.
    """

    place: int
    instruction: Instruction
    expression: _Expression | None = None

    @property
    def operands(self) -> tuple[Value, ...]:
        """What it reads."""
        return self.instruction.operands

    @property
    def results(self) -> tuple[Value, ...]:
        """What it makes."""
        return self.instruction.results


class _Joining:
    """The walk over one computation.

    Args:
      computation: a valid computation, in the order in which it runs.
      live_bytes: how many bytes are live at each of its instructions.
      donated: numbers of parameters whose storage may be taken over.
      bounds: the pass with its bounds.
    """

    def __init__(
        self,
        computation: Computation,
        live_bytes: tuple[int, ...],
        donated: tuple[int, ...],
        bounds: MultiOutputFusion,
    ) -> None:
        """Begin with every instruction as a unit of its own, in its own place."""
        self.computation, self.bounds = computation, bounds
        self.live = np.array(live_bytes, np.int64)
        self.peak = max(live_bytes, default=0)
        kept = {p for number, p in enumerate(computation.parameters) if number not in donated}
        self.kept = kept.union(computation.results)
        # Nothing is written over a constant, though it need not be kept.
        constants = (i for i in computation.instructions if isinstance(i.op, Constant))
        self.tables = {value for constant in constants for value in constant.results}
        self.makers: dict[Value, _Unit] = {}
        self.readers: dict[Value, list[_Unit]] = {value: [] for value in computation.parameters}
        self.units: dict[_Unit, None] = {}
        for place, instruction in enumerate(computation.instructions):
            self._add(_Unit(place, instruction))

    def _add(self, unit: _Unit) -> None:
        self.units[unit] = None
        for value in dict.fromkeys(unit.operands):
            self.readers[value].append(unit)
        for value in unit.results:
            self.makers[value] = unit
            self.readers.setdefault(value, [])

    def _remove(self, unit: _Unit) -> None:
        del self.units[unit]
        for value in dict.fromkeys(unit.operands):
            self.readers[value].remove(unit)

    def run(self) -> Computation:
        """Return the computation with units joined; itself when none are."""
        count = len(self.units)
        for unit in list(self.units):
            unit.expression = _expression(self.computation, unit.instruction)
            while unit.expression is not None and (joined := self._joined(unit)) is not None:
                unit = joined
        if len(self.units) == count:
            return self.computation
        ordered = sorted(self.units, key=lambda unit: unit.place)
        return dataclasses.replace(self.computation, instructions=tuple(unit.instruction for unit in ordered))

    def _joined(self, unit: _Unit) -> _Unit | None:
        """Return the unit joined with another one, None if there is none to join it with."""
        for other in self._others(unit):
            earlier, later = sorted((unit, other), key=lambda each: each.place)
            place = self._place(earlier, later) if self._may_join(earlier, later) else None
            if place is not None:
                return self._join(earlier, later, place)
        return None

    def _others(self, unit: _Unit) -> Iterator[_Unit]:
        """Yield units before this one that make what it reads in place, or read it in place, too."""
        expression = unit.expression
        assert expression is not None
        found: dict[_Unit, None] = {}
        candidates = [self.makers.get(value) for value in dict.fromkeys(unit.operands)]
        arrays = [value for value in dict.fromkeys(unit.operands) if value.type.shape == expression.shape]
        for value in arrays:
            candidates += list(reversed(self.readers[value]))[:_NEAREST]
        for other in candidates:
            if other is not None and other is not unit and other.expression is not None:
                if other.expression.shape == expression.shape:
                    found[other] = None
        if not found or not expression.is_joinable:
            return
        own = set(expression.in_place)
        for other in found:
            if other.expression is not None and other.expression.is_joinable:
                if own.intersection((*other.results, *other.expression.in_place)):
                    yield other

    def _may_join(self, earlier: _Unit, later: _Unit) -> bool:
        """Whether both fit together in one expression."""
        first, second = earlier.expression, later.expression
        assert first is not None
        assert second is not None
        if not set(second.in_place).issuperset(set(later.operands).intersection(earlier.results)):
            return False
        # of a few elements, what is computed apart is computed at the same time, on other tiles
        most = STEP if is_few(first.shape) else OPERATION * self.bounds.max_ops
        if first.weight + second.weight >= most:
            return False
        arrays = {*first.operands, *second.operands, *first.results, *second.results}
        return sum(value.type.size > 1 for value in arrays) <= self.bounds.max_arrays or not first.shape

    def _place(self, earlier: _Unit, later: _Unit) -> int | None:
        """Return where both can run as one while no more bytes are live at the peak, None if nowhere; note what is live."""
        a, b = earlier.place, later.place
        for place, change in ((b, self._if_later(earlier, later)), (a, self._if_earlier(earlier, later))):
            if change is not None and (self.live[a : b + 1] + change <= self.peak).all():
                self.live[a : b + 1] += change
                return place
        return None

    def _if_later(self, earlier: _Unit, later: _Unit) -> np.ndarray | None:
        """Return how many bytes more are live from one place to the other if the earlier unit runs with the later one.

        What it reads for the last time is live until there, and what it makes only from there on. None if somebody reads
        that before.
        """
        a, b = earlier.place, later.place
        readers = [r for value in earlier.results for r in self.readers[value] if r is not later]
        if any(reader.place < b for reader in readers):
            return None
        held = [v for v in self._last_read(b, earlier) if v not in later.operands]
        change = np.full(b - a + 1, _bytes(held) - _bytes(earlier.results))
        change[0] = self._shared(earlier) - _bytes(earlier.results)
        change[-1] = _bytes(held) - self._saved(b, earlier, later) + self._shared(later)
        return change

    def _if_earlier(self, earlier: _Unit, later: _Unit) -> np.ndarray | None:
        """Return how many bytes more are live from one place to the other if the later unit runs with the earlier one.

        What it makes is live from there on, and what it reads for the last time only until there. None if something that it
        reads is made later.
        """
        a, b = earlier.place, later.place
        makers = [self.makers.get(value) for value in later.operands]
        if any(maker is not None and maker is not earlier and maker.place > a for maker in makers):
            return None
        made = _bytes(later.results)
        freed = _bytes(self._last_read(a + 1, later))
        change = np.full(b - a + 1, made - freed)
        change[0] = made - self._saved(a, earlier, later) + self._shared(earlier)
        change[-1] = self._shared(later) - made - freed
        return change

    def _saved(self, place: int, earlier: _Unit, later: _Unit) -> int:
        """Return the bytes that both as one save: of results that only the other reads, and of those in place of operands."""
        inner = [v for v in earlier.results if not self._is_needed(v, earlier, later)]
        return _bytes(inner) + self._shared(earlier, later, place=place, inner=inner)

    def _shared(self, *units: _Unit, place: int | None = None, inner: Sequence[Value] = ()) -> int:
        """Return the bytes of results that lie where operands of their shape were, of units that run as one."""
        place = units[-1].place if place is None else place
        elsewhere = {v for u in units if u.expression for v in u.operands if v not in u.expression.in_place}
        elsewhere |= self.tables
        freed = Counter(
            (v.type.shape, _bytes([v])) for v in self._last_read(place, *units) if v not in elsewhere
        )
        made = Counter((v.type.shape, _bytes([v])) for u in units for v in u.results if v not in inner)
        return sum(size * count for (_, size), count in (freed & made).items())

    def _last_read(self, before: int, *units: _Unit) -> list[Value]:
        """Return what units read, and others only before a place, that need not be kept, without what they make."""
        own = {value for unit in units for value in unit.results}
        return [
            value
            for value in dict.fromkeys(value for unit in units for value in unit.operands)
            if value not in self.kept
            and value not in own
            and all(reader in units or reader.place < before for reader in self.readers[value])
        ]

    def _is_needed(self, value: Value, *units: _Unit) -> bool:
        """Whether anything but some units needs a value."""
        return value in self.kept or any(reader not in units for reader in self.readers[value])

    def _join(self, earlier: _Unit, later: _Unit, place: int) -> _Unit:
        """Return the unit that takes the place of two."""
        assert earlier.expression is not None
        assert later.expression is not None
        made = (*earlier.results, *later.results)
        needed = {value for value in made if self._is_needed(value, earlier, later)}
        needed = needed or set(later.results)  # dead code is other passes' business
        expression = earlier.expression.joined(later.expression, needed)
        self._remove(earlier)
        self._remove(later)
        unit = _Unit(place, expression.instruction(), expression)
        self._add(unit)
        return unit


def _bytes(values: Iterable[Value]) -> int:
    """Return the bytes of values; those of a few elements, which many expressions read, are none."""
    return sum(value.type.size_bytes for value in values if value.type.size > FEW)
