"""Operands and results in memory: loads into the form that code asks for, stores of whole and partial vectors.

In a loop every access advances its own pointer by what all workers together take in one turn; elsewhere accesses
go by fixed offsets from a pointer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiles.elements.emitter import Emitter
from tiles.elements.extents import Extent, greater
from tiles.elements.tilecode import AZERO, MZERO, If, Register
from tiles.elements.values import (
    BFLOAT16,
    LOADABLE,
    MAIN_FORMS,
    Forms,
    Pieces,
    Value,
    pack_bytes,
    pack_halves,
    pack_upper_halves,
)
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

_SUBWORD = {
    "int8": "lds8",
    "uint8": "ldz8",
    "bool": "ldz8",
    "int16": "lds16",
    "uint16": "ldz16",
    "float16": "ldz16",
}


_OWN_POINTERS_MAX = 2
"""Accesses of an iteration to one operand that each get a pointer, so that they can be joined with others."""


@dataclass
class Pointer:
    """Where accesses go, and how far they advance.

    Attributes:
      register: the address; advanced by accesses if ``turn_bytes`` is not 0.
      turn_bytes: bytes from one iteration of a worker to its next.
      stride: register with that number in units of the access, where it does not fit an immediate.
      distance: register with the bytes from the address to what is accessed.
    """

    register: Register
    turn_bytes: int = 0
    stride: Register | None = None
    distance: Register = MZERO


class Stream:
    """One operand's or result's elements of one iteration: ``lanes`` of them, contiguous."""

    def __init__(
        self,
        emitter: Emitter,
        name: str,
        dtype: str,
        lanes: int,
        alignment_bytes: int,
        pointer: Callable[[int], Pointer],
    ) -> None:
        """Take the lanes of one iteration; ``pointer`` gives a pointer of its own to each set of accesses."""
        self.emitter, self.name, self.dtype, self.lanes = emitter, name, dtype, lanes
        self.alignment_bytes = alignment_bytes
        self.pointer = pointer
        self.size_bytes = lanes * itemsize(dtype)
        self.own_pointers = False

    def load(self, form: str) -> Pieces:
        """Load the elements in a form.

        Raises:
          NoTileCode: memory holds no such form.
        """
        if form not in LOADABLE.get(self.dtype, ()):
            raise NoTileCode(f"{self.dtype} cannot be loaded as {form}")
        if self.dtype == BFLOAT16:
            return self._upper_halves()
        if form in MAIN_FORMS:
            name = _SUBWORD.get(self.dtype, "ld32")
            return tuple(self._each(name, "M", 1, itemsize(self.dtype), self.lanes))
        if self.size_bytes < 4:
            return self._single_half()
        if self.size_bytes == 4:
            return (
                tuple(self._each("ld32", "A", 1, 4, 1))
                if self.alignment_bytes >= 4
                else (self._halves_word(),)
            )
        return self._pairs()

    def _pairs(self) -> Pieces:
        count = self.size_bytes // 8
        if self.alignment_bytes >= 8:
            return tuple(self._each("ld64", "A", 2, 8, count))
        pairs = tuple(self.emitter.fresh("A", 2) for _ in range(count))
        parts = [pair.part(k) for pair in pairs for k in range(2)]
        if self.alignment_bytes >= 4:
            self._into("ld32", parts, 4)
        else:
            singles = self._each("ldb16", "A", 1, 2, 2 * len(parts))
            for at, part in enumerate(parts):
                self.emitter.op("sort4x16lo", part, singles[2 * at], singles[2 * at + 1])
        return pairs

    def _upper_halves(self) -> Pieces:
        """Load halves of words as the upper halves of words of their own, with zeros below."""
        e = self.emitter
        if self.size_bytes < 4 or self.alignment_bytes < 4:
            loaded = [("sort4x16hi", half) for half in self._each("ldb16", "A", 1, 2, self.lanes)]
        else:
            are_pairs = self.size_bytes % 8 == 0 and self.alignment_bytes >= 8
            width = 2 if are_pairs else 1
            found = self._each(
                "ld64" if are_pairs else "ld32", "A", width, 4 * width, self.size_bytes // (4 * width)
            )
            words = [each.part(k) if are_pairs else each for each in found for k in range(width)]
            loaded = [(pick, word) for word in words for pick in ("sort4x16lo", "sort4x16hi")]
        if self.lanes == 1:
            return tuple(e.op(pick, ("A", 1), AZERO, word) for pick, word in loaded)
        pairs = tuple(e.fresh("A", 2) for _ in range(self.lanes // 2))
        for lane, (pick, word) in enumerate(loaded):
            e.op(pick, pairs[lane // 2].part(lane % 2), AZERO, word)
        return pairs

    def _halves_word(self) -> Register:
        low, high = self._each("ldb16", "A", 1, 2, 2)
        return self.emitter.op("sort4x16lo", ("A", 1), low, high)

    def _single_half(self) -> Pieces:
        if self.size_bytes != 2:
            raise NoTileCode(f"a vector of {self.size_bytes} bytes of {self.dtype} in aux registers")
        return tuple(self._each("ldb16", "A", 1, 2, 1))

    def _each(self, name: str, file: str, width: int, size_bytes: int, count: int) -> list[Register]:
        registers = [self.emitter.fresh(file, width) for _ in range(count)]
        self._into(name, registers, size_bytes)
        return registers

    def _into(self, name: str, registers: list[Register], size_bytes: int) -> None:
        pointers = [self.pointer(0)]
        if self.own_pointers and len(registers) <= _OWN_POINTERS_MAX:
            pointers += [self.pointer(at * size_bytes) for at in range(1, len(registers))]
        for at, register in enumerate(registers):
            if len(pointers) == len(registers):
                self._access(name, pointers[at], size_bytes, 0, 1, (register,), ())
            else:
                self._access(name, pointers[0], size_bytes, at, len(registers), (register,), ())

    def _access(
        self,
        name: str,
        pointer: Pointer,
        size_bytes: int,
        at: int,
        count: int,
        outs: tuple[Register, ...],
        ins: tuple[Register, ...],
    ) -> None:
        """Make access ``at`` of ``count``: the last one of an iteration advances to the worker's next turn."""
        address = pointer.register
        if pointer.stride is not None and count == 1:
            ins = (*ins, MZERO, address, pointer.stride)
            self.emitter.emit(f"{name}step", (*outs, address), ins, stream=self.name)
            return
        if not pointer.turn_bytes:
            self.emitter.emit(name, outs, (*ins, address, pointer.distance), (at,), stream=self.name)
            return
        step = size_bytes if at < count - 1 else pointer.turn_bytes - (count - 1) * size_bytes
        self.emitter.emit(
            f"{name}step", (*outs, address), (*ins, MZERO, address), (step // size_bytes,), stream=self.name
        )

    def store(self, forms: Forms, value: Value) -> None:
        """Store a value's elements, all of them."""
        words = self.words(forms, value)
        pointer = self.pointer(0)
        are_pairs = self.alignment_bytes >= 8 and all(w.width == 2 for w in words)
        if self.own_pointers and are_pairs and len(words) <= _OWN_POINTERS_MAX:
            for at, word in enumerate(words):
                self._access("st64", self.pointer(8 * at) if at else pointer, 8, 0, 1, (), (word,))
            return
        if all(w.width == 1 for w in words) or self.alignment_bytes >= 8:
            size = 4 * words[0].width
            for at, word in enumerate(words):
                self._access(f"st{8 * size}", pointer, size, at, len(words), (), (word,))
            return
        parts = [w.part(k) for w in words for k in range(w.width)]
        for at, part in enumerate(parts):
            self._access("st32", pointer, 4, at, len(parts), (), (part,))

    def words(self, forms: Forms, value: Value) -> Pieces:
        """Return a value as the words that memory holds: registers or pairs to store in order.

        Raises:
          NoTileCode: fewer than a word's elements, or addresses that are no multiples of 4.
        """
        if self.size_bytes % 4 or self.alignment_bytes < 4:
            raise NoTileCode(
                f"stores of {self.size_bytes} bytes of {self.dtype} to multiples of {self.alignment_bytes} bytes",
                expected="whole words: the machine has no narrower store",
            )
        size = itemsize(self.dtype)
        if size == 1 and "mask32" in value.forms and value.lanes == 4:
            forms.get(value, "mask16")
        if size == 1 and "mask16" in value.forms and value.lanes == 4:
            return (self._mask_bytes(value.forms["mask16"][0]),)
        form = _stored_form(self.dtype, value)
        pieces = forms.spread(value, form, self.lanes)
        if self.dtype == BFLOAT16:
            return pack_upper_halves(self.emitter, form, pieces)
        if form in MAIN_FORMS and size == 2:
            return pack_halves(self.emitter, pieces, self.lanes)
        if form in MAIN_FORMS and size == 1:
            return tuple(pack_bytes(self.emitter, pieces[k : k + 4]) for k in range(0, self.lanes, 4))
        return pieces

    def _mask_bytes(self, mask: Register) -> Register:
        """Return four masks of 16 bits as four booleans of a byte each."""
        e = self.emitter
        bytes_ = e.main("sort8x8lo", e.main("atom", mask.part(0)), e.main("atom", mask.part(1)))
        return e.masked(bytes_, 0x01010101)

    def store_partly(self, forms: Forms, value: Value, count: Register, elements: Extent) -> None:
        """Store the first ``count`` elements, fewer than ``lanes``: whole words, and one word merged with memory."""
        e = self.emitter
        words = [w.part(k) if w.width > 1 else w for w in self.words(forms, value) for k in range(w.width)]
        each = 4 // itemsize(self.dtype)
        pointer = self.pointer(0)
        for k, word in enumerate(words):
            first = k * each
            if first + each <= self.lanes - 1:
                self._guarded_word(pointer, k, word, count, elements, first + each - 1)
            if each > 1:
                self._merged_word(pointer, k, word, count, elements, first, each)
        del e

    def _guarded_word(
        self, pointer: Pointer, k: int, word: Register, count: Register, elements: Extent, above: int
    ) -> None:
        e = self.emitter
        is_whole = e.main("cmpslt", e.constant("M", above), count)
        with e.collecting() as body:
            e.emit("st32", (), (word, pointer.register, pointer.distance), (k,), stream=self.name)
        e.lists[e.level].append(If(is_whole, greater(elements, above), tuple(body)))

    def _merged_word(
        self,
        pointer: Pointer,
        k: int,
        word: Register,
        count: Register,
        elements: Extent,
        first: int,
        each: int,
    ) -> None:
        """Merge a word of which only the first elements count: 0 < count - first < each."""
        e = self.emitter
        inside = e.main("add", count, imms=(-first,)) if first else count
        is_partial = e.main("cmpult", e.main("add", inside, imms=(-1,)), imms=(each - 1,))
        taken = greater(elements, first) - greater(elements, first + each - 1)
        with e.collecting() as body:
            bits = e.main("mul", inside, imms=(8 * itemsize(self.dtype),))
            keep = e.main("shl", e.main("sub", MZERO, e.constant("M", 1)), bits)
            new = e.main("atom", word) if word.file == "A" else word
            old = e.fresh("M")
            address = pointer.register, pointer.distance
            e.emit("ld32", (old,), address, (k,), stream=self.name)
            merged = e.main("or", e.main("andc", new, keep), e.main("and", old, keep))
            e.emit("st32", (), (merged, *address), (k,), stream=self.name)
        e.lists[e.level].append(If(is_partial, taken, tuple(body)))


def _stored_form(dtype: str, value: Value) -> str:
    """Return the form from which a value is stored: one it has, as memory holds it."""
    floats = {"float32": ("f32", "int"), "float16": ("f16", "int"), BFLOAT16: ("f32", "high", "int")}
    wanted = {**floats, "bool": ("pred",)}.get(dtype, ("word", "int"))
    if itemsize(dtype) < 4 and dtype not in (*floats, "bool"):
        wanted = ("int",)
    return next((form for form in wanted if form in value.forms), wanted[0])
