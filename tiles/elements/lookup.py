"""The loop nests of slices and updates at runtime offsets.

Lookups copy rows of a table at indices one after the other; workers take indices in turn. A slice, or an update, at one
index is copied by all workers together. An index outside the table takes its first or last row, as a gather that clamps
does. Of a part of a table a vertex takes what falls into it and leaves zeros in place of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles.elements.cell import ACCESS_BYTES, CELL, ELEMENT, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import Extent, const, equal, greater, symbol
from tiles.elements.tilecode import AZERO, AZEROS, MZERO, Block, If, Item, Register, Repeat
from tiles.elements.workers import WORKER, emit_argument, emit_share, emit_worker, share, worker_code
from tiles.errors import NoTileCode

WORD_BYTES = 4
N, ROWS = symbol("n"), symbol("rows")
"""Words of a row, and indices."""


@dataclass
class RowCopies:
    """What builds code that copies rows of whole words.

    Args:
      emitter: takes the code.
      alignment_bytes: what every row's address is a multiple of, where it comes from and where it goes: 8 or 4.
      lanes: elements of an iteration, which a variant says.
    """

    emitter: Emitter
    alignment_bytes: int = ACCESS_BYTES
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: rows that start inside a word.
        """
        if self.alignment_bytes % WORD_BYTES:
            raise NoTileCode(f"rows at multiples of {self.alignment_bytes} bytes", expected="whole words")
        self.arguments: list[str] = []
        self.access_words = 2 if self.alignment_bytes % ACCESS_BYTES == 0 else 1

    def argument(self, name: str) -> Register:
        """Return a field of the vertex' state."""
        return emit_argument(self.emitter, self.arguments, name)

    def span(
        self,
        worker: Register,
        size: Register,
        words: Extent | None,
        source: Register | None,
        target: Register,
    ) -> list[Item]:
        """Return the code that copies, or sets to zero, ``size`` bytes; a closed form of their words, or None for none."""
        e, access, workers = self.emitter, self.access_words, self.emitter.isa["worker_contexts"]
        bits = 32 * access
        with e.at(CELL):
            count = emit_share(e, e.main("shr", size, imms=(access + 1,)), worker)
            offset = e.main("mul", worker, imms=(WORD_BYTES * access,))
            right = e.main("add", target, offset)
            left = None if source is None else e.main("add", source, offset)
        with e.at(ELEMENT):
            value = AZEROS if access > 1 else AZERO
            if left is not None:
                value = e.fresh("A", access)
                e.emit(f"ld{bits}step", (value, left), (MZERO, left), (workers,), stream="in0")
            e.emit(f"st{bits}step", (right,), (value, MZERO, right), (workers,), stream="out0")
        (body,) = e.empty(ELEMENT)
        assert isinstance(body, Block)
        trips = const(0) if words is None else share(words // access, workers)
        return [*e.empty(CELL), Repeat(count, trips, body)]


@dataclass
class Lookup(RowCopies):
    """Builds the code of ``out[i, :] = table[clamp(index[i]), :]`` for rows of ``n`` words.

    Where a place has several indices, each clamped along an axis of its own, memory and fields of the first one are named "in1",
    "size" and so on, those of the second one "in2", "size1" and so on.

    Of a table of which there are ``size`` rows from ``first`` on, and the last one is ``last``, rows elsewhere are zeros: a row
    that is there is read, and masked.

    Args:
      is_unsigned: whether indices are.
      is_part: whether the table is a part of one.
      axes: how many indices a place has.
    """

    is_unsigned: bool = False
    is_part: bool = False
    axes: int = 1

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            table, *indices, out = (
                self.argument(name) for name in ("in0", *(f"in{1 + k}" for k in range(self.axes)), "out0")
            )
            n, rows = (self.argument(name) for name in ("n", "rows"))
            lasts = [
                None if self.is_part else e.main("add", self._of("size", k), imms=(-1,))
                for k in range(self.axes)
            ]
            pitches = [self._of("in0_row_bytes", k) for k in range(self.axes)]
            out_pitch = self.argument("out0_row_bytes")
            worker = emit_worker(e)
            count = emit_share(e, rows, worker)
            own = e.main("mul", worker, imms=(WORD_BYTES,))
            indices = [e.main("add", index, own) for index in indices]
            target = e.main("add", out, e.main("mul", worker, out_pitch))
            step = e.main("mul", out_pitch, imms=(workers,))
            accesses = e.main("shr", n, imms=(1,)) if self.access_words > 1 else n
            rest = e.main("and", n, imms=(1,))
        with e.at(ROW):
            source, mask = self._found(indices, table, pitches, lasts)
        row = self._row(source, mask, target, accesses, rest)
        with e.at(ROW):
            e.emit("add", (target,), (target, step))
        row += e.empty(ROW)
        return worker_code(e, count, share(ROWS, workers), row)

    def _of(self, name: str, axis: int) -> Register:
        return self.argument(f"{name}{axis}" if axis else name)

    def _found(
        self,
        indices: list[Register],
        table: Register,
        pitches: list[Register],
        lasts: list[Register | None],
    ) -> tuple[Register, Register | None]:
        """Emit where the row lies that a place's indices name, and of a part of a table the mask of what is there."""
        e, source, is_here = self.emitter, table, MZERO
        for k, (index, pitch, last) in enumerate(zip(indices, pitches, lasts, strict=True)):
            number = e.fresh("M")
            e.emit(
                "ld32step", (number, index), (MZERO, index), (e.isa["worker_contexts"],), stream=f"in{1 + k}"
            )
            last = last or self._of("last", k)  # of a part, for every index: registers are few
            if self.is_unsigned:
                clamped = e.move_conditionally("movnz", last, number, e.main("cmpult", number, last))
            else:
                clamped = e.main("min", e.main("max", number, imms=(0,)), last)
            if self.is_part:
                place = e.main("sub", clamped, self._of("first", k))
                is_inside = e.main("cmpult", place, self._of("size", k))
                clamped = e.main("mul", place, is_inside)
                is_here = e.main("and", is_here, is_inside) if k else is_inside
            source = e.main("add", source, e.main("mul", clamped, pitch))
        if not self.is_part:
            return source, None
        return source, e.to_aux(*(e.main("sub", MZERO, is_here),) * self.access_words)

    def _row(
        self, source: Register, mask: Register | None, target: Register, accesses: Register, rest: Register
    ) -> list[Item]:
        """Return the code that copies a row, and the word that fills no access."""
        e, words = self.emitter, self.access_words
        with e.at(ROW):
            there = e.main("add", target, imms=(0,))
            left, right = source, there
            if words > 1:
                beyond = e.main("mul", accesses, imms=(ACCESS_BYTES,))
                left, right = e.main("add", source, beyond), e.main("add", there, beyond)
        with e.at(ELEMENT):
            self._copy(f"{32 * words}step", words, source, there, mask)
        (body,) = e.empty(ELEMENT)
        assert isinstance(body, Block)
        items = [*e.empty(ROW), Repeat(accesses, N // words, body)]
        if words > 1:
            with e.at(ELEMENT):
                self._copy("32", 1, left, right, None if mask is None else mask.part(0))
            items.append(If(rest, greater(N % words, 0), tuple(e.empty(ELEMENT))))
        return items

    def _copy(self, name: str, words: int, source: Register, target: Register, mask: Register | None) -> None:
        """Emit one load and one store of what a mask leaves; with a step both addresses advance."""
        e = self.emitter
        value = e.fresh("A", words)
        masking = "and64" if words > 1 else "and"
        if name.endswith("step"):
            e.emit(f"ld{name}", (value, source), (MZERO, source), (1,), stream="in0")
            value = value if mask is None else e.op(masking, ("A", words), value, mask)
            e.emit(f"st{name}", (target,), (value, MZERO, target), (1,), stream="out0")
        else:
            e.emit(f"ld{name}", (value,), (source, MZERO), (0,), stream="in0")
            value = value if mask is None else e.op(masking, ("A", words), value, mask)
            e.emit(f"st{name}", (), (value, target, MZERO), (0,), stream="out0")


@dataclass
class Slice(RowCopies):
    """Builds the code that copies ``n`` words from, or to, the row of a tensor at one clamped index, by all workers.

    Args:
      is_update: whether the part ("in0") goes into the tensor ("out0"), as far as it is there; else it ("out0") comes
        out of a whole one ("in0").
    """

    is_update: bool = False

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, words, workers = self.emitter, self.access_words, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            source, index, target = (self.argument(name) for name in ("in0", "in1", "out0"))
            last, pitch = self.argument("last"), self.argument("row_bytes")
            n = MZERO if self.is_update else self.argument("n")
            worker = emit_worker(e)
            number = e.fresh("M")
            e.emit("ld32", (number,), (index, MZERO), (0,), stream="in1")
            clamped = e.main("min", e.main("max", number, imms=(0,)), last)
            if self.is_update:
                source, target, n = self._within(clamped, source, target, pitch)
            else:
                source = e.main("add", source, e.main("mul", clamped, pitch))
            accesses = e.main("shr", n, imms=(1,)) if words > 1 else n
            count = emit_share(e, accesses, worker)
            first = e.main("mul", worker, imms=(WORD_BYTES * words,))
            left, right = e.main("add", source, first), e.main("add", target, first)
        with e.at(ELEMENT):
            value, size = e.fresh("A", words), 32 * words
            e.emit(f"ld{size}step", (value, left), (MZERO, left), (workers,), stream="in0")
            e.emit(f"st{size}step", (right,), (value, MZERO, right), (workers,), stream="out0")
        (body,) = e.empty(ELEMENT)
        assert isinstance(body, Block)
        loop: list[Item] = [Repeat(count, share(N // words, workers), body)]
        if words > 1:
            with e.at(CELL):
                rest = e.main("and", n, imms=(1,))
                rest = e.main("mul", rest, e.main("cmpeq", worker, imms=(workers - 1,)))
                beyond = e.main("mul", accesses, imms=(ACCESS_BYTES,))
            with e.at(ELEMENT):
                value = e.fresh("A")
                e.emit("ld32", (value,), (source, beyond), (0,), stream="in0")
                e.emit("st32", (), (value, target, beyond), (0,), stream="out0")
            taken = greater(N % words, 0) * equal(WORKER, workers - 1)
            loop.append(If(rest, taken, tuple(e.empty(ELEMENT))))
        before = e.empty(CELL)
        with e.at(CELL):
            e.emit("exitz", (), (MZERO,))
        return [*before, *loop, *e.empty(CELL)]

    def _within(
        self, place: Register, source: Register, target: Register, pitch: Register
    ) -> tuple[Register, Register, Register]:
        """Return where the rows of a part lie that fall into the tensor, where they go, and their words.

        The tensor is ``size`` rows from ``first`` on, the part ``window`` rows from ``place`` on.
        """
        e = self.emitter
        first, size, window = (self.argument(name) for name in ("first", "size", "window"))
        start = e.main("sub", place, first)
        low = e.main("max", start, imms=(0,))
        high = e.main("min", e.main("add", start, window), size)
        rows = e.main("max", e.main("sub", high, low), imms=(0,))
        source = e.main("add", source, e.main("mul", e.main("sub", low, start), pitch))
        target = e.main("add", target, e.main("mul", low, pitch))
        return source, target, e.main("shr", e.main("mul", rows, pitch), imms=(2,))


@dataclass
class PartSlice(RowCopies):
    """Builds the code that takes ``window`` rows at one clamped index out of a part of a table, by all workers.

    The part is ``size`` rows from ``first`` on. Its ``n`` words are copied and the ``rows`` words that lie elsewhere are
    set to zero: before those that are copied, and behind them. Slots are those of the vertex that finds most.
    """

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.emitter
        with e.at(CELL):
            source, index, target = (self.argument(name) for name in ("in0", "in1", "out0"))
            last, pitch = self.argument("last"), self.argument("row_bytes")
            first, size, window = (self.argument(name) for name in ("first", "size", "window"))
            worker = emit_worker(e)
            number = e.fresh("M")
            e.emit("ld32", (number,), (index, MZERO), (0,), stream="in1")
            place = e.main("sub", e.main("min", e.main("max", number, imms=(0,)), last), first)
            low = e.main("min", e.main("max", e.main("sub", MZERO, place), imms=(0,)), window)
            high = e.main("max", e.main("min", e.main("sub", size, place), window), low)
            source = e.main("add", source, e.main("mul", e.main("add", place, low), pitch))
            before, taken, behind = (
                e.main("mul", rows, pitch)
                for rows in (low, e.main("sub", high, low), e.main("sub", window, high))
            )
            middle = e.main("add", target, before)
            end = e.main("add", middle, taken)
        items = self.span(worker, taken, N, source, middle)
        items += self.span(worker, before, None, None, target)
        items += self.span(worker, behind, ROWS, None, end)
        with e.at(CELL):
            e.emit("exitz", (), (MZERO,))
        return [*items, *e.empty(CELL)]
