"""Allocation: every buffer gets one address range on its set of tiles, for its lifetime.

Two buffers may share addresses only when their tile sets or their lifetimes are disjoint. First fit,
largest first; code goes to executable regions, data to the interleaved region while it has room there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiles.graph.layout import align_up, tiles_of
from tiles.target import Target

ALIGNMENT = 8


@dataclass(frozen=True)
class Request:
    """A buffer that wants an address.

    Args:
      name: unique name.
      category: see ``tiles.compiler.executable.CATEGORIES``.
      size_bytes: bytes on every tile of the set.
      mask: the set of tiles as bits.
      start: first step it is live in.
      end: last step it is live in.
      executable: whether it must lie in a region code can run from.
      location: the user's source line.
    """

    name: str
    category: str
    size_bytes: int
    mask: int
    start: int
    end: int
    executable: bool = False
    location: str = ""


def allocate(requests: Sequence[Request], target: Target) -> tuple[dict[str, int], bool]:
    """Return the address of every request, and whether all lie inside the target's memory.

    Addresses beyond the end of memory are handed out when nothing fits, so that the report of a program
    that does not fit can be written.
    """
    regions = target.memory_regions
    begin = min(r.base for r in regions)
    end = max(r.base + r.size_bytes for r in regions)
    code_end = max((r.base + r.size_bytes for r in regions if r.executable), default=end)
    data_begin = min((r.base for r in regions if not r.executable), default=begin)
    order = sorted(
        range(len(requests)), key=lambda i: (not requests[i].executable, -requests[i].size_bytes, i)
    )
    placed = _Placed(requests)
    addresses: dict[str, int] = {}
    fits = True
    for i in order:
        request = requests[i]
        taken = placed.interfering(request)
        size = align_up(request.size_bytes, ALIGNMENT)
        if request.executable:
            address = _first_gap(taken, size, begin, code_end)
        else:
            address = _first_gap(taken, size, data_begin, end)
            if address is None:
                address = _first_gap(taken, size, begin, end)
        if address is None:
            fits = False
            address = _first_gap(taken, size, end, None)
            assert address is not None
        placed.add(request, address, size)
        addresses[request.name] = int(address)
    return addresses, fits


class _Placed:
    """The buffers placed so far, as arrays in the order of their addresses; of equal ones, as they were placed."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.count = 0
        self.begin, self.end, self.first, self.last, self.mask = np.zeros((5, len(requests)), np.int64)
        self.masks = {mask: number for number, mask in enumerate(dict.fromkeys(r.mask for r in requests))}
        self.meeting: dict[int, np.ndarray] = {}

    def add(self, request: Request, address: int, size: int) -> None:
        at = int(np.searchsorted(self.begin[: self.count], address, side="right"))
        mask = self.masks[request.mask]
        for values, value in (
            (self.begin, address),
            (self.end, address + size),
            (self.first, request.start),
            (self.last, request.end),
            (self.mask, mask),
        ):
            values[at + 1 : self.count + 1] = values[at : self.count]
            values[at] = value
        self.count += 1

    def interfering(self, request: Request) -> tuple[np.ndarray, np.ndarray]:
        """Return where placed buffers that overlap in time and share a tile begin and end, sorted by address."""
        among = slice(self.count)
        overlaps = (self.first[among] <= request.end) & (self.last[among] >= request.start)
        found = np.flatnonzero(overlaps & self._meeting(request.mask)[self.mask[among]])
        return self.begin[found], self.end[found]

    def _meeting(self, mask: int) -> np.ndarray:
        """Return which sets of tiles share a tile with one of them, by their numbers."""
        if mask not in self.meeting:
            self.meeting[mask] = np.array([bool(mask & other) for other in self.masks])
        return self.meeting[mask]


def _first_gap(taken: tuple[np.ndarray, np.ndarray], size: int, begin: int, end: int | None) -> int | None:
    """Return the lowest address in ``[begin, end)`` with ``size`` free bytes, or None.

    ``taken`` are ranges' begins and ends, sorted by begins; they may lie outside ``[begin, end)`` and overlap each other.
    """
    begins, ends = taken
    limit = np.iinfo(np.int64).max if end is None else end
    reach = np.empty(begins.size + 1, np.int64)
    reach[0], reach[1:] = begin, ends
    np.maximum.accumulate(reach, out=reach)
    free = np.empty(begins.size + 1, np.int64)  # up to the next range, or the limit
    np.maximum(begins, begin, out=free[:-1])
    np.minimum(free[:-1], limit, out=free[:-1])
    free[-1] = limit
    free -= reach
    found = int(np.argmax(free >= size))
    return int(reach[found]) if free[found] >= size else None


@functools.lru_cache(maxsize=4096)
def tile_ranges(mask: int) -> tuple[tuple[int, int], ...]:
    """Return a bit set of tiles as ascending half-open ranges."""
    tiles = tiles_of(mask)
    if not tiles.size:
        return ()
    breaks = [0, *(np.flatnonzero(np.diff(tiles) != 1) + 1), tiles.size]
    return tuple((int(tiles[a]), int(tiles[b - 1]) + 1) for a, b in itertools.pairwise(breaks))
