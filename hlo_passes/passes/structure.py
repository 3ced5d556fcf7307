"""Structural questions about computations: equality up to names, call order, and names nobody uses yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from hlo_passes.ir import Computation, Instruction, Module, Value
from hlo_passes.ops import Call


def instruction_key(instruction: Instruction, operands: Hashable) -> Hashable:
    """Return a key that instructions share when they do the same to operands of the same key."""
    regions = tuple([computation_key(region) for region in instruction.regions])
    types = tuple([value.type for value in instruction.results])
    return type(instruction.op), instruction.op, operands, regions, types


def computation_key(computation: Computation) -> Hashable:
    """Return a key that computations share when they are equal up to value names and source lines."""
    numbers = {value: number for number, value in enumerate(computation.parameters)}
    keys = _keys(computation.instructions, numbers)
    results = tuple(numbers[value] for value in computation.results)
    return computation.parameter_types, keys, results


def piece_key(operands: Sequence[Value], instructions: Sequence[Instruction]) -> Hashable:
    """Return a key that instructions which read ``operands`` alone share when they do the same up to value names."""
    numbers: dict[Value, int] = {}
    for value in operands:
        numbers.setdefault(value, len(numbers))
    same = tuple(numbers[value] for value in operands)
    return tuple(value.type for value in operands), same, _keys(instructions, numbers)


def _keys(instructions: Sequence[Instruction], numbers: dict[Value, int]) -> Hashable:
    """Return the keys of instructions; number their results, in order, after the values that are numbered."""
    keys: list[Hashable] = []
    for instruction in instructions:
        keys.append(instruction_key(instruction, tuple(numbers[value] for value in instruction.operands)))
        for value in instruction.results:
            numbers.setdefault(value, len(numbers))
    return tuple(keys)


def callees_first(module: Module) -> list[Computation]:
    """Return the computations that the entry reaches, each after all it calls; the entry is last."""
    order: list[Computation] = []
    seen = {module.entry}
    stack = [(module.entry_computation, iter(module.entry_computation.callees))]
    while stack:
        computation, callees = stack[-1]
        for name in callees:
            if name not in seen:
                seen.add(name)
                callee = module.computation(name)
                stack.append((callee, iter(callee.callees)))
                break
        else:
            order.append(computation)
            stack.pop()
    return order


SIDE_BY_SIDE = 4096
"""Up to so many instructions, calls and rounds that wait for none of each other are no functions: those run one after another."""


def independent_callees(module: Module) -> frozenset[str]:
    """Return the computations of which no call waits for another in the same computation, and that some has several calls of."""
    several: set[str] = set()
    waiting: set[str] = set()
    for computation in callees_first(module):
        calls = [i for i in computation.instructions if isinstance(i.op, Call)]
        counts = Counter(i.op.callee for i in calls if isinstance(i.op, Call))
        waiting.update(name for name, count in counts.items() if computation.callees.count(name) != count)
        if not any(count > 1 for count in counts.values()):
            continue
        several.update(name for name, count in counts.items() if count > 1)
        waiting.update(_waiting_callees(computation))
    return frozenset(several - waiting)


def _waiting_callees(computation: Computation) -> set[str]:
    """Return the computations of which a call waits for another."""
    found: set[str] = set()
    behind: dict[Value, frozenset[str]] = {}  # the callees whose results a value follows from
    for instruction in computation.instructions:
        names = frozenset[str]().union(*(behind.get(value, frozenset()) for value in instruction.operands))
        if isinstance(instruction.op, Call):
            if instruction.op.callee in names:
                found.add(instruction.op.callee)
            names |= {instruction.op.callee}
        if names:
            behind.update(dict.fromkeys(instruction.results, names))
    return found


def users_of(computation: Computation) -> dict[Value, list[int]]:
    """Return, for each value, the positions of the instructions that read it, each once, in order."""
    readers: dict[Value, list[int]] = {value: [] for value in computation.parameters}
    for position, instruction in enumerate(computation.instructions):
        for value in instruction.results:
            readers[value] = []
        for value in dict.fromkeys(instruction.operands):
            readers[value].append(position)
    return readers


class FreshNames:
    """Hands out value names ``%0``, ``%1``, ... that are in no way taken.

    Args:
      taken: names not to hand out.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        """Start at ``%0``."""
        self._taken = set(taken)
        self._next = 0

    def new(self) -> str:
        """Return a name and take it."""
        while True:
            name = f"%{self._next}"
            self._next += 1
            if name not in self._taken:
                self._taken.add(name)
                return name

    def claim(self, name: str) -> str:
        """Return ``name`` itself if it is free, else a new one; take it."""
        if name in self._taken:
            return self.new()
        self._taken.add(name)
        return name
