"""Where an operation comes from: a line of the user's program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """A source position. ``line`` and ``column`` count from 1; a column of 0 is unknown."""

    file: str
    line: int
    column: int = 0
    function: str = ""

    @property
    def is_known(self) -> bool:
        """Whether this names a file at all."""
        return bool(self.file)

    def __str__(self) -> str:
        """Return ``file:line``, or ``unknown``."""
        return f"{self.file}:{self.line}" if self.file else "unknown"


UNKNOWN = Location("", 0)
