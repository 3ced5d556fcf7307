"""Tile code of the element compiler beside the cycles that PopLibs' public estimators state for the same vertex.

python -m benchmarks.tile_code

PopLibs' figures are those of github.com/graphcore/poplibs (August 2023), lib/popops/popopsCycleEstimators.cpp,
lib/popops/PerformanceEstimation.cpp, lib/popnn/PerformanceEstimation.hpp, lib/popops/reduction/CycleEstimationFunctions.cpp and
lib/poprand/poprandCycleEstimators.cpp (of raw bits the loop is its assembly's, Uniform.S), restated as slots of a loop over
some elements and slots around it.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from jax import lax

from benchmarks.timing import table, write_result
from tiles.elements import (
    Arrangement,
    InstructionSet,
    compile_cell,
    compile_matrix_vector,
    contiguous,
    cost_of,
    drawn,
    named,
)
from tiles.elements.cell import CELL, Access
from tiles.errors import IpuError
from tiles.graph import Codelet, Extents, OpForm
from tiles.graph.cycles import code_cycles
from tiles.graph.domain import PARALLEL, REDUCTION, WINDOW, Affine, Dim, IndexMap, along
from tiles.poplibs import poplin
from tiles.poplibs.forms import dot_form
from tiles.target import Target

FLOAT, HALF, INT = "float32", "float16", "int32"
WIDTH = {FLOAT: 2, HALF: 4, INT: 2}
SIZES = (384, 6000)
"""Elements of a vertex: where the code around the loop matters, and where the loop does."""


@dataclass(frozen=True)
class Row:
    """One vertex of PopLibs.

    Attributes:
      function: what it computes, of scalars or of ``[rows, n]``.
      slots, elements: PopLibs' slots of one iteration and the elements that it handles.
      frame: slots of a worker around its loop.
      supervisor: cycles of the supervisor.
      chooses: instruction whose slots were read off this figure; "" where the row is a check.
      how: arrangement; by default whole vectors.
      by_hand: whether PopLibs' public sources have the loop in assembly; other figures are of compiled C++, or
        estimates of a function's code.
    """

    name: str
    dtypes: tuple[str, ...]
    function: Callable[..., Any]
    slots: float
    elements: float
    frame: int
    supervisor: int = 20
    chooses: str = ""
    how: Arrangement | None = None
    by_hand: bool = True

    def stated(self, n: int) -> float:
        """Return PopLibs' cycles of a vertex of ``n`` elements."""
        return self.supervisor + 6 * (self.frame + math.ceil(math.ceil(n / 6) / self.elements) * self.slots)

    def code(self, n: int, isa: InstructionSet) -> int:
        """Return the cycles of our code."""
        how = self.how or contiguous(len(self.dtypes))
        jaxpr = jax.make_jaxpr(self.function)(*(jax.ShapeDtypeStruct((), d) for d in self.dtypes))
        results = tuple(a.dtype.name for a in jaxpr.out_avals)
        code = compile_cell(jaxpr, (self.dtypes, results), how, isa, self.name)
        return int(cost_of(code, {"n": n}, isa).cycles)


def unary(
    op: str, f: Callable, dtype: str, slots: float, elements: float, chooses: str = "", frame: int = 17
) -> Row:
    """Return a row of the unary table: a stated loop."""
    return Row(op, (dtype,), f, slots, elements, frame, chooses=chooses)


def wide(op: str, f: Callable, dtype: str, slots: float, scalar: bool = False) -> Row:
    """Return a row that PopLibs counts with four slots more for a load, a store and the loop."""
    return Row(op, (dtype,), f, slots + 4, 1 if scalar else WIDTH[dtype], 17, by_hand=False)


def binary(op: str, f: Callable, dtype: str, slots: float, elements: float) -> Row:
    """Return a row of two tensors."""
    frame = 29 if dtype != HALF else 26
    return Row(
        op,
        (dtype,) * 2,
        f,
        slots,
        elements,
        frame,
        supervisor=11,
        by_hand=op in ("add", "sub", "mul") and dtype != INT,
    )


def by_scalar(op: str, f: Callable, dtype: str, slots: float, elements: float) -> Row:
    """Return a row of a tensor and a scalar."""
    how = Arrangement((Access(), Access(CELL)), (Access(),))
    return Row(op + " scalar", (dtype,) * 2, f, slots, elements, 20, supervisor=11, how=how)


