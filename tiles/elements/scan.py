"""The loop nest of scans: every element of a row becomes the fold of those before it and itself; workers take rows in turn.

The elements of several arrays are folded together, one after the other, in registers that the loop carries.
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


@dataclass
class Scan:
    """Builds the code of ``out[r, i] = f(out[r, i - 1], in[r, i])`` for rows of ``n`` words each.

    Args:
      emitter: takes the code.
      jaxpr: closed jaxpr of ``f``: the arrays' earlier values, then their later ones.
      dtypes: of the arrays.
      is_reversed: whether rows are gone through from their ends.
      lanes: elements of an iteration, which a variant says.
    """

    emitter: Emitter
    jaxpr: Jaxpr
    dtypes: tuple[str, ...]
    is_reversed: bool = False
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: elements that are no whole words, or that no registers hold as they lie.
        """
        if any(itemsize(dtype) != WORD_BYTES for dtype in self.dtypes):
            raise NoTileCode(f"a scan of {', '.join(self.dtypes)}", expected="elements of whole words")
        self.arguments: list[str] = []

    def _argument(self, name: str) -> Register:
        return emit_argument(self.emitter, self.arguments, name)

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers, count = self.emitter, self.emitter.isa["worker_contexts"], len(self.dtypes)
        with e.at(CELL):
            starts = [self._argument(f"in{k}") for k in range(count)]
            starts += [self._argument(f"out{k}") for k in range(count)]
            n, rows, pitch = (self._argument(name) for name in ("n", "rows", "row_bytes"))
            worker = emit_worker(e)
            turns = emit_share(e, rows, worker)
            first = e.main("mul", worker, pitch)
            later = e.main("add", n, imms=(-1,))
            if self.is_reversed:
                first = e.main("add", first, e.main("mul", later, imms=(WORD_BYTES,)))
            pointers = [e.main("add", start, first) for start in starts]
            step = e.main("mul", pitch, imms=(workers,))
        row = self._row(pointers, later)
        with e.at(ROW):
            for pointer in pointers:
                e.emit("add", (pointer,), (pointer, step))
        row += e.empty(ROW)
        return worker_code(e, turns, share(ROWS, workers), row)

    def _row(self, pointers: list[Register], later: Register) -> list[Item]:
        """Return the code of one row: its first elements as they are, then one fold after the other."""
        e, count = self.emitter, len(self.dtypes)
        forms = [natural_form(dtype) for dtype in self.dtypes]
        files = ["M" if form == "int" else "A" for form in forms]
        sources, targets = pointers[:count], pointers[count:]
        with e.at(ROW):
            carried = [e.fresh(file) for file in files]
            reading = [e.main("or", pointer, imms=(0,)) for pointer in sources]
            writing = [e.main("or", pointer, imms=(0,)) for pointer in targets]
            self._load(carried, reading)
            self._store(carried, writing)
        with e.at(ELEMENT):
            here = [e.fresh(file) for file in files]
            self._load(here, reading)
        before, now = (
            [
                Value(dtype, ELEMENT, 1, forms={form: (register,)})
                for dtype, form, register in zip(self.dtypes, forms, registers, strict=True)
            ]
            for registers in (carried, here)
        )
        walker = Walker(e, 1)
        found = walker.run(self.jaxpr.jaxpr, list(self.jaxpr.consts), [*before, *now])
        with e.at(ELEMENT):
            folds = [walker.forms.get(value, form)[0] for value, form in zip(found, forms, strict=True)]
            kept = [
                fold if fold not in carried else e.op("or", (fold.file, 1), fold, imms=(0,)) for fold in folds
            ]
            for register, fold in zip(carried, kept, strict=True):
                e.emit("or", (register,), (fold,), (0,), effect="live")
            self._store(kept, writing)
        body = e.empty(ELEMENT)
        if len(body) != 1 or not isinstance(body[0], Block):
            raise NoTileCode(
                "a scan by what branches or loops for every element", expected="instructions in a row"
            )
        return [*e.empty(ROW), Repeat(later, N - 1, body[0])]

    def _load(self, registers: list[Register], pointers: list[Register]) -> None:
        step = -1 if self.is_reversed else 1
        for k, (register, pointer) in enumerate(zip(registers, pointers, strict=True)):
            self.emitter.emit("ld32step", (register, pointer), (MZERO, pointer), (step,), stream=f"in{k}")

    def _store(self, registers: list[Register], pointers: list[Register]) -> None:
        step = -1 if self.is_reversed else 1
        for k, (register, pointer) in enumerate(zip(registers, pointers, strict=True)):
            self.emitter.emit("st32step", (pointer,), (register, MZERO, pointer), (step,), stream=f"out{k}")
