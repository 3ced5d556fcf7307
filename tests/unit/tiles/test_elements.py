"""Tile code of elementwise cells: its meaning in the simulator beside JAX, and its cost beside PopLibs' own loops."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tiles.elements.compile as compiling
from tests.unit.tiles.elements_running import compiled, simulate, ulps
from tiles.elements import (
    Access,
    Arrangement,
    as_text,
    compile_cell,
    contiguous,
    cost_of,
    drawn,
    formula_of,
    named,
    registers,
    schedule,
    spill,
)
from tiles.elements.cell import CELL
from tiles.elements.dependence import dependences, needs_of
from tiles.elements.tilecode import Repeat, walk
from tiles.errors import NoTileCode, OutOfRegisters

MK2 = named("mk2")
F, H, W = "float32", "float16", "int32"
SIZES = (0, 1, 3, 6, 24, 47)


def draw(rng: np.random.Generator, dtype: str, n: int) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, (1, n)).astype(bool)
    if dtype in (F, H):
        return (rng.normal(size=(1, n)) * 3).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, (1, n), endpoint=True).astype(dtype)


def check(f, dtypes, how=None, sizes=SIZES, offset_bytes=0, spacing=64) -> None:
    """Compare every bit with JAX, operation by operation, over a number of extents."""
    rng = np.random.default_rng(len(dtypes))
    code = compiled(f, dtypes, MK2, how)
    accesses = how.operands if how else (Access(),) * len(dtypes)
    most = max(sizes)
    whole = [draw(rng, d, most if a.level else 1) for d, a in zip(dtypes, accesses, strict=True)]
    with jax.disable_jit():
        wanted = f(*(jnp.asarray(x) for x in whole))
    wanted = [np.asarray(w) for w in (wanted if isinstance(wanted, tuple) else (wanted,))]
    for n in sizes:
        operands = [x[:, :n] if a.level else x for x, a in zip(whole, accesses, strict=True)]
        got, _ = simulate(code, operands, [w.dtype.name for w in wanted], MK2, how, offset_bytes, spacing)
        for a, b in zip(got, wanted, strict=True):
            bits = f"u{a.itemsize}"
            np.testing.assert_array_equal(a.view(bits), b[:, :n].copy().view(bits), err_msg=f"n = {n}")


EXACT = {
    "add": (lambda a, b: a + b, ([F, F], [H, H], [W, W], ["int8"] * 2, ["uint16"] * 2)),
    "sub": (lambda a, b: a - b, ([F, F], [H, H], [W, W], ["uint8"] * 2, ["int16"] * 2)),
    "mul": (lambda a, b: a * b, ([F, F], [H, H], [W, W], ["int8"] * 2)),
    "div": (lambda a, b: a / b, ([F, F], [H, H])),
    "by a constant": (lambda a: a - 3, ([F], [H], [W])),
    "neg": (lambda a: -a, ([F], [H], [W])),
    "abs": (abs, ([F], [H], [W])),
    "sqrt": (lambda a: lax.sqrt(abs(a)), ([F], [H])),
    "max": (jnp.maximum, ([F, F], [H, H], [W, W], ["uint32"] * 2, ["uint8"] * 2)),
    "relu": (jax.nn.relu, ([F], [H], [W])),
    "sign": (jnp.sign, ([F], [H], [W])),
    "lt": (lambda a, b: a < b, ([F, F], [H, H], [W, W], ["uint32"] * 2, ["int8"] * 2)),
    "ge": (lambda a, b: a >= b, ([F, F], [H, H], [W, W])),
    "ne": (lambda a, b: a != b, ([F, F], [W, W])),
    "where": (jnp.where, (["bool", F, F], ["bool", H, H], ["bool", W, W], ["bool", "int8", "int8"])),
    "masked": (lambda a, b: jnp.where(a > b, a * 2, b), ([F, F], [H, H], [W, W])),
    "to half": (lambda a: a.astype(H), ([F], ["int8"], ["bool"])),
    "to float": (lambda a: a.astype(F), ([H], [W], ["uint8"], ["uint32"], ["bool"])),
    "to int": (lambda a: a.astype(W), ([F], [H], ["int8"], ["uint16"], ["bool"])),
    "to byte": (lambda a: (a * 5).astype("int8"), ([F], [H])),
    "cube": (lambda a: a**3, ([F], [H])),
    "and": (lambda a, b: (a > 0) & (b > 0), ([F, F], [H, H], [W, W], [F, W])),
    "xor": (lambda a, b: (a > 0) ^ (b > 0), ([F, F], [H, H])),
    "not": (lambda a: ~a, (["bool"], [W], ["uint8"])),
    "shift": (lambda a: (a << 3) ^ (a >> 2), ([W], ["uint8"])),
    "shift by": (lax.shift_right_logical, ([W, W], ["uint8"] * 2)),
    "shift with the sign": (
        lambda a: lax.shift_right_arithmetic(a, a.dtype.type(2)),
        (["uint8"], ["uint16"], ["int8"]),
    ),
    "shift with the sign by": (
        lax.shift_right_arithmetic,
        ([W, W], ["uint8"] * 2, ["uint16"] * 2, ["int16"] * 2),
    ),
    "bits": (lambda a: lax.clz(a) + lax.population_count(a), ([W], ["int8"])),
    "floor": (jnp.floor, ([F], [H])),
    "round": (lambda a: lax.round(a * 2), ([F], [H])),
    "finite": (jnp.isfinite, ([F], [H])),
    "two results": (lambda a, b: (a + b, a * b), ([F, F], [H, H])),
    "barrier": (lambda a: lax.optimization_barrier(a) * 2, ([F],)),
    "two widths": (lambda a, b: a.astype(F) * b, ([H, F],)),
}


@pytest.mark.parametrize(
    ("name", "dtypes"), [(n, d) for n, (_, all_) in EXACT.items() for d in all_], ids=str
)
def test_code_computes_what_jax_computes(name, dtypes) -> None:
    check(EXACT[name][0], dtypes)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8", "uint16"])
@pytest.mark.parametrize("f", [lax.div, lax.rem])
def test_integer_division_and_its_corners(f, dtype) -> None:
    code = compiled(f, [dtype] * 2, MK2)
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    corners = np.array([limits.min, limits.max, 0, 1, 2, 3, 7, limits.max // 2 + 1], dtype)
    a, b = (np.concatenate([x.ravel(), draw(rng, dtype, 40)[0]]) for x in np.meshgrid(corners, corners))
    b[-20:] %= 9
    (got,), _ = simulate(code, [a[None], b[None]], [dtype], MK2)
    np.testing.assert_array_equal(got[0], np.asarray(f(jnp.asarray(a), jnp.asarray(b))))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int16", "uint8"])
@pytest.mark.parametrize("f", [lax.div, lax.rem])
def test_integer_division_of_numbers_of_all_lengths_and_next_to_multiples(f, dtype) -> None:
    rng = np.random.default_rng(1)
    tiles, n = 40, 250

    def draw_lengths() -> np.ndarray:
        long = rng.integers(0, 2**32, (tiles, n)) >> rng.integers(0, 32, (tiles, n))
        return np.where(rng.random((tiles, n)) < 0.5, -long, long)

    b = draw_lengths().astype(dtype)
    near = b.astype(np.int64) * draw_lengths() + rng.integers(-2, 3, (tiles, n))
    a = np.where(rng.random((tiles, n)) < 0.5, near, draw_lengths()).astype(dtype)
    (got,), _ = simulate(compiled(f, [dtype] * 2, MK2), [a, b], [dtype], MK2)
    np.testing.assert_array_equal(got, np.asarray(f(jnp.asarray(a), jnp.asarray(b))))


def test_no_more_than_an_element_for_a_worker_is_computed_one_at_a_time() -> None:
    def rotated(a, b):
        return ((a << 13) | lax.shift_right_logical(a, 19)).astype(F) * b

    how = contiguous(2)
    short = dataclasses.replace(how, is_short=True)
    assert (compiled(rotated, [W, F], MK2, how).lanes, compiled(rotated, [W, F], MK2, short).lanes) == (2, 1)
    assert compiled(lambda a: a + a, [H], MK2, dataclasses.replace(contiguous(1), is_short=True)).lanes == 2
    check(rotated, [W, F], short)
    check(lambda a: a + a, [H], dataclasses.replace(contiguous(1), is_short=True))
    slots = [
        int(np.max(cost_of(compiled(rotated, [W, F], MK2, each), {"n": 6}, MK2).slots))
        for each in (short, how)
    ]
    assert slots[0] < slots[1]


@pytest.mark.parametrize("alignment", [8, 4, 2])
@pytest.mark.parametrize("dtype", [F, H])
def test_operands_that_are_not_aligned_to_whole_accesses(dtype, alignment) -> None:
    if alignment < np.dtype(dtype).itemsize:
        with pytest.raises(NoTileCode, match="multiples of 2 bytes"):
            check(lambda a: a * 2, [dtype], Arrangement((Access(alignment_bytes=2),), (Access(),)))
        return
    operands = (Access(alignment_bytes=alignment),) * 2
    how = Arrangement(operands, (Access(alignment_bytes=max(alignment, 4)),))
    check(lambda a, b: a * b + a, [dtype] * 2, how, offset_bytes=alignment if alignment in (4, 8) else 8)


def test_results_that_start_inside_a_word_are_refused() -> None:
    how = Arrangement((Access(),), (Access(alignment_bytes=2),))
    with pytest.raises(NoTileCode, match="whole words"):
        compiled(lambda a: a * 2, [H], MK2, how)


@pytest.mark.parametrize("dtype", [F, H, W])
def test_scalars_are_kept_in_registers(dtype) -> None:
    how = Arrangement((Access(), Access(CELL)), (Access(),))
    check(lambda a, b: jnp.maximum(a - b, b) * b, [dtype] * 2, how)


@pytest.mark.parametrize("dtype", [F, H])
def test_one_predicate_of_all_elements_is_a_mask_ahead_of_them(dtype) -> None:
    """As an optimizer's clipping has one: choosing is three instructions for 8 bytes, not three for an element."""
    how = Arrangement((Access(CELL), Access(), Access()), (Access(),))
    check(lambda p, a, b: jnp.where(p, a * 2, b + a), ["bool", dtype, dtype], how)
    code = compiled(lambda p, a, b: jnp.where(p, a, b), ["bool", dtype, dtype], MK2, how)
    lanes = 8 // np.dtype(dtype).itemsize
    more, less = (cost_of(code, {"n": 6 * lanes * k}, MK2).slots[0] for k in (101, 100))
    assert more - less <= 6  # two loads, "and", "andc", "or", a store


