"""Which steps run one exchange program: their exchanges are alike but for the addresses of what they send and receive.

A tile's sends name addresses relative to the register OUTGOING_BASE, the pointers to which words arrive are relative to
INCOMING_BASE, so a program can be called again with other bases. Both are supervisor registers (0xa7 and 0xa4 of the
exchange's registers); where a step moves several tensors, each has bases of its own, and its program takes them one after
the other: a caller loads their addresses, the program writes them to the registers in between.

Source: github.com/osmarks/ipu-stack docs/EXCHANGE_BASE_SECTIONS_2026_09_13.md and EXCHANGE_BASE_AWARE_2026_09_13.md:
payloads relocated by both registers within a phase checked on a C600, with the cycles that writing them takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tiles.compiler.executable import Executable, Variable
from tiles.compiler.steps import BetweenStep, CopyStep, ExecuteStep, StepRecord
from tiles.numerics.dtypes import itemsize
from tiles.plan import is_resident

LEAST_BYTES = 128
"""For each tensor moved: programs that take less on every tile are not shared. Setting up its bases takes 16 B and 28
cycles a call, which at the price of code that plans pay are 72 B together."""
MOST_MOVEMENTS = 4
"""Tensors that a shared program moves at most: their addresses, two each, wait in the supervisor's registers."""


def movements(step: StepRecord, variables: Mapping[str, Variable]) -> Iterator[tuple[Any, ...]]:
    """Yield what says, but for addresses, which words a step's exchange moves: one hashable key per tensor."""
    if isinstance(step, CopyStep):
        for copy in step.copies:
            layouts = [(variables[n].shape, variables[n].layout) for n in copy.sources]
            target = variables[copy.destination]
            yield (copy.axis, *layouts, target.shape, target.layout, itemsize(target.dtype))
    for group in step.groups if isinstance(step, ExecuteStep) else ():
        for k, operand in enumerate(group.operands):
            v = variables[operand.variable]
            if not is_resident(group.form, group.plan, k, v.layout):
                index_map, plan = group.form.operands[k], group.plan
                order = plan.operand_order(group.form, k)
                yield v.shape, v.layout, itemsize(v.dtype), index_map, plan.splits, plan.base, order


def num_movements(step: StepRecord, variables: Mapping[str, Variable]) -> int:
    """Return the tensors that a step's exchange moves, each from an address of its own to one of its own."""
    if isinstance(step, CopyStep):
        return sum(len(copy.sources) for copy in step.copies)
    return sum(1 for _ in movements(step, variables))


def shared_programs(
    steps: Sequence[StepRecord], variables: Mapping[str, Variable], code: Sequence[np.ndarray]
) -> dict[int, int]:
    """Return, by the numbers of steps, the first step before them whose exchange program they can run.

    Args:
      steps: the program's steps.
      variables: what they name.
      code: bytes of every step's own exchange program, int64 ``[num_tiles]`` each.
    """
    first: dict[tuple[Any, ...], int] = {}
    shared: dict[int, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, BetweenStep):  # the tiles it talks to are on IPUs that bases do not name
            continue
        moved = num_movements(step, variables)
        if moved > MOST_MOVEMENTS or code[number].max(initial=0) < LEAST_BYTES * max(1, moved):
            continue
        program = tuple(movements(step, variables))
        if program in first:
            shared[number] = first[program]
        else:
            first[program] = number
    return shared


def called(executable: Executable) -> frozenset[int]:
    """Return the steps whose exchange program is called with bases: those that share one, and those whose it is."""
    return frozenset((*executable.shared_exchange, *executable.shared_exchange.values()))
