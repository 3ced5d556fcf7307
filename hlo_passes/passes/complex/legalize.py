"""Complex numbers become pairs of real ones: the machine has no complex type."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes import ops
from hlo_passes.ir import Builder, Computation, Instruction, Module, TensorType, Value, value_names
from hlo_passes.passes.base import Pass
from hlo_passes.passes.complex.movement import RULES, Site, Split, flattened, grouped, refusal, split_types


@dataclass(frozen=True)
class LegalizeComplex(Pass):
    """Rewrite every complex value as its real and its imaginary part, through calls, loops and regions.

    A complex parameter or result of any computation, the entry's too, becomes two side by side, real part
    first. Parameters are named after the one they stand for, with ``.real`` and ``.imag``; both parts of a
    donated parameter are donated.
    """

    name: ClassVar[str] = "legalize-complex"
    removes: ClassVar[tuple[str, ...]] = (ops.Complex.name, ops.Real.name, ops.Imag.name)

    def run(self, module: Module) -> Module:
        """Return a module without complex numbers; itself when it has none.

        Raises:
          UnsupportedOp: an operation on complex numbers that has no form in real ones here.
        """
        if not has_complex(module):
            return module
        return dataclasses.replace(
            module,
            computations=tuple(map(_split, module.computations)),
            donated=split_positions(module.entry_computation.parameter_types, module.donated),
        )


def has_complex(module: Module) -> bool:
    """Whether complex numbers, or operations on their parts, are left in a module."""
    return any(_concerns(computation) for computation in module.computations)


def _concerns(computation: Computation) -> bool:
    """Whether complex numbers, or operations on their parts, occur in a computation or its regions."""
    if any(value.type.is_complex for value in computation.parameters):
        return True
    return any(
        instruction.op.name in LegalizeComplex.removes
        or any(value.type.is_complex for value in instruction.results)
        or any(map(_concerns, instruction.regions))
        for instruction in computation.instructions
    )


def split_positions(types: Sequence[TensorType], positions: Sequence[int]) -> tuple[int, ...]:
    """Return where parameters of some positions lie once each complex one has become two."""
    owners = [number for number, type_ in enumerate(types) for _ in split_types([type_])]
    return tuple(position for position, owner in enumerate(owners) if owner in positions)


def _split(computation: Computation) -> Computation:
    """Return a computation in terms of parts; untouched instructions keep the names of their results."""
    builder = Builder(computation.name, value_names(computation))
    zeros: set[Value] = set()
    env: dict[Value, Split] = {}
    for parameter in computation.parameters:
        env[parameter] = _parameter(builder, parameter)
    for instruction in computation.instructions:
        builder.location = instruction.location
        operands = tuple(env[value] for value in instruction.operands)
        if _is_touched(instruction):
            regions = tuple(map(_split, instruction.regions))
            made = _rewritten(Site(instruction, operands, regions, builder, zeros))
        else:
            made = builder.clone(instruction, [v for operand in operands for v in flattened(operand)])
        env.update(zip(instruction.results, made, strict=True))
    return builder.build(*(v for value in computation.results for v in flattened(env[value])))


def _parameter(builder: Builder, parameter: Value) -> Split:
    if not parameter.type.is_complex:
        return builder.parameter(parameter.type, parameter.name)
    part = parameter.type.part
    halves = [builder.parameter(part, f"{parameter.name}.{half}") for half in ("real", "imag")]
    return grouped(halves, [parameter.type], builder)[0]


def _is_touched(instruction: Instruction) -> bool:
    values = (*instruction.operands, *instruction.results)
    return (
        instruction.op.name in LegalizeComplex.removes
        or any(value.type.is_complex for value in values)
        or any(map(_concerns, instruction.regions))
    )


def _rewritten(site: Site) -> list[Split]:
    instruction = site.instruction
    rule = RULES.get(type(instruction.op))
    if rule is not None:
        return list(rule(site))
    if any(value.type.is_complex for value in (*instruction.operands, *instruction.results)):
        raise refusal(instruction)
    # a region that uses complex numbers inside only
    results = site.builder.emit(instruction.op, *site.flat, regions=site.regions)
    return grouped(results, [value.type for value in instruction.results], site.builder)
