"""A run's record: how often every step, loop and branch ran. Time and everything else follow from it and the static costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tiles._jax_compat import Datum
from tiles.graph import read_message


class Print(NamedTuple):
    """A value that a program printed.

    Args:
      title: of the step.
      value: the tensor's value; in the ring, words. While a run is traced, the value that it will have.
      message: the text of the ``tiles.graph.Message`` that it is a part of, "" for one that stands alone.
      part: which of the message's tensors it is.
    """

    title: str
    value: Datum
    message: str = ""
    part: int = 0

    def __str__(self) -> str:
        """Return title and value as text."""
        return f"{self.title}: {np.array2string(self.value, separator=', ')}"


def lines_of(prints: Sequence[Print], arithmetic: str, first: int = 0) -> list[tuple[str, bool]]:
    """Return the lines that prints read as, each with whether it is a message.

    Args:
      prints: of one run, in order.
      arithmetic: "float" or "ring", where messages show words.
      first: where to begin; a message that began before is shown where it ends.
    """
    lines: list[tuple[str, bool]] = []
    for at in range(first, len(prints)):
        last = prints[at]
        if not last.message:
            lines.append((str(last), False))
            continue
        message = read_message(last.message)
        if last.part == message.count - 1:
            values = [part.value for part in prints[at - last.part : at + 1]]
            lines.append((message.words(values) if arithmetic == "ring" else message.format(values), True))
    return lines


@dataclass(frozen=True)
class Trace:
    """What one run did.

    Args:
      counts: how often each step ran, by step number.
      engine: the engine that ran it.
      arithmetic: "float" or "ring".
      trips: by the path in the control tree of every ``while`` how often its body ran in all, of every ``switch``
        a tuple: how often each branch did. Empty where nobody counted.
      streams: by name of every device-to-host stream the items that the host received, ``[items, *shape]``.
      prints: what steps printed, in the order they did.
    """

    counts: tuple[int, ...]
    engine: str
    arithmetic: str
    trips: Mapping[tuple[int, ...], Datum] = field(default_factory=dict[tuple[int, ...], Datum])
    streams: Mapping[str, Datum] = field(default_factory=dict[str, Datum], compare=False, repr=False)
    prints: tuple[Print, ...] = field(default=(), compare=False, repr=False)

    @property
    def lines(self) -> tuple[str, ...]:
        """What was printed, as text: every message one line (or several, as it says), every other tensor one."""
        return tuple(line for line, _ in lines_of(self.prints, self.arithmetic))
