"""From a cell's jaxpr to tile code: selection, scheduling, registers."""

from __future__ import annotations

from typing import Any

from tiles.elements import isa as instruction_sets
from tiles.elements.cell import Arrangement
from tiles.elements.coalesce import coalesced
from tiles.elements.elementwise import Elementwise, lanes_choices
from tiles.elements.emitter import Emitter
from tiles.elements.isa import InstructionSet
from tiles.elements.spill import assigned
from tiles.elements.tilecode import Repeat, TileCode, walk
from tiles.errors import OutOfRegisters
from tiles.numerics.dtypes import itemsize
from tiles.target import Target


def compile_cell(
    jaxpr: Any,
    dtypes: tuple[tuple[str, ...], tuple[str, ...]],
    arrangement: Arrangement,
    target: Target | InstructionSet,
    name: str = "cell",
) -> TileCode:
    """Return the tile code of a codelet's variant.

    Args:
      jaxpr: closed jaxpr of one element: scalars in, scalars out.
      dtypes: of the operands and of the results.
      arrangement: how each of them lies and moves.
      target: the machine, or an instruction set.
      name: of the variant, for the printer.

    Raises:
      NoTileCode: an operation, a dtype or an arrangement that no code is known for; names it.
      OutOfRegisters: too few registers, even with values spilled.
    """
    isa = target if isinstance(target, InstructionSet) else instruction_sets.of_target(target)
    arrangement.check(*dtypes)
    choices = lanes_choices(dtypes[0] + dtypes[1], arrangement)
    for lanes in choices:
        try:
            return _compiled(jaxpr, dtypes, arrangement, isa, name, lanes)
        except OutOfRegisters:
            if lanes == choices[-1]:
                raise
    raise AssertionError("there is always a choice of lanes")


def _compiled(
    jaxpr: Any,
    dtypes: tuple[tuple[str, ...], tuple[str, ...]],
    arrangement: Arrangement,
    isa: InstructionSet,
    name: str,
    lanes: int,
) -> TileCode:
    """Return the code with a given number of elements an iteration."""
    emitter = Emitter(isa)
    nest = Elementwise(emitter, jaxpr, *dtypes, arrangement, lanes)
    unscheduled = coalesced(nest.items())
    items, registers, scratch = assigned(unscheduled, isa, arrangement.separate, emitter.scratch_bytes, name)
    stages = max((item.stages for item in walk(items) if isinstance(item, Repeat)), default=1)
    return TileCode(
        name,
        isa.name,
        tuple(nest.arguments),
        items,
        registers,
        scratch_bytes=scratch,
        overread_bytes=stages * nest.workers * nest.lanes * max(map(itemsize, dtypes[0] + dtypes[1])),
        lanes=nest.lanes,
        partition=arrangement.partition,
    )
