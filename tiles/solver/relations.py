"""Relations between variables: how bounds of some follow from those of others, for many boxes of values at once.

Boxes are two arrays ``[variables, boxes]`` of least and greatest values. A relation narrows them in place and never
takes a value away that a solution in the box has; on boxes of single values it decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

MOST = 1 << 52
"""Largest value: products of two of them still compare rightly as floats, and clip to it."""

Function = Callable[..., np.ndarray]
Bounds = Callable[[tuple[np.ndarray, ...], tuple[np.ndarray, ...]], tuple[np.ndarray, np.ndarray]]


class Relation(Protocol):
    """What ties one variable to others."""

    def narrow(self, low: np.ndarray, high: np.ndarray) -> None:
        """Raise least and lower greatest values of boxes where the relation says so."""
        ...


def _raise(bounds: np.ndarray, number: int, by: np.ndarray) -> None:
    np.maximum(bounds[number], by, out=bounds[number])


def _lower(bounds: np.ndarray, number: int, by: np.ndarray) -> None:
    np.minimum(bounds[number], by, out=bounds[number])


def _clipped(values: np.ndarray) -> np.ndarray:
    """Return numbers as integers from 0 to MOST; what is no number is MOST."""
    values = np.asarray(values)
    if values.dtype.kind != "f":
        return np.clip(values, 0, MOST).astype(np.int64)
    return np.where(np.isnan(values), MOST, np.clip(np.ceil(values), 0, MOST)).astype(np.int64)


def _product(rows: np.ndarray) -> np.ndarray:
    """Return products over the first axis, clipped to MOST."""
    exact = np.ones(rows.shape[1:], np.int64)
    for row in rows:
        large = exact.astype(np.float64) * row > MOST
        exact = np.where(large, MOST, exact * np.where(large, 1, row))
    return exact


@dataclass(frozen=True)
class Sum:
    """``result`` is the sum of ``of``."""

    result: int
    of: tuple[int, ...]

    def narrow(self, low: np.ndarray, high: np.ndarray) -> None:
        """Bound the sum by its terms, and each term by what the others leave."""
        least, most = low[[*self.of]].sum(0), np.minimum(high[[*self.of]].sum(0), MOST)
        _raise(low, self.result, np.minimum(least, MOST))
        _lower(high, self.result, most)
        capped = high[self.result] >= MOST  # a sum that was clipped bounds no term
        for term in self.of:
            rest = high[self.result] - (least - low[term])
            _lower(high, term, np.where(capped, MOST, rest))
            _raise(low, term, low[self.result] - (high[[*self.of]].sum(0) - high[term]))


@dataclass(frozen=True)
class Product:
    """``result`` is the product of ``of``, or MOST where that is less."""

    result: int
    of: tuple[int, ...]

    def narrow(self, low: np.ndarray, high: np.ndarray) -> None:
        """Bound the product by its factors, and each factor by the others' product."""
        _raise(low, self.result, _product(low[[*self.of]]))
        _lower(high, self.result, _product(high[[*self.of]]))
        capped = high[self.result] >= MOST
        for at, factor in enumerate(self.of):
            others = [number for k, number in enumerate(self.of) if k != at]
            least, most = _product(low[others]), _product(high[others])
            quotient = high[self.result] // np.maximum(least, 1)
            _lower(high, factor, np.where((least > 0) & ~capped, quotient, MOST))
            needed = -(-low[self.result] // np.maximum(most, 1))
            _raise(low, factor, np.where((most > 0) & (most < MOST), needed, 0))


@dataclass(frozen=True)
class CeilDiv:
    """``result`` is ``of[0] / of[1]`` rounded up, and ``of[1]`` at least 1."""

    result: int
    of: tuple[int, int]

    def narrow(self, low: np.ndarray, high: np.ndarray) -> None:
        """Bound the quotient by both, and the dividend by the quotient and the divisor, and so on."""
        a, b = self.of
        _raise(low, b, np.ones_like(low[b]))
        top, bottom = np.maximum(high[b], 1), np.maximum(low[b], 1)
        _raise(low, self.result, -(-low[a] // top))
        _lower(high, self.result, -(-high[a] // bottom))
        least, most = low[self.result], high[self.result]
        _lower(high, a, _product(np.stack([most, top])))
        _raise(low, a, np.where(least > 0, _product(np.stack([np.maximum(least - 1, 0), bottom])) + 1, 0))
        _raise(low, b, np.where(most > 0, -(-low[a] // np.maximum(most, 1)), 0))
        _lower(high, b, np.where(least > 1, (high[a] - 1) // np.maximum(least - 1, 1), MOST))


@dataclass(frozen=True)
class Max:
    """``result`` is the greatest of ``of``."""

    result: int
    of: tuple[int, ...]

    def narrow(self, low: np.ndarray, high: np.ndarray) -> None:
        """Bound the greatest by all, and all by the greatest."""
        _raise(low, self.result, low[[*self.of]].max(0))
        _lower(high, self.result, high[[*self.of]].max(0))
        for number in self.of:
            _lower(high, number, high[self.result])
        if len(self.of) == 1:
            _raise(low, self.of[0], low[self.result])


@dataclass(frozen=True)
class LessOrEqual:
    """``result`` is at most ``of[0]``."""

    result: int
    of: tuple[int]

    def narrow(self, low: np.ndarray, high: np.ndarray) -> None:
        """Bound each by the other."""
        _lower(high, self.result, high[self.of[0]])
        _raise(low, self.of[0], low[self.result])


@dataclass(frozen=True)
class Call:
    """``result`` is what ``function`` makes of ``of``."""

    result: int
    of: tuple[int, ...]
    function: Function
    bounds: Bounds | None = None

    def narrow(self, low: np.ndarray, high: np.ndarray) -> None:
        """Compute the result where operands are single values, bound it elsewhere if something bounds it."""
        operands = [*self.of]
        legal = (low <= high).all(0)
        known = legal & (low[operands] == high[operands]).all(0)
        if known.any():
            values = _clipped(self.function(*(low[number][known] for number in operands)))
            low[self.result, known] = np.maximum(low[self.result, known], values)
            high[self.result, known] = np.minimum(high[self.result, known], values)
        rest = legal & ~known
        if self.bounds is not None and rest.any():
            # floats, since products of what nothing bounds yet would not fit an integer
            given = tuple(
                tuple(side[number][rest].astype(np.float64) for number in operands) for side in (low, high)
            )
            least, most = (_clipped(each) for each in self.bounds(*given))
            low[self.result, rest] = np.maximum(low[self.result, rest], least)
            high[self.result, rest] = np.minimum(high[self.result, rest], most)
