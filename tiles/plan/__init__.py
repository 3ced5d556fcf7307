"""Planning: slices and exchange derived from plans, the cost model, and the search over splits."""

from tiles.plan import superstep
from tiles.plan.cell_order import arranged, with_order
from tiles.plan.exchange import (
    Traffic,
    exchange_code_bytes,
    exchange_cycles,
    exchange_figures,
    exchange_parts,
    keeps_order,
    layout_traffic,
    operand_code,
    operand_moves,
    operand_traffic,
    reshape_traffic,
    staging_bytes,
    traffic,
)
from tiles.plan.pricing import (
    Draft,
    Priced,
    Ranking,
    combining_cycles,
    draft,
    drafts_of,
    preferred_layout,
    price,
)
from tiles.plan.question import CODE_PRICE, MEMORY_PROPORTION, Operand, Question
from tiles.plan.search import follow, leaving, search
from tiles.plan.serial import SerialSplit, serial_split, slice_form
from tiles.plan.slices import OUTSIDE, UNUSED, AxisSlices, Slices, is_resident, layout_slices, operand_slices

__all__ = [
    "CODE_PRICE",
    "MEMORY_PROPORTION",
    "OUTSIDE",
    "UNUSED",
    "AxisSlices",
    "Draft",
    "Operand",
    "Priced",
    "Question",
    "Ranking",
    "SerialSplit",
    "Slices",
    "Traffic",
    "arranged",
    "combining_cycles",
    "draft",
    "drafts_of",
    "exchange_code_bytes",
    "exchange_cycles",
    "exchange_figures",
    "exchange_parts",
    "follow",
    "is_resident",
    "keeps_order",
    "layout_slices",
    "layout_traffic",
    "leaving",
    "operand_code",
    "operand_moves",
    "operand_slices",
    "operand_traffic",
    "preferred_layout",
    "price",
    "reshape_traffic",
    "search",
    "serial_split",
    "slice_form",
    "staging_bytes",
    "superstep",
    "traffic",
    "with_order",
]
