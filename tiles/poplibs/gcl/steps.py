"""The steps of collectives: fragments spread evenly over the tiles, so that every tile sends, receives and adds.

A buffer ``[fragments, ..., elements]`` is cut along its last dimension, the same on all IPUs; choosing a fragment and
adding to it move nothing between tiles. Rings are loops: their programs do not grow with the members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

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
from tiles.numerics.dtypes import is_narrow_float
from tiles.poplibs.forms import map_form
from tiles.poplibs.gcl.choice import FRAGMENT_BYTES, LEAST_BYTES
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
Turn: TypeAlias = Literal[-1, 0, 1]
ROWS_BYTES = 1 << 15
"""Of a buffer's fragments on a tile, up to which a fragment lies on as few tiles as it may."""
WRITTEN_OUT = 4
"""Stages in which a buffer is exchanged whole, up to which they are written out; more are a loop over them."""


class Steps:
    """Steps being written for one collective.

    Args:
      site: the graph, and what the collective is called; its steps go into a sequence of their own.
      axes: along which replicas form groups.
      dtype: of what is moved.
      elements: of a fragment: the length of every buffer's last dimension.
      rows: most fragments that a buffer holds: of many, each is spread over more tiles.
    """

    def __init__(self, site: Site, axes: tuple[str, ...], dtype: str, elements: int, rows: int = 1) -> None:
        """Start without steps."""
        self.graph, self.axes, self.dtype, self.elements = site.graph, axes, dtype, elements
        self.name, self.location = site.name, site.location
        self.program = Sequence()
        self._least_bytes = max(LEAST_BYTES, min(FRAGMENT_BYTES, ROWS_BYTES // rows))
        self.members = site.graph.replicas.size(axes)
        self.power = 1 << self.members.bit_length() - 1
        """The members that halve and double: all, or those below the last power of two."""
        self._own: Tensor | None = None

    def site(self, part: str) -> Site:
        """Return where builders add a part of the collective at present: inside a loop, if one is being written."""
        return Site(self.graph, f"{self.name}.{part}", self.location, self.program)

    # ---- places and numbers

    def _split(self, elements: int) -> AxisSplit:
        tiles = self.graph.target.num_tiles
        return linear_layout((elements,), self.dtype, tiles, self._least_bytes).axes[0]

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

    def combine(self, operation: str, own: Tensor, arrived: Tensor) -> Tensor:
        """Return the replica's own combined with what arrived, element by element."""
        return self._combined(operation, [own, arrived], [0, 0], own.shape[0])

    def choose(self, number: Tensor, own: Tensor, arrived: Tensor, found: Expr) -> Tensor:
        """Return what a scalar, as operand 0, decides of a replica's own and what arrived."""
        maps = [IndexMap(()), *[IndexMap(tuple(along(i) for i in range(len(own.shape))))] * 2]
        return elementwise.map(
            self.site("chosen"),
            found,
            [number, own, arrived],
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
        if math.prod(x.shape) > size or math.prod(x.shape[:-1]) == 1:  # of one row another name
            x = reshape(self.site("flat"), x, (math.prod(x.shape),))
        if math.prod(x.shape) > size:
            x = movement.slice(self.site("cut"), x, [0], [size])
        result = self.graph.add_tensor(shape, self.dtype, f"{self.name}.result", location=self.location)
        self.copy(result, x)
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

    @property
    def own(self) -> Tensor:
        """The replica's place in its group; written once, outside of loops."""
        if self._own is None:
            self._own = self.place()
        return self._own

    def rows_from_own(self, radices: Seq[int], row: Turn = 0, place: Turn = 1, distance: int = 1) -> Tensor:
        """Return ``row xor place`` of as many rows as the product of the radices, either with its digits reversed.

        Counted so, members whose places differ in one digit have a fragment in rows that differ in one digit, of the
        nearest members the highest: which rows a stage sends, keeps and receives is the same on all members, and
        nothing is chosen at runtime.

        Args:
          radices: of the stages, nearest members first: of the digits of a place, the lowest first.
          row: 1 where rows have a place's digits in reversed order, -1 where their reversed digits are a place's, 0 neither.
          place: likewise of places; 0 or 1.
          distance: between members whose places differ in the lowest digit, a power of two.
        """
        parts = math.prod(radices)
        own: Expr = call("shift_right_logical", arg(0), distance.bit_length() - 1) if distance > 1 else arg(0)
        own = call("and", own, parts - 1) if distance * parts < self.members and not place else own
        number = call(
            "xor", _turned(call("iota", dim=0, dtype=INDEX), radices, row), _turned(own, radices, place)
        )
        return elementwise.map(self.site("number"), number, [self.own], shape=(parts,))

    def _looked_up(self, buffer: Tensor, numbers: Tensor) -> Tensor:
        """Return the rows of a buffer that have these numbers."""
        rank = len(buffer.shape)
        dims = [Dim(f"d{i}", n) for i, n in enumerate(buffer.shape)]
        dims.append(Dim("r", buffer.shape[0], REDUCTION))
        table = IndexMap((along(rank), *(along(i) for i in range(1, rank))))
        result = IndexMap(tuple(along(i) for i in range(rank)))
        form = OpForm(tuple(dims), (table, IndexMap((along(0),))), (result,))
        return self._placed(MultiSlice((0,), (NO_WINDOW,), self.dtype), form, [buffer, numbers], "fragment")

    def _exchanged(self, x: Tensor, radix: int, distance: int) -> Tensor:
        """Return what as many members ``distance`` apart, all pairs at once, give a replica in place of its rows.

        Block b of the rows goes to the member whose place differs in b times the distance, and what arrives from there
        takes its place; block 0 stays.
        """
        others = [swap(block * distance, self.members) for block in range(1, radix)]
        return self.send(x, Shift(0), *others)

    def _summed(self, operation: str, x: Tensor, radix: int) -> Tensor:
        """Return the sum of as many blocks of rows: of pairs of blocks, of pairs of those, and so on.

        XLA may keep sums of narrow floats in float32 within one expression; those are written one by one.
        """
        rows = x.shape[0] // radix
        if not is_narrow_float(self.dtype):
            return self._combined(operation, [x] * radix, [rows * block for block in range(radix)], rows)
        while radix > 1:
            radix //= 2
            pairs = self.rows_as(x, radix, 2 * rows, *x.shape[1:])
            sums = self._combined(operation, [pairs] * 2, [0, rows], rows, 1)
            x = self.rows_as(sums, radix * rows, *x.shape[1:])
        return x

    def _combined(
        self, operation: str, parts: Seq[Tensor], starts: Seq[int], rows: int, axis: int = 0
    ) -> Tensor:
        """Return runs of rows of buffers, of either alike, combined: each two that follow each other, then those sums."""
        values = [arg(k) for k in range(len(parts))]
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [call(FUNCTIONS[operation], a, b) for a, b in pairs]
        shape = tuple(rows if i == axis else size for i, size in enumerate(parts[0].shape))
        maps = [
            IndexMap(tuple(along(i, 1, start if i == axis else 0) for i in range(len(shape))))
            for start in starts
        ]
        site, plan = self.site(operation), self._plan(shape)
        return elementwise.map(site, values[0], parts, shape=shape, operand_maps=maps, plan=plan)

    def group_rows(self, groups: Seq[Seq[int]], row: Turn = 0, place: Turn = 1) -> list[Tensor]:
        """Return ``rows_from_own`` of each group of stages, nearest members first."""
        found: list[Tensor] = []
        distance = 1
        for radices in groups:
            found.append(self.rows_from_own(radices, row, place, distance))
            distance *= math.prod(radices)
        return found

    def reduce_halving(
        self, operation: str, buffer: Tensor, groups: Seq[Seq[int]], rows: Seq[Tensor]
    ) -> Tensor:
        """Return the replica's own fragment of a buffer ``[parts, elements]``, combined; see ``orders.halves``.

        Stages are made in groups, nearest members first. A stage's radix is a power of two: so many neighbours exchange all
        pairs of their fragments at once, then so many of those as far off as that, until one fragment is left; those
        further off exchange that, two by two. Most goes where links are shortest.

        Rows of the buffer are the fragments of the first group's places, each with those of all places in the other groups
        as its elements, the next group's slowest: a group's rows are spread over the tiles anew, so that no tile holds a
        word of every member's fragment where there are very many. Without groups there is one fragment, and no rows.
        """
        x, distance = buffer, 1
        for number, (radices, own) in enumerate(zip(groups, rows, strict=True)):
            x = self._looked_up(self._rows_again(x, math.prod(radices)) if number else x, own)
            for radix in radices:
                x = self._summed(operation, self._exchanged(x, radix, distance), radix)
                distance *= radix
        stages = range(distance.bit_length() - 1, self.power.bit_length() - 1)
        left = [swap(1 << k, self.members) for k in stages]
        if len(left) > WRITTEN_OUT:
            return self._reduce_whole(operation, x if x is buffer else self._carried(x), left)
        for each in left:
            x = self.combine(operation, x, self.send(x, each))
        return x

    def gather_doubling(self, own: Tensor, groups: Seq[Seq[int]], rows: Seq[Tensor]) -> Tensor:
        """Return the buffer that ``reduce_halving`` takes, of the fragments that it leaves; arguments as there."""
        x, distance = own, math.prod(map(math.prod, groups))
        for radices, numbers in reversed(list(zip(groups, rows, strict=True))):
            x = self._rows_again(x, 1) if x.shape[0] > 1 else x
            for radix in reversed(radices):
                distance //= radix
                x = self._exchanged(self.joined(*[x] * radix), radix, distance)
            x = self._looked_up(x, numbers)
        return x

    def _rows_again(self, x: Tensor, count: int) -> Tensor:
        """Return a buffer's words as so many rows, spread over tiles anew."""
        result = self.buffer(count, math.prod(x.shape) // count)
        self.copy(result, x)
        return result

    def paired(self, operation: str, buffer: Tensor) -> Tensor:
        """Return a buffer of a member below the last power of two, combined with that of the member as much further on.

        A member beyond takes part in what follows, and nobody uses what it computes, until ``unpaired``.
        """
        if self.power == self.members:
            return buffer
        arrived = self.send(buffer, swap(self.power, self.members))
        has_partner = compare("LT", arg(0), self.members - self.power)
        both = call(FUNCTIONS[operation], arg(1), arg(2))
        return self.choose(self.own, buffer, arrived, select(has_partner, both, arg(1)))

    def unpaired(self, found: Tensor) -> Tensor:
        """Return what members below the last power of two have found, on all members."""
        if self.power == self.members:
            return found
        arrived = self.send(found, swap(self.power, self.members))
        is_beyond = compare("GE", arg(0), self.power)
        return self.choose(self.own, found, arrived, select(is_beyond, arg(2), arg(1)))

    def _reduce_whole(self, operation: str, total: Tensor, stages: Seq[Permutation]) -> Tensor:
        """Return a variable after it was exchanged whole, and added, in every stage: a loop with the stage's number."""
        zero = np.zeros((), np.uint32)
        stage = self._kept(self.graph.add_constant(zero, INDEX, f"{self.name}.number", self.location))
        after = self._loop(len(stages))
        found = self.combine(operation, total, self.send(total, *stages, stage=stage))
        following = self.scalar(arg(0) + 1, stage)
        self.copy(total, found)
        self.copy(stage, following)
        self.program = after
        return total


def _turned(number: Expr, radices: Seq[int], turn: Turn) -> Expr:
    """Return a number with its digits, of radices that are powers of two, the lowest first, in reversed order, or back."""
    bits = math.prod(radices).bit_length() - 1
    if not turn:
        return number
    found: Expr | None = None
    low = 0
    for radix in radices:
        width = radix.bit_length() - 1
        first, then = (low, bits - low - width)[::turn]
        digit = call("and", call("shift_right_logical", number, first) if first else number, radix - 1)
        moved = call("shift_left", digit, then) if then else digit
        found = moved if found is None else call("or", found, moved)
        low += width
    return number if found is None else found


def _zero(dtype: str) -> float | bool:
    return False if dtype == "bool" else 0
