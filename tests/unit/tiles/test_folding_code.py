"""Tile code of folds of several arrays together: every element after the other, in the slots of the closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import TABLE, budget
from tests.unit.tiles.elements_running import DATA, SCRATCH, STATE
from tests.unit.tiles.poplibs_cells import extents_of, words
from tiles.elements import TileSimulator, cost_of, instructions_for
from tiles.elements.verify import verify
from tiles.engine.tile_vertices import _ring_kernel
from tiles.errors import NoTileCode
from tiles.graph import IndexMap, OpForm, along
from tiles.poplibs.forms import reduce_form
from tiles.poplibs.popops import ReduceMany
from tiles.poplibs.popops.expression import Body
from tiles.target import Basis, Target

GC200 = Target.named("gc200")
Arrays = list[np.ndarray]


def row(name: str, *arguments: int, **attrs: Any):
    return name, arguments, tuple(sorted(attrs.items()))


def greatest(a, b):
    keep = a[0] >= b[0]
    return np.where(keep, a[0], b[0]), np.where(keep, a[1], b[1])


GREATEST = row("compare", 0, 2, direction="GE"), row("select", 4, 0, 2), row("select", 4, 1, 3)
FLOATS, MIXED = ("float32", "float32"), ("float32", "int32")


@dataclass(frozen=True)
class Case:
    """A fold, and what it means to numpy.

    Attributes:
      codelet: the fold.
      step: of what two arrays have come to and of their next values.
      first: the two arrays, from the operands and positions along the last dimension.
      in_ring: whether all of it is arithmetic, so that words of the ring take it too.
    """

    codelet: ReduceMany
    step: Callable[[Any, Any], Any]
    first: Callable[[Arrays, np.ndarray], Any] = lambda x, _: x
    in_ring: bool = False


PRODUCT: Body = (
    row("multiply", 0, 2),
    row("multiply", 1, 3),
    row("subtract", 4, 5),
    row("multiply", 0, 3),
    row("multiply", 1, 2),
    row("add", 7, 8),
)
COUNTED = row("iota", dim=1, dtype="int32")
CASES = {
    "affine functions": Case(
        ReduceMany((row("multiply", 0, 2), row("multiply", 2, 1), row("add", 5, 3)), (4, 6), FLOATS),
        lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]),
        in_ring=True,
    ),
    "complex products": Case(
        ReduceMany(PRODUCT, (6, 9), FLOATS),
        lambda a, b: (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]),
        in_ring=True,
    ),
    "the greatest": Case(ReduceMany(GREATEST, (5, 6), ("int32", "int32")), greatest),
    "its position": Case(
        ReduceMany(GREATEST, (5, 6), MIXED, (COUNTED,), (0, 1)), greatest, lambda x, at: [x[0], at]
    ),
    "of functions": Case(
        ReduceMany(GREATEST, (5, 6), MIXED, (row("negate", 0), COUNTED), (1, 2)),
        greatest,
        lambda x, at: [-x[0], at],
    ),
    "of truths": Case(
        ReduceMany(GREATEST, (5, 6), ("bool", "int32"), (COUNTED,), (0, 1)),
        greatest,
        lambda x, at: [x[0], at],
    ),
    "of bytes": Case(ReduceMany(GREATEST, (5, 6), ("int8", "uint16")), greatest),
    "of halves": Case(
        ReduceMany(GREATEST, (5, 6), ("float16", "int32"), (COUNTED,), (0, 1)),
        greatest,
        lambda x, at: [x[0], at],
    ),
    "affine functions of halves": Case(
        ReduceMany(
            (row("multiply", 0, 2), row("multiply", 2, 1), row("add", 5, 3)), (4, 6), ("float16", "float16")
        ),
        lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]),
        in_ring=True,
    ),
    "the last, crossed": Case(ReduceMany((), (3, 2), FLOATS), lambda a, b: (b[1], b[0]), in_ring=True),
    "crossed": Case(ReduceMany((), (1, 0), FLOATS), lambda a, b: (a[1], a[0]), in_ring=True),
}


def operands_of(codelet: ReduceMany) -> tuple[str, ...]:
    return codelet.dtypes[: 1 if codelet.prologue else 2]


def form_of(codelet: ReduceMany, shape: tuple[int, ...], folded: tuple[int, ...]) -> OpForm:
    one = reduce_form(shape, folded)
    return OpForm(one.dims, one.operands * len(operands_of(codelet)), one.results * 2)


def numbers(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if dtype.startswith("float"):
        return (rng.integers(2, 7, shape) / 4).astype(dtype)
    low, high = {"bool": (0, 2), "uint16": (0, 1 << 16)}.get(dtype, (-100, 100))
    return rng.integers(low, high, shape).astype(dtype)


def drawn(codelet: ReduceMany, shape: tuple[int, ...], seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return [numbers(dtype, shape, rng) for dtype in operands_of(codelet)]


def meant(case: Case, operands: Arrays, folded: tuple[int, ...]) -> Arrays:
    """Fold elements one after the other."""
    rank = operands[0].ndim
    kept = [d for d in range(rank) if d not in folded]
    shape = [operands[0].shape[d] for d in kept]
    rows = [x.transpose(*kept, *folded).reshape(*shape, -1) for x in operands]
    arrays = case.first(rows, np.broadcast_to(np.arange(rows[0].shape[-1], dtype=np.int32), rows[0].shape))
    come = tuple(x[..., 0] for x in arrays)
    for at in range(1, rows[0].shape[-1]):
        come = case.step(come, tuple(x[..., at] for x in arrays))
    return list(come)


def simulated(codelet: ReduceMany, form: OpForm, operands: Arrays, target: Target, in_ring: bool) -> Arrays:
    """Run a vertex by its code, each part in the slots that its closed form states."""
    isa = instructions_for(target)
    extents = extents_of(form, operands_of(codelet), codelet.dtypes)
    parts = [p for p in codelet.tile_code(extents, target) if np.all(p.runs)]
    kernel, sizes = parts[0].kernel, form.shape
    assert kernel is not None
    arrays, given = kernel.find(sizes, np.zeros((1, len(sizes)), np.int32), [x[None] for x in operands])
    simulator, at = TileSimulator(isa, 1 << 17), DATA
    places: dict[str, int] = {}
    for name, x in arrays.items():
        places[name], at = at, at + x[0].nbytes // 8 * 8 + 64
        simulator.write(places[name], x)
    before = simulator.memory.copy()
    total = 0
    for part in parts:
        n, rows, code = int(np.max(part.n)), int(np.max(part.rows)), part.variant.code
        if in_ring and part.cell is not None:
            assert part.compiled is not None
            code = _ring_kernel(part.cell(), part.compiled, isa)
        verify(code, isa)
        fields = {name: int(np.max(x)) for name, x in given.items()} | places | {"n": n, "rows": rows}
        for name, field in (part.turn(sizes) if part.turn else {}).items():
            assert not isinstance(field, tuple)
            fields[name] = places[field] if isinstance(field, str) else field
        run = simulator.run(code, fields, STATE, SCRATCH)
        assert (run.slots[0] == cost_of(code, {"n": n, "rows": rows}, isa).slots).all()
        total += run.cycles[0]
    assert in_ring or total == sum(np.max(part.cycles) for part in parts)
    kept = np.ones(before.shape[1], bool)
    kept[: DATA - STATE] = False
    for name, x in arrays.items():
        start = places[name] - STATE
        kept[start : start + x[0].nbytes] = name.startswith("in")
    assert (simulator.memory == before)[:, kept].all(), "code wrote outside its results"
    left = {
        name: simulator.read(places[name], x[0].size, x.dtype.name).reshape(x.shape)
        for name, x in arrays.items()
    }
    return [x[0] for x in kernel.results(sizes, left)]


def check(
    case: Case, shape: tuple[int, ...], folded: tuple[int, ...], seed: int, target: Target = GC200
) -> None:
    codelet, operands = case.codelet, drawn(case.codelet, shape, seed)
    form = form_of(codelet, shape, folded)
    for found, x in zip(
        simulated(codelet, form, operands, target, False), meant(case, operands, folded), strict=True
    ):
        rounding = 1e-4 if x.dtype == np.float32 else 1e-2
        np.testing.assert_allclose(found, x, rtol=rounding, atol=1e-30)
    if case.in_ring:
        operands = [words(x) for x in operands]
        in_ring = simulated(codelet, form, operands, target, True)
        for found, x in zip(in_ring, meant(case, operands, folded), strict=True):
            np.testing.assert_array_equal(found, x)


@budget(TABLE)
@given(
    name=st.sampled_from(sorted(CASES)),
    rows=st.integers(1, 14),
    n=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_rows_are_folded_one_element_after_the_other(name, rows, n, seed):
    if (
        "crossed" in name
    ):  # not associative: only by one worker, as rows of fewer elements than there are workers
        n = n % GC200.workers_per_tile or 1
    check(CASES[name], (rows, n), (1,), seed)


@pytest.mark.parametrize("name", ["affine functions", "the greatest"])
@pytest.mark.parametrize(
    ("shape", "folded"), [((1, 600), (1,)), ((9, 5), (0,)), ((3, 4, 5), (0, 2)), ((13, 6), (1,))]
)
def test_rows_lie_along_any_dimensions(name, shape, folded):
    check(CASES[name], shape, folded, 0)


def test_the_first_generation_folds_too():
    check(CASES["affine functions"], (2, 31), (1,), 1, Target.named("gc2"))


def cycles(case: Case, *shape: int):
    form = form_of(case.codelet, shape, (1,))
    extents = extents_of(form, operands_of(case.codelet), case.codelet.dtypes)
    return case.codelet.cycles(extents, GC200), case.codelet.scratch_bytes(extents, GC200)


def test_workers_take_a_long_row_together_and_many_rows_in_turn():
    """A row of 600 takes little more than a sixth of what one worker takes; six workers find two words each."""
    together, found_bytes = cycles(CASES["affine functions"], 1, 600)
    in_turn, nothing = cycles(CASES["affine functions"], 6, 600)
    assert together.basis is in_turn.basis is Basis.DERIVED
    assert together.value.item() < in_turn.value.item() / 4
    assert (found_bytes.item(), nothing.item()) == (48, 0)


def test_what_has_no_code_is_named():
    """Elements that are not computed as they lie; operands that do not vary along all dimensions; floats made of counts alone."""
    brief = ("float8_e5m2", "float8_e5m2")
    briefs = ReduceMany((), (0, 3), brief)
    spread = CASES["affine functions"].codelet
    form = form_of(spread, (3, 4), (1,))
    beside = OpForm(form.dims, (form.operands[0], IndexMap((along(1),))), form.results)
    rows = (row("convert", 0, dtype="float32"),)
    converted = ReduceMany(spread.body, spread.outputs, FLOATS, rows, (2, 2))
    asked = [
        (briefs, form_of(briefs, (3, 4), (1,)), brief, "float8_e5m2"),
        (spread, beside, FLOATS, "do not vary along all"),
        (converted, form, ("int32", "int32"), "made of other numbers"),
    ]
    for codelet, of, operands, reason in asked:
        extents = extents_of(of, operands, codelet.dtypes)
        with pytest.raises(NoTileCode, match=reason):
            codelet.tile_code(extents, GC200)
        assert codelet.cycles(extents, GC200).basis is Basis.ASSUMED