@pytest.mark.parametrize("dtype", [F, H])
def test_results_in_the_place_of_an_operand(dtype) -> None:
    how = contiguous(2, in_place=(1,))
    check(lambda a, b: a * 2 - b, [dtype] * 2, how)


@pytest.mark.parametrize("f", [lambda a, b: a + b, lambda a, b: a * b + a])
@pytest.mark.parametrize("dtype", [F, H])
def test_several_accesses_in_one_instruction(f, dtype) -> None:
    how = contiguous(2, separate=True)
    check(f, [dtype] * 2, how, spacing=1 << 15)
    together = {
        i.mnemonic
        for item in walk(compiled(f, [dtype] * 2, MK2, how).items)
        if isinstance(item, Repeat)
        for b in item.body.bundles or ()
        for i in b.instructions
    }
    assert together & {"ld2x64pace", "ldst64pace"}


@pytest.mark.parametrize("f", [lambda a: a.astype(F), lambda a: a.astype(F) + a.astype(F)])
def test_stores_of_one_pointer_are_never_packed_apart(f) -> None:
    """Four halves become two stores: packing the pointer of one would leave the other's behind."""
    check(f, [H], contiguous(1, separate=True), sizes=range(14), spacing=1 << 15)


# Bundles and slots of the hand-written loops in the public sources of PopLibs (github.com/graphcore/poplibs,
# lib/popops/codelets): binaryOps1D.S, inlineAssemblerUnaryOps.hpp, inlineAssemblerCast.hpp, unaryOps1DNonLinearity.S,
# select_int_float.S, and lib/poprand/codelets/asm: Uniform.S, Normal.S. Slots are of one iteration; elements in it; whether
# operands lie in separate elements.
LOOPS = [
    ("add", lambda a, b: a + b, [F, F], 3, 2, False),
    ("add", lambda a, b: a + b, [H, H], 3, 4, False),
    ("add, separate", lambda a, b: a + b, [F, F], 2, 2, True),
    ("add, separate", lambda a, b: a + b, [H, H], 2, 4, True),
    ("times a constant", lambda a: a * 3, [F], 2, 2, False),
    ("times a constant, separate", lambda a: a * 3, [F], 1, 2, True),
    ("square", lambda a: a * a, [H], 2, 4, False),
    ("exp", lax.exp, [F], 6, 2, False),
    ("ln", lax.log, [F], 12, 2, False),
    ("sqrt", lax.sqrt, [F], 10, 2, False),
    ("rsqrt", lax.rsqrt, [F], 8, 2, False),
    ("inverse", lambda a: 1 / a, [F], 6, 2, False),
    ("exp", lax.exp, [H], 4, 4, False),
    ("tanh", lax.tanh, [F], 10, 2, False),
    ("tanh", lax.tanh, [H], 2, 4, False),
    ("sigmoid", lax.logistic, [H], 4, 4, False),
    ("sigmoid as JAX writes it", jax.nn.sigmoid, [H], 4, 4, False),
    ("silu as JAX writes it", jax.nn.silu, [H], 5, 4, False),
    ("demote", lambda a: a.astype(H), [F], 2, 4, True),
    ("promote", lambda a: a.astype(F), [H], 2, 4, True),
    ("random bits", lambda: drawn("bits", F), [], 1, 2, False),
    ("uniform", lambda: drawn("uniform", F) * 3 + 1, [], 4, 2, False),
    ("uniform", lambda: drawn("uniform", H) * 3 + 1, [], 4, 4, False),
    ("normal", lambda: drawn("normal", F) * 3 + 1, [], 4, 2, False),
    ("normal", lambda: drawn("normal", H) * 3 + 1, [], 4, 4, False),
]


