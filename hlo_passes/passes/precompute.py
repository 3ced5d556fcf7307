"""Costly functions of what no argument changes, computed once and for all: positions' sines, powers of frequencies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np

from hlo_passes._jax_compat import OLDER_EMITTERS, jit
from hlo_passes.ir import Computation, Instruction, Module, Op, Value, evaluate_instruction
from hlo_passes.ops import Constant, DotGeneral, Iota
from hlo_passes.ops.data_movement import DataMovement
from hlo_passes.ops.elementwise import (
    Atan2,
    Convert,
    Cosine,
    Divide,
    Elementwise,
    Multiply,
    Negate,
    Power,
    Sine,
    Tan,
)
from hlo_passes.ops.indexing import DynamicSlice
from hlo_passes.passes.base import Pass, map_control_regions
from hlo_passes.platforms import default_platform

COSTLY: tuple[type[Op], ...] = (Atan2, Cosine, Power, Sine, Tan)
"""Functions that machines call a library for: hundreds of instructions an element and more."""


@dataclass(frozen=True)
class Precompute(Pass):
    """Replace costly functions of constants and counters by their values, of ``max_elements`` together in a module.

    Positional encodings, twiddle factors and windows are written as sines of ``arange``; a program would compute them on
    every run, in a loop in every round. As constants they take memory instead, which is why only costly functions are
    computed here; what is made of them stays in the program. All of a computation's are evaluated together by XLA, as
    ``jax.jit`` of the program would: an angle is a large position times a frequency, of which the last digit shows.
    """

    name: ClassVar[str] = "precompute"
    max_elements: int = 1 << 20

    def run(self, module: Module) -> Module:
        """Return the module with costly functions evaluated; itself when there are none."""
        left = self.max_elements

        def change(computation: Computation) -> Computation:
            nonlocal left
            instructions = tuple(map_control_regions(each, change) for each in computation.instructions)
            found = outermost_costly(computation, fixed_values(computation, (), left), left)
            left -= sum(each.result.type.size for each in found)
            values = dict(zip((each.result for each in found), _evaluated(computation, found), strict=True))
            instructions = tuple(_replaced(each, values) for each in instructions)
            if all(new is old for new, old in zip(instructions, computation.instructions, strict=True)):
                return computation
            return dataclasses.replace(computation, instructions=instructions)

        changed = tuple(map(change, module.computations))
        if all(new is old for new, old in zip(changed, module.computations, strict=True)):
            return module
        return dataclasses.replace(module, computations=changed)


def _replaced(instruction: Instruction, values: dict[Value, np.ndarray]) -> Instruction:
    if not instruction.results or instruction.results[0] not in values:
        return instruction
    constant = Constant(values[instruction.result], instruction.result.type)
    return dataclasses.replace(instruction, op=constant, operands=())


def outermost_costly(computation: Computation, fixed: set[Value], most: int) -> list[Instruction]:
    """Return the costly functions among fixed values, those that only others of them read left out; ``most`` elements."""
    read = set(computation.results)
    found: list[Instruction] = []
    for instruction in reversed(computation.instructions):
        is_fixed = bool(instruction.results) and instruction.results[0] in fixed
        if not is_fixed:
            read.update(instruction.operands)
        elif instruction.result not in read:
            continue
        elif isinstance(instruction.op, COSTLY) and instruction.result.type.size <= most:
            most -= instruction.result.type.size
            found.append(instruction)
        else:
            read.update(instruction.operands)
    return found[::-1]


def fixed_values(computation: Computation, given: Sequence[Value], most: int) -> set[Value]:
    """Return what a computation makes of constants and of what is given, arrays of at most so many numbers each."""
    fixed = set(given)
    for instruction in computation.instructions:
        if _is_fixed(instruction, fixed, most):
            fixed.update(instruction.results)
    return fixed


def _is_fixed(instruction: Instruction, fixed: set[Value], most: int) -> bool:
    """Return whether an instruction makes one array of numbers, at most so many, of what is fixed itself."""
    if isinstance(instruction.op, Constant):
        return True
    if not isinstance(instruction.op, _FIXED) or instruction.regions:
        return False
    if len(instruction.results) != 1 or instruction.result.type.size > most:
        return False
    values = (*instruction.operands, instruction.result)
    is_plain = all(np.dtype(value.type.np_dtype).name in _PLAIN for value in values)
    return is_plain and fixed.issuperset(instruction.operands)


_FIXED = (Elementwise, DataMovement, DotGeneral, DynamicSlice, Iota)
_PLAIN = frozenset(("bool", "float16", "bfloat16", "float32", "float64")) | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
"""Types whose arithmetic XLA has on every host."""


_ALIKE: tuple[type[Op], ...] = (
    Atan2,
    Constant,
    Convert,
    Cosine,
    DataMovement,
    Divide,
    Iota,
    Multiply,
    Negate,
    Power,
    Sine,
)
"""What every emitter of XLA rounds alike in 32 bits and more: no tangents, and no sums, which may join a product."""


def _is_alike(instruction: Instruction) -> bool:
    dtype = np.dtype(instruction.result.type.np_dtype)
    return isinstance(instruction.op, _ALIKE) and (
        dtype.kind in "iub" or dtype.name in ("float32", "float64")
    )


def _evaluated(computation: Computation, found: Sequence[Instruction]) -> list[np.ndarray]:
    """Return the values of some instructions of a computation, of which each is fixed."""
    if not found:
        return []
    makers = {value: each for each in computation.instructions for value in each.results}
    needed, waiting = set[Value](), [each.result for each in found]
    while waiting:
        value = waiting.pop()
        if value not in needed:
            needed.add(value)
            waiting += makers[value].operands
    steps = [each for each in computation.instructions if each.results and each.results[0] in needed]

    def values() -> list[jax.Array]:
        known: dict[Value, jax.Array] = {}
        for each in steps:
            (known[each.result],) = evaluate_instruction(each, *(known[v] for v in each.operands))
        return [known[each.result] for each in found]

    # XLA:CPU's older emitters, where it has them, take half as long to compile
    is_quick = default_platform() == "cpu" and all(map(_is_alike, steps))
    options = OLDER_EMITTERS if is_quick else None
    with jax.enable_x64(True):
        return [np.asarray(value) for value in jit(values, compiler_options=options)()]