def cast(source: str, target: str, elements: int, slots: int) -> Row:
    """Return a row of the cast vertices."""
    how = Arrangement((Access(),), (Access(),), separate=True)
    return Row(
        f"cast to {target}", (source,), lambda x: x.astype(target), slots, elements, 18 + 19, 12, how=how
    )


@dataclass(frozen=True)
class SumRow(Row):
    """Sums of six rows of ``n / 6`` elements, one by each worker."""

    def code(self, n: int, isa: InstructionSet) -> int:
        """Return the cycles of our code."""
        jaxpr = jax.make_jaxpr(self.function)(jax.ShapeDtypeStruct((6, 8), self.dtypes[0]))
        code = compile_cell(jaxpr, (self.dtypes, (FLOAT,)), contiguous(1), isa, self.name)
        return int(cost_of(code, {"n": n // 6, "rows": 6}, isa).cycles)


@dataclass(frozen=True)
class ProductRow(Row):
    """Products of 16 by 16 weights and ``n`` positions, weights in place; PopLibs' slots from three positions on."""

    def code(self, n: int, isa: InstructionSet) -> int:
        """Return the cycles of our code."""
        return int(cost_of(compile_matrix_vector(isa, *self.dtypes), {"n": n}, isa).cycles)


CHANNELS = 64
"""Input and output channels of whole vertices."""
FIELD_COLUMNS = 24


@dataclass(frozen=True)
class VertexRow(Row):
    """Whole vertices of contractions: ``n`` positions of 64 channels into 64; taps of a field of rows of 24.

    Attributes:
      taps: along each of two dimensions of a kernel.
      channels: inputs, outputs and groups.
      method: by which the vertex computes.
      stride: from a window of a row to the next one.
    """

    target: ClassVar[Target] = Target.named("gc200")
    taps: int = 1
    channels: tuple[int, int, int] = (CHANNELS, CHANNELS, 1)
    method: str = "amp"
    stride: int = 1

    def codelet(self) -> Codelet:
        """Return the operation."""
        first, second, partials = self.dtypes
        kind = poplin.MatMul if self.taps == 1 else poplin.Convolution
        return kind((first, second), partials, partials, self.method)

    def extents(self, n: int) -> Extents:
        """Return one cell's extents."""
        inputs, outputs, groups = self.channels
        if self.taps == 1:
            form = dot_form((n, inputs), (inputs, outputs), (), (), (1,), (0,))
        else:
            rows = n // FIELD_COLUMNS
            sizes = (rows, FIELD_COLUMNS, groups, outputs, self.taps, self.taps, inputs)
            kinds = (PARALLEL,) * 4 + (WINDOW,) * 2 + (REDUCTION,)
            dims = [Dim(f"d{d}", size, kinds[d]) for d, size in enumerate(sizes)]
            field = [Affine(((0, 1), (4, 1))), Affine(((1, self.stride), (5, 1)))]
            left, right = [*field, along(2), along(6)], map(along, (4, 5, 2, 3, 6))
            out = map(along, (0, 1, 2, 3))
            form = OpForm(
                tuple(dims), (IndexMap(tuple(left)), IndexMap(tuple(right))), (IndexMap(tuple(out)),)
            )
        sizes = tuple(np.array([size], np.int64) for size in form.shape)
        return Extents(form, sizes, self.dtypes[:2], self.dtypes[2:])

    def stated(self, n: int) -> float:
        """Return the cycles of PopLibs' estimator."""
        return float(self.codelet().cycles(self.extents(n), self.target).value[0])

    def code(self, n: int, isa: InstructionSet) -> int:
        """Return the cycles of our code."""
        return int(code_cycles(self.codelet().tile_code(self.extents(n), self.target)).value[0])


def rows() -> Iterator[Row]:
    """Yield every row."""
    square = functools.partial(lax.integer_pow, y=2)
    for d, v in ((FLOAT, 2), (HALF, 4)):
        yield unary("neg", lax.neg, d, 2, v)
        yield unary("square", square, d, 2, v)
        yield Row("relu", (d,), jax.nn.relu, 3, v, 17, by_hand=False)
        yield wide("sign", jnp.sign, d, 5)
        yield wide("floor", lax.floor, d, 2)
        yield wide("ceil", lax.ceil, d, 2)
        yield wide("isfinite", lax.is_finite, d, 5)
        yield wide("isnan", jnp.isnan, d, 3)
        yield wide("expm1", lax.expm1, d, 5 if d == HALF else 4, scalar=d == FLOAT)
        yield wide("log1p", lax.log1p, d, 18)
        yield wide("cbrt", lax.cbrt, d, 27 if d == FLOAT else 17)
    yield unary("exp", lax.exp, FLOAT, 6, 2, "f32exp", 33)
    yield unary("exp", lax.exp, HALF, 4, 4, "f16v2exp", 33)
    yield unary("log", lax.log, FLOAT, 12, 2, "f32ln")
    yield unary("log", lax.log, HALF, 4, 4, "f16v2ln")
    yield unary("tanh", lax.tanh, FLOAT, 12, 2, "f32tanh")
    yield unary("tanh", lax.tanh, HALF, 4, 4, "f16v2tanh")
    yield unary("sigmoid", lax.logistic, FLOAT, 12, 2, "f32sigm")
    yield unary("sigmoid", lax.logistic, HALF, 6, 4, "f16v2sigm")
    yield unary("sqrt", lax.sqrt, FLOAT, 10, 2, "f32sqrt")
    yield unary("sqrt", lax.sqrt, HALF, 23, 4)
    yield unary("rsqrt", lax.rsqrt, FLOAT, 8, 2, "f32oorx")
    yield unary("rsqrt", lax.rsqrt, HALF, 19, 4)
    yield unary("inverse", lambda x: 1 / x, FLOAT, 6, 2, "f32oox")
    yield unary("inverse", lambda x: 1 / x, HALF, 15, 4)
    yield Row("erf", (FLOAT,), lax.erf, 41, 1, 17, by_hand=False)
    yield Row("erf", (HALF,), lax.erf, 13, 1, 17, by_hand=False)
    yield wide("abs", lax.abs, INT, 2, scalar=True)
    yield wide("neg", lax.neg, INT, 2, scalar=True)
    yield wide("not", lax.bitwise_not, INT, 1)
    for name, f in (("add", lax.add), ("sub", lax.sub), ("mul", lax.mul)):
        for d, v in ((FLOAT, 2), (HALF, 4)):
            yield binary(name, f, d, 3, v)
            yield by_scalar(name, f, d, 2, v)
        yield binary(name, f, INT, 7, 1)
    yield binary("divide", lax.div, FLOAT, 10, 2)
    yield binary("divide", lax.div, HALF, 21, 4)
    yield by_scalar("divide", lax.div, FLOAT, 6, 2)
    yield binary("divide", lax.div, INT, 277, 1)
    yield binary("divide", lax.div, "uint32", 265, 1)
    yield binary("remainder", lax.rem, INT, 292, 1)
    for name, f in (("max", lax.max), ("min", lax.min)):
        yield binary(name, f, FLOAT, 3, 2)
        yield binary(name, f, HALF, 4, 4)
        yield binary(name, f, INT, 7, 1)
    for name, f in (("less", lax.lt), ("equal", lax.eq), ("greater or equal", lax.ge)):
        yield binary(name, f, FLOAT, 14, 4)
        yield binary(name, f, HALF, 9, 4)
        yield binary(name, f, INT, 22 if name == "equal" else 24, 4)
    yield binary("not equal", lax.ne, FLOAT, 20, 4)
    yield binary("not equal", lax.ne, HALF, 11, 4)
    yield binary("atan2", lax.atan2, FLOAT, 272, 2)
    yield cast(FLOAT, HALF, 4, 2)
    yield cast(HALF, FLOAT, 4, 2)
    yield Row("select", ("bool", FLOAT, FLOAT), lambda c, a, b: lax.select(c, a, b), 5, 1, 11, 5)
    yield Row("select", ("bool", HALF, HALF), lambda c, a, b: lax.select(c, a, b), 5, 1, 11, 5)
    for d, v in ((FLOAT, 2), (HALF, 4)):
        yield SumRow("sum of rows", (d,), lambda x: jnp.sum(x, 1, dtype=FLOAT), 1, v, 17)
    yield ProductRow("1x1 product", (HALF, HALF), lax.add, 4, 1, 26, supervisor=11)
    yield ProductRow("1x1 product", (HALF, FLOAT), lax.add, 4, 1, 26, supervisor=11)
    yield ProductRow("1x1 product", (FLOAT, FLOAT), lax.add, 8, 1, 22, supervisor=11)
    for taps, name in ((1, "1x1 vertex"), (3, "nx1 vertex, 3x3")):
        for dtype, partials in ((HALF, HALF), (HALF, FLOAT), (FLOAT, FLOAT)):
            yield VertexRow(name, (dtype, dtype, partials), lax.add, 0, 1, 0, taps=taps)
    yield from others_vertices()
    yield from random_numbers()


def random_numbers() -> Iterator[Row]:
    """Yield rows of vertices that draw from the machine's generator, scaled and shifted."""

    def numbers(distribution: str, dtype: str) -> Callable[..., Any]:
        return lambda scale, shift: drawn(distribution, dtype) * scale + shift

    yield Row("random bits", (), lambda: drawn("bits", FLOAT), 1, 2, 22, supervisor=4)
    for distribution in ("uniform", "normal"):
        for dtype, elements in ((FLOAT, 2), (HALF, 4)):
            access = Access(CELL, np.dtype(dtype).itemsize)
            how = Arrangement((access, access), (Access(),))
            function = numbers(distribution, dtype)
            yield Row(
                f"{distribution} numbers", (dtype,) * 2, function, 4, elements, 24, supervisor=4, how=how
            )


def others_vertices() -> Iterator[Row]:
    """Yield rows of vertices off the multiply units' matrices: dot products, side by side, outer products, sliding windows."""

    def row(
        name: str, dtypes: tuple[str, ...], method: str, *channels: int, taps: int = 1, stride: int = 1
    ) -> Row:
        inputs, outputs, groups = channels
        shape = (inputs, outputs, groups)
        return VertexRow(
            name, dtypes, lax.add, 0, 1, 0, taps=taps, channels=shape, method=method, stride=stride
        )

    for dtype in (HALF, FLOAT):
        yield row("dot products", (dtype, dtype, FLOAT), "hmac", CHANNELS, 4, 1)
        yield row("dot products, 3x3", (dtype, dtype, FLOAT), "hmac", 4, 4, 1, taps=3)
        yield row("outer product", (dtype, dtype, dtype), "outer", 1, CHANNELS, 1)
    for groups in (4, 8, 16):
        name = f"side by side, 3x3, {groups}"
        yield row(name, (HALF, HALF, FLOAT), "vmac", 1, 1, groups, taps=3)
    for partials in (FLOAT, HALF):
        for stride in (1, 2):
            name = f"sliding windows, 3x3, by {stride}"
            yield row(name, (HALF, HALF, partials), "slic", 4, 4, 1, taps=3, stride=stride)


REASONS = {
    "a": "the estimate adds slots for a load, a store and the loop to those of the arithmetic; our loop is a hardware repeat "
    "whose iterations overlap, so that memory and arithmetic issue together",
    "b": "of integers the estimate has an access, an operation or a branch in every slot of a counted loop; ours repeats in "
    "hardware and has one slot for each access and operation",
    "c": "the estimate counts the instructions of one vector with little else (an exponential and a subtraction for expm1, "
    "a logarithm and an addition for log1p), which loses all digits where results are near zero; the vertex itself calls a library function. "
    "Ours is right to the bounds of docs/element_compiler.md",
    "d": "the machine has no such instruction for halves (floor, ceil), or one would round twice: ours converts to f32 and back, which "
    "the estimate does not count",
    "e": "a call of the C library, estimated; ours is a polynomial with one quotient at most",
    "f": "the estimate takes two integers from memory at once and inverts them in the aux slot; ours goes word by word",
    "g": "ours keeps NaN, by one comparison more",
    "h": "the estimate is of a routine that finds a quotient bit by bit; ours divides floats twice and makes good what is left over",
    "i": "our targets state 16 units for halves that are added in float32, and the estimate follows them; the instruction set, and "
    "PopLibs' assembly for these, has 8",
    "j": "the estimate has a dot product for every tap; ours adds up all taps of a row, which lie together",
    "k": "the estimate is of an address for every row; ours takes that of each tap from memory, and puts accumulators in order",
    "l": "the estimate's pointers go on from row to row; ours are set anew for each, which takes a dozen slots",
}
"""Why code and figure differ."""
_WHY = {
    **dict.fromkeys(("relu", "isfinite", "isnan", "max", "min", "divide", "less", "equal"), "a"),
    **dict.fromkeys(("floor", "ceil", "greater or equal", "not equal"), "a"),
    **dict.fromkeys(("expm1", "log1p", "cbrt"), "c"),
    **dict.fromkeys(("abs", "neg", "add", "sub", "mul"), "b"),
    "sign": "g",
    "erf": "e",
    "atan2": "e",
    "not": "f",
}
_WHY_OF = {
    **dict.fromkeys((("floor", HALF), ("ceil", HALF), ("erf", HALF)), "d"),
    **dict.fromkeys((("expm1", HALF), ("log1p", HALF), ("cbrt", HALF)), "c, d"),
    **{(name, dtype): "h" for name in ("divide", "remainder") for dtype in (INT, "uint32")},
    **{(name, INT): "b" for name in ("max", "min", "less", "equal", "greater or equal")},
}
_WHY_OF_METHODS = {("hmac", 3): "j", ("vmac", 3): "k", ("outer", 1): "l"}
_CLOSE = 1.1


def reason(row: Row, ratio: float) -> str:
    """Return why a row differs by more than a tenth, by its letters in ``REASONS``; "" where it does not, or has assembly."""
    if isinstance(row, VertexRow):
        is_wide = row.dtypes == (HALF, HALF, FLOAT)
        letter = "i" if row.method == "amp" and is_wide else _WHY_OF_METHODS.get((row.method, row.taps), "")
        return "" if 1 / _CLOSE <= ratio <= _CLOSE else letter
    if row.by_hand or row.chooses or 1 / _CLOSE <= ratio <= _CLOSE:
        return ""
    return _WHY_OF.get((row.name, row.dtypes[0])) or _WHY[row.name]


def measured(isa: InstructionSet) -> list[tuple[Row, int, float, float]]:
    """Return for each row and number of elements PopLibs' cycles and the code's; not a number where there is none."""
    found: list[tuple[Row, int, float, float]] = []
    for row in rows():
        for n in SIZES:
            try:
                code = float(row.code(n, isa))
            except IpuError:
                code = math.nan
            found.append((row, n, row.stated(n), code))
    return found


def summary(
    found: list[tuple[Row, int, float, float]], n: int, kind: str, keep: Callable[[Row], bool]
) -> str:
    """Return the median and worst factor of some of the rows at a size."""
    ratios = [
        code / stated for row, size, stated, code in found if size == n and keep(row) and not math.isnan(code)
    ]
    factors = sorted(max(r, 1 / r) for r in ratios)
    within = sum(f <= 1.1 for f in factors)
    return (
        f"{len(factors)} rows that {kind}, {n:,} elements: median factor {statistics.median(factors):.2f}, "
        f"{within} within 10 %, worst {factors[-1]:.2f}, median ratio {statistics.median(ratios):.2f}"
    )


KINDS: tuple[tuple[str, Callable[[Row], bool]], ...] = (
    ("chose a figure", lambda row: bool(row.chooses)),
    ("check, loops written in assembly", lambda row: not row.chooses and row.by_hand),
    ("check, compiled or estimated", lambda row: not row.chooses and not row.by_hand),
)


def main(argv: list[str]) -> None:
    """Print and record the table."""
    del argv
    found = measured(named("mk2"))
    header = ("vertex", "operands", "elements", "PopLibs", "code", "ratio", "role", "why")
    lines = [
        (
            row.name,
            ", ".join(row.dtypes),
            f"{n:,}",
            f"{stated:,.0f}",
            "none" if math.isnan(code) else f"{code:,.0f}",
            "" if math.isnan(code) else f"{code / stated:.2f}",
            f"chose {row.chooses}" if row.chooses else "check" if row.by_hand else "check, no assembly",
            "" if math.isnan(code) else reason(row, code / stated),
        )
        for row, n, stated, code in found
    ]
    text = table(header, lines)
    text += "\n\n" + "\n".join(summary(found, n, *kind) for kind in KINDS for n in SIZES)
    text += "\n\nWhy rows differ by more than a tenth:\n\n"
    text += "\n".join(f"- {letter}: {why}" for letter, why in REASONS.items())
    print(text)
    write_result("tile_code", text)


if __name__ == "__main__":
    app.run(main)
