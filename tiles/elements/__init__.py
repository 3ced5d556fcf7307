"""The element compiler: a codelet's jaxpr for one cell becomes tile code, with its cycles, registers and bytes."""

from tiles.elements.cell import Access, Arrangement, contiguous
from tiles.elements.compile import compile_cell, compile_lookup, compile_matrix_vector
from tiles.elements.cost import Cost, cost_of
from tiles.elements.isa import InstructionSet, named, of_target
from tiles.elements.printer import as_text
from tiles.elements.simulator import TileSimulator
from tiles.elements.tilecode import TileCode

__all__ = [
    "Access",
    "Arrangement",
    "Cost",
    "InstructionSet",
    "TileCode",
    "TileSimulator",
    "as_text",
    "compile_cell",
    "compile_lookup",
    "compile_matrix_vector",
    "contiguous",
    "cost_of",
    "named",
    "of_target",
]
