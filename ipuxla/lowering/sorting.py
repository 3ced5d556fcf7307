"""Sort, and the first elements of an order, onto popops."""

from __future__ import annotations

from hlo_passes.ir import Instruction
from hlo_passes.ops import Sort, TopK, sort_keys
from ipuxla.lowering.indexing import in_memory
from ipuxla.lowering.regions import region_body
from ipuxla.lowering.registry import Lowering, lowers, where
from tiles.graph import Tensor
from tiles.poplibs.popops.sorting import sort
from tiles.poplibs.popops.top_k import top_k


@lowers(Sort)
def lower_sort(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Sort rows, long ones over several tiles."""
    op = instruction.op
    assert isinstance(op, Sort)
    arrays = [in_memory(lowering, v) for v in instruction.operands]
    keys = sort_keys(instruction.regions[0])
    comparator = () if keys is not None else region_body(instruction.regions[0])[0]
    return sort(
        lowering.site(where(instruction)),
        arrays,
        op.dimension,
        tuple((key.operand, key.is_descending, key.is_total) for key in keys or ()),
        comparator,
    )


@lowers(TopK)
def lower_top_k(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Select from rows, which may be split over tiles."""
    op = instruction.op
    assert isinstance(op, TopK)
    return top_k(
        lowering.site(where(instruction)),
        in_memory(lowering, instruction.operands[0]),
        op.k,
        op.dimension,
        op.is_descending,
        op.is_total,
    )
