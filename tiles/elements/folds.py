"""The loop nest of folds of several arrays together: every row of elements becomes one element of each array.

Workers take rows in turn, or each row together: then a worker folds a part of the row that lies in one piece, and what workers
found is a row of as many elements as there are workers. Elements are combined in order, each with what those before it have come to.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles._jax_compat import Jaxpr
from tiles.elements.cell import CELL, ELEMENT, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import symbol
from tiles.elements.select import Walker, part_of
from tiles.elements.tilecode import AZERO, MZERO, Block, Item, Register, Repeat
from tiles.elements.values import BFLOAT16, MAIN_FORMS, Value, natural_form
from tiles.elements.workers import emit_argument, emit_share, emit_worker, share, worker_code
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

WORD_BYTES = 4
N, ROWS = symbol("n"), symbol("rows")
_POSITION = "int32"
_LOADS = {
    "bool": "ldz8",
    "int8": "lds8",
    "uint8": "ldz8",
    "int16": "lds16",
    "uint16": "ldz16",
    "float16": "ldb16",
    BFLOAT16: "ldb16",
}


def is_foldable(dtype: str) -> bool:
    """Return whether elements of a dtype are folded: those that are loaded one at a time as they are computed."""
    return itemsize(dtype) == WORD_BYTES or dtype in _LOADS


@dataclass
class Folds:
    """Builds the code of ``out[r] = f(... f(g(in[r, 0]), g(in[r, 1])) ...)`` for rows of ``n`` elements each.

    Rows of operand k lie ``in{k}_row_bytes`` apart. A row has a result of each array, or one for each worker where workers share
    rows; of these every worker folds at least one element. Results are words, also of elements that are smaller.

    Args:
      emitter: takes the code.
      jaxpr: closed jaxpr of two functions: ``g`` of the operands, and of the element's position if it is counted; then ``f``
        of what each array has come to and of its next value.
      operands: dtypes of the operands.
      dtypes: of the arrays.
      counts: whether ``g`` takes the element's position, which is ``first`` at a row's first element.
      shares_rows: whether workers take every row together.
      in_words: whether every element of an operand is a word in memory, as results are.
      lanes: elements of an iteration, which a variant says.
    """

    emitter: Emitter
    jaxpr: Jaxpr
    operands: tuple[str, ...]
    dtypes: tuple[str, ...]
    counts: bool = False
    shares_rows: bool = False
    in_words: bool = False
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: elements of several words, floats of 8 bits.
        """
        other = [dtype for dtype in (*self.operands, *self.dtypes) if not is_foldable(dtype)]
        if other:
            raise NoTileCode(
                f"a fold of several arrays of {', '.join(other)}",
                expected="float32, float16, bfloat16, integers, booleans",
            )
        self.steps = [WORD_BYTES if self.in_words else itemsize(dtype) for dtype in self.operands]
        self.arguments: list[str] = []
        self.walker = Walker(self.emitter, 1)

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers, together = self.emitter, self.emitter.isa["worker_contexts"], self.shares_rows
        with e.at(CELL):
            sources = [self._argument(f"in{k}") for k in range(len(self.operands))]
            targets = [self._argument(f"out{k}") for k in range(len(self.dtypes))]
            n, rows = (self._argument(name) for name in ("n", "rows"))
            pitches = [self._argument(f"in{k}_row_bytes") for k in range(len(self.operands))]
            position = self._argument("first") if self.counts else MZERO
            worker = emit_worker(e)
            number = emit_share(e, n if together else rows, worker)
            if together:
                start = self._start(n, worker)
                begins = [e.main("mul", start, imms=(size,)) for size in self.steps]
                steps = pitches
                position = e.main("add", position, start) if self.counts else position
            else:
                begins = [e.main("mul", worker, pitch) for pitch in pitches]
                steps = [e.main("mul", pitch, imms=(workers,)) for pitch in pitches]
            sources = [e.main("add", source, begin) for source, begin in zip(sources, begins, strict=True)]
            beside = e.main("mul", worker, imms=(WORD_BYTES,))
            targets = [e.main("add", target, beside) for target in targets]
            later = e.main("add", number if together else n, imms=(-1,))
        row = self._row(sources, targets, position, later)
        with e.at(ROW):
            for pointer, step in zip(sources, steps, strict=True):
                e.emit("add", (pointer,), (pointer, step))
            for pointer in targets:
                e.emit("add", (pointer,), (pointer,), (WORD_BYTES * workers,))
        row += e.empty(ROW)
        turns, trips = (rows, ROWS) if together else (number, share(ROWS, workers))
        return worker_code(e, turns, trips, row)

    def _argument(self, name: str) -> Register:
        return emit_argument(self.emitter, self.arguments, name)

    def _start(self, n: Register, worker: Register) -> Register:
        """Emit the number of a worker's first element: workers before it have ``n / workers`` each, the first ones one more."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        least = emit_share(e, n, e.constant("M", workers - 1))
        more = e.main("sub", n, e.main("mul", least, imms=(workers,)))
        return e.main("add", e.main("mul", worker, least), e.main("min", worker, more))

    def _row(
        self, sources: list[Register], targets: list[Register], position: Register, later: Register
    ) -> list[Item]:
        """Return the code of a row, or a worker's part of it."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(ROW):
            reading = [e.main("or", pointer, imms=(0,)) for pointer in sources]
            counter = e.main("or", position, imms=(0,)) if self.counts else position
        come = self._values(ROW, reading, counter)
        with e.at(ROW):
            carried = [e.op("or", (register.file, 1), register, imms=(0,)) for register in come]
        here = self._values(ELEMENT, reading, counter)
        levels = ((carried, self.dtypes), (here, self.dtypes))
        values = [
            self._value(dtype, ELEMENT, register)
            for registers, dtypes in levels
            for dtype, register in zip(dtypes, registers, strict=True)
        ]
        folds = self._run(1, ELEMENT, values)
        with e.at(ELEMENT):
            kept = [
                fold if fold not in carried else e.op("or", (fold.file, 1), fold, imms=(0,)) for fold in folds
            ]
            for register, fold in zip(carried, kept, strict=True):
                e.emit("or", (register,), (fold,), (0,), effect="live")
        body = e.empty(ELEMENT)
        if len(body) != 1 or not isinstance(body[0], Block):
            raise NoTileCode(
                "a fold by what branches or loops for every element", expected="instructions in a row"
            )
        before = e.empty(ROW)
        with e.at(ROW):
            for k, (register, pointer) in enumerate(zip(carried, targets, strict=True)):
                if self.dtypes[k] == BFLOAT16:  # as a word it is in the lower half
                    register = e.op("roll16", ("A", 1), register, AZERO)
                e.emit("st32", (), (register, pointer, MZERO), (0,), stream=f"out{k}")
        trips = share(N, workers) if self.shares_rows else N
        return [*before, Repeat(later, trips - 1, body[0]), *e.empty(ROW)]

    def _values(self, level: int, reading: list[Register], counter: Register) -> list[Register]:
        """Emit the loads of the next element of every operand; return the arrays' values of it."""
        e, given = self.emitter, list[Value]()
        with e.at(level):
            for k, (dtype, pointer) in enumerate(zip(self.operands, reading, strict=True)):
                register = e.fresh("M" if natural_form(dtype) in MAIN_FORMS else "A")
                load = "ld32" if self.in_words else _LOADS.get(dtype, "ld32")
                e.emit(f"{load}step", (register, pointer), (MZERO, pointer), (1,), stream=f"in{k}")
                if dtype == BFLOAT16:  # computed as the float32 that it is the upper half of
                    register = e.op("roll16", ("A", 1), AZERO, register)
                given.append(self._value(dtype, level, register))
            if self.counts:
                now = e.main("or", counter, imms=(0,))
                e.emit("add", (counter,), (counter,), (1,))
                given.append(self._value(_POSITION, level, now))
        return self._run(0, level, given)

    def _value(self, dtype: str, level: int, register: Register) -> Value:
        return Value(dtype, level, 1, forms={natural_form(dtype): (register,)})

    def _run(self, number: int, level: int, values: list[Value]) -> list[Register]:
        """Emit one of the two functions; return its results."""
        operands, results = len(self.operands) + self.counts, len(self.dtypes)
        taken, given = (slice(0, operands), slice(0, results))
        if number:
            taken, given = slice(operands, None), slice(results, None)
        function = part_of(self.jaxpr.jaxpr, taken, given)
        found = self.walker.run(function, list(self.jaxpr.consts), values)
        with self.emitter.at(level):
            return [
                self.walker.forms.get(value, natural_form(dtype))[0]
                for value, dtype in zip(found, self.dtypes, strict=True)
            ]
