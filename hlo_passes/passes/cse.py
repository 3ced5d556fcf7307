"""Common subexpression elimination."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import (
    Add,
    And,
    Compare,
    Maximum,
    Minimum,
    Multiply,
    OptimizationBarrier,
    Or,
    Xor,
)
from hlo_passes.passes.base import LocalPass, map_control_regions
from hlo_passes.passes.structure import instruction_key


@dataclass(frozen=True)
class EliminateCommonSubexpressions(LocalPass):
    """Compute equal operations on equal operands once; the first of them stays.

    Equal collectives of one value bring the same, once. Operands of commutative operations may come in either order.
    An optimization barrier is never merged with another: it is what keeps a recomputation from being merged with
    what it repeats.
    """

    name: ClassVar[str] = "cse"

    def change(self, computation: Computation) -> Computation:
        """Return the computation without repeated operations; itself when none is repeated."""
        return _merge(computation)


def repeated(computation: Computation) -> dict[Value, Value]:
    """Return by value the first one that is computed by an equal operation on equal operands, of those that are not it."""
    first: dict[Hashable, Instruction] = {}
    env: dict[Value, Value] = {}
    for old in computation.instructions:
        if isinstance(old.op, OptimizationBarrier) or old.has_effect or old.op.is_control:
            continue
        instruction = _with_operands(old, env)
        known = first.setdefault(instruction_key(instruction, _operand_key(instruction)), instruction)
        if known is not instruction:
            env.update(zip(old.results, known.results, strict=True))
    return env


def _merge(computation: Computation) -> Computation:
    first: dict[Hashable, Instruction] = {}
    env: dict[Value, Value] = {}
    kept: list[Instruction] = []
    has_changed = False
    for old in computation.instructions:
        instruction = _with_operands(map_control_regions(old, _merge), env)
        is_kept = instruction.has_effect and not instruction.op.is_collective
        if not isinstance(instruction.op, OptimizationBarrier) and not is_kept:
            known = first.setdefault(instruction_key(instruction, _operand_key(instruction)), instruction)
            if known is not instruction:
                env.update(zip(instruction.results, known.results, strict=True))
                continue
        has_changed |= instruction is not old
        kept.append(instruction)
    if not env and not has_changed:
        return computation
    results = tuple(env.get(value, value) for value in computation.results)
    return dataclasses.replace(computation, instructions=tuple(kept), results=results)


def _with_operands(instruction: Instruction, env: dict[Value, Value]) -> Instruction:
    if env.keys().isdisjoint(instruction.operands):
        return instruction
    return dataclasses.replace(
        instruction, operands=tuple(env.get(value, value) for value in instruction.operands)
    )


def _operand_key(instruction: Instruction) -> tuple[str, ...]:
    names = [value.name for value in instruction.operands]
    return tuple(sorted(names) if _is_commutative(instruction) else names)


def _is_commutative(instruction: Instruction) -> bool:
    op = instruction.op
    if isinstance(op, Compare):
        return op.direction in ("EQ", "NE")
    if isinstance(op, (Maximum, Minimum)):  # of floats: which of two zeros is returned depends on the order
        return not instruction.operands[0].type.is_float
    return isinstance(op, (Add, Multiply, And, Or, Xor))
