"""The codelets: small arrays against numpy, and a whole that equals its cells on every bit in the ring."""

import dataclasses
import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import PROGRAM, budget
from tests.unit.tiles.poplibs_cells import compute_cell, run_cells, run_whole, stored_dtype, words
from tiles.errors import InvalidGraph
from tiles.graph import AxisSplit, Cell, IndexMap, OpForm, Plan, along, codelet_from_data, identity_map, whole
from tiles.poplibs.forms import (
    broadcast_map,
    dot_form,
    map_form,
    pad_map,
    placed_map,
    reduce_form,
    reverse_map,
    slice_map,
    transpose_map,
)
from tiles.poplibs.poplin import MatMul, matmul_codelet
from tiles.poplibs.poplin.matmul_cycles import roles_of
from tiles.poplibs.popops import Map, Reduce, combine_codelet, combine_form, reduce_codelet
from tiles.poplibs.popops.fold import FOLDS, NEAR, fold
from tiles.poplibs.popops.reduce import neutral_element

FOLD = importlib.import_module("tiles.poplibs.popops.fold")


def _normal(shape, dtype="float32", seed=0):
    return np.asarray(jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype))


def _plan(form, grains) -> Plan:
    splits, stride = [], 1
    for dim, grain in zip(form.dims, grains, strict=True):
        parts = -(-dim.size // grain)
        splits.append(AxisSplit(dim.size, grain, ((parts, stride),)) if parts > 1 else whole(dim.size))
        stride *= parts
    return Plan(tuple(splits))


def _copy(dtype="float32"):
    return Map((), (0,), (dtype,), (dtype,))


def _folds(*dtypes):
    """Return the operations and dtypes that go together: bits are folded of integers and booleans only."""
    operations = ["add", "mul", "max", "min", "and", "or", "xor"]
    return [(o, d) for d in dtypes for o in (operations[:4] if d.startswith("float") else operations)]


# --- small arrays


def test_rearrangements_follow_their_maps():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    moves = [
        (map_form((3, 2), [transpose_map((1, 0))]), x.T),
        (map_form((2, 2), [slice_map((0, 0), (1, 2))]), x[:, ::2]),
        (map_form((2, 3), [reverse_map((2, 3), (1,))]), x[:, ::-1]),
        (map_form((4, 3), [pad_map((1, 0), 9.0)]), np.pad(x, ((1, 1), (0, 0)), constant_values=9)),
        (map_form((2, 4, 3), [placed_map((2, 3), (0, 2), (2, 4, 3))]), np.repeat(x[:, None], 4, 1)),
    ]
    for form, expected in moves:
        (result,) = run_cells(_copy(), form, _plan(form, form.shape), [x], ["float32"], ["float32"])
        np.testing.assert_array_equal(result, expected)


def test_an_operand_of_the_domain_reversed_in_order_is_transposed():
    x, y = _normal((2, 3)), _normal((3, 2), seed=1)
    form = map_form((2, 3), [identity_map(2), transpose_map((1, 0))])
    codelet = Map((("add", (0, 1), ()),), (2,), ("float32",) * 2, ("float32",))
    np.testing.assert_array_equal(run_whole(codelet, form, x, y)[0], x + y.T)


def test_results_follow_their_own_maps_and_several_may_leave():
    x = _normal((2, 3))
    swapped = IndexMap((along(1), along(0)))
    form = map_form((2, 3), [identity_map(2)], [identity_map(2), swapped])
    codelet = Map((("negate", (0,), ()),), (0, 1), ("float32",), ("float32",) * 2)
    same, negated = run_whole(codelet, form, x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(negated, -x.T)


@pytest.mark.parametrize(("operation", "dtype"), _folds("float32", "float16", "int32", "uint8", "bool"))
def test_reductions_equal_numpy(operation, dtype):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 5)) if dtype.startswith("float") else rng.integers(0, 9, (3, 5))
    x = x.astype(dtype) if dtype != "bool" else x > 4
    numpy = {
        "add": np.logical_or if dtype == "bool" else np.add,
        "mul": np.logical_and if dtype == "bool" else np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[operation]
    wide = np.float64 if dtype.startswith("float") else x.dtype
    expected = numpy.reduce(x.astype(wide), axis=1, dtype=wide if numpy in (np.add, np.multiply) else None)
    (result,) = run_whole(reduce_codelet(operation, dtype), reduce_form((3, 5), (1,)), x)
    assert result.dtype == x.dtype
    np.testing.assert_allclose(result.astype(wide), expected, rtol=1e-3 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize(("operation", "dtype"), _folds("float32", "int8", "uint16", "bool"))
def test_neutral_elements_change_nothing(operation, dtype):
    codelet = reduce_codelet(operation, dtype)
    for sample in (0, 1, 7):
        x = np.array([sample]).astype(dtype)
        pair = np.concatenate([x, neutral_element(codelet.operation, dtype)[None]])
        (result,) = run_whole(codelet, reduce_form((2,), (0,)), pair)
        assert result == x[0]


def test_an_empty_reduction_gives_the_neutral_element():
    nothing = np.zeros((2, 0), np.float32)
    (result,) = run_whole(reduce_codelet("max", "float32"), reduce_form((2, 0), (1,)), nothing)
    np.testing.assert_array_equal(result, [-np.inf, -np.inf])


def test_a_prologue_is_folded_too():
    x, y = _normal((3, 5)), _normal((5,), seed=1)
    body = (("multiply", (0, 1), ()), ("exponential", (2,), ()))
    codelet = reduce_codelet("add", "float32", body, ("float32", "float32"))
    form = reduce_form((3, 5), (1,), [identity_map(2), broadcast_map((5,), (3, 5))])
    np.testing.assert_allclose(run_whole(codelet, form, x, y)[0], np.exp(x * y).sum(1), rtol=1e-5)


def test_a_reduction_of_a_value_that_does_not_vary_counts_every_point():
    codelet = reduce_codelet("add", "float32", (), ("float32",))
    form = reduce_form((3, 5), (1,), [placed_map((3,), (0,), (3, 5))])
    np.testing.assert_allclose(run_whole(codelet, form, np.ones(3, np.float32))[0], [5, 5, 5])


def test_sums_of_halves_are_formed_in_float32():
    x = np.full((1, 4096), 1.0, np.float16)
    assert run_whole(reduce_codelet("add", "float16"), reduce_form((1, 4096), (1,)), x)[0] == 4096.0


DOTS = {
    "matmul": ((4, 3), (3, 2), (), (), (1,), (0,), "mk,kn->mn"),
    "transposed": ((3, 4), (2, 3), (), (), (0,), (1,), "km,nk->mn"),
    "vector": ((3,), (3,), (), (), (0,), (0,), "k,k->"),
    "outer": ((3,), (2,), (), (), (), (), "m,n->mn"),
    "batched": ((5, 4, 3), (3, 5, 2), (0,), (1,), (2,), (0,), "bmk,kbn->bmn"),
    "two contracted": ((2, 3, 4), (4, 2, 5), (), (), (0, 2), (1, 0), "amb,ban->mn"),
    "two batches": ((2, 3, 4), (2, 3, 4), (0, 1), (0, 1), (2,), (2,), "abk,abk->ab"),
}


@pytest.mark.parametrize("case", DOTS)
def test_contractions_equal_einsum(case):
    *numbers, spelled = DOTS[case]
    form = dot_form(*numbers)
    a, b = _normal(numbers[0]), _normal(numbers[1], seed=1)
    (result,) = run_whole(matmul_codelet("float32", "float32"), form, a, b)
    np.testing.assert_allclose(result, np.einsum(spelled, a, b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "out"),
    [("float16", None), ("bfloat16", "float32"), ("int8", "int32"), ("int32", None), ("bool", None)],
)
def test_contractions_of_other_dtypes(dtype, out):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 3, s).astype(np.float32) for s in ((4, 3), (3, 2)))
    codelet = matmul_codelet(dtype, dtype, out)
    operands = [np.asarray(jnp.asarray(x).astype(dtype)) for x in (a, b)]
    (result,) = run_whole(codelet, dot_form((4, 3), (3, 2), (), (), (1,), (0,)), *operands)
    assert result.dtype == (out or dtype)
    expected = (operands[0].astype(np.float32) @ operands[1].astype(np.float32)).astype(np.float32)
    np.testing.assert_array_equal(result.astype(np.float32), expected > 0 if dtype == "bool" else expected)


