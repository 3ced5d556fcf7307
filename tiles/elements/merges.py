"""The loop nest of merges: sorted runs that lie side by side become runs twice as long, or the beginnings of such.

A merge sort is this code once for every length of runs. Runs are merged two by two; where there are fewer pairs than
workers, every pair's result is cut into pieces, each of which searches both runs for where it begins. Which of two
elements goes first is a function of the elements; the rest moves words. No branch depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiles._jax_compat import Jaxpr
from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import const, symbol
from tiles.elements.select import Walker
from tiles.elements.tilecode import (
    MZERO,
    Block,
    Bundle,
    Instruction,
    Item,
    Loop,
    Register,
    Repeat,
    TileCode,
)
from tiles.elements.values import Value
from tiles.elements.workers import emit_argument, emit_share, emit_worker, share, worker_code
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

WORD_BYTES = 4
PIECES_SHIFT = 15
"""A piece's pair is its number times the state's ``factor``, shifted right by so much."""
N, ROWS = symbol("n"), symbol("rows")
"""Elements of a piece, and pieces."""
_HALVINGS = "halvings"


def emit_halvings(e: Emitter, steps: int) -> Register:
    """Emit the counter of a search's halvings, which ``with_halvings`` finds."""
    counter = e.fresh("M")
    e.emit("setzi", (counter,), imms=(steps - 1,), note=_HALVINGS)
    return counter


def emit_halving(
    e: Emitter, low: Register, high: Register, at: Register, above: Register, before: Register
) -> None:
    """Emit one halving: what is searched lies at ``at`` at most if ``before`` is 1, else from ``above`` on."""
    is_open = e.main("cmpslt", low, high)
    is_lower = e.main("and", is_open, before)
    is_upper = e.main("xor", is_open, is_lower)
    e.emit("movnz", (low,), (low, above, is_upper))
    e.emit("movnz", (high,), (high, at, is_lower))


def with_halvings(code: TileCode, steps: int) -> TileCode:
    """Return code that was compiled for searches of one halving with another number of them: nothing else depends on it."""
    return replace(code, items=tuple(_with_halvings(item, steps) for item in code.items))


def _with_halvings(item: Item, steps: int) -> Item:
    if isinstance(item, Block) and item.bundles is None:
        return replace(item, instructions=tuple(_counted(i, steps) for i in item.instructions))
    if isinstance(item, Block):
        return replace(item, bundles=tuple(_counting(bundle, steps) for bundle in item.bundles or ()))
    if isinstance(item, Repeat):
        return item
    body = tuple(_with_halvings(inner, steps) for inner in item.body)
    if isinstance(item, Loop) and item.trips == const(1):
        return replace(item, trips=const(steps), body=body)
    return replace(item, body=body)


def _counting(bundle: Bundle, steps: int) -> Bundle:
    return bundle if bundle.main is None else replace(bundle, main=_counted(bundle.main, steps))


def _counted(i: Instruction, steps: int) -> Instruction:
    return replace(i, imms=(steps - 1,)) if i.note == _HALVINGS and i.mnemonic == "setzi" else i


