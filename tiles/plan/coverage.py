"""Which indices of an axis several slices read: by how many, and in which runs.

Short axes have a table of all indices. On long ones, of which slices read a few stretches (a vector that many
tensors were joined into), or every nth element, the ends of slices say as much: what is kept does not grow with the
axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tiles.cached import cached_property
from tiles.numerics.shared import all_read_only, read_only


class Coverage(Protocol):
    """What is asked about the indices that slices read; all arguments and results are arrays of one length."""

    def any_before(self, index: np.ndarray) -> np.ndarray:
        """Return how many indices below ``index``, 0 to the axis' size, any slice reads."""
        ...

    def one_before(self, index: np.ndarray) -> np.ndarray:
        """Return how many indices below ``index`` exactly one slice reads."""
        ...

    def next_read(self, index: np.ndarray) -> np.ndarray:
        """Return the first index from ``index`` on that any slice reads; the axis' size where none is."""
        ...

    def is_read(self, index: np.ndarray, least: int) -> np.ndarray:
        """Return whether ``least`` (1 or 2) slices or more read an index, -1 to the axis' size: nobody reads these two."""
        ...

    def begun(self, index: np.ndarray, least: int) -> np.ndarray:
        """Return how many runs of indices that ``least`` slices or more read begin at ``index`` or below."""
        ...


