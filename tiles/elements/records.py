"""Sorts of records: an integer that orders an element, and where in its row the element lies.

Elements of any type, several arrays that are sorted together, orders with rules for zeros and NaN: what is compared and
moved is a record of two words, and the arrays are put in order at last. A record takes 9 slots a level. Runs of four
are not merged: six comparisons tell the places of all, in 10 slots an element. The order is stable: runs decide
between equal keys.

Behind every run lies a record with the greatest key, which is never less than a key of the earlier run: a later run that
has ended is not taken from. Of an earlier run that has ended it is, unless the later run's key is the greatest, too: where
an element's may be, two more slots tell whether the earlier run has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import const
from tiles.elements.merges import PIECES_SHIFT, ROWS, WORD_BYTES, N, emit_halving, emit_halvings
from tiles.elements.tilecode import MZERO, Block, Item, Loop, Register, Repeat
from tiles.elements.workers import emit_argument, emit_share, emit_worker, share, worker_code

RECORD_BYTES = 8
"""The key, then the element's offset in bytes of an array of words."""
RUN = 4
"""Records of the runs that there are before anything is merged."""
FOUR_BYTES = (RUN + 1) * RECORD_BYTES
"""A run with the record behind it."""
LAST_KEY = np.iinfo(np.int32).max
"""The key behind a run."""
_RECORD_SHIFT, _WORD_SHIFT = 3, 2
_RECORD_WORDS = 2


@dataclass
class Records:
    """Builds code of records.

    Args:
      emitter: takes the code.
    """

    emitter: Emitter
    lanes = 1

    def __post_init__(self) -> None:
        """Start without arguments."""
        self.arguments: list[str] = []

    def field(self, name: str) -> Register:
        """Return a field of the vertex' state."""
        with self.emitter.at(CELL):
            return emit_argument(self.emitter, self.arguments, name)


@dataclass
class RecordMerges(Records):
    """Builds the code that merges pairs of runs of records.

    The vertex' state says where records are read and written, ``in0`` and ``out0``, and in bytes, without what lies behind a
    run: ``run``, a run's length; ``most``, at how many a result ends; and ``size``, where the last run ends, with all
    that lies before. A piece is a pair where nothing is searched; else the state also says ``piece``, and in ``pieces``
    and ``factor`` how many a pair has.

    Slots are those of pieces of ``n`` records each; the last one may be shorter.

    Args:
      emitter: takes the code.
      is_bounded: whether all keys are less than the greatest.
      search_steps: halvings by which a piece finds where it begins.
    """

    is_bounded: bool
    search_steps: int = 0

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            source, target = self.field("in0"), self.field("out0")
            run, most, size = (self.field(name) for name in ("run", "most", "size"))
            pieces, number = self.field("rows"), emit_worker(e)
            turns = emit_share(e, pieces, number)
            end = e.main("add", source, size)
        last = e.constant("M", LAST_KEY)
        row = self._piece(number, source, target, run, most, end, last)
        with e.at(ROW):
            e.emit("add", (number,), (number,), (workers,))
        row += e.empty(ROW)
        return worker_code(e, turns, share(ROWS, workers), row)

    def _piece(
        self,
        number: Register,
        source: Register,
        target: Register,
        run: Register,
        most: Register,
        end: Register,
        last: Register,
    ) -> list[Item]:
        """Return the code of one piece: where it begins, and its records one after the other."""
        e, items = self.emitter, list[Item]()
        with e.at(ROW):
            pair = number
            if self.search_steps:
                pair = e.main("shr", e.main("mul", number, self.field("factor")), imms=(PIECES_SHIFT,))
            pitch = e.main("add", run, imms=(RECORD_BYTES,))
            first = e.main("add", source, e.main("mul", pair, e.main("shl", pitch, imms=(1,))))
            middle = e.main("min", e.main("add", first, run), end)
            second = e.main("min", e.main("add", first, pitch), end)
            stop = e.main("min", e.main("add", second, run), end)
            here, there = e.main("sub", middle, first), e.main("sub", stop, second)
            left = e.main("min", e.main("add", here, there), most)
            writing = e.main("add", most, imms=(RECORD_BYTES,))
            writing = e.main("add", target, e.main("mul", pair, writing))
            e.emit("st32", (), (last, e.main("add", writing, left), MZERO), (0,), stream="out0")
            if self.search_steps:
                piece = self.field("piece")
                done = e.main("mul", pair, self.field("pieces"))
                done = e.main("mul", e.main("sub", number, done), piece)
                writing = e.main("add", writing, done)
                left = e.main("max", e.main("min", e.main("sub", left, done), piece), imms=(0,))
                low = e.main("max", e.main("sub", done, there), imms=(0,))
                high = e.main("min", done, here)
                counter = emit_halvings(e, self.search_steps)
                items += e.empty(ROW)
                items.append(self._search(counter, first, second, done, low, high))
                second = e.main("add", second, e.main("sub", done, low))
                first = e.main("add", first, low)
            reading = [e.main("or", at, imms=(0,)) for at in (first, second)]
            trips = e.main("shr", left, imms=(_RECORD_SHIFT,))
        items += e.empty(ROW)
        with e.at(ELEMENT):
            emit_merge(e, reading[0], reading[1], writing, None if self.is_bounded else middle)
        items.append(Repeat(trips, N, _block(e.empty(ELEMENT))))
        return items

    def _key(self, at: Register) -> Register:
        key = self.emitter.fresh("M")
        self.emitter.emit("ld32", (key,), (at, MZERO), (0,), stream="in0")
        return key

    def _search(
        self,
        counter: Register,
        first: Register,
        second: Register,
        done: Register,
        low: Register,
        high: Register,
    ) -> Item:
        """Return the loop that narrows down how many of the first ``done`` bytes are the earlier run's."""
        e = self.emitter
        with e.at(ROW):
            half = e.main("shr", e.main("add", low, high), imms=(_RECORD_SHIFT + 1,))
            at = e.main("shl", half, imms=(_RECORD_SHIFT,))
            above = e.main("add", at, imms=(RECORD_BYTES,))
            later = self._key(e.main("add", second, e.main("sub", done, above)))
            before = e.main("cmpslt", later, self._key(e.main("add", first, at)))
            emit_halving(e, low, high, at, above, before)
        return Loop(counter, const(self.search_steps), (_block(e.empty(ROW)),))


