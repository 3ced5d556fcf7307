"""The table of expansions: how an operation is written with simpler ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hlo_passes.ir import Op
from hlo_passes.passes.expansions.term import Term

Expansion = Callable[[Any, Sequence[Term], Any], Term | Sequence[Term] | None]
"""``(op, operands, options of the pass)`` to the results, or None for an operation that stays as it is."""

EXPANSIONS: dict[type[Op], Expansion] = {}

E = TypeVar("E", bound=Expansion)


def expands(*classes: type[Op]) -> Callable[[E], E]:
    """Register the expansion of operation classes."""

    def keep(expansion: E) -> E:
        for cls in classes:
            EXPANSIONS[cls] = expansion
        return expansion

    return keep
