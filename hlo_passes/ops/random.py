"""Random bits from a counter, the generators that XLA defines to the bit; and random numbers without a state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes._jax_compat import finfo, rng_bit_generator
from hlo_passes.ir.op import Op
from hlo_passes.ir.types import TensorType

ALGORITHMS = {
    "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
    "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
    "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
}
DISTRIBUTIONS = ("UNIFORM", "NORMAL")


@dataclass(frozen=True)
class RngBitGenerator(Op):
    """Return the state after, and random bits, from a state of 64-bit words: a key and a counter.

    The counter of Philox may have a second, upper word; without one XLA takes the key for it. ``types`` are the
    results'. Spec: StableHLO "rng_bit_generator", constraint C2. ``DEFAULT`` is the implementation's choice: Philox,
    as in XLA on CPU.
    """

    name: ClassVar[str] = "stablehlo.rng_bit_generator"
    algorithm: str
    types: tuple[TensorType, ...]

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the state's type and the bits'."""
        self.require_arity(operands, 1)
        (state,) = operands
        self.require("I1", self.algorithm in ALGORITHMS, lambda: f"no algorithm {self.algorithm!r}")
        sizes = (2,) if self.algorithm == "THREE_FRY" else (2, 3)
        is_state = state.dtype == "ui64" and state.rank == 1 and state.shape[0] in sizes
        expected = " or ".join(f"tensor<{n}xui64>" for n in sizes)
        self.require("I2", is_state, lambda: f"a state of {state}, expected {expected}")
        self.require("C2", len(self.types) == 2 and self.types[0] == state, "the state's type changes")
        self.require("O2", not self.types[1].is_bool, lambda: f"expected numbers, got {self.types[1]}")
        return self.types

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply XLA's generator to unsigned words, read as the type asked for."""
        (state,) = operands
        bits = self.types[1]
        words = np.dtype(f"uint{8 * bits.np_dtype.itemsize}")
        if state.shape == (3,):
            with jax.enable_x64(True):
                after, found = _wide_philox(state, bits.shape, words)
        else:
            key = lax.bitcast_convert_type(state, jnp.uint32).reshape(-1)
            after, found = rng_bit_generator(key, bits.shape, words, ALGORITHMS[self.algorithm])
            after = lax.bitcast_convert_type(after.reshape(-1, 2), jnp.uint64)
        return after, lax.bitcast_convert_type(found, bits.np_dtype)


