"""What each instruction computes, on words of any number of worker contexts at once.

Words are ``uint32`` arrays ``[registers, contexts]``. Adding, subtracting, multiplying, dividing, comparing and
converting round as IEEE 754 says, to nearest even. Functions such as ``f32exp`` are computed in float64 and
rounded, since the machine's own last bits are not public. Operations on NaN pass NaN on (assumed for max and min).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tiles.errors import NoTileCode

Words = np.ndarray
Function = Callable[[list[Words], tuple[int, ...]], list[Words]]
_F32_LEAST = np.float32(np.finfo(np.float32).tiny)
_ROUND = (np.rint, np.ceil, np.floor, np.trunc)


def flushed(x: np.ndarray) -> np.ndarray:
    """Return f32 values with subnormals replaced by zeros of their sign."""
    if x.dtype != np.float32:
        return x
    return np.where(np.abs(x) < _F32_LEAST, np.copysign(np.float32(0), x), x)


def as_floats(words: Words, kind: str) -> np.ndarray:
    """Return words ``[registers, contexts]`` as lanes ``[lanes, contexts]`` of "f32" or "f16"."""
    if kind == "f32":
        return words.view(np.float32)
    low, high = (words & 0xFFFF).astype(np.uint16), (words >> 16).astype(np.uint16)
    return np.stack([low, high], axis=1).reshape(-1, words.shape[1]).view(np.float16)


def as_words(lanes: np.ndarray) -> Words:
    """Return lanes as words; the inverse of ``as_floats``."""
    if lanes.dtype == np.float32:
        return np.ascontiguousarray(lanes).view(np.uint32)
    bits = np.ascontiguousarray(lanes.astype(np.float16)).view(np.uint16).astype(np.uint32)
    return bits[0::2] | bits[1::2] << np.uint32(16)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "div": np.divide,
    "absadd": lambda a, b: np.abs(a) + np.abs(b),
    "absmax": lambda a, b: np.maximum(np.abs(a), np.abs(b)),
}
_COMPARE: dict[str, Callable[..., np.ndarray]] = {
    "cmpeq": np.equal,
    "cmpne": np.not_equal,
    "cmplt": np.less,
    "cmple": np.less_equal,
    "cmpgt": np.greater,
    "cmpge": np.greater_equal,
}
_UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "ln": np.log,
    "log2": np.log2,
    "tanh": np.tanh,
    "sigm": _sigmoid,
    "sqrt": np.sqrt,
    "oox": lambda x: 1 / x,
    "oorx": lambda x: 1 / np.sqrt(x),
}
_KINDS = {"f32v4": "f32", "f32v2": "f32", "f32": "f32", "f16v8": "f16", "f16v4": "f16", "f16v2": "f16"}


def _kept(x: np.ndarray) -> np.ndarray:
    return x


class Semantics:
    """Functions of a generation's instructions on words."""

    def __init__(self, flush: bool) -> None:
        """State whether f32 arithmetic takes and gives zeros for subnormals."""
        self.flush: Callable[[np.ndarray], np.ndarray] = flushed if flush else _kept
        self._known: dict[tuple[str, str], Function] = {}

    def function(self, mnemonic: str, modifier: str) -> Function:
        """Return what an instruction that neither accesses memory nor branches computes.

        Raises:
          NoTileCode: its meaning is not written down.
        """
        key = mnemonic, modifier
        if key not in self._known:
            self._known[key] = self._find(mnemonic, modifier)
        return self._known[key]

    def _find(self, mnemonic: str, modifier: str) -> Function:
        if mnemonic in _INTEGER:
            return _INTEGER[mnemonic]
        if mnemonic in _BITS:
            return _BITS[mnemonic]
        if mnemonic in _CONVERSIONS:
            return self._conversion(mnemonic)
        for prefix, kind in _KINDS.items():
            if mnemonic.startswith(prefix):
                found = self._float(mnemonic[len(prefix) :], kind, modifier)
                if found is not None:
                    return found
        raise NoTileCode(f"the simulator has no meaning for {mnemonic!r}")

    def _float(self, name: str, kind: str, modifier: str) -> Function | None:
        if name in _BINARY:
            return self._arithmetic(_BINARY[name], kind, modifier)
        if name in _COMPARE:
            return self._comparison(_COMPARE[name], kind, modifier)
        if name in _UNARY:
            return self._elementary(_UNARY[name], kind)
        if name == "sufromui":
            return lambda ins, imms: [_signed_uniform(ins[0], kind)]
        if name == "int" and kind == "f32":
            return lambda ins, imms: [as_words(_ROUND[imms[0]](as_floats(ins[0], "f32")))]
        return None

    def _operands(self, ins: list[Words], kind: str, modifier: str) -> list[np.ndarray]:
        values = [self.flush(as_floats(w, kind)) for w in ins]
        if modifier:
            lane = 1 if modifier == "BU" else 0
            values[0] = np.broadcast_to(values[0][lane], values[1].shape)
        return values

    def _arithmetic(self, f: Callable[..., np.ndarray], kind: str, modifier: str) -> Function:
        return lambda ins, imms: [as_words(self.flush(f(*self._operands(ins, kind, modifier))))]

    def _comparison(self, f: Callable[..., np.ndarray], kind: str, modifier: str) -> Function:
        def run(ins: list[Words], imms: tuple[int, ...]) -> list[Words]:
            mask = f(*self._operands(ins, kind, modifier))
            if kind == "f32":
                return [np.where(mask, np.uint32(0xFFFFFFFF), np.uint32(0))]
            bits = np.where(mask, np.uint16(0xFFFF), np.uint16(0))
            return [as_words(bits.view(np.float16))]

        return run

    def _elementary(self, f: Callable[[np.ndarray], np.ndarray], kind: str) -> Function:
        def run(ins: list[Words], imms: tuple[int, ...]) -> list[Words]:
            (x,) = self._operands(ins, kind, "")
            return [as_words(self.flush(f(x.astype(np.float64)).astype(x.dtype)))]

        return run

    def _conversion(self, mnemonic: str) -> Function:
        convert = _CONVERSIONS[mnemonic]
        return lambda ins, imms: [convert(self, ins[0])]


