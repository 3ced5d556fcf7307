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
        gaps = Gaps(*placed.interfering(request))
        size = align_up(request.size_bytes, ALIGNMENT)
        if request.executable:
            address = gaps.first(size, begin, code_end)
        else:
            address = gaps.first(size, data_begin, end)
            if address is None:
                address = gaps.first(size, begin, end)
        if address is None:
            fits = False
            address = gaps.first(size, end, None)
            assert address is not None
        placed.add(request, address, size)
        addresses[request.name] = address
    return addresses, fits


class _Placed:
    """The buffers placed so far, as arrays in the order of their addresses; of equal ones, as they were placed."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.count = 0
        self.rows = np.zeros((5, len(requests)), np.int64)
        self.begin, self.end, self.first, self.last, self.mask = self.rows
        self.masks = {mask: number for number, mask in enumerate(dict.fromkeys(r.mask for r in requests))}
        self.meeting: dict[int, np.ndarray] = {}

    def add(self, request: Request, address: int, size: int) -> None:
        at = int(np.searchsorted(self.begin[: self.count], address, side="right"))
        mask = self.masks[request.mask]
        self.rows[:, at + 1 : self.count + 1] = self.rows[:, at : self.count]
        self.rows[:, at] = address, address + size, request.start, request.end, mask
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


class Gaps:
    """The gaps between ranges of addresses, which may overlap each other and are sorted by their begins."""

    def __init__(self, begins: np.ndarray, ends: np.ndarray) -> None:
        """Find how far the ranges up to each reach; ``begins`` and ``ends`` are int64 ``[ranges]``."""
        self.reach = np.zeros(begins.size + 1, np.int64)  # up to before each range; the last: of all
        np.maximum.accumulate(ends, out=self.reach[1:])
        self.next = np.full(begins.size + 1, np.iinfo(np.int64).max)
        self.next[:-1] = begins

    def first(self, size: int, begin: int, end: int | None) -> int | None:
        """Return the lowest address in ``[begin, end)`` with ``size`` free bytes, or None.

        Ranges may lie outside ``[begin, end)``.
        """
        if not size:
            return begin if end is None or begin <= end else None
        # gaps that end too early come first, those that begin too late last
        low = int(np.searchsorted(self.next, begin + size))
        high = self.next.size if end is None else int(np.searchsorted(self.reach, end - size, side="right"))
        if low >= high:
            return None
        start = np.maximum(self.reach[low:high], begin)
        is_long = self.next[low:high] - start >= size
        found = int(is_long.argmax())
        if not is_long[found]:
            return None
        at = int(start[found])
        return at if end is None or at + size <= end else None


@functools.lru_cache(maxsize=4096)
def tile_ranges(mask: int) -> tuple[tuple[int, int], ...]:
    """Return a bit set of tiles as ascending half-open ranges."""
    tiles = tiles_of(mask)
    if not tiles.size:
        return ()
    breaks = [0, *(np.flatnonzero(np.diff(tiles) != 1) + 1), tiles.size]
    return tuple((int(tiles[a]), int(tiles[b - 1]) + 1) for a, b in itertools.pairwise(breaks))
