"""Replicas of one program: named axes, the numbering of replicas over them, and permutations along axes.

All replicas run the same program, each on one IPU of a system or on several that follow each other. A replica's number
counts its places along the axes in row-major order, and replica r runs on the r-th IPU, or group of them, but for axes
that are folded: along those, neighbours are neighbours on a ring of links. Groups are never listed: along some axes,
those replicas form a group which agree on all others. So nothing here grows with the number of replicas until somebody
asks for it as an array.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from tiles.cached import cached_property
from tiles.errors import InvalidGraph
from tiles.files import is_a, is_list
from tiles.numerics.shared import read_only

MAX_REPLICAS = 2**17
"""As many as the largest system may have IPUs."""


def folded(size: int) -> np.ndarray:
    """Return the places of a folded ring in the order in which it goes round, ``0 2 4 ... 5 3 1``; int64 ``[size]``.

    Source: the order "interleaved" of PopLibs' collectives on a ladder (lib/popops/ReplicatedCollectives.cpp).
    """
    return np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)[::-1]])


@dataclass(frozen=True)
class Shift:
    """Place i sends to place i + ``by``, around the ring.

    Args:
      by: places, negative to go down.
      stride: places between neighbours on the ring.
      extent: places on a ring; 0 for all. With both, digit ``i // stride % extent`` of a place is moved.
      is_folded: whether the ring goes up the even digits and down the odd ones, 0 2 4 ... 5 3 1, so that on a ladder
        every hop but two goes along a rail, and the last place is the first one's neighbour.
    """

    by: int
    stride: int = 1
    extent: int = 0
    is_folded: bool = False

    def destinations(self, size: int) -> np.ndarray:
        """Return the place that each of ``size`` places sends to, int64 ``[size]``, -1 for none.

        Raises:
          InvalidGraph: rings of that extent do not divide the places.
        """
        extent = self.extent or size
        if self.stride < 1 or extent < 1 or size % (self.stride * extent):
            raise InvalidGraph(f"rings of {extent} places {self.stride} apart do not divide {size} replicas")
        places = np.arange(size)
        digit = places // self.stride % extent
        if not self.is_folded:
            return places + ((digit + self.by) % extent - digit) * self.stride
        order = folded(extent)
        position = np.argsort(order)
        return places + (order[(position[digit] + self.by) % extent] - digit) * self.stride


@dataclass(frozen=True)
class Swap:
    """Place i exchanges with place ``i xor distance``.

    Args:
      distance: which bits of a place's number change.
    """

    distance: int

    def destinations(self, size: int) -> np.ndarray:
        """Return the place that each of ``size`` places sends to, int64 ``[size]``.

        Raises:
          InvalidGraph: a partner that is not there.
        """
        found = np.arange(size) ^ self.distance
        if self.distance < 0 or (size and found.max() >= size):
            raise InvalidGraph(f"{size} replicas cannot be paired at distance {self.distance}")
        return found


@dataclass(frozen=True)
class PartialSwap:
    """Place i exchanges with place ``i xor distance`` where there is one; the others send nothing and get nothing.

    Args:
      distance: which bits of a place's number change.
    """

    distance: int

    def destinations(self, size: int) -> np.ndarray:
        """Return the place that each of ``size`` places sends to, int64 ``[size]``, -1 for none.

        Raises:
          InvalidGraph: a distance below 1.
        """
        if self.distance < 1:
            raise InvalidGraph(f"{size} replicas cannot be paired at distance {self.distance}")
        found = np.arange(size) ^ self.distance
        return np.where(found < size, found, -1)


def swap(distance: int, size: int) -> Swap | PartialSwap:
    """Return the exchange of places at a distance among so many: with all partners where their number is a power of two."""
    return PartialSwap(distance) if size & (size - 1) else Swap(distance)


@dataclass(frozen=True)
class Pairs:
    """Each first place sends to the second one; the others send nothing, and nothing arrives where none sends.

    Args:
      pairs: (from, to), no place twice on one side.
    """

    pairs: tuple[tuple[int, int], ...]

    def destinations(self, size: int) -> np.ndarray:
        """Return the place that each of ``size`` places sends to, int64 ``[size]``, -1 for none.

        Raises:
          InvalidGraph: a place that is not there, or that sends or receives twice.
        """
        found = np.full(size, -1, np.int64)
        for which, places in (
            ("sends", [a for a, _ in self.pairs]),
            ("receives", [b for _, b in self.pairs]),
        ):
            outside = [place for place in places if not 0 <= place < size]
            if outside:
                raise InvalidGraph(f"a permutation names place {outside[0]}", expected=f"0 to {size - 1}")
            if len(set(places)) != len(places):
                twice = next(place for place in places if places.count(place) > 1)
                raise InvalidGraph(f"a permutation in which place {twice} {which} twice")
        if self.pairs:
            ends = np.array(self.pairs, np.int64)
            found[ends[:, 0]] = ends[:, 1]
        return found


Permutation: TypeAlias = Shift | Swap | PartialSwap | Pairs
_KINDS: dict[str, type[Permutation]] = {
    "shift": Shift,
    "swap": Swap,
    "partial_swap": PartialSwap,
    "pairs": Pairs,
}


def permutation_data(permutation: Permutation) -> list[Any]:
    """Return plain data of a permutation."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(permutation, cls))
    values: list[int | tuple[tuple[int, int], ...]] = [
        getattr(permutation, field.name) for field in fields(permutation)
    ]
    return [
        kind,
        *([list(pair) for pair in value] if isinstance(value, tuple) else value for value in values),
    ]


