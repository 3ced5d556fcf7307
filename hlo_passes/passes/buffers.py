"""Buffer analysis: how long values live, which may share storage, and what is live at the peak.

Positions are those of instructions; parameters live from -1, results of the computation until one past the
last instruction. Bytes are those of dense arrays; what a target adds to them is not known here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hlo_passes.ir import Computation, Instruction, Module, Value
from hlo_passes.ops import Constant, Fusion, OptimizationBarrier, Reshape
from hlo_passes.ops.elementwise import Elementwise
from hlo_passes.passes.indexing import identity, index_maps
from hlo_passes.passes.structure import callees_first

Temporaries = Mapping[str, int]
"""Bytes each computation needs at its peak besides its parameters and results, by its name."""


class LiveRange(NamedTuple):
    """From the instruction that makes a value to the last that reads it, both included."""

    start: int
    end: int

    def overlaps(self, other: LiveRange) -> bool:
        """Whether both values are live at some instruction."""
        return self.start <= other.end and other.start <= self.end


@dataclass(frozen=True)
class Buffers:
    """What the analysis of one computation found.

    Args:
      computation: what was analyzed.
      donated: numbers of its parameters whose storage may be taken over.
      ranges: when each value is live.
      reuses: for a result of an instruction, the operand whose storage it may take because that operand ends
        there.
      live_bytes: bytes live while each instruction runs, its operands, results and temporaries included.
    """

    computation: Computation
    donated: tuple[int, ...]
    ranges: Mapping[Value, LiveRange]
    reuses: Mapping[Value, Value]
    live_bytes: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes live at once."""
        return max(self.live_bytes, default=0)

    @property
    def peak_position(self) -> int:
        """Position of the first instruction at which that many bytes are live; -1 without instructions."""
        return self.live_bytes.index(self.peak_bytes) if self.live_bytes else -1

    @functools.cached_property
    def donations(self) -> Mapping[int, int]:
        """For a donated parameter's number, the number of the result that may end up in its storage."""
        return _donations(self.computation, self.donated, self.ranges, self.reuses)

    @functools.cached_property
    def _owners(self) -> dict[Value, Value]:
        owners: dict[Value, Value] = {}
        for value in self.ranges:  # an operand comes before what reuses it
            reused = self.reuses.get(value)
            owners[value] = value if reused is None else owners[reused]
        return owners

    def owner(self, value: Value) -> Value:
        """Return the first value in the storage of ``value``: itself unless it reuses another's."""
        return self._owners[value]

    def interfere(self, one: Value, other: Value) -> bool:
        """Whether two values need storage apart: both live at once, and neither in the other's place."""
        if one == other or self.owner(one) == self.owner(other):
            return False
        return self.ranges[one].overlaps(self.ranges[other])

    def live_at(self, position: int) -> tuple[Value, ...]:
        """Return the values live at an instruction, in order of definition."""
        return tuple(value for value, live in self.ranges.items() if live.start <= position <= live.end)


class InPlace:
    """Which operands an instruction may write its result over; remembers what it found out about fusions."""

    def __init__(self) -> None:
        """Start without knowing any fusion."""
        self._fusions: dict[Instruction, tuple[Value, ...]] = {}

    def may_reuse(self, instruction: Instruction, operand: Value, result: Value) -> bool:
        """Whether ``result`` may be written over ``operand`` element by element while it is computed."""
        if operand.type.size_bytes != result.type.size_bytes:
            return False
        match instruction.op:
            case Reshape():
                return True
            case OptimizationBarrier():
                return instruction.operands.index(operand) == instruction.results.index(result)
            case Elementwise():
                return operand.type.shape == result.type.shape
            case Fusion(kind="loop"):
                return operand.type.shape == result.type.shape and operand in self._of_fusion(instruction)
            case _:
                return False

    def _of_fusion(self, instruction: Instruction) -> tuple[Value, ...]:
        if instruction not in self._fusions:
            self._fusions[instruction] = in_place_operands(instruction)
        return self._fusions[instruction]


def analyze(
    computation: Computation,
    donated: tuple[int, ...] = (),
    temporaries: Temporaries | None = None,
    in_place: InPlace | None = None,
) -> Buffers:
    """Return live ranges, reuse and live bytes of a computation.

    Args:
      computation: a valid computation, in the order its instructions run.
      donated: numbers of the parameters whose storage may be taken over; the others stay as they are.
      temporaries: bytes that callees need, for computations with calls.
      in_place: to share between analyses of the same instructions in several orders.
    """
    ranges = _live_ranges(computation, donated)
    reuses = _reuses(computation, donated, ranges, in_place or InPlace())
    live_bytes = _live_bytes(computation, ranges, reuses, temporaries or {})
    return Buffers(computation, donated, ranges, reuses, live_bytes)


