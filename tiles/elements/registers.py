"""Register allocation: liveness over bundles, then colours for aligned groups of registers.

Both halves of a bundle read before either writes, so a register read for the last time may be written by the same
bundle. Groups are live by single registers, and take neighbouring registers at a multiple of their size.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

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
        self.files = {"M": 0, "A": 0}
        self.blocks: dict[int, tuple[Sequence[Bundle], Straight]] = {}
        self.instructions: dict[int, tuple[Instruction, Straight]] = {}

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
        uses: dict[int, int] = defaultdict(int)
        for bundle in bundles:
            read, wrote, places = 0, 0, ()
            for instruction in bundle.instructions:
                half = self._instruction(instruction)
                read |= half.reads[0]
                wrote |= half.writes[0]
                places += half.written[0]
                for place, count in half.uses.items():
                    uses[place] += count
            reads.append(read)
            writes.append(wrote)
            written.append(places)
        return Straight(reads, writes, written, uses)

    def _instruction(self, instruction: Instruction) -> Straight:
        known = self.instructions.get(id(instruction))
        if known is None:
            one = self.of(instruction.ins, instruction.outs)
            known = self.instructions[id(instruction)] = instruction, one
        return known[1]

    def of(self, ins: Sequence[Register], outs: Sequence[Register]) -> Straight:
        """Return what one place in the code does that reads and writes registers."""
        uses: dict[int, int] = defaultdict(int)
        reads = writes = 0
        for register in ins:
            reads |= self._mask(register, uses)
        for register in outs:
            writes |= self._mask(register, uses)
        written = tuple([self.places[r.file, r.index] for r in outs if r.virtual])
        return Straight([reads], [writes], [written], uses)

    def _mask(self, register: Register, uses: dict[int, int]) -> int:
        if not register.virtual:
            return 0
        name = (register.file, register.index)
        place = self.places.get(name)
        if place is None:
            place = self.places[name] = len(self.names)
            self.names.append(name)
            self.widths.append(1)
            self.files[register.file] |= 1 << _LANE * place
        self.widths[place] = max(self.widths[place], register.group_width)
        uses[place] += 1
        return ((1 << register.width) - 1) << _LANE * place + register.offset


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

    def interference(self) -> dict[int, int]:
        """Return for each group, by its place, the set of those of its file that may not share its registers.

        The sets have the first bit of each group.
        """
        names, files = self.groups.names, self.groups.files
        alive = dict.fromkeys(self.uses, 0)
        for live, writes, written in zip(self.live_out, self.writes, self.written, strict=True):
            for place in written:
                alive[place] |= live | writes
        clashes = dict.fromkeys(self.uses, 0)
        for place, mask in alive.items():
            own = 1 << _LANE * place
            others = _firsts(mask) & files[names[place][0]] & ~own
            clashes[place] |= others
            for other in _places(others):
                clashes[other] |= own
        return clashes

    def colours(self, sizes: dict[str, int]) -> dict[Name, int]:
        """Return the first physical register of every group: simplify and select, widest and most crowded first.

        Raises:
          Pressure: some group finds none.
        """
        names, widths = self.groups.names, self.groups.widths
        clashes = self.interference()
        homes: dict[Name, int] = {}
        failed: list[int] = []
        holders = {file: [0] * size for file, size in sizes.items()}  # the groups at each register
        for place in self._order(clashes, sizes):
            width, mine = widths[place], clashes[place]
            held = holders[names[place][0]]
            taken = [mine & each for each in held]
            if width == 1:
                free = [first for first, each in enumerate(taken) if not each]
            else:
                last = len(held) - width + 1
                free = [at for at in range(0, last, width) if not any(taken[at : at + width])]
            if not free:
                failed.append(place)
                continue
            first = free[0]
            if width == 1:  # whole pairs are left where there are halves
                first = next((f for f in free if f ^ 1 < len(taken) and taken[f ^ 1]), first)
            homes[names[place]] = first
            for at in range(first, first + width):
                held[at] |= 1 << _LANE * place
        if failed:
            without = [names[place] for place in failed]
            raise Pressure(without, functools.partial(self._spillable, clashes, failed))
        return homes

    def _order(self, clashes: Mapping[int, int], sizes: dict[str, int]) -> list[int]:
        """Return groups in the order of colouring: those that are easy whatever the others take come last."""
        names, widths = self.groups.names, self.groups.widths
        by_width: dict[int, int] = defaultdict(int)
        for place in clashes:
            by_width[widths[place]] |= 1 << _LANE * place
        left: dict[int, int] = {}
        for place, mask in clashes.items():
            more = widths[place] - 1
            left[place] = sum((mask & each).bit_count() * (w + more) for w, each in by_width.items())
        limits = {place: sizes[names[place][0]] - widths[place] for place in clashes}
        easy = [(n / widths[place], names[place], place) for place, n in left.items() if n <= limits[place]]
        heapq.heapify(easy)
        crowded = [(-n / widths[place], names[place], place) for place, n in left.items()]
        heapq.heapify(crowded)
        stack: list[int] = []
        remaining = sum(by_width.values())
        while remaining:
            rate, _, pick = heapq.heappop(easy or crowded)
            if not remaining >> _LANE * pick & 1:
                continue
            if abs(rate) != left[pick] / widths[pick]:  # it has had fewer neighbours left since
                if rate < 0:
                    heapq.heappush(crowded, (-left[pick] / widths[pick], names[pick], pick))
                continue
            stack.append(pick)
            remaining ^= 1 << _LANE * pick
            more = widths[pick] - 1
            for other in _places(clashes[pick] & remaining):
                left[other] = now = left[other] - more - widths[other]
                if now <= limits[other]:
                    heapq.heappush(easy, (now / widths[other], names[other], other))
        return stack[::-1]

    def _spillable(self, clashes: Mapping[int, int], failed: Sequence[int]) -> list[list[Name]]:
        """Return what could be spilled for groups, best first: rarely used, of many neighbours, where it is crowded."""
        names, crowds = self.groups.names, self._crowds(failed)
        rates = {at: self.uses[at] / (1 + mask.bit_count()) for at, mask in clashes.items()}

        def found(place: int) -> list[Name]:
            crowd = crowds[place]
            prices = [
                (rates[at] if crowd >> _LANE * at & 1 else _ELSEWHERE * rates[at], names[at])
                for at in (place, *_places(clashes[place]))
            ]
            return [name for _, name in sorted(prices)]

        return [found(place) for place in failed]

    def _crowds(self, failed: Sequence[int]) -> dict[int, int]:
        """Return for each group the set of those of its file that hold registers where it does and most are taken.

        The sets have the first bit of each group.
        """
        lanes = (1 << _LANE) - 1
        own = sum(1 << _LANE * place for place in failed)
        files = {file: groups * lanes for file, groups in self.groups.files.items()}
        most: dict[int, tuple[int, int]] = dict.fromkeys(failed, (0, 0))
        for live, writes in zip(self.live_out, self.writes, strict=True):
            held = live | writes
            here = _places(_firsts(held) & own)
            for file, groups in files.items() if here else ():
                mask = held & groups
                count = mask.bit_count()
                for place in here:
                    if self.groups.names[place][0] == file and count > most[place][0]:
                        most[place] = count, mask
        return {place: _firsts(mask) for place, (_, mask) in most.items()}


def _firsts(mask: int) -> int:
    """Return a set in which the first bit of a group is there where any of its bits was; other bits say nothing."""
    return mask | mask >> 1 | mask >> 2 | mask >> 3


_DIGITS = bytes.maketrans(b"01", bytes((0, 1)))
_LONG = 1 << 10
"""Bits of a set from which on NumPy finds its members sooner than Python does; five times as soon for thousands."""


def _places(mask: int) -> list[int]:
    """Return the places of the groups in a set, in order."""
    if not mask:
        return []
    first = ((mask & -mask).bit_length() - 1) // _LANE
    mask >>= _LANE * first
    if mask.bit_length() < _LONG:
        digits = bin(mask)[:1:-_LANE].encode().translate(_DIGITS)
        return list(itertools.compress(itertools.count(first), digits))
    octets = np.frombuffer(mask.to_bytes(-(-mask.bit_length() // 8), "little"), np.uint8)
    bits = np.unpackbits(octets, bitorder="little")[::_LANE]
    return (bits.nonzero()[0] + first).tolist()


def _renamed(items: tuple[Item, ...], homes: dict[Name, int]) -> tuple[Item, ...]:
    """Return items with every virtual register replaced by its physical one."""

    def register(r: Register) -> Register:
        return (
            r
            if not r.virtual
            else Register(r.file, homes[r.file, r.index] + r.offset, r.width, virtual=False)
        )

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