@dataclass
class Fours(Records):
    """Builds the code that makes records of keys, in sorted runs of four, which workers take in turn.

    The vertex' state holds where keys and records lie, ``in0`` and ``out0``, and ``n``, the number of runs.
    """

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            source, target, n = (self.field(name) for name in ("in0", "out0", "n"))
            worker = emit_worker(e)
            count = emit_share(e, n, worker)
            offset = e.main("mul", worker, imms=(RUN * WORD_BYTES,))
            reading = e.main("add", source, offset)
            writing = e.main("add", target, e.main("mul", worker, imms=(FOUR_BYTES,)))
            last = e.constant("M", LAST_KEY)
        with e.at(ELEMENT):
            emit_four(e, reading, writing, offset, last)
            for pointer, step in (
                (reading, RUN * WORD_BYTES),
                (offset, RUN * WORD_BYTES),
                (writing, FOUR_BYTES),
            ):
                e.emit("add", (pointer,), (pointer,), (workers * step,))
        loop: list[Item] = [Repeat(count, share(N, workers), _block(e.empty(ELEMENT)))]
        return _ended(e, loop)


@dataclass
class GatheredRecords(Records):
    """Builds the code that puts the words of arrays where their records lie; workers take elements in turn.

    The vertex' state holds the records, ``records``, for each array ``in0``, ``in1``, ... and ``out0``, ``out1``, ..., and
    ``n``, the elements of the results. If ``counts``, one more result says how many words behind ``first`` each lay.

    Args:
      emitter: takes the code.
      arrays: how many.
      counts: whether places are counted.
    """

    arrays: int
    counts: bool = False

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            worker = emit_worker(e)
            count = emit_share(e, self.field("n"), worker)
            record = e.main("shl", worker, imms=(_RECORD_SHIFT,))
            record = e.main("add", self.field("records"), record)
            ahead = e.main("shl", worker, imms=(_WORD_SHIFT,))
            sources = [self.field(f"in{k}") for k in range(self.arrays)]
            targets = [e.main("add", self.field(f"out{k}"), ahead) for k in range(self.arrays + self.counts)]
            first = self.field("first") if self.counts else MZERO
        with e.at(ELEMENT):
            emit_gather(e, record, sources, targets, first if self.counts else None, workers)
        loop: list[Item] = [Repeat(count, share(N, workers), _block(e.empty(ELEMENT)))]
        return _ended(e, loop)