@dataclass
class Comparing:
    """What builds code that compares elements of several arrays, a word each, which lie a distance apart.

    Args:
      emitter: takes the code.
      jaxpr: closed jaxpr of whether the elements of the later run go before those of the earlier one: of the arrays'
        later elements, then of their earlier ones.
      dtypes: of the arrays.
      counts: whether the last array is no memory but counts elements from ``first`` on.
      search_steps: halvings by which a piece finds where it begins.
      lanes: elements of an iteration, which a variant says.
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
          NoTileCode: elements that fit no word.
        """
        if any(itemsize(dtype) > WORD_BYTES for dtype in self.dtypes):
            raise NoTileCode(f"merging {', '.join(self.dtypes)}", expected="elements of at most a word")
        self.arguments: list[str] = []
        self.apart: list[Register] = []
        self.beside: list[Register] = []
        self.first = MZERO

    def argument(self, name: str) -> Register:
        """Return a field of the vertex' state."""
        return emit_argument(self.emitter, self.arguments, name)

    def operands(self) -> Register:
        """Return where the first array lies; the others' distances from it are known then."""
        e, source = self.emitter, self.argument("in0")
        held = len(self.dtypes) - self.counts
        self.apart = [e.main("sub", self.argument(f"in{k}"), source) for k in range(1, held)]
        if self.counts:
            self.first = e.main("sub", source, e.main("shl", self.argument("first"), imms=(2,)))
        return source

    def results(self) -> Register:
        """Return where the first result lies; the others' distances from it are known then."""
        e, target = self.emitter, self.argument("out0")
        self.beside = [e.main("sub", self.argument(f"out{k}"), target) for k in range(1, len(self.dtypes))]
        return target

    def loaded(self, at: Register, level: int) -> list[Register]:
        """Return the words of all arrays at an address of the first one."""
        e, found = self.emitter, list[Register]()
        with e.at(level):
            for k, apart in enumerate((MZERO, *self.apart)):
                word = e.fresh("M")
                e.emit("ld32", (word,), (at, apart), (0,), stream=f"in{k}")
                found.append(word)
            if self.counts:
                found.append(e.main("shr", e.main("sub", at, self.first), imms=(2,)))
        return found

    def goes_before(self, later: list[Register], earlier: list[Register], level: int) -> Register:
        """Return 1 where the later run's elements go before the earlier run's, else 0."""
        e = self.emitter
        values = [
            Value(dtype, level, 1, forms={"pred" if dtype == "bool" else "int": (word,)})
            for words in (later, earlier)
            for word, dtype in zip(words, self.dtypes, strict=True)
        ]
        walker = Walker(e, 1)
        (found,) = walker.run(self.jaxpr.jaxpr, list(self.jaxpr.consts), values)
        with e.at(level):
            return walker.forms.get(found, "pred")[0]

    def stored(
        self, earlier: list[Register], later: list[Register], takes: Register, writing: Register
    ) -> None:
        """Emit the store of the later run's elements where ``takes`` says so, else of the earlier run's."""
        e = self.emitter
        kept = [e.move_conditionally("movnz", x, y, takes) for x, y in zip(earlier, later, strict=True)]
        for k in range(1, len(kept)):
            e.emit("st32", (), (kept[k], writing, self.beside[k - 1]), (0,), stream=f"out{k}")
        e.emit("st32step", (writing,), (kept[0], MZERO, writing), (1,), stream="out0")

    def halvings(self) -> Register:
        """Return the counter of a search's halvings."""
        return emit_halvings(self.emitter, self.search_steps)

    def block(self, items: list[Item]) -> Block:
        """Return the one block that items are.

        Raises:
          NoTileCode: a comparison that branches.
        """
        if len(items) != 1 or not isinstance(items[0], Block):
            raise NoTileCode(
                "a sort by what branches or loops for every pair", expected="instructions in a row"
            )
        return items[0]


