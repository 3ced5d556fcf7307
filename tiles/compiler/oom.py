"""What does not fit: which tile, when, what is live there, whose plans to tighten, and the error if nothing helps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tiles.compiler.executable import Buffer, Executable
from tiles.errors import OutOfTileMemory
from tiles.graph import MEMORY_PROPORTION, operation_of

SHOWN = 5
LEAST_PROPORTION = 0.01
"""Operations are not asked to do with less of a tile than this."""


def tightened(executable: Executable, proportions: Mapping[str, float]) -> dict[str, float]:
    """Return memory proportions for planning again, halved for the operations that crowd an overfull tile.

    Those are the ones whose received slices, scratch or partials are live in a step in which a tile needs more
    than it has.

    Args:
      executable: the program that does not fit.
      proportions: those it was planned with, by operation (``Graph.memory_proportions``).

    Returns:
      the same proportions when no operation is left to tighten.
    """
    most = _live_bytes(executable).max(axis=1)
    overfull = np.flatnonzero(most >= min(executable.target.bytes_per_tile + 1, int(most.max()))) - 1
    crowding = set()
    for _, group in executable.groups():
        names = {*(o.buffer for o in group.operands), f"{group.name}.scratch"}
        names |= {executable.variables[r].storage for r in group.results if group.name.endswith(".partials")}
        for buffer in (executable.buffers[name] for name in names if name in executable.buffers):
            if np.any((overfull >= buffer.start) & (overfull <= buffer.end)):
                crowding.add(operation_of(group.name))
    halved = {name: proportions.get(name, MEMORY_PROPORTION) / 2 for name in sorted(crowding)}
    return {**proportions, **{name: share for name, share in halved.items() if share >= LEAST_PROPORTION}}


def peak_bytes(executable: Executable) -> int:
    """Return the most bytes live at once on a tile."""
    return sum(b.size_bytes for b in fullest(executable)[2])


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
    live = _live_bytes(executable)
    step, tile = np.unravel_index(int(np.argmax(live)), live.shape)
    number = int(step) - 1
    there = [
        b
        for b in executable.buffers.values()
        if b.start <= number <= b.end and any(lo <= tile < hi for lo, hi in b.tiles)
    ]
    return int(tile), number, sorted(there, key=lambda b: -b.size_bytes)


def _live_bytes(executable: Executable) -> np.ndarray:
    """Return live bytes, int64 ``[steps + 2, tiles]``: row ``n + 1`` is step n, the first row the start."""
    ranges = np.array(
        [
            (b.start + 1, b.end + 2, low, high, b.size_bytes)
            for b in executable.buffers.values()
            for low, high in b.tiles
        ],
        np.int64,
    ).reshape(-1, 5)
    first, after, low, high, size = ranges.T
    change = np.zeros((len(executable.steps) + 3, executable.target.num_tiles + 1), np.int64)
    for step, sign in ((first, 1), (after, -1)):
        np.add.at(change, (step, low), sign * size)
        np.add.at(change, (step, high), -sign * size)
    return change.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
