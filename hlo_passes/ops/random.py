"""Random bits from a counter: the generators that XLA defines to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes.ir.op import Op
from hlo_passes.ir.types import TensorType

ALGORITHMS = {
    "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
    "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
    "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
}


@dataclass(frozen=True)
class RngBitGenerator(Op):
    """Return the state after, and random bits, from a state of two 64-bit words: a key and a counter.

    ``types`` are the results'. Spec: StableHLO "rng_bit_generator", constraint C2. ``DEFAULT`` is the
    implementation's choice: Philox, as in XLA on CPU. A state of three words is refused.
    """

    name: ClassVar[str] = "stablehlo.rng_bit_generator"
    algorithm: str
    types: tuple[TensorType, ...]

    def infer(self, *operands: TensorType, regions: Sequence[Any] = ()) -> tuple[TensorType, ...]:
        """Return the state's type and the bits'."""
        self.require_arity(operands, 1)
        (state,) = operands
        self.require("I1", self.algorithm in ALGORITHMS, lambda: f"no algorithm {self.algorithm!r}")
        is_state = state == TensorType((2,), "ui64")
        self.require("I2", is_state, lambda: f"a state of {state}, expected tensor<2xui64>")
        self.require("C2", len(self.types) == 2 and self.types[0] == state, "the state's type changes")
        self.require("O2", not self.types[1].is_bool, lambda: f"expected numbers, got {self.types[1]}")
        return self.types

    def evaluate(self, *operands: Array, regions: Sequence[Any] = ()) -> tuple[Array, ...]:
        """Apply XLA's generator to unsigned words, read as the type asked for."""
        (state,) = operands
        bits = self.types[1]
        words: Any = np.dtype(f"uint{8 * bits.np_dtype.itemsize}")
        key = lax.bitcast_convert_type(state, jnp.uint32).reshape(-1)
        after, found = lax.rng_bit_generator(key, bits.shape, words, ALGORITHMS[self.algorithm])
        after = lax.bitcast_convert_type(after.reshape(-1, 2), jnp.uint64)
        return after, lax.bitcast_convert_type(found, bits.np_dtype)
