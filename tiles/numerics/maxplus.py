"""Max-plus matrices: how clocks that wait for each other advance, exactly and for any number of repetitions.

A step of a program maps the clocks of several IPUs to later ones: work adds to a clock, a sync sets the clocks
of its members to the latest of them. Both are linear where "plus" is the maximum and "times" is addition, so a
step is a matrix, steps one after the other are its product, and a loop is a power. Entry ``[i, j]`` is what
passes at least from where clock j stands before to where clock i stands after; where nothing passes there is
none. Numbers are integers of any size: a loop's trip count has no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SAFE = 2**59
"""Below this, sums and the stand-ins for "none" stay within 64 bits."""


@dataclass(frozen=True, eq=False)
class MaxPlus:
    """A square max-plus matrix.

    Args:
      cycles: ``[n, n]``, int64, or objects that are integers; 0 where there is no entry.
      reaches: bool ``[n, n]``, whether there is one.
    """

    cycles: np.ndarray
    reaches: np.ndarray

    def __post_init__(self) -> None:
        """Check shapes, and put 0 where there is no entry, so that equal matrices hold equal arrays.

        Raises:
          ValueError: not two square arrays of one shape.
        """
        shape = self.cycles.shape
        if len(shape) != 2 or shape[0] != shape[1] or self.reaches.shape != shape:
            raise ValueError(f"expected two [n, n], got {shape} and {self.reaches.shape}")
        object.__setattr__(self, "cycles", np.where(self.reaches, self.cycles, 0))

    @staticmethod
    def identity(n: int) -> MaxPlus:
        """Return the matrix that leaves ``n`` clocks as they are."""
        return MaxPlus(np.zeros((n, n), np.int64), np.eye(n, dtype=bool))

    @staticmethod
    def step(members: np.ndarray, exchange_cycles: int, compute_cycles: np.ndarray) -> MaxPlus:
        """Return what a superstep does: its members sync and exchange, then everyone computes.

        Args:
          members: which clocks take part in the sync, bool ``[n]``; none when nothing is exchanged.
          exchange_cycles: what sync and exchange take a member.
          compute_cycles: what each computes afterwards, integers ``[n]``.
        """
        reaches = np.eye(len(members), dtype=bool) | (members[:, None] & members[None, :])
        exchange = np.where(members, np.array(int(exchange_cycles), object), 0)
        after = exchange + compute_cycles.astype(object)
        return MaxPlus(np.broadcast_to(_shrunk(after)[:, None], reaches.shape), reaches)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same entries."""
        if not isinstance(other, MaxPlus):
            return NotImplemented
        return np.array_equal(self.reaches, other.reaches) and np.array_equal(self.cycles, other.cycles)

    __hash__ = None  # type: ignore[assignment]

    def __matmul__(self, first: MaxPlus) -> MaxPlus:
        """Return what happens when ``first`` happens and then this, as matrices multiply.

        Raises:
          ValueError: matrices of different sizes.
        """
        if self.cycles.shape != first.cycles.shape:
            raise ValueError(f"expected {self.cycles.shape}, got {first.cycles.shape}")
        left, right = _with_stand_ins(self, first)
        best = left[:, :1] + right[:1, :]
        for k in range(1, len(left)):
            np.maximum(best, left[:, k, None] + right[None, k, :], out=best)
        reaches = self.reaches.astype(np.float64) @ first.reaches.astype(np.float64) > 0
        return MaxPlus(_shrunk(np.where(reaches, best, 0)), reaches)

    def then(self, second: MaxPlus) -> MaxPlus:
        """Return what happens when this happens and then ``second``: the order of a program."""
        return second @ self

    def later(self, other: MaxPlus) -> MaxPlus:
        """Return what waits for both of this and ``other``: the sum of matrices, entry by entry the maximum."""
        mine, others = _with_stand_ins(self, other)
        return MaxPlus(np.maximum(mine, others), self.reaches | other.reaches)

    def power(self, times: int) -> MaxPlus:
        """Return what happens when this happens ``times`` times, by repeated squaring.

        Raises:
          ValueError: a negative number of times.
        """
        if times < 0:
            raise ValueError(f"expected at least 0 times, got {times}")
        result, square = MaxPlus.identity(len(self.cycles)), self
        while times:
            if times & 1:
                result = result @ square
            times >>= 1
            if times:
                square = square @ square
        return result

    def apply(self, clocks: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the clocks ``[n]`` afterwards, as Python's integers; each waits for at least one.

        Raises:
          ValueError: another number of clocks, or a clock that nothing reaches.
        """
        if len(clocks) != len(self.cycles):
            raise ValueError(f"expected {len(self.cycles)} clocks, got {len(clocks)}")
        if not self.reaches.any(axis=1).all():
            raise ValueError("a clock that nothing reaches")
        before = np.array([int(clock) for clock in clocks], object)
        later = self.cycles.astype(object) + before[None, :]
        none = later.min() - 1
        return np.where(self.reaches, later, none).max(axis=1)


def product(steps: Sequence[MaxPlus], n: int) -> MaxPlus:
    """Return what a sequence of steps does to ``n`` clocks, the first step first."""
    result = MaxPlus.identity(n)
    for step in steps:
        result = result.then(step)
    return result


def _magnitude(values: np.ndarray) -> int:
    return max((int(values.max()), -int(values.min()))) if values.size else 0


def _with_stand_ins(*matrices: MaxPlus) -> list[np.ndarray]:
    """Return the entries of both, with numbers in place of "none" too small to win any sum."""
    bound = 1 + sum(_magnitude(matrix.cycles) for matrix in matrices)
    dtype = np.int64 if bound < _SAFE else object
    none = np.array(-4 * bound, dtype)
    return [np.where(matrix.reaches, matrix.cycles.astype(dtype), none) for matrix in matrices]


def _shrunk(values: np.ndarray) -> np.ndarray:
    """Return integers as int64 where they are small enough."""
    return values.astype(np.int64 if _magnitude(values) < _SAFE else object)
