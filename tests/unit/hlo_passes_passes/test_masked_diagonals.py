"""Sums of a matrix masked to its diagonal are sums of the diagonal; other masks, other sums and other matrices stay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import ipuxla
from hlo_passes.ir import evaluate_module, print_module
from hlo_passes.ops import Reduce, Select
from hlo_passes.passes import optimize
from hlo_passes.passes.pipeline import DEFAULT_PIPELINE
from ipuxla.frontend.importer import import_stablehlo
from ipuxla.testing import check_engines
from tests.budgets import PLAN, budget
from tiles.numerics.tolerance import check_close

PIPELINE = "inline,fix(canonicalize,fold-constants,cse,dce),masked-diagonals,dce"


def imported(function, *arguments):
    return import_stablehlo(jax.jit(function).lower(*arguments).compiler_ir("stablehlo"))


def check(function, *arguments, is_cut: bool = True) -> None:
    """Require that the pass cuts out a diagonal, or does not, and keeps every bit of sums of whole numbers."""
    module = imported(function, *arguments)
    changed = optimize(module, PIPELINE)
    ops = {
        instruction.op.__class__
        for computation in changed.computations
        for instruction in computation.instructions
    }
    assert (Select not in ops) == is_cut, print_module(changed)
    for found, want in zip(
        evaluate_module(changed, *arguments), evaluate_module(module, *arguments), strict=True
    ):
        assert np.asarray(found).tobytes() == np.asarray(want).tobytes()


def whole_numbers(shape, dtype="float32", seed=0):
    """Return whole numbers; where the type has them, minus zero on the diagonal and NaN beside it."""
    values = np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)
    if np.issubdtype(dtype, np.floating) and min(shape) > 2:
        values[..., 0, 0], values[..., 0, 1], values[..., 1, 0] = -0.0, np.nan, np.inf
    return values


@given(
    st.lists(st.integers(1, 70), min_size=2, max_size=2),
    st.integers(-72, 72),
    st.sampled_from(["float32", "float16", "int32", "uint32"]),
    st.integers(0, 9),
)
@budget(PLAN)
def test_traces(shape, offset, dtype, seed):
    """Of matrices of any shape, along any of their diagonals; an empty one may stay a sum of zeros."""
    x = whole_numbers(shape, dtype, seed)
    module = imported(lambda x: jnp.trace(x, offset), x)
    changed = optimize(module, PIPELINE)
    (found,), (want,) = evaluate_module(changed, x), evaluate_module(module, x)
    assert np.asarray(found).tobytes() == np.asarray(want).tobytes()
    if -shape[0] < offset < shape[1] and min(shape) > 40:
        assert "select" not in print_module(changed)


SUMS = {
    "diagonal": ("ii->i", (80, 80)),
    "of a batch": ("bii->bi", (3, 60, 60)),
    "traces of a batch": ("bii->b", (3, 60, 60)),
    "and of all of them": ("bii->", (3, 60, 60)),
    "last but one": ("iik->ik", (60, 60, 3)),
    "with a sum besides": ("iik->i", (60, 60, 3)),
}


@pytest.mark.parametrize("name", SUMS)
def test_einsums_that_name_an_axis_twice(name):
    equation, shape = SUMS[name]
    check(lambda x: jnp.einsum(equation, x), whole_numbers(shape))


def _masked(x, i, j, other=0.0):
    return jnp.where(i == j, x, other)


def _counter(x, axis, dtype="int32"):
    return lax.broadcasted_iota(dtype, x.shape, axis)


SQUARE = whole_numbers((80, 80))
STAY = {
    "one behind the other": lambda x: _masked(x, _counter(x, 0), _counter(x, 0)[::-1]).sum(),
    "every other": lambda x: _masked(x, 2 * _counter(x, 0), _counter(x, 1)).sum(),
    "counters that begin anew": lambda x: _masked(
        x, _counter(x, 0, "int8") + jnp.int8(100), _counter(x, 1, "int8")
    ).sum(),
    "another number beside it": lambda x: _masked(x, _counter(x, 0), _counter(x, 1), 1.0).sum(),
    "all but the diagonal": lambda x: jnp.where(_counter(x, 0) == _counter(x, 1), 0.0, x).sum(),
    "maxima": lambda x: _masked(x, _counter(x, 0), _counter(x, 1)).max(),
    "from another number": lambda x: lax.reduce(
        _masked(x, _counter(x, 0), _counter(x, 1)), jnp.float32(1), lax.add, (0, 1)
    ),
    "returned too": lambda x: (y := _masked(x, _counter(x, 0), _counter(x, 1)), y.sum()),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name):
    check(STAY[name], SQUARE, is_cut=False)


def test_complex_numbers_are_left_to_their_parts():
    """The pass that makes pairs of them runs before; alone, this one leaves them."""
    x = (SQUARE[2:, 2:] * (1 + 2j)).astype(np.complex64)
    check(jnp.trace, x, is_cut=False)
    text = print_module(optimize(imported(lambda x: jnp.trace(x).real, x)))
    assert "stablehlo.slice" in text and "stablehlo.select" not in text


def test_axes_that_are_no_neighbours_and_sums_along_others_stay():
    check(lambda x: jnp.einsum("iji->j", x), whole_numbers((40, 3, 40)), is_cut=False)
    check(
        lambda x: _masked(x, _counter(x, 1), _counter(x, 2)).sum(0), whole_numbers((3, 40, 40)), is_cut=False
    )


def test_one_of_the_axes_alone_and_a_shifted_diagonal():
    for axis, shift in ((0, 5), (1, 5), (0, -7), (1, -7)):
        check(
            lambda x, axis=axis, shift=shift: _masked(x, _counter(x, 0) + shift, _counter(x, 1)).sum(axis),
            whole_numbers((50, 60)),
        )


def test_what_is_computed_before_is_computed_of_the_diagonal():
    x = whole_numbers((64, 48))
    changed = optimize(imported(lambda x, y: jnp.trace(x * y + 1), x, x), PIPELINE)
    shapes = {
        instruction.result.type.shape
        for computation in changed.computations
        for instruction in computation.instructions
        if instruction.op.name in ("stablehlo.multiply", "stablehlo.add")
    }
    assert shapes == {(48,)}
    assert any(isinstance(i.op, Reduce) for c in changed.computations for i in c.instructions)
    check(lambda x, y: jnp.trace(x * y + 1), x, x)


def test_on_every_engine(small_target):
    def f(x, y):
        return jnp.trace(x @ y, 1), jnp.einsum("ii->i", jnp.tanh(x)), jax.grad(lambda x: jnp.trace(x @ x))(x)

    x, y = (np.random.default_rng(n).standard_normal((24, 24)).astype(np.float32) for n in range(2))
    check_engines(f, small_target, x, y)


def test_a_trace_takes_few_cycles(gc200):
    """It reads a thousand elements of a million: masked, all of them took 8,138 cycles."""
    compiled = (
        ipuxla.jit(jnp.trace, target=gc200).lower(jax.ShapeDtypeStruct((1024, 1024), np.float32)).compile()
    )
    assert compiled.cost_analysis()["cycles"] < 2000


LOOKED_UP = "inline,regular-gathers,fix(canonicalize,fold-constants,cse,dce),masked-diagonals{least=1},dce"


@given(
    st.lists(st.integers(2, 9), min_size=2, max_size=2),
    st.integers(-8, 8),
    st.sampled_from([(0, 1), (1, 2), (0, 1, 2)]),
    st.booleans(),
)
@budget(PLAN)
def test_diagonals_of_what_is_computed_are_looked_up(shape, offset, axes, is_reversed):
    """Along neighbouring dimensions, with others before and behind, in either direction."""
    offset = max(1 - shape[0], min(shape[1] - 1, offset))  # else there is none
    shape = (3, *shape) if axes[0] else (*shape, 3)
    first, second = axes[:2]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)

    def f(x):
        x = -x
        x = jnp.flip(x, second) if is_reversed and offset == 0 else x
        return jnp.diagonal(x, offset, first, second)

    module = imported(f, x)
    changed = optimize(module, LOOKED_UP)
    (found,), (want,) = evaluate_module(changed, x), evaluate_module(module, x)
    np.testing.assert_array_equal(found, want)
    if min(np.shape(want)) > 1 and not is_reversed:
        assert "gather" in print_module(changed), print_module(changed)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.reshape(-1)[::8], lambda x: (-x).reshape(-1)[::7], lambda x: (-x).reshape(-1)[3::10]],
    ids=["of an argument", "columns", "beyond the last column"],
)
def test_slices_that_are_no_diagonals_of_what_is_computed_stay(function):
    x = np.ones((7, 7), np.float32)
    assert "gather" not in print_module(optimize(imported(function, x), LOOKED_UP))


def test_a_diagonal_of_a_product_leaves_it_where_it_is(gc200):
    """All of it was brought into the order of its rows, which took longer than the product."""

    def cycles(function):
        a = jax.ShapeDtypeStruct((256, 4096), jnp.float16)
        return ipuxla.jit(function, target=gc200).lower(a).compile().cost_analysis()["cycles"]

    with_diagonal = cycles(lambda a: (lambda c: (c, jnp.diagonal(c)))((a.T @ a).astype(jnp.float32)))
    assert with_diagonal < 1.1 * cycles(lambda a: (a.T @ a).astype(jnp.float32))


@pytest.mark.parametrize("engine", ["fast", "literal", "vertex"])
def test_lookups_of_diagonals_on_every_engine(small_target, engine):
    def f(x, y):
        return jnp.diagonal(x @ y, 1), jax.grad(lambda x: (jnp.diagonal(x @ x) ** 2).sum())(x)

    x, y = (np.random.default_rng(n).standard_normal((24, 24)).astype(np.float32) for n in range(2))
    passes = DEFAULT_PIPELINE.replace("masked-diagonals", "masked-diagonals{least=1}")
    lowered = ipuxla.jit(f, target=small_target, passes=passes).lower(x, y)
    assert "gather" in lowered.as_text("hlo-optimized")
    compiled = lowered.compile(engine=engine)
    compiled.certify()
    check_close(compiled(x, y), jax.jit(f)(x, y), "diagonals")
