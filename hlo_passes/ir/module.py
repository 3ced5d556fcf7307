"""The containers of the IR: values, instructions, computations and modules. All are immutable.

A computation, a region included, is closed: its instructions read its own parameters and results only. Names
of values are unique within one computation. Instructions, computations and modules compare by identity;
compare texts for equality.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, SupportsIndex

from hlo_passes.ir.location import UNKNOWN, Location
from hlo_passes.ir.op import Op
from hlo_passes.ir.types import TensorType

set_once = object.__setattr__
"""Sets an attribute of an object that refuses it from then on."""


class Value(str):
    """A parameter or a result; identified by its name (``%3``) within its computation.

    It is its name, and so compares and hashes as texts do, in C: values are looked up more often than anything else is
    done with them.

    Attributes:
      name: the name, as a plain text.
      type: the tensor's type.
    """

    __slots__ = ("name", "type")

    name: str
    type: TensorType

    def __new__(cls, name: str, type: TensorType) -> Value:
        """Return the value of that name."""
        made = super().__new__(cls, name)
        set_once(made, "name", name)
        set_once(made, "type", type)
        return made

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse: values are shared."""
        raise AttributeError(f"a value's {name} cannot be set")

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[Value], tuple[str, TensorType]]:
        """Return what it is copied and pickled as."""
        return Value, (self.name, self.type)

    def __repr__(self) -> str:
        """Return name and type."""
        return f"Value(name={self.name!r}, type={self.type!r})"


@dataclass(frozen=True, eq=False, slots=True)
class Instruction:
    """One operation applied to values. ``regions`` are the computations that the operation carries."""

    op: Op
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    regions: tuple[Computation, ...] = ()
    location: Location = UNKNOWN

    @property
    def result(self) -> Value:
        """The only result.

        Raises:
          ValueError: the instruction has no result or several.
        """
        (value,) = self.results
        return value

    @property
    def has_effect(self) -> bool:
        """Whether it, or something in its regions, exchanges something with the host or with other devices."""
        return self.op.has_effect or (
            bool(self.regions) and any(region.has_effect for region in self.regions)
        )

    @property
    def has_transfer(self) -> bool:
        """Whether it, or something in its regions, exchanges something with the host."""
        return self.op.is_transfer or (
            bool(self.regions) and any(region.has_transfer for region in self.regions)
        )

    @property
    def operand_types(self) -> tuple[TensorType, ...]:
        """Types of the operands, in order."""
        return tuple(value.type for value in self.operands)


@dataclass(frozen=True, eq=False)
class Computation:
    """Instructions in order, from parameters to results."""

    name: str
    parameters: tuple[Value, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[Value, ...]

    @functools.cached_property
    def producers(self) -> dict[Value, Instruction]:
        """The instruction that defines each value; parameters are absent."""
        return {value: instruction for instruction in self.instructions for value in instruction.results}

    @property
    def parameter_types(self) -> tuple[TensorType, ...]:
        """Types of the parameters, in order."""
        return tuple(value.type for value in self.parameters)

    @property
    def result_types(self) -> tuple[TensorType, ...]:
        """Types of the results, in order."""
        return tuple(value.type for value in self.results)

    @functools.cached_property
    def has_effect(self) -> bool:
        """Whether anything in it, what it calls apart, exchanges something with the host or with other devices."""
        return any(instruction.has_effect for instruction in self.instructions)

    @functools.cached_property
    def has_transfer(self) -> bool:
        """Whether anything in it exchanges something with the host; what it calls never does."""
        return any(instruction.has_transfer for instruction in self.instructions)

    @functools.cached_property
    def callees(self) -> tuple[str, ...]:
        """The computation that each operation in it calls, in the order of ``walk``."""
        return tuple(name for instruction in self.walk() for name in instruction.op.callees)

    @functools.cached_property
    def op_types(self) -> frozenset[type[Op]]:
        """The classes of the operations in it, those of regions included."""
        return frozenset(type(instruction.op) for instruction in self.walk())

    def walk(self) -> Iterator[Instruction]:
        """Yield every instruction, those of regions right after the instruction that carries them."""
        for instruction in self.instructions:
            yield instruction
            if instruction.regions:
                for region in instruction.regions:
                    yield from region.walk()


@dataclass(frozen=True, eq=False)
class Module:
    """Computations that may call each other; ``entry`` names the one that runs.

    ``donated`` lists the entry's parameters whose storage a result may take over. ``declared`` are the element
    types that the program itself names for the entry's parameters and its results, where some are held in others
    (``i4`` in ``i8``); empty where all are their own. Text does not show them.

    ``mesh`` names the axes of the devices that all run this module, and their sizes, the slowest first; a device's number
    counts along it row by row. It is empty where there is one device.
    """

    name: str
    computations: tuple[Computation, ...]
    entry: str
    donated: tuple[int, ...] = ()
    declared: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    mesh: tuple[tuple[str, int], ...] = ()

    @functools.cached_property
    def _by_name(self) -> dict[str, Computation]:
        return {computation.name: computation for computation in self.computations}

    @property
    def entry_computation(self) -> Computation:
        """The computation that runs."""
        return self.computation(self.entry)

    def computation(self, name: str) -> Computation:
        """Return the computation of that name.

        Raises:
          KeyError: there is none.
        """
        return self._by_name[name]

    @property
    def num_devices(self) -> int:
        """How many devices run it together."""
        return math.prod(size for _, size in self.mesh)

    @functools.cached_property
    def op_types(self) -> frozenset[type[Op]]:
        """The classes of the operations in it, those of regions included."""
        return frozenset(type(instruction.op) for instruction in self.walk())

    def walk(self) -> Iterator[Instruction]:
        """Yield every instruction of every computation, regions included."""
        for computation in self.computations:
            yield from computation.walk()
