"""Which devices take part in a collective together, without lists: the shape of a numbering, transposed.

Devices are numbered row by row over the module's mesh (``Module.mesh``). Groups along axes of a mesh, of whatever size,
are a few numbers here; only what no transposed numbering says is listed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_passes.ir.op import attribute

Mesh = tuple[tuple[str, int], ...]
"""Names and sizes of axes, the first one slowest in the numbering of devices."""


@attribute
@dataclass(frozen=True)
class DeviceGroups:
    """Groups of devices; a member's place in its group is its place in the row.

    Row by row, the members are ``0, 1, ...`` in an array of shape ``dims``, transposed by ``permutation``. Equal groups
    are equal objects: ``of`` finds the shortest form.

    Args:
      count: how many groups.
      size: members of each.
      dims: shape of the numbering.
      permutation: its dimensions in the order in which members are counted.
      listed: the members of each group instead, where no such form says them.
    """

    count: int
    size: int
    dims: tuple[int, ...] = ()
    permutation: tuple[int, ...] = ()
    listed: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, members: np.ndarray) -> DeviceGroups:
        """Return the groups of an array ``[groups, members]`` of device numbers."""
        count, size = members.shape
        form = _transposed_numbering(members.reshape(-1))
        if form is None:
            return cls(count, size, listed=tuple(tuple(map(int, row)) for row in members))
        return cls(count, size, *form)

    @classmethod
    def along(cls, mesh: Mesh, axes: Sequence[str]) -> DeviceGroups:
        """Return the groups of devices that differ in their place along some axes only, these slowest first."""
        names = [name for name, _ in mesh]
        grouped = [names.index(axis) for axis in axes]
        others = [number for number in range(len(mesh)) if number not in grouped]
        sizes = [size for _, size in mesh]
        numbers = np.arange(math.prod(sizes)).reshape(sizes).transpose(*others, *grouped)
        return cls.of(numbers.reshape(-1, math.prod(sizes[number] for number in grouped)))

    @functools.cached_property
    def members(self) -> np.ndarray:
        """Device numbers, int64 ``[groups, members]``."""
        if self.listed:
            return np.array(self.listed, np.int64).reshape(self.count, self.size)
        numbers = np.arange(self.count * self.size).reshape(self.dims)
        return numbers.transpose(self.permutation).reshape(self.count, self.size)

    @property
    def num_devices(self) -> int:
        """Devices that take part."""
        return self.count * self.size

    def axes_of(self, mesh: Mesh) -> tuple[str, ...] | None:
        """Return the axes of a mesh that the groups go along, slowest first; None where they go along none."""
        place = np.zeros(self.num_devices, np.int64)
        if math.prod(size for _, size in mesh) != len(place) or self.members.max(initial=0) >= len(place):
            return None
        place[self.members] = np.arange(self.size)
        strides = np.cumprod([1, *(size for _, size in mesh[:0:-1])])[::-1].tolist()
        weights = [
            int(place[stride]) if size > 1 else 0 for (_, size), stride in zip(mesh, strides, strict=True)
        ]
        ordered = sorted((-weight, name) for weight, (name, _) in zip(weights, mesh, strict=True) if weight)
        axes = tuple(name for _, name in ordered)
        return axes if DeviceGroups.along(mesh, axes) == self else None


def _transposed_numbering(sequence: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shape and the transposition that number devices in this order; None where there are none."""
    runs: list[tuple[int, int]] = []  # (length, stride) of nested runs, innermost first
    rest = sequence
    while len(rest) > 1:
        stride = int(rest[1] - rest[0])
        breaks = np.flatnonzero(np.diff(rest) != stride)
        length = int(breaks[0]) + 1 if len(breaks) else len(rest)
        if len(rest) % length:
            return None
        rows = rest.reshape(-1, length)
        if (rows != rows[:, :1] + stride * np.arange(length)).any():
            return None
        runs.append((length, stride))
        rest = rows[:, 0]
    if len(rest) and rest[0] != 0:
        return None
    order = sorted(range(len(runs)), key=lambda number: -runs[number][1])
    expected = len(sequence)
    for number in order:
        length, stride = runs[number]
        expected //= length
        if stride != expected:
            return None
    dims = tuple(runs[number][0] for number in order)
    place = {number: position for position, number in enumerate(order)}
    return dims, tuple(place[number] for number in reversed(range(len(runs))))


@attribute
@dataclass(frozen=True)
class Moves:
    """Who sends to whom, in runs: ``(source, target, count)`` sends from ``source + i`` to ``target + i``."""

    runs: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Moves:
        """Return pairs of a source and a target as runs, in order of the sources."""
        runs: list[tuple[int, int, int]] = []
        for source, target in sorted(pairs):
            if runs:
                first, onto, count = runs[-1]
                if (source, target) == (first + count, onto + count):
                    runs[-1] = (first, onto, count + 1)
                    continue
            runs.append((source, target, 1))
        return cls(tuple(runs))

    @functools.cached_property
    def pairs(self) -> np.ndarray:
        """Sources and targets, int64 ``[pairs, 2]``."""
        rows = [
            np.stack([np.arange(source, source + count), np.arange(target, target + count)], axis=1)
            for source, target, count in self.runs
        ]
        return np.concatenate(rows) if rows else np.zeros((0, 2), np.int64)
