"""Steps that need no exchange between them become one step: compute sets one superstep, copies around a call one exchange.

A step joins an earlier one of its sequence when nothing from there on stands in its way: no step writes the storage of
what it reads, or reads or writes the storage of what it writes. Of members of one superstep, which exchange before any of
them computes, and compute in order on every tile, a later one may read in place what an earlier one wrote, write over it
then, and write over what earlier ones read: so a bias is received with the products that it is added to. What goes on
with what its tile has computed and receives nothing, nor is needed by what does, saves no phase: it joins the group after
them, or is a step of its own in between, told apart in reports. Storages are those of the program as it stood, so views,
copies that need not move and results in place stay what they were. Control, and whatever the host sees, is never passed.
A superstep of several members takes no longer than they did apart: one sync, one exchange phase, and no tile waits between
them. Slices of one product that is cut to need less memory stay apart. Exchange programs are shared in a step as between
steps (``sharing``), so that joining costs none.

Memory is what it may cost: results are there earlier, and what members receive and use is there together. A step joins
where the fullest tile then has at most so many bytes more than the program ever had (``spare_bytes``).
"""

from __future__ import annotations

import bisect
import copy
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tiles.compiler.control import Node, Part, Sequence, Switch, While
from tiles.compiler.costs import kinds_of, most_scratch_bytes
from tiles.compiler.memory import Request, tile_ranges
from tiles.compiler.order import Copies, NumberedStep, Order, live_range
from tiles.compiler.storages import Storages
from tiles.graph import ComputeSet, Copy, Tensor
from tiles.plan import is_local, is_resident
from tiles.planning import operation_of

SHARE = 0.03
"""Of a tile: by how much grouping may raise the most that any tile holds at once."""
MOST_TRIED = 16
"""Groups, the earliest first, that are asked for room."""
REGIONS = 256
"""At most so many parts of a machine are looked at by themselves: operations on tiles of their own share no memory."""
NEVER = -1


def grouped(
    tree: Sequence,
    order: Order,
    storages: Storages,
    requests: list[Request],
    spare_bytes: int,
) -> tuple[Node, Order]:
    """Return the program with steps that are alike grouped, numbered anew.

    Args:
      tree: control tree over the order's steps.
      order: steps, who reads and writes what, loops, branches and functions.
      storages: where its tensors lie.
      requests: the buffers of data of the program as it stands.
      spare_bytes: by how much the most bytes of data on any tile may grow.
    """
    grouping = _Grouping(order, storages, _Budget(order, storages, requests, spare_bytes))
    grouping.walk(tree)
    return _renumbered(tree, order, grouping.placed())


def is_leaf(step: Copy | ComputeSet) -> bool:
    """Whether a step is a copy, or vertices without products and without partials."""
    return isinstance(step, Copy) or not any(
        v.codelet.is_contraction or v.plan.split_reductions(v.form) for v in step.vertices
    )


# ---- which steps join


@dataclass
class _Run:
    """What was seen since control or the host was last met in a sequence: by storage the last steps that use it, and groups.

    Attributes:
      reads: the last step that reads each storage.
      writes: the last step that writes each storage.
      holds: what was written there last, by the step of which number.
      groups: steps that others may join, by their kind.
    """

    reads: dict[str, int] = field(default_factory=dict[str, int])
    writes: dict[str, int] = field(default_factory=dict[str, int])
    holds: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    groups: dict[type, list[int]] = field(default_factory=lambda: defaultdict(list))


