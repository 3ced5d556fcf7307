"""The loop nests of sums of products off the multiply units: dot products, and sums of vectors that lie side by side.

Workers take results, or vectors of results, in turn. Where a row's operands begin is a pair of words in memory.
Halves and float32 are multiplied into the machine's accumulators, everything else element by element in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles._jax_compat import Jaxpr
from tiles.elements.cell import ACCESS_BYTES, CELL, ELEMENT, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import Extent, symbol
from tiles.elements.select import Walker
from tiles.elements.streams import Pointer, Stream
from tiles.elements.tilecode import AZEROS, MZERO, Block, Item, Register, Repeat
from tiles.elements.values import Value, natural_form
from tiles.elements.workers import emit_argument, emit_share, emit_worker, share, worker_code
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

N, ROWS = symbol("n"), symbol("rows")
PLACE_FIELDS = 2
"""Words that say where a row's operands begin, in bytes from the first ones."""
WORD_BYTES = 4
MULTIPLY_ADD = {"float16": "f16v4cmac", "float32": "f32v2mac"}
"""Instructions that multiply a dtype into the accumulators."""
_CLEAR_STATUS, _CLEAR_ACCUMULATORS = 1, 8


@dataclass
class _Places:
    """What both nests have in common: rows that workers take in turn, whose operands begin where memory says.

    Args:
      emitter: takes the code.
      dtype: of the operands.
      jaxpr: closed jaxpr of one step on registers: of a sum and an element of each operand; None for the accumulators.
      sums: dtype of the sums.
      lanes: elements of an iteration.
    """

    emitter: Emitter
    dtype: str
    jaxpr: Jaxpr | None = None
    sums: str = "float32"
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: sums that are no words, or operands that nothing multiplies.
        """
        if itemsize(self.sums) != WORD_BYTES or itemsize(self.dtype) > WORD_BYTES:
            raise NoTileCode(f"products of {self.dtype} into {self.sums}", expected="sums of whole words")
        if self.jaxpr is None and self.dtype not in MULTIPLY_ADD:
            raise NoTileCode(f"products of {self.dtype} in accumulators", expected=", ".join(MULTIPLY_ADD))
        self.arguments: list[str] = []

    @property
    def per_access(self) -> int:
        """Elements of 64 bits."""
        return ACCESS_BYTES // itemsize(self.dtype)

    def argument(self, name: str) -> Register:
        """Return a field of the vertex' state."""
        return emit_argument(self.emitter, self.arguments, name)

    def rows_in_turn(self, out_bytes: int) -> tuple[Register, Register, Register, Register, Register]:
        """Emit that workers take rows in turn: how many, where the first one's places and result lie, and both operands begin."""
        e = self.emitter
        left, right, out, places, rows = map(self.argument, ("in0", "in1", "out0", "places", "rows"))
        worker = emit_worker(e)
        entry = e.main("add", places, e.main("mul", worker, imms=(WORD_BYTES * PLACE_FIELDS,)))
        target = e.main("add", out, e.main("mul", worker, imms=(out_bytes,)))
        if self.jaxpr is None:
            e.emit(
                "uput",
                (),
                (e.constant("A", _CLEAR_ACCUMULATORS),),
                (_CLEAR_STATUS,),
                effect="accumulators",
            )
        return emit_share(e, rows, worker), entry, target, left, right

    def begin(self, entry: Register, *starts: Register) -> list[Register]:
        """Emit where a row's operands begin."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        found: list[Register] = []
        for start, step in zip(starts, (1, PLACE_FIELDS * (workers - 1) + 1), strict=True):
            number = e.fresh("M")
            e.emit("ld32step", (number, entry), (MZERO, entry), (step,), stream="places")
            found.append(e.main("add", start, number))
        return found

    def fold(self, total: Register, x: Value, w: Value) -> None:
        """Emit one step on a register that the loop carries."""
        e, walker = self.emitter, Walker(self.emitter, 1)
        assert self.jaxpr is not None
        form = natural_form(self.sums)
        before = Value(self.sums, ELEMENT, 1, forms={form: (total,)})
        (found,) = walker.run(self.jaxpr.jaxpr, list(self.jaxpr.consts), [before, x, w])
        with e.at(ELEMENT):
            new = walker.forms.get(found, form)[0]
            e.emit("or", (total,), (new,), (0,), effect="live")

    def element(self, name: str, pointer: Pointer) -> Value:
        """Return an element in memory."""
        stream = Stream(self.emitter, name, self.dtype, 1, itemsize(self.dtype), lambda _: pointer)
        return Value(self.dtype, ELEMENT, 1, load=stream.load)

    def loop(self, count: Register, trips: Extent) -> Repeat:
        """Return a hardware loop of what was emitted for elements.

        Raises:
          NoTileCode: a step that branches or loops.
        """
        body = self.emitter.empty(ELEMENT)
        if len(body) != 1 or not isinstance(body[0], Block):
            raise NoTileCode("products by what branches or loops", expected="instructions in a row")
        return Repeat(count, trips, body[0])

    def zero(self) -> Register:
        """Emit a new zero in the file of the sums."""
        e, file = self.emitter, "M" if natural_form(self.sums) == "int" else "A"
        return e.op("or", (file, 1), e.constant(file, 0), imms=(0,))

    def read_accumulators(self) -> Register:
        """Emit the reading of two accumulators, which leaves zeros in them, or in those that are read next."""
        pair = self.emitter.fresh("A", 2)
        self.emitter.emit("f32v2gina", (pair,), (AZEROS,), (0,), effect="accumulators")
        return pair


@dataclass
class Dots(_Places):
    """Builds the code of ``out[r] (+)= sum over i of x[r, i] * w[r, i]``, of ``n`` accesses each.

    Args:
      reads_partials: whether results are added to what lies there.
    """

    reads_partials: bool = False

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            n = self.argument("n")
            count, entry, target, *starts = self.rows_in_turn(WORD_BYTES)
            trips, amount = N, n
            if self.jaxpr is not None:
                trips, amount = N * self.per_access, e.main("mul", n, imms=(self.per_access,))
        with e.at(ROW):
            pointers = self.begin(entry, *starts)
        items, total = self._accumulated(pointers, amount, trips)
        with e.at(ROW):
            if self.reads_partials:
                before = e.fresh(total.file)
                e.emit("ld32", (before,), (target, MZERO), (0,), stream="out0")
                total = e.op("add" if total.file == "M" else "f32add", (total.file, 1), total, before)
            e.emit("st32step", (target,), (total, MZERO, target), (workers,), stream="out0")
        return worker_code(e, count, share(ROWS, workers), [*items, *e.empty(ROW)])

    def _accumulated(
        self, pointers: list[Register], amount: Register, trips: Extent
    ) -> tuple[list[Item], Register]:
        """Return the loop of a row, and the register of its sum."""
        e = self.emitter
        if self.jaxpr is not None:
            with e.at(ROW):
                total = self.zero()
            x, w = (
                self.element(f"in{k}", Pointer(register, itemsize(self.dtype)))
                for k, register in enumerate(pointers)
            )
            self.fold(total, x, w)
            return [*e.empty(ROW), self.loop(amount, trips)], total
        with e.at(ELEMENT):
            pairs = [e.fresh("A", 2) for _ in pointers]
            for k, (pair, register) in enumerate(zip(pairs, pointers, strict=True)):
                e.emit("ld64step", (pair, register), (MZERO, register), (1,), stream=f"in{k}")
            e.emit(MULTIPLY_ADD[self.dtype], (), tuple(pairs), effect="accumulators")
        items = [*e.empty(ROW), self.loop(amount, trips)]
        with e.at(ROW):
            both = self.read_accumulators()
            return items, e.op("f32add", ("A", 1), both.part(0), both.part(1))


HALVES_AT_ONCE = (4, 8, 16)
"""Halves that lie side by side and are multiplied and added in one row; four or eight go to accumulators together."""
STEPS_AHEAD = 8
"""Words behind the last distance that a loop may read ahead of its iterations, and go by: memory has zeros there."""


@dataclass
class Vertical(_Places):
    """Builds the code of ``out[r, k] = sum over i of x[r + at[i], k] * w[i, k]`` for ``width`` elements side by side.

    Products of halves are halves, as PopLibs' vertex has them, and are added up in float32. Where the i-th element of a row
    lies from its first one on is a word of ``at``, in bytes; ``STEPS_AHEAD`` zeros follow. Eight halves are loaded at once, from
    interleaved memory.

    Args:
      width: elements side by side, one of ``HALVES_AT_ONCE``.
    """

    width: int = HALVES_AT_ONCE[0]

    def items(self) -> list[Item]:
        """Return the code, unscheduled."""
        e, workers = self.emitter, self.emitter.isa["worker_contexts"]
        with e.at(CELL):
            n, steps = self.argument("n"), self.argument("at")
            count, entry, target, *starts = self.rows_in_turn(WORD_BYTES * self.width)
        with e.at(ROW):
            pointers = self.begin(entry, *starts)
        items = self._halves(pointers, steps, n, target) if self.jaxpr is None else []
        if self.jaxpr is not None:
            for k in range(self.width):
                items += self._lane(k, pointers, steps, n, target)
        turns = workers - 1 if self.jaxpr is None else workers
        with e.at(ROW):
            e.emit("add", (target,), (target,), (WORD_BYTES * self.width * turns,))
        return worker_code(e, count, share(ROWS, workers), [*items, *e.empty(ROW)])

    def _lane(
        self, k: int, pointers: list[Register], steps: Register, n: Register, target: Register
    ) -> list[Item]:
        """Return the code of the k-th element of a row, on registers."""
        e, size = self.emitter, itemsize(self.dtype)
        with e.at(ROW):
            total = self.zero()
            reading = e.main("or", steps, imms=(0,))
            start, weights = (e.main("add", x, imms=(k * size,)) for x in pointers)
        with e.at(ELEMENT):
            distance = e.fresh("M")
            e.emit("ld32step", (distance, reading), (MZERO, reading), (1,), stream="at")
        x = self.element("in0", Pointer(start, distance=distance))
        w = self.element("in1", Pointer(weights, self.width * size))
        self.fold(total, x, w)
        items = [*e.empty(ROW), self.loop(n, N)]
        with e.at(ROW):
            e.emit("st32", (), (total, target, MZERO), (k,), stream="out0")
        return items

    def _halves(self, pointers: list[Register], steps: Register, n: Register, target: Register) -> list[Item]:
        """Return the code of a row of halves, in accumulators; ``target`` is at the row's end afterwards."""
        e, at_once = self.emitter, min(self.width, 8)
        start, weights = pointers
        size, items = at_once * itemsize("float16"), list[Item]()
        for block in range(self.width // at_once):
            with e.at(ROW):
                reading = e.main("or", steps, imms=(0,))
                own = e.main("add", weights, imms=(block * size,))
            with e.at(ELEMENT):
                distance = e.fresh("M")
                x, w = (e.fresh("A", size // WORD_BYTES) for _ in range(2))
                e.emit("ld32step", (distance, reading), (MZERO, reading), (1,), stream="at")
                e.emit(f"ld{8 * size}", (x,), (start, distance), (block,), stream="in0")
                e.emit(f"ld{8 * size}step", (w, own), (MZERO, own), (self.width // at_once,), stream="in1")
                for pair in range(
                    0, x.width, 2
                ):  # products take the place of what is multiplied: registers are few
                    left, right = (r.part(pair, 2) if r.width > 2 else r for r in (x, w))
                    e.op("f16v4mul", left, left, right)
                e.emit(f"f16v{at_once}acc", (), (x,), effect="accumulators")
            items += [*e.empty(ROW), self.loop(n, N)]
            with e.at(ROW):
                for _ in range(at_once // 4):
                    odd, even = self.read_accumulators(), self.read_accumulators()
                    for name in ("sort4x32lo", "sort4x32hi"):
                        pair = e.op(name, ("A", 2), odd, even)
                        e.emit("st64step", (target,), (pair, MZERO, target), (1,), stream="out0")
        return [*items, *e.empty(ROW)]
