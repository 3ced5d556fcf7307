"""What a step does with tile memory around its computation: lists of moves over all its operands, made once for a memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiles.engine.memory import TileMemory
from tiles.engine.operands import StoredOperand
from tiles.engine.views import are_equal, copy, merged


class Exchange:
    """What brings a step's operands to the tiles that read them: everything is read before anything is written.

    Args:
      memory: tile memory.
      operands: of all groups of the step.
    """

    def __init__(self, memory: TileMemory, operands: Sequence[StoredOperand]) -> None:
        """Make the moves."""
        memory.scratch.release()
        received = [operand for operand in operands if operand.is_received]
        direct = not any(a.lands_on(b) for a in received for b in received)
        arriving = [operand.arriving(memory, direct) for operand in received]
        self._first = merged(one for first, _, _ in arriving for one in first)
        self._calls = [call for _, calls, _ in arriving for call in calls]
        self._last = merged(one for _, _, last in arriving for one in last)

    def run(self) -> None:
        """Do the moves."""
        copy(self._first)
        for call in self._calls:
            call()
        copy(self._last)


class Collected:
    """The values of a step's operands, put together from the cells' slices.

    Args:
      memory: tile memory.
      groups: the operands of every group of the step.
    """

    def __init__(self, memory: TileMemory, groups: Sequence[Sequence[StoredOperand]]) -> None:
        """Make the moves."""
        memory.scratch.release()
        found = [[operand.collected(memory, memory.scratch) for operand in operands] for operands in groups]
        self._moves = merged(reading for group in found for reading, _, _ in group)
        self._calls = [call for group in found for _, calls, _ in group for call in calls]
        self._values = [[value for _, _, value in group] for group in found]

    def read(self) -> list[list[np.ndarray]]:
        """Return the values, in arrays that serve the next steps too."""
        copy(self._moves)
        for call in self._calls:
            call()
        return self._values


class Agreement:
    """Whether all copies of every element of a step's operands are the same words.

    Args:
      memory: tile memory.
      operands: of all groups of the step.
    """

    def __init__(self, memory: TileMemory, operands: Sequence[StoredOperand]) -> None:
        """Make the comparisons."""
        self._compared = [
            (operand.variable, operand.comparisons(memory)) for operand in operands if operand.is_repeated
        ]
        self._agree = [
            (operand.variable, operand.agreeing(memory)) for operand in operands if not operand.is_split_once
        ]

    def differing(self) -> list[str]:
        """Return the names of variables of which copies differ."""
        found = [name for name, comparisons in self._compared if not are_equal(comparisons)]
        return found + [name for name, agree in self._agree if not agree()]
