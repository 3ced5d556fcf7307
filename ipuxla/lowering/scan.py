"""Scans onto popops."""

from __future__ import annotations

from hlo_passes.ir import Instruction
from hlo_passes.ops import Scan
from ipuxla.lowering.indexing import in_memory
from ipuxla.lowering.regions import region_body
from ipuxla.lowering.registry import Lowering, lowers, where
from tiles.graph import Tensor
from tiles.poplibs.popops.scan import scan


@lowers(Scan)
def lower_scan(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Scan rows, each on one tile."""
    op = instruction.op
    assert isinstance(op, Scan)
    arrays = [in_memory(lowering, v) for v in instruction.operands]
    body, outputs = region_body(instruction.regions[0])
    return scan(
        lowering.site(where(instruction)),
        arrays,
        op.dimension,
        body,
        outputs,
        op.reverse,
    )
