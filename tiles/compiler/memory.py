"""Allocation: every buffer gets one address range on its set of tiles, for its lifetime.

Two buffers may share addresses only when their tile sets or their lifetimes are disjoint. First fit,
largest first; code goes to executable regions, data to the interleaved region while it has room there.
Where something finds no room though no tile holds more than its memory at any time, other orders are tried, with data
from the end of memory down: by what buffers take of memory and time together, or as they start, each again and again
with what found no room before all else.
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
RETRIES = 8
"""How often each of two other orders is tried where something finds no room; programs that fitted at last took 4 at most."""


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
    everything = range(len(requests))
    order = sorted(everything, key=lambda i: (not requests[i].executable, -requests[i].size_bytes, i))
    first, left_out = _first_fit(requests, order, target)
    if not left_out or _exceeds(requests, target):
        return first, not left_out
    for key in (_by_share, _by_start):
        order = sorted(everything, key=lambda i: (not requests[i].executable, *key(requests[i]), i))
        for _ in range(RETRIES):
            addresses, left_out = _first_fit(requests, order, target, from_end=True)
            if not left_out:
                return addresses, True
            order.sort(key=lambda i: (not requests[i].executable, i not in left_out))
    return first, False


def _by_share(request: Request) -> tuple[int, ...]:
    """Order by what a buffer takes of memory and time together, the most first."""
    return (-request.size_bytes * (request.end - request.start + 1),)


def _by_start(request: Request) -> tuple[int, ...]:
    """Order by when a buffer is first live, of those that start together the largest first."""
    return request.start, -request.size_bytes


def _exceeds(requests: Sequence[Request], target: Target) -> bool:
    """Whether some tile holds more than its memory at some time, or more code than it can run."""
    regions = target.memory_regions
    rooms = {
        False: sum(r.size_bytes for r in regions),
        True: sum(r.size_bytes for r in regions if r.executable),
    }
    for only_code, room in rooms.items():
        ranges = [
            (r.start, r.end, low, high, r.size_bytes)
            for r in requests
            if r.executable or not only_code
            for low, high in tile_ranges(r.mask)
        ]
        if ranges and live_bytes(np.array(ranges, np.int64), target.num_tiles).max() > room:
            return True
    return False


def live_bytes(ranges: np.ndarray, num_tiles: int) -> np.ndarray:
    """Return live bytes, int64 ``[steps + 1, num_tiles]``: row ``n + 1`` is step n, the first row the start.

    Args:
      ranges: first step (-1: from the start), last step, first tile, the tile after the last one, and bytes on each
        of these tiles, int64 ``[ranges, 5]``.
      num_tiles: tiles of the machine.
    """
    first, last, low, high, size = ranges.T
    change = np.zeros((last.max(initial=-1) + 3, num_tiles + 1), np.int64)
    for step, sign in ((first + 1, 1), (last + 2, -1)):
        np.add.at(change, (step, low), sign * size)
        np.add.at(change, (step, high), -sign * size)
    return change.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]


def _first_fit(
    requests: Sequence[Request], order: Sequence[int], target: Target, from_end: bool = False
) -> tuple[dict[str, int], set[int]]:
    """Return the address of every request, each placed where there is room first, and those that found none.

    Code goes as low as may be; so does data, in interleaved memory if there is room, or as high as may be ``from_end``.
    """
    regions = target.memory_regions
    begin = min(r.base for r in regions)
    end = max(r.base + r.size_bytes for r in regions)
    code_end = max((r.base + r.size_bytes for r in regions if r.executable), default=end)
    data_begin = min((r.base for r in regions if not r.executable), default=begin)
    placed = _Placed(requests)
    addresses: dict[str, int] = {}
    left_out = set[int]()
    for i in order:
        request = requests[i]
        gaps = Gaps(*placed.interfering(request))
        size = align_up(request.size_bytes, ALIGNMENT)
        if request.executable:
            address = gaps.first(size, begin, code_end)
        elif from_end:
            address = gaps.last(size, begin, end // ALIGNMENT * ALIGNMENT)
        else:
            address = gaps.first(size, data_begin, end)
            if address is None:
                address = gaps.first(size, begin, end)
        if address is None:
            left_out.add(i)
            address = gaps.first(size, end, None)
            assert address is not None
        placed.add(request, address, size)
        addresses[request.name] = address
    return addresses, left_out


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

    def last(self, size: int, begin: int, end: int) -> int | None:
        """Return the highest address in ``[begin, end)`` with ``size`` free bytes up to ``end``, or None."""
        if not size:
            return end if begin <= end else None
        low = int(np.searchsorted(self.next, begin + size))
        high = int(np.searchsorted(self.reach, end - size, side="right"))
        if low >= high:
            return None
        after = np.minimum(self.next[low:high], end)
        found = np.flatnonzero(after - np.maximum(self.reach[low:high], begin) >= size)
        return int(after[found[-1]]) - size if found.size else None


@functools.lru_cache(maxsize=4096)
def tile_ranges(mask: int) -> tuple[tuple[int, int], ...]:
    """Return a bit set of tiles as ascending half-open ranges."""
    tiles = tiles_of(mask)
    if not tiles.size:
        return ()
    breaks = [0, *(np.flatnonzero(np.diff(tiles) != 1) + 1), tiles.size]
    return tuple((int(tiles[a]), int(tiles[b - 1]) + 1) for a, b in itertools.pairwise(breaks))
