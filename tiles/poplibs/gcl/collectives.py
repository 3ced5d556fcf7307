"""Collectives between the replicas of a graph, along one or several of its axes.

Each is a composite: steps for machines with tile memory, and one function of all replicas (``codelets``) that an
engine of logical arrays runs instead; both give the same bits. Groups are the replicas that agree on all other axes;
members are counted along the axes in the order in which they are named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

import numpy as np

from tiles.errors import InvalidGraph
from tiles.graph import (
    Collective,
    Composite,
    CopyBetween,
    Dim,
    Graph,
    IndexMap,
    OpForm,
    Pairs,
    Permutation,
    Shift,
    Site,
    Tensor,
    Vertices,
    WriteReplicaIndex,
    along,
    identity_map,
    require_tensors,
    site_of,
    unsplit_plan,
)
from tiles.graph.collective import as_axes
from tiles.graph.domain import REDUCTION
from tiles.numerics.dtypes import to_jax
from tiles.poplibs.forms import map_form
from tiles.poplibs.gcl import choice, orders
from tiles.poplibs.gcl.codelets import (
    HALVING,
    AllGather,
    AllReduce,
    AllToAll,
    AssumeEqualAcrossReplicas,
    Broadcast,
    ReduceScatter,
)
from tiles.poplibs.gcl.steps import Steps
from tiles.poplibs.popops import movement
from tiles.poplibs.popops.expr import arg, call, compare, select
from tiles.poplibs.poputil.copies import concatenate, reshape

Axes = str | Seq[str]
MOST_AT_ONCE = 4096
"""Members up to which all pairs exchange in one phase."""


def replica_index(
    where: Graph | Site,
    axes: Axes,
) -> Tensor:
    """Return a replica's place along axes, a uint32 scalar that differs between replicas.

    Raises:
      InvalidGraph: the graph's replicas have no such axis.
    """
    site = site_of(where, "replica_index")
    axes = site.graph.replicas.require(as_axes(axes))
    index = site.graph.add_tensor((), "uint32", site.name, location=site.location)
    site.program.add(WriteReplicaIndex(index.name, axes, site.location))
    return index


def permute(
    where: Graph | Site,
    x: Tensor,
    axes: Axes,
    pairs: Seq[tuple[int, int]] | Permutation,
) -> Tensor:
    """Send a tensor from the first to the second member of every pair; zeros where nothing is sent.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      axes: along which replicas form groups.
      pairs: (from, to), or a ``Shift``, ``Swap`` or ``Pairs``.

    Raises:
      InvalidGraph: no such axis, a member that is not there, or one that sends or receives twice.
    """
    site = site_of(where, "permute")
    require_tensors(site, x)
    axes = site.graph.replicas.require(as_axes(axes))
    moves = Pairs(tuple((int(a), int(b)) for a, b in pairs)) if isinstance(pairs, Seq) else pairs
    moves = _simplest(moves, site.graph.replicas.size(axes), site.location)
    result = site.graph.add_tensor(x.shape, x.dtype, site.name, location=site.location)
    if math.prod(x.shape):
        site.program.add(CopyBetween(x.name, result.name, axes, (moves,), site.location))
    return result


def all_reduce(
    where: Graph | Site,
    x: Tensor,
    axes: Axes,
    operation: str = "add",
    *,
    algorithm: str | None = None,
) -> Tensor:
    """Combine a tensor of all members, element by element; every member gets the result.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      axes: along which replicas form groups.
      operation: "add", "mul", "max", "min", "and", "or" or "xor", in the tensor's own dtype.
      algorithm: "ring", "two_rings", "halving_doubling", "paired_halving" or "hierarchical"; by default the one that
        a closed form finds cheapest. It says in which order members are combined, see ``AllReduce``.

    Raises:
      InvalidGraph: no such axis or operation, or an algorithm that does not fit the group.
    """
    site = site_of(where, "all_reduce")
    axes, n, algorithm = _reduction(site, x, axes, operation, algorithm, False)
    size = math.prod(x.shape)
    if n == 1 or not size:
        return x
    inner, ring, parts = 0, Shift(1), n
    groups: list[tuple[int, ...]] = []
    if algorithm == "hierarchical":
        inner = choice.inner_members(site.graph, axes, x.size_bytes)
    halves = algorithm in HALVING
    if halves:
        radices = choice.halving_radices(site.graph, axes, x.size_bytes)
        groups, parts = [radices] if radices else [], math.prod(radices)
    else:
        ring = choice.ring_of(site.graph, axes, inner)
    each = orders.fragment_elements(size, parts, algorithm)
    steps = Steps(site, axes, x.dtype, each, parts)
    if halves:
        rows = steps.group_rows(groups)
        own = steps.reduce_halving(
            operation, steps.paired(operation, steps.fragments(x, parts)), groups, rows
        )
        found = steps.unpaired(steps.gather_doubling(own, groups, rows))
    elif algorithm == "hierarchical":
        outer = n // inner
        local, across = ring, Shift(1, inner, outer)
        near, far = steps.place(local), steps.place(across)
        (own,) = steps.reduce_ring(operation, [steps.fragments(x, inner, outer)], near, local)
        (own,) = steps.reduce_ring(operation, [steps.rows_as(own, outer, each)], far, across)
        (row,) = steps.gather_ring([own], far, across)
        (found,) = steps.gather_ring([steps.rows_as(row, 1, outer, each)], near, local)
    else:
        owns, place = _ring_sums(steps, steps.fragments(x, n), operation, algorithm, ring)
        found = _ring_gathered(steps, owns, place, ring, algorithm)
    result = steps.whole(found, x.shape)
    codelet = AllReduce(axes, operation, algorithm, inner, ring.is_folded)
    form = map_form(x.shape, [identity_map(len(x.shape))])
    return _composite(site, steps, codelet, form, x, result)


def all_reduce_several(
    where: Graph | Site, xs: Seq[Tensor], axes: Axes, operation: str = "add"
) -> list[Tensor]:
    """Combine several tensors of one type as ``all_reduce`` does, small ones as one array where that takes less time.

    What a member's elements are combined with, and in which order, is that of the array they are part of; see ``AllReduce``.

    Args:
      where: graph, or site in it, to add to.
      xs: the tensors.
      axes: along which replicas form groups.
      operation: as for ``all_reduce``.

    Raises:
      InvalidGraph: no such axis or operation, or tensors of several types.
    """
    site = site_of(where, "all_reduce")
    require_tensors(site, *xs)
    members = site.graph.replicas.require(as_axes(axes))
    if len({x.dtype for x in xs}) > 1:
        found = ", ".join(dict.fromkeys(x.dtype for x in xs))
        raise InvalidGraph(
            "tensors that are combined together have one type",
            expected="one type",
            got=found,
            location=site.location or None,
        )
    joined = choice.together(site.graph, members, [x.size_bytes for x in xs])
    if not joined:
        return [all_reduce(site, x, members, operation) for x in xs]
    flat = [reshape(site, xs[n], (math.prod(xs[n].shape),)) for n in joined]
    flat += _filling(site, members, flat)
    total = all_reduce(site, concatenate(site, flat, 0), members, operation)
    results, start = dict[int, Tensor](), 0
    for n in joined:
        end = start + math.prod(xs[n].shape)
        results[n] = reshape(site, movement.slice(site, total, (start,), (end,)), xs[n].shape)
        start = end
    alone = (None if n in results else all_reduce(site, x, members, operation) for n, x in enumerate(xs))
    return [results[n] if x is None else x for n, x in enumerate(alone)]


def _filling(site: Site, axes: tuple[str, ...], flat: Seq[Tensor]) -> list[Tensor]:
    """Return zeros that fill tensors ``[elements]`` of one type up to whole fragments where halving cuts them; or none."""
    size, dtype = sum(x.shape[0] for x in flat), flat[0].dtype
    if choice.choose(site.graph, axes, dtype, size, False) not in HALVING:
        return []
    more = -size % math.prod(choice.halving_radices(site.graph, axes, sum(x.size_bytes for x in flat)))
    zeros = np.zeros(more, to_jax(dtype))
    return [site.graph.add_constant(zeros, dtype, f"{site.name}.zeros", site.location)] if more else []


def reduce_scatter(
    where: Graph | Site,
    x: Tensor,
    axes: Axes,
    dimension: int,
    operation: str = "add",
    *,
    algorithm: str | None = None,
) -> Tensor:
    """Combine a tensor of all members; member i gets chunk i along ``dimension``. Arguments as in ``all_reduce``.

    Raises:
      InvalidGraph: as ``all_reduce``, or a dimension that the members do not divide.
    """
    site = site_of(where, "reduce_scatter")
    axes, n, algorithm = _reduction(site, x, axes, operation, algorithm, True)
    chunk = _chunk(x, dimension, n, site.location)
    if n == 1:
        return x
    if not math.prod(x.shape):
        return site.graph.add_tensor(chunk, x.dtype, site.name, location=site.location)
    each = orders.fragment_elements(math.prod(chunk), 1, algorithm)
    ring = Shift(1)
    if algorithm == "halving_doubling":
        groups = choice.stage_groups(
            choice.scattering_radices(site.graph, axes, x.size_bytes), x.size_bytes // n
        )
        sizes = [math.prod(radices) for radices in groups]
        steps = Steps(site, axes, x.dtype, each, max(sizes))
        buffer, rows = _chunks_in(steps, x, dimension, n, sizes), steps.group_rows(groups, -1, 0)
        own = steps.reduce_halving(operation, buffer, groups, rows)
    else:
        steps = Steps(site, axes, x.dtype, each, n)
        ring, buffer = choice.ring_of(site.graph, axes), _chunks_in(steps, x, dimension, n)
        buffer = steps.in_ring_order(buffer) if ring.is_folded else buffer
        owns, _ = _ring_sums(steps, buffer, operation, algorithm, ring)
        own = _halves_joined(steps, owns)
    result = steps.whole(own, chunk)
    codelet = ReduceScatter(axes, operation, algorithm, 0, ring.is_folded, dimension)
    return _composite(site, steps, codelet, _cut_form(chunk, {dimension: x.shape[dimension]}), x, result)


def all_gather(
    where: Graph | Site,
    x: Tensor,
    axes: Axes,
    dimension: int,
    *,
    algorithm: str | None = None,
) -> Tensor:
    """Join the tensors of all members along ``dimension``, in their order; every member gets the result.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      axes: along which replicas form groups.
      dimension: of the tensor.
      algorithm: "two_rings", half of every tensor each way, or "doubling", whose members are a power of two; by
        default the cheaper one.

    Raises:
      InvalidGraph: no such axis or dimension, or an algorithm that does not fit the group.
    """
    site = site_of(where, "all_gather")
    require_tensors(site, x)
    axes = site.graph.replicas.require(as_axes(axes))
    n = site.graph.replicas.size(axes)
    _require_dimension(x, dimension, site.location)
    algorithm = choice.gathering(site.graph, axes, algorithm, x.size_bytes, site.location)
    if n == 1:
        return x
    shape = (*x.shape[:dimension], n * x.shape[dimension], *x.shape[dimension + 1 :])
    if not math.prod(shape):
        return site.graph.add_tensor(shape, x.dtype, site.name, location=site.location)
    each = orders.fragment_elements(math.prod(x.shape), 1, algorithm)
    groups = choice.stage_groups(choice.scattering_radices(site.graph, axes, n * x.size_bytes), x.size_bytes)
    sizes = [math.prod(radices) for radices in groups] if algorithm == "doubling" else [n]
    steps = Steps(site, axes, x.dtype, each, max(sizes))
    if algorithm == "doubling":
        found = steps.gather_doubling(steps.fragments(x, 1), groups, steps.group_rows(groups, 1, 1))
    else:
        owns, ring = _halves(steps, steps.fragments(x, 1)), choice.ring_of(site.graph, axes)
        found = _ring_gathered(steps, owns, steps.place(ring), ring, algorithm)
        found = steps.in_members_order(found) if ring.is_folded else found
    result = _chunks_out(steps, found, x.shape, dimension, n, sizes)
    form = _cut_form(shape, {dimension: x.shape[dimension]})
    return _composite(site, steps, AllGather(axes, dimension), form, x, result)


def all_to_all(
    where: Graph | Site,
    x: Tensor,
    axes: Axes,
    split_dimension: int,
    concat_dimension: int,
) -> Tensor:
    """Give chunk j along ``split_dimension`` to member j, which joins what it gets along ``concat_dimension``.

    All pairs exchange in one phase: chunks are turned so that the k-th goes to the member k places on.

    Raises:
      InvalidGraph: no such axis or dimension, a dimension that the members do not divide, or too many members.
    """
    site = site_of(where, "all_to_all")
    require_tensors(site, x)
    axes = site.graph.replicas.require(as_axes(axes))
    n = site.graph.replicas.size(axes)
    chunk = _chunk(x, split_dimension, n, site.location)
    _require_dimension(x, concat_dimension, site.location)
    if n == 1:
        return x
    if n > MOST_AT_ONCE:
        raise InvalidGraph(
            f"{n:,} replicas in one all_to_all",
            expected=f"at most {MOST_AT_ONCE:,}",
            location=site.location or None,
        )
    shape = tuple(k * n if d == concat_dimension else k for d, k in enumerate(chunk))
    if not math.prod(shape):
        return site.graph.add_tensor(shape, x.dtype, site.name, location=site.location)
    steps = Steps(site, axes, x.dtype, math.prod(chunk))
    buffer, place = _chunks_in(steps, x, split_dimension, n), steps.place()
    own = steps.at(buffer, place)
    following = steps.neighbour(place, True, n)
    sent = steps.at(steps.joined(buffer, steps.slice(buffer, 0, n - 1)), following, n - 1)
    arrived = steps.send(sent, *(Shift(k) for k in range(1, n)))
    behind = steps.reversed(steps.joined(own, arrived))  # row t is from place + 1 + t
    start = steps.scalar(n - 1 - arg(0), place)
    found = steps.at(steps.joined(behind, steps.slice(behind, 0, n - 1)), start, n)
    result = _chunks_out(steps, found, chunk, concat_dimension, n)
    sizes = {d: x.shape[d] for d in {split_dimension, concat_dimension}}
    codelet = AllToAll(axes, split_dimension, concat_dimension)
    return _composite(site, steps, codelet, _cut_form(shape, sizes), x, result)


def broadcast(
    where: Graph | Site,
    x: Tensor,
    axes: Axes,
    root: int = 0,
) -> Tensor:
    """Give one member's tensor to all: those that have it send it on to as many others, again and again.

    Raises:
      InvalidGraph: no such axis or member.
    """
    site = site_of(where, "broadcast")
    require_tensors(site, x)
    axes = site.graph.replicas.require(as_axes(axes))
    n = site.graph.replicas.size(axes)
    if not 0 <= root < n:
        raise InvalidGraph(
            f"no member {root} of {n}", expected=f"0 to {n - 1}", location=site.location or None
        )
    if n == 1 or not math.prod(x.shape):
        return x
    steps = Steps(site, axes, x.dtype, math.prod(x.shape))
    held, place, have = steps.fragments(x, 1), steps.place(), 1
    place = steps.scalar(call("remainder", arg(0) + (n - root), n), place) if root else place
    while have < n:
        count = min(have, n - have)
        pairs = tuple(((root + k) % n, (root + k + have) % n) for k in range(count))
        moves = Pairs(pairs) if n <= MOST_AT_ONCE else Shift(have)
        arrived = steps.send(held, _simplest(moves, n, site.location))
        has_got = compare("GE", arg(0), have)
        held = steps.choose(place, held, arrived, select(has_got, arg(2), arg(1)))
        have *= 2
    result = steps.whole(held, x.shape)
    form = map_form(x.shape, [identity_map(len(x.shape))])
    return _composite(site, steps, Broadcast(axes, root), form, x, result)


def assume_equal_across_replicas(where: Graph | Site, x: Tensor, axes: Axes) -> Tensor:
    """Say that a tensor is the same on all members, so that the result may decide around their collectives.

    For what is the same though nothing shows it: from a counter of the host, or from exchanges that make it so. Nothing
    crosses a link. A run compares the members' words, and is refused where they differ; while JAX traces a run (a
    program within an outer ``jax.jit``) nobody compares.

    Args:
      where: graph, or site in it, to add to.
      x: the tensor.
      axes: along which replicas form groups.

    Raises:
      InvalidGraph: no such axis.
    """
    site = site_of(where, "assume_equal")
    require_tensors(site, x)
    axes = site.graph.replicas.require(as_axes(axes))
    if site.graph.replicas.size(axes) == 1 or not math.prod(x.shape):
        return x
    steps = Steps(site, axes, x.dtype, math.prod(x.shape))
    result = site.graph.add_tensor(x.shape, x.dtype, site.name, location=site.location)
    steps.copy(result, x)
    form = map_form(x.shape, [identity_map(len(x.shape))])
    return _composite(site, steps, AssumeEqualAcrossReplicas(axes), form, x, result)


def _composite(
    site: Site, steps: Steps, codelet: Collective, form: OpForm, x: Tensor, result: Tensor
) -> Tensor:
    one = Vertices(steps.name, codelet, form, unsplit_plan(form), (x.name,), (result.name,), steps.location)
    site.program.add(Composite(steps.program, one))
    return result


def _cut_form(shape: Seq[int], sizes: dict[int, int]) -> OpForm:
    """Return the form of a result whose operand has other sizes along some dimensions."""
    rank, others = len(shape), list(sizes)
    dims = [Dim(f"d{i}", n) for i, n in enumerate(shape)]
    dims += [Dim(f"r{d}", sizes[d], REDUCTION) for d in others]
    read = IndexMap(tuple(along(rank + others.index(d) if d in others else d) for d in range(rank)))
    return OpForm(tuple(dims), (read,), (identity_map(rank),))


def _simplest(permutation: Permutation, size: int, location: str) -> Permutation:
    """Return a permutation as a shift where it is one, so that programs do not list pairs; refuse what is none."""
    try:
        there = permutation.destinations(size)
    except InvalidGraph as error:
        raise error.at(location or None) from None
    if isinstance(permutation, Pairs) and size and (there >= 0).all():
        shift = Shift(int(there[0]))
        if (shift.destinations(size) == there).all():
            return shift
    return permutation


def _reduction(
    site: Site, x: Tensor, axes: Axes, operation: str, algorithm: str | None, scatters: bool
) -> tuple[tuple[str, ...], int, str]:
    """Return the axes, members and algorithm of a reduction, after checking all of them."""
    require_tensors(site, x)
    axes = site.graph.replicas.require(as_axes(axes))
    legal = ("max", "min", "and", "or", "xor") if x.dtype == "bool" else tuple(orders.OPERATIONS)
    is_integer = "int" in x.dtype or x.dtype == "bool"
    legal = legal if is_integer else tuple(each for each in legal if each not in ("and", "or", "xor"))
    if operation not in legal:
        raise InvalidGraph(
            f"a collective cannot combine {x.dtype} by {operation!r}",
            expected=", ".join(legal),
            location=site.location or None,
        )
    if algorithm is not None:
        choice.require(site.graph, axes, algorithm, scatters, site.location)
    else:
        algorithm = choice.choose(site.graph, axes, x.dtype, math.prod(x.shape), scatters)
    return axes, site.graph.replicas.size(axes), algorithm


def _require_dimension(x: Tensor, dimension: int, location: str) -> None:
    if not 0 <= dimension < len(x.shape):
        raise InvalidGraph(f"{x.name} of {x.shape} has no dimension {dimension}", location=location or None)


def _chunk(x: Tensor, dimension: int, n: int, location: str) -> tuple[int, ...]:
    """Return the shape of one of ``n`` chunks along a dimension."""
    _require_dimension(x, dimension, location)
    if x.shape[dimension] % n:
        raise InvalidGraph(
            f"dimension {dimension} of {x.name}, of {x.shape[dimension]}, is not divided by {n} replicas",
            location=location or None,
        )
    return tuple(k // n if d == dimension else k for d, k in enumerate(x.shape))


def _chunks_in(steps: Steps, x: Tensor, dimension: int, n: int, sizes: Seq[int] = ()) -> Tensor:
    """Return a buffer ``[n, elements]`` of a tensor's chunks along a dimension, each filled up at its end.

    With the ``sizes`` of several groups of stages, as ``Steps.reduce_halving`` takes it.
    """
    shape = (*x.shape[:dimension], n, x.shape[dimension] // n, *x.shape[dimension + 1 :])
    size = math.prod(x.shape) // n
    cut = reshape(steps.site("chunks"), x, shape)
    if dimension:
        order = [dimension, *(d for d in range(len(shape)) if d != dimension)]
        cut = movement.transpose(steps.site("turned"), cut, order)
    rows = reshape(steps.site("rows"), cut, (n, size))
    if steps.elements > size:
        zero = False if x.dtype == "bool" else 0
        high = [0, steps.elements - size]
        rows = movement.pad(steps.site("filled"), rows, [0, 0], high, value=zero)
    if len(sizes) > 1:
        rows = reshape(steps.site("grouped"), rows, (*reversed(sizes), steps.elements))
        order = [*reversed(range(len(sizes))), len(sizes)]
        rows = movement.transpose(steps.site("nearest_first"), rows, order)
        n = sizes[0]
    buffer = steps.buffer(n, math.prod(rows.shape) // n)
    steps.copy(buffer, rows)
    return buffer


def _chunks_out(
    steps: Steps, found: Tensor, chunk: Seq[int], dimension: int, n: int, sizes: Seq[int] = ()
) -> Tensor:
    """Return the tensor whose chunks along a dimension are a buffer's rows, without what fills them up.

    With the ``sizes`` of several groups of stages, a buffer as ``Steps.gather_doubling`` gives it.
    """
    size = math.prod(chunk)
    if len(sizes) > 1:
        rows = reshape(steps.site("grouped"), found, (*sizes, steps.elements))
        order = [*reversed(range(len(sizes))), len(sizes)]
        turned = movement.transpose(steps.site("members_order"), rows, order)
        found = reshape(steps.site("flat"), turned, (n, steps.elements))
    if steps.elements > size:
        found = movement.slice(steps.site("cut"), found, [0, 0], [n, size])
    rows = reshape(steps.site("rows"), found, (n, *chunk))
    if dimension:
        order = [*range(1, dimension + 1), 0, *range(dimension + 1, len(chunk) + 1)]
        rows = movement.transpose(steps.site("turned"), rows, order)
    shape = tuple(k * n if d == dimension else k for d, k in enumerate(chunk))
    result = steps.graph.add_tensor(shape, steps.dtype, f"{steps.name}.result", location=steps.location)
    steps.copy(result, rows)
    return result


def _halves(steps: Steps, buffer: Tensor) -> list[Tensor]:
    """Return both halves of every row of a buffer, as buffers."""
    half = steps.elements // 2
    found: list[Tensor] = []
    for start in (0, half):
        ends = [0, start], [buffer.shape[0], start + half]
        part = movement.slice(steps.site("half"), buffer, *ends)
        found.append(steps.buffer(buffer.shape[0], half))
        steps.copy(found[-1], part)
    return found


def _halves_joined(steps: Steps, halves: Seq[Tensor]) -> Tensor:
    """Return rows of which there are halves."""
    if len(halves) == 1:
        return halves[0]
    result = steps.buffer(halves[0].shape[0], steps.elements)
    steps.copy(result, *halves, axis=1)
    return result


def _ring_sums(
    steps: Steps, buffer: Tensor, operation: str, algorithm: str, ring: Shift
) -> tuple[list[Tensor], Tensor]:
    """Return what a replica sums up last, by one ring or halves by two, and its place."""
    place = steps.place(ring)
    if algorithm == "ring":
        return steps.reduce_ring(operation, [buffer], place, ring), place
    return steps.reduce_ring(operation, _halves(steps, buffer), place, ring, (1, -1)), place


def _ring_gathered(steps: Steps, owns: Seq[Tensor], place: Tensor, ring: Shift, algorithm: str) -> Tensor:
    """Return ``[n, elements]`` of what all members own, in the order of the ring."""
    directions = (1,) if algorithm == "ring" else (1, -1)
    return _halves_joined(steps, steps.gather_ring(owns, place, ring, directions))