def permutation_from_data(data: Sequence[Any]) -> Permutation:
    """Return the permutation that ``permutation_data`` gave.

    Raises:
      InvalidGraph: it is none.
    """
    kind, *values = data
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None or len(values) != len(fields(cls)):
        raise InvalidGraph(f"{str(data)[:60]} is no permutation", expected=", ".join(_KINDS))
    if cls is Pairs:
        pairs = tuple((a, b) for a, b in values[0])
        if not all(type(place) is int for pair in pairs for place in pair):
            raise InvalidGraph(f"a permutation of {str(data)[:60]}", expected="pairs of whole numbers")
        return Pairs(pairs)
    kinds = [int, int, int, bool] if cls is Shift else [int]
    if any(type(value) is not kind for value, kind in zip(values, kinds, strict=True)):
        raise InvalidGraph(f"a permutation of {str(data)[:60]}", expected="whole numbers")
    return cls(*values)


@dataclass(frozen=True)
class Replicas:
    """The mesh of replicas.

    Args:
      axes: name and size of each, the slowest first.
      folded: axes along which place p is at the p-th place of a folded ring (0 2 4 ... 5 3 1) of IPUs, so that on a line
        or ladder all neighbours, the last place and the first too, are near each other.
      ipus_each: IPUs of a replica, one after another in the system.
      parts: axes that are parts of one that the user named, with that name, in the order of ``axes``.

    Raises:
      InvalidGraph: a name twice or none, a size below 1, more replicas than any system has IPUs, or an axis folded, or a
        part, that is not there.
    """

    axes: tuple[tuple[str, int], ...] = ()
    folded: tuple[str, ...] = ()
    ipus_each: int = 1
    parts: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names) or not all(is_a(name, str) and name for name in names):
            raise InvalidGraph(f"replicas need axes with names of their own, got {names}")
        for name, size in self.axes:
            if type(size) is not int or size < 1:
                raise InvalidGraph(f"axis {name!r} cannot have {size!r} replicas", expected="at least 1")
        if type(self.ipus_each) is not int or self.ipus_each < 1:
            raise InvalidGraph(f"replicas of {self.ipus_each!r} IPUs", expected="at least 1")
        if self.num_ipus > MAX_REPLICAS:
            several = f" of {self.ipus_each:,} IPUs" if self.ipus_each > 1 else ""
            raise InvalidGraph(f"{self.count:,} replicas{several}", expected=f"at most {MAX_REPLICAS:,}")
        whole = dict(self.parts)
        if self.parts and (
            not all(is_a(name, str) and name for name in whole.values())
            or self.parts != tuple((name, whole[name]) for name in names if name in whole)
        ):
            raise InvalidGraph(f"parts of axes {str(self.parts)[:80]}", expected="axes, and names, in order")
        if self.folded:
            chosen = set(self.require(self.folded))
            object.__setattr__(self, "folded", tuple(name for name in names if name in chosen))

    @property
    def count(self) -> int:
        """All replicas."""
        return math.prod(size for _, size in self.axes)

    @property
    def num_ipus(self) -> int:
        """The IPUs of all replicas."""
        return self.count * self.ipus_each

    @property
    def names(self) -> tuple[str, ...]:
        """The axes' names."""
        return tuple(name for name, _ in self.axes)

    def require(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return the axes, after checking that each is there, once.

        Raises:
          InvalidGraph: it is not.
        """
        found = tuple(axes)
        if not self.axes and found:
            raise InvalidGraph(
                f"axes {', '.join(map(repr, found))} of a graph that is not replicated",
                try_=f"graph.replicate({found[0]!r}, n) before",
            )
        missing = [name for name in found if name not in self.names]
        if missing or len(set(found)) != len(found) or not found:
            what = f"no axis {missing[0]!r}" if missing else f"axes {found}, which are none, or one twice,"
            have = ", ".join(f"{name} of {size}" for name, size in self.axes) or "none"
            raise InvalidGraph(
                f"the replicas have {what}" if missing else f"{what} name no groups", expected=have
            )
        return found

    def shown(self, axes: Iterable[str]) -> str:
        """Return some axes in order, by the names that the user gave them, each once."""
        chosen, whole = set(axes), dict(self.parts)
        named = (whole.get(name, name) for name in self.names if name in chosen)
        return ", ".join(dict.fromkeys(named))

    def size(self, axes: Sequence[str]) -> int:
        """Return how many replicas a group along some axes has."""
        sizes = dict(self.axes)
        return math.prod(sizes[name] for name in self.require(axes))

    def strides(self, axes: Sequence[str]) -> list[int]:
        """Return by how much a replica's number grows with its place along each of some axes."""
        found, stride = {}, 1
        for name, size in reversed(self.axes):
            found[name] = stride
            stride *= size
        return [found[name] for name in self.require(axes)]

    def place(self, axes: Sequence[str]) -> np.ndarray:
        """Return every replica's place along some axes, counted in the order in which they are named; int64 ``[count]``."""
        sizes, place = dict(self.axes), np.zeros(self.count, np.int64)
        for name, stride in zip(axes, self.strides(axes), strict=True):
            place = place * sizes[name] + np.arange(self.count) // stride % sizes[name]
        return place

    def destinations(self, axes: Sequence[str], permutation: Permutation) -> np.ndarray:
        """Return the replica that each sends to in its group, int64 ``[count]``, -1 for none.

        Raises:
          InvalidGraph: an axis that is not there, or a permutation that does not fit.
        """
        size = self.size(axes)
        if tuple(axes) == self.names:
            return permutation.destinations(size)
        wanted = permutation.destinations(size)[self.place(axes)]
        number, sizes = np.arange(self.count), dict(self.axes)
        found, rest = number.copy(), wanted
        for name, stride in reversed(list(zip(axes, self.strides(axes), strict=True))):
            found += (rest % sizes[name] - number // stride % sizes[name]) * stride
            rest = rest // sizes[name]
        return np.where(wanted < 0, -1, found)

    @cached_property
    def ipus(self) -> np.ndarray:
        """The IPU that each replica runs on, of several the first; int64 ``[count]``, read-only."""
        number = np.arange(self.count)
        sizes = dict(self.axes)
        found = number.copy()
        for name, stride in zip(self.folded, self.strides(self.folded) if self.folded else (), strict=True):
            place = number // stride % sizes[name]
            found += (folded(sizes[name])[place] - place) * stride
        return read_only(found * self.ipus_each)

    def firsts(self, axes: Sequence[str]) -> np.ndarray:
        """Return the first member of every replica's group along some axes; int64 ``[count]``."""
        number, sizes = np.arange(self.count), dict(self.axes)
        found = number.copy()
        for name, stride in zip(axes, self.strides(axes), strict=True):
            found -= number // stride % sizes[name] * stride
        return found

    def leading(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the order of dimensions that brings some axes to the front of an array over all axes."""
        first = [self.names.index(name) for name in self.require(axes)]
        return (*first, *(i for i in range(len(self.axes)) if i not in first))

    def to_data(self) -> list[list[Any]]:
        """Return plain data of the axes: name, size, whether folded, and of what the axis is a part."""
        whole = dict(self.parts)
        return [
            [
                name,
                size,
                *(["folded"] if name in self.folded else []),
                *([["of", whole[name]]] if name in whole else []),
            ]
            for name, size in self.axes
        ]

    @classmethod
    def from_data(cls, data: Sequence[Any], ipus_each: int = 1) -> Replicas:
        """Return what ``to_data`` gave, of so many IPUs each.

        Raises:
          InvalidGraph: it is none.
        """
        axes: list[tuple[str, int]] = []
        folded: list[str] = []
        parts: list[tuple[str, str]] = []
        for name, size, *marks in data:
            axes.append((name, size))
            if marks[:1] == ["folded"]:
                folded.append(name)
                marks = marks[1:]
            if marks and is_list(marks[0]) and len(marks[0]) == 2 and marks[0][0] == "of":
                parts.append((name, marks[0][1]))
                marks = marks[1:]
            if marks:
                raise InvalidGraph(
                    f"{str(data)[:60]} are no axes of replicas",
                    expected="name, size, perhaps 'folded', perhaps ['of', name]",
                )
        return cls(tuple(axes), tuple(folded), ipus_each, tuple(parts))

    def __str__(self) -> str:
        """Return e.g. ``data 8 x model 2``, folded axes marked, and of how many IPUs replicas of several are."""
        marked = (f"{name} {size}{' folded' * (name in self.folded)}" for name, size in self.axes)
        mesh = " x ".join(marked) or "one replica"
        return mesh if self.ipus_each == 1 else f"{mesh}, each on {self.ipus_each} IPUs"
