"""Expressions written as Python: ``arg(0) * arg(1) + 1.0`` becomes the rows of one fused codelet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

import numpy as np

from tiles.errors import InvalidGraph
from tiles.poplibs.popops.expression import FUNCTIONS, Attrs, Body, Row, body_dtypes

Operand: TypeAlias = Union["Expr", bool, int, float, np.generic]
"""What Python's operators take: a node, or a number, which takes the dtype of the other operand."""


@dataclass(frozen=True, eq=False)
class Expr:
    """A node of an expression tree.

    Python's arithmetic, bitwise and ordering operators build further nodes; numbers take the dtype of the
    other operand.

    Args:
      function: name of the function, or "" for an operand.
      arguments: nodes, or numbers.
      attrs: the function's attributes.
      index: number of the operand.
    """

    function: str
    arguments: tuple[Operand, ...] = ()
    attrs: Attrs = ()
    index: int = 0

    def __add__(self, other: Operand) -> Expr:
        """Return the sum."""
        return call("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        """Return the sum."""
        return call("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        """Return the difference."""
        return call("subtract", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        """Return the difference."""
        return call("subtract", other, self)

    def __mul__(self, other: Operand) -> Expr:
        """Return the product."""
        return call("multiply", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        """Return the product."""
        return call("multiply", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        """Return the quotient."""
        return call("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        """Return the quotient."""
        return call("divide", other, self)

    def __pow__(self, other: Operand) -> Expr:
        """Return the power."""
        return call("power", self, other)

    def __and__(self, other: Operand) -> Expr:
        """Return the bitwise or logical and."""
        return call("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        """Return the bitwise or logical or."""
        return call("or", self, other)

    def __xor__(self, other: Operand) -> Expr:
        """Return the bitwise or logical exclusive or."""
        return call("xor", self, other)

    def __neg__(self) -> Expr:
        """Return the negation."""
        return call("negate", self)

    def __invert__(self) -> Expr:
        """Return the bitwise or logical complement."""
        return call("not", self)

    def __abs__(self) -> Expr:
        """Return the magnitude."""
        return call("abs", self)

    def __lt__(self, other: Operand) -> Expr:
        """Return the comparison less than."""
        return compare("LT", self, other)

    def __le__(self, other: Operand) -> Expr:
        """Return the comparison less or equal."""
        return compare("LE", self, other)

    def __gt__(self, other: Operand) -> Expr:
        """Return the comparison greater than."""
        return compare("GT", self, other)

    def __ge__(self, other: Operand) -> Expr:
        """Return the comparison greater or equal."""
        return compare("GE", self, other)


def arg(index: int) -> Expr:
    """Return operand ``index`` of the expression."""
    return Expr("", index=index)


def call(function: str, *arguments: Operand, **attrs: Any) -> Expr:
    """Return the node of any function of the table, e.g. ``call("exponential", x)``.

    Raises:
      InvalidGraph: no such function, or another number of operands.
    """
    known = FUNCTIONS.get(function)
    if known is None:
        raise InvalidGraph(f"no elementwise function {function!r}", expected=", ".join(sorted(FUNCTIONS)))
    if len(arguments) != known.arity:
        raise InvalidGraph(f"{function} takes {known.arity} operands, got {len(arguments)}")
    return Expr(function, arguments, tuple(attrs.items()))


def compare(direction: str, lhs: Operand, rhs: Operand) -> Expr:
    """Return a comparison; ``direction`` is EQ, NE, LT, LE, GT or GE."""
    return call("compare", lhs, rhs, direction=direction)


def select(predicate: Operand, on_true: Operand, on_false: Operand) -> Expr:
    """Return ``on_true`` where the predicate holds, else ``on_false``."""
    return call("select", predicate, on_true, on_false)


def cast(x: Any, dtype: str) -> Expr:
    """Return ``x`` converted to ``dtype``."""
    return call("convert", x, dtype=dtype)


def constant_row(value: Any, dtype: str) -> Row:
    """Return the row of a number as plain data; infinities and NaN are spelled out.

    Raises:
      InvalidGraph: no number, or one that integers do not hold.
    """
    try:
        if dtype.startswith(("float", "bfloat")):
            number = float(value)
        elif dtype == "bool":
            number = bool(value)
        else:
            number = int(value)
            if number != value:
                raise ValueError(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidGraph(
            f"an operand that is neither a tensor nor a number of {dtype}",
            expected=f"a tensor, or a number that {dtype} holds",
            got=repr(value)[:80],
        ) from None
    if isinstance(number, float) and not math.isfinite(number):
        value = str(number)
    else:
        value = number
    return ("constant", (), (("value", value), ("dtype", dtype)))


def rows_of(expressions: Sequence[Expr], operand_dtypes: tuple[str, ...]) -> tuple[Body, tuple[int, ...]]:
    """Return the rows of several expressions, common nodes once, and the index of each one's value.

    Raises:
      InvalidGraph: an operand that does not exist, or a function of numbers alone.
    """
    return _Rows(operand_dtypes).lowered(expressions)


class _Rows:
    """Rows as they are collected."""

    def __init__(self, operand_dtypes: tuple[str, ...]) -> None:
        self.operand_dtypes = operand_dtypes
        self.rows: list[Row] = []
        self.known: dict[Row, int] = {}

    def lowered(self, expressions: Sequence[Expr]) -> tuple[Body, tuple[int, ...]]:
        """Return all rows and the index of every expression."""
        outputs = tuple(self.index(e) for e in expressions)
        return tuple(self.rows), outputs

    def index(self, node: Expr) -> int:
        """Return the index of a node's value, adding its rows."""
        if not node.function:
            if not 0 <= node.index < len(self.operand_dtypes):
                raise InvalidGraph(f"the expression names operand {node.index} of {len(self.operand_dtypes)}")
            return node.index
        found = [self.index(a) if isinstance(a, Expr) else None for a in node.arguments]
        if any(i is None for i in found):
            dtype = self._dtype_of_numbers(node.function, found)
            pairs = zip(found, node.arguments, strict=True)
            found = [self.add(constant_row(a, dtype)) if i is None else i for i, a in pairs]
        return self.add((node.function, tuple(i for i in found if i is not None), node.attrs))

    def _dtype_of_numbers(self, function: str, found: Sequence[int | None]) -> str:
        """Return the dtype that numbers among a function's operands take."""
        dtypes = body_dtypes(tuple(self.rows), self.operand_dtypes)
        typed = [dtypes[i] for i in (found[1:] if function == "select" else found) if i is not None]
        if not typed:
            raise InvalidGraph(f"{function} of numbers alone has no dtype; cast one or compute it beforehand")
        return typed[0]

    def add(self, row: Row) -> int:
        """Return the index of a row, adding it unless it is there."""
        if row not in self.known:
            self.known[row] = len(self.operand_dtypes) + len(self.rows)
            self.rows.append(row)
        return self.known[row]
