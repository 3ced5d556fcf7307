"""The loop nest of numbered blocks: of a block's number a few words are computed, which lie one after the other or in two rows.

Random bits are such: a counter gives two or four words. A row may begin and end inside a block, and of two rows that share
blocks only one may be there: what belongs elsewhere is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles._jax_compat import Jaxpr
from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import greater, symbol
from tiles.elements.select import Walker
from tiles.elements.tilecode import MZERO, WORKER_BASE, Block, If, Item, Loop, Register, Repeat
from tiles.elements.values import Value
from tiles.elements.workers import emit_argument, emit_share, emit_worker, share, worker_code

WORD_BYTES = 4
N, ROWS = symbol("n"), symbol("rows")


@dataclass
class Blocks:
    """Builds the code of ``words = f(first[row] + i, *fixed)`` for ``rows`` rows of ``n`` blocks ("runs" and "blocks").

    The fixed words are "in0". What says where rows lie is words in memory, "in1", which begin with the number of a row's first
    block. Where the words of a block follow one another, the next one is how many of them come before the row's own; a row
    has ``size_bytes``, and the next one begins behind it. Where the two words of a block are ``apart``, each in a row of its
    own, the next ones are where these rows begin behind "out0", with the lowest bit set where the block's other word is
    wanted there.

    Args:
      emitter: takes the code.
      jaxpr: closed jaxpr of ``f``: the block's number and the fixed words, uint32, to the words of a block.
      apart: whether the words of a block, two, lie in rows of their own.
      shares_rows: whether all workers take every row together, its blocks in turn; else rows in turn.
      lanes: elements of an iteration, which a variant says.
    """

    emitter: Emitter
    jaxpr: Jaxpr
    apart: bool = False
    shares_rows: bool = False
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments."""
        self.arguments: list[str] = []
        self.repeat_max = self.emitter.isa["repeat_body_max_bundles"]
        self.workers = self.emitter.isa["worker_contexts"]
        self.words = len(self.jaxpr.jaxpr.outvars)
        self.step = self.workers if self.shares_rows else 1
        """Blocks from one of a worker's to its next one."""

    def _argument(self, name: str) -> Register:
        return emit_argument(self.emitter, self.arguments, name)

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.emitter
        fields = 1 + (2 if self.apart else 1)
        with e.at(CELL):
            start, table, self.out = (self._argument(name) for name in ("in0", "in1", "out0"))
            fixed = [self._word(start, k) for k in range(len(self.jaxpr.jaxpr.invars) - 1)]
            worker, n, rows = emit_worker(e), self._argument("blocks"), self._argument("runs")
            self.first = worker if self.shares_rows else MZERO
            blocks = emit_share(e, n, worker) if self.shares_rows else n
            turns = rows if self.shares_rows else emit_share(e, rows, worker)
            at = table
            if not self.shares_rows:
                at = e.main("add", table, e.main("mul", worker, imms=(fields * WORD_BYTES,)))
            if not self.apart:
                self._consecutive(worker)
        row = self._row(at, fixed, blocks)
        with e.at(ROW):
            each = 1 if self.shares_rows else self.workers
            e.emit("add", (at,), (at,), (each * fields * WORD_BYTES,))
            if not self.apart:
                e.emit("add", (self.row_start,), (self.row_start, self.row_step))
        row += e.empty(ROW)
        return worker_code(e, turns, ROWS if self.shares_rows else share(ROWS, self.workers), row)

    def _word(self, start: Register, k: int) -> Value:
        register = self.emitter.fresh("M")
        self.emitter.emit("ld32", (register,), (start, MZERO), (k,), stream="in0")
        return Value("uint32", CELL, 1, {"int": (register,)})

    def _consecutive(self, worker: Register) -> None:
        """Emit where a worker's first row begins, and where words that belong to none go."""
        e = self.emitter
        self.size = self._argument("size_bytes")
        self.elsewhere = e.main("add", WORKER_BASE, imms=(e.scratch(WORD_BYTES),))
        self.row_start, self.row_step = e.main("or", self.out, imms=(0,)), self.size
        if not self.shares_rows:
            self.row_start = e.main("add", self.out, e.main("mul", worker, self.size))
            self.row_step = e.main("mul", self.size, imms=(self.workers,))

    def _row(self, at: Register, fixed: list[Value], blocks: Register) -> list[Item]:
        """Return the code of one row."""
        e = self.emitter
        with e.at(ROW):
            number, *places = (self._field(at, k) for k in range(3 if self.apart else 2))
            number = e.main("add", number, self.first)
            stride = WORD_BYTES * (1 if self.apart else self.words)
            offset = e.main("mul", self.first, imms=(stride,))
            if self.apart:
                others = [e.main("and", place, imms=(1,)) for place in places]
                bases = [
                    e.main("add", self.out, e.main("sub", place, other))
                    for place, other in zip(places, others, strict=True)
                ]
            else:
                offset = e.main("sub", offset, e.main("mul", places[0], imms=(WORD_BYTES,)))
                bases, others = [e.main("add", self.row_start, offset)], []
        with e.at(ELEMENT):
            here = e.main("add", number, imms=(0,))
        walker = Walker(e, 1)
        block = Value("uint32", ELEMENT, 1, {"int": (here,)})
        found = walker.run(self.jaxpr.jaxpr, list(self.jaxpr.consts), [block, *fixed])
        with e.at(ELEMENT):
            words = [walker.forms.get(value, "int")[0] for value in found]
            if self.apart:
                self._store_apart(words, offset, bases, others)
            else:
                self._store(words, offset, bases[0])
                e.emit("add", (bases[0],), (bases[0],), (self.step * stride,))
            e.emit("add", (offset,), (offset,), (self.step * stride,))
            e.emit("add", (number,), (number,), (self.step,))
        body = e.empty(ELEMENT)
        trips = share(N, self.workers) if self.shares_rows else N
        if len(body) == 1 and isinstance(body[0], Block) and len(body[0].instructions) <= self.repeat_max:
            return [*e.empty(ROW), Repeat(blocks, trips, body[0])]
        with e.at(ROW):
            counter = e.main("add", blocks, imms=(-1,))
        return [*e.empty(ROW), If(blocks, greater(trips, 0), (Loop(counter, trips, tuple(body)),))]

    def _field(self, at: Register, k: int) -> Register:
        register = self.emitter.fresh("M")
        self.emitter.emit("ld32", (register,), (at, MZERO), (k,), stream="in1")
        return register

    def _store(self, words: list[Register], offset: Register, address: Register) -> None:
        """Emit the stores of words that follow one another: those of the row, and of others to where nobody looks."""
        e = self.emitter
        for k, word in enumerate(words):
            place, where = (
                e.main("add", register, imms=(k * WORD_BYTES,)) if k else register
                for register in (offset, address)
            )
            is_here = e.main("cmpult", place, self.size)
            where = e.move_conditionally("movz", where, self.elsewhere, is_here)
            e.emit("st32", (), (word, where, MZERO), (0,), stream="out0")

    def _store_apart(
        self, words: list[Register], offset: Register, bases: list[Register], others: list[Register]
    ) -> None:
        """Emit the stores of two words to the two rows; where one of these is missing, both are the same one."""
        e = self.emitter
        for word, other, base, takes in zip(words, words[::-1], bases, others, strict=True):
            value = e.move_conditionally("movnz", word, other, takes)
            e.emit("st32", (), (value, base, offset), (0,), stream="out0")
