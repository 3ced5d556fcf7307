"""How often an interval learnt from other publications holds: one source left out at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ipuxla.calibration.predict import Row

LEVEL = 0.8
"""Share of measurements that an interval is to hold."""
FEWEST = 9
"""Rows of one kind from which an interval of that kind is learnt; fewer have no tenth to leave out at either end."""


@dataclass(frozen=True)
class Interval:
    """Factors on a predicted time, and the rows they were learnt from."""

    low: float
    high: float
    rows: int


def kind_of(row: Row) -> str:
    """Return what most of a prediction rests on."""
    shares = row.basis_shares
    return max(sorted(shares), key=lambda basis: shares[basis]) if shares else "other"


def interval(rows: Sequence[Row]) -> Interval | None:
    """Return factors that hold ``LEVEL`` of what is measured, over what is predicted; None of too few rows.

    The k-th smallest and largest ratio of n with ``k = floor((n + 1) * (1 - LEVEL) / 2)``: of one more row like
    these, that share lies between them on average (split conformal prediction).
    """
    factors = sorted(1 / row.ratio for row in rows if row.ratio is not None)
    k = math.floor((len(factors) + 1) * (1 - LEVEL) / 2 + 1e-9)
    return Interval(factors[k - 1], factors[-k], len(factors)) if k >= 1 else None


def intervals(rows: Sequence[Row]) -> dict[str, Interval]:
    """Return the interval of every kind that has enough rows, and of all of them."""
    groups = {"all": list(rows)}
    for row in rows:
        groups.setdefault(kind_of(row), []).append(row)
    found = {kind: interval(group) for kind, group in sorted(groups.items()) if len(group) >= FEWEST}
    return {kind: each for kind, each in found.items() if each is not None}


def held_out(rows: Sequence[Row]) -> tuple[int, int]:
    """Return how many measurements lie in the interval that the other sources teach, and how many there are.

    A kind that the other sources have too few rows of takes the interval of all of theirs.
    """
    inside = total = 0
    modelled = [row for row in rows if row.ratio is not None]
    for source in sorted({row.record.source for row in modelled}):
        learnt = intervals([row for row in modelled if row.record.source != source])
        for row in modelled:
            if row.record.source != source or row.ratio is None:
                continue
            found = learnt.get(kind_of(row)) or learnt.get("all")
            if found is not None:
                total += 1
                inside += found.low <= 1 / row.ratio <= found.high
    return inside, total
