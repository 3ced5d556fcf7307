"""Which movements run one exchange program: words go between the same places of the same tiles, from and to other addresses.

A tile's sends name addresses relative to the register OUTGOING_BASE, the pointers to which words arrive are relative to
INCOMING_BASE, so the program of a movement can be called again with other bases: by the same step for another tensor, or
by another one. Both are supervisor registers (0xa7 and 0xa4 of the exchange's registers). The programs that a step calls
run one after the other within its one exchange phase, before what its other movements do together: each starts when the
busiest tile of the one before it is done.

Source: github.com/osmarks/ipu-stack docs/EXCHANGE_BASE_SECTIONS_2026_09_13.md and EXCHANGE_BASE_AWARE_2026_09_13.md:
payloads relocated by both registers within a phase checked on a C600, with the cycles that writing them takes; bases
change within a phase without another synchronization.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from tiles.compiler.executable import Executable, MovementId

LEAST_BYTES = 128
"""Movements that take less code on every tile share none. Setting up a call's bases takes 16 B and 28 cycles, which at the
price of code that plans pay are 72 B together."""
BASE_INSTRUCTIONS = 4
"""To load two addresses and to write them to both base registers, for every call."""


def shared_programs(keys: Sequence[Mapping[int, tuple[Hashable, ...]]]) -> dict[MovementId, MovementId]:
    """Return, by step and number of a movement, the first movement before it whose exchange program it can run.

    Args:
      keys: by step, the keys of those of its movements, by number, that take ``LEAST_BYTES`` of code or more.
    """
    first: dict[tuple[Hashable, ...], MovementId] = {}
    shared: dict[MovementId, MovementId] = {}
    for step, found in enumerate(keys):
        for number, key in found.items():
            if key in first:
                shared[step, number] = first[key]
            else:
                first[key] = step, number
    return shared


def called(executable: Executable) -> dict[int, list[int]]:
    """Return, by step, the movements whose exchange program is called with bases, in order.

    They are those that run another one's, and those whose program others run.
    """
    found: dict[int, list[int]] = {}
    for step, number in sorted({*executable.shared_exchange, *executable.shared_exchange.values()}):
        found.setdefault(step, []).append(number)
    return found
