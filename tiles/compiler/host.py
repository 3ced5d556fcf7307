"""Copies of streams: what they take of tile memory and how long they last.

An item crosses the host's link in packets. A tile exchanges at most one slice between two syncs with the host; what
it receives lands in a buffer of that size and is copied to the variable, what it sends leaves from where it lies.
How long the host takes to answer is not known and not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tiles.compiler.executable import Executable, StreamStep
from tiles.compiler.memory import Request
from tiles.graph.layout import ceil_div
from tiles.target import Basis


@dataclass(frozen=True)
class HostExchange:
    """What one copy of a stream takes.

    Args:
      size_bytes: bytes of the item.
      cycles: on the link; None when the target does not know its rate.
      basis: what they rest on.
      syncs: with the host.
      tile_cycles: of copying what arrived, int64 ``[num_tiles]``.
      ipus: IPUs that take part.
    """

    size_bytes: int
    cycles: int | None
    basis: Basis
    syncs: int
    tile_cycles: np.ndarray
    ipus: tuple[int, ...]


def host_exchange(executable: Executable, step: StreamStep) -> HostExchange:
    """Return what a copy of a stream takes; the link carries half of its rate each way."""
    target, variable = executable.target, executable.variables[step.variable]
    size, rate = executable.streams[step.stream].item_bytes, target.host_link_bytes_per_second / 2
    part, tiles = variable.layout.part_bytes(variable.dtype), variable.layout.tiles
    slices = ceil_div(part, target.host_slice_bytes)
    tile_cycles = np.zeros(target.num_tiles, np.int64)
    if not step.to_host and part:
        copied = slices * target.local_copy_call_cycles + ceil_div(part, target.memcpy_bytes_per_cycle)
        tile_cycles[tiles] = copied
    return HostExchange(
        size_bytes=size,
        cycles=math.ceil(size / rate * target.clock_hz) if rate else None,
        basis=target.basis("host_link_bytes_per_second")[0],
        syncs=slices,
        tile_cycles=tile_cycles,
        ipus=tuple(int(n) for n in np.unique(tiles // target.tiles_per_ipu)),
    )


def host_requests(executable: Executable) -> list[Request]:
    """Return the buffers that copies of streams need beside their variables: code, packet headers, what arrives."""
    target, last = executable.target, len(executable.steps)
    every, copies = (1 << target.num_tiles) - 1, 0
    requests: list[Request] = []
    for number, step in enumerate(executable.steps):
        if not isinstance(step, StreamStep):
            continue
        copies += 1
        variable = executable.variables[step.variable]
        part, mask = variable.layout.part_bytes(variable.dtype), variable.layout.tile_mask
        packet = target.host_write_packet_bytes if step.to_host else target.host_read_packet_bytes
        headers = ceil_div(part, packet) * target.host_packet_header_bytes
        stem, at = f"{step.name}.{number}", step.location
        requests.append(
            Request(f"{stem}.headers", "hostExchangePacketHeader", headers, mask, -1, last, location=at)
        )
        if not step.to_host:
            size = min(part, target.host_slice_bytes)
            requests.append(Request(f"{stem}.slice", "hostMessage", size, mask, number, number, location=at))
    if copies:
        code = target.host_exchange_code_bytes_per_step * copies
        requests.append(
            Request("host exchange code", "hostExchangeCode", code, every, -1, last, executable=True)
        )
    return requests
