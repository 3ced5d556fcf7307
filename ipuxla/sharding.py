"""Where the parts of arrays lie on many devices: arrays to parts and back, and how that is written.

A device's number counts row by row along the mesh, so an axis of it is a digit of the number: ``(size, stride)`` is
``number // stride % size``. Which part of an array a device holds is a number of digits for each dimension, whatever the
mesh is called, and for 64,000 devices as short as for two.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ipuxla._jax_compat import Datum, reshard
from tiles._jax_compat import pad
from tiles.files import JsonObject

Mesh = tuple[tuple[str, int], ...]
"""Names and sizes of axes, the first one slowest in the numbering of devices."""

Digits = tuple[tuple[int, int], ...]
"""Digits ``(size, stride)`` of a device's number, the slowest one first."""


def digits_of_axes(mesh: Mesh) -> dict[str, tuple[int, int]]:
    """Return the digit that each axis of a mesh is."""
    sizes = [size for _, size in mesh]
    return {name: (size, math.prod(sizes[number + 1 :])) for number, (name, size) in enumerate(mesh)}


_Each = TypeVar("_Each")


def _without_explicit_axes(array: Datum) -> Datum:
    """Return an array whose type names no axes of a mesh of the caller's own devices: those are not this machine's."""
    mesh = jax.typeof(array).sharding.mesh
    return reshard(array, NamedSharding(mesh, PartitionSpec())) if mesh.explicit_axes else array


