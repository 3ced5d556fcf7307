"""A run's record: how often every step, loop and branch ran. Time and everything else follow from it and the static costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class Print(NamedTuple):
    """A value that a program printed.

    Args:
      title: of the step.
      value: the tensor's value; in the ring, words.
    """

    title: str
    value: np.ndarray

    def __str__(self) -> str:
        """Return title and value as text."""
        return f"{self.title}: {np.array2string(self.value, separator=', ')}"


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
    trips: Mapping[tuple[int, ...], Any] = field(default_factory=dict)
    streams: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    prints: tuple[Print, ...] = field(default=(), compare=False, repr=False)
