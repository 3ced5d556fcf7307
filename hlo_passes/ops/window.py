"""Windows: fold every window of an array, or send values to the element that each window selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_passes._jax_compat import fori_loop, reduce_window
from hlo_passes.ir.interpreter import Closure, as_closure, as_computation
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import FusionCategory, Op
from hlo_passes.ir.types import TensorType
from hlo_passes.ops.convolution import window_count
from hlo_passes.ops.elementwise import Compare
from hlo_passes.ops.reduction import simple_combiner

_FOLDS: dict[str, Callable[..., Array]] = {
    "add": lax.add,
    "mul": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
}
_SCATTERS: dict[str, Callable[..., Array]] = {
    "add": lax.scatter_add,
    "mul": lax.scatter_mul,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
}


@dataclass(frozen=True)
class ReduceWindow(Op):
    """Fold every window of the inputs (first half of the operands), from initial values.

    The operands are the inputs, then as many scalar initial values.

    Spec: StableHLO "reduce_window", constraints C1-C13. ``low`` and ``high`` are the padding, in counts of
    the elements that ``base_dilations`` spreads; negative padding cuts off. The order of combination is the
    implementation's. Padding takes no part, as in XLA; the specification folds the initial value there,
    which is the same wherever that value is neutral.
    """

    name: ClassVar[str] = "stablehlo.reduce_window"
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE
    num_regions: ClassVar[int] = 1
    window_dimensions: tuple[int, ...]
    window_strides: tuple[int, ...]
    base_dilations: tuple[int, ...]
    window_dilations: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return an element per window, of the region's result types."""
        half = len(operands) // 2
        even = half > 0 and len(operands) == 2 * half
        self.require(
            "C1", even, lambda: f"{len(operands)} operands are not inputs and as many initial values"
        )
        inputs, initial = operands[:half], operands[half:]
        first = inputs[0]
        for value, start in zip(inputs, initial, strict=True):
            self.require("C2", value.shape == first.shape, f"shapes of inputs {first} and {value} differ")
            self.require("I2", start.rank == 0, f"expected scalar initial values, got {start}")
            self.require("C3", value.dtype == start.dtype, f"element types of {value} and {start} differ")
        for count, positive, field in (
            ("C4", "C5", self.window_dimensions),
            ("C6", "C7", self.window_strides),
            ("C8", "C9", self.base_dilations),
            ("C10", "C11", self.window_dilations),
        ):
            self.require(count, len(field) == first.rank, f"not one entry per dimension of {first}: {field}")
            self.require(positive, min(field, default=1) > 0, f"expected positive entries, got {field}")
        padded = len(self.low) == len(self.high) == first.rank
        self.require("C12", padded, lambda: f"low and high are not one each per dimension of {first}")
        shape = self.counts(first.shape)
        return tuple(TensorType(shape, dtype) for dtype in self._element_types(regions, inputs))

    def counts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return how many windows lie along each dimension of inputs of these sizes."""
        return tuple(
            window_count(size, window, stride, low + high, base, dilation)
            for size, window, stride, low, high, base, dilation in zip(
                sizes,
                self.window_dimensions,
                self.window_strides,
                self.low,
                self.high,
                self.base_dilations,
                self.window_dilations,
                strict=True,
            )
        )

    def _element_types(self, regions: Sequence[Computation], inputs: Sequence[TensorType]) -> list[str]:
        self.require("C13", len(regions) == 1, lambda: f"expected 1 region, got {len(regions)}")
        body = as_computation(regions[0])
        results = body.result_types
        shaped = body.parameter_types == results * 2 and len(results) == len(inputs)
        scalar = all(result.rank == 0 for result in results)
        same = shaped and all(a.dtype == b.dtype for a, b in zip(inputs, results, strict=True))
        expected = f"two scalars in and one out per input, for inputs {', '.join(map(str, inputs))}"
        self.require("C13", scalar and same, lambda: f"the region is not of type {expected}")
        return [result.dtype for result in results]

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Apply ``lax.reduce_window``."""
        half = len(operands) // 2
        inputs, initial = operands[:half], operands[half:]
        window = (
            self.window_dimensions,
            self.window_strides,
            list(zip(self.low, self.high, strict=True)),
            self.base_dilations,
            self.window_dilations,
        )
        combiner = simple_combiner(regions[0])
        if combiner is not None:
            return (reduce_window(inputs[0], initial[0], _FOLDS[combiner], *window),)
        body = as_closure(regions[0])
        if half == 1:
            return (reduce_window(inputs[0], initial[0], _single(body), *window),)
        return tuple(reduce_window(inputs, initial, _joined(body), *window))


def _single(body: Closure) -> Callable[[Array, Array], Array]:
    """Return a region of two values as the function that ``reduce_window`` takes of one input."""
    return lambda x, y: body(x, y)[0]


def _joined(body: Closure) -> Callable[[Sequence[Array], Sequence[Array]], tuple[Array, ...]]:
    """Return a region as the function of two sequences of values that ``reduce_window`` takes of several."""
    return lambda x, y: body(*x, *y)


