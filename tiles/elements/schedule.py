"""List scheduling of straight blocks: bundles of a main and an aux instruction, longest path first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from tiles.elements.dependence import needs_of
from tiles.elements.isa import InstructionSet
from tiles.elements.modulo import pipelined
from tiles.elements.tilecode import AUX, MAIN, Block, Bundle, Instruction, Item, Repeat


def scheduled(
    items: Sequence[Item],
    isa: InstructionSet,
    pace: bool = False,
    window: int = 0,
    known: Schedules | None = None,
) -> tuple[Item, ...]:
    """Return items with every block in bundles; repeat loops are pipelined where that is shorter.

    Args:
      items: code on virtual registers.
      isa: the instruction set.
      pace: whether accesses of one iteration may be joined in one instruction (operands in separate elements).
      window: how many instructions an instruction may overtake, which bounds the registers in use; 0 for any
        number, and for iterations of repeat loops that overlap.
      known: schedules of blocks that were made before, which those of this call join.
    """
    known = Schedules(isa) if known is None else known
    out: list[Item] = []
    for item in items:
        if isinstance(item, Block):
            out.append(item if item.bundles is not None else Block((), known.of(item.instructions, window)))
        elif isinstance(item, Repeat):
            if item.body.bundles is not None:
                out.append(item)
                continue
            if window:
                out.append(replace(item, body=Block((), known.of(item.body.instructions, window))))
            else:
                out.append(_repeat(item, isa, pace, known))
        else:
            out.append(replace(item, body=scheduled(item.body, isa, pace, window, known)))
    return tuple(out)


def tightened(items: Sequence[Item], isa: InstructionSet) -> tuple[Item, ...]:
    """Return code on physical registers with its straight blocks scheduled again.

    Those that were kept near the order of their source, to need few registers, may still fill both slots better.
    """
    out: list[Item] = []
    for item in items:
        if isinstance(item, Block):
            out.append(_shorter(item, isa))
        elif isinstance(item, Repeat):
            out.append(replace(item, body=_shorter(item.body, isa)) if item.stages == 1 else item)
        else:
            out.append(replace(item, body=tightened(item.body, isa)))
    return tuple(out)


def _shorter(block: Block, isa: InstructionSet) -> Block:
    code: list[Instruction] = []
    for bundle in block.bundles or ():
        code += _in_order(bundle)
    now = _slots(block.bundles or (), isa)
    least = {MAIN: 0, AUX: 0}
    for i in code:
        least[i.slot] += isa.row(i.mnemonic).issue_slots
    if now <= max(least.values()):
        return block
    again = list_schedule(code, isa)
    return Block((), again) if _slots(again, isa) < now else block


def _in_order(bundle: Bundle) -> tuple[Instruction, ...]:
    """Return a bundle's halves one after the other: the one first whose operands the other overwrites.

    A block whose bundles were made from such an order always has one.
    """
    if bundle.main is None or bundle.aux is None:
        return bundle.instructions
    written = {u for r in bundle.main.outs for u in r.units}
    aux_first = any(u in written for r in bundle.aux.ins for u in r.units)
    return (bundle.aux, bundle.main) if aux_first else (bundle.main, bundle.aux)


def _slots(bundles: Sequence[Bundle], isa: InstructionSet) -> int:
    return sum(max((isa.row(i.mnemonic).issue_slots for i in b.instructions), default=1) for b in bundles)


def _repeat(item: Repeat, isa: InstructionSet, pace: bool, known: Schedules) -> Repeat:
    straight = known.of(item.body.instructions, 0)
    kernel = pipelined(item.body.instructions, isa, len(straight), pace)
    if kernel is None:
        return replace(item, body=Block((), straight))
    lead, body, stages = kernel
    return replace(item, lead=Block((), lead), body=Block((), body), stages=stages)


class Schedules:
    """List schedules of blocks that are compiled several times over, while values are spilled from a few of them.

    Blocks are told apart by the object that they are, since comparing their instructions would take as long as a
    schedule; the objects are kept, so that no other takes their place.
    """

    def __init__(self, isa: InstructionSet) -> None:
        """Know none yet."""
        self.isa = isa
        self.bundles: dict[tuple[int, int], tuple[Bundle, ...]] = {}
        self.needs: dict[int, list[dict[int, int]]] = {}
        self.graphs: dict[tuple[int, bool], Graph] = {}
        self.kept: list[Sequence[Instruction]] = []

    def of(self, code: Sequence[Instruction], window: int) -> tuple[Bundle, ...]:
        """Return the bundles of a block, see ``list_schedule``."""
        key = id(code), window
        if key not in self.bundles:
            self.kept.append(code)
            self.bundles[key] = _scheduled(self._graph(code, bool(window)), window)
        return self.bundles[key]

    def _graph(self, code: Sequence[Instruction], is_depth_first: bool) -> Graph:
        key = id(code), is_depth_first
        if key not in self.graphs:
            if id(code) not in self.needs:
                self.needs[id(code)] = needs_of(code)
            self.graphs[key] = graph_of(code, self.isa, is_depth_first, self.needs[id(code)])
        return self.graphs[key]


def list_schedule(code: Sequence[Instruction], isa: InstructionSet, window: int = 0) -> tuple[Bundle, ...]:
    """Return the bundles of a block: each slot takes the ready instruction with the longest path after it.

    Args:
      code: the block, in order.
      isa: the instruction set.
      window: instructions that one may overtake of a depth-first order; 0 for any number, in the given order.
    """
    return _scheduled(graph_of(code, isa, bool(window), needs_of(code)), window)


@dataclass(frozen=True)
class Graph:
    """A block with what must come before what.

    Attributes:
      code: its instructions.
      needs: for every instruction the earlier ones that it waits for, with the slots between them.
      following: the same from the other end.
      ranks: place of every instruction among those with the longest path after them, longest first.
    """

    code: Sequence[Instruction]
    needs: list[dict[int, int]]
    following: list[list[tuple[int, int]]]
    ranks: list[int]


def graph_of(
    code: Sequence[Instruction], isa: InstructionSet, is_depth_first: bool, needs: list[dict[int, int]]
) -> Graph:
    """Return the graph of a block, or of the block in depth-first order."""
    if is_depth_first:
        order = _depth_first(code, needs)
        place = {at: new for new, at in enumerate(order)}
        # a legal order leaves every instruction the same ones to wait for
        needs = [{place[before]: slots for before, slots in needs[at].items()} for at in order]
        code = [code[at] for at in order]
    following: list[list[tuple[int, int]]] = [[] for _ in code]
    for after, each in enumerate(needs):
        for before, slots in each.items():
            following[before].append((after, slots))
    heights = _path_lengths(code, following, isa)
    ranks = [0] * len(code)
    for rank, at in enumerate(sorted(range(len(code)), key=lambda at: -heights[at])):
        ranks[at] = rank
    return Graph(code, needs, following, ranks)


def _scheduled(graph: Graph, window: int) -> tuple[Bundle, ...]:
    """Return the bundles of a graph's block."""
    if not window or window >= len(graph.code):
        return _without_window(graph)
    code, ranks, following = graph.code, graph.ranks, graph.following
    count, slots_of = len(code), [i.slot for i in code]
    waiting = [len(each) for each in graph.needs]
    earliest = [0] * count
    is_left = [True] * count
    bundles: list[Bundle] = []
    low = 0  # the first that is left is always ready: what it waits for comes before it
    while low < count:
        within = [low]
        if window > 1:
            last = min(low + window, count)
            within += [at for at in range(low + 1, last) if is_left[at] and not waiting[at]]
        now = len(bundles)
        taken: dict[str, Instruction] = {}
        while True:
            fits = [at for at in within if earliest[at] <= now and slots_of[at] not in taken]
            if not fits:
                break
            best = fits[0] if len(fits) == 1 else min(fits, key=ranks.__getitem__)
            within.remove(best)
            is_left[best] = False
            taken[slots_of[best]] = code[best]
            for after, slots in following[best]:
                if earliest[after] < now + slots:
                    earliest[after] = now + slots
                waiting[after] -= 1
                if not waiting[after]:
                    within.append(after)  # what it frees may join it
        bundles.append(Bundle(taken.get(MAIN), taken.get(AUX)))
        while low < count and not is_left[low]:
            low += 1
    return tuple(bundles)


