"""How the workers of a tile share a vertex's elements.

Workers take vectors (or rows) in turn: worker ``w`` of ``W`` takes those numbered ``w``, ``w + W``, ... All run
the same code on one vertex state. The last worker, which has the fewest vectors, takes the elements that fill no
vector.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiles.elements.cell import CELL
from tiles.elements.emitter import Emitter
from tiles.elements.extents import Extent, greater, symbol
from tiles.elements.tilecode import MZERO, VERTEX_BASE, If, Item, Loop, Register
from tiles.errors import NoTileCode

WORKER = symbol("worker")
WORKER_STATUS = 1
"""Index of the status register whose low three bits are a worker's number."""
_DIVISION_SHIFT = 18
SHARES_MAX = 98_000
"""Vectors or rows that workers can share: the division by the number of workers is exact below it."""


def share(total: Extent, workers: int) -> Extent:
    """Return how many of ``total`` vectors or rows a worker takes."""
    return (total + (workers - 1) - WORKER) // workers


def emit_worker(e: Emitter) -> Register:
    """Emit the worker's number."""
    return e.main("and", e.main("get", imms=(WORKER_STATUS,)), imms=(7,))


def emit_share(e: Emitter, total: Register, worker: Register) -> Register:
    """Emit how many of ``total`` a worker takes: a division by a constant as a product and a shift.

    Raises:
      NoTileCode: a number of workers for which no such product is exact.
    """
    workers = e.isa["worker_contexts"]
    factor = -(-(1 << _DIVISION_SHIFT) // workers)
    if (factor * workers - (1 << _DIVISION_SHIFT)) * SHARES_MAX >= 1 << _DIVISION_SHIFT:
        raise NoTileCode(f"no product divides by {workers} workers")
    raised = e.main("add", e.main("sub", total, worker), imms=(workers - 1,))
    return e.main("shr", e.main("mul", raised, e.constant("M", factor)), imms=(_DIVISION_SHIFT,))


def worker_code(
    e: Emitter, count: Register, trips: Extent, body: Iterable[Item], tail: Iterable[Item] = ()
) -> list[Item]:
    """Return the code of a worker: what it emitted once, a loop over what it takes, what comes after it, and the end.

    Args:
      e: holds what is emitted once, for the cell.
      count: how often the loop runs; a worker without any leaves it out.
      trips: the same, as an extent.
      body: of the loop.
      tail: after the loop.
    """
    before = e.empty(CELL)
    with e.at(CELL):
        counter = e.main("add", count, imms=(-1,))
    loop = If(count, greater(trips, 0), (*e.empty(CELL), Loop(counter, trips, tuple(body))))
    with e.at(CELL):
        e.emit("exitz", (), (MZERO,))
    return [*before, loop, *tail, *e.empty(CELL)]


def emit_argument(e: Emitter, arguments: list[str], name: str) -> Register:
    """Emit the load of a field of the vertex state, adding the field if it is new."""
    if name not in arguments:
        arguments.append(name)
    register = e.fresh("M")
    e.emit("ld32", (register,), (VERTEX_BASE, MZERO), (arguments.index(name),), stream="state")
    return register