@pytest.mark.parametrize(("name", "f", "dtypes", "slots", "elements", "separate"), LOOPS)
def test_loops_take_the_slots_of_those_written_by_hand(name, f, dtypes, slots, elements, separate) -> None:
    code = compiled(f, dtypes, MK2, contiguous(len(dtypes), separate=separate))
    more, less = (cost_of(code, {"n": 6 * elements * k}, MK2).slots[0] for k in (101, 100))
    assert int(more - less) == slots


SIGMOIDS = {
    "one over": (lambda a: 1 / (1 + jnp.exp(-a)), True),
    "summed the other way": (lambda a: 1 / (jnp.exp(-a) + 1), True),
    "a constant behind a barrier": (lambda a: lax.optimization_barrier(a * 0 + 1) / (1 + jnp.exp(-a)), False),
    "its exponential used, too": (lambda a: 1 / (1 + jnp.exp(-a)) + jnp.exp(-a), True),
    "of two": (lambda a: 2 / (1 + jnp.exp(-a)), False),
    "one and a half": (lambda a: 1 / (1.5 + jnp.exp(-a)), False),
    "not negated": (lambda a: 1 / (1 + jnp.exp(a)), False),
    "the sum of two exponentials": (lambda a: 1 / (jnp.exp(a) + jnp.exp(-a)), False),
    "one and one": (lambda a: a / (1 + jnp.ones_like(a)), False),
}