def _wide_philox(state: Array, shape: tuple[int, ...], words: np.dtype) -> tuple[Array, Array]:
    """Return the state after, and words, of Philox with a counter of 128 bits, which JAX has no function for.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011: 4x32, 10 rounds.
    """
    per_word = max(1, words.itemsize // 4)
    count = math.prod(shape) * per_word
    blocks = -(-count // 4)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)

    def advanced(steps: Array) -> tuple[Array, Array]:
        low = state[1] + steps
        return low, state[2] + (low < state[1]).astype(jnp.uint64)

    low, high = advanced(jnp.arange(blocks, dtype=jnp.uint64))
    counter = [low & mask, low >> half, high & mask, high >> half]
    keys = [state[0] & mask, state[0] >> half]
    for _ in range(10):
        a, b = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [(b >> half) ^ counter[1] ^ keys[0], b & mask, (a >> half) ^ counter[3] ^ keys[1], a & mask]
        keys = [(keys[0] + np.uint64(0x9E3779B9)) & mask, (keys[1] + np.uint64(0xBB67AE85)) & mask]
    found = jnp.stack(counter, axis=-1).reshape(-1)[:count]
    if per_word == 2:
        found = found[::2] | (found[1::2] << half)
    after = jnp.stack([state[0], *advanced(jnp.uint64(blocks))])
    return after, found.astype(words).reshape(shape)


@dataclass(frozen=True)
class Rng(Op):
    """Draw numbers without a state: uniform in ``[a, b)``, or normal of mean ``a`` and standard deviation ``b``.

    Spec: StableHLO "rng", constraints C1-C3, whose numbers are the implementation's choice. Here they are a fixed
    function of the operation, the same at every run, call and round of a loop: ``stream`` keys Threefry with the
    counter 0. Floats are made in f32, or f64 for f64: as many upper bits of a word as the type's fraction has are a
    uniform number (what rounds up to ``b`` is ``a``); normal ones are Box and Muller's of two draws. Integers are
    ``a`` plus a word's remainder by ``b - a``. Booleans are ``a`` or ``b``.

    Args:
      distribution: UNIFORM or NORMAL.
      type: of the result.
      stream: number of the operation in its module.
    """

    name: ClassVar[str] = "stablehlo.rng"
    distribution: str
    type: TensorType
    stream: int = 0

    @property
    def state(self) -> np.ndarray:
        """Key and counter that the operation draws from: streams lie a golden section of 2^64 apart."""
        return np.array([(self.stream + 1) * 0x9E3779B97F4A7C15 % (1 << 64), 0], np.uint64)

    @property
    def word(self) -> str:
        """Element type of the words drawn: of the numbers' width, 32 bits for narrow floats, 8 for booleans."""
        if self.type.is_bool:
            return "ui8"
        return f"ui{max(32, self.type.bits) if self.type.is_float else self.type.bits}"

    @property
    def fraction_bits(self) -> int:
        """Bits of the fraction of the type's floats."""
        return int(finfo(self.type.np_dtype).nmant)

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return ``type``."""
        self.require_arity(operands, 3)
        a, b, shape = operands
        for tag, operand in (("I1", a), ("I2", b)):
            self.require(tag, operand.rank == 0, lambda operand=operand: f"expected a scalar, got {operand}")
        self.require("I3", shape.rank == 1 and shape.is_integer, lambda: f"expected sizes, got {shape}")
        same = a.dtype == b.dtype == self.type.dtype
        self.require("C1", same, lambda: f"element types of {a}, {b} and {self.type} differ")
        self.require("I4", self.distribution in DISTRIBUTIONS, f"no distribution {self.distribution!r}")
        normal = self.distribution == "NORMAL"
        self.require("C2", a.is_float or not normal, lambda: f"normal numbers must be floats, not {a}")
        fits = shape.shape == (self.type.rank,)
        self.require("C3", fits, lambda: f"{shape} is not the shape of {self.type}")
        return (self.type,)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Draw words and make numbers of them."""
        with jax.enable_x64(True):
            return (self._drawn(*operands[:2]),)

    def _drawn(self, a: Array, b: Array) -> Array:
        if not self.type.is_float:
            return self._integers(a, b, self._words(1)[0])
        dtype = np.dtype(f"float{self.word[2:]}")
        wide_a, wide_b = a.astype(dtype), b.astype(dtype)
        if self.distribution == "NORMAL":
            radius, angle = (self._units(words, dtype) for words in self._words(2))
            two_pi = jnp.asarray(2 * np.pi, dtype)
            normal = jnp.sqrt(jnp.log1p(-radius) * -2) * jnp.cos(angle * two_pi)
            return (normal * wide_b + wide_a).astype(a.dtype)
        drawn = (self._units(self._words(1)[0], dtype) * (wide_b - wide_a) + wide_a).astype(a.dtype)
        return jnp.where(drawn < b, drawn, a)

    def _words(self, draws: int) -> list[Array]:
        found: list[Array] = []
        state = jnp.asarray(self.state)
        bits = TensorType(self.type.shape, self.word)
        for _ in range(draws):
            state, words = RngBitGenerator("THREE_FRY", (TensorType((2,), "ui64"), bits)).evaluate(state)
            found.append(words)
        return found

    def _units(self, words: Array, dtype: np.dtype) -> Array:
        """Return floats in ``[0, 1)`` of the words' upper bits."""
        kept = self.fraction_bits
        return (words >> (8 * words.dtype.itemsize - kept)).astype(dtype) * np.asarray(2.0**-kept, dtype)

    def _integers(self, a: Array, b: Array, words: Array) -> Array:
        if self.type.is_bool:
            return jnp.where(words & np.uint8(1) != 0, b, a)
        low, high = (lax.bitcast_convert_type(x, words.dtype) for x in (a, b))
        return lax.bitcast_convert_type(
            lax.rem(words, jnp.broadcast_to(high - low, words.shape)) + low, a.dtype
        )
