"""Proofs about addresses: buffers inside memory, code where code can run, no two live buffers in one place.

Independent of the allocator: only the executable's plain data is read. ``overlapping`` is vectorized over all
pairs of buffers that share an address.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiles.compiler.executable import Buffer, Executable
from tiles.compiler.wellformed import mask_of_ranges, part_bytes, refuse
from tiles.errors import InvalidExecutable

CODE = ("vertexCode", "internalExchangeCode", "hostExchangeCode", "controlCode")
WHOLE_PROGRAM = (*CODE, "vertexInstanceState", "hostExchangePacketHeader", "stack", "constant")
PAIRS = 1 << 16


def prove_no_overlap(executable: Executable) -> int:
    """Raise InvalidExecutable if two buffers live at one step share a byte of a tile; return the pairs compared."""
    buffers = list(executable.buffers.values())
    pair, compared = overlapping(buffers, executable.target.num_tiles)
    if pair is not None:
        raise _overlap_error(buffers[pair[0]], buffers[pair[1]])
    return compared


def _overlap_error(a: Buffer, b: Buffer) -> InvalidExecutable:
    common = mask_of_ranges(a.tiles) & mask_of_ranges(b.tiles)
    tile = (common & -common).bit_length() - 1
    step = max(a.start, b.start)
    spans = " and ".join(f"{x.name} [{x.address:#x}, {x.address + x.size_bytes:#x})" for x in (a, b))
    return refuse(f"buffers {spans} overlap on tile {tile} at step {step}", a.location or b.location)


def overlapping(buffers: Sequence[Buffer], num_tiles: int) -> tuple[tuple[int, int] | None, int]:
    """Return the first two buffers that share an address, a step and a tile (or None), and the pairs compared.

    A sweep by address: sorted by first byte, the buffers that may overlap one are those that follow it and begin
    before it ends.
    """
    used = [i for i, b in enumerate(buffers) if b.size_bytes and b.tiles]
    begin = np.array([buffers[i].address for i in used], np.int64)
    order = np.argsort(begin, kind="stable")
    numbers: list[int] = np.array(used, np.int64)[order].tolist()
    begin = begin[order]
    end = begin + np.array([buffers[i].size_bytes for i in numbers], np.int64)
    live = np.array([(buffers[i].start, buffers[i].end) for i in numbers], np.int64).reshape(-1, 2)
    tiles = np.zeros((len(used), -(-num_tiles // 8)), np.uint8)
    for row, i in enumerate(numbers):
        mask = mask_of_ranges(buffers[i].tiles)
        tiles[row] = np.frombuffer(mask.to_bytes(tiles.shape[1], "little"), np.uint8)
    following = np.searchsorted(begin, end, side="left") - np.arange(1, len(used) + 1)
    total = 0
    starts = np.concatenate([[0], np.cumsum(following)])
    row = 0
    while row < len(used):
        last = max(row + 1, int(np.searchsorted(starts, starts[row] + PAIRS, side="right")) - 1)
        first = np.repeat(np.arange(row, last), following[row:last])
        second = (
            first + 1 + np.arange(first.size) - np.repeat(starts[row:last] - starts[row], following[row:last])
        )
        total += first.size
        both = np.flatnonzero((live[first, 0] <= live[second, 1]) & (live[second, 0] <= live[first, 1]))
        clash = np.flatnonzero((tiles[first[both]] & tiles[second[both]]).any(axis=1))
        if clash.size:
            at = both[clash[0]]
            return (int(numbers[first[at]]), int(numbers[second[at]])), total
        row = last
    return None, total


def prove_addresses(executable: Executable) -> int:
    """Raise InvalidExecutable unless every buffer lies in memory and code in executable memory; return the bytes placed.

    An executable marked as not fitting must have a buffer outside memory; those inside are checked all the same.
    """
    regions = executable.target.memory_regions
    everything = _spans([(r.base, r.base + r.size_bytes) for r in regions])
    runnable = _spans([(r.base, r.base + r.size_bytes) for r in regions if r.executable])
    outside = None
    for b in executable.buffers.values():
        span = (b.address, b.address + b.size_bytes)
        legal = runnable if b.category in CODE else everything
        if not b.size_bytes or any(low <= span[0] and span[1] <= high for low, high in legal):
            continue
        outside = outside or b
        if executable.fits or any(span[0] < high and low < span[1] for low, high in everything):
            shown = ", ".join(f"[{low:#x}, {high:#x})" for low, high in legal)
            kind = "executable memory" if b.category in CODE else "memory"
            raise refuse(
                f"buffer {b.name} at [{span[0]:#x}, {span[1]:#x}) is not inside {kind} {shown}", b.location
            )
    if not executable.fits and outside is None:
        raise refuse("the executable is marked as not fitting, but every buffer lies inside memory")
    return sum(b.size_bytes * mask_of_ranges(b.tiles).bit_count() for b in executable.buffers.values())


def _spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join address ranges that touch."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined


def prove_storage(executable: Executable) -> int:
    """Raise InvalidExecutable unless every data buffer has exactly the bytes and tiles of its variables; return how many.

    Raises also for a buffer that no variable is stored in.
    """
    need: dict[str, tuple[int, int]] = {}
    for v in executable.variables.values():
        size, mask = need.get(v.storage, (0, 0))
        need[v.storage] = (max(size, part_bytes(v)), mask | v.layout.tile_mask)
    for b in executable.buffers.values():
        if b.category not in ("variable", "constant"):
            continue
        if b.name not in need:
            raise refuse(f"buffer {b.name} of {b.size_bytes} B holds no variable", b.location)
        size, mask = need[b.name]
        if b.size_bytes != size:
            raise refuse(
                f"buffer {b.name} has {b.size_bytes} B a tile, the variables in it need {size} B", b.location
            )
        if mask_of_ranges(b.tiles) != mask:
            tiles = mask_of_ranges(b.tiles).bit_count()
            raise refuse(
                f"buffer {b.name} lies on {tiles} tiles {_shown(b)}, its variables on {mask.bit_count()} others",
                b.location,
            )
    return len(need)


def _shown(b: Buffer) -> str:
    return ", ".join(f"{first}-{end - 1}" for first, end in b.tiles[:4]) + (
        ", ..." if len(b.tiles) > 4 else ""
    )


def prove_lifetimes(executable: Executable) -> None:
    """Raise InvalidExecutable unless what must stay is live throughout: code, stacks, vertex state, constants."""
    last = len(executable.steps)
    for b in executable.buffers.values():
        if b.category in WHOLE_PROGRAM and (b.start, b.end) != (-1, last):
            lived = f"{b.start} to {b.end}; expected -1 to {last}"
            raise refuse(f"buffer {b.name} ({b.category}) is live in steps {lived}", b.location)