@pytest.mark.parametrize("dtype", [F, H])
@pytest.mark.parametrize("name", SIGMOIDS)
def test_quotients_that_are_sigmoids_are_its_instruction_and_others_are_not(name, dtype) -> None:
    f, is_sigmoid = SIGMOIDS[name]
    code = compiled(f, [dtype], MK2)
    assert ("sigm" in as_text(code, MK2)) == is_sigmoid
    x = np.array([[0, 1, -1, 0.3, -7, 9, 50, -50, np.inf, -np.inf, np.nan, -0.0]], dtype)
    (got,), _ = simulate(code, [x], [dtype], MK2)
    wanted = np.asarray(f(jnp.asarray(x)))
    rtol, atol = (
        (2e-6, 1e-30) if dtype == F else (4e-3, 1e-4)
    )  # exponentials of halves are infinite from 11.1
    np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=rtol, atol=atol)


NARROW = {
    "low nibbles": (lambda a: (a & 15).astype("int8") - 8, ["uint8"], 4 * 3 + 4),
    "high nibbles": (lambda a: (a >> 4).astype("int8") - 8, ["uint8"], 4 * 3 + 4),
    "a sum": (lambda a, b: a + b, ["int8"] * 2, 4 * 3 + 4),
    "a shift up and down": (lambda a: (a << 3) >> 3, ["int8"], None),
    "a sum that is compared": (lambda a, b: jnp.where(a + b > 3, a, b), ["int8"] * 2, None),
    "a sum that is shifted": (lambda a, b: ((a + b) >> 1) ^ a, ["uint8"] * 2, None),
    "a sum that is used twice": (lambda a, b: ((a + b) * a, (a + b).astype(W)), ["int8"] * 2, None),
    "a sum that is a float": (lambda a, b: (a + b).astype(H), ["int8"] * 2, None),
    "a product of shorts": (lambda a, b: a * b - a, ["int16"] * 2, 2 * 4 + 2),
    "the larger of sums": (lambda a, b: jnp.maximum(a + b, a - b), ["int8"] * 2, None),
    "a sum wider": (lambda a, b: (a + b).astype("uint16") + 1, ["uint8"] * 2, None),
    "narrower": (lambda a: (a + 1).astype("int8") * 3, ["int16"], None),
}


