"""What the frontend asks of MLIR's operations, values, types and attributes.

jaxlib's own stubs leave values, blocks and what an attribute holds unknown. Each is said here once, as narrowly as it is
used, so that readers of operations are checked. Objects are jaxlib's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, overload

from ipuxla.frontend._jax_compat.reading import mlir_ir

_T = TypeVar("_T")

Module: TypeAlias = mlir_ir.Module
"""A module; its ``operation`` holds functions."""

Location: TypeAlias = mlir_ir.Location
"""Where an operation is from; its subclasses say which kind of place."""


class Context(Protocol):
    """What owns types and attributes of modules."""


class Type(Protocol):
    """A type; printed, it reads ``tensor<4xf32>``."""

    def __hash__(self) -> int: ...


class Attribute(Protocol):
    """An attribute of an operation: a number, a text, a type or an array of such.

    Some kinds have no ``value``: arrays are iterated, enumerations printed, dense elements read as arrays.
    """

    @property
    def value(self) -> Any: ...
    @property
    def type(self) -> Type: ...
    @property
    def is_splat(self) -> bool: ...
    def __hash__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, key: Any, /) -> Attribute: ...
    def __contains__(self, key: str, /) -> bool: ...


class Attributes(Protocol):
    """The attributes of an operation by name."""

    def __getitem__(self, name: str, /) -> Attribute: ...
    def __contains__(self, name: str, /) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...
    @overload
    def get(self, name: str, /) -> Attribute | None: ...
    @overload
    def get(self, name: str, default: _T, /) -> Attribute | _T: ...


class Value(Protocol):
    """A result of an operation, or an argument of a block; ``owner`` is the operation or the block."""

    @property
    def type(self) -> Type: ...
    @property
    def owner(self) -> Any: ...
    def __hash__(self) -> int: ...


class Block(Protocol):
    """Operations in order, and the arguments that they read."""

    @property
    def arguments(self) -> Sequence[Value]: ...
    @property
    def operations(self) -> Iterable[OpView]: ...


class Blocks(Protocol):
    """The blocks of a region."""

    def __getitem__(self, number: int, /) -> Block: ...
    def __iter__(self) -> Iterator[Block]: ...


class Region(Protocol):
    """What an operation holds: blocks."""

    @property
    def blocks(self) -> Blocks: ...


class Operation(Protocol):
    """An operation, of a function or a module as well."""

    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> Attributes: ...
    @property
    def operands(self) -> Sequence[Value]: ...
    @property
    def results(self) -> Sequence[Value]: ...
    @property
    def regions(self) -> Sequence[Region]: ...
    @property
    def location(self) -> Location: ...
    @property
    def context(self) -> Context: ...


class OpView(Protocol):
    """What a block lists: an operation as its dialect's class."""

    @property
    def operation(self) -> Operation: ...


def value_of(attribute: object) -> Any:
    """Return what an attribute holds, whose kind jaxlib's stubs do not say."""
    held: Any = attribute
    return held.value


def entries(attribute: mlir_ir.DictAttr) -> Iterator[mlir_ir.NamedAttribute]:
    """Return the entries of a dictionary, which jaxlib's stubs do not let one iterate."""
    held: Any = attribute
    return iter(held)


def parts(location: mlir_ir.FusedLoc) -> list[Location]:
    """Return the locations that one is made of, which jaxlib's stubs leave unknown."""
    held: Any = location
    return list(held.locations)


Source: TypeAlias = "str | bytes | Operation | OpView | Module"
"""A StableHLO module: text, bytecode or a portable artifact, or as MLIR has it."""
