"""Operations that place elements without computing on them: broadcasts, reshapes, slices, pads, constants."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes._jax_compat import broadcast_in_dim, broadcasted_iota, optimization_barrier
from hlo_passes.ir.op import FusionCategory, Op
from hlo_passes.ir.types import TensorType


@dataclass(frozen=True)
class DataMovement(Op):
    """Base of the operations whose result elements are copies of operand elements."""

    category: ClassVar[FusionCategory] = FusionCategory.INJECTIVE


def _is_unique(numbers: Sequence[int]) -> bool:
    return len(set(numbers)) == len(numbers)


@dataclass(frozen=True)
class BroadcastInDim(DataMovement):
    """Repeat the operand to ``shape``; its dimension ``d`` becomes ``broadcast_dimensions[d]``.

    Spec: StableHLO "broadcast_in_dim", constraints C2-C5.
    """

    name: ClassVar[str] = "stablehlo.broadcast_in_dim"
    shape: tuple[int, ...]
    broadcast_dimensions: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's element type in ``shape``."""
        self.require_arity(operands, 1)
        (operand,), placed = operands, self.broadcast_dimensions
        self.require("C2", len(placed) == operand.rank, lambda: f"{len(placed)} dimensions for {operand}")
        inside = all(0 <= dimension < len(self.shape) for dimension in placed)
        self.require(
            "C3", inside, lambda: f"dimensions {placed} are not all dimensions of shape {self.shape}"
        )
        self.require("C4", _is_unique(placed), lambda: f"dimensions {placed} repeat")
        for size, dimension in zip(operand.shape, placed, strict=True):
            fits = size in (1, self.shape[dimension])
            self.require("C5", fits, lambda: f"{operand} does not broadcast to {self.shape} along {placed}")
        return (operand.with_shape(self.shape),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.broadcast_in_dim``; it wants increasing dimensions, so others are transposed first."""
        (operand,) = operands
        order = sorted(range(operand.ndim), key=self.broadcast_dimensions.__getitem__)
        if order != list(range(operand.ndim)):
            operand = lax.transpose(operand, order)
        return (broadcast_in_dim(operand, self.shape, sorted(self.broadcast_dimensions)),)


@dataclass(frozen=True)
class Reshape(DataMovement):
    """Give the elements another shape, in row-major order. Spec: StableHLO "reshape", constraint C2."""

    name: ClassVar[str] = "stablehlo.reshape"
    shape: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's element type in ``shape``."""
        self.require_arity(operands, 1)
        result = operands[0].with_shape(self.shape)
        same = result.size == operands[0].size
        self.require(
            "C2", same, lambda: f"{operands[0]} has {operands[0].size} elements, {result} {result.size}"
        )
        return (result,)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.reshape``."""
        return (lax.reshape(operands[0], self.shape),)


@dataclass(frozen=True)
class Transpose(DataMovement):
    """Permute the dimensions: result dimension ``d`` is the operand's ``permutation[d]``.

    Spec: StableHLO "transpose", constraint C2.
    """

    name: ClassVar[str] = "stablehlo.transpose"
    permutation: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type with its dimensions permuted."""
        self.require_arity(operands, 1)
        (operand,) = operands
        complete = sorted(self.permutation) == list(range(operand.rank))
        self.require(
            "C2", complete, lambda: f"{self.permutation} is no permutation of the dimensions of {operand}"
        )
        return (operand.with_shape(tuple(operand.shape[dimension] for dimension in self.permutation)),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.transpose``."""
        return (lax.transpose(operands[0], self.permutation),)


@dataclass(frozen=True)
class Slice(DataMovement):
    """Take elements from ``start`` up to ``limit`` in steps of ``strides``.

    Spec: StableHLO "slice", constraints C2-C5.
    """

    name: ClassVar[str] = "stablehlo.slice"
    start: tuple[int, ...]
    limit: tuple[int, ...]
    strides: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's element type in the slice's shape."""
        self.require_arity(operands, 1)
        (operand,) = operands
        complete = len(self.start) == len(self.limit) == len(self.strides) == operand.rank
        self.require(
            "C2", complete, lambda: f"start, limit and strides are not one each per dimension of {operand}"
        )
        sizes: list[int] = []
        for start, limit, stride, size in zip(
            self.start, self.limit, self.strides, operand.shape, strict=True
        ):
            inside = 0 <= start <= limit <= size
            self.require("C3", inside, lambda: f"{self.start} to {self.limit} is not inside {operand}")
            self.require("C4", stride > 0, lambda: f"strides {self.strides}, expected positive ones")
            sizes.append(-(-(limit - start) // stride))
        return (operand.with_shape(tuple(sizes)),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.slice``."""
        return (lax.slice(operands[0], self.start, self.limit, self.strides),)


@dataclass(frozen=True)
class Pad(DataMovement):
    """Put copies of the second operand around the elements of the first, and between them.

    ``low`` and ``high`` count those before and after (negative ones cut), ``interior`` those between.

    Spec: StableHLO "pad", constraints C1-C4.
    """

    name: ClassVar[str] = "stablehlo.pad"
    low: tuple[int, ...]
    high: tuple[int, ...]
    interior: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's element type in the padded shape."""
        self.require_arity(operands, 2)
        operand, value = operands
        self.require("I2", value.rank == 0, lambda: f"expected a scalar padding value, got {value}")
        self.require(
            "C1", operand.dtype == value.dtype, lambda: f"element types of {operand} and {value} differ"
        )
        complete = len(self.low) == len(self.high) == len(self.interior) == operand.rank
        self.require(
            "C2", complete, lambda: f"low, high and interior are not one each per dimension of {operand}"
        )
        self.require(
            "C3", min(self.interior, default=0) >= 0, lambda: f"interior {self.interior} has negative padding"
        )
        padding = zip(operand.shape, self.low, self.high, self.interior, strict=True)
        shape = tuple(size + low + high + max(size - 1, 0) * between for size, low, high, between in padding)
        self.require(
            "C4", min(shape, default=0) >= 0, lambda: f"the padded shape {shape} of {operand} is negative"
        )
        return (operand.with_shape(shape),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.pad``."""
        operand, value = operands
        return (lax.pad(operand, value, list(zip(self.low, self.high, self.interior, strict=True))),)


@dataclass(frozen=True)
class Concatenate(DataMovement):
    """Join the operands end to end along ``dimension``. Spec: StableHLO "concatenate", constraints C1-C6."""

    name: ClassVar[str] = "stablehlo.concatenate"
    dimension: int

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operands' element type, with their sizes along ``dimension`` added."""
        self.require("C3", bool(operands), "no operands")
        first, axis = operands[0], self.dimension
        self.require("C4", 0 <= axis < first.rank, lambda: f"dimension {axis} is not a dimension of {first}")
        for operand in operands[1:]:
            self.require("C1", operand.dtype == first.dtype, f"element types of {first} and {operand} differ")
            same = operand.rank == first.rank and _without(operand.shape, axis) == _without(first.shape, axis)
            self.require("C2", same, f"{first} and {operand} differ in more than dimension {axis}")
        total = sum(operand.shape[axis] for operand in operands)
        return (first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :])),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.concatenate``."""
        return (lax.concatenate(operands, self.dimension),)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


@dataclass(frozen=True)
class Reverse(DataMovement):
    """Reverse the order of elements along ``dimensions``. Spec: StableHLO "reverse", constraints C2-C3."""

    name: ClassVar[str] = "stablehlo.reverse"
    dimensions: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type."""
        self.require_arity(operands, 1)
        (operand,), axes = operands, self.dimensions
        self.require("C2", _is_unique(axes), lambda: f"dimensions {axes} repeat")
        inside = all(0 <= axis < operand.rank for axis in axes)
        self.require("C3", inside, lambda: f"dimensions {axes} are not all dimensions of {operand}")
        return (operand,)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.rev``."""
        return (lax.rev(operands[0], self.dimensions),)


@dataclass(frozen=True)
class Iota(DataMovement):
    """Count 0, 1, 2, ... along ``dimension``. Spec: StableHLO "iota", constraint C1."""

    name: ClassVar[str] = "stablehlo.iota"
    type: TensorType
    dimension: int

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return ``type``."""
        self.require_arity(operands, 0)
        self.require("O1", not self.type.is_bool, lambda: f"expected numbers, got {self.type}")
        inside = 0 <= self.dimension < self.type.rank
        self.require("C1", inside, lambda: f"dimension {self.dimension} is not a dimension of {self.type}")
        return (self.type,)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.broadcasted_iota``."""
        return (broadcasted_iota(self.type.np_dtype, self.type.shape, self.dimension),)


@dataclass(frozen=True, eq=False)
class Constant(DataMovement):
    """A value known at compile time. Spec: StableHLO "constant", constraint C1.

    ``value`` is read-only and has ``type``'s shape, or shape () when all elements have the same bits: equal
    constants are stored alike, compare equal to the bit, and a splat never takes more room than one element.
    """

    name: ClassVar[str] = "stablehlo.constant"
    value: np.ndarray
    type: TensorType

    def __post_init__(self) -> None:
        """Check the value, make it compact and read-only."""
        value = np.asarray(self.value)
        matches = value.dtype == self.type.np_dtype and value.shape in ((), self.type.shape)
        self.require(
            "C1", matches, lambda: f"value of shape {value.shape} and {value.dtype} for type {self.type}"
        )
        if value.ndim and value.size and _is_splat(value):
            value = value.reshape(-1)[0]
        value = np.array(value)
        value.setflags(write=False)
        object.__setattr__(self, "value", value)

    @classmethod
    def of(cls, array: Any, dtype: str | None = None) -> Constant:
        """Return the constant that holds ``array``, converted to ``dtype`` if given."""
        type_ = TensorType.of(np.asarray(array)) if dtype is None else TensorType(np.shape(array), dtype)
        return cls(np.asarray(array).astype(type_.np_dtype), type_)

    @classmethod
    def splat(cls, element: Any, type_: TensorType) -> Constant:
        """Return ``element`` in every place of ``type_``."""
        return cls(np.asarray(element).astype(type_.np_dtype).reshape(()), type_)

    @property
    def is_splat(self) -> bool:
        """Whether one element stands for all (a scalar is a splat)."""
        return self.value.ndim == 0

    @property
    def is_apart(self) -> bool:
        """Whether it holds NaN: of the exponential of a NaN that it knows XLA:CPU (jaxlib 0.10.2) makes any numbers."""
        return bool((self.value != self.value).any())

    @property
    def array(self) -> np.ndarray:
        """The whole value, as a read-only numpy array in ``type``'s shape."""
        return np.broadcast_to(self.value, self.type.shape)

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return ``type``."""
        self.require_arity(operands, 0)
        return (self.type,)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Return the value as a JAX array, which JAX and XLA take for unknown.

        XLA's constant folder (jaxlib 0.10.2) evaluates a bitcast whose operand and result differ in layout by
        copying bytes: in a loop, the bits of a constant that was transposed outside come back untransposed.
        JAX computes the conversion of a scalar constant while it traces, so that no other arithmetic sees it.
        Of 0, 1, 2, ... in floats of 8 bits XLA makes a count, for which XLA:CPU has no code in a loop: they are turned round.
        """
        if self._counts:
            return (lax.rev(optimization_barrier(jnp.asarray(self.value[::-1])), (0,)),)
        return (jnp.broadcast_to(optimization_barrier(jnp.asarray(self.value)), self.type.shape),)

    @property
    def _counts(self) -> bool:
        """Whether it is 0, 1, 2, ... in floats of 8 bits."""
        is_row = self.type.is_float and self.value.dtype.itemsize == 1 and self.value.ndim == 1
        return is_row and bool((self.value.astype(np.float32) == np.arange(self.value.size)).all())

    def __eq__(self, other: object) -> bool:
        """Whether type and every bit are the same."""
        return isinstance(other, Constant) and self._key == other._key

    def __hash__(self) -> int:
        """Agree with ``==``."""
        return hash(self._key)

    @functools.cached_property
    def _key(self) -> tuple[TensorType, tuple[int, ...], bytes]:
        """What says all bits of it, in little room."""
        words = self.value.tobytes()
        return self.type, self.value.shape, words if len(words) <= 64 else hashlib.sha256(words).digest()


def _is_splat(value: np.ndarray) -> bool:
    """Tell whether all elements have the same bits (so -0.0 differs from 0.0, and NaN equals itself)."""
    width = value.dtype.itemsize if value.dtype.kind != "c" else value.dtype.itemsize // 2
    words = np.ascontiguousarray(value).reshape(-1).view(f"u{width}").reshape(value.size, -1)
    return bool((words[0] == words[-1]).all()) and bool((words == words[0]).all())


@dataclass(frozen=True)
class OptimizationBarrier(Op):
    """Return the operands; nothing moves across. Spec: StableHLO "optimization_barrier", constraint C1."""

    name: ClassVar[str] = "stablehlo.optimization_barrier"

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return the operands' types."""
        return operands

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Apply ``lax.optimization_barrier``."""
        return tuple(optimization_barrier(operands))
