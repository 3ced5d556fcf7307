"""Order instructions so that little is live at once."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hlo_passes.ir import Computation, Instruction, Module, Value
from hlo_passes.passes.base import Pass, map_control_regions
from hlo_passes.passes.buffers import InPlace, Temporaries, analyze, temporary_bytes
from hlo_passes.passes.structure import callees_first, users_of

Order = list[int]
"""Positions of instructions in the computation as it is, in the order they are to run."""


@dataclass(frozen=True)
class Schedule(Pass):
    """Try several orders of each computation, simulate what is live, keep the order with the lowest peak.

    Exchanges with the host stay in their order. On a tie the earlier of ``SCHEDULERS`` wins; the first is the order as it is.
    """

    name: ClassVar[str] = "schedule"

    def run(self, module: Module) -> Module:
        """Return the module with computations reordered; itself when every order is the best already."""
        in_place = InPlace()
        temporaries = temporary_bytes(module, in_place)
        reachable = {computation.name for computation in callees_first(module)}
        changed: list[Computation] = []
        for computation in module.computations:
            donated = module.donated if computation.name == module.entry else ()
            is_run = computation.name in reachable
            changed.append(_schedule(computation, donated, temporaries, in_place) if is_run else computation)
        if all(new is old for new, old in zip(changed, module.computations, strict=True)):
            return module
        return dataclasses.replace(module, computations=tuple(changed))


def _schedule(
    computation: Computation, donated: tuple[int, ...], temporaries: Temporaries, in_place: InPlace
) -> Computation:
    computation = _with_scheduled_regions(computation, temporaries, in_place)
    best, least = computation, analyze(computation, donated, temporaries, in_place).peak_bytes
    tried = [in_order(computation)]
    for scheduler in SCHEDULERS.values():
        order = scheduler(computation)
        if order in tried or _effects(computation, order) != _effects(computation, tried[0]):
            continue
        tried.append(order)
        candidate = dataclasses.replace(
            computation, instructions=tuple(computation.instructions[i] for i in order)
        )
        peak = analyze(candidate, donated, temporaries, in_place).peak_bytes
        if peak < least:
            best, least = candidate, peak
    return best


def _effects(computation: Computation, order: Order) -> list[int]:
    """Return the positions of what exchanges something with the host, in an order of the instructions."""
    return [i for i in order if computation.instructions[i].has_effect]


def _with_scheduled_regions(
    computation: Computation, temporaries: Temporaries, in_place: InPlace
) -> Computation:
    changed = tuple(
        map_control_regions(instruction, lambda region: _schedule(region, (), temporaries, in_place))
        for instruction in computation.instructions
    )
    if all(new is old for new, old in zip(changed, computation.instructions, strict=True)):
        return computation
    return dataclasses.replace(computation, instructions=changed)


def in_order(computation: Computation) -> Order:
    """Return the order as it is."""
    return list(range(len(computation.instructions)))


def post_order(computation: Computation) -> Order:
    """Return operands before their reader, depth first from the results, in the order they are read."""
    return _depth_first(computation, lambda instruction: instruction.operands)


def shortest_first(computation: Computation) -> Order:
    """Return operands before their reader, depth first, the operand with the shortest way to it first.

    A short chain is done before a long one begins, so that what the long one leaves is read at once.
    """
    return _depth_first(computation, _by_depth(computation, reverse=False))


def longest_first(computation: Computation) -> Order:
    """Return operands before their reader, depth first, the operand with the longest way to it first.

    A long chain may need room that the results of short ones would take meanwhile.
    """
    return _depth_first(computation, _by_depth(computation, reverse=True))


def greedy(computation: Computation) -> Order:
    """Return the order that always runs what frees most bytes, of the instructions with operands ready."""
    readers = users_of(computation)
    kept = {*computation.parameters, *computation.results}
    waiting = {value: len(positions) for value, positions in readers.items()}
    missing = [
        len({v for v in instruction.operands if v in computation.producers})
        for instruction in computation.instructions
    ]

    def freed(position: int) -> int:
        instruction = computation.instructions[position]
        read = dict.fromkeys(instruction.operands)
        ending = sum(v.type.size_bytes for v in read if waiting[v] == 1 and v not in kept)
        return ending - sum(value.type.size_bytes for value in instruction.results)

    heap = [(-freed(i), i) for i, count in enumerate(missing) if count == 0]
    heapq.heapify(heap)
    order: Order = []
    done = [False] * len(missing)
    while heap:
        score, position = heapq.heappop(heap)
        if done[position] or score != -freed(position):
            continue  # an entry from before its score changed; the current one is in the heap too
        done[position] = True
        order.append(position)
        for value in dict.fromkeys(computation.instructions[position].operands):
            waiting[value] -= 1
            if waiting[value] == 1:
                last = next(i for i in readers[value] if not done[i])
                if missing[last] == 0:
                    heapq.heappush(heap, (-freed(last), last))
        for value in computation.instructions[position].results:
            for reader in readers[value]:
                missing[reader] -= 1
                if missing[reader] == 0:
                    heapq.heappush(heap, (-freed(reader), reader))
    return order


SCHEDULERS: dict[str, Callable[[Computation], Order]] = {
    "in-order": in_order,
    "post-order": post_order,
    "shortest-first": shortest_first,
    "longest-first": longest_first,
    "greedy": greedy,
}
"""The orders that ``Schedule`` compares, by name."""


def _by_depth(computation: Computation, reverse: bool) -> Callable[[Instruction], Sequence[Value]]:
    depth: dict[Value, int] = dict.fromkeys(computation.parameters, 0)
    for instruction in computation.instructions:
        longest = max((depth[value] for value in instruction.operands), default=0)
        depth.update(dict.fromkeys(instruction.results, longest + 1))

    def operands(instruction: Instruction) -> Sequence[Value]:
        return sorted(instruction.operands, key=depth.__getitem__, reverse=reverse)

    return operands


def _depth_first(computation: Computation, operands: Callable[[Instruction], Iterable[Value]]) -> Order:
    """Return the post-order from the results, then what no result depends on, in order."""
    position_of = {id(instruction): i for i, instruction in enumerate(computation.instructions)}
    producers = computation.producers
    order: dict[int, None] = {}
    roots = [producers[value] for value in computation.results if value in producers]
    for root in (*roots, *computation.instructions):
        if position_of[id(root)] in order:
            continue
        stack = [(root, iter(operands(root)))]
        while stack:
            instruction, remaining = stack[-1]
            for value in remaining:
                producer = producers.get(value)
                if producer is not None and position_of[id(producer)] not in order:
                    stack.append((producer, iter(operands(producer))))
                    break
            else:
                stack.pop()
                order.setdefault(position_of[id(instruction)])
    return list(order)
