"""Proofs about elements: what lies where, what is read in place, what an exchange brings, what vertices compute.

Every question is put to index tables (``proof_tables``). Up to ``limit`` positions an operand is spread out element
by element; above it the same tables are compared axis by axis, which is as exact, since holders' elements are
products of per-axis lists. ``Elements`` counts which way was taken. Steps of equal layers put equal questions: each is
answered once, and counts as often as it is put.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from tiles.compiler import proof_tables as tables
from tiles.compiler.executable import Executable, Variable
from tiles.compiler.proof_exchange import Exchange, Misplaced, misplaced, reshape_crossing
from tiles.compiler.proof_exchange_code import ExchangeCode
from tiles.compiler.proof_tables import OUT, PAST, Table
from tiles.compiler.steps import HOST_STEPS, CopyStep, ExecuteStep, Operand, VariableCopy, VertexGroup
from tiles.compiler.wellformed import mask_of_ranges, part_bytes, refuse, root_of, where
from tiles.graph import Layout
from tiles.numerics.arrays import distinct
from tiles.numerics.dtypes import itemsize


@dataclass
class Elements:
    """What was proved about elements.

    Args:
      layouts: layouts that put every element on exactly one tile.
      views: views whose parts hold the elements of the variable they name.
      in_place: operands read where they lie.
      received: operands received in buffers.
      results: results that their vertices cover exactly once.
      copies: copies that cover their destination exactly once.
      stream_copies: copies of streams, whose items have each element on one tile.
      by_element: operands, results and copies enumerated element by element.
      by_axis: those enumerated axis by axis.
      positions: elements enumerated one by one.
      moved_bytes: bytes that cross tiles, each delivery counted, if every step runs once.
      exchange_code_bytes: bytes of exchange code on all tiles that no exchange program does without, for which there is room.
    """

    layouts: int = 0
    views: int = 0
    in_place: int = 0
    received: int = 0
    results: int = 0
    copies: int = 0
    stream_copies: int = 0
    by_element: int = 0
    by_axis: int = 0
    positions: int = 0
    moved_bytes: int = 0
    exchange_code_bytes: int = 0

    def again(self, other: Elements) -> None:
        """Count what ``other`` says was enumerated, and what crosses tiles."""
        self.by_element += other.by_element
        self.by_axis += other.by_axis
        self.positions += other.positions
        self.moved_bytes += other.moved_bytes


def prove_elements(executable: Executable, limit: int) -> Elements:
    """Raise InvalidExecutable at the first element that is not where it is read or is computed other than once."""
    return _Proof(executable, limit).prove()


@dataclass
class _Proof:
    executable: Executable
    limit: int
    found: Elements = field(default_factory=Elements)

    def __post_init__(self) -> None:
        self.layouts: dict[Layout, Table] = {}
        self.tables: dict[Hashable, Table] = {}
        self.exchanges: dict[Hashable, Exchange] = {}
        self.proved: dict[Hashable, Elements] = {}
        self.places: dict[tuple[Layout, Layout], Misplaced | None] = {}
        self.received_in: dict[str, str] = {}
        self.code = ExchangeCode(
            self.executable.target.num_tiles, self.limit, self.executable.shared_exchange
        )

    def prove(self) -> Elements:
        executable = self.executable
        for v in executable.variables.values():
            self._layout(v)
        for v in executable.variables.values():
            if v.view_of:
                self._view(v, executable.variables[root_of(executable, v.name)])
        for number, step in enumerate(executable.steps):
            if isinstance(step, CopyStep):
                for copy in step.copies:
                    self._copy(where(number, step), copy)
            elif isinstance(step, ExecuteStep):
                self._compute_set(number, step)
            elif isinstance(
                step, HOST_STEPS
            ):  # its variable's layout, proved above, says where each element goes
                self.found.stream_copies += 1
            self.code.end_step()
        self.found.exchange_code_bytes = self.code.prove(executable)
        for b in executable.buffers.values():
            if b.category == "message" and b.name not in self.received_in:
                raise refuse(f"nothing is received in buffer {b.name} of {b.size_bytes} B", b.location)
        return self.found

    # --- questions that come up again

    def _once(self, question: Hashable, prove: Callable[[], None]) -> None:
        """Prove what a question asks, or count its proof again.

        Args:
          question: all that the proof depends on; steps of equal layers ask the same ones.
          prove: raises InvalidExecutable, or counts what it enumerated.
        """
        if question not in self.proved:
            before, self.found = self.found, Elements()
            prove()
            self.proved[question], self.found = self.found, before
        self.found.again(self.proved[question])

    def _table(self, make: Callable[..., Table], *given: Hashable) -> Table:
        """Return a table that is made of ``given`` alone."""
        question = make, *given
        if question not in self.tables:
            self.tables[question] = make(*given)
        return self.tables[question]

    # --- layouts and views

    def _layout(self, v: Variable) -> None:
        """Prove that a layout puts every element on exactly one tile."""
        if v.layout in self.layouts:
            return
        table = tables.layout_table(v.layout)
        if not np.array_equal(table.tiles, v.layout.tiles) or distinct(table.tiles).size != table.tiles.size:
            raise refuse(
                f"layout {v.layout} of {v.name} does not put its parts on distinct tiles", v.location
            )
        for axis, owner in enumerate(tables.element_owners(v.layout)):
            if owner.size and owner.min() < 0:
                raise refuse(
                    f"layout {v.layout} of {v.name} gives index {int(owner.argmin())} of axis {axis} not exactly one owner",
                    v.location,
                )
        self.layouts[v.layout] = table
        self.found.layouts += 1

    def _view(self, v: Variable, base: Variable) -> None:
        """Prove that every element of a view lies where the same element of its base does."""
        wrong = self._misplaced(v.layout, base.layout)
        if wrong is not None:
            element, (tile, position), (base_tile, base_position) = wrong
            raise refuse(
                f"element {element} of {v.name} is at position {position} of tile {tile},"
                f" in {base.name}, which it views, at position {base_position} of tile {base_tile}",
                v.location,
            )
        self.found.views += 1

    def _misplaced(self, a: Layout, b: Layout) -> Misplaced | None:
        """Return the first element that two layouts put elsewhere; see ``misplaced``."""
        if (a, b) not in self.places:
            self.places[a, b] = misplaced(a, b)
        return self.places[a, b]

    # --- comparing tables

    def _enumerates(self, positions: int) -> bool:
        """Decide between the two ways, and count."""
        if positions > self.limit:
            self.found.by_axis += 1
            return False
        self.found.by_element += 1
        self.found.positions += positions
        return True

    def _mismatch(self, wanted: Table, parts: Table, times: Times | None = None) -> str | None:
        """Return how the parts on the same tiles differ from what is wanted, position by position; None if they do not.

        ``times`` notes the elements that are compared.
        """
        part = tables.holder_on(parts, self.executable.target.num_tiles)[wanted.tiles]
        absent = np.flatnonzero(part < 0)
        if absent.size:
            return f"tile {wanted.tiles[absent[0]]} holds no part"
        if not wanted.lies_like(parts):
            return "the parts lie in another order in memory"
        if self._enumerates(wanted.positions):
            if math.prod(wanted.extents) != math.prod(parts.extents):
                return (
                    f"a part has {math.prod(parts.extents)} elements, {math.prod(wanted.extents)} are needed"
                )
            for holders in wanted.chunks():
                want, have = wanted.flat(holders), parts.flat(part[holders])
                if times is not None:
                    times.note(want)
                if np.array_equal(want, have):
                    continue
                cell, position = np.nonzero((want != PAST) & (want != have))
                if cell.size:
                    at = cell[0], position[0]
                    tile = wanted.tiles[holders[cell[0]]]
                    return f"position {position[0]} of tile {tile} holds {_element(int(have[at]))}, needed is {_element(int(want[at]))}"
            return None
        if wanted.extents != parts.extents:
            return f"a part has extents {parts.extents}, {wanted.extents} are needed"
        for axis, (want_rows, have_rows) in enumerate(zip(wanted.rows, parts.rows, strict=True)):
            count = parts.index[axis].shape[0]
            pairs = distinct(want_rows * count + have_rows[part])
            want, have = wanted.index[axis][pairs // count], parts.index[axis][pairs % count]
            if np.any((want != PAST) & (want != have)):
                return f"along axis {axis} some tile holds other elements than are needed"
        return None

    # --- compute sets

    def _compute_set(self, number: int, step: ExecuteStep) -> None:
        for group in step.groups:
            at = where(number, step, group)
            self._once(("cells", group.plan), lambda at=at, group=group: self._cells(at, group))
            for k in range(len(group.results)):
                self._result(at, group, k)
            for k, operand in enumerate(group.operands):
                self._operand(number, at, group, k, operand)

    def _cells(self, at: str, group: VertexGroup) -> None:
        """Prove that the cells of a plan lie on distinct tiles."""
        cells = tables.product_tiles(group.plan.splits, group.plan.base)
        if distinct(cells).size != cells.size or not np.array_equal(cells, group.plan.tiles):
            raise refuse(f"{at}: the cells of the plan do not lie on distinct tiles", group.location)

    def _result(self, at: str, group: VertexGroup, k: int) -> None:
        """Prove that a result's elements are computed once each, on the tile and at the position of its layout."""
        variable = self.executable.variables[group.results[k]]
        is_reduced = tuple(dim.is_reduced for dim in group.form.dims)
        given = group.form.results[k], group.plan, is_reduced
        self._once(
            ("result", *given, variable.layout),
            lambda: self._is_computed(at, group, variable, self._table(tables.written_table, *given)),
        )
        self.found.results += 1

    def _is_computed(self, at: str, group: VertexGroup, variable: Variable, table: Table) -> None:
        times = None
        if self._enumerates(table.positions):
            times = Times(math.prod(table.shape))
        else:
            self._covers_by_axis(at, group, variable, table)
        mismatch = self._mismatch(table, self.layouts[variable.layout], times)
        if times is not None and not times.is_once and (wrong := times.wrong(table)) is not None:
            raise refuse(
                f"{at} computes element {wrong[0]} of {variable.name} {wrong[1]} times", group.location
            )
        if mismatch:
            raise refuse(
                f"{at} computes {variable.name} elsewhere than its layout {variable.layout} says: {mismatch}",
                group.location,
            )

    @staticmethod
    def _covers_by_axis(at: str, group: VertexGroup, variable: Variable, table: Table) -> None:
        counts = tuple(index.shape[0] for index in table.index)
        rows = np.ravel_multi_index(table.rows, counts) if counts else np.zeros(table.tiles.size, np.int64)
        combinations = distinct(rows).size
        once = all(
            np.all(np.bincount(index[index >= 0], minlength=size) == 1)
            for index, size in zip(table.index, table.shape, strict=True)
        )
        full = math.prod(counts)
        if not once or not combinations == full == table.tiles.size:
            raise refuse(
                f"{at} does not compute every element of {variable.name} exactly once", group.location
            )

    # --- operands

    def _operand(self, number: int, at: str, group: VertexGroup, k: int, operand: Operand) -> None:
        variable = self.executable.variables[operand.variable]
        given = group.form.operands[k], group.plan, variable.shape
        table = self._table(tables.read_table, *given)
        if group.form.operands[k].fill is None and any(np.any(index == OUT) for index in table.index):
            axis = next(a for a, index in enumerate(table.index) if np.any(index == OUT))
            raise refuse(
                f"{at} reads {variable.name} outside its {variable.shape[axis]} elements along axis {axis}, with no fill value",
                group.location,
            )
        if operand.buffer:
            self._received(number, at, group, k, operand, table)
            self._moves(at, variable, table, given)
            self.found.received += 1
            return
        self._once(
            ("in place", *given, variable.layout),
            lambda: self._lies_in_place(at, group, k, variable, table),
        )
        self._overwrites(at, group, k)
        self.found.in_place += 1

    def _lies_in_place(self, at: str, group: VertexGroup, k: int, variable: Variable, table: Table) -> None:
        mismatch = self._mismatch(table, self.layouts[variable.layout])
        if mismatch:
            raise refuse(
                f"{at} reads operand {k}, {variable.name} ({variable.layout}), in place, but {mismatch}",
                group.location,
            )

    def _received(
        self, number: int, at: str, group: VertexGroup, k: int, operand: Operand, table: Table
    ) -> None:
        """Prove that a receive buffer fits its slices."""
        buffer = self.executable.buffers.get(operand.buffer)
        if buffer is None or buffer.category != "message":
            raise refuse(
                f"{at} receives operand {k} in {operand.buffer!r}, which is no message buffer", group.location
            )
        if operand.buffer in self.received_in:
            raise refuse(
                f"{at} receives operand {k} in buffer {operand.buffer}, where {self.received_in[operand.buffer]} is received too",
                group.location,
            )
        variable = self.executable.variables[operand.variable]
        self.received_in[operand.buffer] = f"{operand.variable} of {at}"
        size = -(-table.stored * itemsize(variable.dtype) // 4) * 4
        has_room = buffer.size_bytes >= size if self._turns(table, variable) else buffer.size_bytes == size
        if not has_room:
            raise refuse(
                f"{at} receives {size} B a tile of {variable.name} in buffer {buffer.name} of {buffer.size_bytes} B",
                group.location,
            )
        have, need = mask_of_ranges(buffer.tiles), table.tile_mask
        if have != need:
            raise refuse(
                f"{at} receives {variable.name} on {need.bit_count()} tiles, buffer {buffer.name} lies on {have.bit_count()} other ones",
                group.location,
            )
        if not buffer.start <= number <= buffer.end:
            raise refuse(
                f"{at} receives into buffer {buffer.name}, which is live only in steps {buffer.start} to {buffer.end}",
                group.location,
            )

    def _turns(self, table: Table, variable: Variable) -> bool:
        """Return whether slices are stored in an order of their own, with groups filled up or room to be turned in."""
        return bool(table.digits or self.layouts[variable.layout].digits)

    def _moves(self, at: str, source: Variable, wanted: Table, given: Hashable) -> None:
        """Prove that every element that is taken has one source.

        Args:
          at: the step, for the error.
          source: the tensor that lies elsewhere.
          wanted: what every holder takes of it.
          given: what ``wanted`` is made of.
        """
        size = itemsize(source.dtype)
        question = source.layout, given
        if question not in self.exchanges:
            parts = self.layouts[source.layout]
            self.exchanges[question] = Exchange(
                source.layout, parts, wanted, self.executable.target.num_tiles
            )
        exchange = self.exchanges[question]
        self._once(("moves", question, size), lambda: self._arrive(at, source, exchange))
        self.code.take(exchange, size)

    def _arrive(self, at: str, source: Variable, exchange: Exchange) -> None:
        """Count what crosses tiles in several ways, which must agree."""
        received, sent = exchange.received(), exchange.sent()
        if received != sent:
            counts = f"{received} elements of {source.name} from other tiles, {sent} are sent"
            raise refuse(f"{at} receives {counts}", source.location)
        if self._enumerates(exchange.wanted.positions) and exchange.crossing() != received:
            counts = f"{received} elements of {source.name}, {exchange.crossing()} cross tiles"
            raise refuse(f"{at} receives {counts}", source.location)
        self.found.moved_bytes += received * itemsize(source.dtype)

    def _overwrites(self, at: str, group: VertexGroup, k: int) -> None:
        """Prove that no result is written over an operand that is still being read where it lies."""
        operand = self.executable.variables[group.operands[k].variable]
        for name, index_map in zip(group.results, group.form.results, strict=True):
            result = self.executable.variables[name]
            if result.storage != operand.storage:
                continue
            wide = {d for d, dim in enumerate(group.form.dims) if dim.size > 1}
            reads = [d for d in group.form.operands[k].dims if d in wide]
            writes = [d for d in index_map.dims if d in wide]
            kept = {d for d in wide if not group.form.dims[d].is_reduced}
            is_pointwise = reads == writes and set(reads) == kept
            is_pointwise = is_pointwise and not group.plan.split_reductions(group.form)
            fits = itemsize(result.dtype) == itemsize(operand.dtype) and part_bytes(result) <= part_bytes(
                operand
            )
            allows = len(group.results) == 1 or group.codelet.is_pointwise
            if not (is_pointwise and fits and allows and group.codelet.may_overwrite(k)):
                raise refuse(
                    f"{at} writes {name} over {operand.name} while it reads it in place,"
                    f" which {group.codelet.name} does not allow",
                    group.location,
                )

    # --- copies

    def _copy(self, at: str, step: VariableCopy) -> None:
        """Prove that a copy writes every element of its destination from exactly one source element."""
        variables = self.executable.variables
        target = variables[step.destination]
        for source in (variables[name] for name in step.sources):
            if source.storage == target.storage and (
                step.axis is not None or self._misplaced(source.layout, target.layout)
            ):
                raise refuse(f"{at} writes {target.name} over {source.name} while it reads it", step.location)
        if step.axis is not None:
            self._joins(at, step, step.axis, target)
        elif variables[step.sources[0]].shape == target.shape:
            self._moves(at, variables[step.sources[0]], self.layouts[target.layout], target.layout)
        else:
            source = variables[step.sources[0]]
            size = itemsize(source.dtype)
            question = "reshape", source.layout, target.layout, size
            self._once(question, lambda: self._reshapes(source.layout, target.layout, size))
            self.code.take_reshape(source.layout, target.layout, size)
        self.found.copies += 1

    def _reshapes(self, source: Layout, target: Layout, element_bytes: int) -> None:
        crossing, compared = reshape_crossing(source, target)
        self.found.by_element += 1
        self.found.positions += compared
        self.found.moved_bytes += crossing * element_bytes

    def _joins(self, at: str, step: VariableCopy, axis: int, target: Variable) -> None:
        times = np.zeros(target.shape[axis], np.int64)
        offset = 0
        for name in step.sources:
            source = self.executable.variables[name]
            times[offset : offset + source.shape[axis]] += 1
            given = target.layout, source.shape, axis, offset
            self._moves(at, source, self._table(_joined_part, *given), given)
            offset += source.shape[axis]
        if np.any(times != 1):
            index = int(np.argmax(times != 1))
            raise refuse(
                f"{at} writes index {index} of axis {axis} of {target.name} other than once", step.location
            )


def _joined_part(layout: Layout, shape: tuple[int, ...], axis: int, offset: int) -> Table:
    """Return what a layout's parts hold of a tensor of ``shape`` that lies at ``offset`` along ``axis``."""
    return tables.shifted(tables.layout_table(layout), shape, axis, offset)


def _element(flat: int) -> str:
    """Name what a position holds."""
    return {OUT: "the fill value", PAST: "nothing"}.get(flat, f"element {flat}")


class Times:
    """Which elements of a tensor positions name, and whether each is named once.

    Args:
      count: elements of the tensor.
    """

    def __init__(self, count: int) -> None:
        """Start without positions."""
        self.count, self.positions = count, 0
        self.named = np.zeros(count + 2, bool)  # marks, negative, come to lie at the end

    def note(self, flat: np.ndarray) -> None:
        """Note the elements at some positions, as ``Table.flat`` returns them."""
        self.named[flat] = True
        self.positions += int(np.count_nonzero(flat >= 0))

    @property
    def is_once(self) -> bool:
        """Whether each element was noted exactly once: all were, at as many positions."""
        return self.positions == self.count and bool(self.named[: self.count].all())

    def wrong(self, table: Table) -> tuple[int, int] | None:
        """Return the first element that a whole table does not name once, and how often it does; None if there is none."""
        times = np.zeros(self.count, np.int64)
        for holders in table.chunks():
            flat = table.flat(holders)
            times += np.bincount(flat[flat >= 0], minlength=self.count)
        if not np.any(times != 1):
            return None
        i = int(np.argmax(times != 1))
        return i, int(times[i])
