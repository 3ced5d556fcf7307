"""Reductions: fold the elements along dimensions with a combining region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes._jax_compat import Fold, finfo, reduce_sum
from hlo_passes.ir.interpreter import Closure, as_closure, as_computation
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import FusionCategory, Op
from hlo_passes.ir.types import DTYPES, TensorType
from hlo_passes.ops.data_movement import Constant

Combiner = Literal["add", "mul", "max", "min", "and", "or", "xor"]

_COMBINER_OF: dict[str, Combiner] = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
    "stablehlo.xor": "xor",
}
_ON_BOOLEANS: dict[Combiner, Combiner] = {"add": "or", "max": "or", "mul": "and", "min": "and"}
_FOLDS: dict[Combiner, tuple[Fold, Callable[[Array, Array], Array]]] = {
    "add": (reduce_sum, lax.add),
    "mul": (lax.reduce_prod, lax.mul),
    "max": (lax.reduce_max, lax.max),
    "min": (lax.reduce_min, lax.min),
    "and": (lax.reduce_and, lax.bitwise_and),
    "or": (lax.reduce_or, lax.bitwise_or),
    "xor": (lax.reduce_xor, lax.bitwise_xor),
}


def simple_combiner(region: Computation | Closure) -> Combiner | None:
    """Return what a combining region computes when it is one well-known operation on its two parameters.

    On booleans ``add`` and ``max`` are named ``or``, ``mul`` and ``min`` are named ``and``.
    """
    body = as_computation(region)
    if len(body.parameters) != 2 or len(body.instructions) != 1:
        return None
    (instruction,) = body.instructions
    combiner = _COMBINER_OF.get(instruction.op.name)
    if combiner is None or body.results != instruction.results:
        return None
    if set(instruction.operands) != set(body.parameters):
        return None
    return _ON_BOOLEANS.get(combiner, combiner) if body.parameters[0].type.is_bool else combiner


def neutral_element(combiner: Combiner, dtype: str) -> np.ndarray:
    """Return the value that changes nothing it is combined with, as a numpy scalar array."""
    kind = DTYPES[dtype]
    if combiner in ("max", "min"):
        limits = _limits(kind.np_dtype)
        return np.array(limits[combiner == "min"]).astype(kind.np_dtype)
    if combiner == "and":
        return np.asarray(~np.array(0, kind.np_dtype))
    return np.array(int(combiner == "mul")).astype(kind.np_dtype)


def is_neutral(combiner: Combiner, constant: Constant) -> bool:
    """Whether a constant changes nothing it is combined with; zeros of either sign may be added."""
    element = constant.value
    neutral = neutral_element(combiner, constant.type.dtype).tobytes()
    return constant.is_splat and (element.tobytes() == neutral or (combiner == "add" and not element))


def _limits(dtype: np.dtype) -> tuple[Any, Any]:
    """Return the least and the greatest number of a type; the infinities where it has any."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if np.isinf(np.array(np.inf).astype(dtype)):
        return -np.inf, np.inf
    return finfo(dtype).min, finfo(dtype).max


@dataclass(frozen=True)
class Reduce(Op):
    """Fold inputs (first half of the operands) along ``dimensions``, from initial values (second half).

    The region combines N values with N values into N. Spec: StableHLO "reduce", constraints C1-C8. The order
    of combination is the implementation's.
    """

    name: ClassVar[str] = "stablehlo.reduce"
    category: ClassVar[FusionCategory] = FusionCategory.REDUCTION
    num_regions: ClassVar[int] = 1
    dimensions: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the inputs' shape without ``dimensions``, with the element types of the region's results."""
        half = len(operands) // 2
        even = half > 0 and len(operands) == 2 * half
        self.require(
            "C3", even, lambda: f"{len(operands)} operands are not inputs and as many initial values"
        )
        inputs, initial = operands[:half], operands[half:]
        first, axes = inputs[0], self.dimensions
        for value, start in zip(inputs, initial, strict=True):
            self.require("C1", value.shape == first.shape, f"shapes of inputs {first} and {value} differ")
            self.require("I2", start.rank == 0, f"expected scalar initial values, got {start}")
            self.require("C2", value.dtype == start.dtype, f"element types of {value} and {start} differ")
        inside = all(0 <= axis < first.rank for axis in axes)
        self.require("C4", inside, lambda: f"dimensions {axes} are not all dimensions of {first}")
        self.require("C5", len(set(axes)) == len(axes), lambda: f"dimensions {axes} repeat")
        kept = tuple(size for axis, size in enumerate(first.shape) if axis not in axes)
        return tuple(TensorType(kept, dtype) for dtype in self._element_types(regions, inputs))

    def _element_types(self, regions: Sequence[Computation], inputs: Sequence[TensorType]) -> list[str]:
        self.require("C6", len(regions) == 1, lambda: f"expected 1 region, got {len(regions)}")
        body = as_computation(regions[0])
        results = body.result_types
        shaped = body.parameter_types == results * 2 and len(results) == len(inputs)
        scalar = all(result.rank == 0 for result in results)
        same_kind = shaped and all(_promotes(a, b) for a, b in zip(inputs, results, strict=True))
        expected = f"two scalars in and one out per input, for inputs {', '.join(map(str, inputs))}"
        self.require("C6", shaped and scalar and same_kind, lambda: f"the region is not of type {expected}")
        return [result.dtype for result in results]

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Fold with JAX's own reduction when the region is simple, else with ``lax.reduce``."""
        half = len(operands) // 2
        types = [value.type.np_dtype for value in as_computation(regions[0]).results] * 2
        operands = tuple(lax.convert_element_type(x, t) for x, t in zip(operands, types, strict=True))
        inputs, initial = operands[:half], operands[half:]
        combiner = simple_combiner(regions[0])
        if combiner is not None:
            fold, combine = _FOLDS[combiner]
            return (_combined(fold(inputs[0], self.dimensions), initial[0], combine),)
        body = as_closure(regions[0])
        return tuple(lax.reduce(inputs, initial, lambda x, y: body(*x, *y), self.dimensions))


def _combined(folded: Array, initial: Array, combine: Callable[[Array, Array], Array]) -> Array:
    return combine(folded, jnp.broadcast_to(initial, folded.shape))


def _promotes(narrow: TensorType, wide: TensorType) -> bool:
    """Tell whether elements of ``narrow`` may be accumulated as ``wide``: the same kind, no fewer bits."""
    kinds = [(t.is_bool, t.is_inexact, t.is_complex, t.is_unsigned) for t in (narrow, wide)]
    return kinds[0] == kinds[1] and narrow.bits <= wide.bits
