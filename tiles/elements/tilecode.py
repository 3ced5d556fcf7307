"""Tile code: blocks of bundles, hardware repeat loops, counted loops and guards, over registers.

A worker issues one bundle per rotation: an instruction of the main slot (memory, integers, control) beside one of
the aux slot (floats). Both halves read registers as they were before the bundle. Control flow is structured, so a
count of slots is a closed form in the extents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tiles.cached import cached_property
from tiles.elements.extents import Extent
from tiles.elements.supervisor import LAUNCH, Supervisor

MAIN, AUX = "main", "aux"
GENERATOR = "generator"
"""The effect of instructions that draw from a worker's random generator."""
JOINED = ("ld64step", "st64step")
"""Accesses that one instruction may make together."""
JOINED_MAX = 2
"""How many of them; the form with three wants both loads in one group of four registers."""
Units = tuple[tuple[str, int, int], ...]
"""Single registers, as ``(file, index, offset)``."""


@dataclass(frozen=True)
class Register:
    """A register or an aligned group of 2 or 4, or a part of a group.

    Attributes:
      file: "M" or "A".
      index: number of the first register; of a virtual one any number, unique in its file.
      width: registers in the group.
      group: registers of the group that this is a part of (the same as ``width`` for the whole).
      offset: first register of the part within its group.
    """

    file: str
    index: int
    width: int = 1
    group: int = 0
    offset: int = 0
    virtual: bool = True

    @cached_property
    def units(self) -> Units:
        """The single registers that it covers, as ``(file, index, offset)``."""
        file, index = self.file, self.index
        if not self.virtual:
            return tuple([(file, index + k, 0) for k in range(self.width)])
        return tuple([(file, index, self.offset + k) for k in range(self.width)])

    @property
    def group_width(self) -> int:
        """Registers of the whole group."""
        return self.group or self.width

    def part(self, offset: int, width: int = 1) -> Register:
        """Return a part of the group."""
        if not self.virtual:
            return replace(self, index=self.index + offset, width=width, group=0)
        return replace(self, width=width, group=self.group_width, offset=self.offset + offset)

    def __str__(self) -> str:
        prefix = f"{'%' if self.virtual else '$'}{self.file.lower()}"
        if not self.virtual and self.index == 15 and self.width == 1:
            return "$mzero" if self.file == "M" else "$azero"
        if not self.virtual and self.index == 14 and self.file == "A":
            return "$azeros"
        first = f"{self.index}"
        if self.virtual:
            last = f".{self.offset}" if self.group_width != self.width else ""
            return f"{prefix}{first}{last}" + (f"x{self.width}" if self.width > 1 else "")
        return f"{prefix}{first}" + (f":{self.index + self.width - 1}" if self.width > 1 else "")


MZERO = Register("M", 15, virtual=False)
VERTEX_BASE = Register("M", 13, virtual=False)
WORKER_BASE = Register("M", 12, virtual=False)
AZERO = Register("A", 15, virtual=False)
AZEROS = Register("A", 14, 2, virtual=False)
_FIXED = frozenset((r.file, r.index) for r in (MZERO, VERTEX_BASE, WORKER_BASE, AZERO, AZEROS))


def _units(registers: tuple[Register, ...]) -> Units:
    return tuple([u for r in registers if r.virtual or (r.file, r.index) not in _FIXED for u in r.units])


@dataclass(frozen=True)
class Instruction:
    """One instruction on registers.

    Attributes:
      slot: "main" or "aux".
      outs, ins: registers written and read; one that is read and written stands in both.
      imms: immediates.
      modifier: "B", "BL" or "BU" where the first operand is broadcast over the lanes.
      stream: name of the memory that it accesses; accesses of different streams never touch the same bytes.
      stores: whether it writes memory.
      effect: name of hidden state that it changes (accumulators, ``$TAS``, the generator); "live" for an instruction of a loop
        whose result is read after it; or "".
      note: what it is for, for the printer.
    """

    mnemonic: str
    slot: str
    outs: tuple[Register, ...] = ()
    ins: tuple[Register, ...] = ()
    imms: tuple[int, ...] = ()
    modifier: str = ""
    stream: str = ""
    stores: bool = False
    effect: str = ""
    note: str = ""

    @cached_property
    def read(self) -> Units:
        """The single registers that it reads, but those that nothing writes."""
        return _units(self.ins)

    @cached_property
    def written(self) -> Units:
        """The single registers that it writes."""
        return _units(self.outs)

    @property
    def has_effect(self) -> bool:
        """Whether it does more than write registers, or adds to one of its own operands."""
        return self.stores or bool(self.effect)

    @property
    def may_run_ahead(self) -> bool:
        """Whether it may run for iterations that never come: random numbers that nobody takes are no harm."""
        return not self.has_effect or (not self.stores and self.effect == GENERATOR)

    def __str__(self) -> str:
        updated = (
            self.outs if self.mnemonic.endswith(("step", "pace")) or self.mnemonic.startswith("mov") else ()
        )
        names = [str(r) for r in (*self.outs, *(r for r in self.ins if r not in updated))]
        if self.modifier and self.ins:
            at = len(self.outs)
            names[at] = f"{names[at]}:{self.modifier}"
        return f"{self.mnemonic} {', '.join([*names, *map(str, self.imms)])}".strip()


