"""The error of a program that does not fit: which tile, when, what is live there, and what would help."""

from __future__ import annotations

import numpy as np

from tiles.compiler.executable import Buffer, Executable
from tiles.errors import OutOfTileMemory

SHOWN = 5


def out_of_memory(executable: Executable) -> OutOfTileMemory:
    """Return the error for an executable that does not fit, carrying it as ``executable``."""
    target = executable.target
    tile, step, live = fullest(executable)
    need = sum(b.size_bytes for b in live)
    over = need - target.bytes_per_tile
    shape = f"{over:,} B too many" if over > 0 else "the free bytes are in pieces too small"
    name = executable.steps[step].name if 0 <= step < len(executable.steps) else "the start"
    shown = tuple(
        f"largest live: {b.name} {b.size_bytes:,} B ({b.category})"
        + (f" from {b.location}" if b.location else "")
        for b in live[:SHOWN]
    )
    inputs = sum(b.size_bytes for b in live if b.category == "variable")
    advice = (
        "a smaller batch, half precision, a target with more tiles; check_memory=False runs on and marks it"
    )
    if inputs * 2 > need and not executable.donated:
        advice = "donate arguments that are replaced (donate_argnums), " + advice
    error = OutOfTileMemory(
        f"tile {tile} needs {need:,} B at step {name!r} and has {target.bytes_per_tile:,} B ({shape})",
        notes=shown,
        location=next((b.location for b in live if b.location), None),
        try_=advice,
    )
    error.executable = executable
    return error


def fullest(executable: Executable) -> tuple[int, int, list[Buffer]]:
    """Return the tile and step with the most live bytes, and the buffers live there, largest first."""
    num_steps, num_tiles = len(executable.steps), executable.target.num_tiles
    live = np.zeros((num_steps + 2, num_tiles), np.int64)
    for buffer in executable.buffers.values():
        for lo, hi in buffer.tiles:
            live[buffer.start + 1, lo:hi] += buffer.size_bytes
            if buffer.end + 2 < num_steps + 2:
                live[buffer.end + 2, lo:hi] -= buffer.size_bytes
    live = np.cumsum(live, axis=0)
    step, tile = np.unravel_index(int(np.argmax(live)), live.shape)
    number = int(step) - 1
    there = [
        b
        for b in executable.buffers.values()
        if b.start <= number <= b.end and any(lo <= tile < hi for lo, hi in b.tiles)
    ]
    return int(tile), number, sorted(there, key=lambda b: -b.size_bytes)
