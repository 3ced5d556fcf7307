"""Register allocation: liveness over bundles, then colours for aligned groups of registers.

Both halves of a bundle read before either writes, so a register read for the last time may be written by the same
bundle. Groups are live by single registers, and take neighbouring registers at a multiple of their size.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tiles.cached import cached_property
from tiles.elements.isa import InstructionSet
from tiles.elements.tilecode import Block, Bundle, Instruction, Item, Loop, Register, Repeat
from tiles.errors import OutOfRegisters

Name = tuple[str, int]


class Pressure(Exception):
    """No colours are left for some groups."""

    def __init__(self, names: Sequence[Name], candidates: Callable[[], list[list[Name]]]) -> None:
        """State the groups, and for each what could be spilled, best first."""
        super().__init__(names[0][0])
        self.file = names[0][0]
        self.names = frozenset(names)
        self.groups = len(names)
        self.candidates = candidates


def allocated(
    items: Sequence[Item], isa: InstructionSet, groups: Groups | None = None
) -> tuple[tuple[Item, ...], tuple[int, int]]:
    """Return scheduled items on physical registers, and how many of each file they use.

    Args:
      items: scheduled code on virtual registers.
      isa: the instruction set.
      groups: what is known of blocks that were met before, which those of these items join.

    Raises:
      Pressure: there are too few registers.
    """
    flow = Flow(items, Groups() if groups is None else groups)
    homes = flow.colours({"M": isa["main_registers"], "A": isa["aux_registers"]})
    used = {"M": 0, "A": 0}
    for (file, index), first in homes.items():
        used[file] = max(used[file], first + flow.groups.widths[flow.groups.places[file, index]])
    return _renamed(tuple(items), homes), (used["M"], used["A"])


_ELSEWHERE = 3
"""How many times dearer it is to spill a group that is not there where most registers are taken: that may free none."""
_LANE = 4
"""Registers of the widest group. Sets of registers are numbers with so many bits for each group."""
_FIRST_LANE = np.uint8((1 << _LANE) - 1)
"""Bits of the first of the two groups that an octet of a set says."""


@dataclass(frozen=True)
class Straight:
    """What bundles one after the other do to registers.

    Attributes:
      reads, writes: sets of registers, for every bundle.
      written: places of the groups that each bundle writes.
      uses: how often each group is named, by its place.
    """

    reads: list[int]
    writes: list[int]
    written: list[tuple[int, ...]]
    uses: Mapping[int, int]


class _Half(NamedTuple):
    """What one instruction does to registers, as for ``Straight``; ``named`` are the places of all that it names."""

    reads: int
    writes: int
    written: tuple[int, ...]
    named: tuple[int, ...]


class Groups:
    """The groups of registers of some code, numbered as they are met, and what its blocks do to them.

    It is kept while values are spilled, from few blocks at a time. Blocks and instructions are told apart by the
    object that they are, and kept, so that no other takes their place.
    """

    def __init__(self) -> None:
        """Know none yet."""
        self.names: list[Name] = []
        self.places: dict[Name, int] = {}
        self.widths: list[int] = []
        self.blocks: dict[int, tuple[Sequence[Bundle], Straight]] = {}
        self.instructions: dict[int, tuple[Instruction, _Half]] = {}
        self.waits: dict[int, str] = {}
        """By the place of a group that is loaded from, or stored to, scratch memory, where in it."""

    def straight(self, bundles: Sequence[Bundle]) -> Straight:
        """Return what a block's bundles do."""
        known = self.blocks.get(id(bundles))
        if known is None:
            known = self.blocks[id(bundles)] = bundles, self._straight(bundles)
        return known[1]

    def _straight(self, bundles: Sequence[Bundle]) -> Straight:
        reads: list[int] = []
        writes: list[int] = []
        written: list[tuple[int, ...]] = []
        named: list[tuple[int, ...]] = []
        for bundle in bundles:
            halves = [self._instruction(instruction) for instruction in bundle.instructions]
            read, wrote, places = 0, 0, ()
            for half in halves:
                read |= half.reads
                wrote |= half.writes
                places += half.written
                named.append(half.named)
            reads.append(read)
            writes.append(wrote)
            written.append(places)
        return Straight(reads, writes, written, Counter(itertools.chain.from_iterable(named)))

    def _instruction(self, instruction: Instruction) -> _Half:
        known = self.instructions.get(id(instruction))
        if known is None:
            half = self._half(instruction.ins, instruction.outs)
            known = self.instructions[id(instruction)] = instruction, half
            if instruction.stream.startswith("scratch") and len(half.named) == 1:
                self.waits[half.named[0]] = instruction.stream
        return known[1]

    def of(self, ins: Sequence[Register], outs: Sequence[Register]) -> Straight:
        """Return what one place in the code does that reads and writes registers."""
        one = self._half(ins, outs)
        return Straight([one.reads], [one.writes], [one.written], Counter(one.named))

    def _half(self, ins: Sequence[Register], outs: Sequence[Register]) -> _Half:
        named: list[int] = []
        reads = writes = 0
        for register in ins:
            if register.virtual:
                reads |= self._mask(register, named)
        first = len(named)
        for register in outs:
            if register.virtual:
                writes |= self._mask(register, named)
        return _Half(reads, writes, tuple(named[first:]), tuple(named))

    def _mask(self, register: Register, named: list[int]) -> int:
        name = (register.file, register.index)
        place = self.places.get(name)
        if place is None:
            place = self.places[name] = len(self.names)
            self.names.append(name)
            self.widths.append(1)
        self.widths[place] = max(self.widths[place], register.group_width)
        named.append(place)
        return ((1 << register.width) - 1) << _LANE * place + register.offset


