"""The loop nests of Gaussian elimination with partial pivoting, and of substitution: a supervisor starts each once a column.

A matrix of words lies row by row. Of every column the first worker looks for the pivot, all workers exchange two rows,
a share of their words each, and then take rows below the pivot in turn. No branch depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles._jax_compat import Jaxpr
from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import symbol
from tiles.elements.select import Walker
from tiles.elements.tilecode import MZERO, Block, Item, Loop, Register, Repeat
from tiles.elements.values import Value, natural_form
from tiles.elements.workers import emit_argument, emit_share, emit_worker, share, worker_code
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

WORD_BYTES = 4
N, ROWS = symbol("n"), symbol("rows")
_POSITION = "int32"


@dataclass
class MatrixNest:
    """What the nests have in common: a matrix of words.

    Args:
      emitter: takes the code.
      dtype: of the elements.
      lanes: elements of an iteration, which a variant says.
    """

    emitter: Emitter
    dtype: str
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: elements that are no whole words.
        """
        if itemsize(self.dtype) != WORD_BYTES:
            raise NoTileCode(f"elimination in matrices of {self.dtype}", expected="elements of whole words")
        self.arguments: list[str] = []

    @property
    def workers(self) -> int:
        """Contexts of a tile."""
        return self.emitter.isa["worker_contexts"]

    def argument(self, name: str) -> Register:
        """Return a field of the vertex' state."""
        return emit_argument(self.emitter, self.arguments, name)

    def only_the_first(self) -> Register:
        """Return how often a worker runs: the first one once, as ``rows`` = 1 says, the others never."""
        return emit_share(self.emitter, self.argument("rows"), emit_worker(self.emitter))

    def rows_in_turn(
        self, rows: Register, *arrays: tuple[Register, Register]
    ) -> tuple[Register, list[Register], list[Register]]:
        """Emit that workers take rows in turn: how many each takes; of each array, where its first one lies and its step.

        Args:
          rows: how many there are.
          arrays: of each, where its first row lies and how many bytes its rows are apart.
        """
        e = self.emitter
        worker = emit_worker(e)
        turns = emit_share(e, rows, worker)
        places = [e.main("add", first, e.main("mul", worker, pitch)) for first, pitch in arrays]
        return turns, places, [e.main("mul", pitch, imms=(self.workers,)) for _, pitch in arrays]

    def copied(self, register: Register) -> Register:
        """Return a register of its own with another's value."""
        return self.emitter.op("or", (register.file, 1), register, imms=(0,))

    def value(self, dtype: str, level: int, register: Register) -> Value:
        """Return an element in a register."""
        return Value(dtype, level, 1, forms={natural_form(dtype): (register,)})

    def element(self, at: Register, stream: str) -> Register:
        """Return the element at an address, in the file that it is computed in."""
        register = self.emitter.fresh(file_of(self.dtype))
        self.emitter.emit("ld32", (register,), (at, MZERO), (0,), stream=stream)
        return register

    def block(self, items: list[Item]) -> Block:
        """Return the one block that items are.

        Raises:
          NoTileCode: a function that branches or loops for every element.
        """
        if len(items) != 1 or not isinstance(items[0], Block):
            raise NoTileCode(
                "elimination by what branches for every element", expected="instructions in a row"
            )
        return items[0]


def file_of(dtype: str) -> str:
    """Return the register file in which a dtype is computed."""
    return "M" if natural_form(dtype) == "int" else "A"


