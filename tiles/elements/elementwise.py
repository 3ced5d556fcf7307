"""The loop nest of elementwise cells: one hardware loop over vectors, and a tail of fewer elements than a vector."""

from __future__ import annotations

from collections.abc import Callable

from tiles._jax_compat import Jaxpr
from tiles.elements.cell import CELL, ELEMENT, Access, Arrangement
from tiles.elements.emitter import Emitter
from tiles.elements.extents import Extent, equal, greater, symbol
from tiles.elements.select import Walker
from tiles.elements.streams import Pointer, Stream
from tiles.elements.tilecode import MZERO, Block, If, Item, Loop, Register, Repeat
from tiles.elements.values import Value
from tiles.elements.workers import WORKER, emit_argument, emit_share, emit_worker, share
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

N = symbol("n")
_LANES = {
    "float32": 2,
    "float16": 4,
    "bfloat16": 4,
    "int32": 1,
    "uint32": 1,
    "int16": 2,
    "uint16": 2,
    "int8": 4,
    "uint8": 4,
    "bool": 4,
}


def lanes_choices(dtypes: tuple[str, ...], how: Arrangement) -> list[int]:
    """Return numbers of elements of one iteration, best first: whole 64-bit accesses of floats, whole words of others.

    Fewer need fewer registers, and are all that is asked for where no worker has more; results must still be whole words.

    Raises:
      NoTileCode: a dtype that no code is known for.
    """
    for dtype in dtypes:
        if dtype not in _LANES:
            raise NoTileCode(f"no tile code for elements of {dtype}", expected=", ".join(_LANES))
    accesses = how.operands + how.results
    most = max((_LANES[d] for d, a in zip(dtypes, accesses, strict=True) if a.level), default=1)
    least = max((4 // itemsize(d) for d in dtypes[len(how.operands) :]), default=1)
    found = [most >> k for k in range(most.bit_length()) if most >> k >= min(least, most)]
    return found[-1:] if how.is_short else found


class Elementwise:
    """Builds the code of a cell whose results are functions of single elements."""

    def __init__(
        self,
        emitter: Emitter,
        jaxpr: Jaxpr,
        operand_dtypes: tuple[str, ...],
        result_dtypes: tuple[str, ...],
        how: Arrangement,
        lanes: int,
    ) -> None:
        """Take the closed jaxpr of one element, the arrangement of its operands, and the elements of an iteration."""
        self.emitter = self.e = emitter
        self.jaxpr, self.how = jaxpr, how
        self.dtypes = operand_dtypes, result_dtypes
        self.lanes = lanes
        self.workers = emitter.isa["worker_contexts"]
        self.arguments: list[str] = []
        self.walker = Walker(emitter, self.lanes)
        self.uniform: dict[int, Value] = {}
        self.loop_level = CELL
        self.bases: dict[str, Register] = {}
        self.distances: dict[str, Register] = {}
        self.repeat_max = emitter.isa["repeat_body_max_bundles"]

    def items(self) -> list[Item]:
        """Return the code, unscheduled: what comes before the loop, the loop, the tail, and the end."""
        e = self.e
        n, worker, vectors, count = self._set_up()
        starts = by_size(lambda size: e.main("mul", worker, imms=(self.lanes * size,)))
        body = self._body(lambda name, dtype, at: self._moving_pointer(name, dtype, at, starts))
        loop = self._loop(count, share(N // self.lanes, self.workers), body)
        tail = self._tail(n, vectors, worker) if self.lanes > 1 else []
        before = e.empty(CELL)
        with e.at(CELL):
            e.emit("exitz", (), (MZERO,))
        return [*before, *loop, *tail, *e.empty(CELL)]

    def _set_up(self) -> tuple[Register, Register, Register, Register]:
        e = self.e
        with e.at(CELL):
            for name in self._names():
                self.bases[name] = emit_argument(e, self.arguments, name)
            n = emit_argument(e, self.arguments, "n")
            worker = emit_worker(e)
            vectors = e.main("shr", n, imms=(self.lanes.bit_length() - 1,)) if self.lanes > 1 else n
            count = emit_share(e, vectors, worker)
        return n, worker, vectors, count

    def _names(self) -> list[str]:
        results = [self.how.stream(k) for k in range(len(self.how.results))]
        return list(dict.fromkeys([*(f"in{k}" for k in range(len(self.how.operands))), *results]))

    def _moving_pointer(
        self, name: str, dtype: str, offset: int, starts: Callable[[int], Register]
    ) -> Pointer:
        """Return a pointer of its own to a worker's first vector."""
        e = self.e
        with e.at(CELL):
            register = e.main("add", self.bases[name], starts(itemsize(dtype)))
            register = e.main("add", register, imms=(offset,)) if offset else register
        return Pointer(register, self.workers * self.lanes * itemsize(dtype))

    def _body(
        self,
        pointer: Callable[[str, str, int], Pointer],
        finish: Callable[[Stream, Value], None] | None = None,
    ) -> list[Item]:
        """Return the code of one iteration."""
        e = self.e
        common = _Common(pointer, [*self.how.operands, *self.how.results], self.distances)
        streams = [
            Stream(e, f"in{k}", d, self.lanes, a.alignment_bytes, common.pointer(f"in{k}", d, a))
            for k, (d, a) in enumerate(zip(self.dtypes[0], self.how.operands, strict=True))
        ]
        for stream in streams:
            stream.own_pointers = self.how.separate and finish is None
        operands = [
            self._counter(k, a, pointer) if a.counts else self._operand(k, stream, a)
            for k, (stream, a) in enumerate(zip(streams, self.how.operands, strict=True))
        ]
        results = self.walker.run(self.jaxpr.jaxpr, list(self.jaxpr.consts), operands)
        with e.at(ELEMENT):
            for k, (value, dtype, access) in enumerate(
                zip(results, self.dtypes[1], self.how.results, strict=True)
            ):
                name = self.how.stream(k)
                where = common.pointer(name, dtype, access)
                stream = Stream(e, name, dtype, self.lanes, access.alignment_bytes, where)
                stream.own_pointers = self.how.separate and finish is None
                if finish is None:
                    stream.store(self.walker.forms, value)
                else:
                    finish(stream, value)
            for moving in common.pointers.values():
                if moving.turn_bytes:
                    e.emit("add", (moving.register,), (moving.register,), (moving.turn_bytes,))
        return e.empty(ELEMENT)

    def _counter(self, k: int, access: Access, pointer: Callable[[str, str, int], Pointer]) -> Value:
        """Return numbers of elements, or the number of a row: what moves as an address of bytes would."""
        name = f"in{k}"
        if access.level != ELEMENT:
            return Value("int32", access.level, 1, {"int": (self.start(name, access),)})
        e = self.e
        with e.at(ELEMENT):
            moving = pointer(name, "uint8", 0)
            lanes = tuple(e.main("add", moving.register, imms=(lane,)) for lane in range(self.lanes))
            if moving.turn_bytes:
                e.emit("add", (moving.register,), (moving.register,), (moving.turn_bytes,))
        return Value("int32", ELEMENT, self.lanes, {"int": lanes})

    def _operand(self, k: int, stream: Stream, access: Access) -> Value:
        if access.level == ELEMENT:
            return Value(stream.dtype, ELEMENT, self.lanes, load=stream.load)
        if k not in self.uniform:
            start = self.start(f"in{k}", access)
            one = Stream(self.e, f"in{k}", stream.dtype, 1, itemsize(stream.dtype), lambda _: Pointer(start))
            self.uniform[k] = Value(stream.dtype, access.level, 1, load=one.load)
        return self.uniform[k]

    def start(self, name: str, access: Access) -> Register:
        """Return where an operand that is one element lies."""
        return self.bases[name]

    def _loop(self, count: Register, trips: Extent, body: list[Item]) -> list[Item]:
        if len(body) == 1 and isinstance(body[0], Block) and len(body[0].instructions) <= self.repeat_max:
            return [Repeat(count, trips, body[0])]
        with self.e.at(self.loop_level):
            counter = self.e.main("add", count, imms=(-1,))
        return [If(count, greater(trips, 0), (Loop(counter, trips, tuple(body)),))]

    def _tail(self, n: Register, vectors: Register, worker: Register) -> list[Item]:
        """Return the last worker's code for elements that fill no vector: all lanes computed, some stored."""
        e = self.e
        last = self.workers - 1
        with e.at(CELL):
            rest = e.masked(n, self.lanes - 1)
            rest = e.main("mul", rest, e.main("cmpeq", worker, imms=(last,)))
        elements = N % self.lanes
        starts = by_size(lambda size: e.main("mul", vectors, imms=(self.lanes * size,)))

        def pointer(name: str, dtype: str, _: int) -> Pointer:
            with e.at(ELEMENT):
                return Pointer(e.main("add", self.bases[name], starts(itemsize(dtype))))

        body = self._body(
            pointer, lambda stream, value: stream.store_partly(self.walker.forms, value, rest, elements)
        )
        return [If(rest, greater(elements, 0) * equal(WORKER, last), tuple(body))]


def by_size(make: Callable[[int], Register]) -> Callable[[int], Register]:
    """Return a function that makes one register for each element size."""
    known: dict[int, Register] = {}

    def get(size: int) -> Register:
        if size not in known:
            known[size] = make(size)
        return known[size]

    return get


class _Common:
    """Pointers of one iteration: what lies beside another operand or result moves by the other one's."""

    def __init__(
        self,
        make: Callable[[str, str, int], Pointer],
        accesses: list[Access],
        distances: dict[str, Register],
    ) -> None:
        self.make, self.distances = make, distances
        self.shared = {access.beside for access in accesses} - {""}
        self.pointers: dict[str, Pointer] = {}

    def pointer(self, name: str, dtype: str, access: Access) -> Callable[[int], Pointer]:
        """Return what gives a stream its pointers."""
        root = access.beside or name
        if root not in self.shared:
            return lambda offset: self.make(name, dtype, offset)

        def get(offset: int) -> Pointer:
            del offset
            if root not in self.pointers:
                self.pointers[root] = self.make(root, dtype, 0)
            return Pointer(self.pointers[root].register, distance=self.distances.get(name, MZERO))

        return get