@dataclass(frozen=True)
class Bundle:
    """What a worker issues in one slot: a main instruction, an aux one, or both."""

    main: Instruction | None = None
    aux: Instruction | None = None

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """Those that are there."""
        if self.main is None:
            return () if self.aux is None else (self.aux,)
        return (self.main,) if self.aux is None else (self.main, self.aux)


@dataclass(frozen=True)
class Block:
    """Instructions in order; ``bundles`` once they are scheduled."""

    instructions: tuple[Instruction, ...] = ()
    bundles: tuple[Bundle, ...] | None = None


@dataclass(frozen=True)
class Repeat:
    """A hardware repeat loop over bundles: no slots of its own but the one that starts it.

    Attributes:
      count: register of the number of iterations, or None where ``trips`` is a constant.
      trips: closed form of that number.
      body: its block.
      lead: bundles before the loop that fill its pipeline, once scheduled.
      stages: iterations that overlap.
    """

    count: Register | None
    trips: Extent
    body: Block
    lead: Block = Block(bundles=())
    stages: int = 1


@dataclass(frozen=True)
class Loop:
    """A loop of any items, by a branch at its end: one slot an iteration. At least one iteration is made.

    Attributes:
      counter: register that holds iterations minus 1, counted down.
      trips: closed form of the iterations.
    """

    counter: Register
    trips: Extent
    body: tuple[Item, ...]


@dataclass(frozen=True)
class If:
    """Items that run where ``condition`` is not zero (or is, where ``inverted``); one slot for the branch.

    Attributes:
      taken: closed form: 1 where they run, 0 where not.
    """

    condition: Register
    taken: Extent
    body: tuple[Item, ...]
    inverted: bool = False


Item = Block | Repeat | Loop | If


@dataclass(frozen=True)
class TileCode:
    """A codelet variant's code for one worker, which all workers of a tile run.

    Attributes:
      name: of the variant, for the printer.
      generation: name of the instruction set.
      arguments: fields of the vertex state in order, words each: what the supervisor sets up.
      items: the code; ``exitz`` at its end.
      registers: main and aux registers that it uses.
      scratch_bytes: memory of each worker for values that move between register files or are spilled.
      overread_bytes: how far loads may reach beyond an operand's end.
      lanes: elements of one iteration.
      supervisor: what the supervisor does around the workers.
    """

    name: str
    generation: str
    arguments: tuple[str, ...]
    items: tuple[Item, ...]
    registers: tuple[int, int] = (0, 0)
    scratch_bytes: int = 0
    overread_bytes: int = 0
    lanes: int = 1
    supervisor: Supervisor = LAUNCH


def walk(items: tuple[Item, ...]) -> Iterator[Item]:
    """Yield items and those inside them, in order."""
    for item in items:
        yield item
        if isinstance(item, (Loop, If)):
            yield from walk(item.body)


def instructions_of(items: tuple[Item, ...]) -> Iterator[Instruction]:
    """Yield every instruction, in order of issue within each block."""
    for item in walk(items):
        for block in _blocks(item):
            if block.bundles is None:
                yield from block.instructions
            else:
                for bundle in block.bundles:
                    yield from bundle.instructions


def _blocks(item: Item) -> tuple[Block, ...]:
    if isinstance(item, Block):
        return (item,)
    return (item.lead, item.body) if isinstance(item, Repeat) else ()
