"""Exchange volumes and messages, derived exactly from a source layout and the slices that are read.

Everything factorizes per axis: a cell's incoming elements are the product of per-axis counts less what
its tile already holds, and what a tile must send is the product of per-axis covered elements.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tiles.errors import Unsupported
from tiles.graph import AxisSplit, Cycles, Layout, OpForm, Plan
from tiles.graph.layout import ceil_div
from tiles.numerics.arrays import distinct, order_of
from tiles.numerics.dtypes import WORD_BYTES, itemsize
from tiles.numerics.shared import all_read_only, hold, read_only
from tiles.plan.element_order import reordering_of
from tiles.plan.ipus import ipu_bytes, paired_ipu_bytes
from tiles.plan.padding import with_padding
from tiles.plan.receiving import arriving, digits_of
from tiles.plan.recent import Recent
from tiles.plan.sending import leaving
from tiles.plan.slices import Slices, is_local, layout_slices, operand_slices, slice_extents, stored_bytes
from tiles.plan.superstep import busiest_cycles, code_bytes, phase_cycles, phase_parts
from tiles.target import Basis, Parts, Target, weakest_part


@dataclass(frozen=True)
class Traffic:
    """What one exchange phase moves, and the exchange program it takes, per tile; int64 ``[num_tiles]`` each.

    Args:
      received: bytes arriving from other tiles.
      sent: bytes leaving; a word several tiles take at once (multicast) counts once.
      local: bytes copied inside the tile.
      runs: contiguous runs leaving, each once for all that take it.
      sends: send instructions of these runs.
      selects: changes of the tile that is listened to.
      pointers: changes of the address that arriving words are written to.
      shared: of the bytes received, those that all tiles of one exchange bus take alike.
      reordering: cycles of bringing elements into the order in which they are read, inside the tile.
      regressed: of these, the cycles that rest on a regression and on no vertex's formula.
      between_ipus: bytes that each IPU sends to each other one, int64 ``[num_ipus, num_ipus]``, from row to column; a word
        that several tiles of one IPU take counts once.
    """

    received: np.ndarray
    sent: np.ndarray
    local: np.ndarray
    runs: np.ndarray
    sends: np.ndarray
    selects: np.ndarray
    pointers: np.ndarray
    shared: np.ndarray
    reordering: np.ndarray
    regressed: np.ndarray
    between_ipus: np.ndarray

    def __post_init__(self) -> None:
        all_read_only(vars(self).values())

    @classmethod
    def none(cls, target: Target) -> Traffic:
        """Return no traffic."""
        return cls(**_figures(target))

    def __add__(self, other: Traffic) -> Traffic:
        """Return both in one phase."""
        names = [field.name for field in dataclasses.fields(self)]
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def is_empty(self) -> bool:
        """Whether nothing crosses tiles."""
        return not self.received.any()


@dataclass(frozen=True)
class Incoming:
    """What arrives at each cell of a plan, and how; int64 ``[cells]`` each, None for nothing; fields as in ``Traffic``."""

    received: np.ndarray
    local: np.ndarray | None
    selects: np.ndarray
    pointers: np.ndarray
    shared: np.ndarray | None
    reordering: np.ndarray | None
    regressed: np.ndarray | None

    def __post_init__(self) -> None:
        hold(*vars(self).values())


@dataclass(frozen=True)
class Outgoing:
    """What leaves each part of a layout, and how; int64 ``[parts]`` each, fields as in ``Traffic``."""

    sent: np.ndarray
    runs: np.ndarray
    sends: np.ndarray

    def __post_init__(self) -> None:
        hold(*vars(self).values())


def traffic(source: Layout, slices: Slices, dtype: str, target: Target) -> Traffic:
    """Return the traffic that brings ``slices`` from ``source`` to their cells' tiles."""
    moved = moves(source, slices, dtype, target)
    return _by_tile(moved, slices.tiles, source.tiles, ipu_bytes(source, slices, dtype, target), target)


def _figures(target: Target) -> dict[str, np.ndarray]:
    """Return the fields of no traffic."""
    figures = {field.name: np.zeros(target.num_tiles, np.int64) for field in dataclasses.fields(Traffic)}
    return figures | {"between_ipus": np.zeros((target.num_ipus, target.num_ipus), np.int64)}


