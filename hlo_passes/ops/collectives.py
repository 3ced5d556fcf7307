"""Collectives: what devices that run one program tell each other, and the number of the device itself.

Their groups are of devices, however the program said them (replicas, partitions, flattened ids, axes of a mesh). A
collective has its place in the program: all members reach it together, so passes neither drop nor repeat it, nor move it
into or out of a loop or branch; equal ones of one value are one, and small neighbours may share an operation. Its meaning
is that of all devices at once, arrays with the device as leading axis; ``ir.evaluate_partitioned`` evaluates so, and
without it a collective has no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hlo_passes.ir.interpreter import Closure, as_closure, as_computation
from hlo_passes.ir.module import Computation
from hlo_passes.ir.op import Op
from hlo_passes.ir.partitioned import device_number, of_all_devices
from hlo_passes.ir.types import TensorType
from hlo_passes.ops.device_groups import DeviceGroups, Moves

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Collective",
    "CollectiveBroadcast",
    "CollectivePermute",
    "DeviceGroups",
    "Moves",
    "PartitionId",
    "ReduceScatter",
    "ReplicaId",
]


@dataclass(frozen=True)
class Collective(Op):
    """What collectives have in common; not an operation itself. Operands are exchanged each for itself."""

    has_effect: ClassVar[bool] = True
    is_collective: ClassVar[bool] = True
    groups: DeviceGroups

    def require_operands(self, operands: Sequence[TensorType], tag: str) -> None:
        """Check that there is one, and that no device is in two groups."""
        self.require("arity", len(operands) > 0, "a collective has at least one operand")
        members = self.groups.listed
        distinct = {number for row in members for number in row}
        self.require(
            tag,
            len(distinct) == sum(map(len, members)),
            lambda: f"a device is in two groups, or twice in one: {members}",
        )

    def require_dimension(self, tag: str, dimension: int, operand: TensorType, what: str) -> None:
        """Check that ``dimension`` is one of the operand's."""
        self.require(
            tag, 0 <= dimension < operand.rank, lambda: f"{what} {dimension} is no dimension of {operand}"
        )

    def evaluate(self, *operands: Array, regions: Sequence[Computation | Closure] = ()) -> tuple[Array, ...]:
        """Return what the operands of all devices give this one; only where all are evaluated together."""
        bodies = [as_closure(region) for region in regions]
        types = self.infer(
            *map(TensorType.of, operands), regions=[as_computation(region) for region in regions]
        )
        exchanged = [
            of_all_devices(lambda x: self.exchanged(x, bodies), operand, type_)
            for operand, type_ in zip(operands, types, strict=True)
        ]
        return tuple(exchanged)

    def exchanged(self, x: Array, bodies: Sequence[Closure]) -> Array:
        """Return what all devices get for what all hold: ``[devices, ...]`` for ``[devices, ...]``."""
        raise NotImplementedError(f"{type(self).__name__}.exchanged")

    def by_groups(self, x: Array) -> Array:
        """Return ``[groups, members, ...]`` of ``[devices, ...]``."""
        return x[self.groups.members.reshape(-1)].reshape(self.groups.count, self.groups.size, *x.shape[1:])

    def by_devices(self, x: Array) -> Array:
        """Return ``[devices, ...]`` of ``[groups, members, ...]``; every device is in a group."""
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])[np.argsort(self.groups.members.reshape(-1))]

    def for_all_members(self, x: Array) -> Array:
        """Return ``[devices, ...]`` of ``[groups, ...]``, the same for each member of a group."""
        return self.by_devices(
            jnp.broadcast_to(x[:, None], (self.groups.count, self.groups.size, *x.shape[1:]))
        )


@dataclass(frozen=True)
class _Reducing(Collective):
    """What combines the members' values with its region."""

    num_regions: ClassVar[int] = 1

    def require_region(self, tag: str, operand: TensorType, regions: Sequence[Computation]) -> TensorType:
        """Check that the region combines two elements into one, and return that one's type."""
        body = regions[0]
        scalar = operand.with_shape(())
        is_folding = len(body.results) == 1 and body.parameter_types == (body.results[0].type,) * 2
        self.require(
            tag,
            is_folding and body.results[0].type.rank == 0,
            lambda: f"@{body.name} does not combine two elements {scalar} into one",
        )
        return body.results[0].type

    def reduced(self, x: Array, body: Closure) -> Array:
        """Return ``[groups, ...]``: members combined, the first half with the second, and so on."""
        x = self.by_groups(x)

        def combined(a: Array, b: Array) -> Array:
            return body(a, b)[0]

        combine = jax.vmap(combined)
        while x.shape[1] > 1:
            half = x.shape[1] // 2
            first, second, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
            folded = combine(first.reshape(-1), second.reshape(-1)).reshape(first.shape)
            x = jnp.concatenate([folded, rest], axis=1) if rest.shape[1] else folded
        return x[:, 0]


