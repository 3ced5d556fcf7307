"""Every named error a user may meet: those of this package, of ``tiles`` (``IpuError``) and of ``hlo_passes`` (``HloError``)."""

from __future__ import annotations

from hlo_passes.errors import (
    ConstraintViolation,
    HloError,
    MalformedStableHLO,
    UnsupportedOp,
    UnsupportedType,
)
from tiles.errors import (
    InvalidArguments,
    InvalidExecutable,
    InvalidTarget,
    IpuError,
    OutOfTileMemory,
    UnknownTarget,
    Unsupported,
    UnsupportedDtype,
)

__all__ = [
    "ConstraintViolation",
    "HloError",
    "HostEngineInsideJit",
    "InvalidArguments",
    "InvalidExecutable",
    "InvalidOption",
    "InvalidTarget",
    "IpuError",
    "MalformedStableHLO",
    "OutOfTileMemory",
    "UnknownStage",
    "UnknownTarget",
    "Unsupported",
    "UnsupportedDtype",
    "UnsupportedOp",
    "UnsupportedPrimitive",
    "UnsupportedType",
    "WrongArguments",
]


class InvalidOption(IpuError):
    """An option of ``jit``, ``compile`` or ``compile_stablehlo`` has a value outside the legal ones."""


class UnknownStage(InvalidOption):
    """``as_text`` was asked for a stage that does not exist, or that this object does not hold."""


class WrongArguments(InvalidArguments):
    """A compiled program was called with another tree, shape or element type than it was compiled for."""


class UnsupportedPrimitive(Unsupported):
    """A JAX operation that has no StableHLO form for an IPU: a host callback, a print, a LAPACK call."""


class HostEngineInsideJit(Unsupported):
    """A program whose engine steps on the host was met while tracing an outer ``jax.jit``, scan or loop."""