@dataclass
class Merges(Comparing):
    """Builds the code that merges pairs of runs of elements of several arrays of words.

    The vertex' state says, in bytes of an array: ``run``, a run's length; ``most``, at how many a result ends; ``size``,
    where the last run ends. A piece is a pair where nothing is searched; else the state also says ``piece``, and in
    ``pieces`` and ``factor`` how many a pair has.

    Slots are those of pieces of ``n`` elements each; the last one may be shorter.
    """

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            source, target = self.operands(), self.results()
            run, most, size = (self.argument(name) for name in ("run", "most", "size"))
            pieces = self.argument("rows")
            number = emit_worker(e)
            turns = emit_share(e, pieces, number)
            end = e.main("add", source, size)
        row = self._piece(number, source, target, run, most, end)
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
                counter = self.halvings()
                items += e.empty(ROW)
                items.append(self._search(counter, begin, middle, done, low, high))
                first = e.main("add", begin, low)
                second = e.main("add", middle, e.main("sub", done, low))
            reading = [e.main("or", at, imms=(0,)) for at in (first, second)]
            trips = e.main("shr", left, imms=(2,))
        items += e.empty(ROW)
        with e.at(ELEMENT):
            self._merge(reading[0], reading[1], writing, middle, stop)
        items.append(Repeat(trips, N, self.block(e.empty(ELEMENT))))
        return items

    def _in_row(self, name: str) -> Register:
        with self.emitter.at(CELL):
            return self.argument(name)

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
        before = self.goes_before(self.loaded(later, ROW), self.loaded(earlier, ROW), ROW)
        emit_halving(e, low, high, at, above, before)
        return Loop(counter, const(self.search_steps), (self.block(e.empty(ROW)),))

    def _merge(
        self, first: Register, second: Register, writing: Register, middle: Register, stop: Register
    ) -> None:
        """Emit one element: of the runs' next ones that which goes first; where one run has ended, the other's."""
        e = self.emitter
        here, there = self.loaded(first, ELEMENT), self.loaded(second, ELEMENT)
        before = self.goes_before(there, here, ELEMENT)
        has_ended = e.main("cmpeq", first, middle)
        is_there = e.main("cmpne", second, stop)
        takes = e.main("and", e.main("or", before, has_ended), is_there)
        self.stored(here, there, takes, writing)
        step = e.main("shl", takes, imms=(2,))
        e.emit("add", (second,), (second, step))
        e.emit("sub", (first,), (first, step))
        e.emit("add", (first,), (first,), (WORD_BYTES,))


@dataclass
class Least(Comparing):
    """Builds the code in which every worker finds the first of its elements, every sixth of ``n``.

    It leaves in ``out0[worker]`` at how many bytes from the beginning it lies.
    """

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            source, target = self.operands(), self.argument("out0")
            n, worker = self.argument("n"), emit_worker(e)
            count = emit_share(e, n, worker)
            start = e.main("min", worker, e.main("add", n, imms=(-1,)))
            at = e.main("add", source, e.main("shl", start, imms=(2,)))
            best = e.main("or", at, imms=(0,))
            words = self.loaded(at, CELL)
        with e.at(ELEMENT):
            self._compare(at, best, words)
            e.emit("add", (at,), (at,), (WORD_BYTES * workers,))
        loop: list[Item] = [Repeat(count, share(N, workers), self.block(e.empty(ELEMENT)))]
        before = e.empty(CELL)
        with e.at(CELL):
            place = e.main("add", target, e.main("shl", worker, imms=(2,)))
            e.emit("st32", (), (e.main("sub", best, source), place, MZERO), (0,), stream="out0")
            e.emit("exitz", (), (MZERO,))
        return [*before, *loop, *e.empty(CELL)]

    def _compare(self, at: Register, best: Register, words: list[Register]) -> None:
        """Emit the comparison of the elements at an address with the best ones so far, which they become."""
        e = self.emitter
        here = self.loaded(at, ELEMENT)
        before = self.goes_before(here, words, ELEMENT)
        for kept, word in zip((best, *words), (at, *here), strict=True):
            e.emit("movnz", (kept,), (kept, word, before), effect="live")


