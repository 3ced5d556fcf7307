"""Planning: slices and exchange derived from plans, the cost model, and the search over splits."""

from tiles.plan.exchange import (
    Traffic,
    exchange_cycles,
    layout_traffic,
    operand_traffic,
    reshape_traffic,
    traffic,
)
from tiles.plan.pricing import Operand, Priced, Question, Ranking, home_layout, price
from tiles.plan.search import follow, search
from tiles.plan.serial import Turns, serial_split, slice_form
from tiles.plan.slices import OUTSIDE, UNUSED, AxisSlices, Slices, is_resident, layout_slices, operand_slices

__all__ = [
    "OUTSIDE",
    "UNUSED",
    "AxisSlices",
    "Operand",
    "Priced",
    "Question",
    "Ranking",
    "Slices",
    "Traffic",
    "Turns",
    "exchange_cycles",
    "follow",
    "home_layout",
    "is_resident",
    "layout_slices",
    "layout_traffic",
    "operand_slices",
    "operand_traffic",
    "price",
    "reshape_traffic",
    "search",
    "serial_split",
    "slice_form",
    "traffic",
]
