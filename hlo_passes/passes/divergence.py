"""Which values may differ between the devices that run a program, and collectives that some members may never reach.

A value may differ along an axis of the mesh if it is given so, is a device's number, or is computed of such. What a
reduction or a gathering gives to all members does not differ along the axes of its groups. What decides a loop or branch
around a collective must not differ along those axes, or a device waits for one that does not come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_passes.ir import Computation, Instruction, Module
from hlo_passes.ops import (
    AllGather,
    AllReduce,
    Case,
    Collective,
    If,
    PartitionId,
    Repeat,
    ReplicaId,
    While,
)

Axes = frozenset[str]
NONE: Axes = frozenset()


@dataclass(frozen=True)
class Uneven:
    """A collective that some members of a group may reach and others not.

    Args:
      collective: it.
      decider: the loop or branch around it.
      axes: of the mesh, along which what decides may differ between its members.
    """

    collective: Instruction
    decider: Instruction
    axes: Axes


def uneven_collective(module: Module, differs: Sequence[Axes] | None = None) -> Uneven | None:
    """Return the first collective that some members of a group may not reach; None where all always do.

    Args:
      module: the program of each device of ``module.mesh``.
      differs: along which axes each parameter of the entry computation may differ; by default along all.
    """
    if not module.mesh or not any(i.op.is_collective for i in module.walk()):
        return None
    finder = _Finder(module)
    entry = module.entry_computation
    finder.results(entry, tuple(differs or [finder.every] * len(entry.parameters)), ())
    return finder.found


class _Finder:
    """Follows a program from its parameters on, into loops until nothing is added."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.every: Axes = frozenset(name for name, size in module.mesh if size > 1)
        self.found: Uneven | None = None
        self.known: dict[tuple[int, tuple[Axes, ...], tuple[tuple[int, Axes], ...]], tuple[Axes, ...]] = {}

    def results(
        self,
        computation: Computation,
        given: tuple[Axes, ...],
        deciders: tuple[tuple[Instruction, Axes], ...],
    ) -> tuple[Axes, ...]:
        """Return along which axes a computation's results may differ, by its parameters and what decides around it."""
        key = id(computation), given, tuple((id(i), axes) for i, axes in deciders)
        if key not in self.known:
            env = dict(zip(computation.parameters, given, strict=True))
            for instruction in computation.instructions:
                operands = tuple(env[value] for value in instruction.operands)
                env.update(
                    zip(instruction.results, self._instruction(instruction, operands, deciders), strict=True)
                )
            self.known[key] = tuple(env[value] for value in computation.results)
        return self.known[key]

    def _instruction(
        self,
        instruction: Instruction,
        operands: tuple[Axes, ...],
        deciders: tuple[tuple[Instruction, Axes], ...],
    ) -> tuple[Axes, ...]:
        op, regions = instruction.op, instruction.regions
        match op:
            case PartitionId() | ReplicaId():
                return (self.every,)
            case Collective():
                return self._collective(instruction, op, operands, deciders)
            case While():
                return self._loop(instruction, operands, op.invariants, deciders)
            case Repeat():
                carried, fixed = _split(operands, op.invariants)
                while True:
                    after = self._grown(carried, self.results(regions[0], carried + fixed, deciders))
                    if after == carried:
                        return carried if op.count else _split(operands, op.invariants)[0]
                    carried = after
            case If() | Case():
                inside = (*deciders, (instruction, operands[0]))
                branches = [self.results(region, operands[1:], inside) for region in regions]
                return tuple(operands[0].union(*axes) for axes in zip(*branches, strict=True))
            case _ if op.callees:
                return self.results(self.module.computation(op.callees[0]), operands, deciders)
            case _:
                return (NONE.union(*operands),) * len(instruction.results)

    def _collective(
        self,
        instruction: Instruction,
        op: Collective,
        operands: tuple[Axes, ...],
        deciders: tuple[tuple[Instruction, Axes], ...],
    ) -> tuple[Axes, ...]:
        """Note what keeps a member away, and return along which axes the results differ."""
        along = op.groups.axes_of(self.module.mesh)
        own = self.every if along is None and op.groups.size > 1 else frozenset(along or ()) & self.every
        for decider, axes in deciders:
            if axes & own and self.found is None:
                self.found = Uneven(instruction, decider, axes & own)
        if isinstance(op, AllReduce | AllGather) and along is not None:
            return tuple(axes - own for axes in operands)
        return tuple(axes | own for axes in operands)

    def _loop(
        self,
        instruction: Instruction,
        operands: tuple[Axes, ...],
        invariants: int,
        deciders: tuple[tuple[Instruction, Axes], ...],
    ) -> tuple[Axes, ...]:
        condition, body = instruction.regions
        carried, fixed = _split(operands, invariants)
        decides = NONE
        while True:
            inside = (*deciders, (instruction, decides))
            (goes_on,) = self.results(condition, carried + fixed, inside)
            after = self._grown(carried, self.results(body, carried + fixed, inside))
            after = tuple(axes | goes_on for axes in after)
            if (after, goes_on) == (carried, decides):
                return carried
            carried, decides = after, goes_on

    @staticmethod
    def _grown(before: tuple[Axes, ...], after: tuple[Axes, ...]) -> tuple[Axes, ...]:
        return tuple(a | b for a, b in zip(before, after, strict=True))


def _split(operands: tuple[Axes, ...], invariants: int) -> tuple[tuple[Axes, ...], tuple[Axes, ...]]:
    count = len(operands) - invariants
    return operands[:count], operands[count:]
