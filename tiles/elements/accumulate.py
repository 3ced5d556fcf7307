"""Accumulators of reductions: registers with a lane for each element of a vector, or the machine's own."""

from __future__ import annotations

from typing import Any

from tiles.elements.emitter import Emitter, word_of_float
from tiles.elements.floats import mnemonic
from tiles.elements.integers import is_signed, width_of, wrap
from tiles.elements.select import Walker
from tiles.elements.tilecode import AZERO, AZEROS, Register
from tiles.elements.values import Pieces, Value, natural_form, piece_count, piece_width
from tiles.errors import NoTileCode

_NEUTRAL = {"add": 0.0, "mul": 1.0, "max": float("-inf"), "min": float("inf")}
BITWISE = ("and", "or")
"""Folds for which the machine has an instruction of 64 bits, on its auxiliary registers."""
_CLEAR_STATUS = 1
"""Index, in the upper space, of the register that clears status flags."""
_FOUR = 4
_ALL_ONES = 0xFFFFFFFF
_CLEAR_ACCUMULATORS = 8
"""Its bit that zeroes a worker's accumulators."""


class Accumulator:
    """Registers that fold values: started, added to in a loop, and joined to one element at the end."""

    def __init__(self, emitter: Emitter, kind: str, dtype: str, lanes: int) -> None:
        """Take the function ("add", "max", "min"), the dtype and the lanes of what is added."""
        self.e, self.kind, self.dtype, self.lanes = emitter, kind, dtype, lanes
        forms = {"float32": "f32", "float16": "f16"}
        if dtype not in forms:
            raise NoTileCode(f"no reduction of {dtype}", expected=", ".join(forms))
        if kind not in _NEUTRAL:
            raise NoTileCode(f"a fold of {dtype} by {kind}", expected=", ".join(_NEUTRAL))
        self.form = forms[dtype]
        width = piece_width(self.form, lanes)
        self.pieces: Pieces = tuple(emitter.fresh("A", width) for _ in range(piece_count(self.form, lanes)))

    def prepare(self) -> None:
        """Emit what is needed once, before all rows."""

    def start(self) -> None:
        """Emit the neutral element into the registers."""
        neutral = self.e.constant("A", word_of_float(_NEUTRAL[self.kind], self.dtype))
        for piece in self.pieces:
            for k in range(piece.width):
                target = piece.part(k) if piece.width > 1 else piece
                self.e.op("or", target, neutral, imms=(0,))

    def add(self, walker: Walker, value: Value) -> None:
        """Emit the fold of one iteration's elements, into the loop's body."""
        taken = walker.forms.spread(value, self.form, self.lanes)
        for piece, x in zip(self.pieces, taken, strict=True):
            name = mnemonic(self.form, piece.width, self.kind)
            self.e.emit(name, (piece,), (piece, x), effect="live")

    def columns(self) -> tuple[str, Pieces]:
        """Emit what leaves every lane by itself; return the form and its registers."""
        return self.form, self.pieces

    def joined(self, other: Accumulator | None) -> tuple[str, Register]:
        """Emit the fold of the lanes, and of another accumulator of one lane; return the form and the register."""
        piece, *more = self.pieces
        for another in more:
            name = mnemonic(self.form, piece.width, self.kind)
            piece = self.e.op(name, ("A", piece.width), piece, another)
        word = piece
        if piece.width == 2:
            word = self.e.op(mnemonic(self.form, 1, self.kind), ("A", 1), piece.part(0), piece.part(1))
        if self.form == "f16" and self.lanes > 1:
            swapped = self.e.op("roll16", ("A", 1), word, word)
            word = self.e.op(mnemonic("f16", 1, self.kind), ("A", 1), word, swapped)
        if other is not None:
            word = self.e.op(mnemonic(self.form, 1, self.kind), ("A", 1), word, other.pieces[0])
        return self.form, word


