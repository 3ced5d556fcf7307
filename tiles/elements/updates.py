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
    """Builds the code of ``out[k][place[i]] = f(*(o[place[i]] for o in out), *(u[i] for u in in))[k]``, i in order.

    What lies at a place, a row, has ``n`` words. A word holds one element, two of 16 bits or four of 8: of several
    tensors all elements are as wide. A place has an index along each of the ``axes``.

    Memory is named "in0" and so on for the updates, then for the indices along each axis, and "out0" and so on for the
    tensors' parts: along axis k ``size{k}`` places of ``bytes{k}`` from ``first{k}`` on; what lies outside of a part goes to
    a row that is ``outside`` bytes from its beginning. Rows of updates are as far apart as places along the last axis.

    Args:
      emitter: takes the code.
      jaxpr: closed jaxpr of ``f``: of old and new elements.
      dtypes: of the elements of each tensor.
      axes: how many indices a place has.
      is_clamped: whether indices beyond 0 and ``last{k}`` stand for these.
      is_numbered: whether what is new is the int32 number of the update, counted from ``number``: no updates are read.
      lanes: words of an iteration, which a variant says.
    """

    emitter: Emitter
    jaxpr: Jaxpr
    dtypes: tuple[str, ...]
    axes: int = 1
    is_clamped: bool = False
    is_numbered: bool = False
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: elements of several words, or of several widths.
        """
        widths = {itemsize(dtype) for dtype in self.dtypes}
        if max(widths) > WORD_BYTES:
            raise NoTileCode(f"updates of {', '.join(self.dtypes)}", expected="elements of a word or less")
        if len(widths) > 1:
            raise NoTileCode(
                f"updates of {', '.join(self.dtypes)} together", expected="elements of one width"
            )
        self.arguments: list[str] = []

    def _argument(self, name: str) -> Register:
        return emit_argument(self.emitter, self.arguments, name)

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers, count = self.emitter, self.emitter.isa["worker_contexts"], len(self.dtypes)
        with e.at(CELL):
            sources = [] if self.is_numbered else [self._argument(f"in{k}") for k in range(count)]
            indices = [self._argument(f"in{count + k}") for k in range(self.axes)]
            targets = [self._argument(f"out{k}") for k in range(count)]
            updates, n = self._argument("rows"), self._argument("n")
            outside = self._argument("outside")
            parts = [
                tuple(self._argument(f"{name}{k}") for name in ("first", "size", "bytes"))
                for k in range(self.axes)
            ]
            lasts = [self._argument(f"last{k}") for k in range(self.axes)] if self.is_clamped else []
            number = self._argument("number") if self.is_numbered else MZERO
            worker = emit_worker(e)
            words = emit_share(e, n, worker)
            offset = e.main("mul", worker, imms=(WORD_BYTES,))
            sources, targets = ([e.main("add", x, offset) for x in each] for each in (sources, targets))
        with e.at(ROW):
            is_here, start = MZERO, MZERO
            for k, (index, (first, size, pitch)) in enumerate(zip(indices, parts, strict=True)):
                at = e.fresh("M")
                e.emit("ld32step", (at, index), (MZERO, index), (1,), stream=f"in{count + k}")
                if self.is_clamped:
                    at = e.main("min", e.main("max", at, imms=(0,)), lasts[k])
                place = e.main("sub", at, first)
                is_inside = e.main("cmpult", place, size)
                here = e.main("mul", place, pitch)
                is_here = e.main("and", is_here, is_inside) if k else is_inside
                start = e.main("add", start, here) if k else here
            start = e.move_conditionally("movnz", outside, start, is_here)
            writing = [e.main("add", target, start) for target in targets]
            reading = [e.main("or", source, imms=(0,)) for source in sources]
        with e.at(ELEMENT):
            self._word(reading, writing, number)
        body = e.empty(ELEMENT)
        if len(body) != 1 or not isinstance(body[0], Block):
            raise NoTileCode("an update by what branches or loops", expected="instructions in a row")
        inner: list[Item] = [*e.empty(ROW), Repeat(words, share(N, workers), body[0])]
        with e.at(ROW):
            for source in sources:
                e.emit("add", (source,), (source, parts[-1][2]))
            if self.is_numbered:
                e.emit("add", (number,), (number,), (1,))
        inner += e.empty(ROW)
        return worker_code(e, updates, ROWS, inner)

    def _word(self, reading: list[Register], writing: list[Register], number: Register) -> None:
        """Emit one word of each tensor: load old and new, combine, store."""
        e, turn = self.emitter, WORD_BYTES * self.emitter.isa["worker_contexts"]
        each = WORD_BYTES // itemsize(self.dtypes[0])

        def stream(name: str, dtype: str, register: Register, turn_bytes: int) -> Stream:
            return Stream(e, name, dtype, each, WORD_BYTES, lambda _: Pointer(register, turn_bytes))

        walker = Walker(e, each)
        values = [
            self._loaded(stream(f"out{k}", dtype, register, 0), each)
            for k, (dtype, register) in enumerate(zip(self.dtypes, writing, strict=True))
        ]
        if self.is_numbered:
            values.append(Value("int32", ROW, 1, forms={"int": (number,)}))
        for k, register in enumerate(reading):
            values.append(self._loaded(stream(f"in{k}", self.dtypes[k], register, turn), each))
        found = walker.run(self.jaxpr.jaxpr, list(self.jaxpr.consts), values)
        for k, (value, dtype, register) in enumerate(zip(found, self.dtypes, writing, strict=True)):
            stream(f"out{k}", dtype, register, turn).store(walker.forms, value)

    def _loaded(self, stream: Stream, lanes: int) -> Value:
        form = natural_form(stream.dtype)
        return Value(stream.dtype, ELEMENT, lanes, forms={form: stream.load(form)})
