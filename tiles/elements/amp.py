"""Matrix products on the accumulating multiply units: a panel of weights, a position at a time.

Every issue multiplies inputs of one position, takes in partials of the next position and gives results of the one
before. So a position takes as many issues as its outputs fill, two positions' worth of issues fill the pipeline, and
one instruction of the main slot feeds each: two loads and a store by packed pointers. A result is stored two issues after it
was given: partials and results lie in the same interleaved memory, of which a load and a store of one instruction may
not meet the same half. Weights are the tile's own; the supervisor loads them with all workers stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiles.elements.cell import ACCESS_BYTES, CELL, ROW
from tiles.elements.emitter import Emitter
from tiles.elements.extents import Extent, symbol
from tiles.elements.isa import InstructionSet
from tiles.elements.supervisor import Supervisor, loads_of, panel_supervisor
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
from tiles.elements.workers import emit_argument, emit_share, emit_worker, share, worker_code
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
    def panel_bytes(self) -> int:
        """Bytes of a panel of weights."""
        return self.inputs_bytes * self.outputs

    @property
    def accesses(self) -> int:
        """Accesses that a position's inputs take."""
        return self.inputs_bytes // ACCESS_BYTES

    @property
    def issues_per_access(self) -> int:
        """Issues that the inputs of one access last for."""
        return self.phases // self.accesses


PRODUCTS = {
    (p.dtype, p.partials): p
    for p in (
        Product("f16v4hihov4amp", "float16", "float16", 16, 16, 4),
        Product("f16v4sisoamp", "float16", "float32", 16, 8, 4),
        Product("f32sisov2amp", "float32", "float32", 8, 16, 8),
    )
}
"""By dtypes of inputs and partials. Source: configs/isa."""
SLIDING = {
    p.partials: p
    for p in (
        Product("f16v4sisoslic", "float16", "float32", 16, 4, 1),
        Product("f16v4hihov4slic", "float16", "float16", 16, 4, 1),
    )
}
"""Windows of four inputs of four channels each, of four outputs, by the dtype of partials; see ``slic``."""

_FIELD_BITS = 10
_FIELDS = 3
_NEXT = 0
"""Pick of a stride: by one access. The others are fields of a word of strides, which each nest has its own use for."""
N, ROWS = symbol("n"), symbol("rows")


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


def strides_word(*steps: int) -> int:
    """Return up to three strides in accesses, packed in a word of fields of 10 bits.

    Raises:
      NoTileCode: a stride that no field holds.
    """
    most = 1 << (_FIELD_BITS - 1)
    if not all(-most <= step < most for step in steps):
        raise NoTileCode(f"strides of {max(map(abs, steps)):,} accesses", expected=f"less than {most}")
    mask = (1 << _FIELD_BITS) - 1
    return sum((step & mask) << _FIELD_BITS * k for k, step in enumerate(steps))


