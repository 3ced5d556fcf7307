"""How far predictions are off: geometric means of error factors, in all and by family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ipuxla.calibration.predict import Row

UNMODELLED_FACTOR = 10.0
"""What a row that is not modelled counts as."""


@dataclass(frozen=True)
class Score:
    """How far some rows are off.

    Args:
      rows: how many there are.
      modelled: how many of them have a prediction.
      strict: geometric mean of ``max(r, 1 / r)``, where what is not modelled counts ten times off; None of no row.
      modelled_only: the same over rows that have a prediction.
      bias: geometric mean of the ratios themselves.
      inside: how many measurements lie in their range.
    """

    rows: int
    modelled: int
    strict: float | None
    modelled_only: float | None
    bias: float | None
    inside: int

    @property
    def coverage(self) -> float | None:
        """Share of rows with a prediction."""
        return self.modelled / self.rows if self.rows else None

    @property
    def inside_share(self) -> float | None:
        """Share of the modelled measurements that lie in their range."""
        return self.inside / self.modelled if self.modelled else None


def score(rows: Sequence[Row]) -> Score:
    """Return how far some rows are off; bounds and the like are not to be among them."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    errors = [abs(math.log(ratio)) for ratio in ratios]
    lost = len(rows) - len(ratios)
    strict = errors + [math.log(UNMODELLED_FACTOR)] * lost
    return Score(
        len(rows),
        len(ratios),
        _mean(strict),
        _mean(errors),
        _mean([math.log(ratio) for ratio in ratios]),
        sum(bool(row.is_inside) for row in rows),
    )


def _mean(logarithms: Sequence[float]) -> float | None:
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None
