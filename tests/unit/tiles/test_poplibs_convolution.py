"""Convolutions without HLO: codelet and builder against numpy, cells against the whole, cycles by hand."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.budgets import PROGRAM, budget
from tests.unit.tiles.poplibs_cells import compute_cell, extents_of, run_cells, run_graph, words
from tiles.compiler import ExecuteStep, compile_graph
from tiles.compiler.costs import exchange_code_by_step
from tiles.errors import InvalidGraph
from tiles.graph import (
    REDUCTION,
    WINDOW,
    Affine,
    AxisSplit,
    Dim,
    Graph,
    IndexMap,
    Layout,
    Operation,
    OpForm,
    Plan,
    along,
    codelet_from_data,
    identity_map,
    whole,
)
from tiles.graph.cycles import code_cycles
from tiles.plan import Operand, Question, draft
from tiles.plan.transpose_cycles import transpose_cycles
from tiles.poplibs.forms import dot_form
from tiles.poplibs.poplin import ConvAxes, Convolution, MatMul, SpreadConvolution, conv_codelet, convolution
from tiles.poplibs.poplin.conv_cycles import conv_roles
from tiles.poplibs.popops import combine_codelet, combine_form
from tiles.poplibs.windows import Window
from tiles.target import Basis, Target

TARGET = Target.named("gc200").replace(num_tiles=8)
GC200 = Target.named("gc200")
NHWC = ConvAxes((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
GRADIENT = ConvAxes((3, 0, 1, 2), (3, 0, 1, 2), (2, 3, 0, 1))
TURNED = ConvAxes((0, 3, 1, 2), (3, 2, 0, 1), (2, 0, 3, 1))


def _whole_numbers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def _by_hand(lhs, rhs, axes, windows, features=1, batches=1):
    """Return a convolution, product by product."""
    lhs, rhs = np.transpose(lhs, axes.lhs), np.transpose(rhs, axes.rhs)
    groups = features * batches
    kept = lhs.shape[0] // batches
    out = np.zeros((kept, rhs.shape[0], *(w.outputs for w in windows)), lhs.dtype)
    per_group = rhs.shape[0] // groups
    for o, at in itertools.product(range(rhs.shape[0]), np.ndindex(*out.shape[2:])):
        group = o // per_group
        for taps in np.ndindex(*rhs.shape[2:]):
            places = []
            for w, i, k in zip(windows, at, taps, strict=True):
                element, rest = divmod(i * w.stride + k * w.dilation - w.low, w.base)
                places.append(None if rest or not 0 <= element < w.size else element)
            if None in places:
                continue
            stored = tuple(w.taps - 1 - k if w.reverse else k for w, k in zip(windows, taps, strict=True))
            rows = slice(group * kept, (group + 1) * kept) if batches > 1 else slice(None)
            inputs = slice(group * rhs.shape[1], (group + 1) * rhs.shape[1]) if features > 1 else slice(None)
            out[(slice(None), o, *at)] += lhs[(rows, inputs, *places)] @ rhs[(o, slice(None), *stored)]
    return np.transpose(out, np.argsort(axes.out))


CASES = {
    "plain": (NHWC, (2, 5, 6, 3), (3, 2, 3, 4), {}, {}),
    "single tap": (NHWC, (2, 5, 6, 3), (1, 1, 3, 4), {"stride": 2}, {}),
    "strided, padded": (NHWC, (1, 6, 5, 3), (3, 3, 3, 4), {"stride": 2, "low": 1, "high": 1}, {}),
    "spread array": (NHWC, (1, 3, 4, 2), (3, 2, 2, 3), {"base": 2, "low": 1, "high": 1}, {}),
    "spread by more than the kernel": (NHWC, (1, 3, 3, 2), (2, 1, 2, 3), {"base": 3, "low": 1}, {}),
    "spread kernel, backwards": (NHWC, (1, 6, 6, 2), (2, 3, 2, 3), {"dilation": 2, "reverse": True}, {}),
    "feature groups": (NHWC, (1, 4, 4, 6), (2, 2, 2, 9), {}, {"feature_groups": 3}),
    "depthwise": (NHWC, (1, 4, 4, 4), (3, 3, 1, 4), {"low": 1, "high": 1}, {"feature_groups": 4}),
    "batch groups": (NHWC, (6, 4, 4, 2), (2, 2, 2, 3), {}, {"batch_groups": 3}),
    "spread groups": (NHWC, (1, 3, 3, 4), (2, 2, 2, 4), {"base": 2}, {"feature_groups": 2}),
    "weight gradient": (GRADIENT, (2, 5, 5, 3), (2, 3, 3, 4), {}, {}),
    "spread as far as the kernel is long": (NHWC, (2, 3, 4, 2), (2, 2, 2, 3), {"base": 2, "low": 1, "high": 1}, {}),
    "the same, backwards, cut off": (NHWC, (1, 3, 4, 2), (3, 3, 2, 3), {"base": 3, "low": 2, "reverse": True}, {}),
    "the same, beyond the array": (NHWC, (1, 3, 4, 2), (2, 2, 2, 3), {"base": 2, "low": 3, "high": 4}, {}),
    "the same, groups": (NHWC, (1, 3, 3, 4), (2, 2, 2, 6), {"base": 2, "low": 1}, {"feature_groups": 2}),
    "the same, groups of batches": (NHWC, (4, 3, 3, 2), (2, 2, 2, 6), {"base": 2, "low": 1}, {"batch_groups": 2}),
    "the same, along one axis": (NHWC, (1, 1, 4, 2), (1, 4, 2, 3), {"base": 4, "low": 3, "high": 2}, {}),
    "result turned": (TURNED, (2, 4, 5, 3), (2, 2, 3, 4), {"base": 2}, {}),
}  # fmt: skip


def _windows(axes, lhs, rhs, window):
    return [Window(lhs[a], rhs[b], **window) for a, b in zip(axes.lhs[2:], axes.rhs[2:], strict=True)]


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
@pytest.mark.parametrize("case", CASES)
def test_convolutions_equal_products_by_hand(case, arithmetic):
    axes, lhs_shape, rhs_shape, window, groups = CASES[case]
    lhs, rhs = _whole_numbers(*lhs_shape), _whole_numbers(*rhs_shape, seed=1)
    windows = _windows(axes, lhs_shape, rhs_shape, window)
    graph = Graph(TARGET)
    tensors = [graph.add_input(x.shape, "float32") for x in (lhs, rhs)]
    result = convolution(graph, *tensors, axes, windows, **groups)
    held = [words(x) for x in (lhs, rhs)] if arithmetic == "ring" else [lhs, rhs]
    found = run_graph(graph, dict(zip([t.name for t in tensors], held, strict=True)), arithmetic)
    expected = _by_hand(*held, axes, windows, *(groups.get(f"{g}_groups", 1) for g in ("feature", "batch")))
    np.testing.assert_array_equal(found[result.name], expected)


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
@pytest.mark.parametrize(
    ("window", "taps"),
    [({}, (6, 5)), ({"dilation": 2, "stride": 2}, (3, 3)), ({"low": 2, "stride": 3}, (7, 6))],
    ids=["whole", "strided", "padded"],
)
def test_windows_of_one_output_are_products_of_matrices(window, taps, arithmetic):
    """As in gradients of kernels, whose taps are the whole field: nothing slides, so all taps are summed channels."""
    axes = ConvAxes((3, 0, 1, 2), (3, 0, 1, 2), (2, 3, 0, 1))
    x, g = _whole_numbers(3, 6, 5, 4), _whole_numbers(3, *taps, 8, seed=1)
    windows = _windows(axes, x.shape, g.shape, window)
    assert [w.outputs for w in windows] == [1, 1]
    graph = Graph(TARGET)
    tensors = [graph.add_input(a.shape, "float32") for a in (x, g)]
    result = convolution(graph, *tensors, axes, windows)
    held = [words(a) for a in (x, g)] if arithmetic == "ring" else [x, g]
    found = run_graph(graph, dict(zip([t.name for t in tensors], held, strict=True)), arithmetic)
    np.testing.assert_array_equal(found[result.name], _by_hand(*held, axes, windows))
    steps = [step for step in compile_graph(graph).steps if isinstance(step, ExecuteStep)]
    assert isinstance(steps[0].groups[0].codelet, MatMul)


# --- the whole is its cells


def _form(batch, field, taps, inputs, outputs, stride, dilation, groups=1):
    dims = (
        Dim("b", batch),
        Dim("y", field),
        Dim("g", groups),
        Dim("o", outputs),
        Dim("k", taps, WINDOW),
        Dim("i", inputs, REDUCTION),
    )
    lhs = IndexMap((along(0), Affine(((1, stride), (4, dilation)), -1), along(2), along(5)), 0)
    rhs = IndexMap((along(4), along(2), along(5), along(3)))
    return OpForm(dims, (lhs, rhs), (identity_map(4),))


@budget(PROGRAM)
@given(
    st.tuples(*[st.integers(1, 5)] * 5),
    st.tuples(*[st.integers(1, 3)] * 3),
    st.lists(st.integers(1, 4), min_size=6, max_size=6),
    st.sampled_from(["float32", "float16"]),
    st.booleans(),
)
def test_cells_put_together_are_the_whole_on_every_bit(sizes, geometry, grains, dtype, padded):
    form = _form(*sizes, *geometry)
    codelet = conv_codelet(dtype, dtype)
    span = geometry[0] * (sizes[1] - 1) + geometry[1] * (sizes[2] - 1)
    lhs = _whole_numbers(sizes[0], max(1, span - 1), geometry[2], sizes[3]).astype(dtype)
    rhs = _whole_numbers(sizes[2], geometry[2], sizes[3], sizes[4], seed=1).astype(dtype)
    held, dtypes = [words(x) for x in (lhs, rhs)], [dtype] * 2
    nothing = [None] * len(form.dims)
    uncut = Plan(tuple(AxisSplit(n, n) for n in form.shape))
    (expected,) = run_cells(codelet, form, uncut, held, dtypes, [dtype], "ring")
    splits, stride = [], 1
    for size, grain in zip(form.shape, grains, strict=True):
        parts = -(-size // grain)
        splits.append(AxisSplit(size, min(grain, size), ((parts, stride),) if parts > 1 else ()))
        stride *= parts
    plan = Plan(tuple(splits))
    if plan.num_partials(form) == 1:
        (found,) = run_cells(codelet, form, plan, held, dtypes, [dtype], "ring", padded)
    else:
        partial, between = codelet.partial()
        (parts,) = run_cells(partial, form, plan, held, dtypes, list(between), "ring", padded)
        combine = combine_codelet("add", between[0], dtype)
        folded = combine_form(parts.shape)
        (found,) = compute_cell(
            combine, folded, [0] * len(folded.dims), folded.shape, nothing[:1] * len(folded.dims), [parts],
            list(between), "ring",
        )  # fmt: skip
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("low", [0, 1, 2])
@pytest.mark.parametrize(("base", "taps"), [(2, 3), (2, 5), (3, 4)])
def test_a_vertex_of_a_spread_array_computes_all_phases_in_any_cells(base, taps, low):
    """In words modulo 2^n, against products by hand: cells cut blocks of outputs, not phases; no step puts them in turn."""
    lhs, rhs = _whole_numbers(2, 4, 3, 4), _whole_numbers(taps, taps, 4, 3, seed=1)
    windows = _windows(NHWC, lhs.shape, rhs.shape, {"base": base, "low": low, "high": taps - 1})
    graph = Graph(TARGET)
    tensors = [graph.add_input(x.shape, "float32") for x in (lhs, rhs)]
    convolution(graph, *tensors, NHWC, windows)
    operation, *others = [step for step in graph.program.steps if isinstance(step, Operation)]
    codelet, form = operation.codelet, operation.form
    assert isinstance(codelet, SpreadConvolution)
    assert all(windows[0].outputs % base for _ in others)  # what lies past the last output is cut off
    held = [words(x) for x in (lhs, rhs)]
    cut = {"b": 1, "o": 2, "y0": 2, "y1": 1}
    splits, stride = [], 1
    for dim in form.dims:
        parts = -(-dim.size // cut.get(dim.name, dim.size))
        splits.append(
            AxisSplit(dim.size, cut[dim.name], ((parts, stride),)) if parts > 1 else whole(dim.size)
        )
        stride *= parts
    plan = Plan(tuple(splits))
    (found,) = run_cells(codelet, form, plan, held, ["float32"] * 2, ["float32"], "ring")
    expected = _by_hand(*held, NHWC, windows)
    outputs = [w.outputs for w in windows]
    found = found.reshape(2, -(-outputs[0] // base) * base, -(-outputs[1] // base) * base, 3)
    np.testing.assert_array_equal(found[:, : outputs[0], : outputs[1]], expected)
    assert codelet_from_data(codelet.to_data()) == codelet


@pytest.mark.parametrize("base", [2, 3])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_kernel_as_long_as_the_stride_of_a_transposed_convolution_is_one_product(base, reverse):
    """Each element meets every tap once, so that phases are columns: nothing is computed phase by phase and interleaved."""
    lhs, rhs = _whole_numbers(2, 3, 4, 5), _whole_numbers(base, base, 5, 6, seed=1)
    windows = _windows(
        NHWC, lhs.shape, rhs.shape, {"base": base, "low": base - 1, "high": base - 1, "reverse": reverse}
    )
    graph = Graph(TARGET)
    tensors = [graph.add_input(x.shape, "float32") for x in (lhs, rhs)]
    result = convolution(graph, *tensors, NHWC, windows)
    (operation,) = [step for step in graph.program.steps if isinstance(step, Operation)]
    assert isinstance(operation.codelet, MatMul)
    assert math.prod(operation.form.shape) == lhs.size * rhs.size // 5
    found = run_graph(graph, dict(zip([t.name for t in tensors], (lhs, rhs), strict=True)), "float")
    np.testing.assert_array_equal(found[result.name], _by_hand(lhs, rhs, NHWC, windows))


def test_each_tap_of_a_spread_array_takes_as_long_as_where_nothing_is_spread():
    """A transposed convolution of 6 x 12 elements: 9 taps over 72 positions, but four times the results to clear."""
    lhs, rhs, base = (1, 6, 12, 16), (3, 3, 16, 16), 2
    graph = Graph(TARGET)
    tensors = [graph.add_input(shape, "float16") for shape in (lhs, rhs)]
    windows = [Window(n, 3, low=2, high=1, base=base) for n in lhs[1:3]]
    convolution(graph, *tensors, NHWC, windows, out_dtype="float32")
    (operation,) = [step for step in graph.program.steps if isinstance(step, Operation)]
    found = operation.codelet.cycles(extents_of(operation.form, ("float16",) * 2, ("float32",)), GC200)
    slots = 17 + 3 + 34 + 4 * (12 - 3) - 9
    panels = 14 + 14 + 3 * (14 + 3 * (12 + 64 + 3 + 15 + 6 * slots + 9))
    zeroing = 6 * (10 + -(-4 * 72 * 16 * 4 // 8 // 6))
    assert int(found.value[0]) == 109 + 2 * 54 + zeroing + panels
    flops = operation.codelet.flops(extents_of(operation.form, ("float16",) * 2, ("float32",)))
    assert int(flops[0]) == 2 * 9 * 72 * 16 * 16


# --- cycles


def _cycles(dtype, partials, method="auto", batch=1, field=12, taps=3, inputs=16, outputs=16, groups=1):
    form = _form(batch, field, taps, inputs, outputs, 1, 1, groups)
    codelet = Convolution((dtype, dtype), partials, partials, method)
    return codelet.cycles(extents_of(form, (dtype, dtype), (partials,)), GC200)


def test_cycles_of_the_units_are_the_published_formula():
    """One row of 12 outputs over six workers: 2 outputs each; 3 taps, one panel of 16 x 16 halves each."""
    slots = 17 + 3 + 34 - 9
    panels = 3 * (12 + 64 + 3 + 15 + 6 * slots + 9)
    zeroing = 6 * (10 + -(-12 * 16 * 4 // 8 // 6))
    expected = 109 + 2 * 54 + zeroing + 14 + 14 + 14 + panels
    cycles = _cycles("float16", "float32", "amp")
    assert int(cycles.value[0]) == expected
    assert cycles.basis == Basis.DOCUMENTED


def test_short_sliding_windows_go_by_ones_and_twos_over_neighbouring_taps():
    """A window apart from the next by two takes two slots where one of strides 1 takes one; none are further apart, or spread."""

    def cycles(stride, dilation):
        codelet = Convolution(("float16", "float16"), "float32", "float32", "slic")
        form = _form(1, 60, 4, 4, 4, stride, dilation)
        return int(codelet.cycles(extents_of(form, ("float16",) * 2, ("float32",)), GC200).value[0])

    slots_of_ten = [(15 + 5 - 1) * 2, (15 + 2 * 7 - 1) * 2]  # two passes, sums of float32
    assert cycles(2, 1) - cycles(1, 1) == 6 * (slots_of_ten[1] - slots_of_ten[0])
    for stride, dilation in ((3, 1), (1, 2)):
        with pytest.raises(InvalidGraph, match="cannot convolve"):
            cycles(stride, dilation)


@pytest.mark.parametrize(("batch", "field"), [(1, 9), (2, 7), (7, 7), (5, 40), (3, 1)])
def test_workers_share_positions_row_after_row(batch, field):
    """Against a list of every worker's positions: rows of batches lie one after the other, a run ends with its row."""
    positions = [(row, column) for row in range(batch) for column in range(field)]
    slots = []
    for worker in range(6):
        begin, end = (n * len(positions) // 6 for n in (worker, worker + 1))
        runs = Counter(row for row, _ in positions[begin:end]).values()
        slots.append(sum(3 + {1: 29, 2: 34}.get(n, 34 + 4 * (n - 3)) - 9 for n in runs))
    runs = max(6 * (17 + max(slots)), 6 * (17 + min(slots)) + 9)
    panels = 3 * (12 + 64 + 3 + 15 + runs)
    zeroing = 6 * (10 + -(-batch * field * 16 * 4 // 8 // 6))
    expected = 109 + 2 * 54 + zeroing + 14 + 14 + 14 + panels
    assert int(_cycles("float16", "float32", "amp", batch=batch, field=field).value[0]) == expected


def test_panels_of_few_channels_hold_taps_of_several_rows_of_the_kernel():
    """Seven rows of four halves fill the units in two goes, where a row at a time takes seven."""
    dims = (
        Dim("y", 6),
        Dim("x", 12),
        Dim("o", 16),
        Dim("m", 7, WINDOW),
        Dim("k", 7, WINDOW),
        Dim("i", 4, REDUCTION),
    )
    lhs = IndexMap((Affine(((0, 1), (3, 1))), Affine(((1, 1), (4, 1))), along(5)), 0)
    form = OpForm(dims, (lhs, IndexMap((along(3), along(4), along(5), along(2)))), (identity_map(3),))
    extents = extents_of(form, ("float16",) * 2, ("float32",))
    found = {}
    for method, height, loading in (("amp", 1, 15), ("amp2", 2, 46), ("amp4", 4, 60)):
        codelet = Convolution(("float16",) * 2, "float32", "float32", method)
        found[method] = int(codelet.cycles(extents, GC200).value[0])
        slots = 17 + 3 + 34 + 4 * (12 - 3) - 9
        panels = -(-7 // height) * (14 + 7 * (12 + 64 + 3 + loading + 6 * slots + 9))
        assert found[method] == 109 + 2 * 54 + 6 * (10 + 72 * 16 * 4 // 8 // 6) + 14 + 14 + panels
    assert found["amp4"] < found["amp2"] < found["amp"]
    (order,) = Convolution(("float16",) * 2, "float32", "float32").arrangements(extents, GC200)
    assert (5, 4) in order.digits and (2, 16) in order.digits
    assert _cycles("float32", "float32", "amp4", inputs=2).value[0] > 0
    with pytest.raises(InvalidGraph, match="method amp4 cannot convolve float8_e4m3fnuz"):
        c600 = Target.named("c600")
        eight = Convolution(("float8_e4m3fnuz",) * 2, "float16", "float16", "amp4")
        eight.cycles(extents_of(form, ("float8_e4m3fnuz",) * 2, ("float16",)), c600)


def test_short_sliding_windows_by_hand():
    """Four depthwise channels, 12 outputs of 3 taps: one panel, which zeroes; two positions a worker, passed over twice."""
    loading = 16 + 9 + 6 + 6 + 6 * 10
    worker = 17 + 10 + 1 + 3 + 2 * (10 + 2 + 3 - 1)
    expected = 28 + (15 + 1) + (loading + 20 + 1) + 6 * worker
    found = _cycles("float16", "float32", "slic", inputs=1, outputs=1, groups=4)
    assert int(found.value[0]) == expected
    assert found.basis == Basis.DOCUMENTED
    twice = _cycles("float16", "float32", "slic", inputs=1, outputs=1, groups=4, taps=5)
    later = 17 + 10 + 3 + 2 * (17 + 2 - 1)
    assert int(twice.value[0]) == expected + loading + 20 + 6 + 6 * later


def test_windows_of_few_channels_are_laid_out_before_the_units_take_them():
    """By hand: 3 taps of 4 halves are 12 input channels; copies of whole accesses, a panel transposed, a matrix product."""
    found = _cycles("float16", "float32", "expanded", inputs=4)
    product = MatMul(("float16", "float16"), "float32", "float32", "amp", may_swap=False)
    form = dot_form((12, 12), (12, 16), (), (), (1,), (0,))
    multiplied = product.cycles(extents_of(form, ("float16",) * 2, ("float32",)), GC200).value
    copied = GC200.local_copy_call_cycles + 12 * 16 * 2 * 5 // (4 * 8)
    transposed = transpose_cycles(1, 16, 16, 2, GC200).value
    assert int(found.value[0]) == int(multiplied[0]) + copied + int(transposed)
    assert found.value[0] < _cycles("float16", "float32", "amp", inputs=4, taps=3).value[0] + copied
    codelet = Convolution(("float16", "float16"), "float32", "float32", "expanded")
    few = extents_of(_form(1, 12, 3, 4, 16, 1, 1), ("float16",) * 2, ("float32",))
    assert int(codelet.scratch_bytes(few, GC200)[0]) == (12 + 16) * 16 * 2
    many = extents_of(_form(1, 12, 3, 32, 16, 1, 1), ("float16",) * 2, ("float32",))
    auto = Convolution(("float16", "float16"), "float32", "float32")
    assert int(auto.scratch_bytes(many, GC200)[0]) == 0
    with pytest.raises(InvalidGraph, match="method expanded cannot convolve"):
        _cycles("float16", "float32", "expanded", inputs=32)


def test_the_units_take_neighbouring_outputs_of_one_channel_at_once():
    """By hand: 31 taps and 16 outputs reach 46 floats, six groups of channels; 64 outputs are four blocks, one for a worker."""
    slots = 17 + 3 + 33 - 9  # of a run of one position, floats
    panel = 16 * 8 * 4 // GC200.conv_unit_coeff_load_bytes_per_cycle + 3 + 15 + 6 * slots
    idle = 6 * 17 + 9  # two workers have nothing to do
    assert 6 * slots > idle
    zeroing = 6 * (10 + -(-(4 * 16 * 4 // 8) // 6))
    units = 109 + 2 * 54 + zeroing + 14 + 6 * (14 + 14 + 12 + panel)
    rows, panels = (3 * 16 + 48) * 4, 48 * 16 * 4
    call = GC200.local_copy_call_cycles
    copies = (
        call
        + rows * 5 // 12
        + call
        + panels // GC200.memcpy_bytes_per_cycle
        + call
        + -(-31 * 16 * 4 * 5 // 12)
    )
    found = _cycles("float32", "float32", "banded", field=64, taps=31, inputs=1, outputs=1)
    assert int(found.value[0]) == units + copies
    assert found.basis == Basis.ASSUMED
    cut = _cycles("float32", "float32", "banded", field=63, taps=31, inputs=1, outputs=1)
    assert int(cut.value[0]) == units + copies + call + 63 * 4 * 5 // 12
    codelet = Convolution(("float32", "float32"), "float32", "float32")
    extents = extents_of(_form(1, 64, 31, 1, 1, 1, 1), ("float32",) * 2, ("float32",))
    assert int(codelet.cycles(extents, GC200).value[0]) == units + copies
    assert int(codelet.scratch_bytes(extents, GC200)[0]) == rows + panels
    for others in ({"inputs": 2}, {"outputs": 2}, {"groups": 2}, {"taps": 1}):
        with pytest.raises(InvalidGraph, match="method banded cannot convolve"):
            _cycles(
                "float32",
                "float32",
                "banded",
                **({"field": 64, "taps": 31, "inputs": 1, "outputs": 1} | others),
            )


def test_plans_count_the_windows_that_vertices_of_partials_lay_out():
    """What a plan's vertices need for themselves is what allocation gives them, where input channels are cut, too."""
    lhs, rhs, windows = (1, 12, 12, 8), (3, 3, 8, 16), [Window(12, 3), Window(12, 3)]
    graph = Graph(TARGET)
    tensors = [graph.add_input(shape, "float16") for shape in (lhs, rhs)]
    convolution(graph, *tensors, NHWC, windows, method="expanded")
    (operation,) = [step for step in graph.program.steps if isinstance(step, Operation)]
    form = operation.form
    splits = [AxisSplit(dim.size, 4, ((2, 1),)) if dim.name == "i" else whole(dim.size) for dim in form.dims]
    plan = Plan(tuple(splits))
    operands = tuple(Operand(shape, "float16", None) for shape in (lhs, rhs))
    question = Question(form, operation.codelet, operands, ("float16",), TARGET)
    pinned = Graph(TARGET)
    tensors = [pinned.add_input(shape, "float16") for shape in (lhs, rhs)]
    pinned.outputs = [convolution(pinned, *tensors, NHWC, windows, method="expanded", plan=plan).name]
    executable = compile_graph(pinned)
    sizes = {b.name.removeprefix("conv.partials"): b.size_bytes for b in executable.buffers.values()}
    assert sizes[".scratch"] > 0 and sizes[""] == 10 * 10 * 16 * 4
    taken = sum(sizes.get(name, 0) for name in ("", ".in0", ".in1", ".scratch"))
    assert draft(question, plan).temporary_bytes == taken


def test_auto_is_the_fastest_method_that_can():
    methods = ("amp", "slic", "hmac", "vmac", "scalar")
    for shape in ({"groups": 16, "inputs": 1, "outputs": 1, "batch": 8}, {"batch": 8, "field": 32}):
        possible = []
        for method in methods:
            try:
                possible.append(int(_cycles("float16", "float16", method, **shape).value[0]))
            except InvalidGraph:
                continue
        assert int(_cycles("float16", "float16", **shape).value[0]) == min(possible)
        assert len(possible) >= 3


@pytest.mark.parametrize("target", ["gc200", "gc2", "c600"])
@pytest.mark.parametrize(
    ("dtype", "sums"),
    [
        ("float16", "float16"),
        ("float16", "float32"),
        ("float32", "float32"),
        ("bfloat16", "float32"),
        ("float8_e4m3fnuz", "float16"),
        ("int8", "int32"),
        ("int32", "int32"),
    ],
)
def test_no_method_multiplies_faster_than_the_product_units(dtype, sums, target):
    """So that ways to cut a convolution may be left out by that rate: cells of all sizes, depthwise ones among them."""
    rng = np.random.default_rng(0)
    kinds = [("n", 64, ""), ("y", 64, ""), ("x", 64, ""), ("g", 64, ""), ("o", 64, "")]
    kinds += [("m", 7, WINDOW), ("k", 7, WINDOW), ("i", 64, REDUCTION)]
    dims = tuple(Dim(name, size, kind) if kind else Dim(name, size) for name, size, kind in kinds)
    for stride in (1, 2, 3):
        rows, columns = (Affine(((at, stride), (at + 4, 1))) for at in (1, 2))
        lhs = IndexMap((along(0), rows, columns, along(3), along(7)), 0)
        rhs = IndexMap((along(5), along(6), along(3), along(7), along(4)))
        form = OpForm(dims, (lhs, rhs), (identity_map(5),))
        sizes = [np.minimum(n, 2 ** rng.uniform(0, 7, 3000)).astype(int) for n in form.shape]
        for d in (4, 7):
            sizes[d][:1000] = 1
        extents = extents_of(form, (dtype,) * 2, (sums,), sizes)
        codelet, machine = Convolution((dtype, dtype), sums, sums), Target.named(target)
        least = codelet.least_cycles(extents, machine)
        if least is None:  # no units take these
            assert dtype == "int32"
        else:
            assert (codelet.cycles(extents, machine).value >= least).all() and least.max() > 1e5


def test_depthwise_does_not_pay_for_whole_panels():
    shape = {"groups": 16, "inputs": 1, "outputs": 1, "batch": 8, "field": 32}
    units, best = (_cycles("float16", "float16", m, **shape).value[0] for m in ("amp", "auto"))
    assert best < units / 2  # the units combine all groups into one


@pytest.mark.parametrize(("channels", "block", "body"), [(4, 4, 2 * 2), (8, 8, 3 * 2), (40, 16, 3 * 2 * 2)])
def test_a_vertical_multiply_accumulate_takes_at_most_sixteen_channels_at_once(channels, block, body):
    """PopLibs' convGroupsPerGroup; 2 taps after the first; 96 outputs over six workers."""
    cycles = _cycles("float16", "float16", "vmac", batch=8, inputs=1, outputs=1, groups=channels)
    blocks = -(-channels // block)
    assert int(cycles.value[0]) == 61 + 14 + 25 + 6 * blocks * 16 * (7 + 15 + 3 + body)
    form = _form(8, 12, 3, 1, 1, 1, 1, channels)
    codelet = Convolution(("float16",) * 2, "float16", "float16", "vmac")
    (order,) = codelet.arrangements(extents_of(form, ("float16",) * 2, ("float16",)), GC200)
    assert order.digits[-1] == (2, block)


def test_depthwise_channels_that_a_vertex_takes_at_once_stay_together_if_all_tiles_have_work():
    def grain(channels, batch, dtype="float16"):
        form = _form(batch, 12, 3, 1, 1, 1, 1, channels)
        return conv_codelet(dtype, dtype).grains(form, TARGET.replace(num_tiles=1472))[2]

    assert grain(96, 1000) == 16
    assert grain(96, 9) == 4  # 96 * 12 * 9 results are 2,592 blocks of 4, and 1,296 of 8
    assert grain(24, 1000) == 8
    assert grain(96, 1000, "float32") == 1


def test_the_units_compute_narrow_groups_of_floats_as_one():
    """Sixteen depthwise groups are one convolution of 16 channels, with zeros between them and a rearrangement."""
    narrow = _cycles("float32", "float32", "amp", inputs=1, outputs=1, groups=16).value[0]
    combined = _cycles("float32", "float32", "amp", inputs=16, outputs=16).value[0]
    kernel, ends = 16 * 16 * 3, 16 * 12 * 2
    assert narrow <= combined + (kernel + ends) * 5 // 4
    alone = _cycles("float32", "float32", "amp", inputs=1, outputs=1).value[0]
    assert narrow < 16 * alone / 4
    pair = _cycles("float32", "float32", "amp", inputs=2, outputs=2).value[0]
    two = _cycles("float32", "float32", "amp", inputs=1, outputs=1, groups=2).value[0]
    assert two == pair + (2 * 2 * 3 + 2 * 12 * 2) * 5 // 4


def test_dtypes_without_assembly_are_their_code_or_assumed():
    form = _form(1, 12, 3, 5, 4, 2, 1, 2)
    extents, codelet = (
        extents_of(form, ("int32",) * 2, ("int32",)),
        Convolution(("int32",) * 2, "int32", "int32"),
    )
    integers = codelet.cycles(extents, GC200)
    assert integers.basis == Basis.DERIVED
    assert integers.value[0] == code_cycles(codelet.tile_code(extents, GC200)).value[0]
    assert _cycles("int64", "int64").basis == Basis.ASSUMED
    assert _cycles("bfloat16", "float32").basis == Basis.DERIVED
    with pytest.raises(InvalidGraph, match="cannot convolve int32"):
        _cycles("int32", "int32", "amp")


# --- refusals and data


def test_what_is_no_convolution_is_refused():
    form = _form(1, 4, 3, 2, 2, 1, 1)
    with pytest.raises(InvalidGraph, match="two operands"):
        conv_roles(OpForm(form.dims, form.operands[:1], form.results))
    backwards = IndexMap((along(0), Affine(((1, 1), (4, -1)), 2), along(2), along(5)), 0)
    with pytest.raises(InvalidGraph, match="no window"):
        conv_roles(OpForm(form.dims, (backwards, form.operands[1]), form.results))
    graph = Graph(TARGET)
    x, w = graph.add_input((1, 4, 4, 3), "float32"), graph.add_input((3, 3, 3, 2), "float32")
    windows = [Window(4, 3), Window(4, 3)]
    with pytest.raises(InvalidGraph, match="no convolution method"):
        convolution(graph, x, w, NHWC, windows, method="magic")
    with pytest.raises(InvalidGraph, match="one must be 1"):
        convolution(graph, x, w, NHWC, windows, feature_groups=3, batch_groups=3)
    with pytest.raises(InvalidGraph, match="no multiple"):
        convolution(graph, x, w, NHWC, windows, feature_groups=2)
    with pytest.raises(InvalidGraph, match="lies along"):
        convolution(graph, x, w, NHWC, [Window(4, 3), Window(5, 3)])
    with pytest.raises(InvalidGraph, match="does not fit"):
        convolution(graph, x, w, NHWC, windows[:1])


def test_small_kernels_stay_whole_and_large_ones_may_be_cut():
    codelet = conv_codelet("float32", "float32")
    for taps, may in ((3, False), (9, True)):
        form = _form(1, 4, taps, 2, 2, 1, 1)
        assert codelet.may_split(form, 4) is may
        assert codelet.may_split(form, 5) and codelet.may_split(form, 1)


def test_the_codelet_survives_its_data():
    codelet = conv_codelet("float16", "float16", method="slic")
    assert codelet_from_data(codelet.to_data()) == codelet
    assert codelet.label == "poplin::Conv<SLIC,half,float,half>"
    assert codelet.partial()[1] == ("float32",)


@pytest.mark.parametrize("shape", [(2, 56, 56, 64, 256), (2, 14, 14, 1024, 32), (8, 14, 14, 64, 64)])
def test_output_channels_lie_together_in_results_of_kernels_of_one_tap(shape):
    """The image is never what the units hold, however many more positions than channels there are."""
    batch, *field, inputs, outputs = shape
    graph = Graph(GC200)
    x = graph.add_input((batch, *field, inputs), "float16", "x")
    w = graph.add_input((1, 1, inputs, outputs), "float16", "w")
    y = convolution(graph, x, w, NHWC, [Window(n, 1) for n in field])
    graph.outputs.append(y.name)
    layout = compile_graph(graph, check_memory=False).variables[y.name].layout
    factors = [d for d, n, _ in layout.arrangement.factors(layout.part_shape) if n > 1]
    assert factors[-1] == 3


def test_an_image_that_all_tiles_read_pixel_by_pixel_is_regrouped_once():
    """Its pixels lie on different tiles, its channels in parts of 36; every tile reads 16 of them of all pixels."""
    graph = Graph(GC200)
    tiles = [((2, 1),), ((7, 210),), ((7, 30),), ((15, 2),)]
    splits = zip((4, 14, 14, 512), (2, 2, 2, 36), tiles, strict=True)
    held = Layout(tuple(AxisSplit(*split) for split in splits))
    x = graph.set_layout(graph.add_input((4, 14, 14, 512), "float16", "x").name, held)
    w = graph.add_input((3, 3, 512, 512), "float16", "w")
    graph.outputs.append(convolution(graph, x, w, NHWC, [Window(14, 3, 2, 0, 1)] * 2).name)
    executable = compile_graph(graph, check_memory=False)
    code = {
        s.name: int(c.max()) for s, c in zip(executable.steps, exchange_code_by_step(executable), strict=True)
    }
    assert code["conv.partials"] + code["conv.order0"] < 2_000  # 12,608 where all read it as it lies
