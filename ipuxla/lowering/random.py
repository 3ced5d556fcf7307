"""Random bits onto poprand."""

from __future__ import annotations

from hlo_passes.ir import Instruction
from hlo_passes.ops import RngBitGenerator
from ipuxla.lowering.indexing import in_memory
from ipuxla.lowering.registry import Lowering, dtype_of, lowers, where
from tiles.graph import Tensor
from tiles.poplibs.poprand import random_bits

_ALGORITHMS = {"DEFAULT": "philox", "PHILOX": "philox", "THREE_FRY": "threefry"}


@lowers(RngBitGenerator)
def lower_rng_bit_generator(lowering: Lowering, instruction: Instruction) -> tuple[Tensor, ...]:
    """Fill the bits, every cell from its own counters, and count the state on."""
    op = instruction.op
    assert isinstance(op, RngBitGenerator)
    state = in_memory(lowering, instruction.operands[0])
    bits = op.types[1]
    algorithm = _ALGORITHMS[op.algorithm]
    return random_bits(lowering.site(where(instruction)), state, bits.shape, dtype_of(bits), algorithm)
