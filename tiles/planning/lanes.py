"""Operations that run side by side: alike, independent of each other, each on tiles of its own.

A Python loop over heads, experts or members of an ensemble is many small operations. Each cut over all tiles is little to
compute for much that is sent, and as they become one superstep (``compiler.grouping``) every tile has its part of each one
to do, one after another. Each on its share of the tiles sends less, and all take as long as one. What goes on with one of
them goes on there: a lane of operations has the same tiles from one to the next.

Operations are alike that compute the same, but for where a slice begins, from operands that were computed alike; of these
the ones at the same level (``loads``) are independent. Which ones may be lanes is known before a sequence is planned; whether
they are is decided by price when the first of them is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tiles.graph import Choice, Copy, Graph, Layout, Operation, Plan, Reshape, Sequence
from tiles.graph.program import Step
from tiles.plan import Operand
from tiles.planning.names import outside_names

T_Placed = TypeVar("T_Placed", Layout, Plan)


@dataclass(frozen=True)
class Area:
    """Neighbouring tiles that an operation has to itself.

    Args:
      base: the first tile.
      size: how many.
      num_tiles: of the IPU.
    """

    base: int
    size: int
    num_tiles: int

    def from_base(self, layout: Layout) -> Layout:
        """Return a layout by tiles counted from the area's first one on, those before it behind the last: alike lanes ask the same."""
        return self._moved(layout, -self.base)

    def holds(self, layout: Layout) -> bool:
        """Whether what a layout describes lies on these tiles only."""
        return self.base <= layout.base and int(layout.tiles.max()) < self.base + self.size

    def operand(self, known: Operand) -> Operand:
        """Return what is known of an operand by tiles counted so."""
        return known if known.layout is None else replace(known, layout=self.from_base(known.layout))

    def placed(self, found: T_Placed) -> T_Placed:
        """Return a plan or layout by the IPU's tiles that is one by tiles counted from the area's first one on."""
        return self._moved(found, self.base)

    def _moved(self, found: T_Placed, tiles: int) -> T_Placed:
        """Return a plan or layout so many tiles on; what would lie around the last tile stays: nearly all have some of it."""
        base = (found.base + tiles) % self.num_tiles
        span = int(found.tiles.max()) - found.base + 1
        return replace(found, base=base) if base + span <= self.num_tiles else found


@dataclass
class Alike:
    """Operations, or choices of such, that may run side by side.

    Attributes:
      count: how many they are.
      shared: names of the operands that several of them read.
      apart: by what is computed, whether each has tiles of its own; known when the first one is planned.
      taken: of choices, the number of the alternative that the first one took.
    """

    count: int
    shared: frozenset[str] = frozenset()
    apart: dict[Hashable, bool] = field(default_factory=dict[Hashable, bool])
    taken: int | None = None


