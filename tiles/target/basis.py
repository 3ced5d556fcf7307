"""How well a number is known: the bases that every machine constant and cycle estimate carries."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Basis(enum.StrEnum):
    """What a number rests on, best first."""

    MEASURED = "MEASURED"
    """Read off real silicon."""
    DOCUMENTED = "DOCUMENTED"
    """Stated by a vendor's document, library or source code."""
    DERIVED = "DERIVED"
    """Counted in code that the element compiler generates, from a table of instructions."""
    FITTED = "FITTED"
    """Chosen so that a model reproduces measurements."""
    ASSUMED = "ASSUMED"
    """A reasoned guess, or carried over from another device."""
    UNKNOWN = "UNKNOWN"
    """Not known: a stand-in, so that the rest can be planned. No total that holds it has a range."""

    @property
    def rank(self) -> int:
        """Return 0 for the best basis and larger numbers for weaker ones."""
        return _ORDER.index(self)

    @staticmethod
    def weakest(bases: Iterable[Basis]) -> Basis:
        """Return the weakest of the given bases: what a number made of several rests on.

        Raises:
          ValueError: when there is none.
        """
        return max(bases, key=lambda basis: basis.rank)


_ORDER = tuple(Basis)

Parts = tuple[tuple[Basis, int], ...]
"""Cycles by what they rest on; a basis may come more than once."""


def weakest_part(parts: Parts) -> Basis:
    """Return the weakest basis of cycles that are made of parts; that of the first one where there are no cycles."""
    return Basis.weakest([basis for basis, cycles in parts if cycles] or [parts[0][0]])
