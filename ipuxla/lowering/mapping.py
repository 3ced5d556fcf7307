"""Maps that canonicalization could not write as operations on arrays."""

from __future__ import annotations

from typing import NoReturn

from hlo_passes.ir import Instruction
from hlo_passes.ops import MapElements
from ipuxla.lowering.errors import UnsupportedLowering
from ipuxla.lowering.registry import Lowering, lowers, where


@lowers(MapElements)
def lower_map(lowering: Lowering, instruction: Instruction) -> NoReturn:
    """Refuse a region that is no expression.

    Raises:
      UnsupportedLowering: always; maps of elementwise operations do not come here.
    """
    raise UnsupportedLowering(
        "this map's region holds more than elementwise operations on scalars",
        location=where(instruction),
        try_="the same operations on whole arrays",
    )
