"""Named errors of the user-facing half; each is a ``tiles.errors.IpuError`` and prints in the same form."""

from __future__ import annotations

import pathlib

from tiles.errors import (
    InvalidArguments,
    InvalidExecutable,
    InvalidSystem,
    InvalidTarget,
    IpuError,
    OutOfTileMemory,
    UnknownTarget,
    Unsupported,
    UnsupportedDtype,
)

__all__ = [
    "HostEngineInsideJit",
    "InternalError",
    "InvalidArguments",
    "InvalidCodelet",
    "InvalidExecutable",
    "InvalidOption",
    "InvalidSystem",
    "InvalidTarget",
    "IpuError",
    "OutOfTileMemory",
    "Undivided",
    "UnknownStage",
    "UnknownTarget",
    "Unsupported",
    "UnsupportedDtype",
    "UnsupportedPrimitive",
    "WrongArguments",
]


class InvalidOption(IpuError):
    """An option of ``jit``, ``compile`` or ``compile_stablehlo`` has a value outside the legal ones."""


class Undivided(InvalidOption, ValueError):
    """A sharding's parts do not divide a dimension of an argument; a ``ValueError``, as JAX's own is."""


class InvalidCodelet(InvalidArguments):
    """A codelet whose form, choices or arguments do not fit together."""


class UnknownStage(InvalidOption):
    """``as_text`` was asked for a stage that does not exist, or that this object does not hold."""


class WrongArguments(InvalidArguments):
    """A compiled program was called with another tree, shape or element type than it was compiled for."""


class UnsupportedPrimitive(Unsupported):
    """A JAX operation that has no StableHLO form for an IPU: a host callback, a print that is not data, a LAPACK call."""


class InternalError(IpuError):
    """A program that ipuxla failed to compile by a fault of its own: no caller can cause or mend it.

    Attributes:
      folder: of the files that reproduce it (module, target, options, traceback); None where none could be written.
    """

    folder: pathlib.Path | None = None


class HostEngineInsideJit(Unsupported):
    """A program whose engine steps on the host was met while tracing an outer ``jax.jit``, scan or loop."""
