"""Spilling: a value that finds no register waits in its worker's scratch memory, at the price of its moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiles.elements.isa import InstructionSet
from tiles.elements.pace import first_free, packed
from tiles.elements.registers import Name, Pressure, allocated, out_of_registers
from tiles.elements.schedule import scheduled, tightened
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
_INSTRUCTIONS_PER_SPILL = 40
_WINDOWS = (0, 1 << 20, 8, 1)
_WINDOWS_AFTER_SPILLING = (1,)


def assigned(
    items: Sequence[Item], isa: InstructionSet, pace: bool, scratch_bytes: int, what: str
) -> tuple[tuple[Item, ...], tuple[int, int], int]:
    """Return scheduled code on physical registers, the registers used, and the bytes of scratch memory.

    Code that needs too many registers is tried without overlap of iterations, then closer to the order of its
    source, before anything is spilled.

    Raises:
      OutOfRegisters: even with everything spilled that can be.
    """
    current, spilled = tuple(items), set()
    for round_ in range(_MAX_ROUNDS):
        pressure: Pressure | None = None
        for window in _WINDOWS if not round_ else _WINDOWS_AFTER_SPILLING:
            try:
                code = scheduled(current, isa, pace, window)
                done, used = allocated(packed(code, first_free(code)) if pace else code, isa)
                return tightened(done, isa), used, scratch_bytes
            except Pressure as found:
                pressure = found
        assert pressure is not None
        candidates = [n for n in pressure.candidates if n not in spilled and _can_spill(current, n)]
        if not candidates:
            raise out_of_registers(pressure.file, what)
        size = sum(1 for _ in instructions_of(current))
        for name in candidates[: 1 + size // _INSTRUCTIONS_PER_SPILL]:
            spill = Spill(current, name, scratch_bytes)
            current = tuple(spill.items(current))
            spilled |= {name, *spill.temporaries}
            scratch_bytes = spill.end_bytes
    raise out_of_registers("A", what)


def _can_spill(items: Sequence[Item], name: Name) -> bool:
    """Return whether a group is a value of one or two registers, and no loop's counter."""
    counters = {(i.counter.file, i.counter.index) for i in walk(tuple(items)) if isinstance(i, Loop)}
    widths = {
        r.group_width
        for i in instructions_of(tuple(items))
        for r in (*i.ins, *i.outs)
        if r.virtual and (r.file, r.index) == name
    }
    return name not in counters and bool(widths) and max(widths) <= 2


class Spill:
    """Moves one group of registers to scratch memory."""

    def __init__(self, items: Sequence[Item], name: Name, scratch_bytes: int) -> None:
        """Give the group a place in scratch memory."""
        registers = [r for i in instructions_of(tuple(items)) for r in (*i.ins, *i.outs) if r.virtual]
        self.name = name
        self.width = max(r.group_width for r in registers if (r.file, r.index) == name)
        self.next = 1 + max(r.index for r in registers)
        size = 4 * self.width
        self.at = -(-scratch_bytes // size) * size
        self.end_bytes = self.at + size
        self.temporaries: set[Name] = set()

    def items(self, items: Sequence[Item]) -> list[Item]:
        """Return items with the group's reads loaded before and its writes stored after."""
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

    def _is(self, register: Register | None) -> bool:
        return register is not None and register.virtual and (register.file, register.index) == self.name

    def _temporary(self) -> Register:
        register = Register(self.name[0], self.next, self.width)
        self.next += 1
        self.temporaries.add((register.file, register.index))
        return register

    def _control(self, register: Register | None) -> tuple[Register | None, list[Item]]:
        if not self._is(register):
            return register, []
        here = self._temporary()
        return here, [Block((self._load(here),))]

    def _load(self, here: Register) -> Instruction:
        return Instruction(
            f"ld{32 * self.width}",
            MAIN,
            (here,),
            (WORKER_BASE, MZERO),
            (self.at // (4 * self.width),),
            stream=self._stream,
        )

    @property
    def _stream(self) -> str:
        return f"scratch{self.at}"

    def _block(self, block: Block) -> Block:
        if block.bundles is not None:
            return block
        out: list[Instruction] = []
        for i in block.instructions:
            reads, writes = any(map(self._is, i.ins)), any(map(self._is, i.outs))
            if not reads and not writes:
                out.append(i)
                continue
            here = self._temporary()
            partly = any(self._is(r) and r.width < self.width for r in i.outs)
            if reads or partly:
                out.append(self._load(here))
            out.append(
                replace(
                    i,
                    ins=tuple(self._moved(r, here) for r in i.ins),
                    outs=tuple(self._moved(r, here) for r in i.outs),
                )
            )
            if writes:
                store = f"st{32 * self.width}"
                ins = (here, WORKER_BASE, MZERO)
                out.append(
                    Instruction(store, MAIN, (), ins, (self.at // (4 * self.width),), stream=self._stream)
                )
        return Block(tuple(out))

    def _moved(self, register: Register, here: Register) -> Register:
        if not self._is(register):
            return register
        return here if register.width == self.width else here.part(register.offset, register.width)
