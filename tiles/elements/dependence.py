"""What must come before what: dependences between the instructions of a block, with the slots between them.

A result can be used by the next bundle (latency 1); both halves of a bundle read before either writes, so a
register may be overwritten in the bundle that reads it (latency 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiles.elements.tilecode import Instruction

Unit = tuple[str, int, int]


class Edge(NamedTuple):
    """``after`` may issue no earlier than ``slots`` after ``before``, ``distance`` iterations later.

    Attributes:
      is_flow: whether a register's value goes along it.
    """

    before: int
    after: int
    slots: int
    distance: int = 0
    is_flow: bool = False


def dependences(code: Sequence[Instruction], in_loop: bool = False) -> list[Edge]:
    """Return the dependences of a block; of a loop's body also those to the next iteration.

    Accesses of one stream in different iterations touch different elements, except those of scratch memory.
    """
    edges = _within(code)
    return edges + _carried(code) if in_loop else edges


def _within(code: Sequence[Instruction]) -> list[Edge]:
    edges: list[Edge] = []
    writer: dict[Unit, int] = {}
    readers: dict[Unit, list[int]] = {}
    states: dict[str, tuple[list[int], list[int]]] = {}
    for at, instruction in enumerate(code):
        reads, writes = instruction.read, instruction.written
        edges += [Edge(writer[u], at, 1, is_flow=True) for u in reads if u in writer]
        for unit in writes:
            if unit in writer:
                edges.append(Edge(writer[unit], at, 1))
            edges += [Edge(reader, at, 0) for reader in readers.get(unit, ()) if reader != at]
        edges += _state_edges(instruction, at, states)
        for unit in reads:
            readers.setdefault(unit, []).append(at)
        for unit in writes:
            writer[unit] = at
            readers[unit] = []
    return edges


def needs_of(code: Sequence[Instruction]) -> list[dict[int, int]]:
    """Return for every instruction of a block the earlier ones that it waits for, with the slots between them.

    The same as of the edges, which would take as long to make as a schedule.
    """
    needs: list[dict[int, int]] = []
    writer: dict[Unit, int] = {}
    readers: dict[Unit, list[int]] = {}
    states: dict[str, tuple[list[int], list[int]]] = {}
    for at, instruction in enumerate(code):
        reads, writes = instruction.read, instruction.written
        waits = {writer[u]: 1 for u in reads if u in writer}
        for unit in writes:
            if unit in writer:
                waits[writer[unit]] = 1
            if unit in readers:
                for reader in readers[unit]:
                    if reader != at and reader not in waits:
                        waits[reader] = 0
        if instruction.stream or instruction.effect:
            for edge in _state_edges(instruction, at, states):
                waits[edge.before] = 1
        for unit in reads:
            if unit in readers:
                readers[unit].append(at)
            else:
                readers[unit] = [at]
        for unit in writes:
            writer[unit] = at
            readers[unit] = []
        needs.append(waits)
    return needs


def _state_edges(
    instruction: Instruction, at: int, states: dict[str, tuple[list[int], list[int]]]
) -> list[Edge]:
    """Order accesses to a stream, and changes of hidden state: writers among themselves and against readers."""
    edges: list[Edge] = []
    if not instruction.stream and not instruction.effect:
        return edges
    for name in _states(instruction):
        written, read = states.setdefault(name, ([], []))
        if _changes(instruction, name):
            edges += [Edge(other, at, 1) for other in (*written, *read)]
            written.append(at)
        else:
            edges += [Edge(other, at, 1) for other in written]
            read.append(at)
    return edges


def _states(instruction: Instruction) -> tuple[str, ...]:
    names = instruction.stream, instruction.effect
    return tuple([name for name in names if name not in ("", "live")]) if any(names) else ()


def _changes(instruction: Instruction, name: str) -> bool:
    return name == instruction.effect or instruction.mnemonic.startswith("st")


def _carried(code: Sequence[Instruction]) -> list[Edge]:
    """Dependences from one iteration to the next: through registers, scratch memory and hidden state."""
    edges: list[Edge] = []
    writers: dict[Unit, list[int]] = {}
    readers: dict[Unit, list[int]] = {}
    for at, instruction in enumerate(code):
        for unit in instruction.written:
            writers.setdefault(unit, []).append(at)
        for unit in instruction.read:
            readers.setdefault(unit, []).append(at)
    for unit, ats in writers.items():
        first, last = ats[0], ats[-1]
        used = readers.get(unit, [])
        edges += [Edge(last, r, 1, 1, is_flow=True) for r in used if r <= first]
        edges += [Edge(r, first, 0, 1) for r in used if r > first or (r == first and len(ats) > 1)]
        if last != first:
            edges.append(Edge(last, first, 1, 1))
        edges += [Edge(r, first, 0, 1) for r in used if r == last and r == first]
    return edges + _carried_states(code)


def _carried_states(code: Sequence[Instruction]) -> list[Edge]:
    edges: list[Edge] = []
    stateful = [(at, i, names) for at, i in enumerate(code) if (names := _states(i))]
    users: dict[str, list[tuple[int, bool]]] = {}
    for at, instruction, names in stateful:
        for name in dict.fromkeys(names):
            users.setdefault(name, []).append((at, _changes(instruction, name)))
    for at, before, names in stateful:
        crossing = [name for name in names if name == before.effect or name.startswith("scratch")]
        after = {b for n in crossing for b, changes in users[n] if changes or _changes(before, n)}
        edges += [Edge(at, b, 1, 1) for b in sorted(after)]
    return edges