def simple_selection(region: Computation | Closure) -> str | None:
    """Return the direction ("GE", ...) of a selecting region that compares its two parameters, or None."""
    body = as_computation(region)
    if len(body.parameters) != 2 or len(body.instructions) != 1:
        return None
    (instruction,) = body.instructions
    op = instruction.op
    straight = instruction.operands == body.parameters and body.results == instruction.results
    return op.direction if isinstance(op, Compare) and straight else None


@dataclass(frozen=True)
class SelectAndScatter(Op):
    """Send every element of ``source`` to the element of the operand that its window selects.

    The first region selects: of two elements of a window the earlier one stays while it returns true; the
    second one combines what meets, starting from the initial value. Operands are the operand, the source and
    the initial value. Padding is never selected.

    Spec: StableHLO "select_and_scatter", constraints C1-C10. As in XLA the initial value is combined too,
    with what arrives; the specification leaves it out there, which is the same wherever it is neutral.
    """

    name: ClassVar[str] = "stablehlo.select_and_scatter"
    category: ClassVar[FusionCategory] = FusionCategory.OPAQUE
    num_regions: ClassVar[int] = 2
    window_dimensions: tuple[int, ...]
    window_strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the operand's type."""
        self.require_arity(operands, 3)
        operand, source, initial = operands
        self.require("C1", operand.dtype == source.dtype, f"element types of {operand} and {source} differ")
        self.require("I3", initial.rank == 0, lambda: f"expected a scalar initial value, got {initial}")
        self.require("C3", initial.dtype == operand.dtype, f"element types of {operand} and {initial} differ")
        for count, positive, field in (
            ("C4", "C5", self.window_dimensions),
            ("C6", "C7", self.window_strides),
        ):
            self.require(
                count, len(field) == operand.rank, f"not one entry per dimension of {operand}: {field}"
            )
            self.require(positive, min(field, default=1) > 0, f"expected positive entries, got {field}")
        padded = len(self.low) == len(self.high) == operand.rank
        self.require("C8", padded, lambda: f"low and high are not one each per dimension of {operand}")
        windows = tuple(
            window_count(size, window, stride, low + high)
            for size, window, stride, low, high in zip(
                operand.shape, self.window_dimensions, self.window_strides, self.low, self.high, strict=True
            )
        )
        self.require("C2", source.shape == windows, lambda: f"{windows} windows, the source is {source}")
        self._check_regions(regions, operand.with_shape(()))
        return (operand,)

    def _check_regions(self, regions: Sequence[Computation], element: TensorType) -> None:
        both = len(regions) == 2
        select = as_computation(regions[0]) if both else None
        scatter = as_computation(regions[1]) if both else None
        selects = select is not None and select.result_types == (TensorType((), "i1"),)
        selects = selects and select is not None and select.parameter_types == (element, element)
        self.require("C9", selects, lambda: f"the first region does not choose between two {element}")
        scatters = scatter is not None and scatter.result_types == (element,)
        scatters = scatters and scatter is not None and scatter.parameter_types == (element, element)
        self.require("C10", scatters, lambda: f"the second region does not combine two {element}")

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Find each window's element by folding pairs (value, position), then scatter to the positions."""
        operand, source, initial = operands
        if not operand.size:
            return (operand,)
        chosen = self._selected(operand, as_closure(regions[0])).reshape(-1)
        start = jnp.broadcast_to(initial, (operand.size,))
        updates = source.reshape(-1)
        scatter = _SCATTERS.get(simple_combiner(regions[1]) or "")
        if scatter is not None:
            numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
            mode = lax.GatherScatterMode.FILL_OR_DROP
            where = jnp.where(chosen < 0, operand.size, chosen)
            result = scatter(start, where[:, None], updates, numbers, mode=mode)
        else:
            result = scatter_one_by_one(start, chosen, updates, as_closure(regions[1]))
        return (result.reshape(operand.shape),)

    def _selected(self, operand: Array, select: Closure) -> Array:
        """Return the flat position of every window's selected element, -1 of windows of padding only.

        XLA folds windows in an order of its own, so of two candidates the positions say which is the earlier.
        """
        position = jnp.arange(operand.size, dtype=jnp.int32).reshape(operand.shape)

        def better(left: Any, right: Any) -> tuple[Array, Array]:
            (value, here), (other, there) = left, right
            in_order = here < there
            (stays,) = select(jnp.where(in_order, value, other), jnp.where(in_order, other, value))
            keep = (there < 0) | ((here >= 0) & (stays == in_order))
            return jnp.where(keep, value, other), jnp.where(keep, here, there)

        nothing = (np.zeros((), operand.dtype), np.int32(-1))
        padding = list(zip(self.low, self.high, strict=True))
        return reduce_window(
            (operand, position), nothing, better, self.window_dimensions, self.window_strides, padding
        )[1]


def scatter_one_by_one(start: Array, chosen: Array, updates: Array, combine: Closure) -> Array:
    """Combine updates with the elements at flat positions (none: -1), in order, by any function."""

    def step(number: Any, result: Array) -> Array:
        where = jnp.maximum(chosen[number], 0)
        (new,) = combine(result[where], updates[number])
        return result.at[where].set(jnp.where(chosen[number] < 0, result[where], new))

    return fori_loop(0, updates.size, step, start)
