"""Attributes of MLIR operations as Python values."""

from __future__ import annotations

from ipuxla.frontend._jax_compat import mlir


def text(op: mlir.Operation, name: str) -> str:
    """Return a string attribute; empty when it is absent."""
    return op.attributes[name].value if name in op.attributes else ""


def integers(op: mlir.Operation, name: str) -> tuple[int, ...]:
    """Return an array of integers."""
    return tuple(op.attributes[name])


def integer(op: mlir.Operation, name: str) -> int:
    """Return an integer."""
    return op.attributes[name].value


def flag(op: mlir.Operation, name: str) -> bool:
    """Return a boolean; false when it is absent."""
    return name in op.attributes and bool(op.attributes[name].value)
