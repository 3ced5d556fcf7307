"""The loop nest of slices and updates at runtime offsets along two axes: rows of a block, each copied by all workers together."""

from __future__ import annotations

from dataclasses import dataclass

from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.extents import Extent, const, symbol
from tiles.elements.lookup import WORD_BYTES, RowCopies
from tiles.elements.tilecode import AZERO, AZEROS, MZERO, Block, Item, Register, Repeat
from tiles.elements.workers import emit_share, emit_worker, share, worker_code

N, ROWS = symbol("n"), symbol("rows")
"""Words of a row of the block that lie in the vertex' part of the tensor, and such rows."""


@dataclass
class BlockSlice(RowCopies):
    """Builds the code that copies a block of ``window0`` times ``window1`` places from, or to, two clamped indices.

    A place is ``row_bytes`` long. A vertex has ``size0`` times ``size1`` places of the tensor, from ``first0`` and
    ``first1`` on, and copies what of the block falls into them. Slots are those of the vertex that has most of it, but for
    the zeros that a slice has elsewhere.

    Args:
      is_update: whether the block ("in0") goes into the tensor ("out0"); else it ("out0") comes out of it ("in0").
      has_zeros: whether a slice has zeros for what lies in other parts.
    """

    is_update: bool = False
    has_zeros: bool = False

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.emitter
        with e.at(CELL):
            source, target, pitch = (self.argument(name) for name in ("in0", "out0", "row_bytes"))
            size, window = self.argument("size1"), self.argument("window1")
            worker = emit_worker(e)
            place0, low0, high0, all0 = self._within("0")
            place1, low1, high1, _ = self._within("1")
            row_bytes, block_bytes = e.main("mul", size, pitch), e.main("mul", window, pitch)
            inside = e.main("mul", e.main("add", place0, low0), row_bytes)
            inside = e.main("add", inside, e.main("mul", e.main("add", place1, low1), pitch))
            before = e.main("mul", low0, block_bytes)
            ahead = e.main("mul", low1, pitch)
            taken = e.main("mul", e.main("sub", high1, low1), pitch)
            offset = e.main("mul", worker, imms=(WORD_BYTES * self.access_words,))
            tensor, block = (target, source) if self.is_update else (source, target)
            first = e.main("add", block, before)
            there = e.main("add", e.main("add", tensor, inside), offset)
            here = e.main("add", e.main("add", first, ahead), offset)
            left, right = (here, there) if self.is_update else (there, here)
            steps = (block_bytes, row_bytes) if self.is_update else (row_bytes, block_bytes)
            count = emit_share(e, e.main("shr", taken, imms=(self.access_words + 1,)), worker)
            rows = e.main("sub", high0, low0)
        zeros: list[tuple[Register, Register]] = []
        edges: list[Item] = []
        if self.has_zeros:
            with e.at(CELL):
                behind = e.main("sub", e.main("sub", block_bytes, ahead), taken)
                start = e.main("add", first, offset)
                end = e.main("add", start, e.main("add", ahead, taken))
                zeros = [(self._accesses(ahead, worker), start), (self._accesses(behind, worker), end)]
                last = e.main("add", first, e.main("mul", rows, block_bytes))
                rest = e.main("mul", e.main("sub", all0, high0), block_bytes)
            edges = self.span(worker, before, None, None, target) + self.span(worker, rest, None, None, last)
        row = self._row(count, left, right, zeros)
        with e.at(ROW):
            e.emit("add", (left,), (left, steps[0]))
            e.emit("add", (right,), (right, steps[1]))
            for _, start in zeros:
                e.emit("add", (start,), (start, block_bytes))
        row += e.empty(ROW)
        return [*edges, *worker_code(e, rows, ROWS, row)]

    def _within(self, axis: str) -> tuple[Register, Register, Register, Register]:
        """Return where the block begins in the part, which of its places the part has, and how many there are."""
        e = self.emitter
        names = (f"in{1 + int(axis)}", f"last{axis}", f"first{axis}", f"size{axis}", f"window{axis}")
        index, last, first, size, window = (self.argument(name) for name in names)
        number = e.fresh("M")
        e.emit("ld32", (number,), (index, MZERO), (0,), stream=names[0])
        place = e.main("sub", e.main("min", e.main("max", number, imms=(0,)), last), first)
        low = e.main("min", e.main("max", e.main("sub", MZERO, place), imms=(0,)), window)
        high = e.main("max", e.main("min", e.main("sub", size, place), window), low)
        return place, low, high, window

    def _accesses(self, size_bytes: Register, worker: Register) -> Register:
        """Return the worker's share of some bytes' accesses."""
        return emit_share(
            self.emitter, self.emitter.main("shr", size_bytes, imms=(self.access_words + 1,)), worker
        )

    def _row(
        self, count: Register, left: Register, right: Register, zeros: list[tuple[Register, Register]]
    ) -> list[Item]:
        """Return the code of one row of the block: what the vertex has, and zeros before and behind it."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(ROW):
            reading, writing = (e.main("or", pointer, imms=(0,)) for pointer in (left, right))
            edges = [(number, e.main("or", start, imms=(0,))) for number, start in zeros]
        items = [*e.empty(ROW), self._repeat(count, share(N // self.access_words, workers), reading, writing)]
        return [*items, *(self._repeat(number, const(0), None, start) for number, start in edges)]

    def _repeat(self, count: Register, trips: Extent, left: Register | None, right: Register) -> Repeat:
        """Return the loop that copies, or sets to zero, a worker's accesses."""
        e, access, workers = self.emitter, self.access_words, self.emitter.isa["worker_contexts"]
        bits = 32 * access
        with e.at(ELEMENT):
            value = AZEROS if access > 1 else AZERO
            if left is not None:
                value = e.fresh("A", access)
                e.emit(f"ld{bits}step", (value, left), (MZERO, left), (workers,), stream="in0")
            e.emit(f"st{bits}step", (right,), (value, MZERO, right), (workers,), stream="out0")
        (body,) = e.empty(ELEMENT)
        assert isinstance(body, Block)
        return Repeat(count, trips, body)
