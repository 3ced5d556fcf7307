"""The loop nests of Householder's QR factorization: a supervisor starts each of them once a column.

Of every column the first worker adds up the squares and says by what the column is reflected, all workers divide what is below
the diagonal, and then take the columns that follow in turn. No branch depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tiles._jax_compat import Jaxpr
from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.elimination import WORD_BYTES, MatrixNest, file_of
from tiles.elements.extents import greater, symbol
from tiles.elements.select import Walker, part_of
from tiles.elements.tilecode import MZERO, If, Item, Register, Repeat
from tiles.elements.values import Value, natural_form
from tiles.elements.workers import emit_share, emit_worker, share, worker_code

N, ROWS = symbol("n"), symbol("rows")


@dataclass
class _Columns(MatrixNest):
    """A nest with several functions of elements: one closed jaxpr takes all their operands and gives all their results."""

    arities: ClassVar[tuple[tuple[int, int], ...]]
    """Operands and results of each function."""

    jaxpr: Jaxpr | None = None

    def run(self, number: int, values: list[Value]) -> list[Register]:
        """Emit one of the functions; return its results, in the file that they are computed in."""
        assert self.jaxpr is not None
        taken, given = (sum(arity[k] for arity in self.arities[:number]) for k in (0, 1))
        operands, results = self.arities[number]
        function = part_of(self.jaxpr.jaxpr, slice(taken, taken + operands), slice(given, given + results))
        walker = Walker(self.emitter, 1)
        found = walker.run(function, list(self.jaxpr.consts), values)
        level = max(value.level for value in values)
        with self.emitter.at(level):
            return [walker.forms.get(x, natural_form(self.dtype))[0] for x in found]

    def strided(self, at: Register, stride: Register, stream: str) -> Register:
        """Emit the load of an element whose address then advances by ``stride`` words."""
        register = self.emitter.fresh(file_of(self.dtype))
        self.emitter.emit("ld32step", (register, at), (MZERO, at, stride), stream=stream)
        return register

    def stored(self, register: Register, at: Register, stream: str) -> None:
        """Emit the store of an element."""
        self.emitter.emit("st32", (), (register, at, MZERO), (0,), stream=stream)

    def kept(self, register: Register, new: Register) -> None:
        """Emit that a register of the loop takes another's value."""
        self.emitter.emit("or", (register,), (new,), (0,), effect="live")


@dataclass
class Reflector(_Columns):
    """Builds the code that says by what a column is reflected.

    The column's first element lies at ``out0``, ``n`` others below it, ``row_bytes`` apart. It leaves there what the element
    becomes, at ``out1`` the factor, and at ``out2`` what the others are divided by.

    Its functions: an element and the sum of squares so far to the next sum; the first element and that sum to the three.
    """

    arities = ((2, 1), (2, 3))

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.emitter
        with e.at(CELL):
            first, factor, divisor, n = (self.argument(name) for name in ("out0", "out1", "out2", "n"))
            pitch = self.argument("row_bytes")
            stride = e.main("shr", pitch, imms=(2,))
            turns = self.only_the_first()
        with e.at(ROW):
            total = e.op("or", (file_of(self.dtype), 1), e.constant(file_of(self.dtype), 0), imms=(0,))
            alpha = self.element(first, "out0")
            reading = e.main("add", first, pitch)
        with e.at(ELEMENT):
            here = self.strided(reading, stride, "out0")
        (new,) = self.run(0, [self.value(self.dtype, ELEMENT, x) for x in (here, total)])
        with e.at(ELEMENT):
            self.kept(total, new)
        body = self.block(e.empty(ELEMENT))
        before = e.empty(ROW)
        made = self.run(1, [self.value(self.dtype, ROW, x) for x in (alpha, total)])
        with e.at(ROW):
            for register, at, stream in zip(
                made, (first, factor, divisor), ("out0", "out1", "out2"), strict=True
            ):
                self.stored(register, at, stream)
        adding = If(n, greater(N, 0), (Repeat(n, N, body),))
        return worker_code(e, turns, share(ROWS, self.workers), [*before, adding, *e.empty(ROW)])


