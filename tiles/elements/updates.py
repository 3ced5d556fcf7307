"""The loop nest of updates at many indices: rows of a tensor are combined with updates, one update after the other.

All workers take part in every update, a share of its words each, so that updates of one row follow one another. What
lies outside the tensor's part goes to a row beside it that nobody reads: no branch depends on an index.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles._jax_compat import Jaxpr
from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import symbol
from tiles.elements.select import Walker
from tiles.elements.streams import Pointer, Stream
from tiles.elements.tilecode import MZERO, Block, Item, Register, Repeat
from tiles.elements.values import Value, natural_form
from tiles.elements.workers import emit_argument, emit_share, emit_worker, share, worker_code
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

WORD_BYTES = 4
N, ROWS = symbol("n"), symbol("rows")
"""Words of a row, and updates."""


@dataclass
class Updates:
    """Builds the code of ``out[index[i], :] = f(out[index[i], :], in[i, :])`` for rows of ``n`` words, i in order.

    A word holds one element, two of 16 bits or four of 8.

    The tensor's part is ``size`` rows of ``row_bytes`` from ``first`` on; the row that takes what lies outside follows it.

    Args:
      emitter: takes the code.
      jaxpr: closed jaxpr of ``f``: of an old and a new element.
      dtype: of the elements.
      is_clamped: whether indices beyond 0 and ``last`` stand for these.
      lanes: words of an iteration, which a variant says.
    """

    emitter: Emitter
    jaxpr: Jaxpr
    dtype: str
    is_clamped: bool = False
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: elements of several words.
        """
        if itemsize(self.dtype) > WORD_BYTES:
            raise NoTileCode(f"updates of {self.dtype}", expected="elements of a word or less")
        self.arguments: list[str] = []

    def _argument(self, name: str) -> Register:
        return emit_argument(self.emitter, self.arguments, name)

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            source, index, target = (self._argument(name) for name in ("in0", "in1", "out0"))
            updates, n, pitch = (self._argument(name) for name in ("rows", "n", "row_bytes"))
            first, size = self._argument("first"), self._argument("size")
            last = self._argument("last") if self.is_clamped else MZERO
            worker = emit_worker(e)
            words = emit_share(e, n, worker)
            offset = e.main("mul", worker, imms=(WORD_BYTES,))
            source, target = e.main("add", source, offset), e.main("add", target, offset)
            beside = e.main("add", target, e.main("mul", size, pitch))
        with e.at(ROW):
            number = e.fresh("M")
            e.emit("ld32step", (number, index), (MZERO, index), (1,), stream="in1")
            if self.is_clamped:
                number = e.main("min", e.main("max", number, imms=(0,)), last)
            place = e.main("sub", number, first)
            is_here = e.main("cmpult", place, size)
            row = e.main("add", target, e.main("mul", place, pitch))
            writing = e.move_conditionally("movnz", beside, row, is_here)
            reading = e.main("or", source, imms=(0,))
        with e.at(ELEMENT):
            self._word(reading, writing)
        body = e.empty(ELEMENT)
        if len(body) != 1 or not isinstance(body[0], Block):
            raise NoTileCode("an update by what branches or loops", expected="instructions in a row")
        inner: list[Item] = [*e.empty(ROW), Repeat(words, share(N, workers), body[0])]
        with e.at(ROW):
            e.emit("add", (source,), (source, pitch))
        inner += e.empty(ROW)
        return worker_code(e, updates, ROWS, inner)

    def _word(self, reading: Register, writing: Register) -> None:
        """Emit one word: load both, combine, store."""
        e, turn = self.emitter, WORD_BYTES * self.emitter.isa["worker_contexts"]
        each, form = WORD_BYTES // itemsize(self.dtype), natural_form(self.dtype)

        def stream(name: str, register: Register, turn_bytes: int) -> Stream:
            return Stream(e, name, self.dtype, each, WORD_BYTES, lambda _: Pointer(register, turn_bytes))

        old, new = stream("out0", writing, 0).load(form), stream("in0", reading, turn).load(form)
        walker = Walker(e, each)
        values = [Value(self.dtype, ELEMENT, each, forms={form: pieces}) for pieces in (old, new)]
        (found,) = walker.run(self.jaxpr.jaxpr, list(self.jaxpr.consts), values)
        stream("out0", writing, turn).store(walker.forms, found)
