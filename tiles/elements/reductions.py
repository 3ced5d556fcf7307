"""Loop nests of reductions of ``[rows, n]``: along rows to one element a row, or over rows to ``n`` elements.

Along rows, workers take rows in turn; a row's vectors go to an accumulator register with a lane for each element of
a vector (sums of halves to the f32 accumulators of the machine), the elements that fill no vector to a second one.
Over rows, workers take vectors of columns in turn and go down the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tiles.elements.accumulate import BITWISE, Accumulator, accumulator
from tiles.elements.bfloat16 import rounded, widened
from tiles.elements.cell import CELL, ELEMENT, ROW, Access, Arrangement
from tiles.elements.elementwise import lanes_choices
from tiles.elements.emitter import Emitter
from tiles.elements.extents import Extent, equal, greater, symbol
from tiles.elements.integers import convert
from tiles.elements.reduction import Reduction
from tiles.elements.select import Equations, Walker
from tiles.elements.streams import Pointer, Stream
from tiles.elements.tilecode import Block, If, Item, Register, Repeat
from tiles.elements.values import BFLOAT16, Pieces, Value
from tiles.elements.workers import WORKER, emit_argument, emit_share, emit_worker, share, worker_code
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

N, ROWS = symbol("n"), symbol("rows")
Dtypes = tuple[tuple[str, ...], tuple[str, ...]]
_OF_SIZE = {2: "float16", 4: "float32"}


def build_reduction(
    emitter: Emitter, reduction: Reduction, dtypes: tuple[tuple[str, ...], tuple[str, ...]], how: Arrangement
) -> AlongRows | OverRows:
    """Return the loop nest of a reduction.

    Raises:
      NoTileCode: a result of fewer than 4 bytes a row, which two workers would write into one word.
    """
    if (
        reduction.dtype == BFLOAT16
    ):  # folded as float32; sums and products are rounded when all is there, as by XLA:CPU
        is_exact = reduction.kind in ("max", "min")
        result = "float32" if is_exact else reduction.result_dtype
        reduction = replace(reduction, dtype="float32", result_dtype=result)
    reduction, dtypes = _as_bits(reduction, dtypes)
    if reduction.over_rows:
        return OverRows(emitter, reduction, dtypes, how)
    if itemsize(dtypes[1][0]) < 4:
        raise NoTileCode(
            f"one {dtypes[1][0]} a row", expected="results of whole words", try_="reduce to float32"
        )
    return AlongRows(emitter, reduction, dtypes, how)


def _as_bits(reduction: Reduction, dtypes: Dtypes) -> tuple[Reduction, Dtypes]:
    """Return a fold of integers' bits as one of floats of their size, which vectors of 64 bits hold; others as they are.

    Nothing but loads, "and" or "or", and stores touches the elements, so it does not matter what they stand for.
    """
    before, after = reduction.before, reduction.after
    sizes = {itemsize(dtype) for dtype in (reduction.dtype, *dtypes[0], *dtypes[1])}
    is_plain = not before.eqns and all(e.primitive.name == "bitcast_convert_type" for e in after.eqns)
    if reduction.kind not in BITWISE or not is_plain or len(sizes) > 1 or not sizes <= _OF_SIZE.keys():
        return reduction, dtypes
    dtype = _OF_SIZE[sizes.pop()]
    same = Equations([], after.invars, after.invars, [])
    operands, results = dtypes
    whole = replace(reduction, after=same, dtype=dtype, result_dtype=dtype)
    return whole, ((dtype,) * len(operands), (dtype,) * len(results))


class _Nest:
    """What both nests share: arguments, the walker, the worker's share, the streams of operands."""

    def __init__(
        self,
        emitter: Emitter,
        reduction: Reduction,
        dtypes: tuple[tuple[str, ...], tuple[str, ...]],
        how: Arrangement,
    ) -> None:
        """Take the reduction, its operands' and result's dtypes, and how they lie."""
        if all(access.level != ELEMENT for access in how.operands) or how.in_place:
            raise NoTileCode("a reduction in place, or of single elements only", expected="[rows, n]")
        self.emitter = self.e = emitter
        self.reduction, self.dtypes, self.how = reduction, dtypes, how
        self.workers = emitter.isa["worker_contexts"]
        self.lanes = lanes_choices(dtypes[0] + (reduction.dtype,), how_of(how))[0]
        self.arguments: list[str] = []
        self.walker = Walker(emitter, self.lanes)
        self.starts: list[Register] = []
        self.uniform: dict[int, Value] = {}

    def argument(self, name: str) -> Register:
        """Return a field of the vertex state, loaded before the loops."""
        with self.e.at(CELL):
            return emit_argument(self.e, self.arguments, name)

    def reduced(self, lanes: int, pointers: list[Pointer]) -> Value:
        """Return what is reduced, of one iteration's elements."""
        self.walker.forms.lanes = lanes
        operands: list[Value] = []
        for k, (dtype, access) in enumerate(zip(self.dtypes[0], self.how.operands, strict=True)):
            if access.level != ELEMENT:
                operands.append(self._single(k, dtype, access, pointers[k]))
                continue
            alignment = access.alignment_bytes
            stream = Stream(self.e, f"in{k}", dtype, lanes, alignment, _always(pointers[k]))
            operands.append(Value(dtype, ELEMENT, lanes, load=stream.load))
        (value,) = self.walker.run(self.reduction.before, self.reduction.consts, operands)
        return widened(self.walker, value)

    def _single(self, k: int, dtype: str, access: Access, pointer: Pointer) -> Value:
        """Return an operand of one element for the whole cell, or for the row that ``pointer`` leads to."""
        if access.level == CELL and k not in self.uniform:
            one = Stream(self.e, f"in{k}", dtype, 1, itemsize(dtype), _always(Pointer(self.starts[k])))
            self.uniform[k] = Value(dtype, CELL, 1, load=one.load)
        return self.uniform[k] if access.level == CELL else self._of_row(k, dtype, pointer)

    def _of_row(self, k: int, dtype: str, pointer: Pointer) -> Value:
        """Return an operand of one element a row."""
        raise NotImplementedError

    def _operands(self) -> list[tuple[str, Access]]:
        return list(zip(self.dtypes[0], self.how.operands, strict=True))

    def _pitch(self, k: int) -> Register | None:
        """Return the bytes from one row of an operand to the next; None for one element of the whole cell."""
        return None if self.how.operands[k].level == CELL else self.argument(f"in{k}_row_bytes")

    def _beyond(self, start: Register, dtype: str, vectors: Register) -> Register:
        """Emit where the elements lie that fill no vector; loads that ran ahead have moved other pointers."""
        return self.e.main("add", start, self.e.main("mul", vectors, imms=(self.lanes * itemsize(dtype),)))

    def advance(self, register: Register, by: Register) -> None:
        """Emit the sum of a pointer and a number of bytes, into the pointer."""
        self.e.emit("add", (register,), (register, by))

    def folded(self, level: int, lanes: int, form: str, pieces: Pieces) -> Value:
        """Return what an accumulator holds, in the dtype that the reduction gives."""
        dtype = "float32" if form == "f32" else self.reduction.dtype
        value = Value(dtype, level, lanes, {form: pieces})
        if self.reduction.result_dtype == BFLOAT16:
            return rounded(self.walker, value)
        return convert(self.walker, value, self.reduction.result_dtype)

    def finished(self, value: Value) -> Value:
        """Return the result after the functions that follow the reduction."""
        (out,) = self.walker.run(self.reduction.after, [], [value])
        return out