@dataclass(frozen=True, eq=False)
class Counted:
    """Coverage by a table: by how many slices each index is read, int64 ``[size]``."""

    count: np.ndarray

    @cached_property
    def _before(self) -> tuple[np.ndarray, np.ndarray]:
        counts = np.zeros((2, self.count.size + 1), np.int64)
        np.cumsum(self.count > 0, out=counts[0, 1:])
        np.cumsum(self.count == 1, out=counts[1, 1:])
        return read_only(counts[0]), read_only(counts[1])

    @cached_property
    def _runs(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """For one and for two slices at least: whether they read index - 1, and the runs begun at an index or below."""
        tables: list[tuple[np.ndarray, np.ndarray]] = []
        for least in (1, 2):
            is_read = np.zeros(self.count.size + 2, bool)
            is_read[1:-1] = self.count >= least
            begun = np.cumsum(is_read[1:] & ~is_read[:-1])
            tables.append((read_only(is_read), read_only(begun)))
        return tuple(tables)

    def any_before(self, index: np.ndarray) -> np.ndarray:
        """Return how many indices below are read."""
        return self._before[0][index]

    def one_before(self, index: np.ndarray) -> np.ndarray:
        """Return how many indices below are read once."""
        return self._before[1][index]

    def next_read(self, index: np.ndarray) -> np.ndarray:
        """Return the next index that is read."""
        reads = self._before[0]
        return np.searchsorted(reads, reads[index], side="right") - 1

    def is_read(self, index: np.ndarray, least: int) -> np.ndarray:
        """Return whether an index is read."""
        return self._runs[least - 1][0][index + 1]

    def begun(self, index: np.ndarray, least: int) -> np.ndarray:
        """Return the runs begun."""
        return self._runs[least - 1][1][index]


@dataclass(frozen=True, eq=False)
class Stretches:
    """Coverage by stretches of indices that equally many slices read.

    Args:
      size: of the axis.
      start: first index of each stretch, the first 0, ascending; int64.
      count: slices that read it, another number than in the stretch before; int64.
    """

    size: int
    start: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, low: np.ndarray, high: np.ndarray, size: int) -> Stretches:
        """Return the coverage of slices from ``low`` up to ``high``, exclusive; none of them is empty."""
        ends, place = np.unique(np.concatenate([[0], low, high]), return_inverse=True)
        change = np.zeros(ends.size, np.int64)
        np.add.at(change, place[1 : low.size + 1], 1)
        np.add.at(change, place[low.size + 1 :], -1)
        is_end = change != 0
        is_end[0] = True
        is_end &= ends < max(size, 1)
        return cls(size, read_only(ends[is_end]), read_only(np.cumsum(change)[is_end]))

    @cached_property
    def _before(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices below each stretch that any slice, and that one slice reads."""
        lengths = np.diff(self.start, append=self.size)
        counts = np.zeros((2, self.start.size), np.int64)
        np.cumsum((lengths * (self.count > 0))[:-1], out=counts[0, 1:])
        np.cumsum((lengths * (self.count == 1))[:-1], out=counts[1, 1:])
        return read_only(counts[0]), read_only(counts[1])

    @cached_property
    def _starts(self) -> tuple[np.ndarray, ...]:
        """Where runs begin that one, and that two slices at least read."""
        before = np.concatenate([[0], self.count[:-1]])
        return all_read_only(tuple(self.start[(self.count >= least) & (before < least)] for least in (1, 2)))

    def _stretch(self, index: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.start, index, side="right") - 1

    def any_before(self, index: np.ndarray) -> np.ndarray:
        """Return how many indices below are read."""
        at = self._stretch(index)
        return self._before[0][at] + (index - self.start[at]) * (self.count[at] > 0)

    def one_before(self, index: np.ndarray) -> np.ndarray:
        """Return how many indices below are read once."""
        at = self._stretch(index)
        return self._before[1][at] + (index - self.start[at]) * (self.count[at] == 1)

    def next_read(self, index: np.ndarray) -> np.ndarray:
        """Return the next index that is read."""
        later = np.append(self._starts[0], self.size)[np.searchsorted(self._starts[0], index)]
        return np.where(self.is_read(index, 1), index, later)

    def is_read(self, index: np.ndarray, least: int) -> np.ndarray:
        """Return whether an index is read."""
        return (self.count[self._stretch(index)] >= least) & (index >= 0) & (index < self.size)

    def begun(self, index: np.ndarray, least: int) -> np.ndarray:
        """Return the runs begun."""
        return np.searchsorted(self._starts[least - 1], index, side="right")


@dataclass(frozen=True, eq=False)
class Strided:
    """Coverage by slices that all read every ``step``-th index from ``first`` on, and none between.

    Args:
      size: of the axis.
      first: the first of these indices, less than ``step``.
      step: from one of them to the next, two or more: no two that are read are neighbours.
      inner: by which slices read them, of the axis of these indices alone.
    """

    size: int
    first: int
    step: int
    inner: Stretches

    @classmethod
    def of(cls, low: np.ndarray, high: np.ndarray, step: int, size: int) -> Strided:
        """Return the coverage of slices of every ``step``-th index from ``low`` to ``high``, inclusive; none is empty."""
        first = int(low[0]) % step if low.size else 0
        inner = Stretches.of((low - first) // step, (high - first) // step + 1, _below(size, first, step))
        return cls(size, first, step, inner)

    def _below(self, index: np.ndarray) -> np.ndarray:
        """Return how many of the indices that slices may read are below ``index``."""
        return np.clip(-(-(index - self.first) // self.step), 0, self.inner.size)

    def any_before(self, index: np.ndarray) -> np.ndarray:
        """Return how many indices below are read."""
        return self.inner.any_before(self._below(index))

    def one_before(self, index: np.ndarray) -> np.ndarray:
        """Return how many indices below are read once."""
        return self.inner.one_before(self._below(index))

    def next_read(self, index: np.ndarray) -> np.ndarray:
        """Return the next index that is read."""
        found = self.inner.next_read(self._below(index))
        return np.where(found < self.inner.size, self.first + found * self.step, self.size)

    def is_read(self, index: np.ndarray, least: int) -> np.ndarray:
        """Return whether an index is read."""
        place = index - self.first
        return (place % self.step == 0) & self.inner.is_read(place // self.step, least)

    def begun(self, index: np.ndarray, least: int) -> np.ndarray:
        """Return the runs begun: each index that is read is one."""
        below = self._below(index + 1)
        found = self.inner.any_before(below)
        return found if least == 1 else found - self.inner.one_before(below)


def _below(size: int, first: int, step: int) -> int:
    """Return how many of ``first``, ``first + step``, ... are below ``size``."""
    return max(0, -(-(size - first) // step))
