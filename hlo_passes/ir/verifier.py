"""Check that a module is valid: every pass must hand over one.

Checked: names defined once and before use, types as the operations infer them, region counts, calls that
resolve with the callee's signature, no recursion, and an entry with valid donations.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol, cast

from hlo_passes.errors import ConstraintViolation, VerificationError
from hlo_passes.ir.location import UNKNOWN, Location
from hlo_passes.ir.module import Computation, Instruction, Module, Value
from hlo_passes.ir.printer import print_header, print_instruction
from hlo_passes.ir.types import TensorType

Known = set[Instruction | Computation]
"""What was checked before and cannot have changed, calls apart: those depend on what they call."""


def verify(module: Module, known: Known | None = None) -> None:
    """Check ``module``.

    Args:
      module: the module.
      known: instructions and computations that were checked before; those checked now are added.

    Raises:
      VerificationError: it is not valid; the error shows the instruction and the user's source line.
    """
    names = [computation.name for computation in module.computations]
    for name, count in Counter(names).items():
        if count > 1:
            raise _module_error(module, f"computation @{name} is defined twice")
    if module.entry not in names:
        raise _module_error(
            module, f"entry @{module.entry} is not among {', '.join(names) or 'no computations'}"
        )
    parameters = len(module.entry_computation.parameters)
    for number in module.donated:
        if not 0 <= number < parameters:
            raise _module_error(module, f"donated parameter {number} is outside 0..{parameters - 1}")
    for computation in module.computations:
        _verify_computation(computation, module, known)
    _verify_no_recursion(module)


def verify_computation(computation: Computation) -> None:
    """Check one computation on its own; calls are not resolved. Raises as ``verify`` does."""
    _verify_computation(computation, None)


def _verify_computation(computation: Computation, module: Module | None, known: Known | None = None) -> None:
    if known is None or computation not in known:
        _verify_names(computation)
    elif not computation.callees:
        return
    for instruction in computation.instructions:
        if known is None or instruction not in known:
            _verify_instruction(instruction, computation, module, known)
    if known is not None:
        known.add(computation)


def _verify_names(computation: Computation) -> None:
    """Check that names are defined once, before they are used and of the type they are used as."""
    defined: dict[Value, TensorType] = {}

    def define(values: tuple[Value, ...], instruction: Instruction | None) -> None:
        for value in values:
            if value in defined:
                raise _error(f"{value} is defined twice", computation, instruction)
            defined[value] = value.type

    def use(values: tuple[Value, ...], instruction: Instruction | None) -> None:
        for value in values:
            type_ = defined.get(value)
            if type_ is None:
                raise _error(f"{value} is used before it is defined", computation, instruction)
            if type_ is not value.type and type_ != value.type:
                message = f"{value} is used as {value.type} but defined as {type_}"
                raise _error(message, computation, instruction)

    define(computation.parameters, None)
    for instruction in computation.instructions:
        use(instruction.operands, instruction)
        define(instruction.results, instruction)
    use(computation.results, None)


def _verify_instruction(
    instruction: Instruction,
    computation: Computation,
    module: Module | None,
    known: Known | None,
) -> None:
    op = instruction.op
    if instruction.regions:
        _verify_regions(instruction, computation, module, known)
    if op.num_regions is not None and len(instruction.regions) != op.num_regions:
        message = f"expected {op.num_regions} regions, got {len(instruction.regions)}"
        raise _error(message, computation, instruction)
    try:
        inferred = op.infer(*instruction.operand_types, regions=instruction.regions)
    except ConstraintViolation as error:
        raise _error(
            f"{error.op_name} breaks {error.tag}: {error.message}", computation, instruction
        ) from error
    declared = tuple([value.type for value in instruction.results])
    if inferred != declared:
        message = f"result types are {_types(declared)}, the operation gives {_types(inferred)}"
        raise _error(message, computation, instruction)
    callees = op.callees
    if module is not None:
        if op.is_collective:
            _verify_devices(instruction, computation, module)
        for name in callees:
            _verify_call(name, instruction, computation, module)
    if known is None or callees:
        return
    if not instruction.regions or not any(region.callees for region in instruction.regions):
        known.add(instruction)


def _verify_regions(
    instruction: Instruction, computation: Computation, module: Module | None, known: Known | None
) -> None:
    for region in instruction.regions:
        _verify_computation(region, module, known)
    if not instruction.op.is_control and any(region.has_effect for region in instruction.regions):
        message = "a region of elements exchanges items with the host or with other devices"
        raise _error(message, computation, instruction)


def _verify_call(name: str, instruction: Instruction, computation: Computation, module: Module) -> None:
    try:
        callee = module.computation(name)
    except KeyError:
        raise _error(f"@{name} is not a computation of the module", computation, instruction) from None
    if callee.has_transfer:
        message = f"@{name} exchanges items with the host: it stands where it is called, in no function"
        raise _error(message, computation, instruction)
    got = (instruction.operand_types, tuple(value.type for value in instruction.results))
    expected = (callee.parameter_types, callee.result_types)
    if got != expected:
        message = (
            f"@{name} has type ({_types(expected[0])}) -> ({_types(expected[1])}), "
            f"called as ({_types(got[0])}) -> ({_types(got[1])})"
        )
        raise _error(message, computation, instruction)


class _Groups(Protocol):
    @property
    def listed(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def num_devices(self) -> int: ...


class _Grouped(Protocol):
    """What collectives have: the groups of devices that take part."""

    @property
    def groups(self) -> _Groups: ...


def _verify_devices(instruction: Instruction, computation: Computation, module: Module) -> None:
    """Check that a collective is one of the module's devices, each of which is in a group where it must be."""
    groups = cast(_Grouped, instruction.op).groups
    members = {number for row in groups.listed for number in row}
    is_partial = instruction.op.name == "stablehlo.collective_broadcast"
    is_fitting = (
        groups.num_devices <= module.num_devices if is_partial else groups.num_devices == module.num_devices
    )
    if not is_fitting or (members and not members <= set(range(module.num_devices))):
        message = f"groups of {groups.num_devices} devices in a program of {module.num_devices}"
        raise _error(message, computation, instruction)


def _verify_no_recursion(module: Module) -> None:
    done: set[str] = set()

    def visit(computation: Computation, path: tuple[str, ...]) -> None:
        if computation.name in path:
            cycle = " -> ".join((*path[path.index(computation.name) :], computation.name))
            raise _error(f"computations call each other in a cycle: {cycle}", computation, None)
        if computation.name in done:
            return
        for callee in computation.callees:
            visit(module.computation(callee), (*path, computation.name))
        done.add(computation.name)

    for computation in module.computations:
        visit(computation, ())


def _types(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _error(message: str, computation: Computation, instruction: Instruction | None) -> VerificationError:
    if instruction is None:
        return VerificationError(f"@{computation.name}: {message}", print_header(computation), str(UNKNOWN))
    where: Location = instruction.location
    return VerificationError(f"@{computation.name}: {message}", print_instruction(instruction), str(where))


def _module_error(module: Module, message: str) -> VerificationError:
    return VerificationError(message, f"module @{module.name}", str(UNKNOWN))
