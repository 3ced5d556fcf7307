"""Named errors of the HLO side.

Each says what happened, where (the user's source line when one is known), what was expected and got, and what
to try.
"""

from __future__ import annotations


class HloError(Exception):
    """Base of the errors that this package and the frontend raise for what a caller can cause."""


class UnsupportedType(HloError):
    """A type that the IR cannot hold: an unknown element type, a dynamic dimension, a token, a tuple."""


class UnsupportedOp(HloError):
    """An operation outside the supported set.

    Attributes:
      op_name: full name of the operation, such as ``stablehlo.convolution``.
      where: the user's ``file:line``, or ``unknown``.
    """

    def __init__(self, op_name: str, where: str, hint: str) -> None:
        """Say which operation, where, and what to use instead."""
        super().__init__(f"{op_name} is not supported.\n  from: {where}\n  try: {hint}")
        self.op_name = op_name
        self.where = where


class MalformedStableHLO(HloError):
    """Text or bytes that jaxlib's MLIR cannot read as a StableHLO module."""


class ConstraintViolation(HloError):
    """An operation whose operands or attributes break a constraint of the StableHLO specification.

    Attributes:
      op_name: full name of the operation.
      tag: the constraint's tag in the specification, such as ``C2``.
      message: what was expected and got.
      where: the user's ``file:line``, empty when the operation has none yet.
    """

    def __init__(self, op_name: str, tag: str, message: str, where: str = "") -> None:
        """Say which operation breaks which constraint, how, and where."""
        source = f"\n  from: {where}" if where else ""
        super().__init__(f"{op_name} breaks {tag}: {message}{source}")
        self.op_name = op_name
        self.tag = tag
        self.message = message
        self.where = where

    def at(self, where: str) -> ConstraintViolation:
        """Return this error with the user's source line, keeping one that is already there."""
        return self if self.where else ConstraintViolation(self.op_name, self.tag, self.message, where)


class MalformedForm(HloError, ValueError):
    """A form of a codelet that is none, or does not fit the arrays that it is given."""

    def __init__(self, form: str, expected: str, got: str = "") -> None:
        """Say which form, what was expected in it, and what stood there."""
        found = f"\n  got: {got}" if got else ""
        super().__init__(f"{form!r} is no form of a codelet.\n  expected: {expected}{found}")


class VerificationError(HloError):
    """A module that is not valid IR.

    Attributes:
      instruction: text of the offending instruction, or of the computation's header.
      where: the user's ``file:line``, or ``unknown``.
    """

    def __init__(self, message: str, instruction: str, where: str) -> None:
        """Say what is wrong, show the instruction and where it comes from."""
        super().__init__(f"{message}\n  in: {instruction}\n  from: {where}")
        self.instruction = instruction
        self.where = where


class ParseError(HloError):
    """Text that is not a module in this package's textual form.

    Attributes:
      line: 1-based line of the offending character.
      column: 1-based column of the offending character.
    """

    def __init__(self, line: int, column: int, expected: str, got: str) -> None:
        """Say where the text goes wrong and how."""
        super().__init__(f"line {line}, column {column}: expected {expected}, got {got}")
        self.line = line
        self.column = column
        self.expected = expected
        self.got = got


class EvaluationError(HloError):
    """Arrays that do not match the parameters of the computation they are handed to."""
