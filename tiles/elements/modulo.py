"""Modulo scheduling of repeat loops: iterations overlap, and one begins every ``interval`` bundles.

Loads and arithmetic may run ahead of the iteration that stores; what stores, accumulates or changes hidden state
stays in the last stage. So the loop runs exactly as often as there are iterations, no code is needed after it,
and what ran ahead in the end has only read beyond an operand's last element.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tiles.elements.dependence import Edge, dependences
from tiles.elements.isa import InstructionSet
from tiles.elements.tilecode import AUX, JOINED, JOINED_MAX, MAIN, Bundle, Instruction, Register

_MAX_INSTRUCTIONS = 160
"""Bodies beyond it are left to list scheduling: the gain of overlapping them is a few bundles of hundreds."""
_MAX_TRIES = 6


def pipelined(
    code: Sequence[Instruction], isa: InstructionSet, limit: int, pace: bool
) -> tuple[tuple[Bundle, ...], tuple[Bundle, ...], int] | None:
    """Return the bundles before a loop, those of its body, and its stages; None if nothing beats ``limit`` bundles.

    Args:
      code: the body, in order.
      isa: the instruction set.
      limit: bundles of the body without overlap.
      pace: whether the accesses of one bundle may be joined in one instruction.
    """
    if len(code) > _MAX_INSTRUCTIONS:
        return None
    edges = dependences(code, in_loop=True)
    alone = _pointers_of_one(code) if pace else frozenset[Register]()
    first = max(_resource_bound(code, alone), _recurrence_bound(edges), 1)
    for interval in range(first, min(limit, first + _MAX_TRIES)):
        for backward in (False, True):
            times = _place(code, edges, interval, backward, alone)
            if times is not None:
                return _kernel(code, times, interval)
    return None


def _pointers_of_one(code: Sequence[Instruction]) -> frozenset[Register]:
    """Return the registers that one access alone names: only these can be packed, since packing copies them."""
    named = Counter((r.file, r.index) for i in code for r in {*i.ins, *i.outs})
    accesses = [i for i in code if i.mnemonic in JOINED]
    return frozenset(r for i in accesses for r in i.outs if r in i.ins and named[r.file, r.index] == 1)


def _resource_bound(code: Sequence[Instruction], alone: frozenset[Register]) -> int:
    main = [i for i in code if i.slot == MAIN]
    packed = sum(is_paced(i, alone) for i in main)  # joined by twos
    aux = len(code) - len(main)
    return max(len(main) - packed + math.ceil(packed / JOINED_MAX), aux)


def _recurrence_bound(edges: Sequence[Edge]) -> int:
    """Return a lower bound from single edges of an instruction to itself; longer cycles show when placing."""
    return max((e.slots for e in edges if e.distance and e.before == e.after), default=1)


def _place(
    code: Sequence[Instruction],
    edges: Sequence[Edge],
    interval: int,
    backward: bool,
    alone: frozenset[Register],
) -> list[int] | None:
    """Return a time for each instruction, or None: forward as early, or backward as late, as slots allow."""
    times = _greedy(code, edges, interval, backward, alone, last_stage_from=None)
    if times is None:
        return None
    last = max(times) // interval
    late = last * interval
    if any(not i.may_run_ahead and t < late for i, t in zip(code, times, strict=True)):
        times = _greedy(code, edges, interval, backward, alone, last_stage_from=late)
    if times is None or not _legal(code, edges, times, interval):
        return None
    last = max(times) // interval
    return (
        times
        if all(t // interval == last for i, t in zip(code, times, strict=True) if not i.may_run_ahead)
        else None
    )


def _greedy(
    code: Sequence[Instruction],
    edges: Sequence[Edge],
    interval: int,
    backward: bool,
    alone: frozenset[Register],
    last_stage_from: int | None,
) -> list[int] | None:
    sign = -1 if backward else 1
    order = range(len(code) - 1, -1, -1) if backward else range(len(code))
    times: dict[int, int] = {}
    table: dict[tuple[int, str], list[Instruction]] = {}
    touching: list[list[Edge]] = [[] for _ in code]
    for edge in edges:
        touching[edge.before].append(edge)
        if edge.after != edge.before:
            touching[edge.after].append(edge)
    base = (len(code) + 3) * interval - 1 if backward else 0  # the last bundle of a stage
    for at in order:
        low, high = _window(at, touching[at], times, interval)
        if last_stage_from is not None and not code[at].may_run_ahead and not backward:
            low = max(low, last_stage_from)
        start = (base if high is math.inf else high) if backward else max(low, 0)
        for step in range(interval):
            time = int(start) + sign * step
            if low <= time <= high and _fits(
                table.get((time % interval, code[at].slot), []), code[at], alone
            ):
                times[at] = time
                table.setdefault((time % interval, code[at].slot), []).append(code[at])
                break
        else:
            return None
    shift = min(times.values()) // interval * interval
    return [times[at] - shift for at in range(len(code))]


def _window(at: int, edges: Sequence[Edge], times: dict[int, int], interval: int) -> tuple[float, float]:
    """Return the earliest and latest time of an instruction, given its edges and those that are placed.

    A value must be read before the next iteration writes its register, so a flow also bounds its reader.
    """
    low, high = -math.inf, math.inf
    for edge in edges:
        if edge.after == at and edge.before in times:
            low = max(low, times[edge.before] + edge.slots - edge.distance * interval)
            if edge.is_flow and not edge.distance:
                high = min(high, times[edge.before] + interval)
        if edge.before == at and edge.after in times:
            high = min(high, times[edge.after] - edge.slots + edge.distance * interval)
            if edge.is_flow and not edge.distance:
                low = max(low, times[edge.after] - interval)
    return (max(low, 0) if math.isinf(low) and math.isinf(high) else low), high


def _legal(code: Sequence[Instruction], edges: Sequence[Edge], times: list[int], interval: int) -> bool:
    """Return whether every dependence holds, and every value is read before it is overwritten."""
    return all(
        times[e.after] + e.distance * interval >= times[e.before] + e.slots
        and (not e.is_flow or e.distance > 0 or times[e.after] <= times[e.before] + interval)
        for e in edges
    )


def is_paced(instruction: Instruction, alone: frozenset[Register]) -> bool:
    """Return whether an access can be joined with others: 64 bits, an address of its own that advances."""
    return instruction.mnemonic in JOINED and any(r in alone for r in instruction.outs)


def _fits(placed: list[Instruction], new: Instruction, alone: frozenset[Register]) -> bool:
    if not placed:
        return True
    together = [*placed, new]
    if not all(is_paced(i, alone) for i in together):
        return False
    if (
        len(together) > JOINED_MAX
        or len({i.stream for i in together}) < len(together)
        or len({i.imms for i in together if i.imms != (1,)}) > 2
    ):
        return False
    return not all(i.stores for i in together)


def _kernel(
    code: Sequence[Instruction], times: list[int], interval: int
) -> tuple[tuple[Bundle, ...], tuple[Bundle, ...], int]:
    """Return the bundles that fill the pipeline, the body, and the number of stages."""
    stages = max(times) // interval + 1
    body = tuple(_bundle(code, times, interval, at, stages - 1) for at in range(interval))
    lead = [
        apart
        for stage in range(stages - 1)
        for at in range(interval)
        for apart in _apart(*_here(code, times, interval, at, stage))
    ]
    return tuple(lead), body, stages


def _bundle(code: Sequence[Instruction], times: list[int], interval: int, at: int, last_stage: int) -> Bundle:
    main, aux = _here(code, times, interval, at, last_stage)
    return Bundle(joined(main), aux)


def _here(
    code: Sequence[Instruction], times: list[int], interval: int, at: int, last_stage: int
) -> tuple[list[Instruction], Instruction | None]:
    """Return what issues at a place of the body in the first stages: main instructions, and one of the aux slot."""
    here = [i for i, t in zip(code, times, strict=True) if t % interval == at and t // interval <= last_stage]
    aux = [i for i in here if i.slot == AUX]
    return [i for i in here if i.slot == MAIN], aux[0] if aux else None


def _apart(main: list[Instruction], aux: Instruction | None) -> list[Bundle]:
    """Return bundles of one access each; the aux instruction, which must read before they write, in the first."""
    if not main:
        return [Bundle(None, aux)] if aux else []
    return [Bundle(main[0], aux), *(Bundle(i) for i in main[1:])]


def joined(accesses: list[Instruction]) -> Instruction | None:
    """Return the one instruction that makes all accesses, each by its own pointer until ``pace`` packs them."""
    if len(accesses) < 2:
        return accesses[0] if accesses else None
    accesses = sorted(accesses, key=lambda i: i.stores)
    loads = sum(not i.stores for i in accesses)
    name = "ld2x64pace" if loads == 2 else "ldst64pace"
    outs = tuple(r for i in accesses for r in i.outs)
    ins = tuple(r for i in accesses for r in i.ins)
    steps = tuple(n for i in accesses for n in i.imms)
    return Instruction(name, MAIN, outs, ins, steps, stream=accesses[0].stream, stores=accesses[-1].stores)
