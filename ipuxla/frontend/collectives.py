"""Collectives and device numbers of StableHLO: one device exchanges nothing; many do so in groups of a mesh.

StableHLO says groups in four ways (replicas, partitions, both, flattened ids) and three forms (a table, axes of a mesh,
a transposed numbering); here all become groups of devices, numbered replica by replica.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hlo_passes import ops
from hlo_passes.errors import MalformedStableHLO, UnsupportedOp
from hlo_passes.ir import Computation, Location, Op, TensorType, Value
from hlo_passes.ops import DeviceGroups, Moves
from ipuxla.frontend._jax_compat import mlir
from ipuxla.frontend.attributes import integer
from ipuxla.frontend.nested import Operand, plain

Mesh = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Devices:
    """Those that run a module: replicas of as many partitions, and the axes by which they are known.

    Args:
      num_replicas: how often the program runs.
      num_partitions: devices of one replica.
      mesh: axes of all; empty for one device.
    """

    num_replicas: int = 1
    num_partitions: int = 1
    mesh: Mesh = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return self.num_replicas * self.num_partitions


class Scope(Protocol):
    """Where operations are read to."""

    @property
    def devices(self) -> Devices:
        """Those that run the module."""
        ...

    def mesh_named(self, name: str) -> mlir.Operation:
        """Return the module's mesh of a name, an MLIR operation."""
        ...

    def emit(
        self, op: Op, operands: Sequence[Value], location: Location, regions: Sequence[Computation] = ()
    ) -> Value:
        """Append an operation with one result."""
        ...

    def element_regions(
        self, op: mlir.Operation, location: Location
    ) -> tuple[tuple[Value, ...], tuple[Computation, ...]]:
        """Return what regions of elements read from outside, and the regions."""
        ...

    def result_types(self, op: mlir.Operation, location: Location) -> list[TensorType]:
        """Return the types of an MLIR operation's results."""
        ...

    def unsupported(self, op: mlir.Operation, location: Location, hint: str) -> UnsupportedOp:
        """Return the named error for an operation."""
        ...


Reader = Callable[[Scope, mlir.Operation, Sequence[Operand], Location], Sequence[Operand]]


