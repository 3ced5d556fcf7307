"""Values and types of MLIR tuples: nested lists, in which a token is an empty list."""

# pyright: standard
# (a list may be of anything to a type checker)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

from hlo_passes.ir import TensorType, Value

_T = TypeVar("_T")

Nested: TypeAlias = "_T | list[Nested[_T]]"
"""One of them, or lists of such."""
Operand: TypeAlias = "Value | list[Operand]"
"""What stands for an MLIR value."""
Types: TypeAlias = "TensorType | list[Types]"
"""What stands for an MLIR type."""


def flat(nested: Nested[_T]) -> list[_T]:
    """Return the members of nested lists in order."""
    return [leaf for part in nested for leaf in flat(part)] if isinstance(nested, list) else [nested]


def arranged(shape: Nested[object], values: Iterator[Value]) -> Operand:
    """Return the next values in the arrangement of ``shape``: one value, or lists for a tuple."""
    return [arranged(part, values) for part in shape] if isinstance(shape, list) else next(values)


def plain(operands: Sequence[Operand]) -> list[Value]:
    """Return the operands of an operation that takes arrays only.

    Raises:
      ValueError: one is a tuple or a token; MLIR's verifier sees to most operations, but not to custom calls.
    """
    values = [operand for operand in operands if isinstance(operand, Value)]
    if len(values) != len(operands):
        raise ValueError("an operand is a tuple or a token where only arrays are taken")
    return values
