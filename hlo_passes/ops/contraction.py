"""Contractions: sums of products over shared dimensions."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax import Array, lax

from hlo_passes._jax_compat import dot_general
from hlo_passes.ir.op import FusionCategory, Op, attribute
from hlo_passes.ir.types import DTYPES, TensorType, dtype_name
from hlo_passes.ops.elementwise import Convert

PRECISIONS = ("DEFAULT", "HIGH", "HIGHEST")
FLOAT = ("f16", "bf16", "f32", "f64")
PRECISION_TYPES = {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 10), "f32": (8, 23), "f64": (11, 52)}
"""Exponent and mantissa bits of the types an algorithm may round operands to."""


_RANKS = {"bool": 0, "integer": 0, "unsigned": 0, "float": 1, "complex": 2}


def product_dtypes(operands: str, result: str) -> tuple[str, str]:
    """Return the element types that operands are converted to, and in which products of these are added.

    Operands of a narrower kind (integers where the result is floats, reals where it is complex) take the result's
    type; a sum in a narrower type than the operands' is one in theirs, then converted. As XLA.
    """
    old, new = DTYPES[operands], DTYPES[result]
    if _RANKS[old.kind] > _RANKS[new.kind] or (_RANKS[old.kind] == _RANKS[new.kind] and new.bits < old.bits):
        return operands, operands
    return (operands if old.kind == new.kind else result), result


@attribute
@dataclass(frozen=True)
class DotDimensionNumbers:
    """Which dimensions of the operands are batched over, and which are summed over."""

    lhs_batching: tuple[int, ...] = ()
    rhs_batching: tuple[int, ...] = ()
    lhs_contracting: tuple[int, ...] = ()
    rhs_contracting: tuple[int, ...] = ()

    def lhs_free(self, rank: int) -> tuple[int, ...]:
        """Return the dimensions of a left operand of that rank that are neither batched nor summed over."""
        return _rest(rank, self.lhs_batching + self.lhs_contracting)

    def rhs_free(self, rank: int) -> tuple[int, ...]:
        """Return the dimensions of a right operand of that rank that are neither batched nor summed over."""
        return _rest(rank, self.rhs_batching + self.rhs_contracting)


def _rest(rank: int, used: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dimension for dimension in range(rank) if dimension not in used)


@attribute
@dataclass(frozen=True)
class DotAlgorithm:
    """How products are to be formed and added; types are names such as ``bf16`` or ``tf32``."""

    lhs_precision_type: str
    rhs_precision_type: str
    accumulation_type: str
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


@dataclass(frozen=True)
class DotGeneral(Op):
    """Sum products over the contracting dimensions; result dimensions are batch, free of lhs, free of rhs.

    Spec: StableHLO "dot_general", constraints C1-C13 and C21-C24. ``dtype`` is the element type of the
    result, in which the program asks for the accumulation; ``precision`` has one entry per operand or is
    empty (``DEFAULT`` for both).
    """

    name: ClassVar[str] = "stablehlo.dot_general"
    category: ClassVar[FusionCategory] = FusionCategory.OUT_FUSABLE
    dimension_numbers: DotDimensionNumbers
    dtype: str
    precision: tuple[str, ...] = ()
    algorithm: DotAlgorithm | None = None

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the result's shape with elements of ``dtype``."""
        self.require_arity(operands, 2)
        self._check_dimensions(*operands)
        self._check_numerics(*operands)
        (lhs, rhs), numbers = operands, self.dimension_numbers
        shape = tuple(lhs.shape[dimension] for dimension in numbers.lhs_batching)
        shape += tuple(lhs.shape[dimension] for dimension in numbers.lhs_free(lhs.rank))
        shape += tuple(rhs.shape[dimension] for dimension in numbers.rhs_free(rhs.rank))
        return (TensorType(shape, self.dtype),)

    def _check_dimensions(self, lhs: TensorType, rhs: TensorType) -> None:
        n = self.dimension_numbers
        self.require("C1", len(n.lhs_batching) == len(n.rhs_batching), lambda: f"batching counts differ: {n}")
        counts = len(n.lhs_contracting) == len(n.rhs_contracting)
        self.require("C2", counts, lambda: f"contracting counts differ: {n}")
        for tag, used in (
            ("C3", n.lhs_batching + n.lhs_contracting),
            ("C4", n.rhs_batching + n.rhs_contracting),
        ):
            self.require(tag, len(set(used)) == len(used), lambda: f"dimensions repeat: {n}")
        for tag, used, operand in (
            ("C5", n.lhs_batching, lhs),
            ("C6", n.lhs_contracting, lhs),
            ("C7", n.rhs_batching, rhs),
            ("C8", n.rhs_contracting, rhs),
        ):
            inside = all(0 <= dimension < operand.rank for dimension in used)
            self.require(tag, inside, f"dimensions {used} are not all dimensions of {operand}")
        for tag, left, right in (
            ("C9", n.lhs_batching, n.rhs_batching),
            ("C10", n.lhs_contracting, n.rhs_contracting),
        ):
            same = all(lhs.shape[i] == rhs.shape[j] for i, j in zip(left, right, strict=True))
            self.require(tag, same, f"sizes of {lhs} along {left} and {rhs} along {right} differ")

    def _check_numerics(self, lhs: TensorType, rhs: TensorType) -> None:
        precision = self.precision
        self.require("C11", len(precision) in (0, 2), lambda: f"expected 2 precisions, got {len(precision)}")
        known = all(entry in PRECISIONS for entry in precision)
        self.require("I7", known, lambda: f"precisions {precision} are not all of {PRECISIONS}")
        self.require("C13", lhs.dtype == rhs.dtype, lambda: f"element types of {lhs} and {rhs} differ")
        self.require("O1", self.dtype in DTYPES, lambda: f"unknown element type {self.dtype!r}")
        plain = self.algorithm is None or set(precision) <= {"DEFAULT"}
        self.require("C21", plain, lambda: f"an algorithm excludes precisions {precision}")
        if self.algorithm is not None:
            self._check_algorithm(self.algorithm)

    def _check_algorithm(self, algorithm: DotAlgorithm) -> None:
        for tag, field in (
            ("C22", "lhs_component_count"),
            ("C23", "rhs_component_count"),
            ("C24", "num_primitive_operations"),
        ):
            count = getattr(algorithm, field)
            self.require(tag, count > 0, f"{field} is {count}, expected at least 1")
        for tag, field in (("I8", "lhs_precision_type"), ("I9", "rhs_precision_type")):
            known = getattr(algorithm, field) in PRECISION_TYPES
            self.require(tag, known, f"{field} of {algorithm}, expected one of {', '.join(PRECISION_TYPES)}")
        known = algorithm.accumulation_type in FLOAT
        self.require(
            "I10", known, lambda: f"accumulation_type of {algorithm}, expected one of {', '.join(FLOAT)}"
        )

    @property
    def is_apart(self) -> bool:
        """Where there are batches: XLA:CPU (jaxlib 0.10.2) ends the process otherwise."""
        return bool(self.dimension_numbers.lhs_batching)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.dot_general``; an algorithm is spelled out in products of rounded operands."""
        lhs, rhs = operands
        if self.algorithm is None:
            precision = tuple(lax.Precision[entry] for entry in self.precision) or None
            taken, added = product_dtypes(dtype_name(lhs.dtype), self.dtype)
            lhs, rhs = (Convert(taken).evaluate(operand)[0] for operand in operands)
            return Convert(self.dtype).evaluate(self._dot(lhs, rhs, added, precision))
        return (self._dot_with(self.algorithm, lhs, rhs),)

    def _dot(
        self, lhs: Array, rhs: Array, dtype: str, precision: tuple[lax.Precision, ...] | None = None
    ) -> Array:
        n = self.dimension_numbers
        numbers = ((n.lhs_contracting, n.rhs_contracting), (n.lhs_batching, n.rhs_batching))
        return dot_general(
            lhs, rhs, numbers, precision=precision, preferred_element_type=DTYPES[dtype].np_dtype
        )

    def _dot_with(self, algorithm: DotAlgorithm, lhs: Array, rhs: Array) -> Array:
        """Sum the largest products of the operands' components, as the algorithm asks.

        Written out because XLA refuses, per platform, algorithms it has no kernel for. Programs may give only
        the number of operations (JAX's BF16_BF16_F32_X3 does): that many need a square of components.
        """
        enough = math.isqrt(algorithm.num_primitive_operations - 1) + 1
        wide = DTYPES[algorithm.accumulation_type].np_dtype
        left = _components(
            lhs.astype(wide), algorithm.lhs_precision_type, max(algorithm.lhs_component_count, enough)
        )
        right = _components(
            rhs.astype(wide), algorithm.rhs_precision_type, max(algorithm.rhs_component_count, enough)
        )
        pairs = sorted(itertools.product(range(len(left)), range(len(right))), key=sum)
        chosen = reversed(pairs[: algorithm.num_primitive_operations])
        products = [self._dot(left[i], right[j], algorithm.accumulation_type) for i, j in chosen]
        return functools.reduce(lax.add, products).astype(DTYPES[self.dtype].np_dtype)


def _components(operand: Array, precision_type: str, count: int) -> list[Array]:
    """Split into ``count`` arrays of that precision whose sum approaches the operand, the largest first."""
    exponent_bits, mantissa_bits = PRECISION_TYPES[precision_type]
    parts: list[Array] = []
    for _ in range(count):
        rounded = lax.reduce_precision(operand, exponent_bits, mantissa_bits)
        parts.append(rounded)
        operand = operand - rounded
    return parts