@pytest.mark.parametrize("name", NARROW)
def test_integers_are_extended_only_where_their_high_bits_are_read(name) -> None:
    f, dtypes, slots = NARROW[name]
    check(f, dtypes)
    if slots is not None:
        lanes = 4 // np.dtype(dtypes[0]).itemsize
        code = compiled(f, dtypes, MK2)
        more, less = (cost_of(code, {"n": 6 * lanes * k}, MK2).slots[0] for k in (101, 100))
        assert int(more - less) == slots


def test_a_cost_is_a_closed_form_for_many_candidates() -> None:
    code = compiled(lambda a, b: a * b, [F, F], MK2)
    n = np.arange(1, 400)
    cost = cost_of(code, {"n": n}, MK2)
    assert cost.slots.shape == (6, 399)
    assert cost.cycles.tolist() == [int(cost_of(code, {"n": k}, MK2).cycles) for k in n]


@pytest.mark.filterwarnings("error")
def test_cells_without_elements_beside_long_ones_are_priced():
    formula = formula_of(compiled(lambda a: -a, [F], MK2), MK2)
    n = np.array([0, 5, 10 * formula.n_max])
    assert formula.cycles(n).tolist() == [int(formula.cycles(np.array([k]))[0]) for k in n]


def test_no_code_is_said_by_name() -> None:
    with pytest.raises(NoTileCode, match="'lgamma' of float32"):
        compiled(lax.lgamma, [F], MK2)
    with pytest.raises(NoTileCode, match="float64"):
        compile_cell(jax.make_jaxpr(lambda a: a)(0.0), (("float64",), ("float64",)), contiguous(1), MK2)
    with pytest.raises(NoTileCode, match="iterations"):
        cost_of(compiled(lambda a: -a, [F], named("mk1")), {"n": 200_000}, named("mk1"))


def crowded(a):
    """More values at a time than there are registers."""
    parts = [lax.exp(a * (k + 1)) for k in range(9)]
    total = parts[0]
    for left, right in itertools.pairwise(parts):
        total = total * 0.5 + left * right
    for part in parts:
        total = total - part
    return total


def test_values_that_find_no_register_wait_in_scratch_memory() -> None:
    code = compiled(crowded, [H], MK2)
    assert code.scratch_bytes > 0
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(1, 61)) / 8).astype(H)
    with jax.disable_jit():
        wanted = np.asarray(crowded(jnp.asarray(x)))
    (got,), _ = simulate(code, [x], [H], MK2)
    assert ulps(got, wanted.astype(np.float64)) <= 4


def test_a_spilled_value_is_loaded_where_it_is_read() -> None:
    """A sum of long routines: the sum waits in scratch memory while the next term is computed, not in registers."""
    code = compiled(lambda x, y: x**y + (x + 1) ** (y + 2), [F, F], MK2)
    assert code.lanes == 2 and code.scratch_bytes > 0
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0.5, 2, (1, 29)).astype(F), rng.uniform(-3, 3, (1, 29)).astype(F)
    (got,), _ = simulate(code, [x, y], [F], MK2)
    wanted = x.astype(np.float64) ** y + (x.astype(np.float64) + 1) ** (y.astype(np.float64) + 2)
    assert ulps(got, wanted) <= 4


def mask_of_bits(a, b, c, d):
    """A round of Threefry, and whether its bits are below a threshold: four elements an iteration, for whole words."""
    x, y = a + c, b + d
    for shift in (13, 15, 26, 6):
        x = x + y
        y = (y << np.uint32(shift) | y >> np.uint32(32 - shift)) ^ x
    return (x + d ^ y + b) < np.uint32(1 << 31)