class AlongRows(_Nest):
    """One result a row: ``out[r] = fold(x[r, :])``."""

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.e
        self.starts = starts = [self.argument(f"in{k}") for k in range(len(self.dtypes[0]))]
        pitches = [self._pitch(k) for k in range(len(self.dtypes[0]))]
        out, n, rows = self.argument("out0"), self.argument("n"), self.argument("rows")
        with e.at(CELL):
            worker = emit_worker(e)
            count = emit_share(e, rows, worker)
            vectors = e.main("shr", n, imms=(self.lanes.bit_length() - 1,)) if self.lanes > 1 else n
            rest = e.masked(n, self.lanes - 1) if self.lanes > 1 else None
            row_pointers = [
                s if p is None else e.main("add", s, e.main("mul", worker, p))
                for s, p in zip(starts, pitches, strict=True)
            ]
            steps = [None if p is None else e.main("mul", p, imms=(self.workers,)) for p in pitches]
            out_pointer = e.main("add", out, e.main("mul", worker, imms=(4,)))
            fold = accumulator(e, self.reduction, self.lanes)
            fold.prepare()
        row = self._row(fold, row_pointers, steps, out_pointer, vectors, rest)
        return worker_code(e, count, share(ROWS, self.workers), row)

    def _row(
        self,
        fold: Accumulator,
        rows: list[Register],
        steps: list[Register | None],
        out: Register,
        vectors: Register,
        rest: Register | None,
    ) -> list[Item]:
        """Return the code of one row: the vectors, the elements that fill none, the functions after, the store."""
        e = self.e
        self.of_rows: dict[int, Value] = {}
        self.rows = rows
        with e.at(ROW):
            moving = [
                e.main("or", row, imms=(0,)) if access.level == ELEMENT else row
                for row, access in zip(rows, self.how.operands, strict=True)
            ]
            fold.start()
        loop = self._repeat(fold, self.lanes, moving, vectors, N // self.lanes)
        items = [*e.empty(ROW), loop]  # loads of what is one a row come before the loop
        if rest is not None:
            single = accumulator(e, self.reduction, 1)
            with e.at(ROW):
                single.start()
                left = [
                    self._beyond(row, d, vectors) if access.level == ELEMENT else row
                    for row, (d, access) in zip(rows, self._operands(), strict=True)
                ]
            again = self._repeat(single, 1, left, rest, N % self.lanes)
            items += [*e.empty(ROW), again]
            with e.at(ROW):
                value = fold.joined(single)
        else:
            with e.at(ROW):
                value = fold.joined(None)
        self.walker.forms.lanes = 1
        result = self.finished(self.folded(ROW, 1, value[0], (value[1],)))
        with e.at(ROW):
            stream = Stream(e, "out0", self.dtypes[1][0], 1, 4, _always(Pointer(out, 4 * self.workers)))
            stream.store(self.walker.forms, result)
            for pointer, step in zip(rows, steps, strict=True):
                if step is not None:
                    self.advance(pointer, step)
        return [*items, *e.empty(ROW)]

    def _of_row(self, k: int, dtype: str, pointer: Pointer) -> Value:
        """Return an operand of one element a row: loaded before the row's loops."""
        if k not in self.of_rows:
            one = Stream(self.e, f"in{k}", dtype, 1, itemsize(dtype), _always(Pointer(self.rows[k])))
            self.of_rows[k] = Value(dtype, ROW, 1, load=one.load)
        return self.of_rows[k]

    def _repeat(
        self, fold: Accumulator, lanes: int, moving: list[Register], count: Register, trips: Extent
    ) -> Item:
        e = self.e
        pointers = [
            Pointer(register, lanes * itemsize(dtype))
            for register, dtype in zip(moving, self.dtypes[0], strict=True)
        ]
        value = self.reduced(lanes, pointers)
        with e.at(ELEMENT):
            fold.add(self.walker, value)
        return Repeat(count, trips, _only_block(e.empty(ELEMENT)))


def _only_block(items: list[Item]) -> Block:
    """Return what is done for each element, as the body of a counted repeat.

    Raises:
      NoTileCode: it branches or loops (a remainder of integers does), which such a body cannot.
    """
    if len(items) == 1 and isinstance(items[0], Block):
        return items[0]
    raise NoTileCode(
        "a reduction of what branches or loops for every element", expected="instructions in a row"
    )


class OverRows(_Nest):
    """A result for each column: ``out[i] = fold(x[:, i])``."""

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e = self.e
        self.starts = starts = [self.argument(f"in{k}") for k in range(len(self.dtypes[0]))]
        pitches = [self._pitch(k) for k in range(len(self.dtypes[0]))]
        out, n, rows = self.argument("out0"), self.argument("n"), self.argument("rows")
        with e.at(CELL):
            worker = emit_worker(e)
            vectors = e.main("shr", n, imms=(self.lanes.bit_length() - 1,)) if self.lanes > 1 else n
            count = emit_share(e, vectors, worker)
            columns = [
                self._column(s, worker, d) if a.level == ELEMENT else s
                for s, (d, a) in zip(starts, self._operands(), strict=True)
            ]
            out_pointer = self._column(out, worker, self.dtypes[1][0])
        size = self.lanes * itemsize(self.dtypes[1][0])
        body = self._columns(
            columns, pitches, rows, lambda: Pointer(out_pointer, size * self.workers), None, None
        )
        with e.at(ROW):
            for column, (dtype, access) in zip(columns, self._operands(), strict=True):
                if access.level == ELEMENT:
                    e.emit("add", (column,), (column,), (self.workers * self.lanes * itemsize(dtype),))
        body += e.empty(ROW)
        tail = self._tail(worker, n) if self.lanes > 1 else []
        return worker_code(e, count, share(N // self.lanes, self.workers), body, tail)

    def _of_row(self, k: int, dtype: str, pointer: Pointer) -> Value:
        """Return an operand of one element a row: loaded in the loop, which goes down the rows."""
        one = Stream(self.e, f"in{k}", dtype, 1, itemsize(dtype), _always(pointer))
        return Value(dtype, ELEMENT, 1, load=one.load)

    def _column(self, start: Register, worker: Register, dtype: str) -> Register:
        e = self.e
        return e.main("add", start, e.main("mul", worker, imms=(self.lanes * itemsize(dtype),)))

    def _columns(
        self,
        columns: list[Register],
        pitches: list[Register | None],
        rows: Register,
        out: Callable[[], Pointer],
        count: Register | None,
        elements: Extent | None,
    ) -> list[Item]:
        """Return the code of one vector of columns: down the rows, then the functions after and the store."""
        e = self.e
        fold = accumulator(e, self.reduction, self.lanes, keeps_lanes=True)
        with e.at(CELL):
            fold.prepare()
        with e.at(ROW):
            moving = [
                column if pitch is None else e.main("or", column, imms=(0,))
                for column, pitch in zip(columns, pitches, strict=True)
            ]
            fold.start()
        items = e.empty(ROW)
        by_stride = [
            a.level == ELEMENT and self.lanes * itemsize(d) == 8 and a.alignment_bytes >= 8
            for d, a in self._operands()
        ]
        with e.at(CELL if count is None else ROW):
            strides = [
                e.main("shr", p, imms=(3,)) if s and p is not None else None
                for p, s in zip(pitches, by_stride, strict=True)
            ]
        value = self.reduced(self.lanes, [Pointer(m, stride=s) for m, s in zip(moving, strides, strict=True)])
        with e.at(ELEMENT):
            fold.add(self.walker, value)  # which loads what is folded as it is
        loads = _only_block(e.empty(ELEMENT)).instructions
        stepped = {
            r for i in loads for r in i.outs
        }  # by loads of a whole vector, not by those of its elements
        with e.at(ELEMENT):
            for pointer, pitch in zip(moving, pitches, strict=True):
                if pitch is not None and pointer not in stepped:
                    e.emit("add", (pointer,), (pointer, pitch))
        adds = e.empty(ELEMENT)
        block = Block(loads + (_only_block(adds).instructions if adds else ()))
        items += e.empty(ROW)
        items.append(Repeat(rows, ROWS, block))
        with e.at(ELEMENT):
            form, pieces = fold.columns()
        result = self.finished(self.folded(ELEMENT, self.lanes, form, pieces))
        with e.at(ELEMENT):
            stream = Stream(
                e, "out0", self.dtypes[1][0], self.lanes, self.how.results[0].alignment_bytes, _from(out)
            )
            if count is None:
                stream.store(self.walker.forms, result)
            else:
                assert elements is not None
                stream.store_partly(self.walker.forms, result, count, elements)
        return [*items, *e.empty(ELEMENT)]

    def _tail(self, worker: Register, n: Register) -> list[Item]:
        """Return the last worker's code for columns that fill no vector.

        It loads its arguments again, so that they are in no registers while the loop over columns runs.
        """
        e = self.e
        with e.at(CELL):
            last = e.main("cmpeq", worker, imms=(self.workers - 1,))
            rest = e.main("mul", e.masked(n, self.lanes - 1), last)
        with e.at(ROW):
            again = {name: emit_argument(e, self.arguments, name) for name in ("n", "rows", "out0")}
            starts = [emit_argument(e, self.arguments, f"in{k}") for k in range(len(self.dtypes[0]))]
            pitches = [
                None if a.level == CELL else emit_argument(e, self.arguments, f"in{k}_row_bytes")
                for k, a in enumerate(self.how.operands)
            ]
            vectors = e.main("shr", again["n"], imms=(self.lanes.bit_length() - 1,))
            columns = [
                self._beyond(s, d, vectors) if a.level == ELEMENT else s
                for s, (d, a) in zip(starts, self._operands(), strict=True)
            ]
            end = self._beyond(again["out0"], self.dtypes[1][0], vectors)
        prologue = e.empty(ROW)
        elements = N % self.lanes
        body = self._columns(columns, pitches, again["rows"], lambda: Pointer(end), rest, elements)
        return [If(rest, greater(elements, 0) * equal(WORKER, self.workers - 1), (*prologue, *body))]


def how_of(how: Arrangement) -> Arrangement:
    """Return the arrangement in which what is reduced stands for the result."""
    return Arrangement(how.operands, how.results[:1])


def _always(pointer: Pointer) -> Callable[[int], Pointer]:
    return lambda _: pointer


def _from(make: Callable[[], Pointer]) -> Callable[[int], Pointer]:
    return lambda _: make()