def _partition_id(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    number = scope.devices.num_partitions
    if number == 1:
        return _zeros(scope, scope.result_types(op, location), location)
    return [scope.emit(ops.PartitionId(number), (), location)]


def _replica_id(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    if scope.devices.num_replicas == 1:
        return _zeros(scope, scope.result_types(op, location), location)
    return [scope.emit(ops.ReplicaId(scope.devices.num_partitions), (), location)]


def _collective(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """Exchange each operand for itself; a group of one exchanges nothing, and its operand is its result."""
    groups = _groups(scope, op, location)
    if groups.size == 1 and scope.devices.count == 1:
        return operands
    made, regions = _made(op, groups), list[Computation]()
    if len(op.regions):
        captured, read = scope.element_regions(op, location)
        if captured:
            raise scope.unsupported(op, location, "a region that reads only its own arguments")
        regions = list(read)
    return [scope.emit(made, [operand], location, regions) for operand in plain(operands)]


def _made(op: mlir.Operation, groups: DeviceGroups) -> Op:
    match op.name.removeprefix("stablehlo."):
        case "all_reduce":
            return ops.AllReduce(groups)
        case "all_gather":
            return ops.AllGather(groups, integer(op, "all_gather_dim"))
        case "reduce_scatter":
            return ops.ReduceScatter(groups, integer(op, "scatter_dimension"))
        case _:
            return ops.AllToAll(groups, integer(op, "split_dimension"), integer(op, "concat_dimension"))


def _broadcast(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """Whoever is in no group gets zeros."""
    groups = _groups(scope, op, location)
    if scope.devices.count > 1:
        return [scope.emit(ops.CollectiveBroadcast(*_from_a_place(groups)), plain(operands), location)]
    return operands if 0 in groups.members else _zeros(scope, [v.type for v in plain(operands)], location)


def _from_a_place(groups: DeviceGroups) -> tuple[DeviceGroups, int]:
    """Return groups in the order of their devices, and the place in them of who was first, if it is one place in all."""
    members = groups.members
    rows = np.sort(members, axis=1)
    places = (rows == members[:, :1]).argmax(axis=1)
    if (places != places[:1]).any():
        return groups, 0
    return DeviceGroups.of(rows[np.argsort(rows[:, 0])]), int(places[0])


def _permute(
    scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
) -> Sequence[Operand]:
    """Whoever is sent nothing gets zeros."""
    pairs = np.asarray(op.attributes["source_target_pairs"]).reshape(-1, 2)
    devices = scope.devices
    if devices.count == 1:
        if any(pair != [0, 0] for pair in pairs.tolist()):
            raise scope.unsupported(op, location, "one device: nothing sent to or from another")
        return operands if len(pairs) else _zeros(scope, [v.type for v in plain(operands)], location)
    if _channel(op) > 0:
        offsets = np.arange(devices.num_replicas) * devices.num_partitions
        pairs = (pairs[None] + offsets[:, None, None]).reshape(-1, 2)
    else:
        pairs = pairs[:, None] * devices.num_partitions + np.arange(devices.num_partitions)[None, :, None]
        pairs = pairs.reshape(-1, 2)
    inside = not len(pairs) or (pairs.min() >= 0 and pairs.max() < devices.count)
    if not inside:
        outside = next(n for n in pairs.reshape(-1).tolist() if not 0 <= n < devices.count)
        raise _malformed(
            op, location, f"a permutation names device {outside}", f"devices 0 to {devices.count - 1}"
        )
    for column, what in ((0, "sends twice"), (1, "is sent to by two")):
        values, counts = np.unique(pairs[:, column], return_counts=True)
        if (counts > 1).any():
            device = int(values[counts > 1][0])
            raise _malformed(op, location, f"device {device} {what}", "each device sending and sent to once")
    return [scope.emit(_alike_in_groups(devices.mesh, pairs), plain(operands), location)]


def _alike_in_groups(mesh: Mesh, pairs: np.ndarray) -> ops.CollectivePermute:
    """Return the permutation along as few axes as say it, in the same way wherever on the other axes."""
    names = [name for name, size in mesh if size > 1]
    for length in range(len(names) + 1):
        for axes in itertools.combinations(names, length):
            groups = DeviceGroups.along(mesh, axes)
            moves = _within(groups, pairs)
            if moves is not None:
                return ops.CollectivePermute(groups, moves)
    raise AssertionError("all devices are a group")


def _within(groups: DeviceGroups, pairs: np.ndarray) -> Moves | None:
    """Return the moves that are made in every group alike; None where groups differ or are left."""
    order = np.argsort(groups.members.reshape(-1))
    group, place = order // groups.size, order % groups.size
    if len(pairs) % groups.count or (group[pairs[:, 0]] != group[pairs[:, 1]]).any():
        return None
    rows = np.column_stack([group[pairs[:, 0]], place[pairs]])
    rows = rows[np.lexsort(rows.T[::-1])].reshape(groups.count, -1, 3)
    is_alike = (rows[:, :, 0] == np.arange(groups.count)[:, None]).all() and (
        rows[:, :, 1:] == rows[:1, :, 1:]
    ).all()
    return Moves.of((int(source), int(target)) for source, target in rows[0, :, 1:]) if is_alike else None


def _unchanged(table: np.ndarray) -> np.ndarray:
    return table


def _of_replicas(devices: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return groups of devices from groups of replicas, each for every partition.

    Args:
      devices: their numbers, ``[replicas, partitions]``.
      table: numbers of replicas, ``[groups, members]``.
    """
    return devices.T[:, table].reshape(-1, table.shape[1])


def _of_replicas_whole(devices: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return groups of devices from groups of replicas, with all partitions of each."""
    return devices[table].transpose(0, 2, 1).reshape(table.shape[0], -1)


def _of_partitions(devices: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return groups of devices from groups of partitions, each for every replica."""
    return devices[:, table].reshape(-1, table.shape[1])


def _groups(scope: Scope, op: mlir.Operation, location: Location) -> DeviceGroups:
    """Return the groups of devices, each of which is in one, broadcasts apart."""
    devices = scope.devices
    attribute = op.attributes["replica_groups"]
    if devices.count > 1 and op.name in _WITH_FLATTENED_IDS and "use_global_device_ids" in op.attributes:
        named = _whole_axes(scope, op, attribute, location)
        if named is not None:
            return _along(*named)
    written = _written(scope, op, attribute, location)
    by_replica = np.arange(devices.count).reshape(devices.num_replicas, devices.num_partitions)
    is_table_of_both = op.name in _WITH_FLATTENED_IDS
    if is_table_of_both and "use_global_device_ids" in op.attributes:
        count, members = devices.count, _unchanged
    elif _channel(op) <= 0:  # of replicas, for every partition
        count = devices.num_replicas
        members = functools.partial(_of_replicas, by_replica)
    elif is_table_of_both:  # of replicas with all their partitions
        count = devices.num_replicas
        members = functools.partial(_of_replicas_whole, by_replica)
    else:  # of partitions, for every replica
        count = devices.num_partitions
        members = functools.partial(_of_partitions, by_replica)
    table = np.arange(count)[None] if written is None or not written.size else written
    if devices.count == 1 and written is not None and written.size and written.shape[1] != 1:
        raise scope.unsupported(op, location, "one device: groups of one replica or partition")
    if devices.count == 1:
        return (
            DeviceGroups.of(table.reshape(-1, 1)) if table.max() == 0 else DeviceGroups(1, 1, listed=((1,),))
        )
    if table.min() < 0:
        raise scope.unsupported(op, location, "groups of one size; those of several sizes are not supported")
    if int(table.max()) >= count:
        outside = int(table[table >= count].min())
        raise _malformed(op, location, f"a group names member {outside}", f"members 0 to {count - 1}")
    times = np.bincount(table.reshape(-1), minlength=count)
    if times.max() > 1:
        member = int(np.flatnonzero(times > 1)[0])
        raise _malformed(op, location, f"member {member} is in two groups", "groups that do not overlap")
    if not times.all() and op.name != "stablehlo.collective_broadcast":
        missing = int(np.flatnonzero(times == 0)[0])
        raise _malformed(op, location, f"member {missing} is in no group", f"groups of all {count} members")
    rows = np.asarray(members(table), np.int64)
    in_one_order = np.argsort(rows[:, 0])  # which means nothing; along axes of the mesh groups are found so
    return DeviceGroups.of(rows[in_one_order])


def _malformed(op: mlir.Operation, location: Location, what: str, expected: str) -> MalformedStableHLO:
    """Return the error of an operation whose groups or pairs cannot be."""
    return MalformedStableHLO(f"{op.name}: {what}\n  expected: {expected}\n  from: {location}")


_WITH_FLATTENED_IDS = frozenset({"stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.reduce_scatter"})


@functools.lru_cache(maxsize=64)
def _along(mesh: Mesh, axes: tuple[str, ...]) -> DeviceGroups:
    """Return groups along axes of a mesh, those of equal axes once: a module may have them at every reduction."""
    return DeviceGroups.along(mesh, axes)


def _whole_axes(
    scope: Scope, op: mlir.Operation, attribute: mlir.Attribute, location: Location
) -> tuple[Mesh, tuple[str, ...]] | None:
    """Return the mesh and the axes that groups are said to go along; None where they are said otherwise, or of parts of axes."""
    text = str(attribute) if not hasattr(attribute, "get_splat_value") else ""
    if "mesh_axes" not in text or "sub_axis_info" in text:
        return None
    mesh = tuple(_axes_around(scope, op, text, location))
    return mesh, tuple(name for name, _ in _REFERENCE.findall(text))


def _axes_around(scope: Scope, op: mlir.Operation, text: str, location: Location) -> list[tuple[str, int]]:
    """Return names and sizes of the mesh that groups are said by, which stands with them or in the module."""
    symbol = re.search(r"mesh = @([\w.]+)", text)
    mesh = text if symbol is None else str(scope.mesh_named(symbol[1]).attributes["mesh"])
    axes = re.findall(r'name = "([^"]+)", size = (\d+)' if symbol is None else r'"([^"]+)"=(\d+)', mesh)
    if "device_ids" in mesh:
        raise scope.unsupported(op, location, "a mesh of devices in the order of their numbers")
    sized = [(name, int(size)) for name, size in axes]
    if math.prod(size for _, size in sized) != scope.devices.count:
        shown = ", ".join(f"{name}={size}" for name, size in sized)
        raise _malformed(
            op, location, f"groups along a mesh of {shown}", f"a mesh of all {scope.devices.count} devices"
        )
    return sized


_REFERENCE = re.compile(r'axis_ref<name = "([^"]+)"(?:, sub_axis_info = [^<]*<([^>]*)>)?>')


def _written(
    scope: Scope, op: mlir.Operation, attribute: mlir.Attribute, location: Location
) -> np.ndarray | None:
    """Return the table of groups that an attribute stands for, int64 ``[groups, members]``."""
    text = str(attribute) if not hasattr(attribute, "get_splat_value") else ""
    if "mesh_axes" not in text:
        return np.asarray(attribute, np.int64)
    axes = _axes_around(scope, op, text, location)
    refs = _REFERENCE.findall(text)
    digits: list[tuple[int, int]] = []  # (size, stride)
    strides = {
        name: int(np.prod([size for _, size in axes[number + 1 :]], dtype=np.int64))
        for number, (name, _) in enumerate(axes)
    }
    sizes = dict(axes)
    for name, part in refs:
        if not part:
            digits.append((sizes[name], strides[name]))
            continue
        before, size = (int(found) for found in re.findall(r"\d+", part)[:2])
        digits.append((size, strides[name] * (sizes[name] // before // size)))
    numbers = np.arange(scope.devices.count)
    place, others = np.zeros_like(numbers), numbers.copy()
    for size, stride in digits:
        place = place * size + numbers // stride % size
        others -= numbers // stride % size * stride
    return numbers[np.lexsort([place, others])].reshape(
        -1, int(np.prod([s for s, _ in digits], dtype=np.int64))
    )


def _channel(op: mlir.Operation) -> int:
    """Return the number of the channel; 0 where there is none."""
    if "channel_handle" not in op.attributes:
        return 0
    return int(re.findall(r"handle = (-?\d+)", str(op.attributes["channel_handle"]))[0])


def _zeros(scope: Scope, types: Sequence[TensorType], location: Location) -> Sequence[Operand]:
    return [scope.emit(ops.Constant.splat(0, type_), (), location) for type_ in types]


def _checked(read: Reader) -> Reader:
    """Return what reads an operation whose results have the types that the module says.

    jaxlib's verifier leaves alone whether groups make of the operands what the results are.

    Raises:
      MalformedStableHLO: another shape or element type comes of the groups.
    """

    def reading(
        scope: Scope, op: mlir.Operation, operands: Sequence[Operand], location: Location
    ) -> Sequence[Operand]:
        results = plain(read(scope, op, operands, location))
        for said, value in zip(scope.result_types(op, location), results, strict=True):
            if value.type != said:
                raise MalformedStableHLO(
                    f"{op.name} gives {value.type} with its groups on {scope.devices.count:,} devices, and the module"
                    f" says {said}\n  from: {location}\n  try: groups of as many members as the shapes say"
                )
        return results

    return reading


COLLECTIVES: dict[str, Reader] = {
    "stablehlo.partition_id": _partition_id,
    "stablehlo.replica_id": _replica_id,
    "stablehlo.all_gather": _checked(_collective),
    "stablehlo.all_reduce": _checked(_collective),
    "stablehlo.all_to_all": _checked(_collective),
    "stablehlo.reduce_scatter": _checked(_collective),
    "stablehlo.collective_broadcast": _checked(_broadcast),
    "stablehlo.collective_permute": _checked(_permute),
}