def _to_i32(x: np.ndarray, low: float, high: float, dtype: Any) -> Words:
    number = np.clip(np.rint(np.nan_to_num(x.astype(np.float64), nan=0.0)), low, high)
    return number.astype(np.int64).astype(dtype).view(np.uint32)


def _halves_to_f32(s: Semantics, words: Words) -> Words:
    return as_words(as_floats(words, "f16").astype(np.float32))


def _f32_to_halves(s: Semantics, words: Words) -> Words:
    return as_words(s.flush(words.view(np.float32)).astype(np.float16))


_CONVERSIONS: dict[str, Callable[[Semantics, Words], Words]] = {
    "f16tof32": lambda s, w: _halves_to_f32(s, w)[:1],
    "f16v2tof32": _halves_to_f32,
    "f32v2tof16": _f32_to_halves,
    "f32v4tof16": _f32_to_halves,
    "f32tof16": lambda s, w: _f32_to_halves(s, np.repeat(w, 2, axis=0)),
    "f32fromi32": lambda s, w: w.view(np.int32).astype(np.float32).view(np.uint32),
    "f32fromui32": lambda s, w: w.astype(np.float32).view(np.uint32),
    "f32toi32": lambda s, w: _to_i32(w.view(np.float32), -(2.0**31), 2.0**31 - 1, np.int32),
    "f32toui32": lambda s, w: _to_i32(w.view(np.float32), 0.0, 2.0**32 - 1, np.uint32),
}


def _signed_uniform(words: Words, kind: str) -> Words:
    """Return floats of (-0.5, 0.5), none of them 0: the upper bits of each lane, and a half (assumed)."""
    if kind == "f32":
        return as_words(
            ((words >> np.uint32(9)) * 2.0 + 1 - 2.0**23).astype(np.float32) * np.float32(2.0**-24)
        )
    lanes = as_floats(words, kind).view(np.uint16)
    return as_words(((lanes >> np.uint16(6)) * 2.0 + 1 - 2.0**10).astype(np.float16) * np.float16(2.0**-11))


def _signed(word: Words) -> np.ndarray:
    return word.view(np.int32)


def _pair(f: Callable[[Words, Words], np.ndarray]) -> Function:
    """Return an integer instruction of two operands, the last of which may be an immediate."""

    def run(ins: list[Words], imms: tuple[int, ...]) -> list[Words]:
        operands = [*ins]
        if imms:
            operands.append(np.full_like(ins[0], imms[0] & 0xFFFFFFFF))
        return [f(*operands).astype(np.uint32)]

    return run


def _single(f: Callable[[Words], np.ndarray]) -> Function:
    return lambda ins, imms: [f(ins[0]).astype(np.uint32)]


def _leading_zeros(x: Words) -> np.ndarray:
    return 32 - np.ceil(np.log2(x.astype(np.float64) + 1)).astype(np.uint32)