@dataclass
class Ends(Comparing):
    """Builds the code that sorts a bitonic row: from its first element on it ascends in both directions, until they meet.

    What is left is always in one piece, round the row's end, and the next element is at one of its ends. Every worker
    writes ``piece`` bytes of the result and searches for where these begin. ``near`` holds what ``Least`` has found.
    Elements differ, but for those that come last (padding): among equal others a search would not know where it is.

    Slots are those of pieces of ``n`` elements each; the last one may be shorter.
    """

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            source, near = self.operands(), self.argument("near")
            size, piece = self.argument("size"), self.argument("piece")
            end = e.main("add", source, size)
            offset = e.fresh("M")
            e.emit("ld32step", (offset, near), (MZERO, near), (1,), stream="near")
            first = e.main("add", source, offset)
            words = self.loaded(first, CELL)
            rest = e.main("setzi", imms=(workers - 1,))
        with e.at(ELEMENT):
            e.emit("ld32step", (offset, near), (MZERO, near), (1,), stream="near")
            at = e.main("add", source, offset)
            here = self.loaded(at, ELEMENT)
            before = self.goes_before(here, words, ELEMENT)
            for kept, word in zip((first, *words), (at, *here), strict=True):
                e.emit("movnz", (kept,), (kept, word, before), effect="live")
        items: list[Item] = [*e.empty(CELL), Repeat(rest, const(workers - 1), self.block(e.empty(ELEMENT)))]
        with e.at(CELL):
            target = self.results()
            done = e.main("mul", emit_worker(e), piece)
            left = e.main("max", e.main("min", e.main("sub", size, done), piece), imms=(0,))
            low, high = e.main("or", MZERO, imms=(0,)), e.main("or", done, imms=(0,))
            counter = self.halvings()
        items += e.empty(CELL)
        items.append(self._search(counter, first, done, low, high, source, size, end))
        with e.at(CELL):
            forward = self._at(first, low, source, size, end)
            behind = e.main("sub", low, e.main("add", done, imms=(WORD_BYTES,)))
            backward = self._at(first, behind, source, size, end)
            final = e.main("add", end, imms=(-WORD_BYTES,))
            writing, trips = e.main("add", target, done), e.main("shr", left, imms=(2,))
        items += e.empty(CELL)
        with e.at(ELEMENT):
            here, there = self.loaded(forward, ELEMENT), self.loaded(backward, ELEMENT)
            takes = self.goes_before(there, here, ELEMENT)
            self.stored(here, there, takes, writing)
            step = e.main("shl", takes, imms=(2,))
            e.emit("sub", (backward,), (backward, step))
            e.emit("movnz", (backward,), (backward, final, e.main("cmpult", backward, source)))
            e.emit("sub", (forward,), (forward, step))
            e.emit("add", (forward,), (forward,), (WORD_BYTES,))
            e.emit("movnz", (forward,), (forward, source, e.main("cmpeq", forward, end)))
        items.append(Repeat(trips, N, self.block(e.empty(ELEMENT))))
        with e.at(CELL):
            e.emit("exitz", (), (MZERO,))
        return [*items, *e.empty(CELL)]

    def _at(
        self, first: Register, offset: Register, source: Register, size: Register, end: Register
    ) -> Register:
        """Return the address so many bytes behind the first element, or before it where negative, round the row's end."""
        e = self.emitter
        at = e.main("add", first, offset)
        e.emit("movz", (at,), (at, e.main("sub", at, size), e.main("cmpult", at, end)))
        e.emit("movnz", (at,), (at, e.main("add", at, size), e.main("cmpult", at, source)))
        return at

    def _search(
        self,
        counter: Register,
        first: Register,
        done: Register,
        low: Register,
        high: Register,
        source: Register,
        size: Register,
        end: Register,
    ) -> Item:
        """Return the loop that narrows down how many of the first ``done`` bytes are those going forward."""
        e = self.emitter
        with e.at(ROW):
            middle = e.main("shl", e.main("shr", e.main("add", low, high), imms=(3,)), imms=(2,))
            forward = self._at(first, middle, source, size, end)
            backward = self._at(first, e.main("sub", middle, done), source, size, end)
            before = self.goes_before(self.loaded(backward, ROW), self.loaded(forward, ROW), ROW)
            above = e.main("add", middle, imms=(WORD_BYTES,))
            emit_halving(e, low, high, middle, above, before)
        return Loop(counter, const(self.search_steps), (self.block(e.empty(ROW)),))