def test_a_contraction_may_leave_in_another_order_and_read_constant_axes():
    form = dot_form((4, 3), (3, 2), (), (), (1,), (0,))
    lhs = IndexMap((*form.operands[0].axes, placed_map((1,), (0,), (9,)).axes[0]))
    turned = OpForm(form.dims, (lhs, form.operands[1]), (IndexMap((along(1), along(0))),))
    a, b = _normal((4, 3)), _normal((3, 2), seed=1)
    (result,) = run_whole(matmul_codelet("float32", "float32"), turned, a[..., None], b)
    np.testing.assert_allclose(result, (a @ b).T, rtol=1e-5)


def test_forms_that_are_no_contraction_are_refused():
    with pytest.raises(InvalidGraph, match="two operands"):
        roles_of(map_form((2,), [identity_map(1)]))
    with pytest.raises(InvalidGraph, match="one operand only"):
        roles_of(reduce_form((2, 3), (1,), [identity_map(2), placed_map((2,), (0,), (2, 3))]))
    with pytest.raises(InvalidGraph, match="differ"):
        dot_form((2, 3), (4, 2), (), (), (1,), (0,))
    with pytest.raises(InvalidGraph, match="no matmul method"):
        MatMul(("float32", "float32"), "float32", "float32", "magic")
    with pytest.raises(InvalidGraph, match="no reduction"):
        Reduce((), "median", ("float32",), "float32", "float32")