@dataclass(frozen=True)
class Lane:
    """One of several operations that may run side by side.

    Args:
      alike: all of them.
      number: which one it is.
    """

    alike: Alike
    number: int

    def area(self, num_tiles: int, tiles_per_bus: int) -> Area:
        """Return the tiles that it has to itself, which it shares with others if there are more of them than tiles.

        Args:
          num_tiles: of an IPU.
          tiles_per_bus: tiles that share an exchange bus, which areas do not cut where they need not.
        """
        size = num_tiles // self.alike.count
        size -= size % tiles_per_bus if size > tiles_per_bus else 0
        size = max(1, size)
        return Area(self.number % (num_tiles // size) * size, size, num_tiles)


def lanes_of(given: Graph, sequence: Sequence) -> dict[str, Lane]:
    """Return what may run side by side in a sequence, by ``key_of``.

    Args:
      given: the graph as recorded.
      sequence: recorded steps of it; control ends what is beside each other.
    """
    kinds = _Kinds(given)
    groups: dict[Hashable, list[_Member]] = defaultdict(list)
    for step in sequence.steps:
        found = kinds.member(step)
        if found is None:
            kinds.meet_control()
        else:
            groups[found.group].append(found)
    lanes: dict[str, Lane] = {}
    made: dict[str, Lane] = {}
    for members in groups.values():  # what operands are made by comes first
        first = members[0]
        if isinstance(first.step, Copy | Reshape):
            lane = made.get(first.operands[0]) if len(first.operands) == 1 else None
            made.update(dict.fromkeys(first.results, lane) if lane else {})
        elif len(members) > 1:
            readers = Counter(name for member in members for name in set(member.operands))
            alike = Alike(len(members), frozenset(name for name, count in readers.items() if count > 1))
            for member, number in zip(members, _numbers(members, made), strict=True):
                lanes[member.results[0]] = lane = Lane(alike, number)
                made.update(dict.fromkeys(member.results, lane))
    return lanes


def key_of(step: Operation | Choice) -> str:
    """Return the name by which the lane of a step is known: its first result's."""
    return step.results[0]


@dataclass(frozen=True)
class _Member:
    """A step that makes tensors of others.

    Args:
      step: an operation, a choice, or what copies or renames.
      group: the same for all that may run side by side.
      operands: names of tensors.
      results: names of tensors.
    """

    step: Operation | Choice | Copy | Reshape
    group: Hashable
    operands: tuple[str, ...]
    results: tuple[str, ...]


def _numbers(members: list[_Member], made: dict[str, Lane]) -> list[int]:
    """Return which lane each of several alike steps is: that of an operand if these differ, else in program order."""
    count = len(members)
    for k in range(len(members[0].operands)):
        lanes = (made.get(member.operands[k]) for member in members)
        numbers = [lane.number for lane in lanes if lane is not None and lane.alike.count == count]
        if len(set(numbers)) == count:
            return numbers
    return list(range(count))


class _Kinds:
    """What tensors of a sequence were computed by, and from what; numbers stand for whatever may be compared."""

    def __init__(self, given: Graph) -> None:
        """Start with what the sequence does not compute, of which shape and dtype are known."""
        self._given = given
        self._numbers: dict[Hashable, int] = {}
        self._kinds: dict[str, int] = {}
        self._levels: dict[str, int] = {}
        self._segment = self._renamings = 0

    def meet_control(self) -> None:
        """Note that nothing runs beside what came before."""
        self._segment += 1
        self._levels.clear()

    def member(self, step: Step) -> _Member | None:
        """Return a step by what it computes, and note that for its results; None for control and what the host sees."""
        match step:
            case Operation():
                read, what = step.operands, _computed(step)
            case Choice():
                bodies = [alternative.body for alternative in step.alternatives]
                read = tuple(dict.fromkeys(name for body in bodies for name in outside_names(body)))
                inner = (each for body in bodies for each in body.steps if isinstance(each, Operation))
                what = tuple(map(_computed, inner))
            case Reshape():
                return self._renamed(step, (step.source,), step.destination)
            case Copy():
                return self._renamed(step, step.sources, step.destination)
            case _:
                return None
        kind = self._number((what, tuple(map(self._kind, read)), getattr(step, "ipu", 0)))
        level = self._level(read)
        for k, name in enumerate(step.results):
            self._kinds[name] = self._number((kind, k))
            self._levels[name] = level + 1
        return _Member(step, (self._segment, level, kind), read, step.results)

    def _renamed(self, step: Copy | Reshape, sources: tuple[str, ...], result: str) -> _Member:
        """Return a step that computes nothing: it is alone."""
        shape = self._given.tensors[result].shape
        self._kinds[result] = self._number((getattr(step, "axis", None), shape, *map(self._kind, sources)))
        self._levels[result] = self._level(sources)
        self._renamings += 1
        return _Member(step, self._renamings, sources, (result,))

    def _level(self, names: Iterable[str]) -> int:
        return max((self._levels.get(name, 0) for name in names), default=0)

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def _kind(self, name: str) -> int:
        if name not in self._kinds:
            tensor = self._given.tensors[name]
            self._kinds[name] = self._number((tensor.shape, tensor.dtype))
        return self._kinds[name]


def _computed(operation: Operation) -> Hashable:
    """Return what an operation computes, but for where in its operands it begins."""
    form = operation.form
    read = tuple(tuple(axis.terms for axis in operand.axes) for operand in form.operands)
    return operation.codelet, form.dims, read, form.results