class HalfSum(Accumulator):
    """Sums of halves in the machine's accumulators, which add in f32: four at a time."""

    def prepare(self) -> None:
        """Emit the zeroing of the accumulators; reading them out leaves zeros."""
        ones = self.e.constant("A", _CLEAR_ACCUMULATORS)
        self.e.emit("uput", (), (ones,), (_CLEAR_STATUS,), effect="accumulators")

    def start(self) -> None:
        """Emit nothing: the accumulators are zero."""

    def add(self, walker: Walker, value: Value) -> None:
        """Emit the sum of four halves into four accumulators."""
        (x,) = walker.forms.spread(value, "f16", self.lanes)
        self.e.emit("f16v4acc", (), (x,), effect="accumulators")

    def columns(self) -> tuple[str, Pieces]:
        """Emit the reading of four accumulators, first and third, second and fourth, and put them in order."""
        return "f32", self.in_order(*self._read())

    def in_order(self, odd: Register, even: Register) -> Pieces:
        """Emit first and third, second and fourth accumulators in order."""
        names = "sort4x32lo", "sort4x32hi"
        return tuple(self.e.op(name, ("A", 2), odd, even) for name in names)

    def _read(self) -> list[Register]:
        """Emit the reading of four accumulators by twos, which leaves zeros in them."""
        pairs = [self.e.fresh("A", 2) for _ in range(2)]
        for pair in pairs:
            self.e.emit("f32v2gina", (pair,), (AZEROS,), (0,), effect="accumulators")
        return pairs

    def joined(self, other: Accumulator | None) -> tuple[str, Register]:
        """Emit the reading of four accumulators and the sum of all."""
        both = self.e.op("f32v2add", ("A", 2), *self._read())
        total = self.e.op("f32add", ("A", 1), both.part(0), both.part(1))
        if other is not None:
            rest = other.pieces[0]
            total = self.e.op("f32add", ("A", 1), total, rest)
        return "f32", total


class SingleHalfSum(Accumulator):
    """The sum of single halves, in f32."""

    def start(self) -> None:
        """Emit a zero."""
        self.e.op("or", self.pieces[0], AZERO, imms=(0,))

    def add(self, walker: Walker, value: Value) -> None:
        """Emit the sum of one half, widened."""
        (x,) = walker.forms.get(value, "f16")
        wide = self.e.op("f16tof32", ("A", 1), x)
        self.e.emit("f32add", (self.pieces[0],), (self.pieces[0], wide), effect="live")


class Words(Accumulator):
    """Main registers that fold integers, or booleans, one each lane."""

    def __init__(self, emitter: Emitter, kind: str, dtype: str, lanes: int) -> None:
        """Take the function, the dtype and the lanes of what is folded."""
        self.e, self.kind, self.dtype, self.lanes = emitter, kind, dtype, lanes
        self.form = natural_form(dtype)
        self.pieces = tuple(emitter.fresh("M") for _ in range(lanes))

    def start(self) -> None:
        """Emit the neutral element into the registers."""
        for piece in self.pieces:
            self.e.op("or", piece, self.e.constant("M", self._neutral()), imms=(0,))

    def _neutral(self) -> int:
        if self.kind in ("add", "or", "xor"):
            return 0
        if self.kind == "mul" or self.dtype == "bool":
            return 1 if self.kind in ("mul", "and", "min") else 0
        if self.kind == "and":
            return _ALL_ONES
        bits, least = width_of(self.dtype), 0
        if is_signed(self.dtype):
            least, bits = -(1 << bits - 1), bits - 1
        return (least if self.kind == "max" else (1 << bits) - 1) & _ALL_ONES

    def add(self, walker: Walker, value: Value) -> None:
        """Emit the fold of one iteration's elements, into the loop's body."""
        for piece, x in zip(self.pieces, walker.forms.spread(value, self.form, self.lanes), strict=True):
            self._fold(piece, x)

    def _fold(self, piece: Register, x: Register) -> None:
        """Emit the fold of a register into another one."""
        e, kind = self.e, self.kind
        if kind in ("max", "min") and (self.dtype == "bool" or not is_signed(self.dtype)):
            is_taken = e.main("cmpult", piece, x) if kind == "max" else e.main("cmpult", x, piece)
            e.emit("movnz", (piece,), (piece, x, is_taken), effect="live")
        else:
            e.emit(kind, (piece,), (piece, x), effect="live")

    def columns(self) -> tuple[str, Pieces]:
        """Emit what leaves every lane by itself, in the width of the dtype."""
        return self.form, tuple(self._wrapped(piece) for piece in self.pieces)

    def joined(self, other: Accumulator | None) -> tuple[str, Register]:
        """Emit the fold of the lanes, and of another accumulator of one lane."""
        first, *rest = self.pieces
        for piece in (*rest, *(() if other is None else other.pieces)):
            self._fold(first, piece)
        return self.form, self._wrapped(first)

    def _wrapped(self, register: Register) -> Register:
        leaves = self.kind in ("add", "mul") and self.dtype != "bool"
        return wrap(self.e, register, self.dtype) if leaves else register


