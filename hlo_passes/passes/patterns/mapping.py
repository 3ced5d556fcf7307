"""A map is its region's operations on whole arrays."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_passes.ir import Instruction, Value
from hlo_passes.ops import MapElements
from hlo_passes.passes.lifting import is_liftable, lift
from hlo_passes.passes.patterns.registry import rewrites
from hlo_passes.passes.rewriter import Rewriter


@rewrites(MapElements)
def apply_to_arrays(instruction: Instruction, rewriter: Rewriter) -> Sequence[Value] | None:
    """Emit the operations of a region of elementwise operations."""
    (region,) = instruction.regions
    return lift(rewriter, region, instruction.operands) if is_liftable(region) else None