@dataclass(frozen=True)
class Stream:
    """The bundles that pass positions through the units.

    Args:
      emitter: makes registers.
      product: what the units compute.
      reads_partials: whether results are added to what lies there; else to nothing.
      partials_pick: stride from a position's last partials, or results, to the next position's first ones.
      input_picks: strides after each access to a position's inputs.
      stay_pick: a stride of nothing.
    """

    emitter: Emitter
    product: Product
    reads_partials: bool
    partials_pick: int
    input_picks: tuple[int, ...]
    stay_pick: int

    def repeat(self, count: Register, trips: Extent, pair: Register, strides: Register) -> Repeat:
        """Return the loop over positions, with the bundles that fill the pipeline: to the first result that is stored.

        Without partials to add to, the units are at work from the first issue on.
        """
        p, first = self.product, 2 * self.product.phases + 2
        quad, results = self.emitter.fresh("A", 4), [self.emitter.fresh("A", 2) for _ in range(2)]
        skipped = 0 if self.reads_partials else p.phases

        def loads(issue: int) -> Instruction:
            outs = (quad.part(0, 2), quad.part(2, 2) if self.reads_partials else AZEROS, pair)
            return Instruction(
                "ld2x64pace", MAIN, outs, (pair, strides), (self._loads_pick(issue),), stream="in"
            )

        def feeds(issue: int) -> Instruction:
            stored, ins = self._partials(issue - 2), (results[issue % 2], pair, strides)
            if self.reads_partials:
                picks, outs = self._loads_pick(issue + 1) | stored << 4, (quad, pair)
                return Instruction("ld2xst64pace", MAIN, outs, ins, (picks,), stream="out", stores=True)
            picks, outs = self._input(issue + 1) | stored << 2, (quad.part(0, 2), pair)
            return Instruction("ldst64pace", MAIN, outs, ins, (picks,), stream="out", stores=True)

        def multiplies(issue: int) -> Instruction:
            single = p.issues_per_access > 1
            inputs = quad.part(issue % p.issues_per_access) if single else quad.part(0, 2)
            if issue < p.phases:
                inputs = AZERO if single else AZEROS
            ins = (inputs, quad.part(2, 2) if self.reads_partials else AZEROS)
            return Instruction(p.mnemonic, AUX, (results[issue % 2],), ins, (issue % p.phases,), effect="amp")

        lead = [
            Bundle(loads(skipped)),
            *(Bundle(loads(k + 1), multiplies(k)) for k in range(skipped, first)),
        ]
        body = [Bundle(feeds(k), multiplies(k)) for k in range(first, first + p.phases)]
        return Repeat(count, trips, Block((), tuple(body)), Block((), tuple(lead)))

    def _partials(self, issue: int) -> int:
        """Return how the pointer to partials, or to results, advances after an issue's access."""
        return self.partials_pick if issue % self.product.phases == self.product.phases - 1 else _NEXT

    def _input(self, issue: int) -> int:
        """Return how the pointer to inputs advances: once the last ones of its access are taken."""
        each = self.product.issues_per_access
        if issue < self.product.phases or issue % each != each - 1:
            return self.stay_pick
        return self.input_picks[issue % self.product.phases // each]

    def _loads_pick(self, issue: int) -> int:
        return self._input(issue) | (self._partials(issue) << 2 if self.reads_partials else 0)


@dataclass
class MatrixVector:
    """Builds the code of ``out[p] = partials[p] + weights @ x[p]`` for positions ``p``, shared by the workers in turn.

    Args:
      emitter: takes the code.
      product: what the units compute.
      reads_partials: whether there are partials; else results are the products alone.
      weights_bits: of the supervisor's loads of weights; 0 where they are in place.
      lanes: elements of an iteration, which a variant says.
    """

    emitter: Emitter
    product: Product
    reads_partials: bool = True
    weights_bits: int = 0
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments."""
        self.arguments: list[str] = []

    def items(self) -> list[Item]:
        """Return the code, its loop already in bundles."""
        e, p = self.emitter, self.product
        with e.at(CELL):
            names = ("in0", "in1", "out0") if self.reads_partials else ("in0", "out0", "out0")
            starts = [emit_argument(e, self.arguments, name) for name in names]
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
        # Fields of strides: partials' to a worker's next position, none, inputs' to its next position.
        picks = (_NEXT,) * (p.accesses - 1)
        stream = Stream(e, p, self.reads_partials, 1, (*picks, 3), 2)
        loop = stream.repeat(count, share(N, e.isa["worker_contexts"]), pair, stride)
        before = e.empty(CELL)
        with e.at(CELL):
            e.emit("exitz", (), (MZERO,))
        if self.weights_bits:
            self.arguments.append("weights")
        return [*before, loop, *e.empty(CELL)]

    @property
    def supervisor(self) -> Supervisor:
        """What the supervisor does."""
        if not self.weights_bits:
            return Supervisor()
        return panel_supervisor(self.product.mnemonic, self.product.panel_bytes, self.weights_bits)

    def _steps(self) -> int:
        """Return the strides from a position's last access to the first of a worker's next position."""
        others = self.emitter.isa["worker_contexts"] - 1
        partials, inputs = (
            others * size // ACCESS_BYTES + 1
            for size in (self.product.partials_bytes, self.product.inputs_bytes)
        )
        return strides_word(partials, 0, inputs)


RUN_FIELDS = 3
"""Numbers of 16 bits that say a run: where its inputs and its results begin, in accesses, and positions."""


class Runs:
    """Runs that workers take in turn: what says where they begin and how long they are, and the loop over them."""

    def __init__(self, emitter: Emitter, arguments: list[str], further: str) -> None:
        """Emit where each worker's first run is said.

        Args:
          emitter: takes the code.
          arguments: of the vertex, which those of runs join.
          further: name of another one.
        """
        self.e, self.arguments, self.workers = emitter, arguments, emitter.isa["worker_contexts"]
        with emitter.at(CELL):
            self._inputs, self._out = (emit_argument(emitter, arguments, name) for name in ("in0", "out0"))
            runs, rows = (emit_argument(emitter, arguments, name) for name in ("runs", "rows"))
            self.further = emit_argument(emitter, arguments, further)
            worker = emit_worker(emitter)
            self._count = emit_share(emitter, rows, worker)
            first = emitter.main("mul", worker, imms=(2 * RUN_FIELDS,))
            self._entry = emitter.main("add", runs, first)

    def next(self) -> tuple[Register, Register, Register]:
        """Emit the reading of a run, and return where its inputs and its results begin, and its number of turns."""
        e, entry = self.e, self._entry
        fields = [e.fresh("M") for _ in range(RUN_FIELDS)]
        for field, step in zip(fields, (1, 1, RUN_FIELDS * (self.workers - 1) + 1), strict=True):
            e.emit("ldz16step", (field, entry), (MZERO, entry), (step,), stream="runs")
        first, second = (
            e.main("add", start, e.main("shl", field, imms=(3,)))
            for start, field in zip((self._inputs, self._out), fields, strict=False)
        )
        return first, second, fields[-1]

    def code(self, run: list[Item]) -> list[Item]:
        """Return the code, given that of a run; where the weights lie is its last argument."""
        code = worker_code(self.e, self._count, share(ROWS, self.workers), run)
        self.arguments.append("weights")
        return code


@dataclass
class FieldRuns:
    """Builds the code of a tap of a convolution: of runs of positions whose results lie together, which workers take in turn.

    Args:
      emitter: takes the code.
      product: what the units compute.
      height: rows of the field that a position's inputs are of.
      reads_partials: whether results are added to what lies there.
      weights_bits: of the supervisor's loads of weights.
      lanes: elements of an iteration, which a variant says.
    """

    emitter: Emitter
    product: Product
    height: int = 1
    reads_partials: bool = True
    weights_bits: int = 64
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without arguments.

        Raises:
          NoTileCode: a position's inputs of a row are no whole access.
        """
        if self.product.accesses % self.height:
            raise NoTileCode(f"inputs of {self.height} rows of a field at once")
        self.arguments: list[str] = []

    def items(self) -> list[Item]:
        """Return the code, its loop already in bundles."""
        e = self.emitter
        runs = Runs(e, self.arguments, "strides")
        with e.at(ROW):
            first, second, positions = runs.next()
            pair = e.fresh("M", 2)
            e.emit("tapack", (pair,), (first, second, second))
            zeroed = e.op("setzi", ("A", 1), imms=(8,))  # the pipeline takes all aux registers
            e.emit("uput", (), (zeroed,), (1,), effect="accumulators")
        # Fields of strides: inputs' to the next row of a position, none, inputs' to the next position.
        each = self.product.accesses // self.height
        picks = ((*(_NEXT,) * (each - 1), 1) * self.height)[:-1]
        stream = Stream(e, self.product, self.reads_partials, _NEXT, (*picks, 3), 2)
        return runs.code([*e.empty(ROW), stream.repeat(positions, N, pair, runs.further)])

    @property
    def supervisor(self) -> Supervisor:
        """What the supervisor does."""
        return panel_supervisor(self.product.mnemonic, self.product.panel_bytes, self.weights_bits)


def run_strides(product: Product, height: int, row_bytes: int, position_bytes: int) -> int:
    """Return the word of strides of ``FieldRuns``.

    Args:
      product: what the units compute.
      height: rows of the field that a position's inputs are of.
      row_bytes: from one of these rows to the next.
      position_bytes: from a position's inputs to the next position's.

    Raises:
      NoTileCode: too far apart.
    """
    each = product.accesses // height
    row = row_bytes // ACCESS_BYTES - (each - 1) if height > 1 else 0
    last = (height - 1) * (row_bytes // ACCESS_BYTES) + each - 1
    return strides_word(row, 0, position_bytes // ACCESS_BYTES - last)


def weights_cycles(isa: InstructionSet, bits: int = 64, product: Product | None = None) -> int:
    """Return the supervisor's cycles to load a panel of weights: an instruction for each 64 or 128 bits."""
    kind = product or PRODUCTS["float16", "float16"]
    loads = loads_of(kind.panel_bytes, bits)
    return isa.row(loads[0]).issue_slots * len(loads) + isa["supervisor_dependent_cycles"]
