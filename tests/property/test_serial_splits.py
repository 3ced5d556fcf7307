"""Serial splits of any axis, down to extent 1, in any order of elements: their forms, their layouts, what they compute."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from ipuxla.lowering import lower_module
from tests.budgets import PROGRAM, TABLE, budget
from tests.flow import ENGINES, assert_same_words, optimized_module, ring_reference, run
from tests.property.test_exchange import reads
from tests.property.test_exchange_plans import assert_covers
from tests.property.test_plans import SEEDS, SIZES
from tests.random_plans import OPERATIONS, random_layout, random_planner
from tiles.compiler import Executable, certify, compile_graph
from tiles.graph import Layout
from tiles.plan import SerialSplit
from tiles.planning import Planner, Policy
from tiles.target import Target

TARGET = Target.named("gc200").replace(num_tiles=8)
SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=4).map(tuple)


# ---- layouts


@given(SHAPES, SEEDS, st.data())
@budget(TABLE)
def test_a_scaled_layout_has_parts_of_the_same_order_on_the_same_tiles(shape, seed, data):
    layout = random_layout(np.random.default_rng(seed), shape, 40)
    axis, size = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.sampled_from([1, 2, 3, 5, 8, 24]))
    scaled = layout.scaled(axis, size)
    assert scaled.shape == (*shape[:axis], size, *shape[axis + 1 :])
    assert_covers(scaled, 44)
    assert set(scaled.tiles.tolist()) <= set(layout.tiles.tolist())
    assert order_beside(scaled, axis) == order_beside(layout, axis)
    for a, (mine, its) in enumerate(zip(scaled.axes, layout.axes, strict=True)):
        assert a == axis or mine == its


@given(SHAPES, SEEDS, st.data())
@budget(TABLE)
def test_a_layout_scaled_forth_and_back_is_the_same(shape, seed, data):
    """Where the parts are whole before and after.

    Their order comes back unless parts had one element, or one group, and no order between. What fills up a last group is
    no order: it comes back where there is none, for whole groups that lie one after another are not told from elements.
    """
    layout = random_layout(np.random.default_rng(seed), shape, 40)
    axis = data.draw(st.integers(0, len(shape) - 1))
    split = layout.axes[axis]
    assume(split.size == split.parts * split.grain)
    group = max([1, *(group for d, group in layout.arrangement.digits if d == axis)])
    extent = data.draw(st.sampled_from([1, 2, 3, 7])) * group
    back = layout.scaled(axis, split.parts * extent).scaled(axis, split.size)
    assert [a.parts for a in back.axes] == [a.parts for a in layout.axes]
    np.testing.assert_array_equal(back.tiles, layout.tiles)
    assert back.part_shape == layout.part_shape
    assert order_beside(back, axis) == order_beside(layout, axis)
    if extent > group:
        assert order_beside(back) == order_beside(layout)
        if layout.arrangement.stored_elements(layout.part_shape) == math.prod(layout.part_shape):
            assert back == layout


def order_beside(layout: Layout, axis: int | None = None) -> list[int]:
    """Return in which order the elements of a full part lie, those that are first along an axis if one is named."""
    extents = layout.part_shape
    offsets = layout.arrangement.offsets(extents)
    places = [
        sum(int(offset[i]) for offset, i in zip(offsets, index, strict=True))
        for index in itertools.product(
            *(range(1 if d == axis else min(n, layout.shape[d])) for d, n in enumerate(extents))
        )
    ]
    return np.argsort(places, kind="stable").tolist()


# ---- forms


@given(reads(), st.data())
def test_slices_of_a_form_read_what_the_whole_reads(case, data):
    """Point by point of the domain, for a cut of any dimension into any extents."""
    form, _, _ = case
    assume(form.dims)
    d = data.draw(st.integers(0, len(form.dims) - 1))
    size = form.dims[d].size
    extent = data.draw(st.integers(1, size))
    parts = SerialSplit(d, extent).forms(form)
    assert [part.dims[d].size for part in parts[:-1]] == [extent] * (len(parts) - 1)
    points = []
    for number, part in enumerate(parts):
        assert part.results == form.results and part.operands[0].fill == form.operands[0].fill
        for point in itertools.product(*(range(dim.size) for dim in part.dims)):
            where = tuple(i + number * extent if e == d else i for e, i in enumerate(point))
            assert indices(part.operands[0].axes, point) == indices(form.operands[0].axes, where)
            points.append(where)
    assert sorted(points) == list(itertools.product(*(range(dim.size) for dim in form.dims)))


def indices(axes: Any, point: tuple[int, ...]) -> list[int]:
    """Return what a point reads, an index per axis."""
    return [axis.offset + sum(c * point[d] for d, c in axis.terms) for axis in axes]


# ---- whole contractions

Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
"""A contraction and the shapes of what it contracts."""


@st.composite
def contractions(draw: st.DrawFn) -> Case:
    """Draw a product of matrices, batches of them, or a convolution."""
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    b = draw(st.sampled_from([1, 2, 3]))
    taps, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 2]))

    def convolution(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    cases: list[Case] = [
        (functools.partial(jnp.einsum, "mk,kn->mn"), ((m, k), (k, n))),
        (functools.partial(jnp.einsum, "km,nk->mn"), ((k, m), (n, k))),
        (functools.partial(jnp.einsum, "bmk,bkn->bmn"), ((b, m, k), (b, k, n))),
        (functools.partial(jnp.einsum, "bmk,kn->bmn"), ((b, m, k), (k, n))),
        (functools.partial(jnp.einsum, "mk,nbk->bnm"), ((m, k), (n, b, k))),
        (convolution, ((b, draw(st.integers(2, 5)), 4, 2 * groups), (taps, 3, 2, 3 * groups))),
    ]
    return draw(st.sampled_from(cases))


@contextlib.contextmanager
def cut_serially(rng: np.random.Generator) -> Iterator[list[SerialSplit]]:
    """Cut every contraction that has an axis to cut, along one of its result's axes, each time into any extent."""
    cut: list[SerialSplit] = []
    depth = 0

    def split(form: Any, codelet: Any, *_: Any, **__: Any) -> SerialSplit | None:
        nonlocal depth
        dims = [d for d in form.results[0].dims if form.dims[d].size > 1]
        if depth or not codelet.is_contraction or not dims:
            return None
        d = int(rng.choice(dims))
        extent = 1 if rng.random() < 0.3 else int(rng.integers(1, form.dims[d].size))
        cut.append(
            SerialSplit(d, max(extent, -(-form.dims[d].size // 6)))
        )  # six slices at most: each costs time
        return cut[-1]

    in_turn = OPERATIONS._in_slices

    def slices(*args: Any) -> Any:
        nonlocal depth
        depth += 1  # a slice is not cut again
        try:
            return in_turn(*args)
        finally:
            depth -= 1

    with mock.patch.multiple(OPERATIONS, serial_split=split, _in_slices=slices):
        yield cut


def arrays_of(case: Case, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape).astype(dtype) for shape in case[1]]


def assert_gives_the_unsplit_words(case: Case, dtype: str, executable: Executable, module: Any) -> None:
    """Check every bit on all engines in the ring against the module, which knows nothing of slices."""
    certify(executable)
    arrays = arrays_of(case, dtype)
    want = ring_reference(module, arrays, executable)
    for engine in ENGINES:
        assert_same_words(run(executable, engine, arrays, "ring"), want, f"{engine}, {dtype} {case[1]}")


@given(contractions(), st.sampled_from(["float32", "float16"]), SEEDS, st.booleans())
@budget(PROGRAM)
def test_a_contraction_cut_along_any_axis_gives_the_unsplit_words(case, dtype, seed, is_random):
    """Plans and layouts of the slices are the planner's, or any."""
    function, _ = case
    module = optimized_module(function, arrays_of(case, dtype))
    rng = np.random.default_rng(seed)
    planner = random_planner(seed) if is_random else contextlib.nullcontext()
    with planner, cut_serially(rng) as cut:
        executable = compile_graph(lower_module(module, TARGET), check_memory=False)
    assert any(".turn" in step.name for step in executable.steps) == bool(cut)
    assert_gives_the_unsplit_words(case, dtype, executable, module)


@given(contractions(), st.sampled_from(["float32", "float16"]), st.sampled_from([1e-3, 3e-4, 2e-4, 1e-4]))
@budget(PROGRAM)
def test_a_contraction_that_may_take_little_memory_gives_the_unsplit_words(case, dtype, proportion):
    """As the planner cuts it, if it does."""
    function, _ = case
    module = optimized_module(function, arrays_of(case, dtype))
    names = ("dot", "matmul", "convolution", "conv")
    planner = Planner(Policy({name: proportion for name in names}))
    executable = compile_graph(lower_module(module, TARGET), check_memory=False, planner=planner)
    assert_gives_the_unsplit_words(case, dtype, executable, module)
