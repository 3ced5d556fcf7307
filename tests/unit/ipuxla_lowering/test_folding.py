"""Reductions by any region on tiles: every engine against ``jax.jit``, and every word in the ring."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ipuxla
from ipuxla.testing import check_engines
from tiles.graph import Extents
from tiles.poplibs.popops import ReduceMany
from tiles.poplibs.popops.fold_many import is_selection
from tiles.target import Basis, Target

X = np.random.default_rng(0).normal(size=(6, 33)).astype(np.float32)
N = np.arange(X.size, dtype=np.int32).reshape(X.shape)


def argmax(a, b):
    """Return the greater of two (value, position), the earlier operand of equals."""
    keep = a[0] >= b[0]
    return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])


def nan_first(a, b):
    """Return the greater of two (value, position): what is no number before all others, the earlier position of equals."""
    first = (a[0] > b[0]) | (a[0] != a[0])
    return jnp.where(first, a[0], b[0]), jnp.where(first | (a[0] == b[0]) & (a[1] < b[1]), a[1], b[1])


def affine(a, b):
    """Return one affine function behind another: not commutative."""
    return a[0] * b[0], b[0] * a[1] + b[1]


def counts(a, b):
    """Return three folds of three element types at once."""
    return a[0] + b[0], a[1] + b[1], a[2] | b[2]


NOTHING = (np.float32(-np.inf), np.int32(-1))
TIES = np.round(X)
NO_NUMBERS = np.where(np.arange(33) % 7 == 5, np.nan, TIES).astype(np.float32)
CASES: dict[str, tuple[Any, ...]] = {  # operands, initial values, region, dimensions
    "several operations": ((X,), np.float32(-np.inf), jnp.logaddexp, (1,)),
    "over everything": ((X,), np.float32(-np.inf), jnp.logaddexp, (0, 1)),
    "half": ((X.astype(np.float16),), np.float16(-np.inf), jnp.logaddexp, (0,)),
    "pairs": ((TIES, N), NOTHING, argmax, (1,)),
    "pairs over two dimensions": ((TIES, N), NOTHING, argmax, (0, 1)),
    "pairs that are no numbers": ((NO_NUMBERS, N), NOTHING, nan_first, (1,)),
    "pairs of nothing": ((X[:, :0], N[:, :0]), NOTHING, argmax, (1,)),
    "no pairs": ((X[:0], N[:0]), NOTHING, argmax, (1,)),
    "in order": ((X / 9 + 1, X), (np.float32(1), np.float32(0)), affine, (1,)),
    "three types": ((X, N, X > 0), (np.float32(1), np.int32(2), np.bool_(False)), counts, (0,)),
    "the last": ((X,), np.float32(0), lambda a, b: b, (1,)),
    "the first": ((X,), np.float32(7), lambda a, b: a, (1,)),
    "a constant": ((X,), np.float32(0), lambda a, b: jnp.float32(3), (1,)),
    "long rows": ((np.tile(X, (1, 5)),), np.float32(-np.inf), jnp.logaddexp, (1,)),
    "a greatest by choice": (
        (np.tile(X, (1, 50)),),
        np.float32(-9),
        lambda a, b: jnp.where(a > b, a, b),
        (1,),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_reductions_by_any_region(case, small_target):
    arrays, starts, region, dimensions = CASES[case]

    def f(*given):
        return lax.reduce(given if len(arrays) > 1 else given[0], starts, region, dimensions)

    engines = ("fast", "literal", "tile") if "pairs" in case else ("fast", "literal")
    check_engines(f, small_target, *arrays, engines=engines, floats=(engines[0], engines[-1]))


def test_a_reduction_over_no_dimension_meets_its_initial_value(small_target):
    """The specification's result; XLA drops the initial value here."""

    def f(x):
        return lax.reduce(x, np.float32(2), lambda a, b: a + b * b, ())

    got = ipuxla.jit(f, target=small_target)(X)
    np.testing.assert_allclose(got, 2 + X * X, rtol=1e-6)


def test_the_first_of_several_nans_is_the_greatest(small_target):
    x = np.array([1, np.nan, 5, np.nan, np.nan, 2], np.float32)
    for f in (jnp.argmax, jnp.argmin):
        assert ipuxla.jit(f, target=small_target)(x) == f(x) == 1