def _without_window(graph: Graph) -> tuple[Bundle, ...]:
    """Return the bundles of a block whose instructions may overtake any number of others."""
    code, ranks, following = graph.code, graph.ranks, graph.following
    waiting = [len(each) for each in graph.needs]
    earliest = [0] * len(code)
    fits: dict[str, list[tuple[int, int]]] = {MAIN: [], AUX: []}  # what may issue now, by its rank
    later: list[tuple[int, int]] = []  # what waits for nothing but the time that is given
    left = len(code)

    def offer(at: int) -> None:
        if earliest[at] <= now:
            heapq.heappush(fits[code[at].slot], (ranks[at], at))
        else:
            heapq.heappush(later, (earliest[at], at))

    now = 0
    for at, n in enumerate(waiting):
        if not n:
            offer(at)
    bundles: list[Bundle] = []
    while left:
        while later and later[0][0] <= now:
            offer(heapq.heappop(later)[1])
        taken: dict[str, Instruction] = {}
        while True:
            free = [slot for slot, each in fits.items() if each and slot not in taken]
            if not free:
                break
            slot = min(free, key=lambda slot: fits[slot][0])
            _, best = heapq.heappop(fits[slot])
            taken[slot] = code[best]
            left -= 1
            for after, slots in following[best]:
                if earliest[after] < now + slots:
                    earliest[after] = now + slots
                waiting[after] -= 1
                if not waiting[after]:
                    offer(after)
        bundles.append(Bundle(taken.get(MAIN), taken.get(AUX)))
        now += 1
    return tuple(bundles)


