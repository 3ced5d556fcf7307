"""Evaluate the program of one device on all devices at once, along a leading axis: the witness for many devices.

Values that are equal on all devices are computed once, for as long as nothing that differs reaches them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from hlo_passes.errors import EvaluationError
from hlo_passes.ir.interpreter import Apply, Datum, Decisions, evaluate_module
from hlo_passes.ir.module import Module, Value
from hlo_passes.ir.types import TensorType

DEVICES = "hlo_passes.devices"
"""The axis of devices while all are evaluated."""


def evaluate_partitioned(
    module: Module, *arrays: Datum, apply: Apply | None = None, decisions: Decisions | None = None
) -> tuple[Datum, ...]:
    """Evaluate the entry computation on all devices of ``module.mesh``.

    Args:
      module: the program that every device runs.
      *arrays: for each parameter what the devices hold, ``[devices, *shape]``, or one array ``[*shape]`` that is the
        same on all.
      apply: as for ``evaluate_module``.
      decisions: likewise.

    Returns:
      For each result what the devices hold, ``[devices, *shape]``.

    Raises:
      EvaluationError: arrays of other shapes or element types.
    """
    num_devices = math.prod(size for _, size in module.mesh)
    entry = module.entry_computation
    if len(arrays) != len(entry.parameters):
        raise EvaluationError(f"@{entry.name}: expected {len(entry.parameters)} arrays, got {len(arrays)}")

    def of_one(_: Array, *operands: Array) -> tuple[Datum, ...]:
        return evaluate_module(module, *operands, apply=apply, decisions=decisions)

    with jax.enable_x64(True):
        axes = [_axis(*pair, num_devices) for pair in zip(arrays, entry.parameters, strict=True)]
        numbers = jnp.arange(num_devices, dtype=jnp.uint32)
        evaluate = jax.vmap(of_one, in_axes=(0, *axes), axis_name=DEVICES, axis_size=num_devices)
        return tuple(evaluate(numbers, *map(jnp.asarray, arrays)))


def _axis(array: Datum, parameter: Value, num_devices: int) -> int | None:
    """Return 0 where an array has the axis of devices, None where it is the same on all."""
    got = TensorType.of(jnp.asarray(array))
    type_ = parameter.type
    if got == type_.with_shape((num_devices, *type_.shape)):
        return 0
    if got == type_:
        return None
    raise EvaluationError(f"{parameter}: expected {type_} of {num_devices} devices or of one, got {got}")


def device_number() -> Array:
    """Return the number of the device, ui32, that is evaluated.

    Raises:
      EvaluationError: one device is evaluated alone.
    """
    try:
        return lax.axis_index(DEVICES).astype(jnp.uint32)
    except NameError:
        raise EvaluationError(
            "the program of one of many devices is evaluated alone; evaluate_partitioned evaluates all"
        ) from None


def of_all_devices(function: Callable[[Array], Array], operand: Array, type_: TensorType) -> Array:
    """Return one device's part of a function of what all devices hold.

    Args:
      function: of ``[devices, ...]`` to ``[devices, ...]``.
      operand: what this device holds.
      type_: of the result on one device.

    Raises:
      EvaluationError: one device is evaluated alone.
    """

    @custom_vmap
    def of_one(number: Array, x: Array) -> Array:
        return jnp.zeros(type_.shape, type_.np_dtype)

    @of_one.def_vmap
    def of_all(size: int, is_batched: Sequence[bool], number: Array, x: Array) -> tuple[Array, bool]:
        stacked = x if is_batched[1] else jnp.broadcast_to(x[None], (size, *x.shape))
        return function(stacked), True

    assert of_all
    return of_one(device_number(), operand)