def _ones(x: Words) -> np.ndarray:
    return np.unpackbits(x[..., None].view(np.uint8), axis=-1).sum(axis=-1)


def _shift(f: Callable[[Words, Words], np.ndarray]) -> Function:
    return _pair(lambda a, b: f(a, b & np.uint32(31)))


def _minuend(ins: list[Words], imms: tuple[int, ...]) -> list[Words]:
    """Subtract; an immediate is what is subtracted from."""
    if imms:
        return [np.full_like(ins[0], imms[0] & 0xFFFFFFFF) - ins[0]]
    return [ins[0] - ins[1]]


_INTEGER: dict[str, Function] = {
    "add": _pair(np.add),
    "sub": _minuend,
    "mul": _pair(np.multiply),
    "abs": _single(lambda a: np.abs(_signed(a))),
    "min": _pair(lambda a, b: np.minimum(_signed(a), _signed(b)).view(np.uint32)),
    "max": _pair(lambda a, b: np.maximum(_signed(a), _signed(b)).view(np.uint32)),
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "shrs": _shift(lambda a, b: np.right_shift(_signed(a), b.view(np.int32)).view(np.uint32)),
    "cmpeq": _pair(np.equal),
    "cmpne": _pair(np.not_equal),
    "cmpslt": _pair(lambda a, b: _signed(a) < _signed(b)),
    "cmpult": _pair(np.less),
    "clz": _single(_leading_zeros),
    "popc": _single(_ones),
    "xor": _pair(np.bitwise_xor),
    "xnor": _pair(lambda a, b: ~(a ^ b)),
    "movz": lambda ins, imms: [np.where(ins[2] == 0, ins[1], ins[0])],
    "movnz": lambda ins, imms: [np.where(ins[2] != 0, ins[1], ins[0])],
    "setzi": lambda ins, imms: [np.full((1, 1), imms[0], np.uint32)],
    "atom": lambda ins, imms: [ins[0]],
}


def _low(w: Words) -> Words:
    return w & np.uint32(0xFFFF)


def _high(w: Words) -> Words:
    return w >> np.uint32(16)


def _bytes(w: Words) -> list[Words]:
    return [(w >> np.uint32(8 * k)) & np.uint32(0xFF) for k in range(4)]


def _of_bytes(parts: list[Words]) -> list[Words]:
    return [parts[0] | parts[1] << np.uint32(8) | parts[2] << np.uint32(16) | parts[3] << np.uint32(24)]


def _interleaved(a: Words, b: Words, first: int) -> list[Words]:
    x, y = _bytes(a), _bytes(b)
    return _of_bytes([x[first], y[first], x[first + 1], y[first + 1]])


def _parted(a: Words, b: Words, first: int) -> list[Words]:
    x, y = _bytes(a), _bytes(b)
    return _of_bytes([x[first], x[first + 2], y[first], y[first + 2]])


def _both(f: Callable[[Words, Words], np.ndarray]) -> Function:
    return _pair(f)


_BITS: dict[str, Function] = {
    "and": _both(np.bitwise_and),
    "or": _both(np.bitwise_or),
    "andc": _both(lambda a, b: a & ~b),
    "and64": _both(np.bitwise_and),
    "or64": _both(np.bitwise_or),
    "andc64": _both(lambda a, b: a & ~b),
    "not": _single(np.invert),
    "not64": _single(np.invert),
    "sort4x16lo": lambda ins, imms: [_low(ins[0]) | _low(ins[1]) << np.uint32(16)],
    "sort4x16hi": lambda ins, imms: [_high(ins[0]) | _high(ins[1]) << np.uint32(16)],
    "roll16": lambda ins, imms: [_high(ins[0]) | _low(ins[1]) << np.uint32(16)],
    "sort4x32lo": lambda ins, imms: [np.concatenate([ins[0][:1], ins[1][:1]])],
    "sort4x32hi": lambda ins, imms: [np.concatenate([ins[0][1:], ins[1][1:]])],
    "roll32": lambda ins, imms: [np.concatenate([ins[0][1:], ins[1][:1]])],
    "shuf8x8lo": lambda ins, imms: _interleaved(ins[0], ins[1], 0),
    "shuf8x8hi": lambda ins, imms: _interleaved(ins[0], ins[1], 2),
    "sort8x8lo": lambda ins, imms: _parted(ins[0], ins[1], 0),
    "sort8x8hi": lambda ins, imms: _parted(ins[0], ins[1], 1),
}
