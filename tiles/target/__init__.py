"""The machine: tiles, memory, exchange, clocks and links, as plain numbers with unit, basis and source."""

from tiles.target.basis import Basis
from tiles.target.load import known_names
from tiles.target.quantity import MemoryRegion, Provenance, Quantity
from tiles.target.target import Target

__all__ = ["Basis", "MemoryRegion", "Provenance", "Quantity", "Target", "known_names"]
