"""Spilling: a value that finds no register waits in its worker's scratch memory, at the price of its moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from tiles.elements.isa import InstructionSet
from tiles.elements.pace import first_free, packed
from tiles.elements.registers import Groups, Name, Pressure, allocated, out_of_registers
from tiles.elements.reloads import without_reloads
from tiles.elements.schedule import Schedules, scheduled, tightened
from tiles.elements.tilecode import (
    MAIN,
    MZERO,
    WORKER_BASE,
    Block,
    If,
    Instruction,
    Item,
    Loop,
    Register,
    Repeat,
    instructions_of,
    walk,
)

_MAX_ROUNDS = 40
_PATIENCE = 2
"""Rounds in which not fewer groups go without a register, after which twice as many values are spilled for each."""
_STUCK = 4
"""Such rounds after which, if none that goes without could be spilled itself, no more values are tried."""
_WINDOWS = (0, 1 << 20, 8, 1)
_WINDOWS_AFTER_SPILLING = (1,)
_FEW = 5
"""One access in so many bundles is few."""
_KEPT = 16
"""Codes of which it is known how registers were assigned: those of one function for arrays aligned in many ways."""
_HOPELESS = 3
"""Groups without a register from which on no order but that of the source is worth a try."""


class TooLong(Exception):
    """The body of a hardware loop becomes longer than one may be, by what is spilled."""


Assigned = tuple[tuple[Item, ...], tuple[int, int], int]
"""Scheduled code on physical registers, the registers used, and the bytes of scratch memory."""


def assigned(
    items: tuple[Item, ...],
    isa: InstructionSet,
    pace: bool,
    scratch_bytes: int,
    what: str,
    most: int = 0,
    longest: int | None = None,
) -> Assigned:
    """Return scheduled code on physical registers, the registers used, and the bytes of scratch memory.

    Code that needs too many registers is tried without overlap of iterations, then closer to the order of its
    source, before anything is spilled. Where more than ``most`` groups find no register at first (0: any number),
    nothing is spilled.

    Raises:
      OutOfRegisters: even with everything spilled that can be, or more than ``most`` should be.
      TooLong: with what is spilled, a hardware loop's body has more than ``longest`` instructions of one slot. Nearly all
        of them stay, so that it would be too long in the end, too.
    """
    found = _assigned(items, isa, pace, scratch_bytes, most, longest)
    if found is None:
        raise TooLong
    if isinstance(found, str):
        raise out_of_registers(found, what)
    return found


@lru_cache(maxsize=_KEPT)
def _assigned(
    items: tuple[Item, ...],
    isa: InstructionSet,
    pace: bool,
    scratch_bytes: int,
    most: int,
    longest: int | None,
) -> Assigned | str | None:
    """Return ``assigned``; the file of which there are too few registers, or None where a body becomes too long.

    Kept for the next ones: where arrays are aligned otherwise, code may be the same, and nine tenths of the time are here.
    """
    current, known, groups = items, Schedules(isa), Groups()
    possible: set[Name] = set()
    fewest, stalled = 1 << 30, 0
    for round_ in range(_MAX_ROUNDS):
        pressure: Pressure | None = None
        for window in _WINDOWS if not round_ else _WINDOWS_AFTER_SPILLING:
            if pressure is not None and pressure.groups > _HOPELESS and window != _WINDOWS[-1]:
                continue
            try:
                code = scheduled(current, isa, pace, window, known)
                code = packed(code, first_free(code)) if pace else code
                done, used = allocated(code, isa, groups, None if window == _WINDOWS[-1] else _HOPELESS)
                if scratch_bytes:
                    done = without_reloads(done)
                if scratch_bytes or window:  # else nothing kept it near the order of its source
                    done = tightened(done, isa)
                return done, used, scratch_bytes
            except Pressure as found:
                pressure = found
        assert pressure is not None
        possible = possible if round_ else _spillable(current)
        stalled = 0 if pressure.groups < fewest else stalled + 1
        fewest = min(fewest, pressure.groups)
        if (most and pressure.groups > most) or (stalled >= _STUCK and possible.isdisjoint(pressure.names)):
            return pressure.file
        chosen: dict[Name, None] = {}
        for candidates in pressure.candidates():
            others = (n for n in candidates if n in possible and n not in chosen)
            chosen |= dict.fromkeys(tuple(islice(others, 1 << stalled // _PATIENCE)))
        if not chosen:
            return pressure.file
        if not pressure.names.isdisjoint(chosen):
            fewest = 1 << 30  # what goes without next are its reloads, which is another matter
        spill = Spill(current, tuple(chosen), scratch_bytes)
        current = tuple(spill.items(current))
        if longest is not None and _longest_body(current) > longest:
            return None
        possible -= chosen.keys()
        scratch_bytes = spill.end_bytes
    return "A"


def _longest_body(items: Sequence[Item]) -> int:
    """Return how many instructions of one slot the longest body of a hardware loop has, before it is scheduled."""
    bodies = [i.body.instructions for i in walk(tuple(items)) if isinstance(i, Repeat)]
    return max((max(Counter(i.slot for i in body).values(), default=0) for body in bodies), default=0)


def _spillable(items: Sequence[Item]) -> set[Name]:
    """Return the groups that are values of one or two registers, and no loop's counter."""
    widths: dict[Name, int] = {}
    for i in instructions_of(tuple(items)):
        for r in (*i.ins, *i.outs):
            if r.virtual:
                name = (r.file, r.index)
                widths[name] = max(widths.get(name, 1), r.group_width)
    counters = {(i.counter.file, i.counter.index) for i in walk(tuple(items)) if isinstance(i, Loop)}
    return {name for name, width in widths.items() if width <= 2} - counters


