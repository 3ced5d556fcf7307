"""Operations that take complex numbers apart and put them together.

Arithmetic on complex numbers is that of ``elementwise``, whose operations accept them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array, lax

from hlo_passes.ir.types import TensorType
from hlo_passes.ops.elementwise import INEXACT, Elementwise, Unary


@dataclass(frozen=True)
class Complex(Elementwise):
    """Join real and imaginary parts. Spec: StableHLO "complex", constraints C1-C3."""

    name: ClassVar[str] = "stablehlo.complex"
    accepts: ClassVar[frozenset[str]] = frozenset({"f32", "f64"})

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the complex type whose parts are of the operands' type."""
        self.require_arity(operands, 2)
        self.require_accepted(operands)
        real, imag = operands
        self.require("C1", real == imag, lambda: f"parts have types {real} and {imag}, expected one type")
        return (real.with_dtype(f"complex<{real.dtype}>"),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.complex``."""
        return (lax.complex(*operands),)


@dataclass(frozen=True)
class Part(Unary):
    """Base of the operations that take one part of numbers, which may be real already."""

    accepts: ClassVar[frozenset[str]] = INEXACT

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the type of the operand's parts."""
        return (super().infer(*operands)[0].part,)


def _real(operand: Array) -> Array:
    return lax.real(operand) if jnp.iscomplexobj(operand) else operand


def _imag(operand: Array) -> Array:
    return lax.imag(operand) if jnp.iscomplexobj(operand) else jnp.zeros_like(operand)


@dataclass(frozen=True)
class Real(Part):
    """Real part; of floats themselves. Spec: StableHLO "real", constraints C1-C2."""

    name: ClassVar[str] = "stablehlo.real"
    function: ClassVar[Callable[..., Array]] = staticmethod(_real)


@dataclass(frozen=True)
class Imag(Part):
    """Imaginary part; of floats 0. Spec: StableHLO "imag", constraints C1-C2."""

    name: ClassVar[str] = "stablehlo.imag"
    function: ClassVar[Callable[..., Array]] = staticmethod(_imag)