@dataclasses.dataclass(frozen=True)
class ArraySharding:
    """How an array is sharded.

    Args:
      dimensions: for each dimension the digits of a device's number that say which part it holds.
    """

    dimensions: tuple[Digits, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        """Parts along each dimension."""
        return tuple(math.prod(size for size, _ in digits) for digits in self.dimensions)

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return all(part == 1 for part in self.parts)

    def axes(self, mesh: Mesh) -> frozenset[str]:
        """Return the axes of a mesh along which devices hold different parts."""
        used = [digit for digits in self.dimensions for digit in digits if digit[0] > 1]
        return frozenset(
            name
            for name, (count, step) in digits_of_axes(mesh).items()
            if any(step < stride * size and stride < step * count for size, stride in used)
        )

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a part of an array, the last ones of which are filled up."""
        return tuple(-(-size // parts) for size, parts in zip(shape, self.parts, strict=True))

    def block_of_devices(self, num_devices: int) -> np.ndarray:
        """Return the number of the part that each device holds, row by row, int64 ``[devices]``."""
        number, devices = np.zeros(num_devices, np.int64), np.arange(num_devices)
        for digits in self.dimensions:
            for size, stride in digits:
                number = number * size + devices // stride % size
        return number

    def to_devices(self, array: Datum, num_devices: int) -> Datum:
        """Return what the devices hold, ``[devices, *local_shape]``; the array itself where each holds all of it."""
        array = _without_explicit_axes(array)
        if self.is_replicated:
            return array
        local = self.local_shape(array.shape)
        if 0 in local:
            return jnp.zeros((num_devices, *local), array.dtype)
        wanted = [size * parts for size, parts in zip(local, self.parts, strict=True)]
        array = jnp.asarray(array)
        if tuple(wanted) != array.shape:
            array = pad(array, [(0, w - n) for w, n in zip(wanted, array.shape, strict=True)])
        split = array.reshape([n for pair in zip(self.parts, local, strict=True) for n in pair])
        rank = len(local)
        blocks = split.transpose(*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)).reshape(-1, *local)
        return blocks[self.block_of_devices(num_devices)]

    def from_devices(self, on_devices: Datum, shape: Sequence[int]) -> Datum:
        """Return the array of a shape whose parts devices hold, ``[devices, *local_shape]``."""
        if self.is_replicated:
            return on_devices[0]
        local, rank = self.local_shape(shape), len(shape)
        if 0 in local:
            return on_devices[0].reshape(shape)
        _, first = np.unique(self.block_of_devices(on_devices.shape[0]), return_index=True)
        blocks = on_devices[first].reshape(*self.parts, *local)
        order = [axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair]
        whole = blocks.transpose(order).reshape([n * p for n, p in zip(local, self.parts, strict=True)])
        return whole[tuple(slice(size) for size in shape)]

    def describe(self, mesh: Mesh) -> str:
        """Return it as JAX writes partition specs, by the names of axes: ``P('data', None)``."""
        names = {digit: name for name, digit in digits_of_axes(mesh).items()}

        def entry(digits: Digits) -> str:
            own = [repr(names.get(digit, f"{digit[0]} by {digit[1]}")) for digit in digits if digit[0] > 1]
            return "None" if not own else own[0] if len(own) == 1 else f"({', '.join(own)})"

        return f"P({', '.join(map(entry, self.dimensions))})"


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices that run a program together, and how its arguments and results are sharded.

    Args:
      mesh: axes of the devices.
      inputs: of each argument.
      outputs: of each result.
      result_shapes: of the whole results.
    """

    mesh: Mesh
    inputs: tuple[ArraySharding, ...]
    outputs: tuple[ArraySharding, ...]
    result_shapes: tuple[tuple[int, ...], ...]

    @functools.cached_property
    def num_devices(self) -> int:
        """How many."""
        return math.prod(size for _, size in self.mesh)

    def to_data(self) -> JsonObject:
        """Return this as JSON types."""

        def listed(shardings: tuple[ArraySharding, ...]) -> list[list[list[list[int]]]]:
            return [[[list(digit) for digit in digits] for digits in s.dimensions] for s in shardings]

        return {
            "mesh": [list(axis) for axis in self.mesh],
            "inputs": listed(self.inputs),
            "outputs": listed(self.outputs),
            "result_shapes": [list(shape) for shape in self.result_shapes],
        }

    @classmethod
    def from_data(cls, data: JsonObject) -> Placement:
        """Return the placement that ``to_data`` wrote.

        Raises:
          ValueError: it is damaged.
        """
        mesh = tuple((str(name), int(size)) for name, size in data["mesh"])
        num_devices = math.prod(size for _, size in mesh)

        def read(shardings: Sequence[Sequence[Sequence[Sequence[int]]]]) -> tuple[ArraySharding, ...]:
            return tuple(
                ArraySharding(tuple(tuple((int(n), int(s)) for n, s in digits) for digits in dimensions))
                for dimensions in shardings
            )

        shapes = tuple(tuple(map(int, shape)) for shape in data["result_shapes"])
        found = cls(mesh, read(data["inputs"]), read(data["outputs"]), shapes)
        digits = [d for s in (*found.inputs, *found.outputs) for dimension in s.dimensions for d in dimension]
        if found.to_data() != data or not 1 <= num_devices <= 2**17:
            raise ValueError("the devices that run it")
        ranks = [(len(s.dimensions), len(shape)) for s, shape in zip(found.outputs, shapes, strict=True)]
        if any(n < 1 or s < 1 or num_devices % (n * s) for n, s in digits) or any(a != b for a, b in ranks):
            raise ValueError("the parts that devices hold")
        if not all(_are_digits(s) for s in (*found.inputs, *found.outputs)):
            raise ValueError("the parts that devices hold: no device holds some of them")
        return found

    def to_devices(self, arrays: Sequence[Datum]) -> list[Datum]:
        """Return what the devices hold of the arguments; see ``ArraySharding.to_devices``."""
        pairs = zip(self.inputs, arrays, strict=True)
        return [sharding.to_devices(array, self.num_devices) for sharding, array in pairs]

    def from_devices(self, on_devices: Sequence[Datum]) -> list[Datum]:
        """Return the results whose parts devices hold."""
        results = zip(self.outputs, on_devices, self.result_shapes, strict=True)
        return [sharding.from_devices(x, shape) for sharding, x, shape in results]

    def repeated(self, inputs: Sequence[int], outputs: Sequence[int]) -> Placement:
        """Return the placement where each argument and each result is so many arrays of its own shape."""

        def each(values: tuple[_Each, ...], counts: Sequence[int]) -> tuple[_Each, ...]:
            return tuple(v for v, count in zip(values, counts, strict=True) for _ in range(count))

        return Placement(
            self.mesh,
            each(self.inputs, inputs),
            each(self.outputs, outputs),
            each(self.result_shapes, outputs),
        )

    @property
    def axes_of_inputs(self) -> list[tuple[tuple[str, ...], ...]]:
        """For each dimension of each argument the names of the axes that shard it, or the digits where no axes do."""
        names = {digit: name for name, digit in digits_of_axes(self.mesh).items()}
        return [
            tuple(
                tuple(names.get(digit, f"{digit[0]} by {digit[1]}") for digit in digits if digit[0] > 1)
                for digits in sharding.dimensions
            )
            for sharding in self.inputs
        ]


def _are_digits(sharding: ArraySharding) -> bool:
    """Whether no two digits say the same about a device's number, so that every part has a device that holds it."""
    digits = sorted((s, n) for dimension in sharding.dimensions for n, s in dimension if n > 1)
    return all(stride % (before * size) == 0 for (before, size), (stride, _) in itertools.pairwise(digits))
