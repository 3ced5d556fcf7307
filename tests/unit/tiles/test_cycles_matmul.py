"""Cycle formulas of matmul and reduction vertices: by hand, and against numbers measured on silicon."""

import numpy as np
import pytest

from tests.unit.tiles.poplibs_cells import extents_of
from tiles.errors import InvalidGraph, NoTileCode
from tiles.graph import identity_map
from tiles.graph.cycles import code_cycles
from tiles.numerics.dtypes import greatest_magnitude, to_jax
from tiles.poplibs.forms import broadcast_map, dot_form, reduce_form
from tiles.poplibs.poplin import MatMul, matmul_codelet
from tiles.poplibs.poplin.matmul_cycles import methods_for, worker_slots
from tiles.poplibs.poplin.methods import NEVER, stream_of
from tiles.poplibs.popops import reduce_codelet
from tiles.target import Basis, Target

GC200 = Target.named("gc200")
GC2 = Target.named("gc2")
BOW = Target.named("bow")


def _matmul(m, k, n, dtype="float16", partials="float16", method="amp", target=GC200, batch=(), **options):
    lhs, rhs = (*batch, m, k), (*batch, k, n)
    b = tuple(range(len(batch)))
    form = dot_form(lhs, rhs, b, b, (len(batch) + 1,), (len(batch),))
    codelet = MatMul((dtype, dtype), partials, partials, method, **options)
    return codelet.cycles(extents_of(form, (dtype, dtype), (partials,)), target)


@pytest.mark.parametrize(
    ("positions", "formula", "measured"),
    [(16, 409, 402), (64, 577, 584), (256, 1345, 1352), (1024, 4417, 4424)],
)
def test_the_convolution_unit_formula_agrees_with_silicon(positions, formula, measured):
    """Measured on all tiles of a Bow: graphcore-research/tessellate-ipu, notebook "IPU Peak Flops"."""
    cycles = _matmul(positions, 16, 16, target=BOW)
    assert int(cycles.value[0]) == formula
    assert cycles.basis == Basis.DOCUMENTED
    assert abs(formula / measured - 1) < 0.045


@pytest.mark.parametrize(
    ("dtype", "macs_per_cycle"),
    [("float16", GC200.fp16_macs_per_cycle), ("float32", GC200.fp32_macs_per_cycle)],
)
def test_long_products_approach_the_peak_rate(dtype, macs_per_cycle):
    m, k, n = 6000, 512, 64
    rate = m * k * n / float(_matmul(m, k, n, dtype, "float32").value[0])
    assert 0.9 * macs_per_cycle < rate <= macs_per_cycle


def test_float32_by_hand():
    # 2 input groups of 8, 1 output group of 16, 4 positions a worker; the first pass zeroes; a worker keeps nothing.
    # The supervisor takes 14 cycles from the quickest worker's end on.
    later, first = 46 + 8, 46 + 8 + 2 + 8 * 4
    expected = 50 + 13 + 15 + 19 + 6 + 64 + 6 * later + 14 + 11 + 18 + 7 + 64 + 6 * first + 14
    assert _matmul(24, 16, 16, "float32", "float32").value[0] == expected


def test_worker_slots_of_few_positions():
    first, later = worker_slots(np.array([0, 1, 2, 3, 10]), "float16", "float32", 16)
    np.testing.assert_array_equal(first, [21, 32, 41, 37, 65])
    np.testing.assert_array_equal(later, [22, 33, 42, 38, 66])
    first, later = worker_slots(np.array([0, 1, 2, 3, 10]), "float32", "float32", 16)
    np.testing.assert_array_equal(later, [24, 47, 46, 46, 102])
    np.testing.assert_array_equal(first - later, [0, 10, 18, 26, 82])
    first, later = worker_slots(np.array([10]), "float16", "float16", 8)
    assert (first[0] - later[0], later[0]) == (2 + 2 * 10, 41 + 4 * 7)