def cycles_and_basis(f, *arguments):
    """Return the estimate of the reduction's vertices where one tile computes all of it, and what it rests on."""
    target = Target.named("gc200").replace(num_tiles=1)
    executable = ipuxla.jit(f, target=target).lower(*arguments).compile().executable
    (group,) = [g for _, g in executable.groups() if isinstance(g.codelet, ReduceMany)]
    operands = tuple(executable.variables[o.variable].dtype for o in group.operands)
    sizes = tuple(np.atleast_1d(dim.size) for dim in group.form.dims)
    found = group.codelet.cycles(Extents(group.form, sizes, operands, group.codelet.dtypes), target)
    return int(found.value.max()), found.basis


def test_argmax_takes_what_poplibs_vertices_take():
    """A worker a row takes 27 + 3 n slots; six workers share a row of floats, 30 + 3 n/6 each, and one joins their six."""
    rows = np.zeros((12, 60), np.float32)
    for f in (jnp.argmax, jnp.argmin):
        assert cycles_and_basis(lambda x, f=f: f(x, 1), rows) == (6 * 2 * (27 + 3 * 59), Basis.DOCUMENTED)
    row = np.zeros((1, 600), np.float16)
    together = 6 * (30 + 3 * 99) + 9 + 6 * (27 + 3 * 5)
    assert cycles_and_basis(lambda x: jnp.argmax(x, 1), row) == (together, Basis.DOCUMENTED)
    integers = np.zeros((6, 60), np.int32)
    assert cycles_and_basis(lambda x: jnp.argmin(x, 1), integers) == (6 * (23 + 6 * 60), Basis.DOCUMENTED)


def test_only_an_extreme_element_with_its_index_takes_so_little():
    def first_of_pairs(a, b):
        keep = a[0] >= b[0]
        return jnp.where(keep, a[0], b[0]), jnp.where(keep, b[1], a[1])

    def reduced(region):
        return lambda x, n: lax.reduce((x, n), NOTHING, region, (1,))

    assert cycles_and_basis(reduced(argmax), X, N)[1] is Basis.DOCUMENTED
    assert cycles_and_basis(reduced(first_of_pairs), X, N)[1] is Basis.DERIVED


def test_a_region_may_loop(small_target):
    """XLA:CPU aborts on a loop in a region, so the witness is the sum that this one amounts to."""

    def f(x):
        return lax.reduce(x, np.float32(0), lambda a, b: lax.fori_loop(0, 2, lambda _, c: c + b / 2, a), (0,))

    np.testing.assert_allclose(ipuxla.jit(f, target=small_target)(X), X.sum(0), rtol=1e-5, atol=1e-6)


def _row(name: str, *operands: int, **attributes: str) -> tuple[Any, ...]:
    return name, operands, tuple(attributes.items())


GREATER = _row("compare", 0, 2, direction="GT")
PICKED = (_row("select", 4, 0, 2), _row("select", 4, 1, 3))
REGIONS: dict[
    str, tuple[tuple[Any, ...], tuple[int, int], bool]
] = {  # rows, results, whether one reduction folds them
    "the later of equals": ((GREATER, *PICKED), (5, 6), False),
    "the later of equal counts": ((_row("compare", 1, 3, direction="GT"), *PICKED), (5, 6), False),
    "what is no number first": (
        (
            GREATER,
            _row("compare", 0, 0, direction="NE"),
            _row("or", 4, 5),
            _row("compare", 0, 2, direction="EQ"),
            _row("compare", 1, 3, direction="LT"),
            _row("and", 7, 8),
            _row("or", 6, 9),
            _row("select", 6, 0, 2),
            _row("select", 10, 1, 3),
        ),
        (11, 12),
        True,
    ),
    "a sum": ((GREATER, _row("select", 4, 0, 2), _row("add", 1, 3)), (5, 6), False),
}


@pytest.mark.parametrize("region", REGIONS)
def test_one_reduction_folds_what_any_order_folds_to_the_same_bits(region):
    rows, results, expected = REGIONS[region]
    assert is_selection(rows, results) == expected
