"""Construct computations and rebuild existing ones.

A pass never edits: it walks an old computation and adds to a ``Builder``; types are inferred on the way, so a
wrong rewrite fails where it is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hlo_passes.errors import ConstraintViolation
from hlo_passes.ir.location import UNKNOWN, Location, agreed
from hlo_passes.ir.module import Computation, Instruction, Module, Value
from hlo_passes.ir.op import Op
from hlo_passes.ir.types import TensorType


class Builder:
    """Append instructions to a new computation; values get fresh names ``%0``, ``%1``, ... unless named.

    Args:
      name: name of the computation.
      reserved: value names (with ``%``) that fresh names must avoid because they will be asked for later.

    Attributes:
      location: source line of instructions that are added without one.
    """

    def __init__(self, name: str, reserved: Iterable[str] = ()) -> None:
        """Start an empty computation."""
        self.name = name
        self.parameters: list[Value] = []
        self.instructions: list[Instruction] = []
        self.location: Location = UNKNOWN
        self._reserved = set(reserved)
        self._taken: set[str] = set()
        self._next = 0

    def _fresh(self) -> str:
        while True:
            name = f"%{self._next}"
            self._next += 1
            if name not in self._taken and name not in self._reserved:
                return name

    def _value(self, type_: TensorType, name: str | None) -> Value:
        if name is None or name in self._taken:
            name = self._fresh()
        self._taken.add(name)
        return Value(name, type_)

    def parameter(self, type_: TensorType, name: str | None = None) -> Value:
        """Add a parameter, named ``%arg<n>`` unless ``name`` says otherwise."""
        value = self._value(type_, name or f"%arg{len(self.parameters)}")
        self.parameters.append(value)
        return value

    def emit(
        self,
        op: Op,
        *operands: Value,
        regions: Sequence[Computation] = (),
        location: Location = UNKNOWN,
        names: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """Append an instruction and return its results.

        Args:
          op: the operation.
          *operands: values of this computation.
          regions: computations that the operation carries.
          location: the user's source line.
          names: names wished for the results; one already taken is replaced by a fresh one.

        Raises:
          ConstraintViolation: the operation does not accept these operands.
        """
        location = location if location.is_known else self.location
        try:
            types = op.infer(*[value.type for value in operands], regions=regions)
        except ConstraintViolation as error:
            raise (error.at(str(location)) if location.is_known else error) from None
        wished = names if len(names) == len(types) else (None,) * len(types)
        results = tuple(self._value(type_, name) for type_, name in zip(types, wished, strict=True))
        self.instructions.append(Instruction(op, operands, results, tuple(regions), location))
        return results

    def add(
        self,
        op: Op,
        *operands: Value,
        regions: Sequence[Computation] = (),
        location: Location = UNKNOWN,
        names: Sequence[str] = (),
    ) -> Any:
        """Append an instruction as ``emit`` does; return its only result, or all of several as a tuple."""
        results = self.emit(op, *operands, regions=regions, location=location, names=names)
        return results[0] if len(results) == 1 else results

    def clone(self, instruction: Instruction, operands: Sequence[Value] | None = None) -> tuple[Value, ...]:
        """Append a copy of an instruction, with other operands if given, under its old result names."""
        return self.emit(
            instruction.op,
            *(instruction.operands if operands is None else operands),
            regions=instruction.regions,
            location=instruction.location,
            names=[value.name for value in instruction.results],
        )

    def inline(self, computation: Computation, *arguments: Value) -> tuple[Value, ...]:
        """Append the instructions of ``computation`` applied to ``arguments``; return its results."""
        env = dict(zip(computation.parameters, arguments, strict=True))
        for instruction in computation.instructions:
            results = self.clone(instruction, [env[value] for value in instruction.operands])
            env.update(zip(instruction.results, results, strict=True))
        return tuple(env[value] for value in computation.results)

    def build(self, *results: Value) -> Computation:
        """Return the finished computation."""
        return Computation(self.name, tuple(self.parameters), tuple(self.instructions), results)


Visit = Callable[[Instruction, tuple[Value, ...], Builder], Value | Sequence[Value] | None]


def rebuild(computation: Computation, visit: Visit, *, name: str | None = None) -> Computation:
    """Return ``computation`` with each instruction replaced by what ``visit`` makes of it.

    ``visit(instruction, operands, builder)`` gets the already rebuilt operands and returns the values that
    stand for the instruction's results: new ones it added to the builder, or any earlier ones. None keeps the
    instruction as it is (with the new operands). An empty sequence drops it; a dropped result must have no
    use left.

    Untouched values keep their names, so texts before and after differ only where something changed.

    Raises:
      KeyError: a dropped result is still used.
    """
    builder = Builder(name or computation.name, value_names(computation))
    env: dict[Value, Value] = {}
    for parameter in computation.parameters:
        env[parameter] = builder.parameter(parameter.type, parameter.name)
    for instruction in computation.instructions:
        operands = tuple(env[value] for value in instruction.operands)
        made = visit(instruction, operands, builder)
        if made is None:
            made = builder.clone(instruction, operands)
        made = (made,) if isinstance(made, Value) else tuple(made)
        if made:
            env.update(zip(instruction.results, made, strict=True))
    return builder.build(*(env[value] for value in computation.results))


def replace_values(computation: Computation, replacements: Mapping[Value, Value]) -> Computation:
    """Return ``computation`` with every use of a key, as a result too, replaced by its value."""

    def swap(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(replacements.get(value, value) for value in values)

    instructions = tuple(
        dataclasses.replace(instruction, operands=swap(instruction.operands))
        for instruction in computation.instructions
    )
    return dataclasses.replace(computation, instructions=instructions, results=swap(computation.results))


def users(computation: Computation) -> dict[Value, tuple[Instruction, ...]]:
    """Return the instructions that read each value, one entry per use; unused values map to ``()``."""
    found: dict[Value, list[Instruction]] = {value: [] for value in computation.parameters}
    for instruction in computation.instructions:
        found.update((value, []) for value in instruction.results)
        for value in instruction.operands:
            found[value].append(instruction)
    return {value: tuple(readers) for value, readers in found.items()}


def use_counts(computation: Computation) -> dict[Value, int]:
    """Return how often each value is read, by instructions or as a result of the computation."""
    counts = {value: len(readers) for value, readers in users(computation).items()}
    for value in computation.results:
        counts[value] += 1
    return counts


def value_names(computation: Computation) -> set[str]:
    """Return the names of all values a computation defines (regions have names of their own)."""
    names = {value.name for value in computation.parameters}
    names.update(value.name for instruction in computation.instructions for value in instruction.results)
    return names


def map_computations(module: Module, change: Callable[[Computation], Computation]) -> Module:
    """Return ``module`` with every top-level computation replaced by ``change(computation)``."""
    return dataclasses.replace(module, computations=tuple(change(c) for c in module.computations))


def map_regions(instruction: Instruction, change: Callable[[Computation], Computation]) -> Instruction:
    """Return ``instruction`` with every region replaced by ``change(region)``; itself when none changes."""
    regions = tuple(change(region) for region in instruction.regions)
    if all(new is old for new, old in zip(regions, instruction.regions, strict=True)):
        return instruction
    return dataclasses.replace(instruction, regions=regions)


def canonical_computation(computation: Computation, name: str | None = None) -> Computation:
    """Return ``computation`` with parameters named ``%arg0``, ... and results ``%0``, ..., regions alike.

    Two computations that are equal up to names print the same text afterwards.
    """
    env = {value: Value(f"%arg{number}", value.type) for number, value in enumerate(computation.parameters)}
    instructions: list[Instruction] = []
    for instruction in computation.instructions:
        operands = tuple(env[value] for value in instruction.operands)
        for value in instruction.results:
            env[value] = Value(f"%{len(env) - len(computation.parameters)}", value.type)
        regions = tuple(
            canonical_computation(region, f"region{number}")
            for number, region in enumerate(instruction.regions)
        )
        results = tuple(env[value] for value in instruction.results)
        instructions.append(
            dataclasses.replace(instruction, operands=operands, results=results, regions=regions)
        )
    return Computation(
        name or computation.name,
        tuple(env[value] for value in computation.parameters),
        tuple(instructions),
        tuple(env[value] for value in computation.results),
    )


def canonical_names(module: Module) -> Module:
    """Return ``module`` with values renumbered deterministically; computations keep their names."""
    return map_computations(module, canonical_computation)


def placed(computation: Computation, location: Location) -> Computation:
    """Return a computation all of whose instructions come from one source line."""
    return relocated(computation, lambda _: location)


def relocated(computation: Computation, change: Callable[[Location], Location]) -> Computation:
    """Return a computation with every location changed, those in regions too."""
    instructions = (
        dataclasses.replace(
            instruction,
            location=change(instruction.location),
            regions=tuple(relocated(region, change) for region in instruction.regions),
        )
        for instruction in computation.instructions
    )
    return dataclasses.replace(computation, instructions=tuple(instructions))


def agreed_computation(computations: Sequence[Computation]) -> Computation:
    """Return the first of computations that are equal up to names, with locations that stand for all of them."""
    first, *_ = computations
    instructions = (
        dataclasses.replace(
            alike[0],
            location=agreed([instruction.location for instruction in alike]),
            regions=tuple(
                map(agreed_computation, zip(*(instruction.regions for instruction in alike), strict=True))
            ),
        )
        for alike in zip(*(computation.instructions for computation in computations), strict=True)
    )
    return dataclasses.replace(first, instructions=tuple(instructions))