class Bits(Accumulator):
    """Auxiliary registers that fold bits by "or" or "and", whatever the bits stand for: 64 at once."""

    def __init__(self, emitter: Emitter, kind: str, dtype: str, lanes: int) -> None:
        """Take the function, the float whose size the elements have, and the lanes."""
        self.e, self.kind, self.dtype, self.lanes = emitter, kind, dtype, lanes
        self.form = natural_form(dtype)
        width = piece_width(self.form, lanes)
        self.pieces = tuple(emitter.fresh("A", width) for _ in range(piece_count(self.form, lanes)))

    def start(self) -> None:
        """Emit the neutral element into the registers."""
        neutral = AZERO if self.kind == "or" else self.e.constant("A", _ALL_ONES)
        for piece in self.pieces:
            for k in range(piece.width):
                self.e.op("or", piece.part(k) if piece.width > 1 else piece, neutral, imms=(0,))

    def add(self, walker: Walker, value: Value) -> None:
        """Emit the fold of one iteration's elements, into the loop's body."""
        for piece, x in zip(self.pieces, walker.forms.spread(value, self.form, self.lanes), strict=True):
            self.e.emit(self._name(piece), (piece,), (piece, x), effect="live")

    def joined(self, other: Accumulator | None) -> tuple[str, Register]:
        """Emit the fold of the lanes, and of another accumulator of one lane; return the form and the register."""
        word, *more = (
            piece.part(k) if piece.width > 1 else piece for piece in self.pieces for k in range(piece.width)
        )
        for another in more:
            word = self.e.op(self.kind, ("A", 1), word, another)
        if self.form == "f16" and self.lanes > 1:
            word = self.e.op(self.kind, ("A", 1), word, self.e.op("roll16", ("A", 1), word, word))
        if other is not None:
            word = self.e.op(self.kind, ("A", 1), word, other.pieces[0])
        return self.form, word

    def _name(self, piece: Register) -> str:
        return self.kind + ("64" if piece.width == 2 else "")


def accumulator(e: Emitter, reduction: Any, lanes: int, keeps_lanes: bool = False) -> Accumulator:
    """Return the accumulator of a reduction; sums of halves go to f32 accumulators, of vectors if four are added.

    Where every lane has a sum of its own, only if that sum is to be float32.
    """
    wants_wide = not keeps_lanes or (reduction.result_dtype == "float32" and lanes == _FOUR)
    if reduction.kind == "add" and reduction.dtype == "float16" and wants_wide:
        kind = SingleHalfSum if lanes == 1 else HalfSum
        return kind(e, reduction.kind, reduction.dtype, lanes)
    kind = Accumulator if reduction.dtype in ("float32", "float16") else Words
    if kind is Accumulator and reduction.kind in BITWISE:
        kind = Bits
    return kind(e, reduction.kind, reduction.dtype, lanes)
