"""List scheduling of straight blocks: bundles of a main and an aux instruction, longest path first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiles.elements.dependence import Edge, dependences
from tiles.elements.isa import InstructionSet
from tiles.elements.modulo import pipelined
from tiles.elements.tilecode import AUX, MAIN, Block, Bundle, If, Instruction, Item, Loop, Repeat


def scheduled(
    items: Sequence[Item], isa: InstructionSet, pace: bool = False, window: int = 0
) -> tuple[Item, ...]:
    """Return items with every block in bundles; repeat loops are pipelined where that is shorter.

    Args:
      items: code on virtual registers.
      isa: the instruction set.
      pace: whether accesses of one iteration may be joined in one instruction (operands in separate elements).
      window: how many instructions an instruction may overtake, which bounds the registers in use; 0 for any
        number, and for iterations of repeat loops that overlap.
    """
    out: list[Item] = []
    for item in items:
        if isinstance(item, Block):
            out.append(
                item if item.bundles is not None else Block((), list_schedule(item.instructions, isa, window))
            )
        elif isinstance(item, Repeat):
            if item.body.bundles is not None:
                out.append(item)
                continue
            out.append(_straight(item, isa, window) if window else _repeat(item, isa, pace))
        elif isinstance(item, (Loop, If)):
            out.append(replace(item, body=scheduled(item.body, isa, pace, window)))
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
    again = list_schedule(code, isa)
    return Block((), again) if _slots(again, isa) < _slots(block.bundles or (), isa) else block


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


def _repeat(item: Repeat, isa: InstructionSet, pace: bool) -> Repeat:
    straight = list_schedule(item.body.instructions, isa)
    kernel = pipelined(item.body.instructions, isa, len(straight), pace)
    if kernel is None:
        return replace(item, body=Block((), straight))
    lead, body, stages = kernel
    return replace(item, lead=Block((), lead), body=Block((), body), stages=stages)


def _straight(item: Repeat, isa: InstructionSet, window: int) -> Repeat:
    return replace(item, body=Block((), list_schedule(item.body.instructions, isa, window)))


def list_schedule(code: Sequence[Instruction], isa: InstructionSet, window: int = 0) -> tuple[Bundle, ...]:
    """Return the bundles of a block: each slot takes the ready instruction with the longest path after it.

    Args:
      code: the block, in order.
      isa: the instruction set.
      window: instructions that one may overtake of a depth-first order; 0 for any number, in the given order.
    """
    if window:
        code = depth_first(code)
    edges = dependences(code)
    heights = path_lengths(code, edges, isa)
    waiting = [0] * len(code)
    following: list[list[Edge]] = [[] for _ in code]
    for edge in edges:
        waiting[edge.after] += 1
        following[edge.before].append(edge)
    earliest = [0] * len(code)
    ready = {at for at, n in enumerate(waiting) if not n}
    bundles: list[Bundle] = []
    while ready:
        end = min(ready) + (window or len(code))
        within = {at for at in ready if at < end}
        taken = _fill_bundle(code, ready, within, earliest, heights, waiting, following, len(bundles))
        bundles.append(Bundle(taken.get(MAIN), taken.get(AUX)))
    return tuple(bundles)


def depth_first(code: Sequence[Instruction]) -> list[Instruction]:
    """Return a block in another legal order: what one result needs together, so that few registers live at once.

    Of what an instruction needs, that comes first which takes the most instructions that are not there yet.
    """
    needs: list[list[int]] = [[] for _ in code]
    needed = [False] * len(code)
    for edge in dependences(code):
        needs[edge.after].append(edge.before)
        needed[edge.before] = True
    below: list[int] = []
    for at, each in enumerate(needs):
        mask = 1 << at
        for other in each:
            mask |= below[other]
        below.append(mask)
    order = _Order(needs, below)
    for sink in range(len(code)):
        if not needed[sink] or code[sink].has_effect:
            order.visit(sink)
    return [code[at] for at in order.order]


class _Order:
    """An order that grows from the leaves; ``below`` are bit masks of all that an instruction needs, and itself."""

    def __init__(self, needs: list[list[int]], below: list[int]) -> None:
        self.needs, self.below = needs, below
        self.order: list[int] = []
        self.done = 0

    def visit(self, start: int) -> None:
        """Append an instruction after all it needs, without recursion: chains may be long."""
        stack = [start]
        while stack:
            at = stack[-1]
            left = [other for other in self.needs[at] if not self.done >> other & 1]
            if left:
                stack.append(
                    max(left, key=lambda other: ((self.below[other] & ~self.done).bit_count(), -other))
                )
                continue
            stack.pop()
            if not self.done >> at & 1:
                self.done |= 1 << at
                self.order.append(at)


def _fill_bundle(
    code: Sequence[Instruction],
    ready: set[int],
    within: set[int],
    earliest: list[int],
    heights: list[int],
    waiting: list[int],
    following: list[list[Edge]],
    now: int,
) -> dict[str, Instruction]:
    """Issue what fits at time ``now``; what it frees in the same slot may join it."""
    taken: dict[str, Instruction] = {}
    while True:
        fits = [at for at in within if earliest[at] <= now and code[at].slot not in taken]
        if not fits:
            return taken
        best = min(fits, key=lambda at: (-heights[at], at))
        ready.remove(best)
        within.remove(best)
        taken[code[best].slot] = code[best]
        for edge in following[best]:
            earliest[edge.after] = max(earliest[edge.after], now + edge.slots)
            waiting[edge.after] -= 1
            if not waiting[edge.after]:
                ready.add(edge.after)
                within.add(edge.after)


def path_lengths(code: Sequence[Instruction], edges: Sequence[Edge], isa: InstructionSet) -> list[int]:
    """Return the slots from each instruction to the end of the block along its longest path."""
    heights = [isa.row(i.mnemonic).issue_slots for i in code]
    for edge in sorted((e for e in edges if not e.distance), key=lambda e: -e.before):
        step = isa.row(code[edge.before].mnemonic).issue_slots if edge.slots else 0
        heights[edge.before] = max(heights[edge.before], heights[edge.after] + step)
    return heights
