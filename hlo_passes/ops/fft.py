"""Discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from hlo_passes._jax_compat import fft
from hlo_passes.ir.op import Op
from hlo_passes.ir.types import TensorType

FFT_TYPES = ("FFT", "IFFT", "RFFT", "IRFFT")


@dataclass(frozen=True)
class Fft(Op):
    """Transform the last dimensions, whose lengths as signals are ``fft_length``.

    ``FFT`` and its inverse ``IFFT``, which divides by the number of elements, map complex numbers to complex
    numbers. ``RFFT`` maps real signals to the first half (``n // 2 + 1``) of what ``FFT`` gives along the
    last dimension, ``IRFFT`` such halves back to real signals; what the imaginary parts of a half hold that
    no real signal has is ignored. Spec: StableHLO "fft", constraints C1-C5.
    """

    name: ClassVar[str] = "stablehlo.fft"
    fft_type: str
    fft_length: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the type of the transformed operand."""
        self.require_arity(operands, 1)
        (operand,), lengths = operands, self.fft_length
        kind, rank = self.fft_type, len(lengths)
        self.require("I2", kind in FFT_TYPES, lambda: f"{kind!r} is none of {', '.join(FFT_TYPES)}")
        self.require("C1", rank <= operand.rank, lambda: f"{rank} dimensions to transform of {operand}")
        wanted = ("f32", "f64") if kind == "RFFT" else ("complex<f32>", "complex<f64>")
        fits = operand.dtype in wanted
        self.require("C2", fits, lambda: f"{kind} takes {' or '.join(wanted)}, got {operand}")
        self.require("C3", 1 <= rank <= 3, lambda: f"{rank} lengths, expected 1 to 3")
        leading, sizes = operand.shape[: operand.rank - rank], operand.shape[operand.rank - rank :]
        taken = (*lengths[:-1], lengths[-1] // 2 + 1) if kind == "IRFFT" else lengths
        empty = kind == "IRFFT" and lengths[-1] == 0 and sizes[-1] == 0
        same = sizes == taken or empty
        self.require("C5", same, lambda: f"{kind} of lengths {lengths} takes sizes {taken}, got {operand}")
        if kind == "RFFT":
            last = lengths[-1] // 2 + 1 if lengths[-1] else 0
            shape = (*leading, *lengths[:-1], last)
            return (TensorType(shape, f"complex<{operand.dtype}>"),)
        result = operand.part if kind == "IRFFT" else operand
        return (result.with_shape((*leading, *lengths)),)

    @property
    def is_apart(self) -> bool:
        """XLA:CPU (jaxlib 0.10.2) fails otherwise."""
        return True

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.fft``."""
        return (fft(operands[0], self.fft_type, self.fft_length),)