@dataclass
class Division(_Columns):
    """Builds the code that divides ``rows`` elements from ``out0`` on, ``row_bytes`` apart, by the one at ``in0``.

    Its function: an element and the divisor to the quotient.
    """

    arities = ((2, 1),)

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.emitter
        with e.at(CELL):
            source, target, rows, pitch = (
                self.argument(name) for name in ("in0", "out0", "rows", "row_bytes")
            )
            turns, (at,), (step,) = self.rows_in_turn(rows, (target, pitch))
            divisor = self.element(source, "in0")
        with e.at(ROW):
            here = self.element(at, "out0")
        values = [self.value(self.dtype, ROW, here), self.value(self.dtype, CELL, divisor)]
        (quotient,) = self.run(0, values)
        with e.at(ROW):
            self.stored(quotient, at, "out0")
            e.emit("add", (at,), (at, step))
        return worker_code(e, turns, share(ROWS, self.workers), e.empty(ROW))


@dataclass
class Reflection(_Columns):
    """Builds the code that reflects ``rows`` columns, which begin side by side at ``out0``, by the one at ``in0``.

    A column has an element and ``n`` below it, ``row_bytes`` apart; the first element of the one at ``in0`` counts as 1. The
    factor lies at ``in1``.

    Its functions: an element, the vector's beside it and the sum so far to the next sum; the factor, that sum and a column's
    first element to the product and to what the element becomes; an element, the vector's and the product to what it becomes.
    """

    arities = ((3, 1), (3, 2), (3, 1))

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.emitter
        with e.at(CELL):
            vector, factor, target, n = (self.argument(name) for name in ("in0", "in1", "out0", "n"))
            rows, pitch = self.argument("rows"), self.argument("row_bytes")
            stride = e.main("shr", pitch, imms=(2,))
            worker = emit_worker(e)
            turns = emit_share(e, rows, worker)
            column = e.main("add", target, e.main("mul", worker, imms=(WORD_BYTES,)))
            below = e.main("add", vector, pitch)
            tau = self.element(factor, "in1")
        with e.at(ROW):
            first = self.element(column, "out0")
            total = e.op("or", (first.file, 1), first, imms=(0,))
            beside, reading = self.copied(below), e.main("add", column, pitch)
        with e.at(ELEMENT):
            here, own = self.strided(reading, stride, "out0"), self.strided(beside, stride, "in0")
        (new,) = self.run(0, [self.value(self.dtype, ELEMENT, x) for x in (here, own, total)])
        with e.at(ELEMENT):
            self.kept(total, new)
        adding = If(n, greater(N, 0), (Repeat(n, N, self.block(e.empty(ELEMENT))),))
        before = e.empty(ROW)
        levels = ((CELL, tau), (ROW, total), (ROW, first))
        product, changed = self.run(1, [self.value(self.dtype, level, x) for level, x in levels])
        with e.at(ROW):
            self.stored(changed, column, "out0")
            beside, reading = self.copied(below), e.main("add", column, pitch)
            writing = self.copied(reading)
        with e.at(ELEMENT):
            here, own = self.strided(reading, stride, "out0"), self.strided(beside, stride, "in0")
        levels = ((ELEMENT, here), (ELEMENT, own), (ROW, product))
        (new,) = self.run(2, [self.value(self.dtype, level, x) for level, x in levels])
        with e.at(ELEMENT):
            self.stored(new, writing, "out1")
            e.emit("add", (writing,), (writing, pitch))
        changing = If(n, greater(N, 0), (Repeat(n, N, self.block(e.empty(ELEMENT))),))
        between = e.empty(ROW)
        with e.at(ROW):
            e.emit("add", (column,), (column,), (self.workers * WORD_BYTES,))
        row = [*before, adding, *between, changing, *e.empty(ROW)]
        return worker_code(e, turns, share(ROWS, self.workers), row)