class _Grouping:
    """Walks a program's sequences.

    Attributes:
      leader: by number, the step that every step belongs to.
      cut: by group, operations of which it computes a slice.
      written: by group, the tensors that it writes, each once.
      sources: by step of one operation, those whose results it reads from its own tiles' memory.
      receiving: steps to which something comes from other tiles.
    """

    def __init__(self, order: Order, storages: Storages, budget: _Budget) -> None:
        self.order, self.storages, self.budget = order, storages, budget
        self.leader = list(range(len(order.steps)))
        self.cut: dict[int, set[str]] = defaultdict(set)
        self.written: dict[int, set[str]] = defaultdict(set)
        self.sources: dict[int, set[int]] = {}
        self.receiving: set[int] = set()
        self._seen: set[int] = set()
        self._runs: list[_Run] = []

    def walk(self, node: Node) -> None:
        """Group the steps of every sequence of a tree; a function's body is met once for each call."""
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        run = self._run()
        for part in node.parts:
            if not isinstance(part, int):
                self.walk(part)
                run = self._run()
            elif isinstance(node, Sequence):
                run = self._step(part, run)

    def _run(self) -> _Run:
        self._runs.append(_Run())
        return self._runs[-1]

    def _step(self, number: int, run: _Run) -> _Run:
        """Let a step join a group or start one; return what was seen by then."""
        step = self.order.steps[number][1]
        if not isinstance(step, (Copy, ComputeSet)):
            return self._run()
        names = accessed(step)
        reads, writes = ({self.storages.of(name) for name in each} for each in names)
        here = self._read_here(number, step, run)
        after = [run.writes.get(storage, NEVER) for storage in (reads | writes) - here]
        since = [run.writes.get(storage, NEVER) for storage in here]
        (since if isinstance(step, ComputeSet) else after).extend(run.reads.get(s, NEVER) for s in writes)
        groups = run.groups[type(step)]
        earliest = max(
            bisect.bisect_right(groups, max(after, default=NEVER)),
            bisect.bisect_left(groups, max(since, default=NEVER)),
        )
        tried = groups[earliest : earliest + MOST_TRIED]
        cut = _split_operation(self.order.steps[number][0])
        free = (
            g for g in tried if (not cut or cut not in self.cut[g]) and self.written[g].isdisjoint(names[1])
        )
        place = next((g for g in free if self.budget.allows(number, g)), number)
        self.cut[place].add(cut)
        self.written[place] |= names[1]
        if place == number:
            groups.append(number)
        else:
            self.leader[number] = place
            self.budget.move(number, place, reads | writes)
        for storage in reads:
            run.reads[storage] = max(place, run.reads.get(storage, NEVER))
        for name in names[1]:
            storage = self.storages.of(name)
            run.writes[storage] = max(place, run.writes.get(storage, NEVER))
            run.holds[storage] = name, number
        return run

    def _read_here(self, number: int, step: Copy | ComputeSet, run: _Run) -> set[str]:
        """Return the storages of which a step reads only what was last written there, every tile from its own memory."""
        if not isinstance(step, ComputeSet) or len(step.vertices) != 1:
            return set()
        group, here = step.vertices[0], dict[str, int]()
        other: set[str] = set()
        for k, name in enumerate(group.operands):
            storage, layout = self.storages.of(name), self.storages.tensors[name].layout
            assert layout is not None
            held, writer = run.holds.get(storage, ("", NEVER))
            if not is_local(group.form, group.plan, k, layout):
                self.receiving.add(number)
            if held == name and is_resident(group.form, group.plan, k, layout):
                here[storage] = writer
            else:
                other.add(storage)
        found = here.keys() - other
        self.sources[number] = {here[storage] for storage in found}
        return found

    def placed(self) -> list[tuple[int, int]]:
        """Return for every step its group, and how many steps behind it that it is: those that save no phase there."""
        members: dict[int, list[int]] = defaultdict(list)
        for number, first in enumerate(self.leader):
            members[first].append(number)
        found = [(number, 0) for number in self.leader]
        for run in self._runs:
            copies, groups = run.groups[Copy], run.groups[ComputeSet]
            for group, following in itertools.zip_longest(groups, groups[1:], fillvalue=NEVER):
                behind = self._behind(members[group])
                late = [number for number, steps in behind.items() if steps]
                is_next = bisect.bisect(copies, group) == bisect.bisect(copies, following)
                if late and is_next and self._moves_on(late, following, members[following]):
                    members[following] = sorted(members[following] + late)
                    behind = {number: 0 for number, steps in behind.items() if not steps}
                for number, steps in behind.items():
                    found[number] = group, steps
        return found

    def _moves_on(self, late: list[int], group: int, members: list[int]) -> bool:
        """Whether steps that go on from a group run with the next one: it uses no result of theirs, and there is room.

        If so, what they hold there is counted.
        """
        if group == NEVER:
            return False
        written = {storage for number in late for storage in self._storages(number)[1]}
        used = (storages for number in members for storages in self._storages(number))
        if not all(written.isdisjoint(storages) for storages in used):
            return False
        read = {storage for number in late for storage in self._storages(number)[0]}
        own = self.budget.own[late].sum(axis=0) + self.budget.sizes(sorted(read - written))
        if np.any(self.budget.added[group] + own > self.budget.room[group]):
            return False
        self.budget.added[group] += own
        return True

    def _storages(self, number: int) -> tuple[set[str], set[str]]:
        """Return the storages that a step reads, and those it writes."""
        step = self.order.steps[number][1]
        assert isinstance(step, (Copy, ComputeSet))
        reads, writes = accessed(step)
        return set(map(self.storages.of, reads)), set(map(self.storages.of, writes))

    def _behind(self, numbers: list[int]) -> dict[int, int]:
        """Return how many steps behind their group its members are, given in order."""
        before: dict[int, set[int]] = {}
        """By member, those that it may not come before: over whose operands it writes."""
        sources: dict[int, set[int]] = {}
        readers: dict[str, set[int]] = defaultdict(set)
        for number in numbers:
            reads, writes = self._storages(number)
            before[number] = {reader for storage in writes for reader in readers[storage]}
            sources[number] = self.sources.get(number, set()).intersection(numbers)
            for storage in reads:
                readers[storage].add(number)
        kept: set[int] = set()  # in the group itself
        for number in reversed(numbers):
            if number in kept or number in self.receiving or not sources[number]:
                kept |= {number} | sources[number] | before[number]
        behind: dict[int, int] = {}
        for number in numbers:
            steps = [behind[source] + 1 for source in sources[number]]
            steps += [behind[reader] for reader in before[number]]
            behind[number] = 0 if number in kept else max(steps)
        return behind