@dataclass(frozen=True)
class AllReduce(_Reducing):
    """Combine the members' values; every member gets the result.

    Spec: StableHLO "all_reduce", constraints C1 and C5-C7; the others are those of ``DeviceGroups``. The order of
    combination is the implementation's.
    """

    name: ClassVar[str] = "stablehlo.all_reduce"

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the operands' shapes with the region's element type."""
        self.require_operands(operands, "C1")
        return tuple(
            TensorType(operand.shape, self.require_region("C5", operand, regions).dtype)
            for operand in operands
        )

    def exchanged(self, x: Array, bodies: Sequence[Closure]) -> Array:
        """Combine."""
        return self.for_all_members(self.reduced(x, bodies[0]))


@dataclass(frozen=True)
class ReduceScatter(_Reducing):
    """Combine the members' values; member ``i`` gets part ``i`` of the result along ``dimension``.

    Spec: StableHLO "reduce_scatter", constraints C1-C3 and C7-C9. The order of combination is the implementation's.
    """

    name: ClassVar[str] = "stablehlo.reduce_scatter"
    dimension: int

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the type of a part."""
        self.require_operands(operands, "C3")
        results: list[TensorType] = []
        for operand in operands:
            self.require_dimension("C2", self.dimension, operand, "scatter_dimension")
            size, parts = operand.shape[self.dimension], self.groups.size
            self.require(
                "C1",
                size % parts == 0,
                lambda n=size, p=parts: f"{n} elements are not divided by {p} members",
            )
            dtype = self.require_region("C7", operand, regions).dtype
            results.append(_with_dim(TensorType(operand.shape, dtype), self.dimension, size // parts))
        return tuple(results)

    def exchanged(self, x: Array, bodies: Sequence[Closure]) -> Array:
        """Combine, and cut."""
        parts = _cut(self.reduced(x, bodies[0]), self.dimension + 1, self.groups.size)
        return self.by_devices(jnp.moveaxis(parts, self.dimension + 1, 1))


@dataclass(frozen=True)
class AllGather(Collective):
    """Join the members' values along ``dimension`` in the order of the group; every member gets the result.

    Spec: StableHLO "all_gather", constraints C1, C2 and C6.
    """

    name: ClassVar[str] = "stablehlo.all_gather"
    dimension: int

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the operands' types with ``dimension`` as many times as large as there are members."""
        self.require_operands(operands, "C2")
        for operand in operands:
            self.require_dimension("C1", self.dimension, operand, "all_gather_dim")
        at = self.dimension
        return tuple(_with_dim(operand, at, operand.shape[at] * self.groups.size) for operand in operands)

    def exchanged(self, x: Array, bodies: Sequence[Closure]) -> Array:
        """Join."""
        return self.for_all_members(_joined(self.by_groups(x), 1, self.dimension + 2))


@dataclass(frozen=True)
class AllToAll(Collective):
    """Cut the value along ``split_dimension``, send part ``i`` to member ``i``, and join what arrives.

    Spec: StableHLO "all_to_all", constraints C1-C3, C5 and C9; ``split_count`` is the size of a group (C8).
    """

    name: ClassVar[str] = "stablehlo.all_to_all"
    split_dimension: int
    concat_dimension: int

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the operands' types, one dimension cut and another one as many times as large."""
        self.require_operands(operands, "C5")
        results: list[TensorType] = []
        for operand in operands:
            self.require_dimension("C1", self.split_dimension, operand, "split_dimension")
            self.require_dimension("C3", self.concat_dimension, operand, "concat_dimension")
            size, parts = operand.shape[self.split_dimension], self.groups.size
            self.require(
                "C2",
                size % parts == 0,
                lambda n=size, p=parts: f"{n} elements are not divided by {p} members",
            )
            cut = _with_dim(operand, self.split_dimension, size // parts)
            at = self.concat_dimension
            results.append(_with_dim(cut, at, cut.shape[at] * parts))
        return tuple(results)

    def exchanged(self, x: Array, bodies: Sequence[Closure]) -> Array:
        """Cut, exchange and join: parts ``[groups, sender, receiver, ...]``."""
        split = self.split_dimension + 2
        parts = jnp.moveaxis(_cut(self.by_groups(x), split, self.groups.size), split, 2)
        return self.by_devices(_joined(parts, 1, self.concat_dimension + 3))


@dataclass(frozen=True)
class CollectivePermute(Collective):
    """Send values to other members of the group, in every group alike; who is sent nothing gets zeros.

    ``moves`` are places in a group. Spec: StableHLO "collective_permute", constraints C2-C5.
    """

    name: ClassVar[str] = "stablehlo.collective_permute"
    moves: Moves

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the operands' types."""
        self.require_operands(operands, "C4")
        pairs, size = self.moves.pairs, self.groups.size
        for column, tag, what in ((0, "C2", "sends twice"), (1, "C3", "is sent to twice")):
            numbers = pairs[:, column]
            is_unique = len(np.unique(numbers)) == len(numbers)
            self.require(
                tag, is_unique, lambda n=numbers, w=what: f"{_first_repeated(n)} {w}: {self.moves.runs}"
            )
        is_inside = not len(pairs) or bool(0 <= pairs.min() and pairs.max() < size)
        self.require("C4", is_inside, lambda: f"{self.moves.runs} names what is none of {size} members")
        return operands

    def exchanged(self, x: Array, bodies: Sequence[Closure]) -> Array:
        """Send."""
        x = self.by_groups(x)
        source, target = self.moves.pairs.T
        return self.by_devices(jnp.zeros_like(x).at[:, target].set(x[:, source]))


@dataclass(frozen=True)
class CollectiveBroadcast(Collective):
    """Give every member the value of one of the group, the ``source``-th; who is in no group gets zeros.

    The specification takes the first of a group that may be in any order; so groups along axes stay short.

    Spec: StableHLO "collective_broadcast", constraints C1 and C3.
    """

    name: ClassVar[str] = "stablehlo.collective_broadcast"
    source: int = 0

    def infer(self, *operands: TensorType, regions: Sequence[Computation] = ()) -> tuple[TensorType, ...]:
        """Return the operands' types."""
        self.require_operands(operands, "C1")
        self.require(
            "C1",
            0 <= self.source < self.groups.size,
            lambda: f"member {self.source} of groups of {self.groups.size}",
        )
        return operands

    def exchanged(self, x: Array, bodies: Sequence[Closure]) -> Array:
        """Broadcast."""
        members = self.groups.members
        return jnp.zeros_like(x).at[members].set(x[members[:, self.source, None]])


@dataclass(frozen=True)
class PartitionId(Op):
    """The number of the partition that a device is, ``num_partitions`` to a replica. Spec: StableHLO "partition_id"."""

    name: ClassVar[str] = "stablehlo.partition_id"
    num_partitions: int

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return ui32."""
        self.require_arity(operands, 0)
        return (TensorType((), "ui32"),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Return the device's number within its replica."""
        return (device_number() % np.uint32(self.num_partitions),)


@dataclass(frozen=True)
class ReplicaId(Op):
    """The number of the replica that a device belongs to, each ``num_partitions`` large. Spec: StableHLO "replica_id"."""

    name: ClassVar[str] = "stablehlo.replica_id"
    num_partitions: int

    def infer(self, *operands: TensorType, regions: Sequence[object] = ()) -> tuple[TensorType, ...]:
        """Return ui32."""
        self.require_arity(operands, 0)
        return (TensorType((), "ui32"),)

    def evaluate(self, *operands: Array, regions: Sequence[object] = ()) -> tuple[Array, ...]:
        """Return the number of the device's replica."""
        return (device_number() // np.uint32(self.num_partitions),)


def _cut(x: Array, axis: int, parts: int) -> Array:
    """Return ``[..., parts, size / parts, ...]`` at ``axis``."""
    return x.reshape(*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])


def _joined(x: Array, source: int, axis: int) -> Array:
    """Join along an axis what lies side by side along another in front of it, which disappears."""
    x = jnp.moveaxis(x, source, axis - 1)
    return x.reshape(*x.shape[: axis - 1], x.shape[axis - 1] * x.shape[axis], *x.shape[axis + 1 :])


def _first_repeated(numbers: np.ndarray) -> int:
    values, counts = np.unique(numbers, return_counts=True)
    return int(values[counts > 1][0])


def _with_dim(type_: TensorType, axis: int, size: int) -> TensorType:
    return type_.with_shape((*type_.shape[:axis], size, *type_.shape[axis + 1 :]))
