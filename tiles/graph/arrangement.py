"""In which order the elements of a part lie in tile memory: dimensions, and groups of a dimension innermost.

Vertices that contract want groups of channels side by side (PopLibs writes ``[CI/g][N][H][W][g]``), so a weight or an
activation waits in that order where its readers agree on it, and is turned where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.cached import cached_property
from tiles.errors import InvalidPlan
from tiles.graph.hashing import hashed_once

Factor = tuple[int, int, int]
"""Dimension, how many values a digit takes, and the elements of the dimension from one value to the next."""


@hashed_once
@dataclass(frozen=True)
class Arrangement:
    """The order of a box of elements in memory.

    Args:
      digits: ``(dimension, group)`` pairs, the slowest first. ``(d, 0)`` counts dimension ``d``, or its groups if a
        later pair ``(d, g)`` counts the ``g`` elements of a group. Dimensions that are left out have one element. No
        pairs at all: row-major.

    Raises:
      InvalidPlan: a dimension is counted twice, or its elements before its groups.
    """

    digits: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        outer = [d for d, group in self.digits if not group]
        inner = [d for d, group in self.digits if group]
        if len(set(outer)) != len(outer) or len(set(inner)) != len(inner):
            raise InvalidPlan(f"arrangement {self} counts a dimension twice")
        places = {d: place for place, (d, group) in enumerate(self.digits) if not group}
        for place, (d, group) in enumerate(self.digits):
            if d < 0 or group < 0 or (group and places.get(d, place) >= place):
                raise InvalidPlan(
                    f"arrangement {self} does not count the groups of dimension {d} before their elements"
                )

    @property
    def is_row_major(self) -> bool:
        """Whether elements lie in row-major order."""
        return not self.digits

    @cached_property
    def dims(self) -> frozenset[int]:
        """Dimensions that are counted."""
        return frozenset(d for d, _ in self.digits)

    def without_groups(self, dims: Container[int]) -> Arrangement:
        """Return the order with the elements of some dimensions together, where their groups' elements lay."""
        grouped = {d for d, group in self.digits if group and d in dims}
        kept = ((d, group) for d, group in self.digits if group or d not in grouped)
        return Arrangement(tuple((d, 0) if d in grouped else (d, group) for d, group in kept))

    def over(self, rank: int) -> Arrangement:
        """Return the order of boxes of ``rank`` dimensions: those that are not counted yet come first."""
        return _over(self, rank) if self.digits else self

    def fit(self, extents: Sequence[int]) -> Arrangement:
        """Return the same order of a box of ``extents`` in its one simplest form, so that equal orders compare equal.

        Raises:
          InvalidPlan: a dimension of several elements is not counted.
        """
        return _fit(self, tuple(extents)) if self.digits else self

    def factors(self, extents: Sequence[int]) -> tuple[Factor, ...]:
        """Return the digits of a box's elements, the slowest first; every dimension has one at least.

        The last group of a dimension is filled up, so the product of the values may exceed the elements.
        """
        if not self.digits:
            return tuple((d, n, 1) for d, n in enumerate(extents))
        return _factors(self, tuple(extents))

    def stored_elements(self, extents: Sequence[int]) -> int:
        """Return how many elements a box takes in memory, those that fill up groups among them."""
        return math.prod(radix for _, radix, _ in self.factors(extents))

    def offsets(self, extents: Sequence[int]) -> list[np.ndarray]:
        """Return per dimension what every index adds to an element's place in memory, int64 ``[extent]`` each."""
        offsets = [np.zeros(n, np.int64) for n in extents]
        stride = 1
        for d, radix, step in reversed(self.factors(extents)):
            offsets[d] += np.arange(extents[d]) // step % max(radix, 1) * stride
            stride *= radix
        return offsets

    def mapped(self, dims: dict[int, int]) -> Arrangement:
        """Return the order with dimensions renamed; those that are not named are left out."""
        return Arrangement(tuple((dims[d], group) for d, group in self.digits if d in dims))

    def to_data(self) -> list[list[int]]:
        """Return plain data."""
        return [list(digit) for digit in self.digits]

    @classmethod
    def from_data(cls, data: list[Any]) -> Arrangement:
        """Build from plain data."""
        return cls(tuple((int(d), int(group)) for d, group in data))

    def __str__(self) -> str:
        """Return e.g. ``1/16,0,1%16``: groups of 16 of dimension 1, then dimension 0, then the elements of a group."""
        groups = {d: group for d, group in self.digits if group}
        return ",".join(
            f"{d}%{group}" if group else f"{d}/{groups[d]}" if d in groups else str(d)
            for d, group in self.digits
        )


ROW_MAJOR = Arrangement()


@lru_cache(maxsize=4096)
def _over(arrangement: Arrangement, rank: int) -> Arrangement:
    others = ((d, 0) for d in range(rank) if d not in arrangement.dims)
    return Arrangement((*others, *arrangement.digits))


@lru_cache(maxsize=16384)
def _fit(arrangement: Arrangement, extents: tuple[int, ...]) -> Arrangement:
    missing = [d for d, n in enumerate(extents) if n > 1 and d not in arrangement.dims]
    if missing or any(d >= len(extents) for d in arrangement.dims):
        raise InvalidPlan(f"arrangement {arrangement} does not count the dimensions of {extents}")
    groups = {d: group for d, group in arrangement.digits if group}
    kept: list[tuple[int, int]] = []
    for d, group in arrangement.digits:
        n, size = extents[d], groups.get(d, 0)
        if n <= 1 or (group == 0 and size >= n) or group == 1:
            continue  # one element, one group, or groups of one element
        digit = (d, 0) if group >= n else (d, group)
        if digit[1] and kept[-1] == (d, 0) and (n % group == 0 or len(kept) == 1):
            continue  # groups right before their elements count the dimension, where no filled group shifts what is slower
        kept.append(digit)
    order = [d for d, _ in kept]
    if order == sorted(set(order)):
        return ROW_MAJOR
    return Arrangement(tuple(kept))


@lru_cache(maxsize=16384)
def _factors(arrangement: Arrangement, extents: tuple[int, ...]) -> tuple[Factor, ...]:
    groups = {d: max(1, min(group, extents[d])) for d, group in arrangement.digits if group}
    found = [(d, n, 1) for d, n in enumerate(extents) if d not in arrangement.dims]
    for d, group in arrangement.digits:
        size = groups.get(d, 1)
        found.append((d, size, 1) if group else (d, -(-extents[d] // size), size))
    return tuple(found)


def common_run(a: Arrangement, a_extents: Sequence[int], b: Arrangement, b_extents: Sequence[int]) -> int:
    """Return how many neighbours in a box ordered as ``a`` are neighbours in one ordered as ``b``, too, both boxes aligned."""
    run = 1
    for (d, radix, step), (e, other, width) in zip(
        _moving(a, a_extents), _moving(b, b_extents), strict=False
    ):
        if (d, step) != (e, width):
            break
        run *= min(radix, other)
        if radix != other:
            break
    return run


def _moving(arrangement: Arrangement, extents: Sequence[int]) -> list[Factor]:
    """Return the digits that take several values, the fastest first."""
    return [factor for factor in reversed(arrangement.factors(extents)) if factor[1] > 1]