def test_values_that_are_loaded_one_after_the_other_wait_in_scratch_memory() -> None:
    """Each is stored as soon as it is there: all loads of an operand follow one another, by the pointer they share."""
    check(mask_of_bits, ["uint32"] * 4)


def adamw_of_halves(p, m, v, first, second):
    """What AdamW adds to a parameter of 16 bits, from moments of 32 and single corrections of them."""
    step = (m / first) / (lax.sqrt(v / second + np.float32(0.0)) + np.float32(1e-8))
    decayed = step + (np.float16(1e-4) * p).astype(np.float32)
    return p + (np.float32(-1e-3) * decayed).astype(np.float16)


def test_lanes_are_computed_together_where_registers_are_scarce() -> None:
    """Both elements of a pair are divided before another pair is read: one lane after the other keeps more values."""
    dtypes = [H, F, F, F, F]
    how = Arrangement((Access(),) * 3 + (Access(CELL),) * 2, (Access(),))
    code = compiled(adamw_of_halves, dtypes, MK2, how)
    bodies = [i.body.bundles or () for i in walk(code.items) if isinstance(i, Repeat)]
    spilled = [
        x for body in bodies for bundle in body for x in bundle.instructions if x.stream.startswith("scratch")
    ]
    assert bodies
    assert not any(
        x.mnemonic.startswith("st") for x in spilled
    )  # what the loop computes; constants may wait in scratch memory
    check(adamw_of_halves, dtypes, how)


def dropout(a, b, x):
    """Which elements are kept, by the bits of a float of [1, 2), and what these are then: the booleans are for the gradient."""
    bits = lax.shift_right_logical(a ^ b, np.uint32(9)) | np.uint32(0x3F800000)
    drawn = lax.max(np.float32(0), lax.bitcast_convert_type(bits, F) - np.float32(1) + np.float32(0))
    kept = drawn < np.float32(0.8)
    return kept, jnp.where(kept, x / np.float32(0.8), np.float32(0))


def test_what_is_spilled_last_may_be_what_every_lane_reads() -> None:
    """A constant that finds no register is loaded for each quotient, and then other values go to memory, too."""
    code, rng = compiled(dropout, ["uint32", "uint32", F], MK2), np.random.default_rng(0)
    for n in (1, 3, 4, 61):
        a, b = rng.integers(0, 2**32, (2, 1, n), np.uint32)
        x = rng.normal(size=(1, n)).astype(F)
        (kept, got), _ = simulate(code, [a, b, x], ["bool", F], MK2)
        wanted = ((a ^ b) >> np.uint32(9)) * np.float32(2**-23) < np.float32(0.8)
        np.testing.assert_array_equal(kept, wanted)
        np.testing.assert_array_equal(got, np.where(wanted, x / np.float32(0.8), np.float32(0)))


def test_what_is_kept_of_blocks_changes_no_code(monkeypatch) -> None:
    """Rounds of spilling that find out everything again give the same code."""
    kept = compiled(crowded, [H], MK2)
    rounds = []

    def afresh(items, isa, pace, window, _known):
        rounds.append(window)
        return schedule.scheduled(items, isa, pace, window)

    monkeypatch.setattr(spill, "scheduled", afresh)
    monkeypatch.setattr(
        spill, "allocated", lambda items, isa, _groups, _most: registers.allocated(items, isa)
    )
    spill._assigned.cache_clear()
    assert compiled(crowded, [H], MK2) == kept
    assert len(rounds) > 4


def test_registers_of_the_same_code_are_assigned_once_whatever_it_is_called() -> None:
    spill._assigned.cache_clear()
    made = [compiled(lambda a, b: jnp.tanh(a) * b + a, [F, F], MK2, name=name) for name in ("one", "two")]
    assert spill._assigned.cache_info().hits == spill._assigned.cache_info().misses > 0
    assert dataclasses.replace(made[0], name="two") == made[1]
    one = dataclasses.replace(MK2.figures["aux_registers"], value=1)
    few = dataclasses.replace(MK2, name="few", figures={**MK2.figures, "aux_registers": one})
    for name in ("one", "two"):
        with pytest.raises(OutOfRegisters, match=name):
            compiled(lambda a, b: a * b + a, [F, F], few, name=name)