def _split_operation(name: str) -> str:
    """Return the operation that a step computes a slice of, one after another to save memory; "" for other steps."""
    operation = operation_of(name)
    return operation if ".turn" in name[len(operation) :] else ""


def accessed(step: Copy | ComputeSet) -> tuple[set[str], set[str]]:
    """Return the tensors that a step reads, and those it writes."""
    if isinstance(step, Copy):
        return set(step.sources), {step.destination}
    operands = {name for group in step.vertices for name in group.operands}
    return operands, {name for group in step.vertices for name in group.results}


# ---- what it costs


class _Budget:
    """Bytes that grouping adds to what tiles hold at every step, and how many it may add.

    Everything that is added at one step in one region counts as if it were on the same tile there, the fullest, so it never
    adds more.
    """

    def __init__(
        self,
        order: Order,
        storages: Storages,
        requests: list[Request],
        spare_bytes: int,
    ) -> None:
        graph, last, members = order.graph, len(order.steps), storages.members()
        self.span = {storage: live_range(graph, order, names, last) for storage, names in members.items()}
        self.uses = {
            storage: sorted({number for name in names for number, _ in order.accesses.get(name, ())})
            for storage, names in members.items()
        }
        passing = [r for r in requests if r.category == "message"] + _scratch(order, storages.tensors)
        num_tiles = graph.target.num_tiles
        self._first = _regions([*requests, *passing], num_tiles)
        self._regions: dict[int, np.ndarray] = {}
        self._size = {r.name: r.size_bytes * self._covered(r.mask) for r in requests}
        self.own = np.zeros((last, self._first.size), np.int64)
        for r in passing:
            self.own[r.start] += r.size_bytes * self._covered(r.mask)
        lasting = [r for r in requests if r.category != "message"]
        held = _held([*lasting, *passing], last, num_tiles, self._first)
        self.room = held.max(initial=0) - held + spare_bytes
        self.added = np.zeros_like(self.own)
        self.place = np.arange(last + 1)
        self.starting: dict[int, list[str]] = defaultdict(list)
        for storage, (start, _) in self.span.items():
            self.starting[start].append(storage)
        self.charged: dict[str, tuple[int, int]] = {}

    def _covered(self, mask: int) -> np.ndarray:
        """Return in which regions a set of tiles has some, int64 ``[regions]`` of 0 and 1."""
        if mask not in self._regions:
            ends = [*self._first[1:].tolist(), mask.bit_length()]
            self._regions[mask] = np.array(
                [
                    bool(mask >> first & ((1 << max(end - first, 0)) - 1))
                    for first, end in zip(self._first.tolist(), ends, strict=True)
                ],
                np.int64,
            )
        return self._regions[mask]

    def sizes(self, storages: Iterable[str]) -> np.ndarray:
        """Return the bytes of storages on a tile of each region, int64 ``[regions]``."""
        return sum((self._size[storage] for storage in storages), np.zeros_like(self._first))

    def allows(self, number: int, group: int) -> bool:
        """Whether there is room for a step where a group is, and for its results from there on."""
        results = self.sizes(self.starting[number])
        if np.any(self.added[group] + self.own[number] + results > self.room[group]):
            return False
        return bool(np.all(self.added[group:number] + results <= self.room[group:number]))

    def move(self, number: int, group: int, storages: set[str]) -> None:
        """Note that a step, which uses ``storages``, has joined a group."""
        self.place[number] = group
        self.added[group] += self.own[number]
        self.room[number] = np.iinfo(np.int64).max  # there is no such step any more
        for storage in sorted(storages):
            start, end = self.span[storage]
            uses = self.uses[storage]
            if end == uses[-1]:
                end = int(self.place[uses].max())
            self._charge(storage, int(self.place[start]) if start >= 0 else start, min(start - 1, end))

    def _charge(self, storage: str, first: int, last: int) -> None:
        """Count a storage in steps ``first`` to ``last``, in which it was not live, and only there."""
        for sign, (a, b) in ((-1, self.charged.pop(storage, (0, -1))), (1, (first, last))):
            if a <= b:
                self.added[a : b + 1] += sign * self._size[storage]
        if first <= last:
            self.charged[storage] = first, last


