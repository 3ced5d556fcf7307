"""Register allocation: liveness over bundles, then colours for aligned groups of registers.

Both halves of a bundle read before either writes, so a register read for the last time may be written by the same
bundle. Groups are live by single registers, and take neighbouring registers at a multiple of their size.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
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

    def __init__(self, names: Sequence[Name], candidates: Callable[[], list[Iterator[Name]]]) -> None:
        """State the groups, and for each what could be spilled, best first."""
        super().__init__(names[0][0])
        self.file = names[0][0]
        self.names = frozenset(names)
        self.groups = len(names)
        self.candidates = candidates


def allocated(
    items: Sequence[Item], isa: InstructionSet, groups: Groups | None = None, most_without: int | None = None
) -> tuple[tuple[Item, ...], tuple[int, int]]:
    """Return scheduled items on physical registers, and how many of each file they use.

    Args:
      items: scheduled code on virtual registers.
      isa: the instruction set.
      groups: what is known of blocks that were met before, which those of these items join.
      most_without: groups that may go without a register before it does not matter which and how many these are.

    Raises:
      Pressure: there are too few registers.
    """
    flow = Flow(items, Groups() if groups is None else groups)
    sizes = {"M": isa["main_registers"], "A": isa["aux_registers"]}
    if most_without is not None:
        flow.check(sizes, most_without)
    homes = flow.colours(sizes)
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

    @cached_property
    def ends(self) -> tuple[int, int]:
        """Sets of the registers that the bundles read before any of them writes these, and of those that they write."""
        read = wrote = 0
        for reads, writes in zip(reversed(self.reads), reversed(self.writes), strict=True):
            read = reads | (read & ~writes)
            wrote |= writes
        return read, wrote


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
            read, wrote, places = 0, 0, ()
            for instruction in bundle.instructions:
                half_reads, half_writes, half_places, half_named = self._instruction(instruction)
                read |= half_reads
                wrote |= half_writes
                places += half_places
                named.append(half_named)
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
        self.parts: list[Straight] = []
        self.follows: list[list[int]] = []
        """Of each part the parts that may come after it."""
        self.uses: dict[int, int] = defaultdict(int)
        self.weight = 1
        ends = self._items(items, [])
        self._extend(Straight([0], [0], [()], {}), ends)
        self.writes = [each for part in self.parts for each in part.writes]
        self.written = [each for part in self.parts for each in part.written]
        self.live_out = self._solve()

    def _extend(self, straight: Straight, ends: list[int]) -> list[int]:
        """Append bundles one after the other, and return the part that they are as what others may follow."""
        if not straight.reads:
            return ends
        at = len(self.parts)
        self._link(ends, at)
        self.parts.append(straight)
        self.follows.append([])
        uses, weight = self.uses, self.weight
        for place, count in straight.uses.items():
            uses[place] += weight * count
        return [at]

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
        first = len(self.parts)
        self.weight *= 16
        ends = self._bundles(item.body.bundles or (), start)
        self.weight //= 16
        self._link(ends, first)
        return ends + start

    def _loop(self, item: Loop, ends: list[int]) -> list[int]:
        first = len(self.parts)
        self.weight *= 16
        ends = self._items(item.body, ends)
        ends = self._add((item.counter,), (item.counter,), ends)
        self.weight //= 16
        self._link(ends, first)
        return ends

    def _solve(self) -> list[int]:
        """Return what is live after each bundle: first between the parts, then within each."""
        ends = [part.ends for part in self.parts]
        live_in = [0] * len(ends)
        live_out = [0] * len(ends)
        changed = True
        while changed:
            changed = False
            for at in range(len(ends) - 1, -1, -1):
                out = 0
                for follow in self.follows[at]:
                    out |= live_in[follow]
                read, wrote = ends[at]
                into = read | (out & ~wrote)
                changed |= into != live_in[at] or out != live_out[at]
                live_out[at], live_in[at] = out, into
        found: list[int] = []
        for part, live in zip(self.parts, live_out, strict=True):
            within: list[int] = []
            for reads, writes in zip(reversed(part.reads), reversed(part.writes), strict=True):
                within.append(live)
                live = reads | (live & ~writes)
            found += reversed(within)
        return found

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

    def check(self, sizes: dict[str, int], most_without: int) -> None:
        """Find, without colours, whether the registers that are held at one point leave too many groups without any.

        Raises:
          Pressure: more than ``most_without`` groups; it names as many of them as that takes, and no candidates.
        """
        for file, size in sizes.items():
            own = [w for name, w in zip(self._used.names, self._used.widths, strict=True) if name[0] == file]
            # each that goes without leaves at most its width to the others
            if own and int(self._taken(file).max()) > size + most_without * max(own):
                names = [name for name in self._used.names if name[0] == file]
                raise Pressure(names[: most_without + 1], list)

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
        crowds: list[int] = (clashes.astype(np.int64) @ np.array(widths, np.int64)).tolist()
        for at in self._order(near, crowds, sizes):
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

    def _order(
        self, near: Sequence[Sequence[int]], crowds: Sequence[int], sizes: dict[str, int]
    ) -> list[int]:
        """Return groups in the order of colouring: those that are easy whatever the others take come last.

        Args:
          near: for every group those that it may not share registers with.
          crowds: for every group how many registers all these take.
          sizes: registers of each file.
        """
        _, names, widths, _, ranks = self._used
        count = len(names)
        by_rank = [0] * count
        for at, rank in enumerate(ranks):
            by_rank[rank] = at
        # How crowded a group is by its width, in quarters, and its rank, as one number; what it may be to be easy; and by how
        # much it falls when a neighbour of each width is gone.
        scales = [_LANE // width * count for width in widths]
        limits = [
            (sizes[name[0]] - width) * scale + rank
            for name, width, scale, rank in zip(names, widths, scales, ranks, strict=True)
        ]
        falls = {
            gone: [(gone - 1 + width) * scale for width, scale in zip(widths, scales, strict=True)]
            for gone in set(widths)
        }
        keys: list[int] = [
            (registers + len(each) * (width - 1)) * scale + rank
            for registers, each, width, scale, rank in zip(crowds, near, widths, scales, ranks, strict=True)
        ]
        easy = [key for key, limit in zip(keys, limits, strict=True) if key <= limit]
        heapq.heapify(easy)
        crowded = [2 * rank - key for key, rank in zip(keys, ranks, strict=True)]
        heapq.heapify(crowded)
        is_left = [True] * count
        push, pop = heapq.heappush, heapq.heappop
        stack: list[int] = []
        while len(stack) < count:
            if easy:
                key = pop(easy)
                pick = by_rank[key % count]
                if not is_left[pick] or key != keys[pick]:  # it has had fewer neighbours left since
                    continue
            else:
                key = pop(crowded)
                rank = key % count
                pick = by_rank[rank]
                if not is_left[pick]:
                    continue
                if key != 2 * rank - keys[pick]:
                    push(crowded, 2 * rank - keys[pick])
                    continue
            stack.append(pick)
            is_left[pick] = False
            fall = falls[widths[pick]]
            for other in near[pick]:
                if is_left[other]:
                    keys[other] = key = keys[other] - fall[other]
                    if key <= limits[other]:
                        push(easy, key)
        return stack[::-1]

    def _spillable(self, near: Sequence[Sequence[int]], failed: Sequence[int]) -> list[Iterator[Name]]:
        """Return what could be spilled for groups, best first: rarely used, of many neighbours, where it is crowded."""
        places, names, _, _, _ = self._used
        rates = [self.uses[place] / (1 + len(each)) for place, each in zip(places, near, strict=True)]
        order = sorted(range(len(names)), key=lambda at: (rates[at], names[at]))

        def prices(
            beside: Container[int], crowd: Sequence[bool], is_there: bool
        ) -> Iterator[tuple[float, Name]]:
            factor = 1 if is_there else _ELSEWHERE
            return ((factor * rates[x], names[x]) for x in order if x in beside and crowd[x] == is_there)

        def found(at: int, crowd: Sequence[bool]) -> Iterator[Name]:
            beside = {at, *near[at]}
            both = heapq.merge(prices(beside, crowd, True), prices(beside, crowd, False))
            return (name for _, name in both)

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
    known: dict[int, Register] = {}  # by the object that a register is: all are kept by the items
    homes_of: dict[tuple[str, int, int, int], Register] = {}

    def register(r: Register) -> Register:
        new = known.get(id(r))
        if new is None:
            new = r
            if r.virtual:
                key = r.file, r.index, r.offset, r.width
                new = homes_of.get(key)
                if new is None:
                    home = homes[r.file, r.index] + r.offset
                    new = homes_of[key] = Register(r.file, home, r.width, virtual=False)
            known[id(r)] = new
        return new

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
