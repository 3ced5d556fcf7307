"""Proof of data flow: whatever a step, the control or the caller reads was put there before and is still there.

The program tree is walked in execution order with, per storage, the variable it holds. Memory that is not live
while a step runs is taken to be lost, so lifetimes are proved along the paths that really occur: through loops,
branches and functions called again, whatever their step numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tiles.compiler.control import Call, Composite, Part, Repeat, Sequence, Switch, While
from tiles.compiler.executable import Executable
from tiles.compiler.steps import StepRecord, UndefStep
from tiles.compiler.wellformed import refuse, root_of, where
from tiles.compiler.wellformed_steps import read_by, written_by
from tiles.graph import CONSTANT, INPUT

NOTHING = -1
"""Held by a storage that was never written, was lost, or holds different variables on different paths."""
NEVER, DIFFERS = -2, -3


@dataclass
class State:
    """What every storage holds.

    Args:
      holder: number of the variable last written, or ``NOTHING``; int64 ``[storages]``.
      since: step that wrote or lost it, -1 for before the program, ``NEVER``, or ``DIFFERS``; int64 ``[storages]``.
    """

    holder: np.ndarray
    since: np.ndarray

    def copy(self) -> State:
        """Return a copy that can change on its own."""
        return State(self.holder.copy(), self.since.copy())

    def same(self, other: State) -> bool:
        """Return whether both hold the same."""
        return bool(np.array_equal(self.holder, other.holder))

    def joined(self, other: State) -> State:
        """Return what holds whichever of the two came before."""
        agree = self.holder == other.holder
        return State(np.where(agree, self.holder, NOTHING), np.where(agree, self.since, DIFFERS))


@dataclass
class Flow:
    """What the walk counted: visits of steps, and reads and writes proved on them."""

    visits: int = 0
    reads: int = 0
    writes: int = 0


def prove_flow(executable: Executable) -> Flow:
    """Walk the program; raise InvalidExecutable at the first read of something that is not there.

    Loops are walked until nothing changes, which takes two rounds.
    """
    return _Walk(executable).prove()


class _Walk:
    """One walk over one executable."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.flow = Flow()
        self.storages = list(dict.fromkeys(v.storage for v in executable.variables.values()))
        number = {name: i for i, name in enumerate(self.storages)}
        self.names = list(executable.variables)
        index = {name: i for i, name in enumerate(self.names)}
        self.storage = {name: number[v.storage] for name, v in executable.variables.items()}
        self.root = {name: index[root_of(executable, name)] for name in self.names}
        buffers = [executable.buffers[name] for name in self.storages]
        self.start = np.array([b.start for b in buffers], np.int64)
        self.end = np.array([b.end for b in buffers], np.int64)

    def prove(self) -> Flow:
        """Load, walk, unload."""
        executable = self.executable
        state = State(np.full(len(self.storages), NOTHING), np.full(len(self.storages), NEVER))
        for v in executable.variables.values():
            if v.kind in (INPUT, CONSTANT):
                self._write(state, v.name, -1, f"{v.kind} {v.name} is loaded before the program")
        state = self.walk(executable.program, state)
        last = len(executable.steps)
        self._lose(state, last)
        donated = {executable.inputs[i] for i in executable.donated}
        for name in executable.outputs:
            self._read(state, name, "the caller")
        for name in executable.inputs:
            if name not in donated:
                self._read(state, name, "the caller, who did not donate it,")
        return self.flow

    def walk(self, part: Part, state: State) -> State:
        """Return the state after a part of the control tree; ``state`` may be changed."""
        match part:
            case int():
                self._step(part, state)
                return state
            case Repeat():
                return self._repeat(part.count, part.body, state)
            case While():
                return self._while(part.condition, part.predicate, part.body, state)
            case Switch():
                return self._switch(part, state)
            case Composite():
                return self._composite(part.number, part.body, state)
            case Sequence() | Call():
                for inner in part.parts:
                    state = self.walk(inner, state)
                return state

    def _switch(self, switch: Switch, state: State) -> State:
        self._read(state, switch.index, "the choice of a branch")
        after = [self.walk(branch, state.copy()) for branch in switch.branches]
        result = after[0]
        for other in after[1:]:
            result = result.joined(other)
        return result

    def _repeat(self, count: int, body: Part, state: State) -> State:
        done = 0
        while done < count:
            before = state.copy()
            state = self.walk(body, state)
            done += 1
            if state.same(before):
                break
        return state

    def _composite(self, number: int, body: Part, state: State) -> State:
        """Walk the body between what is known in one piece reads and what others may read of it."""
        whole = self.executable.composites[number]
        for operand in whole.operands:
            self._read(state, operand.variable, f"composite {whole.name}")
        state = self.walk(body, state)
        for name in whole.results:
            self._read(state, name, f"whoever follows composite {whole.name}")
        return state

    def _while(self, condition: Part, predicate: str, body: Part, state: State) -> State:
        state = self.walk(condition, state)
        self._read(state, predicate, "the condition of a loop")
        leaves = state.copy()
        while True:
            before = state.copy()
            state = self.walk(condition, self.walk(body, state))
            self._read(state, predicate, "the condition of a loop")
            leaves = leaves.joined(state)
            if state.same(before):
                return leaves

    def _step(self, number: int, state: State) -> None:
        step = self.executable.steps[number]
        self.flow.visits += 1
        self._lose(state, number)
        for name in read_by(step):
            self._read(state, name, where(number, step))
        for name in written_by(step):
            self._write(state, name, number, f"{where(number, step)} writes {name}")
        if (
            isinstance(step, UndefStep)
            and state.holder[self.storage[step.variable]] == self.root[step.variable]
        ):
            state.holder[self.storage[step.variable]] = NOTHING
            state.since[self.storage[step.variable]] = number

    def _lose(self, state: State, number: int) -> None:
        """Give up what is stored in memory that is not live while step ``number`` runs."""
        lost = ((self.start > number) | (self.end < number)) & (state.holder != NOTHING)
        state.holder[lost] = NOTHING
        state.since[lost] = number

    def _write(self, state: State, name: str, number: int, what: str) -> None:
        s = self.storage[name]
        if not self.start[s] <= number <= self.end[s]:
            raise refuse(
                f"{what}, but its buffer {self.storages[s]} is live only in steps {self.start[s]} to {self.end[s]}",
                self.executable.variables[name].location,
            )
        self.flow.writes += 1
        state.holder[s] = self.root[name]
        state.since[s] = number

    def _read(self, state: State, name: str, reader: str) -> None:
        s = self.storage[name]
        variable = self.executable.variables[name]
        if state.holder[s] == self.root[name] or not math.prod(variable.shape):
            self.flow.reads += 1
            return
        raise refuse(f"{reader} reads {name}, but {self._story(s, state)}", variable.location)

    def _story(self, s: int, state: State) -> str:
        """Say what became of a storage."""
        buffer, since = self.storages[s], int(state.since[s])
        steps: tuple[StepRecord, ...] = self.executable.steps
        if since == NEVER:
            return f"nothing was written to its buffer {buffer} before"
        if since == DIFFERS:
            return f"its buffer {buffer} holds different variables on different paths"
        at = (
            where(since, steps[since])
            if 0 <= since < len(steps)
            else "the start"
            if since < 0
            else "the end of the program"
        )
        if state.holder[s] == NOTHING and 0 <= since < len(steps) and isinstance(steps[since], UndefStep):
            return f"its value is undefined since {at}"
        if state.holder[s] == NOTHING:
            return (
                f"its buffer {buffer}, live in steps {self.start[s]} to {self.end[s]}, was given up at {at}"
            )
        return f"its buffer {buffer} holds {self.names[int(state.holder[s])]} since {at}"
