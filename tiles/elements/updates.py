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

    The tensor's part is ``size`` rows of ``row_bytes`` from ``first`` on; the row that takes what lies outside follows it.

    Args:
      emitter: takes the code.
      jaxpr: closed jaxpr of ``f``: of an old and a new word.
      dtype: of the words.
      is_clamped: whether indices beyond 0 and ``last`` stand for these.
      lanes: elements of an iteration, which a variant says.
    """

    emitter: Emitter
    jaxpr: Jaxpr
    dtype: str
    is_clamped: bool = False
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: elements that are no whole words.
        """
        if itemsize(self.dtype) != WORD_BYTES:
            raise NoTileCode(f"updates of {self.dtype}", expected="elements of whole words")
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
        e, step = self.emitter, self.emitter.isa["worker_contexts"]
        form = natural_form(self.dtype)
        old, new = (e.fresh("M" if form == "int" else "A") for _ in range(2))
        e.emit("ld32", (old,), (writing, MZERO), (0,), stream="out0")
        e.emit("ld32step", (new, reading), (MZERO, reading), (step,), stream="in0")
        values = [Value(self.dtype, ELEMENT, 1, forms={form: (x,)}) for x in (old, new)]
        walker = Walker(e, 1)
        (found,) = walker.run(self.jaxpr.jaxpr, list(self.jaxpr.consts), values)
        (word,) = walker.forms.get(found, form)
        e.emit("st32step", (writing,), (word, MZERO, writing), (step,), stream="out0")
