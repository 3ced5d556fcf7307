"""How a length is transformed, and the numbers that doing so takes: exact angles, rounded once.

Costs are in columns of a contraction per element of the signal: what a dense transform of length n takes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

MAX_DENSE = 256
"""Longest transform done as one contraction with its matrix of n * n factors."""

STAGE_COLUMNS = 60
"""What a further stage costs for each element, in columns: moving and turning it. FITTED, see below."""

STAGE_OVERHEAD = 1 << 23
"""What a further stage costs at all, in columns times elements: supersteps that wait for their slowest tile.

Both are fitted to the cycles that programs of 8 to 64 signals of 128 to 4096 elements take on 1,472 tiles,
planned in one to three stages; on other machines they only decide which of the right ways is taken.
"""


@dataclass(frozen=True)
class Dense:
    """One contraction with the matrix."""


@dataclass(frozen=True)
class Split:
    """Cooley and Tukey: transforms of ``outer`` elements, turned, then transforms of ``inner`` ones."""

    outer: int
    inner: int


@dataclass(frozen=True)
class Chirp:
    """Bluestein: a cyclic convolution of ``size`` elements with a chirp, by transforms of that length."""

    size: int


Plan: TypeAlias = Dense | Split | Chirp


def plan_of(length: int, count: int) -> Plan:
    """Return the cheapest way to transform ``count`` signals of a length."""
    return _planned(length, length * count)[1]


@functools.lru_cache(maxsize=4096)
def _planned(length: int, elements: int) -> tuple[float, Plan]:
    """Return columns per element, and the plan, for signals of ``elements`` elements together."""
    stage = STAGE_COLUMNS + STAGE_OVERHEAD / elements
    ways: list[tuple[float, Plan]] = []
    if length <= MAX_DENSE:
        ways.append((length, Dense()))
    for outer in _divisors(length):
        inner = length // outer
        columns = _planned(outer, elements)[0] + _planned(inner, elements)[0] + stage
        ways.append((columns, Split(outer, inner)))
    if not ways:
        size = convolution_size(length)
        grown = elements // length * size
        ways.append((2 * size / length * (_planned(size, grown)[0] + stage), Chirp(size)))
    return min(ways, key=lambda way: way[0])


def _divisors(length: int) -> list[int]:
    """Return the divisors that leave at least as much as they take, 1 left out."""
    return [d for d in range(2, math.isqrt(length) + 1) if length % d == 0]


def convolution_size(length: int) -> int:
    """Return a length, at least ``2 * length - 1``, that splits into dense transforms."""
    least = 2 * length - 1
    if least <= MAX_DENSE**2:
        outer = math.isqrt(least - 1) + 1
        return outer * -(-least // outer)
    return 1 << (least - 1).bit_length()


def roots_of_unity(numerators: np.ndarray, denominator: int, sign: int) -> np.ndarray:
    """Return ``exp(sign * 2 pi i * k / n)`` in double precision, exact at multiples of a quarter turn.

    Args:
      numerators: whole numbers k of any size.
      denominator: n.
      sign: -1 for a transform, 1 for its inverse.
    """
    k = np.asarray(numerators) % denominator
    eighths, rest = np.divmod(8 * k, denominator)
    quarters = (eighths + 1) // 2  # the nearest, so that what is left is at most an eighth
    angle = 2 * math.pi * (rest + denominator * (eighths - 2 * quarters)) / (8 * denominator)
    turned = np.cos(angle) + 1j * np.sin(angle)
    powers = np.array([1, 1j, -1, -1j])[quarters % 4]
    return turned * powers if sign > 0 else np.conj(turned * powers)


def matrix(length: int, inputs: int, outputs: int, sign: int) -> np.ndarray:
    """Return factors ``[inputs, outputs]`` of the transform of the first elements to the first results."""
    products = np.outer(np.arange(inputs, dtype=np.int64), np.arange(outputs, dtype=np.int64))
    return roots_of_unity(products, length, sign)


def chirp(length: int, sign: int) -> np.ndarray:
    """Return ``exp(sign * pi i * k^2 / n)`` for every k below n."""
    k = np.arange(length, dtype=np.int64)
    return roots_of_unity(k * k, 2 * length, sign)


def chirp_filter(length: int, size: int, sign: int) -> np.ndarray:
    """Return the transform of the chirp that ``size`` points are convolved with, over ``size``."""
    back = np.conj(chirp(length, sign))
    wrapped = np.zeros(size, np.complex128)
    wrapped[:length] = back
    wrapped[size - length + 1 :] = back[:0:-1]
    return np.fft.fft(wrapped) / size
