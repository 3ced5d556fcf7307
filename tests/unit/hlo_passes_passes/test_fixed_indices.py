"""Components of indices that are zero everywhere are left out; all others, and what they find and update, stay."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module
from hlo_passes.ops import Gather, Scatter
from hlo_passes.passes import optimize
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.testing import check_engines
from tests.budgets import PLAN, budget

PIPELINE = "inline,fix(canonicalize,fold-constants,cse,dce),fixed-indices,dce"
MODES = {mode.name: mode for mode in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP)}


def components(module) -> list[int]:
    """Return how many indices each lookup and update takes."""
    found: list[int] = []
    for instruction in (i for computation in module.computations for i in computation.instructions):
        if isinstance(instruction.op, Gather):
            found.append(len(instruction.op.dimension_numbers.start_index_map))
        if isinstance(instruction.op, Scatter):
            found.append(len(instruction.op.dimension_numbers.scatter_dims_to_operand_dims))
    return found


def check(function, *arguments, kept: int, is_told: bool = True) -> None:
    """Require that a lookup, or update, keeps so many indices, and every bit; the witness is ``jax.jit``.

    Where indices can have one value alone, or there is one (not ``is_told``), other passes may leave no lookup at all.
    """
    module = import_stablehlo(jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("stablehlo"))
    changed = optimize(module, PIPELINE)
    assert components(changed) == [kept] or not (is_told or components(changed))
    (found,) = evaluate_module(changed, *arguments)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(jax.jit(function)(*arguments)))


def places(kinds, values):
    """Return index vectors ``[n, len(kinds)]`` whose components are given, zero, or zero by being clamped to it."""
    columns = [
        values[:, n : n + 1]
        if kind == "given"
        else jnp.full((len(values), 1), -(kind == "clamped"), jnp.int32)
        for n, kind in enumerate(kinds)
    ]
    whole = jnp.concatenate(columns, axis=1)
    most = jnp.array([0 if kind == "clamped" else 1 << 30 for kind in kinds], jnp.int32)
    least = jnp.array([0 if kind == "clamped" else -(1 << 30) for kind in kinds], jnp.int32)
    return lax.clamp(jnp.broadcast_to(least, whole.shape), whole, jnp.broadcast_to(most, whole.shape))


KINDS = st.lists(st.sampled_from(["given", "clamped", "given"]), min_size=2, max_size=3)


@given(KINDS, st.lists(st.integers(-2, 7), min_size=3, max_size=12), st.data())
@budget(PLAN)
def test_lookups_and_updates(kinds, numbers, data):
    """Windows of any size, within the array and beyond, that clamp what is beyond or leave it out."""
    rank, count = len(kinds), len(numbers) // 3
    at = np.array(numbers[: count * 3], np.int32).reshape(count, 3)
    x = np.random.default_rng(0).integers(-9, 10, (5, 4, 6)).astype(np.float32)
    windows = tuple(data.draw(st.integers(1, n)) if d < rank else n for d, n in enumerate(x.shape))
    mode = MODES[data.draw(st.sampled_from(sorted(MODES)))]
    # windows as long as the axis begin at zero wherever an index says: lookups clamp it, and JAX the index of an update
    kept = max(1, sum(k == "given" and w < n for k, w, n in zip(kinds, windows, x.shape, strict=False)))
    is_told = any(k == "given" and w < n for k, w, n in zip(kinds, windows, x.shape, strict=False))
    offsets, axes = tuple(range(1, 4)), tuple(range(rank))

    def looked_up(x, at):
        numbers = lax.GatherDimensionNumbers(offsets, (), axes)
        return lax.gather(x, places(kinds, at), numbers, windows, mode=mode)

    def updated(x, at, updates):
        numbers = lax.ScatterDimensionNumbers(offsets, (), axes)
        return lax.scatter_add(x, places(kinds, at), updates, numbers, mode=mode)

    if mode is lax.GatherScatterMode.CLIP:  # else JAX looks at the indices itself, too
        check(looked_up, x, at, kept=kept, is_told=is_told)
        updates = np.ones((count, *windows), np.float32)  # a single one may be sliced, updated and put back
        check(updated, x, at, updates, kept=kept, is_told=is_told and count > 1)
    else:
        for function, arguments in (
            (looked_up, (x, at)),
            (updated, (x, at, np.ones((count, *windows), "f4"))),
        ):
            module = import_stablehlo(
                jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("stablehlo")
            )
            (found,) = evaluate_module(optimize(module, PIPELINE), *arguments)
            np.testing.assert_array_equal(np.asarray(found), np.asarray(jax.jit(function)(*arguments)))


def cached(cache, rows, at):
    put = lambda c, row, i: lax.dynamic_update_slice(c, row[None], (i, 0, 0))  # noqa: E731
    return jax.vmap(put)(cache, rows, at)


def test_rows_of_a_cache_are_put_in_by_one_index():
    """As a decoding step of several sequences does, each at a position of its own, some beyond the end."""
    cache = np.random.default_rng(0).normal(size=(3, 9, 2, 4)).astype(np.float32)
    rows, at = np.ones((3, 2, 4), np.float32), np.array([4, 0, 12], np.int32)
    check(cached, cache, rows, at, kept=1)
    check_engines(cached, ipuxla.Target.named("gc200").replace(num_tiles=6), cache, rows, at)


def test_they_take_what_a_scatter_of_rows_takes():
    shapes = [
        jax.ShapeDtypeStruct(s, d) for s, d in (((8, 512, 8, 64), "f4"), ((8, 8, 64), "f4"), ((8,), "i4"))
    ]

    def scattered(cache, rows, at):
        return cache.at[jnp.arange(8), at].set(rows)

    one, other = (
        ipuxla.jit(f, target="gc200").lower(*shapes).compile().cost_analysis()["cycles"]
        for f in (cached, scattered)
    )
    assert one < 2 * other  # an index from behind and a clamped one are computed more


@pytest.mark.parametrize("bounds", [(0, 1), (-1, 0)])
def test_what_may_be_something_else_stays(bounds):
    x, at = np.arange(20, dtype=np.float32).reshape(4, 5), np.array([[1, 3], [2, -7]], np.int32)

    def looked_up(x, at):
        low, high = (jnp.array([-9, b], jnp.int32) for b in bounds)
        index = lax.clamp(
            jnp.broadcast_to(low, at.shape), at, jnp.broadcast_to(jnp.maximum(high, 0), at.shape)
        )
        numbers = lax.GatherDimensionNumbers((1, 2), (), (0, 1))
        return lax.gather(x, index, numbers, (1, 2), mode="clip")

    module = import_stablehlo(jax.jit(looked_up).lower(x, at).compiler_ir("stablehlo"))
    assert components(optimize(module, PIPELINE)) == [2]


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x, i: x[i, 0], (1, 2)),
        (lambda x, i: x[i], (1, 4)),
        (lambda x, i: x[i, jnp.array([0])], (1, 5, 5)),
        (lambda x, i: jax.vmap(lambda x, i: x[i])(x, i), (3, 1, 2)),
        (lambda x, i: x[:, i], (4, 1, 2)),
    ],
)
def test_tables_of_one_row_are_repeated(function, shape):
    x, i = np.arange(math.prod(shape), dtype=np.float32).reshape(shape), np.array([0, 3, -1])
    assert not components(
        optimize(import_stablehlo(jax.jit(function).lower(x, i).compiler_ir("stablehlo")), PIPELINE)
    )
    check_engines(function, ipuxla.Target.named("gc200").replace(num_tiles=4), x, i)
    found = ipuxla.jit(function, target=ipuxla.Target.named("gc200").replace(num_tiles=4))(x, i)
    np.testing.assert_array_equal(found, jax.jit(function)(x, i))
