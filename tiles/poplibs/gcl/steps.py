"""The steps of collectives: fragments spread evenly over the tiles, so that every tile sends, receives and adds.

A buffer ``[fragments, ..., elements]`` is cut along its last dimension, the same on all IPUs; choosing a fragment and
adding to it move nothing between tiles. Rings are loops: their programs do not grow with the members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace

from tiles.graph import (
    VARIABLE,
    AxisSplit,
    Copy,
    CopyBetween,
    Dim,
    IndexMap,
    Layout,
    OpForm,
    Permutation,
    Plan,
    Repeat,
    Sequence,
    Shift,
    Site,
    Tensor,
    WriteReplicaIndex,
    along,
    linear_layout,
    swap,
    whole,
)
from tiles.graph.domain import REDUCTION
from tiles.poplibs.forms import map_form
from tiles.poplibs.gcl.orders import FUNCTIONS
from tiles.poplibs.popops import elementwise, movement
from tiles.poplibs.popops.expr import Expr, arg, call, compare, select
from tiles.poplibs.popops.map import Map
from tiles.poplibs.popops.offsets import NO_WINDOW
from tiles.poplibs.popops.slicing import MultiSlice
from tiles.poplibs.popops.updating import MultiUpdate
from tiles.poplibs.poputil.copies import reshape
from tiles.poplibs.poputil.place import place

INDEX = "uint32"
WRITTEN_OUT = 4
"""Stages in which a buffer is exchanged whole, up to which they are written out; more are a loop over them."""


class Steps:
    """Steps being written for one collective.

    Args:
      site: the graph, and what the collective is called; its steps go into a sequence of their own.
      axes: along which replicas form groups.
      dtype: of what is moved.
      elements: of a fragment: the length of every buffer's last dimension.
    """

    def __init__(self, site: Site, axes: tuple[str, ...], dtype: str, elements: int) -> None:
        """Start without steps."""
        self.graph, self.axes, self.dtype, self.elements = site.graph, axes, dtype, elements
        self.name, self.location = site.name, site.location
        self.program = Sequence()
        self.members = site.graph.replicas.size(axes)
        self.power = 1 << self.members.bit_length() - 1
        """The members that halve and double: all, or those below the last power of two."""

    def site(self, part: str) -> Site:
        """Return where builders add a part of the collective at present: inside a loop, if one is being written."""
        return Site(self.graph, f"{self.name}.{part}", self.location, self.program)

    # ---- places and numbers

    def _split(self, elements: int) -> AxisSplit:
        return linear_layout((elements,), self.dtype, self.graph.target.num_tiles).axes[0]

    def layout(self, *shape: int) -> Layout:
        """Return how a buffer lies: cut along its last dimension alone."""
        return Layout((*map(whole, shape[:-1]), self._split(shape[-1])))

    def buffer(self, *shape: int, kind: str = VARIABLE) -> Tensor:
        """Add a buffer that copies write."""
        return self.graph.add_tensor(
            shape, self.dtype, f"{self.name}.buffer", self.layout(*shape), kind, location=self.location
        )

    def scalar(self, expression: Expr, *operands: Tensor) -> Tensor:
        """Compute a number."""
        return elementwise.map(self.site("number"), expression, operands)

    def place(self, ring: Shift | None = None) -> Tensor:
        """Return the replica's place in its group, or in the order of its ring; a uint32 scalar."""
        stride, extent = (ring.stride, ring.extent) if ring else (1, 0)
        index = self.graph.add_tensor((), INDEX, f"{self.name}.place", location=self.location)
        self.program.add(WriteReplicaIndex(index.name, self.axes, self.location))
        if stride > 1:
            index = self.scalar(call("divide", arg(0), stride), index)
        if extent and stride * extent < self.members:
            index = self.scalar(call("remainder", arg(0), extent), index)
        if ring and ring.is_folded:
            i, last = arg(0), extent - 1
            half = call("shift_right_logical", i, 1)
            odd = compare("NE", call("and", i, 1), 0)
            index = self.scalar(select(odd, last - half, half), index)
        return index

    def neighbour(self, index: Tensor, up: bool, extent: int) -> Tensor:
        """Return the number before or behind ``index`` around a ring."""
        i = arg(0)
        if up:
            return self.scalar(select(compare("EQ", i, extent - 1), 0, i + 1), index)
        return self.scalar(select(compare("EQ", i, 0), extent - 1, i - 1), index)

    # ---- movement

    def copy(self, destination: Tensor, *sources: Tensor, axis: int | None = None) -> None:
        """Copy into a buffer."""
        names = tuple(source.name for source in sources)
        self.program.add(Copy(destination.name, names, axis, self.location))

    def send(self, x: Tensor, *permutations: Permutation, stage: Tensor | None = None) -> Tensor:
        """Return what arrives when ``x``, or its slices, are sent; with ``stage``, by the permutation of that number."""
        arrived = self.graph.add_tensor(
            x.shape,
            x.dtype,
            f"{self.name}.arrived",
            self.graph.tensors[x.name].layout,
            location=self.location,
        )
        number = "" if stage is None else stage.name
        self.program.add(CopyBetween(x.name, arrived.name, self.axes, permutations, self.location, number))
        return arrived

    def at(self, buffer: Tensor, index: Tensor, count: int = 1, axis: int = 0) -> Tensor:
        """Return ``count`` fragments along an axis from a number on; moved inside where they reach over."""
        rank, shape = len(buffer.shape), list(buffer.shape)
        shape[axis] = count
        dims = [Dim(f"d{i}", n) for i, n in enumerate(shape)] + [Dim("r", buffer.shape[axis], REDUCTION)]
        table = IndexMap(tuple(along(rank if i == axis else i) for i in range(rank)))
        result = IndexMap(tuple(along(i) for i in range(rank)))
        form = OpForm(tuple(dims), (table, IndexMap(())), (result,))
        codelet = MultiSlice((axis,), (axis,), self.dtype)
        return self._placed(codelet, form, [buffer, index], "fragment")

    def put(self, buffer: Tensor, index: Tensor, value: Tensor) -> Tensor:
        """Return a buffer with the fragment of a number replaced by ``value``, ``[1, ..., elements]``."""
        rank = len(buffer.shape)
        dims = [Dim(f"d{i}", n) for i, n in enumerate(buffer.shape)] + [Dim("u", 1, REDUCTION)]
        here = IndexMap(tuple(along(i) for i in range(rank)))
        update = IndexMap((along(rank), *(along(i) for i in range(1, rank))))
        form = OpForm(tuple(dims), (here, update, IndexMap(())), (here,))
        codelet = MultiUpdate((0,), (rank,), "set", self.dtype, is_clamped=True)
        return self._placed(codelet, form, [buffer, value, index], "put")

    def slice(self, x: Tensor, start: int, count: int) -> Tensor:
        """Return ``count`` rows of a buffer."""
        return x if (start, count) == (0, x.shape[0]) else self._strided(x, start, 1, count)

    def reversed(self, x: Tensor) -> Tensor:
        """Return a buffer's rows in reversed order."""
        return self._strided(x, x.shape[0] - 1, -1, x.shape[0])

    def joined(self, *parts: Tensor) -> Tensor:
        """Return buffers' rows one below the other."""
        if len(parts) == 1:
            return parts[0]
        result = self.buffer(sum(p.shape[0] for p in parts), *parts[0].shape[1:])
        self.copy(result, *parts, axis=0)
        return result

    def rows_as(self, x: Tensor, *shape: int) -> Tensor:
        """Return a buffer with other leading dimensions: the same memory."""
        return reshape(self.site("view"), x, shape)

    def combine(self, operation: str, own: Tensor, arrived: Tensor, start: int = 0, count: int = 0) -> Tensor:
        """Return the replica's own combined with what arrived, element by element, or ``count`` rows of that."""
        both, rank = call(FUNCTIONS[operation], arg(0), arg(1)), len(own.shape)
        shape = (count or own.shape[0], *own.shape[1:])
        rows = IndexMap((along(0, 1, start), *(along(i) for i in range(1, rank))))
        return elementwise.map(
            self.site(operation),
            both,
            [own, arrived],
            shape=shape,
            operand_maps=[rows, rows],
            plan=self._plan(shape),
        )

    def choose(self, predicate: Tensor, own: Tensor, arrived: Tensor, found: Expr) -> Tensor:
        """Return what a scalar, as operand 0, decides of a replica's own and what arrived."""
        maps = [IndexMap(()), *[IndexMap(tuple(along(i) for i in range(len(own.shape))))] * 2]
        return elementwise.map(
            self.site("chosen"),
            found,
            [predicate, own, arrived],
            shape=own.shape,
            operand_maps=maps,
            plan=self._plan(own.shape),
        )

    def _plan(self, shape: Seq[int], reduced: Seq[int] = ()) -> Plan:
        return Plan((*map(whole, shape[:-1]), self._split(shape[-1]), *map(whole, reduced)))

    def _placed(
        self, codelet: MultiSlice | MultiUpdate | Map, form: OpForm, operands: Seq[Tensor], what: str
    ) -> Tensor:
        rank = len(form.results[0].axes)
        plan = self._plan(form.shape[:rank], form.shape[rank:])
        return place(self.site(what), codelet, form, operands, (self.dtype,), plan=plan)[0]

    def in_ring_order(self, x: Tensor) -> Tensor:
        """Return a buffer's rows in the order of a folded ring: even ones up, odd ones down."""
        n = x.shape[0]
        evens = self._strided(x, 0, 2, -(-n // 2))
        return self.joined(evens, self._strided(x, n - 1 - n % 2, -2, n // 2)) if n > 1 else x

    def in_members_order(self, x: Tensor) -> Tensor:
        """Return the rows of a buffer in the order of a folded ring of an even number of members in their own order."""
        n = x.shape[0]
        pairs = [self._strided(x, 0, 1, n // 2), self._strided(x, n - 1, -1, n // 2)]
        views = [self.rows_as(part, n // 2, 1, x.shape[-1]) for part in pairs]
        both = self.buffer(n // 2, 2, x.shape[-1])
        self.copy(both, *views, axis=1)
        return self.rows_as(both, n, x.shape[-1])

    def _strided(self, x: Tensor, start: int, step: int, count: int) -> Tensor:
        axes = (along(0, step, start), *(along(i) for i in range(1, len(x.shape))))
        form = map_form((count, *x.shape[1:]), [IndexMap(axes)])
        return self._placed(Map((), (0,), (self.dtype,), (self.dtype,)), form, [x], "rows")

    # ---- in and out

    def fragments(self, x: Tensor, *counts: int) -> Tensor:
        """Return a tensor's elements, filled up with zeros, as a buffer ``[*counts, elements]``."""
        total, size = math.prod(counts) * self.elements, math.prod(x.shape)
        flat = reshape(self.site("flat"), x, (size,))
        if total > size:
            flat = movement.pad(self.site("filled"), flat, [0], [total - size], value=_zero(self.dtype))
        result = self.buffer(*counts, self.elements)
        self.copy(result, flat)
        return result

    def whole(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return a buffer's elements as a tensor of a shape, without what fills it up."""
        size = math.prod(shape)
        flat = reshape(self.site("flat"), x, (math.prod(x.shape),))
        if math.prod(x.shape) > size:
            flat = movement.slice(self.site("cut"), flat, [0], [size])
        result = self.graph.add_tensor(shape, self.dtype, f"{self.name}.result", location=self.location)
        self.copy(result, flat)
        return result

    # ---- rings

    def _loop(self, count: int) -> Sequence:
        """Write a loop and return the sequence that goes on after it; steps go into its body until then."""
        after, body = self.program, Sequence()
        after.add(Repeat(count, body))
        self.program = body
        return after

    def reduce_ring(
        self,
        operation: str,
        buffers: Seq[Tensor],
        place: Tensor,
        ring: Shift,
        directions: Seq[int] = (1,),
    ) -> list[Tensor]:
        """Return of each buffer ``[n, ..., elements]`` the replica's own fragment, combined; see ``orders.ring``.

        Fragments and ``place`` are counted in the order of the ring, of n places; a buffer goes round in a direction.
        """
        n, shifts = ring.extent, [replace(ring, by=d) for d in directions]
        numbers: list[Tensor] = []
        firsts: list[Tensor] = []
        for buffer, direction in zip(buffers, directions, strict=True):
            first = self.neighbour(place, direction < 0, n)
            firsts.append(self.at(buffer, first))
            numbers.append(self._kept(first))
        sent = self._carried(*firsts)
        after = self._loop(n - 1)
        arrived = self.send(sent, *shifts)
        sums: list[Tensor] = []
        for k, (buffer, direction, number) in enumerate(zip(buffers, directions, numbers, strict=True)):
            following = self.neighbour(number, direction < 0, n)
            sums.append(self.combine(operation, self.at(buffer, following), self.slice(arrived, k, 1)))
            self.copy(number, following)
        self.copy(sent, *sums, axis=0 if len(sums) > 1 else None)
        self.program = after
        return [self.slice(sent, k, 1) for k in range(len(buffers))]

    def gather_ring(
        self, owns: Seq[Tensor], place: Tensor, ring: Shift, directions: Seq[int] = (1,)
    ) -> list[Tensor]:
        """Return buffers ``[n, ..., elements]`` of the fragments ``[1, ..., elements]`` of all places on a ring."""
        n, shifts = ring.extent, [replace(ring, by=d) for d in directions]
        numbers: list[Tensor] = []
        results: list[Tensor] = []
        for own in owns:
            shape = (n, *own.shape[1:])
            empty = elementwise.fill(
                self.site("empty"), shape, self.dtype, _zero(self.dtype), plan=self._plan(shape)
            )
            result = self.buffer(n, *own.shape[1:])
            self.copy(result, self.put(empty, place, own))
            results.append(result)
            numbers.append(self._kept(place))
        sent = self._carried(*owns)
        after = self._loop(n - 1)
        arrived = self.send(sent, *shifts)
        for k, (result, direction, number) in enumerate(zip(results, directions, numbers, strict=True)):
            following = self.neighbour(number, direction < 0, n)
            self.copy(result, self.put(result, following, self.slice(arrived, k, 1)))
            self.copy(number, following)
        self.copy(sent, arrived)
        self.program = after
        return results

    def _kept(self, number: Tensor) -> Tensor:
        """Return a variable that starts as a number."""
        variable = self.graph.add_variable((), INDEX, f"{self.name}.number", location=self.location)
        self.copy(variable, number)
        return variable

    def _carried(self, *parts: Tensor) -> Tensor:
        """Return a variable that starts as some buffers' rows."""
        result = self.buffer(sum(p.shape[0] for p in parts), *parts[0].shape[1:])
        self.copy(result, *parts, axis=0 if len(parts) > 1 else None)
        return result

    # ---- halving and doubling

    def rows_from_own(self, parts: int, row_turned: bool, place_turned: bool) -> Tensor:
        """Return ``row xor place`` of so many rows, a power of two; the bits of either in reversed order where it says so.

        Counted so, members whose places differ in one bit have a fragment in rows that differ in one bit, of the
        nearest members the highest: which rows a stage sends, keeps and receives is the same on all members, and
        nothing is chosen at runtime. With rows turned, a replica's row 0 is that of its place.
        """
        bits = parts.bit_length() - 1
        row: Expr = call("iota", dim=0, dtype=INDEX)
        own: Expr = call("and", arg(0), parts - 1) if parts < self.members else arg(0)
        row, own = _turned(row, bits) if row_turned else row, _turned(own, bits) if place_turned else own
        return elementwise.map(self.site("number"), call("xor", row, own), [self.place()], shape=(parts,))

    def _looked_up(self, buffer: Tensor, numbers: Tensor, start: int, count: int) -> Tensor:
        """Return the rows of a buffer that have these numbers, ``count`` of them from one on."""
        rank, shape = len(buffer.shape), (count, *buffer.shape[1:])
        dims = [Dim(f"d{i}", n) for i, n in enumerate(shape)] + [Dim("r", buffer.shape[0], REDUCTION)]
        table = IndexMap((along(rank), *(along(i) for i in range(1, rank))))
        result = IndexMap(tuple(along(i) for i in range(rank)))
        form = OpForm(tuple(dims), (table, IndexMap((along(0, 1, start),))), (result,))
        return self._placed(MultiSlice((0,), (NO_WINDOW,), self.dtype), form, [buffer, numbers], "fragment")

    def reduce_halving(self, operation: str, buffer: Tensor, rows: Tensor | None) -> Tensor:
        """Return the replica's own fragment of ``[parts, elements]``, combined; see ``orders.halves``.

        Both are powers of two; of one part, no rows are needed. Neighbours exchange halves until one fragment is left,
        those further off exchange that: most goes where links are shortest. In every stage a replica keeps the first half
        of its rows, counted by ``rows_from_own``, and sends the others.
        """
        x, distance = buffer, 1
        if x.shape[0] > 1:
            assert rows is not None
            half = x.shape[0] // 2
            kept, sent = (self._looked_up(buffer, rows, start, half) for start in (0, half))
            while True:
                arrived = self.send(sent, swap(distance, self.members))
                distance *= 2
                if kept.shape[0] == 1:
                    break
                half //= 2
                kept, sent = (self.combine(operation, kept, arrived, start, half) for start in (0, half))
            x = self.combine(operation, kept, arrived)
        stages = range(distance.bit_length() - 1, self.power.bit_length() - 1)
        left = [swap(1 << k, self.members) for k in stages]
        if len(left) > WRITTEN_OUT:
            return self._reduce_whole(operation, x if x is buffer else self._carried(x), left)
        for each in left:
            x = self.combine(operation, x, self.send(x, each))
        return x

    def paired(self, operation: str, buffer: Tensor) -> Tensor:
        """Return a buffer of a member below the last power of two, combined with that of the member as much further on.

        A member beyond takes part in what follows, and nobody uses what it computes, until ``unpaired``.
        """
        if self.power == self.members:
            return buffer
        arrived = self.send(buffer, swap(self.power, self.members))
        has_partner = self.scalar(compare("LT", arg(0), self.members - self.power), self.place())
        both = call(FUNCTIONS[operation], arg(1), arg(2))
        return self.choose(has_partner, buffer, arrived, select(arg(0), both, arg(1)))

    def unpaired(self, found: Tensor) -> Tensor:
        """Return what members below the last power of two have found, on all members."""
        if self.power == self.members:
            return found
        arrived = self.send(found, swap(self.power, self.members))
        is_beyond = self.scalar(compare("GE", arg(0), self.power), self.place())
        return self.choose(is_beyond, found, arrived, select(arg(0), arg(2), arg(1)))

    def _reduce_whole(self, operation: str, total: Tensor, stages: Seq[Permutation]) -> Tensor:
        """Return a variable after it was exchanged whole, and added, in every stage: a loop with the stage's number."""
        first = elementwise.fill(self.site("number"), (), INDEX, 0)
        stage = self._kept(first)
        after = self._loop(len(stages))
        found = self.combine(operation, total, self.send(total, *stages, stage=stage))
        following = self.scalar(arg(0) + 1, stage)
        self.copy(total, found)
        self.copy(stage, following)
        self.program = after
        return total

    def gather_doubling(self, own: Tensor, rows: Tensor | None, parts: int) -> Tensor:
        """Return ``[parts, elements]`` of the fragments that ``reduce_halving`` leaves; ``rows`` as there."""
        x, distance = own, parts // 2
        while distance:
            x = self.joined(x, self.send(x, swap(distance, self.members)))
            distance //= 2
        return x if rows is None else self._looked_up(x, rows, 0, parts)


def _turned(number: Expr, bits: int) -> Expr:
    """Return a number of so many bits with its bits in reversed order."""
    found: Expr | None = None
    for bit in range(bits) if bits > 1 else ():
        one = call("and", call("shift_right_logical", number, bit), 1)
        moved = call("shift_left", one, bits - 1 - bit)
        found = moved if found is None else call("or", found, moved)
    return number if found is None else found


def _zero(dtype: str) -> float | bool:
    return False if dtype == "bool" else 0