def _scratch(order: Order, tensors: Mapping[str, Tensor]) -> list[Request]:
    """Return the buffers of temporary bytes of vertices."""
    found: list[Request] = []
    for number, (_, step) in enumerate(order.steps):
        for group in step.vertices if isinstance(step, ComputeSet) else ():
            operands, results = (
                tuple(tensors[name].dtype for name in names) for names in (group.operands, group.results)
            )
            kinds = kinds_of(group.form, group.plan, operands, results)
            size = most_scratch_bytes(group.codelet, *kinds, order.graph.target)
            if size:
                mask = group.plan.tile_mask
                found.append(Request(group.name, "vertexScratch", size, mask, number, number))
    return found


def _regions(requests: list[Request], num_tiles: int) -> np.ndarray:
    """Return the first tiles of regions of a machine, ascending from 0: those where most buffers begin or end."""
    found = Counter(
        tile
        for r in requests
        if r.mask
        for tile in ((r.mask & -r.mask).bit_length() - 1, r.mask.bit_length())
    )
    found.pop(0, None)
    found.pop(num_tiles, None)
    often = sorted(found, key=lambda tile: (-found[tile], tile))[: REGIONS - 1]
    return np.array([0, *sorted(often)])


def _held(requests: list[Request], steps: int, num_tiles: int, regions: np.ndarray) -> np.ndarray:
    """Return the most bytes that any tile of a region holds of some buffers at every step, int64 ``[steps, regions]``.

    Args:
      requests: the buffers.
      steps: how many there are.
      num_tiles: of the machine.
      regions: the first tile of each, ascending from 0.
    """
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for r in requests:
        if r.end >= 0 and r.start < steps:
            changes[max(r.start, 0)].append((r.mask, r.size_bytes))
            changes[r.end + 1].append((r.mask, -r.size_bytes))
    tiles, most = np.zeros(num_tiles, np.int64), np.zeros((steps, regions.size), np.int64)
    for number in range(steps):
        for mask, size in changes.get(number, ()):
            for first, end in tile_ranges(mask):
                tiles[first:end] += size
        np.maximum.reduceat(tiles, regions, out=most[number])
    return most


