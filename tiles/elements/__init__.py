"""The element compiler: a codelet's jaxpr for one cell becomes tile code, with its cycles, registers and bytes."""

from tiles.elements.cell import Access, Arrangement, CellFunction, contiguous
from tiles.elements.compile import (
    compile_block_slice,
    compile_blocks,
    compile_cell,
    compile_dots,
    compile_elimination,
    compile_ends,
    compile_exchange,
    compile_exchanged,
    compile_field_runs,
    compile_folds,
    compile_least,
    compile_lookup,
    compile_matrix_vector,
    compile_merges,
    compile_part_slice,
    compile_pivot,
    compile_reflection,
    compile_scan,
    compile_slice,
    compile_sliding_runs,
    compile_substitution,
    compile_updates,
    compile_vertical,
)
from tiles.elements.cost import Cost, Formula, cost_of, formula_of
from tiles.elements.generator import drawn
from tiles.elements.isa import InstructionSet, named, of_target
from tiles.elements.printer import as_text
from tiles.elements.simulator import TileSimulator
from tiles.elements.tilecode import TileCode
from tiles.elements.variants import Variant, compile_variant, instructions_for

__all__ = [
    "Access",
    "Arrangement",
    "CellFunction",
    "Cost",
    "Formula",
    "InstructionSet",
    "TileCode",
    "TileSimulator",
    "Variant",
    "as_text",
    "compile_block_slice",
    "compile_blocks",
    "compile_cell",
    "compile_dots",
    "compile_elimination",
    "compile_ends",
    "compile_exchange",
    "compile_exchanged",
    "compile_field_runs",
    "compile_folds",
    "compile_least",
    "compile_lookup",
    "compile_matrix_vector",
    "compile_merges",
    "compile_part_slice",
    "compile_pivot",
    "compile_reflection",
    "compile_scan",
    "compile_slice",
    "compile_sliding_runs",
    "compile_substitution",
    "compile_updates",
    "compile_variant",
    "compile_vertical",
    "contiguous",
    "cost_of",
    "drawn",
    "formula_of",
    "instructions_for",
    "named",
    "of_target",
]
