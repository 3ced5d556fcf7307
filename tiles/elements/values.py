"""Values of a cell on their way through registers: in which file and form, and how one form becomes another.

A value of ``lanes`` elements is held as pieces, one register or pair each, in one of these forms:

  f32     pairs of aux registers (one register if there is one lane)
  f16     pairs of aux registers with 4 halves (one register for 1 or 2 lanes; a single lane stands in both halves)
  word    32-bit integers in aux registers, as f32
  mask32, mask16   all ones or all zeros per lane, as f32 and f16
  int     one main register a lane: integers, or a float's bits where a main instruction only moves them
  high    one main register a lane, of which the upper half is a bfloat16 (see ``bfloat16``); as f32 zeros are below it
  pred    one main register a lane, 0 or 1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tiles.elements.emitter import Emitter, word_of_float
from tiles.elements.tilecode import AZERO, AZEROS, MZERO, Register
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import is_float, to_jax

Pieces = tuple[Register, ...]
WIDE = ("f32", "word", "mask32")
HALF = ("f16", "mask16")
MAIN_FORMS = ("int", "pred", "high")
BFLOAT16 = "bfloat16"
LOADABLE: dict[str, tuple[str, ...]] = {
    "float32": ("f32", "int"),
    "float16": ("f16", "int"),
    BFLOAT16: ("f32",),
    "int32": ("word", "int"),
    "uint32": ("word", "int"),
    "bool": ("pred",),
    **dict.fromkeys(("int8", "uint8", "int16", "uint16"), ("int",)),
}
"""Forms in which memory gives the elements of a dtype."""


@dataclass
class Value:
    """Elements of one dtype at one level; ``forms`` caches the pieces of every form that was asked for.

    Attributes:
      load: gives the pieces in a form, for an operand that is still in memory.
    """

    dtype: str
    level: int
    lanes: int
    forms: dict[str, Pieces] = field(default_factory=dict[str, Pieces])
    load: Callable[[str], Pieces] | None = None
    constant: float | int | bool | None = None


def piece_width(form: str, lanes: int) -> int:
    """Return registers of one piece."""
    if form in MAIN_FORMS:
        return 1
    return 2 if lanes >= (2 if form in WIDE else 4) else 1


def piece_count(form: str, lanes: int) -> int:
    """Return the number of pieces."""
    if form in MAIN_FORMS:
        return lanes
    return max(1, lanes // (2 if form in WIDE else 4))


def natural_form(dtype: str) -> str:
    """Return the form in which a dtype is computed."""
    forms = {"float32": "f32", "float16": "f16", "bool": "pred", BFLOAT16: "f32"}
    return forms.get(dtype, "int")


class Forms:
    """Gives values in the form that an instruction needs, converting where it must."""

    def __init__(self, emitter: Emitter, lanes: int) -> None:
        """Take the emitter and the lanes of element-level values; values of other levels have one lane."""
        self.emitter = emitter
        self.lanes = lanes

    def new(self, form: str, lanes: int) -> Pieces:
        """Return fresh registers for a value."""
        file = "M" if form in MAIN_FORMS else "A"
        return tuple(
            self.emitter.fresh(file, piece_width(form, lanes)) for _ in range(piece_count(form, lanes))
        )

    def get(self, value: Value, form: str) -> Pieces:
        """Return a value's pieces in a form.

        Raises:
          NoTileCode: there is no code for that conversion.
        """
        if form not in value.forms:
            with self.emitter.at(value.level):
                value.forms[form] = self._make(value, form)
        return value.forms[form]

    def spread(self, value: Value, form: str, lanes: int) -> Pieces:
        """Return a value in a form of ``lanes`` lanes: one of a lower level stands in every lane."""
        pieces = self.get(value, form)
        if value.lanes == lanes:
            return pieces
        if form in MAIN_FORMS:
            return pieces * lanes
        if piece_width(form, lanes) == 1:
            return pieces * piece_count(form, lanes)
        key = f"{form} pair"
        if key not in value.forms:
            with self.emitter.at(value.level):
                value.forms[key] = (self._pair(pieces[0]),)
        return value.forms[key] * piece_count(form, lanes)

    def _pair(self, single: Register) -> Register:
        if single == AZERO:
            return AZEROS
        pair = self.emitter.fresh("A", 2)
        for k in range(2):
            self.emitter.op("or", pair.part(k), single, imms=(0,))
        return pair

    def _make(self, value: Value, form: str) -> Pieces:
        if value.constant is not None:
            return self._constant(value, form)
        if not value.forms and value.load is not None and form not in LOADABLE.get(value.dtype, ()):
            value.forms[natural_form(value.dtype)] = value.load(natural_form(value.dtype))
        if not value.forms and value.load is not None:
            return value.load(form)
        for have in value.forms:
            convert = _CONVERSIONS.get((have, form))
            if convert is not None:
                return convert(self.emitter, value.forms[have], value.lanes)
        if value.load is not None and form in LOADABLE.get(value.dtype, ()):
            return value.load(form)
        for have in tuple(value.forms):
            for middle in ("int", "pred", "mask32"):
                if (have, middle) in _CONVERSIONS and (middle, form) in _CONVERSIONS:
                    self.get(value, middle)
                    return _CONVERSIONS[middle, form](self.emitter, value.forms[middle], value.lanes)
        raise NoTileCode(f"no code makes {form} registers of {value.dtype} in {sorted(value.forms)}")

    def _constant(self, value: Value, form: str) -> Pieces:
        return (self.emitter.constant("M" if form in MAIN_FORMS else "A", constant_word(value, form)),)


def constant_word(value: Value, form: str) -> int:
    """Return a literal's bits in a form.

    Raises:
      NoTileCode: it is a float of another type than those that are computed with.
    """
    number = value.constant
    assert number is not None
    if form in ("mask32", "mask16"):
        return 0xFFFFFFFF if number else 0
    if value.dtype == "bool":
        return int(number)
    if value.dtype in ("float32", "float16", BFLOAT16):
        word = word_of_float(float(number), "float16" if value.dtype == "float16" else "float32")
        return word & 0xFFFF if (form, value.dtype) == ("int", "float16") else word
    if is_float(to_jax(value.dtype)):
        raise NoTileCode(f"no code computes with constants of {value.dtype}")
    return int(number) & 0xFFFFFFFF


def _wide_to_int(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    words = [piece.part(k) for piece in pieces for k in range(piece.width)][:lanes]
    return tuple(e.main("atom", word) for word in words)


def _int_to_wide(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    if lanes == 1:
        return (e.to_aux(pieces[0]),)
    return tuple(e.to_aux(a, b) for a, b in zip(pieces[::2], pieces[1::2], strict=True))


def _high_to_wide(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    return _int_to_wide(e, tuple(e.masked(word, 0xFFFF0000) for word in pieces), lanes)


def _half_to_int(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    words = [e.main("atom", piece.part(k)) for piece in pieces for k in range(piece.width)]
    out: list[Register] = []
    for word in words:
        out.append(e.main("sort4x16lo", word, MZERO))
        out.append(e.main("shr", word, imms=(16,)))
    return tuple(out[:lanes])


def pack_halves(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    """Pack the low halves of main registers, two to a word; a single lane stands in both halves."""
    if lanes == 1:
        return (e.main("sort4x16lo", pieces[0], pieces[0]),)
    return tuple(e.main("sort4x16lo", a, b) for a, b in zip(pieces[::2], pieces[1::2], strict=True))


def pack_upper_halves(e: Emitter, form: str, pieces: Pieces) -> Pieces:
    """Pack the upper halves of 32-bit words, two to a word, in the order of lanes; pairs of aux registers where they fill one."""
    if form in MAIN_FORMS:
        return tuple(e.main("sort4x16hi", a, b) for a, b in zip(pieces[::2], pieces[1::2], strict=True))
    return _joined_halves(e, "sort4x16hi", pieces)


def _joined_halves(e: Emitter, pick: str, pieces: Pieces) -> Pieces:
    """Return one half of each word of pairs, which ``pick`` takes, two to a word: in pairs, a single pair's in one register."""
    if len(pieces) % 2:
        return tuple(e.op(pick, ("A", 1), piece.part(0), piece.part(1)) for piece in pieces)
    out: list[Register] = []
    for a, b in zip(pieces[::2], pieces[1::2], strict=True):
        pair = e.fresh("A", 2)
        for k, piece in enumerate((a, b)):
            e.op(pick, pair.part(k), piece.part(0), piece.part(1))
        out.append(pair)
    return tuple(out)