# ---- numbering anew


def _renumbered(tree: Sequence, order: Order, placed: list[tuple[int, int]]) -> tuple[Node, Order]:
    """Return tree and order with every step where it is placed, and numbers without gaps."""
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, place in enumerate(placed):
        members[place].append(number)
    firsts = sorted(members)
    count = np.bincount([group for group, _ in firsts], minlength=len(placed))
    rank = np.concatenate([[0], np.cumsum(count)]).tolist()
    """By old number, up to their count, how many steps come before."""

    def spanned(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(rank[first], max(rank[first], rank[min(end + 1, len(placed))] - 1)) for first, end in spans]

    new = copy.copy(order)
    new.steps = [
        (order.steps[members[place][0]][0], _joined([order.steps[n][1] for n in members[place]]))
        for place in firsts
    ]
    places = [*(rank[group] + behind for group, behind in placed), len(firsts)]
    new.accesses = defaultdict(list)
    for name, uses in order.accesses.items():
        written = {places[number]: number for number, is_write in sorted(uses, reverse=True) if is_write}
        new.accesses[name] = [
            (places[number], is_write)
            for number, is_write in uses
            if is_write or number <= written.get(places[number], number)  # else an earlier member wrote it
        ]
    new.undefined = defaultdict(list)
    for name, numbers in order.undefined.items():
        new.undefined[name] = [places[number] for number in numbers]
    new.loops, new.branches = spanned(order.loops), spanned(order.branches)
    new.recalls = [(rank[at], rank[low]) for at, low in order.recalls]
    new.bodies = {f: range(rank[body.start], rank[body.stop]) for f, body in order.bodies.items()}
    new.recalled = {f: [rank[at] for at in sites] for f, sites in order.recalled.items()}
    new.__dict__.pop("call_spans", None)  # of the old numbers
    return _Trees(rank).of(tree), new


def _joined(steps: list[NumberedStep]) -> NumberedStep:
    """Return one step that does what several do."""
    if len(steps) == 1:
        return steps[0]
    copies = tuple(step for step in steps if isinstance(step, Copy))
    if copies:
        return Copies(copies)
    sets = [step for step in steps if isinstance(step, ComputeSet)]
    return replace(sets[0], vertices=tuple(group for each in sets for group in each.vertices))


class _Trees:
    """Control trees with the steps' new numbers, given how many come before each old one; what is one tree stays one."""

    def __init__(self, rank: list[int]) -> None:
        self.rank = rank
        self._done: dict[int, Node] = {}

    def of(self, node: Node) -> Node:
        if id(node) not in self._done:
            self._done[id(node)] = self._renumbered(node)
        return self._done[id(node)]

    def _renumbered(self, node: Node) -> Node:
        match node:
            case Sequence():
                return Sequence(tuple(self._parts(node)))
            case Switch():
                return replace(node, branches=tuple(self._part(part) for part in node.branches))
            case While():
                return replace(node, condition=self._part(node.condition), body=self._part(node.body))
            case _:
                return replace(node, body=self._part(node.body))

    def _parts(self, sequence: Sequence) -> Iterator[Part]:
        """Yield the parts of a sequence, every group with the steps behind it."""
        for part in sequence.parts:
            if isinstance(part, int):
                yield from range(self.rank[part], self.rank[part + 1])
            else:
                yield self.of(part)

    def _part(self, part: Part) -> Part:
        return self.rank[part] if isinstance(part, int) else self.of(part)
