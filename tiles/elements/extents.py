"""Closed forms in a cell's extents: what a loop count is before the extents are known.

A form is built with ordinary operators and evaluated for many candidates at once with numpy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Env = Mapping[str, Any]
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": vars(operator)["floordiv"],  # whose operands typeshed leaves untyped
    "%": operator.mod,
    ">": operator.gt,
    "==": operator.eq,
}


@dataclass(frozen=True)
class Extent:
    """A closed form: a number, a symbol ("n", "rows", "worker"), or an operation on two forms."""

    kind: str
    args: tuple[Any, ...]

    def evaluate(self, env: Env) -> Any:
        """Return its value where symbols have the values, numbers or arrays, of ``env``."""
        if self.kind == "const":
            return self.args[0]
        if self.kind == "symbol":
            return env[self.args[0]]
        left, right = (arg.evaluate(env) for arg in self.args)
        value = _BINARY[self.kind](left, right)
        return value * 1 if self.kind in (">", "==") else value

    def __add__(self, other: Extent | int) -> Extent:
        return _binary("+", self, other)

    def __sub__(self, other: Extent | int) -> Extent:
        return _binary("-", self, other)

    def __mul__(self, other: Extent | int) -> Extent:
        return _binary("*", self, other)

    def __floordiv__(self, other: Extent | int) -> Extent:
        return _binary("//", self, other)

    def __mod__(self, other: Extent | int) -> Extent:
        return _binary("%", self, other)

    def __str__(self) -> str:
        if self.kind in ("const", "symbol"):
            return str(self.args[0])
        left, right = map(str, self.args)
        return f"({left} {self.kind} {right})"


Step = tuple[str, tuple[Any, ...]]
"""A form whose operands are the places of other forms: its kind, and a value, a symbol's name, or two places."""


def in_steps(forms: Iterable[Extent]) -> tuple[tuple[Step, ...], dict[Extent, int]]:
    """Return the distinct forms that some forms are made of, each behind its operands, and their places."""
    steps: list[Step] = []
    places: dict[Extent, int] = {}

    def visit(form: Extent) -> int:
        if form not in places:
            is_leaf = form.kind in ("const", "symbol")
            args = form.args if is_leaf else tuple(visit(arg) for arg in form.args)
            places[form] = len(steps)
            steps.append((form.kind, args))
        return places[form]

    for form in forms:
        visit(form)
    return tuple(steps), places


def evaluated(kind: str, args: tuple[Any, ...], values: Sequence[Any], env: Env) -> Any:
    """Return the value of a step where those before it have ``values``; see ``Extent.evaluate``."""
    if kind == "const":
        return args[0]
    if kind == "symbol":
        return env[args[0]]
    value = _BINARY[kind](values[args[0]], values[args[1]])
    return value * 1 if kind in (">", "==") else value


def const(value: int) -> Extent:
    """Return a number as a form."""
    return Extent("const", (value,))


def symbol(name: str) -> Extent:
    """Return the extent, or the worker's number, of a name."""
    return Extent("symbol", (name,))


def greater(a: Extent | int, b: Extent | int) -> Extent:
    """Return 1 where ``a > b``, else 0."""
    return _binary(">", a, b)


def equal(a: Extent | int, b: Extent | int) -> Extent:
    """Return 1 where the forms are equal, else 0."""
    return _binary("==", a, b)


def _binary(kind: str, a: Extent | int, b: Extent | int) -> Extent:
    left, right = (x if isinstance(x, Extent) else const(x) for x in (a, b))
    if left.kind == right.kind == "const":
        return const(int(_BINARY[kind](left.args[0], right.args[0])))
    if (kind in ("*", "//") and right == const(1)) or (kind in ("+", "-") and right == const(0)):
        return left
    return Extent(kind, (left, right))
