"""Bitcasts to another width, which move what makes up one element together."""

from __future__ import annotations

from hlo_passes.ir import Instruction
from hlo_passes.ops import BitcastConvert
from ipuxla.lowering import regular
from ipuxla.lowering.indexing import in_memory
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from tiles.graph import Tensor
from tiles.poplibs.popops.widths import bitcast_width


@lowers(BitcastConvert)
def lower_bitcast_convert(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Lower a bitcast elementwise where the width stays, else with the dimension it makes or takes."""
    (value,), result = instruction.operands, instruction.result.type
    if value.type.bits == result.bits:
        return regular.lower_injective(lowering, instruction)
    return (bitcast_width(lowering.site(where(instruction)), in_memory(lowering, value), dtype_of(result)),)
