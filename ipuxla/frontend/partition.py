"""A module for many devices to the program of one, by XLA's own partitioner, and how its arguments and results are cut.

What a sharding means (propagation, halos, which collectives, sizes that do not divide) is XLA's. A module that is
written by hand for one device throughout, one ``shard_map`` over all axes, needs no partitioner: its body is the
program, for any number of devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ipuxla.errors import Unsupported
from ipuxla.frontend import _jax_compat as compat
from ipuxla.frontend.shardings import Shardings
from ipuxla.sharding import ArraySharding, Digits, Mesh, Placement, digits_of_axes

MAX_DEVICES = 2048
"""The most devices for which XLA's CPU client partitions (jaxlib 0.10.2: 4,096 are refused)."""


class Partitioned(NamedTuple):
    """One device's program, an MLIR module of StableHLO, and how its arguments and results are cut."""

    module: Any
    placement: Placement


def partition(module: Any, shardings: Shardings, donated: Sequence[int] = ()) -> Partitioned:
    """Return the program of one device.

    Args:
      module: an MLIR module of StableHLO for the devices of a mesh; it may be consumed.
      shardings: the mesh, and what was said of arguments and results.
      donated: arguments to mark as donated.

    Raises:
      Unsupported: more devices than XLA partitions for, or XLA refuses the module.
    """
    mesh = shardings.axes
    axes = digits_of_axes(mesh)
    ranks, shapes = compat.signature_of_main(module)
    manual = compat.manual_body(module, [name for name, _ in mesh])
    if manual is not None:
        local, *dimensions = manual
        inputs, outputs = (
            tuple(
                ArraySharding(tuple(tuple(axes[name] for name in names) for names in each)) for each in role
            )
            for role in dimensions
        )
        return Partitioned(local, Placement(mesh, inputs, outputs, shapes))
    num_devices = shardings.mesh.size
    if num_devices > MAX_DEVICES:
        raise Unsupported(
            f"a program of {num_devices:,} devices is partitioned by XLA, which does so for {MAX_DEVICES:,} at most",
            try_="write it for one device: jax.shard_map over all axes of the mesh, around the whole function",
        )
    free = [s is None for s in shardings.inputs], [s is None for s in shardings.outputs]
    try:
        local, texts, whole = compat.partitioned_module(module, num_devices, free)
        separate = texts, compat.separate_shardings(whole) if ranks[1] else []
        inputs, outputs = (
            tuple(_sharding(text, rank, mesh) for text, rank in zip(*role, strict=True))
            for role in zip(separate, ranks, strict=True)
        )
    except ValueError as error:
        raise Unsupported(
            f"XLA's partitioner refuses the program: {error}",
            try_="another sharding, or jax.shard_map around what it refuses",
        ) from error
    if donated:
        compat.mark_donated(local, donated)
    return Partitioned(local, Placement(mesh, inputs, outputs, shapes))


def _sharding(text: str, rank: int, mesh: Mesh) -> ArraySharding:
    """Return a sharding in XLA's text as digits of a device's number.

    Raises:
      ValueError: it cuts by no digits.
    """
    parts, devices = compat.tiles_of(text, rank)
    if math.prod(parts) == 1:
        return ArraySharding(((),) * rank)
    places = np.indices(devices.shape).reshape(rank + 1, -1)
    by_device = places[:, np.argsort(devices.reshape(-1), kind="stable")]
    return ArraySharding(tuple(_digits(place, mesh) for place in by_device[:rank]))


def _digits(place: np.ndarray, mesh: Mesh) -> Digits:
    """Return the digits of a device's number that make up its place along a dimension, int64 ``[devices]``."""
    whole = [digit for digit in digits_of_axes(mesh).values() if digit[0] > 1]
    prime = [part for digit in whole for part in _prime_digits(*digit)]
    numbers = np.arange(len(place))
    for digits in (whole, prime):
        weights = [int(place[stride]) for _, stride in digits]
        value = sum(
            (
                numbers // stride % size * weight
                for (size, stride), weight in zip(digits, weights, strict=True)
            ),
            np.zeros_like(place),
        )
        if (value == place).all():
            ordered = sorted(zip(weights, digits, strict=True), reverse=True)
            return tuple(digit for weight, digit in ordered if weight)
    raise ValueError("a sharding that cuts across the axes of the mesh")


def _prime_digits(size: int, stride: int) -> list[tuple[int, int]]:
    """Return a digit as digits of prime sizes, the slowest first."""
    found: list[tuple[int, int]] = []
    factor = 2
    while size > 1:
        if size % factor:
            factor += 1
            continue
        found.append((factor, stride))
        size, stride = size // factor, stride * factor
    return found[::-1]
