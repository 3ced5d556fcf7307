"""What a superstep costs: the one model that the search's closed form, drafts of plans and compiled programs read.

A superstep is a sync, an exchange phase and compute. Nothing is synced or entered where nothing crosses tiles. The phase
lasts as long as its busiest tile; compute as long as its slowest, with the copies that bring what it has itself into the
buffers that its vertices read. Exchange is a program on every tile, whose bytes have a price in cycles.

The three readers differ in what they know of the figures, not in what they make of them: the closed form knows the
volumes of an even cut, for thousands of candidates at once; a draft bounds them from a few cells, then has them exactly;
a compiled step has them for every tile. So each is at most the next one, but for lanes of a bus that neighbours share by
chance where cuts are odd (``tests/property/test_superstep.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tiles.elements import of_target
from tiles.graph.layout import ceil_div
from tiles.target import Basis, Parts, Target

RUN_INSTRUCTIONS = 3
"""Of a run between two tiles: a wait and a send on one, a change of source on the other, where it mostly goes on at the pointer."""

_ENTRY_SINGLE = ("setzi",) * 3
_ENTRY_DEPENDENT = ("put",) * 4 + ("sync", "call", "br")
"""What a tile's supervisor issues around an exchange program whatever it moves: where words arrive from and go to, how
many and from where they are sent, the sync, and the program's call and return. The second wait for its pipeline.

Source: ipu-stack's boundaries, crates/ipu-codegen/src/emitter.rs, which run on a C600.
"""


def entry_cycles(target: Target) -> int:
    """Return the cycles of a sync and of entering an exchange phase, before anything moves."""
    return target.internal_sync_cycles + target.exchange_phase_overhead_cycles


def busiest_cycles(payload_bytes: int, instructions: int, target: Target) -> int:
    """Return the cycles of the busiest tile of a phase: its payload, or its control instructions if those are more.

    Args:
      payload_bytes: the most that any tile receives over its own lanes, or sends.
      instructions: the most sends, and changes of source and pointer, of any tile.
      target: the machine.

    Source: ipu-stack's resource model, see ``exchange.exchange_parts``.
    """
    return max(ceil_div(payload_bytes, target.exchange_bytes_per_cycle), instructions)


def phase_cycles(busiest: int, target: Target) -> int:
    """Return the cycles of an exchange phase, given those of its busiest tile."""
    return busiest + target.exchange_phase_overhead_cycles


def entry_parts(target: Target) -> Parts:
    """Return the cycles of entering an exchange phase by what they rest on.

    A machine whose phases were measured has the measurement. Of a figure that is carried over from another machine, what
    its instructions take is counted, as any supervisor's (PopLibs, lib/poplin/PerformanceEstimation.hpp).
    """
    entry, basis = target.exchange_phase_overhead_cycles, target.basis("exchange_phase_overhead_cycles")[0]
    if basis is not Basis.ASSUMED:
        return ((basis, entry),)
    waiting = of_target(target)["supervisor_dependent_cycles"]
    counted = min(entry, len(_ENTRY_SINGLE) + waiting * len(_ENTRY_DEPENDENT))
    return (basis, entry - counted), (Basis.DERIVED, counted)


def phase_parts(busiest: int, target: Target) -> Parts:
    """Return the cycles of an exchange phase by what they rest on: words that move, then entering the phase."""
    return (Basis.DOCUMENTED, busiest), *entry_parts(target)


def copy_cycles(size_bytes: Any, target: Target) -> Any:
    """Return the cycles of copies inside tiles, of so many bytes each; none where there are none.

    Source: ``getMemcpyBytesPerCycle`` and the call overhead measured on IPU21 (ipu-stack).
    """
    if isinstance(size_bytes, int):
        called = target.local_copy_call_cycles + ceil_div(size_bytes, target.memcpy_bytes_per_cycle)
        return called if size_bytes else 0
    copied = target.local_copy_call_cycles + np.ceil(size_bytes / target.memcpy_bytes_per_cycle)
    return np.where(size_bytes > 0, copied, 0)


def superstep_cycles(compute: float, phase: int, copies: int, target: Target) -> float:
    """Return the cycles of a superstep.

    Args:
      compute: of its slowest vertices.
      phase: of its exchange phase; 0 where nothing crosses tiles.
      copies: of bringing elements into the buffers that vertices read, and into their order.
      target: the machine.

    Terms are added, and so rounded, in one order, so that lower figures never cost more.
    """
    cycles = compute + phase
    if phase:
        cycles += target.internal_sync_cycles
    return cycles + copies


def estimated_cycles(
    compute: Any, payload_bytes: Any, instructions: Any, copied_bytes: Any, target: Target
) -> Any:
    """Return the cycles of a superstep for many ways to cut an operation at once; numbers, or arrays ``[candidates]``.

    Args:
      compute: cycles of the slowest vertex.
      payload_bytes: what a tile receives over its own lanes.
      instructions: changes of source and pointer while it arrives.
      copied_bytes: what a tile has of it already.
      target: the machine.

    Bytes need not be whole words, so that a volume on average is not above that of the busiest tile.
    """
    moving = np.maximum(payload_bytes / target.exchange_bytes_per_cycle, instructions)
    copying = target.local_copy_call_cycles + copied_bytes / target.memcpy_bytes_per_cycle
    cycles = compute + moving + np.where(payload_bytes > 0, entry_cycles(target), 0)
    return cycles + np.where(copied_bytes > 0, copying, 0)


def code_bytes(instructions: Any, target: Target) -> Any:
    """Return the bytes of exchange code of so many instructions."""
    return instructions * target.instruction_bytes


def run_code_bytes(runs: Any, target: Target) -> Any:
    """Return the bytes of exchange code, on both sides together, of so many runs between two tiles."""
    return code_bytes(RUN_INSTRUCTIONS * runs, target)
