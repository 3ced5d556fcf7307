"""The inner loop of matrix products on the accumulating multiply units: 16 inputs by 16 outputs of f16, a position at a time.

Every issue multiplies four inputs of one position, takes in four partials of the next position and gives four
results of the one before. So a position takes four issues, two positions' worth of issues fill the pipeline, and
one instruction of the main slot feeds each: two loads and a store by packed pointers. Weights are the tile's own;
the supervisor loads them with all workers stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles.elements.cell import CELL
from tiles.elements.emitter import Emitter
from tiles.elements.extents import symbol
from tiles.elements.isa import InstructionSet
from tiles.elements.tilecode import (
    AUX,
    AZEROS,
    MAIN,
    MZERO,
    Block,
    Bundle,
    Instruction,
    Item,
    Register,
    Repeat,
)
from tiles.elements.workers import emit_argument, emit_share, emit_worker, share

CHANNELS = 16
PHASES = 4
_POSITION_BYTES = 2 * CHANNELS
_FIELD_BITS = 10
_STAY, _JUMP = 2, 1
"""Picks of a stride: field 1 holds 0, field 0 the step to a worker's next position."""
N = symbol("n")


@dataclass
class MatrixVector:
    """Builds the code of ``out[p] = partials[p] + weights @ x[p]`` for positions ``p``, shared by the workers in turn."""

    emitter: Emitter
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments."""
        self.arguments: list[str] = []

    def items(self) -> list[Item]:
        """Return the code, its loop already in bundles."""
        e = self.emitter
        with e.at(CELL):
            starts = [emit_argument(e, self.arguments, name) for name in ("in0", "in1", "out0")]
            n = emit_argument(e, self.arguments, "n")
            worker = emit_worker(e)
            count = emit_share(e, n, worker)
            offset = e.main("mul", worker, imms=(_POSITION_BYTES,))
            pointers = tuple(e.main("add", start, offset) for start in starts)
            pair = e.fresh("M", 2)
            e.emit("tapack", (pair,), pointers)
            step = e.isa["worker_contexts"] * PHASES - (PHASES - 1)
            stride = e.op("setzi", ("M", 1), imms=(step,))
            e.emit("uput", (), (e.constant("A", 8),), (1,), effect="accumulators")
        loop = self._loop(count, pair, stride)
        before = e.empty(CELL)
        with e.at(CELL):
            e.emit("exitz", (), (MZERO,))
        return [*before, *loop, *e.empty(CELL)]

    def _loop(self, count: Register, pair: Register, stride: Register) -> list[Item]:
        """Return the bundles that fill the pipeline and the loop, which begins at the first result that counts."""
        quad, result = self.emitter.fresh("A", 4), self.emitter.fresh("A", 2)
        x, partials = quad.part(0, 2), quad.part(2, 2)

        def loads(issue: int) -> Instruction:
            picks = _picks(issue, takes_inputs=issue >= PHASES)
            return Instruction("ld2x64pace", MAIN, (x, partials, pair), (pair, stride), (picks,), stream="in")

        def feeds(issue: int) -> Instruction:
            picks = _picks(issue + 1, takes_inputs=True) | _picks(issue - 1, takes_inputs=True) >> 2 << 4
            outs, ins = (quad, pair), (result, pair, stride)
            return Instruction("ld2xst64pace", MAIN, outs, ins, (picks,), stream="out", stores=True)

        def multiplies(issue: int) -> Instruction:
            inputs = x if issue >= PHASES else AZEROS
            name = "f16v4hihov4amp"
            return Instruction(name, AUX, (result,), (inputs, partials), (issue % PHASES,), effect="amp")

        first = 2 * PHASES + 1
        lead = [Bundle(loads(0)), *(Bundle(loads(k + 1), multiplies(k)) for k in range(first))]
        body = [Bundle(feeds(k), multiplies(k)) for k in range(first, first + PHASES)]
        return [
            Block((), tuple(lead)),
            Repeat(count, share(N, self.emitter.isa["worker_contexts"]), Block((), tuple(body))),
        ]


def _picks(issue: int, takes_inputs: bool) -> int:
    """Return how inputs and partials advance after an issue's loads: by one, or to the worker's next position."""
    pick = _JUMP if issue % PHASES == PHASES - 1 else 0
    return (pick if takes_inputs else _STAY) | pick << 2


def weights_cycles(isa: InstructionSet, bits: int = 64) -> int:
    """Return the supervisor's cycles to load 16 by 16 weights of f16: an instruction for each 64 or 128 bits."""
    row = isa.row(f"ld{bits}putcs")
    return row.issue_slots * (16 * CHANNELS * CHANNELS // bits) + isa["supervisor_dependent_cycles"]
