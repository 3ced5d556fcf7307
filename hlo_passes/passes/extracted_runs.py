"""Extract runs of instructions from a computation as computations of their own, equal ones as equals.

What a run shares with the rest is kept small: constants, broadcasts and reshapes are made again on either side
instead of being handed over.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hlo_passes.ir import Computation, Instruction, Value
from hlo_passes.ops import BroadcastInDim, Constant, Iota, Reshape
from hlo_passes.passes.structure import computation_key


@dataclass
class ExtractedRun:
    """A run of instructions and what it shares with the rest.

    Args:
      window: positions of the instructions.
      instructions: the run.
      operands: values it reads from outside, in the order of the computation's parameters.
      results: values of it that are read outside, in the order of the computation's results.
      remade: instructions of it that are to be made again outside, of ``results``.
      computation: the run as a computation.
    """

    window: range
    instructions: tuple[Instruction, ...]
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    remade: tuple[Instruction, ...]
    computation: Computation


def extract_equal_runs(computation: Computation, windows: Sequence[range]) -> list[ExtractedRun]:
    """Extract those windows that are equal up to names; the most common kind if there are several.

    All have the same results: every value that anyone of them has to hand out.
    """
    maker = _Maker(computation)
    last_reader = _last_readers(computation, windows[0].start)
    drafts = [maker.draft(window) for window in windows]
    keys = [computation_key(draft.computation(draft.values)) for draft in drafts]
    (chosen, count), *_ = Counter(keys).most_common(1)
    if count < 2:
        return []
    drafts = [draft for draft, key in zip(drafts, keys, strict=True) if key == chosen]
    wanted: dict[int, None] = {}
    for draft in drafts:
        for position, value in enumerate(draft.values):
            if last_reader.get(value, 0) >= draft.window.stop:
                wanted[position] = None
    return [draft.finish(sorted(wanted)) for draft in drafts]


def _last_readers(computation: Computation, start: int) -> dict[Value, int]:
    """Return the position of the last instruction from ``start`` on that reads each value, the end for a result."""
    readers = {
        value: start + position
        for position, instruction in enumerate(computation.instructions[start:])
        for value in instruction.operands
    }
    return readers | dict.fromkeys(computation.results, len(computation.instructions))


def _is_remade(instruction: Instruction) -> bool:
    """Whether an instruction costs less to repeat than its result costs to hand over."""
    return isinstance(instruction.op, (BroadcastInDim, Constant, Iota, Reshape))


@dataclass
class _Draft:
    """A window as a computation whose results are not chosen yet."""

    window: range
    instructions: tuple[Instruction, ...]
    producers: dict[Value, Instruction]
    parameters: list[Value] = field(default_factory=list[Value])
    operands: list[Value] = field(default_factory=list[Value])
    body: list[Instruction] = field(default_factory=list[Instruction])
    env: dict[Value, Value] = field(default_factory=dict[Value, Value])
    values: list[Value] = field(default_factory=list[Value])

    def hand_in(self, value: Value) -> Value:
        """Add a parameter for a value from outside."""
        self.operands.append(value)
        self.parameters.append(Value(f"%arg{len(self.parameters)}", value.type))
        self.env[value] = self.parameters[-1]
        return self.parameters[-1]

    def copy(self, instruction: Instruction, operands: Sequence[Value]) -> None:
        """Add a copy of an instruction that reads ``operands``."""
        results = tuple(Value(f"%{len(self.env)}_{n}", v.type) for n, v in enumerate(instruction.results))
        self.body.append(dataclasses.replace(instruction, operands=tuple(operands), results=results))
        self.env.update(zip(instruction.results, results, strict=True))

    def computation(self, results: Sequence[Value]) -> Computation:
        """Return it with the given values as results."""
        made = tuple(self.env[value] for value in results)
        return Computation("layer", tuple(self.parameters), tuple(self.body), made)

    def finish(self, wanted: Sequence[int]) -> ExtractedRun:
        """Return the run with the values at these positions handed out."""
        results: dict[Value, None] = {}
        remade: dict[Instruction, None] = {}
        for position in wanted:
            self._hand_out(self.values[position], results, remade)
        body = self.computation(tuple(results))
        return ExtractedRun(
            self.window, self.instructions, tuple(self.operands), tuple(results), tuple(remade), body
        )

    def _hand_out(self, value: Value, results: dict[Value, None], remade: dict[Instruction, None]) -> None:
        producer = self.producers.get(value)
        if producer is None:  # from outside: it is there already
            return
        if not _is_remade(producer):
            results.setdefault(value)
            return
        for operand in producer.operands:
            self._hand_out(operand, results, remade)
        remade.setdefault(producer)


class _Maker:
    """Drafts of windows of one computation."""

    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        self.producers = computation.producers

    def draft(self, window: range) -> _Draft:
        """Return the window's instructions as a computation."""
        instructions = self.computation.instructions[window.start : window.stop]
        draft = _Draft(window, instructions, {value: i for i in instructions for value in i.results})
        for instruction in instructions:
            draft.copy(instruction, [self._outside(value, draft) for value in instruction.operands])
            draft.values.extend(instruction.results)
        return draft

    def _outside(self, value: Value, draft: _Draft) -> Value:
        """Return what stands for a value in the draft; one from outside is made again or handed in."""
        if value not in draft.env:
            producer = self.producers.get(value)
            if producer is None or not _is_remade(producer):
                return draft.hand_in(value)
            draft.copy(producer, [self._outside(operand, draft) for operand in producer.operands])
        return draft.env[value]
