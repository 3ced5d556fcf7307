"""Short sliding windows on the multiply units: four taps of four channels, an issue for every input.

An issue takes an input and the partials of the window that begins with it, and gives the results of the window that ended with
the input before. So a window of four inputs gives its results four issues after its first one. Partials are 64 bits: of two
outputs in float32, so that four take two passes, or of four in halves. What partials are loaded from and results are stored to
is one interleaved memory, of which a load and a store of an instruction may not meet the same half: where windows are an input
apart, results are stored two issues after they were given, two windows a turn of the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles.elements.amp import SLIDING, Product, Runs
from tiles.elements.cell import ACCESS_BYTES, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import symbol
from tiles.elements.supervisor import Supervisor, panel_supervisor
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
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize

N = symbol("n")
TAPS, CHANNELS = 4, 4
"""Of a window, and of an input and of the results."""
STRIDES = (1, 2)
_NEXT, _STAY = 0, 1
"""Picks of a stride: by one access, or by none."""


def sliding_of(partials: str) -> Product:
    """Return how windows slide into partials of a dtype.

    Raises:
      NoTileCode: they do not.
    """
    found = SLIDING.get(partials)
    if found is None:
        raise NoTileCode(f"short sliding windows into {partials}", expected=" or ".join(SLIDING))
    return found


def outputs_at_once(partials: str) -> int:
    """Return the outputs of an issue: those of an access."""
    return ACCESS_BYTES // itemsize(partials)


def windows_a_turn(stride: int) -> int:
    """Return how many windows a turn of the loop computes."""
    return 2 // stride


@dataclass
class SlidingRuns:
    """Builds the code of windows over runs of inputs that lie together, which workers take in turn; see ``FieldRuns``.

    A run's number is of turns of the loop, of ``windows_a_turn`` windows. Outputs of the second pass lie ``pass_bytes`` further.

    Args:
      emitter: takes the code.
      stride: inputs from a window to the next one.
      reads_partials: whether results are added to what lies there.
      weights_bits: of the supervisor's loads of weights.
      partials: their dtype, and that of results.
      lanes: elements of an iteration, which a variant says.
    """

    emitter: Emitter
    stride: int = 1
    reads_partials: bool = True
    weights_bits: int = 64
    partials: str = "float32"
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: windows that are further apart, or other partials.
        """
        if self.stride not in STRIDES:
            raise NoTileCode(f"short sliding windows {self.stride} inputs apart", expected="1 or 2")
        self.arguments: list[str] = []
        self.product = sliding_of(self.partials)

    def items(self) -> list[Item]:
        """Return the code, its loops already in bundles."""
        e = self.emitter
        runs = Runs(e, self.arguments, "pass_bytes")
        body: list[Item] = []
        with e.at(ROW):
            first, second, turns = runs.next()
        for number in range(CHANNELS // outputs_at_once(self.partials)):
            with e.at(ROW):
                target = e.main("add", second, runs.further) if number else second
                pair = e.fresh("M", 2)
                e.emit("tapack", (pair,), (first, target, target))
            body += [*e.empty(ROW), self._loop(turns, pair, number)]
        return runs.code(body)

    def _loop(self, count: Register, pair: Register, number: int) -> Repeat:
        """Return a pass: the bundles up to the first result that is stored, and a loop of two inputs a turn."""
        quad, results = self.emitter.fresh("A", 4), [self.emitter.fresh("A", 2) for _ in range(2)]
        x, partials, reads, is_apart = quad.part(0, 2), quad.part(2, 2), self.reads_partials, self.stride > 1

        def loads(brings: bool) -> Instruction:
            """Return the loads of the next input and, if wanted, of the next window's partials."""
            outs = (x, partials if brings else AZEROS, pair)
            picks = _NEXT | (_NEXT if brings else _STAY) << 2
            return Instruction("ld2x64pace", MAIN, outs, (pair, MZERO), (picks,), stream="in")

        def feeds(issue: int) -> Instruction:
            """Return the loads of the next input with the store of a result, two issues later, or one where windows are apart."""
            if is_apart and issue % 2 == 0:
                return loads(reads)
            ins = (results[0 if is_apart else issue % 2], pair, MZERO)
            if reads and not is_apart:
                imms = (_NEXT,)
                return Instruction("ld2xst64pace", MAIN, (quad, pair), ins, imms, stream="out", stores=True)
            return Instruction("ldst64pace", MAIN, (x, pair), ins, (_NEXT,), stream="out", stores=True)

        def slides(issue: int) -> Instruction:
            begins = reads and not (is_apart and issue % 2)
            ins = (x, partials if begins else AZEROS)
            name, result = self.product.mnemonic, results[issue % 2]
            return Instruction(name, AUX, (result,), ins, (number,), effect="slic")

        first = TAPS + (0 if is_apart else 2)
        lead = [Bundle(loads(reads))]
        for issue in range(first):
            lead.append(Bundle(loads(reads and not (is_apart and issue % 2)), slides(issue)))
        body = [Bundle(feeds(issue), slides(issue)) for issue in range(first, first + 2)]
        return Repeat(count, N, Block((), tuple(body)), Block((), tuple(lead)))

    @property
    def supervisor(self) -> Supervisor:
        """What the supervisor does."""
        return panel_supervisor(self.product.mnemonic, self.product.panel_bytes, self.weights_bits)