def temporary_bytes(module: Module, in_place: InPlace | None = None) -> dict[str, int]:
    """Return the bytes each reachable computation needs at its peak besides its parameters and results.

    Args:
      module: a valid module.
      in_place: to share with other analyses of its computations.
    """
    needed: dict[str, int] = {}
    in_place = in_place or InPlace()
    for computation in callees_first(module):
        donated = module.donated if computation.name == module.entry else ()
        needed[computation.name] = _besides_signature(
            computation, analyze(computation, donated, needed, in_place).peak_bytes
        )
    return needed


def _besides_signature(computation: Computation, peak_bytes: int) -> int:
    signature = {*computation.parameters, *computation.results}
    return max(0, peak_bytes - sum(value.type.size_bytes for value in signature))


def _live_ranges(computation: Computation, donated: tuple[int, ...]) -> dict[Value, LiveRange]:
    """Return live ranges; a parameter that is not donated stays to the end."""
    last = len(computation.instructions)
    starts: dict[Value, int] = {}
    ends: dict[Value, int] = {}
    for number, value in enumerate(computation.parameters):
        starts[value], ends[value] = -1, -1 if number in donated else last
    for position, instruction in enumerate(computation.instructions):
        for value in instruction.operands:
            ends[value] = max(ends[value], position)
        for value in instruction.results:
            starts[value] = ends[value] = position
    ends.update((value, last) for value in computation.results)
    return {value: LiveRange(start, ends[value]) for value, start in starts.items()}


def _reuses(
    computation: Computation, donated: tuple[int, ...], ranges: Mapping[Value, LiveRange], in_place: InPlace
) -> dict[Value, Value]:
    fixed = {value for number, value in enumerate(computation.parameters) if number not in donated}
    found: dict[Value, Value] = {}
    for position, instruction in enumerate(computation.instructions):
        if isinstance(instruction.op, Constant):
            fixed.update(instruction.results)
            continue
        ending = [
            value
            for value in dict.fromkeys(instruction.operands)
            if ranges[value].end == position and value not in fixed
        ]
        for result in instruction.results if ending else ():
            fitting = (v for v in ending if in_place.may_reuse(instruction, v, result))
            chosen = next(fitting, None)
            if chosen is not None:
                found[result] = chosen
                ending.remove(chosen)
    return found


def in_place_operands(fusion: Instruction) -> tuple[Value, ...]:
    """Return the operands of a ``loop`` fusion that it reads only at the index it writes, in order."""
    (region,) = fusion.regions
    own = {number: value for number, value in enumerate(fusion.operands)}
    elsewhere: set[Value] = set()
    for parameter, axes, fill in index_maps(region):
        if fill is not None or axes != identity(region.results[0].type.shape):
            elsewhere.add(own[parameter])
    return tuple(dict.fromkeys(value for value in fusion.operands if value not in elsewhere))


def _live_bytes(
    computation: Computation,
    ranges: Mapping[Value, LiveRange],
    reuses: Mapping[Value, Value],
    temporaries: Temporaries,
) -> tuple[int, ...]:
    count = len(computation.instructions)
    changes = [0] * (count + 1)
    for value, (start, end) in ranges.items():
        size = value.type.size_bytes
        changes[max(start, 0)] += size
        if end + 1 <= count:
            changes[max(end + 1, 0)] -= size
    live: list[int] = []
    total = 0
    for position, instruction in enumerate(computation.instructions):
        total += changes[position]
        shared = sum(value.type.size_bytes for value in instruction.results if value in reuses)
        live.append(total - shared + _inner_bytes(instruction, temporaries))
    return tuple(live)


def _inner_bytes(instruction: Instruction, temporaries: Temporaries) -> int:
    """Return the bytes an instruction's callees and loop bodies need besides its operands and results."""
    needed = [temporaries.get(name, 0) for name in instruction.op.callees]
    if instruction.regions and instruction.op.is_control and not instruction.op.is_unit:
        for region in instruction.regions:
            needed.append(_besides_signature(region, analyze(region, (), temporaries).peak_bytes))
    return max(needed, default=0)


def _donations(
    computation: Computation,
    donated: tuple[int, ...],
    ranges: Mapping[Value, LiveRange],
    reuses: Mapping[Value, Value],
) -> dict[int, int]:
    """Match donated parameters with results: first those computed in place, then those made later."""
    first: dict[Value, Value] = {}
    for result in computation.results:
        owner = result
        while owner in reuses:
            owner = reuses[owner]
        first[result] = owner
    free = {
        number: value
        for number, value in enumerate(computation.results)
        if computation.results.index(value) == number
    }
    matched: dict[int, int] = {}
    for in_place in (True, False):
        for parameter in donated:
            value = computation.parameters[parameter]
            for number, result in free.items() if parameter not in matched else ():
                is_after = ranges[value].end < ranges[result].start or result == value
                is_legal = first[result] == value if in_place else first[result] == result and is_after
                if result.type == value.type and is_legal:
                    matched[parameter] = number
                    del free[number]
                    break
    return dict(sorted(matched.items()))