@dataclass
class Pivot(MatrixNest):
    """Builds the code that looks for a pivot: it leaves in ``out0`` the number of a row.

    The column begins at ``in0`` with ``n`` elements ``row_bytes`` apart, the first of them in row ``first``.

    Args:
      jaxpr: closed jaxpr of one step: of an element, the size of the best one so far, the element's row and the best one's;
        it returns the size and the row of the best one then.
    """

    jaxpr: Jaxpr | None = None

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, jaxpr = self.emitter, self.jaxpr
        assert jaxpr is not None
        with e.at(CELL):
            source, target, n = (self.argument(name) for name in ("in0", "out0", "n"))
            pitch, first = self.argument("row_bytes"), self.argument("first")
            stride = e.main("shr", pitch, imms=(2,))  # accesses advance by words
            turns = self.only_the_first()
        with e.at(ROW):
            best = e.op("or", (file_of(self.dtype), 1), _zero(e, self.dtype), imms=(0,))
            place, number, reading = (self.copied(x) for x in (first, first, source))
        with e.at(ELEMENT):
            here = e.fresh(file_of(self.dtype))
            e.emit("ld32step", (here, reading), (MZERO, reading, stride), stream="in0")
        walker = Walker(e, 1)
        dtypes = (self.dtype, self.dtype, _POSITION, _POSITION)
        registers = (here, best, number, place)
        values = [self.value(d, ELEMENT, r) for d, r in zip(dtypes, registers, strict=True)]
        found = walker.run(jaxpr.jaxpr, list(jaxpr.consts), values)
        with e.at(ELEMENT):
            kept = [walker.forms.get(x, natural_form(x.dtype))[0] for x in found]
            kept = [self.copied(x) if x in registers else x for x in kept]
            for register, new in zip((best, place), kept, strict=True):
                e.emit("or", (register,), (new,), (0,), effect="live")
            e.emit("add", (number,), (number,), (1,))
        loop = Repeat(n, N, self.block(e.empty(ELEMENT)))
        before = e.empty(ROW)
        with e.at(ROW):
            e.emit("st32", (), (place, target, MZERO), (0,), stream="out0")
        return worker_code(e, turns, share(ROWS, self.workers), [*before, loop, *e.empty(ROW)])


@dataclass
class Exchange(MatrixNest):
    """Builds the code that exchanges the row at ``out0``, number ``first``, with that of which ``in0`` says the number."""

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.emitter
        with e.at(CELL):
            upper, chosen, n = (self.argument(name) for name in ("out0", "in0", "n"))
            pitch, first = self.argument("row_bytes"), self.argument("first")
            worker = emit_worker(e)
            words = emit_share(e, n, worker)
            number = e.fresh("M")
            e.emit("ld32", (number,), (chosen, MZERO), (0,), stream="in0")
            offset = e.main("mul", e.main("sub", number, first), pitch)
            one = e.main("add", upper, e.main("mul", worker, imms=(WORD_BYTES,)))
            other = e.main("add", one, offset)
        with e.at(ELEMENT):
            # A row that is exchanged with itself takes back what it had.
            above, below = e.fresh("M"), e.fresh("M")
            e.emit("ld32", (above,), (one, MZERO), (0,), stream="out0")
            e.emit("ld32", (below,), (other, MZERO), (0,), stream="out1")
            e.emit("st32step", (one,), (below, MZERO, one), (self.workers,), stream="out0")
            e.emit("st32step", (other,), (above, MZERO, other), (self.workers,), stream="out1")
        loop = Repeat(words, share(N, self.workers), self.block(e.empty(ELEMENT)))
        before = e.empty(CELL)
        with e.at(CELL):
            e.emit("exitz", (), (MZERO,))
        return [*before, loop, *e.empty(CELL)]


@dataclass
class Elimination(MatrixNest):
    """Builds the code that takes a row out of ``rows`` others, from one element on.

    The others begin at ``out0``, ``row_bytes`` apart, the row at ``in0``: with the elements of the pivot's column, which
    are followed by ``n`` others.

    Args:
      jaxpr: closed jaxpr of a row's element in the pivot's column, the pivot, another element of the row and the one above
        it in the pivot's row; it returns what the first and the third become.
    """

    jaxpr: Jaxpr | None = None

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, jaxpr = self.emitter, self.jaxpr
        assert jaxpr is not None
        with e.at(CELL):
            upper, target, n = (self.argument(name) for name in ("in0", "out0", "n"))
            rows, pitch = self.argument("rows"), self.argument("row_bytes")
            turns, (row,), (step,) = self.rows_in_turn(rows, (target, pitch))
            pivot = self.element(upper, "in0")
        with e.at(ROW):
            below = self.element(row, "out0")
            above_at, writing = (e.main("add", x, imms=(WORD_BYTES,)) for x in (upper, row))
            reading = self.copied(writing)
        with e.at(ELEMENT):
            here, above = e.fresh(file_of(self.dtype)), e.fresh(file_of(self.dtype))
            e.emit("ld32step", (here, reading), (MZERO, reading), (1,), stream="out1")
            e.emit("ld32step", (above, above_at), (MZERO, above_at), (1,), stream="in1")
        walker = Walker(e, 1)
        levels = ((CELL, pivot), (ROW, below), (ELEMENT, here), (ELEMENT, above))
        pivot_, below_, *others = (self.value(self.dtype, level, register) for level, register in levels)
        factor, rest = walker.run(jaxpr.jaxpr, list(jaxpr.consts), [below_, pivot_, *others])
        form = natural_form(self.dtype)
        with e.at(ROW):
            e.emit("st32", (), (walker.forms.get(factor, form)[0], row, MZERO), (0,), stream="out0")
        with e.at(ELEMENT):
            e.emit(
                "st32step", (writing,), (walker.forms.get(rest, form)[0], MZERO, writing), (1,), stream="out1"
            )
        loop = Repeat(n, N, self.block(e.empty(ELEMENT)))
        before = e.empty(ROW)
        with e.at(ROW):
            e.emit("add", (row,), (row, step))
        return worker_code(e, turns, share(ROWS, self.workers), [*before, loop, *e.empty(ROW)])


