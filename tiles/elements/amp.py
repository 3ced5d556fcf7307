"""The inner loops of matrix products on the accumulating multiply units: a panel of weights, a position at a time.

Every issue multiplies inputs of one position, takes in partials of the next position and gives results of the one
before. So a position takes as many issues as its outputs fill, two positions' worth of issues fill the pipeline, and
one instruction of the main slot feeds each: two loads and a store by packed pointers. Weights are the tile's own; the
supervisor loads them with all workers stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles.elements.cell import ACCESS_BYTES, CELL
from tiles.elements.emitter import Emitter
from tiles.elements.extents import symbol
from tiles.elements.isa import InstructionSet
from tiles.elements.tilecode import (
    AUX,
    AZERO,
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
from tiles.errors import NoTileCode
from tiles.numerics.dtypes import itemsize


@dataclass(frozen=True)
class Product:
    """A kind of matrix product that units compute.

    Attributes:
      mnemonic: the instruction of an issue.
      dtype, partials: dtypes of inputs and weights, and of partials and results.
      inputs, outputs: of a panel of weights.
      phases: issues of a position.
    """

    mnemonic: str
    dtype: str
    partials: str
    inputs: int
    outputs: int
    phases: int

    @property
    def inputs_bytes(self) -> int:
        """Bytes of a position's inputs."""
        return self.inputs * itemsize(self.dtype)

    @property
    def partials_bytes(self) -> int:
        """Bytes of a position's partials: an access for every issue."""
        return self.outputs * itemsize(self.partials)

    @property
    def issues_per_access(self) -> int:
        """Issues that the inputs of one access last for."""
        return self.phases * ACCESS_BYTES // self.inputs_bytes


PRODUCTS = {
    (p.dtype, p.partials): p
    for p in (
        Product("f16v4hihov4amp", "float16", "float16", 16, 16, 4),
        Product("f16v4sisoamp", "float16", "float32", 16, 8, 4),
        Product("f32sisov2amp", "float32", "float32", 8, 16, 8),
    )
}
"""By dtypes of inputs and partials. Source: configs/isa."""

_FIELD_BITS = 10
_NEXT, _JUMP, _STAY, _INPUTS_JUMP = 0, 1, 2, 3
"""Picks of a stride: by one access; fields of the steps to a worker's next position, and of none, between them."""
N = symbol("n")


def product_of(dtype: str, partials: str) -> Product:
    """Return how the units multiply inputs of a dtype into partials of one.

    Raises:
      NoTileCode: they do not.
    """
    found = PRODUCTS.get((dtype, partials))
    if found is None:
        have = ", ".join(f"{a} into {b}" for a, b in PRODUCTS)
        raise NoTileCode(f"products of {dtype} into {partials} on the multiply units", expected=have)
    return found


@dataclass
class MatrixVector:
    """Builds the code of ``out[p] = partials[p] + weights @ x[p]`` for positions ``p``, shared by the workers in turn."""

    emitter: Emitter
    product: Product
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments."""
        self.arguments: list[str] = []

    def items(self) -> list[Item]:
        """Return the code, its loop already in bundles."""
        e, p = self.emitter, self.product
        with e.at(CELL):
            starts = [emit_argument(e, self.arguments, name) for name in ("in0", "in1", "out0")]
            n = emit_argument(e, self.arguments, "n")
            worker = emit_worker(e)
            count = emit_share(e, n, worker)
            inputs = e.main("mul", worker, imms=(p.inputs_bytes,))
            offset = inputs
            if p.partials_bytes != p.inputs_bytes:
                offset = e.main("mul", worker, imms=(p.partials_bytes,))
            pointers = tuple(
                e.main("add", start, by) for start, by in zip(starts, (inputs, offset, offset), strict=True)
            )
            pair = e.fresh("M", 2)
            e.emit("tapack", (pair,), pointers)
            stride = e.constant("M", self._steps())
            e.emit("uput", (), (e.constant("A", 8),), (1,), effect="accumulators")
        loop = self._loop(count, pair, stride)
        before = e.empty(CELL)
        with e.at(CELL):
            e.emit("exitz", (), (MZERO,))
        return [*before, *loop, *e.empty(CELL)]

    def _steps(self) -> int:
        """Return the fields of strides, in accesses from a position's last one: of partials, none, of inputs."""
        workers = self.emitter.isa["worker_contexts"]
        partials, inputs = (
            (workers - 1) * size // ACCESS_BYTES + 1
            for size in (self.product.partials_bytes, self.product.inputs_bytes)
        )
        is_same = partials == inputs
        return partials | (0 if is_same else inputs << 2 * _FIELD_BITS)

    def _loop(self, count: Register, pair: Register, stride: Register) -> list[Item]:
        """Return the bundles that fill the pipeline and the loop, which begins at the first result that counts."""
        p = self.product
        quad, result = self.emitter.fresh("A", 4), self.emitter.fresh("A", 2)
        x, partials = quad.part(0, 2), quad.part(2, 2)

        def loads(issue: int) -> Instruction:
            picks = self._picks(issue)
            return Instruction("ld2x64pace", MAIN, (x, partials, pair), (pair, stride), (picks,), stream="in")

        def feeds(issue: int) -> Instruction:
            picks = self._picks(issue + 1) | self._partials_pick(issue - 1) << 4
            outs, ins = (quad, pair), (result, pair, stride)
            return Instruction("ld2xst64pace", MAIN, outs, ins, (picks,), stream="out", stores=True)

        def multiplies(issue: int) -> Instruction:
            inputs = x if p.issues_per_access == 1 else x.part(issue % p.issues_per_access)
            if issue < p.phases:
                inputs = AZEROS if inputs.width > 1 else AZERO
            return Instruction(
                p.mnemonic, AUX, (result,), (inputs, partials), (issue % p.phases,), effect="amp"
            )

        first = 2 * p.phases + 1
        lead = [Bundle(loads(0)), *(Bundle(loads(k + 1), multiplies(k)) for k in range(first))]
        body = [Bundle(feeds(k), multiplies(k)) for k in range(first, first + p.phases)]
        return [
            Block((), tuple(lead)),
            Repeat(count, share(N, self.emitter.isa["worker_contexts"]), Block((), tuple(body))),
        ]

    def _partials_pick(self, issue: int) -> int:
        """Return how the pointer to partials, or to results, advances after an issue's access."""
        return _JUMP if issue % self.product.phases == self.product.phases - 1 else _NEXT

    def _picks(self, issue: int) -> int:
        """Return how both pointers of loads advance: that of inputs once the last ones of its access are taken."""
        p = self.product
        pick = _STAY
        if issue >= p.phases and issue % p.issues_per_access == p.issues_per_access - 1:
            is_last = issue % p.phases == p.phases - 1
            jump = _JUMP if p.partials_bytes == p.inputs_bytes else _INPUTS_JUMP
            pick = jump if is_last else _NEXT
        return pick | self._partials_pick(issue) << 2


def weights_cycles(isa: InstructionSet, bits: int = 64, product: Product | None = None) -> int:
    """Return the supervisor's cycles to load a panel of weights: an instruction for each 64 or 128 bits."""
    kind = product or PRODUCTS["float16", "float16"]
    row = isa.row(f"ld{bits}putcs")
    size_bits = 8 * kind.inputs_bytes * kind.outputs
    return row.issue_slots * (size_bits // bits) + isa["supervisor_dependent_cycles"]