@dataclass
class RowsInTurn(Records):
    """Builds code of which each worker takes whole rows: nothing is searched, and no worker waits for others.

    The vertex' state holds the fields of the code for one row, and for each pointer ``NAME`` in ``NAME_row_bytes`` the bytes
    from one row to the next.

    Args:
      emitter: takes the code.
      is_bounded: as of ``RecordMerges``.
    """

    is_bounded: bool = False

    def _rows(self, names: Sequence[str], row: Callable[[list[Register]], list[Item]]) -> list[Item]:
        """Return the code of a worker's rows, given where pointers' rows begin."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            worker = emit_worker(e)
            turns = emit_share(e, self.field("rows"), worker)
            pitches = [self.field(f"{name}_row_bytes") for name in names]
            starts = [
                e.main("add", self.field(name), e.main("mul", worker, pitch))
                for name, pitch in zip(names, pitches, strict=True)
            ]
        items = row(starts)
        with e.at(ROW):
            for start, pitch in zip(starts, pitches, strict=True):
                e.emit("add", (start,), (start, e.main("mul", pitch, imms=(workers,))))
        return worker_code(e, turns, share(ROWS, workers), [*items, *e.empty(ROW)])

    def _copy(self, register: Register) -> Register:
        return self.emitter.main("or", register, imms=(0,))


@dataclass
class FoursInTurn(RowsInTurn):
    """Builds the code of ``Fours`` of rows that workers take in turn: ``n`` runs each."""

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, last = self.emitter, self.emitter.constant("M", LAST_KEY)

        def row(starts: list[Register]) -> list[Item]:
            with e.at(ROW):
                reading, writing = map(self._copy, starts)
                offset, count = self._copy(MZERO), self._copy(self.field("n"))
            before = e.empty(ROW)
            with e.at(ELEMENT):
                emit_four(e, reading, writing, offset, last)
                steps = (reading, RUN * WORD_BYTES), (offset, RUN * WORD_BYTES), (writing, FOUR_BYTES)
                for pointer, step in steps:
                    e.emit("add", (pointer,), (pointer,), (step,))
            return [*before, Repeat(count, N, _block(e.empty(ELEMENT)))]

        return self._rows(("in0", "out0"), row)


@dataclass
class MergesInTurn(RowsInTurn):
    """Builds the code of ``RecordMerges`` of rows that workers take in turn: ``pairs`` pairs each, of ``n`` records."""

    def items(self) -> list[Item]:
        """Return the code, unscheduled, with one pair counted: ``with_halvings`` says how many there are."""
        e, last = self.emitter, self.emitter.constant("M", LAST_KEY)

        def row(starts: list[Register]) -> list[Item]:
            run, most = self.field("run"), self.field("most")
            with e.at(ROW):
                begin, writing = map(self._copy, starts)
                end = e.main("add", begin, self.field("size"))
                counter = e.main("add", self.field("pairs"), imms=(-1,))
            before = e.empty(ROW)
            with e.at(ROW):
                first = self._copy(begin)
                pitch = e.main("add", run, imms=(RECORD_BYTES,))
                middle = e.main("min", e.main("add", first, run), end)
                second = e.main("min", e.main("add", first, pitch), end)
                stop = e.main("min", e.main("add", second, run), end)
                left = e.main("add", e.main("sub", middle, first), e.main("sub", stop, second))
                trips = e.main("shr", e.main("min", left, most), imms=(_RECORD_SHIFT,))
                e.emit("add", (begin,), (begin, e.main("shl", pitch, imms=(1,))))
            pair = e.empty(ROW)
            with e.at(ELEMENT):
                emit_merge(e, first, second, writing, None if self.is_bounded else middle)
            pair.append(Repeat(trips, N, _block(e.empty(ELEMENT))))
            with e.at(ROW):
                e.emit("st32", (), (last, writing, MZERO), (0,), stream="out0")
                e.emit("add", (writing,), (writing,), (RECORD_BYTES,))
            return [*before, Loop(counter, const(1), (*pair, *e.empty(ROW)))]

        return self._rows(("in0", "out0"), row)


@dataclass
class GathersInTurn(RowsInTurn):
    """Builds the code of ``GatheredRecords`` of rows that workers take in turn; arguments as of it."""

    arrays: int = 1
    counts: bool = False

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.emitter
        sources = [f"in{k}" for k in range(self.arrays)]
        targets = [f"out{k}" for k in range(self.arrays + self.counts)]
        first = self.field("first") if self.counts else MZERO

        def row(starts: list[Register]) -> list[Item]:
            with e.at(ROW):
                record, *moving = map(self._copy, [starts[0], *starts[1 + self.arrays :]])
                count = self._copy(self.field("n"))
            before = e.empty(ROW)
            with e.at(ELEMENT):
                emit_gather(e, record, starts[1 : 1 + self.arrays], moving, first if self.counts else None, 1)
            return [*before, Repeat(count, N, _block(e.empty(ELEMENT)))]

        return self._rows(("records", *sources, *targets), row)


def emit_merge(
    e: Emitter, first: Register, second: Register, writing: Register, middle: Register | None
) -> None:
    """Emit one record: of the runs' next ones that which goes first; ``middle`` is where the earlier run ends, if it is asked."""
    keys = [e.fresh("M") for _ in range(2)]
    for key, at in zip(keys, (second, first), strict=True):
        e.emit("ld32", (key,), (at, MZERO), (0,), stream="in0")
    takes = e.main("cmpslt", *keys)
    if middle is not None:
        takes = e.main("or", takes, e.main("cmpeq", first, middle))
    at, record = e.move_conditionally("movnz", first, second, takes), e.fresh("A", _RECORD_WORDS)
    e.emit("ld64step", (record, at), (MZERO, at), (1,), stream="in0")
    e.emit("st64step", (writing,), (record, MZERO, writing), (1,), stream="out0")
    e.emit("movnz", (second,), (second, at, takes))
    e.emit("movz", (first,), (first, at, takes))