def pack_bytes(e: Emitter, pieces: Pieces) -> Register:
    """Pack the low bytes of four main registers into a word."""
    low = e.main("shuf8x8lo", pieces[0], pieces[1])
    high = e.main("shuf8x8lo", pieces[2], pieces[3])
    return e.main("sort4x16lo", low, high)


def _int_to_half(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    words = pack_halves(e, pieces, lanes)
    if len(words) == 1:
        return (e.to_aux(words[0]),)
    return tuple(e.to_aux(a, b) for a, b in zip(words[::2], words[1::2], strict=True))


def _mask_to_pred(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    return tuple(e.main("and", word, imms=(1,)) for word in _wide_to_int(e, pieces, lanes))


def _half_mask_to_pred(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    words = [e.main("atom", piece.part(k)) for piece in pieces for k in range(piece.width)]
    out: list[Register] = []
    for word in words:
        out += [e.main("and", word, imms=(1,)), e.main("shr", word, imms=(31,))]
    return tuple(out[:lanes])


def _pred_to_mask(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    return _int_to_wide(e, tuple(e.main("sub", MZERO, p) for p in pieces), lanes)


def _pred_to_half_mask(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    return _int_to_half(e, tuple(e.main("sub", MZERO, p) for p in pieces), lanes)


def _half_mask_to_mask(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    words = [piece.part(k) for piece in pieces for k in range(piece.width)]
    if lanes == 1:
        return pieces
    out: list[Register] = []
    for word in words:
        pair = e.fresh("A", 2)
        for k, pick in enumerate(("sort4x16lo", "sort4x16hi")):
            e.op(pick, pair.part(k), word, word)
        out.append(pair)
    return tuple(out)


def _mask_to_half_mask(e: Emitter, pieces: Pieces, lanes: int) -> Pieces:
    return pieces if lanes == 1 else _joined_halves(e, "sort4x16lo", pieces)


_CONVERSIONS: dict[tuple[str, str], Callable[[Emitter, Pieces, int], Pieces]] = {
    ("f32", "int"): _wide_to_int,
    ("word", "int"): _wide_to_int,
    ("int", "f32"): _int_to_wide,
    ("int", "word"): _int_to_wide,
    ("f16", "int"): _half_to_int,
    ("int", "f16"): _int_to_half,
    ("mask32", "pred"): _mask_to_pred,
    ("mask16", "pred"): _half_mask_to_pred,
    ("pred", "mask32"): _pred_to_mask,
    ("pred", "mask16"): _pred_to_half_mask,
    ("mask16", "mask32"): _half_mask_to_mask,
    ("mask32", "mask16"): _mask_to_half_mask,
    ("high", "f32"): _high_to_wide,
    ("pred", "int"): lambda _e, pieces, _lanes: pieces,
}
