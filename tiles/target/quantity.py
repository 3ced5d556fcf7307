"""The typed fields of a target: unit, legal range and one check, written once beside each field's meaning."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any

from tiles.errors import InvalidTarget
from tiles.files import is_a, is_mapping
from tiles.target.basis import Basis


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where a field's value comes from."""

    basis: Basis
    source: str


@dataclasses.dataclass(frozen=True)
class Quantity:
    """What a field of a target may hold.

    Attributes:
      kind: the Python type of the value.
      unit: unit of the value, as data files must state it.
      low, high: inclusive legal range of a number.
      multiple_of: what a number must be a multiple of.
      optional: whether None ("unknown") is legal.
    """

    kind: type
    unit: str
    low: float = 0
    high: float = math.inf
    multiple_of: int = 1
    optional: bool = False

    @property
    def legal(self) -> str:
        """Return the legal values in words."""
        if self.kind is bool:
            words = "true or false"
        elif self.kind is str:
            words = "a text"
        elif self.kind is tuple:
            words = "a list of memory regions"
        else:
            noun = "an integer" if self.kind is int else "a number"
            upper = "up" if self.high == math.inf else f"to {_plain(self.high)}"
            words = f"{noun} of {self.unit} from {_plain(self.low)} {upper}"
            words += f", a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        return words + (", or null for unknown" if self.optional else "")

    def check(self, name: str, value: Any) -> Any:
        """Return ``value`` as this quantity's type.

        Raises:
          InvalidTarget: the value has the wrong type or lies outside the legal range.
        """
        if value is None and self.optional:
            return None
        converted = self._converted(value)
        if converted is None or (self.kind in (int, float) and not self._in_range(converted)):
            raise InvalidTarget(
                f"target field {name!r} cannot be {value!r} {self.unit}".rstrip(),
                location=name,
                expected=self.legal,
                got=f"{value!r} ({type(value).__name__})",
            )
        return converted

    def _in_range(self, number: float) -> bool:
        """Return whether a number is finite, within the legal range and a legal multiple."""
        is_multiple = self.multiple_of == 1 or number % self.multiple_of == 0
        return math.isfinite(number) and self.low <= number <= self.high and is_multiple

    def _converted(self, value: Any) -> Any:
        """Return ``value`` in this kind, or None where no exact conversion exists."""
        if self.kind in (int, float):
            if isinstance(value, bool) or not hasattr(value, "__float__"):
                return None
            if self.kind is float:
                return float(value)
            return int(value) if math.isfinite(value) and int(value) == value else None
        if self.kind is tuple:
            return MemoryRegion.sequence(value)
        return value if isinstance(value, self.kind) else None


@dataclasses.dataclass(frozen=True)
class MemoryRegion:
    """A contiguous range of a tile's memory.

    Attributes:
      base: address of the first byte.
      size_bytes: length in bytes.
      interleave: number of memory elements across which consecutive 64-bit words alternate (1: none).
      executable: whether code can run from it.
    """

    name: str
    base: int
    size_bytes: int
    interleave: int
    executable: bool

    @property
    def end(self) -> int:
        """Return the address after the last byte."""
        return self.base + self.size_bytes

    @staticmethod
    def sequence(value: Any) -> tuple[MemoryRegion, ...] | None:
        """Return regions from regions or their dictionaries; None where ``value`` is neither."""
        if isinstance(value, (str, Mapping)) or not hasattr(value, "__iter__"):
            return None
        regions: list[MemoryRegion] = []
        for item in value:
            if is_mapping(item):
                try:
                    item = MemoryRegion(**item)
                except TypeError:
                    return None
            if not isinstance(item, MemoryRegion) or not item.is_well_formed():
                return None
            regions.append(item)
        return tuple(regions)

    def is_well_formed(self) -> bool:
        """Return whether every attribute has its type and a possible value."""
        numbers = (self.base, self.size_bytes, self.interleave)
        return (
            is_a(self.name, str)
            and is_a(self.executable, bool)
            and all(is_a(n, int) and not is_a(n, bool) for n in numbers)
            and self.base >= 0
            and self.size_bytes >= 1
            and self.interleave >= 1
        )


def quantity(
    unit: str, *, low: float = 1, high: float = math.inf, multiple_of: int = 1, optional: bool = False
) -> Any:
    """Declare a dataclass field that holds a quantity; its kind is the field's annotation.

    Args:
      unit: unit of the value, also required in data files.
      low: least legal number.
      high: greatest legal number.
      multiple_of: what a number must be a multiple of.
      optional: whether None ("unknown") is legal.
    """
    legal = {"unit": unit, "low": low, "high": high, "multiple_of": multiple_of, "optional": optional}
    return dataclasses.field(metadata=legal)


def quantities(cls: type) -> dict[str, Quantity]:
    """Return the quantity of each field of a dataclass that was declared with ``quantity``, in order."""
    hints = typing.get_type_hints(cls)
    return {
        field.name: Quantity(kind=_kind(hints[field.name]), **field.metadata)
        for field in dataclasses.fields(cls)
        if "unit" in field.metadata
    }


def _kind(hint: Any) -> type:
    """Return the plain type of an annotation: ``int`` of ``int | None``, ``tuple`` of ``tuple[X, ...]``."""
    choices = [choice for choice in typing.get_args(hint) if isinstance(choice, type)]
    origin = typing.get_origin(hint)
    if origin is tuple:
        return tuple
    return next(choice for choice in choices if choice is not type(None)) if choices else hint


def _plain(number: float) -> str:
    """Return a number with thousands separated; what is no integer below 1e15 in general form."""
    return f"{int(number):,}" if number == int(number) and abs(number) < 1e15 else f"{number:g}"
