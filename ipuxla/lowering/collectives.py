"""Collectives onto those of gcl, along the axes of the graph's replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hlo_passes.ir import Instruction, Module
from hlo_passes.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    CollectiveBroadcast,
    CollectivePermute,
    DeviceGroups,
    PartitionId,
    ReduceScatter,
    ReplicaId,
    simple_combiner,
)
from hlo_passes.passes import JoinCollectives
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.registry import Lowering, lowers, where
from tiles.graph import Graph, Pairs, Permutation, Shift, Site, Tensor
from tiles.plan.links import permutation_cycles
from tiles.poplibs import gcl
from tiles.target import System

Axes = tuple[tuple[str, int], ...]
SHARE_OF_LATENCY = 4
"""Operands as long as latency that are worth joining: more save less than a fifth."""
JOINED_SHARE = 64
"""Part of an IPU's memory that what is joined may take."""


def replica_axes(module: Module) -> Axes:
    """Return axes of replicas along which all of a module's groups go: those of its mesh, or of their prime factors.

    Raises:
      UnsupportedLowering: groups that go along no axes; names the user's source line.
    """
    found = [i for i in module.walk() if isinstance(i.op, Collective)]
    groups = {_groups(i): i for i in reversed(found)}
    whole = module.mesh
    prime = tuple((part, size) for part, _, size in split_axes(whole))
    for axes in (whole, prime):
        odd = [i for each, i in groups.items() if each.axes_of(axes) is None]
        if not odd:
            return axes
    raise UnsupportedLowering(
        f"{odd[-1].op.name} in groups that go along no axes of the mesh {_shown(whole)}",
        location=where(odd[-1]) or None,
        expected="groups of devices that differ in their place along some axes only",
        got=str(_groups(odd[-1]).members.tolist())[:120],
        try_='engine="hlo", or a mesh with an axis for them',
    )


def axes_of_parts(module: Module) -> dict[str, str]:
    """Return by each part of a split axis of a module's mesh the axis' name; see ``replica_axes``."""
    return {part: name for part, name, _ in split_axes(module.mesh) if part != name}


def split_axes(mesh: Iterable[tuple[str, int]]) -> list[tuple[str, str, int]]:
    """Return prime factors of the axes of a mesh: a name for each, the axis' own for its first, the axis, and the size."""
    axes, taken, found = tuple(mesh), {name for name, _ in mesh}, list[tuple[str, str, int]]()
    for name, n in axes:
        for k, size in enumerate(_primes(n)):
            part = name if k == 0 else f"{name}.{k}"
            while k and part in taken:
                part += "_"
            taken.add(part)
            found.append((part, name, size))
    return found


