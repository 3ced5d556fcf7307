"""Loops around what is being planned, and what is prepared before them.

An operand that no step of a loop writes is the same on every trip. Where an operation would have it in another order, or
on other tiles, it is copied there once, before the loop, and what that costs is shared by the trips: weights that were
computed before a recurrence, tables of which a scan reads a row per step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tiles.graph import Layout, Sequence, Tensor


@dataclass
class Loop:
    """A loop whose body is being planned.

    Attributes:
      trips: how often the body runs, at least; 1 where nobody knows.
      before: the planned steps that stand before the loop, so far.
      written: the recorded tensors that steps of the body write.
      prepared: copies made before the loop, by the tensor's name and where it shall lie.
    """

    trips: int
    before: Sequence
    written: set[str]
    prepared: dict[tuple[str, Layout], Tensor] = field(default_factory=dict[tuple[str, Layout], Tensor])


def outermost(loops: list[Loop], name: str) -> tuple[Loop | None, int]:
    """Return the outermost loop of those around a step on each trip of which a tensor is the same, and trips in all."""
    found, trips = None, 1
    for loop in reversed(loops):
        if name in loop.written:
            break
        found, trips = loop, trips * max(1, loop.trips)
    return found, trips
