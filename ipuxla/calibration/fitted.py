"""The constants that were chosen so that a model reproduces measurements: found where they stand, none is listed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tiles.plan.transpose_cycles import CYCLES_PER_BYTE
from tiles.poplibs.popops import inner_loops
from tiles.target import Basis, Target, find_system, known_names, known_systems

TABLES = (
    inner_loops.UNARY,
    inner_loops.BINARY,
    inner_loops.BROADCAST,
    inner_loops.OTHER,
    inner_loops.NONLINEARITIES,
)


@dataclass(frozen=True)
class Fitted:
    """A constant of basis FITTED.

    Args:
      name: what it is.
      value: in the unit.
      unit: of the value.
      to: what it was fitted to, or where it is from.
    """

    name: str
    value: float
    unit: str
    to: str


def fitted() -> tuple[Fitted, ...]:
    """Return every FITTED constant, by kind and name."""
    return tuple(dict.fromkeys([*_rearrangements(), *_functions(), *_machines(), *_systems()]))


def _rearrangements() -> Iterator[Fitted]:
    for run, rate in sorted(CYCLES_PER_BYTE.items()):
        yield Fitted(
            f"rearrangement, {run} bytes together",
            rate,
            "cycles/byte",
            "PopLibs' own regression over 10,000 rearrangements (lib/poplin/ConvModel.cpp)",
        )


def _functions() -> Iterator[Fitted]:
    for table in TABLES:
        for name, by_dtype in sorted(table.items()):
            for dtype, loop in sorted(by_dtype.items()):
                if loop.basis is Basis.FITTED:
                    yield Fitted(f"{name} of {dtype}", float(loop.slots), "slots", loop.source)


def _machines() -> Iterator[Fitted]:
    for name in known_names():
        for field, told in Target.named(name).to_data()["fields"].items():
            if told["basis"] == Basis.FITTED:
                yield Fitted(f"{name} {field}", float(told["value"]), told["unit"], told["source"])


def _systems() -> Iterator[Fitted]:
    """Yield the figures of links; one that several systems or kinds of links take over is one constant."""
    seen: set[tuple[float, str]] = set()
    for name in known_systems():
        for link in find_system(name).links:
            for figure, held in link.figures:
                value = float(held.value or 0)
                if held.basis is Basis.FITTED and (value, held.source) not in seen:
                    seen.add((value, held.source))
                    yield Fitted(f"{name} {figure}", value, held.unit, held.source)
