"""Exchanges with the host and with memory beside the IPU: what they take of tile memory and how long they last.

An item of a stream, rows of a remote buffer and what is printed cross a link in packets. A tile exchanges at most one
slice between two syncs with the host; what it receives lands in a buffer of that size and is copied to the variable,
what it sends leaves from where it lies. How long the host takes to answer is not known and not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tiles.compiler.executable import Executable
from tiles.compiler.memory import Request
from tiles.compiler.steps import HOST_STEPS, HostStep, PrintStep, RemoteStep
from tiles.graph.layout import ceil_div
from tiles.numerics.dtypes import itemsize
from tiles.target import Basis, Target


@dataclass(frozen=True)
class HostExchange:
    """What one exchange takes.

    Args:
      size_bytes: bytes of the variable.
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


def host_exchange(executable: Executable, step: HostStep) -> HostExchange:
    """Return what an exchange takes."""
    target, variable = executable.target, executable.variables[step.variable]
    size = math.prod(variable.shape) * itemsize(variable.dtype)
    rate, basis = link_rate(target, isinstance(step, RemoteStep))
    part, tiles = variable.layout.part_bytes(variable.dtype), variable.layout.tiles
    slices = ceil_div(part, target.host_slice_bytes)
    if isinstance(step, PrintStep):
        slices = max(1, slices)  # the host is told of a line that shows nothing, too
    tile_cycles = np.zeros(target.num_tiles, np.int64)
    if not step.to_host and part:
        copied = slices * target.local_copy_call_cycles + ceil_div(part, target.memcpy_bytes_per_cycle)
        tile_cycles[tiles] = copied
    return HostExchange(
        size_bytes=size,
        cycles=math.ceil(size / rate * target.clock_hz) if rate else None,
        basis=basis,
        syncs=slices,
        tile_cycles=tile_cycles,
        ipus=tuple(int(n) for n in np.unique(tiles // target.tiles_per_ipu)),
    )


def link_rate(target: Target, is_remote: bool) -> tuple[float, Basis]:
    """Return the bytes a second of an exchange in one direction, 0 for unknown, and what the figure rests on.

    A link carries half of its rate each way. Remote buffers lie in the streaming memory, which is no faster than the
    link to it; a machine without any keeps them in the host's memory, which is assumed to be as fast as the link.
    """
    link, basis = target.host_link_bytes_per_second / 2, target.basis("host_link_bytes_per_second")[0]
    memory = target.streaming_memory_bytes_per_second
    if not is_remote:
        return link, basis
    if memory is None:
        return link, Basis.ASSUMED
    memory_basis = target.basis("streaming_memory_bytes_per_second")[0]
    return (min(link, memory) if link else memory), Basis.weakest([basis, memory_basis])


def host_requests(executable: Executable) -> list[Request]:
    """Return the buffers that exchanges need beside their variables: code, packet headers, what arrives."""
    target, last = executable.target, len(executable.steps)
    every, copies = (1 << target.num_tiles) - 1, 0
    requests: list[Request] = []
    for number, step in enumerate(executable.steps):
        if not isinstance(step, HOST_STEPS):
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
