"""Register allocation: liveness over bundles, then colours for aligned groups of registers.

Both halves of a bundle read before either writes, so a register read for the last time may be written by the same
bundle. Groups are live by single registers, and take neighbouring registers at a multiple of their size.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiles.elements.isa import InstructionSet
from tiles.elements.tilecode import Block, Bundle, Instruction, Item, Loop, Register, Repeat
from tiles.errors import OutOfRegisters

Name = tuple[str, int]


@dataclass
class Node:
    """A place in the code: what it reads and writes, and what may run next."""

    reads: int
    writes: int
    follows: list[int]
    groups: tuple[Name, ...] = ()


class Pressure(Exception):
    """No colours are left for some groups; ``candidates`` are, for each, those that could be spilled, best first."""

    def __init__(self, file: str, candidates: list[list[Name]]) -> None:
        """State the register file of the first of them, and what could leave it."""
        super().__init__(file)
        self.file = file
        self.candidates = candidates


def allocated(items: Sequence[Item], isa: InstructionSet) -> tuple[tuple[Item, ...], tuple[int, int]]:
    """Return scheduled items on physical registers, and how many of each file they use.

    Raises:
      Pressure: there are too few registers.
    """
    flow = Flow(items)
    homes = flow.colours({"M": isa["main_registers"], "A": isa["aux_registers"]})
    used = {"M": 0, "A": 0}
    for (file, index), first in homes.items():
        used[file] = max(used[file], first + flow.widths[file, index])
    return _renamed(tuple(items), homes), (used["M"], used["A"])


class Flow:
    """The code as a graph of places, with what is live at each."""

    def __init__(self, items: Sequence[Item]) -> None:
        """Number every single register as a bit, build the graph, and solve for liveness."""
        self.bits: dict[tuple[str, int, int], int] = {}
        self.widths: dict[Name, int] = {}
        self.uses: dict[Name, int] = defaultdict(int)
        self.nodes: list[Node] = []
        self.weight = 1
        ends = self._items(items, [])
        self.nodes.append(Node(0, 0, []))
        self._link(ends, len(self.nodes) - 1)
        self.live_out = self._solve()

    def _mask(self, registers: Sequence[Register]) -> int:
        mask = 0
        for register in registers:
            if not register.virtual:
                continue
            name = (register.file, register.index)
            self.widths[name] = max(self.widths.get(name, 1), register.group_width)
            self.uses[name] += self.weight
            for unit in register.units:
                mask |= 1 << self.bits.setdefault(unit, len(self.bits))
        return mask

    def _add(self, ins: Sequence[Register], outs: Sequence[Register], ends: list[int]) -> list[int]:
        groups = tuple((r.file, r.index) for r in outs if r.virtual)
        self.nodes.append(Node(self._mask(ins), self._mask(outs), [], groups))
        self._link(ends, len(self.nodes) - 1)
        return [len(self.nodes) - 1]

    def _link(self, ends: list[int], to: int) -> None:
        for end in ends:
            self.nodes[end].follows.append(to)

    def _bundles(self, bundles: Sequence[Bundle], ends: list[int]) -> list[int]:
        for bundle in bundles:
            ins = [r for i in bundle.instructions for r in i.ins]
            ends = self._add(ins, [r for i in bundle.instructions for r in i.outs], ends)
        return ends

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
        first = len(self.nodes)
        self.weight *= 16
        ends = self._bundles(item.body.bundles or (), start)
        self.weight //= 16
        self._link(ends, first)
        return ends + start

    def _loop(self, item: Loop, ends: list[int]) -> list[int]:
        first = len(self.nodes)
        self.weight *= 16
        ends = self._items(item.body, ends)
        ends = self._add((item.counter,), (item.counter,), ends)
        self.weight //= 16
        self._link(ends, first)
        return ends

    def _solve(self) -> list[int]:
        live_in = [0] * len(self.nodes)
        live_out = [0] * len(self.nodes)
        changed = True
        while changed:
            changed = False
            for at in range(len(self.nodes) - 1, -1, -1):
                node = self.nodes[at]
                out = 0
                for follow in node.follows:
                    out |= live_in[follow]
                into = node.reads | (out & ~node.writes)
                changed |= (out, into) != (live_out[at], live_in[at])
                live_out[at], live_in[at] = out, into
        return live_out

    def interference(self) -> dict[Name, set[Name]]:
        """Return for each group the groups of its file that may not share its registers."""
        owners = [name for name, _ in sorted(((u[:2], b) for u, b in self.bits.items()), key=lambda x: x[1])]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(owners))}
        names, masks = list(numbers), [0] * len(numbers)
        for node, live in zip(self.nodes, self.live_out, strict=True):
            if node.groups:
                alive = 0
                for bit in _bits(live | node.writes):
                    alive |= 1 << numbers[owners[bit]]
                for group in node.groups:
                    masks[numbers[group]] |= alive
        clashes: dict[Name, set[Name]] = defaultdict(set)
        for group, mask in zip(names, masks, strict=True):
            for other in map(names.__getitem__, _bits(mask)):
                if other != group and other[0] == group[0]:
                    clashes[group].add(other)
                    clashes[other].add(group)
        return clashes

    def colours(self, sizes: dict[str, int]) -> dict[Name, int]:
        """Return the first physical register of every group: simplify and select, widest and most crowded first.

        Raises:
          Pressure: some group finds none.
        """
        clashes = self.interference()
        homes: dict[Name, int] = {}
        failed: list[Name] = []
        for name in self._order(clashes, sizes):
            width = self.widths[name]
            taken = {homes[o] + k for o in clashes[name] if o in homes for k in range(self.widths[o])}
            free = [
                first
                for first in range(0, sizes[name[0]], width)
                if taken.isdisjoint(range(first, first + width))
            ]
            free = [first for first in free if first + width <= sizes[name[0]]]
            if not free:
                failed.append(name)
                continue
            homes[name] = min(free, key=lambda first: (width == 1 and first ^ 1 not in taken, first))
        if failed:
            raise Pressure(failed[0][0], [self._spillable(clashes, name) for name in failed])
        return homes

    def _order(self, clashes: dict[Name, set[Name]], sizes: dict[str, int]) -> list[Name]:
        """Return groups in the order of colouring: those that are easy whatever the others take come last."""
        widths = self.widths
        left = {n: sum(widths[o] + widths[n] - 1 for o in clashes[n]) for n in widths}
        easy: list[tuple[float, Name]] = []

        def offer(name: Name) -> None:
            if left[name] <= sizes[name[0]] - widths[name]:
                heapq.heappush(easy, (left[name] / widths[name], name))

        for name in widths:
            offer(name)
        stack: list[Name] = []
        remaining = set(widths)
        while remaining:
            if easy:
                rate, pick = heapq.heappop(easy)
                if pick not in remaining or rate != left[pick] / widths[pick]:
                    continue  # offered again since, with fewer neighbours left
            else:
                pick = min(remaining, key=lambda name: (-left[name] / widths[name], name))
            stack.append(pick)
            remaining.remove(pick)
            for other in sorted(clashes[pick] & remaining):
                left[other] -= widths[pick] + widths[other] - 1
                offer(other)
        return stack[::-1]

    def _spillable(self, clashes: dict[Name, set[Name]], name: Name) -> list[Name]:
        pool = [n for n in clashes[name] | {name} if n[0] == name[0]]
        return sorted(pool, key=lambda n: (self.uses[n] / (1 + len(clashes[n])), n))


def _bits(mask: int) -> list[int]:
    out: list[int] = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return out


def _renamed(items: tuple[Item, ...], homes: dict[Name, int]) -> tuple[Item, ...]:
    """Return items with every virtual register replaced by its physical one."""

    def register(r: Register) -> Register:
        return (
            r
            if not r.virtual
            else Register(r.file, homes[r.file, r.index] + r.offset, r.width, virtual=False)
        )

    def instruction(i: Instruction | None) -> Instruction | None:
        return i and replace(i, outs=tuple(map(register, i.outs)), ins=tuple(map(register, i.ins)))

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
