"""Exchange volumes and messages, derived exactly from a source layout and the slices that are read.

Everything factorizes per axis: a cell's incoming elements are the product of per-axis counts less what
its tile already holds, and what a tile must send is the product of per-axis covered elements.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tiles.graph import Arrangement, AxisSplit, Cycles, Layout, OpForm, Plan
from tiles.graph.layout import ceil_div
from tiles.numerics.dtypes import WORD_BYTES, itemsize
from tiles.numerics.shared import all_read_only
from tiles.plan.ordering import turn
from tiles.plan.slices import Slices, is_local, layout_slices, operand_slices
from tiles.target import Basis, Target


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
      turning: cycles of bringing elements into the order in which they are read, inside the tile.
    """

    received: np.ndarray
    sent: np.ndarray
    local: np.ndarray
    runs: np.ndarray
    sends: np.ndarray
    selects: np.ndarray
    pointers: np.ndarray
    shared: np.ndarray
    turning: np.ndarray

    def __post_init__(self) -> None:
        all_read_only(vars(self).values())

    @classmethod
    def none(cls, num_tiles: int) -> Traffic:
        """Return no traffic."""
        return cls(*(np.zeros(num_tiles, np.int64) for _ in dataclasses.fields(cls)))

    def __add__(self, other: Traffic) -> Traffic:
        """Return both in one phase."""
        names = [field.name for field in dataclasses.fields(self)]
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def is_empty(self) -> bool:
        """Whether nothing crosses tiles."""
        return not self.received.any()


