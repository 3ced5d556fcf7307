"""MLIR locations to ours: the user's own frame of the call stack, and what JAX's name stack says."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from hlo_passes.ir import UNKNOWN, Location
from ipuxla.frontend._jax_compat import mlir, mlir_ir
from ipuxla.frontend.frames import is_library, users_own
from ipuxla.frontend.names import read_name_stack

TEXT_FILE = "<stablehlo>"
"""File name of locations in a module's own text, where it names no other."""


def read_location(location: mlir.Location, of_hlo: bool = False) -> Location:
    """Return the user's line and scope of an MLIR location.

    Args:
      location: an MLIR location.
      of_hlo: whether the module came back from XLA, which names what has no name stack by its instruction.
    """
    line = users_own(_frames(location), lambda frame: frame.file) or UNKNOWN
    if line.is_known and is_library(line.file):
        line = dataclasses.replace(line, is_provisional=True)
    if of_hlo and isinstance(location, mlir_ir.NameLoc) and not _NAME_STACK.search(location.name_str):
        return line
    return line.within(_named(location))


_NAME_STACK = re.compile(r"[/(]")


def _frames(location: mlir.Location, function: str = "") -> Iterator[Location]:
    """Yield the source positions of an MLIR location, innermost call first."""
    while isinstance(location, mlir_ir.CallSiteLoc):
        yield from _frames(location.callee)
        location = location.caller
    match location:
        case mlir_ir.FileLineColLoc():
            file = TEXT_FILE if location.filename == "-" else location.filename
            yield Location(file, location.start_line, location.start_col, function)
        case mlir_ir.NameLoc():
            yield from _frames(location.child_loc, location.name_str)
        case mlir_ir.FusedLoc():
            for part in mlir.parts(location):
                yield from _frames(part)
        case _:  # an unknown place
            return


def _named(location: mlir.Location) -> Location:
    """Return the scope and transforms of an MLIR location, with no line.

    The outermost name of a location is JAX's name stack; names of frames and of arguments are further in, right
    around a position or nothing.
    """
    match location:
        case mlir_ir.NameLoc() if _is_name_stack(location):
            return dataclasses.replace(UNKNOWN, **read_name_stack(location.name_str)._asdict())
        case mlir_ir.NameLoc():
            return _named(location.child_loc)
        case mlir_ir.CallSiteLoc():  # of a function that MLIR inlined
            return _named(location.callee).within(_named(location.caller))
        case mlir_ir.FusedLoc():
            named = (_named(part) for part in mlir.parts(location))
            return next((each for each in named if each != UNKNOWN), UNKNOWN)
        case _:
            return UNKNOWN


def _is_name_stack(location: mlir_ir.NameLoc) -> bool:
    around_position = isinstance(location.child_loc, mlir_ir.FileLineColLoc)
    return not location.name_str.endswith(":") and ("/" in location.name_str or not around_position)