def _by_tile(
    moved: tuple[Incoming, Outgoing],
    cells: np.ndarray,
    parts: np.ndarray,
    between_ipus: np.ndarray,
    target: Target,
) -> Traffic:
    """Return traffic from what arrives at cells and leaves parts, given their tiles."""
    figures = _figures(target) | {"between_ipus": between_ipus}
    for each, tiles in zip(moved, (cells, parts), strict=True):
        for field in dataclasses.fields(each):
            values = getattr(each, field.name)
            if values is not None:
                figures[field.name][tiles] = values
    return Traffic(**figures)


def moves(source: Layout, slices: Slices, dtype: str, target: Target) -> tuple[Incoming, Outgoing]:
    """Return what arrives at each cell and leaves each part when ``slices`` are brought from ``source``."""
    size = itemsize(dtype)
    order = reordering_of(source, slices.arrangement, slices.extents, size)
    is_as_stored = order is not None and order.arrives_as_stored
    arrives = source.arrangement if is_as_stored else slices.arrangement
    come = arriving(slices, source, arrives, target.num_tiles)
    kept, written = digits_of(source.arrangement, source.part_shape), digits_of(arrives, slices.extents)
    padded = with_padding(slices, source, kept, written)
    filled = come if padded is None else arriving(*padded, arrives, target.num_tiles)
    come = come._replace(windows=filled.windows, jumps=filled.jumps)
    reordered = None if order is None or order.is_kept else order
    received = whole_words(come.need - come.own, size)
    selects, pointers = come.changes(received // WORD_BYTES)
    shared = slices.replication > 1
    reordering = None if reordered is None else reordered.cycles(come.need, come.own, size, target)
    incoming = Incoming(
        received=received,
        local=whole_words(come.own, size) if reordered is None else None,
        selects=selects,
        pointers=pointers,
        shared=whole_words(_alike(slices, come.need, come.own, target), size) if shared else None,
        reordering=reordering,
        regressed=reordering if reordered is not None and reordered.is_regressed(size) else None,
    )
    elements, runs = leaving(slices, source, come.own, target.num_tiles)
    if padded is not None:
        runs = leaving(*padded, filled.own, target.num_tiles)[1]
    sent = whole_words(elements, size)
    words = sent // WORD_BYTES
    runs = np.minimum(np.maximum(runs, sent > 0), words)
    return incoming, Outgoing(sent, runs, send_instructions(words, runs, target))


def send_instructions(words: Any, runs: Any, target: Target) -> Any:
    """Return the send instructions of ``runs`` of equal lengths that have ``words`` together; ints or arrays.

    A send has a short count; what is longer goes on in sends with a longer one.

    Source: ``send`` and ``sendoff``, github.com/osmarks/ipu-stack docs/EXCHANGE_INSTRUCTION_REFERENCE.md.
    """
    most = words.max(initial=0) if isinstance(words, np.ndarray) else words
    if most <= target.exchange_send_max_words:
        return runs
    length = ceil_div(words, np.maximum(runs, 1))
    rest = np.maximum(length - target.exchange_send_max_words, 0)
    return runs * (1 + ceil_div(rest, target.exchange_continued_send_max_words))


MOVED_BYTES = 192 << 20
"""What is known of operands' moves may take so much: what plans are priced with, the program is put together from."""


def _size_of(moved: tuple[Incoming, Outgoing]) -> int:
    return sum(array.nbytes for each in moved for array in vars(each).values() if array is not None)


_MOVED = Recent[tuple[Incoming, Outgoing]](MOVED_BYTES, _size_of)


def operand_moves(
    source: Layout, form: OpForm, plan: Plan, k: int, shape: tuple[int, ...], dtype: str, target: Target
) -> tuple[Incoming, Outgoing]:
    """Return what moves to bring every cell of a plan its slice of operand ``k``; computed once per question."""
    asked = source, form, plan, k, shape, dtype, target
    return _MOVED.get(asked, lambda: moves(source, operand_slices(form, plan, k, shape), dtype, target))


@lru_cache(maxsize=8192)
def operand_code(
    source: Layout, form: OpForm, plan: Plan, k: int, shape: tuple[int, ...], dtype: str, target: Target
) -> tuple[np.ndarray, np.ndarray]:
    """Return the instructions of exchange code that bring every cell of a plan its slice of operand ``k``.

    Plans are priced long before the program is put together: small as these tables are, they are kept until then.

    Returns:
      Changes of source and of pointer by cell, int32 ``[cells]``; sends, and the wait before each run, by part, int32
      ``[parts]``.
    """
    come, go = operand_moves(source, form, plan, k, shape, dtype, target)
    changes, sending = (
        np.add(*pair, dtype=np.int32, casting="same_kind")
        for pair in ((come.selects, come.pointers), (go.sends, go.runs))
    )
    return read_only(changes), read_only(sending)


def operand_traffic(
    source: Layout, form: OpForm, plan: Plan, k: int, shape: tuple[int, ...], dtype: str, target: Target
) -> Traffic:
    """Return the traffic that brings every cell of a plan its slice of operand ``k``."""
    moved = operand_moves(source, form, plan, k, shape, dtype, target)
    crossing = ipu_bytes(source, operand_slices(form, plan, k, shape), dtype, target)
    return _by_tile(moved, plan.tiles, source.tiles, crossing, target)


def staging_bytes(source: Layout, form: OpForm, plan: Plan, k: int, dtype: str) -> int:
    """Return the bytes in which a tile holds a slice of operand ``k`` as it arrives, if it has to be reordered; else 0."""
    if source.arrangement.is_row_major and plan.arrangement.is_row_major:
        return 0
    extents, size = slice_extents(form, plan, k), itemsize(dtype)
    into = plan.operand_order(form, k).fit(extents)
    order = reordering_of(source, into, extents, size)
    if order is None or not order.arrives_as_stored or is_local(form, plan, k, source):
        return 0
    return stored_bytes(into, extents, size)


def keeps_order(form: OpForm, plan: Plan, k: int, layout: Layout, dtype: str) -> bool:
    """Return whether operand ``k`` lies in the order in which the vertices of a plan read it."""
    if layout.arrangement.is_row_major and plan.arrangement.is_row_major:
        return True
    extents = slice_extents(form, plan, k)
    order = reordering_of(layout, plan.operand_order(form, k).fit(extents), extents, itemsize(dtype))
    return order is None or order.is_kept


@lru_cache(maxsize=512)
def layout_traffic(
    source: Layout,
    destination: Layout,
    shape: tuple[int, ...],
    dtype: str,
    target: Target,
    axis: int | None = None,
    offset: int = 0,
) -> Traffic:
    """Return the traffic of copying a tensor into a layout, at ``offset`` along ``axis``; once per question."""
    return traffic(source, layout_slices(destination, shape, axis, offset), dtype, target)


def _alike(slices: Slices, need: np.ndarray, own: np.ndarray, target: Target) -> np.ndarray:
    """Count, per cell, the elements that arrive for all tiles of its exchange bus at once.

    Those are what neighbours that read one slice need and none of them holds.
    """
    bus = target.tiles_per_shared_exchange_bus
    buses = ceil_div(target.num_tiles, bus)
    reads = np.full(buses * bus, -1, np.int64)
    reads[slices.tiles] = slices.number
    together = reads.reshape(-1, bus)
    is_alike = np.all(together == together[:, :1], axis=1) & (together[:, 0] >= 0)
    if not is_alike.any():
        return np.zeros_like(need)
    on = slices.tiles // bus
    held = np.bincount(on, own, buses).astype(np.int64)
    return np.where(is_alike[on], np.maximum(need - held[on], 0), 0)


def whole_words(elements: np.ndarray, size: int) -> np.ndarray:
    """Return the bytes, in whole words, of elements of ``size`` bytes."""
    if size % WORD_BYTES == 0:
        return elements * size
    return -(-elements * size // WORD_BYTES) * WORD_BYTES


MOST_STRETCHES = 2**25
"""Stretches of a copy that are listed one by one, 256 MiB for each of several lists: on each tile of an IPU 22,000 of them,
whose exchange code is as large as all memory that code runs from, or larger."""
AT_ONCE = 2**16
"""Stretches whose places are computed at once: what that takes stays in the host's cache."""
MOST_INDICES = 2**24
"""Indices of an axis that one tile may hold of a copy: they are listed, and no tile's memory holds as many elements."""


def stretches_between(source: Layout, destination: Layout) -> int:
    """Return how many stretches ``reshape_traffic`` lists, at most, of a copy into another shape or layout."""
    return sum(begin.most for layout in (source, destination) for begin in _Owners(layout).breaks)


def reshape_traffic(source: Layout, destination: Layout, dtype: str, target: Target) -> Traffic:
    """Return the traffic of copying a tensor into another shape or layout, element by element in order.

    For the copies that do not factorize. What is listed and sorted are stretches of elements that follow each other on
    both sides; where they begin follows from tables of single axes (``_Owners``).

    Raises:
      Unsupported: more than ``MOST_STRETCHES`` stretches, or more than ``MOST_INDICES`` of an axis on a tile.
    """
    size, number = itemsize(dtype), math.prod(axis.size for axis in source.axes)
    most = max((*source.part_shape, *destination.part_shape), default=0)
    if most > MOST_INDICES:
        raise Unsupported(
            f"a copy of {number:,} elements into another shape or layout, {most:,} of one axis on one tile",
            expected=f"at most {MOST_INDICES:,}: no tile holds more",
            try_="smaller arrays",
        )
    owners = _Owners(source), _Owners(destination)
    begins = [begin for each in owners for begin in each.breaks]
    listed = sum(begin.most for begin in begins)
    if listed > MOST_STRETCHES:
        raise Unsupported(
            f"a copy of {number:,} elements into another shape or layout, in up to {listed:,} stretches",
            expected=f"at most {MOST_STRETCHES:,}: its exchange is derived from every one of them",
            try_="smaller arrays, or the same shape on both sides of the copy",
        )
    result = Traffic.none(target)
    if not number:
        return result
    first = distinct(np.concatenate([np.zeros(1, np.int64), *(begin.numbers() for begin in begins)]))
    (src_tile, src_offset), (dst_tile, dst_offset) = (each.at(first) for each in owners)
    length = np.diff(first, append=number)
    crosses = src_tile != dst_tile

    def count(tiles: np.ndarray) -> np.ndarray:
        return np.bincount(tiles, minlength=target.num_tiles)

    def elements(tiles: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return np.bincount(tiles, lengths, target.num_tiles).astype(np.int64)

    local = elements(src_tile[~crosses], length[~crosses])
    columns = [src_tile, src_offset, dst_tile, dst_offset, length]
    del first, src_tile, src_offset, dst_tile, dst_offset, length  # many millions of each

    def pick(which: np.ndarray) -> None:
        for n in range(len(columns)):
            columns[n] = columns[n][which]

    pick(crosses)
    received, sent = (whole_words(elements(columns[n], columns[4]), size) for n in (2, 0))
    between_ipus = paired_ipu_bytes(columns[0], columns[2], columns[4], dtype, target)
    pick(order_of(*columns[:2]))
    runs = count(columns[0][_breaks(columns[0], columns[1], columns[4])])
    pick(order_of(*columns[2:4]))
    in_order = count(columns[2][_breaks(*columns[2:])])
    pick(order_of(columns[2], *columns[:2]))
    src_tile, src_offset, tile, offset, length = columns
    jumps = count(tile[_breaks(tile, offset, length)])
    changes = _breaks(tile)
    selects = count(tile[_breaks(src_tile, src_offset, length) | changes])
    sources = count(tile[_breaks(src_tile) | changes])
    runs = np.minimum(runs, sent // WORD_BYTES)
    any_order = (jumps <= sources) | (count(tile) <= selects)  # see ``receiving.arriving``
    return dataclasses.replace(
        result,
        received=received,
        sent=sent,
        local=whole_words(local, size),
        runs=runs,
        sends=send_instructions(sent // WORD_BYTES, runs, target),
        selects=np.minimum(selects, np.maximum(sources, received // WORD_BYTES)),
        pointers=np.minimum(np.where(any_order, np.minimum(in_order, jumps), jumps), received // WORD_BYTES),
        between_ipus=between_ipus,
    )


def _breaks(tiles: np.ndarray, offsets: np.ndarray | None = None, length: np.ndarray | int = 1) -> np.ndarray:
    """Return where a tile differs from the one before, or an offset does not follow the one before; bool.

    Args:
      tiles: of elements, or of stretches of them.
      offsets: of their first elements.
      length: elements of each.
    """
    result = np.ones(tiles.size, bool)
    result[1:] = tiles[1:] != tiles[:-1]
    if offsets is not None:
        result[1:] |= offsets[1:] != (offsets + length)[:-1]
    return result


@dataclass(frozen=True, eq=False)
class _Breaks:
    """Where stretches begin as one axis goes on, those after it back to their first index.

    Args:
      axis: how it is cut.
      repeats: how often all of the axis is gone through.
      inner: elements of one index.
      inside: indices inside a part at which one begins, ascending; int64.
      parts: parts, from the second, at whose first index one begins; int64.
    """

    axis: AxisSplit
    repeats: int
    inner: int
    inside: np.ndarray
    parts: np.ndarray

    @property
    def most(self) -> int:
        """How many begin, a short last part taken for a whole one."""
        return self.repeats * (self.axis.parts * self.inside.size + self.parts.size)

    def numbers(self) -> np.ndarray:
        """Return the elements, by their number in row-major order, with which these begin; int64, in no order."""
        size, grain = self.axis.size, self.axis.grain
        index = (np.arange(self.axis.parts)[:, None] * grain + self.inside).reshape(-1)
        index = np.concatenate([index[index < size], self.parts * grain])
        if not index.size:
            return index  # of however many repeats
        numbers = np.arange(self.repeats)[:, None] * size + index
        numbers *= self.inner
        return numbers.reshape(-1)


class _Owners:
    """Where the elements of a tensor lie, by their number in row-major order: sums of what each axis adds.

    Args:
      layout: of the tensor.
    """

    def __init__(self, layout: Layout) -> None:
        self._base = layout.base
        self._part_elements = layout.arrangement.stored_elements(layout.part_shape)
        self._axes = tuple(zip(layout.axes, layout.arrangement.offsets(layout.part_shape), strict=True))
        self.breaks = tuple(self._breaks()) if math.prod(axis.size for axis in layout.axes) else ()

    def _breaks(self) -> Iterator[_Breaks]:
        """Yield, from the last axis, where an element does not follow the one before on its tile.

        From one element to the next one axis goes one index on and all axes after it go back to their first. A
        stretch goes on if that leaves the tile as it is and adds 1 to the offset.
        """
        inner, back_tile, back_offset = 1, 0, 0
        repeats = math.prod(axis.size for axis, _ in self._axes)
        for axis, places in self._axes[::-1]:
            repeats //= axis.size
            inside = np.flatnonzero((np.diff(places[: axis.grain]) + back_offset != 1) | (back_tile != 0)) + 1
            turns = np.diff(axis.tiles[: axis.parts]) + back_tile != 0
            turns |= places[0] - places[min(axis.grain, axis.size) - 1] + back_offset != 1
            yield _Breaks(axis, repeats, inner, inside, np.flatnonzero(turns) + 1)
            last = axis.size - 1
            back_tile += int(axis.tiles[0] - axis.tiles[last // axis.grain])
            back_offset += int(places[0] - places[last % axis.grain])
            inner *= axis.size

    def at(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return tile and part offset (elements) of elements, shape of ``numbers``: int32 where no part is larger."""
        dtype = np.int32 if self._part_elements < 1 << 31 else np.int64
        tile, offset = np.full(numbers.shape, self._base, np.int32), np.zeros(numbers.shape, dtype)
        for begin in range(0, numbers.size, AT_ONCE):
            block = slice(begin, begin + AT_ONCE)
            rest = numbers[block]
            for axis, places in self._axes[::-1]:
                rest, index = np.divmod(rest, axis.size)
                part, inside = np.divmod(index, axis.grain)
                tile[block] += axis.tiles[part]
                offset[block] += places[inside]
        return tile, offset


def exchange_instructions(moved: Traffic) -> np.ndarray:
    """Return the instructions that each tile issues while words move, int64 ``[num_tiles]``: sends and changes."""
    return moved.sends + moved.selects + moved.pointers


def exchange_cycles(moved: Traffic, target: Target) -> Cycles:
    """Return the duration of one exchange phase, 0 when nothing crosses tiles; see ``exchange_parts``."""
    parts = exchange_parts(moved, target)
    source = (
        "max(payload/4, control instructions) + phase entry; ipu-stack cost model, PopLibs ExchangeEstimator"
    )
    return Cycles(sum(cycles for _, cycles in parts), weakest_part(parts), source)


def exchange_parts(moved: Traffic, target: Target) -> Parts:
    """Return the duration of one exchange phase, set by its busiest tile: the words that move, and entering the phase.

    The phase lasts as long as the busiest tile's payload, or its control instructions if those are more
    (each send and each change of source or pointer is an instruction of its own), plus the entry cost.
    What the tiles of one exchange bus take alike arrives over all their lanes at once.

    Source: ipu-stack's resource model: cycles = max(payload / 4, control instructions) + phase overhead. It
    predicts no conflicts of order: schedules of 48 phases made with it took 1.02 to 2.5 times as long, in the middle
    1.21 times (github.com/osmarks/ipu-stack, docs/EXCHANGE_COST_AND_GELU_2026_09_13.md). Shared buses: the
    receive rate that PopLibs' planner counts on (graphcore/poplibs lib/poplin/ExchangeEstimator.hpp).
    """
    if moved.is_empty:
        return ((Basis.DOCUMENTED, 0),)
    lanes = _lanes(moved.received, moved.shared, target)
    return phase_parts(_busiest(lanes, moved.sent, exchange_instructions(moved), target), target)


def _lanes(received: np.ndarray, shared: np.ndarray, target: Target) -> np.ndarray:
    """Return the bytes that arrive over a tile's own lanes, where all tiles of a bus share theirs."""
    return received - shared + -(-shared // target.tiles_per_shared_exchange_bus)


def _busiest(lanes: np.ndarray, sent: np.ndarray, instructions: np.ndarray, target: Target) -> int:
    """Return the cycles of the tile that receives, sends or controls longest."""
    return busiest_cycles(max(int(lanes.max()), int(sent.max())), int(instructions.max()), target)


class ExchangeFigures(NamedTuple):
    """What the price of an exchange takes: the figures of the busiest tile in each respect.

    Args:
      cycles: of the exchange phase; 0 when nothing crosses tiles.
      code_bytes: exchange code.
      local_bytes: bytes copied inside the tile.
      reordering_cycles: of bringing elements into order.
    """

    cycles: int
    code_bytes: int
    local_bytes: int
    reordering_cycles: int


@lru_cache(maxsize=16384)
def exchange_figures(
    form: OpForm,
    plan: Plan,
    operands: tuple[tuple[int, Layout, tuple[int, ...], str], ...],
    target: Target,
) -> ExchangeFigures:
    """Return the figures of the exchange before a compute set, as those of its ``Traffic`` would be.

    Args:
      form: the operation.
      plan: how it is cut.
      operands: of each one that is not read in place its number, layout, shape and dtype.
      target: the machine.
    """
    received: Any = 0
    shared: Any = 0
    changes: Any = 0
    local: Any = 0
    reordering: Any = 0
    tiles = np.zeros((3, target.num_tiles), np.int64)
    sent, code, instructions = tiles
    for k, source, shape, dtype in operands:
        come, go = operand_moves(source, form, plan, k, shape, dtype, target)
        changing, sending = operand_code(source, form, plan, k, shape, dtype, target)
        received = received + come.received
        changes = changes + changing
        if come.local is not None:
            local = local + come.local
        if come.shared is not None:
            shared = shared + come.shared
        if come.reordering is not None:
            reordering = reordering + come.reordering
        sent[source.tiles] += go.sent
        code[source.tiles] += sending
        instructions[source.tiles] += go.sends
    instructions[plan.tiles] += changes
    code[plan.tiles] += changes
    cycles = 0
    if not isinstance(received, int) and received.any():
        lanes = received if isinstance(shared, int) else _lanes(received, shared, target)
        cycles = phase_cycles(_busiest(lanes, sent, instructions, target), target)
    most_local, most_reordering = (
        0 if isinstance(each, int) else int(each.max()) for each in (local, reordering)
    )
    return ExchangeFigures(cycles, code_bytes(int(code.max()), target), most_local, most_reordering)


def exchange_code_bytes(moved: Traffic, target: Target) -> np.ndarray:
    """Return bytes of exchange code each tile needs for one phase, int64 ``[num_tiles]``.

    There is no receive instruction: a tile sends runs of its memory, whoever listens, and waits before each until its
    turn comes; a receiver changes the tile it listens to and the address it writes to, and these changes carry the
    time until they happen. A word that many tiles take at once is sent once.

    Source: the instructions that ipu-stack recovered, one word each (two where the merged form does two things):
    github.com/osmarks/ipu-stack docs/EXCHANGE_INSTRUCTION_REFERENCE.md. Its own estimate before scheduling counts a
    wait and a send for each run, too (crates/ipu-codegen/src/estimate/exchange_storage.rs).
    """
    return code_bytes(exchange_instructions(moved) + moved.runs, target)