def spills_in_loops(items: Sequence[Item]) -> bool:
    """Return whether accesses to scratch memory are many of what the innermost loops issue."""
    bodies = [i.body.bundles or () for i in walk(tuple(items)) if isinstance(i, Repeat)]
    spilled = sum(i.stream.startswith("scratch") for body in bodies for x in body for i in x.instructions)
    return spilled * _FEW > sum(map(len, bodies))


class Spill:
    """Moves groups of registers to scratch memory."""

    def __init__(self, items: Sequence[Item], names: Sequence[Name], scratch_bytes: int) -> None:
        """Give every group a place in scratch memory."""
        self.widths = dict.fromkeys(names, 1)
        widths, last = self.widths, 0
        for i in instructions_of(tuple(items)):
            for r in i.ins + i.outs:
                if r.virtual:
                    if r.index > last:
                        last = r.index
                    name = r.file, r.index
                    if name in widths and r.group_width > widths[name]:
                        widths[name] = r.group_width
        self.next = 1 + last
        self.places: dict[Name, int] = {}
        for name in names:
            size = 4 * self.widths[name]
            self.places[name] = -(-scratch_bytes // size) * size
            scratch_bytes = self.places[name] + size
        self.end_bytes = scratch_bytes

    def items(self, items: Sequence[Item]) -> list[Item]:
        """Return items with the groups' reads loaded before and their writes stored after."""
        out: list[Item] = []
        for item in items:
            if isinstance(item, Block):
                out.append(self._block(item))
            elif isinstance(item, Repeat) and item.body.bundles is None:
                count, before = self._control(item.count)
                out += [*before, replace(item, count=count, body=self._block(item.body))]
            elif isinstance(item, If):
                condition, before = self._control(item.condition)
                assert condition is not None
                out += [*before, replace(item, condition=condition, body=tuple(self.items(item.body)))]
            elif isinstance(item, Repeat):
                out.append(item)
            else:
                out.append(replace(item, body=tuple(self.items(item.body))))
        return out

    def _name(self, register: Register | None) -> Name | None:
        """Return the group of a register where it is one of those that move."""
        if register is None or not register.virtual or (register.file, register.index) not in self.places:
            return None
        return register.file, register.index

    def _temporary(self, name: Name) -> Register:
        register = Register(name[0], self.next, self.widths[name])
        self.next += 1
        return register

    def _control(self, register: Register | None) -> tuple[Register | None, list[Item]]:
        name = self._name(register)
        if name is None:
            return register, []
        here = self._temporary(name)
        return here, [Block((self._load(name, here),))]

    def _load(self, name: Name, here: Register) -> Instruction:
        ins, at = (WORKER_BASE, MZERO), self.places[name]
        width = self.widths[name]
        return Instruction(f"ld{32 * width}", MAIN, (here,), ins, (at // (4 * width),), stream=f"scratch{at}")

    def _store(self, name: Name, here: Register) -> Instruction:
        at, width = self.places[name], self.widths[name]
        ins = (here, WORKER_BASE, MZERO)
        return Instruction(f"st{32 * width}", MAIN, (), ins, (at // (4 * width),), stream=f"scratch{at}")

    def _block(self, block: Block) -> Block:
        """Return a block with its moves: itself where there are none, so that its schedule stays known."""
        if block.bundles is not None:
            return block
        places, touched = self.places, False
        indices = {index for _, index in places}
        out: list[Instruction] = []
        for i in block.instructions:
            if not any(r.index in indices for r in i.ins + i.outs):
                out.append(i)
                continue
            reads = [(r.file, r.index) for r in i.ins if r.virtual and (r.file, r.index) in places]
            writes = [(r.file, r.index) for r in i.outs if r.virtual and (r.file, r.index) in places]
            if not reads and not writes:
                out.append(i)
                continue
            touched = True
            here = {name: self._temporary(name) for name in dict.fromkeys((*reads, *writes))}
            partly = [n for r in i.outs if (n := self._name(r)) is not None and r.width < self.widths[n]]
            out += [self._load(name, here[name]) for name in dict.fromkeys((*reads, *partly))]
            ins, outs = (tuple(self._moved(r, here) for r in each) for each in (i.ins, i.outs))
            out.append(replace(i, ins=ins, outs=outs))
            out += [self._store(name, here[name]) for name in dict.fromkeys(writes)]
        return Block(tuple(out)) if touched else block

    def _moved(self, register: Register, here: dict[Name, Register]) -> Register:
        name = self._name(register)
        if name is None:
            return register
        place = here[name]
        return place if register.width == self.widths[name] else place.part(register.offset, register.width)