class _Used(NamedTuple):
    """The groups that some code names.

    Attributes:
      places: of each among the groups that are known.
      names: of each.
      widths: registers of each.
      is_main: whether it is of the main file, ``bool[groups]``.
      ranks: place of each in the order of names.
    """

    places: list[int]
    names: list[Name]
    widths: list[int]
    is_main: npt.NDArray[np.bool_]
    ranks: list[int]


class Flow:
    """The code as a graph of places, with what is live at each."""

    def __init__(self, items: Sequence[Item], groups: Groups) -> None:
        """Build the graph, and solve for liveness."""
        self.groups = groups
        self.reads: list[int] = []
        self.writes: list[int] = []
        self.written: list[tuple[int, ...]] = []
        self.follows: list[list[int]] = []
        self.uses: dict[int, int] = defaultdict(int)
        self.weight = 1
        ends = self._items(items, [])
        self._extend(Straight([0], [0], [()], {}), ends)
        self.live_out = self._solve()

    def _extend(self, straight: Straight, ends: list[int]) -> list[int]:
        """Append bundles one after the other, and return the last as what others may follow."""
        if not straight.reads:
            return ends
        first = len(self.reads)
        self._link(ends, first)
        self.reads += straight.reads
        self.writes += straight.writes
        self.written += straight.written
        self.follows += [[at] for at in range(first + 1, len(self.reads))]
        self.follows.append([])
        for place, count in straight.uses.items():
            self.uses[place] += self.weight * count
        return [len(self.reads) - 1]

    def _add(self, ins: Sequence[Register], outs: Sequence[Register], ends: list[int]) -> list[int]:
        return self._extend(self.groups.of(ins, outs), ends)

    def _link(self, ends: list[int], to: int) -> None:
        for end in ends:
            self.follows[end].append(to)

    def _bundles(self, bundles: Sequence[Bundle], ends: list[int]) -> list[int]:
        return self._extend(self.groups.straight(bundles), ends)

    def _items(self, items: Sequence[Item], ends: list[int]) -> list[int]:
        for item in items:
            if isinstance(item, Block):
                ends = self._bundles(item.bundles or (), ends)
            elif isinstance(item, Repeat):
                ends = self._repeat(item, ends)
            elif isinstance(item, Loop):
                ends = self._loop(item, ends)
            else:
                ends = self._add((item.condition,), (), ends)
                ends = ends + self._items(item.body, ends)
        return ends

    def _repeat(self, item: Repeat, ends: list[int]) -> list[int]:
        ends = self._bundles(item.lead.bundles or (), ends)
        start = self._add(() if item.count is None else (item.count,), (), ends)
        first = len(self.reads)
        self.weight *= 16
        ends = self._bundles(item.body.bundles or (), start)
        self.weight //= 16
        self._link(ends, first)
        return ends + start

    def _loop(self, item: Loop, ends: list[int]) -> list[int]:
        first = len(self.reads)
        self.weight *= 16
        ends = self._items(item.body, ends)
        ends = self._add((item.counter,), (item.counter,), ends)
        self.weight //= 16
        self._link(ends, first)
        return ends

    def _solve(self) -> list[int]:
        live_in = [0] * len(self.reads)
        live_out = [0] * len(self.reads)
        changed = True
        while changed:
            changed = False
            for at in range(len(self.reads) - 1, -1, -1):
                out = 0
                for follow in self.follows[at]:
                    out |= live_in[follow]
                into = self.reads[at] | (out & ~self.writes[at])
                changed |= into != live_in[at] or out != live_out[at]
                live_out[at], live_in[at] = out, into
        return live_out

    @cached_property
    def _used(self) -> _Used:
        """The groups that the code names, in the order in which they were met."""
        places = sorted(self.uses)
        names = [self.groups.names[place] for place in places]
        widths = [self.groups.widths[place] for place in places]
        ranks = [0] * len(names)
        for rank, at in enumerate(sorted(range(len(names)), key=names.__getitem__)):
            ranks[at] = rank
        return _Used(places, names, widths, np.array([name[0] == "M" for name in names]), ranks)

    @cached_property
    def _held(self) -> npt.NDArray[np.uint8]:
        """Which single registers are held, a bit for each of a group's: live after a bundle, or written; [points, groups]."""
        return self._by_group(
            [live | writes for live, writes in zip(self.live_out, self.writes, strict=True)]
        )

    def _by_group(self, masks: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Return sets of registers with the bits of each group that the code names apart, ``[masks, groups]``."""
        size = -(-_LANE * len(self.groups.names) // 8)
        octets = np.frombuffer(b"".join([mask.to_bytes(size, "little") for mask in masks]), np.uint8)
        lanes = np.stack([octets & _FIRST_LANE, octets >> _LANE], axis=-1).reshape(len(masks), 2 * size)
        return lanes[:, self._used.places].astype(np.uint8, copy=False)

    def interference(self) -> npt.NDArray[np.bool_]:
        """Return which groups, in the order of ``_used``, may not share registers: ``bool[groups, groups]``, symmetric."""
        used = self._used
        beside = [0] * len(self.groups.names)  # what is held wherever a group is written
        for places, live, writes in zip(self.written, self.live_out, self.writes, strict=True):
            for place in places:
                beside[place] |= live | writes
        clashes = self._by_group([beside[place] for place in used.places]) > 0
        clashes |= clashes.T
        clashes &= used.is_main[:, None] == used.is_main[None]
        clashes.flat[:: len(clashes) + 1] = False
        return clashes

    def colours(self, sizes: dict[str, int]) -> dict[Name, int]:
        """Return the first physical register of every group: simplify and select, widest and most crowded first.

        Raises:
          Pressure: some group finds none.
        """
        places, names, widths, _, _ = self._used
        waits = [self.groups.waits.get(place) for place in places]
        latest: dict[
            tuple[str, str, int], int
        ] = {}  # by place in scratch memory, where its value was put last
        clashes = self.interference()
        size = -(-len(names) // 8)
        octets = np.packbits(clashes, axis=1, bitorder="little").tobytes()
        homes: dict[Name, int] = {}
        failed: list[int] = []
        holders = {file: [0] * count for file, count in sizes.items()}  # the groups at each register
        rows, others = clashes.nonzero()
        ends = np.cumsum(np.bincount(rows, minlength=len(names))).tolist()
        every: list[int] = others.tolist()
        near = [every[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        for at in self._order(near, sizes):
            width, mine = widths[at], int.from_bytes(octets[at * size : (at + 1) * size], "little")
            held = holders[names[at][0]]
            if width == 1:
                first = _single(held, mine)
            else:
                taken = [mine & each for each in held]
                firsts = range(0, len(held) - width + 1, width)
                first = next((first for first in firsts if not any(taken[first : first + width])), None)
            if first is None:
                failed.append(at)
                continue
            waiting = waits[at]
            if waiting is not None:
                place = waiting, names[at][0], width
                before = latest.get(place, first)
                if not any(mine & each for each in held[before : before + width]):
                    first = before  # what is there already need not be loaded
                latest[place] = first
            homes[names[at]] = first
            for register in range(first, first + width):
                held[register] |= 1 << at
        if failed:
            without = [names[at] for at in failed]
            raise Pressure(without, functools.partial(self._spillable, near, failed))
        return homes

    def _order(self, near: Sequence[Sequence[int]], sizes: dict[str, int]) -> list[int]:
        """Return groups in the order of colouring: those that are easy whatever the others take come last.

        Args:
          near: for every group those that it may not share registers with.
          sizes: registers of each file.
        """
        _, names, widths, _, ranks = self._used
        count = len(names)
        by_rank = [0] * count
        for at, rank in enumerate(ranks):
            by_rank[rank] = at
        left = [sum([widths[o] for o in each]) + len(each) * (widths[at] - 1) for at, each in enumerate(near)]
        limits = [sizes[name[0]] - width for name, width in zip(names, widths, strict=True)]
        # heaps of numbers: how crowded a group is by its width, in quarters, and its rank
        quarters = [_LANE // width for width in widths]
        easy = [n * quarters[at] * count + ranks[at] for at, n in enumerate(left) if n <= limits[at]]
        heapq.heapify(easy)
        crowded = [ranks[at] - n * quarters[at] * count for at, n in enumerate(left)]
        heapq.heapify(crowded)
        is_left = [True] * count
        stack: list[int] = []
        while len(stack) < count:
            is_easy = bool(easy)
            rate, rank = divmod(heapq.heappop(easy if is_easy else crowded), count)
            pick = by_rank[rank]
            if not is_left[pick]:
                continue
            now = left[pick] * quarters[pick]
            if abs(rate) != now:  # it has had fewer neighbours left since
                if not is_easy:
                    heapq.heappush(crowded, rank - now * count)
                continue
            stack.append(pick)
            is_left[pick] = False
            more = widths[pick] - 1
            for other in near[pick]:
                if is_left[other]:
                    left[other] = now = left[other] - more - widths[other]
                    if now <= limits[other]:
                        heapq.heappush(easy, now * quarters[other] * count + ranks[other])
        return stack[::-1]

    def _spillable(self, near: Sequence[Sequence[int]], failed: Sequence[int]) -> list[list[Name]]:
        """Return what could be spilled for groups, best first: rarely used, of many neighbours, where it is crowded."""
        places, names, _, _, _ = self._used
        rates = [self.uses[place] / (1 + len(each)) for place, each in zip(places, near, strict=True)]

        def found(at: int, crowd: list[bool]) -> list[Name]:
            prices = [
                (rates[other] if crowd[other] else _ELSEWHERE * rates[other], names[other])
                for other in (at, *near[at])
            ]
            return [name for _, name in sorted(prices)]

        return [found(at, crowd) for at, crowd in zip(failed, self._crowds(failed), strict=True)]

    def _crowds(self, failed: Sequence[int]) -> list[list[bool]]:
        """Return for each group which groups of its file hold registers where it does and most are taken."""
        held, is_main = self._held, self._used.is_main
        taken = {file: self._taken(file) for file in sorted({self._used.names[at][0] for at in failed})}
        found: list[list[bool]] = []
        for at in failed:
            here = held[:, at] > 0
            fullest = int(np.where(here, taken[self._used.names[at][0]], 0).argmax())
            same = is_main == is_main[at]
            found.append(((held[fullest] > 0) & same & here[fullest]).tolist())
        return found

    def _taken(self, file: str) -> npt.NDArray[np.int64]:
        """Return how many registers of a file are held at each point."""
        own = 0
        for place, name in zip(self._used.places, self._used.names, strict=True):
            if name[0] == file:
                own |= int(_FIRST_LANE) << _LANE * place
        held = zip(self.live_out, self.writes, strict=True)
        return np.array([((live | writes) & own).bit_count() for live, writes in held], np.int64)


def _single(held: Sequence[int], mine: int) -> int | None:
    """Return the first register that none of the groups ``mine`` holds, one whose other half is taken before others.

    Whole pairs are left where there are halves.
    """
    free = None
    for at, holders in enumerate(held):
        if not mine & holders:
            half = at ^ 1
            if half < len(held) and mine & held[half]:
                return at
            if free is None:
                free = at
    return free


def _renamed(items: tuple[Item, ...], homes: dict[Name, int]) -> tuple[Item, ...]:
    """Return items with every virtual register replaced by its physical one."""
    known: dict[tuple[str, int, int, int], Register] = {}

    def register(r: Register) -> Register:
        if not r.virtual:
            return r
        key = r.file, r.index, r.offset, r.width
        if key not in known:
            known[key] = Register(r.file, homes[r.file, r.index] + r.offset, r.width, virtual=False)
        return known[key]

    def instruction(i: Instruction | None) -> Instruction | None:
        if i is None:
            return None
        outs, ins = tuple(map(register, i.outs)), tuple(map(register, i.ins))
        rest = i.imms, i.modifier, i.stream, i.stores, i.effect, i.note
        return Instruction(i.mnemonic, i.slot, outs, ins, *rest)

    def block(b: Block) -> Block:
        return Block((), tuple(Bundle(instruction(x.main), instruction(x.aux)) for x in b.bundles or ()))

    def item(x: Item) -> Item:
        if isinstance(x, Block):
            return block(x)
        if isinstance(x, Repeat):
            count = x.count and register(x.count)
            return replace(x, count=count, body=block(x.body), lead=block(x.lead))
        body = tuple(map(item, x.body))
        if isinstance(x, Loop):
            return replace(x, counter=register(x.counter), body=body)
        return replace(x, condition=register(x.condition), body=body)

    return tuple(map(item, items))


def out_of_registers(file: str, what: str) -> OutOfRegisters:
    """Return the error of code that needs more registers than there are, even after spilling."""
    name = "main" if file == "M" else "aux"
    return OutOfRegisters(f"{what}: not enough {name} registers, even with values spilled to memory")
