"""A figure of a system: a value with its unit, basis and source, its range, and what other sources say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tiles.errors import InvalidSystem, InvalidTarget
from tiles.files import JsonObject, is_mapping, is_row
from tiles.target.basis import Basis
from tiles.target.quantity import Quantity

_REQUIRED = {"value", "unit", "basis", "source"}
_OPTIONAL = {"range", "alternatives"}


@dataclasses.dataclass(frozen=True)
class Alternative:
    """What another source says, or the same one elsewhere; not used."""

    value: float
    source: str


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number that a system rests on.

    Args:
      value: in ``unit``; None where no source states it and none is assumed.
      unit: its unit.
      basis: how well it is known.
      source: public document or code that states it, or the reasoning where it is assumed.
      range: least and most that is plausible, where the value is a choice between them.
      alternatives: figures that disagree.
    """

    value: float | None
    unit: str
    basis: Basis
    source: str
    range: tuple[float, float] | None = None
    alternatives: tuple[Alternative, ...] = ()

    @staticmethod
    def read(data: object, legal: Quantity, where: str) -> Figure:
        """Return the figure that JSON ``data`` describes.

        Raises:
          InvalidSystem: it lacks a key or has an unknown one, or its value, unit or basis is not legal.
        """
        if not is_mapping(data) or not _REQUIRED <= set(data) <= _REQUIRED | _OPTIONAL:
            got = sorted(data) if is_mapping(data) else repr(data)
            raise InvalidSystem(
                f"{where}: a figure is an object of value, unit, basis and source; range and alternatives",
                got=got,
            )
        if data["unit"] != legal.unit:
            raise InvalidSystem(f"{where} is in {data['unit']!r}, not in {legal.unit!r}")
        basis, source = read_provenance(data, where)
        return Figure(
            value=_checked(data["value"], legal, where),
            unit=legal.unit,
            basis=basis,
            source=source,
            range=_range(data.get("range"), legal, where),
            alternatives=tuple(_alternative(entry, where) for entry in _list(data, where)),
        )

    def to_data(self) -> JsonObject:
        """Return this figure as plain data, ready for JSON."""
        data: JsonObject = {
            "value": self.value, "unit": self.unit, "basis": str(self.basis), "source": self.source,
        }  # fmt: skip
        if self.range is not None:
            data["range"] = list(self.range)
        if self.alternatives:
            data["alternatives"] = [dataclasses.asdict(entry) for entry in self.alternatives]
        return data

    def carried_over(self, parent: str) -> Figure:
        """Return this figure as a system of other chips inherits it: ASSUMED, and saying so."""
        return dataclasses.replace(
            self, basis=Basis.ASSUMED, source=f"carried over from {parent}: {self.source}"
        )


def read_provenance(data: Mapping[str, Any], where: str) -> tuple[Basis, str]:
    """Return the basis and the source that data states.

    Raises:
      InvalidSystem: one of them is missing or not legal.
    """
    basis, source = data.get("basis"), data.get("source")
    if basis not in list(Basis):
        raise InvalidSystem(f"{where} has no legal basis", expected=", ".join(Basis), got=basis)
    if not isinstance(source, str) or not source.strip():
        raise InvalidSystem(f"{where} needs a source, a text", got=repr(source))
    return Basis(basis), source


def _checked(value: object, legal: Quantity, where: str) -> Any:
    """Return a value as a quantity's type, or tell what it may be."""
    try:
        return legal.check(where, value)
    except InvalidTarget as error:
        raise InvalidSystem(
            f"{where} cannot be {value!r} {legal.unit}", expected=legal.legal, got=error.got
        ) from None


def _range(data: object, legal: Quantity, where: str) -> tuple[float, float] | None:
    if data is None:
        return None
    if not is_row(data) or len(data) != 2:
        raise InvalidSystem(f"{where}: a range is the least and the most", got=repr(data))
    low, high = (_checked(value, legal, f"{where}: range") for value in data)
    if low is None or high is None or low > high:
        raise InvalidSystem(f"{where}: a range is the least and the most", got=repr(data))
    return low, high


def _list(data: Mapping[str, Any], where: str) -> list[Any]:
    entries = data.get("alternatives", [])
    if not is_row(entries):
        raise InvalidSystem(f"{where}: alternatives are a list", got=repr(entries))
    return list(entries)


def _alternative(data: object, where: str) -> Alternative:
    if (
        not is_mapping(data)
        or set(data) != {"value", "source"}
        or not isinstance(data["value"], int | float)
        or not isinstance(data["source"], str)
    ):
        raise InvalidSystem(f"{where}: an alternative is an object of a number and its source", got=data)
    return Alternative(data["value"], data["source"])
