"""Costly functions of what a loop counts, looked up in tables: a source's sine, a time's embedding, a schedule's cosine.

A round of a loop that samples, simulates or trains computes the sine of its own number, a routine of thousands of cycles
however few elements it is of, while the rest of the machine waits. Which values it has is known before the program runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_passes._jax_compat import jit
from hlo_passes.ir import Computation, Instruction, Op, Value, evaluate_instruction, value_names
from hlo_passes.ops import Constant, Divide, DynamicSlice, Reshape, Subtract, While
from hlo_passes.passes.base import LocalPass, map_control_regions
from hlo_passes.passes.loops import body_of
from hlo_passes.passes.precompute import COSTLY, fixed_values, outermost_costly
from hlo_passes.passes.structure import FreshNames
from hlo_passes.passes.while_to_repeat import Counted, counted


@dataclass(frozen=True)
class Tabulate(LocalPass):
    """Read costly functions of counters, and of constants at counters, from tables of at most ``max_elements`` in a loop.

    The loop's trip count is known. What counts is any carried integers of at most ``max_counters`` elements that begin as
    constants and become functions of themselves: the loop's own counter, the steps that an optimizer has taken. Nothing
    that floats carry from round to round is computed here.
    """

    name: ClassVar[str] = "tabulate"
    max_elements: int = 1 << 16
    max_counters: int = 64

    def change(self, computation: Computation) -> Computation:
        """Return the computation with costly functions of counters looked up; itself when there are none."""
        instructions = [map_control_regions(each, self.change) for each in computation.instructions]
        for number, instruction in enumerate(instructions):
            if isinstance(instruction.op, While) and _has_costly(body_of(instruction)):
                instructions[number] = self._tabulated(instruction, computation)
        if all(new is old for new, old in zip(instructions, computation.instructions, strict=True)):
            return computation
        return dataclasses.replace(computation, instructions=tuple(instructions))

    def _tabulated(self, instruction: Instruction, outside: Computation) -> Instruction:
        """Return a loop with tables; itself where it has nothing to look up."""
        constants = {value: each.op for each in outside.instructions for value in each.results}
        loop = counted(instruction, lambda value: _constant(constants.get(value)))
        if loop is None or not 1 < loop.trips <= self.max_elements:
            return instruction
        rounds = self._rounds(instruction, outside)
        found = [
            each
            for each in outermost_costly(rounds.body, rounds.fixed, self.max_elements // loop.trips)
            if each.result not in rounds.constant
        ]
        if not found:
            return instruction
        tables = _tables(rounds, outside, found, loop.trips)
        body = _looking_up(rounds.body, loop, dict(zip((each.result for each in found), tables, strict=True)))
        return dataclasses.replace(instruction, regions=(instruction.regions[0], body))

    def _rounds(self, instruction: Instruction, outside: Computation) -> _Rounds:
        """Return what of a loop's body follows from constants."""
        body = body_of(instruction)
        known = fixed_values(outside, (), self.max_elements)
        begun = {k: value for k, value in enumerate(instruction.operands) if value in known}
        carried = range(len(body.results))
        passed = [k for k in begun if k not in carried or body.results[k] == body.parameters[k]]
        counting = [
            k
            for k in begun
            if k not in passed
            and (body.parameters[k].type.is_integer or body.parameters[k].type.is_bool)
            and body.parameters[k].type.size <= self.max_counters
        ]
        constant = fixed_values(body, [body.parameters[k] for k in passed], self.max_elements)
        while True:
            given = [body.parameters[k] for k in (*passed, *counting)]
            fixed = fixed_values(body, given, self.max_elements)
            kept = [k for k in counting if body.results[k] in fixed]
            if kept == counting:
                return _Rounds(body, begun, tuple(passed), tuple(counting), fixed, constant)
            counting = kept


