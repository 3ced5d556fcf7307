"""Exchange volumes and messages, derived exactly from a source layout and the slices that are read.

Everything factorizes per axis: a cell's incoming elements are the product of per-axis counts less what
its tile already holds, and what a tile must send is the product of per-axis covered elements.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tiles.graph import Cycles, Layout, OpForm, Plan
from tiles.graph.layout import ceil_div
from tiles.numerics.dtypes import itemsize
from tiles.plan.ordering import turn
from tiles.plan.slices import Slices, is_local, layout_slices, operand_slices
from tiles.target import Basis, Target


@dataclass(frozen=True)
class Traffic:
    """What one exchange phase moves, per tile; int64 ``[num_tiles]`` each.

    Args:
      received: bytes arriving from other tiles.
      sent: bytes leaving; a word several tiles take at once (multicast) counts once.
      local: bytes copied inside the tile.
      receives: contiguous runs arriving.
      sends: contiguous runs leaving.
      shared: of the bytes received, those that all tiles of one exchange bus take alike.
      turning: cycles of bringing elements into the order in which they are read, inside the tile.
    """

    received: np.ndarray
    sent: np.ndarray
    local: np.ndarray
    receives: np.ndarray
    sends: np.ndarray
    shared: np.ndarray
    turning: np.ndarray

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
    for axis, split, where, part in zip(slices.axes, source.axes, g, own_part, strict=True):
        need *= axis.num_inside[where]
        own *= axis.overlap(where, split.lo[part], split.hi[part])
    runs = _runs(slices, source, g)
    out_elements, out_runs = _sent(source, slices, g, owner)
    result = Traffic.none(num_tiles)
    order = turn(source, slices.arrangement, slices.extents, size)
    if order is None or order.is_kept:
        result.local[slices.tiles] = _bytes(own, size)
    else:
        result.turning[slices.tiles] = order.cycles(need, own, size, target)
    if order is not None:
        runs = ceil_div(need - own, order.together)
        out_runs = np.maximum(out_runs, ceil_div(out_elements, order.together))
    result.received[slices.tiles] = _bytes(need - own, size)
    result.receives[slices.tiles] = np.where(need > own, np.maximum(runs - (own > 0), 1), 0)
    result.sent[source.tiles] = _bytes(out_elements, size)
    result.sends[source.tiles] = np.where(out_elements > 0, out_runs, 0)
    if slices.replication > 1:
        result.shared[slices.tiles] = _bytes(_alike(slices, need, own, target), size)
    return result


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
    return -(-elements * size // 4) * 4


def _runs(slices: Slices, source: Layout, g: tuple[np.ndarray, ...]) -> np.ndarray:
    """Count the contiguous runs each cell receives: outer axes run by run, inner ones piece by piece."""
    runs = np.ones(slices.tiles.size, np.int64)
    inner_full = True
    for axis, split, where in reversed(list(zip(slices.axes, source.axes, g, strict=True))):
        low, high = axis.bounds
        pieces = np.where(high >= low, high // split.grain - low // split.grain + 1, 0)
        whole_parts = abs(axis.step) == 1 and bool(
            np.all(axis.num_inside[where] == pieces[where] * min(split.grain, split.size))
        )
        runs *= (pieces if inner_full and abs(axis.step) == 1 else axis.num_inside)[where]
        inner_full = inner_full and whole_parts and bool(np.all(pieces[where] <= 1))
    return runs


def _sent(
    source: Layout, slices: Slices, g: tuple[np.ndarray, ...], owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct elements and the runs each part must send, int64 ``[parts]``."""
    grid = source.grid
    covered = np.ones(1, np.int64)
    touching = np.full(1, slices.replication, np.int64)
    single_prefix = []
    shared = slices.replication > 1
    for axis, split in zip(slices.axes, source.axes, strict=True):
        prefix, single = axis.covered_before
        covered = (covered[:, None] * (prefix[split.hi] - prefix[split.lo])[None, :]).reshape(-1)
        low, high = axis.bounds
        present = high >= low
        starts = np.zeros(split.parts + 1, np.int64)
        np.add.at(starts, low[present] // split.grain, 1)
        np.add.at(starts, high[present] // split.grain + 1, -1)
        touching = (touching[:, None] * np.cumsum(starts[:-1])[None, :]).reshape(-1)
        single_prefix.append(single)
    only_own = np.zeros(covered.size, np.int64)
    if not shared:
        cells = np.flatnonzero(owner >= 0)
        count = np.ones(cells.size, np.int64)
        parts = np.unravel_index(owner[cells], grid) if grid else ()
        for axis, split, where, part, prefix in zip(
            slices.axes, source.axes, g, parts, single_prefix, strict=True
        ):
            low, high = (bound[where[cells]] for bound in axis.bounds)
            a, b = np.maximum(low, split.lo[part]), np.minimum(high + 1, split.hi[part])
            count *= np.where(b > a, prefix[np.maximum(b, 0)] - prefix[np.minimum(a, axis.size)], 0)
        only_own[owner[cells]] = count
    return covered - only_own, np.maximum(touching, 1)


def reshape_traffic(source: Layout, destination: Layout, dtype: str, num_tiles: int) -> Traffic:
    """Return the traffic of copying a tensor into another shape or layout, element by element in order.

    For the copies that do not factorize: flat index arrays, one entry per element, no Python loop.
    """
    size = itemsize(dtype)
    src_tile, src_offset = _flat_owner(source)
    dst_tile, dst_offset = _flat_owner(destination)
    crosses = src_tile != dst_tile
    result = Traffic.none(num_tiles)
    if not src_tile.size:
        return result
    joined = np.zeros(src_tile.size, bool)
    joined[1:] = (
        (src_tile[1:] == src_tile[:-1])
        & (dst_tile[1:] == dst_tile[:-1])
        & (src_offset[1:] == src_offset[:-1] + 1)
        & (dst_offset[1:] == dst_offset[:-1] + 1)
    )
    starts = crosses & ~joined
    counts = {
        "received": np.bincount(dst_tile[crosses], minlength=num_tiles),
        "sent": np.bincount(src_tile[crosses], minlength=num_tiles),
        "local": np.bincount(dst_tile[~crosses], minlength=num_tiles),
    }
    return Traffic(
        **{name: _bytes(value, size) for name, value in counts.items()},
        receives=np.bincount(dst_tile[starts], minlength=num_tiles),
        sends=np.bincount(src_tile[starts], minlength=num_tiles),
        shared=np.zeros(num_tiles, np.int64),
        turning=np.zeros(num_tiles, np.int64),
    )


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
    sends = moved.sends + moved.sent // 4 // target.exchange_send_max_words
    lanes = moved.received - moved.shared + -(-moved.shared // target.tiles_per_shared_exchange_bus)
    busiest = max(
        ceil_div(int(lanes.max()), width),
        ceil_div(int(moved.sent.max()), width),
        int((sends + 2 * moved.receives).max()),
    )
    return Cycles(busiest + target.exchange_phase_overhead_cycles, basis, source)


def exchange_code_bytes(moved: Traffic, target: Target) -> np.ndarray:
    """Return bytes of exchange code each tile needs for one phase, int64 ``[num_tiles]``.

    Source: one instruction per outgoing run (continued beyond the longest send), mux and pointer changes
    per incoming run; encoding as recovered by ipu-stack.
    """
    sends = moved.sends + moved.sent // 4 // target.exchange_send_max_words
    return (
        sends * target.exchange_code_bytes_per_send_run
        + moved.receives * target.exchange_code_bytes_per_receive_run
    )
