"""Emission of instructions on virtual registers, into lists by level: before the loops, before a row, in the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import numpy as np

from tiles.elements.cell import CELL
from tiles.elements.extents import Extent
from tiles.elements.isa import InstructionSet
from tiles.elements.tilecode import AZERO, MZERO, WORKER_BASE, Block, Instruction, Item, Register, Repeat

_LOW_BITS = 20
_LOGIC_IMMEDIATE = 4096


class Emitter:
    """Makes instructions and virtual registers; ``lists`` holds the items of each level in order."""

    def __init__(self, isa: InstructionSet) -> None:
        """Start with nothing emitted."""
        self.isa = isa
        self.lists: dict[int, list[Item]] = {}
        self.level = CELL
        self.scratch_bytes = 0
        self._numbers = {"M": 0, "A": 0}
        self._constants: dict[tuple[str, int], Register] = {}

    def fresh(self, file: str, width: int = 1) -> Register:
        """Return a new virtual register."""
        self._numbers[file] += 1
        return Register(file, self._numbers[file] - 1, width)

    @contextlib.contextmanager
    def at(self, level: int) -> Generator[None]:
        """Emit into a level's list for a while."""
        before, self.level = self.level, level
        try:
            yield
        finally:
            self.level = before

    def emit(
        self,
        mnemonic: str,
        outs: tuple[Register, ...],
        ins: tuple[Register, ...] = (),
        imms: tuple[int, ...] = (),
        modifier: str = "",
        stream: str = "",
        effect: str = "",
        note: str = "",
    ) -> None:
        """Add an instruction to the current level's list."""
        row = self.isa.row(mnemonic)
        file = (outs or ins)[0].file if outs or ins else "M"
        slot = row.slot if row.slot != "either" else ("main" if file == "M" else "aux")
        instruction = Instruction(
            mnemonic,
            slot,
            outs,
            ins,
            imms,
            modifier,
            stream,
            bool(row.stores_bits) and stream[:7] != "scratch",
            effect,
            note,
        )
        items = self.lists.setdefault(self.level, [])
        last = items[-1] if items else None
        if isinstance(last, Block):
            items[-1] = Block((*last.instructions, instruction))
        else:
            items.append(Block((instruction,)))

    def op(
        self,
        mnemonic: str,
        out: Register | tuple[str, int],
        *ins: Register,
        imms: tuple[int, ...] = (),
        modifier: str = "",
    ) -> Register:
        """Emit an instruction with one result, a register or the file and width of a new one; return it."""
        target = out if isinstance(out, Register) else self.fresh(*out)
        self.emit(mnemonic, (target,), ins, imms, modifier)
        return target

    def main(self, mnemonic: str, *ins: Register, imms: tuple[int, ...] = ()) -> Register:
        """Emit an integer instruction; return its new main register."""
        return self.op(mnemonic, ("M", 1), *ins, imms=imms)

    def move_conditionally(
        self, mnemonic: str, kept: Register, taken: Register, condition: Register
    ) -> Register:
        """Emit ``movz`` or ``movnz``: a new register with ``taken`` where the condition holds, else ``kept``."""
        target = self.main("or", kept, imms=(0,))
        self.emit(mnemonic, (target,), (target, taken, condition))
        return target

    def constant(self, file: str, word: int) -> Register:
        """Return a register that holds a 32-bit constant, loaded once before the loops."""
        if word == 0:
            return MZERO if file == "M" else AZERO
        key = (file, word)
        if key not in self._constants:
            with self.at(CELL):
                self._constants[key] = self._load_constant(file, word)
        return self._constants[key]

    def _load_constant(self, file: str, word: int) -> Register:
        low, high = word & ((1 << _LOW_BITS) - 1), word >> _LOW_BITS << _LOW_BITS
        if not high:
            return self.op("setzi", (file, 1), imms=(low,))
        start = self.op("setzi", (file, 1), imms=(low,)) if low else (MZERO if file == "M" else AZERO)
        return self.op("or", (file, 1), start, imms=(high,))

    def masked(self, register: Register, mask: int) -> Register:
        """Return a main register's bits under a constant mask."""
        if mask < _LOGIC_IMMEDIATE:
            return self.main("and", register, imms=(mask,))
        return self.main("and", register, self.constant("M", mask))

    def scratch(self, size_bytes: int) -> int:
        """Return the offset of new scratch memory of each worker."""
        at = -(-self.scratch_bytes // size_bytes) * size_bytes
        self.scratch_bytes = at + size_bytes
        return at

    def to_aux(self, *words: Register) -> Register:
        """Move one or two main registers to the aux file, through scratch memory."""
        width = len(words)
        at = self.scratch(4 * width)
        stream = f"scratch{at}"
        for k, word in enumerate(words):
            self.emit("st32", (), (word, WORKER_BASE, MZERO), (at // 4 + k,), stream=stream)
        target = self.fresh("A", width)
        size = 4 * width
        self.emit(f"ld{8 * size}", (target,), (WORKER_BASE, MZERO), (at // size,), stream=stream)
        return target

    def repeat(self, trips: Extent, count: Register | None, body: list[Item]) -> None:
        """Add a hardware repeat loop over one block to the current level's list."""
        (block,) = body
        assert isinstance(block, Block)
        self.lists.setdefault(self.level, []).append(Repeat(count, trips, block))

    @contextlib.contextmanager
    def collecting(self) -> Generator[list[Item]]:
        """Collect what is emitted at the current level into a list of its own."""
        before = self.lists.get(self.level, [])
        inside: list[Item] = []
        self.lists[self.level] = inside
        try:
            yield inside
        finally:
            self.lists[self.level] = before

    def empty(self, level: int) -> list[Item]:
        """Take a level's list away and return it."""
        return self.lists.pop(level, [])


def word_of_float(value: float, dtype: str) -> int:
    """Return the 32-bit word of a float; a half stands in both halves."""
    if dtype == "float16":
        bits = int(np.float16(value).view(np.uint16))
        return bits << 16 | bits
    return int(np.float32(value).view(np.uint32))