def test_codelets_survive_their_data():
    for codelet in (reduce_codelet("add", "float16"), matmul_codelet("float16", "float16", method="amp")):
        assert codelet_from_data(codelet.to_data()) == codelet
        partial, dtypes = codelet.partial()
        assert dtypes == ("float32",)
        assert dataclasses.replace(partial, out_dtype="float16") == codelet


# --- the whole is its cells


def _in_ring(codelet, form, operands, dtypes):
    nothing = [None] * len(form.dims)
    found = compute_cell(codelet, form, [0] * len(form.dims), form.shape, nothing, operands, dtypes, "ring")
    return [np.asarray(r) for r in found]


def _check_cells(codelet, form, grains, operands, dtypes, results, padded=False):
    """A plan's cells, put together (and their partials combined), are the whole on every bit."""
    plan = _plan(form, grains)
    held = [words(x) for x in operands]
    uncut = _plan(form, [max(1, n) for n in form.shape])
    expected = run_cells(codelet, form, uncut, held, dtypes, results, "ring")
    if plan.num_partials(form) == 1:
        found = run_cells(codelet, form, plan, held, dtypes, results, "ring", padded)
    else:
        partial, between = codelet.partial()
        (parts,) = run_cells(partial, form, plan, held, dtypes, between, "ring", padded)
        combine = combine_codelet(codelet.combiner(), between[0], results[0])
        found = _in_ring(combine, combine_form(parts.shape), [parts], list(between))
    for a, b, dtype in zip(found, expected, results, strict=True):
        assert a.dtype == stored_dtype(dtype, "ring")
        np.testing.assert_array_equal(a, b)


grain = st.sampled_from([2, 3, 6])


@budget(PROGRAM)
@given(rows=grain, columns=grain)
def test_elementwise_cells_make_the_whole(rows, columns):
    body = (
        ("iota", (), (("dim", 1), ("dtype", "float32"))),
        ("multiply", (0, 1), ()),
        ("add", (3, 2), ()),
        ("tanh", (4,), ()),
    )
    codelet = Map(body, (5, 3), ("float32", "float32"), ("float32", "float32"))
    form = map_form((4, 6), [identity_map(2), broadcast_map((6,), (4, 6))], 2)
    operands = [_normal((4, 6)), _normal((6,), seed=1)]
    _check_cells(codelet, form, (rows, columns), operands, ["float32"] * 2, ["float32"] * 2)


@budget(PROGRAM)
@given(rows=grain, columns=grain)
def test_cells_of_a_padded_and_a_reversed_operand_make_the_whole(rows, columns):
    codelet = Map((("add", (0, 1), ()),), (2,), ("float16", "float16"), ("float16",))
    backwards = IndexMap((along(1), along(0, -1, 3)))
    form = map_form((4, 6), [pad_map((1, 1), 0.5), backwards])
    operands = [_normal((2, 4), "float16"), _normal((6, 4), "float16", 1)]
    _check_cells(codelet, form, (rows, columns), operands, ["float16"] * 2, ["float16"])


@budget(PROGRAM)
@given(
    grains=st.tuples(grain, grain, grain),
    operation=st.sampled_from(["add", "mul", "max", "min"]),
    padded=st.booleans(),
)
def test_cells_of_a_reduction_make_the_whole(grains, operation, padded):
    codelet = reduce_codelet(operation, "float16")
    form = reduce_form((4, 3, 5), (0, 2))
    _check_cells(codelet, form, grains, [_normal((4, 3, 5), "float16")], ["float16"], ["float16"], padded)


@budget(PROGRAM)
@given(
    grains=st.tuples(grain, grain, grain, grain),
    dtype=st.sampled_from(["float32", "float16", "bfloat16", "int32"]),
    padded=st.booleans(),
)
def test_cells_of_a_contraction_make_the_whole(grains, dtype, padded):
    form = dot_form((2, 4, 5), (2, 5, 3), (0,), (0,), (2,), (1,))
    kind = stored_dtype(dtype, "float")
    a, b = (9 * _normal((2, 4, 5))).astype(kind), (9 * _normal((2, 5, 3), seed=1)).astype(kind)
    _check_cells(matmul_codelet(dtype, dtype), form, grains, [a, b], [dtype, dtype], [dtype], padded)


