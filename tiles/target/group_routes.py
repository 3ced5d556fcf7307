"""Flows between whole groups of IPUs, every IPU to the one in its place of another group: routed once for all groups.

A group is what links among IPUs themselves join. Where flows leave their groups by switches alone, all groups load their
links alike: what there is to follow is one group, and how often each group sends and receives.
"""

from __future__ import annotations

import math

import numpy as np

from tiles.target.routes import Loads, Routed, chain, group_size
from tiles.target.system import IPU, System
from tiles.target.wiring import Grid, Switch

MOST_PIECES = 64
"""Runs of groups that send and receive as often, up to which loads are kept by these; else by every link."""


def route_groups(
    system: System, starts: np.ndarray, ends: np.ndarray, size_bytes: np.ndarray
) -> Routed | None:
    """Return what flows between groups put on the links; None where one group does not stand for all.

    Args:
      system: the system.
      starts: groups that send, int64 ``[moves]``; each IPU with bytes to the one in its place of the other group.
      ends: groups that receive, int64 ``[moves]``, none of them its move's start.
      size_bytes: what each IPU of a group sends, int64 ``[group]``.

    Returns:
      Loads, and hops and latency of one flow, all being alike.
    """
    if not system.is_regular or not starts.size:
        return None
    top = _meeting(system, starts, ends)
    if top is None:
        return None
    size, blocks = group_size(system), list[tuple[int, np.ndarray]]()
    groups = system.num_ipus // size
    times = np.stack([np.bincount(side, minlength=groups) for side in (starts, ends)], axis=1)
    latency = 0.0
    wirings = chain(system, top)
    for name, wiring in wirings:
        each = system.ipus_each[wiring.nodes]
        if size % each:
            return None
        blocks.append((system.table.starts[name, 0], size_bytes.reshape(-1, each).sum(axis=1)))
        hop = system.link(wiring.link).latency_seconds
        latency += math.nan if hop is None else 2 * hop
    loads = _loads(system, blocks, times)
    return Routed(loads, np.array([2 * len(wirings)]), np.array([latency]))


def _meeting(system: System, starts: np.ndarray, ends: np.ndarray) -> str | None:
    """Return the kind of node at which all moves' ends meet, before any does elsewhere; None where there is none."""
    size = group_size(system)
    for laid in system.laid:
        wiring = laid.wiring
        if isinstance(wiring, Switch):
            each = system.ipus_each[wiring.to]
            if each % size and size % each:
                return None
            meet = starts * size // each == ends * size // each
        elif isinstance(wiring, Grid) and wiring.nodes == IPU:
            continue  # joins the IPUs of a group
        else:
            return None
        if meet.any():
            return wiring.to if meet.all() and each >= size else None
    return None


def _loads(system: System, blocks: list[tuple[int, np.ndarray]], times: np.ndarray) -> Loads:
    """Return the loads of groups alike.

    Args:
      system: the system.
      blocks: the first row of each block of links, and what a group whose IPUs send once puts on its links.
      times: how often each group sends and receives, ``[groups, 2]``.
    """
    changes = np.flatnonzero((times[1:] != times[:-1]).any(axis=1)) + 1
    links = len(system.table.ends)
    if len(changes) >= MOST_PIECES:
        return Loads.of_blocks(
            links, {first: (times[:, None] * one[:, None]).reshape(-1, 2) for first, one in blocks}
        )
    runs = np.concatenate([[0], changes, [len(times)]])
    pieces: list[tuple[int, np.ndarray, int]] = []
    for first, one in sorted(blocks, key=lambda block: block[0]):
        for start, end in zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True):
            rows = one[:, None] * times[start]
            if rows.any():
                pieces.append((first + start * len(one), rows, end - start))
    return Loads.of_pieces(links, pieces)