def joining(module: Module, system: System) -> JoinCollectives:
    """Return how large the all-reduces of a module may be that cross a system's links as one.

    An operand up to what its latency weighs, and four of these together, of which latency would be a fifth; at least
    what the pass takes by itself. All of them are live at once, and copied: together a share of an IPU's memory.
    """
    default, found = JoinCollectives(), [i for i in module.walk() if isinstance(i.op, AllReduce)]
    sizes = [sum(type_.size_bytes for type_ in i.operand_types) for i in found]
    if len(sizes) < 2 or sum(sizes) <= default.max_bytes:  # joined or not, whatever latency weighs
        return default
    graph = Graph(system)
    for name, size in module.mesh:
        graph.replicate(name, size)
    axes = {names for i in found if (names := _groups(i).axes_of(module.mesh))}
    each = max((gcl.latency_bytes(graph, names) for names in sorted(axes)), default=0)
    together = min(SHARE_OF_LATENCY * each, system.chip.memory_bytes // JOINED_SHARE)
    each = together // SHARE_OF_LATENCY
    each = (
        1 << each.bit_length() - 1 if each else 0
    )  # a round number: small changes of figures change no program
    if each <= default.max_bytes:
        return default
    return JoinCollectives(each, SHARE_OF_LATENCY * each)


def folded_axes(module: Module, axes: Axes, system: System) -> tuple[str, ...]:
    """Return the axes along which places are to follow a folded ring of IPUs, for what the program sends along them.

    Rings of reductions and gathers fold themselves; a permutation goes where the program says. So only axes along which
    there are permutations are tried, one after the other, and folded where all collectives together take less by closed
    forms: exchanges by halving have longer ways then.
    """
    found = [i for i in module.walk() if isinstance(i.op, Collective)]
    along = {
        name for i in found if isinstance(i.op, CollectivePermute) for name in _groups(i).axes_of(axes) or ()
    }
    sizes, folded = dict(axes), tuple[str, ...]()
    if not along:
        return folded
    best = _cycles_of(found, axes, folded, system)
    for name, _ in axes:
        if name in along and sizes[name] > 2:
            cycles = _cycles_of(found, axes, (*folded, name), system)
            if cycles < best:
                best, folded = cycles, (*folded, name)
    return folded


def _cycles_of(found: Iterable[Instruction], axes: Axes, folded: tuple[str, ...], system: System) -> float:
    """Return what collectives take by closed forms, each once, where some axes are folded."""
    graph = Graph(system)
    for name, size in axes:
        graph.replicate(name, size, folded=name in folded)
    total = 0.0
    for instruction in found:
        op = instruction.op
        names = _groups(instruction).axes_of(axes)
        sizes = [type_.size_bytes for type_ in instruction.operand_types]
        if not names:
            continue
        if isinstance(op, CollectivePermute):
            moves = _permutation(op)
            total += sum(permutation_cycles(system, graph.replicas, names, (moves,), size) for size in sizes)
        elif type(op) in _KINDS:
            total += sum(gcl.predicted_cycles(graph, _KINDS[type(op)], names, size) for size in sizes)
    return total


_KINDS: dict[type, str] = {
    AllReduce: "all_reduce",
    AllGather: "all_gather",
    AllToAll: "all_to_all",
    ReduceScatter: "reduce_scatter",
}


def _groups(instruction: Instruction) -> DeviceGroups:
    assert isinstance(instruction.op, Collective)
    return instruction.op.groups


def _primes(number: int) -> list[int]:
    """Return prime factors, or the number itself where it is 1."""
    found: list[int] = []
    factor, rest = 2, number
    while rest > 1:
        if rest % factor:
            factor += 1
            continue
        found.append(factor)
        rest //= factor
    return found or [number]


def _shown(axes: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name}={size}" for name, size in axes)


def _axes(lowering: Lowering, groups: DeviceGroups) -> tuple[str, ...]:
    axes = groups.axes_of(lowering.graph.replicas.axes)
    assert axes is not None, "replica_axes chose them"
    return axes


def _operation(instruction: Instruction) -> str:
    """Return what a collective combines with.

    Raises:
      UnsupportedLowering: no single operation.
    """
    (region,) = instruction.regions
    found = simple_combiner(region)
    is_alike = all(
        r.type.dtype == v.type.dtype for r, v in zip(instruction.results, instruction.operands, strict=True)
    )
    if found is None or not is_alike:
        raise UnsupportedLowering(
            f"{instruction.op.name} with a combining function that is no single operation",
            location=where(instruction) or None,
            expected="add, multiply, maximum, minimum, and, or, xor of one type",
            try_="an all_gather, and the function on what it brings",
        )
    return found


def _over_groups(
    lowering: Lowering,
    instruction: Instruction,
    build: Callable[[Site, Tensor, tuple[str, ...]], Tensor],
) -> tuple[Tensor, ...]:
    """Return what ``build`` makes of each operand along the axes of the groups; a group of one keeps its own."""
    assert isinstance(instruction.op, Collective)
    axes, site = _axes(lowering, instruction.op.groups), lowering.site(where(instruction))
    return tuple(build(site, x, axes) if axes else x for x in map(lowering.tensor, instruction.operands))


@lowers(AllReduce)
def lower_all_reduce(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Combine each operand over its group."""
    assert isinstance(instruction.op, AllReduce)
    axes, operation = _axes(lowering, instruction.op.groups), _operation(instruction)
    operands = [lowering.tensor(value) for value in instruction.operands]
    if not axes:
        return tuple(operands)
    return tuple(gcl.all_reduce_several(lowering.site(where(instruction)), operands, axes, operation))


@lowers(ReduceScatter)
def lower_reduce_scatter(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Combine each operand over its group, and leave every member its part."""
    assert isinstance(instruction.op, ReduceScatter)
    dimension, operation = instruction.op.dimension, _operation(instruction)
    return _over_groups(
        lowering, instruction, lambda site, x, axes: gcl.reduce_scatter(site, x, axes, dimension, operation)
    )


@lowers(AllGather)
def lower_all_gather(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Join each operand over its group."""
    assert isinstance(instruction.op, AllGather)
    dimension = instruction.op.dimension
    return _over_groups(lowering, instruction, lambda site, x, axes: gcl.all_gather(site, x, axes, dimension))


@lowers(AllToAll)
def lower_all_to_all(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Exchange parts within each group."""
    assert isinstance(instruction.op, AllToAll)
    dimensions = instruction.op.split_dimension, instruction.op.concat_dimension
    return _over_groups(
        lowering, instruction, lambda site, x, axes: gcl.all_to_all(site, x, axes, *dimensions)
    )


@lowers(CollectivePermute)
def lower_permute(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Send within each group; a permutation of one device is along any axis: it keeps the value, or leaves zeros."""
    op = instruction.op
    assert isinstance(op, CollectivePermute)
    axes, moves = _axes(lowering, op.groups), _permutation(op)
    if not axes:
        axes = lowering.graph.replicas.names[:1]
        moves = Shift(0) if op.moves.runs else Pairs(())
    return tuple(
        gcl.permute(lowering.site(where(instruction)), x, axes, moves)
        for x in map(lowering.tensor, instruction.operands)
    )


def _permutation(op: CollectivePermute) -> Permutation:
    """Return moves as a shift where they are one: pairs would be listed."""
    runs, size = op.moves.runs, op.groups.size
    if len(runs) <= 2 and sum(count for _, _, count in runs) == size:
        by = {(target - source) % size for source, target, _ in runs}
        if len(by) == 1:
            return Shift(by.pop())
    return Pairs(tuple((int(source), int(target)) for source, target in op.moves.pairs))


@lowers(CollectiveBroadcast)
def lower_broadcast(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Give every member of a group one member's value."""
    assert isinstance(instruction.op, CollectiveBroadcast)
    source = instruction.op.source
    return _over_groups(lowering, instruction, lambda site, x, axes: gcl.broadcast(site, x, axes, source))


@lowers(PartitionId)
def lower_partition_id(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Write a replica's place along the axes of partitions, the last ones."""
    assert isinstance(instruction.op, PartitionId)
    return (_place(lowering, instruction, instruction.op.num_partitions, is_last=True),)


@lowers(ReplicaId)
def lower_replica_id(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Write a replica's place along the axes in front of those of partitions."""
    assert isinstance(instruction.op, ReplicaId)
    return (_place(lowering, instruction, instruction.op.num_partitions, is_last=False),)


def _place(lowering: Lowering, instruction: Instruction, num_partitions: int, is_last: bool) -> Tensor:
    names, product = list[str](), 1
    for name, size in reversed(lowering.graph.replicas.axes):
        if (product < num_partitions) == is_last:
            names.insert(0, name)
        product *= size
    return gcl.replica_index(lowering.site(where(instruction)), tuple(names))