class _Rounds(NamedTuple):
    """What of a loop's rounds is known before the program runs.

    Args:
      body: the loop's body.
      begun: the operands that are fixed, by position.
      passed: positions of fixed operands that every round passes on.
      counting: positions of those that every round makes anew of fixed values.
      fixed: values of the body that a round's number determines.
      constant: those among them that are alike in every round.
    """

    body: Computation
    begun: Mapping[int, Value]
    passed: Sequence[int]
    counting: Sequence[int]
    fixed: set[Value]
    constant: set[Value]


def _constant(op: object) -> Constant | None:
    return op if isinstance(op, Constant) else None


def _has_costly(body: Computation) -> bool:
    return any(isinstance(each.op, COSTLY) for each in body.instructions)


def _tables(
    rounds: _Rounds, outside: Computation, found: Sequence[Instruction], count: int
) -> list[np.ndarray]:
    """Return the values of some instructions of a body in every round, one after another."""
    body = rounds.body
    begun = [rounds.begun[k] for k in (*rounds.passed, *rounds.counting)]
    before = _made(outside, begun)
    steps = _made(body, [*(each.result for each in found), *(body.results[k] for k in rounds.counting)])

    def values() -> list[jax.Array]:
        first = _run(before, {})
        fixed = {body.parameters[k]: first[rounds.begun[k]] for k in rounds.passed}

        def one_round(state: list[jax.Array], _: None) -> tuple[list[jax.Array], list[jax.Array]]:
            counters = {body.parameters[k]: value for k, value in zip(rounds.counting, state, strict=True)}
            known = _run(steps, {**fixed, **counters})
            return [known[body.results[k]] for k in rounds.counting], [known[each.result] for each in found]

        return lax.scan(one_round, [first[rounds.begun[k]] for k in rounds.counting], None, length=count)[1]

    with jax.enable_x64(True):
        return [np.asarray(value) for value in jit(values)()]


def _made(computation: Computation, wanted: Sequence[Value]) -> list[Instruction]:
    """Return the instructions that some fixed values are made by, in order."""
    needed, instructions = set(wanted), list[Instruction]()
    for each in reversed(computation.instructions):
        if not needed.isdisjoint(each.results):
            needed.update(each.operands)
            instructions.append(each)
    return instructions[::-1]


def _run(instructions: Sequence[Instruction], known: dict[Value, jax.Array]) -> dict[Value, jax.Array]:
    for each in instructions:
        (value,) = evaluate_instruction(each, *(known[operand] for operand in each.operands))
        known[each.result] = jnp.asarray(value)
    return known


def _looking_up(body: Computation, loop: Counted, tables: Mapping[Value, np.ndarray]) -> Computation:
    """Return a body that takes values from tables, at the number of its round."""
    names = FreshNames(value_names(body))
    counter = body.parameters[loop.position]
    instructions: list[Instruction] = []

    def emit(like: Instruction, op: Op, *operands: Value) -> Value:
        (type_,) = op.infer(*[operand.type for operand in operands])
        made = dataclasses.replace(
            like, op=op, operands=operands, results=(Value(names.new(), type_),), regions=()
        )
        instructions.append(made)
        return made.result

    for each in body.instructions:
        if not each.results or each.results[0] not in tables:
            instructions.append(each)
            continue
        table, number = tables[each.result], counter
        for op, constant in ((Subtract(), loop.start), (Divide(), loop.step)):
            if constant != (0 if isinstance(op, Subtract) else 1):
                number = emit(each, op, number, emit(each, Constant.splat(constant, counter.type)))
        type_ = each.result.type
        whole = emit(each, Constant(table, type_.with_shape(table.shape)))
        zero = emit(each, Constant.splat(0, counter.type))
        row = emit(each, DynamicSlice((1, *type_.shape)), whole, number, *([zero] * type_.rank))
        instructions.append(dataclasses.replace(each, op=Reshape(type_.shape), operands=(row,)))
    return dataclasses.replace(body, instructions=tuple(instructions))
