"""The errors of the tiles side: one small tree, one rendering.

Every error a caller can cause is an ``IpuError`` that says what happened, where, what was expected and got,
and what to try. Subclasses only name the kind of failure; layers that need to carry data (a report, a tile)
subclass further.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiles.cached import cached_property


class IpuError(Exception):
    """Something a caller can cause and put right; ``ipuxla.errors.InternalError`` alone is not.

    Args:
      what: one line saying what happened, with units.
      location: where it happened: the user's source line ("model.py:42"), a step, a field or a file.
      expected: what would have been legal.
      got: what was found instead.
      try_: what the caller can do about it.
      notes: further lines of detail, shown between the first line and the location.
    """

    def __init__(
        self,
        what: str,
        *,
        location: str | None = None,
        expected: object = None,
        got: object = None,
        try_: str | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """Make the error from the parts that are known; see the class."""
        super().__init__(what)
        self.what = what
        self.location = location
        self.expected = expected
        self.got = got
        self.try_ = try_
        self.notes = tuple(notes)

    def at(self, location: str | None) -> IpuError:
        """Set the location unless a closer one is known already; return the error."""
        if self.location is None:
            self.location = location
        return self

    def __str__(self) -> str:
        """Render the parts that are known, one per line."""
        lines = [self.what, *(f"  {note}" for note in self.notes)]
        labelled = (
            ("expected", self.expected),
            ("got", self.got),
            ("from", self.location),
            ("try", self.try_),
        )
        lines += [f"  {label}: {value}" for label, value in labelled if value is not None]
        return "\n".join(lines)

    def __reduce__(self):
        """Keep every part when an error crosses a process boundary."""
        return _rebuild, (type(self), self.what), self.__dict__


def _rebuild(kind: type[IpuError], what: str) -> IpuError:
    """Make an error without its own constructor, whose signature a subclass may have changed."""
    error = kind.__new__(kind, what)
    return error


class InvalidTarget(IpuError):
    """A target field or a target's data file holds something impossible."""


class UnknownTarget(IpuError):
    """No target has the given name."""


class InvalidSystem(IpuError):
    """A system of several IPUs, or its data file, holds something impossible, or its links lead nowhere."""


class InvalidPlan(IpuError):
    """A plan does not split its domain legally, or does not belong to its op or target."""


class InvalidGraph(IpuError):
    """A graph, tensor, mapping, compute set or program is malformed."""


class OutOfTileMemory(IpuError):
    """A program whose buffers do not fit into a tile's memory.

    Attributes:
      make_executable: makes ``executable``; attached by whoever refuses a program before it is planned.
      make_profile: makes the whole report of an executable, attached by ``ipuxla``.
    """

    make_executable: Callable[[], Any] | None = None
    make_profile: Callable[[Any], Any] | None = None

    @cached_property
    def executable(self) -> Any:
        """The program, with addresses beyond the end of memory: everything a report needs."""
        return None if self.make_executable is None else self.make_executable()

    @cached_property
    def profile(self) -> Any:
        """The whole report (``profile.text()``, ``profile.to_json()``), made when it is asked for."""
        return None if self.make_profile is None else self.make_profile(self.executable)


class InvalidExecutable(IpuError):
    """An executable's data is damaged, of another version, or inconsistent with itself."""


class InvalidArguments(IpuError):
    """A call's arguments do not match what was compiled: number, structure, shape or dtype."""


class ProgramAborted(IpuError):
    """A program stopped its own run: by an ``ErrorProgram``, or an ``AbortOnCondition`` whose predicate was true.

    Attributes:
      value: of the tensor that the ``ErrorProgram`` names, else None.
      prints: what the program had printed before; see ``tiles.engine.Trace``.
    """

    value: Any = None
    prints: tuple[Any, ...] = ()


class Unsupported(IpuError):
    """A legal request that this system does not implement: an op, a dtype or an option."""


class UnsupportedDtype(Unsupported):
    """A dtype that the machine or this system does not handle here."""


class InvalidInstructionSet(IpuError):
    """A data file of instructions lacks a field, or a field holds something impossible."""


class NoTileCode(Unsupported):
    """A codelet has an operation, a dtype or an arrangement for which no tile code is known."""


class OutOfRegisters(IpuError):
    """Tile code needs more registers than a worker has, even with values spilled to memory."""


class TileFault(IpuError):
    """Tile code did what the machine answers with an exception: a misaligned access, or one outside its memory."""