@dataclass
class Substitution(MatrixNest):
    """Builds the code that takes the ``n`` elements of the row at ``in1`` out of those of ``rows`` others, each times a factor.

    The others begin at ``out0``, ``row_bytes`` apart, their factors at ``in0``, ``factor_bytes`` apart.

    Args:
      jaxpr: closed jaxpr of a row's factor, an element of the row, and that of the row at ``in1``; it returns what the
        second one becomes.
    """

    jaxpr: Jaxpr | None = None

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, jaxpr = self.emitter, self.jaxpr
        assert jaxpr is not None
        with e.at(CELL):
            source, upper, target = (self.argument(name) for name in ("in0", "in1", "out0"))
            n, rows = self.argument("n"), self.argument("rows")
            pitch, apart = self.argument("row_bytes"), self.argument("factor_bytes")
            turns, (row, place), steps = self.rows_in_turn(rows, (target, pitch), (source, apart))
        with e.at(ROW):
            factor = self.element(place, "in0")
            above_at, writing, reading = (self.copied(x) for x in (upper, row, row))
        with e.at(ELEMENT):
            here, above = e.fresh(file_of(self.dtype)), e.fresh(file_of(self.dtype))
            e.emit("ld32step", (here, reading), (MZERO, reading), (1,), stream="out0")
            e.emit("ld32step", (above, above_at), (MZERO, above_at), (1,), stream="in1")
        walker = Walker(e, 1)
        levels = ((ROW, factor), (ELEMENT, here), (ELEMENT, above))
        values = [self.value(self.dtype, level, register) for level, register in levels]
        (rest,) = walker.run(jaxpr.jaxpr, list(jaxpr.consts), values)
        with e.at(ELEMENT):
            left = walker.forms.get(rest, natural_form(self.dtype))[0]
            e.emit("st32step", (writing,), (left, MZERO, writing), (1,), stream="out0")
        loop = Repeat(n, N, self.block(e.empty(ELEMENT)))
        before = e.empty(ROW)
        with e.at(ROW):
            for register, step in zip((row, place), steps, strict=True):
                e.emit("add", (register,), (register, step))
        return worker_code(e, turns, share(ROWS, self.workers), [*before, loop, *e.empty(ROW)])


@dataclass
class Exchanged(MatrixNest):
    """Builds the code that says in ``out0`` which of ``n`` rows came where by the exchanges that ``in0`` lists."""

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.emitter
        with e.at(CELL):
            source, target, n = (self.argument(name) for name in ("in0", "out0", "n"))
            turns = self.only_the_first()
        with e.at(ROW):
            number = self.copied(MZERO)
            writing, here, reading = (self.copied(x) for x in (target, target, source))
            counter = e.main("add", n, imms=(-1,))
        with e.at(ELEMENT):
            e.emit("st32step", (writing,), (number, MZERO, writing), (1,), stream="out0")
            e.emit("add", (number,), (number,), (1,))
        counting = Repeat(n, N, self.block(e.empty(ELEMENT)))
        with e.at(ELEMENT):
            chosen, first, second = (e.fresh("M") for _ in range(3))
            e.emit("ld32step", (chosen, reading), (MZERO, reading), (1,), stream="in0")
            there = e.main("add", target, e.main("mul", chosen, imms=(WORD_BYTES,)))
            e.emit("ld32", (first,), (here, MZERO), (0,), stream="out0")
            e.emit("ld32", (second,), (there, MZERO), (0,), stream="out0")
            e.emit("st32", (), (first, there, MZERO), (0,), stream="out0")
            e.emit("st32", (), (second, here, MZERO), (0,), stream="out0")
            e.emit("add", (here,), (here,), (WORD_BYTES,))
        exchanging = Loop(counter, N, tuple(e.empty(ELEMENT)))
        return worker_code(e, turns, share(ROWS, self.workers), [*e.empty(ROW), counting, exchanging], [])


def _zero(e: Emitter, dtype: str) -> Register:
    return e.constant(file_of(dtype), 0)