def emit_four(e: Emitter, reading: Register, writing: Register, offset: Register, last: Register) -> None:
    """Emit the records of four keys, in order, and one of the greatest key behind them."""
    keys = [e.fresh("M") for _ in range(RUN)]
    for k, key in enumerate(keys):
        e.emit("ld32", (key,), (reading, MZERO), (k,), stream="in0")
    for k, (key, place) in enumerate(zip(keys, _places(e, keys, writing), strict=True)):
        at = e.main("add", offset, imms=(k * WORD_BYTES,)) if k else offset
        for word, value in enumerate((key, at)):
            e.emit("st32", (), (value, place, MZERO), (_RECORD_WORDS * k + word,), stream="out0")
    e.emit("st32", (), (last, writing, MZERO), (_RECORD_WORDS * RUN,), stream="out0")


def emit_gather(
    e: Emitter,
    record: Register,
    sources: Sequence[Register],
    targets: Sequence[Register],
    first: Register | None,
    step: int,
) -> None:
    """Emit the words of one record, whose element's place is counted from ``first`` on if it is given; and the next ``step``."""
    offset = e.fresh("M")
    e.emit("ld32", (offset,), (record, MZERO), (1,), stream="records")
    e.emit("add", (record,), (record,), (step * RECORD_BYTES,))
    words = list[Register]()
    for k, source in enumerate(sources):
        words.append(e.fresh("M"))
        e.emit("ld32", (words[-1],), (source, offset), (0,), stream=f"in{k}")
    if first is not None:
        words.append(e.main("add", first, e.main("shr", offset, imms=(_WORD_SHIFT,))))
    for k, (word, target) in enumerate(zip(words, targets, strict=True)):
        e.emit("st32step", (target,), (word, MZERO, target), (step,), stream=f"out{k}")


def _places(e: Emitter, keys: list[Register], writing: Register) -> list[Register]:
    """Return for each of four keys where it belongs, less where it would be if all were in order."""
    before = {(i, j): e.main("cmpslt", keys[j], keys[i]) for i in range(RUN) for j in range(i + 1, RUN)}
    found: list[Register] = []
    for k in range(RUN):
        up = _sum(e, [before[k, j] for j in range(k + 1, RUN)])
        down = _sum(e, [before[i, k] for i in range(k)])
        if up is None:
            found.append(e.main("sub", writing, e.main("shl", _known(down), imms=(_RECORD_SHIFT,))))
            continue
        moved = up if down is None else e.main("sub", up, down)
        found.append(e.main("add", writing, e.main("shl", moved, imms=(_RECORD_SHIFT,))))
    return found


def _sum(e: Emitter, terms: list[Register]) -> Register | None:
    if not terms:
        return None
    total, *others = terms
    for term in others:
        total = e.main("add", total, term)
    return total


def _known(register: Register | None) -> Register:
    assert register is not None
    return register


def _block(items: list[Item]) -> Block:
    (block,) = items
    assert isinstance(block, Block)
    return block


def _ended(e: Emitter, loop: list[Item]) -> list[Item]:
    """Return what was emitted for the cell, a loop, and the end of the worker."""
    before = e.empty(CELL)
    with e.at(CELL):
        e.emit("exitz", (), (MZERO,))
    return [*before, *loop, *e.empty(CELL)]
