"""The loop nest of merges: sorted runs that lie side by side become runs twice as long, or the beginnings of such.

A merge sort is this code once for every length of runs. Runs are merged two by two; where there are fewer pairs than
workers, every pair's result is cut into pieces, each of which searches both runs for where it begins. Which of two
elements goes first is a function of the elements; the rest moves words. No branch depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles._jax_compat import Jaxpr
from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import const, greater, symbol
from tiles.elements.select import Walker
from tiles.elements.tilecode import MZERO, Block, If, Item, Loop, Register, Repeat
from tiles.elements.values import Value
from tiles.elements.workers import emit_argument, emit_share, emit_worker, share
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

WORD_BYTES = 4
PIECES_SHIFT = 15
"""A piece's pair is its number times the state's ``factor``, shifted right by so much."""
N, ROWS = symbol("n"), symbol("rows")
"""Elements of a piece, and pieces."""


@dataclass
class Merges:
    """Builds the code that merges pairs of runs of elements of several arrays of words.

    The vertex' state says, in bytes of an array: ``run``, a run's length; ``most``, at how many a result ends; ``size``,
    where the last run ends; with pieces also ``piece``, and in ``pieces`` and ``factor`` how many a pair has.

    Args:
      emitter: takes the code.
      jaxpr: closed jaxpr of whether the elements of the later run go before those of the earlier one: of the arrays'
        later elements, then of their earlier ones.
      dtypes: of the arrays.
      counts: whether the last array is no memory but counts elements from ``first`` on.
      search_steps: halvings by which a piece finds where it begins; 0 where a piece is a pair.
      lanes: elements of an iteration, which a variant says.

    Slots are those of pieces of ``n`` elements each; the last one may be shorter.
    """

    emitter: Emitter
    jaxpr: Jaxpr
    dtypes: tuple[str, ...]
    counts: bool = False
    search_steps: int = 0
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: elements that are no whole words.
        """
        if any(itemsize(dtype) != WORD_BYTES for dtype in self.dtypes):
            raise NoTileCode(f"merging {', '.join(self.dtypes)}", expected="elements of whole words")
        self.arguments: list[str] = []

    def _argument(self, name: str) -> Register:
        return emit_argument(self.emitter, self.arguments, name)

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers, count = self.emitter, self.emitter.isa["worker_contexts"], len(self.dtypes)
        held = count - self.counts
        with e.at(CELL):
            source, target = self._argument("in0"), self._argument("out0")
            self._apart = [e.main("sub", self._argument(f"in{k}"), source) for k in range(1, held)]
            self._beside = [e.main("sub", self._argument(f"out{k}"), target) for k in range(1, count)]
            self._first = self._counted_from(source) if self.counts else MZERO
            run, most, size = (self._argument(name) for name in ("run", "most", "size"))
            pieces = self._argument("rows")
            number = emit_worker(e)
            turns = emit_share(e, pieces, number)
            end = e.main("add", source, size)
        row = self._piece(number, source, target, run, most, end)
        with e.at(ROW):
            e.emit("add", (number,), (number,), (workers,))
        row += e.empty(ROW)
        before = e.empty(CELL)
        with e.at(CELL):
            counter = e.main("add", turns, imms=(-1,))
        trips = share(ROWS, workers)
        loop: list[Item] = [If(turns, greater(trips, 0), (*e.empty(CELL), Loop(counter, trips, tuple(row))))]
        with e.at(CELL):
            e.emit("exitz", (), (MZERO,))
        return [*before, *loop, *e.empty(CELL)]

    def _counted_from(self, source: Register) -> Register:
        """Return the address at which element 0 would lie."""
        e = self.emitter
        return e.main("sub", source, e.main("shl", self._argument("first"), imms=(2,)))

    def _piece(
        self,
        number: Register,
        source: Register,
        target: Register,
        run: Register,
        most: Register,
        end: Register,
    ) -> list[Item]:
        """Return the code of one piece: where it begins, and its elements one after the other."""
        e, items = self.emitter, list[Item]()
        with e.at(ROW):
            pair = number
            if self.search_steps:
                factor = self._in_row("factor")
                pair = e.main("shr", e.main("mul", number, factor), imms=(PIECES_SHIFT,))
            begin = e.main("add", source, e.main("mul", pair, e.main("shl", run, imms=(1,))))
            middle = e.main("min", e.main("add", begin, run), end)
            stop = e.main("min", e.main("add", middle, run), end)
            left = e.main("min", e.main("sub", stop, begin), most)
            writing = e.main("add", target, e.main("mul", pair, most))
            first, second = begin, middle
            if self.search_steps:
                piece = self._in_row("piece")
                done = e.main("mul", pair, self._in_row("pieces"))
                done = e.main("mul", e.main("sub", number, done), piece)
                writing = e.main("add", writing, done)
                left = e.main("max", e.main("min", e.main("sub", left, done), piece), imms=(0,))
                low = e.main("max", e.main("sub", done, e.main("sub", stop, middle)), imms=(0,))
                high = e.main("min", done, e.main("sub", middle, begin))
                counter = e.main("setzi", imms=(self.search_steps - 1,))
                items += e.empty(ROW)
                items.append(self._search(counter, begin, middle, done, low, high))
                first = e.main("add", begin, low)
                second = e.main("add", middle, e.main("sub", done, low))
            reading = [e.main("or", at, imms=(0,)) for at in (first, second)]
            trips = e.main("shr", left, imms=(2,))
        items += e.empty(ROW)
        with e.at(ELEMENT):
            self._merge(reading[0], reading[1], writing, middle, stop)
        items.append(Repeat(trips, N, self._block(e.empty(ELEMENT))))
        return items

    def _in_row(self, name: str) -> Register:
        with self.emitter.at(CELL):
            return self._argument(name)

    def _search(
        self,
        counter: Register,
        begin: Register,
        middle: Register,
        done: Register,
        low: Register,
        high: Register,
    ) -> Item:
        """Return the loop that narrows down how many of the first ``done`` bytes are the earlier run's."""
        e = self.emitter
        at = e.main("shl", e.main("shr", e.main("add", low, high), imms=(3,)), imms=(2,))
        earlier = e.main("add", begin, at)
        above = e.main("add", at, imms=(WORD_BYTES,))
        later = e.main("add", middle, e.main("sub", done, above))
        before = self._goes_before(self._loaded(later, ROW), self._loaded(earlier, ROW), ROW)
        is_open = e.main("cmpslt", low, high)
        is_lower = e.main("and", is_open, before)
        is_upper = e.main("xor", is_open, is_lower)
        e.emit("movnz", (low,), (low, above, is_upper))
        e.emit("movnz", (high,), (high, at, is_lower))
        return Loop(counter, const(self.search_steps), (self._block(e.empty(ROW)),))

    def _merge(
        self, first: Register, second: Register, writing: Register, middle: Register, stop: Register
    ) -> None:
        """Emit one element: of the runs' next ones that which goes first; where one run has ended, the other's."""
        e = self.emitter
        here, there = self._loaded(first, ELEMENT), self._loaded(second, ELEMENT)
        before = self._goes_before(there, here, ELEMENT)
        has_ended = e.main("cmpeq", first, middle)
        is_there = e.main("cmpne", second, stop)
        takes = e.main("and", e.main("or", before, has_ended), is_there)
        kept = [e.move_conditionally("movnz", x, y, takes) for x, y in zip(here, there, strict=True)]
        for k in range(1, len(kept)):
            self._store(kept[k], writing, self._beside[k - 1], k)
        e.emit("st32step", (writing,), (kept[0], MZERO, writing), (1,), stream="out0")
        step = e.main("shl", takes, imms=(2,))
        e.emit("add", (second,), (second, step))
        e.emit("sub", (first,), (first, step))
        e.emit("add", (first,), (first,), (WORD_BYTES,))

    def _store(self, value: Register, at: Register, apart: Register, k: int) -> None:
        self.emitter.emit("st32", (), (value, at, apart), (0,), stream=f"out{k}")

    def _loaded(self, at: Register, level: int) -> list[Register]:
        """Return the words of all arrays at an address of the first one."""
        e, found = self.emitter, list[Register]()
        with e.at(level):
            for k, apart in enumerate((MZERO, *self._apart)):
                word = e.fresh("M")
                e.emit("ld32", (word,), (at, apart), (0,), stream=f"in{k}")
                found.append(word)
            if self.counts:
                found.append(e.main("shr", e.main("sub", at, self._first), imms=(2,)))
        return found

    def _goes_before(self, later: list[Register], earlier: list[Register], level: int) -> Register:
        """Return 1 where the later run's elements go before the earlier run's, else 0."""
        e = self.emitter
        values = [
            Value(dtype, level, 1, forms={"int": (word,)})
            for words in (later, earlier)
            for word, dtype in zip(words, self.dtypes, strict=True)
        ]
        walker = Walker(e, 1)
        (found,) = walker.run(self.jaxpr.jaxpr, list(self.jaxpr.consts), values)
        with e.at(level):
            return walker.forms.get(found, "pred")[0]

    def _block(self, items: list[Item]) -> Block:
        """Return the one block that items are.

        Raises:
          NoTileCode: a comparison that branches.
        """
        if len(items) != 1 or not isinstance(items[0], Block):
            raise NoTileCode(
                "a sort by what branches or loops for every pair", expected="instructions in a row"
            )
        return items[0]