@pytest.mark.parametrize(
    ("dtype", "positions"), [("float16", 16), ("float16", 2), ("float32", 8), ("float32", 13)]
)
def test_a_worker_with_fewer_positions_may_be_the_busiest(dtype, positions):
    """By a list of all workers: three halves take less than two, two single floats less than one."""
    shares = [(n + 1) * positions // 6 - n * positions // 6 for n in range(6)]
    kept, kept_of_inputs = (7, 3) if dtype == "float16" else (0, 0)
    passes = []
    for slots in worker_slots(np.array(shares), dtype, "float32", 16):
        busy = [6 * (int(each) - kept) if n else 0 for each, n in zip(slots, shares, strict=True)]
        passes.append(max(*busy, min(busy) + 14))
    first, later = passes
    channels = 16 if dtype == "float16" else 8
    expected = 50 + 6 * (kept + kept_of_inputs) + 13 + 15 + 19 + 6 + 64 + later + 11 + 18 + 7 + 64 + first
    assert _matmul(positions, 2 * channels, 16, dtype, "float32", may_swap=False).value[0] == expected


def test_the_older_machine_has_half_the_units():
    new, old = (float(_matmul(6000, 64, 64, "float32", "float32", target=t).value[0]) for t in (GC200, GC2))
    assert 1.8 < old / new < 2.2


def test_the_better_operand_holds_the_weights():
    assert _matmul(1024, 256, 16).value[0] == _matmul(16, 256, 1024).value[0]


def test_an_operand_that_saves_less_than_readers_lose_does_not_hold_the_weights():
    """Few channels: 16 x 1024 results would lie with their rows together for 14,451 cycles."""
    wide, tall = _matmul(16, 16, 1024).value[0], _matmul(1024, 16, 16).value[0]
    assert wide - tall == 14_451 < 5 / 4 * 16 * 1024
    assert _matmul(16, 256, 1024, may_swap=False).value[0] > 3 * _matmul(16, 256, 1024).value[0]


def test_horizontal_accumulation_and_outer_products_by_hand():
    # 12 outputs of one position each per worker: 2 positions, 4 channels out, 6 in.
    hmac = _matmul(12, 6, 4, "float32", "float32", "hmac")
    assert hmac.value[0] == 58 + 6 * min(2 * (7 + 4 * (8 + 3)), 1 * (7 + 12 * (8 + 3)))
    outer = _matmul(12, 1, 20, "float32", "float32", "outer")
    assert outer.value[0] == 11 + 6 * (25 + 11 + min(2 * (6 + 7), 4 * (6 + 3)))


def test_the_fastest_method_is_taken_for_each_cell():
    tall = extents_of(dot_form((512, 64), (64, 64), (), (), (1,), (0,)), ("float16",) * 2, ("float32",))
    assert methods_for("float32", tall, GC200)[0] == "amp"
    single = extents_of(dot_form((64, 9), (64, 9), (0,), (0,), (1,), (1,)), ("float16",) * 2, ("float16",))
    assert methods_for("float32", single, GC200)[0] == "vmac"
    sizes = tuple(np.array(x) for x in ([512, 2], [64, 2], [64, 2]))
    codelet = matmul_codelet("float16", "float16", "float32")
    many = codelet.cycles(extents_of(tall.form, tall.operand_dtypes, tall.result_dtypes, sizes), GC200)
    best = [
        min(
            float(_matmul(m, m if m < 9 else 64, 2 if m < 9 else 64, "float16", "float32", x).value[0])
            for x in ("amp", "hmac", "scalar")
        )
        for m in (512, 2)
    ]
    np.testing.assert_array_equal(many.value, best)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int16"])
def test_integers_take_what_their_code_does(dtype):
    form = dot_form((24, 18), (18, 16), (), (), (1,), (0,))
    extents, codelet = extents_of(form, (dtype, dtype), ("int32",)), MatMul((dtype, dtype), "int32", "int32")
    integers = codelet.cycles(extents, GC200)
    assert integers.basis == Basis.DERIVED
    assert integers.value[0] == code_cycles(codelet.tile_code(extents, GC200)).value[0]
    assert (
        3 < integers.value[0] / (24 * 16 * 18) < 7
    )  # two loads, a product and a sum, and what stands around a row


def test_what_no_code_multiplies_is_assumed_and_bfloat16_is_widened():
    for dtype in ("int64", "bool"):
        assert _matmul(24, 16, 16, dtype, dtype, "auto").basis == Basis.ASSUMED
        form = dot_form((24, 16), (16, 16), (), (), (1,), (0,))
        with pytest.raises(NoTileCode, match=f"products of {dtype}"):
            MatMul((dtype, dtype), dtype, dtype).tile_code(extents_of(form, (dtype,) * 2, (dtype,)), GC200)
    narrow, wide = (_matmul(240, 64, 64, d, "float32", "amp") for d in ("bfloat16", "float32"))
    assert narrow.basis == Basis.DERIVED
    reads = (240 + 64) * 64  # a slot for each vector of four, which is a cycle for each element
    assert reads < narrow.value[0] - wide.value[0] < 1.1 * reads


def test_a_narrower_result_pays_for_its_cast():
    form = dot_form((24, 16), (16, 16), (), (), (1,), (0,))
    extents = extents_of(form, ("float16",) * 2, ("float16",))
    kept = MatMul(("float16",) * 2, "float32", "float32", "amp").cycles(extents, GC200).value[0]
    cast = MatMul(("float16",) * 2, "float32", "float16", "amp").cycles(extents, GC200).value[0]
    assert cast - kept == 12 + 6 * (18 + 19 + 2 * 16 + 2)  # 64 results a worker


def test_a_method_that_cannot_is_refused():
    with pytest.raises(InvalidGraph, match="cannot multiply"):
        _matmul(4, 4, 4, "int32", "int32", "amp")
    with pytest.raises(InvalidGraph, match="cannot multiply"):
        _matmul(4, 4, 4, "float32", "float32", "outer")


def test_operations_and_preferred_extents():
    form = dot_form((128, 784), (784, 1024), (), (), (1,), (0,))
    codelet = matmul_codelet("float32", "float32")
    assert codelet.flops(extents_of(form, ("float32",) * 2, ("float32",)))[0] == 2 * 128 * 784 * 1024
    assert codelet.grains(form, GC200) == (1, 16, 8)
    assert codelet.grains(dot_form((4, 10), (10, 10), (), (), (1,), (0,)), GC200) == (1, 1, 1)
    assert codelet.scratch_bytes(extents_of(form, ("float32",) * 2, ("float32",)), GC200)[0] == 0


# --- reductions


def _reduce(shape, dims, dtype="float32", operation="add", body=(), operands=(), maps=None):
    codelet = reduce_codelet(operation, dtype, body, operands)
    form = reduce_form(shape, dims, maps)
    return codelet.cycles(extents_of(form, operands or (dtype,), (dtype,)), GC200)


def test_contiguous_partials():
    assert _reduce((24, 100), (1,)).value[0] == 6 * (17 + 4 * (12 + 50))
    assert _reduce((24, 100), (1,)).basis == Basis.DOCUMENTED
    # One result: the workers share its 600 partials, then fold the six sums.
    shared = 17 + 12 + 50 + 17 + 1 * (12 + 3)
    assert _reduce((600,), (0,)).value[0] == 6 * min(3 + 6 + 300 + 5 + 3, shared)


def test_strided_partials():
    # 240 columns in 120 vectors, 20 a worker; 10 rows.
    assert _reduce((10, 240), (0,)).value[0] == 6 * (16 + 20 * (3 + 5 + 3 + 9))
    assert _reduce((10, 240), (0,), "float16").value[0] == 6 * (16 + 10 * (3 + 8 + 3 + 9))


def test_scattered_partials_cost_most_and_other_dtypes_are_derived_or_assumed():
    general = _reduce((6, 12, 16), (0, 2))
    assert general.value[0] == 6 * (33 + 1 * (24 + 2 + 9 + 10 + 9 * 96))
    assert _reduce((24, 100), (1,), "int32").basis == Basis.DERIVED
    assert _reduce((24, 100), (1,), "int64").basis == Basis.ASSUMED  # no tile code of 64 bits
    assert _reduce((24, 100), (1,), "int32").value[0] > _reduce((24, 100), (1,)).value[0]


def test_a_prologue_adds_its_arithmetic():
    body = (("multiply", (0, 1), ()),)
    maps = [identity_map(2), broadcast_map((100,), (24, 100))]
    fused = _reduce((24, 100), (1,), "float32", "add", body, ("float32",) * 2, maps)
    second_load, arithmetic = 200, 200  # 400 products a worker, two to a vector
    slots = 17 + 4 * (12 + 50) + second_load + arithmetic
    assert fused.basis == Basis.DERIVED
    assert 0.7 < fused.value[0] / (6 * slots) < 1  # code overlaps loads and arithmetic
    rounded = (*body, ("power", (2, 1), ()))  # for which there is no code
    without = _reduce((24, 100), (1,), "float32", "add", rounded, ("float32",) * 2, maps)
    assert without.value[0] == 6 * (slots + 400 * 310) and without.basis == Basis.ASSUMED


def test_no_extent_costs_less_than_nothing():
    for shape, dims in (((0, 3), (1,)), ((3, 0), (1,)), ((1, 1), (0, 1))):
        assert (_reduce(shape, dims).value >= 0).all()
    empty = extents_of(dot_form((0, 4), (4, 2), (), (), (1,), (0,)), ("float32",) * 2, ("float32",))
    assert matmul_codelet("float32", "float32").cycles(empty, GC200).value[0] == 0


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_narrow_integers_pass_the_units_as_halves_only_where_sums_are_exact(dtype):
    """The units multiply halves and add in float32; a sum of extreme products in any order is the integer's."""
    stream = stream_of(dtype, "int32", GC200)
    assert (stream.dtype, stream.sums, stream.units) == ("float16", "float32", 16)
    count, greatest = stream.most_inputs, greatest_magnitude(dtype)
    rng = np.random.default_rng(0)
    a = np.full(count, greatest)
    a[rng.integers(0, count, count // 7)] = greatest - 1
    a = (-a if dtype.startswith("int") else a).astype(to_jax(dtype))
    products = a.astype(np.float16).astype(np.float32) ** 2
    for order in (np.arange(count), rng.permutation(count)):
        total = np.float32(0)
        for product in products[order]:
            total = np.float32(total + product)
        assert int(total) == int((a.astype(np.int64) ** 2).sum())
    assert _matmul(16, stream.most_inputs, 16, dtype, "int32").value[0] < NEVER
    with pytest.raises(InvalidGraph, match="cannot multiply"):
        _matmul(16, stream.most_inputs + 1, 16, dtype, "int32")


def test_mixed_integers_are_as_wide_as_the_wider():
    """255 x 128 x 515 passes 2^24; so few of them that none does are streamed."""
    form = dot_form((16, 300), (300, 16), (), (), (1,), (0,))
    for dtypes in (("int8", "uint8"), ("uint8", "int8")):
        codelet = MatMul(dtypes, "int32", "int32", "amp")
        with pytest.raises(InvalidGraph, match="cannot multiply"):
            codelet.cycles(extents_of(form, dtypes, ("int32",)), GC200)
    wide = MatMul(("int8", "int32"), "int32", "int32", "amp")
    with pytest.raises(InvalidGraph, match="cannot multiply"):
        wide.cycles(extents_of(form, ("int8", "int32"), ("int32",)), GC200)


@pytest.mark.parametrize(("dtype", "accumulate", "size"), [("bfloat16", "float32", 4), ("int8", "int32", 2)])
def test_what_is_widened_takes_memory(dtype, accumulate, size):
    form = dot_form((16, 64), (64, 32), (), (), (1,), (0,))
    extents = extents_of(form, (dtype, dtype), (accumulate,))
    codelet = MatMul((dtype, dtype), accumulate, accumulate)
    assert int(codelet.scratch_bytes(extents, GC200)[0]) == size * (16 * 64 + 64 * 32)
    halves = MatMul(("float16", "float16"), "float32", "float32")
    assert not halves.scratch_bytes(extents_of(form, ("float16", "float16"), ("float32",)), GC200).any()
