"""Proofs about elements: what lies where, what is read in place, what an exchange brings, what vertices compute.

Every question is put to index tables (``proof_tables``). Up to ``limit`` positions an operand is spread out element
by element; above it the same tables are compared axis by axis, which is as exact, since holders' elements are
products of per-axis lists. ``Elements`` counts which way was taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax
import numpy as np

from tiles.compiler import proof_tables as tables
from tiles.compiler.executable import CopyStep, Executable, ExecuteStep, Operand, Variable, VertexGroup
from tiles.compiler.proof_tables import OUT, PAST, Table
from tiles.compiler.wellformed import mask_of_ranges, part_bytes, refuse, root_of, where
from tiles.graph import Cell, Layout
from tiles.numerics.dtypes import itemsize, to_jax


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
      by_element: operands, results and copies enumerated element by element.
      by_axis: those enumerated axis by axis.
      positions: elements enumerated one by one.
      moved_bytes: bytes that cross tiles, each delivery counted, if every step runs once.
      codelets: codelets whose results were found to have the shape and dtype of a cell's part.
    """

    layouts: int = 0
    views: int = 0
    in_place: int = 0
    received: int = 0
    results: int = 0
    copies: int = 0
    by_element: int = 0
    by_axis: int = 0
    positions: int = 0
    moved_bytes: int = 0
    codelets: int = 0


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
        self.received_in: dict[str, str] = {}
        self.shapes: dict[object, tuple[tuple[tuple[int, ...], str], ...]] = {}

    def prove(self) -> Elements:
        executable = self.executable
        for v in executable.variables.values():
            self._layout(v)
        for v in executable.variables.values():
            if v.view_of:
                self._view(v, executable.variables[root_of(executable, v.name)])
        for number, step in enumerate(executable.steps):
            if isinstance(step, CopyStep):
                self._copy(number, step)
            else:
                self._compute_set(number, step)
        for b in executable.buffers.values():
            if b.category == "message" and b.name not in self.received_in:
                raise refuse(f"nothing is received in buffer {b.name} of {b.size_bytes} B", b.location)
        return self.found

    # --- layouts and views

    def _layout(self, v: Variable) -> None:
        """Prove that a layout puts every element on exactly one tile."""
        if v.layout in self.layouts:
            return
        table = tables.layout_table(v.layout)
        if not np.array_equal(table.tiles, v.layout.tiles) or np.unique(table.tiles).size != table.tiles.size:
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
        block = math.gcd(tables.block_size(v.layout), tables.block_size(base.layout))
        count = math.prod(v.shape)
        for start in range(0, count, block * tables.CHUNK):
            flat = np.arange(start, min(count, start + block * tables.CHUNK), block)
            mine, its = tables.places(v.layout, flat), tables.places(base.layout, flat)
            wrong = np.flatnonzero((mine[0] != its[0]) | (mine[1] != its[1]))
            if wrong.size:
                i = int(wrong[0])
                raise refuse(
                    f"element {flat[i]} of {v.name} is at position {mine[1][i]} of tile {mine[0][i]},"
                    f" in {base.name}, which it views, at position {its[1][i]} of tile {its[0][i]}",
                    v.location,
                )
        self.found.views += 1

    # --- comparing tables

    def _enumerates(self, positions: int) -> bool:
        """Decide between the two ways, and count."""
        if positions > self.limit:
            self.found.by_axis += 1
            return False
        self.found.by_element += 1
        self.found.positions += positions
        return True

    def _mismatch(self, wanted: Table, parts: Table) -> str | None:
        """Return how the parts on the same tiles differ from what is wanted, position by position; None if they do not."""
        part = tables.holder_on(parts, self.executable.target.num_tiles)[wanted.tiles]
        absent = np.flatnonzero(part < 0)
        if absent.size:
            return f"tile {wanted.tiles[absent[0]]} holds no part"
        if self._enumerates(wanted.positions):
            if math.prod(wanted.extents) != math.prod(parts.extents):
                return (
                    f"a part has {math.prod(parts.extents)} elements, {math.prod(wanted.extents)} are needed"
                )
            for holders in wanted.chunks():
                want, have = wanted.flat(holders), parts.flat(part[holders])
                cell, position = np.nonzero((want != PAST) & (want != have))
                if cell.size:
                    at = cell[0], position[0]
                    tile = wanted.tiles[holders[cell[0]]]
                    return f"position {position[0]} of tile {tile} holds {_element(have[at])}, needed is {_element(want[at])}"
            return None
        if wanted.extents != parts.extents:
            return f"a part has extents {parts.extents}, {wanted.extents} are needed"
        for axis, (want_rows, have_rows) in enumerate(zip(wanted.rows, parts.rows, strict=True)):
            pairs = np.unique(np.stack([want_rows, have_rows[part]]), axis=1)
            want, have = wanted.index[axis][pairs[0]], parts.index[axis][pairs[1]]
            if np.any((want != PAST) & (want != have)):
                return f"along axis {axis} some tile holds other elements than are needed"
        return None

    # --- compute sets

    def _compute_set(self, number: int, step: ExecuteStep) -> None:
        writers: dict[str, tuple[VertexGroup, str]] = {}
        for group in step.groups:
            at = where(number, step, group)
            cells = tables.product_tiles(group.plan.splits, group.plan.base)
            if np.unique(cells).size != cells.size or not np.array_equal(cells, group.plan.tiles):
                raise refuse(f"{at}: the cells of the plan do not lie on distinct tiles", group.location)
            for k, name in enumerate(group.results):
                storage = self.executable.variables[name].storage
                if storage in writers:
                    raise refuse(
                        f"{at} writes {name} into buffer {storage}, where {writers[storage][1]} writes too",
                        group.location,
                    )
                writers[storage] = group, name
                self._result(at, group, k)
            self._codelet(at, group)
        for group in step.groups:
            for k, operand in enumerate(group.operands):
                self._operand(number, where(number, step, group), group, k, operand)
                self._hazard(where(number, step, group), group, k, operand, writers)

    def _result(self, at: str, group: VertexGroup, k: int) -> None:
        """Prove that a result's elements are computed once each, on the tile and at the position of its layout."""
        variable = self.executable.variables[group.results[k]]
        table = tables.result_table(group.form, group.plan, k)
        count = math.prod(table.shape)
        if self._enumerates(table.positions):
            times = np.zeros(count, np.int64)
            for holders in table.chunks():
                flat = table.flat(holders)
                times += np.bincount(flat[flat >= 0], minlength=count)
            if np.any(times != 1):
                i = int(np.argmax(times != 1))
                raise refuse(f"{at} computes element {i} of {variable.name} {times[i]} times", group.location)
        else:
            self._covers_by_axis(at, group, variable, table)
        mismatch = self._mismatch(table, self.layouts[variable.layout])
        if mismatch:
            raise refuse(
                f"{at} computes {variable.name} elsewhere than its layout {variable.layout} says: {mismatch}",
                group.location,
            )
        self.found.results += 1

    @staticmethod
    def _covers_by_axis(at: str, group: VertexGroup, variable: Variable, table: Table) -> None:
        combinations = (
            {tuple(int(c) for c in cell) for cell in np.stack(table.rows, axis=1)} if table.rows else {()}
        )
        once = all(
            np.all(np.bincount(index[index >= 0], minlength=size) == 1)
            for index, size in zip(table.index, table.shape, strict=True)
        )
        full = math.prod(index.shape[0] for index in table.index)
        if not once or not len(combinations) == full == table.tiles.size:
            raise refuse(
                f"{at} does not compute every element of {variable.name} exactly once", group.location
            )

    def _codelet(self, at: str, group: VertexGroup) -> None:
        """Prove that the codelet turns a cell's slices into parts of the results' shapes and dtypes."""
        variables = self.executable.variables
        sizes = tuple(min(split.grain, split.size) for split in group.plan.splits)
        operands = []
        for k, operand in enumerate(group.operands):
            extents = [
                1 + sum(abs(c) * (sizes[d] - 1) if len(a.terms) > 1 else sizes[d] - 1 for d, c in a.terms)
                for a in group.form.operands[k].axes
            ]
            operands.append((tuple(max(0, n) for n in extents), variables[operand.variable].dtype))
        key = (repr(group.codelet), group.form, sizes, tuple(operands))
        if key not in self.shapes:
            self.shapes[key] = self._shapes_of(at, group, sizes, operands)
            self.found.codelets += 1
        for k, (name, found) in enumerate(zip(group.results, self.shapes[key], strict=False)):
            expected = (tuple(sizes[d] for d in group.form.results[k].dims), variables[name].dtype)
            if found != expected:
                raise refuse(
                    f"{at}: {group.codelet.name} gives {found[1]}{list(found[0])} for a part of {name}, expected {expected[1]}{list(expected[0])}",
                    group.location,
                )
        if len(self.shapes[key]) != len(group.results):
            raise refuse(
                f"{at}: {group.codelet.name} gives {len(self.shapes[key])} results, expected {len(group.results)}",
                group.location,
            )

    @staticmethod
    def _shapes_of(
        at: str, group: VertexGroup, sizes: tuple[int, ...], operands: list[tuple[tuple[int, ...], str]]
    ) -> tuple[tuple[tuple[int, ...], str], ...]:
        origin = (0,) * len(sizes)
        cell = Cell(group.form, sizes, origin, (None,) * len(sizes))
        try:
            with jax.enable_x64(True):
                slices = [jax.ShapeDtypeStruct(shape, to_jax(dtype)) for shape, dtype in operands]
                results = jax.eval_shape(lambda *xs: tuple(group.codelet.compute(cell, *xs)), *slices)
        except (
            Exception
        ) as error:  # a codelet may be anyone's code: whatever it raises, it refuses its operands
            shown = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in operands)
            first = str(error).partition("\n")[0]
            raise refuse(
                f"{at}: {group.codelet.name} refuses {shown}: {type(error).__name__}: {first}",
                group.location,
            ) from error
        return tuple((tuple(r.shape), r.dtype.name) for r in results)

    # --- operands

    def _operand(self, number: int, at: str, group: VertexGroup, k: int, operand: Operand) -> None:
        variable = self.executable.variables[operand.variable]
        table = tables.operand_table(group.form, group.plan, k, variable.shape)
        if any(np.any(index == OUT) for index in table.index) and group.form.operands[k].fill is None:
            axis = next(a for a, index in enumerate(table.index) if np.any(index == OUT))
            raise refuse(
                f"{at} reads {variable.name} outside its {variable.shape[axis]} elements along axis {axis}, with no fill value",
                group.location,
            )
        if operand.buffer:
            self._received(number, at, group, k, operand, table)
            return
        mismatch = self._mismatch(table, self.layouts[variable.layout])
        if mismatch:
            raise refuse(
                f"{at} reads operand {k}, {variable.name} ({variable.layout}), in place, but {mismatch}",
                group.location,
            )
        self.found.in_place += 1

    def _received(
        self, number: int, at: str, group: VertexGroup, k: int, operand: Operand, table: Table
    ) -> None:
        """Prove that a receive buffer fits its slices, and that each of its elements has one source."""
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
        size = -(-math.prod(table.extents) * itemsize(variable.dtype) // 4) * 4
        if buffer.size_bytes != size:
            raise refuse(
                f"{at} receives {size} B a tile of {variable.name} in buffer {buffer.name} of {buffer.size_bytes} B",
                group.location,
            )
        have, need = mask_of_ranges(buffer.tiles), sum(1 << int(t) for t in table.tiles)
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
        self._moves(at, variable, table)
        self.found.received += 1

    def _moves(self, at: str, source: Variable, wanted: Table) -> None:
        """Count what crosses tiles, once at the receivers and once at the senders; both must agree."""
        received = self._deliveries(source, wanted)
        sent = self._sendings(source, wanted)
        if received != sent:
            raise refuse(
                f"{at} receives {received} elements of {source.name} from other tiles, {sent} are sent",
                source.location,
            )
        if self._enumerates(wanted.positions):
            counted = self._crossings(source, wanted)
            if counted != received:
                raise refuse(
                    f"{at}: {counted} elements of {source.name} cross tiles one by one, {received} by axes",
                    source.location,
                )
        self.found.moved_bytes += received * itemsize(source.dtype)

    def _own(self, source: Variable, wanted: Table) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return which holders' tiles hold a part of the source, and per axis what of a list is in that part (counts)."""
        parts = self.layouts[source.layout]
        part = tables.holder_on(parts, self.executable.target.num_tiles)[wanted.tiles]
        counts = []
        for axis, owner in enumerate(tables.element_owners(source.layout)):
            index = wanted.index[axis]
            owned = np.where(index >= 0, np.append(owner, -1)[np.maximum(index, -1)], -1)
            mine = parts.rows[axis][np.maximum(part, 0)]
            pairs, inverse = np.unique(np.stack([wanted.rows[axis], mine]), axis=1, return_inverse=True)
            counts.append((owned[pairs[0]] == pairs[1][:, None]).sum(axis=1)[inverse.reshape(-1)])
        return part >= 0, counts

    def _deliveries(self, source: Variable, wanted: Table) -> int:
        """Return elements that arrive from other tiles, counted holder by holder."""
        total = np.ones(wanted.tiles.size, np.int64)
        for rows, index in zip(wanted.rows, wanted.index, strict=True):
            total = total * (index >= 0).sum(axis=1)[rows]
        has_part, counts = self._own(source, wanted)
        local = has_part.astype(np.int64)
        for count in counts:
            local = local * count
        return int((total - local).sum())

    def _sendings(self, source: Variable, wanted: Table) -> int:
        """Return elements that leave for other tiles, counted part by part of the source."""
        parts = self.layouts[source.layout]
        repeats = wanted.tiles.size // max(1, math.prod(index.shape[0] for index in wanted.index))
        leaving = np.full(parts.tiles.size, repeats, np.int64)
        for axis, rows in enumerate(parts.rows):
            index = wanted.index[axis]
            readers = np.append(np.bincount(index[index >= 0], minlength=source.shape[axis]), 0)
            held = parts.index[axis]
            leaving = leaving * np.where(held >= 0, readers[held], 0).sum(axis=1)[rows]
        has_part, counts = self._own(source, wanted)
        local = has_part.astype(np.int64)
        for count in counts:
            local = local * count
        return int(leaving.sum() - local.sum())

    def _crossings(self, source: Variable, wanted: Table) -> int:
        """Return elements whose source tile is not their holder's, looked at one by one."""
        by_axis = []
        for axis, (split, owner) in enumerate(
            zip(source.layout.axes, tables.element_owners(source.layout), strict=True)
        ):
            tile = np.append(tables.part_tiles(split)[owner], 0)
            by_axis.append(tile[np.maximum(wanted.index[axis], -1)])
        total = 0
        for holders in wanted.chunks():
            inside = wanted.flat(holders) >= 0
            tile = source.layout.base + wanted.summed(holders, by_axis)
            total += int((inside & (tile != wanted.tiles[holders][:, None])).sum())
        return total

    def _hazard(
        self,
        at: str,
        group: VertexGroup,
        k: int,
        operand: Operand,
        writers: dict[str, tuple[VertexGroup, str]],
    ) -> None:
        """Prove that nothing an operand reads is overwritten too early by its own compute set."""
        variable = self.executable.variables[operand.variable]
        if variable.storage not in writers:
            return
        writer, name = writers[variable.storage]
        if writer is not group:
            raise refuse(
                f"{at} reads {variable.name}, over which another group of the same compute set writes {name}",
                group.location,
            )
        if operand.buffer:
            return
        result = self.executable.variables[name]
        r = group.results.index(name)
        wide = {d for d, dim in enumerate(group.form.dims) if dim.size > 1}
        reads, writes = (
            [d for d in m.dims if d in wide] for m in (group.form.operands[k], group.form.results[r])
        )
        kept = {d for d in wide if not group.form.dims[d].is_reduced}
        same_points = reads == writes and set(reads) == kept and not group.plan.split_reductions(group.form)
        fits = part_bytes(result) <= part_bytes(variable) and itemsize(result.dtype) == itemsize(
            variable.dtype
        )
        if not (group.codelet.may_overwrite(k) and same_points and fits):
            raise refuse(
                f"{at} writes {name} over {variable.name} while it reads it in place, which {group.codelet.name} does not allow",
                group.location,
            )

    # --- copies

    def _copy(self, number: int, step: CopyStep) -> None:
        """Prove that a copy writes every element of its destination from exactly one source element."""
        at, variables = where(number, step), self.executable.variables
        target = variables[step.destination]
        if step.axis is None:
            source = variables[step.sources[0]]
            if source.shape == target.shape:
                self._moves(at, source, self.layouts[target.layout])
            else:
                self._reshapes(source, target)
        else:
            self._joins(at, step, target)
        self.found.copies += 1

    def _joins(self, at: str, step: CopyStep, target: Variable) -> None:
        axis = step.axis
        assert axis is not None
        times = np.zeros(target.shape[axis], np.int64)
        offset = 0
        for name in step.sources:
            source = self.executable.variables[name]
            times[offset : offset + source.shape[axis]] += 1
            self._moves(at, source, tables.shifted(self.layouts[target.layout], source.shape, axis, offset))
            offset += source.shape[axis]
        if np.any(times != 1):
            raise refuse(
                f"{at} writes index {int(np.argmax(times != 1))} of axis {axis} of {target.name} other than once",
                step.location,
            )

    def _reshapes(self, source: Variable, target: Variable) -> None:
        """Count what a reshape moves, in blocks that both layouts keep together; row-major order pairs the elements."""
        block = math.gcd(tables.block_size(source.layout), tables.block_size(target.layout))
        count = math.prod(source.shape)
        self.found.by_element += 1
        self.found.positions += count // max(1, block)
        for start in range(0, count, block * tables.CHUNK):
            flat = np.arange(start, min(count, start + block * tables.CHUNK), block)
            crosses = tables.places(source.layout, flat)[0] != tables.places(target.layout, flat)[0]
            self.found.moved_bytes += int(crosses.sum()) * block * itemsize(source.dtype)


def _element(flat: int) -> str:
    """Name what a position holds."""
    return {OUT: "the fill value", PAST: "nothing"}.get(int(flat), f"element {flat}")