def test_a_ring_reduction_is_the_sum_of_the_words_modulo_their_width():
    x = _normal((4, 33), "float16")
    form = reduce_form((4, 33), (1,))
    (result,) = _in_ring(reduce_codelet("add", "float16"), form, [words(x)], ["float16"])
    np.testing.assert_array_equal(result, words(x).astype(np.uint64).sum(1).astype(np.uint16))


def test_a_ring_contraction_is_the_product_of_the_words_modulo_their_width():
    a, b = _normal((3, 5), "bfloat16"), _normal((5, 2), "bfloat16", 1)
    form = dot_form((3, 5), (5, 2), (), (), (1,), (0,))
    (result,) = _in_ring(matmul_codelet("bfloat16", "bfloat16"), form, [words(a), words(b)], ["bfloat16"] * 2)
    exact = words(a).astype(np.uint64) @ words(b).astype(np.uint64)
    np.testing.assert_array_equal(result, exact.astype(np.uint16))


def test_padded_points_of_a_cell_which_hold_zeros_count_nothing():
    x = np.array([[-1.0, -2.0, 0.0]], np.float32)
    form = reduce_form((1, 3), (1,))
    cell = Cell(form, (1, 3), (0, 0), (None, jnp.int32(2)))

    def folded(operation, body=(), operands=(x,)):
        return reduce_codelet(operation, "float32", body, ("float32",) * len(operands)).compute(
            cell, *operands
        )[0]

    for operation, want in (("add", -3.0), ("max", -1.0), ("mul", 2.0)):
        np.testing.assert_array_equal(folded(operation), [want])
    square = (("multiply", (0, 0), ()), ("negate", (1,), ()))
    np.testing.assert_array_equal(folded("add", square), [-5.0])
    np.testing.assert_allclose(folded("add", (("exponential", (0,), ()),)), [np.exp(-1) + np.exp(-2)], 1e-6)
    dot = dot_form((1, 3), (3, 1), (), (), (1,), (0,))
    cell = Cell(dot, (1, 1, 3), (0, 0, 0), (None, None, jnp.int32(2)))
    np.testing.assert_array_equal(matmul_codelet("float32", "float32").compute(cell, x, x.T)[0], [[5.0]])


def test_a_factor_that_padding_does_not_make_zero_is_left_out():
    """A product with what does not vary along the padded dimension is none of zeros: it may be infinite."""
    form = OpForm(
        reduce_form((3,), (0,)).dims, (IndexMap((along(0),)), IndexMap(())), reduce_form((3,), (0,)).results
    )
    codelet = reduce_codelet("add", "float32", (("multiply", (0, 1), ()),), ("float32",) * 2)
    cell = Cell(form, (3,), (0,), (jnp.int32(2),))
    found = codelet.compute(cell, np.array([1.0, 2.0, 0.0], np.float32), np.float32(np.inf))[0]
    np.testing.assert_array_equal(found, np.inf)


def test_codelets_trace_once_for_many_cells():
    """An origin and a limit may be traced: the vertex engine batches over them."""
    body = (("iota", (), (("dim", 0), ("dtype", "float32"))), ("add", (0, 1), ()))
    codelet = reduce_codelet("add", "float32", body, ("float32",))
    form = reduce_form((4,), (0,))

    def cell(origin, limit, x):
        return codelet.compute(Cell(form, (2,), (origin,), (limit,)), x)[0]

    found = jax.vmap(cell)(jnp.array([0, 2]), jnp.array([2, 1]), jnp.array([[1.0, 1.0], [5.0, 9.0]]))
    np.testing.assert_array_equal(found, [3.0, 7.0])


@pytest.mark.parametrize("near", [0, NEAR])
@pytest.mark.parametrize("operation", FOLDS)
def test_folds_by_halves_and_by_columns(operation, near, monkeypatch):
    monkeypatch.setattr(FOLD, "NEAR", near)
    x = np.random.default_rng(0).integers(0, 100, (7, 3, 5, 2)).astype(np.int32)
    by = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
    function = getattr(np, by.get(operation, f"bitwise_{operation}"))
    for dims in ((0,), (1, 2), (0, 2), (0, 3), (3,), ()):
        want = function.reduce(x, dims, dtype=np.int32) if dims else x
        np.testing.assert_array_equal(
            jax.jit(partial(fold, operation, dims=dims))(x), want, err_msg=str(dims)
        )