def traffic(source: Layout, slices: Slices, dtype: str, target: Target) -> Traffic:
    """Return the traffic that brings ``slices`` from ``source`` to their cells' tiles."""
    size, num_tiles = itemsize(dtype), target.num_tiles
    g = slices.coordinates
    owner = source.part_of_tile(num_tiles)[slices.tiles]
    has_part = owner >= 0
    own_part = np.unravel_index(np.maximum(owner, 0), source.grid) if source.grid else ()
    need = np.ones(slices.tiles.size, np.int64)
    own = has_part.astype(np.int64)
    overlaps = []
    for axis, split, where, part in zip(slices.axes, source.axes, g, own_part, strict=True):
        need *= axis.num_inside[where]
        overlaps.append(axis.overlap(where, split.lo[part], split.hi[part]))
        own *= overlaps[-1]
    out_elements, out_runs = _sent(source, slices, g, owner)
    moved = {field.name: np.zeros(num_tiles, np.int64) for field in dataclasses.fields(Traffic)}
    order = turn(source, slices.arrangement, slices.extents, size)
    if order is None or order.is_kept:
        moved["local"][slices.tiles] = _bytes(own, size)
    else:
        moved["turning"][slices.tiles] = order.cycles(need, own, size, target)
    is_unturned = order is not None and order.arrives_unturned
    arrives = source.arrangement if is_unturned else slices.arrangement
    windows, stretches, sources = _arriving(slices, source, arrives, g, overlaps, own)
    received, sent = _bytes(need - own, size), _bytes(out_elements, size)
    moved["received"][slices.tiles] = received
    most = np.maximum(
        sources, received // WORD_BYTES
    )  # parts of a word come one by one if from several tiles
    moved["selects"][slices.tiles] = np.clip(windows, sources, most)
    moved["pointers"][slices.tiles] = np.clip(stretches, received > 0, received // WORD_BYTES)
    runs = np.clip(out_runs, sent > 0, sent // WORD_BYTES)
    moved["sent"][source.tiles] = sent
    moved["runs"][source.tiles] = runs
    moved["sends"][source.tiles] = send_instructions(sent // WORD_BYTES, runs, target)
    if slices.replication > 1:
        moved["shared"][slices.tiles] = _bytes(_alike(slices, need, own, target), size)
    return Traffic(**moved)


def send_instructions(words: Any, runs: Any, target: Target) -> Any:
    """Return the send instructions of ``runs`` of equal lengths that have ``words`` together; ints or arrays.

    A send has a short count; what is longer goes on in sends with a longer one.

    Source: ``send`` and ``sendoff``, github.com/osmarks/ipu-stack docs/EXCHANGE_INSTRUCTION_REFERENCE.md.
    """
    length = ceil_div(words, np.maximum(runs, 1))
    rest = np.maximum(length - target.exchange_send_max_words, 0)
    return runs * (1 + ceil_div(rest, target.exchange_continued_send_max_words))


@lru_cache(maxsize=512)
def operand_traffic(
    source: Layout, form: OpForm, plan: Plan, k: int, shape: tuple[int, ...], dtype: str, target: Target
) -> Traffic:
    """Return the traffic that brings every cell of a plan its slice of operand ``k``; computed once per question."""
    return traffic(source, operand_slices(form, plan, k, shape), dtype, target)


def staging_bytes(
    source: Layout, form: OpForm, plan: Plan, k: int, shape: tuple[int, ...], dtype: str
) -> int:
    """Return the bytes in which a tile holds a slice of operand ``k`` as it arrives, if it has to be turned; else 0."""
    if source.arrangement.is_row_major and plan.arrangement.is_row_major:
        return 0
    slices, size = operand_slices(form, plan, k, shape), itemsize(dtype)
    order = turn(source, slices.arrangement, slices.extents, size)
    if order is None or not order.arrives_unturned or is_local(form, plan, k, source):
        return 0
    return slices.stored_bytes(size)


def keeps_order(form: OpForm, plan: Plan, k: int, layout: Layout, shape: tuple[int, ...], dtype: str) -> bool:
    """Return whether operand ``k`` lies in the order in which the vertices of a plan read it."""
    if layout.arrangement.is_row_major and plan.arrangement.is_row_major:
        return True
    slices = operand_slices(form, plan, k, shape)
    order = turn(layout, slices.arrangement, slices.extents, itemsize(dtype))
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
    reads = np.full(-(-target.num_tiles // bus) * bus, -1, np.int64)
    holds = np.zeros_like(reads)
    number = np.zeros_like(need)
    for axis, where in zip(slices.axes, slices.coordinates, strict=True):
        number = number * axis.first.size + where
    reads[slices.tiles] = number
    holds[slices.tiles] = own
    together = reads.reshape(-1, bus)
    is_alike = np.all(together == together[:, :1], axis=1) & (together[:, 0] >= 0)
    held = holds.reshape(-1, bus).sum(axis=1)
    on = slices.tiles // bus
    return np.where(is_alike[on], np.maximum(need - held[on], 0), 0)


def _bytes(elements: np.ndarray, size: int) -> np.ndarray:
    return -(-elements * size // WORD_BYTES) * WORD_BYTES


@dataclass(frozen=True)
class _Along:
    """What cells read along an axis: int64 ``[cells]`` each.

    Args:
      low: the first index.
      high: the last one.
      inside: how many.
      pieces: parts they lie in.
      mine: how many of them the cell's tile holds.
      step: from one to the next.
      split: how parts are cut.
      extent: the longest slice.
    """

    low: np.ndarray
    high: np.ndarray
    inside: np.ndarray
    pieces: np.ndarray
    mine: np.ndarray
    step: int
    split: AxisSplit
    extent: int


def _digits(order: Arrangement, extents: tuple[int, ...]) -> list[tuple[int, int, bool]]:
    """Return the digits of a box's elements, the fastest first: dimension, its group, and whether a group's elements count."""
    factors = order.factors(extents)
    group = {d: step for d, _, step in factors if step > 1}
    return [(d, group.get(d, 1), d in group and step == 1) for d, _, step in reversed(factors)]


def _arriving(
    slices: Slices,
    source: Layout,
    order: Arrangement,
    g: tuple[np.ndarray, ...],
    overlaps: list[np.ndarray],
    own: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, per cell, how often it changes its source and its pointer while its slice arrives, and from how many tiles.

    Words arrive part by part, each part's in the order it holds them. What is contiguous in the part is listened to at
    once; what is contiguous in the slice, too, goes on at the pointer where it was left. Parts of which each fills one
    stretch of the slice follow one another, so that only the tile's own elements interrupt them.
    """
    axes, parts = [], np.ones(slices.tiles.size, np.int64)
    for axis, split, where, mine in zip(slices.axes, source.axes, g, overlaps, strict=True):
        low, high = (bound[where] for bound in axis.bounds)
        inside = axis.num_inside[where]
        pieces = np.where(high >= low, high // split.grain - low // split.grain + 1, 0)
        if abs(axis.step) != 1:
            pieces = np.minimum(pieces, inside)
        parts = parts * pieces
        axes.append(_Along(low, high, inside, pieces, mine, axis.step, split, axis.extent))
    windows = _windows(axes, _digits(source.arrangement, source.part_shape), own)
    stretches, own_stretches, is_dense = _stretches(axes, _digits(order, slices.extents), own)
    in_one_go = (stretches == parts) & is_dense
    jumps = np.where(in_one_go, np.minimum(stretches, 1 + (own > 0)), stretches - own_stretches)
    return windows, jumps, parts - (own > 0)


def _windows(axes: list[_Along], digits: list[tuple[int, int, bool]], own: np.ndarray) -> np.ndarray:
    """Return in how many stretches of its parts' memory a cell's slice lies, without those of its own tile's part."""
    windows, mine = np.ones(own.size, np.int64), (own > 0).astype(np.int64)
    whole = np.ones(own.size, bool)  # all of the parts along the faster digits
    for d, group, is_inner in digits:
        a = axes[d]
        joined = whole & (abs(a.step) == 1)
        if is_inner:
            windows = windows * np.where(joined, 1, np.minimum(a.inside, group))
            mine = mine * np.where(joined, 1, np.minimum(a.mine, group))
            whole = (
                joined & (a.low % group == 0) & (((a.high + 1) % group == 0) | (a.high + 1 == a.split.size))
            )
            continue
        groups = a.high // group - a.low // group + 1 if abs(a.step) == 1 else a.inside
        windows = windows * np.where(joined, a.pieces, np.where(a.inside > 0, groups, 0))
        mine = mine * np.where(joined, 1, ceil_div(a.mine, group))
        ends = (a.high // a.split.grain + 1) * a.split.grain if a.split.is_split else a.split.size
        whole = joined & (a.low % a.split.grain == 0) & (a.high + 1 == ends)  # stored at full grain
    return np.maximum(windows - mine, 0)


def _stretches(
    axes: list[_Along], digits: list[tuple[int, int, bool]], own: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return in how many stretches of a slice's memory its parts arrive, in how many its own does, and if there are no gaps."""
    stretches, mine = np.ones(own.size, np.int64), (own > 0).astype(np.int64)
    filled, is_dense = np.ones(own.size, bool), np.ones(own.size, bool)
    for d, group, is_inner in digits:
        a = axes[d]
        is_dense &= filled | (a.inside <= 1)
        joined = filled & (a.step == 1)
        is_aligned = (a.pieces <= 1) | ((a.split.grain % group == 0) & (a.low % group == 0))
        if is_inner:
            broken = ceil_div(a.inside, min(group, a.split.grain)) + a.pieces
            stretches = stretches * np.where(
                is_aligned, np.where(joined, 1, np.minimum(a.inside, group)), broken
            )
            mine = mine * np.where(joined, 1, np.minimum(a.mine, group))
            filled = joined & is_aligned
            continue
        groups = np.where(is_aligned | (group == 1), ceil_div(a.inside, group), 1)
        stretches = stretches * np.where(joined, a.pieces, groups)
        mine = mine * np.where(joined, 1, ceil_div(a.mine, group))
        filled = joined & (a.pieces <= 1) & (a.inside == a.extent)
    return stretches, np.minimum(mine, stretches), is_dense


def _sent(
    source: Layout, slices: Slices, g: tuple[np.ndarray, ...], owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct elements that each part must send, and in how many contiguous runs, int64 ``[parts]``."""
    grid = source.grid
    index = np.indices(grid).reshape(len(grid), -1) if grid else np.zeros((0, 1), np.int64)
    count = int(np.prod(grid, dtype=np.int64))
    shared = slices.replication > 1
    cell = np.full(count, -1, np.int64)
    if not shared:
        cells = np.flatnonzero(owner >= 0)
        cell[owner[cells]] = cells
    has_own = cell >= 0
    # fastest to slowest: elements that any cell reads, and those only the part's own cell reads; the runs of the former,
    # of the former less the latter; whether all of the part's elements along the faster digits are read
    covered, only_own = np.ones(count, np.int64), has_own.astype(np.int64)
    runs, runs_left = np.ones(count, np.int64), np.where(has_own, 0, 1)
    is_whole = np.ones(count, bool)
    for a, group, is_inner in _digits(source.arrangement, source.part_shape):
        axis, split, at = slices.axes[a], source.axes[a], index[a]
        reads, single = axis.covered_before
        lo, hi = split.lo[at], split.hi[at]
        here = reads[hi] - reads[lo]
        if is_inner:
            runs = np.where(is_whole, 1, np.minimum(here, group) * runs)
            is_whole &= (here % group == 0) | (here == min(split.grain, split.size))
            continue
        mine = np.zeros(count, np.int64)
        here_runs = axis.runs_between(lo, hi)
        left_runs = here_runs
        if not shared:
            low, high = (bound[g[a][np.maximum(cell, 0)]] for bound in axis.bounds)
            start, stop = np.clip(low, lo, hi), np.clip(high + 1, lo, hi)
            start, stop = np.where(has_own, start, lo), np.where(has_own, np.maximum(start, stop), lo)
            mine = single[stop] - single[start]
            left_runs = axis.runs_of_others(lo, hi, start, stop)
        others = ceil_div(here - mine, group)
        runs_left = np.where(is_whole, left_runs, others * runs) + ceil_div(mine, group) * runs_left
        runs = np.where(is_whole, here_runs, ceil_div(here, group) * runs)
        covered, only_own = covered * here, only_own * mine
        is_whole &= here == min(split.grain, split.size)  # parts are stored at full grain
    return covered - only_own, np.where(only_own > 0, runs_left, runs)


def reshape_traffic(source: Layout, destination: Layout, dtype: str, target: Target) -> Traffic:
    """Return the traffic of copying a tensor into another shape or layout, element by element in order.

    For the copies that do not factorize: flat index arrays, one entry per element, no Python loop.
    """
    size = itemsize(dtype)
    src_tile, src_offset = _flat_owner(source)
    dst_tile, dst_offset = _flat_owner(destination)
    result = Traffic.none(target.num_tiles)
    if not src_tile.size:
        return result

    def count(tiles: np.ndarray) -> np.ndarray:
        return np.bincount(tiles, minlength=target.num_tiles)

    crosses = np.flatnonzero(src_tile != dst_tile)
    leaving = crosses[np.lexsort((src_offset[crosses], src_tile[crosses]))]
    arriving = crosses[np.lexsort((src_offset[crosses], src_tile[crosses], dst_tile[crosses]))]
    received, sent = _bytes(count(dst_tile[crosses]), size), _bytes(count(src_tile[crosses]), size)
    runs = count(src_tile[leaving[_breaks(src_tile[leaving], src_offset[leaving])]])
    listened = _breaks(src_tile[arriving], src_offset[arriving]) | _breaks(dst_tile[arriving])
    written = arriving[np.lexsort((dst_offset[arriving], dst_tile[arriving]))]
    in_order = count(dst_tile[written[_breaks(dst_tile[written], dst_offset[written])]])
    jumps = count(dst_tile[arriving[_breaks(dst_tile[arriving], dst_offset[arriving])]])
    selects = count(dst_tile[arriving[listened]])
    sources = count(dst_tile[arriving[_breaks(src_tile[arriving]) | _breaks(dst_tile[arriving])]])
    runs = np.minimum(runs, sent // WORD_BYTES)
    return dataclasses.replace(
        result,
        received=received,
        sent=sent,
        local=_bytes(count(dst_tile[src_tile == dst_tile]), size),
        runs=runs,
        sends=send_instructions(sent // WORD_BYTES, runs, target),
        selects=np.minimum(selects, np.maximum(sources, received // WORD_BYTES)),
        pointers=np.minimum(np.where(jumps <= sources, in_order, jumps), received // WORD_BYTES),
    )


def _breaks(tiles: np.ndarray, offsets: np.ndarray | None = None) -> np.ndarray:
    """Return where a tile differs from the one before, or an offset does not follow the one before; bool."""
    result = np.ones(tiles.size, bool)
    result[1:] = tiles[1:] != tiles[:-1]
    if offsets is not None:
        result[1:] |= offsets[1:] != offsets[:-1] + 1
    return result


def _flat_owner(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return tile and part offset (elements) of every element in row-major order."""
    tile = np.full(1, layout.base, np.int64)
    offset = np.zeros(1, np.int64)
    places = layout.arrangement.offsets(layout.part_shape)
    for axis, place in zip(layout.axes, places, strict=True):
        index = np.arange(axis.size)
        tile = (tile[:, None] + axis.tiles[index // axis.grain][None, :]).reshape(-1)
        offset = (offset[:, None] + place[index % axis.grain][None, :]).reshape(-1)
    return tile, offset


def exchange_instructions(moved: Traffic) -> np.ndarray:
    """Return the instructions that each tile issues while words move, int64 ``[num_tiles]``: sends and changes."""
    return moved.sends + moved.selects + moved.pointers


def exchange_cycles(moved: Traffic, target: Target) -> Cycles:
    """Return the duration of one exchange phase, set by its busiest tile; 0 when nothing crosses tiles.

    The phase lasts as long as the busiest tile's payload, or its control instructions if those are more
    (each send and each change of source or pointer is an instruction of its own), plus the entry cost.
    What the tiles of one exchange bus take alike arrives over all their lanes at once.

    Source: ipu-stack's resource model: cycles = max(payload / 4, control instructions) + phase overhead. It
    predicts no conflicts of order: schedules of 48 phases made with it took 1.02 to 2.5 times as long, in the middle
    1.21 times (github.com/osmarks/ipu-stack, docs/EXCHANGE_COST_AND_GELU_2026_09_13.md). Shared buses: the
    receive rate that PopLibs' planner counts on (graphcore/poplibs lib/poplin/ExchangeEstimator.hpp).
    """
    source = (
        "max(payload/4, control instructions) + phase entry; ipu-stack cost model, PopLibs ExchangeEstimator"
    )
    if moved.is_empty:
        return Cycles(0, Basis.DOCUMENTED, source)
    basis = Basis.weakest((Basis.DOCUMENTED, target.basis("exchange_phase_overhead_cycles")[0]))
    width = target.exchange_bytes_per_cycle
    lanes = moved.received - moved.shared + -(-moved.shared // target.tiles_per_shared_exchange_bus)
    busiest = max(
        ceil_div(int(lanes.max()), width),
        ceil_div(int(moved.sent.max()), width),
        int(exchange_instructions(moved).max()),
    )
    return Cycles(busiest + target.exchange_phase_overhead_cycles, basis, source)


def exchange_code_bytes(moved: Traffic, target: Target) -> np.ndarray:
    """Return bytes of exchange code each tile needs for one phase, int64 ``[num_tiles]``.

    There is no receive instruction: a tile sends runs of its memory, whoever listens, and waits before each until its
    turn comes; a receiver changes the tile it listens to and the address it writes to, and these changes carry the
    time until they happen. A word that many tiles take at once is sent once.

    Source: the instructions that ipu-stack recovered, one word each (two where the merged form does two things):
    github.com/osmarks/ipu-stack docs/EXCHANGE_INSTRUCTION_REFERENCE.md. Its own estimate before scheduling counts a
    wait and a send for each run, too (crates/ipu-codegen/src/estimate/exchange_storage.rs).
    """
    return (exchange_instructions(moved) + moved.runs) * target.instruction_bytes
