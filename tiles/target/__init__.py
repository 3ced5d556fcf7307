"""The machine: tiles, memory, exchange, clocks and links, as plain numbers with unit, basis and source.

A ``Target`` is one chip; a ``System`` is several and the links between them.
"""

from tiles.target.basis import Basis, Parts, weakest_part
from tiles.target.link_phase import LinkPhase, Sync, exchange_phase, flow_phase, sync
from tiles.target.load import known_names
from tiles.target.quantity import MemoryRegion, Provenance, Quantity
from tiles.target.system import System
from tiles.target.system_files import find_machine, find_system, known_systems, one_ipu
from tiles.target.system_text import describe_system
from tiles.target.target import Target

__all__ = [
    "Basis",
    "LinkPhase",
    "MemoryRegion",
    "Parts",
    "Provenance",
    "Quantity",
    "Sync",
    "System",
    "Target",
    "describe_system",
    "exchange_phase",
    "find_machine",
    "find_system",
    "flow_phase",
    "known_names",
    "known_systems",
    "one_ipu",
    "sync",
    "weakest_part",
]