def _depth_first(code: Sequence[Instruction], needs: Sequence[Iterable[int]]) -> list[int]:
    """Return another legal order of a block: what one result needs together, so that few registers live at once.

    Of what an instruction needs, that comes first which takes the most instructions that are not there yet. The lanes of
    a group of registers come together: a group that is half there holds as many registers as a whole one, and so does
    what its other lanes are made of. A value that is spilled is stored as soon as it is there, whenever it is read, and
    loaded when all else that its reader needs is there.
    """
    needed = [False] * len(code)
    spills: dict[int, list[int]] = {}
    loads: set[int] = set()
    for at, each in enumerate(needs):
        for before in each:
            needed[before] = True
        if code[at].stream.startswith("scratch"):
            if code[at].outs:
                loads.add(at)
            else:
                spills.setdefault(max(each, default=at), []).append(at)
    below: list[int] = []
    for at, each in enumerate(needs):
        mask = 1 << at
        for other in each:
            mask |= below[other]
        below.append(mask)
    order = _Order(needs, below, spills, loads, _lanes(code, below))
    for sink in range(len(code)):
        if not needed[sink] or code[sink].has_effect:
            order.visit(sink)
    return order.order


def _lanes(code: Sequence[Instruction], below: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return for each instruction that writes a part of a group all that do, where none of them waits for another.

    Args:
      code: the block.
      below: bit masks of all that each instruction needs, and itself.
    """
    parts: dict[tuple[str, int], list[int]] = {}
    for at, instruction in enumerate(code):
        for register in instruction.outs:
            if register.virtual and register.width < register.group_width:
                parts.setdefault((register.file, register.index), []).append(at)
    found: dict[int, tuple[int, ...]] = {}
    for lanes in parts.values():
        mask = sum(1 << at for at in dict.fromkeys(lanes))
        if len(lanes) > 1 and all(below[at] & mask == 1 << at for at in lanes):
            found |= dict.fromkeys(lanes, tuple(lanes))
    return found


class _Order:
    """An order that grows from the leaves.

    Attributes:
      needs: what each instruction needs.
      below: bit masks of all that it needs, and itself.
      spills: stores of spilled values that may follow an instruction at once, being the last of what they need.
      loads: loads of spilled values, which come last of what an instruction needs.
      lanes: instructions that make one group, by each of them.
    """

    def __init__(
        self,
        needs: Sequence[Iterable[int]],
        below: list[int],
        spills: Mapping[int, Sequence[int]],
        loads: Set[int],
        lanes: Mapping[int, tuple[int, ...]],
    ) -> None:
        self.needs, self.below, self.spills, self.loads, self.lanes = needs, below, spills, loads, lanes
        self.order: list[int] = []
        self.done = 0
        self.is_done = [False] * len(needs)
        self.opened: dict[int, int] = {}

    def visit(self, start: int) -> None:
        """Append an instruction after all it needs, without recursion: chains may be long."""
        stack = [start]
        while stack:
            at = stack[-1]
            lanes = self.lanes.get(at)
            if lanes is None:
                lanes, left = (at,), self._left(at)
            else:
                if self.opened.setdefault(lanes[0], at) != at:
                    lanes = (at,)  # another lane of the group needs, elsewhere, what needs this one
                left = [other for lane in lanes for other in self._left(lane)]
            if left:
                if not self.loads.isdisjoint(left):
                    first = [
                        n for other in left for n in (self._left(other) if other in self.loads else (other,))
                    ]
                    left = first or left
                stack.append(left[0] if len(left) == 1 else max(left, key=self._urgency))
                continue
            stack.pop()
            for lane in lanes:
                if not self.is_done[lane]:
                    self._append(lane)

    def _urgency(self, at: int) -> tuple[int, int]:
        """Return by what it is chosen what comes first: how many instructions it takes that are not there yet."""
        return (self.below[at] & ~self.done).bit_count(), -at

    def _left(self, at: int) -> list[int]:
        is_done = self.is_done
        return [other for other in self.needs[at] if not is_done[other]]

    def _append(self, at: int) -> None:
        self.done |= 1 << at
        self.is_done[at] = True
        self.order.append(at)
        for store in self.spills.get(at, ()):
            if not self.is_done[store] and not self.below[store] & ~self.done & ~(1 << store):
                self._append(store)


def _path_lengths(
    code: Sequence[Instruction], following: Sequence[Sequence[tuple[int, int]]], isa: InstructionSet
) -> list[int]:
    """Return the slots from each instruction to the end of the block along its longest path."""
    heights = [isa.row(i.mnemonic).issue_slots for i in code]
    for at in range(len(code) - 1, -1, -1):
        own = most = heights[at]
        for after, slots in following[at]:
            height = heights[after] + own if slots else heights[after]
            if height > most:
                most = height
        heights[at] = most
    return heights
