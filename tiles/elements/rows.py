"""The loop nest of elementwise cells of ``[rows, n]``: workers take rows in turn, each row is a hardware loop.

Where rows are few, all workers take every row together, each its share of the row's vectors. Operands may be whole,
a vector that all rows read, one element a row, or one element. The vertex' state says how many bytes lie from a
worker's row to its next one.
"""

from __future__ import annotations

from tiles.elements.cell import CELL, ELEMENT, ROW, Access
from tiles.elements.elementwise import Elementwise, N, by_size
from tiles.elements.extents import equal, greater, symbol
from tiles.elements.streams import Pointer
from tiles.elements.tilecode import If, Item, Register
from tiles.elements.workers import WORKER, emit_argument, emit_share, emit_worker, share, worker_code
from tiles.numerics.dtypes import itemsize

ROWS = symbol("rows")


class ElementwiseRows(Elementwise):
    """Builds the code of a cell whose elements lie in rows."""

    def items(self) -> list[Item]:
        """Return the code, unscheduled: what comes before the loop over rows, the loop, and the end."""
        e = self.e
        self.loop_level = ROW
        together = self.how.shares_rows
        count, vectors, share_, rest = self._prepare()
        body = self._body(self._row_pointer)
        trips = share(N // self.lanes, self.workers) if together else N // self.lanes
        loop = self._loop(share_, trips, body)
        before_row = e.empty(ROW)
        tail = self._row_tail(vectors, rest) if rest is not None else []
        before_row += e.empty(ROW)
        with e.at(ROW):
            for name in self.moving:
                step = emit_argument(
                    e, self.arguments, f"{name}_step_bytes"
                )  # kept in no register over a row
                e.emit("add", (self.row_starts[name],), (self.row_starts[name], step))
        row = (*before_row, *loop, *tail, *e.empty(ROW))
        return worker_code(e, count, ROWS if together else share(ROWS, self.workers), row)

    def _prepare(self) -> tuple[Register, Register, Register, Register | None]:
        """Emit a worker's share and where its first row starts.

        Returns:
          Its rows, the vectors of a row, those of them that it takes, and the elements that are left for it.
        """
        e, together = self.e, self.how.shares_rows
        accesses = dict(self._accesses())
        own = [name for name in self._names() if not accesses[name].beside]
        self.moving = [n for n in own if accesses[n].level == ROW or self._moves(accesses[n])]
        with e.at(CELL):
            for name in own:
                self.bases[name] = emit_argument(e, self.arguments, name)
            for name in self._names():
                if accesses[name].beside:
                    self.distances[name] = emit_argument(e, self.arguments, f"{name}_distance_bytes")
            n, rows = emit_argument(e, self.arguments, "n"), emit_argument(e, self.arguments, "rows")
            worker = emit_worker(e)
            count = rows if together else emit_share(e, rows, worker)
            vectors = e.main("shr", n, imms=(self.lanes.bit_length() - 1,)) if self.lanes > 1 else n
            taken = emit_share(e, vectors, worker) if together else vectors
            rest = e.masked(n, self.lanes - 1) if self.lanes > 1 else None
            if together and rest is not None:
                rest = e.main("mul", rest, e.main("cmpeq", worker, imms=(self.workers - 1,)))
            self.starts = by_size(lambda size: e.main("mul", worker, imms=(self.lanes * size,)))
            self.row_starts: dict[str, Register] = dict(self.bases)
            for name in self.moving:
                if together:
                    self.row_starts[name] = e.main("or", self.bases[name], imms=(0,))
                else:
                    pitch = emit_argument(e, self.arguments, f"{name}_row_bytes")
                    self.row_starts[name] = e.main("add", self.bases[name], e.main("mul", worker, pitch))
        return count, vectors, taken, rest

    def _accesses(self) -> list[tuple[str, Access]]:
        results = [(self.how.stream(k), a) for k, a in enumerate(self.how.results)]
        return [*((f"in{k}", a) for k, a in enumerate(self.how.operands)), *results]

    def _moves(self, access: Access) -> bool:
        return access.level == ELEMENT and access.every_row

    def start(self, name: str, access: Access) -> Register:
        """Return where an operand that is one element, or one a row, lies."""
        return self.row_starts[name]

    def _row_pointer(self, name: str, dtype: str, offset: int) -> Pointer:
        """Return a pointer of its own to the first vector of a row."""
        e = self.e
        with e.at(ROW):
            register = e.main("add", self.row_starts[name], imms=(offset,))
        if not self.how.shares_rows:
            return Pointer(register, self.lanes * itemsize(dtype))
        with e.at(CELL):
            start = self.starts(itemsize(dtype))
        with e.at(ROW):
            register = e.main("add", register, start)
        return Pointer(register, self.lanes * itemsize(dtype) * self.workers)

    def _row_tail(self, vectors: Register, rest: Register) -> list[Item]:
        """Return the code for elements that fill no vector: all lanes computed, some stored."""
        e = self.e
        elements = N % self.lanes
        starts = by_size(lambda size: e.main("mul", vectors, imms=(self.lanes * size,)))

        def pointer(name: str, dtype: str, _: int) -> Pointer:
            with e.at(ELEMENT):
                return Pointer(e.main("add", self.row_starts[name], starts(itemsize(dtype))))

        forms = self.walker.forms
        body = self._body(pointer, lambda stream, value: stream.store_partly(forms, value, rest, elements))
        taken = greater(elements, 0)
        if self.how.shares_rows:
            taken = taken * equal(WORKER, self.workers - 1)
        return [If(rest, taken, tuple(body))]
