"""A run's record: how often every step ran. Time and everything else follow from it and the static costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trace:
    """What one run did.

    Args:
      counts: how often each step ran, by step number.
      engine: the engine that ran it.
      arithmetic: "float" or "ring".
    """

    counts: tuple[int, ...]
    engine: str
    arithmetic: str