def test_code_is_given_up_early_only_where_more_groups_go_without_registers(monkeypatch) -> None:
    """What the registers held at one point say is never more than what colouring finds."""
    sizes = {"M": MK2["main_registers"], "A": MK2["aux_registers"]}
    gave_up = []

    def both(items, isa, groups, most):
        is_hopeless = False
        if most is not None:
            try:
                registers.Flow(items, groups).check(sizes, most)
            except registers.Pressure:
                is_hopeless = True
                gave_up.append(most)
        try:
            done = registers.allocated(items, isa, groups)
        except registers.Pressure as pressure:
            assert not is_hopeless or pressure.groups > most
            raise
        assert not is_hopeless
        return done

    monkeypatch.setattr(spill, "allocated", both)
    spill._assigned.cache_clear()
    compiled(crowded, [H], MK2)
    assert gave_up


def test_blocks_wait_for_the_same_in_depth_first_order(monkeypatch) -> None:
    """What an instruction waits for in another order is what is found for that order from the beginning."""
    blocks = []

    def noted(code, *rest):
        blocks.append(code)
        return schedule.graph_of(code, *rest)

    monkeypatch.setattr(
        schedule.Schedules, "_graph", lambda self, code, _: noted(code, MK2, True, needs_of(code))
    )
    spill._assigned.cache_clear()
    compiled(crowded, [H], MK2)
    assert max(map(len, blocks)) > 80
    for code in blocks:
        slots = [dict[int, int]() for _ in code]
        for edge in dependences(code):
            slots[edge.after][edge.before] = max(edge.slots, slots[edge.after].get(edge.before, 0))
        assert needs_of(code) == slots
        graph = schedule.graph_of(code, MK2, True, needs_of(code))
        assert graph.needs == needs_of(graph.code)


def test_too_few_registers_is_an_error() -> None:
    one = dataclasses.replace(MK2.figures["aux_registers"], value=1)
    few = dataclasses.replace(MK2, name="few", figures={**MK2.figures, "aux_registers": one})
    with pytest.raises(OutOfRegisters, match="aux registers"):
        compiled(lambda a, b: a * b + a, [F, F], few)


def test_text_is_the_same_every_time_and_shows_both_slots() -> None:
    texts = [as_text(compiled(lambda a, b: a + b, [F, F], MK2), MK2) for _ in range(2)]
    assert texts[0] == texts[1]
    loop = texts[0].split("rpt")[1].splitlines()[1:4]
    assert [line.split()[0] for line in loop] == ["ld64step", "ld64step", "st64step"]
    assert any("| f32v2add" in line for line in loop)


def test_the_worked_example_of_the_documentation_is_what_the_compiler_prints(capsys) -> None:
    text = (Path(__file__).parents[3] / "docs" / "element_compiler.md").read_text()
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    printed = re.search(r"<!-- example -->\n```\n(.*?)```", text, re.DOTALL)
    assert example and printed
    exec(compile(example.group(1), "docs/element_compiler.md", "exec"), {})
    assert capsys.readouterr().out == printed.group(1) + "[ 303 7683]\n"


def test_a_loop_that_spilling_makes_too_long_is_known_before_all_is_spilled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The code is the same as if registers had been looked for to the end, and the right one."""

    def mixed(a, b, x):
        values = [a * jnp.uint32(k + 3) ^ b for k in range(8)]
        for turn in range(46):
            shifted = lax.shift_left(values[turn % 8], jnp.uint32(1 + turn % 7))
            values[turn % 8] = shifted ^ values[(5 * turn + 1) % 8]
        return lax.shift_right_logical(sum(values), jnp.uint32(9)).astype(W).astype(F) + x

    rounds: list[int] = []
    assign = spill.allocated

    def counted(*given):
        rounds.append(len(given))
        return assign(*given)

    how = Arrangement((Access(alignment_bytes=4),) * 2 + (Access(),), (Access(),))
    monkeypatch.setattr(spill, "allocated", counted)
    monkeypatch.setattr(
        compiling, "_LONG", 1 << 20
    )  # pairs of such are worth nothing, and left out before they are spilled
    spill._assigned.cache_clear()
    code = compiled(mixed, ["uint32", "uint32", F], MK2, how)
    few = len(rounds)
    monkeypatch.setattr(spill, "_longest_body", lambda _: 0)
    spill._assigned.cache_clear()
    whole = compiled(mixed, ["uint32", "uint32", F], MK2, how)
    assert few < len(rounds) - few
    assert as_text(code, MK2) == as_text(whole, MK2)
    check(mixed, ["uint32", "uint32", F], how, sizes=(0, 1, 13))
